"""A grid of MAC elements over output pixels and channels, like the DPU of Intel's NPUs.

One block of ``pixel_rows`` x ``pixel_cols`` outputs by ``output_channels`` is computed side by side, each element
taking as many input channels a cycle as the MACs allow (``rows`` * ``cols`` in all). Edges are filled to whole blocks;
pixels of a 1x1 kernel have no neighbours and fill blocks in any order:

    mac      = blocks * block MACs * summands / (rows * cols * rate)
    summands = ic * kh * kw, filled up: ic to ``input_channels`` and kh * kw to ``taps``, or ic to both and no taps
    operands = oh * ow * ic * kh * kw * size / operand_bytes_per_cycle              each window, once for all channels
    cycles   = setup + start + max(mac, operands)

Depthwise has no channels to sum over; ``depthwise_bytes`` of channels go side by side, a tap at a time:

    cycles   = setup + start + pixel blocks * filled-up taps * ceil(oc * size / depthwise_bytes) * depthwise_cycles

Where weights come before the arithmetic and not beside it, anew for each ``weight_pixels`` of an image, their time is
added to the cycles:

    weights  = ceil(oh * ow / weight_pixels) * bytes of weights / weight_bytes_per_cycle

Outputs leave beside this; windows (an input once, with ``windows_buffered``), weights and outputs pass the SRAM once
each. ``dataflow`` is not read.
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
    """Raises ProgramError if there is no matrix unit or it does not compute with the work's type."""
    matrix = unit_for(config, work)
    grid = matrix.grid or GridConfig()
    rate, size = matrix.rate(work.dtype.label), work.dtype.itemsize
    taps = work.kh * work.kw
    steps = ceil_div(taps, grid.taps) * grid.taps
    pixel_blocks = work.batch * ceil_div(work.oh, grid.pixel_rows) * ceil_div(work.ow, grid.pixel_cols)
    windows = work.oh * work.ow * work.ic * taps
    operands = 0
    if work.depthwise:
        passes = pixel_blocks * steps * ceil_div(work.oc * size, grid.depthwise_bytes)
        mac = ceil_div(passes * grid.depthwise_cycles.numerator, grid.depthwise_cycles.denominator)
    else:
        pixels = grid.pixel_rows * grid.pixel_cols
        # Without neighbours the order of pixels is free, so only the last block of the whole image has empty places.
        if taps == 1:
            pixel_blocks = work.batch * ceil_div(work.oh * work.ow, pixels)
        blocks = pixel_blocks * ceil_div(work.oc, grid.output_channels)
        macs = blocks * pixels * grid.output_channels * _summands(grid, work.ic, taps)
        mac = ceil_div(macs * rate.denominator, matrix.elements * rate.numerator)
        # Each window passes once, whatever the number of channels: the grid hands a pixel to all of its columns.
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
    # What all banks move, beside the arithmetic: a share that others do not have, but no time of the unit itself.
    if grid.windows_buffered:
        windows //= taps
    moved = work.batch * windows * size + work.weight_bytes(work.batch * weights) + outputs * work.out_bytes
    return total(config.matrix_hz, terms, sram_cycles(config, moved, config.matrix_hz))


def _summands(grid: GridConfig, channels: int, taps: int) -> int:
    """Summands of an output with those that fill the unit's steps: of channels or, with few of them, of taps."""
    deep = grid.input_channels * grid.taps
    by_channels = ceil_div(channels, deep) * deep * taps
    by_taps = ceil_div(channels, grid.input_channels) * grid.input_channels * ceil_div(taps, grid.taps) * grid.taps
    return min(by_channels, by_taps)
