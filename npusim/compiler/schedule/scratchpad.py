"""How a step fits into SRAM: the lowerings of groups that run together, with tiles for the bytes that the values of
their time leave, and where their slots lie between these.

An estimate asks for a lowering many times, and for groups that are alike: what does not depend on where values lie is
made once for all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from math import prod
from typing import Any

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import ANCHORS, Group
from npusim.compiler.lower.base import Context, Lowering, SlotSpec, refuse_size, total_bytes
from npusim.compiler.lower.epilogue import absorb
from npusim.compiler.lower.kinds import lower
from npusim.compiler.lower.streams import weights_per_kilo
from npusim.compiler.schedule.cascade import Cascade, Window
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.hw.memory import ALIGNMENT, align
from npusim.isa.base import Space
from npusim.isa.matrix import packed_bytes
from npusim.timing.tile import acc_bytes

Span = tuple[int, int]
"""First byte and the one after the last."""

MadeAlike = dict[int, dict[int, Lowering]]
"""Lowerings that are asked for estimates only, all of which see the same but for addresses: by the rows that are made
at once, and by the room that they have."""
Made = dict[tuple[Any, ...], MadeAlike]
"""All of them, by what they see."""

_SRAM = Space.SRAM  # asked for each slot of each step that is tried


@dataclass(slots=True)
class ScheduleStep:
    """Groups that run together: one, or those of a cascade."""

    groups: list[Group]
    cascade: Cascade | None = None
    resident: list[Buffer] = field(default_factory=list)
    """What is in SRAM meanwhile, by offset."""
    made: list[MadeAlike] | None = None
    """Of each group what is made for estimates, to be found there again: only while it is known that homes stay as they
    are."""

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
        if at < (end := context.sram_bytes):
            spans.append((at, end))
        return spans


class RollingBuffers:
    """While this is active, values are where their windows are."""

    def __init__(self, context: Context, windows: Sequence[Window]) -> None:
        self._context = context
        self._windows = windows
        self._kept = {window.inner.tensor: context.views[window.inner.tensor] for window in windows}

    def __enter__(self) -> None:
        for window in self._windows:
            window.buffer.core = 0
            self._context.views[window.inner.tensor] = window.view

    def __exit__(self, *error: object) -> None:
        self._context.views.update(self._kept)


def place_slots(
    specs: Sequence[SlotSpec], free: Sequence[Span], *, low_end: bool, avoid: Sequence[Span] = (), urgent: int = 0
) -> list[int] | None:
    """Where each copy of each slot in SRAM begins; None where they do not fit.

    ``avoid``: what neighbouring groups use, and so little of which is used as can be, so that one may load and compute
    while the other still computes; above all by those slots, the first ``urgent`` ones, that are wanted first. Of
    places that are as good, that at the low end of what is free, or (``low_end``) at the high one.
    """
    sizes = [align(max(spec.nbytes, 1)) for spec in specs if spec.space is _SRAM for _ in range(spec.copies)]
    spans = list(free) if low_end else list(reversed(free))
    taken = sum(sizes)
    wide = [span for span in spans if span[1] - span[0] >= taken]
    if wide:
        ends = [low if low_end else high - taken for low, high in wide]
        if not avoid:  # nearly always: an estimate
            return _placed(sizes, ends[0], down=False)
        ends += [high - taken if low_end else low for low, high in wide]
        beside = [at for low, high in avoid for at in (align(high), (low - taken) // ALIGNMENT * ALIGNMENT)]
        ends += [at for low, high in wide for at in beside if low <= at <= high - taken]
        first = sum(sizes[: _copies(specs[:urgent])])
        below = _below(avoid)

        def shared(option: tuple[int, bool]) -> tuple[int, int]:
            start, down = option
            end = start + taken
            low, high = below(start), below(end)
            return (high - below(end - first) if down else below(start + first) - low), high - low

        # Upwards, or downwards from the end: there the first ones are farther from what others have at the low end.
        ways = (False, True) if first else (False,)
        start, down = min(((start, down) for down in ways for start in ends), key=shared)
        return _placed(sizes, start + taken if down else start, down=down)
    starts = []
    for size in sizes:
        number = next((n for n, (low, high) in enumerate(spans) if high - low >= size), None)
        if number is None:
            return None
        low, high = spans[number]
        starts.append(low if low_end else high - size)
        spans[number] = (low + size, high) if low_end else (low, high - size)
    return starts


def _placed(sizes: Sequence[int], at: int, *, down: bool) -> list[int]:
    """Where each of some sizes begins, one above the other or (``down``) below it."""
    if down:
        return [at - end for end in accumulate(sizes)]
    return list(accumulate(sizes[:-1], initial=at))


def _copies(specs: Iterable[SlotSpec]) -> int:
    return sum([spec.copies for spec in specs if spec.space is _SRAM])


def _below(spans: Sequence[Span]) -> Callable[[int], int]:
    """What says how many bytes of spans are below a place, those of two of them twice."""
    lows, highs = sorted([low for low, _ in spans]), sorted([high for _, high in spans])
    to_low, to_high = [0, *accumulate(lows)], [0, *accumulate(highs)]

    def below(place: int) -> int:
        begun, over = bisect_left(lows, place), bisect_left(highs, place)
        return (begun - over) * place - to_low[begun] + to_high[over]

    return below


def deeper(specs: Sequence[SlotSpec], room: int, in_flight: int) -> list[SlotSpec]:
    """More copies of what tiles take turns in, so that what is asked for ahead has somewhere to go: one that is used,
    and one for each transfer in flight. No more than half of the room: the groups before and after have the other."""
    for copies in range(1 + in_flight, 2, -1):
        more = [replace(spec, copies=copies) if spec.copies == 2 else spec for spec in specs]
        if total_bytes(more) <= room // 2:
            return more
    return list(specs)


def filled(specs: Sequence[SlotSpec], room: int, in_flight: int) -> list[SlotSpec]:
    """As many copies of the weights' slot as there is room for, as a unit fills its buffer that has one job at a time:
    weights come beside the features, whenever they are wanted."""
    found = list(specs)
    for at, spec in enumerate(specs):
        if spec.name == "w" and spec.copies > 1:
            spare = max(0, room - total_bytes(specs)) // align(max(spec.nbytes, 1))
            found[at] = replace(spec, copies=max(spec.copies, min(1 + in_flight, spec.copies + spare)))
    return found


@dataclass(slots=True)
class Fitted:
    """The lowerings of a step and where their slots begin; of an estimate nobody asks where."""

    lowerings: list[Lowering]
    specs: list[list[SlotSpec]]
    starts: list[list[int]]

    def taken(self) -> list[Span]:
        """The bytes of SRAM that the slots take."""
        found = []
        for specs, starts in zip(self.specs, self.starts, strict=True):
            sizes = [max(spec.nbytes, 1) for spec in specs if spec.space is _SRAM for _ in range(spec.copies)]
            found += [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        return found


class Ends:
    """Where the slots of one step after the other go: away from those of the one before, and from what the one
    behind brings to SRAM."""

    def __init__(self, steps: Sequence[ScheduleStep]) -> None:
        self._steps = steps
        self._low_end = True
        self._before: list[Span] = []

    def fit(self, number: int, make: Callable[[bool, Sequence[Span]], Fitted]) -> Fitted:
        """What is made of a step when it is told which end to take and which bytes to avoid."""
        step = self._steps[number]
        here = set(step.resident)
        # What the one before has read to its end, and what the one behind is to bring.
        beside = [each.resident for each in self._steps[max(number - 1, 0) : number + 2]]
        others = [buffer for resident in beside for buffer in resident if buffer not in here]
        avoid = [*self._before, *((buffer.offset, buffer.offset + buffer.nbytes) for buffer in others)]
        fitted = make(self._low_end, avoid)
        self._low_end, self._before = not self._low_end, fitted.taken()
        return fitted


def fit(
    step: ScheduleStep, context: Context, low_end: bool = True, avoid: Sequence[Span] = (), made: Made | None = None
) -> Fitted:
    """A step's lowerings, with tiles that fit between the values of its time; such as were ``made`` before for an
    estimate, for another one. ``low_end``, ``avoid``: see :func:`place_slots`. Raises CompileError if none fit."""
    with RollingBuffers(context, step.cascade.loaded if step.cascade else ()):
        return _fit(step, context, low_end, avoid, made)


def _fit(step: ScheduleStep, context: Context, low_end: bool, avoid: Sequence[Span], made: Made | None) -> Fitted:
    free = step.free(context)
    largest = max([high - low for low, high in free], default=0)
    held = [weight_bytes(context, group) if step.cascade else 0 for group in step.groups]
    ours = step.made or []
    if made is not None and not ours:
        ours += [made.setdefault(seen(context, group), {}) for group in step.groups]
        if step.made is not None:
            step.made[:] = ours
    in_flight = context.config.dma.in_flight
    direct = context.config.matrix.direct if context.config.matrix else None
    # What is free in pieces may be too small for one slot; tiles for the largest piece fit into it.
    for room in (sum([high - low for low, high in free]), largest):
        lowerings, specs, left, behind, total = [], [], room, sum(held), 0
        for number, group in enumerate(step.groups):
            # The weights of all have to fit; of the rest, nobody takes all that those behind might want.
            behind -= held[number]
            most = left - behind
            shares = (most, (held[number] + most) // 2) if number < len(held) - 1 else (most,)
            context.rows = step.cascade.rows[number] if step.cascade else 0
            lowering, slots, taken = _lowered(context, group, shares, ours[number] if ours else None)
            left -= taken
            if not step.cascade and in_flight > 1:
                slots = deeper(slots, room, in_flight)
                if direct is not None and direct.whole_jobs:
                    slots = filled(slots, room, in_flight)
                taken = total_bytes(slots)
            lowerings.append(lowering)
            specs.append(slots)
            total += taken
        # There is a place for all of them, wherever it is.
        if made is not None and total <= largest:
            return Fitted(lowerings, specs, [])
        flat = [spec for slots in specs for spec in slots]
        urgent = len(specs[0]) if step.cascade else 0
        starts = place_slots(flat, free, low_end=low_end, avoid=avoid, urgent=urgent)
        if starts is None:
            starts = place_slots(flat, free, low_end=not low_end)
        if starts is not None:
            places = iter(starts)
            counts = [_copies(slots) for slots in specs]
            return Fitted(lowerings, specs, [list(islice(places, count)) for count in counts])
    raise refuse_size(step.groups[0], sum(map(total_bytes, specs)), room)


def _lowered(
    context: Context, group: Group, rooms: Sequence[int], made: MadeAlike | None
) -> tuple[Lowering, list[SlotSpec], int]:
    """A group's lowering in the last of some rooms, the smallest, where it fits, its slots and their bytes in SRAM.
    Raises CompileError if in none."""
    context.room = rooms[-1]
    try:
        lowering = lower(context, group) if made is None else _made(context, group, made)
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


def _made(context: Context, group: Group, made: MadeAlike) -> Lowering:
    """A group's lowering for an estimate: what does not depend on the room is made once for all groups that are alike,
    and for homes that are."""
    again: Lowering | None = None
    # The first time each is made itself: that places its constants.
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


def seen(context: Context, group: Group) -> tuple[Any, ...]:
    """All that a lowering sees but addresses, the room, and the rows that are made at once: equal for groups that take
    as long, wherever they are."""
    number, scanned, tensors = _looks(context, group)
    key: list[Any] = [number, group.index in context.pinned.starts]
    if scanned is not None:
        key.append(weights_per_kilo(context, scanned))  # of constants the one thing that their values say
    views, whole = context.views, context.whole
    for tensor in tensors:
        view = views.get(tensor)
        if view is not None:
            served = 1 if whole is None else context.served(tensor)
            key.append((view.shape, view.strides, view.buffer.on_chip, view.buffer.is_rolling, served))
    return tuple(key)


def _looks(context: Context, group: Group) -> tuple[int, Op | None, Sequence[Tensor]]:
    """What a group has to be looked at: its number among those that are :func:`alike`, its anchor if that has weights,
    and its tensors with homes."""
    known: tuple[int, Op | None, Sequence[Tensor]] | None = context.facts.get(("looks", group))
    if known is None:
        scanned = group.anchor if group.anchor is not None and group.anchor.kind in ANCHORS else None
        known = context.facts["looks", group] = alike(context, group), scanned, boundary(context, group)
    return known


def alike(context: Context, group: Group) -> int:
    """A number, equal for groups whose operators are, names and the values of constants aside."""
    key = ("alike", group)
    known = context.facts.get(key)
    if known is None:
        # A number is compared more quickly than what it stands for.
        numbers: dict[Any, int] = context.facts.setdefault("numbers", {})
        known = context.facts[key] = numbers.setdefault(_alike(group), len(numbers))
    return known


def _alike(group: Group) -> Any:
    """What of a group's operators tells how long it takes; the group itself where nobody can say."""
    if group.parts:
        return group
    numbers: dict[Tensor, int] = {}
    operators = []
    for op in group.ops:
        tensors = tuple(
            t and (numbers.setdefault(t, len(numbers)), t.shape, t.dtype, t.data is None)
            for t in (*op.inputs, *op.outputs)
        )
        operators.append((op.kind, tuple(sorted(op.attrs.items())), len(op.inputs), tensors))
    # Of constants the drain looks at the values: whether it can take them, and which of them say nothing.
    drain = absorb(group) if group.anchor is not None and group.anchor.kind in ANCHORS else None
    taken = drain and (len(drain.rest), *(type(row) for row in (drain.bias, drain.scale, drain.shift)))
    result = (tuple(operators), len(group.sides), taken)
    try:
        hash(result)
    except TypeError:
        return group
    return result


def boundary(context: Context, group: Group) -> Sequence[Tensor]:
    """The tensors of a group that have homes, in the order of its operators."""
    key = ("boundary", group)
    known: tuple[Tensor, ...] | None = context.facts.get(key)
    if known is None:
        tensors = (t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None and t.data is None)
        known = context.facts[key] = tuple(dict.fromkeys(tensors))
    return known


def weight_bytes(context: Context, group: Group) -> int:
    """Of a convolution's weights, all of which stay while it is in a cascade."""
    known: int | None = context.facts.get(("weights", group))
    if known is None:
        known = context.facts["weights", group] = _weight_bytes(group)
    return known


def held_bytes(context: Context, group: Group) -> int:
    """The bytes that a cascade needs for a group's weights, beside those that are pinned for all inferences."""
    return 0 if group.index in context.pinned.starts else weight_bytes(context, group)


def _weight_bytes(group: Group) -> int:
    anchor = group.anchor
    if anchor is None or anchor.kind != "conv":
        return 0
    return packed_bytes(anchor.input(1).size, anchor.input(1).dtype, anchor.attrs["w_bits"])
