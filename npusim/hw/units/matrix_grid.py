"""A grid of MAC elements over output pixels and channels, such as the DPU of Intel's NPUs.

One block of ``pixel_rows`` x ``pixel_cols`` outputs by ``output_channels`` is computed in parallel. Each element
processes as many input channels per cycle as the MACs allow (``rows`` * ``cols`` in total). Edges are padded to whole
blocks. Pixels of a 1x1 kernel are independent and fill blocks in any order; with ``linear``, those of any kernel do:

    mac      = blocks * block MACs * summands / (rows * cols * rate)
    summands = ic * kh * kw, padded: ic to ``input_channels`` and kh * kw to ``taps``, or only ic to both
    operands = oh * ow * ic * kh * kw * size / operand_bytes_per_cycle              each window once for all channels
    cycles   = setup + start + max(mac, operands)

A depthwise convolution has no channels to sum over. It computes ``depthwise_bytes`` of channels in parallel, one tap at
a time:

    cycles   = setup + start + pixel blocks * padded taps * ceil(oc * size / depthwise_bytes) * depthwise_cycles

If weights are loaded before the arithmetic instead of in parallel, again for each ``weight_pixels`` pixels of an image,
their time is added:

    weights  = ceil(oh * ow / weight_pixels) * bytes of weights / weight_bytes_per_cycle

Outputs are written in parallel. Windows (an input once, with ``windows_buffered``), weights and outputs pass the SRAM
ports once each. ``dataflow`` is not used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.hw.config import Config
from npusim.hw.sections import GridConfig
from npusim.hw.units.base import COMPUTE, LATENCY, MEMORY, Cost, first_datum, sram_cycles, total
from npusim.hw.units.matrix_systolic import drain_cycles, unit_for
from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim.work import MatrixWork


def cost(config: Config, work: MatrixWork) -> Cost:
    """The cost of a workload. Raises ProgramError if there is no matrix unit or it does not support the type of the
    work."""
    matrix = unit_for(config, work)
    grid = matrix.grid or GridConfig()
    rate, size = matrix.rate(work.dtype.label), work.dtype.itemsize
    taps = work.kh * work.kw
    steps = ceil_div(taps, grid.taps) * grid.taps
    pixels = grid.pixel_rows * grid.pixel_cols
    blocks_of_pixels = pixel_blocks(grid, work)
    windows = work.oh * work.ow * work.ic * taps
    operands = 0
    if work.depthwise:
        passes = blocks_of_pixels * steps * ceil_div(work.oc * size, grid.depthwise_bytes)
        mac = ceil_div(passes * grid.depthwise_cycles.numerator, grid.depthwise_cycles.denominator)
    else:
        # The pixels are independent and may be in any order, so only the last block of the whole image is padded.
        if taps == 1:
            blocks_of_pixels = work.batch * ceil_div(work.oh * work.ow, pixels)
        blocks = blocks_of_pixels * ceil_div(work.oc, grid.output_channels)
        macs = blocks * pixels * grid.output_channels * _summands(grid, work.ic, taps)
        mac = ceil_div(macs * rate.denominator, matrix.elements * rate.numerator)
        # Each window passes once, whatever the number of channels: the grid broadcasts a pixel to all of its columns.
        operands = ceil_div(work.batch * windows * size, grid.operand_bytes_per_cycle)
    outputs = work.batch * work.oh * work.ow * work.oc if work.last else 0
    drain = drain_cycles(matrix, work)
    terms = first_datum(config, matrix.setup_cycles, config.matrix_hz)
    terms.append(("start", LATENCY, grid.start_cycles))
    if operands > max(mac, drain):
        terms.append(("operands", MEMORY, operands))
    elif drain > mac:
        terms.append(("output", COMPUTE, drain))
    else:
        terms.append(("mac", COMPUTE, mac))
    weights = work.oc * taps * (1 if work.depthwise else work.ic)
    if grid.weight_bytes_per_cycle:
        times = ceil_div(work.oh * work.ow, grid.weight_pixels) if grid.weight_pixels else 1
        loaded = ceil_div(work.batch * times * work.weight_bytes(weights), grid.weight_bytes_per_cycle)
        terms.append(("weights", MEMORY, loaded))
    # Traffic in parallel with the arithmetic. It takes bandwidth from other units, but no time of the unit itself.
    if grid.windows_buffered:
        windows //= taps
    moved = work.batch * windows * size + work.weight_bytes(work.batch * weights) + outputs * work.out_bytes
    return total(config.matrix_hz, terms, sram_cycles(config, moved, config.matrix_hz))


def pixel_blocks(grid: GridConfig, work: MatrixWork) -> int:
    """Blocks of pixels of all images, for a kernel of several taps."""
    if grid.linear:
        return work.batch * ceil_div(work.oh * work.ow, grid.pixel_rows * grid.pixel_cols)
    return work.batch * ceil_div(work.oh, grid.pixel_rows) * ceil_div(work.ow, grid.pixel_cols)


def _summands(grid: GridConfig, channels: int, taps: int) -> int:
    """Summands of an output, padded to the steps of the unit: along channels or, if there are few of them, along
    taps."""
    deep = grid.input_channels * grid.taps
    by_channels = ceil_div(channels, deep) * deep * taps
    by_taps = ceil_div(channels, grid.input_channels) * grid.input_channels * ceil_div(taps, grid.taps) * grid.taps
    return min(by_channels, by_taps)
