"""Tile sizes for the matrix unit, chosen with the cost functions of the simulator.

The search is compiled: see ``_tiling.pyx``. ``tests/support/tile_definition.py`` is its reference in Python, with the
cost functions of ``npusim.hw`` alone; tests compare the two.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from npusim.dtypes import DType
from npusim.hw.config import Config
from npusim.hw.memory import ALIGNMENT, constants_side
from npusim.hw.units.dma import exchange_bandwidth, memory_bandwidth
from npusim.isa.base import MAX_ELEMENTS, MAX_PRODUCTS, Command, Unit, Wait
from npusim.isa.control import Halt
from npusim.isa.dma import Copy
from npusim.isa.matrix import CHANNEL_STEP, Conv
from npusim.isa.matrix_types import rate_type
from npusim.timing._prices import Prices
from npusim.timing._tiling import Search
from npusim.timing.tile_costs import (
    bank_prices,
    matrix_prices,
    move_prices,
    pricing,
)
from npusim.timing.tile_cuts import can_cut_taps, channel_cuts, spatial_cuts, tap_cuts
from npusim.timing.tile_problem import LEAST_RUN, Home, MatrixProblem, Tiling


def input_copies(config: Config) -> int:
    """Number of slots that input tiles rotate through."""
    return 2 if config.compiler.inputs_ahead else 1


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
    exchange: int
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
        acc_bytes(config), config.cores, input_copies(config), memory_bandwidth(config),
        memory_bandwidth(constants_side(config)), config.interconnect.multicast, exchange_bandwidth(config),
        config.compiler.inputs_ahead, config.dma.channels == 1, config.constants is not None,
        ALIGNMENT, OVERLAP, SLACK_PERCENT, MOST_RISEN, MAX_PRODUCTS, MAX_ELEMENTS, CHANNEL_STEP, LEAST_RUN,
        Home.DIRECT, Home.DRAM, *code_bytes(config),
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


OVERLAP = 16
"""Overlap is not perfect: 1/16 of what is hidden behind the longest part is added."""
