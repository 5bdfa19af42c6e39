"""The tiles of matrix operators on many designs, by the compiled search of :mod:`npusim.timing.tile`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.compiler.lower.chain import Chain, piece_elements
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import Array, Designs, Index, config_at
from npusim.hw.config import Config
from npusim.isa.matrix_types import rate_type
from npusim.timing._prices import WAYS, Prices, answer
from npusim.timing._tiling import FIGURES, Devices, ManySearch, SharedSearch
from npusim.timing.tile import SLACK_PERCENT, acc_bytes, search_passes, searched
from npusim.timing.tile_costs import MatrixPrices, MovePrices, array_pricing, move_pricing, vector_pricing
from npusim.timing.tile_cuts import can_cut_taps, channel_cuts, spatial_cuts, tap_cuts
from npusim.timing.tile_problem import MatrixProblem
from npusim.work import VectorWork

_Cut = tuple[int, int, int, int, int]
_Numbers = Array | npt.NDArray[np.int64]

_LARGEST = 1e18
_TAPS_PERCENT = 100
"""Like ``TAPS_PERCENT`` of the compiler, but higher: searches for tiles with a part of the kernel take longest, and
rarely change the time of a layer."""


class ChainWorks(NamedTuple):
    """Work of the vector unit after a matrix product: for one element, and for ``probe`` elements."""

    one: tuple[VectorWork, ...] = ()
    many: tuple[VectorWork, ...] = ()
    probe: int = 1

    @classmethod
    def of(cls, chain: Chain) -> ChainWorks:
        """The work of a chain."""
        if not chain.ops or not all(chain.shape):
            return cls()
        probe = chain.probe()
        return cls(_vectors(chain.works([1] * len(probe))), _vectors(chain.works(probe)), prod(probe))

    def times(self, designs: Designs) -> tuple[Array, Array]:
        """Picoseconds to start a tile or a piece, and per 1024 further elements."""
        begin = sum((prices.work(designs, work) for work in self.one), np.zeros(1))
        many = sum((prices.work(designs, work) for work in self.many), np.zeros(1))
        return begin, np.floor((many - begin) * 1024 / self.probe)

    def banks(self, designs: Designs) -> Array:
        """Picoseconds of all SRAM banks per element."""
        return sum((prices.banks(designs, work) for work in self.many), np.zeros(1)) / self.probe


def _vectors(works: Iterable[object]) -> tuple[VectorWork, ...]:
    return tuple(work for work in works if isinstance(work, VectorWork))


@dataclass(frozen=True)
class Case:
    """A matrix operator with its values in given memories: its problem, its chain, and the rows of its result."""

    problem: MatrixProblem
    chain: ChainWorks
    height: int
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Searches are looked up by case thousands of times, and a problem has forty fields.
        object.__setattr__(self, "_hash", hash((self.problem, self.chain, self.height)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, lowering: MatrixLowering) -> Case:
        """The case of a lowering."""
        return cls(lowering.problem, ChainWorks.of(lowering.chain), lowering.height)


def pieces_of(designs: Designs, case: Case) -> Array:
    """Elements of the pieces in which a chain processes a tile, by design."""
    between = case.problem.epilogue.between
    if not between:
        return np.ones(1)
    return designs.figure(("piece", between), lambda config: piece_elements(config, between))


class Question:
    """The best tile of one operator on some designs.

    ``numbers``: the designs. ``budgets``: bytes of SRAM. ``pieces``: see :func:`pieces_of`. ``l2``: the sum of 1, 2 and
    4 for the input, the result and other operands in the L2; ``near``: those of them whose transfers have other prices.
    Results of :meth:`TileSearch.ask`: ``latency``, by which memory areas are compared, infinite if no tile fits; with
    ``told`` also ``figures``, by name, each [designs].
    """

    def __init__(
        self, case: Case, numbers: Index, budgets: _Numbers, pieces: _Numbers, *, told: bool = False,
        l2: int = 0, near: int | None = None,
    ) -> None:  # fmt: skip
        self.case, self.l2, self.near = case, l2, l2 if near is None else near
        self.numbers = numbers
        self.devices = np.zeros(0, np.int64)
        """The devices of the search. Designs on which all tiles take the same time are one device."""
        self.budgets = np.broadcast_to(budgets, numbers.shape).astype(np.int64)
        self.pieces = np.broadcast_to(pieces, numbers.shape).astype(np.int64)
        self.scores = np.full(len(numbers), -1.0)
        self.latency = np.full(len(numbers), np.inf)
        self._figures = np.ones((len(numbers), len(FIGURES))) if told else None
        self._pass = 0

    @property
    def figures(self) -> dict[str, Array]:
        assert self._figures is not None
        return dict(zip(FIGURES, self._figures.T, strict=True))

    def about(self, some: Index) -> Question:
        """The same question for some of the designs."""
        told = self._figures is not None
        sizes = self.budgets[some], self.pieces[some]
        part = Question(self.case, self.numbers[some], *sizes, told=told, l2=self.l2, near=self.near)
        part.devices = self.devices[some]
        return part

    def take(self, some: Index, other: Question) -> None:
        """Take the answers of a question about parts of the kernel where they are better."""
        # Parts of the kernel need more loads, so they must be better, not equal.
        better = np.floor(other.scores * ((100 + SLACK_PERCENT) / 100)) < self.scores[some]
        self.scores[some[better]], self.latency[some[better]] = other.scores[better], other.latency[better]
        if self._figures is not None and other._figures is not None:
            self._figures[some[better]] = other._figures[better]

    def put_to(self, searches: Sequence[ManySearch]) -> int:
        """Search, and return the number of designs without an answer. Later searches are for designs on which earlier
        ones find nothing."""
        while True:
            left = searches[self._pass].choose(
                self.devices, self.budgets, self.pieces, self.scores, self.latency, self._figures, self.near
            )
            nothing = np.isinf(self.scores)
            if left or self._pass + 1 == len(searches) or not nothing.any():
                return left
            self._pass += 1
            self.scores[nothing] = -1.0


@dataclass(slots=True)
class _Searches:
    """Searches for one operator.

    ``whole``: with the whole kernel in each instruction; later ones are for designs on which earlier ones find nothing.
    ``taps``: with a part of the kernel, None if that is impossible. ``good``: see ``TileSearch._good``.
    """

    whole: list[ManySearch]
    taps: Callable[[], ManySearch] | None
    good: Array | None = None


class TileSearch:
    """Searches for tiles on designs of one kind, each search shared by all designs."""

    def __init__(self, designs: Designs, cores: int) -> None:
        self._designs, self._cores = designs, cores
        self._arrays, array_of = designs.seen_by(array_pricing)
        self._behind, behind_of = designs.seen_by(vector_pricing)
        sides = [designs.seen_by(move_pricing)]
        if designs.config.l2 is not None:
            sides.append(designs.l2_side().seen_by(move_pricing))
        self._sides = [side for side, _ in sides]
        self._wanted_moves = array("q")
        moves = [Prices(self._wanted_moves, column) for column in range(sum(side.count for side in self._sides))]
        self._moves = moves
        near = sides[1][1] + self._sides[0].count if len(sides) > 1 else sides[0][1]
        shapes, shape_of = designs.alike(("matrix.cols", "matrix.accumulator_bytes"))
        self._shapes = [config_at(shapes, number) for number in range(shapes.count)]
        exchange = designs["exchange.bytes_per_cycle"] * designs["clock"] if designs.config.exchange else 0
        seen = (
            array_of, sides[0][1], near, prices.bandwidth(designs), prices.bandwidth(designs, constants=True),
            exchange, designs["dma.channels"] == 1, behind_of, shape_of,
        )  # fmt: skip
        every = np.array([np.broadcast_to(np.rint(values), designs.count) for values in seen]).astype(np.int64)
        different, self._device_of = np.unique(every, axis=1, return_inverse=True)
        arrays, far, close, dram, constants, network, one, self._behind_of, self._shape_of = np.ascontiguousarray(
            different
        )
        self._devices = Devices(moves, arrays, far, close, dram, constants, network, one.astype(np.uint8))
        self._products: dict[tuple[Any, ...], tuple[array[int], list[Prices]]] = {}
        self._searches: dict[Case, _Searches] = {}

    def ask(self, questions: Sequence[Question]) -> None:
        """Answer questions. Missing prices are evaluated for all of them at once."""
        for question in questions:
            question.devices = self._device_of.ravel()[question.numbers].astype(np.int64)
        self._until_known([partial(each.put_to, self._of(each.case).whole) for each in questions])
        more = []
        for question in questions:
            searches = self._of(question.case)
            if searches.taps is not None:
                problem = question.case.problem
                # Kernels of grouped convolutions have few channels: parts of them only pay if nothing else fits.
                seldom = problem.groups > 1 and not problem.depthwise
                good = _LARGEST if seldom else self._good(searches)[question.devices]
                some = np.flatnonzero(question.scores > good)
                if len(some):
                    more.append((question, some, question.about(some), searches.taps()))
        self._until_known([partial(each.put_to, [taps]) for _, _, each, taps in more])
        for question, some, each, _ in more:
            question.take(some, each)

    def _until_known(self, asked: list[Callable[[], int]]) -> None:
        """Call functions until none is left with work. They return the amount of work that waits for unknown prices."""
        while asked := [each for each in asked if each()]:
            self._evaluate()

    def _good(self, searches: _Searches) -> Array:
        """Picoseconds on each device below which no tile with a part of the kernel is searched."""
        if searches.good is None:
            everyone = np.arange(len(self._shape_of), dtype=np.int64)
            bounds = np.empty(len(everyone))
            self._until_known([partial(searches.whole[0].bounds, everyone, bounds)])
            searches.good = np.floor(bounds * (100 + _TAPS_PERCENT) / 100)
        return searches.good

    def _of(self, case: Case) -> _Searches:
        found = self._searches.get(case)
        if found is None:
            found = self._searches[case] = self._new(case)
        return found

    def _new(self, case: Case) -> _Searches:
        problem, config = case.problem, self._designs.config
        dtype = rate_type(problem.x_type, problem.w_type)
        sizes = problem.depthwise, problem.out_type.itemsize, problem.sum_bytes, problem.w_width

        def products(kh: int, kw: int) -> list[Prices]:
            kind = dtype, kh, kw, *sizes
            if kind not in self._products:
                wanted = array("q")
                self._products[kind] = wanted, [Prices(wanted, column) for column in range(self._arrays.count)]
            return self._products[kind][1]

        begin, kilo = (
            np.rint(np.broadcast_to(each, self._behind.count)[self._behind_of]).astype(np.int64)
            for each in case.chain.times(self._behind)
        )
        device = searched(config, dtype, problem.kh, problem.kw, *sizes)._replace(cores=self._cores)

        def search(cuts_of: Callable[[Config], Iterable[_Cut]], *, whole: bool) -> ManySearch:
            areas = spatial_cuts(problem.oh, problem.ow, whole=whole, both_ways=problem.both_ways)
            made: dict[tuple[Any, ...], int] = {}
            searches: list[SharedSearch] = []
            kinds = np.empty(len(self._shapes), np.int64)
            for number, shape in enumerate(self._shapes):
                acc, cuts = acc_bytes(shape), tuple(cuts_of(shape))
                if (cuts, acc) not in made:
                    made[cuts, acc] = len(searches)
                    limited = device._replace(acc_bytes=acc)
                    searches.append(SharedSearch(problem, limited, cuts, areas, self._devices, products))
                kinds[number] = made[cuts, acc]
            return ManySearch(searches, kinds[self._shape_of], begin, kilo)

        def with_kernel(shape: Config, whole: bool) -> Iterable[_Cut]:
            return ((*cut, problem.kh, problem.kw) for cut in channel_cuts(problem, shape, whole=whole))

        result = [search(partial(with_kernel, whole=whole), whole=whole) for whole in search_passes(config)]
        # Made on demand, because most operators never need it.
        taps = cache(partial(search, partial(tap_cuts, problem), whole=False)) if can_cut_taps(problem) else None
        return _Searches(result, taps)

    def _evaluate(self) -> None:
        """Evaluate the prices that searches requested."""
        for kind, (wanted, asked) in self._products.items():
            keys = _taken(wanted)
            if len(keys):
                answer(asked, keys, _values(self._arrays.take(keys[:, 0]), MatrixPrices, kind, keys[:, 1:]))
        keys = _taken(self._wanted_moves)
        first = 0
        for side in self._sides:
            for number in np.unique(keys[:, 4]):
                some = keys[(keys[:, 4] == number) & (keys[:, 0] >= first) & (keys[:, 0] < first + side.count)]
                if len(some):
                    found = _values(side.take(some[:, 0] - first), MovePrices, (), some[:, 1:4], WAYS[number])
                    answer(self._moves, some, found)
            first += side.count


def _values(
    designs: Designs, of: Callable[..., Any], kind: tuple[Any, ...], keys: npt.NDArray[np.int64], *way: str
) -> npt.NDArray[np.int64]:
    """Up to three values for each requested price ``of`` a kind, on the device and with the key of its row."""
    fields = (np.ascontiguousarray(column, np.float64) for column in keys.T)
    found = designs.evaluate(lambda config, *key: of(config, *kind)[(*key, *way)], *fields)
    values = np.zeros((len(keys), 3), np.int64)
    for column, each in enumerate(found):
        values[:, column] = np.minimum(each, _LARGEST)
    return values


def _taken(wanted: array[int]) -> npt.NDArray[np.int64]:
    keys = np.array(wanted, np.int64).reshape(-1, 6)
    del wanted[:]
    return keys
