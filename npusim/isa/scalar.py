"""Scalar-unit instructions: one element at a time, for data-dependent work."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import ClassVar

from npusim import _core
from npusim.errors import ProgramError
from npusim.isa.base import (
    U8,
    U32,
    Access,
    Address,
    Dims3,
    Flag,
    Instruction,
    Memory,
    Strides3,
    Type,
    Unit,
    check_index_type,
    check_itemsize,
    check_row,
    instruction,
    loops,
    span,
)
from npusim.work import ScalarWork, Work

REDUCTIONS = ("none", "add", "mul", "max", "min")
"""The reductions of ``scalar.scatter`` by code."""


@instruction(0x50, "scalar.gather_elements", Unit.SCALAR)
class GatherElements(Instruction):
    """dst[o, j, i] = data[o, index[o, j, i], i]. Negative indices count from the end of ``axis_size``."""

    itemsize: U8
    dst: Address
    dst_strides: Strides3
    data: Address
    data_strides: Strides3
    index_type: Type
    index: Address
    index_strides: Strides3
    dims: Dims3
    axis_size: U32
    data_decides: ClassVar[bool] = True

    def check(self) -> None:
        check_itemsize(self.itemsize)
        check_index_type(self.index_type)

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        outer, _, inner = self.dims
        # The positions depend on data, so the whole axis must be readable; an index outside is a fault at run time.
        yield span(self.data, (outer, self.axis_size, inner), self.data_strides, self.itemsize, False)
        yield span(self.index, self.dims, self.index_strides, self.index_type.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.itemsize, True)

    def work(self) -> Work:
        count = prod(self.dims)
        return ScalarWork(count, count * (2 * self.itemsize + self.index_type.itemsize))

    def execute(self, memory: Memory, core: int) -> None:
        dst, data, index = self.operands(memory, core, "dst", "data", "index")
        bad = _core.gather(dst, data, index, self.index_type, self.dims, self.axis_size, self.itemsize)
        if bad >= 0:
            self.refuse_index(index, self.index_strides, bad)


@instruction(0x51, "scalar.scatter", Unit.SCALAR)
class Scatter(Instruction):
    """dst[o, index[o, j, i], i] = updates[o, j, i], or combined with the present value, in order of j."""

    dtype: Type
    dst: Address
    dst_strides: Strides3
    updates: Address
    updates_strides: Strides3
    index_type: Type
    index: Address
    index_strides: Strides3
    dims: Dims3
    axis_size: U32
    reduction: U8
    data_decides: ClassVar[bool] = True

    def check(self) -> None:
        if self.reduction >= len(REDUCTIONS):
            raise ProgramError(f"scalar.scatter: reduction must be below {len(REDUCTIONS)}, got {self.reduction}")
        check_index_type(self.index_type)

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        outer, _, inner = self.dims
        yield span(self.updates, self.dims, self.updates_strides, self.dtype.itemsize, False)
        yield span(self.index, self.dims, self.index_strides, self.index_type.itemsize, False)
        # The positions depend on data: any element of the axis may be written, but none outside.
        yield span(self.dst, (outer, self.axis_size, inner), self.dst_strides, self.dtype.itemsize, True)

    def work(self) -> Work:
        count = prod(self.dims)
        return ScalarWork(count, count * (2 * self.dtype.itemsize + self.index_type.itemsize))

    def execute(self, memory: Memory, core: int) -> None:
        dst, updates, index = self.operands(memory, core, "dst", "updates", "index")
        bad = _core.scatter(dst, updates, index, self.index_type, self.dims, self.axis_size, self.dtype, self.reduction)
        if bad >= 0:
            self.refuse_index(index, self.index_strides, bad)


@instruction(0x52, "scalar.topk", Unit.SCALAR)
class TopK(Instruction):
    """The k largest or smallest elements of each row, sorted, with INT64 positions. Ties go to the lower position."""

    dtype: Type
    values: Address
    values_strides: Strides3
    indices: Address
    indices_strides: Strides3
    src: Address
    src_strides: Strides3
    dims: Dims3
    k: U32
    largest: Flag
    data_decides: ClassVar[bool] = True

    def check(self) -> None:
        if self.k > self.dims[1]:
            raise ProgramError(f"scalar.topk: k must be at most the row length {self.dims[1]}, got {self.k}")
        check_row("scalar.topk", self.dims[1], self.src_strides[1])

    def elements(self) -> int:
        return loops(*self.dims, self.dims[1].bit_length())  # rows are sorted

    def accesses(self) -> Iterator[Access | None]:
        outer, _, inner = self.dims
        yield span(self.src, self.dims, self.src_strides, self.dtype.itemsize, False)
        yield span(self.values, (outer, self.k, inner), self.values_strides, self.dtype.itemsize, True)
        yield span(self.indices, (outer, self.k, inner), self.indices_strides, 8, True)

    def work(self) -> Work:
        outer, row, inner = self.dims
        levels = max(1, (self.k - 1).bit_length())  # a heap of k elements: one comparison per level for each element
        results = outer * inner * self.k
        return ScalarWork(
            outer * row * inner * levels,
            outer * row * inner * self.dtype.itemsize + results * (8 + self.dtype.itemsize),
        )

    def execute(self, memory: Memory, core: int) -> None:
        values, indices, src = self.operands(memory, core, "values", "indices", "src")
        _core.topk(self.dtype, values, indices, src, self.dims, self.k, self.largest)
