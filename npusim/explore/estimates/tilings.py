"""The tiler's search over many designs at once: every cut that it would try, its bytes of SRAM and its time on each.

Twin of :mod:`npusim.compiler.tile` in arrays of [cuts][designs]; what differs is said where it does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from npusim.compiler.tile import OVERLAP, Epilogue, Home, MatrixProblem
from npusim.compiler.values import ALIGNMENT
from npusim.dtypes import DType
from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.prices import PS, Product, up
from npusim.hw.cost import cost_model
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS
from npusim.isa.matrix import CHANNEL_BLOCK, rate_type
from npusim.units import ceil_div
from npusim.work import MatrixWork, VectorWork


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
    """A layer of the matrix unit as the tiler sees it: its problem, its chain, and of how many rows the problem has
    some (``height``)."""

    problem: MatrixProblem
    chain: ChainWorks
    height: int


class Cuts(NamedTuple):
    """Candidates: arrays of [cuts][1], ``oc`` of [cuts][designs]; ``valid``: no cut twice."""

    groups: Array
    oh: Array
    ow: Array
    oc: Array
    ic: Array
    outer: Array
    pieces: Array
    valid: Array
    level: Array
    """How often the output channels are halved."""
    loose: Array
    """Bytes of the weights of two tiles, were the sum cut once less; 0 where it is not cut."""


class Table(NamedTuple):
    """What each cut takes on each design: bytes of SRAM, picoseconds, bytes on the pins of the DRAM, steps, and what
    the chain shows behind the last tile."""

    nbytes: Array
    ps: Array
    dram: Array
    steps: Array
    tail: Array
    bound: Array


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


def _channels(full: int, cols: Array) -> list[tuple[Array, Array]]:
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


def cuts(problem: MatrixProblem, designs: Designs) -> Cuts:
    """The cuts of a problem; those of pixels from large to small, of which the tiler tries the first that fit."""
    cols = designs["matrix.cols"]
    spots = list(_spots(problem.oh, problem.ow))
    ways: list[tuple[int, Array, int, Array, int, Array]] = []
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
        for oh, ow in spots:
            for outer in _ORDERS if _may_turn(problem, groups, ic, oh, ow) else _ORDERS[:1]:
                for pieces in (0.0, 1.0) if problem.epilogue.between else (0.0,):
                    rows.append((groups, oh, ow, ic, outer, pieces))
                    several.append(number)
    columns = [np.array(column, np.float64)[:, None] for column in zip(*rows, strict=True)]
    oc = np.stack([way[1] for way in ways])[several]
    valid = np.stack([way[3] for way in ways])[several]
    level = np.array([float(way[4]) for way in ways])[several][:, None]
    loose = np.stack([way[5] for way in ways])[several]
    return Cuts(columns[0], columns[1], columns[2], oc, columns[3], columns[4], columns[5], valid, level, loose)


def _may_turn(problem: MatrixProblem, groups: int, ic: int, oh: int, ow: int) -> bool:
    """Whether there are two loops to order."""
    return (problem.images > 1 or oh < problem.oh or ow < problem.ow) and ic == problem.ic and not problem.held


@functools.lru_cache(1024)
def _spots(height: int, width: int) -> tuple[tuple[int, int], ...]:
    rows = [(oh, width) for oh in halvings(height, 1)]
    return (*rows, *((1, ow) for ow in halvings(width, 1) if ow < width))


class Rooms(NamedTuple):
    """The least and the most bytes of SRAM that tiles of any design may take."""

    least: float
    most: float


def worth(case: Case, designs: Designs, rooms: Rooms) -> Cuts:
    """The cuts of a problem that the tiler would look at in some room: of each way to cut the channels the first ones
    that fit, parts of the sum where the whole of it might not, pieces of the chain where a whole tile might not."""
    problem = case.problem
    narrow, columns = designs.alike(("matrix.cols", "matrix.accumulator_bytes"))
    cut = cuts(problem, narrow)
    size, elements = _footprint(problem, cut), cut.oh * cut.ow * cut.groups * cut.oc
    allowed = _allowed(problem, cut, size, elements, narrow)
    nbytes = np.where(allowed, _sram_bytes(case, cut, size, elements, narrow), np.inf)
    least = nbytes.min(1)
    keep = least <= rooms.most
    # Cuts of one family are next to each other but for order and pieces, from large to small.
    family = np.stack([each[:, 0] for each in (cut.groups, cut.ic, cut.outer, cut.pieces)] + [cut.level[:, 0]], 1)
    order = np.lexsort(family.T)
    sorted_family, fits = family[order], (nbytes <= rooms.least).all(1)[order] & keep[order]
    starts = np.flatnonzero(np.r_[True, (sorted_family[1:] != sorted_family[:-1]).any(1)])
    # How many of the family, this one aside, fit into the least room for sure: more than the tiler tries are not asked.
    count = np.cumsum(fits) - fits
    before = count - np.repeat(count[starts], np.diff(np.r_[starts, len(order)]))
    late = np.zeros(len(order), bool)
    late[order] = before >= _TRIED
    keep &= ~late
    keep &= (cut.ic[:, 0] == problem.ic) | (cut.loose > rooms.least / 2).any(1)
    if problem.epilogue.between:
        whole = _sram_bytes(case, cut._replace(pieces=np.zeros_like(cut.pieces)), size, elements, narrow)
        keep &= (cut.pieces[:, 0] == 0) | ((whole > rooms.least) & allowed).any(1)
    if not keep.any():
        keep[least.argmin()] = True
    kept = Cuts(*(each[keep] for each in cut))
    return kept._replace(oc=kept.oc[:, columns], valid=kept.valid[:, columns])


_TRIED = 3
"""Cuts of the pixels that the tiler tries for each cut of the channels: the largest that fits and the next ones."""


def table(case: Case, designs: Designs, rooms: Rooms, cores: int = 1) -> Table:
    """Twin of ``tile._estimate``, for all cuts that are worth it."""
    problem = case.problem
    cut = worth(case, designs, rooms)
    spatial = problem.images * up(problem.oh, cut.oh) * up(problem.ow, cut.ow)
    channels = up(problem.groups, cut.groups) * up(problem.oc, cut.oc)
    chunks = up(problem.ic, cut.ic)
    tasks = spatial * channels
    per_core = np.ceil(tasks / cores)
    share = per_core / tasks
    size = _footprint(problem, cut)
    elements = cut.oh * cut.ow * cut.groups * cut.oc
    full_x, full_w, full_out = _filled(problem, cut)
    compute = share * _computing(problem, cut, designs, tasks * chunks)
    x_loads, w_loads = _loads(problem, cut, spatial, channels, chunks, tasks)
    x_each, x_pins = _moving(problem.x_home, size.x, _run(problem, cut), designs)
    out_run = cut.groups * cut.oc
    out_run = np.where(out_run == problem.groups * problem.oc, out_run * cut.ow, out_run)
    out_each, out_pins = _moving(
        problem.out_home, size.out, out_run * problem.out_type.itemsize, designs, write=True
    )
    w_each, w_pins = np.zeros(1), np.zeros(1)
    if not problem.held:
        w_each, w_pins = prices.transfer(designs, size.w, size.w, constants=True)
    x_cores, w_cores = problem.x_serves, problem.w_serves
    stores = tasks * full_out
    loading = x_loads / x_cores * full_x * x_each + w_loads / w_cores * full_w * w_each
    traffic = x_loads / x_cores * full_x * x_pins + stores * out_pins
    constant = w_loads / w_cores * full_w * w_pins
    for item in problem.epilogue.operands:
        each, pins = prices.transfer(designs, elements * item, out_run * item)
        loading, traffic = loading + stores * each, traffic + stores * pins
    loading = share * loading
    if not designs.config.dma.inputs_ahead:
        compute = compute + share * x_loads * full_x * x_each
    storing = np.minimum(per_core, stores) * out_each
    alone = designs["dma.channels"] == 1
    loading, storing = loading + alone * storing, np.where(alone, 0.0, storing)
    if designs.config.constants is None:
        shared = (traffic + constant) * problem.beside * (PS / prices.bandwidth(designs))
    else:
        apart = constant * problem.beside * (PS / prices.bandwidth(designs, constants=True))
        shared = np.maximum(traffic * problem.beside * (PS / prices.bandwidth(designs)), apart)
    behind = _chain_time(case, cut, elements, designs)
    chain = np.minimum(per_core, stores) * behind
    first = x_each + w_each + out_each + np.where(chain <= compute, behind, compute / per_core)
    longest, total = compute, compute
    bound = np.zeros(np.broadcast_shapes(compute.shape, shared.shape, chain.shape), np.int8)
    for number, part in enumerate((chain, loading, storing, shared), 1):
        bound = np.where(part > longest, np.int8(number), bound)
        longest, total = np.maximum(longest, part), total + part
    ps = longest + (total - longest + shared) / OVERLAP + first
    ps = np.where(_allowed(problem, cut, size, elements, designs), ps, np.inf)
    ps = ps * (case.height / problem.oh)
    shape = ps.shape
    dram = np.broadcast_to((traffic + constant) * (case.height / problem.oh), shape)
    return Table(
        np.broadcast_to(_sram_bytes(case, cut, size, elements, designs), shape), ps, dram,
        np.broadcast_to(tasks * chunks, shape), np.broadcast_to(behind, shape), np.broadcast_to(bound, shape),
    )  # fmt: skip


def pick(found: Table, room: Array, columns: Index) -> tuple[Array, Index]:
    """For designs with ``room`` bytes, whose columns of the table are given: picoseconds of the best cut that fits, and
    which it is; infinite where none does."""
    ps = np.where(found.nbytes[:, columns] <= room, found.ps[:, columns], np.inf)
    best = ps.argmin(0)
    return ps[best, np.arange(len(best))], best


class _Size(NamedTuple):
    x: Array
    w: Array
    parameters: Array
    acc: Array
    out: Array


def _align(nbytes: Array) -> Array:
    return np.ceil(nbytes / ALIGNMENT) * ALIGNMENT


def _footprint(problem: MatrixProblem, cut: Cuts) -> _Size:
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
    return _Size(
        rows * cols * cut.groups * cut.ic * problem.x_type.itemsize, groups * weights, channels * problem.parameters,
        pixels * channels * problem.sum_bytes, pixels * channels * problem.out_type.itemsize,
    )  # fmt: skip


def _sram_bytes(case: Case, cut: Cuts, size: _Size, elements: Array, designs: Designs) -> Array:
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
    return pieces * case.chain.begin(designs) + elements * case.chain.each(designs)


def _allowed(problem: MatrixProblem, cut: Cuts, size: _Size, elements: Array, designs: Designs) -> Array:
    """Whether accumulators hold a cut's sums, and one instruction may do it."""
    acc = designs["matrix.accumulator_bytes"]
    taps = problem.kh * problem.kw * (1.0 if problem.depthwise else cut.ic)
    return (
        cut.valid & ((size.acc <= acc) | (acc == 0)) & (elements * taps <= MAX_PRODUCTS) & (elements <= MAX_ELEMENTS)
    )


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

    def fullness(whole: int, size: Array) -> Array:
        full: Array = whole / (up(whole, size) * size)
        return full

    groups, ic = fullness(problem.groups, cut.groups), fullness(problem.ic, cut.ic)
    oh, ow = fullness(problem.oh, cut.oh), fullness(problem.ow, cut.ow)
    oc = groups * fullness(problem.oc, cut.oc)
    rows = (cut.oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (cut.ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    x = groups * ic * (1 - (1 - oh) * cut.oh * problem.sh / rows) * (1 - (1 - ow) * cut.ow * problem.sw / cols)
    return x, oc * ic, oc * oh * ow


def _computing(problem: MatrixProblem, cut: Cuts, designs: Designs, tiles: Array) -> Array:
    """Twin of ``tile.computing``: picoseconds for all tiles. Of the tiles at the edges it knows how much less there is
    of each dimension, not that another of the unit's limits may hold for them."""
    dtype = rate_type(problem.x_type, problem.w_type)
    if designs.config.matrix is not None and designs.config.matrix.model != "systolic":
        return _asked(problem, cut, designs, dtype) * tiles * _edges(problem, cut)
    groups, oc, ic = cut.groups, cut.oc, cut.ic
    if problem.depthwise:
        groups, oc, ic = np.ones((1, 1)), cut.groups * cut.oc, cut.groups
    work = Product(
        dtype.label, dtype.itemsize, groups, cut.oh * cut.ow, oc, ic, problem.kh * problem.kw, problem.depthwise,
        problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
    )  # fmt: skip
    taken = prices.systolic(designs, work)
    pixels = problem.oh * problem.ow / (up(problem.oh, cut.oh) * up(problem.ow, cut.ow) * cut.oh * cut.ow)
    groups_full = problem.groups / (up(problem.groups, cut.groups) * cut.groups)
    oc_full = groups_full * problem.oc / (up(problem.oc, cut.oc) * cut.oc)
    ic_full = problem.ic / (up(problem.ic, cut.ic) * cut.ic)
    folds = pixels * _folds_filled(problem, cut, designs)
    spread = tiles * np.maximum(
        np.maximum(taken.once + taken.array * folds, taken.drain * pixels * oc_full),
        taken.traffic * pixels * oc_full * ic_full,
    )
    return tiles * taken.begin + spread


def _folds_filled(problem: MatrixProblem, cut: Cuts, designs: Designs) -> Array:
    """Folds of all tiles over those of as many whole ones: an edge of a fold costs as much as a full one."""
    groups = problem.groups / (up(problem.groups, cut.groups) * cut.groups)
    if problem.depthwise:
        return groups
    across = {"input_stationary": np.ones(1)}.get(designs.config.matrix.dataflow if designs.config.matrix else "")
    cols, rows = designs["matrix.cols"], designs["matrix.rows"]
    if across is None:
        across = _parts(problem.oc, cut.oc, cols)
    deep = _parts(problem.ic * problem.kh * problem.kw, cut.ic * problem.kh * problem.kw, rows)
    return groups * across * deep


def _parts(whole: int, size: Array, unit: Array) -> Array:
    """Units that all parts take over those of as many whole parts."""
    count = np.floor(whole / size)
    rest = whole - count * size
    filled: Array = (count * up(size, unit) + up(rest, unit)) / (up(whole, size) * up(size, unit))
    return filled


def _edges(problem: MatrixProblem, cut: Cuts) -> Array:
    x, w, out = _filled(problem, cut)
    del x, w
    return out


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
