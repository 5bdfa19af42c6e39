"""The planner's choices for many designs at once: values in SRAM as a whole, cascades in stripes, else in DRAM.

Twin of :mod:`npusim.compiler.schedule.memory_plan`, without its addresses: what lies in SRAM side by side is
taken to fit where its bytes do. Choices are made by the tiler's estimate, as the compiler
makes them; what is then told is what the chosen cuts take with all channels of DMA, and without the tiler's dislike of
traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import on_matrix, side_by_side
from npusim.compiler.schedule.cascade_search import CLOSE_PERCENT
from npusim.explore.estimates import prices
from npusim.explore.estimates.cuts import Case, Rooms
from npusim.explore.estimates.designs import VECTORISED, Array, Designs, Index
from npusim.explore.estimates.layers import Layer, Plain
from npusim.explore.estimates.network import Network, Span, Stripes
from npusim.explore.estimates.prices import PS
from npusim.explore.estimates.tables import COUNTS, Picked, Table, pick, table
from npusim.hw.memory import ALIGNMENT, align
from npusim.timing.tile import OVERLAP, Tiling, footprint

BOUNDS = ("matrix", "vector", "load", "store", "dram")
"""What a layer may be bound by, in the order of the numbers in ``Figures.bound``."""
_VECTOR, _LOAD, _DRAM = BOUNDS.index("vector"), BOUNDS.index("load"), BOUNDS.index("dram")

_BUT_SRAM = tuple(key for key in VECTORISED if key != "sram.bytes")
_PARTS = 64
"""Parts of SRAM that the tiler's room is rounded to."""
_LEAST_PART = 16
"""Tiles are not looked for in less than one of so many parts of SRAM, unless that is too little for any."""
_OF_SEGMENT = 4
"""The tiles of one layer of a cascade have one of so many parts of SRAM, beside its weights."""


@dataclass(slots=True)
class Figures:
    """Of a layer or a cascade: picoseconds [designs], ``COUNTS`` [counts][designs], what binds [designs]."""

    ps: Array
    counts: Array
    bound: npt.NDArray[np.int8]

    @classmethod
    def empty(cls, count: int) -> Figures:
        return cls(np.zeros(count), np.zeros((len(COUNTS), count)), np.zeros(count, np.int8))

    def put(self, rows: Index, other: Figures, of: Index | slice, parts: int = 1) -> None:
        """Take the figures of some designs from others, or one of so many parts of them."""
        self.ps[rows], self.bound[rows] = other.ps[of] / parts, other.bound[of]
        self.counts[:, rows] = other.counts[:, of] / parts


@dataclass(slots=True)
class Plan:
    """What a network takes on each design, layer by layer; by the tiler's estimate, which values were chosen by; and
    whether all values that a layer touches are in SRAM as a whole."""

    layers: list[Figures]
    chosen: list[Array]
    near: list[npt.NDArray[np.bool_]]

    @property
    def chosen_ps(self) -> Array:
        """By the estimate that choices are made with."""
        total: Array = np.sum(self.chosen, axis=0)
        return total


@dataclass(slots=True)
class _Striped:
    """A layer in stripes: by the tiler's estimate, what shows behind a tile, bytes of slots; ``what`` was picked."""

    chosen: Array
    tail: Array
    slots: Array
    what: Picked | Plain


@dataclass(slots=True)
class _Cascade:
    """A cascade: by the tiler's estimate, and the number of the heights of its stripes that is best, by design."""

    chosen: Array
    height: Index


