"""The planner's choices for many designs at once: values in SRAM as a whole, segments in stripes, else in DRAM.

Twin of :class:`npusim.compiler.memory.Planner`, without its addresses: what lies in SRAM side by side is taken to fit
where its bytes do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from npusim.compiler.tile import OVERLAP, Tiling, footprint
from npusim.compiler.values import ALIGNMENT, align
from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import VECTORISED, Array, Designs, Index
from npusim.explore.estimates.layers import Layer, Plain
from npusim.explore.estimates.network import Network, Span, Stripes
from npusim.explore.estimates.prices import PS
from npusim.explore.estimates.tilings import Case, Rooms, Table, pick, table

_BUT_SRAM = tuple(key for key in VECTORISED if key != "sram.bytes")
_PARTS = 64
"""Parts of SRAM that the tiler's room is rounded to."""
_LEAST_PART = 16
"""Tiles are not looked for in less than one of so many parts of SRAM, unless that is too little for any."""


@dataclass(slots=True)
class Figures:
    """Of layers, in arrays of [designs]: picoseconds, bytes on the pins of the DRAM, steps, what binds."""

    ps: Array
    dram: Array
    steps: Array
    bound: npt.NDArray[np.int8]

    @classmethod
    def empty(cls, count: int) -> Figures:
        return cls(np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count, np.int8))


