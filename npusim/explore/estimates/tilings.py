"""The tiler's search over many designs at once: every cut that it would try, its bytes of SRAM and its time on each.

Twin of :mod:`npusim.compiler.tile` in arrays of [cuts][designs]; what differs is said where it does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from npusim.compiler.tile import OVERLAP, Epilogue, Home, MatrixProblem
from npusim.compiler.values import ALIGNMENT
from npusim.dtypes import DType
from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.prices import PS, Product, up
from npusim.hw.cost import cost_model
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS, Command, Unit, Wait
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.isa.matrix import CHANNEL_BLOCK, Conv, rate_type
from npusim.isa.vector import BinaryOp
from npusim.units import ceil_div
from npusim.work import MatrixWork, VectorWork

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ChainWorks:
    """What the chain behind a product asks of the vector unit: for one element, and for ``probe`` of them."""

    one: tuple[VectorWork, ...] = ()
    many: tuple[VectorWork, ...] = ()
    probe: int = 1

    def begin(self, designs: Designs) -> Array:
        """Picoseconds before the first element of a tile, or of a piece."""
        return sum((prices.vector(designs, work) for work in self.one), np.zeros(1))

    def each(self, designs: Designs) -> Array:
        """Picoseconds for each element more."""
        many = sum((prices.vector(designs, work) for work in self.many), np.zeros(1))
        each: Array = (many - self.begin(designs)) / self.probe
        return each


@dataclass(frozen=True)
class Case:
    """A layer of the matrix unit as the tiler sees it: its problem, its chain, and the rows of its result, of which
    ``rows`` are made at once: one number for each question that is asked of it."""

    problem: MatrixProblem
    chain: ChainWorks
    height: int
    rows: tuple[int, ...] = ()
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Tables are looked up by case thousands of times, and a problem has thirty fields.
        object.__setattr__(self, "_hash", hash((self.problem, self.chain, self.height, self.rows)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def asked(self) -> tuple[int, ...]:
        return self.rows or (self.problem.oh,)


class Cuts(NamedTuple):
    """Candidates: arrays of [cuts][1], ``oc`` of [cuts][designs]; ``rows``: those that are made at once; ``valid``: no
    cut twice."""

    rows: Array
    groups: Array
    oh: Array
    ow: Array
    oc: Array
    ic: Array
    outer: Array
    pieces: Array
    valid: Mask
    level: Array
    """How often the output channels are halved."""
    loose: Array
    """Bytes of the weights of two tiles, were the sum cut once less; 0 where it is not cut."""

    def over(self, of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Cuts:
        """What a function makes of each field."""
        return Cuts(*(of(each) for each in self))


class Spread(NamedTuple):
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


class Table(NamedTuple):
    """What each cut takes on each design: bytes of SRAM, picoseconds as the tiler sees them, and all else that may be
    asked of the cut that is picked."""

    nbytes: Spread
    ps: Array
    rows: Array
    """That a cut makes at once."""
    whole: Spread
    """How often so many rows are made."""
    parts: tuple[Spread, ...]
    """Picoseconds of the matrix unit, the chain, loads, stores, and the DRAM."""
    begin: Spread
    """Before anything overlaps, the chain aside."""
    tail: Spread
    """Of the chain, behind a tile."""
    per_core: Spread
    counts: tuple[Spread, ...]
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

    table: Table
    best: Index
    columns: Index

    def at(self, each: Spread) -> Array:
        """Of these."""
        return each.at(self.best, self.columns)

    def parts(self) -> Array:
        """[matrix unit, chain, loads, stores, DRAM][designs], in picoseconds for all of the layer."""
        whole = self.at(self.table.whole)
        return np.stack([np.broadcast_to(self.at(part) * whole, self.best.shape) for part in self.table.parts])

    def begin(self) -> Array:
        """Picoseconds before anything overlaps, and behind the last tile."""
        compute, chain = (self.at(part) for part in self.table.parts[:2])
        exposed = np.where(chain <= compute, self.at(self.table.tail), compute / self.at(self.table.per_core))
        found: Array = (self.at(self.table.begin) + exposed) * self.at(self.table.whole)
        return found

    def counts(self) -> Array:
        """[``COUNTS``][designs]."""
        whole = self.at(self.table.whole)
        return np.stack([np.broadcast_to(self.at(count) * whole, self.best.shape) for count in self.table.counts])


_ORDERS = (0.0, 1.0)


def halvings(full: int, least: int, multiple: int = 1) -> Iterator[int]:
    """Twin of the tiler's: full, then halves rounded up to a multiple, down to ``least``."""
    size = full
    yield size
    while size > least:
        half = ceil_div(size, 2)
        rounded = max(least, ceil_div(half, multiple) * multiple if half > multiple else half)
        if rounded >= size:
            return
        size = rounded
        yield size


