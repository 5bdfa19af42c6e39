"""Tile sizes for the matrix unit: the cheapest cut that fits, by the very cost functions that the simulator charges."""

from __future__ import annotations

import contextlib
import enum
import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from operator import add
from typing import Any, NamedTuple

from npusim._core import Prices, Search
from npusim.compiler.prices import (
    EXPAND,
    array_pricing,
    bank_prices,
    matrix_prices,
    move_prices,
    pricing,
)
from npusim.compiler.values import ALIGNMENT, align
from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import constants_side, dram_model
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS
from npusim.isa.dma import expanding
from npusim.isa.matrix import CHANNEL_BLOCK, CHANNEL_STEP, packed_bytes, products, rate_type
from npusim.units import ceil_div
from npusim.work import DmaWork, MatrixWork


class Home(enum.IntEnum):
    """How a tile reaches the value that it is a part of, or the other way."""

    DRAM = 0
    COPIED = 1  # the value is in SRAM, the tile in a slot of its own beside it
    DIRECT = 2  # the instruction works on the value where it is


class Epilogue(NamedTuple):
    """What the chain behind a matrix operator takes of a tile: SRAM bytes for each of its elements (operands, results),
    and ``between`` for each element of a tile or of a ``piece`` of so many; picoseconds to ``begin`` on either and for
    ``kilo`` = 1024 elements; ``operands``: item sizes of what it reads from DRAM; ``banks``: for 1024 elements, those
    of all banks of the SRAM; ``result``: item size of what leaves in place of the sums, 0 where there is no chain."""

    element_bytes: int = 0
    between: int = 0
    piece: int = 1
    begin: int = 0
    kilo: int = 0
    operands: tuple[int, ...] = ()
    banks: int = 0
    result: int = 0


class MatrixProblem(NamedTuple):
    """A convolution (or matmul: height 1, width M, kernel 1x1) as the tiler sees it.

    ``ic``, ``oc``: channels of one group; ``in_place``: the accumulators are the output tile; ``main``: the sums leave
    into a slot, whether or not the result of the chain does; ``held``: so many copies of all weights stay in SRAM,
    since tiles of other operators come in between, 0 where they do not; ``pinned``: they do from one inference to the
    next, in a place of their own; ``beside``: as many cores have a problem like this at the same time; ``x_serves``,
    ``w_serves``: of those, how many one load of an operand is for. ``w_bits``: of a packed weight, else 0; ``w_block``:
    weights of a channel that share a scale, 0: they have none; ``w_zeros``: and a zero point; ``w_rows``,
    ``w_cols``: weights are filled up to so many summands and channels; ``sum_bytes``: of an accumulator;
    ``parameters``: bytes of bias, scale and shift of a channel, ``fetched``: of those that are constants, which come
    with the weights; ``w_kilo``: bytes that 1024 of the weights take in DRAM, about: fewer where they are compressed.
    """

    images: int
    oh: int
    ow: int
    groups: int
    oc: int
    ic: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    depthwise: bool
    shared_weights: bool
    x_type: DType
    w_type: DType
    out_type: DType
    epilogue: Epilogue
    in_place: bool
    x_home: Home = Home.DRAM
    out_home: Home = Home.DRAM
    main: bool = True
    held: int = 0
    pinned: bool = False
    beside: int = 1
    x_serves: int = 1
    w_serves: int = 1
    w_bits: int = 0
    w_block: int = 0
    w_zeros: bool = False
    w_rows: int = 1
    w_cols: int = 1
    sum_bytes: int = 4
    parameters: int = 8
    fetched: int = 0
    w_kilo: int = 1024

    @property
    def w_way(self) -> str:
        """How weights are loaded, as prices of transfers have it."""
        return f"{EXPAND}{self.w_bits or 8}" if self.w_kilo < 1024 else "constants"

    @property
    def stored_bytes(self) -> int:
        """Of an element of the result: a chain may make bytes of floats, which then never leave."""
        return self.epilogue.result or self.out_type.itemsize

    @property
    def w_width(self) -> int:
        """Bits of a weight as ``MatrixWork`` has them: 0 where they are as wide as the type of the rate."""
        narrower = self.w_type.itemsize < rate_type(self.x_type, self.w_type).itemsize
        return self.w_bits or (8 * self.w_type.itemsize if narrower else 0)


class Tiling(NamedTuple):
    """Groups, output rows, columns and channels, input channels of one tile; which loop is outermost; whether the chain
    works on it in pieces."""

    groups: int
    oh: int
    ow: int
    oc: int
    ic: int
    weights_outer: bool
    in_pieces: bool = False


