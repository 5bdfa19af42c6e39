"""The cuts that the tiler would try, for many designs at once, and what they take in SRAM.

Twin of :mod:`npusim.timing.tile` in arrays of [cuts][designs]; what differs is said where it does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.prices import up
from npusim.hw.memory import ALIGNMENT
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS
from npusim.timing.tile import EpilogueCosts, Home, MatrixProblem
from npusim.units import ceil_div
from npusim.work import VectorWork

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ChainWorks:
    """What the chain behind a product asks of the vector unit: for one element, and for ``probe`` of them."""

    one: tuple[VectorWork, ...] = ()
    many: tuple[VectorWork, ...] = ()
    probe: int = 1

    def begin(self, designs: Designs) -> Array:
        """Picoseconds before the first element of a tile, or of a piece."""
        return sum((prices.work(designs, work) for work in self.one), np.zeros(1))

    def each(self, designs: Designs) -> Array:
        """Picoseconds for each element more."""
        many = sum((prices.work(designs, work) for work in self.many), np.zeros(1))
        each: Array = (many - self.begin(designs)) / self.probe
        return each


@dataclass(frozen=True)
class Case:
    """A layer of the matrix unit as the tiler sees it: its problem, its chain, and the rows of its result, of which
    ``rows`` are made at once: one number for each question that is asked of it. ``l2``: whether input, result and
    other operands are in the L2, those of them that are in no SRAM."""

    problem: MatrixProblem
    chain: ChainWorks
    height: int
    rows: tuple[int, ...] = ()
    l2: tuple[bool, bool, bool] = (False, False, False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Tables are looked up by case thousands of times, and a problem has thirty fields.
        object.__setattr__(self, "_hash", hash((self.problem, self.chain, self.height, self.rows, self.l2)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def asked(self) -> tuple[int, ...]:
        return self.rows or (self.problem.oh,)


class TileCuts(NamedTuple):
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

    def over(self, of: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> TileCuts:
        """What a function makes of each field."""
        return TileCuts(*(of(each) for each in self))


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


def cuts(case: Case, designs: Designs, *, turning: bool = False) -> TileCuts:
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
        deep = list(halvings(problem.ic, problem.ic_unit, problem.ic_unit))
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
    return TileCuts(high, group, oh_, ow_, oc, deep_, outermost, in_pieces, valid, levels, loose)


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
    parameters: Array
    stores: Array
    results: Array
    """Stores, those of parts of the channels for what they are."""


class Rooms(NamedTuple):
    """The least and the most bytes of SRAM that tiles of any design may take."""

    least: float
    most: float


class Shapes(NamedTuple):
    """Cuts and what follows from them and from the columns of the array alone."""

    cut: TileCuts
    size: Size
    elements: Array
    tasks: Tasks
    nbytes: Array
    """Of SRAM; infinite where the accumulators or an instruction cannot take a tile."""

    def at(self, columns: Index) -> Shapes:
        """The same for other designs, of which each has the columns of one of these."""

        def of(each: Any) -> Any:
            return spread_over(each, columns)

        size, tasks = Size(*map(of, self.size)), Tasks(*map(of, self.tasks))
        return Shapes(self.cut.over(of), size, of(self.elements), tasks, of(self.nbytes))


def spread_over(each: npt.NDArray[Any], columns: Index) -> npt.NDArray[Any]:
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
    # How many of the family, this one aside, fit into the least room for sure: those that the tiler comes to seldom are
    # not asked.
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


_TRIED = 4
"""Cuts of the pixels for each cut of the channels, the largest that fits and the next ones: the tiler goes on while
they get better, which is seldom for longer."""


def _tasks(problem: MatrixProblem, cut: TileCuts, cores: int, *, several: bool) -> Tasks:
    spatial = problem.images * up(cut.rows, cut.oh) * up(problem.ow, cut.ow)
    channels = up(problem.groups, cut.groups) * up(problem.oc, cut.oc)
    chunks = up(problem.ic, cut.ic)
    tasks = spatial * channels
    full_x, full_w, full_out = _filled(problem, cut)
    x, w = _loads(problem, cut, spatial, channels, chunks, tasks)
    x_cores, w_cores = _loaded_for(problem, cut, spatial, channels, cores) if several else (1.0, 1.0)
    w, stores = w / w_cores, tasks * full_out
    channels = full_w / fullness(problem.ic, cut.ic)
    return Tasks(
        chunks,
        tasks,
        np.ceil(tasks / cores),
        x / x_cores * full_x,
        w * full_w,
        w / chunks * channels,
        stores,
        stores * channels,
    )


def _loaded_for(
    problem: MatrixProblem, cut: TileCuts, spatial: Array, channels: Array, cores: int
) -> tuple[Array, Array]:
    """Twin of ``tile._loaded_for``, with a bus that serves several cores."""
    outer = np.where(cut.outer > 0, channels, spatial)
    inner = np.where(cut.outer > 0, spatial, channels)
    mine = np.floor(outer * inner / cores)
    even = (outer * inner % cores == 0) & ((mine % inner == 0) | (inner % np.maximum(mine, 1) == 0))
    together = np.where(even, np.floor(cores / np.maximum(1, np.floor(inner / np.maximum(mine, 1)))), 1.0)
    x = np.where(cut.outer > 0, together, 1.0)
    return x, np.where((cut.outer > 0) | (not problem.shared_weights), 1.0, together)


def _align(nbytes: Array) -> Array:
    return np.ceil(nbytes / ALIGNMENT) * ALIGNMENT


def _footprint(problem: MatrixProblem, cut: TileCuts) -> Size:
    """Twin of ``tile.footprint``."""
    rows = (cut.oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    channels, pixels = cut.groups * cut.oc, cut.oh * cut.ow
    taps: Array = problem.kh * problem.kw * (np.ones(1) if problem.depthwise else cut.ic)
    groups, each = (np.ones(1), channels) if problem.depthwise else (cut.groups, cut.oc)
    bits = problem.w_bits or 8 * problem.w_type.itemsize
    filled = taps * each
    if not problem.depthwise:
        filled = up(taps, problem.w_rows) * problem.w_rows * up(each, problem.w_cols) * problem.w_cols
    weights = up(filled * bits, 8)
    if problem.w_block:
        blocks = np.minimum(up(taps - 1, problem.w_block) + 1, taps)
        weights = weights + blocks * each * (5 if problem.w_zeros else 4)
    return Size(
        rows * cols * cut.groups * cut.ic * problem.x_type.itemsize, groups * weights, channels * problem.parameters,
        pixels * channels * problem.sum_bytes, pixels * channels * problem.out_type.itemsize,
    )  # fmt: skip


def _sram_bytes(case: Case, cut: TileCuts, size: Size, elements: Array, designs: Designs) -> Array:
    """Twin of ``tile.sram_bytes``."""
    problem, epilogue = case.problem, case.problem.epilogue
    total = 2 * (_align(size.w) + _align(size.parameters))
    if problem.held:
        channels = up(problem.groups, cut.groups) * up(problem.oc, cut.oc)
        total = problem.held * channels * (up(problem.ic, cut.ic) * _align(size.w) + _align(size.parameters))
    total = total + _align(elements * epilogue.element_bytes)
    if epilogue.between:
        piece = np.minimum(elements, piece_of(epilogue))
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


def piece_of(epilogue: EpilogueCosts) -> int:
    """Elements that a chain works on at once where it works in pieces: those of the config that the others vary."""
    return epilogue.piece


def _allowed(problem: MatrixProblem, cut: TileCuts, size: Size, elements: Array, designs: Designs) -> Mask:
    """Whether accumulators hold a cut's sums, and one instruction may do it."""
    acc = designs["matrix.accumulator_bytes"]
    taps = problem.kh * problem.kw * (1.0 if problem.depthwise else cut.ic)
    small = (elements * taps <= MAX_PRODUCTS) & (elements <= MAX_ELEMENTS)
    allowed: Mask = cut.valid & ((size.acc <= acc) | (acc == 0)) & small
    return allowed


def _loads(
    problem: MatrixProblem, cut: TileCuts, spatial: Array, channels: Array, chunks: Array, tasks: Array
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


def fullness(whole: Array | int, size: Array) -> Array:
    """What there is of a dimension, as a part of whole tiles."""
    full: Array = whole / (up(whole, size) * size)
    return full


def _filled(problem: MatrixProblem, cut: TileCuts) -> tuple[Array, Array, Array]:
    """How full tiles of inputs, weights and results are, pixels of inputs and results alone."""
    oh, ow = fullness(cut.rows, cut.oh), fullness(problem.ow, cut.ow)
    channels = fullness(problem.groups, cut.groups) * fullness(problem.oc, cut.oc)
    rows = (cut.oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    x = (1 - (1 - oh) * cut.oh * problem.sh / rows) * (1 - (1 - ow) * cut.ow * problem.sw / cols)
    return x, channels * fullness(problem.ic, cut.ic), oh * ow
