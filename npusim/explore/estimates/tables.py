"""What every cut takes on each design, and the best of those that fit: the tiler's estimate over arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npusim.dtypes import DType
from npusim.explore.estimates import prices
from npusim.explore.estimates.cuts import Case, Rooms, Shapes, TileCuts, piece_of, spread_over, worth
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.prices import PS, Product, up
from npusim.hw.cost import cost_model
from npusim.isa.base import Command, Unit, Wait
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.isa.matrix import Conv, rate_type
from npusim.isa.vector import BinaryOp
from npusim.timing.tile import OVERLAP, Home, MatrixProblem
from npusim.work import MatrixWork


class PerDesign(NamedTuple):
    """Values of [cuts][designs that are alike in what decides them], and which of these each design is."""

    values: Array
    columns: Index

    def at(self, best: Index, designs: Index) -> Array:
        """Of some cuts on some designs."""
        cuts, some = self.values.shape
        found: Array = self.values[best if cuts > 1 else 0, self.columns[designs] if some > 1 else 0]
        return found

    def of(self, designs: Index) -> Array:
        """Of all cuts on some designs."""
        return self.values if self.values.shape[1] == 1 else self.values[:, self.columns[designs]]


class TileTable(NamedTuple):
    """What each cut takes on each design: bytes of SRAM, picoseconds as the tiler sees them, and all else that may be
    asked of the cut that is picked."""

    nbytes: PerDesign
    ps: Array
    rows: Array
    """That a cut makes at once."""
    whole: PerDesign
    """How often so many rows are made."""
    parts: tuple[PerDesign, ...]
    """Picoseconds of the matrix unit, the chain, loads, stores, and the DRAM."""
    begin: PerDesign
    """Before anything overlaps, the chain aside."""
    ahead: PerDesign
    """Of that the first weights, which are loaded while the layer before still computes."""
    tail: PerDesign
    """Of the chain, behind a tile."""
    per_core: PerDesign
    counts: tuple[PerDesign, ...]
    """As ``COUNTS`` names them."""


COUNTS = ("dram", "moved", "sram", "accumulators", "code")
"""Bytes over the pins, bytes through the channels of DMA, those that the matrix unit reads from SRAM and writes to it,
those of sums, and those of commands."""


_FRAME = len(Command(0, Unit.CONTROL, 0, (Wait(0, Unit.CONTROL, 0),), Halt()).to_bytes()) - Halt.layout.size
"""Bytes of a command that waits once, but for its instruction."""


_PRODUCT, _COPY, _CHAINED = (_FRAME + kind.layout.size for kind in (Conv, Copy, BinaryOp))
"""Bytes of commands: of the matrix unit, of DMA, and of the vector unit behind it."""


class Picked(NamedTuple):
    """Cuts that were picked, one for each design, and the columns of the designs in the table."""

    table: TileTable
    best: Index
    columns: Index

    def at(self, each: PerDesign) -> Array:
        """Of these."""
        return each.at(self.best, self.columns)

    def parts(self) -> Array:
        """[matrix unit, chain, loads, stores, DRAM][designs], in picoseconds for all of the layer."""
        whole = self.at(self.table.whole)
        return np.stack([np.broadcast_to(self.at(part) * whole, self.best.shape) for part in self.table.parts])

    def begin(self) -> Array:
        """Picoseconds before anything overlaps, and behind the last tile; the first weights have come before."""
        compute, chain = (self.at(part) for part in self.table.parts[:2])
        exposed = np.where(chain <= compute, self.at(self.table.tail), compute / self.at(self.table.per_core))
        found: Array = (self.at(self.table.begin) - self.at(self.table.ahead) + exposed) * self.at(self.table.whole)
        return found

    def counts(self) -> Array:
        """[``COUNTS``][designs]."""
        whole = self.at(self.table.whole)
        return np.stack([np.broadcast_to(self.at(count) * whole, self.best.shape) for count in self.table.counts])


_SHAPE = ("matrix.cols", "matrix.accumulator_bytes")


_COMPUTE = (
    "clock", "matrix.rows", "matrix.cols", "matrix.clock", "matrix.setup_cycles", "matrix.accumulator_bytes",
    "matrix.output_elements_per_cycle", "matrix.arrays", "sram.banks", "sram.bytes_per_cycle", "sram.latency_cycles",
)  # fmt: skip


_MOVE = (
    "clock", *_SHAPE, "sram.latency_cycles", "dma.setup_cycles", "dma.bytes_per_cycle", "dma.max_outstanding",
    "dma.burst_bytes", "dram.bandwidth", "dram.latency", "dram.efficiency", "interconnect.bytes_per_cycle",
    "interconnect.latency_cycles",
)  # fmt: skip


_CHAIN = (
    "clock", *_SHAPE, "vector.lanes", "vector.clock", "vector.setup_cycles", "sram.banks", "sram.bytes_per_cycle",
    "sram.latency_cycles",
)  # fmt: skip
"""What each part of an estimate follows from: worked out once for designs that are alike in that."""


Known = dict[tuple[object, ...], Shapes]
"""Shapes of cases on designs that were asked about before."""


def _shapes(case: Case, designs: Designs, rooms: Rooms, cores: int, known: Known) -> Shapes:
    key = (case.problem, case.rows, rooms, cores, *(designs[each].tobytes() for each in _SHAPE))
    if key not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = worth(case, designs, rooms, cores)
    return known[key]


_MOST_KNOWN = 2048


def table(case: Case, designs: Designs, rooms: Rooms, cores: int, known: Known) -> TileTable:
    """Twin of ``tile._estimate``, for all cuts that are worth it. ``known``: what was worked out for other designs of
    the same kind; it is added to."""
    narrow, columns = designs.alike(_SHAPE)
    shapes = _shapes(case, narrow, rooms, cores, known)

    def of(keys: tuple[str, ...], ask: Callable[[Case, Shapes, Designs], tuple[Array, ...]]) -> list[PerDesign]:
        """What follows from some keys."""
        some, mine = designs.alike(keys)
        first = np.zeros(some.count, np.intp)
        first[mine] = columns
        return [PerDesign(each.astype(np.float32), mine) for each in ask(case, shapes.at(first), some)]

    computing, streams, sums = of(_COMPUTE, _compute)
    *moving, ahead, traffic, moved, code, inputs = of(_MOVE, _moves)
    chaining, tail = of(_CHAIN, _behind)
    compute, chain, behind = (spread_over(*each) for each in (computing, chaining, tail))
    loading, storing, shared, begin = (spread_over(*each) for each in moving)
    if not designs.config.dma.inputs_ahead:
        compute = compute + spread_over(*inputs)
    alone = designs["dma.channels"] == 1
    loading, storing = loading + alone * storing, np.where(alone, 0.0, storing)
    per_core = PerDesign(shapes.tasks.per_core.astype(np.float32), columns)
    begin = begin + np.where(chain <= compute, behind, compute / spread_over(*per_core))
    longest, total = compute, compute + chain + loading + storing + shared
    for part in (chain, loading, storing, shared):
        longest = np.maximum(longest, part)
    whole = (case.height / shapes.cut.rows).astype(np.float32)
    ps = (longest + (total - longest + shared) / OVERLAP + begin) * whole
    ps = np.broadcast_to(ps, (ps.shape[0], designs.count))  # it may depend on nothing that differs
    return TileTable(
        PerDesign(shapes.nbytes.astype(np.float32), columns), ps, shapes.cut.rows[:, 0], PerDesign(whole, columns),
        (computing, chaining, *moving[:3]), moving[3], ahead, tail, per_core, (traffic, moved, streams, sums, code),
    )  # fmt: skip


def _compute(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of a core's matrix unit, and the bytes that all read and write in SRAM and in accumulators."""
    tasks, tiles = shapes.tasks, shapes.tasks.all * shapes.tasks.chunks
    all_cores, streams, sums = _computing(case.problem, shapes.cut, designs, tiles)
    return tasks.per_core / tasks.all * all_cores, streams, sums