def _channels(full: int, cols: Array) -> list[tuple[Array, Mask]]:
    """Output channels of a tile on designs with so many columns, each cut with whether it is a new one."""
    size, new = np.full(cols.shape, float(full)), np.ones(cols.shape, bool)
    found = [(size, new)]
    while len(found) < _LEVELS:
        half = np.ceil(size / 2)
        rounded = np.where(half > cols, up(half, cols) * cols, half)
        new = new & (rounded < size) & (size > 1)
        if not new.any():
            break
        size = np.where(new, rounded, size)
        found.append((size, new))
    return found


_LEVELS = 7
"""Cuts of the output channels that are looked at; the tiler goes on to a single one."""


def cuts(case: Case, designs: Designs, *, turning: bool = False) -> Cuts:
    """The cuts of a problem; those of pixels from large to small, of which the tiler tries the first that fit.

    ``turning``: each with either loop outermost, since one load may serve several cores.
    """
    problem, cols = case.problem, designs["matrix.cols"]
    spots = [(rows, *spot) for rows in case.asked for spot in _spots(rows, problem.ow)]
    ways: list[tuple[int, Array, int, Mask, int, Array]] = []
    nothing = np.zeros(cols.shape)
    always = np.ones(cols.shape, bool)
    bits = (problem.w_bits or 8 * problem.w_type.itemsize) * problem.kh * problem.kw
    if problem.depthwise:
        full = np.full(cols.shape, float(problem.oc))
        ways = [(count, full, problem.ic, always, 0, nothing) for count in halvings(problem.groups, 1)]
    else:
        if problem.groups > 1:
            full = np.full(cols.shape, float(problem.oc))
            ways = [(count, full, problem.ic, always, 0, nothing) for count in halvings(problem.groups, 2)]
        deep = list(halvings(problem.ic, CHANNEL_BLOCK, CHANNEL_BLOCK))
        if problem.held:  # what is held costs no loads
            deep = deep[:1]
        for level, (oc, new) in enumerate(_channels(problem.oc, cols)):
            if problem.held and level:
                break
            before = [0, *deep]
            ways += [(1, oc, ic, new, level, last * oc * (bits / 4)) for ic, last in zip(deep, before, strict=False)]
    rows: list[tuple[float, ...]] = []
    several: list[int] = []
    for number, (groups, _, ic, *_) in enumerate(ways):
        for height, oh, ow in spots:
            for outer in _ORDERS if turning or _may_turn(problem, ic, oh < height or ow < problem.ow) else _ORDERS[:1]:
                for pieces in (0.0, 1.0) if problem.epilogue.between else (0.0,):
                    rows.append((height, groups, oh, ow, ic, outer, pieces))
                    several.append(number)
    fields = [np.array(column, np.float64)[:, None] for column in zip(*rows, strict=True)]
    oc = np.stack([way[1] for way in ways])[several]
    valid = np.stack([way[3] for way in ways])[several]
    levels = np.array([float(way[4]) for way in ways])[several][:, None]
    loose = np.stack([way[5] for way in ways])[several]
    high, group, oh_, ow_, deep_, outermost, in_pieces = fields
    return Cuts(high, group, oh_, ow_, oc, deep_, outermost, in_pieces, valid, levels, loose)


def _may_turn(problem: MatrixProblem, ic: int, several: bool) -> bool:
    """Whether there are two loops to order."""
    return (problem.images > 1 or several) and ic == problem.ic and not problem.held


@functools.lru_cache(1024)
def _spots(height: int, width: int) -> tuple[tuple[int, int], ...]:
    rows = [(oh, width) for oh in halvings(height, 1)]
    return (*rows, *((1, ow) for ow in halvings(width, 1) if ow < width))


class Size(NamedTuple):
    """Twin of ``tile.Footprint``."""

    x: Array
    w: Array
    parameters: Array
    acc: Array
    out: Array


