"""Elementwise vector instructions: one result per element. A stride of 0 broadcasts an operand."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from npusim import _core
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import (
    F64,
    Access,
    Address,
    BinaryFn,
    Call,
    Dims4,
    Instruction,
    Memory,
    Strides4,
    Type,
    UnaryFn,
    Unit,
    instruction,
    loops,
    perform,
    span,
)
from npusim.isa.functions import COMPARISONS, PREDICATES, binary_cost, unary_cost
from npusim.work import VectorWork, Work

ENTRIES = 256
"""Entries of the table of a lookup."""


@functools.lru_cache(1 << 12)
def _work(
    function: str, dtype: DType, dims: tuple[int, ...], operands: tuple[tuple[tuple[int, ...], DType], ...]
) -> VectorWork:
    """The work of an elementwise instruction: each distinct element of every operand is read or written once. Cached,
    because streams have few different shapes."""
    moved = sum(
        # Broadcast elements are assumed to stay in a register of the unit, without further accesses.
        prod(dim for dim, stride in zip(dims, strides, strict=True) if stride) * kind.itemsize
        for strides, kind in operands
    )
    return VectorWork(function, dtype, prod(dims), 1, moved)


@instruction(0x30, "vector.unary", Unit.VECTOR)
class UnaryOp(Instruction):
    """dst = fn(src), with parameters p0 and p1 if the function has any."""

    fn: UnaryFn
    dtype: Type
    dst: Address
    dst_strides: Strides4
    src: Address
    src_strides: Strides4
    dims: Dims4
    p0: F64
    p1: F64

    @property
    def out_type(self) -> DType:
        """The type of the result."""
        return DType.BOOL if self.fn in PREDICATES else self.dtype

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, self.dtype.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.out_type.itemsize, True)

    def work(self) -> Work:
        operands = ((self.src_strides, self.dtype), (self.dst_strides, self.out_type))
        return _work(unary_cost(self.fn), self.dtype, self.dims, operands)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        dst, src = self.operands(memory, core, "dst", "src")
        return ((_core.unary, (self.fn, self.dtype, dst, src, self.dims, self.p0, self.p1)),)


@instruction(0x31, "vector.binary", Unit.VECTOR)
class BinaryOp(Instruction):
    """dst = fn(a, b). Both operands have the same type; comparisons give BOOL."""

    fn: BinaryFn
    dtype: Type
    dst: Address
    dst_strides: Strides4
    a: Address
    a_strides: Strides4
    b: Address
    b_strides: Strides4
    dims: Dims4

    @property
    def out_type(self) -> DType:
        """The type of the result."""
        return DType.BOOL if self.fn in COMPARISONS else self.dtype

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.a, self.dims, self.a_strides, self.dtype.itemsize, False)
        yield span(self.b, self.dims, self.b_strides, self.dtype.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.out_type.itemsize, True)

    def work(self) -> Work:
        operands = ((self.a_strides, self.dtype), (self.b_strides, self.dtype), (self.dst_strides, self.out_type))
        return _work(binary_cost(self.fn), self.dtype, self.dims, operands)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        dst, a, b = self.operands(memory, core, "dst", "a", "b")
        return ((_core.binary, (self.fn, self.dtype, dst, a, b, self.dims)),)


@instruction(0x33, "vector.select", Unit.VECTOR)
class Select(Instruction):
    """dst = condition ? a : b."""

    dtype: Type
    dst: Address
    dst_strides: Strides4
    condition: Address
    condition_strides: Strides4
    a: Address
    a_strides: Strides4
    b: Address
    b_strides: Strides4
    dims: Dims4

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.condition, self.dims, self.condition_strides, 1, False)
        yield span(self.a, self.dims, self.a_strides, self.dtype.itemsize, False)
        yield span(self.b, self.dims, self.b_strides, self.dtype.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.dtype.itemsize, True)

    def work(self) -> Work:
        operands = tuple((strides, self.dtype) for strides in (self.a_strides, self.b_strides, self.dst_strides))
        return _work("simple", self.dtype, self.dims, ((self.condition_strides, DType.BOOL), *operands))

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        dst, condition, a, b = self.operands(memory, core, "dst", "condition", "a", "b")
        return ((_core.select, (self.dtype.itemsize, dst, condition, a, b, self.dims)),)


@instruction(0x34, "vector.cast", Unit.VECTOR)
class Cast(Instruction):
    """dst = src in another type. Float to integer truncates and saturates; to BOOL is != 0."""

    dst_type: Type
    dst: Address
    dst_strides: Strides4
    src_type: Type
    src: Address
    src_strides: Strides4
    dims: Dims4

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, self.src_type.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.dst_type.itemsize, True)

    def work(self) -> Work:
        operands = ((self.src_strides, self.src_type), (self.dst_strides, self.dst_type))
        return _work("convert", self.src_type, self.dims, operands)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        dst, src = self.operands(memory, core, "dst", "src")
        return ((_core.cast, (self.dst_type, dst, self.src_type, src, self.dims)),)


@dataclasses.dataclass(slots=True)
class Conversion(Instruction):
    """Conversion between stored integers and floats: src with a FLOAT32 scale and an INT32 zero point, both with their
    own strides."""

    dst_type: Type
    dst: Address
    dst_strides: Strides4
    src_type: Type
    src: Address
    src_strides: Strides4
    scale: Address
    scale_strides: Strides4
    zero: Address
    zero_strides: Strides4
    dims: Dims4
    kernel: ClassVar[Callable[..., None]]

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, self.src_type.itemsize, False)
        yield span(self.scale, self.dims, self.scale_strides, 4, False)
        yield span(self.zero, self.dims, self.zero_strides, 4, False)
        yield span(self.dst, self.dims, self.dst_strides, self.dst_type.itemsize, True)

    def work(self) -> Work:
        parameters = ((self.scale_strides, DType.FLOAT32), (self.zero_strides, DType.INT32))
        operands = ((self.src_strides, self.src_type), (self.dst_strides, self.dst_type), *parameters)
        return _work("convert", self.src_type, self.dims, operands)

    def execute(self, memory: Memory, core: int) -> None:
        perform(self.calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        dst, src, scale, zero = self.operands(memory, core, "dst", "src", "scale", "zero")
        return ((self.kernel, (self.dst_type, dst, self.src_type, src, scale, zero, self.dims)),)


@instruction(0x35, "vector.quantize", Unit.VECTOR)
class Quantize(Conversion):
    """dst = clamp(rint(float32(src) / scale) + zero)."""

    kernel = staticmethod(_core.quantize)


@instruction(0x36, "vector.dequantize", Unit.VECTOR)
class Dequantize(Conversion):
    """dst = float32(src - zero) * scale, rounded to dst_type."""

    kernel = staticmethod(_core.dequantize)


@instruction(0x37, "vector.lookup", Unit.VECTOR)
class Lookup(Instruction):
    """dst = the entry of an 8-bit src in a table of 256 entries. The first entry is that of the lowest value of the
    type."""

    dst_type: Type
    dst: Address
    dst_strides: Strides4
    src_type: Type
    src: Address
    src_strides: Strides4
    table: Address
    dims: Dims4

    def check(self) -> None:
        if self.src_type not in (DType.INT8, DType.UINT8):
            raise ProgramError(f"vector.lookup: type must be int8 or uint8, got {self.src_type.label}")

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, 1, False)
        yield span(self.table, (ENTRIES,), (self.dst_type.itemsize,), self.dst_type.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.dst_type.itemsize, True)

    def work(self) -> Work:
        # Costs as much as a transcendental function of floats, which units compute by tables.
        operands = ((self.src_strides, self.src_type), (self.dst_strides, self.dst_type))
        return _work("transcendental", DType.FLOAT32, self.dims, operands)

    def execute(self, memory: Memory, core: int) -> None:
        dst, src = self.operands(memory, core, "dst", "src")
        entries = memory.at(core, self.table)
        item = self.dst_type.storage
        table = np.ndarray((ENTRIES,), item, entries.memory, entries.offset).copy()
        values = np.ndarray(self.dims, self.src_type.storage, src.memory, src.offset, self.src_strides)
        target = np.ndarray(self.dims, item, dst.memory, dst.offset, self.dst_strides)
        target[...] = table[values.astype(np.int16) - np.iinfo(values.dtype).min]
