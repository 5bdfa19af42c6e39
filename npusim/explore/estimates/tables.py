"""What every cut takes on each design, and the best of those that fit: the tiler's estimate over arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.explore.estimates import prices
from npusim.explore.estimates.cuts import Case, Rooms, Shapes, TileCuts, piece_of, worth
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.prices import PS, up
from npusim.hw.config import Config
from npusim.isa.base import Command, Unit, Wait
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.isa.matrix import Conv
from npusim.isa.vector import BinaryOp
from npusim.timing.tile import OVERLAP, EpilogueCosts, Home, MatrixProblem
from npusim.timing.tile_costs import array_pricing, move_pricing, vector_pricing


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
        return _gathered(self.values, self.columns[designs])

    def spread(self) -> Array:
        """Of all cuts on all designs."""
        return _gathered(self.values, self.columns)


def _gathered(values: Array, columns: Index) -> Array:
    """Columns of an array, or its only one; next to each other in memory, which is faster to fill."""
    if values.shape[1] == 1:
        return values
    found: Array = np.ascontiguousarray(values.T)[columns].T
    return found


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
    """As ``COUNTS`` names the first of them."""
    problem: MatrixProblem
    cuts: PerDesign
    """The first six fields of ``TileCuts``."""


COUNTS = ("dram", "moved", "code", "sram", "accumulators")
"""Bytes over the pins, bytes through the channels of DMA, those of commands, those that the matrix unit reads from SRAM
and writes to it, and those of sums."""


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

    def counts(self, designs: Designs) -> Array:
        """[``COUNTS``][designs]; ``designs``: the matrix units of those that the cuts were picked for."""
        whole = self.at(self.table.whole)
        counts = [self.at(count) * whole for count in self.table.counts]
        problem, cuts = self.table.problem, self.table.cuts
        several = cuts.values.shape[-1] > 1
        rows, *tile = cuts.values[:, self.best, cuts.columns[self.columns] if several else 0]
        groups, oh, ow, oc, ic = tile
        # Tiles at the edges move less by as much as there is less of each dimension.
        tiles = problem.images * rows / oh * (problem.ow / ow) * (problem.groups / groups) * (problem.oc / oc) * whole
        streams, sums = prices.touched(designs, problem, *tile)
        counts += [streams * tiles * (problem.ic / ic), sums * tiles * up(problem.ic, ic)]
        return np.stack([np.broadcast_to(count, self.best.shape) for count in counts])


_SHAPE = ("matrix.cols", "matrix.accumulator_bytes")


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

    def of(
        reduce: Callable[[Config], Config], ask: Callable[[Case, Shapes, Designs], tuple[Array, ...]]
    ) -> list[PerDesign]:
        """What follows from the cuts and from what ``reduce`` leaves of a device."""
        some, mine = designs.seen_by(reduce, _SHAPE)
        first = np.zeros(some.count, np.intp)
        first[mine] = columns
        return [PerDesign(each.astype(np.float32), mine) for each in ask(case, shapes.at(first), some)]

    (computing,) = of(array_pricing, _compute)
    *moving, ahead, traffic, moved, code, inputs = of(move_pricing, _moves)
    chaining, tail = of(vector_pricing, _behind)
    compute, chain, behind = (each.spread() for each in (computing, chaining, tail))
    loading, storing, shared, begin = (each.spread() for each in moving)
    if not designs.config.dma.inputs_ahead:
        compute = compute + inputs.spread()
    alone = designs["dma.channels"] == 1
    loading, storing = loading + alone * storing, np.where(alone, 0.0, storing)
    per_core = PerDesign(shapes.tasks.per_core.astype(np.float32), columns)
    begin = begin + np.where(chain <= compute, behind, compute / per_core.spread())
    longest, total = compute, compute + chain + loading + storing + shared
    for part in (chain, loading, storing, shared):
        longest = np.maximum(longest, part)
    whole = (case.height / shapes.cut.rows).astype(np.float32)
    ps = (longest + (total - longest + shared) / OVERLAP + begin) * whole
    ps = np.broadcast_to(ps, (ps.shape[0], designs.count))  # it may depend on nothing that differs
    return TileTable(
        PerDesign(shapes.nbytes.astype(np.float32), columns), ps, shapes.cut.rows[:, 0], PerDesign(whole, columns),
        (computing, chaining, *moving[:3]), moving[3], ahead, tail, per_core, (traffic, moved, code), case.problem,
        PerDesign(np.stack([np.broadcast_to(each, shapes.nbytes.shape) for each in shapes.cut[:6]]), columns),
    )  # fmt: skip


def _compute(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of a core's matrix unit."""
    cut, tasks = shapes.cut, shapes.tasks
    one, every = _products(case.problem, cut, designs)
    return (np.minimum(tasks.per_core * tasks.chunks * one, every),)