class Tasks(NamedTuple):
    """How many parts of the sum a tile has, how many tiles there are, and how many a core has; how often tiles of each
    operand are loaded and results stored, edges counted for what they are."""

    chunks: Array
    all: Array
    per_core: Array
    x: Array
    w: Array
    stores: Array


class Rooms(NamedTuple):
    """The least and the most bytes of SRAM that tiles of any design may take."""

    least: float
    most: float


class Shapes(NamedTuple):
    """Cuts and what follows from them and from the columns of the array alone."""

    cut: Cuts
    size: Size
    elements: Array
    tasks: Tasks
    nbytes: Array
    """Of SRAM; infinite where the accumulators or an instruction cannot take a tile."""

    def at(self, columns: Index) -> Shapes:
        """The same for other designs, of which each has the columns of one of these."""
        return Shapes(
            self.cut.over(lambda each: _taken(each, columns)), Size(*(_taken(each, columns) for each in self.size)),
            _taken(self.elements, columns), Tasks(*(_taken(each, columns) for each in self.tasks)),
            _taken(self.nbytes, columns),
        )  # fmt: skip


def _taken(each: npt.NDArray[Any], columns: Index) -> npt.NDArray[Any]:
    return each if each.shape[-1] == 1 else each[:, columns]


def worth(case: Case, designs: Designs, rooms: Rooms, cores: int) -> Shapes:
    """The cuts of a problem that the tiler would look at in some room: of each way to cut the channels the first ones
    that fit, parts of the sum where the whole of it might not, pieces of the chain where a whole tile might not."""
    problem = case.problem
    several = designs.config.interconnect.multicast and cores > 1 and problem.x_home is Home.DRAM
    cut = cuts(case, designs, turning=several)
    size, elements = _footprint(problem, cut), cut.oh * cut.ow * cut.groups * cut.oc
    allowed = _allowed(problem, cut, size, elements, designs)
    nbytes = np.where(allowed, _sram_bytes(case, cut, size, elements, designs), np.inf)
    least = nbytes.min(1)
    keep: Mask = np.asarray(least <= rooms.most)
    # Cuts of one family are next to each other but for order and pieces, from large to small.
    family = np.concatenate([cut.rows, cut.groups, cut.ic, cut.outer, cut.pieces, cut.level], 1)
    order = np.lexsort(family.T)
    sorted_family, fits = family[order], np.all(nbytes <= rooms.least, axis=1)[order] & keep[order]
    starts = np.flatnonzero(np.r_[True, (sorted_family[1:] != sorted_family[:-1]).any(1)])
    # How many of the family, this one aside, fit into the least room for sure: more than the tiler tries are not asked.
    count = np.cumsum(fits) - fits
    before = count - np.repeat(count[starts], np.diff(np.r_[starts, len(order)]))
    late = np.zeros(len(order), bool)
    late[order] = before >= _TRIED
    keep &= ~late
    keep &= (cut.ic[:, 0] == problem.ic) | (cut.loose > rooms.least / 2).any(1)
    if problem.epilogue.between:
        whole = _sram_bytes(case, cut._replace(pieces=np.zeros((1, 1))), size, elements, designs)
        keep &= (cut.pieces[:, 0] == 0) | ((whole > rooms.least) & allowed).any(1)
    for rows in case.asked:  # what fits nowhere is found out later
        some = np.flatnonzero(cut.rows[:, 0] == rows)
        if not keep[some].any():
            keep[some[least[some].argmin()]] = True
    kept = np.flatnonzero(keep)  # those of the same rows next to each other
    kept = kept[np.argsort(cut.rows[kept, 0], kind="stable")]
    cut = cut.over(lambda each: each[kept])
    size = Size(*(each if each.shape[0] == 1 else each[kept] for each in size))
    tasks = _tasks(problem, cut, cores, several=several)
    return Shapes(cut, size, elements[kept], tasks, nbytes[kept])


_TRIED = 3
"""Cuts of the pixels that the tiler tries for each cut of the channels: the largest that fits and the next ones."""


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
    key = (case, rooms, cores, *(designs[each].tobytes() for each in _SHAPE))
    if key not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = worth(case, designs, rooms, cores)
    return known[key]


_MOST_KNOWN = 2048