class Footprint(NamedTuple):
    """Bytes of one copy of each slot."""

    x: int
    w: int
    parameters: int
    acc: int
    out: int


def footprint(problem: MatrixProblem, tile: Tiling) -> Footprint:
    """What a tile takes in SRAM (and accumulators)."""
    rows, cols = input_extent(problem, tile.oh, tile.ow)
    channels = tile.groups * tile.oc
    pixels = tile.oh * tile.ow
    taps = problem.kh * problem.kw * (1 if problem.depthwise else tile.ic)
    return Footprint(
        rows * cols * tile.groups * tile.ic * problem.x_type.itemsize,
        weight_bytes(problem, taps, tile.groups, tile.oc),
        channels * problem.parameters,
        pixels * channels * problem.sum_bytes,
        pixels * channels * problem.out_type.itemsize,
    )


def weight_bytes(problem: MatrixProblem, k: int, groups: int, channels: int) -> int:
    """Of the weights of a tile, ``k`` for each channel, and of their scales and zero points, wherever blocks begin."""
    if problem.depthwise:  # the channels of all groups lie side by side
        groups, channels = 1, groups * channels
    rows = min(ceil_div(k - 1, problem.w_block) + 1, k) if problem.w_block else 0
    filled = k * channels
    if not problem.depthwise:
        filled = ceil_div(k, problem.w_rows) * problem.w_rows * ceil_div(channels, problem.w_cols) * problem.w_cols
    each = packed_bytes(filled, problem.w_type, problem.w_bits)
    return groups * (each + rows * channels * (5 if problem.w_zeros else 4))


def input_extent(problem: MatrixProblem, oh: int, ow: int) -> tuple[int, int]:
    """Input rows and columns under a tile of outputs, padding included."""
    rows = (oh - 1) * problem.sh + (problem.kh - 1) * problem.dh + 1
    cols = (ow - 1) * problem.sw + (problem.kw - 1) * problem.dw + 1
    return rows, cols


