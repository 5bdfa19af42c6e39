"""Matrix-unit instructions: tiles of convolution and matmul with accumulation across tiles and a post-processing chain.

Channels are summed in blocks of CHANNEL_BLOCK: for each block, each kernel row, each kernel column, each channel of the
block, one fused multiply-add. A reduction may be cut between blocks, or between kernel rows of one block, and the sum
is the same to the last bit; the compiler cuts nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from npusim import _core
from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.isa.base import (
    F32,
    F64,
    I16,
    I32,
    I64,
    MAX_PRODUCTS,
    U16,
    U32,
    Access,
    Address,
    Flag,
    Instruction,
    Memory,
    Strides3,
    Type,
    Unit,
    instruction,
    span,
)
from npusim.units import ceil_div
from npusim.work import MatrixWork

CHANNEL_BLOCK = 32
"""Channels summed before the kernel window moves on; part of the meaning of ``matrix.conv``."""

NOTHING = 0xFFFF_FFFF_FFFF_FFFF
"""The address of an operand that is not there."""

_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32})
_SMALL = frozenset({DType.INT8, DType.UINT8, DType.INT16})


def accumulator_type(x: DType, w: DType) -> DType:
    """The type in which products of x and w are summed; raises ProgramError for a pair that no unit multiplies."""
    if x in _FLOATS and w == x:
        return DType.FLOAT32
    if (x in _SMALL and w in _SMALL) or (x is DType.INT32 and w is DType.INT32):
        return DType.INT32
    raise ProgramError(f"matrix unit cannot multiply {x.label} by {w.label}")


def rate_type(x: DType, w: DType) -> DType:
    """The type at whose rate products of x and w are computed: the wider one's."""
    return x if x.itemsize >= w.itemsize else w


CHANNEL_STEP = 64
"""Output channels that one step of the kernels takes at most; fewer take it as long."""


def products(work: MatrixWork) -> int:
    """What ``MAX_PRODUCTS`` bounds: the products of an instruction, output channels rounded up to CHANNEL_STEP."""
    return work.macs // work.oc * ceil_div(work.oc, CHANNEL_STEP) * CHANNEL_STEP


# The array's multipliers are 9 bits wide, which is what a byte less a byte needs (ADR 0017).
def weight_zeros(w: DType) -> tuple[int, int]:
    """The lowest and the highest zero point that weights of a type may have: any value of 8 bits, else none but 0."""
    if w not in (DType.INT8, DType.UINT8):
        return 0, 0
    info = np.iinfo(w.storage)
    return int(info.min), int(info.max)


def _check(tile: Conv | Depthwise, *sizes: int) -> None:
    accumulator_type(tile.x_type, tile.w_type)
    if not all(sizes):
        raise ProgramError(f"{tile.mnemonic}: every dimension, stride and dilation must be >= 1")
    low, high = weight_zeros(tile.w_type)
    if not low <= tile.w_zero <= high:
        allowed = f"from {low} to {high}" if low < high else "0"
        raise ProgramError(
            f"{tile.mnemonic}: w_zero of {tile.w_type.label} weights must be {allowed}, got {tile.w_zero}"
        )


def _drain_accesses(
    tile: Conv | Depthwise, batch: int, strides: tuple[int, ...], channels: int
) -> Iterator[Access | None]:
    # Before the last part these fields mean nothing: no bias is read and no output written.
    if not tile.last:
        return
    if tile.bias != NOTHING:
        yield span(tile.bias, (batch * channels,), (4,), 4, False)
    if tile.scale != NOTHING:
        yield span(tile.scale, (batch * channels,), (tile.scale_stride,), 4, False)
    dims = (batch, tile.oh, tile.ow, channels)
    yield span(tile.out, dims, (*strides, tile.out_type.itemsize), tile.out_type.itemsize, True)


def _drain(tile: Conv | Depthwise, memory: Memory, core: int, batch: int, channels: int) -> None:
    """(acc + bias) * scale; / out_scale, rounded to an integer plus out_zero where the output is one; clamped."""
    acc_strides, out_strides = tile.drain_strides()
    if acc_strides[0] == 4 * channels and out_strides[0] == tile.out_type.itemsize * channels:
        batch, channels = 1, batch * channels  # the batch items are neighbouring channels
    bias = memory.at(core, tile.bias, (4 * channels,)) if tile.bias != NOTHING else None
    step = tile.scale_stride
    scale = memory.at(core, tile.scale, (channels * step, step)) if tile.scale != NOTHING else None
    _core.finish(
        accumulator_type(tile.x_type, tile.w_type), tile.out_type, memory.at(core, tile.out, out_strides),
        memory.at(core, tile.acc, acc_strides), (batch, tile.oh, tile.ow, channels), bias, scale, tile.out_zero,
        tile.low, tile.high, tile.out_scale,
    )  # fmt: skip


