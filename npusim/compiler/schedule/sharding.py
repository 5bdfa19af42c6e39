"""One part of each group for each core, so that what a core makes it reads again itself: such values live in its SRAM,
as they would if there were one core.

Each group's result is cut along one of its dimensions, or the group's tiles are shared out as they come. A value is a
core's own where all groups that touch it are cut so that no core touches bytes of another's; then each core has a
buffer for its part alone. All other values lie in DRAM, where the cores meet; or, where they have a way to each other's
SRAM, each has what it needs of such a value in its own, and who has made a part gives it to those who want it
(``exchange``). The axes are those of least estimated time, found along the order of the groups; the memory planner then
works on the first core's parts, which are as large as any, and every core has the same homes at the same addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering
from npusim.compiler.lower.kinds import lower
from npusim.compiler.schedule.dram import lay_out
from npusim.compiler.schedule.exchange import CoreTransfer, SharedTensor, gifts, join
from npusim.compiler.schedule.layout import PlacedGraph
from npusim.compiler.schedule.memory_plan import MemoryPlan, plan
from npusim.compiler.schedule.scratchpad import Fitted, ScheduleStep, fit
from npusim.compiler.schedule.shards import Part, axes_of, interval, is_in_groups, operand_axes, part_of
from npusim.compiler.schedule.slots import Span
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.hw.units.dma import exchange_bandwidth, exchange_latency_ps


@dataclass(slots=True)
class Spread:
    """Parts of groups for the cores of a device.

    ``parts``: of each group; None where its tiles are shared out. ``layout`` is that of the first core.
    """

    whole: Context
    contexts: list[Context]
    parts: list[list[Part] | None]
    axes: Sequence[int | None]
    """Along which dimension of its result each group is cut."""
    layout: MemoryPlan = field(default_factory=lambda: MemoryPlan([]))
    scratch_bytes: int = 0
    gifts: dict[int, list[CoreTransfer]] = field(default_factory=dict)
    """What cores give to others when they have made their parts of a group."""

    def fit(self, step: ScheduleStep, low_end: bool, avoid: Sequence[Span]) -> Fitted:
        """The first core's lowering with its slots, which are everybody's. Raises CompileError if nothing fits."""
        (group,) = step.groups
        context = self.whole if self.parts[group.index] is None else self.contexts[0]
        return fit(step, context, low_end, avoid)

    def firsts(self, groups: Sequence[Group]) -> list[tuple[Group, Context]]:
        """What the first core does of each group, and in what it is lowered."""
        return [
            (group, self.whole) if part is None else (part[0].group, self.contexts[0])
            for group, part in zip(groups, self.parts, strict=True)
        ]

    def lowerings(self, step: ScheduleStep, fitted: Fitted) -> list[Lowering]:
        """Each core's lowering beside the first one's; that one alone if the group is not cut."""
        (group,) = step.groups
        parts = self.parts[group.index]
        if parts is None:
            return fitted.lowerings
        first = self.contexts[0]
        lowerings = fitted.lowerings[:]
        for part, context in zip(parts[1:], self.contexts[1:], strict=False):
            context.room = first.room
            lowering = lower(context, part.group)
            lowering.follow(lowerings[0])
            lowerings.append(lowering)
        return lowerings


def spread(placement: PlacedGraph, whole: Context, axes: Sequence[int | None] | None = None) -> Spread | None:
    """The parts of all cores and the homes of values; None where no group can be cut. The placement's buffers become
    those that are left, and those of the cores. ``axes``: those of another order; else they are looked for."""
    if axes is None:
        axes = _Search(placement, whole).run()
    if not any(axis is not None for axis in axes):
        return None
    cores = whole.config.cores
    contexts = [part_context(whole, whole.views) for _ in range(cores)]
    parts = [
        None if axis is None else make_parts(group, axis, whole, contexts) for group, axis in _both(placement, axes)
    ]
    result = Spread(whole, contexts, parts, axes)
    own, meetings = _make_own(placement, result)
    first = [group for group, _ in result.firsts(placement.groups)]
    # With something known: without stripes.
    result.layout = plan(PlacedGraph(first, [buffers[0] for buffers in own]), contexts[0], {})
    for buffers in own:
        for core, buffer in enumerate(buffers):
            buffer.born, buffer.dies, buffer.offset = buffers[0].born, buffers[0].dies, buffers[0].offset
            buffer.core = None if buffers[0].core is None else core
    for meeting in meetings:
        if meeting.buffers[0].on_chip:
            for number, given in gifts(meeting, result.parts, several=whole.config.interconnect.multicast):
                result.gifts.setdefault(number, []).extend(given)
        else:
            own.remove(meeting.buffers)
            meeting.part(contexts)
    placement.buffers = _left(placement, result) + [buffer for buffers in own for buffer in buffers]
    result.scratch_bytes = lay_out(placement.buffers, whole.config)
    return result


def _both(placement: PlacedGraph, axes: Sequence[int | None]) -> Iterable[tuple[Group, int | None]]:
    return zip(placement.groups, axes, strict=True)


def part_context(whole: Context, views: Mapping[Tensor, View]) -> Context:
    """A context for the parts of one core; ``views``: those of the whole tensors that it will be asked for."""
    config = replace(whole.config, cores=1)
    return Context(
        config, whole.constants, dict(views), beside=whole.config.cores, whole=whole, pinned=whole.pinned
    )  # fmt: skip


def make_parts(group: Group, axis: int, whole: Context, contexts: Sequence[Context]) -> list[Part]:
    """A group's parts, those of the first cores if there are not enough for all."""
    axes = operand_axes(group, axis)
    assert axes is not None
    size, unit = group.outputs[0].shape[axis], _unit(group, axis, whole)
    parts = []
    for core, context in enumerate(contexts):
        first, end = interval(size, core, whole.config.cores, unit)
        if first < end:
            parts.append(part_of(group, axes, first, end))
            _give_places(parts[-1], context)
    return parts


