"""What single chips' cost models have that others have not, pinned by numbers worked out by hand."""

import pytest

from npusim.dtypes import DType
from npusim.hw.config import load_config
from npusim.hw.cost import cost
from npusim.work import DmaWork, MatrixWork

U65, NVDLA, TINY = load_config("ethos_u65_256"), load_config("nvdla_2048"), load_config("tiny")
EDGE_TPU = load_config("edge_tpu")
FLASH = {"constants": {"bytes": 1 << 20, "bandwidth": 10**9, "latency": "300 ns"}}


def conv(oh, ow, oc, ic, k, depthwise=False):
    return MatrixWork(DType.INT8, 1, oh, ow, oc, ic, k, k, depthwise, True, True, 1)


def mac(config, work):
    return dict(cost(config, work).terms)["mac"]


# Ethos-U: 2 x 2 pixels by 8 channels, 8 input channels a cycle, in steps of four cycles: 32 channels, or four taps.


@pytest.mark.parametrize(
    ("channels", "kernel", "cycles"),
    [
        (32, 3, 9 * 4),
        (33, 3, 12 * 5),  # four taps of five eights rather than nine taps of 64 channels
        (8, 3, 12),
        (3, 3, 12),
        (256, 1, 32),
        (250, 7, 49 * 32),
    ],
)
def test_sums_are_filled_up_to_whole_steps(channels, kernel, cycles):
    assert mac(U65, conv(16, 16, 64, channels, kernel)) == 8 * 8 * 8 * cycles


def test_depthwise_takes_four_taps_in_four_cycles():
    assert mac(U65, conv(16, 16, 64, 64, 3, depthwise=True)) == 8 * 8 * 8 * 12
    assert mac(U65, conv(16, 16, 64, 64, 5, depthwise=True)) == 8 * 8 * 8 * 28


def test_few_channels_are_bound_by_what_leaves():
    assert dict(cost(U65, conv(16, 16, 64, 8, 1)).terms)["output"] == 16 * 16 * 64 // 4


def test_rows_that_are_kept_pass_the_sram_once():
    often = U65.with_(**{"matrix.grid.windows_buffered": False})
    work = conv(16, 16, 8, 64, 3)
    once, again = cost(U65, work), cost(often, work)
    assert once.ps == again.ps
    weights, results = 9 * 64 * 8, 16 * 16 * 8
    assert once.sram_ps == 1000 * -(-(16 * 16 * 64 + weights + results) // 16)
    assert again.sram_ps == again.ps  # nine times as much takes all of the time, and more


# Edge TPU: 4 x 4 tiles of 64 lanes of 4 MACs. Weights pass all tiles at 16 bytes a cycle before they are used, and
# again for each 32 pixels of a tile. The cycles are those of the networks of equal layers that the rate was fitted to.


@pytest.mark.parametrize(
    ("side", "channels", "kernel", "macs", "weights"),
    [
        (16, 256, 1, 16 * 4 * 64, 256 * 256 // 16),  # 4655 cycles more than its arithmetic were measured
        (16, 128, 3, 16 * 2 * 288, 128 * 128 * 9 // 16),  # 8500
        (64, 256, 3, 256 * 4 * 576, 8 * 256 * 256 * 9 // 16),  # 285 000 to 321 000
    ],
)
def test_weights_come_before_they_are_used(side, channels, kernel, macs, weights):
    terms = dict(cost(EDGE_TPU, conv(side, side, channels, channels, kernel)).terms)
    assert (terms["mac"], terms["weights"]) == (macs, weights)
    beside = EDGE_TPU.with_(**{"matrix.grid.weight_bytes_per_cycle": 0})
    assert "weights" not in dict(cost(beside, conv(side, side, channels, channels, kernel)).terms)


def test_without_a_number_of_pixels_weights_come_once():
    once = EDGE_TPU.with_(**{"matrix.grid.weight_pixels": 0})
    assert dict(cost(once, conv(64, 64, 256, 256, 3)).terms)["weights"] == 256 * 256 * 9 // 16


def test_a_tile_takes_four_channels_of_a_depthwise_convolution_a_cycle():
    assert mac(EDGE_TPU, conv(16, 16, 64, 64, 3, depthwise=True)) == 16 * 9 * 16


# NVDLA: an image's channels and the columns of a kernel fill the channels of an atom together.


def test_images_have_channels_and_columns_side_by_side():
    pixels = 112 * 112
    assert mac(NVDLA, conv(112, 112, 64, 3, 7)) == 2 * pixels * 7  # 21 of 64 channels for each row of the kernel
    assert mac(NVDLA, conv(112, 112, 64, 5, 7)) == 2 * pixels * 49  # five are no image


def test_depthwise_channels_side_by_side():
    wide = NVDLA.with_(**{"matrix.direct.depthwise_channels": 32})
    work = conv(14, 14, 64, 64, 3, depthwise=True)
    assert mac(NVDLA, work) == 32 * mac(wide, work) == 64 * 14 * 14 * 9


# A memory for constants: its latency and its bandwidth in the place of the DRAM's, for constants only.


def test_constants_come_from_a_memory_of_their_own():
    flash = TINY.with_(**FLASH)
    constants, others = (DmaWork(1000, 1, 1000, 1000, 0, constants=flag) for flag in (True, False))
    assert cost(TINY, constants) == cost(TINY, others) == cost(flash, others)
    burst = TINY.dma.burst_bytes
    whole = -(-1000 // burst) * burst
    start = cost(TINY, others).ps - 100_000 - whole * 125
    assert cost(flash, constants).ps == start + 300_000 + whole * 1000
