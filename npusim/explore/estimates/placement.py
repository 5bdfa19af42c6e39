"""Memory choices for many designs at once: values in SRAM as a whole, cascades in stripes, all others in DRAM.

This approximates :mod:`npusim.compiler.schedule.memory_plan` without addresses: values are assumed to fit into SRAM if
the sum of their bytes does (ADR 0035). Choices use the score of tiles, as in the compiler. The figures of the result
are the times of the chosen tiles with all DMA channels, without the score's penalty on traffic."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from npusim.compiler.grouping.groups import on_matrix, side_by_side
from npusim.compiler.schedule.cascade_search import CLOSE_PERCENT
from npusim.compiler.schedule.residency import SLACK
from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import Array, Designs, Index
from npusim.explore.estimates.layer_times import BOUNDS, COUNTS, LayerFigures, LayerTimes, counts_of
from npusim.explore.estimates.layers import EstimatedLayer, Plain
from npusim.explore.estimates.network import CascadeSpan, PreparedNetwork, Stripes, weight_bytes
from npusim.explore.estimates.prices import PS
from npusim.explore.estimates.tiles import Case, Question
from npusim.hw.memory import align
from npusim.timing.tile import OVERLAP
from npusim.timing.tile_costs import cores_served
from npusim.timing.tile_problem import Tiling, footprint
from npusim.work import Port

_OF_SEGMENT = 4
"""The tiles of a layer of a cascade may use 1/4 of the SRAM, in addition to its weights."""


@dataclass(slots=True)
class Plan:
    """Choices for a network on each design.

    ``chosen``: picoseconds of each layer by the score of tiles. ``near``: for each layer the bits of its buffers in
    SRAM, and above them the number of its form. ``rooms``: bytes for its tiles. ``cascades``: (span, stripes, designs
    that have it, whether it only hides waits). ``layers``: figures of each layer.
    """

    chosen: list[Array]
    near: list[Index]
    rooms: list[Array]
    cascades: list[tuple[CascadeSpan, Stripes, Index, npt.NDArray[np.bool_]]] = field(default_factory=list)
    layers: list[LayerFigures] = field(default_factory=list)

    def take(self, rows: Index) -> Plan:
        """The figures and memories of the designs ``rows``, without cascades."""
        return Plan(
            [each[rows] for each in self.chosen],
            [each[rows] for each in self.near],
            [each[rows] for each in self.rooms],
            layers=[each.take(rows) for each in self.layers],
        )


@dataclass(slots=True)
class _Striped:
    """A layer in stripes, by design: ``chosen``: picoseconds by the score. ``tail``: picoseconds after a tile that
    nothing hides. ``slots``: bytes of slots. ``waiting``, ``behind``: picoseconds that the matrix unit waits for the
    vector unit in all stripes, and that the vector unit continues after one. ``crowding``: the part of the SRAM banks'
    cycles that the vector unit needs while it works. ``banked``: picoseconds of all banks for the matrix unit in all
    stripes. ``ends``: picoseconds before anything overlaps. ``step``: of one tile. ``what``: the work of a
    stripe."""

    chosen: Array
    tail: Array
    slots: Array
    waiting: Array
    behind: Array
    crowding: Array
    banked: Array
    ends: Array
    step: Array
    what: Case | Plain

    def hidden(self, rows: Index | slice, ahead: Array, banked: Array, turns: int) -> Array:
        """Picoseconds of the waits that plain layers before it hide on some designs, as in ``cascade_latency``.

        ``ahead``, ``banked``: picoseconds of these layers, and of the banks for them.
        """
        most = np.minimum((turns - 1) * self.behind[rows], ahead * (turns - 1) / turns)
        free = np.clip(2 - self.crowding[rows] - banked / np.maximum(ahead, 1), 0, 1)
        found: Array = np.minimum(self.waiting[rows], np.maximum(0, most)) * free
        return found


@dataclass(slots=True)
class _Cascade:
    """A cascade, by design: picoseconds by the score, the index of the best height of stripes, and the picoseconds
    during which the matrix unit works on other layers while the last one waits for the vector unit, and
    whether that is all that it gains."""

    chosen: Array
    height: Index
    hidden: Array
    hides: npt.NDArray[np.bool_]


class PlacementPlanner(LayerTimes):
    """Chooses memory areas on designs that differ only in numbers. ``joined``: see :func:`joined_groups`."""

    def __init__(
        self,
        network: PreparedNetwork,
        designs: Designs,
        joined: Sequence[Index],
        cores: int = 1,
        real: PlacementPlanner | None = None,
    ) -> None:
        super().__init__(designs, cores, real)
        self._network = network
        self._joined = joined
        # Bytes of the weights of each layer.
        self._held = [
            np.array([weight_bytes(layer.form(number)) for number in range(len(layer.counts))], np.float64)[forms]
            for layer, forms in zip(network.layers, joined, strict=True)
        ]
        self._striped: dict[tuple[int, int, int, bool], _Striped | None] = {}
        self._picked: dict[tuple[Case, bytes], _Striped] = {}

    # values as a whole

    def whole(self, *, keeps: bool = True) -> Plan:
        """Plan every layer by itself. A value is in SRAM if that is faster for all layers of its lifetime together."""
        network, count = self._network, self._designs.count
        everyone = np.arange(count)
        near = [form << len(layer.buffers) for form, layer in zip(self._joined, network.layers, strict=True)]
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
            better = np.sum([ps for _, ps in tried], axis=0) * 1000 < before * (1000 + SLACK)
            kept = rows[better]
            for number, (code, ps) in zip(life, tried, strict=True):
                near[number][kept], costs[number][kept] = code[better], ps[better]
                taken[number][kept] += value.nbytes
        return Plan(costs, near, [self.capacity - each for each in taken])

    def told(self, plan: Plan) -> Plan:
        """Compute the figures of each layer of a plan, with all DMA channels and with values in the L2."""
        count = self._designs.count
        l2 = self._in_l2(plan) if self._designs.config.l2 else [None] * len(plan.near)
        plan.layers = [LayerFigures.empty(count) for _ in plan.near]
        designs = self._real._designs
        compiler = designs.config.compiler
        before: LayerFigures | None = LayerFigures.empty(count)
        for layer, near, room, code, into in zip(
            self._network.layers, plan.near, plan.rooms, l2, plan.layers, strict=True
        ):
            self.chosen(layer, near, room, np.arange(count), into, code, before)
            if self._ahead and before is not None:
                space = np.maximum(0, room - into.slots) * PS / prices.bandwidth(designs)
                into.idle = np.clip(before.idle + into.idle, 0, space)
            before = None if compiler.one_by_one else into
        turns = np.ones((len(plan.near), count))
        for span, stripes, rows, hides in plan.cascades:
            self._tell(span, stripes, rows, hides, plan, l2)
            turns[span.first : span.last + 1, rows] = stripes.turns
        # The sequencer waits at each change of layer. The descriptors of all layers are loaded first.
        switching = compiler.layer_cycles * PS / designs["clock"] + compiler.layer_time_ps
        exposed = 2 * (prices.latency(designs) + prices.start(designs)) * compiler.one_by_one
        loading = compiler.layer_bytes * PS / prices.bandwidth(designs)
        for times, figures in zip(turns, plan.layers, strict=True):
            # With layer_by_layer, nothing hides the latencies of a layer's first load and last store.
            outside = exposed * (figures.counts[0] > 0)
            figures.ps = figures.ps + (times * switching + loading + outside) * (figures.ps > 0)
        self._exchange(plan)
        return plan

    def _exchange(self, plan: Plan) -> None:
        """Add what cores send each other after each layer."""
        designs, through = self._real._designs, self._designs.config.exchange is None
        for number, buffer, nbytes, relay in self._network.transfers:
            figures, bit = plan.layers[number], self._network.layers[number].bit(buffer)
            sent = (plan.near[number] & bit != 0) * float(nbytes)
            figures.counts[COUNTS.index("moved")] += sent
            rate, wait = prices.exchange(designs)
            if through:
                in_l2 = np.zeros(designs.count, bool)
                if designs.config.l2 is not None:
                    in_l2 = (relay <= designs["l2.bytes"]) & self._real.pays(relay)
                    near, soon = prices.exchange(designs.l2_side())
                    rate, wait = np.where(in_l2, near, rate), np.where(in_l2, soon, wait)
                figures.counts[COUNTS.index("dram")] += np.where(in_l2, 0.0, sent)
            figures.ps += sent * PS / rate + wait * (sent > 0)

    def _in_l2(self, plan: Plan) -> list[Index]:
        """For each layer, the bits of its buffers in the L2: buffers of the shortest lifetime first, while there is
        space.

        Free bytes are assumed to be contiguous.
        """
        network, count = self._network, self._designs.count
        found = [np.zeros(count, np.intp) for _ in network.layers]
        taken = np.zeros((len(network.layers), count))
        for buffer, users in sorted(network.users.items(), key=lambda each: each[1][-1] - each[1][0]):
            first, nbytes = users[0], align(buffer.nbytes)
            if network.cut is not None and buffer in network.cut:
                nbytes *= network.context.beside  # each core has a slice
            life = slice(first, users[-1] + 1)
            outside = plan.near[first] & network.layers[first].bit(buffer) == 0
            fits = outside & (taken[life].max(0) + nbytes <= self._designs["l2.bytes"]) & self._real.pays(buffer.nbytes)
            taken[life, fits] += nbytes
            for user in users:
                found[user][fits] |= network.layers[user].bit(buffer)
        return found

    # cascades

    def striped(self, plan: Plan) -> Plan:
        """Return a plan with the cascades that take the least time, given a plan without cascades."""
        count, size = self._designs.count, len(self._network.layers)
        best: list[Array] = [np.zeros(count)]
        taken = [np.full(count, -1, np.intp) for _ in range(size)]
        spans = self._network.spans
        found = [self._cascade(span, plan.near) for span in spans]
        for span, cascade in zip(spans, found, strict=True):
            if cascade is not None:
                alone = np.sum(plan.chosen[span.first : span.last + 1], axis=0)
                # If all values are in SRAM as a whole, only units working in parallel can save time.
                cascade.chosen[cascade.hides] = np.maximum(cascade.chosen, alone - cascade.hidden)[cascade.hides]
                little = cascade.chosen * 100 > alone * (100 - CLOSE_PERCENT)
                useless = ~self._side_by_side(span) & (cascade.hidden * 100 <= alone * CLOSE_PERCENT)
                cascade.chosen[self._on_chip(span, plan.near) & (little | useless)] = np.inf
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

    def _traced(self, plan: Plan, spans: list[CascadeSpan], found: list[_Cascade | None], taken: list[Index]) -> Plan:
        """Collect the chosen cascades of each design, from the last layer backwards."""
        result = Plan(copy.deepcopy(plan.chosen), copy.deepcopy(plan.near), plan.rooms)
        at = np.full(self._designs.count, len(plan.near) - 1)
        for number in reversed(range(len(plan.near))):
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
                    result.cascades.append((span, span.heights[height], some, cascade.hides[some]))
                parts = span.last - span.first + 1
                for at_layer, inside in enumerate(range(span.first, span.last + 1)):
                    result.chosen[inside][rows] = cascade.chosen[rows] / parts
                    result.near[inside][rows] |= span.near[at_layer]
        return result

    def _layers_of(
        self,
        span: CascadeSpan,
        stripes: Stripes,
        rows: Index,
        hides: npt.NDArray[np.bool_],
        plan: Plan,
        l2: Sequence[Index | None],
    ) -> tuple[list[LayerFigures], tuple[Array, ...], Array]:
        """Figures of the layers of a cascade without loads, ``computing`` as in :func:`_turns`, and the least
        picoseconds if it only hides waits."""
        found = []
        matrix, vector, tails, ahead, banked, ends, least, step = np.zeros((8, len(rows)))
        plain = np.ones(len(rows), bool)
        for at, number in enumerate(range(span.first, span.last + 1)):
            told, (tail, hidden, needed) = LayerFigures.empty(len(rows)), np.zeros((3, len(rows)))
            for code in np.unique(plan.near[number][rows]):
                some = np.flatnonzero(plan.near[number][rows] == code)
                part = self._striped_layer(number, int(code), stripes.rows[at], direct=span.direct[at])
                assert part is not None
                mine = self._of_striped(part, rows[some], self._network.layers[number], l2[number])
                told.put(some, mine, slice(None))
                tail[some] = part.tail[rows[some]]
                hidden[some] = part.hidden(rows[some], ahead[some], banked[some], stripes.turns) * hides[some]
                needed[some] = part.banked[rows[some]]
                if number in (span.first, span.last):
                    ends[some] += part.ends[rows[some]]
                if number > span.first:
                    ends[some] += np.maximum(0, self._load(number)[rows[some]] - step[some])
                step[some] = part.step[rows[some]]
            if number < span.last:
                plain &= tail == 0
                ahead += told.ps * plain
                banked += needed * plain
            elif not vector.any():
                told.ps = np.maximum(0, told.ps - hidden)
                least = np.sum([each.ps[rows] for each in plan.layers[span.first : number + 1]], axis=0) - hidden
                least = np.where(hidden > 0, least, 0.0)
            if on_matrix(self._network.layers[number].group):
                matrix = matrix + told.ps
            else:
                vector = vector + told.ps
            if number < span.last:
                tails = tails + stripes.turns * tail
                told.ps = told.ps + stripes.turns * tail
            found.append(told)
        return found, (matrix, vector, tails, ends), least

    def _tell(
        self,
        span: CascadeSpan,
        stripes: Stripes,
        rows: Index,
        hides: npt.NDArray[np.bool_],
        plan: Plan,
        l2: Sequence[Index | None],
    ) -> None:
        """Compute the figures of a cascade on some designs. Loads are distributed over its layers."""
        found, parts, least = self._layers_of(span, stripes, rows, hides, plan, l2)
        matrix, vector, tails, _ = parts
        computing = np.sum([told.ps for told in found], axis=0)
        beyond = self._loaded_from_l2(span, rows, l2)
        inputs = self._loaded(span, plan.near, rows)
        designs = self._real._designs
        rate = self._rate(prices.bandwidth(designs), rows)
        held = self._weights(span)[rows]
        beside = self._network.context.beside
        # One read may bring the weights to several cores.
        held = held * (beside / cores_served(self._designs.config, beside, Port.CONSTANTS))
        weights, moved = held * PS / rate + self._waits(span)[rows], (inputs - beyond) * beside * PS / rate
        if beyond.any():
            near = prices.bandwidth(designs.l2_side())
            moved = moved + beyond * beside * PS / self._rate(near, rows)
        shown = self._shown(span, stripes)
        longer = _turns(weights, moved, shown, stripes.turns, parts)
        longer = np.maximum(longer, least) / computing
        waits = weights + moved > np.maximum(matrix, vector) + tails
        for told, into in zip(found, plan.layers[span.first : span.last + 1], strict=True):
            share = told.ps / computing
            told.counts[COUNTS.index("dram")] += ((inputs - beyond) * beside + held) * share
            told.counts[COUNTS.index("moved")] += (inputs + held) * beside * share
            told.ps, told.bound = told.ps * longer, np.where(waits, np.int8(BOUNDS.index("load")), told.bound)
            into.put(rows, told, slice(None))

    def _loaded(self, span: CascadeSpan, near: Sequence[Index], rows: Index) -> Array:
        """Bytes of a cascade's inputs that are not in SRAM."""
        found = np.zeros(len(rows))
        for buffer, nbytes in span.loaded:
            maker = self._network.users.get(buffer, (0,))[0]
            found += nbytes * (near[maker][rows] & self._network.layers[maker].bit(buffer) == 0)
        return found

    def _loaded_from_l2(self, span: CascadeSpan, rows: Index, l2: Sequence[Index | None]) -> Array:
        """Bytes of a cascade's inputs that are in the L2."""
        found = np.zeros(len(rows))
        for buffer, nbytes in span.loaded:
            maker = self._network.users.get(buffer, (0,))[0]
            codes = l2[maker]
            if codes is not None:
                found += nbytes * (codes[rows] & self._network.layers[maker].bit(buffer) != 0)
        return found

    def _of_striped(self, part: _Striped, rows: Index, layer: EstimatedLayer, l2: Index | None) -> LayerFigures:
        if isinstance(part.what, Plain):
            counts = np.repeat(counts_of(part.what, 0) * layer.share, len(rows), axis=1)
            result = LayerFigures.empty(len(rows))
            result.ps, result.counts, result.bound[:] = part.chosen[rows], counts, BOUNDS.index("vector")
            return result
        result = LayerFigures.empty(len(rows))
        codes = np.zeros(len(rows), np.intp) if l2 is None else l2[rows]
        for code in np.unique(codes):
            some = np.flatnonzero(codes == code)
            question = self._in_cascade(part.what, rows[some], layer.in_l2(int(code)))
            self._alone.ask([question])
            result.put(some, self._told(layer, question, rows[some]), slice(None))
        return result

    def _in_cascade(self, case: Case, rows: Index, l2: int = 0) -> Question:
        room = weights_held(case) + self.capacity[rows] / _OF_SEGMENT
        return self._question(case, rows, room, l2, told=True)

    def _cascade(self, span: CascadeSpan, near: Sequence[Index]) -> _Cascade | None:
        """A cascade with the fastest height of stripes on each design; None if it fits on no design."""
        count = self._designs.count
        hides = self._on_chip(span, near) & ~self._side_by_side(span)
        best = _Cascade(np.full(count, np.inf), np.zeros(count, np.intp), np.zeros(count), hides)
        codes = self._codes(span, near)
        room = self.capacity - self._weights(span)
        # On each design, shorter stripes are tried as long as they take less time.
        going = np.ones(count, bool)
        for number, stripes in enumerate(span.heights):
            if not (room > stripes.windows).any():
                continue
            found = self._with_stripes(span, stripes, near, codes, hides)
            if found is None:
                return None
            chosen, hidden = found
            better = going & (chosen < best.chosen)
            best.chosen[better], best.height[better], best.hidden[better] = chosen[better], number, hidden[better]
            going &= better | np.isinf(best.chosen)
            if not going.any():
                break
        return best if np.isfinite(best.chosen).any() else None

    def _codes(self, span: CascadeSpan, near: Sequence[Index]) -> list[list[tuple[int, Index | slice]]]:
        """For each layer of a cascade: (bits of the buffers in SRAM, as a whole or as rolling buffers; the designs)."""
        found: list[list[tuple[int, Index | slice]]] = []
        for windows, codes in zip(span.near, near[span.first : span.last + 1], strict=True):
            all_codes = np.unique(codes | windows)
            several = len(all_codes) > 1
            found.append(
                [(int(code), np.flatnonzero(codes | windows == code) if several else slice(None)) for code in all_codes]
            )
        return found

    def _with_stripes(
        self,
        span: CascadeSpan,
        stripes: Stripes,
        near: Sequence[Index],
        codes: list[list[tuple[int, Index | slice]]],
        hides: npt.NDArray[np.bool_],
    ) -> tuple[Array, Array] | None:
        """Picoseconds of a cascade by the score, by design; infinite where it does not fit. And the waits of its last
        layer that others hide, see ``cascade_latency``."""
        count = self._designs.count
        matrix, vector, tails, nbytes, ahead, banked, hidden, ends, step = np.zeros((9, count))
        plain = np.ones(count, bool)
        nbytes += stripes.windows
        for at, number in enumerate(range(span.first, span.last + 1)):
            on = matrix if on_matrix(self._network.layers[number].group) else vector
            for code, rows in codes[at]:
                part = self._striped_layer(number, code, stripes.rows[at], direct=span.direct[at])
                if part is None:
                    return None
                on[rows] += part.chosen[rows]
                nbytes[rows] += part.slots[rows]
                if number in (span.first, span.last):
                    ends[rows] += part.ends[rows]
                if number > span.first:  # its weights load during a tile of the previous layer
                    ends[rows] += np.maximum(0, self._load(number)[rows] - step[rows])
                step[rows] = part.step[rows]
                if number < span.last:
                    tails[rows] += stripes.turns * part.tail[rows]
                    plain[rows] &= part.tail[rows] == 0
                    ahead[rows] += part.chosen[rows] * plain[rows]
                    banked[rows] += part.banked[rows] * plain[rows]
                else:
                    hidden[rows] = part.hidden(rows, ahead[rows], banked[rows], stripes.turns) * (vector[rows] == 0)
        hidden *= hides
        matrix -= hidden
        times, shown = (matrix, vector, tails, ends), self._shown(span, stripes)
        rate = prices.bandwidth(self._designs)
        inputs = self._loaded(span, near, np.arange(count))
        weights = np.sum([self._load(number) for number in range(span.first, span.last + 1)], axis=0)
        chosen = _turns(weights, inputs * PS / rate, shown, stripes.turns, times)
        return np.where(nbytes <= self.capacity, chosen, np.inf), hidden

    def _weights(self, span: CascadeSpan) -> Array:
        """Bytes of all weights of a cascade, by design."""
        total: Array = np.sum(self._held[span.first : span.last + 1], axis=0)
        return total

    def _waits(self, span: CascadeSpan) -> Array:
        """Picoseconds of latency of the loads of all weights: each layer loads weights and parameters."""
        loads: Array = 2.0 * np.sum([held > 0 for held in self._held[span.first : span.last + 1]], axis=0)
        return loads * prices.latency(self._real._designs)

    def _load(self, number: int) -> Array:
        """Picoseconds to load all weights of a layer."""
        held, designs = self._held[number], self._real._designs
        loads: Array = 2.0 * (held > 0)  # weights and parameters
        found: Array = held * PS / prices.bandwidth(designs) + loads * prices.latency(designs)
        return found

    def _on_chip(self, span: CascadeSpan, near: Sequence[Index]) -> npt.NDArray[np.bool_]:
        """Whether all values of the layers are in SRAM as a whole, by design."""
        layers = slice(span.first, span.last + 1)
        whole = [
            ~codes & (1 << len(layer.buffers)) - 1 == 0
            for codes, layer in zip(near[layers], self._network.layers[layers], strict=True)
        ]
        found: npt.NDArray[np.bool_] = np.all(whole, axis=0)
        return found

    def _side_by_side(self, span: CascadeSpan) -> np.bool_:
        """Whether both units work on the layers at the same time."""
        return np.bool_(side_by_side(layer.group for layer in self._network.layers[span.first : span.last + 1]))

    def _shown(self, span: CascadeSpan, stripes: Stripes) -> int:
        """The number n for which 1/n of the work of the faster unit is not hidden behind the other unit."""
        return min(stripes.turns, OVERLAP) if self._side_by_side(span) else 1

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
        assert not isinstance(case, tuple)  # attentions are in no cascade
        if isinstance(case, Plain):
            ps, nothing = self._computing(case)[self._columns], np.zeros(count)
            return _Striped(ps, nothing, nothing + case.slots, nothing, nothing, nothing, nothing, nothing, ps, case)
        striped = layer.striped(case, rows, window=direct)
        # Only designs with this form need it.
        some = np.flatnonzero(self._joined[number] == near >> len(layer.buffers))
        key = striped, some.tobytes()
        if key not in self._picked:
            question = self._in_cascade(striped, some)
            self._alone.ask([question])
            chosen, tail, slots, waiting, behind, crowding, banked, ends, step = np.full((9, count), np.inf)
            turns, told = case.height / rows, question.figures
            chosen[some] = question.latency * turns
            tail[some], slots[some], ends[some] = told["tail"], told["bytes"], told["begin"]
            step[some] = question.latency / told["tiles"]
            # Two tiles have slots: after the products of the last one, the chain may still work on the one before.
            working, products = told["chain"], told["computing"]
            waiting[some] = np.maximum(0, working - products) * turns
            banks = self._priced(striped.chain.banks(self._plans), some)
            elements = striped.problem.images * rows * striped.problem.ow * striped.problem.groups * striped.problem.oc
            crowding[some] = banks * elements / np.maximum(working, 1)
            banked[some] = self._banked(striped, some, told)
            left = 2 * working - products - banked[some] * crowding[some]
            left = np.where(told["tiles"] > 1, left, working) / told["tiles"]
            # When the queue of the vector unit is full, the matrix unit waits as well.
            queued = told["tail"] * self._rate(self._designs["queue_depth"], some) / max(1, len(striped.chain.many))
            behind[some] = np.minimum(left, queued)
            banked[some] *= turns
            self._picked[key] = _Striped(chosen, tail, slots, waiting, behind, crowding, banked, ends, step, striped)
        return self._picked[key]

    def _banked(self, case: Case, rows: Index, told: dict[str, Array]) -> Array:
        """Picoseconds in which all SRAM banks serve the products of the chosen tiles."""
        sizes = (told[name] for name in ("groups", "oh", "ow", "oc", "ic", "kh", "kw"))
        nbytes, _ = prices.touched(self._arrays.take(self._array[rows]), case.problem, *sizes)
        return nbytes * told["steps"] * PS / self._rate(prices.banks_rate(self._designs), rows)


def _turns(weights: Array, rows: Array, shown: int, turns: int, computing: tuple[Array, ...]) -> Array:
    """Picoseconds of a cascade, as the compiler estimates it (``cascade_latency``).

    ``weights``, ``rows``: picoseconds of the loads. ``computing``: those of the matrix unit, of the vector unit, of the
    ends of tiles that nothing hides, and of the start of the first and the last layer.
    """
    matrix, vector, tails, ends = computing
    together = np.maximum(matrix, vector) + np.minimum(matrix, vector) / shown + tails
    first = together / turns
    result: Array = (
        np.maximum(weights, first + ends)
        + np.maximum(rows, together - first)
        + np.minimum(weights + rows, together) / OVERLAP
    )
    return result


def weights_held(case: Case) -> float:
    """Bytes of all weights and parameters of a layer whose weights stay in SRAM."""
    problem = case.problem
    whole = footprint(problem, Tiling(problem.groups, 1, 1, problem.oc, problem.ic, False))
    return float(align(whole.w) + align(whole.parameters))