@instruction(0x20, "matrix.conv", Unit.MATRIX)
class Conv(Instruction):
    """A batch of convolution tiles; a matmul is oh=1, ow=M, ic=K, kh=kw=1, oc=N.

    x: pixels of ``ic`` contiguous channels, padding included. w: [K][oc] dense, K in the order of summation. Integers
    are multiplied as (x - x_zero) * (w - w_zero); only weights of 8 bits have a zero point. acc: ``oc`` contiguous
    accumulators per pixel, set on ``first``, added to otherwise. On ``last`` the accumulators leave
    through (acc + bias) * scale; for integer outputs / out_scale, rint and + out_zero; a clamp to [low, high], into
    ``out_type``. bias and scale: one for each channel of each batch item. Strides (batch, row, pixel) in bytes.
    """

    x_type: Type
    w_type: Type
    out_type: Type
    x: Address
    x_strides: Strides3
    w: Address
    w_batch_stride: I64
    acc: Address
    acc_strides: Strides3
    batch: U32
    oh: U32
    ow: U32
    oc: U32
    ic: U32
    kh: U16
    kw: U16
    sh: U16
    sw: U16
    dh: U16
    dw: U16
    x_zero: I16
    w_zero: I16
    first: Flag
    last: Flag
    out: Address
    out_strides: Strides3
    bias: Address
    scale: Address
    scale_stride: U32
    out_scale: F32
    out_zero: I32
    low: F64
    high: F64
    limit: ClassVar[int] = MAX_PRODUCTS

    def check(self) -> None:
        window = (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw)
        _check(self, self.batch, self.oh, self.ow, self.oc, self.ic, *window)

    def drain_strides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.acc_strides, self.out_strides

    def elements(self) -> int:
        return products(self.work())

    def accesses(self) -> Iterator[Access | None]:
        xb, xr, xp = self.x_strides
        item = self.x_type.itemsize
        # Output rows and kernel rows both walk input rows, so as dimensions of one operand their reaches add up.
        window = (self.oh, self.ow, self.kh, self.kw, self.ic)
        steps = (xr * self.sh, xp * self.sw, xr * self.dh, xp * self.dw, item)
        yield span(self.x, (self.batch, *window), (xb, *steps), item, False)
        k, witem = self.ic * self.kh * self.kw, self.w_type.itemsize
        yield span(self.w, (self.batch, k * self.oc), (self.w_batch_stride, witem), witem, False)
        yield span(self.acc, (self.batch, self.oh, self.ow, self.oc), (*self.acc_strides, 4), 4, True)
        yield from _drain_accesses(self, self.batch, self.out_strides, self.oc)

    def work(self) -> MatrixWork:
        return MatrixWork(
            rate_type(self.x_type, self.w_type),
            self.batch, self.oh, self.ow, self.oc, self.ic, self.kh, self.kw, False, self.first, self.last,
            self.out_type.itemsize,
        )  # fmt: skip

    def execute(self, memory: Memory, core: int) -> None:
        x = memory.at(core, self.x, self.x_strides)
        w = memory.at(core, self.w, (self.w_batch_stride,))
        acc = memory.at(core, self.acc, self.acc_strides)
        _core.conv(
            self.x_type, self.w_type, x, w, acc, (self.batch, self.oh, self.ow, self.oc, self.ic),
            (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw), CHANNEL_BLOCK, self.x_zero, self.first, self.w_zero,
        )  # fmt: skip
        if self.last:
            _drain(self, memory, core, self.batch, self.oc)


@instruction(0x21, "matrix.depthwise", Unit.MATRIX)
class Depthwise(Instruction):
    """A depthwise convolution tile: output channel c * mult + m is input channel c with a filter of its own.

    x: pixels of ``channels`` contiguous channels, padding included; w: [kh][kw][channels * mult]; strides (row, pixel).
    The rest is as in ``matrix.conv``.
    """

    x_type: Type
    w_type: Type
    out_type: Type
    x: Address
    x_row: I64
    x_pixel: I64
    w: Address
    acc: Address
    acc_row: I64
    acc_pixel: I64
    oh: U32
    ow: U32
    channels: U32
    mult: U32
    kh: U16
    kw: U16
    sh: U16
    sw: U16
    dh: U16
    dw: U16
    x_zero: I16
    w_zero: I16
    first: Flag
    last: Flag
    out: Address
    out_row: I64
    out_pixel: I64
    bias: Address
    scale: Address
    scale_stride: U32
    out_scale: F32
    out_zero: I32
    low: F64
    high: F64
    limit: ClassVar[int] = MAX_PRODUCTS

    def check(self) -> None:
        window = (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw)
        _check(self, self.oh, self.ow, self.channels, self.mult, *window)

    def drain_strides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (0, self.acc_row, self.acc_pixel), (0, self.out_row, self.out_pixel)

    def elements(self) -> int:
        return products(self.work())

    def accesses(self) -> Iterator[Access | None]:
        item = self.x_type.itemsize
        dims = (self.oh, self.ow, self.kh, self.kw, self.channels)
        steps = (self.x_row * self.sh, self.x_pixel * self.sw, self.x_row * self.dh, self.x_pixel * self.dw, item)
        yield span(self.x, dims, steps, item, False)
        oc, witem = self.channels * self.mult, self.w_type.itemsize
        yield span(self.w, (self.kh * self.kw * oc,), (witem,), witem, False)
        yield span(self.acc, (self.oh, self.ow, oc), (self.acc_row, self.acc_pixel, 4), 4, True)
        yield from _drain_accesses(self, 1, (0, self.out_row, self.out_pixel), oc)

    def work(self) -> MatrixWork:
        return MatrixWork(
            rate_type(self.x_type, self.w_type),
            1, self.oh, self.ow, self.channels * self.mult, self.channels, self.kh, self.kw, True, self.first,
            self.last,
            self.out_type.itemsize,
        )  # fmt: skip

    def execute(self, memory: Memory, core: int) -> None:
        x = memory.at(core, self.x, (self.x_row, self.x_pixel))
        w = memory.at(core, self.w)
        acc = memory.at(core, self.acc, (self.acc_row, self.acc_pixel))
        _core.depthwise(
            self.x_type, self.w_type, x, w, acc, (self.oh, self.ow, self.channels, self.mult),
            (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw), self.x_zero, self.first, self.w_zero,
        )  # fmt: skip
        if self.last:
            _drain(self, memory, core, 1, self.channels * self.mult)