def sram_bytes(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """SRAM for all slots of a tile, those that are double-buffered counted twice."""
    # What is loaded and what is stored has two copies, for the neighbouring tiles; sums have one, which passes from one
    # part of the input channels to the next, unless they are the output tile themselves.
    x, w, parameters, acc, out = footprint(problem, tile)
    elements, epilogue = tile.oh * tile.ow * tile.groups * tile.oc, problem.epilogue
    weights = _channel_tiles(problem, tile) * (_chunks(problem, tile) * align(w) + align(parameters))
    total = weights * problem.held if problem.held else 2 * (align(w) + align(parameters))
    if problem.pinned:
        total = 0
    total += align(elements * epilogue.element_bytes)
    total += align((min(elements, epilogue.piece) if tile.in_pieces else elements) * epilogue.between)
    if problem.x_home is not Home.DIRECT:
        total += input_copies(config) * align(x)
    if problem.in_place and not acc_bytes(config):
        return total + (2 * align(acc) if problem.main else 0)
    return total + (2 * align(out) if problem.main else 0) + (0 if acc_bytes(config) else align(acc))


def input_copies(config: Config) -> int:
    """Slots that input tiles take turns in."""
    return 2 if config.dma.inputs_ahead else 1


def acc_bytes(config: Config) -> int:
    """Bytes of dedicated accumulators, 0 when partial sums live in SRAM."""
    return config.matrix.accumulator_bytes if config.matrix else 0


class Tilings:
    """The tilings of one problem on one device, as :func:`tilings` remembers them: what each takes is worked out once,
    whatever room is asked about."""

    def __init__(self, problem: MatrixProblem, config: Config) -> None:
        """``config``: as :func:`pricing` leaves it."""
        self._problem, self._config = problem, config
        self._firsts: list[int] = []
        self._chosen: list[tuple[int, Tiling | None]] = []
        """Up to which budget, not with it, a tiling is the one that is chosen, from each of the ``firsts`` on."""
        self._banked: dict[Tiling, int] = {}
        elements = problem.images * problem.oh * problem.ow * problem.groups * problem.oc
        self.chain_banked = elements * problem.epilogue.banks // 1024
        """Picoseconds that all banks of the SRAM need for the chain."""
        device = _searched(
            config, rate_type(problem.x_type, problem.w_type), problem.kh, problem.kw, problem.depthwise,
            problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
        )  # fmt: skip
        self._device = device
        self._searches: list[Search] | None = None
        self._asked: Search | None = None

    def _made(self) -> list[Search]:
        """The searches, made when they are first wanted: some problems are only asked what a tiling takes. None beyond
        machine integers: as slow as it is."""
        if self._searches is None:
            problem, config = self._problem, self._config
            self._searches = []
            with contextlib.suppress(OverflowError):
                self._searches = [
                    Search(
                        problem,
                        self._device,
                        list(_channel_cuts(problem, config, whole=whole)),
                        _areas(problem.oh, problem.ow, whole=whole),
                    )
                    for whole in _jobs(config)
                ]
                self._asked = self._searches[-1]  # what is chosen is known there
        return self._searches

    def _search(self) -> Search:
        """What is asked what a tiling takes. Raises OverflowError beyond machine integers."""
        if self._asked is None:
            self._asked = Search(self._problem, self._device, [], [])
        return self._asked

    def choose(self, budget: int) -> Tiling | None:
        """The tiling of least estimated time that fits ``budget`` bytes of SRAM; None when none does."""
        at = bisect_right(self._firsts, budget)
        if at and budget < self._chosen[at - 1][0]:
            return self._chosen[at - 1][1]
        tile, first, end = self._choose(budget)
        if len(self._firsts) >= _MOST_BUDGETS:
            self._firsts.clear()
            self._chosen.clear()
            at = 0
        self._firsts.insert(at, first)
        self._chosen.insert(at, (end, tile))
        return tile

    def _choose(self, budget: int) -> tuple[Tiling | None, int, int]:
        """The tiling, and the budgets for which it is: from the first up to, not with, the last."""
        if searches := self._made():
            low, high = 0, budget + 1
            with contextlib.suppress(OverflowError):
                for number, search in enumerate(searches):
                    found, ps, first, end = search.choose(budget)
                    low, high = (max(low, first), min(high, end)) if number else (first, end)
                    if found is not None:
                        tile = Tiling(*found)
                        limit = self.banked(tile)
                        if limit > ps:
                            tile = _at_banks(search.within(budget, limit), self.banked)
                        return tile, low, high
                return None, low, high
        return choose_slowly(self._problem, self._config, budget), budget, budget + 1

    def estimate(self, tile: Tiling) -> int:
        """Picoseconds that all tiles take, about."""
        with contextlib.suppress(OverflowError):
            return self._search().estimate(tile)
        return estimate(self._problem, tile, self._config)

    def taking(self, tile: Tiling, *, again: bool = False) -> int:
        """Picoseconds that all tiles take among others: see :func:`taking`."""
        with contextlib.suppress(OverflowError):
            ps, traffic = self._search().taking(tile, again)
            return max(ps, self.banked(tile)) + traffic // OVERLAP
        return taking(self._problem, tile, self._config, again=again)

    def computing(self, tile: Tiling) -> int:
        """Picoseconds of the matrix unit for all tiles, one after the other."""
        with contextlib.suppress(OverflowError):
            return self._search().computing(tile)
        return computing(self._problem, tile, self._config)

    def banked(self, tile: Tiling) -> int:
        """Picoseconds that all banks of the SRAM need for what the units move, about: all tiles take no less, whatever
        is done side by side."""
        known = self._banked.get(tile)
        if known is None:
            known = self._banked[tile] = self.chain_banked + self._computing_banked(tile)
        return known

    def _computing_banked(self, tile: Tiling) -> int:
        with contextlib.suppress(OverflowError):
            return self._search().banked(tile)
        return computing_banked(self._problem, tile, self._config)


class _Searched(NamedTuple):
    """What the search asks of a device: prices, limits, and the constants of this module, which are written once."""

    matrix: Prices
    banks: Prices
    moves: Prices
    acc_bytes: int
    cores: int
    input_copies: int
    bandwidth: int
    constants_bandwidth: int
    multicast: bool
    inputs_ahead: bool
    one_channel: bool
    constants_apart: bool
    alignment: int
    overlap: int
    slack_percent: int
    most_risen: int
    max_products: int
    max_elements: int
    channel_step: int
    direct: int
    dram: int


@functools.lru_cache(maxsize=256)
def _searched(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes_: int, w_bits: int
) -> _Searched:
    """``config``: as :func:`pricing` leaves it; the rest: what :func:`matrix_prices` asks of a product."""
    kind = dtype, kh, kw, depthwise, out_bytes, acc_bytes_, w_bits
    return _Searched(
        matrix_prices(config, *kind).quick, bank_prices(config, *kind).quick, move_prices(config).quick,
        acc_bytes(config), config.cores, input_copies(config), dram_model(config).bandwidth,
        dram_model(constants_side(config)).bandwidth, config.interconnect.multicast, config.dma.inputs_ahead,
        config.dma.channels == 1, config.constants is not None, ALIGNMENT, OVERLAP, SLACK_PERCENT, _MOST_RISEN,
        MAX_PRODUCTS, MAX_ELEMENTS, CHANNEL_STEP, Home.DIRECT, Home.DRAM,
    )  # fmt: skip


_MOST_BUDGETS = 1024
"""Of one problem: more are not remembered."""


def tilings(problem: MatrixProblem, config: Config) -> Tilings:
    """The tilings of a problem on a device. Networks repeat their layers, and designs those of others: problems are
    values without names or addresses, and of a device only counts what the prices of tiles depend on."""
    return _tilings(problem, pricing(config))


_tilings = functools.lru_cache(maxsize=1024)(Tilings)


def forget() -> None:
    """Forget what tilings are remembered: for who changes the limits of this module."""
    _tilings.cache_clear()
    _searched.cache_clear()


def choose(problem: MatrixProblem, config: Config, budget: int) -> Tiling | None:
    """The tiling of least estimated time that fits ``budget`` bytes of SRAM; None when none does."""
    return tilings(problem, config).choose(budget)


def choose_slowly(problem: MatrixProblem, config: Config, budget: int) -> Tiling | None:
    """What :func:`choose` does, one tiling after the other: its definition."""
    for whole in _jobs(config):
        if tile := _chosen(problem, config, budget, whole=whole):
            return tile
    return None


def _jobs(config: Config) -> tuple[bool, ...]:
    """Whether only cuts along the kernels are looked at; a second time, where nothing was found, all of them."""
    direct = config.matrix and config.matrix.direct
    return (True, False) if direct and direct.whole_jobs else (False,)


def _chosen(problem: MatrixProblem, config: Config, budget: int, *, whole: bool) -> Tiling | None:
    scored = []
    for channels in _channel_cuts(problem, config, whole=whole):
        least, risen = None, 0
        for tiles in _candidates(problem, config, budget, channels, whole=whole):
            # Parts of rows only where single rows do not fit.
            if least is not None and tiles[0].ow < problem.ow:
                break
            times = [estimate(problem, tile, config) for tile in tiles]
            scored += [(time, _steps(problem, tile), tile) for time, tile in zip(times, tiles, strict=True)]
            if least is None or min(times) < least:
                least, risen = min(times), 0
                continue
            risen += 1
            if risen == _MOST_RISEN:
                break
        # Weights that are held cost no loads, so there is nothing to gain by smaller parts of them.
        if problem.held and not problem.pinned and scored:
            break
    if not scored:
        return None
    tile = _least(scored)
    limit = banked(problem, tile, config)
    if limit <= min(ps for ps, _, each in scored if each == tile):
        return tile
    options = [option for option in scored if option[0] < limit]
    return _at_banks(options, lambda tile: banked(problem, tile, config))


def _at_banks(options: Iterable[tuple[int, int, tuple[Any, ...]]], price: Callable[[Tiling], int]) -> Tiling:
    """Of (picoseconds, steps, tiling), one of which waits for the banks of the SRAM for longer, the least where all
    wait for them: ``price`` says how long."""
    scored: list[tuple[int, int, Tiling]] = []
    best: int | None = None
    for ps, steps, each in sorted(options):
        if best is not None and ps > _near(best):  # nor is any that comes
            break
        tile = Tiling(*each)
        cost = max(ps, price(tile))
        scored.append((cost, steps, tile))
        best = cost if best is None else min(best, cost)
    return _least(scored)


def _near(ps: int) -> int:
    """The most that is as good."""
    return ps * (100 + SLACK_PERCENT) // 100


def _least(scored: Sequence[tuple[int, int, Tiling]]) -> Tiling:
    """Of (picoseconds, steps, tiling) the one of fewest steps that is near to the best."""
    # Ties end with the tile itself, so that the choice does not depend on the order of the search.
    limit = _near(min(ps for ps, _, _ in scored))
    return min((steps, ps, tile) for ps, steps, tile in scored if ps <= limit)[2]


def _steps(problem: MatrixProblem, tile: Tiling) -> int:
    return _spatial(problem, tile) * _channel_tiles(problem, tile) * _chunks(problem, tile)


_MOST_RISEN = 2
"""Of spatial cuts, the largest first: so many in turn that take longer than one before them are the last that are
tried. It is not so many in all: on more SRAM, where there are larger ones, the best of less is still found."""


SLACK_PERCENT = 1
"""Estimates this near to the best count as equal: the one with the fewest steps simulates fastest."""


def _candidates(
    problem: MatrixProblem, config: Config, budget: int, channels: tuple[int, int, int], *, whole: bool
) -> Iterator[list[Tiling]]:
    """Of a cut of the channels the spatial cuts that fit, large ones first; of each the tiles, weights in the inner
    loop and then in the outer one, if there are two: that decides whether weights or pixels are loaded again."""
    limit = acc_bytes(config)
    groups, oc, ic = channels
    for oh, ow in _areas(problem.oh, problem.ow, whole=whole):
        tile = Tiling(groups, oh, ow, oc, ic, False)
        if limit and footprint(problem, tile).acc > limit:
            continue
        if sram_bytes(problem, tile, config) > budget:
            tile = tile._replace(in_pieces=True)
            if not problem.epilogue.between or sram_bytes(problem, tile, config) > budget:
                continue
        # On a large SRAM it is what one instruction may do that cuts: the matrix unit's, or those of the chain.
        if products(_work(problem, tile)) > MAX_PRODUCTS or oh * ow * groups * oc > MAX_ELEMENTS:
            continue
        several = _ordered(problem, tile) or (config.cores > 1 and config.interconnect.multicast)
        yield [tile, tile._replace(weights_outer=True)] if several else [tile]


def _ordered(problem: MatrixProblem, tile: Tiling) -> bool:
    """Whether it may be better to have weights outermost; see :func:`_loads`."""
    several = _spatial(problem, tile) > 1 and _channel_tiles(problem, tile) > 1
    return several and _chunks(problem, tile) == 1


def _channel_cuts(problem: MatrixProblem, config: Config, *, whole: bool) -> Iterator[tuple[int, int, int]]:
    """(groups, output channels, input channels) of a tile, all at once first."""
    unit = config.matrix.cols if config.matrix else 1
    if problem.depthwise:
        for count in _halvings(problem.groups, 1):
            yield count, problem.oc, problem.ic
        return
    # Several groups in one tile only with all of their channels: parts of groups do not lie side by side.
    for groups in _halvings(problem.groups, 2) if problem.groups > 1 else ():
        yield groups, problem.oc, problem.ic
    # Output channels by columns of the array, so that no part of it idles; input channels by blocks, because sums are
    # cut nowhere else (ADR 0007).
    if whole:
        # A group of kernels begins when its own weights are there, and its results need not wait for the next one's.
        yield 1, min(unit, problem.oc), problem.ic
        return
    for oc in _halvings(problem.oc, 1, unit):
        for ic in _halvings(problem.ic, CHANNEL_BLOCK, CHANNEL_BLOCK):
            yield 1, oc, ic


@functools.lru_cache(maxsize=1024)
def _halvings(full: int, least: int, multiple: int = 1) -> tuple[int, ...]:
    """full, then halves rounded up to a multiple while that is smaller, down to ``least``."""
    sizes = [full]
    while sizes[-1] > least:
        half = ceil_div(sizes[-1], 2)
        rounded = max(least, ceil_div(half, multiple) * multiple if half > multiple else half)
        if rounded >= sizes[-1]:
            break
        sizes.append(rounded)
    return tuple(sizes)


@functools.lru_cache(maxsize=1024)
def _areas(rows: int, columns: int, *, whole: bool) -> tuple[tuple[int, int], ...]:
    """Spatial cuts."""
    if whole:
        return ((rows, columns),)
    # Each part of a row costs its own halo and shorter runs, which are shorter still where rows of one channel are
    # innermost: no estimate knows that.
    parts = [(1, ow) for ow in _halvings(columns, 1) if ow < columns]
    return (*((oh, columns) for oh in _halvings(rows, 1)), *parts)


def _spatial(problem: MatrixProblem, tile: Tiling) -> int:
    return problem.images * ceil_div(problem.oh, tile.oh) * ceil_div(problem.ow, tile.ow)


def _channel_tiles(problem: MatrixProblem, tile: Tiling) -> int:
    return ceil_div(problem.groups, tile.groups) * ceil_div(problem.oc, tile.oc)


def _chunks(problem: MatrixProblem, tile: Tiling) -> int:
    return ceil_div(problem.ic, tile.ic)


def computing(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Picoseconds of the matrix unit for all tiles, one after the other."""
    return _computing(problem, tile, cost_model(config).product_ps)


def banked(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """Picoseconds that all banks of the SRAM need for all tiles: for the matrix unit, and for what the chain does."""
    elements = problem.images * problem.oh * problem.ow * problem.groups * problem.oc
    return computing_banked(problem, tile, config) + elements * problem.epilogue.banks // 1024


def computing_banked(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """The part of the matrix unit in what :func:`banked` says."""
    cost = cost_model(array_pricing(config)).cost
    return _computing(problem, tile, lambda work: cost(work).sram_ps)


def _computing(problem: MatrixProblem, tile: Tiling, price: Callable[[MatrixWork], int]) -> int:
    if _divides(problem, tile):
        tiles = _spatial(problem, tile) * _channel_tiles(problem, tile)
        return tiles * _chunks(problem, tile) * price(_work(problem, tile))
    total = 0
    for groups, oh, ow, oc, ic in product(
        _sizes(problem.groups, tile.groups), _sizes(problem.oh, tile.oh), _sizes(problem.ow, tile.ow),
        _sizes(problem.oc, tile.oc), _sizes(problem.ic, tile.ic),
    ):  # fmt: skip
        steps = groups[0] * oh[0] * ow[0] * oc[0] * ic[0]
        part = Tiling(groups[1], oh[1], ow[1], oc[1], ic[1], tile.weights_outer)
        total += steps * price(_work(problem, part))
    return problem.images * total


def _divides(problem: MatrixProblem, tile: Tiling) -> bool:
    """Whether no tile is smaller than others."""
    pixels, channels = problem.oh % tile.oh or problem.ow % tile.ow, problem.oc % tile.oc or problem.ic % tile.ic
    return not (pixels or channels or problem.groups % tile.groups)


def _sizes(full: int, size: int) -> tuple[tuple[int, int], ...]:
    """(how many, how large) of the parts of ``full``: whole ones, and what is left at its end."""
    count, rest = divmod(full, size)
    return tuple(part for part in ((count, size), (1, rest)) if part[0] and part[1])


class Filled(NamedTuple):
    """How full the tiles of each kind are on average, those at the edges included: 1 is full. Of ``x`` and ``out`` the
    pixels alone."""

    x: float
    w: float
    out: float


def filled(problem: MatrixProblem, tile: Tiling) -> Filled:
    """Means over all tiles of a problem, of what is in a tile over what is in a whole one."""
    if _divides(problem, tile):
        return Filled(1, 1, 1)
    oh, ow = _fullness(problem.oh, tile.oh), _fullness(problem.ow, tile.ow)
    whole = input_extent(problem, tile.oh, tile.ow)
    rows = 1 - (1 - oh) * tile.oh * problem.sh / whole[0]
    cols = 1 - (1 - ow) * tile.ow * problem.sw / whole[1]
    return Filled(rows * cols, _channel_fullness(problem, tile) * _fullness(problem.ic, tile.ic), oh * ow)


def _channel_fullness(problem: MatrixProblem, tile: Tiling) -> float:
    return _fullness(problem.groups, tile.groups) * _fullness(problem.oc, tile.oc)


def _fullness(whole: int, size: int) -> float:
    return whole / (ceil_div(whole, size) * size)


class _Mean(NamedTuple):
    """Of what moves some tiles, each with so many pixels: picoseconds alone, those from one to the next of a stream,
    and bytes past the pins."""

    ps: float
    stream: float
    nbytes: float


def _mean(
    problem: MatrixProblem, tile: Tiling, channels: tuple[int, int], item: int, row: int, pixels: int, config: Config,
    home: Home = Home.DRAM, *, write: bool = False,
) -> _Mean | None:  # fmt: skip
    """Means over all tiles of a problem, if they have all of their pixels. ``channels``: those of a group and of a
    tile, ``item``: bytes of one; ``row``: pixels that are one run where a tile has all channels.

    A tile at the edge of the channels has as many runs as others: what it takes is not in proportion to its bytes.
    """
    if home is Home.DIRECT:
        return None
    model = cost_model(config)
    ps = stream = nbytes = 0
    for (some, groups), (many, width) in product(_sizes(problem.groups, tile.groups), _sizes(*channels)):
        count, every = groups * width, problem.groups * channels[0]
        # Channels are innermost: all of them make one run of a whole row of pixels. Parts of them begin as far apart as
        # pixels do, wherever that is in a burst.
        run, stride = (count * item * row, 0) if count == every else (count * item, every * item)
        work = _moving(home, pixels * count * item, run, stride, write=write)
        assert work is not None
        ps += some * many * model.cost(work).ps
        stream += some * many * model.stream_ps(work)
        nbytes += some * many * model.dram_bytes(work)
    total = ceil_div(problem.groups, tile.groups) * ceil_div(*channels)
    return _Mean(ps / total, stream / total, nbytes / total)


def estimate(problem: MatrixProblem, tile: Tiling, config: Config) -> int:
    """What tilings of a problem are compared by: picoseconds, about.

    ``Search`` of ``_tiling.pyx`` is the same in machine integers, for all tilings of a problem.
    """
    times = _times(problem, tile, config)
    longest = max(times.parts)
    # What is hidden shows a little, and traffic as much again: it costs energy, and of equals the least is wanted.
    return longest + (sum(times.parts) - longest + times.parts.shared) // OVERLAP + times.first + times.w


def taking(problem: MatrixProblem, tile: Tiling, config: Config, *, again: bool = False) -> int:
    """Picoseconds that all tiles take, about, between other layers: what is compared with those. ``again``: after other
    rows of the same layer, behind which the first loads hide, as the last store and chain hide behind what follows."""
    times = _times(problem, tile, config)
    parts = times.parts
    longest = max(parts)
    if again:
        shown = parts.compute // times.per_core if parts.chain > parts.compute else 0
    else:
        # Weights come while others are at their last tile, which is taken to be as long as one of these.
        shown = times.first + max(0, times.w - longest // (times.per_core * _chunks(problem, tile)))
    # Traffic shows as it does where tilings are chosen, whatever is waited for.
    return max(longest + shown, banked(problem, tile, config)) + parts.shared // OVERLAP


class _Parts(NamedTuple):
    """Picoseconds of computing, the chain, loading and storing on a core's channels, and the DRAM shared by all."""

    compute: int
    chain: int
    loading: int
    storing: int
    shared: int


class _Times(NamedTuple):
    """What works side by side; of the first weights; of what else nothing overlaps; and how many tiles a core has."""

    parts: _Parts
    w: int
    first: int
    per_core: int


def _times(problem: MatrixProblem, tile: Tiling, config: Config) -> _Times:
    model = cost_model(config)
    spatial, channels, chunks = _spatial(problem, tile), _channel_tiles(problem, tile), _chunks(problem, tile)
    bytes_ = footprint(problem, tile)
    x_loads, w_loads = _loads(problem, tile, spatial, channels, chunks)
    per_core = ceil_div(spatial * channels, config.cores)
    # Loads are counted for the whole problem. A core that has most tasks is taken to have the same part of the loads.
    share = per_core / (spatial * channels)
    # Charged as whole ones, the tiles at the edges would make a cut seem dear that leaves small ones. A core that has
    # a part of all tiles is taken to have whole ones.
    whole = per_core * chunks * model.product_ps(_work(problem, tile))
    compute = min(whole, _computing(problem, tile, model.product_ps))
    full = filled(problem, tile)
    rows, cols = input_extent(problem, tile.oh, tile.ow)
    mean = functools.partial(_mean, problem, tile)
    x = mean((problem.ic, tile.ic), problem.x_type.itemsize, cols, rows * cols, config, problem.x_home)
    outputs, pixels = (problem.oc, tile.oc), tile.oh * tile.ow
    out = mean(outputs, problem.stored_bytes, tile.ow, pixels, config, problem.out_home, write=True)
    operands = [mean(outputs, item, tile.ow, pixels, config) for item in problem.epilogue.operands]
    # Weights are taken to be constants, as nearly all are.
    weights = None if problem.held else _weights(problem, bytes_.w, config)
    w = weights and _Mean(model.cost(weights).ps, model.stream_ps(weights), model.dram_bytes(weights))
    parameters = None
    if problem.fetched and not problem.held:
        nbytes = tile.groups * tile.oc * problem.fetched
        beside = _dma(nbytes, nbytes, 0, constants=True)
        parameters = _Mean(model.cost(beside).ps, model.stream_ps(beside), model.dram_bytes(beside))
    x_cores, w_cores = _loaded_for(problem, tile, spatial, channels, config)
    stores = spatial * channels * full.out
    p_count = w_loads / chunks / w_cores * _channel_fullness(problem, tile)
    moves = [(x_loads / x_cores * full.x, x), (w_loads / w_cores * full.w, w), (p_count, parameters)]
    moves += [(stores, operand) for operand in operands]
    # As if one after the other. More channels only bring them forward: were they to change the choice of tiles, the
    # error of this estimate could make a network slower with more of them.
    loading = int(share * _plain_sum(count * move.stream for count, move in moves if move))
    if x and not config.dma.inputs_ahead:
        compute += int(share * x_loads * full.x * x.ps)
    storing = int(min(per_core, stores) * out.stream) if out else 0
    if config.dma.channels == 1:  # then loads and stores take turns; else one channel is kept for stores
        loading, storing = loading + storing, 0
    # All cores share one DRAM: its time is that of everybody's bytes, however the tasks are divided.
    traffic = _plain_sum(count * move.nbytes for count, move in (*moves, (stores, out)) if move)
    apart = w_loads / w_cores * full.w * w.nbytes if w and config.constants else 0
    apart += p_count * parameters.nbytes if parameters and config.constants else 0
    shared = max(
        int((traffic - apart) * problem.beside) * 10**12 // dram_model(config).bandwidth,
        int(apart * problem.beside) * 10**12 // dram_model(constants_side(config)).bandwidth,
    )
    results = stores * _channel_fullness(problem, tile)
    behind = chain_time(problem, tile)
    chain = int(min(per_core, results) * behind)
    # Nothing overlaps the first loads and the last store, nor what the chain does to the last tile; where the chain
    # takes longest, the first tile's sums show instead.
    # Inputs that are not loaded ahead are in the computing already.
    first = sum(int(move.ps) for move in (x if config.dma.inputs_ahead else None, out) if move)
    first += behind if chain <= compute else compute // per_core
    return _Times(_Parts(compute, chain, loading, storing, shared), int(w.ps) if w else 0, first, per_core)


def _plain_sum(values: Iterable[float]) -> float:
    """One after the other: newer versions of Python keep what rounding loses, and would choose other tiles."""
    return functools.reduce(add, values, 0.0)


def chain_time(problem: MatrixProblem, tile: Tiling) -> int:
    """Picoseconds that the chain takes on a tile."""
    epilogue, elements = problem.epilogue, tile.oh * tile.ow * tile.groups * tile.oc
    pieces = ceil_div(elements, epilogue.piece) if tile.in_pieces else 1
    return pieces * epilogue.begin + elements * epilogue.kilo // 1024


OVERLAP = 16
"""Overlap is not perfect: one part in so many of what hides behind the longest shows."""


def _loads(problem: MatrixProblem, tile: Tiling, spatial: int, channels: int, chunks: int) -> tuple[int, int]:
    """How often an input tile and a weight tile are loaded."""
    tasks = spatial * channels
    # An operand stays in its slot while the next task asks for the same. With several parts of the input channels every
    # part is another tile, and nothing stays.
    if chunks > 1:
        return tasks * chunks, tasks * chunks
    if tile.weights_outer:
        x = spatial if channels == 1 else tasks
        return x, channels if problem.shared_weights else tasks
    w = channels if spatial == 1 or (channels == 1 and problem.shared_weights) else tasks
    # Output channels of one group use the same input, those of the next group other channels of it.
    grouped = ceil_div(problem.groups, tile.groups)
    return spatial * grouped, w


def _loaded_for(problem: MatrixProblem, tile: Tiling, spatial: int, channels: int, config: Config) -> tuple[int, int]:
    """How many cores each load of an input tile and of a weight tile serves, where one load can serve several.

    What is counted by :func:`_loads` is once for a run of tasks with the same outer part, although several cores may
    have a part of that run: that they share it is no gain over the count.
    """
    if not config.interconnect.multicast or config.cores == 1 or (problem.x_home, problem.held) != (Home.DRAM, False):
        return problem.x_serves, problem.w_serves
    outer, inner = (channels, spatial) if tile.weights_outer else (spatial, channels)
    if outer * inner % config.cores:
        return 1, 1  # the cores drift apart: none asks for what another one does at that moment
    tasks = outer * inner // config.cores
    if tasks % inner and inner % tasks:
        return 1, 1
    # As many cores walk the same inner parts at the same time.
    together = config.cores // max(1, inner // tasks)
    if tile.weights_outer:
        return together, 1
    return 1, together if problem.shared_weights else 1


def _work(problem: MatrixProblem, tile: Tiling) -> MatrixWork:
    groups, oc, ic = tile.groups, tile.oc, tile.ic
    if problem.depthwise:  # the groups are the channels of one image
        groups, oc, ic = 1, tile.groups * tile.oc, tile.groups
    return MatrixWork(
        rate_type(problem.x_type, problem.w_type), groups, tile.oh, tile.ow, oc, ic, problem.kh, problem.kw,
        problem.depthwise, True, True, problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
    )  # fmt: skip


def _weights(problem: MatrixProblem, nbytes: int, config: Config) -> DmaWork:
    plain, size = _dma(nbytes, nbytes, 0, constants=True), max(1, nbytes * problem.w_kilo // 1024)
    if problem.w_kilo == 1024 or not move_prices(config).pays(nbytes, size, problem.w_bits or 8):
        return plain
    return expanding(nbytes, size, problem.w_bits or 8)


def _moving(home: Home, nbytes: int, run: int, stride: int, *, write: bool = False) -> DmaWork | None:
    """What brings a tile from its home, or there."""
    if home is Home.DIRECT:
        return None
    if home is Home.DRAM:
        return _dma(nbytes, run, stride, write=write)
    run = max(1, min(run, nbytes))
    return DmaWork(nbytes, ceil_div(nbytes, run), run, 0, 0)


def _dma(nbytes: int, run: int, stride: int, *, write: bool = False, constants: bool = False) -> DmaWork:
    run = max(1, min(run, nbytes))
    moved = (0, nbytes) if write else (nbytes, 0)
    return DmaWork(nbytes, ceil_div(nbytes, run), run, *moved, stride, constants=constants)
