"""Which values live on the chip: each in SRAM as a whole while it is wanted, or in DRAM; and where the slots lie between.

A value in SRAM costs no traffic, and the room that it takes from the tiles of every group that runs meanwhile. So each
is tried, those first whose bytes are moved most for the room that they take, and kept where the estimates of all groups
of its life together fall. A device of several cores keeps values in DRAM: its cores have no way into each other's SRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from npusim.compiler.groups import Group
from npusim.compiler.kinds import lower
from npusim.compiler.lower.base import Context, Lowering, SlotSpec, sram_budget
from npusim.compiler.place import Placement
from npusim.compiler.values import Arena, Buffer, align
from npusim.errors import CompileError
from npusim.isa.base import Space

Span = tuple[int, int]
"""First byte and the one after the last."""


@dataclass(slots=True)
class Layout:
    """Where values are while groups run; ``resident``: for each group the buffers in SRAM, by offset."""

    scratch_bytes: int = 0
    resident: list[list[Buffer]] = field(default_factory=list)

    def free(self, group: Group, context: Context) -> list[Span]:
        """The bytes of SRAM that a group has for its slots."""
        spans, at = [], 0
        for buffer in self.resident[group.index]:
            if buffer.offset > at:
                spans.append((at, buffer.offset))
            at = align(buffer.offset + max(buffer.nbytes, 1))
        if at < (end := sram_budget(context.config)):
            spans.append((at, end))
        return spans


def plan(placement: Placement, context: Context) -> Layout:
    """Choose the home of every buffer and lay all of them out."""
    layout = Layout(resident=[[] for _ in placement.groups])
    if context.config.cores == 1:
        _Planner(placement, context, layout).run()
    arena = Arena()
    for buffer in placement.buffers:
        if buffer.is_scratch:
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


def fit(group: Group, context: Context, free: Sequence[Span]) -> tuple[Lowering, list[SlotSpec]]:
    """A group's lowering with tiles that fit between the values of its time. Raises CompileError if none does."""
    context.room = sum(high - low for low, high in free)
    lowering = lower(context, group)
    specs = lowering.slots()
    if place_slots(specs, free, low_end=True) is None or place_slots(specs, free, low_end=False) is None:
        # What is free in pieces may be too small for one slot; tiles for the largest piece fit into it.
        context.room = max((high - low for low, high in free), default=0)
        lowering = lower(context, group)
        specs = lowering.slots()
    return lowering, specs


class _Planner:
    def __init__(self, placement: Placement, context: Context, layout: Layout) -> None:
        self._groups = placement.groups
        self._context = context
        self._layout = layout
        self._candidates = [buffer for buffer in placement.buffers if buffer.is_scratch and buffer.nbytes]
        self._touched: dict[Buffer, int] = dict.fromkeys(self._candidates, 0)
        for group in placement.groups:
            for buffer in {
                context.views[tensor].buffer
                for op in group.ops
                for tensor in (*op.inputs, *op.outputs)
                if tensor in context.views
            }:
                if buffer in self._touched:
                    self._touched[buffer] += 1

    def run(self) -> None:
        capacity = sram_budget(self._context.config)
        costs = [self._estimate(group) for group in self._groups]

        def worth(buffer: Buffer) -> float:
            return self._touched[buffer] / (buffer.dies - buffer.born + 1)

        for buffer in sorted(self._candidates, key=lambda buffer: (-worth(buffer), buffer.nbytes, buffer.born)):
            offset = self._gap(buffer, capacity)
            if offset is None:
                continue
            life = range(buffer.born, buffer.dies + 1)
            buffer.core, buffer.offset = 0, offset
            for index in life:
                self._layout.resident[index].append(buffer)
                self._layout.resident[index].sort(key=lambda other: other.offset)
            before = [costs[index] for index in life]
            now = [self._estimate(self._groups[index]) for index in life]
            if any(cost is None for cost in now) or sum(c or 0 for c in now) >= sum(c or 0 for c in before):
                buffer.core, buffer.offset = None, 0
                for index in life:
                    self._layout.resident[index].remove(buffer)
            else:
                for index, cost in zip(life, now, strict=True):
                    costs[index] = cost

    def _gap(self, buffer: Buffer, capacity: int) -> int | None:
        """The lowest offset at which nothing else lives meanwhile."""
        life = range(buffer.born, buffer.dies + 1)
        rivals = {other for index in life for other in self._layout.resident[index]}
        offset = 0
        for other in sorted(rivals, key=lambda other: other.offset):
            if other.offset >= offset + buffer.nbytes:
                break
            offset = max(offset, align(other.offset + max(other.nbytes, 1)))
        return offset if offset + buffer.nbytes <= capacity else None

    def _estimate(self, group: Group) -> int | None:
        """What a group takes as things are; None if it does not fit."""
        try:
            lowering, specs = fit(group, self._context, self._layout.free(group, self._context))
        except CompileError:
            return None
        free = self._layout.free(group, self._context)
        if place_slots(specs, free, low_end=True) is None:
            return None
        return lowering.estimate()
