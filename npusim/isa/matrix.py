"""Matrix-unit instructions: tiles of convolution and matmul with accumulation across tiles and an epilogue.

Channels are summed in blocks of CHANNEL_BLOCK: for each block, each kernel row, each kernel column, each channel of the
block, one fused multiply-add. A reduction of floats may be split between blocks, between kernel rows of one block, or
between kernel columns of one row, with the same result to the last bit. Integers may be split anywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import product
from math import prod
from typing import Annotated, Any, ClassVar

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
    TAIL,
    U16,
    U32,
    Access,
    Address,
    Call,
    Flag,
    Instruction,
    Memory,
    Strides3,
    Type,
    Unit,
    instruction,
    perform,
    span,
)
from npusim.isa.matrix_extras import NO_EXTRAS, NOTHING, Extras, unpacked_weights
from npusim.isa.matrix_types import (
    BYTES,
    CHANNEL_BLOCK,
    PACKED_BITS,
    accumulator_type,
    packed_bytes,
    rate_type,
    weight_zeros,
)
from npusim.isa.skipped_weights import Phase, Run, WeightShape, block_weights, phase_weights, phases, runs
from npusim.units import ceil_div
from npusim.work import MatrixWork

CHANNEL_STEP = 64
"""Most output channels of one step of the kernels; fewer take as long."""


GATHER_PRODUCTS = 1 << 14
"""Products that take the host as long as to gather the weights of a block."""


def products(work: MatrixWork) -> int:
    """The products of an instruction with output channels rounded up to CHANNEL_STEP, limited by ``MAX_PRODUCTS``."""
    return work.places // work.oc * ceil_div(work.oc, CHANNEL_STEP) * CHANNEL_STEP


def _check(tile: Conv | Depthwise, *sizes: int) -> None:
    extras = tile.extras
    scaled = extras.w_scale != NOTHING
    accumulator_type(tile.x_type, tile.w_type, wide=extras.wide, scaled=scaled)
    if not all(sizes):
        raise ProgramError(f"{tile.mnemonic}: every dimension, stride and dilation must be >= 1")
    # A dequantized weight has its own zero points.
    low, high = (0, 0) if scaled else weight_zeros(tile.w_type)
    if not low <= tile.w_zero <= high:
        allowed = f"from {low} to {high}" if low < high else "0"
        raise ProgramError(
            f"{tile.mnemonic}: w_zero of {tile.w_type.label} weights must be {allowed}, got {tile.w_zero}"
        )
    if extras.w_bits and (extras.w_bits not in PACKED_BITS or tile.w_type not in BYTES):
        raise ProgramError(f"{tile.mnemonic}: {tile.w_type.label} weights cannot have {extras.w_bits} bits")
    if extras.w_skip >= max(1, extras.w_block) or scaled != (extras.w_block > 0):
        raise ProgramError(f"{tile.mnemonic}: w_block {extras.w_block} must be above w_skip, and 0 without w_scale")
    if extras.w_zeros != NOTHING and not scaled:
        raise ProgramError(f"{tile.mnemonic}: w_zeros must have w_scale")
    _check_skipped(tile)


def _check_skipped(tile: Conv | Depthwise) -> None:
    """Check blocks and phases. An instruction has at most one of them."""
    extras = tile.extras
    blocks, phases = (extras.block_ic, extras.block_oc), (extras.phase_oc, extras.phase_rows, extras.phase_cols)
    if isinstance(tile, Depthwise) and (any(blocks) or any(phases)):
        raise ProgramError(f"{tile.mnemonic}: weights have no blocks and no phases, got {blocks} and {phases}")
    if extras.pixel_blocks and not (isinstance(tile, Conv) and all(blocks) and tile.is_plain_product()):
        raise ProgramError(f"{tile.mnemonic}: pixel_blocks must be those of a product of plain weights with blocks")
    if any(blocks) != all(blocks) or (not any(blocks) and extras.first_ic):
        raise ProgramError(f"{tile.mnemonic}: block_ic, block_oc must both be >= 1, or both 0 as first_ic")
    if any(phases) != all(phases):
        raise ProgramError(f"{tile.mnemonic}: phase_oc, phase_rows, phase_cols must all be >= 1, or all 0")
    if any(blocks) and any(phases) and extras.block_oc != prod(phases):
        raise ProgramError(f"{tile.mnemonic}: {prod(phases)} output channels of phases in blocks of {extras.block_oc}")
    for low, full, count in (
        (extras.low_rows, extras.full_rows, extras.phase_rows),
        (extras.low_cols, extras.full_cols, extras.phase_cols),
    ):
        if not low <= full <= count:
            raise ProgramError(
                f"{tile.mnemonic}: phases with a full kernel must be among 0 to {count}, got {low} to {full}"
            )
    if isinstance(tile, Conv) and any(phases) and not any(blocks) and extras.first_oc + tile.oc > prod(phases):
        raise ProgramError(f"{tile.mnemonic}: output channels end at {extras.first_oc + tile.oc} of {prod(phases)}")
    if extras.first_oc and not any(blocks) and not any(phases):
        raise ProgramError(f"{tile.mnemonic}: first_oc must have blocks or phases")


def _weight_accesses(tile: Conv | Depthwise, batch: int, k: int, channels: int, stride: int) -> Iterator[Access | None]:
    extras = tile.extras
    size = packed_bytes(k * channels, tile.w_type, extras.w_bits)
    yield span(tile.w, (batch, size), (stride, 1), 1, False)
    if extras.w_scale == NOTHING:
        return
    count = ceil_div(k + extras.w_skip, extras.w_block) * channels
    yield span(extras.w_scale, (batch, count), (count * 4, 4), 4, False)
    if extras.w_zeros != NOTHING:
        yield span(extras.w_zeros, (batch, count), (count, 1), 1, False)


def _drain_accesses(
    tile: Conv | Depthwise, batch: int, strides: tuple[int, ...], channels: int
) -> Iterator[Access | None]:
    # Only the last part reads a bias and writes an output.
    if not tile.last:
        return
    for address in (tile.bias, tile.extras.shift):
        if address != NOTHING:
            yield span(address, (batch * channels,), (4,), 4, False)
    if tile.scale != NOTHING:
        yield span(tile.scale, (batch * channels,), (tile.scale_stride,), 4, False)
    dims = (batch, tile.oh, tile.ow, channels)
    yield span(tile.out, dims, (*strides, tile.out_type.itemsize), tile.out_type.itemsize, True)


def _accumulator(tile: Conv | Depthwise) -> DType:
    extras = tile.extras
    return accumulator_type(tile.x_type, tile.w_type, wide=extras.wide, scaled=extras.w_scale != NOTHING)


@functools.lru_cache(1 << 12)
def _work(
    x_type: DType,
    w_type: DType,
    out_type: DType,
    wide: bool,
    scaled: bool,
    w_bits: int,
    batch: int,
    oh: int,
    ow: int,
    oc: int,
    ic: int,
    kh: int,
    kw: int,
    depthwise: bool,
    first: bool,
    last: bool,
    idle: int = 0,
) -> MatrixWork:
    """The work of a tile, cached, because streams have few different ones."""
    rate = rate_type(x_type, w_type)
    # The width is only given if the weights are narrower than the type of the rate.
    narrow = 8 * w_type.itemsize if w_type.itemsize < rate.itemsize else 0
    sums = accumulator_type(x_type, w_type, wide=wide, scaled=scaled)
    return MatrixWork(
        rate, batch, oh, ow, oc, ic, kh, kw, depthwise, first, last, out_type.itemsize, sums.itemsize, w_bits or narrow,
        idle,
    )  # fmt: skip


def _pixel_zero(tile: Conv | Depthwise) -> int:
    """x_zero as a value of the type of x; the field has 16 bits."""
    return tile.x_zero & 0xFFFF if tile.x_type is DType.UINT16 else tile.x_zero


def _draining(tile: Conv | Depthwise, memory: Memory, core: int, batch: int, channels: int) -> Call:
    """The epilogue: (acc + bias) * scale + shift; for integer outputs / out_scale, rounded, plus out_zero; clamped."""
    acc_strides, out_strides = tile.drain_strides()
    kind = _accumulator(tile)
    if acc_strides[0] == kind.itemsize * channels and out_strides[0] == tile.out_type.itemsize * channels:
        batch, channels = 1, batch * channels  # batch items as adjacent channels
    rows = (4 * channels,)
    bias = memory.at(core, tile.bias, rows) if tile.bias != NOTHING else None
    shift = memory.at(core, tile.extras.shift, rows) if tile.extras.shift != NOTHING else None
    step = tile.scale_stride
    scale = memory.at(core, tile.scale, (channels * step, step)) if tile.scale != NOTHING else None
    arguments = (
        kind,
        tile.out_type,
        memory.at(core, tile.out, out_strides),
        memory.at(core, tile.acc, acc_strides),
        (batch, tile.oh, tile.ow, channels),
        bias,
        scale,
        tile.out_zero,
        tile.low,
        tile.high,
        tile.out_scale,
        shift,
    )
    return _core.finish, arguments


@instruction(0x20, "matrix.conv", Unit.MATRIX)
class Conv(Instruction):
    """A batch of convolution tiles. A matmul is oh=1, ow=M, ic=K, kh=kw=1, oc=N.

    x: pixels of ``ic`` contiguous channels, including padding. w: [K][oc] dense, with K in the order of summation.
    Integers are multiplied as (x - x_zero) * (w - w_zero); only 8-bit weights have a zero point. acc: ``oc`` contiguous
    accumulators per pixel, set on ``first``, otherwise added to. On ``last`` the epilogue computes (acc + bias) *
    scale; for integer outputs / out_scale, rint, + out_zero; then clamps to [low, high] and converts to ``out_type``.
    bias and scale: one per channel of each batch item. Strides are (batch, row, pixel) in bytes. ``Extras`` adds 64-bit
    sums, packed weights, dequantized weights, a shift, block-diagonal weights and phases.
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
    extras: Annotated[Extras, TAIL, Extras.from_bytes] = NO_EXTRAS
    limit: ClassVar[int] = MAX_PRODUCTS

    def check(self) -> None:
        window = (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw)
        _check(self, self.batch, self.oh, self.ow, self.oc, self.ic, *window)

    def drain_strides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Strides of the accumulators and of the output, (batch, row, pixel) in bytes."""
        return self.acc_strides, self.out_strides

    def elements(self) -> int:
        part = self.extras.phase_oc or (0 if self.extras.pixel_blocks else self.extras.block_oc)
        gathers = self.batch * (ceil_div(self.oc, part) + 1) if part else 0
        return products(self.work()) + gathers * GATHER_PRODUCTS

    def accesses(self) -> Iterator[Access | None]:
        xb, xr, xp = self.x_strides
        item = self.x_type.itemsize
        # Output rows and kernel rows both step over input rows, so as dimensions of one operand their extents add up.
        window = (self.oh, self.ow, self.kh, self.kw, self.ic)
        steps = (xr * self.sh, xp * self.sw, xr * self.dh, xp * self.dw, item)
        yield span(self.x, (self.batch, *window), (xb, *steps), item, False)
        k, sum_bytes = self.ic * self.kh * self.kw, _accumulator(self).itemsize
        yield from _weight_accesses(self, self.batch, k, self.oc, self.w_batch_stride)
        yield span(self.acc, (self.batch, self.oh, self.ow, self.oc), (*self.acc_strides, sum_bytes), sum_bytes, True)
        yield from _drain_accesses(self, self.batch, self.out_strides, self.oc)

    def work(self) -> MatrixWork:
        extras = self.extras
        return _work(
            self.x_type,
            self.w_type,
            self.out_type,
            extras.wide,
            extras.w_scale != NOTHING,
            extras.w_bits,
            self.batch,
            self.oh,
            self.ow,
            self.oc,
            self.ic,
            self.kh,
            self.kw,
            False,
            self.first,
            self.last,
            self._idle() if extras.block_ic or extras.phase_oc else 0,
        )

    def is_plain_product(self) -> bool:
        """Whether the tile is a product of rows of pixels with weights of their full type, without scales and
        phases."""
        single = self.oh == self.kh == self.kw == self.sw == 1
        return single and not self.extras.w_bits and self.extras.w_scale == NOTHING and not self.extras.phase_oc

    def _idle(self) -> int:
        """Products that are not computed, but take time."""
        if self.extras.pixel_blocks:
            used = sum(run.blocks * run.ic * run.oc for run in runs(self.extras, self.ic, self.ow))
            return self.batch * self.oc * (self.ow * self.ic - used)
        whole = [Run(1, self.ic, self.oc, 0, 0)]
        products = 0
        for run in runs(self.extras, self.ic, self.oc) if self.extras.block_ic else whole:
            taps = run.oc * self.kh * self.kw
            if self.extras.phase_oc:
                taps = sum(phase.oc * phase.kh * phase.kw for phase in self._of_block(run).phases())
            products += run.blocks * run.ic * taps
        return self.batch * self.oh * self.ow * (self.kh * self.kw * self.ic * self.oc - products)

    def execute(self, memory: Memory, core: int) -> None:
        if self.extras.block_ic or self.extras.phase_oc:
            self._execute_parts(memory, core)
        else:
            perform(self._calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        extras = self.extras
        # Packed and dequantized weights are computed from data.
        in_parts = extras.block_ic or extras.phase_oc or extras.w_bits or extras.w_scale != NOTHING
        return Instruction.calls(self, memory, core) if in_parts else self._calls(memory, core)

    def _calls(self, memory: Memory, core: int) -> Sequence[Call]:
        x = memory.at(core, self.x, self.x_strides)
        w_type, w = self._unpacked(memory, core)
        acc = memory.at(core, self.acc, self.acc_strides)
        product = self._product(w_type, x, w, acc, (self.batch, self.oh, self.ow, self.oc, self.ic))
        return (product, _draining(self, memory, core, self.batch, self.oc)) if self.last else (product,)

    def _unpacked(self, memory: Memory, core: int) -> tuple[DType, _core.Strided]:
        dims, strides = (self.batch, self.ic * self.kh * self.kw, self.oc), (self.w_batch_stride,)
        return unpacked_weights((self.x_type, self.w_type), self.w, self.extras, memory, core, dims, strides)

    def _execute_parts(self, memory: Memory, core: int) -> None:
        w_type, w = self._unpacked(memory, core)
        if self.extras.pixel_blocks:
            self._execute_pixel_blocks(memory, core, w_type)
        elif self.extras.block_ic:
            self._execute_blocks(memory, core, w_type, w)
        else:
            self._execute_phases(memory, core, w_type, w)
        if self.last:
            perform([_draining(self, memory, core, self.batch, self.oc)])

    def _product(
        self,
        w_type: DType,
        x: _core.Strided,
        w: _core.Strided,
        acc: _core.Strided,
        dims: tuple[int, ...],
        kernel: tuple[int, int] | None = None,
    ) -> Call:
        arguments = (
            self.x_type,
            w_type,
            x,
            w,
            acc,
            dims,
            (*(kernel or (self.kh, self.kw)), self.sh, self.sw, self.dh, self.dw),
            CHANNEL_BLOCK,
            _pixel_zero(self),
            self.first,
            self.w_zero,
        )
        return _core.conv_wide if self.extras.wide else _core.conv, arguments

    def _multiply(self, *given: Any) -> None:
        perform([self._product(*given)])

    def phases(self) -> list[Phase]:
        """The phases of the output channels. Only valid for an instruction with phases."""
        return phases(self.extras, self.oc, (self.kh, self.kw))

    def _weight_shape(self, w_type: DType) -> WeightShape:
        return WeightShape(self.batch, self.ic, self.oc, self.kh, self.kw, w_type.itemsize, CHANNEL_BLOCK)

    def _of_block(self, run: Run, number: int = 0, index: int = 0) -> Conv:
        """A block of a run for one batch item, as a separate convolution."""
        extras, made = self.extras, copy(self)
        first = (extras.first_oc + run.at_oc) % extras.block_oc if extras.block_oc else extras.first_oc
        made.extras = replace(extras, block_ic=0, block_oc=0, first_ic=0, first_oc=first)
        made.batch, made.ic, made.oc = 1, run.ic, run.oc
        channels = run.at_ic + number * run.ic, run.at_oc + number * run.oc
        made.x += index * self.x_strides[0] + channels[0] * self.x_type.itemsize
        made.acc += index * self.acc_strides[0] + channels[1] * _accumulator(self).itemsize
        return made

    def _execute_blocks(self, memory: Memory, core: int, w_type: DType, w: _core.Strided) -> None:
        """Compute each block as a separate convolution. Output channels without inputs in this tile get zeros."""
        found, size, item = runs(self.extras, self.ic, self.oc), _accumulator(self).itemsize, self.x_type.itemsize
        if self.first:
            ends = (found[0].at_oc, found[-1].at_oc + found[-1].blocks * found[-1].oc) if found else (self.oc, self.oc)
            for low, high in ((0, ends[0]), (ends[1], self.oc)):
                self._clear(memory, core, low, high)
        for index, run in product(range(self.batch), found):
            weights = block_weights(w, self._weight_shape(w_type), index, run)
            if self.extras.phase_oc:
                for number in range(run.blocks):
                    one = _core.Strided(weights.memory, number * weights.strides[0], (0,))
                    self._of_block(run, number, index)._execute_phases(memory, core, w_type, one)
                continue
            x_at = self.x + index * self.x_strides[0] + run.at_ic * item
            acc_at = self.acc + index * self.acc_strides[0] + run.at_oc * size
            self._multiply(
                w_type,
                memory.at(core, x_at, (run.ic * item, *self.x_strides[1:])),
                weights,
                memory.at(core, acc_at, (run.oc * size, *self.acc_strides[1:])),
                (run.blocks, self.oh, self.ow, run.oc, run.ic),
            )

    def _execute_pixel_blocks(self, memory: Memory, core: int, w_type: DType) -> None:
        """Compute the pixels of each block as a product of their own; pixels without inputs in this tile get zeros."""
        found, size, item = runs(self.extras, self.ic, self.ow), _accumulator(self).itemsize, self.x_type.itemsize
        (x_batch, x_row, x_pixel), (acc_batch, acc_row, acc_pixel) = self.x_strides, self.acc_strides
        for index in range(self.batch):
            x, acc = self.x + index * x_batch, self.acc + index * acc_batch
            w = self.w + index * self.w_batch_stride
            if self.first:
                ends = (found[0].at_oc, found[-1].at_oc + found[-1].blocks * found[-1].oc) if found else (self.ow,) * 2
                for low, high in ((0, ends[0]), (ends[1], self.ow)):
                    if low < high:
                        unused = memory.at(core, acc + low * acc_pixel, (0, acc_row, acc_pixel, size))
                        _core.fill(unused, (1, 1, high - low, self.oc), size, 0)
            for run in found:
                # A block begins so many pixels and input channels behind the one before it.
                x_step, w_step = run.oc * x_pixel + run.ic * item, run.ic * self.oc * w_type.itemsize
                self._multiply(
                    w_type,
                    memory.at(core, x + run.at_oc * x_pixel + run.at_ic * item, (x_step, x_row, x_pixel)),
                    memory.at(core, w + run.at_ic * self.oc * w_type.itemsize, (w_step,)),
                    memory.at(core, acc + run.at_oc * acc_pixel, (run.oc * acc_pixel, acc_row, acc_pixel)),
                    (run.blocks, 1, run.oc, self.oc, run.ic),
                )

    def _clear(self, memory: Memory, core: int, low: int, high: int) -> None:
        """Set the accumulators of output channels ``low`` to ``high`` to 0."""
        size = _accumulator(self).itemsize
        if low < high:
            acc = memory.at(core, self.acc + low * size, (*self.acc_strides, size))
            _core.fill(acc, (self.batch, self.oh, self.ow, high - low), size, 0)

    def _execute_phases(self, memory: Memory, core: int, w_type: DType, w: _core.Strided) -> None:
        """Compute each phase as a convolution with its own kernel rows and columns."""
        size, (_, row, pixel) = _accumulator(self).itemsize, self.x_strides
        for phase in self.phases():
            if not (phase.kh and phase.kw):
                if self.first:
                    self._clear(memory, core, phase.at_oc, phase.at_oc + phase.oc)
                continue
            x_at = self.x + phase.down * self.dh * row + phase.right * self.dw * pixel
            self._multiply(
                w_type,
                memory.at(core, x_at, self.x_strides),
                phase_weights(w, self._weight_shape(w_type), phase),
                memory.at(core, self.acc + phase.at_oc * size, self.acc_strides),
                (self.batch, self.oh, self.ow, phase.oc, self.ic),
                (phase.kh, phase.kw),
            )


@instruction(0x21, "matrix.depthwise", Unit.MATRIX)
class Depthwise(Instruction):
    """A depthwise convolution tile. Output channel c * mult + m is input channel c with filter m of that channel.

    x: pixels of ``channels`` contiguous channels, including padding. w: [kh][kw][channels * mult]. Strides are (row,
    pixel). All else is as in ``matrix.conv``.
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
    extras: Annotated[Extras, TAIL, Extras.from_bytes] = NO_EXTRAS
    limit: ClassVar[int] = MAX_PRODUCTS

    def check(self) -> None:
        window = (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw)
        _check(self, self.oh, self.ow, self.channels, self.mult, *window)

    def drain_strides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Strides of the accumulators and of the output, (batch, row, pixel) in bytes."""
        return (0, self.acc_row, self.acc_pixel), (0, self.out_row, self.out_pixel)

    def elements(self) -> int:
        return products(self.work())

    def accesses(self) -> Iterator[Access | None]:
        item = self.x_type.itemsize
        dims = (self.oh, self.ow, self.kh, self.kw, self.channels)
        steps = (self.x_row * self.sh, self.x_pixel * self.sw, self.x_row * self.dh, self.x_pixel * self.dw, item)
        yield span(self.x, dims, steps, item, False)
        oc, sum_bytes = self.channels * self.mult, _accumulator(self).itemsize
        yield from _weight_accesses(self, 1, self.kh * self.kw, oc, 0)
        yield span(self.acc, (self.oh, self.ow, oc), (self.acc_row, self.acc_pixel, sum_bytes), sum_bytes, True)
        yield from _drain_accesses(self, 1, (0, self.out_row, self.out_pixel), oc)

    def work(self) -> MatrixWork:
        extras = self.extras
        return _work(
            self.x_type,
            self.w_type,
            self.out_type,
            extras.wide,
            extras.w_scale != NOTHING,
            extras.w_bits,
            1,
            self.oh,
            self.ow,
            self.channels * self.mult,
            self.channels,
            self.kh,
            self.kw,
            True,
            self.first,
            self.last,
        )

    def execute(self, memory: Memory, core: int) -> None:
        perform(self._calls(memory, core))

    def calls(self, memory: Memory, core: int) -> Sequence[Call]:
        # Packed and dequantized weights are computed from data.
        computed = self.extras.w_bits or self.extras.w_scale != NOTHING
        return Instruction.calls(self, memory, core) if computed else self._calls(memory, core)

    def _calls(self, memory: Memory, core: int) -> Sequence[Call]:
        x = memory.at(core, self.x, (self.x_row, self.x_pixel))
        oc = self.channels * self.mult
        dims = 1, self.kh * self.kw, oc
        w_type, w = unpacked_weights((self.x_type, self.w_type), self.w, self.extras, memory, core, dims)
        acc = memory.at(core, self.acc, (self.acc_row, self.acc_pixel))
        arguments = (
            self.x_type,
            w_type,
            x,
            w,
            acc,
            (self.oh, self.ow, self.channels, self.mult),
            (self.kh, self.kw, self.sh, self.sw, self.dh, self.dw),
            _pixel_zero(self),
            self.first,
            self.w_zero,
            self.extras.wide,
        )
        product = _core.depthwise, arguments
        return (product, _draining(self, memory, core, 1, oc)) if self.last else (product,)
