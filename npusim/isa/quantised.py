"""Vector instructions with conversion: their operands or results are quantised integers.

The unit dequantises elements as it reads them and quantises elements as it writes them. Each conversion costs one more
operation per element. ``dtype`` is the type of the integers, ``real`` that of the numbers they stand for. A side with a
scale of 0 has numbers of that type and is not converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim import _core
from npusim._core import Strided
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import F32, I32, Memory, Type, Unit, instruction
from npusim.isa.reduction import Convertible, Pool, ReduceTile, Resample
from npusim.work import VectorWork, Work

_Reals = npt.NDArray[Any]
_REALS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


def _strided(array: _Reals) -> Strided:
    """An array in the form that kernels take."""
    return Strided(array.reshape(-1).view(np.uint8) if array.size else b"", 0, array.strides)


def _parameters(scale: float, zero: int) -> tuple[Strided, Strided]:
    nowhere = (0, 0, 0, 0)
    return Strided(np.float32(scale).tobytes(), 0, nowhere), Strided(np.int32(zero).tobytes(), 0, nowhere)


@dataclass
class _Converting(Convertible):
    """Common part of these instructions. It is the first base class of each, so that its fields come last."""

    __slots__ = ()
    in_scale: F32
    in_zero: I32
    out_scale: F32
    out_zero: I32
    real: Type

    @property
    def source_type(self) -> DType:
        return self.dtype if self.in_scale else self.real

    @property
    def result_type(self) -> DType:
        return self.dtype if self.out_scale else self.real

    def check(self) -> None:
        super().check()
        if self.dtype not in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16):
            raise ProgramError(f"{self.mnemonic}: type must be int8, uint8, int16 or uint16, got {self.dtype.label}")
        if self.real not in _REALS:
            raise ProgramError(f"{self.mnemonic}: real must be float32, float16 or bfloat16, got {self.real.label}")
        scales = self.in_scale, self.out_scale
        if not all(isfinite(scale) for scale in scales):
            raise ProgramError(f"{self.mnemonic}: scales must be finite, got {', '.join(map(str, scales))}")

    def converting(self, work: Work, read: int, written: int) -> VectorWork:
        """The work with one more element for each conversion, in the lanes of floats."""
        assert isinstance(work, VectorWork)
        converted = read * bool(self.in_scale) + written * bool(self.out_scale)
        return VectorWork(work.function, self.real, work.elements * work.passes + converted, 1, work.bytes)

    def numbers(self, at: Strided, strides: Sequence[int], dims: tuple[int, ...]) -> _Reals:
        """The numbers that an operand of four dimensions stands for."""
        x = np.empty(dims, self.real.storage)
        source = Strided(at.memory, at.offset, tuple(strides))
        if self.in_scale:
            parameters = _parameters(self.in_scale, self.in_zero)
            _core.dequantize(self.real, _strided(x), self.dtype, source, *parameters, dims)
        else:
            _core.copy(_strided(x), source, dims, self.real.itemsize)
        return x

    def write(self, y: _Reals, at: Strided, strides: Sequence[int]) -> None:
        """Store numbers of four dimensions, or the integers that stand for them."""
        target = Strided(at.memory, at.offset, tuple(strides))
        if self.out_scale:
            parameters = _parameters(self.out_scale, self.out_zero)
            _core.quantize(self.dtype, target, self.real, _strided(y), *parameters, y.shape)
        else:
            _core.copy(target, _strided(y), y.shape, self.real.itemsize)


@instruction(0x4B, "vector.pool_quantised", Unit.VECTOR)
class QuantisedPool(_Converting, Pool):
    """As vector.pool, with quantised operand and result."""

    def work(self) -> Work:
        inside, results = self.ih * self.iw * self.channels, self.oh * self.ow * self.channels
        return self.converting(Pool.work(self), inside, results)

    def execute(self, memory: Memory, core: int) -> None:
        dst, src = self.operands(memory, core, "dst", "src")
        extent, dims = (self.ih, self.iw), (self.oh, self.ow, self.channels)
        x = self.numbers(src, (0, *self.src_strides), (1, *extent, self.channels))
        y = np.empty(dims, self.real.storage)
        sides = _strided(y), _strided(x[0])
        window = self.kh, self.kw, self.sh, self.sw, self.dh, self.dw
        _core.pool(self.fn, self.real, *sides, dims, extent, window, self.pads, self.count_include_pad)
        self.write(y[np.newaxis], dst, (0, *self.dst_strides))


@instruction(0x4C, "vector.reduce_quantised", Unit.VECTOR)
class QuantisedReduce(_Converting, ReduceTile):
    """As vector.reduce, with quantised operand and result."""

    def work(self) -> Work:
        elements, results = self.elements() * all(self.dims), int(np.prod(self.acc_dims)) * self.last
        return self.converting(ReduceTile.work(self), elements, results)

    def execute(self, memory: Memory, core: int) -> None:
        acc, src = self.operands(memory, core, "acc", "src")
        x = self.numbers(src, self.src_strides, self.dims)
        _core.reduce(self.fn, self.real, acc, _strided(x), self.dims, self.first)
        if self.last:
            y = np.empty(self.acc_dims, self.real.storage)
            _core.reduce_finish(self.fn, self.real, _strided(y), acc, self.acc_dims, self.count)
            dst = memory.at(core, self.dst)
            self.write(y, dst, self.dst_strides)


@instruction(0x4D, "vector.resample_quantised", Unit.VECTOR)
class QuantisedResample(_Converting, Resample):
    """As vector.resample, with quantised operand and result."""

    def work(self) -> Work:
        outer, results, inner = self.dims
        return self.converting(Resample.work(self), outer * self.axis * inner, outer * results * inner)

    def execute(self, memory: Memory, core: int) -> None:
        dst, src = self.operands(memory, core, "dst", "src")
        outer, _, inner = self.dims
        x = self.numbers(src, (0, *self.src_strides), (1, outer, self.axis, inner))
        y = np.empty(self.dims, self.real.storage)
        self.resample(memory, core, self.real, _strided(y), _strided(x[0]))
        self.write(y[np.newaxis], dst, (0, *self.dst_strides))
