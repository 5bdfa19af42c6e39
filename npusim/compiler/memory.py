"""Which values live on the chip: each in SRAM as a whole while it is wanted, in a window of a segment, or in DRAM; and
where the slots lie between.

A value in SRAM costs no traffic, and the room that it takes from the tiles of every group that runs meanwhile. So each
is tried, those first whose bytes are moved most for the room that they take, and kept where the estimates of all groups
of its life together fall. What is left in DRAM between neighbours is the reason for segments (see ``stripes``): the
cuts between them are those of least estimated time. With the segments known, values are tried once more. A device of
several cores keeps values in DRAM: its cores have no way into each other's SRAM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from npusim.compiler.groups import Group
from npusim.compiler.kinds import lower
from npusim.compiler.lower.base import Context, Lowering, SlotSpec, refuse_size, sram_budget, total_bytes
from npusim.compiler.place import Placement
from npusim.compiler.stripes import Inner, Segment, cut, inners, rows_of
from npusim.compiler.tile import acc_bytes
from npusim.compiler.values import Arena, Buffer, align
from npusim.errors import CompileError
from npusim.graph import Tensor
from npusim.isa.base import Space
from npusim.isa.matrix import packed_bytes
from npusim.units import ceil_div

Span = tuple[int, int]
"""First byte and the one after the last."""


@dataclass(slots=True)
class Stretch:
    """Groups that run together: one, or those of a segment."""

    groups: list[Group]
    segment: Segment | None = None
    resident: list[Buffer] = field(default_factory=list)
    """What is in SRAM meanwhile, by offset."""

    @property
    def is_empty(self) -> bool:
        """No result has elements: there is nothing to do."""
        return not any(prod(tensor.shape) for group in self.groups for tensor in group.outputs)

    def free(self, context: Context) -> list[Span]:
        """The bytes of SRAM for slots."""
        spans, at = [], 0
        for buffer in self.resident:
            if buffer.offset > at:
                spans.append((at, buffer.offset))
            at = align(buffer.offset + max(buffer.nbytes, 1))
        if at < (end := sram_budget(context.config)):
            spans.append((at, end))
        return spans


@dataclass(slots=True)
class Layout:
    """What runs together, in order, and the bytes of DRAM for values."""

    stretches: list[Stretch]
    scratch_bytes: int = 0


def plan(placement: Placement, context: Context, *, stripes: bool = True) -> Layout:
    """Choose the home of every buffer and lay all of them out; without ``stripes`` there are no segments."""
    layout = Layout([Stretch([group]) for group in placement.groups])
    if context.config.cores == 1:
        layout.stretches = _Planner(placement, context).run(stripes=stripes)
        # What became a window has no bytes of its own any more.
        used = {
            context.view(t).buffer
            for group in placement.groups
            for op in group.ops
            for t in (*op.inputs, *op.outputs)
            if t in context.views
        }
        placement.buffers = [buffer for buffer in placement.buffers if buffer in used or not buffer.is_scratch]
    arena = Arena()
    for buffer in sorted(filter(lambda each: each.is_scratch, placement.buffers), key=lambda each: each.born):
        arena.place(buffer)
    layout.scratch_bytes = arena.nbytes
    return layout


def place_slots(specs: Sequence[SlotSpec], free: Sequence[Span], *, low_end: bool) -> list[int] | None:
    """Where each copy of each slot in SRAM begins; None where they do not fit.

    ``low_end``: from the low end of what is free, else from the high end: neighbouring groups use opposite ends, so
    that one may load while the other still computes.
    """
    sizes = [align(max(spec.nbytes, 1)) for spec in specs if spec.space is Space.SRAM for _ in range(spec.copies)]
    spans = list(free) if low_end else list(reversed(free))
    taken = sum(sizes)
    for low, high in spans:
        if high - low >= taken:
            start = low if low_end else high - taken
            return [start + sum(sizes[:number]) for number in range(len(sizes))]
    starts = []
    for size in sizes:
        number = next((n for n, (low, high) in enumerate(spans) if high - low >= size), None)
        if number is None:
            return None
        low, high = spans[number]
        starts.append(low if low_end else high - size)
        spans[number] = (low + size, high) if low_end else (low, high - size)
    return starts


@dataclass(slots=True)
class Fitted:
    """The lowerings of a stretch and where their slots begin."""

    lowerings: list[Lowering]
    specs: list[list[SlotSpec]]
    starts: list[list[int]]


def fit(stretch: Stretch, context: Context, *, low_end: bool = True) -> Fitted:
    """A stretch's lowerings, with tiles that fit between the values of its time. Raises CompileError if none do."""
    free = stretch.free(context)
    # What is free in pieces may be too small for one slot; tiles for the largest piece fit into it.
    for room in (sum(high - low for low, high in free), max((high - low for low, high in free), default=0)):
        lowerings, specs, left = [], [], room
        for number, group in enumerate(stretch.groups):
            context.room, context.rows = left, stretch.segment.rows[number] if stretch.segment else 0
            lowering = lower(context, group)
            slots = lowering.slots()
            if total_bytes(slots) > left:
                raise refuse_size(group, total_bytes(slots), left)
            if total_bytes(slots, Space.ACC) > acc_bytes(context.config):
                raise refuse_size(group, total_bytes(slots, Space.ACC), acc_bytes(context.config), "accumulators")
            lowerings.append(lowering)
            specs.append(slots)
            left -= total_bytes(slots)
        flat = [spec for slots in specs for spec in slots]
        starts = place_slots(flat, free, low_end=low_end)
        if starts is None:
            starts = place_slots(flat, free, low_end=not low_end)
        if starts is not None:
            places = iter(starts)
            counts = [sum(spec.copies for spec in slots if spec.space is Space.SRAM) for slots in specs]
            return Fitted(lowerings, specs, [[next(places) for _ in range(count)] for count in counts])
    raise refuse_size(stretch.groups[0], sum(map(total_bytes, specs)), room)