def _moves(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of a core's channels to load and to store, and of the DRAM for all; of the first tile; bytes on the
    pins, through the channels, and of commands; picoseconds of the inputs alone."""
    problem, (cut, size, elements, tasks, _) = case.problem, shapes
    x_side, out_side, other_side = (designs.l2_side() if near else designs for near in case.l2)
    x_each, x_pins = _moving(
        problem.x_home, size.x, *_run(problem, cut), x_side, word=problem.x_type.itemsize * problem.x_turned
    )
    out_run: Array = cut.groups * cut.oc
    every = problem.groups * problem.oc
    apart = np.where(out_run == every, 0, every)
    out_run = np.where(out_run == every, out_run * cut.ow, out_run)
    item, stored = problem.stored_bytes, elements * problem.stored_bytes
    # Of a result that is transposed pixels lie next to each other in DRAM.
    to_run, to_apart = (cut.ow + 0 * out_run, 0 * apart) if problem.out_turned else (out_run, apart)
    out_each, out_pins = _moving(
        problem.out_home, stored, to_run * item, to_apart * item, out_side, write=True, word=item * problem.out_turned
    )
    w_each: Array = np.zeros((1, 1))
    w_pins: Array = np.zeros((1, 1))
    if not problem.held:
        w_each, w_pins = prices.transfer(designs, size.w, size.w, constants=True)
    near_x, near_out = problem.x_home is Home.DIRECT, problem.out_home is Home.DIRECT
    moved = (0.0 if near_x else tasks.x * size.x) + (0.0 if near_out else tasks.stores * stored) + np.zeros((1, 1))
    moved = moved + (0.0 if problem.held else tasks.w * size.w)
    x_next = prices.stream(x_side, x_each, size.x, near=problem.x_home is Home.COPIED)
    w_next = prices.stream(designs, w_each, size.w, constants=True)
    out_next = prices.stream(out_side, out_each, stored, near=problem.out_home is Home.COPIED, write=True)
    loading = (0.0 if near_x else tasks.x * x_next) + (0.0 if problem.held else tasks.w * w_next)
    constant: Array = tasks.w * w_pins
    passed: tuple[Array, Array] = (tasks.x * x_pins, tasks.stores * out_pins)
    traffic: Array = np.zeros((1, 1))
    in_l2: Array = np.zeros((1, 1))
    for pins, near in zip(passed, case.l2, strict=False):
        traffic, in_l2 = (traffic, in_l2 + pins) if near else (traffic + pins, in_l2)
    for item in problem.epilogue.operands:
        each, pins = prices.transfer(other_side, elements * item, out_run * item, apart * item)
        loading = loading + tasks.stores * prices.stream(other_side, each, elements * item)
        pins = tasks.stores * pins
        traffic, in_l2 = (traffic, in_l2 + pins) if case.l2[2] else (traffic + pins, in_l2)
        moved = moved + tasks.stores * elements * item
    share = tasks.per_core / tasks.all
    storing = np.minimum(tasks.per_core, tasks.stores) * (0.0 if near_out else out_next)
    tick = problem.beside * PS
    if designs.config.constants is None:
        shared = (traffic + constant) * (tick / prices.bandwidth(designs))
    else:
        apart = constant * (tick / prices.bandwidth(designs, constants=True))
        shared = np.maximum(traffic * (tick / prices.bandwidth(designs)), apart)
    if any(case.l2):
        shared = np.maximum(shared, in_l2 * (tick / prices.bandwidth(designs.l2_side())))
    first = (x_each if designs.config.dma.inputs_ahead else 0.0) + w_each + out_each
    # With the weights come their parameters.
    copies = tasks.stores * (1 + len(problem.epilogue.operands) - near_out) + (not near_x) * tasks.x
    copies = copies + (0 if problem.held else 2) * tasks.w
    code = copies * _COPY + tasks.all * tasks.chunks * _PRODUCT + tasks.all * len(case.chain.many) * _CHAINED
    return share * loading, storing, shared, first, w_each, traffic + constant, moved, code, share * tasks.x * x_each


def _behind(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of the chain for a core's tiles, and for one of them."""
    tasks = shapes.tasks
    each = _chain_time(case, shapes.cut, shapes.elements, designs)
    return np.minimum(tasks.per_core, tasks.stores) * each, each


def pick(found: TileTable, room: Array, columns: Index, rows: int = 0) -> tuple[Array, Index]:
    """For designs with ``room`` bytes, whose columns of the table are given: picoseconds of the best cut that fits, and
    which it is; infinite where none does. ``rows``: of the cuts for so many rows at once."""
    if not rows or found.rows[0] == found.rows[-1]:
        first, end = 0, len(found.rows)
    else:
        first, end = np.searchsorted(found.rows, (rows, rows + 1))
    nbytes = found.nbytes._replace(values=found.nbytes.values[first:end])
    ps = np.where(nbytes.of(columns) <= room.astype(np.float32), found.ps[first:end, columns], _NEVER)
    best = ps.argmin(0)
    return ps[best, np.arange(len(best))], best + first


_NEVER = np.float32(np.inf)


def _chain_time(case: Case, cut: TileCuts, elements: Array, designs: Designs) -> Array:
    """Twin of ``tile.chain_time``."""
    if not case.chain.one:
        return np.zeros((1, 1))
    pieces = np.where(cut.pieces > 0, up(elements, piece_of(case.problem.epilogue)), 1.0)
    taken: Array = pieces * case.chain.begin(designs) + elements * case.chain.each(designs)
    return taken


def _run(problem: MatrixProblem, cut: TileCuts) -> tuple[Array, Array]:
    """Contiguous bytes of an input tile: channels are innermost, all of them make one run of a row of pixels. And the
    bytes from one of those to the next, 0 if that is not known."""
    item, every = problem.x_type.itemsize, problem.groups * problem.ic
    run = cut.groups * cut.ic * item
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    if problem.x_turned:
        return cols * item + 0 * run, 0 * run
    whole = cut.groups * cut.ic == every
    return np.where(whole, run * cols, run), np.where(whole, 0, every * item)


def _moving(
    home: Home, nbytes: Array, run: Array, stride: Array, designs: Designs, *, write: bool = False, word: int = 0
) -> tuple[Array, Array]:
    if home is Home.DIRECT:
        return np.zeros(1), np.zeros(1)
    if home is Home.COPIED:
        return prices.local(designs, nbytes, np.minimum(run, word) if word else run), np.zeros(1)
    return prices.transfer(designs, nbytes, run, stride, write=write, word=word)


def _computing(problem: MatrixProblem, cut: TileCuts, designs: Designs, tiles: Array) -> tuple[Array, Array, Array]:
    """Twin of ``tile.computing``: picoseconds for all tiles. Of the tiles at the edges it knows how much less there is
    of each dimension, not that another of the unit's limits may hold for them. And the bytes of operands and results
    in SRAM, and of sums in accumulators."""
    dtype = rate_type(problem.x_type, problem.w_type)
    groups, oc, ic = cut.groups, cut.oc, cut.ic
    if problem.depthwise:
        groups, oc, ic = np.ones((1, 1)), cut.groups * cut.oc, cut.groups
    work = Product(
        dtype.label, dtype.itemsize, groups, cut.oh * cut.ow, oc, ic, problem.kh * problem.kw, problem.depthwise,
        problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
    )  # fmt: skip
    pixels = cut.rows * problem.ow / (up(cut.rows, cut.oh) * up(problem.ow, cut.ow) * cut.oh * cut.ow)
    channels = problem.groups / (up(problem.groups, cut.groups) * cut.groups)
    channels = channels * problem.oc / (up(problem.oc, cut.oc) * cut.oc)
    depth = problem.ic / (up(problem.ic, cut.ic) * cut.ic)
    streams, sums = prices.touched(designs, work)
    counts = tiles * streams * pixels * channels * depth, tiles * sums * pixels * channels
    if designs.config.matrix is not None and designs.config.matrix.model != "systolic":
        return (_asked(problem, cut, designs, dtype) * tiles * pixels * channels * depth, *counts)
    taken = prices.systolic(designs, work)
    folds = pixels * _folds_filled(problem, cut, designs)
    spread = np.maximum(
        np.maximum(taken.once + taken.array * folds, taken.drain * pixels * channels),
        taken.traffic * pixels * channels * depth,
    )
    return (tiles * (taken.begin + spread), *counts)


def _folds_filled(problem: MatrixProblem, cut: TileCuts, designs: Designs) -> Array:
    """Folds of all tiles over those of as many whole ones: an edge of a fold costs as much as a full one."""
    groups = problem.groups / (up(problem.groups, cut.groups) * cut.groups)
    if problem.depthwise:
        return groups
    assert designs.config.matrix is not None
    dataflow, taps = designs.config.matrix.dataflow, problem.kh * problem.kw
    # What is streamed takes as long as it is; what lies in the array, as many folds as it touches.
    across: Array = problem.oc / (up(problem.oc, cut.oc) * cut.oc)
    deep: Array = problem.ic / (up(problem.ic, cut.ic) * cut.ic)
    if dataflow != "input_stationary":
        across = _parts(problem.oc, cut.oc, designs["matrix.cols"])
    if dataflow != "output_stationary":
        deep = _parts(problem.ic * taps, cut.ic * taps, designs["matrix.rows"])
    return groups * across * deep


def _parts(whole: int, size: Array, unit: Array) -> Array:
    """Units that all parts take over those of as many whole parts."""
    count = np.floor(whole / size)
    rest = whole - count * size
    filled: Array = (count * up(size, unit) + up(rest, unit)) / (up(whole, size) * up(size, unit))
    return filled


def _asked(problem: MatrixProblem, cut: TileCuts, designs: Designs, dtype: DType) -> Array:
    """Picoseconds of a tile by the unit's own model, asked for each cut: of models that have no twin."""
    price = cost_model(designs.config).product_ps
    shape = np.broadcast_shapes(cut.oc.shape, cut.oh.shape)
    fields = [np.broadcast_to(each, shape) for each in (cut.groups, cut.oh, cut.ow, cut.oc, cut.ic)]
    found = np.empty(shape)
    for at in np.ndindex(shape):
        groups, oh, ow, oc, ic = (int(each[at]) for each in fields)
        if problem.depthwise:
            groups, oc, ic = 1, groups * oc, groups
        work = MatrixWork(
            dtype, groups, oh, ow, oc, ic, problem.kh, problem.kw, problem.depthwise, True, True,
            problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
        )  # fmt: skip
        found[at] = price(work)
    return found