def table(case: Case, designs: Designs, rooms: Rooms, cores: int, known: Known) -> Table:
    """Twin of ``tile._estimate``, for all cuts that are worth it. ``known``: what was worked out for other designs of
    the same kind; it is added to."""
    narrow, columns = designs.alike(_SHAPE)
    shapes = _shapes(case, narrow, rooms, cores, known)

    def of(keys: tuple[str, ...], ask: Callable[[Case, Shapes, Designs], tuple[Array, ...]]) -> list[Spread]:
        """What follows from some keys."""
        some, mine = designs.alike(keys)
        first = np.zeros(some.count, np.intp)
        first[mine] = columns
        return [Spread(each.astype(np.float32), mine) for each in ask(case, shapes.at(first), some)]

    computing, streams, sums = of(_COMPUTE, _compute)
    *moving, traffic, moved, code, inputs = of(_MOVE, _moves)
    chaining, tail = of(_CHAIN, _behind)
    compute, chain, behind = (_taken(*each) for each in (computing, chaining, tail))
    loading, storing, shared, begin = (_taken(*each) for each in moving)
    if not designs.config.dma.inputs_ahead:
        compute = compute + _taken(*inputs)
    alone = designs["dma.channels"] == 1
    loading, storing = loading + alone * storing, np.where(alone, 0.0, storing)
    per_core = Spread(shapes.tasks.per_core.astype(np.float32), columns)
    begin = begin + np.where(chain <= compute, behind, compute / _taken(*per_core))
    longest, total = compute, compute + chain + loading + storing + shared
    for part in (chain, loading, storing, shared):
        longest = np.maximum(longest, part)
    whole = (case.height / shapes.cut.rows).astype(np.float32)
    ps = (longest + (total - longest + shared) / OVERLAP + begin) * whole
    ps = np.broadcast_to(ps, (ps.shape[0], designs.count))  # it may depend on nothing that differs
    return Table(
        Spread(shapes.nbytes.astype(np.float32), columns), ps, shapes.cut.rows[:, 0], Spread(whole, columns),
        (computing, chaining, *moving[:3]), moving[3], tail, per_core, (traffic, moved, streams, sums, code),
    )  # fmt: skip


def _tasks(problem: MatrixProblem, cut: Cuts, cores: int, *, several: bool) -> Tasks:
    spatial = problem.images * up(cut.rows, cut.oh) * up(problem.ow, cut.ow)
    channels = up(problem.groups, cut.groups) * up(problem.oc, cut.oc)
    chunks = up(problem.ic, cut.ic)
    tasks = spatial * channels
    full_x, full_w, full_out = _filled(problem, cut)
    x, w = _loads(problem, cut, spatial, channels, chunks, tasks)
    x_cores, w_cores = _loaded_for(problem, cut, spatial, channels, cores) if several else (1.0, 1.0)
    return Tasks(chunks, tasks, np.ceil(tasks / cores), x / x_cores * full_x, w / w_cores * full_w, tasks * full_out)


def _loaded_for(problem: MatrixProblem, cut: Cuts, spatial: Array, channels: Array, cores: int) -> tuple[Array, Array]:
    """Twin of ``tile._loaded_for``, with a bus that serves several cores."""
    outer = np.where(cut.outer > 0, channels, spatial)
    inner = np.where(cut.outer > 0, spatial, channels)
    mine = np.floor(outer * inner / cores)
    even = (outer * inner % cores == 0) & ((mine % inner == 0) | (inner % np.maximum(mine, 1) == 0))
    together = np.where(even, np.floor(cores / np.maximum(1, np.floor(inner / np.maximum(mine, 1)))), 1.0)
    x = np.where(cut.outer > 0, together, 1.0)
    return x, np.where((cut.outer > 0) | (not problem.shared_weights), 1.0, together)