class Planner:
    """Homes of values on designs that differ in numbers alone."""

    def __init__(self, network: Network, designs: Designs, cores: int = 1) -> None:
        self._network = network
        self._designs = designs
        self._cores = cores
        self._plans, self._columns = designs.alike(_BUT_SRAM)
        capacity = np.broadcast_to(designs["sram.bytes"], (designs.count,))
        self.capacity: Array = np.floor(capacity / ALIGNMENT) * ALIGNMENT
        self._part = np.floor(capacity / _PARTS)
        self._ways = np.broadcast_to(np.maximum(1, designs["dma.channels"] - 1), (designs.count,))
        self._tables: dict[Case, Table] = {}
        self._plain: dict[Plain, Array] = {}
        self._striped: dict[tuple[int, int, int, bool], _Striped | None] = {}
        self._picked: dict[tuple[Case, int], _Striped] = {}
        self._rooms = Rooms(float(self.capacity.min()) / _LEAST_PART, float(self.capacity.max()))

    # one layer

    def table(self, case: Case) -> Table:
        """Made once for each case."""
        found = self._tables.get(case)
        if found is None:
            found = self._tables[case] = table(case, self._plans, self._rooms, self._cores, self._network.known)
        return found

    def chosen(self, layer: Layer, near: Index, room: Array, rows: Index, into: Figures | None = None) -> Array:
        """Picoseconds, as the compiler compares them, of a layer on the designs whose numbers are ``rows``, whose
        values are ``near`` and who have ``room``; infinite where it does not fit. ``into``: what is told, if asked."""
        result = np.full(len(rows), np.inf)
        codes = np.flatnonzero(np.bincount(near))
        for code in codes:
            some = np.arange(len(rows)) if len(codes) == 1 else np.flatnonzero(near == code)
            case = layer.case(int(code))
            if isinstance(case, Plain):
                result[some] = self._of_plain(case, rows[some], some, into)
            elif case is not None:
                part, left = self._part[rows[some]], room[some]
                left = np.where(left >= part, np.floor(left / part) * part, left)
                columns = self._columns[rows[some]]
                result[some], best = pick(self.table(case), left, columns)
                if into is not None:
                    told = self._told(Picked(self.table(case), best, columns), rows[some])
                    into.put(some, told, slice(None))
        if into is not None:
            into.ps[np.isinf(result)] = np.inf
        return result

    def _told(self, picked: Picked, rows: Index) -> Figures:
        """What cuts take that were picked: loads side by side on all channels but one, which is for stores."""
        parts = picked.parts()
        parts[_LOAD] /= self._ways[rows]
        longest = parts.max(0)
        ps = longest + (parts.sum(0) - longest) / OVERLAP + picked.begin()
        return Figures(ps, picked.counts(), parts.argmax(0).astype(np.int8))

    def _of_plain(self, case: Plain, rows: Index, some: Index, into: Figures | None) -> Array:
        plans, columns = self._plans, self._columns[rows]
        compute = self._computing(case)[columns] / self._cores
        far = np.broadcast_to(np.minimum(plans["dram.bandwidth"], prices.channel(plans)), (plans.count,))[columns]
        width = plans.config.dma.local_bytes_per_cycle or plans["dma.bytes_per_cycle"]
        near = np.broadcast_to(width * plans["clock"], (plans.count,))[columns]
        moving = case.far * PS / far + case.near * PS / near
        moving = np.maximum(moving, self._words(case, rows, moving))
        longest = np.maximum(compute, moving)
        ps: Array = longest + (compute + moving - longest) / OVERLAP
        if into is not None:
            counts = np.broadcast_to(_counts(case), (len(COUNTS), len(rows)))
            bound = np.where(moving > compute, np.int8(_DRAM), np.int8(_VECTOR))
            into.put(some, Figures(ps, counts, bound), slice(None))
        return ps

    def _words(self, case: Plain, rows: Index, moving: Array) -> Array:
        """Picoseconds of transfers that transpose, whose bytes take ``moving``: the words of loads in two slots on all
        channels but one, those of stores on that one; all of it on one channel if there is no other."""
        if not (case.loaded or case.stored):
            return moving
        plans, columns = self._plans, self._columns[rows]
        width, tick = plans["dma.bytes_per_cycle"], PS / plans["clock"]

        def of(runs: tuple[tuple[tuple[int, int], int], ...]) -> Array:
            found: Array = (
                sum((count * each * prices.up(size, width) for (each, size), count in runs), np.zeros(1)) * tick
            )
            return np.broadcast_to(found, (plans.count,))[columns]

        loads, stores = of(case.loaded), of(case.stored)
        several = np.maximum(loads / np.minimum(2, self._ways[rows]), stores)
        alone = plans["dma.channels"] == 1
        found: Array = (
            np.where(np.broadcast_to(alone, (plans.count,))[columns], loads + stores + moving / 2, several)
            / self._cores
        )
        return found

    def _computing(self, case: Plain) -> Array:
        found = self._plain.get(case)
        if found is None:
            found = np.zeros(self._plans.count)
            for work, count in case.vector:
                found = found + count * prices.vector(self._plans, work)
            for element, count in case.scalar:
                found = found + count * prices.scalar(self._plans, element)
            self._plain[case] = found
        return found

    # values as a whole

    def whole(self, *, keeps: bool = True) -> Plan:
        """Every layer by itself, values in SRAM where that is faster for all layers of their lives together."""
        network, count = self._network, self._designs.count
        everyone = np.arange(count)
        near: list[Index] = [np.zeros(count, np.intp) for _ in network.layers]
        taken = [np.zeros(count) for _ in network.layers]
        costs = [self.chosen(layer, near[n], self.capacity, everyone) for n, layer in enumerate(network.layers)]
        for value in network.values if keeps else ():
            life = range(value.first, value.last + 1)
            most = np.max([taken[number] for number in life], axis=0)
            rows = np.flatnonzero(most + value.nbytes <= self.capacity)
            if not len(rows):
                continue
            tried = []
            for number in life:
                layer = network.layers[number]
                code = near[number][rows] | layer.bit(value.buffer)
                room = self.capacity[rows] - taken[number][rows] - value.nbytes
                tried.append((code, self.chosen(layer, code, room, rows)))
            before = np.sum([costs[number][rows] for number in life], axis=0)
            better = np.sum([ps for _, ps in tried], axis=0) < before
            kept = rows[better]
            for number, (code, ps) in zip(life, tried, strict=True):
                near[number][kept], costs[number][kept] = code[better], ps[better]
                taken[number][kept] += value.nbytes
        layers = []
        for number, layer in enumerate(network.layers):
            layers.append(Figures.empty(count))
            self.chosen(layer, near[number], self.capacity - taken[number], everyone, layers[-1])
        return Plan(
            layers, costs, [n == (1 << len(layer.buffers)) - 1 for n, layer in zip(near, network.layers, strict=True)]
        )

    # cascades

    def striped(self, plan: Plan) -> Plan:
        """The cascades of least time over a plan without them."""
        count, size = self._designs.count, len(self._network.layers)
        best: list[Array] = [np.zeros(count)]
        taken = [np.full(count, -1, np.intp) for _ in range(size)]
        spans = self._network.spans
        found = [self._cascade(span) for span in spans]
        for span, cascade in zip(spans, found, strict=True):
            if cascade is not None:
                layers = slice(span.first, span.last + 1)
                # Where everything is in SRAM as a whole there is nothing to gain, but by two units side by side.
                little = cascade.chosen * 100 > np.sum(plan.chosen[layers], axis=0) * (100 - CLOSE_PERCENT)
                beside = side_by_side(layer.group for layer in self._network.layers[layers])
                cascade.chosen[np.all(plan.near[layers], axis=0) & (little | (not beside))] = np.inf
        ending: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            ending.setdefault(span.last, []).append(number)
        for number in range(size):
            least = best[number] + plan.chosen[number]
            for each in ending.get(number, ()):
                cascade = found[each]
                if cascade is None:
                    continue
                option = best[spans[each].first] + cascade.chosen
                better = option < least
                least = np.where(better, option, least)
                taken[number][better] = each
            best.append(least)
        return self._traced(plan, spans, found, taken)

    def _traced(self, plan: Plan, spans: list[Span], found: list[_Cascade | None], taken: list[Index]) -> Plan:
        """From the last layer back, as each design has it."""
        layers = [Figures(f.ps.copy(), f.counts.copy(), f.bound.copy()) for f in plan.layers]
        chosen = [each.copy() for each in plan.chosen]
        at = np.full(self._designs.count, len(layers) - 1)
        for number in reversed(range(len(layers))):
            here = at == number
            at[here] = number - 1
            for each in np.unique(taken[number][here]):
                cascade = found[each] if each >= 0 else None
                if cascade is None:
                    continue
                span, rows = spans[each], np.flatnonzero(here & (taken[number] == each))
                at[rows] = span.first - 1
                for height in np.unique(cascade.height[rows]):
                    some = rows[cascade.height[rows] == height]
                    self._tell(span, span.heights[height], some, layers)
                parts = span.last - span.first + 1
                for inside in range(span.first, span.last + 1):
                    chosen[inside][rows] = cascade.chosen[rows] / parts
        return Plan(layers, chosen, plan.near)

    def _tell(self, span: Span, stripes: Stripes, rows: Index, layers: list[Figures]) -> None:
        """What a cascade takes on some designs; each layer has what it takes itself, and a part of the loads."""
        found = []
        matrix, vector, tails = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
        for at, number in enumerate(range(span.first, span.last + 1)):
            part = self._striped_layer(number, span.near[at], stripes.rows[at], direct=span.direct[at])
            assert part is not None
            told = self._of_striped(part, rows)
            if on_matrix(self._network.layers[number].group):
                matrix = matrix + told.ps
            else:
                vector = vector + told.ps
            if number < span.last:
                tails = tails + stripes.turns * part.tail[rows]
                told.ps = told.ps + stripes.turns * part.tail[rows]
            found.append(told)
        computing = np.sum([told.ps for told in found], axis=0)
        loaded = span.loaded + span.weights
        rate = np.broadcast_to(prices.bandwidth(self._designs), (self._designs.count,))[rows]
        longer = _turns(span, self._shown(span, stripes), stripes.turns, (matrix, vector, tails), rate) / computing
        waits = loaded * PS / rate > np.maximum(matrix, vector) + tails
        for told, into in zip(found, layers[span.first : span.last + 1], strict=True):
            share = told.ps / computing
            for count in ("dram", "moved"):
                told.counts[COUNTS.index(count)] += loaded * share
            told.ps, told.bound = told.ps * longer, np.where(waits, np.int8(_LOAD), told.bound)
            into.put(rows, told, slice(None))

    def _of_striped(self, part: _Striped, rows: Index) -> Figures:
        if isinstance(part.what, Plain):
            counts = np.repeat(_counts(part.what), len(rows), axis=1)
            return Figures(part.chosen[rows], counts, np.full(len(rows), _VECTOR, np.int8))
        picked = part.what
        return self._told(Picked(picked.table, picked.best[rows], picked.columns[rows]), rows)

    def _cascade(self, span: Span) -> _Cascade | None:
        """A cascade with the stripes of least time; None if it fits on no design."""
        count = self._designs.count
        best = _Cascade(np.full(count, np.inf), np.zeros(count, np.intp))
        room = self.capacity - span.weights
        # Shorter ones are tried as long as they take less: by design, whatever others are estimated beside it.
        going = np.ones(count, bool)
        for number, stripes in enumerate(span.heights):
            if not (room > stripes.windows).any():
                continue
            chosen = self._with_stripes(span, stripes)
            if chosen is None:
                return None
            better = going & (chosen < best.chosen)
            best.chosen[better], best.height[better] = chosen[better], number
            going &= better | np.isinf(best.chosen)
            if not going.any():
                break
        return best if np.isfinite(best.chosen).any() else None

    def _with_stripes(self, span: Span, stripes: Stripes) -> Array | None:
        """Picoseconds by the tiler's estimate; infinite where it does not fit."""
        count = self._designs.count
        matrix, vector, tails, nbytes = np.zeros((4, count))
        nbytes += stripes.windows
        for at, number in enumerate(range(span.first, span.last + 1)):
            part = self._striped_layer(number, span.near[at], stripes.rows[at], direct=span.direct[at])
            if part is None:
                return None
            if on_matrix(self._network.layers[number].group):
                matrix += part.chosen
            else:
                vector += part.chosen
            nbytes += part.slots
            if number < span.last:
                tails += stripes.turns * part.tail
        times, shown = (matrix, vector, tails), self._shown(span, stripes)
        chosen = _turns(span, shown, stripes.turns, times, prices.bandwidth(self._designs))
        return np.where(nbytes <= self.capacity, chosen, np.inf)

    def _shown(self, span: Span, stripes: Stripes) -> int:
        """One part in so many of what hides behind the other unit's work shows."""
        groups = (layer.group for layer in self._network.layers[span.first : span.last + 1])
        return min(stripes.turns, OVERLAP) if side_by_side(groups) else 1

    def _striped_layer(self, number: int, near: int, rows: int, *, direct: bool) -> _Striped | None:
        case = self._network.layers[number].case(near)
        rows = min(rows, case.height) if isinstance(case, Case) else rows
        key = (number, near, rows, direct)
        if key not in self._striped:
            self._striped[key] = self._new_striped(number, near, rows, direct=direct)
        return self._striped[key]

    def _new_striped(self, number: int, near: int, rows: int, *, direct: bool) -> _Striped | None:
        layer, count = self._network.layers[number], self._designs.count
        case = layer.case(near)
        if case is None:
            return None
        if isinstance(case, Plain):
            ps, nothing = self._computing(case)[self._columns], np.zeros(count)
            return _Striped(ps, nothing, nothing + case.slots, case)
        striped = layer.striped(case, self._network.rows_of(case, direct=direct), window=direct)
        if (striped, rows) not in self._picked:
            found = self.table(striped)
            ps, best = pick(found, weights_held(striped) + self.capacity / _OF_SEGMENT, self._columns, rows)
            picked = Picked(found, best, self._columns)
            self._picked[striped, rows] = _Striped(
                ps.astype(np.float64), np.broadcast_to(picked.at(found.tail), (count,)), picked.at(found.nbytes), picked
            )
        return self._picked[striped, rows]


def _turns(span: Span, shown: int, turns: int, computing: tuple[Array, Array, Array], rate: Array) -> Array:
    """Picoseconds of a cascade, of whose layers the matrix unit, the vector unit and what is behind them take so long:
    as the planner has it."""
    matrix, vector, tails = computing
    together = np.maximum(matrix, vector) + np.minimum(matrix, vector) / shown + tails
    weights, rows, first = span.weights * PS / rate, span.loaded * PS / rate, together / turns
    result: Array = (
        np.maximum(weights, first) + np.maximum(rows, together - first) + np.minimum(weights + rows, together) / OVERLAP
    )
    return result


def _counts(case: Plain) -> Array:
    """``COUNTS`` of a layer without products, as a column."""
    found = {"dram": case.far, "moved": case.far + case.near, "sram": case.near, "code": case.code}
    return np.array([[float(found.get(name, 0))] for name in COUNTS])


def weights_held(case: Case) -> float:
    """Bytes of all weights and parameters of a layer that keeps them in SRAM."""
    problem = case.problem
    whole = footprint(problem, Tiling(problem.groups, 1, 1, problem.oc, problem.ic, False))
    return float(align(whole.w) + align(whole.parameters))