def _products(problem: MatrixProblem, cut: TileCuts, designs: Designs) -> tuple[Array, Array]:
    """Picoseconds of a whole tile, and of all tiles, those at the edges as large as they are."""
    fields = (cut.rows, cut.groups, cut.oh, cut.ow, cut.ic, cut.level)
    one, every = _shared(
        designs, ("products", anywhere(problem)), fields, lambda some: _priced(problem, cut.over(some), designs)
    )
    return one, every


Some = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def _shared(
    designs: Designs, kind: Hashable, fields: Sequence[Array], compute: Callable[[Some], Iterable[Array]]
) -> list[Array]:
    """Arrays of [cuts][designs], computed once for all cuts of a ``kind`` that agree in some fields: of these
    ``compute`` gets what selects the ones that are new."""
    numbers, known = designs.known.setdefault(("shared", kind), ({}, []))
    keys = [each.tobytes() for each in np.concatenate(fields, 1)]
    new = {key: at for at, key in enumerate(keys) if key not in numbers}
    if new:
        chosen = list(new.values())
        found = compute(lambda each: each[chosen] if len(each) > 1 else each)
        shape = (len(chosen), designs.count)
        blocks = [np.broadcast_to(each, shape) for each in found]
        known[:] = map(np.concatenate, zip(known, blocks, strict=True)) if known else blocks
        numbers.update(zip(new, itertools.count(len(numbers))))
    rows = [numbers[key] for key in keys]
    return [each[rows] for each in known]


def _priced(problem: MatrixProblem, cut: TileCuts, designs: Designs) -> tuple[Array, Array]:
    sizes = (cut.groups, cut.oh, cut.ow, cut.oc, cut.ic)
    wholes: tuple[Array | int, ...] = (problem.groups, cut.rows, problem.ow, problem.oc, problem.ic)
    kinds: list[tuple[Array, list[Array]]] = [(np.ones((1, 1)), [])]
    for whole, size in zip(wholes, sizes, strict=True):
        full: Array = np.floor(whole / size)
        rest = whole - full * size
        kinds = [
            (count * times, [*parts, part])
            for count, parts in kinds
            for times, part in ((full, size), (rest > 0, rest))
            if np.any(times)
        ]
    shape = np.broadcast_shapes(*(each.shape for count, parts in kinds for each in (count, *parts)))
    one, every = np.zeros((2, shape[0], designs.count))
    for number, (count, parts) in enumerate(kinds):
        # Of most kinds of edges few tiles have one.
        rows, columns = np.nonzero(np.broadcast_to(count, every.shape))
        if not len(rows):
            continue
        tile = (each[rows if each.shape[0] > 1 else 0, columns if each.shape[1] > 1 else 0] for each in parts)
        priced = prices.product(designs.take(columns), problem, *tile)
        every[rows, columns] += np.broadcast_to(count, every.shape)[rows, columns] * priced
        if not number:
            one[rows, columns] = priced
    return one, problem.images * every


