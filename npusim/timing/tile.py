"""Tile sizes for the matrix unit, chosen by the cost functions that the simulator charges.

The search itself is compiled: see ``_tiling.pyx``. ``tests/support/tile_definition.py`` has the same in Python, by the
cost functions of ``npusim.hw`` alone, and tests compare the two.
"""

from __future__ import annotations

import enum
import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple

from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.hw.memory import ALIGNMENT, constants_side, dram_model
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS, Command, Unit, Wait
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.isa.matrix import CHANNEL_BLOCK, CHANNEL_STEP, Conv, packed_bytes, rate_type
from npusim.timing._tiling import Prices, Search
from npusim.timing.tile_costs import (
    EXPAND,
    bank_prices,
    matrix_prices,
    move_prices,
    pricing,
)
from npusim.units import ceil_div


class Home(enum.IntEnum):
    """How a tile reaches the value that it is a part of, or the other way."""

    DRAM = 0
    COPIED = 1  # the value is in SRAM, the tile in a slot of its own beside it
    DIRECT = 2  # the instruction works on the value where it is


class EpilogueCosts(NamedTuple):
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
    ``x_turned``, ``out_turned``: transfers of tiles transpose, so that each element is a run in SRAM. ``padded``: rows
    and columns of the input, padding before them, where much of what tiles are made of is padding. ``ic_unit``: parts
    of a reduction have multiples of so many input channels. ``both_ways``: columns are as good to cut as rows.
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
    epilogue: EpilogueCosts
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
    x_turned: bool = False
    out_turned: bool = False
    padded: tuple[int, int, int, int] | None = None
    ic_unit: int = CHANNEL_BLOCK
    both_ways: bool = False

    @property
    def x_way(self) -> str:
        """How inputs are loaded, as prices of transfers have it."""
        return _way("read" if self.x_home is Home.DRAM else "copy", self.x_type.itemsize * self.x_turned)

    @property
    def out_way(self) -> str:
        """How results are stored."""
        return _way("write" if self.out_home is Home.DRAM else "copy", self.stored_bytes * self.out_turned)

    @property
    def w_way(self) -> str:
        """How weights are loaded."""
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


def _way(way: str, word: int) -> str:
    return f"{way}{word}" if word else way


def ic_unit(block: int, dtype: DType) -> int:
    """Multiples of so many input channels may be parts of a reduction over blocks of ``block`` channels, each of which
    is summed like a convolution of its own."""
    if not dtype.is_float or block % CHANNEL_BLOCK == 0 or CHANNEL_BLOCK % block == 0:
        return CHANNEL_BLOCK
    return ceil_div(CHANNEL_BLOCK, block) * block


class Tiling(NamedTuple):
    """Groups, output rows, columns and channels, input channels of one tile; which loop is outermost; whether the chain
    works on it in pieces; kernel rows and columns of one instruction, 0 for all of them."""

    groups: int
    oh: int
    ow: int
    oc: int
    ic: int
    weights_outer: bool
    in_pieces: bool = False
    kh: int = 0
    kw: int = 0


class Footprint(NamedTuple):
    """Bytes of one copy of each slot."""

    x: int
    w: int
    parameters: int
    acc: int
    out: int


