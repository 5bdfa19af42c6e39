"""What work takes on many designs: the twins of :mod:`npusim.hw.units` on arrays, in picoseconds as float64.

Each function names the one that it is the twin of; a test holds them to each other over random works and devices. They
differ by less than a cycle of rounding: a picosecond, where the other one rounds spans up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from npusim.explore.estimates.designs import Array, Designs
from npusim.hw.memory import dram_model
from npusim.hw.sections import ACCUMULATOR_BYTES
from npusim.work import PLACE_BYTES, ScalarWork, VectorWork

PS = 1e12


def up(dividend: Array | float, divisor: Array | float) -> Array:
    """Quotients rounded up; exact below 2**52."""
    return np.ceil(np.asarray(dividend, np.float64) / divisor)


class Product(NamedTuple):
    """Tiles of the matrix unit, in the words of ``MatrixWork``; the extents are arrays that broadcast."""

    dtype: str
    itemsize: int
    batch: Array
    pixels: Array
    oc: Array
    ic: Array
    taps: int
    depthwise: bool
    out_bytes: int
    acc_bytes: int
    w_bits: int


class Taken(NamedTuple):
    """Picoseconds of tiles: what each takes before anything runs, what it takes once, and what grows with the work:
    the array's, that of the drain, that of the SRAM's ports."""

    begin: Array
    once: Array
    array: Array
    drain: Array
    traffic: Array

    @property
    def ps(self) -> Array:
        """Of a tile."""
        return self.begin + np.maximum(np.maximum(self.once + self.array, self.drain), self.traffic)


def systolic(designs: Designs, work: Product) -> Taken:
    """Twin of ``matrix_systolic.cost``; first and last of its sums."""
    matrix = designs.config.matrix
    assert matrix is not None
    rate = float(matrix.rate(work.dtype))
    rows, cols, hz = designs["matrix.rows"], designs["matrix.cols"], designs["matrix.clock"]
    arrays = designs["matrix.arrays"]
    high, wide, streamed = _placed(matrix.dataflow, *_extents(work))
    matmuls: Array = work.batch * work.ic if work.depthwise else work.batch
    packed = np.maximum(1, np.minimum(rows // high, cols // wide)) if work.depthwise else np.ones(1)
    row_folds, column_folds = up(high, rows), up(wide, cols)
    folds = up(matmuls, packed) * row_folds * column_folds
    stream = up(streamed, rate)
    swap = rows if matrix.sums_shift_out or matrix.dataflow != "output_stationary" else np.zeros(1)
    rounds = up(folds, arrays)
    exposed: Array = rounds * swap
    once: Array = np.zeros(1)
    if matrix.preload_hidden:
        exposed = rounds * np.maximum(0, swap - stream)
        once = swap if matrix.weight_buffers <= 2 else once
    skew = rows + cols - 2
    if matrix.fill_drain == "per_fold":
        exposed = exposed + skew * rounds
    else:
        once = once + skew
    streams = np.maximum(up(folds * stream, arrays), np.minimum(stream, rows))
    results = work.batch * work.pixels * work.oc
    drain = up(results * -(-work.acc_bytes // ACCUMULATOR_BYTES), designs["matrix.output_elements_per_cycle"])
    begin = designs["matrix.setup_cycles"] + up(designs["sram.latency_cycles"] * hz, designs["clock"])
    serial = matrix.port_bytes_per_cycle
    tick = PS / hz
    if serial:
        passed = _once(work)
        port = np.maximum(up(passed, serial), _sram_cycles(designs, passed, hz))
        return Taken(begin * tick, once * tick, (streams + exposed + port) * tick, (drain + port) * tick, port * tick)
    traffic = _sram_cycles(designs, _moved(designs, work, high, wide, streamed, matmuls), hz)
    return Taken(begin * tick, once * tick, (streams + exposed) * tick, drain * tick, traffic * tick)


def touched(designs: Designs, work: Product) -> tuple[Array, Array]:
    """Bytes of operands and results that a tile moves in SRAM, and those of sums that it reads and writes in the
    accumulators. Twin of ``actions`` for a systolic array; of other arrays each operand once."""
    matrix = designs.config.matrix
    assert matrix is not None
    results = work.batch * work.pixels * work.oc
    if matrix.model != "systolic":
        return _once(work), results * work.acc_bytes
    m, k, n = _extents(work)
    high, wide, streamed = _placed(matrix.dataflow, m, k, n)
    matmuls: Array = work.batch * work.ic if work.depthwise else work.batch
    row_folds, column_folds = up(high, designs["matrix.rows"]), up(wide, designs["matrix.cols"])
    along = matmuls * high * streamed * column_folds
    passes: Array = row_folds
    if matrix.dataflow == "weight_stationary":
        operands = _weights(work, matmuls * high * wide) + along * work.itemsize
    elif matrix.dataflow == "input_stationary":
        operands = matmuls * high * wide * work.itemsize + _weights(work, along)
    else:
        operands, passes = along * work.itemsize + _weights(work, matmuls * wide * streamed * row_folds), np.ones(1)
    return operands + results * work.out_bytes, results * (2 * passes - 1) * work.acc_bytes


def _extents(work: Product) -> tuple[Array, Array, Array]:
    """Pixels, summands and channels of each product."""
    k: Array = work.taps * (np.ones(1) if work.depthwise else work.ic)
    return work.pixels, k, up(work.oc, work.ic) if work.depthwise else work.oc


def _placed(dataflow: str, m: Array, k: Array, n: Array) -> tuple[Array, Array, Array]:
    """What lies on rows and columns, and what is streamed."""
    return {"weight_stationary": (k, n, m), "output_stationary": (m, n, k), "input_stationary": (k, m, n)}[dataflow]


def _sram_cycles(designs: Designs, moved: Array, hz: Array) -> Array:
    return up(moved * hz, designs["sram.banks"] * designs["sram.bytes_per_cycle"] * designs["clock"])


def _weights(work: Product, count: Array) -> Array:
    return up(count * (work.w_bits or 8 * work.itemsize), 8)


def _once(work: Product) -> Array:
    depth: Array = work.taps * (np.ones(1) if work.depthwise else work.ic)
    pixels = work.batch * work.pixels
    inputs = pixels * depth * (work.ic if work.depthwise else 1.0)
    weights = _weights(work, work.batch * depth * work.oc)
    total: Array = inputs * work.itemsize + weights + pixels * work.oc * work.out_bytes
    return total


def _moved(designs: Designs, work: Product, high: Array, wide: Array, streamed: Array, matmuls: Array) -> Array:
    """Twin of ``matrix_systolic.traffic_cycles``, in bytes."""
    matrix = designs.config.matrix
    assert matrix is not None
    row_folds, column_folds = up(high, designs["matrix.rows"]), up(wide, designs["matrix.cols"])
    results = work.batch * work.pixels * work.oc
    stationary = matmuls * high * wide
    along = matmuls * high * streamed * column_folds
    if matrix.dataflow == "output_stationary":
        partial = np.zeros(1)
        moved = along * work.itemsize + _weights(work, matmuls * wide * streamed * row_folds)
    else:
        partial = results * (2 * row_folds - 2)
        if matrix.dataflow == "input_stationary":
            moved = stationary * work.itemsize + _weights(work, along)
        else:
            moved = _weights(work, stationary) + along * work.itemsize
    inside = partial * work.acc_bytes * (designs["matrix.accumulator_bytes"] == 0)
    total: Array = moved + inside + results * work.out_bytes
    return total


def vector(designs: Designs, work: VectorWork) -> Array:
    """Twin of ``vector.cost``."""
    unit = designs.config.vector
    assert unit is not None
    words = -(-work.dtype.itemsize // unit.lane_bytes)
    shared = max(1, unit.lane_bytes // work.dtype.itemsize) if unit.packed else 1
    compute = up(work.elements * words, designs["vector.lanes"] * shared) * unit.cost[work.function] * work.passes
    hz = designs["vector.clock"]
    traffic = _sram_cycles(designs, np.array([float(work.bytes)]), hz)
    if unit.port_bytes_per_cycle:
        traffic = np.maximum(traffic, up(float(work.bytes), unit.port_bytes_per_cycle))
    begin = designs["vector.setup_cycles"] + up(designs["sram.latency_cycles"] * hz, designs["clock"])
    taken: Array = (begin + np.maximum(compute, traffic)) * PS / hz
    return taken


def scalar(designs: Designs, work: ScalarWork) -> Array:
    """Twin of ``scalar.cost``."""
    compute = work.elements * designs["scalar.cycles_per_element"]
    traffic = up(float(work.bytes), designs["sram.bytes_per_cycle"])
    begin = designs["scalar.setup_cycles"] + designs["sram.latency_cycles"]
    taken: Array = (begin + np.maximum(compute, traffic)) * PS / designs["clock"]
    return taken


def bandwidth(designs: Designs, *, constants: bool = False) -> Array:
    """Bytes a second that the DRAM gives, or the memory of constants."""
    memory = designs.config.constants
    if constants and memory is not None:
        return np.array([float(memory.bandwidth)])
    if designs.config.dram.kind != "fixed":
        return np.array([float(dram_model(designs.config).bandwidth)])
    return np.floor(designs["dram.bandwidth"] * designs["dram.efficiency"])


def latency(designs: Designs, *, constants: bool = False) -> Array:
    """Twin of ``dma.latency_ps``."""
    memory = designs.config.constants
    behind = designs["dram.latency"]
    if constants and memory is not None:
        behind = np.array([float(memory.latency_ps)])
    elif designs.config.dram.kind != "fixed":
        behind = np.array([float(dram_model(designs.config).latency_ps)])
    way: Array = np.ceil(designs["interconnect.latency_cycles"] * PS / designs["clock"]) + behind
    return way


def channel(designs: Designs, *, constants: bool = False) -> Array:
    """Twin of ``dma.channel_bandwidth``."""
    wait = latency(designs, constants=constants)
    width = designs["dma.bytes_per_cycle"] * designs["clock"]
    asked = designs["dma.max_outstanding"] * designs["dma.burst_bytes"] * PS / np.maximum(wait, 1)
    return np.where(wait > 0, np.maximum(1, np.minimum(width, np.floor(asked))), width)


def start(designs: Designs) -> Array:
    """What a transfer takes before it asks for anything."""
    taken: Array = (designs["dma.setup_cycles"] + designs["sram.latency_cycles"]) * PS / designs["clock"]
    return taken


def transfer(
    designs: Designs, nbytes: Array, run: Array, stride: Array | int = 0, *, write: bool = False,
    constants: bool = False, word: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """Picoseconds of transfers from or to DRAM, each alone on the bus, and their bytes on the pins. Twin of
    ``dma.cost`` and of ``FixedDram.transfer_bytes`` for runs that begin so many bytes apart; 0: that is not known.
    ``word``: bytes of a run in SRAM, 0: all."""
    burst = designs["dma.burst_bytes"]
    run = np.maximum(1, np.minimum(run, nbytes))
    runs = up(nbytes, run)
    # The places of a burst at which they begin are all the multiples of this, in turn.
    place = np.where((runs > 1) & (burst <= PLACE_BYTES), np.gcd(np.asarray(stride, int), burst.astype(int)), burst)
    pins = runs * (up(run, place) * place + burst - place)
    wait = _wait(designs, nbytes, write=write, constants=constants)
    width = designs["dma.bytes_per_cycle"] * designs["clock"]
    between = designs["interconnect.bytes_per_cycle"] * designs["clock"]
    rate = np.minimum(
        np.minimum(channel(designs, constants=constants), between), bandwidth(designs, constants=constants)
    )
    moving = pins * (PS / rate)
    # What the channel writes for longer than the bytes flow shows, with the bus free for others.
    writing = nbytes * (PS / width)
    if word:
        writing = np.maximum(writing, nbytes / word * up(word, designs["dma.bytes_per_cycle"]) * PS / designs["clock"])
    taken: Array = start(designs) + wait + np.maximum(moving, writing)
    return taken, pins


def _wait(designs: Designs, nbytes: Array, *, write: bool, constants: bool) -> Array:
    """From a transfer's request to its first datum."""
    dma = designs.config.dma
    wait = latency(designs, constants=constants)
    if write and dma.write_latency_ps is not None:
        wait = np.array([float(dma.write_latency_ps)])
    if dma.gather_bytes:
        wait = wait + up(np.minimum(nbytes, dma.gather_bytes), designs["dma.bytes_per_cycle"]) * PS / designs["clock"]
    return wait


def stream(
    designs: Designs, taken: Array, nbytes: Array, *, near: bool = False, write: bool = False, constants: bool = False
) -> Array:
    """Picoseconds from one transfer to the next of a stream of equals, each of which takes so long alone; ``near``:
    within SRAM. Twin of ``dma.Channel.streaming_ps``."""
    in_flight = designs.config.dma.in_flight
    if in_flight == 1:
        return taken
    begin = start(designs)
    ahead = begin if near else begin + _wait(designs, nbytes, write=write, constants=constants)
    return np.maximum(np.maximum(begin, taken - ahead), taken / in_flight)


def local(designs: Designs, nbytes: Array, run: Array) -> Array:
    """Picoseconds of transfers within SRAM."""
    dma, clock = designs.config.dma, designs["clock"]
    run = np.maximum(1, np.minimum(run, nbytes))
    width = (
        np.array([float(dma.local_bytes_per_cycle)]) if dma.local_bytes_per_cycle else designs["dma.bytes_per_cycle"]
    )
    begin = start(designs)
    taken: Array = begin + np.maximum(
        up(nbytes, run) * up(run, width) * PS / clock, dma.local_least_cycles * PS / clock - begin
    )
    return taken