class _Planner:
    def __init__(self, placement: Placement, context: Context) -> None:
        self._groups = placement.groups
        self._context = context
        self._capacity = sram_budget(context.config)
        self._candidates = [buffer for buffer in placement.buffers if buffer.is_scratch and buffer.nbytes]
        self._users: dict[Buffer, list[int]] = {buffer: [] for buffer in self._candidates}
        self._tensors: dict[Buffer, dict[Tensor, None]] = {buffer: {} for buffer in self._candidates}
        self._touched: list[list[Buffer]] = [[] for _ in placement.groups]
        # What a group alone takes follows from the homes of what it touches and from what is free: asked many times.
        self._known: dict[tuple[int, tuple[bool, ...], tuple[Span, ...]], int | None] = {}
        for group in placement.groups:
            inside = {tensor for op in group.ops for tensor in op.outputs} - set(group.outputs)
            for tensor in (t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None):
                if tensor not in context.views or tensor in inside:
                    continue
                buffer = context.views[tensor].buffer
                if buffer in self._users:
                    self._tensors[buffer][tensor] = None
                    if group.index not in self._users[buffer][-1:]:
                        self._users[buffer].append(group.index)
                        self._touched[group.index].append(buffer)

    def run(self, *, stripes: bool) -> list[Stretch]:
        stretches = [Stretch([group]) for group in self._groups]
        costs = self._settle(stretches)
        segments = self._segments(stretches, costs) if stripes else []
        if segments:
            stretches = self._with_segments(segments)
            self._settle(stretches)
        return stretches

    def _settle(self, stretches: Sequence[Stretch]) -> list[int]:
        """Choose the values that live in SRAM as a whole; what each stretch then takes."""
        stretch_of = {group.index: number for number, stretch in enumerate(stretches) for group in stretch.groups}
        lives: dict[Buffer, range] = {}
        for buffer in self._candidates:
            if self._is_window(buffer):
                continue
            span = lives[buffer] = range(stretch_of[buffer.born], stretch_of[buffer.dies] + 1)
            # The arena, too, must not give bytes of a value away to others of the same segment.
            buffer.born, buffer.dies = stretches[span.start].groups[0].index, stretches[span.stop - 1].groups[-1].index
        costs = [self._estimate(stretch) for stretch in stretches]

        def worth(buffer: Buffer) -> float:
            return len(self._users[buffer]) / len(lives[buffer])

        candidates = [buffer for buffer in lives if len(lives[buffer]) <= LONGEST_LIFE]
        for buffer in sorted(candidates, key=lambda buffer: (-worth(buffer), buffer.nbytes, buffer.born)):
            life = [stretches[number] for number in lives[buffer]]
            if not self._admit(buffer, life):
                continue
            before = [costs[number] for number in lives[buffer]]
            now = [self._estimate(stretch) for stretch in life]
            if any(cost is None for cost in now) or sum(c or 0 for c in now) >= sum(c or 0 for c in before):
                self._dismiss(buffer, life)
            else:
                for number, cost in zip(lives[buffer], now, strict=True):
                    costs[number] = cost
        return [cost or 0 for cost in costs]

    def _is_window(self, buffer: Buffer) -> bool:
        """Whether a segment has taken the value's place."""
        return all(self._context.views[tensor].buffer is not buffer for tensor in self._tensors[buffer])

    def _admit(self, buffer: Buffer, life: Sequence[Stretch]) -> bool:
        """Put a buffer at the lowest offset where nothing else lives meanwhile, if there is one."""
        rivals = {other for stretch in life for other in stretch.resident}
        offset = 0
        for other in sorted(rivals, key=lambda other: other.offset):
            if other.offset >= offset + buffer.nbytes:
                break
            offset = max(offset, align(other.offset + max(other.nbytes, 1)))
        if offset + buffer.nbytes > self._capacity:
            return False
        buffer.core, buffer.offset = 0, offset
        for stretch in life:
            stretch.resident.append(buffer)
            stretch.resident.sort(key=lambda other: other.offset)
        return True

    def _dismiss(self, buffer: Buffer, life: Sequence[Stretch]) -> None:
        buffer.core, buffer.offset = None, 0
        for stretch in life:
            stretch.resident.remove(buffer)

    def _estimate(self, stretch: Stretch) -> int | None:
        """Picoseconds that a stretch takes as things are; None if it does not fit."""
        if stretch.is_empty:
            return 0
        if stretch.segment is None:
            (group,) = stretch.groups
            near = tuple(buffer.on_chip for buffer in self._touched[group.index])
            key = (group.index, near, tuple(stretch.free(self._context)))
            if key not in self._known:
                self._known[key] = self._estimate_fitted(stretch)
            return self._known[key]
        return self._estimate_fitted(stretch)

    def _estimate_fitted(self, stretch: Stretch) -> int | None:
        try:
            fitted = fit(stretch, self._context)
        except CompileError:
            return None
        if stretch.segment is None:
            return fitted.lowerings[0].estimate()
        weights = sum(map(_weight_bytes, stretch.groups)) * 10**12 // self._context.config.dram.bandwidth
        return max(weights, sum(lowering.estimate() for lowering in fitted.lowerings))

    # segments

    def _segments(self, stretches: Sequence[Stretch], costs: Sequence[int]) -> list[Segment]:
        """The segments that lower the estimate most: dynamic programming over where the groups are cut."""
        best: list[tuple[int, Segment | None, int]] = [(0, None, 0)]
        found: dict[int, list[tuple[int, int, Segment]]] = {}
        for first in range(len(self._groups)):
            for last, cost, segment in self._from(first, stretches):
                found.setdefault(last, []).append((first, cost, segment))
        for number in range(len(self._groups)):
            options: list[tuple[int, Segment | None, int]] = [(best[number][0] + costs[number], None, number)]
            for first, cost, segment in found.get(number, ()):
                options.append((best[first][0] + cost, segment, first))
            best.append(min(options, key=lambda option: (option[0], option[2])))
        chosen, at = [], len(self._groups)
        while at:
            _, taken, before = best[at]
            if taken is not None:
                chosen.append(taken)
            at = before
        return chosen[::-1]

    def _from(self, first: int, stretches: Sequence[Stretch]) -> Iterator[tuple[int, int, Segment]]:
        """Segments that begin with a group: (last group, picoseconds, segment)."""
        end, wanted = min(first + LONGEST, len(self._groups)), first
        for last in range(first, end):
            if rows_of(self._groups[last], self._context) is None:
                return
            # Up to where somebody reads what the groups before the last one make: no segment ends earlier.
            if wanted >= end:
                return
            groups = self._groups[first : last + 1]
            inner = inners(groups, self._context) if last > first and wanted <= last else None
            wanted = max(wanted, self._last_use(self._groups[last]))
            if inner is None or not self._closed(inner, first, last):
                continue
            # Where everything is in SRAM as a whole there is nothing to gain.
            if all(buffer.on_chip for group in groups for buffer in self._touched[group.index]):
                continue
            option = self._best_height(groups, inner, stretches)
            if option is not None:
                yield last, *option

    def _last_use(self, group: Group) -> int:
        """The last group that uses a group's result; beyond all groups if the result leaves."""
        users = self._users.get(self._context.view(group.outputs[0]).buffer)
        return users[-1] if users else len(self._groups)

    def _closed(self, inner: Sequence[Inner], first: int, last: int) -> bool:
        """Nobody outside wants the values, and each has its bytes for itself."""
        for value in inner:
            buffer = self._context.views[value.tensor].buffer
            users = self._users.get(buffer)
            if users is None or users[0] < first or users[-1] > last or len(self._tensors[buffer]) > 1:
                return False
        return True

    def _best_height(
        self, groups: Sequence[Group], inner: Sequence[Inner], stretches: Sequence[Stretch]
    ) -> tuple[int, Segment] | None:
        """The tallest stripes that fit, and what they take."""
        gone = {self._context.views[value.tensor].buffer for value in inner}
        resident = {b for group in groups for b in stretches[group.index].resident if b not in gone}
        room = self._capacity - sum(align(max(buffer.nbytes, 1)) for buffer in resident)
        room -= sum(_weight_bytes(group) for group in groups)
        height = groups[-1].outputs[0].shape[rows_of(groups[-1], self._context) or 0]
        # One stripe for all rows is for several images; of a single one nothing would be saved.
        height = height * 2 if groups[-1].outputs[0].shape[0] > 1 else height
        while height > 1 and room > 0:
            height = ceil_div(height, 2)
            segment = cut(groups, inner, height, self._context)
            if segment is None:
                return None
            left = room - sum(align(window.buffer.nbytes) for window in segment.windows)
            if left <= 0:
                continue
            left += sum(_weight_bytes(group) for group in groups)
            stretch = Stretch(list(groups), segment, [Buffer("taken", 0, self._capacity - left, 0)])
            with _Windows(self._context, segment):
                cost = self._estimate(stretch)
            if cost is not None:
                return cost, segment
        return None

    def _with_segments(self, segments: Sequence[Segment]) -> list[Stretch]:
        """Stretches with these segments, their windows in place; nothing else is in SRAM."""
        for buffer in self._candidates:
            buffer.core, buffer.offset = None, 0
        stretches, at = [], 0
        for segment in segments:
            stretches += [Stretch([group]) for group in self._groups[at : segment.first]]
            stretch = Stretch(self._groups[segment.first : segment.last + 1], segment)
            kept = {window.inner.tensor: self._context.views[window.inner.tensor] for window in segment.windows}
            for window in segment.windows:
                self._admit(window.buffer, [stretch])
                self._context.views[window.inner.tensor] = window.view
            if self._estimate(stretch) is None:
                self._context.views.update(kept)
                stretches += [Stretch([group]) for group in stretch.groups]
            else:
                stretches.append(stretch)
            at = segment.last + 1
        return stretches + [Stretch([group]) for group in self._groups[at:]]


def _weight_bytes(group: Group) -> int:
    anchor = group.anchor
    if anchor is None or anchor.kind != "conv":
        return 0
    return packed_bytes(anchor.input(1).size, anchor.input(1).dtype, anchor.attrs["w_bits"])


class _Windows:
    """While this is active, the values inside of a segment are windows in SRAM."""

    def __init__(self, context: Context, segment: Segment) -> None:
        self._context = context
        self._segment = segment
        self._kept = {window.inner.tensor: context.views[window.inner.tensor] for window in segment.windows}

    def __enter__(self) -> None:
        for window in self._segment.windows:
            window.buffer.core = 0
            self._context.views[window.inner.tensor] = window.view

    def __exit__(self, *error: object) -> None:
        self._context.views.update(self._kept)


LONGEST = 16
"""Groups in a segment at most."""
LONGEST_LIFE = 24
"""A value that is wanted for more stretches is not tried in SRAM: each of them would be estimated for it."""
