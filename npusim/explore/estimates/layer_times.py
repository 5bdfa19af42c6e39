"""How long layers of a network take on many designs, by the tiles that the compiled search chooses.

``chosen`` is what the compiler compares when it chooses memory areas. What is told of the choice is closer to the
simulation: all DMA channels work side by side, and the first weights are loaded while the layer before ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npusim.compiler.lower.attention import CHOICES, attention_latency
from npusim.compiler.lower.matrix_tiling import PARTS
from npusim.explore.estimates import prices
from npusim.explore.estimates.attentions import RowBlocks
from npusim.explore.estimates.designs import Array, Designs, Index, is_left
from npusim.explore.estimates.layers import EstimatedLayer, Plain
from npusim.explore.estimates.prices import PS
from npusim.explore.estimates.tiles import Case, Question, TileSearch, pieces_of
from npusim.hw.memory import ALIGNMENT
from npusim.timing.tile import COPY_CODE, OVERLAP, PRODUCT_CODE, SLACK_PERCENT
from npusim.timing.tile_costs import array_pricing, pricing

BOUNDS = ("matrix", "vector", "load", "store", "dram")
"""What a layer may be bound by, in the order of the numbers in ``LayerFigures.bound``."""
_VECTOR, _LOAD, _STORE, _DRAM = (BOUNDS.index(name) for name in ("vector", "load", "store", "dram"))

COUNTS = ("dram", "moved", "code", "sram", "accumulators")
"""Bytes over the pins, bytes through the channels of DMA, those of commands, those that the matrix unit reads from SRAM
and writes to it, and those of sums."""

_OPERANDS = {1: "x_bytes", 2: "out_bytes", 4: "other_bytes"}
"""Figures of operands that may be in the L2, by their bits in a :class:`Question`."""


@dataclass(slots=True)
class LayerFigures:
    """Of a layer or a cascade: picoseconds [designs], ``COUNTS`` [counts][designs], what binds [designs].

    ``idle``: picoseconds of its last tile in which the DRAM does nothing; ``slots``: bytes of its tiles."""

    ps: Array
    counts: Array
    bound: npt.NDArray[np.int8]
    idle: Array
    slots: Array

    @classmethod
    def empty(cls, count: int) -> LayerFigures:
        ps, idle, slots = np.zeros((3, count))
        return cls(ps, np.zeros((len(COUNTS), count)), np.zeros(count, np.int8), idle, slots)

    def put(self, rows: Index, other: LayerFigures, of: Index | slice, parts: int = 1) -> None:
        """Take the figures of some designs from others, or one of so many parts of them."""
        self.ps[rows], self.bound[rows] = other.ps[of] / parts, other.bound[of]
        self.idle[rows], self.slots[rows] = other.idle[of], other.slots[of]
        self.counts[:, rows] = other.counts[:, of] / parts


class LayerTimes:
    """Times of layers on designs that differ in numbers alone, whose ``cores`` share the tiles of each layer."""

    def __init__(self, designs: Designs, cores: int) -> None:
        self._designs = designs
        self._cores = cores
        # The bytes of the SRAM are no part of a price, but of those of few units.
        sized = is_left("sram.bytes", designs.config, pricing)
        keys = tuple(key for key in designs.columns if key != "sram.bytes" or sized)
        self._plans, self._columns = designs.alike(keys)
        self._arrays, self._array = designs.seen_by(array_pricing)
        capacity = np.broadcast_to(designs["sram.bytes"], (designs.count,))
        self.capacity: Array = np.floor(capacity / ALIGNMENT) * ALIGNMENT
        self._ways = np.broadcast_to(np.maximum(1, designs["dma.channels"] - 1), (designs.count,))
        self._tiles = TileSearch(self._plans, cores)
        self._plain: dict[Plain, Array] = {}

    def chosen(
        self,
        layer: EstimatedLayer,
        near: Index,
        room: Array,
        rows: Index,
        into: LayerFigures | None = None,
        l2: Index | None = None,
        before: LayerFigures | None = None,
    ) -> Array:
        """Picoseconds, as the compiler compares them, of a layer on the designs whose numbers are ``rows``, whose
        values are ``near`` and who have ``room``; infinite where it does not fit. ``into``: takes the layer's figures,
        with the values in the L2 whose bits are set in ``l2``; ``before``: those of the layer before it."""
        result = np.full(len(rows), np.inf)
        near = near if l2 is None else near | l2 << layer.bits
        codes = np.unique(near)
        asked = []
        for number in codes:
            some = np.arange(len(rows)) if len(codes) == 1 else np.flatnonzero(near == number)
            code, in_l2 = int(number) & (1 << layer.bits) - 1, int(number) >> layer.bits
            case = layer.case(code)
            if isinstance(case, Plain):
                result[some] = self._of_plain(case, rows[some], some, into, in_l2)
            elif isinstance(case, tuple):
                result[some] = self._of_attention(case, rows[some], room[some], some, into)
            elif case is not None:
                question = self._question(case, rows[some], room[some], layer.in_l2(in_l2), told=into is not None)
                asked.append((some, question))
        self._tiles.ask([question for _, question in asked])
        for some, question in asked:
            result[some] = question.latency
            if into is not None:
                into.put(some, self._told(question, rows[some], before), slice(None))
        if into is not None:
            into.ps[np.isinf(result)] = np.inf
        return result

    def _question(self, case: Case, rows: Index, room: Array, l2: int = 0, *, told: bool = False) -> Question:
        # As the compiler rounds them.
        part = np.floor(self._rate(self._designs["sram.bytes"], rows) / PARTS)
        pieces = self._rate(pieces_of(self._designs, case), rows)
        return Question(case, self._columns[rows], np.floor(room / part) * part, pieces, told=told, l2=l2)

    def _told(self, question: Question, rows: Index, before: LayerFigures | None = None) -> LayerFigures:
        """What tiles take: loads side by side on all channels but one, which is for stores; the first weights while the
        layer ``before`` is at its last tile."""
        case, problem, told = question.case, question.case.problem, question.figures
        outside = [0.0 if question.l2 & bit else told[name] for bit, name in _OPERANDS.items()]
        dram, l2 = sum(outside), sum(told[name] for name in _OPERANDS.values()) - sum(outside)
        constants = told["constant_bytes"]
        # Of the two directions the one with more bytes, if they have ports of their own.
        writes = outside[1] if self._designs.config.interconnect.separate_write_port else 0.0
        code = (told["copies"] + told["tiles"] * len(case.chain.many)) * COPY_CODE + told["steps"] * PRODUCT_CODE
        bus = problem.beside * PS / self._rate(prices.bandwidth(self._designs), rows)
        if self._designs.config.constants is None:
            shared = np.maximum(dram + constants - writes, writes) * bus
        else:
            apart = problem.beside * PS / self._rate(prices.bandwidth(self._designs, constants=True), rows)
            shared = np.maximum(np.maximum(dram - writes, writes) * bus, constants * apart)
        if question.l2:
            near = self._rate(prices.bandwidth(self._designs.l2_side()), rows)
            shared = np.maximum(shared, l2 * problem.beside * PS / near)
        whole = case.height / problem.oh
        loading = told["loading"] / self._ways[rows]
        parts = np.stack([told["compute"], told["chain"], loading, told["storing"], shared]) * whole
        parts[_DRAM] += self._fetching(code * whole, rows)
        groups, oh, ow, oc, ic, kh, kw = (told[name] for name in ("groups", "oh", "ow", "oc", "ic", "kh", "kw"))
        if before is not None:
            weights = groups * oc * (1 if problem.depthwise else ic) * kh * kw * problem.w_type.itemsize
            early = np.minimum(told["weights"], before.idle[rows]) * (
                before.slots[rows] + weights <= self.capacity[rows]
            )
            parts[[_LOAD, _DRAM]] = np.maximum(0, parts[[_LOAD, _DRAM]] - early)
        longest = parts.max(0)
        ps = longest + (parts.sum(0) - longest) / OVERLAP + told["begin"] * whole
        # Tiles at the edges move less by as much as there is less of each dimension.
        tiles = problem.images * problem.oh / oh * (problem.ow / ow) * (problem.groups / groups) * (problem.oc / oc)
        tiles = tiles * (problem.kh / kh) * (problem.kw / kw)
        arrays = self._arrays.take(self._array[rows])
        streams, sums = prices.touched(arrays, problem, groups, oh, ow, oc, ic, kh, kw)
        counts = [dram + constants, told["moved"], code]
        counts += [streams * tiles * (problem.ic / ic), sums * tiles * prices.up(problem.ic, ic)]
        idle = np.maximum(0, longest - parts[_DRAM]) / (told["per_core"] * told["steps"] / told["tiles"] * whole)
        return LayerFigures(ps, np.stack(counts) * whole, parts.argmax(0).astype(np.int8), idle, told["bytes"])

    def _rate(self, values: Array, rows: Index) -> Array:
        """Of some designs."""
        return np.broadcast_to(values, (self._designs.count,))[rows]

    def _fetching(self, nbytes: Array | float, rows: Index) -> Array:
        """Picoseconds of the DRAM for commands, where these have no way of their own."""
        if self._designs.config.interconnect.separate_code_port:
            return np.zeros(len(rows))
        rate = np.broadcast_to(prices.bandwidth(self._designs), (self._designs.count,))[rows]
        found: Array = nbytes * PS / rate
        return found

    def _of_plain(self, case: Plain, rows: Index, some: Index, into: LayerFigures | None, in_l2: int) -> Array:
        plans, columns = self._plans, self._columns[rows]
        compute = self._computing(case)[columns] / self._cores
        beyond = sum(nbytes for bit, nbytes in case.far if bit & in_l2)
        outside = sum(nbytes for _, nbytes in case.far) - beyond
        far = np.broadcast_to(np.minimum(prices.bandwidth(plans), prices.channel(plans)), (plans.count,))[columns]
        near = np.broadcast_to(prices.local_rate(plans), (plans.count,))[columns]
        moving = outside * PS / far + case.near * PS / near + self._fetching(case.code, rows)
        if beyond:
            side = plans.l2_side()
            rate = np.minimum(prices.bandwidth(side), prices.channel(side))
            moving = moving + np.broadcast_to(beyond * PS / rate, (plans.count,))[columns]
        moving = np.maximum(moving, self._words(case, rows, moving))
        longest = np.maximum(compute, moving)
        ps: Array = longest + (compute + moving - longest) / OVERLAP
        if into is not None:
            counts = np.broadcast_to(counts_of(case, in_l2), (len(COUNTS), len(rows)))
            bound = np.where(moving > compute, np.int8(_DRAM), np.int8(_VECTOR))
            idle, slots = np.maximum(0, compute - moving), np.full(len(rows), float(case.slots))
            # Nothing hides the first load and the last store.
            alone = sum((prices.work(plans, work) for work in case.ends), np.zeros(1))
            told = ps + np.broadcast_to(alone, (plans.count,))[columns]
            into.put(some, LayerFigures(told, counts, bound, idle, slots), slice(None))
        return ps

    def _of_attention(
        self, sizes: tuple[RowBlocks, ...], rows: Index, room: Array, some: Index, into: LayerFigures | None
    ) -> Array:
        """A fused attention, with blocks as the compiler chooses them."""
        found = np.full((len(sizes), len(rows)), np.inf)
        told = [LayerFigures.empty(len(rows)) for _ in sizes]
        left = np.full(len(rows), CHOICES)
        for number, blocks in enumerate(sizes):
            asking = np.flatnonzero(left)
            if len(asking):
                found[number, asking] = self._in_blocks(blocks, rows[asking], room[asking], asking, told[number])
                left -= np.isfinite(found[number])
        near = found <= np.floor(found.min(0) * (100 + SLACK_PERCENT) / 100)
        chosen = near.argmax(0)
        result: Array = found[chosen, np.arange(len(rows))]
        for number, figures in enumerate(told if into is not None else ()):
            mine = np.flatnonzero((chosen == number) & np.isfinite(result))
            if into is not None:
                into.put(some[mine], figures, mine)
        return result

    def _in_blocks(self, blocks: RowBlocks, rows: Index, room: Array, some: Index, told: LayerFigures) -> Array:
        """Picoseconds as :func:`attention_latency` has them, infinite where a block does not fit."""
        plans, columns, count = self._plans, self._columns[rows], blocks.count
        used = np.full(len(rows), float(blocks.windows))
        matrix, vector, sram, sums = np.zeros((4, len(rows)))
        for part in blocks.parts:
            if part.product is not None:
                question = self._question(part.product, rows, np.maximum(room - used, 1), told=True)
                self._tiles.ask([question])
                figures, problem = question.figures, part.product.problem
                used += np.where(np.isinf(question.latency), np.inf, figures["bytes"])
                matrix += figures["computing"] * blocks.of_image
                sizes = (figures[name] for name in ("groups", "oh", "ow", "oc", "ic", "kh", "kw"))
                streams, accumulators = prices.touched(self._arrays.take(self._array[rows]), problem, *sizes)
                tiles = count * problem.ow / figures["ow"] * (problem.oc / figures["oc"])
                sram += streams * tiles * (problem.ic / figures["ic"])
                sums += accumulators * tiles * prices.up(problem.ic, figures["ic"])
            begin, kilo = (np.broadcast_to(each, (plans.count,))[columns] for each in part.chain.times(plans))
            vector += count * (begin + np.floor(kilo * part.elements / 1024))
            used += part.slots
        far, near = (
            np.broadcast_to(sum((n * prices.work(plans, work) for work, n in works), np.zeros(1)), (plans.count,))[
                columns
            ]
            for works in (blocks.far, blocks.near)
        )
        traffic = float(sum(n * work.bytes for work, n in blocks.far))
        channels, bandwidth = (self._rate(self._designs[key], rows) for key in ("dma.channels", "dram.bandwidth"))
        parts = matrix, vector, far
        chosen = attention_latency(*parts, traffic, count, self._cores, channels, bandwidth)
        moved = traffic + sum(n * work.bytes for work, n in blocks.near)
        code = float(len(blocks.parts) * count * PRODUCT_CODE + sum(n for _, n in blocks.far) * COPY_CODE)
        # What is copied within SRAM takes channels as well.
        ps = attention_latency(matrix, vector, far + near, traffic + code, count, self._cores, channels, bandwidth)
        hidden = matrix + vector + far + near - np.maximum(np.maximum(matrix, vector), far + near)
        told.ps[some] = ps + hidden / OVERLAP / self._cores
        told.counts[:, some] = np.stack(np.broadcast_arrays(traffic, moved, code, sram, sums))
        told.bound[some] = np.where(matrix > vector, BOUNDS.index("matrix"), _VECTOR)
        told.slots[some] = used
        return np.where(used <= room, chosen, np.inf)

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
                found = found + count * prices.work(self._plans, work)
            for element, count in case.scalar:
                found = found + count * prices.work(self._plans, element)
            self._plain[case] = found
        return found


def counts_of(case: Plain, in_l2: int) -> Array:
    """``COUNTS`` of a layer without products, as a column."""
    outside = sum(nbytes for _, nbytes in case.far)
    dram = sum(nbytes for bit, nbytes in case.far if not bit & in_l2)
    found = {"dram": dram, "moved": outside + case.near, "sram": case.near, "code": case.code}
    return np.array([[float(found.get(name, 0))] for name in COUNTS])
