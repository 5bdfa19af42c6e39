"""Fit a step of a schedule into the scratchpad: choose tiles for the bytes that values leave free, and addresses for
slots.

Planning does this many times for groups that are alike. A lowering made for an estimate is therefore reused for all
groups with the same key (``likeness``), and only adapted to the available bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any, NamedTuple

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering, SlotSpec, refuse_size, total_bytes
from npusim.compiler.lower.kinds import lower
from npusim.compiler.schedule.cascade import Cascade
from npusim.compiler.schedule.likeness import seen, weight_bytes
from npusim.compiler.schedule.rolling_buffer import RollingBuffer
from npusim.compiler.schedule.slots import (
    CONSTANTS,
    LastUses,
    Span,
    ahead,
    copies_of,
    deeper,
    filled,
    place_slots,
    sizes_of,
    without,
)
from npusim.errors import CompileError
from npusim.hw.memory import ALIGNMENT, align
from npusim.isa.base import Space
from npusim.timing.tile import acc_bytes
from npusim.units import ceil_div

MadeAlike = dict[int, dict[int, Lowering]]
"""Lowerings made for estimates of groups with one key: by the rows per stripe, then by the available bytes."""
Made = dict[tuple[Any, ...], MadeAlike]
"""All such lowerings, by key."""


@dataclass(slots=True)
class ScheduleStep:
    """Groups that run together: one group, or those of a cascade."""

    groups: list[Group]
    cascade: Cascade | None = None
    resident: list[Buffer] = field(default_factory=list)
    """Values and rolling buffers that are in the scratchpad during the step, sorted by address."""
    made: list[MadeAlike] | None = None
    """The lowerings that estimates of each group may reuse, looked up once for all stripe heights of a cascade. Only
    set while memory areas do not change."""

    @property
    def rolling_between(self) -> list[RollingBuffer]:
        """The rolling buffers of the values between the groups of a cascade."""
        return self.cascade.between if self.cascade is not None else []

    @property
    def is_empty(self) -> bool:
        """Whether no result has elements, so that there is nothing to do."""
        return not any(prod(tensor.shape) for group in self.groups for tensor in group.outputs)

    def free(self, context: Context) -> list[Span]:
        """The gaps of the scratchpad that are available for slots."""
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
    """Context manager: the context has the views of these values in their rolling buffers."""
    whole = {tensor: context.views[tensor] for each in buffers for tensor in each.views}
    for each in buffers:
        each.buffer.core = 0 if each.buffer.core is None else each.buffer.core
        context.views.update(each.views)
    try:
        yield
    finally:
        context.views.update(whole)


class Avoided(NamedTuple):
    """Bytes of the scratchpad that the slots of a step should not use.

    ``beside``: byte ranges of the neighbouring steps. ``uses``: the last use of each byte, if constants are loaded many
    steps ahead. ``number``: the number of the step.
    """

    beside: Sequence[Span] = ()
    uses: LastUses | None = None
    number: int = 0


@dataclass(slots=True)
class Fitted:
    """The lowerings of a step, their slots, and the addresses of these. Estimates have no addresses."""

    lowerings: list[Lowering]
    specs: list[list[SlotSpec]]
    starts: list[list[int]]

    def taken(self) -> list[Span]:
        """The byte ranges of the scratchpad that the slots occupy."""
        return [span for number in range(len(self.specs)) for span in self.taken_by(number)]

    def taken_by(self, number: int) -> list[Span]:
        """The byte ranges of the slots of one lowering."""
        specs, starts = self.specs[number], self.starts[number]
        sizes = [max(spec.nbytes, 1) for spec in specs if spec.space is Space.SRAM for _ in range(spec.copies)]
        return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def fit_in_turn(
    steps: Sequence[ScheduleStep],
    fit_one: Callable[[ScheduleStep, bool, Avoided], Fitted],
    *,
    far: bool = False,
) -> Iterator[tuple[ScheduleStep, Fitted | None]]:
    """Fit one step after another, each away from the bytes that its neighbours use. Yields None for a step without
    work.

    ``fit_one(step, low_end, avoid)``: see :func:`fit`. ``far``: constants are loaded many steps ahead.
    """
    low_end = began = True
    last: list[Span] = []
    uses = LastUses() if far else None
    for number, step in enumerate(steps):
        if step.is_empty:
            yield step, None
            continue
        here = set(step.resident)
        # The previous step reads its values until its end, and the next one loads early. Neither should wait for slots.
        beside = [each.resident for each in steps[max(number - 1, 0) : number + 2]]
        others = [buffer for resident in beside for buffer in resident if buffer not in here]
        values = [(buffer.offset, buffer.offset + buffer.nbytes) for buffer in others]
        if uses is not None:
            uses.add(values, number)
        fitted = fit_one(step, low_end, Avoided(last + values, uses, number))
        low_end = not low_end
        if step.groups[0].kind == "repeat" and not fitted.taken():
            # Slots of an iteration are at the other end than those of the one before, so that its loads need not wait.
            low_end = began = not began
        else:
            last = fitted.taken()
        if uses is not None:
            uses.add([(each.offset, each.offset + each.nbytes) for each in step.resident] + last, number)
        yield step, fitted


_ANYWHERE = Avoided()


def fit(
    step: ScheduleStep, context: Context, low_end: bool = True, avoid: Avoided = _ANYWHERE, made: Made | None = None
) -> Fitted:
    """Lower a step with tiles that fit between the values of its time. Raises CompileError if nothing fits.

    ``low_end``, ``avoid``: see :func:`place_slots`. ``made``: a cache of lowerings for estimates, which is extended.
    """
    with rolling_views(context, step.cascade.loaded if step.cascade else ()):
        free = step.free(context)
        largest = max([high - low for low, high in free], default=0)
        alike = None if made is None else _made_for(step, context, made)
        # Try with all free bytes first. Gaps may be too small for a slot, so try the largest gap alone next.
        for room in (sum([high - low for low, high in free]), largest):
            lowerings, specs, total = _lower_all(step, context, room, alike)
            # An estimate needs no addresses if one gap holds all slots.
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
    """The lowerings of a step's groups in ``room`` bytes, their slots, and the bytes of these slots."""
    lowerings: list[Lowering] = []
    specs: list[list[SlotSpec]] = []
    total = 0
    held = [weight_bytes(context, group) if step.cascade else 0 for group in step.groups]
    left, behind = room, sum(held)
    for number, group in enumerate(step.groups):
        # The weights of all groups have to fit. Each group but the last first tries half of the remaining bytes, so
        # that the following groups get tiles of similar size.
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
    """Add copies of slots for loads that run several transfers ahead."""
    matrix, in_flight = context.config.matrix, context.config.dma.in_flight
    slots = deeper(slots, room, in_flight)
    if matrix is not None and matrix.direct is not None and matrix.direct.whole_jobs:
        slots = filled(slots, room, in_flight)
    return slots