@dataclass(slots=True)
class Plan:
    """What a network takes on each design, layer by layer; ``striped``: of these numbers are those of segments."""

    layers: list[Figures]
    near: list[Index] = field(default_factory=list)


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
        self._tables: dict[Case, Table] = {}
        self._plain: dict[Plain, Array] = {}
        self._striped: dict[tuple[int, int, int, bool], _Striped | None] = {}
        self._picked: dict[Case, _Striped] = {}
        self._rooms = Rooms(float(self.capacity.min()) / _LEAST_PART, float(self.capacity.max()))

    # one layer

    def table(self, case: Case) -> Table:
        found = self._tables.get(case)
        if found is None:
            found = self._tables[case] = table(case, self._plans, self._rooms, self._cores)
        return found

    def figures(self, layer: Layer, near: Index, room: Array, rows: Index) -> Figures:
        """Of a layer on the designs whose numbers are ``rows``, whose values are ``near`` and who have ``room``."""
        result = Figures.empty(len(rows))
        codes = np.unique(near)
        for code in codes:
            some = slice(None) if len(codes) == 1 else np.flatnonzero(near == code)
            case = layer.case(int(code))
            if case is None:
                result.ps[some] = np.inf
            elif isinstance(case, Case):
                found, columns = self.table(case), self._columns[rows[some]]
                part, left = self._part[rows[some]], room[some]
                left = np.where(left >= part, np.floor(left / part) * part, left)
                ps, best = pick(found, left, columns)
                result.ps[some], result.dram[some] = ps, found.dram[best, columns]
                result.steps[some], result.bound[some] = found.steps[best, columns], found.bound[best, columns]
            else:
                self._of_plain(case, result, some, room[some], rows[some])
        return result

    def _of_plain(self, case: Plain, result: Figures, some: slice | Index, room: Array, rows: Index) -> None:
        columns = self._columns[rows]
        compute = self._computing(case)[columns] / self._cores
        plans = self._plans
        far = np.broadcast_to(np.minimum(plans["dram.bandwidth"], prices.channel(plans)), (plans.count,))[columns]
        width = plans.config.dma.local_bytes_per_cycle or plans["dma.bytes_per_cycle"]
        near = np.broadcast_to(width * plans["clock"], (plans.count,))[columns]
        moving = case.far * PS / far + case.near * PS / near
        longest = np.maximum(compute, moving)
        result.ps[some] = longest + (compute + moving - longest) / OVERLAP
        result.dram[some], result.steps[some] = case.far, case.tiles
        result.bound[some] = np.where(moving > compute, _SHARED, _CHAIN)

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
        found = [self.figures(layer, near[n], self.capacity, everyone) for n, layer in enumerate(network.layers)]
        for value in network.values if keeps else ():
            life = range(value.first, value.last + 1)
            fits = np.ones(count, bool)
            for number in life:
                fits &= taken[number] + value.nbytes <= self.capacity
            rows = np.flatnonzero(fits)
            if not len(rows):
                continue
            tried = []
            before, after = np.zeros(len(rows)), np.zeros(len(rows))
            for number in life:
                layer = network.layers[number]
                code = near[number][rows] | layer.bit(value.buffer)
                room = self.capacity[rows] - taken[number][rows] - value.nbytes
                figures = self.figures(layer, code, room, rows)
                before, after = before + found[number].ps[rows], after + figures.ps
                tried.append((code, figures))
            better = after < before
            chosen = rows[better]
            for number, (code, figures) in zip(life, tried, strict=True):
                near[number][chosen] = code[better]
                taken[number][chosen] += value.nbytes
                into = found[number]
                into.ps[chosen], into.dram[chosen] = figures.ps[better], figures.dram[better]
                into.steps[chosen], into.bound[chosen] = figures.steps[better], figures.bound[better]
        return Plan(found, near)

    # segments

    def striped(self, plan: Plan) -> Plan:
        """The segments of least time over a plan without them; of a segment its layers have shares."""
        count, size = self._designs.count, len(self._network.layers)
        best: list[Array] = [np.zeros(count)]
        taken = [np.full(count, -1, np.intp) for _ in range(size)]
        spans = self._network.spans
        costs = [self._segment(span) for span in spans]
        ending: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            if costs[number] is not None:
                ending.setdefault(span.last, []).append(number)
        for number in range(size):
            least = best[number] + plan.layers[number].ps
            for each in ending.get(number, ()):
                figures = costs[each]
                assert figures is not None
                option = best[spans[each].first] + figures.ps
                better = option < least
                least = np.where(better, option, least)
                taken[number][better] = each
            best.append(least)
        return self._traced(plan, spans, costs, taken)

    def _traced(self, plan: Plan, spans: list[Span], costs: list[Figures | None], taken: list[Index]) -> Plan:
        """From the last layer back, as each design has it."""
        count = self._designs.count
        layers = [Figures(f.ps.copy(), f.dram.copy(), f.steps.copy(), f.bound.copy()) for f in plan.layers]
        at = np.full(count, len(layers) - 1)
        for number in reversed(range(len(layers))):
            here = at == number
            for each in np.unique(taken[number][here]):
                rows = np.flatnonzero(here & (taken[number] == each))
                if each < 0:
                    at[rows] = number - 1
                    continue
                span, figures = spans[each], costs[each]
                assert figures is not None
                at[rows] = span.first - 1
                parts = span.last - span.first + 1
                for inside in range(span.first, span.last + 1):
                    into = layers[inside]
                    into.ps[rows], into.dram[rows] = figures.ps[rows] / parts, figures.dram[rows] / parts
                    into.steps[rows], into.bound[rows] = figures.steps[rows] / parts, figures.bound[rows]
        return Plan(layers, plan.near)

    def _segment(self, span: Span) -> Figures | None:
        """A segment with the stripes of least time; None if it fits on no design."""
        best: Figures | None = None
        room = self.capacity - span.weights
        for stripes in span.heights:
            if not (room > stripes.windows).any():
                continue
            figures = self._with_stripes(span, stripes)
            if best is None:
                best = figures
                continue
            better = figures.ps < best.ps
            if not better.any() and np.isfinite(best.ps).any():
                break
            best.ps = np.where(better, figures.ps, best.ps)
            best.dram = np.where(better, figures.dram, best.dram)
            best.steps = np.where(better, figures.steps, best.steps)
            best.bound = np.where(better, figures.bound, best.bound)
        return best

    def _with_stripes(self, span: Span, stripes: Stripes) -> Figures:
        computing, nbytes, dram, steps = (np.zeros(self._designs.count) for _ in range(4))
        bound = np.zeros(self._designs.count, np.int8)
        for at, number in enumerate(range(span.first, span.last + 1)):
            part = self._striped_layer(number, span.near[at], stripes.rows[at], direct=span.direct[at])
            if part is None:
                return Figures(np.full(self._designs.count, np.inf), dram, steps, bound)
            ps, tail, slots, moved, tiles = part
            computing, nbytes, dram, steps = computing + ps, nbytes + slots, dram + moved, steps + tiles
            if number < span.last:
                computing = computing + stripes.turns * tail
        loaded = span.loaded + span.weights
        loading = loaded * PS / self._designs["dram.bandwidth"]
        longest, least = np.maximum(loading, computing), np.minimum(loading, computing)
        ps = np.where(nbytes + stripes.windows <= self.capacity, longest + least / OVERLAP, np.inf)
        return Figures(ps, dram + loaded, steps, np.where(loading > computing, np.int8(_SHARED), bound))

    def _striped_layer(
        self, number: int, near: int, rows: int, *, direct: bool
    ) -> _Striped | None:
        """(picoseconds, tail of a tile, bytes of slots, traffic, steps) of a layer in stripes."""
        key = (number, near, rows, direct)
        if key not in self._striped:
            self._striped[key] = self._new_striped(number, near, rows, direct=direct)
        return self._striped[key]

    def _new_striped(
        self, number: int, near: int, rows: int, *, direct: bool
    ) -> _Striped | None:
        layer, count = self._network.layers[number], self._designs.count
        case = layer.case(near)
        if case is None:
            return None
        if isinstance(case, Plain):
            ps = self._computing(case)[self._columns]
            nothing = np.zeros(count)
            return ps, nothing, nothing + case.slots, nothing + case.far, nothing + case.tiles
        striped = layer.striped(case, rows, window=direct)
        if striped not in self._picked:
            found = self.table(striped)
            held = weights_held(striped)
            ps, best = pick(found, held + self.capacity / _OF_SEGMENT, self._columns)
            at = (best, self._columns)
            self._picked[striped] = ps, found.tail[at], found.nbytes[at], found.dram[at], found.steps[at] * (
                striped.height / striped.problem.oh
            )
        return self._picked[striped]


_Striped = tuple[Array, Array, Array, Array, Array]
"""(picoseconds, tail of a tile, bytes of slots, traffic, steps) of a layer in stripes."""

_OF_SEGMENT = 4
"""The tiles of one layer of a segment have one of so many parts of SRAM, beside its weights."""

_CHAIN, _SHARED = 1, 4
"""What binds: see ``tilings.table``."""


def weights_held(case: Case) -> float:
    """Bytes of all weights and parameters of a layer that keeps them in SRAM."""
    problem = case.problem
    whole = footprint(problem, Tiling(problem.groups, 1, 1, problem.oc, problem.ic, False))
    return float(align(whole.w) + align(whole.parameters))
