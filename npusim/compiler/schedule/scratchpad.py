"""Fit a step of a schedule into the scratchpad: lowerings with tiles for the bytes that values leave, and their slots.

Planning asks for this many times for groups that are alike. A lowering that is made for an estimate is therefore reused
for all groups with the same key (``likeness``), and only adapted to the room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering, SlotSpec, refuse_size, total_bytes
from npusim.compiler.lower.kinds import lower
from npusim.compiler.schedule.cascade import Cascade
from npusim.compiler.schedule.likeness import seen, weight_bytes
from npusim.compiler.schedule.rolling_buffer import RollingBuffer
from npusim.compiler.schedule.slots import Span, ahead, copies_of, deeper, filled, place_slots
from npusim.errors import CompileError
from npusim.hw.memory import align
from npusim.isa.base import Space
from npusim.timing.tile import acc_bytes
from npusim.units import ceil_div

MadeAlike = dict[int, dict[int, Lowering]]
"""Lowerings made for estimates of groups with the same key: by the rows that are made at once, and by their room."""
Made = dict[tuple[Any, ...], MadeAlike]
"""All of them, by the key."""


@dataclass(slots=True)
class ScheduleStep:
    """Groups that run together: one, or those of a cascade."""

    groups: list[Group]
    cascade: Cascade | None = None
    resident: list[Buffer] = field(default_factory=list)
    """Values and rolling buffers that are in the scratchpad meanwhile, by address."""
    made: list[MadeAlike] | None = None
    """The lowerings that estimates of each group may reuse, found once for all heights of a cascade: it is only set
    while memory areas do not change."""

    @property
    def is_empty(self) -> bool:
        """Whether no result has elements, so that there is nothing to do."""
        return not any(prod(tensor.shape) for group in self.groups for tensor in group.outputs)

    def free(self, context: Context) -> list[Span]:
        """The bytes of the scratchpad for slots."""
        spans, at = [], 0
        for buffer in self.resident:
            if buffer.offset > at:
                spans.append((at, buffer.offset))
            at = align(buffer.offset + max(buffer.nbytes, 1))
        if at < (end := context.sram_bytes):
            spans.append((at, end))
        return spans


@contextmanager
def rolling_views(context: Context, buffers: Sequence[RollingBuffer]) -> Iterator[None]:
    """While this is active, the context has the views of values in their rolling buffers."""
    whole = {each.value.tensor: context.views[each.value.tensor] for each in buffers}
    for each in buffers:
        each.buffer.core = 0
        context.views[each.value.tensor] = each.view
    try:
        yield
    finally:
        context.views.update(whole)


@dataclass(slots=True)
class Fitted:
    """The lowerings of a step and the addresses of their slots, which an estimate leaves out."""

    lowerings: list[Lowering]
    specs: list[list[SlotSpec]]
    starts: list[list[int]]

    def taken(self) -> list[Span]:
        """The bytes of the scratchpad that the slots take."""
        found = []
        for specs, starts in zip(self.specs, self.starts, strict=True):
            sizes = [max(spec.nbytes, 1) for spec in specs if spec.space is Space.SRAM for _ in range(spec.copies)]
            found += [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        return found


def fit_in_turn(
    steps: Sequence[ScheduleStep],
    fit_one: Callable[[ScheduleStep, bool, Sequence[Span]], Fitted],
    apart: int = 1,
) -> Iterator[tuple[ScheduleStep, Fitted | None]]:
    """Fit one step after the other, each away from the bytes of its neighbours; None for a step without work.

    ``fit_one(step, low_end, avoid)``: see :func:`fit`. ``apart``: how many steps before it count, the nearest most.
    """
    low_end = True
    last: deque[list[Span]] = deque(maxlen=apart)
    for number, step in enumerate(steps):
        if step.is_empty:
            yield step, None
            continue
        here = set(step.resident)
        # The step before reads its values to its end, and the one behind loads its own early: neither should wait.
        beside = [each.resident for each in steps[max(number - 1, 0) : number + 2]]
        others = [buffer for resident in beside for buffer in resident if buffer not in here]
        before = [span for weight, spans in enumerate(last, 1) for span in spans * weight]
        beside_it = [(buffer.offset, buffer.offset + buffer.nbytes) for buffer in others]
        avoid = before + beside_it * max(len(last), 1)
        fitted = fit_one(step, low_end, avoid)
        low_end = not low_end
        last.append(fitted.taken())
        yield step, fitted


def fit(
    step: ScheduleStep, context: Context, low_end: bool = True, avoid: Sequence[Span] = (), made: Made | None = None
) -> Fitted:
    """A step's lowerings with tiles that fit between the values of its time. ``low_end``, ``avoid``: see
    :func:`place_slots`. ``made``: lowerings for estimates, to reuse and to add to. Raises CompileError if none fit."""
    with rolling_views(context, step.cascade.loaded if step.cascade else ()):
        free = step.free(context)
        largest = max([high - low for low, high in free], default=0)
        alike = None if made is None else _made_for(step, context, made)
        # First for all free bytes. They may be in pieces that are too small for a slot; then for the largest piece.
        for room in (sum([high - low for low, high in free]), largest):
            lowerings, specs, total = _lower_all(step, context, room, alike)
            # An estimate needs no addresses if there is a piece for all slots.
            if made is not None and total <= largest:
                return Fitted(lowerings, specs, [])
            starts = _starts(step, specs, free, low_end, avoid)
            if starts is not None:
                return Fitted(lowerings, specs, starts)
        raise refuse_size(step.groups[0], sum(map(total_bytes, specs)), room)


def _made_for(step: ScheduleStep, context: Context, made: Made) -> list[MadeAlike]:
    """The reusable lowerings of each group of a step."""
    alike = step.made or [made.setdefault(seen(context, group), {}) for group in step.groups]
    if step.made is not None:
        step.made[:] = alike
    return alike


def _lower_all(
    step: ScheduleStep, context: Context, room: int, alike: Sequence[MadeAlike] | None
) -> tuple[list[Lowering], list[list[SlotSpec]], int]:
    """The lowerings of a step's groups in ``room`` bytes, their slots, and the bytes of these."""
    lowerings: list[Lowering] = []
    specs: list[list[SlotSpec]] = []
    total = 0
    held = [weight_bytes(context, group) if step.cascade else 0 for group in step.groups]
    left, behind = room, sum(held)
    for number, group in enumerate(step.groups):
        # The weights of all groups have to fit. Of the remaining bytes each group but the last tries half first, so
        # that the ones behind it have as large tiles.
        behind -= held[number]
        most = left - behind
        shares = (most, (held[number] + most) // 2) if number < len(held) - 1 else (most,)
        context.rows = step.cascade.rows[number] if step.cascade else 0
        lowering, slots, taken = _lowered(context, group, shares, alike[number] if alike else None)
        left -= taken
        if not step.cascade and context.config.dma.in_flight > 1:
            slots = _with_copies(slots, room, context)
            taken = total_bytes(slots)
        elif not step.cascade and alike is None and max(context.beside, context.config.cores) > 1:
            slots = ahead(slots, room, ceil_div(lowering.turns(), context.config.cores))
            taken = total_bytes(slots)
        lowerings.append(lowering)
        specs.append(slots)
        total += taken
    return lowerings, specs, total


def _with_copies(slots: list[SlotSpec], room: int, context: Context) -> list[SlotSpec]:
    """Slots with copies for loads that run several transfers ahead."""
    matrix, in_flight = context.config.matrix, context.config.dma.in_flight
    slots = deeper(slots, room, in_flight)
    if matrix is not None and matrix.direct is not None and matrix.direct.whole_jobs:
        slots = filled(slots, room, in_flight)
    return slots


def _starts(
    step: ScheduleStep, specs: Sequence[Sequence[SlotSpec]], free: Sequence[Span], low_end: bool, avoid: Sequence[Span]
) -> list[list[int]] | None:
    """The addresses of the slots of each group; None if they do not fit."""
    flat = [spec for slots in specs for spec in slots]
    urgent = len(specs[0]) if step.cascade else 0
    starts = place_slots(flat, free, low_end=low_end, avoid=avoid, urgent=urgent)
    if starts is None:
        starts = place_slots(flat, free, low_end=not low_end)
    if starts is None:
        return None
    addresses = iter(starts)
    return [list(islice(addresses, copies_of(slots))) for slots in specs]


def _lowered(
    context: Context, group: Group, rooms: Sequence[int], made: MadeAlike | None
) -> tuple[Lowering, list[SlotSpec], int]:
    """A group's lowering in the last of some rooms, the smallest, where it fits, its slots and their bytes. Raises
    CompileError if it fits in none."""
    context.room = rooms[-1]
    try:
        lowering = lower(context, group) if made is None else _reused(context, group, made)
        slots = lowering.slots()
        taken, sums = lowering.taken(slots)
        if taken > context.room:
            raise refuse_size(group, taken, context.room)
        if sums > acc_bytes(context.config):
            raise refuse_size(group, sums, acc_bytes(context.config), "accumulators")
    except CompileError:
        if len(rooms) == 1:
            raise
        return _lowered(context, group, rooms[:-1], made)
    return lowering, slots, taken


def _reused(context: Context, group: Group, made: MadeAlike) -> Lowering:
    """A group's lowering for an estimate: one for the same key, adapted to the room and the rows if possible."""
    again: Lowering | None = None
    # A group's first lowering is its own: making it places the group's constants.
    if made and ("made", group) in context.memo:
        rooms = made.get(context.rows)
        known = next(iter((rooms or next(iter(made.values()))).values()))
        again = rooms.get(context.room) or known.in_room() if rooms else known.in_rows()
    if again is None:
        context.memo["made", group] = True
        again = lower(context, group)
    if again.can_share:
        made.setdefault(context.rows, {})[context.room] = again
    return again