def _compute(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of a core's matrix unit, and the bytes that all read and write in SRAM and in accumulators."""
    tasks, tiles = shapes.tasks, shapes.tasks.all * shapes.tasks.chunks
    all_cores, streams, sums = _computing(case.problem, shapes.cut, designs, tiles)
    return tasks.per_core / tasks.all * all_cores, streams, sums


def _moves(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of a core's channels to load and to store, and of the DRAM for all; of the first tile; bytes on the
    pins, through the channels, and of commands; picoseconds of the inputs alone."""
    problem, (cut, size, elements, tasks, _) = case.problem, shapes
    x_each, x_pins = _moving(problem.x_home, size.x, _run(problem, cut), designs)
    out_run: Array = cut.groups * cut.oc
    out_run = np.where(out_run == problem.groups * problem.oc, out_run * cut.ow, out_run)
    out_each, out_pins = _moving(problem.out_home, size.out, out_run * problem.out_type.itemsize, designs, write=True)
    w_each: Array = np.zeros((1, 1))
    w_pins: Array = np.zeros((1, 1))
    if not problem.held:
        w_each, w_pins = prices.transfer(designs, size.w, size.w, constants=True)
    near_x, near_out = problem.x_home is Home.DIRECT, problem.out_home is Home.DIRECT
    moved = (0.0 if near_x else tasks.x * size.x) + (0.0 if near_out else tasks.stores * size.out) + np.zeros((1, 1))
    moved = moved + (0.0 if problem.held else tasks.w * size.w)
    loading = tasks.x * x_each + tasks.w * w_each
    traffic, constant = tasks.x * x_pins + tasks.stores * out_pins, tasks.w * w_pins
    for item in problem.epilogue.operands:
        each, pins = prices.transfer(designs, elements * item, out_run * item)
        loading, traffic = loading + tasks.stores * each, traffic + tasks.stores * pins
        moved = moved + tasks.stores * elements * item
    share = tasks.per_core / tasks.all
    storing = np.minimum(tasks.per_core, tasks.stores) * out_each
    tick = problem.beside * PS
    if designs.config.constants is None:
        shared = (traffic + constant) * (tick / prices.bandwidth(designs))
    else:
        apart = constant * (tick / prices.bandwidth(designs, constants=True))
        shared = np.maximum(traffic * (tick / prices.bandwidth(designs)), apart)
    first = x_each + w_each + out_each
    # With the weights come their parameters.
    copies = tasks.stores * (1 + len(problem.epilogue.operands) - near_out) + (not near_x) * tasks.x
    copies = copies + (0 if problem.held else 2) * tasks.w
    code = copies * _COPY + tasks.all * tasks.chunks * _PRODUCT + tasks.all * len(case.chain.many) * _CHAINED
    return share * loading, storing, shared, first, traffic + constant, moved, code, share * tasks.x * x_each


def _behind(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of the chain for a core's tiles, and for one of them."""
    tasks = shapes.tasks
    each = _chain_time(case, shapes.cut, shapes.elements, designs)
    return np.minimum(tasks.per_core, tasks.stores) * each, each


def pick(found: Table, room: Array, columns: Index, rows: int = 0) -> tuple[Array, Index]:
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


def _align(nbytes: Array) -> Array:
    return np.ceil(nbytes / ALIGNMENT) * ALIGNMENT


def _footprint(problem: MatrixProblem, cut: Cuts) -> Size:
    """Twin of ``tile.footprint``."""
    rows = (cut.oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    channels, pixels = cut.groups * cut.oc, cut.oh * cut.ow
    taps: Array = problem.kh * problem.kw * (np.ones(1) if problem.depthwise else cut.ic)
    groups, each = (np.ones(1), channels) if problem.depthwise else (cut.groups, cut.oc)
    bits = problem.w_bits or 8 * problem.w_type.itemsize
    weights = up(taps * each * bits, 8)
    if problem.w_block:
        blocks = np.minimum(up(taps - 1, problem.w_block) + 1, taps)
        weights = weights + blocks * each * (5 if problem.w_zeros else 4)
    return Size(
        rows * cols * cut.groups * cut.ic * problem.x_type.itemsize, groups * weights, channels * problem.parameters,
        pixels * channels * problem.sum_bytes, pixels * channels * problem.out_type.itemsize,
    )  # fmt: skip


def _sram_bytes(case: Case, cut: Cuts, size: Size, elements: Array, designs: Designs) -> Array:
    """Twin of ``tile.sram_bytes``."""
    problem, epilogue = case.problem, case.problem.epilogue
    total = 2 * (_align(size.w) + _align(size.parameters))
    if problem.held:
        channels = up(problem.groups, cut.groups) * up(problem.oc, cut.oc)
        total = problem.held * channels * (up(problem.ic, cut.ic) * _align(size.w) + _align(size.parameters))
    total = total + _align(elements * epilogue.element_bytes)
    if epilogue.between:
        piece = np.minimum(elements, _piece(epilogue))
        total = total + _align(np.where(cut.pieces > 0, piece, elements) * epilogue.between)
    if problem.x_home is not Home.DIRECT:
        total = total + (2 if designs.config.dma.inputs_ahead else 1) * _align(size.x)
    has_acc = designs["matrix.accumulator_bytes"] > 0
    if problem.in_place:
        inside = 2 * _align(size.acc) if problem.main else 0.0
    else:
        inside = (2 * _align(size.out) if problem.main else 0.0) + _align(size.acc)
    outside = 2 * _align(size.out) if problem.main else np.zeros(1)
    nbytes: Array = total + np.where(has_acc, outside, inside)
    return nbytes


def _piece(epilogue: Epilogue) -> int:
    """Elements that a chain works on at once where it works in pieces: those of the config that the others vary."""
    return epilogue.piece


def _chain_time(case: Case, cut: Cuts, elements: Array, designs: Designs) -> Array:
    """Twin of ``tile.chain_time``."""
    if not case.chain.one:
        return np.zeros((1, 1))
    pieces = np.where(cut.pieces > 0, up(elements, _piece(case.problem.epilogue)), 1.0)
    taken: Array = pieces * case.chain.begin(designs) + elements * case.chain.each(designs)
    return taken


def _allowed(problem: MatrixProblem, cut: Cuts, size: Size, elements: Array, designs: Designs) -> Mask:
    """Whether accumulators hold a cut's sums, and one instruction may do it."""
    acc = designs["matrix.accumulator_bytes"]
    taps = problem.kh * problem.kw * (1.0 if problem.depthwise else cut.ic)
    small = (elements * taps <= MAX_PRODUCTS) & (elements <= MAX_ELEMENTS)
    allowed: Mask = cut.valid & ((size.acc <= acc) | (acc == 0)) & small
    return allowed


def _run(problem: MatrixProblem, cut: Cuts) -> Array:
    """Contiguous bytes of an input tile: channels are innermost, all of them make one run of a row of pixels."""
    run = cut.groups * cut.ic * problem.x_type.itemsize
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    return np.where(cut.groups * cut.ic == problem.groups * problem.ic, run * cols, run)


def _moving(home: Home, nbytes: Array, run: Array, designs: Designs, *, write: bool = False) -> tuple[Array, Array]:
    if home is Home.DIRECT:
        return np.zeros(1), np.zeros(1)
    if home is Home.COPIED:
        return prices.local(designs, nbytes, run), np.zeros(1)
    return prices.transfer(designs, nbytes, run, write=write)


def _loads(
    problem: MatrixProblem, cut: Cuts, spatial: Array, channels: Array, chunks: Array, tasks: Array
) -> tuple[Array, Array]:
    """Twin of ``tile._loads``."""
    grouped = up(problem.groups, cut.groups)
    w = np.where((spatial == 1) | ((channels == 1) & problem.shared_weights), channels, tasks)
    x = spatial * grouped
    turned_x = np.where(channels == 1, spatial, tasks)
    turned_w = channels if problem.shared_weights else tasks
    x, w = np.where(cut.outer > 0, turned_x, x), np.where(cut.outer > 0, turned_w, w)
    several = chunks > 1
    return np.where(several, tasks * chunks, x), np.where(several, tasks * chunks, w)


def _filled(problem: MatrixProblem, cut: Cuts) -> tuple[Array, Array, Array]:
    """Twin of ``tile.filled``."""

    def fullness(whole: Array | int, size: Array) -> Array:
        full: Array = whole / (up(whole, size) * size)
        return full

    groups, ic = fullness(problem.groups, cut.groups), fullness(problem.ic, cut.ic)
    oh, ow = fullness(cut.rows, cut.oh), fullness(problem.ow, cut.ow)
    oc = groups * fullness(problem.oc, cut.oc)
    rows = (cut.oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    x = groups * ic * (1 - (1 - oh) * cut.oh * problem.sh / rows) * (1 - (1 - ow) * cut.ow * problem.sw / cols)
    return x, oc * ic, oc * oh * ow


def _computing(problem: MatrixProblem, cut: Cuts, designs: Designs, tiles: Array) -> tuple[Array, Array, Array]:
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


def _folds_filled(problem: MatrixProblem, cut: Cuts, designs: Designs) -> Array:
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


def _asked(problem: MatrixProblem, cut: Cuts, designs: Designs, dtype: DType) -> Array:
    """Picoseconds of a tile by the unit's own model, asked for each cut: of models that have no twin."""
    price = cost_model(designs.config).cost
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
        found[at] = price(work).ps
    return found
