"""Times of layers on many designs, with the tiles that the compiled search chooses.

There are two times. ``chosen`` returns the one that the compiler compares when it chooses memory areas. Figures of the
result (:class:`LayerFigures`) are closer to the simulation: all DMA channels work in parallel, and the first weights
are loaded while the previous layer ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
"""Resources that may limit a layer; ``LayerFigures.bound`` has their indices."""
_VECTOR, _LOAD, _STORE, _DRAM = (BOUNDS.index(name) for name in ("vector", "load", "store", "dram"))

COUNTS = ("dram", "moved", "code", "sram", "accumulators")
"""Bytes: at the DRAM pins, moved by DMA channels, of commands, moved between SRAM and the matrix unit, and moved in the
accumulators."""

_OPERANDS = {1: "x_bytes", 2: "out_bytes", 4: "other_bytes"}
"""Figures of operands that may be in the L2, by their bit in ``Question.l2``."""


@dataclass(slots=True)
class LayerFigures:
    """Figures of one layer on many designs.

    ``ps``: picoseconds, [designs]. ``counts``: ``COUNTS``, [counts][designs]. ``bound``: an index in ``BOUNDS``.
    ``idle``: picoseconds of the last tile during which the DRAM is idle. ``slots``: bytes of the tiles in SRAM.
    """

    ps: Array
    counts: Array
    bound: npt.NDArray[np.int8]
    idle: Array
    slots: Array

    @classmethod
    def empty(cls, count: int) -> LayerFigures:
        ps, idle, slots = np.zeros((3, count))
        return cls(ps, np.zeros((len(COUNTS), count)), np.zeros(count, np.int8), idle, slots)

    def take(self, rows: Index) -> LayerFigures:
        """The figures of the designs ``rows``."""
        return LayerFigures(self.ps[rows], self.counts[:, rows], self.bound[rows], self.idle[rows], self.slots[rows])

    def put(self, rows: Index, other: LayerFigures, of: Index | slice, parts: int = 1) -> None:
        """Set the figures of ``rows`` to those of ``other`` at ``of``. Times and counts are divided by ``parts``."""
        self.ps[rows], self.bound[rows] = other.ps[of] / parts, other.bound[of]
        self.idle[rows], self.slots[rows] = other.idle[of], other.slots[of]
        self.counts[:, rows] = other.counts[:, of] / parts


class LayerTimes:
    """Times of layers on designs that differ only in numbers.

    ``cores``: cores that share the tiles of each layer. ``real``: the times of the designs themselves, if ``designs``
    have the L2 in place of the DRAM. Then tiles are chosen for ``designs``.
    """

    def __init__(self, designs: Designs, cores: int, real: LayerTimes | None = None) -> None:
        self._designs = designs
        self._real = real or self
        self._cores = cores
        # Most prices do not depend on the size of the SRAM.
        sized = is_left("sram.bytes", designs.config, pricing)
        keys = tuple(key for key in designs.columns if key != "sram.bytes" or sized)
        self._plans, self._columns = designs.alike(keys)
        self._arrays, self._array = designs.seen_by(array_pricing)
        capacity = np.broadcast_to(designs["sram.bytes"], (designs.count,))
        self.capacity: Array = np.floor(capacity / ALIGNMENT) * ALIGNMENT
        self._ways = np.broadcast_to(np.maximum(1, designs["dma.channels"] - 1), (designs.count,))
        self._tiles = TileSearch(self._plans, cores)
        self._alone = TileSearch(self._plans, 1) if cores > 1 else self._tiles
        self._plain: dict[Plain, Array] = {}
        # With several cores, constants of many layers load while the DRAM is idle.
        self._ahead = cores > 1 and not designs.config.compiler.one_by_one

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
        """Picoseconds of a layer on the designs ``rows``, as the compiler compares them; infinite if it does not fit.

        ``near``: bits of the buffers in SRAM, per design. ``room``: bytes for tiles. ``into``: receives the figures of
        the layer, with the buffers whose bits are set in ``l2`` in the L2. ``before``: figures of the previous layer.
        """
        result = np.full(len(rows), np.inf)
        near = near if l2 is None else near | l2 << layer.bits
        codes = np.unique(near)
        asked = []
        for number in codes:
            some = np.arange(len(rows)) if len(codes) == 1 else np.flatnonzero(near == number)
            code, in_l2 = int(number) & (1 << layer.bits) - 1, int(number) >> layer.bits
            case = layer.case(code)
            # Tiles alone depend on what stands for the DRAM.
            told_by = self if into is None else self._real
            if isinstance(case, Plain):
                result[some] = told_by._of_plain(layer, case, rows[some], some, into, in_l2)
            elif isinstance(case, tuple):
                result[some] = told_by._of_attention(layer, case, rows[some], room[some], some, into, in_l2)
            elif case is not None:
                question = self._question(case, rows[some], room[some], layer.in_l2(in_l2), told=into is not None)
                asked.append((some, question))
        self._tiles_of(layer).ask([question for _, question in asked])
        for some, question in asked:
            result[some] = question.latency
            if into is not None:
                into.put(some, self._told(layer, question, rows[some], before), slice(None))
        if into is not None:
            into.ps[np.isinf(result)] = np.inf
        return result

    def _tiles_of(self, layer: EstimatedLayer) -> TileSearch:
        """The search for the tiles of a layer. The tiles of a shard belong to one core."""
        return self._alone if layer.is_cut else self._tiles

    def _question(self, case: Case, rows: Index, room: Array, l2: int = 0, *, told: bool = False) -> Question:
        # Rounded as in the compiler.
        part = np.floor(self._rate(self._designs["sram.bytes"], rows) / PARTS)
        pieces = self._rate(pieces_of(self._designs, case), rows)
        near = l2 if self._real is self else 0  # in place of the DRAM, the L2 has the price of all transfers
        return Question(case, self._columns[rows], np.floor(room / part) * part, pieces, told=told, l2=l2, near=near)

    def _told(
        self, layer: EstimatedLayer, question: Question, rows: Index, before: LayerFigures | None = None
    ) -> LayerFigures:
        """Figures of the chosen tiles: loads run in parallel on all channels but one, which is for stores; the first
        weights are loaded during the last tile of the previous layer (``before``)."""
        designs = self._real._designs
        case, problem, told, share = question.case, question.case.problem, question.figures, layer.share
        outside = [0.0 if question.l2 & bit else told[name] for bit, name in _OPERANDS.items()]
        dram, l2 = sum(outside), sum(told[name] for name in _OPERANDS.values()) - sum(outside)
        constants = told["constant_bytes"]
        # If both directions have their own ports, the one with more bytes counts.
        writes = outside[1] if designs.config.interconnect.separate_write_port else 0.0
        code = (told["copies"] + told["tiles"] * len(case.chain.many)) * COPY_CODE + told["steps"] * PRODUCT_CODE
        bus = share * PS / self._rate(prices.bandwidth(designs), rows)
        if designs.config.constants is None:
            shared = np.maximum(dram + constants - writes, writes) * bus
        else:
            apart = share * PS / self._rate(prices.bandwidth(designs, constants=True), rows)
            shared = np.maximum(np.maximum(dram - writes, writes) * bus, constants * apart)
        if question.l2:
            near = self._rate(prices.bandwidth(designs.l2_side()), rows)
            shared = np.maximum(shared, l2 * share * PS / near)
        whole = case.height / problem.oh
        loading = told["loading"] / self._ways[rows]
        parts = np.stack([told["compute"], told["chain"], loading, told["storing"], shared]) * whole
        parts[_DRAM] += self._real._fetching(code * whole * share, rows)
        groups, oh, ow, oc, ic, kh, kw = (told[name] for name in ("groups", "oh", "ow", "oc", "ic", "kh", "kw"))
        if before is not None:
            weights = groups * oc * (1 if problem.depthwise else ic) * kh * kw * problem.w_type.itemsize
            early = np.minimum(told["weights"], before.idle[rows]) * (
                before.slots[rows] + weights <= self.capacity[rows]
            )
            if self._ahead:  # both slots of weights may be loaded
                early = np.minimum(early * np.clip(constants / np.maximum(weights, 1), 1, 2), before.idle[rows])
            parts[[_LOAD, _DRAM]] = np.maximum(0, parts[[_LOAD, _DRAM]] - early)
        longest = parts.max(0)
        ps = longest + (parts.sum(0) - longest) / OVERLAP + told["begin"] * whole
        if self._ahead:  # the DRAM continues with the weights of following layers
            beside = np.delete(parts, _DRAM, 0)
            computing = beside.max(0) + (beside.sum(0) - beside.max(0)) / OVERLAP + told["begin"] * whole
            ps = np.maximum(computing, parts[_DRAM])
        # Tiles at the edges are smaller, so the number of tiles is fractional.
        tiles = problem.images * problem.oh / oh * (problem.ow / ow) * (problem.groups / groups) * (problem.oc / oc)
        tiles = tiles * (problem.kh / kh) * (problem.kw / kw)
        arrays = self._arrays.take(self._array[rows])
        streams, sums = prices.touched(arrays, problem, groups, oh, ow, oc, ic, kh, kw)
        counts = [dram + constants, told["moved"], code]
        counts += [streams * tiles * (problem.ic / ic), sums * tiles * prices.up(problem.ic, ic)]
        idle = np.maximum(0, longest - parts[_DRAM])
        if self._ahead:
            idle = ps - parts[_DRAM] - (0 if before is None else early)
        else:
            idle = idle / (told["per_core"] * told["steps"] / told["tiles"] * whole)
        figures = np.stack(counts) * whole * share
        return LayerFigures(ps, figures, parts.argmax(0).astype(np.int8), idle, told["bytes"])

    def pays(self, nbytes: int) -> npt.NDArray[np.bool_]:
        """Whether writing and reading ``nbytes`` takes no longer with the L2 than with DRAM, by design."""
        size = np.array([[float(nbytes)]])

        def there_and_back(side: Designs) -> Array:
            ways = [prices.move(side, way, size, size, np.zeros((1, 1)))[0] for way in ("read", "write")]
            found: Array = (ways[0] + ways[1])[0]
            return found

        near, far = there_and_back(self._plans.l2_side()), there_and_back(self._plans)
        return self._priced(near <= far, np.arange(self._designs.count))

    def _rate(self, values: Array, rows: Index) -> Array:
        """Values of all designs, or one for all, at the designs ``rows``."""
        return np.broadcast_to(values, (self._designs.count,))[rows]

    def _priced(self, values: npt.NDArray[Any], rows: Index) -> npt.NDArray[Any]:
        """Values of all plans, or one for all, at the designs ``rows``: many designs share a plan's prices."""
        return np.broadcast_to(values, (self._plans.count,))[self._columns[rows]]

    def _fetching(self, nbytes: Array | float, rows: Index) -> Array:
        """Picoseconds in which the DRAM delivers commands; 0 if they have their own port."""
        if self._designs.config.interconnect.separate_code_port:
            return np.zeros(len(rows))
        found: Array = nbytes * PS / self._rate(prices.bandwidth(self._designs), rows)
        return found

    def _of_plain(
        self, layer: EstimatedLayer, case: Plain, rows: Index, some: Index, into: LayerFigures | None, in_l2: int
    ) -> Array:
        plans, share = self._plans, layer.share
        cores = 1 if self._designs.config.compiler.shares == "products" or layer.is_cut else self._cores
        compute = self._priced(self._computing(case), rows) / cores
        beyond = sum(nbytes for bit, nbytes in case.far if bit & in_l2)
        outside = sum(nbytes for _, nbytes in case.far) - beyond
        far = self._priced(np.minimum(prices.bandwidth(plans) / share, prices.channel(plans)), rows)
        near = self._priced(prices.local_rate(plans), rows)
        moving = outside * PS / far + case.near * PS / near + self._fetching(case.code * share, rows)
        if beyond:
            side = plans.l2_side()
            rate = np.minimum(prices.bandwidth(side) / share, prices.channel(side))
            moving = moving + self._priced(beyond * PS / rate, rows)
        moving = np.maximum(moving, self._words(case, rows, moving) / (1 if layer.is_cut else self._cores))
        longest = np.maximum(compute, moving)
        ps: Array = longest + (compute + moving - longest) / OVERLAP
        if into is not None:
            counts = np.broadcast_to(counts_of(case, in_l2) * share, (len(COUNTS), len(rows)))
            bound = np.where(moving > compute, np.int8(_DRAM), np.int8(_VECTOR))
            idle, slots = np.maximum(0, compute - moving), np.full(len(rows), float(case.slots))
            # Nothing hides the first load and the last store.
            alone = sum((prices.work(plans, work) for work in case.ends), np.zeros(1))
            told = ps + self._priced(alone, rows)
            into.put(some, LayerFigures(told, counts, bound, idle, slots), slice(None))
        return ps

    def _of_attention(
        self,
        layer: EstimatedLayer,
        sizes: tuple[RowBlocks, ...],
        rows: Index,
        room: Array,
        some: Index,
        into: LayerFigures | None,
        in_l2: int,
    ) -> Array:
        """Times of a fused attention, with blocks as the compiler chooses them."""
        found = np.full((len(sizes), len(rows)), np.inf)
        told = [LayerFigures.empty(len(rows)) for _ in sizes]
        left = np.full(len(rows), CHOICES)
        for number, blocks in enumerate(sizes):
            asking = np.flatnonzero(left)
            if len(asking):
                found[number, asking] = self._in_blocks(
                    layer, blocks, rows[asking], room[asking], asking, told[number], in_l2
                )
                left -= np.isfinite(found[number])
        near = found <= np.floor(found.min(0) * (100 + SLACK_PERCENT) / 100)
        chosen = near.argmax(0)
        result: Array = found[chosen, np.arange(len(rows))]
        for number, figures in enumerate(told if into is not None else ()):
            mine = np.flatnonzero((chosen == number) & np.isfinite(result))
            if into is not None:
                into.put(some[mine], figures, mine)
        return result

    def _in_blocks(
        self,
        layer: EstimatedLayer,
        blocks: RowBlocks,
        rows: Index,
        room: Array,
        some: Index,
        told: LayerFigures,
        in_l2: int,
    ) -> Array:
        """Picoseconds according to :func:`attention_latency`; infinite where a block does not fit."""
        plans, count, search = self._plans, blocks.count, self._tiles_of(layer)
        cores = 1 if layer.is_cut else self._cores
        used = np.full(len(rows), float(blocks.windows))
        matrix, vector, sram, sums = np.zeros((4, len(rows)))
        for part in blocks.parts:
            if part.product is not None:
                question = self._question(part.product, rows, np.maximum(room - used, 1), told=True)
                search.ask([question])
                figures, problem = question.figures, part.product.problem
                used += np.where(np.isinf(question.latency), np.inf, figures["bytes"])
                matrix += figures["computing"] * blocks.of_image
                sizes = (figures[name] for name in ("groups", "oh", "ow", "oc", "ic", "kh", "kw"))
                streams, accumulators = prices.touched(self._arrays.take(self._array[rows]), problem, *sizes)
                tiles = count * problem.ow / figures["ow"] * (problem.oc / figures["oc"])
                sram += streams * tiles * (problem.ic / figures["ic"])
                sums += accumulators * tiles * prices.up(problem.ic, figures["ic"])
            begin, kilo = (self._priced(each, rows) for each in part.chain.times(plans))
            vector += count * (begin + np.floor(kilo * part.elements / 1024))
            used += part.slots
        far, near = (
            self._priced(sum((n * prices.work(plans, work) for work, n in works), np.zeros(1)), rows)
            for works in (blocks.far, blocks.near)
        )
        traffic = float(sum(n * work.bytes for work, n in blocks.far))
        channels, bandwidth = (self._rate(self._designs[key], rows) for key in ("dma.channels", "dram.bandwidth"))
        parts = matrix, vector, far
        chosen = attention_latency(*parts, traffic, count, cores, channels, bandwidth)
        moved = traffic + sum(n * work.bytes for work, n in blocks.near)
        beyond = float(sum(nbytes for bit, nbytes in blocks.in_l2 if bit & in_l2))
        code = float(len(blocks.parts) * count * PRODUCT_CODE + sum(n for _, n in blocks.far) * COPY_CODE)
        # Copies within SRAM occupy channels as well.
        bus = (traffic - beyond + code) * layer.share
        ps = attention_latency(matrix, vector, far + near, bus, count, cores, channels, bandwidth)
        hidden = matrix + vector + far + near - np.maximum(np.maximum(matrix, vector), far + near)
        told.ps[some] = ps + hidden / OVERLAP / cores
        told.counts[:, some] = np.stack(np.broadcast_arrays(traffic - beyond, moved, code, sram, sums)) * layer.share
        told.bound[some] = np.where(matrix > vector, BOUNDS.index("matrix"), _VECTOR)
        told.slots[some] = used
        return np.where(used <= room, chosen, np.inf)

    def _words(self, case: Plain, rows: Index, moving: Array) -> Array:
        """Picoseconds of transposing transfers, whose bytes alone take ``moving``.

        Loads into two slots use all channels but one, stores use that one. A single channel does both.
        """
        if not (case.loaded or case.stored):
            return moving
        plans = self._plans
        width, tick = plans["dma.bytes_per_cycle"], PS / plans["clock"]

        def of(runs: tuple[tuple[tuple[int, int], int], ...]) -> Array:
            found: Array = (
                sum((count * each * prices.up(size, width) for (each, size), count in runs), np.zeros(1)) * tick
            )
            return self._priced(found, rows)

        loads, stores = of(case.loaded), of(case.stored)
        several = np.maximum(loads / np.minimum(2, self._ways[rows]), stores)
        alone = plans["dma.channels"] == 1
        found: Array = np.where(self._priced(alone, rows), loads + stores + moving / 2, several)
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
    """``COUNTS`` of a layer without matrix products, as a column."""
    outside = sum(nbytes for _, nbytes in case.far)
    dram = sum(nbytes for bit, nbytes in case.far if not bit & in_l2)
    found = {"dram": dram, "moved": outside + case.near, "sram": case.near, "code": case.code}
    return np.array([[float(found.get(name, 0))] for name in COUNTS])