def _unit(group: Group, axis: int, whole: Context) -> int:
    """Positions of a dimension that stay together: output channels by columns of the array."""
    matrix, anchor = whole.config.matrix, group.anchor
    if matrix is None or anchor is None or anchor.kind not in ("matmul", "conv"):
        return 1
    if is_in_groups(group, axis):
        return _grouped_unit(anchor, whole.config.cores, matrix.cols)
    axes = operand_axes(group, axis)
    return matrix.cols if axes is not None and axes[anchor.input(0)] is None else 1


def _grouped_unit(op: Op, cores: int, cols: int) -> int:
    """Whole groups, by columns of the array; or equal parts of each group, where several cores have one."""
    groups: int = op.attrs["groups"]
    each = op.input(1).shape[0] // groups
    share, rest = divmod(cores, groups)
    if share > 1 and not rest and not each % share:
        return each // share
    return max(1, cols // each) * each


def _give_places(part: Part, context: Context) -> None:
    for tensor, (source, starts) in part.slices.items():
        context.own.add(tensor)
        if tensor.data is None and source in context.views:
            context.views[tensor] = context.views[source].slice(starts, tensor.shape)


# values


def _make_own(placement: PlacedGraph, result: Spread) -> tuple[list[list[Buffer]], list[SharedTensor]]:
    """Buffers of its own for each core, for values of which no core touches what is another's; and for those of which
    each has what it needs."""
    way = result.whole.config.exchange is not None
    meetings: list[SharedTensor] = []
    own: dict[Buffer, tuple[list[Buffer], list[Span | None]]] = {}
    for buffer, touched in _met(placement, result, way=way).items():
        found = touched.all
        if not (buffer.is_scratch and buffer.nbytes and found is not None):
            continue
        if not _apart(found):
            if not (way and touched.is_possible):
                continue
            meetings.append(touched)
            found = touched.spans(result.parts, result.contexts)
        size = max(high - low for low, high in filter(None, found))
        buffers = [_copied(buffer, size, buffer.core) for span in found if span is not None]
        own[buffer] = buffers, found
    for meeting in meetings:
        meeting.begin(*own[meeting.whole])
    met = {meeting.whole: meeting for meeting in meetings}
    for core, context in enumerate(result.contexts):
        for tensor, view in list(context.views.items()):
            buffers, found = own.get(view.buffer, ([], []))
            span = found[core] if found else None
            # A tensor of which the core has no part it needs as a whole, or not at all.
            if span is None or (tensor not in context.own and not way):
                continue
            context.views[tensor] = view.moved({view.buffer: (buffers[core], -span[0])})
            if view.buffer in met:
                met[view.buffer].moved[core, tensor] = view
    return [own[buffer][0] for buffer in placement.buffers if buffer in own], meetings


def _met(placement: PlacedGraph, result: Spread, *, way: bool) -> dict[Buffer, SharedTensor]:
    """Who touches which bytes of each buffer, in the order of the placement."""
    found = {buffer: SharedTensor(buffer, len(result.contexts)) for buffer in placement.buffers}
    for group in placement.groups:
        parts = result.parts[group.index]
        made = _buffers(group.outputs, result.whole)
        read = _buffers([tensor for op in group.ops for tensor in op.inputs if tensor is not None], result.whole)
        for buffer, touched in _touched(group, parts, result.whole, result.contexts, way=way).items():
            if buffer in found:
                found[buffer].add(group, touched, makes=buffer in made, reads=buffer in read)
    return found


def _buffers(tensors: Iterable[Tensor], context: Context) -> set[Buffer]:
    return {context.views[tensor].buffer for tensor in tensors if tensor in context.views}


def _touched(
    group: Group, parts: Sequence[Part] | None, whole: Context, contexts: Sequence[Context], *, way: bool = False
) -> dict[Buffer, list[Span | None] | None]:
    """Which bytes of a buffer each core touches for a group; None: any of them. ``way``: cores can be given all of a
    value."""
    made = {tensor for op in group.ops for tensor in op.outputs} - set(group.outputs)
    if parts is None:
        return dict.fromkeys((view.buffer for _, view in _views(group, whole, made)), None)
    found: dict[Buffer, list[Span | None] | None] = {}
    for core, (part, context) in enumerate(zip(parts, contexts, strict=False)):
        inside = {tensor for op in part.group.ops for tensor in op.outputs} - set(part.group.outputs)
        for tensor, view in _views(part.group, context, inside):
            if tensor not in part.slices and not way:
                found[view.buffer] = None
            elif (spans := found.setdefault(view.buffer, [None] * len(contexts))) is not None:
                spans[core] = join(spans[core], view.extent())
    return found


def _views(group: Group, context: Context, made: set[Tensor]) -> list[tuple[Tensor, View]]:
    tensors = dict.fromkeys(t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None and t not in made)
    return [(tensor, context.views[tensor]) for tensor in tensors if tensor in context.views]


def _apart(spans: Sequence[Span | None]) -> bool:
    """No core touches what lies between the first and the last byte of another one."""
    order = sorted(filter(None, spans))
    return all(low[1] <= high[0] for low, high in pairwise(order))


def _left(placement: PlacedGraph, result: Spread) -> list[Buffer]:
    """The buffers that somebody still touches."""
    used: set[Buffer] = set()
    for group in placement.groups:
        parts = result.parts[group.index]
        used.update(_touched(group, parts, result.whole, result.contexts))
    return [buffer for buffer in placement.buffers if buffer in used or not buffer.is_scratch]


# axes


@dataclass(slots=True)
class _Path:
    """Axes for the groups so far, and what they take."""

    axes: tuple[int | None, ...] = ()
    cost: int = 0


class _Search:
    """Looks for the axes along the order of the groups; of all that end in the same axis the best is kept."""

    def __init__(self, placement: PlacedGraph, whole: Context) -> None:
        self._groups = placement.groups
        self._whole = whole
        self._cores = whole.config.cores
        self._way = whole.config.exchange
        self._touched: dict[tuple[int, int | None], Mapping[Buffer, list[Span | None] | None]] = {}
        self._known: dict[tuple[int, int | None, frozenset[Buffer]], int | None] = {}
        self._parts: dict[tuple[int, int], tuple[list[Part], list[Context]]] = {}
        self._makers: dict[Buffer, list[int]] = {}
        for group in self._groups:
            buffer = whole.view(group.outputs[0]).buffer
            self._makers.setdefault(buffer, []).append(group.index)

    def run(self) -> tuple[int | None, ...]:
        """The axis of each group; None where its tiles are shared out."""
        paths = [_Path()]
        for group in self._groups:
            options: list[int | None] = [*axes_of(group, meeting=self._way is not None), None]
            following = []
            for option in options:
                ways = [self._extend(path, group, option) for path in paths]
                found = [way for way in ways if way is not None]
                if found:
                    following.append(min(found, key=lambda path: path.cost))
            if not following:
                raise CompileError(f"internal: no part of {group.name} ({group.kind}) fits")
            paths = following
        return min(paths, key=lambda path: path.cost).axes

    def _extend(self, path: _Path, group: Group, axis: int | None) -> _Path | None:
        """A path with one more group; None if that does not fit."""
        touched = self._touches(group.index, axis)
        near, extra = set(), 0
        for buffer, spans in touched.items():
            makers = self._makers.get(buffer, ())
            small = buffer.is_scratch and spans is not None and self._is_small(spans)
            if group.index in makers:
                if small:
                    near.add(buffer)
                continue
            before = [self._touches(number, path.axes[number]).get(buffer) for number in makers if number < group.index]
            alike = spans is not None and all(other is not None for other in before)
            joined = [_all(each) for each in zip(spans or (), *(b or () for b in before), strict=True)] if alike else []
            if small and alike and _apart(joined):
                near.add(buffer)
            elif small and alike and self._way is not None and self._is_small(joined):
                near.add(buffer)
                made = [_all(each) for each in zip(*(b or () for b in before), strict=True)]
                extra += self._giving(buffer, spans or (), made)
            elif before and all(other is not None and self._is_small(other) for other in before):
                # It was taken for the makers' own, and now has to be written for others.
                extra += buffer.nbytes * 10**12 // self._whole.config.dram.bandwidth
        cost = self._estimate(group, axis, frozenset(near))
        return None if cost is None else _Path((*path.axes, axis), path.cost + cost + extra)

    def _giving(self, buffer: Buffer, wanted: Sequence[Span | None], made: Sequence[Span | None]) -> int:
        """Picoseconds, about, that it takes to give what others want of what each core has made."""
        given = 0
        for core, own in enumerate(made):
            shares = [_overlap(own, span) for other, span in enumerate(wanted) if other != core]
            given += max(shares, default=0) if self._whole.config.interconnect.multicast else sum(shares)
        config = self._whole.config
        return min(given, buffer.nbytes) * 10**12 // exchange_bandwidth(config) + exchange_latency_ps(config)

    def _is_small(self, spans: Sequence[Span | None]) -> bool:
        most = max((high - low for low, high in filter(None, spans)), default=0)
        return (self._way is not None or _apart(spans)) and most <= self._whole.config.sram.bytes // _SHARE

    def _touches(self, number: int, axis: int | None) -> Mapping[Buffer, list[Span | None] | None]:
        key = number, axis
        if key not in self._touched:
            group = self._groups[number]
            parts, contexts = (None, []) if axis is None else self._parts_of(group, axis)
            self._touched[key] = _touched(group, parts, self._whole, contexts, way=self._way is not None)
        return self._touched[key]

    def _parts_of(self, group: Group, axis: int) -> tuple[list[Part], list[Context]]:
        key = group.index, axis
        if key not in self._parts:
            # Of this group alone: with those of all groups the search would take a time that is quadratic in them.
            tensors = (t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None)
            views = {tensor: self._whole.views[tensor] for tensor in tensors if tensor in self._whole.views}
            contexts = [part_context(self._whole, views) for _ in range(self._cores)]
            self._parts[key] = make_parts(group, axis, self._whole, contexts), contexts
        return self._parts[key]

    def _estimate(self, group: Group, axis: int | None, near: frozenset[Buffer]) -> int | None:
        """Picoseconds of a group with these buffers in SRAM; None if it does not fit."""
        key = group.index, axis, near
        if key not in self._known:
            self._known[key] = self._estimate_new(group, axis, near)
        return self._known[key]

    def _estimate_new(self, group: Group, axis: int | None, near: frozenset[Buffer]) -> int | None:
        context = self._whole
        if ScheduleStep([group]).is_empty:
            return 0
        if axis is not None:
            parts, contexts = self._parts_of(group, axis)
            group, context = parts[0].group, copy(contexts[0])
            places = {buffer: (_copied(buffer, buffer.nbytes, 0), 0) for buffer in near}
            context.views = {tensor: view.moved(places) for tensor, view in context.views.items()}
        try:
            return fit(ScheduleStep([group]), context).lowerings[0].estimate()
        except CompileError:
            return None


def _copied(buffer: Buffer, nbytes: int, core: int | None) -> Buffer:
    """A buffer like another one, of so many bytes, elsewhere."""
    return Buffer(buffer.name, buffer.region, nbytes, buffer.offset, buffer.born, buffer.dies, core, buffer.is_rolling)


_SHARE = 4
"""A value that takes more than one of so many parts of SRAM is not expected to find room there."""


def _all(spans: Iterable[Span | None]) -> Span | None:
    found: Span | None = None
    for span in spans:
        found = join(found, span)
    return found


def _overlap(one: Span | None, other: Span | None) -> int:
    """How many bytes two spans have in common."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0])) if one and other else 0