def footprint(problem: MatrixProblem, tile: Tiling) -> Footprint:
    """What a tile takes in SRAM (and accumulators)."""
    kernel = taps(problem, tile)
    rows, cols, *_ = input_window(problem, tile, (tile.oh, tile.ow), kernel)
    channels = tile.groups * tile.oc
    pixels = tile.oh * tile.ow
    depth = kernel[0] * kernel[1] * (1 if problem.depthwise else tile.ic)
    return Footprint(
        rows * cols * tile.groups * tile.ic * problem.x_type.itemsize,
        weight_bytes(problem, depth, tile.groups, tile.oc),
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


def taps(problem: MatrixProblem, tile: Tiling) -> tuple[int, int]:
    """Kernel rows and columns of one instruction."""
    return tile.kh or problem.kh, tile.kw or problem.kw


class InputWindow(NamedTuple):
    """Rows and columns of a slot, padding included; of how many rows and columns of the input each is one."""

    rows: int
    cols: int
    row_step: int
    col_step: int


def input_window(problem: MatrixProblem, tile: Tiling, out: tuple[int, int], kernel: tuple[int, int]) -> InputWindow:
    """What rows and columns of the kernel read for rows and columns of a tile's outputs."""
    p = problem
    row_step = _read_step(out[0], p.sh, kernel[0], p.kh, p.dh)
    col_step = _read_step(out[1], p.sw, kernel[1], p.kw, p.dw)
    if p.x_turned or col_step * tile.groups * tile.ic * p.x_type.itemsize < LEAST_RUN:
        col_step = 1
    rows, cols = (out[0] - 1) * p.sh + (kernel[0] - 1) * p.dh, (out[1] - 1) * p.sw + (kernel[1] - 1) * p.dw
    return InputWindow(rows // row_step + 1, cols // col_step + 1, row_step, col_step)


def _read_step(outputs: int, stride: int, taps: int, kernel: int, dilation: int) -> int:
    """Of how many positions of the input along an axis one is read: those between are skipped by all outputs and taps.

    ``taps``: of the ``kernel``. Undilated kernels as a whole read nearly all.
    """
    if dilation == 1 and taps == kernel:
        return 1
    return max(1, gcd(stride if outputs > 1 else 0, dilation if taps > 1 else 0))


LEAST_RUN = 64
"""Bytes from one read pixel to the next from which on the pixels between are left out: those of a burst come anyway."""


def input_copies(config: Config) -> int:
    """Slots that input tiles take turns in."""
    return 2 if config.dma.inputs_ahead else 1


def acc_bytes(config: Config) -> int:
    """Bytes of dedicated accumulators, 0 when partial sums live in SRAM."""
    return config.matrix.accumulator_bytes if config.matrix else 0


class Tilings:
    """The tilings of one problem on one device. The figures of each tiling are computed once, whatever the budget.

    The search is compiled (``_tiling.pyx``). Figures beyond 10^18 ps (11 days) are given as 10^18.
    """

    def __init__(self, problem: MatrixProblem, config: Config) -> None:
        """``config``: reduced by :func:`pricing`."""
        self._problem, self._config = problem, config
        # chosen[n]: (end, tiling) for budgets from firsts[n] up to but not including end.
        self._firsts: list[int] = []
        self._chosen: list[tuple[int, Tiling | None]] = []
        self._banked: dict[Tiling, int] = {}
        elements = problem.images * problem.oh * problem.ow * problem.groups * problem.oc
        self.chain_banked = elements * problem.epilogue.banks // 1024
        """Picoseconds of all SRAM banks for the chain."""
        self._device = searched(
            config, rate_type(problem.x_type, problem.w_type), problem.kh, problem.kw, problem.depthwise,
            problem.out_type.itemsize, problem.sum_bytes, problem.w_width,
        )  # fmt: skip

    @functools.cached_property
    def _searches(self) -> list[Search]:
        """One search, or two where the first looks only at cuts along the kernels."""
        problem, config = self._problem, self._config
        return [
            Search(
                problem,
                self._device,
                [(*cut, problem.kh, problem.kw) for cut in channel_cuts(problem, config, whole=whole)],
                spatial_cuts(problem.oh, problem.ow, whole=whole, both_ways=problem.both_ways),
            )
            for whole in search_passes(config)
        ]

    @functools.cached_property
    def _by_taps(self) -> Search:
        """The search among tiles that take a part of the kernel at a time."""
        problem = self._problem
        areas = spatial_cuts(problem.oh, problem.ow, whole=False, both_ways=problem.both_ways)
        return Search(problem, self._device, list(tap_cuts(problem, self._config)), areas)

    @functools.cached_property
    def _search(self) -> Search:
        """The search that knows the figures of tilings. It has no cuts of its own where none was chosen yet."""
        made = self.__dict__.get("_searches")
        return made[-1] if made else Search(self._problem, self._device, [], [])

    def _knowing(self, tile: Tiling) -> Search:
        """The search that knows a tiling."""
        return self._by_taps if tile.kh or tile.kw else self._search

    @functools.cached_property
    def _good(self) -> int:
        """Picoseconds that are good enough: no tile with a part of the kernel is looked for. 0 where none may be."""
        return self._search.bound() * (100 + TAPS_PERCENT) // 100

    def choose(self, budget: int) -> Tiling | None:
        """The tiling of the best score that fits ``budget`` bytes of SRAM; None when none does."""
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
        """The tiling, and the range of budgets that get the same one: first, and the one after the last."""
        low, high = 0, budget + 1
        best: tuple[int, Tiling] | None = None
        for number, search in enumerate(self._searches):
            found, low, high = self._found(search, budget, (low, high) if number else None)
            if found is not None:
                best = found
                break
        if can_cut_taps(self._problem) and (best is None or best[0] > self._good):
            found, low, high = self._found(self._by_taps, budget, (low, high))
            # A part of the kernel at a time has more loads: as good is not good enough.
            if found is not None and (best is None or _near(found[0]) < best[0]):
                best = found
        return best and best[1], low, high

    def _found(
        self, search: Search, budget: int, bounds: tuple[int, int] | None
    ) -> tuple[tuple[int, Tiling] | None, int, int]:
        """The best of one search, and the budgets for which it and what was found before is the same."""
        found, ps, first, end = search.choose(budget)
        low, high = (max(bounds[0], first), min(bounds[1], end)) if bounds else (first, end)
        if found is None:
            return None, low, high
        tile = Tiling(*found)
        limit = self.banked(tile)
        if limit > ps:
            tile = best_at_banks(search.within(budget, limit), self.banked)
            ps = max(search.score(tile), self.banked(tile))
        return (ps, tile), low, high

    def score(self, tile: Tiling) -> int:
        """The figure by which tilings are chosen, in picoseconds of all tiles: hidden time and traffic count a little,
        and nothing overlaps the first loads and the last store."""
        return self._knowing(tile).score(tile)

    def latency(self, tile: Tiling, *, again: bool = False) -> int:
        """Picoseconds that all tiles take between other layers.

        ``again``: after other rows of the same layer. Then the first loads hide behind those rows, and the last store
        and chain behind what follows.
        """
        ps, traffic = self._knowing(tile).latency(tile, again)
        return max(ps, self.banked(tile)) + traffic // OVERLAP

    def computing(self, tile: Tiling) -> int:
        """Picoseconds of the matrix unit for all tiles, one after the other."""
        return self._knowing(tile).computing(tile)

    def banked(self, tile: Tiling) -> int:
        """Picoseconds that all SRAM banks need for the matrix unit and the chain: a lower bound for all tiles."""
        known = self._banked.get(tile)
        if known is None:
            known = self._banked[tile] = self.chain_banked + self._knowing(tile).banked(tile)
        return known


class _Searched(NamedTuple):
    """What the search asks of a device: prices, limits, and the constants of this module, which are written once."""

    matrix: Prices
    banks: Prices
    moves: Prices
    of_taps: Callable[[int, int], tuple[Prices, Prices]]
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
    least_run: int
    direct: int
    dram: int
    product_code: int
    copy_code: int


def code_bytes(config: Config) -> tuple[int, int]:
    """Bytes of the DRAM's bandwidth that commands of products and of copies take; those of chains are like copies."""
    return (0, 0) if config.interconnect.separate_code_port else (PRODUCT_CODE, COPY_CODE)


_FRAME = len(Command(0, Unit.CONTROL, 0, (Wait(0, Unit.CONTROL, 0),), Halt()).to_bytes()) - Halt.layout.size
"""Bytes of a command that waits once, but for its instruction."""
PRODUCT_CODE, COPY_CODE = (_FRAME + kind.layout.size for kind in (Conv, Copy))


@functools.lru_cache(maxsize=256)
def searched(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes_: int, w_bits: int
) -> _Searched:
    """``config``: as :func:`pricing` leaves it; the rest: what :func:`matrix_prices` asks of a product."""

    def of_taps(rows: int, cols: int) -> tuple[Prices, Prices]:
        kind = dtype, rows, cols, depthwise, out_bytes, acc_bytes_, w_bits
        return matrix_prices(config, *kind).quick, bank_prices(config, *kind).quick

    return _Searched(
        *of_taps(kh, kw), move_prices(config).quick, of_taps,
        acc_bytes(config), config.cores, input_copies(config), dram_model(config).bandwidth,
        dram_model(constants_side(config)).bandwidth, config.interconnect.multicast, config.dma.inputs_ahead,
        config.dma.channels == 1, config.constants is not None, ALIGNMENT, OVERLAP, SLACK_PERCENT, MOST_RISEN,
        MAX_PRODUCTS, MAX_ELEMENTS, CHANNEL_STEP, LEAST_RUN, Home.DIRECT, Home.DRAM, *code_bytes(config),
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
    searched.cache_clear()


def choose(problem: MatrixProblem, config: Config, budget: int) -> Tiling | None:
    """The tiling of least estimated time that fits ``budget`` bytes of SRAM; None when none does."""
    return tilings(problem, config).choose(budget)


def search_passes(config: Config) -> tuple[bool, ...]:
    """Whether only cuts along the kernels are looked at; a second time, where nothing was found, all of them."""
    direct = config.matrix and config.matrix.direct
    return (True, False) if direct and direct.whole_jobs else (False,)


def best_at_banks(options: Iterable[tuple[int, int, tuple[Any, ...]]], price: Callable[[Tiling], int]) -> Tiling:
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
    return fewest_steps(scored)


def _near(ps: int) -> int:
    """The most that is as good."""
    return ps * (100 + SLACK_PERCENT) // 100


def fewest_steps(scored: Sequence[tuple[int, int, Tiling]]) -> Tiling:
    """Of (picoseconds, steps, tiling) the one of fewest steps that is near to the best."""
    # Ties end with the tile itself, so that the choice does not depend on the order of the search.
    limit = _near(min(ps for ps, _, _ in scored))
    return min((steps, ps, tile) for ps, steps, tile in scored if ps <= limit)[2]


MOST_RISEN = 2
"""Of spatial cuts, the largest first: so many in turn that take longer than one before them are the last that are
tried. It is not so many in all: on more SRAM, where there are larger ones, the best of less is still found."""


TAPS_PERCENT = 25
"""Tiles that take a part of the kernel at a time are looked for where the best tile with the whole kernel takes so much
longer than the unit or the DRAM needs for the layer."""

SLACK_PERCENT = 1
"""Estimates this near to the best count as equal: the one with the fewest steps simulates fastest."""


def channel_cuts(problem: MatrixProblem, config: Config, *, whole: bool) -> Iterator[tuple[int, int, int]]:
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
        for ic in _halvings(problem.ic, problem.ic_unit, problem.ic_unit):
            yield 1, oc, ic


def can_cut_taps(problem: MatrixProblem) -> bool:
    """Whether one instruction may take a part of the kernel."""
    # Scales of blocks of channels are laid out for the whole kernel, and weights that are held for whole sums.
    scaled = 0 < problem.w_block < problem.ic
    return problem.kh * problem.kw > 1 and not problem.held and not scaled


def tap_cuts(problem: MatrixProblem, config: Config) -> Iterator[tuple[int, int, int, int, int]]:
    """(groups, output channels, input channels, kernel rows, kernel columns) of a tile with a part of the kernel."""
    kernels = [(rows, problem.kw) for rows in _halvings(problem.kh, 1)[1:]]
    kernels += [(1, cols) for cols in _halvings(problem.kw, 1)[1:]]
    for groups, oc, ic in channel_cuts(problem, config, whole=False):
        # Floats are summed in one order: for each block of channels all taps (ADR 0007).
        if not problem.x_type.is_float or problem.depthwise or ic <= CHANNEL_BLOCK:
            yield from ((groups, oc, ic, *kernel) for kernel in kernels)


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
def spatial_cuts(rows: int, columns: int, *, whole: bool, both_ways: bool) -> tuple[tuple[int, int], ...]:
    """Spatial cuts."""
    if whole:
        return ((rows, columns),)
    # A part of a row has shorter runs than whole rows, shorter still where rows of one channel are innermost: no
    # estimate knows that.
    parts = [(1, ow) for ow in _halvings(columns, 1) if ow < columns]
    if both_ways:
        parts = [(rows, ow) for ow in _halvings(columns, 1)[1:]] + parts * (rows > 1)
    return (*((oh, columns) for oh in _halvings(rows, 1)), *parts)


def chain_time(problem: MatrixProblem, tile: Tiling) -> int:
    """Picoseconds that the chain takes on a tile."""
    epilogue, elements = problem.epilogue, tile.oh * tile.ow * tile.groups * tile.oc
    pieces = ceil_div(elements, epilogue.piece) if tile.in_pieces else 1
    return pieces * epilogue.begin + elements * epilogue.kilo // 1024


OVERLAP = 16
"""Overlap is not perfect: one part in so many of what hides behind the longest shows."""
