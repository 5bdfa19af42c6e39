"""Vector instructions that combine many elements: reductions, functions of whole rows, windows, interpolation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from math import prod
from typing import ClassVar

import numpy as np

from npusim import _core
from npusim._core import Strided
from npusim.dtypes import DType, bfloat16_to_float32, float32_to_bfloat16
from npusim.errors import ProgramError
from npusim.isa.base import (
    F64,
    U8,
    U16,
    U32,
    Access,
    Address,
    Dims3,
    Dims4,
    Flag,
    Instruction,
    Memory,
    ReduceFn,
    Strides3,
    Strides4,
    Type,
    Unit,
    check_row,
    instruction,
    loops,
    span,
)
from npusim.work import VectorWork, Work

POOL_FUNCTIONS = ("max", "average", "l2")
"""The functions of ``vector.pool`` by code."""

ACCUMULATOR_BYTES = 8
"""A reduction accumulates in float64 or int64, so splitting it into tiles loses no precision."""


class Convertible(Instruction):
    """Common part of instructions that also have a form with conversion (see ``isa.quantised``)."""

    __slots__ = ()
    dtype: Type

    @property
    def source_type(self) -> DType:
        """The type of the elements that are read."""
        return self.dtype

    @property
    def result_type(self) -> DType:
        """The type of the elements that are written."""
        return self.dtype


@instruction(0x40, "vector.reduce", Unit.VECTOR)
class ReduceTile(Convertible):
    """Fold src into 8-byte accumulators (strides 0 on reduced dimensions), in row-major order. ``first`` initialises
    them.

    On ``last`` the accumulators (``acc_dims``) are finished: MEAN divides by ``count``, L2 takes the root. The result
    is written to dst in ``dtype``.
    """

    fn: ReduceFn
    dtype: Type
    acc: Address
    acc_strides: Strides4
    src: Address
    src_strides: Strides4
    dims: Dims4
    first: Flag
    last: Flag
    dst: Address
    dst_strides: Strides4
    count: U32

    @property
    def acc_dims(self) -> tuple[int, ...]:
        """The dimensions of the accumulators: 1 for reduced dimensions."""
        # A stride of 0 marks a reduced dimension; the encoding has no field for it.
        return tuple(dim if stride else 1 for dim, stride in zip(self.dims, self.acc_strides, strict=True))

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, self.source_type.itemsize, False)
        yield span(self.acc, self.acc_dims, self.acc_strides, ACCUMULATOR_BYTES, True)
        if self.last:
            yield span(self.dst, self.acc_dims, self.dst_strides, self.result_type.itemsize, True)

    def work(self) -> Work:
        results = prod(self.acc_dims)
        elements = prod(self.dims)
        moved = elements * self.source_type.itemsize + results * self.result_type.itemsize * self.last
        return VectorWork("reduce", self.dtype, elements + results * self.last, 1, moved)

    def execute(self, memory: Memory, core: int) -> None:
        acc, src = self.operands(memory, core, "acc", "src")
        _core.reduce(self.fn, self.dtype, acc, src, self.dims, self.first)
        if self.last:
            dst = memory.at(core, self.dst, self.dst_strides)
            _core.reduce_finish(self.fn, self.dtype, dst, acc, self.acc_dims, self.count)


@dataclasses.dataclass(slots=True)
class RowInstruction(Instruction):
    """Common part of instructions on whole rows: src to dst, rows along the middle of dims (outer, row, inner)."""

    dtype: Type
    dst: Address
    dst_strides: Strides3
    src: Address
    src_strides: Strides3
    dims: Dims3

    def check(self) -> None:
        check_row(self.mnemonic, self.dims[1], self.src_strides[1])

    def elements(self) -> int:
        return loops(*self.dims)

    def accesses(self) -> Iterator[Access | None]:
        yield span(self.src, self.dims, self.src_strides, self.dtype.itemsize, False)
        yield span(self.dst, self.dims, self.dst_strides, self.dtype.itemsize, True)

    def _work(self, function: str, passes: int) -> VectorWork:
        elements = prod(self.dims)
        return VectorWork(function, self.dtype, elements, passes, elements * self.dtype.itemsize * (passes + 1))

    def _operands(self, memory: Memory, core: int) -> tuple[DType, Strided, Strided, tuple[int, ...]]:
        """The leading arguments of a row kernel."""
        dst, src = self.operands(memory, core, "dst", "src")
        return self.dtype, dst, src, self.dims


@instruction(0x41, "vector.arg_reduce", Unit.VECTOR)
class ArgReduce(RowInstruction):
    """The INT64 position of the maximum (fn 0) or minimum (1) of each row."""

    fn: U8
    select_last: Flag

    def check(self) -> None:
        if self.fn > 1:
            raise ProgramError(f"vector.arg_reduce: function must be 0 (maximum) or 1 (minimum), got {self.fn}")
        RowInstruction.check(self)

    def accesses(self) -> Iterator[Access | None]:
        outer, _, inner = self.dims
        yield span(self.src, self.dims, self.src_strides, self.dtype.itemsize, False)
        yield span(self.dst, (outer, 1, inner), self.dst_strides, 8, True)

    def work(self) -> Work:
        outer, row, inner = self.dims
        elements = outer * row * inner
        return VectorWork("reduce", self.dtype, elements, 1, elements * self.dtype.itemsize + outer * inner * 8)

    def execute(self, memory: Memory, core: int) -> None:
        _core.arg_reduce(self.fn, *self._operands(memory, core), self.select_last)


@instruction(0x42, "vector.softmax", Unit.VECTOR)
class Softmax(RowInstruction):
    """Softmax, or its logarithm, of each row, in three passes: maximum, sum, quotient.

    ``masked``: a row that is all -inf gives zeros instead of NaN.
    """

    log: Flag
    masked: Flag

    def work(self) -> Work:
        return self._work("transcendental", 3)

    def execute(self, memory: Memory, core: int) -> None:
        _core.softmax(*self._operands(memory, core), self.log, self.masked)


@instruction(0x43, "vector.normalize", Unit.VECTOR)
class Normalize(RowInstruction):
    """(x - mean) / sqrt(variance + epsilon) of each row; rms: x / sqrt(mean of squares + epsilon)."""

    rms: Flag
    epsilon: F64

    def work(self) -> Work:
        return self._work("simple", 2 if self.rms else 3)

    def execute(self, memory: Memory, core: int) -> None:
        _core.normalize(*self._operands(memory, core), self.rms, self.epsilon)


@instruction(0x44, "vector.cumsum", Unit.VECTOR)
class CumSum(RowInstruction):
    """Running sums of each row."""

    exclusive: Flag
    reverse: Flag

    def work(self) -> Work:
        return self._work("reduce", 1)

    def execute(self, memory: Memory, core: int) -> None:
        _core.cumsum(*self._operands(memory, core), self.exclusive, self.reverse)


@instruction(0x49, "vector.cumprod", Unit.VECTOR)
class CumProd(RowInstruction):
    """Running products of each row. Floats are computed in double and rounded once, integers wrap."""

    exclusive: Flag
    reverse: Flag

    def check(self) -> None:
        if self.dtype is DType.BOOL:
            raise ProgramError("vector.cumprod: type must be a number, got bool")
        RowInstruction.check(self)

    def work(self) -> Work:
        return self._work("reduce", 1)

    def execute(self, memory: Memory, core: int) -> None:
        _, to, at, _ = self._operands(memory, core)
        dst = np.ndarray(self.dims, self.dtype.storage, to.memory, to.offset, self.dst_strides)
        src = np.ndarray(self.dims, self.dtype.storage, at.memory, at.offset, self.src_strides)
        # bfloat16 is stored as uint16 and would otherwise be multiplied as that.
        exact = bfloat16_to_float32(src) if self.dtype is DType.BFLOAT16 else src
        with np.errstate(all="ignore"):
            wide = exact.astype(np.float64 if self.dtype.is_float else np.int64)
        products = np.ones_like(wide)
        forth = slice(None, None, -1 if self.reverse else 1)
        late = int(self.exclusive)
        with np.errstate(all="ignore"):
            np.multiply.accumulate(wide[:, forth][:, : self.dims[1] - late], 1, out=products[:, late:])
            results = products[:, forth]
            if self.dtype is DType.BFLOAT16:
                dst[...] = float32_to_bfloat16(results.astype(np.float32))
            else:  # half floats are rounded to float32 first, as in all other kernels
                dst[...] = results.astype(np.float32) if self.dtype.is_float else results


@instruction(0x45, "vector.lrn", Unit.VECTOR)
class Lrn(RowInstruction):
    """Local response normalisation over a window of ``size`` along each row."""

    size: U32
    alpha: F64
    beta: F64
    bias: F64

    def elements(self) -> int:
        return loops(*self.dims, min(self.size, self.dims[1]))

    def work(self) -> Work:
        return self._work("transcendental", 2)

    def execute(self, memory: Memory, core: int) -> None:
        _core.lrn(*self._operands(memory, core), self.size, self.alpha, self.beta, self.bias)


# The compiler asks for the same tiles repeatedly.
@functools.lru_cache(maxsize=1 << 12)
def _taps_inside(windows: int, stride: int, taps: int, dilation: int, before: int, size: int) -> int:
    """Number of taps of all windows along an axis of ``size`` that are not in the padding of ``before``."""

    # For each tap, of which there are at most 65 535, count the windows in which it is on the axis.
    at = np.arange(taps, dtype=np.int64) * dilation - before
    first, end = (np.clip(-((at - limit) // stride), 0, windows) for limit in (0, size))
    return int((end - first).sum())


@instruction(0x46, "vector.pool", Unit.VECTOR)
class Pool(Convertible):
    """Windows over src [ih][iw][channels], which has valid pixels only. ``pads`` (top, left, bottom, right): padding
    around it.

    Dims and strides of both sides are (rows, columns, channels). A maximum ignores padding. An average counts it only
    with count_include_pad.
    """

    fn: U8
    dtype: Type
    dst: Address
    dst_strides: Strides3
    src: Address
    src_strides: Strides3
    ih: U32
    iw: U32
    oh: U32
    ow: U32
    channels: U32
    kh: U16
    kw: U16
    sh: U16
    sw: U16
    dh: U16
    dw: U16
    pads: Dims4
    count_include_pad: Flag

    def check(self) -> None:
        if self.fn >= len(POOL_FUNCTIONS):
            raise ProgramError(f"vector.pool: function must be below {len(POOL_FUNCTIONS)}, got {self.fn}")
        if not all((self.kh, self.kw, self.sh, self.sw, self.dh, self.dw)):
            raise ProgramError("vector.pool: kernel, stride and dilation must be >= 1")

    def elements(self) -> int:
        return loops(self.oh, self.ow, self.channels, min(self.kh, self.ih), min(self.kw, self.iw))

    def accesses(self) -> Iterator[Access | None]:
        # Windows may be larger than the source: the kernel clips each to the ih x iw valid pixels, so
        # that box is the bound.
        yield span(self.src, (self.ih, self.iw, self.channels), self.src_strides, self.source_type.itemsize, False)
        yield span(self.dst, (self.oh, self.ow, self.channels), self.dst_strides, self.result_type.itemsize, True)

    def work(self) -> Work:
        """Taps on padding are not counted, because their values are known."""
        self.check()  # because reports process unverified programs, too
        results = self.oh * self.ow * self.channels
        rows = _taps_inside(self.oh, self.sh, self.kh, self.dh, self.pads[0], self.ih)
        cols = _taps_inside(self.ow, self.sw, self.kw, self.dw, self.pads[1], self.iw)
        moved = self.ih * self.iw * self.channels * self.source_type.itemsize + results * self.result_type.itemsize
        return VectorWork("reduce", self.dtype, max(results, rows * cols * self.channels), 1, moved)

    def execute(self, memory: Memory, core: int) -> None:
        dst, src = self.operands(memory, core, "dst", "src")
        _core.pool(
            self.fn,
            self.dtype,
            dst,
            src,
            (self.oh, self.ow, self.channels),
            (self.ih, self.iw),
            (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw),
            self.pads,
            self.count_include_pad,
        )


@instruction(0x47, "vector.resample", Unit.VECTOR)
class Resample(Convertible):
    """dst[o, j, i] = sum over t of weight[j, t] * src[o, index[j, t], i]. A negative index contributes nothing.

    dims: (outer, results, inner). ``axis``: source elements along the axis. Tables are [results][taps].
    """

    dtype: Type
    dst: Address
    dst_strides: Strides3
    src: Address
    src_strides: Strides3
    dims: Dims3
    axis: U32
    index: Address
    weight: Address
    taps: U32
    data_decides: ClassVar[bool] = True

    def elements(self) -> int:
        return loops(*self.dims, self.taps)

    def accesses(self) -> Iterator[Access | None]:
        outer, results, inner = self.dims
        # The elements are only known with the table, so the whole axis is bounded; the kernel checks the indices.
        yield span(self.src, (outer, self.axis, inner), self.src_strides, self.source_type.itemsize, False)
        yield span(self.index, (results * self.taps,), (4,), 4, False)
        yield span(self.weight, (results * self.taps,), (4,), 4, False)
        yield span(self.dst, self.dims, self.dst_strides, self.result_type.itemsize, True)

    def work(self) -> Work:
        outer, results, inner = self.dims
        elements = prod(self.dims) * self.taps
        moved = outer * self.axis * inner * self.source_type.itemsize + results * self.taps * 8
        moved += prod(self.dims) * self.result_type.itemsize
        return VectorWork("simple", self.dtype, elements, 1, moved)

    def execute(self, memory: Memory, core: int) -> None:
        dst, src = self.operands(memory, core, "dst", "src")
        self.resample(memory, core, self.dtype, dst, src)

    def resample(self, memory: Memory, core: int, dtype: DType, dst: Strided, src: Strided) -> None:
        """Resample elements of type ``dtype``. Raises ProgramError for an index outside the source."""
        index = memory.at(core, self.index)
        weight = memory.at(core, self.weight)
        bad = _core.resample(dtype, dst, src, self.dims, self.axis, index, weight, self.taps)
        if bad >= 0:
            raise ProgramError(f"vector.resample: index {bad} is outside the {self.axis} source elements")