def _moves(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of a core's channels to load and to store, and of the DRAM for all; of the first tile, and of its
    weights; bytes on the pins, through the channels, and of commands; picoseconds of the inputs alone."""
    problem, (cut, size, elements, tasks, _) = case.problem, shapes
    x_side, out_side, other_side = (designs.l2_side() if near else designs for near in case.l2)
    rows = (cut.oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    share = tasks.per_core / tasks.all
    nothing: Array = np.zeros((1, 1))
    loading = storing = first = ahead = constant = moved = inputs = nothing
    passed = [nothing, nothing]
    """Bytes past the pins of the DRAM, and past the L2."""
    if problem.x_home is not Home.DIRECT:
        inner = (cut.ic, problem.ic, problem.x_type.itemsize, cols, rows * cols)
        ps, stream, pins = _mean("x", problem, cut, x_side, problem.x_way, *inner, turned=problem.x_turned)
        loading, moved = tasks.x * stream, tasks.x * size.x
        passed[case.l2[0]] = passed[case.l2[0]] + tasks.x * pins
        inputs = share * tasks.x * ps
        first = first + (ps if designs.config.dma.inputs_ahead else 0.0)
    if not problem.held:
        run = np.maximum(1, np.floor(size.w * problem.w_kilo / 1024))
        ahead, stream, pins = _shared(
            designs,
            ("w", anywhere(problem)),
            (cut.groups, cut.level, cut.ic),
            lambda some: prices.move(designs, problem.w_way, some(size.w), some(run), nothing),
        )
        loading, constant, moved = loading + tasks.w * stream, tasks.w * pins, moved + tasks.w * size.w
        first = first + ahead
        if problem.fetched:
            nbytes = cut.groups * cut.oc * problem.fetched
            _, stream, pins = _shared(
                designs,
                ("parameters", anywhere(problem)),
                (cut.groups, cut.level),
                lambda some: prices.move(designs, "constants", some(nbytes), some(nbytes), nothing),
            )
            loading, constant = loading + tasks.parameters * stream, constant + tasks.parameters * pins
    pixels = (cut.ow, cut.oh * cut.ow)
    for item in problem.epilogue.operands:
        _, stream, pins = _mean("other", problem, cut, other_side, "read", cut.oc, problem.oc, item, *pixels)
        loading, moved = loading + tasks.stores * stream, moved + tasks.stores * elements * item
        passed[case.l2[2]] = passed[case.l2[2]] + tasks.stores * pins
    if problem.out_home is not Home.DIRECT:
        shape = (cut.oc, problem.oc, problem.stored_bytes, *pixels)
        ps, stream, pins = _mean("out", problem, cut, out_side, problem.out_way, *shape, turned=problem.out_turned)
        storing = np.minimum(tasks.per_core, tasks.stores) * stream
        passed[case.l2[1]] = passed[case.l2[1]] + tasks.stores * pins
        moved, first = moved + tasks.stores * elements * problem.stored_bytes, first + ps
    tick = problem.beside * PS
    traffic = passed[False] + constant
    if designs.config.constants is None:
        shared = traffic * (tick / prices.bandwidth(designs))
    else:
        apart = constant * (tick / prices.bandwidth(designs, constants=True))
        shared = np.maximum(passed[False] * (tick / prices.bandwidth(designs)), apart)
    if any(case.l2):
        shared = np.maximum(shared, passed[True] * (tick / prices.bandwidth(designs.l2_side())))
    # With the weights come their parameters.
    copies = tasks.stores * (1 + len(problem.epilogue.operands) - (problem.out_home is Home.DIRECT))
    copies = copies + (problem.x_home is not Home.DIRECT) * tasks.x + (0 if problem.held else 2) * tasks.w
    code = copies * _COPY + tasks.all * tasks.chunks * _PRODUCT + tasks.all * len(case.chain.many) * _CHAINED
    return share * loading, storing, shared, first, ahead, traffic, moved, code, inputs


def anywhere(problem: MatrixProblem) -> MatrixProblem:
    """A problem without what says where its values are: problems that differ in that alone have the same tiles."""
    return problem._replace(
        epilogue=EpilogueCosts(), x_home=Home.DRAM, out_home=Home.DRAM, held=0, main=True, in_place=True
    )


def _mean(
    name: str, problem: MatrixProblem, cut: TileCuts, designs: Designs, way: str, width: Array, whole: int,
    item: int, row: Array, pixels: Array, *, turned: bool = False,
) -> list[Array]:  # fmt: skip
    """What transfers of tiles take, over all of so many groups and of ``width`` of their ``whole`` channels, if they
    have all of their pixels: the mean of ``Search._mean``."""

    def compute(some: Some) -> tuple[Array, ...]:
        tile = (some(width), whole, item, some(row), some(pixels))
        return _new_mean(problem, cut.over(some), designs, way, *tile, turned)

    fields = (cut.groups, cut.oh, cut.ow, cut.level, cut.ic)
    return _shared(designs, (name, way, item, anywhere(problem)), fields, compute)


def _new_mean(
    problem: MatrixProblem, cut: TileCuts, designs: Designs, way: str, width: Array, whole: int, item: int,
    row: Array, pixels: Array, turned: bool,
) -> tuple[Array, ...]:  # fmt: skip
    every = problem.groups * whole
    kinds = []
    for groups, some in _parts(problem.groups, cut.groups):
        for channels, many in _parts(whole, width):
            count = groups * channels
            nbytes = pixels * count * item
            is_all = (count == every) | (way == "copy")
            run = row * item if turned else count * item * np.where(count == every, row, 1)
            stride = np.where(is_all | turned, 0, every * item)
            kinds.append((some * many, nbytes, run, stride))
    kinds = [kind for kind in kinds if np.any(kind[0])]
    shape = np.broadcast_shapes(*(each.shape for kind in kinds for each in kind))
    fields = (np.concatenate([np.broadcast_to(kind[number], shape) for kind in kinds]) for number in (1, 2, 3))
    total = up(problem.groups, cut.groups) * up(whole, width)
    found = []
    for priced in prices.move(designs, way, *fields):
        each = priced.reshape(len(kinds), shape[0], -1)
        found.append(sum(kind[0] * one for kind, one in zip(kinds, each, strict=True)) / total)
    return tuple(found)


def _parts(whole: int, size: Array) -> tuple[tuple[Array, Array], ...]:
    """Parts of a whole, and how many there are of each: those of full size, and what is left."""
    full = np.floor(whole / size)
    rest = whole - full * size
    return (size, full), (np.maximum(rest, 1), np.asarray(rest > 0, np.float64))


def _behind(case: Case, shapes: Shapes, designs: Designs) -> tuple[Array, ...]:
    """Picoseconds of the chain for a core's tiles, and for one of them."""
    tasks = shapes.tasks
    each = _chain_time(case, shapes.cut, shapes.elements, designs)
    return np.minimum(tasks.per_core, tasks.results) * each, each


def pick(found: TileTable, room: Array, columns: Index, rows: int = 0) -> tuple[Array, Index]:
    """For designs with ``room`` bytes, whose columns of the table are given: picoseconds of the best cut that fits, and
    which it is; infinite where none does. ``rows``: of the cuts for so many rows at once."""
    if not rows or found.rows[0] == found.rows[-1]:
        first, end = 0, len(found.rows)
    else:
        first, end = np.searchsorted(found.rows, (rows, rows + 1))
    nbytes = found.nbytes._replace(values=found.nbytes.values[first:end])
    ps = np.where(nbytes.of(columns) <= room.astype(np.float32), found.ps.T[columns, first:end].T, _NEVER)
    best = ps.argmin(0)
    return ps[best, np.arange(len(best))], best + first


_NEVER = np.float32(np.inf)


def _chain_time(case: Case, cut: TileCuts, elements: Array, designs: Designs) -> Array:
    """Picoseconds of the chain behind a tile: ``tile.chain_time`` for each design."""
    if not case.chain.one:
        return np.zeros((1, 1))
    pieces = np.where(cut.pieces > 0, up(elements, piece_of(case.problem.epilogue)), 1.0)
    taken: Array = pieces * case.chain.begin(designs) + elements * case.chain.each(designs)
    return taken
