"""Tile sizes for the matrix unit, chosen with the cost functions of the simulator.

The search is compiled: see ``_tiling.pyx``. ``tests/support/tile_definition.py`` is its reference in Python, with the
cost functions of ``npusim.hw`` alone; tests compare the two.
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
from npusim.isa.matrix import CHANNEL_STEP, Conv
from npusim.isa.matrix_types import CHANNEL_BLOCK, packed_bytes, rate_type
from npusim.timing._prices import Prices
from npusim.timing._tiling import Search
from npusim.timing.tile_costs import (
    EXPAND,
    bank_prices,
    matrix_prices,
    move_prices,
    pricing,
)
from npusim.units import ceil_div


class Home(enum.IntEnum):
    """How a tile accesses the value that it is a part of."""

    DRAM = 0
    COPIED = 1  # the value is in SRAM, the tile in its own slot beside it
    DIRECT = 2  # the instruction works on the value in place


class EpilogueCosts(NamedTuple):
    """The costs of the chain after a matrix operator.

    ``element_bytes``: SRAM bytes per element of a tile for operands and results. ``between``: further bytes per element
    of a tile, or of a ``piece`` of this many elements. ``begin``: picoseconds to start on a tile or piece. ``kilo``:
    picoseconds per 1024 elements. ``operands``: item sizes of the operands in DRAM. ``banks``: picoseconds of all SRAM
    banks per 1024 elements. ``result``: item size of the result that is stored instead of the sums, 0 without a chain.
    """

    element_bytes: int = 0
    between: int = 0
    piece: int = 1
    begin: int = 0
    kilo: int = 0
    operands: tuple[int, ...] = ()
    banks: int = 0
    result: int = 0


class MatrixProblem(NamedTuple):
    """A convolution (or a matmul: height 1, width M, kernel 1x1) as the tile search sees it.

    ``ic``, ``oc``: channels per group. ``in_place``: the accumulators are the output tile. ``main``: the sums go to a
    slot, whether or not the result of the chain does. ``held``: copies of all weights that stay in SRAM because tiles
    of other operators alternate, 0 if they do not stay. ``pinned``: they stay from one inference to the next, at their
    own address. ``beside``: number of cores with such a problem at the same time. ``x_serves``, ``w_serves``: the
    number of these that one load of an operand serves. ``w_bits``: of a packed weight, else 0. ``w_block``: weights of
    a channel that share a scale, 0 without scales. ``w_zeros``: whether there are also zero points. ``w_rows``,
    ``w_cols``: weights are padded to multiples of this many summands and channels. ``sum_bytes``: per accumulator.
    ``parameters``: bytes of bias, scale and shift per channel. ``fetched``: those of them that are constants, which
    load with the weights. ``w_kilo``: approximate bytes in DRAM per 1024 bytes of weights, fewer if they are
    compressed. ``x_turned``, ``out_turned``: transfers of tiles transpose, so that each element is a run in SRAM.
    ``padded``: rows and columns of the input, and of the padding before them, if much of the tiles is padding.
    ``ic_unit``: parts of a reduction have multiples of this many input channels. ``both_ways``: cuts along columns are
    as good as cuts along rows.
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
        """How inputs are loaded: a key of the transfer prices."""
        return _way("read" if self.x_home is Home.DRAM else "copy", self.x_type.itemsize * self.x_turned)

    @property
    def out_way(self) -> str:
        """How results are stored: a key of the transfer prices."""
        return _way("write" if self.out_home is Home.DRAM else "copy", self.stored_bytes * self.out_turned)

    @property
    def w_way(self) -> str:
        """How weights are loaded: a key of the transfer prices."""
        return f"{EXPAND}{self.w_bits or 8}" if self.w_kilo < 1024 else "constants"

    @property
    def stored_bytes(self) -> int:
        """Bytes per element of the result. A chain may convert floats to bytes, and then the floats are never
        stored."""
        return self.epilogue.result or self.out_type.itemsize

    @property
    def w_width(self) -> int:
        """Bits of a weight as in ``MatrixWork``: 0 if they are as wide as the type of the rate."""
        narrower = self.w_type.itemsize < rate_type(self.x_type, self.w_type).itemsize
        return self.w_bits or (8 * self.w_type.itemsize if narrower else 0)


def _way(way: str, word: int) -> str:
    return f"{way}{word}" if word else way


