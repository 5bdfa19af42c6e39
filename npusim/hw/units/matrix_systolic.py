"""A systolic array of R rows and C columns of PEs. One operand stays in the array and the others are streamed through
it.

Work is a matmul of M output pixels, K = ic * kh * kw summands and N = oc channels, for each item of the batch. Items
may have different weights, so nothing is shared between them. The dataflow maps the dimensions:

    ==================  ======  =========  ========  ======================
    dataflow            rows    columns    streamed  one fold computes
    ==================  ======  =========  ========  ======================
    weight_stationary   K       N          M         a K x N block of weights
    output_stationary   M       N          K         an M x N block of sums
    input_stationary    K       M          N         a K x M block of inputs
    ==================  ======  =========  ========  ======================

    folds   = batch * ceil(rows / R) * ceil(columns / C)       a partial fold costs as much as a full one; several
                                                                ``arrays`` share folds and, in units of R, streams
    stream  = ceil(streamed / rate)                            cycles of one fold, rate = MACs per PE and cycle
    swap    = R                                                 to shift a stationary operand in (OS: finished sums out,
                                                                if ``sums_shift_out``; else they leave with the skew)
    skew    = R + C - 2                                         the diagonal wavefront fills and drains

If nothing is hidden (``preload_hidden = false``, ``fill_drain = "per_fold"``), the time is folds * (stream + R + R + C
- 2), the runtime per fold 2R + C + T - 2 of Samajdar et al., "A Systematic Methodology for Characterizing Scalability
of DNN Accelerators using SCALE-Sim", ISPASS 2020, section III. With a hidden preload a fold takes max(stream, swap).
One swap stays visible unless ``weight_buffers`` > 2, where the first operand of the next instruction waits in the FIFO
of the array (four deep in Jouppi et al., ISCA 2017). With ``per_tile`` the whole instruction has one skew.

Depthwise: each channel is a separate matmul with K = kh * kw and N = filters per channel. Channels whose blocks fit are
placed along the diagonal of one fold, D = max(1, min(R // rows, C // columns)); the PEs off the diagonal hold zeros:
folds = ceil(channels / D) * ceil(rows / R) * ceil(columns / C).

Post-processing (on ``last``: outputs / output_elements_per_cycle, twice that for 64-bit sums) and SRAM traffic run in
parallel: operands, outputs and, without dedicated accumulators, partial sums. The longest of the three counts. With
``port_bytes_per_cycle`` nothing is hidden: both operands and the results pass that port once, before and after the
arithmetic, and their cycles are added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from npusim.errors import ProgramError
from npusim.hw.config import Config
from npusim.hw.sections import ACCUMULATOR_BYTES, MatrixConfig
from npusim.hw.units.base import COMPUTE, LATENCY, MEMORY, Cost, first_datum, sram_cycles, total
from npusim.units import ceil_div, cycles_to_ps

if TYPE_CHECKING:
    from npusim.dtypes import DType
    from npusim.work import MatrixWork


class ArrayMapping(NamedTuple):
    """A matmul on the array: repeated ``matmuls`` times, ``packed`` of them in one fold."""

    rows: int
    columns: int
    streamed: int
    matmuls: int
    packed: int


def cost(config: Config, work: MatrixWork) -> Cost:
    """The cost of a matmul. Raises ProgramError if there is no matrix unit or it does not support the type of the
    work."""
    return total(config.matrix_hz, *terms_of(config, work))


def pricing(config: Config) -> Callable[[MatrixWork], int]:
    """A function that returns the picoseconds of :func:`cost` and raises the same errors."""
    hz = config.matrix_hz
    paces: dict[DType, _Pace] = {}

    def ps(work: MatrixWork) -> int:
        pace = paces.get(work.dtype)
        if pace is None:
            pace = paces[work.dtype] = _pace(config, work)
        return cycles_to_ps(sum([count for _, _, count in _terms(config, pace, work)[0]]), hz)

    return ps


def terms_of(config: Config, work: MatrixWork) -> tuple[list[tuple[str, str, int]], int]:
    """The terms of the time of a work: (name, kind, cycles); and the cycles of the SRAM ports."""
    return _terms(config, _pace(config, work), work)


class _Pace(NamedTuple):
    """Values common to all works of a type: MACs per PE and cycle as a fraction, and the terms before the first
    operand."""

    matrix: MatrixConfig
    macs: int
    cycles: int
    first: list[tuple[str, str, int]]


def _pace(config: Config, work: MatrixWork) -> _Pace:
    matrix = unit_for(config, work)
    macs, cycles = matrix.rate(work.dtype.label).as_integer_ratio()
    return _Pace(matrix, macs, cycles, first_datum(config, matrix.setup_cycles, config.matrix_hz))


def _terms(config: Config, pace: _Pace, work: MatrixWork) -> tuple[list[tuple[str, str, int]], int]:
    matrix = pace.matrix
    placed = place(matrix, work)
    blocks = ceil_div(placed.rows, matrix.rows) * ceil_div(placed.columns, matrix.cols)
    folds = ceil_div(placed.matmuls, placed.packed) * blocks
    stream = ceil_div(placed.streamed * pace.cycles, pace.macs)
    swap = matrix.rows if matrix.sums_shift_out or matrix.dataflow != "output_stationary" else 0
    rounds = ceil_div(folds, matrix.arrays)
    exposed_swaps = rounds * swap
    if matrix.preload_hidden:
        # A hidden swap runs in parallel with the stream of the previous fold. The part that is longer is visible, and
        # so is the first swap, unless a FIFO has accepted it during the previous instruction.
        exposed_swaps = rounds * max(0, swap - stream) + (swap if matrix.weight_buffers <= 2 else 0)
    skew = (matrix.rows + matrix.cols - 2) * (rounds if matrix.fill_drain == "per_fold" else 1)
    # A stream is divided among the arrays by whole groups of R rows, so a short one is computed by one array.
    streams = max(ceil_div(folds * stream, matrix.arrays), min(stream, matrix.rows))
    array = streams + exposed_swaps + skew
    drain = drain_cycles(matrix, work)
    serial = matrix.port_bytes_per_cycle
    traffic = sram_cycles(config, _once(work), config.matrix_hz) if serial else traffic_cycles(config, work, placed)
    terms = pace.first.copy()
    # Arithmetic, output and SRAM ports work in parallel: the slowest determines the time.
    if traffic > max(array, drain) and not serial:
        terms.append(("sram", MEMORY, traffic))
    elif drain > array:
        terms.append(("output", COMPUTE, drain))
    else:
        terms += [("stream", COMPUTE, streams), ("swap", LATENCY, exposed_swaps), ("skew", LATENCY, skew)]
    if serial:
        # The bytes pass before and after the array computes (as measured on TPU v4), so their time is added.
        terms.append(("port", MEMORY, max(traffic, ceil_div(_once(work), serial))))
    return terms, traffic


def place(matrix: MatrixConfig, work: MatrixWork) -> ArrayMapping:
    """The dimensions of the work that are mapped to rows, columns and time."""
    m, k = work.oh * work.ow, work.kh * work.kw
    n = ceil_div(work.oc, work.ic) if work.depthwise else work.oc
    if not work.depthwise:
        k *= work.ic
    if matrix.dataflow == "weight_stationary":
        rows, columns, streamed = k, n, m
    elif matrix.dataflow == "output_stationary":
        rows, columns, streamed = m, n, k
    else:
        rows, columns, streamed = k, m, n
    if not work.depthwise:
        return ArrayMapping(rows, columns, streamed, work.batch, 1)
    # Channels of a depthwise convolution share no operand, so they can only be packed along the diagonal of the array.
    packed = max(1, min(matrix.rows // rows, matrix.cols // columns)) if rows and columns else 1
    return ArrayMapping(rows, columns, streamed, work.batch * work.ic, packed)


def drain_cycles(matrix: MatrixConfig, work: MatrixWork) -> int:
    """Cycles of the output of sums; a 64-bit sum counts as two."""
    sums = work.batch * work.oh * work.ow * work.oc if work.last else 0
    return ceil_div(sums * ceil_div(work.acc_bytes, ACCUMULATOR_BYTES), matrix.output_elements_per_cycle)


def unit_for(config: Config, work: MatrixWork) -> MatrixConfig:
    """The matrix unit for a work. Raises ProgramError if there is none, or it does not support the type."""
    matrix = config.matrix
    if matrix is None:
        raise ProgramError(f"matrix work on {config.name}, which has no matrix unit")
    if not matrix.rate(work.dtype.label):
        allowed = ", ".join(dtype for dtype, rate in matrix.throughput.items() if rate)
        raise ProgramError(
            f"matrix work in {work.dtype.label} on {config.name}, whose matrix unit computes with {allowed} only"
        )
    return matrix


def _once(work: MatrixWork) -> int:
    """Bytes of both operands, as seen by the product, and of the results, each once."""
    depth = work.kh * work.kw * (1 if work.depthwise else work.ic)
    pixels = work.batch * work.oh * work.ow
    inputs = pixels * depth * (work.ic if work.depthwise else 1)
    weights = work.batch * depth * work.oc
    return (
        inputs * work.dtype.itemsize
        + work.weight_bytes(weights)
        + (pixels * work.oc * work.out_bytes if work.last else 0)
    )


def traffic_cycles(config: Config, work: MatrixWork, placed: ArrayMapping) -> int:
    """Cycles of the clock of the unit for the bytes that pass the SRAM ports during the work."""
    matrix, size = config.matrix, work.dtype.itemsize
    assert matrix is not None
    row_folds, column_folds = ceil_div(placed.rows, matrix.rows), ceil_div(placed.columns, matrix.cols)
    results = work.batch * work.oh * work.ow * work.oc
    stationary = placed.matmuls * placed.rows * placed.columns  # weight and input stationary
    # The streamed operand is read again for every block of columns, because the array holds one block.
    streamed = placed.matmuls * placed.rows * placed.streamed * column_folds
    once, along_rows = work.weight_bytes(stationary), streamed * size
    if matrix.dataflow == "input_stationary":
        once, along_rows = stationary * size, work.weight_bytes(streamed)
    partial = 0
    if matrix.dataflow == "output_stationary":
        along_columns = work.weight_bytes(placed.matmuls * placed.columns * placed.streamed * row_folds)
        moved = along_rows + along_columns
        partial = results * ((not work.first) + (not work.last))
    else:
        moved = once + along_rows
        # Every fold along K reads the sums of the previous one and writes its own. The first reads none, and the sums
        # of the last leave as results.
        partial = results * (2 * row_folds - work.first - work.last)
    # Dedicated accumulators have their own port.
    if not matrix.accumulator_bytes:
        moved += partial * work.acc_bytes
    if work.last:
        moved += results * work.out_bytes
    return sram_cycles(config, moved, config.matrix_hz)