def _starts(
    step: ScheduleStep, specs: Sequence[Sequence[SlotSpec]], free: Sequence[Span], low_end: bool, avoid: Avoided
) -> list[list[int]] | None:
    """The addresses of the slots of each group; None if they do not fit."""
    flat = [spec for slots in specs for spec in slots]
    urgent = len(specs[0]) if step.cascade else 0
    starts = None
    if avoid.uses is not None and not step.cascade:
        starts = _starts_apart(flat, free, avoid.uses, avoid.number)
    if starts is None:
        starts = place_slots(flat, free, low_end=low_end, avoid=avoid.beside, urgent=urgent)
    if starts is None:
        starts = place_slots(flat, free, low_end=not low_end)
    if starts is None:
        return None
    addresses = iter(starts)
    return [list(islice(addresses, copies_of(slots))) for slots in specs]


def _starts_apart(specs: Sequence[SlotSpec], free: Sequence[Span], uses: LastUses, number: int) -> list[int] | None:
    """The addresses of slots; None if they do not fit into one run of bytes for constants and one for the others.

    Constants get the bytes whose last use is longest ago, so that they can be loaded early. The other slots get bytes
    that were used recently, which leaves the rest to constants, but not by the last two steps.
    """
    places, sizes = [spec for spec in specs if spec.space is Space.SRAM for _ in range(spec.copies)], sizes_of(specs)
    found: dict[int, int] = {}
    for is_constant in (True, False):
        # Small operands are scales and zero points, or cost few bytes.
        numbers = [
            at for at, spec in enumerate(places) if (spec.name in CONSTANTS or spec.nbytes <= ALIGNMENT) == is_constant
        ]
        total = sum(sizes[at] for at in numbers)
        start = uses.oldest(total, free) if is_constant else uses.recent(total, free, number - _NEAR)
        if start is None:
            return None
        for at in numbers:
            found[at] = start
            start += sizes[at]
        free = without(free, [(start - total, start)]) if total else free
    return [found[at] for at in range(len(places))]


_NEAR = 2
"""A step does not wait for bytes that were last used by a step this far before it, or further."""


def _lowered(
    context: Context, group: Group, rooms: Sequence[int], made: MadeAlike | None
) -> tuple[Lowering, list[SlotSpec], int]:
    """Lower a group in the smallest of ``rooms`` (bytes, descending) in which it fits. Returns the lowering, its slots,
    and their bytes.

    Raises CompileError if it does not fit into any of them.
    """
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
    """A lowering for an estimate: the cached one with the same key, adapted to the bytes and rows if possible."""
    again: Lowering | None = None
    # The first lowering of a group must be its own, because lowering places the group's constants.
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
