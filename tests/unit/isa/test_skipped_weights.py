"""Weights that ``matrix.conv`` does not multiply: between diagonal blocks, and taps that a phase does not have."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.hw.config import load_config
from npusim.isa.base import sram
from npusim.isa.matrix import Conv, Depthwise
from npusim.isa.matrix_extras import NO_EXTRAS, NOTHING, Extras
from npusim.isa.matrix_types import CHANNEL_BLOCK
from npusim.sim.memory import DeviceMemory, JobMemory
from tests.support.programs.any_instruction import Executable

EDGE = load_config("edge")
X, W, ACC, OUT = 0, 1 << 14, 1 << 16, 1 << 17
OH, OW, KERNEL = 2, 3, 2


def conv(ic: int, oc: int, extras: Extras, dtype: DType, *, batch: int = 1, first: bool = True) -> Conv:
    """Return a convolution of dense operands whose input has one more row and column than its result."""
    item, pixel = dtype.itemsize, batch * ic * dtype.itemsize
    sums = 8 if extras.wide else 4
    return Conv(
        dtype, dtype, DType.FLOAT32 if dtype.is_float else DType.INT32, sram(X), (ic * item, (OW + 1) * pixel, pixel),
        sram(W), KERNEL * KERNEL * ic * oc * item, sram(ACC),
        (oc * sums, OW * batch * oc * sums, batch * oc * sums), batch, OH, OW, oc, ic, KERNEL, KERNEL, 1, 1, 1, 1, 0, 0,
        first, False, sram(OUT), (0, 0, 0), NOTHING, NOTHING, 0, 1.0, 0, -np.inf, np.inf, extras,
    )  # fmt: skip


Array = npt.NDArray[Any]


def sums(tile: Conv, x: Array, w: Array) -> Array:
    """Return the accumulators [OH, OW, batch * oc] as bytes, with initial sums of 7."""
    memory = DeviceMemory(EDGE)
    for address, data in ((X, x), (W, w)):
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        memory.sram[0][address : address + raw.size] = raw
    size = tile.acc_strides[1] * OH
    kind = np.float32 if tile.x_type.is_float else np.int64 if tile.extras.wide else np.int32
    memory.sram[0][ACC : ACC + size] = np.full(size // np.dtype(kind).itemsize, 7, kind).view(np.uint8)
    tile.execute(JobMemory(memory, []), 0)
    return memory.sram[0][ACC : ACC + size].view(kind).reshape(OH, OW, -1).copy()


def in_order(w: Array) -> Array:
    """Return [KH, KW, I, O] in the order of the unit."""
    blocks = [w[:, :, at : at + CHANNEL_BLOCK].reshape(-1) for at in range(0, w.shape[2], CHANNEL_BLOCK)]
    return np.concatenate(blocks)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("dtype", "wide"), [(DType.FLOAT32, False), (DType.INT8, False), (DType.INT8, True)])
@pytest.mark.parametrize(("block_ic", "block_oc"), [(1, 1), (3, 2), (20, 5), (48, 1)])
def test_parts_of_blocks(block_ic: int, block_oc: int, dtype: DType, wide: bool, first: bool) -> None:
    """For any part of a diagonal, weights outside of the blocks have no effect, even NaN."""
    rng = np.random.default_rng(block_ic)
    for _ in range(6):
        ic, oc = (int(rng.integers(1, 3 * size + 2)) for size in (block_ic, block_oc))
        at_ic, at_oc = (int(rng.integers(0, 3 * size)) for size in (block_ic, block_oc))
        kind = np.float32 if dtype.is_float else np.int8
        x = rng.integers(-9, 10, (OH + 1, OW + 1, ic)).astype(kind)
        w = rng.integers(-9, 10, (KERNEL, KERNEL, ic, oc)).astype(kind)
        if dtype.is_float:
            x, w = x / np.float32(7), w / np.float32(3)
            x[rng.random(x.shape) < 0.1] = np.inf
        extras = Extras(wide, 0, block_ic=block_ic, block_oc=block_oc, first_ic=at_ic, first_oc=at_oc)
        tile = conv(ic, oc, extras, dtype, first=first)
        found = sums(tile, x, in_order(w))
        wanted = np.full(found.shape, 0 if first else 7, found.dtype)
        used = 0
        for block in {(at_oc + channel) // block_oc for channel in range(oc)}:
            inputs = [c for c in range(ic) if (at_ic + c) // block_ic == block]
            outputs = [c for c in range(oc) if (at_oc + c) // block_oc == block]
            used += len(inputs) * len(outputs)
            if inputs:
                small = conv(len(inputs), len(outputs), Extras(True) if wide else NO_EXTRAS, dtype, first=first)
                wanted[..., outputs] = sums(small, x[..., inputs], in_order(w[:, :, inputs][..., outputs]))
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))
        assert tile.work().macs == OH * OW * KERNEL**2 * used
        assert tile.work().places == OH * OW * KERNEL**2 * ic * oc


def test_a_batch_of_groups() -> None:
    rng, extras = np.random.default_rng(0), Extras(block_ic=4, block_oc=2)
    x = rng.integers(-9, 10, (OH + 1, OW + 1, 3 * 8)).astype(np.int8)
    w = rng.integers(-9, 10, (3, KERNEL, KERNEL, 8, 4)).astype(np.int8)
    both = sums(conv(8, 4, extras, DType.INT8, batch=3), x, np.concatenate([in_order(each) for each in w]))
    for group in range(3):
        one = sums(conv(8, 4, extras, DType.INT8), x[..., 8 * group : 8 * group + 8], in_order(w[group]))
        np.testing.assert_array_equal(both[..., 4 * group : 4 * group + 4], one)


def product(pixels: int, ic: int, oc: int, extras: Extras, dtype: DType, *, batch: int = 1, first: bool = True) -> Conv:
    """Return a product of dense operands, rows of pixels by weights."""
    item, size = dtype.itemsize, 8 if extras.wide else 4
    return Conv(
        dtype, dtype, DType.FLOAT32 if dtype.is_float else DType.INT32, sram(X), (pixels * ic * item, 0, ic * item),
        sram(W), ic * oc * item, sram(ACC), (pixels * oc * size, batch * pixels * oc * size, oc * size), batch, 1,
        pixels, oc, ic, 1, 1, 1, 1, 1, 1, 0, 0, first, False, sram(OUT), (0, 0, 0), NOTHING, NOTHING, 0, 1.0, 0,
        -np.inf, np.inf, extras,
    )  # fmt: skip


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("dtype", "wide"), [(DType.FLOAT32, False), (DType.INT8, False), (DType.INT8, True)])
@pytest.mark.parametrize(("block_ic", "pixels"), [(1, 1), (3, 2), (20, 5), (48, 1)])
def test_blocks_of_pixels(block_ic: int, pixels: int, dtype: DType, wide: bool, first: bool) -> None:
    """For any part of a block-diagonal pixel matrix, inputs outside of the blocks are not multiplied."""
    rng = np.random.default_rng(block_ic)
    for _ in range(6):
        ic, rows = (int(rng.integers(1, 3 * size + 2)) for size in (block_ic, pixels))
        at_ic, at_row = (int(rng.integers(0, 3 * size)) for size in (block_ic, pixels))
        batch, oc, kind = int(rng.integers(1, 3)), 3, np.float32 if dtype.is_float else np.int8
        x = rng.integers(-9, 10, (batch, rows, ic)).astype(kind)
        w = rng.integers(-9, 10, (batch, ic, oc)).astype(kind)
        if dtype.is_float:
            x, w = x / np.float32(7), w / np.float32(3)
            w[rng.random(w.shape) < 0.1] = np.inf
        extras = Extras(wide, pixel_blocks=True, block_ic=block_ic, block_oc=pixels, first_ic=at_ic, first_oc=at_row)
        tile, used = product(rows, ic, oc, extras, dtype, batch=batch, first=first), 0
        tile.check()
        found = sums(tile, x, w).reshape(OH, batch, rows, oc)[0]
        wanted = np.full(found.shape, 0 if first else 7, found.dtype)
        plain = Extras(True) if wide else NO_EXTRAS
        for item in range(batch):
            for row in range(rows):
                inputs = [c for c in range(ic) if (at_ic + c) // block_ic == (at_row + row) // pixels]
                used += len(inputs) * oc
                if inputs:
                    small = product(1, len(inputs), oc, plain, dtype, first=first)
                    wanted[item, row] = sums(small, x[item, row, inputs], w[item, inputs]).reshape(OH, oc)[0]
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))
        assert tile.work().macs == used
        assert tile.work().places == batch * rows * ic * oc


@pytest.mark.parametrize(
    "changes", [{"oh": 2}, {"kh": 2}, {"kw": 2}, {"sw": 2}, {"w_bits": 4}, {"block_ic": 0, "block_oc": 0}]
)
def test_blocks_of_pixels_of_no_product(changes: dict[str, int]) -> None:
    extras = dataclasses.replace(Extras(pixel_blocks=True, block_ic=2, block_oc=2), **{
        name: value for name, value in changes.items() if name in EXTRA_FIELDS
    })  # fmt: skip
    tile = product(4, 4, 3, extras, DType.INT8)
    for name, value in changes.items():
        if name not in EXTRA_FIELDS:
            setattr(tile, name, value)
    with pytest.raises(ProgramError, match="pixel_blocks must be those of a product"):
        tile.check()


EXTRA_FIELDS = {field.name for field in dataclasses.fields(Extras)}
FIELDS = ("phase_oc", "phase_rows", "phase_cols", "full_rows", "full_cols", "low_rows", "low_cols")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ic", [1, 33, 40])
@pytest.mark.parametrize(("dtype", "wide"), [(DType.FLOAT32, False), (DType.INT8, False), (DType.INT8, True)])
@pytest.mark.parametrize(
    "shape", [(3, 2, 2, 1, 1, 0, 0), (2, 3, 2, 2, 2, 1, 0), (1, 2, 3, 1, 2, 1, 2), (4, 1, 2, 1, 1, 0, 1)]
)
def test_phases(shape: tuple[int, ...], dtype: DType, wide: bool, ic: int, first: bool) -> None:
    """Each output channel is summed over the kernel rows and columns of its phase."""
    rng = np.random.default_rng(ic)
    size, rows, cols, full_rows, full_cols, low_rows, low_cols = shape
    kind = np.float32 if dtype.is_float else np.int8
    x = rng.integers(-9, 10, (OH + 1, OW + 1, ic)).astype(kind)
    w = rng.integers(-9, 10, (KERNEL, KERNEL, ic, size * rows * cols)).astype(kind)
    if dtype.is_float:
        x, w = x / np.float32(7), w / np.float32(3)
        x[rng.random(x.shape) < 0.1] = np.nan
    at = int(rng.integers(0, size * rows * cols - 1))
    oc = int(rng.integers(1, size * rows * cols - at + 1))
    extras = Extras(wide, first_oc=at, **dict(zip(FIELDS, shape, strict=True)))
    tile, used = conv(ic, oc, extras, dtype, first=first), 0
    tile.check()
    found = sums(tile, x, in_order(w[..., at : at + oc]))
    for channel in range(oc):
        row, col = divmod((at + channel) // size, cols)
        down, right = int(row >= full_rows), int(col >= full_cols)
        one = conv(ic, 1, Extras(True) if wide else NO_EXTRAS, dtype, first=first)
        down_end, right_end = KERNEL - (row < low_rows), KERNEL - (col < low_cols)
        one.kh, one.kw = down_end - down, right_end - right
        one.x += down * one.x_strides[1] + right * one.x_strides[2]
        wanted = sums(one, x, in_order(w[down:down_end, right:right_end, :, [at + channel]]))
        np.testing.assert_array_equal(found[..., channel : channel + 1].view(np.uint8), wanted.view(np.uint8))
        used += one.kh * one.kw * ic
    assert tile.work().macs == OH * OW * used


def test_phases_without_a_kernel() -> None:
    """With a 1 x 1 kernel, phases without a tap are 0 for any input."""
    tile = conv(4, 4, Extras(phase_oc=1, phase_rows=2, phase_cols=2, full_rows=1, full_cols=1), DType.FLOAT32)
    tile.kh = tile.kw = 1
    x, w = np.full((OH + 1, OW + 1, 4), np.inf, np.float32), np.ones((1, 1, 4, 4), np.float32)
    found = sums(tile, x, in_order(w))
    np.testing.assert_array_equal(found, np.broadcast_to(np.float32([np.inf, 0, 0, 0]), found.shape))


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        (Extras(block_ic=1), "block_ic, block_oc must both be >= 1"),
        (Extras(block_oc=1), "block_ic, block_oc must both be >= 1"),
        (Extras(first_ic=1), "block_ic, block_oc must both be >= 1"),
        (Extras(first_oc=3), "first_oc must have blocks or phases"),
        (Extras(phase_oc=3), "phase_oc, phase_rows, phase_cols must all be >= 1"),
        (
            Extras(block_ic=1, block_oc=1, phase_oc=3, phase_rows=2, phase_cols=2),
            "12 output channels of phases in blocks of 1",
        ),
        (Extras(phase_oc=3, phase_rows=2, phase_cols=2, full_rows=3), "must be among 0 to 2, got 0 to 3"),
        (Extras(phase_oc=1, phase_rows=2, phase_cols=2, first_oc=1), "output channels end at 5 of 4"),
    ],
)
def test_fields_that_do_not_fit(extras: Extras, message: str) -> None:
    tile = conv(4, 4, extras, DType.INT8)
    with pytest.raises(ProgramError, match=message):
        tile.check()


@pytest.mark.parametrize("fields", [{"block_ic": 1, "block_oc": 1}, {"phase_oc": 1, "phase_rows": 1, "phase_cols": 1}])
def test_depthwise_weights_have_neither(fields: dict[str, int]) -> None:
    tile = Executable(Depthwise, 0).make()
    tile.extras = dataclasses.replace(NO_EXTRAS, **fields)
    tile.w_zero = 0
    with pytest.raises(ProgramError, match="weights have no blocks and no phases"):
        tile.check()
