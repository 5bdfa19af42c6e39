"""The actions of an instruction that consume energy: counts by kind, computed from its work alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npusim.hw.config import Config
from npusim.hw.sections import STORED_AS, DirectConfig, GridConfig, MatrixConfig
from npusim.hw.units.matrix_grid import pixel_blocks
from npusim.hw.units.matrix_systolic import place
from npusim.units import ceil_div, ps_to_cycles

if TYPE_CHECKING:
    from npusim.work import DmaWork, MatrixWork, Work

MACS = "mac."
"""Prefix of multiply-accumulates, followed by their type."""
OPERANDS, ACCUMULATORS, VECTOR, SCALAR = "operands", "accumulators", "vector", "scalar"
SRAM, DMA, DRAM, CONSTANTS, L2 = "sram", "dma", "dram", "constants", "l2"
CLOCK, CLOCK_MATRIX, CLOCK_VECTOR, LEAKAGE, PHY = "clock", "clock_matrix", "clock_vector", "leakage", "phy"
CLOCKS = (CLOCK, CLOCK_MATRIX, CLOCK_VECTOR)
OF_TIME = (*CLOCKS, LEAKAGE, PHY)
"""Actions that depend on time alone."""

UNITS_OF = {
    OPERANDS: "bytes into the registers of PEs",
    ACCUMULATORS: "bytes read and written",
    VECTOR: "lane operations",
    SCALAR: "elements",
    SRAM: "bytes read and written",
    DMA: "bytes",
    DRAM: "bytes over the pins",
    CONSTANTS: "bytes",
    L2: "bytes read and written",
    CLOCK: "cycles of a core",
    CLOCK_MATRIX: "cycles of a matrix unit with its own clock",
    CLOCK_VECTOR: "cycles of a vector unit with its own clock",
    LEAKAGE: "ns",
    PHY: "ns",
}
"""Units of the counts, except those that begin with MACS, which are multiply-accumulates."""

Actions = dict[str, int]


def has_clock_by_hand(config: Config) -> bool:
    """Whether the energy of a clock cycle is given by hand, which includes units with their own clock."""
    return config.energy is not None and config.energy.clock_cycle_fj is not None


def own_clocks(config: Config) -> Iterator[tuple[str, int]]:
    """(action, Hz) of the units whose own clock has its own price."""
    if not has_clock_by_hand(config):
        for name, unit in ((CLOCK_MATRIX, config.matrix), (CLOCK_VECTOR, config.vector)):
            if unit is not None and unit.clock_hz is not None:
                yield name, unit.clock_hz


def time_actions(config: Config, start_ps: int, end_ps: int) -> Actions:
    """Counts of the actions of a device from one time to another; counts of adjacent times add up."""
    found = {
        name: config.cores * (ps_to_cycles(end_ps, hz) - ps_to_cycles(start_ps, hz))
        for name, hz in ((CLOCK, config.clock_hz), *own_clocks(config))
    }
    found[LEAKAGE] = end_ps // 1000 - start_ps // 1000
    if config.technology is not None or (config.energy is not None and config.energy.phy_uw is not None):
        found[PHY] = found[LEAKAGE]
    return found


def actions(config: Config, work: Work) -> Actions:
    """Counts of the actions of an instruction on a device, except those that depend on time."""
    from npusim.work import DmaWork, MatrixWork, ScalarWork, VectorWork

    match work:
        case MatrixWork():
            return _product(config, work)
        case VectorWork():
            return {VECTOR: work.elements * work.passes, SRAM: work.bytes}
        case ScalarWork():
            return {SCALAR: work.elements, SRAM: work.bytes}
        case DmaWork():
            return _transfer(config, work)
        case _:
            return {}


def _transfer(config: Config, work: DmaWork) -> Actions:
    """One side is SRAM unless both are DRAM or L2. A copy within SRAM reads and writes it."""
    sides = 2 - bool(work.reads or work.l2_reads) - bool(work.writes or work.l2_writes)
    apart = work.constants and config.constants is not None
    found = {DMA: work.bytes, SRAM: sides * work.bytes, CONSTANTS if apart else DRAM: work.reads + work.writes}
    if near := work.l2_reads + work.l2_writes:
        found[L2] = near
    return found


def _product(config: Config, work: MatrixWork) -> Actions:
    matrix = config.matrix
    assert matrix is not None
    label = work.dtype.label
    sums = work.batch * work.oh * work.ow * work.oc
    operands, passes = _streams(matrix, work)
    # The first pass reads no sums, and the last one reads them once more for the output.
    touched = sums * (2 * passes - work.first) * work.acc_bytes
    moved = operands + (sums * work.out_bytes if work.last else 0)
    found = {f"{MACS}{STORED_AS.get(label, label)}": work.macs, OPERANDS: work.macs * _shifted(matrix, work)}
    if matrix.accumulator_bytes:
        return {**found, ACCUMULATORS: touched, SRAM: moved}
    return {**found, SRAM: moved + touched}


def _shifted(matrix: MatrixConfig, work: MatrixWork) -> int:
    """Bytes latched by the registers of a PE for one product: operands that are passed on, and the sum.

    With a tree of adders (models ``direct`` and ``grid``) a PE has a product instead of a sum.
    """
    size = work.dtype.itemsize
    if matrix.model in ("direct", "grid"):
        return 3 * size
    if matrix.dataflow == "output_stationary":
        return 2 * size + work.acc_bytes
    return size + work.acc_bytes


def _streams(matrix: MatrixConfig, work: MatrixWork) -> tuple[int, int]:
    """(bytes of operands read from SRAM, writes and updates of each sum in the accumulators)."""
    size = work.dtype.itemsize
    if matrix.model == "direct":
        return _direct(matrix, work, size)
    if matrix.model == "grid":
        return _grid(matrix, work, size)
    placed = place(matrix, work)
    row_folds, column_folds = ceil_div(placed.rows, matrix.rows), ceil_div(placed.columns, matrix.cols)
    stationary = placed.matmuls * placed.rows * placed.columns
    streamed = placed.matmuls * placed.rows * placed.streamed * column_folds
    if matrix.dataflow == "weight_stationary":
        return work.weight_bytes(stationary) + streamed * size, row_folds
    if matrix.dataflow == "input_stationary":
        return stationary * size + work.weight_bytes(streamed), row_folds
    weights = placed.matmuls * placed.columns * placed.streamed * row_folds
    return streamed * size + work.weight_bytes(weights), 1


def _direct(matrix: MatrixConfig, work: MatrixWork, size: int) -> tuple[int, int]:
    """Channels are read for each tap, pixel and group of kernels, and sums are updated as often."""
    direct = matrix.direct or DirectConfig()
    pixels, weights = work.batch * work.oh * work.ow, work.batch * work.oc * work.kh * work.kw
    if work.depthwise:
        groups = ceil_div(work.ic, direct.depthwise_channels)
        reads = pixels * work.kh * work.kw * groups * direct.depthwise_channels
        return reads * size + work.weight_bytes(weights), work.kh * work.kw
    if work.ic <= direct.image_channels:
        atoms = work.kh * ceil_div(work.kw * work.ic, matrix.rows)
    else:
        atoms = work.kh * work.kw * ceil_div(work.ic, matrix.rows)
    reads = pixels * atoms * matrix.rows * ceil_div(work.oc, matrix.cols)
    return reads * size + work.weight_bytes(weights * work.ic), atoms


def _grid(matrix: MatrixConfig, work: MatrixWork, size: int) -> tuple[int, int]:
    """A window is read for each block of channels, weights for each block of pixels; sums stay in the grid."""
    grid = matrix.grid or GridConfig()
    blocks = pixel_blocks(grid, work)
    taps = 1 if grid.windows_buffered else work.kh * work.kw
    pixels, channels = work.batch * work.oh * work.ow, ceil_div(work.oc, grid.output_channels)
    inputs = pixels * taps * work.ic * (1 if work.depthwise else channels)
    weights = blocks * work.oc * work.kh * work.kw * (1 if work.depthwise else work.ic)
    return inputs * size + work.weight_bytes(weights), 1