def ic_unit(block: int, dtype: DType) -> int:
    """The unit, in input channels, of parts of a reduction over blocks of ``block`` channels, each of which is summed
    separately."""
    if not dtype.is_float or block % CHANNEL_BLOCK == 0 or CHANNEL_BLOCK % block == 0:
        return CHANNEL_BLOCK
    return ceil_div(CHANNEL_BLOCK, block) * block


class Tiling(NamedTuple):
    """The sizes of one tile: groups, output rows, columns and channels, input channels.

    ``weights_outer``: which loop is outermost. ``in_pieces``: the chain processes the tile in pieces. ``kh``, ``kw``:
    kernel rows and columns of one instruction, 0 for all of them.
    """

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
    """The bytes that a tile needs in SRAM and accumulators."""
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
    """Bytes of a tile's weights, ``k`` per channel, with their scales and zero points, for any position of the
    blocks."""
    if problem.depthwise:  # the channels of all groups are contiguous
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
    """Rows and columns of a slot, padding included. ``row_step``, ``col_step``: the input rows and columns that each
    advances."""

    rows: int
    cols: int
    row_step: int
    col_step: int


def input_window(problem: MatrixProblem, tile: Tiling, out: tuple[int, int], kernel: tuple[int, int]) -> InputWindow:
    """The input that ``kernel`` rows and columns read for ``out`` rows and columns of a tile's output."""
    p = problem
    row_step = _read_step(out[0], p.sh, kernel[0], p.kh, p.dh)
    col_step = _read_step(out[1], p.sw, kernel[1], p.kw, p.dw)
    if p.x_turned or col_step * tile.groups * tile.ic * p.x_type.itemsize < LEAST_RUN:
        col_step = 1
    rows, cols = (out[0] - 1) * p.sh + (kernel[0] - 1) * p.dh, (out[1] - 1) * p.sw + (kernel[1] - 1) * p.dw
    return InputWindow(rows // row_step + 1, cols // col_step + 1, row_step, col_step)


def _read_step(outputs: int, stride: int, taps: int, kernel: int, dilation: int) -> int:
    """The distance between the input positions along an axis that are read; all outputs and taps skip those between.

    ``taps``: those of the ``kernel`` in one instruction. A whole undilated kernel reads nearly all positions.
    """
    if dilation == 1 and taps == kernel:
        return 1
    return max(1, gcd(stride if outputs > 1 else 0, dilation if taps > 1 else 0))


LEAST_RUN = 64
"""Minimum distance in bytes between read pixels at which the pixels between them are not loaded. Within a burst they
are loaded anyway."""


def input_copies(config: Config) -> int:
    """Number of slots that input tiles rotate through."""
    return 2 if config.dma.inputs_ahead else 1


def acc_bytes(config: Config) -> int:
    """Bytes of dedicated accumulators, 0 if partial sums are in SRAM."""
    return config.matrix.accumulator_bytes if config.matrix else 0


class Tilings:
    """The tilings of one problem on one device. The figures of each tiling are computed once, whatever the budget.

    The search is compiled (``_tiling.pyx``). Figures beyond 10^18 ps (11 days) are clamped to 10^18.
    """

    def __init__(self, problem: MatrixProblem, config: Config) -> None:
        """``config``: reduced by :func:`pricing`."""
        self._problem, self._config = problem, config
        # chosen[n]: (end, tiling) for budgets in [firsts[n], end).
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
        """One search, or two if the first is restricted to cuts along the kernels."""
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
        """The search among tiles that use a part of the kernel at a time."""
        problem = self._problem
        areas = spatial_cuts(problem.oh, problem.ow, whole=False, both_ways=problem.both_ways)
        return Search(problem, self._device, list(tap_cuts(problem, self._config)), areas)

    @functools.cached_property
    def _search(self) -> Search:
        """A search that has the figures of tilings. Before the first choice it has no cuts of its own."""
        made = self.__dict__.get("_searches")
        return made[-1] if made else Search(self._problem, self._device, [], [])

    def _knowing(self, tile: Tiling) -> Search:
        """The search that has the figures of a tiling."""
        return self._by_taps if tile.kh or tile.kw else self._search

    @functools.cached_property
    def _good(self) -> int:
        """Picoseconds that are good enough, so that tiles with a part of the kernel are not searched."""
        return self._search.bound() * (100 + TAPS_PERCENT) // 100

    def choose(self, budget: int) -> Tiling | None:
        """The tiling with the best score that fits into ``budget`` bytes of SRAM; None if none does."""
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
        """The tiling, and the range of budgets [first, end) with the same result."""
        low, high = 0, budget + 1
        best: tuple[int, Tiling] | None = None
        for number, search in enumerate(self._searches):
            found, low, high = self._found(search, budget, (low, high) if number else None)
            if found is not None:
                best = found
                break
        if can_cut_taps(self._problem) and (best is None or best[0] > self._good):
            found, low, high = self._found(self._by_taps, budget, (low, high))
            # A part of the kernel at a time needs more loads, so it must be better, not just as good.
            if found is not None and (best is None or _near(found[0]) < best[0]):
                best = found
        return best and best[1], low, high

    def _found(
        self, search: Search, budget: int, bounds: tuple[int, int] | None
    ) -> tuple[tuple[int, Tiling] | None, int, int]:
        """The best of one search, and the budgets for which this and all earlier results stay the same."""
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
        """The figure by which tilings are chosen: picoseconds of all tiles, plus a little for hidden time and traffic.
        Nothing overlaps with the first loads and the last store."""
        return self._knowing(tile).score(tile)

    def latency(self, tile: Tiling, *, again: bool = False) -> int:
        """Picoseconds of all tiles between other layers.

        ``again``: after other rows of the same layer, which hide the first loads; the last store and chain are hidden
        by what follows.
        """
        ps, traffic = self._knowing(tile).latency(tile, again)
        return max(ps, self.banked(tile)) + traffic // OVERLAP

    def computing(self, tile: Tiling) -> int:
        """Picoseconds of the matrix unit for all tiles in sequence."""
        return self._knowing(tile).computing(tile)

    def banked(self, tile: Tiling) -> int:
        """Picoseconds of all SRAM banks for the matrix unit and the chain: a lower bound for all tiles."""
        known = self._banked.get(tile)
        if known is None:
            known = self._banked[tile] = self.chain_banked + self._knowing(tile).banked(tile)
        return known


class _Searched(NamedTuple):
    """What the search needs from a device: prices, limits, and the constants of this module, which are defined only
    once."""

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
    """Bytes of DRAM bandwidth that the commands of products and of copies take. Those of chains are like copies."""
    return (0, 0) if config.interconnect.separate_code_port else (PRODUCT_CODE, COPY_CODE)


_FRAME = len(Command(0, Unit.CONTROL, 0, (Wait(0, Unit.CONTROL, 0),), Halt()).to_bytes()) - Halt.layout.size
"""Bytes of a command with one wait, without its instruction."""
PRODUCT_CODE, COPY_CODE = (_FRAME + kind.layout.size for kind in (Conv, Copy))


@functools.lru_cache(maxsize=256)
def searched(
    config: Config, dtype: DType, kh: int, kw: int, depthwise: bool, out_bytes: int, acc_bytes_: int, w_bits: int
) -> _Searched:
    """``config``: reduced by :func:`pricing`. The other arguments: the parameters of :func:`matrix_prices`."""

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
"""Maximum number of cached choices per problem."""


def tilings(problem: MatrixProblem, config: Config) -> Tilings:
    """The tilings of a problem on a device, cached.

    Networks repeat their layers, and designs those of others: problems are values without names or addresses, and the
    device is reduced to what the prices of tiles depend on.
    """
    return _tilings(problem, pricing(config))


_tilings = functools.lru_cache(maxsize=1024)(Tilings)


def forget() -> None:
    """Clear the caches, for code that changes the limits of this module."""
    _tilings.cache_clear()
    searched.cache_clear()


def choose(problem: MatrixProblem, config: Config, budget: int) -> Tiling | None:
    """The tiling with the best score that fits into ``budget`` bytes of SRAM; None if none does."""
    return tilings(problem, config).choose(budget)


def search_passes(config: Config) -> tuple[bool, ...]:
    """One entry per search, in order: whether it is restricted to cuts along the kernels."""
    direct = config.matrix and config.matrix.direct
    return (True, False) if direct and direct.whole_jobs else (False,)


def best_at_banks(options: Iterable[tuple[int, int, tuple[Any, ...]]], price: Callable[[Tiling], int]) -> Tiling:
    """Choose from (picoseconds, steps, tiling) with the waits for SRAM banks, which ``price`` gives, taken into
    account."""
    scored: list[tuple[int, int, Tiling]] = []
    best: int | None = None
    for ps, steps, each in sorted(options):
        if best is not None and ps > _near(best):  # all that follow are worse
            break
        tile = Tiling(*each)
        cost = max(ps, price(tile))
        scored.append((cost, steps, tile))
        best = cost if best is None else min(best, cost)
    return fewest_steps(scored)


def _near(ps: int) -> int:
    """The largest time that counts as equal."""
    return ps * (100 + SLACK_PERCENT) // 100


def fewest_steps(scored: Sequence[tuple[int, int, Tiling]]) -> Tiling:
    """Of (picoseconds, steps, tiling), the one with the fewest steps among those near the best."""
    # Ties end with the tile itself, so that the choice does not depend on the order of the search.
    limit = _near(min(ps for ps, _, _ in scored))
    return min((steps, ps, tile) for ps, steps, tile in scored if ps <= limit)[2]


MOST_RISEN = 2
"""Spatial cuts are tried from the largest. The search stops after this many consecutive cuts that are slower than an
earlier one. A total limit would be wrong: with more SRAM there are larger cuts, and the best one for less SRAM must
still be found."""


TAPS_PERCENT = 25
"""Tiles with a part of the kernel are searched if the best tile with the whole kernel is slower than the bound of unit
and DRAM by more than this percentage."""

SLACK_PERCENT = 1
"""Estimates within this percentage of the best count as equal, and the one with the fewest steps wins: it simulates
fastest."""


def channel_cuts(problem: MatrixProblem, config: Config, *, whole: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (groups, output channels, input channels) of a tile, all at once first."""
    unit = config.matrix.cols if config.matrix else 1
    if problem.depthwise:
        for count in _halvings(problem.groups, 1):
            yield count, problem.oc, problem.ic
        return
    # Several groups share a tile only with all of their channels, because parts of groups are not contiguous.
    for groups in _halvings(problem.groups, 2) if problem.groups > 1 else ():
        yield groups, problem.oc, problem.ic
    # Output channels by columns of the array, so that no part of it idles. Input channels by blocks, because sums may
    # only be cut there (ADR 0007).
    if whole:
        # A group of kernels starts when its own weights have arrived, and its results need not wait for the next group.
        yield 1, min(unit, problem.oc), problem.ic
        return
    for oc in _halvings(problem.oc, 1, unit):
        for ic in _halvings(problem.ic, problem.ic_unit, problem.ic_unit):
            yield 1, oc, ic


def can_cut_taps(problem: MatrixProblem) -> bool:
    """Whether one instruction may process a part of the kernel."""
    # Scales per block of channels are laid out for the whole kernel, and held weights for whole sums.
    scaled = 0 < problem.w_block < problem.ic
    return problem.kh * problem.kw > 1 and not problem.held and not scaled


def tap_cuts(problem: MatrixProblem, config: Config) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (groups, output channels, input channels, kernel rows, kernel columns) of tiles with a part of the
    kernel."""
    kernels = [(rows, problem.kw) for rows in _halvings(problem.kh, 1)[1:]]
    kernels += [(1, cols) for cols in _halvings(problem.kw, 1)[1:]]
    for groups, oc, ic in channel_cuts(problem, config, whole=False):
        # Floats are summed in one order: for each block of channels all taps (ADR 0007).
        if not problem.x_type.is_float or problem.depthwise or ic <= CHANNEL_BLOCK:
            yield from ((groups, oc, ic, *kernel) for kernel in kernels)


@functools.lru_cache(maxsize=1024)
def _halvings(full: int, least: int, multiple: int = 1) -> tuple[int, ...]:
    """``full``, then halves rounded up to a multiple while that is smaller, down to ``least``."""
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
    """The (rows, columns) of a tile, in the order in which they are tried."""
    if whole:
        return ((rows, columns),)
    # A part of a row has shorter runs than whole rows, even shorter if rows of one channel are innermost, which
    # estimates ignore.
    parts = [(1, ow) for ow in _halvings(columns, 1) if ow < columns]
    if both_ways:
        parts = [(rows, ow) for ow in _halvings(columns, 1)[1:]] + parts * (rows > 1)
    return (*((oh, columns) for oh in _halvings(rows, 1)), *parts)


def chain_time(problem: MatrixProblem, tile: Tiling) -> int:
    """Picoseconds of the chain on a tile."""
    epilogue, elements = problem.epilogue, tile.oh * tile.ow * tile.groups * tile.oc
    pieces = ceil_div(elements, epilogue.piece) if tile.in_pieces else 1
    return pieces * epilogue.begin + elements * epilogue.kilo // 1024


OVERLAP = 16
"""Overlap is not perfect: 1/16 of what is hidden behind the longest part is added."""
