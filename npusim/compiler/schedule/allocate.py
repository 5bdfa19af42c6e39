"""Which values live on the chip: each in SRAM as a whole while it is wanted, in a window of a cascade, or in DRAM.

A value in SRAM costs no traffic, and the room that it takes from the tiles of every group that runs meanwhile. So each
is tried, those first whose bytes are moved most for the room that they take, and kept where the estimates of all groups
of its life together fall. What is left in DRAM between neighbours is the reason for cascades (see ``stripes``): the
cuts between them are those of least estimated time, also where a cascade wants the room of values that were chosen
before. With the cascades known, values are tried once more. All of this is for one core; where several have parts of
their own, ``spread`` plans one for all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import ANCHORS, ROWS, Group, on_matrix, side_by_side
from npusim.compiler.lower.base import Context, loading, sram_rate
from npusim.compiler.schedule.cascade import (
    Cascade,
    Inner,
    imports,
    inners,
    outline,
    rows_of,
)
from npusim.compiler.schedule.cascade_cuts import Cuts
from npusim.compiler.schedule.cascade_latency import together
from npusim.compiler.schedule.dram import lay_out
from npusim.compiler.schedule.layout import Placement
from npusim.compiler.schedule.scratchpad import (
    Made,
    MadeAlike,
    RollingBuffers,
    ScheduleStep,
    Span,
    boundary,
    fit,
    seen,
    weight_bytes,
)
from npusim.errors import CompileError
from npusim.graph import Tensor
from npusim.hw.config import Config
from npusim.hw.memory import ALIGNMENT, align, constants_side
from npusim.polling import poll
from npusim.units import ceil_div

Known = dict[tuple[tuple[int, ...], tuple[tuple[bool, ...], ...], tuple[Span, ...]], int | None]
"""Picoseconds that a step takes, None if it does not fit: by its group, or the first and the last of a cascade and
the rows of a stripe; by what each of them touches that is on the chip; and by the bytes that are free."""


Heights = dict[tuple[Any, ...], tuple[int, int, bool] | None]
"""Picoseconds that groups take as a cascade, how many rows of the last result its best stripes make, and whether these
lie apart; None if there are no such stripes: by what each group sees, which of their values are the same, and the bytes
that are left. So the blocks of a network that are alike are cut once."""


@dataclass(slots=True)
class Memory:
    """What is known of a graph's groups on devices on which all of it is the same."""

    known: Known = field(default_factory=dict)
    heights: Heights = field(default_factory=dict)


@dataclass(slots=True)
class Layout:
    """What runs together, in order, and the bytes of DRAM for values. ``is_close``: there are cascades, and without
    them it might not take longer; ``whole_ps``: what it is then estimated to take, 0 where estimates are too near."""

    steps: list[ScheduleStep]
    scratch_bytes: int = 0
    is_close: bool = False
    whole_ps: int = 0
    known: Known = field(default_factory=dict)
    planner: Planner | None = None
    """Who has chosen the homes, to be asked why; None where all values are in DRAM."""


def plan(placement: Placement, context: Context, known: Known | None = None) -> Layout:
    """Choose the home of every buffer and lay all of them out; with what is ``known`` of the same groups from a layout
    with cascades: one without them."""
    memory = _memory(placement.groups, context) if known is None else Memory(known)
    layout = Layout([ScheduleStep([group]) for group in placement.groups], known=memory.known)
    if context.config.cores == 1 and (context.config.sram.keeps_values or passes_on(context.config)):
        planner = layout.planner = Planner(placement, context, memory)
        layout.steps = planner.run(stripes=known is None)
        layout.is_close, layout.whole_ps = planner.is_close, planner.whole_ps
        # What became a window has no bytes of its own any more.
        used = {
            context.view(t).buffer
            for group in placement.groups
            for op in group.ops
            for t in (*op.inputs, *op.outputs)
            if t in context.views
        }
        placement.buffers = [buffer for buffer in placement.buffers if buffer in used or not buffer.is_scratch]
    layout.scratch_bytes = lay_out(placement.buffers, context.config)
    return layout


def passes_on(config: Config) -> bool:
    """Whether rows go from the matrix unit to pooling, though SRAM keeps no values."""
    return not config.sram.keeps_values and config.vector is not None and config.vector.pools_outputs


def _memory(groups: Sequence[Group], context: Context) -> Memory:
    """What is known of these groups on devices that plan alike: the same plan, if it is asked for again."""
    pinned = context.pinned
    key = (
        planning(groups, context.config),
        tuple(groups),
        tuple(pinned.starts.items()),
        pinned.nbytes,
        pinned.large_tiles,
    )
    memories: dict[Any, Memory] = context.facts.setdefault("memories", {})
    memory = memories.pop(key, None)
    if memory is None and len(memories) >= MOST_MEMORIES:
        del memories[next(iter(memories))]  # the one that was not asked for for longest
    found = memories[key] = memory or Memory()
    return found


def planning(groups: Sequence[Group], config: Config) -> Config:
    """A device as a plan for one core sees it: equal for devices on which all plans are equal."""
    dma = config.dma
    # Most tiles only want to know whether loads and stores take turns.
    if all(not group.parts and (group.anchor is None or group.anchor.kind in _ONE_OR_MORE) for group in groups):
        dma = replace(dma, channels=min(dma.channels, 2))
    return replace(config, description="", layer_cycles=0, layer_bytes=0, dma=dma)


_ONE_OR_MORE = ANCHORS | ROWS | {"pool", "reduce"}
"""Kinds of which no estimate depends on how many channels there are beyond one."""
MOST_MEMORIES = 128
"""Of one graph, about 1 MB each for a network of 100 layers."""


class Trial(NamedTuple):
    """What another home would add, by estimate; None where there is none, and why."""

    added_ps: int | None
    obstacle: str = ""


class Planner:
    """Chooses the homes of values on a device of one core; of the plan as it stands it says what others would cost."""

    def __init__(self, placement: Placement, context: Context, memory: Memory) -> None:
        self.is_close, self.whole_ps = False, 0
        self.untried: set[Buffer] = set()
        """Values of which nobody knows what they would be worth in SRAM: see ``MEAN_LIFE``."""
        # Where SRAM keeps no values there are cascades of a convolution and its pooling, and nothing else.
        self._keeps = context.config.sram.keeps_values
        self._groups = placement.groups
        self._context = context
        self._capacity = context.sram_bytes
        self._candidates = [buffer for buffer in placement.buffers if buffer.is_scratch and buffer.nbytes]
        self._users: dict[Buffer, list[int]] = {buffer: [] for buffer in self._candidates}
        self._tensors: dict[Buffer, dict[Tensor, None]] = {buffer: {} for buffer in self._candidates}
        self._lives: dict[Buffer, range] = {}
        self._touched: list[list[Buffer]] = [[] for _ in placement.groups]
        self._inputs = [0] * len(placement.groups)
        """Bytes of inputs of the graph that each group reads."""
        # What a group alone takes follows from the homes of what it touches and from what is free: asked many times.
        self._known, self._heights = memory.known, memory.heights
        self._made: Made = {}
        self._waiting: dict[Group, int] = {}
        """How long the matrix unit waits for the vector unit in a group alone, while cascades are looked for."""
        self._waited: dict[int, int] = {}
        """How long a cascade that begins with a group waits for its weights."""
        self._seen: list[tuple[Any, ...]] = []
        """What each group sees while cascades are looked for."""
        self._whole = dict(context.views)  # the views that values have when they are no windows
        for group in placement.groups:
            inside = {tensor for op in group.ops for tensor in op.outputs} - set(group.outputs)
            for tensor in (t for op in group.ops for t in (*op.inputs, *op.outputs) if t is not None):
                if tensor not in context.views or tensor in inside:
                    continue
                buffer = context.views[tensor].buffer
                if not buffer.is_scratch and tensor not in group.outputs and tensor.data is None:
                    self._inputs[group.index] += tensor.nbytes
                if buffer in self._users:
                    self._tensors[buffer][tensor] = None
                    if group.index not in self._users[buffer][-1:]:
                        self._users[buffer].append(group.index)
                        self._touched[group.index].append(buffer)

    def run(self, *, stripes: bool) -> list[ScheduleStep]:
        steps = [ScheduleStep([group]) for group in self._groups]
        if stripes:
            self._make(steps)
        costs = self._settle(steps)
        cascades = self._cascades(steps, costs) if stripes else []
        if cascades:
            beside = {buffer for step in steps for buffer in step.resident}
            steps = self._with_cascades(cascades)
            with_cascades = self._settle_anew(steps, beside)
            # Of two units in step the estimate knows little: where they are all that there is, the forecast decides.
            whole, striped = sum(costs), sum(with_cascades)
            self.is_close = not self._keeps or whole * 100 <= striped * (100 + _NEAR_PERCENT)
            # What both estimates see wrong in the same way says nothing of which is longer.
            self.whole_ps = whole if self._keeps and whole * 100 > striped * (100 + _ALIKE_PERCENT) else 0
        return steps

    def _make(self, steps: Sequence[ScheduleStep]) -> None:
        """Make each group's own lowering, which places its constants: also where it is known what it takes, for their
        order is part of the program."""
        for step in steps:
            if not step.is_empty and self._key(step) in self._known:
                self._estimate_fitted(step)
            else:
                self._estimate(step)

    def _settle_anew(self, steps: Sequence[ScheduleStep], beside: Collection[Buffer]) -> list[int]:
        """What :meth:`_settle` does where cascades were chosen ``beside`` some values: these may be worth less now that
        others live for a shorter time, or those cascades more with them."""
        alone = [step.resident[:] for step in steps]
        best = self._settle(steps)
        chosen = {buffer: buffer.offset for step in steps for buffer in step.resident}
        if all(buffer in chosen or self._is_window(buffer) for buffer in beside):
            return best
        residents = [step.resident for step in steps]
        for step, windows in zip(steps, alone, strict=True):
            step.resident = windows
        for buffer in chosen:
            if not buffer.is_rolling:
                buffer.core, buffer.offset = None, 0
        costs = self._settle(steps, beside)
        if sum(costs) < sum(best):
            return costs
        for buffer in self._candidates:
            buffer.core, buffer.offset = None, 0
        for buffer, offset in chosen.items():
            buffer.core, buffer.offset = 0, offset
        for step, resident in zip(steps, residents, strict=True):
            step.resident = resident
        return best

    def _settle(self, steps: Sequence[ScheduleStep], first: Container[Buffer] = ()) -> list[int]:
        """Choose the values that live in SRAM as a whole, those ``first`` beside which steps were chosen; what each
        step then takes."""
        step_of = {group.index: number for number, step in enumerate(steps) for group in step.groups}
        lives: dict[Buffer, range] = {}
        for buffer in self._candidates:
            if self._is_window(buffer):
                continue
            span = lives[buffer] = range(step_of[buffer.born], step_of[buffer.dies] + 1)
            # The arena, too, must not give bytes of a value away to others of the same cascade.
            buffer.born, buffer.dies = steps[span.start].groups[0].index, steps[span.stop - 1].groups[-1].index
        costs = [self._estimate(step) for step in steps]

        def worth(buffer: Buffer) -> float:
            return len(self._users[buffer]) / len(lives[buffer])

        left = MEAN_LIFE * len(steps)
        self.untried.clear()
        tried = lives if self._keeps else ()
        for buffer in sorted(tried, key=lambda each: (each not in first, -worth(each), each.nbytes, each.born)):
            if len(lives[buffer]) > left:
                self.untried.add(buffer)
                continue
            left -= len(lives[buffer])
            for offsets in self._places(buffer, lives[buffer], steps):
                now = self._tried(buffer, lives[buffer], steps, offsets, costs)
                for number, cost in now or ():
                    costs[number] = cost
                if now is not None:
                    break
        return [cost or 0 for cost in costs]

    def _tried(
        self, buffer: Buffer, life: range, steps: Sequence[ScheduleStep], offsets: Mapping[Buffer, int],
        costs: Sequence[int | None],
    ) -> list[tuple[int, int | None]] | None:  # fmt: skip
        """Put a buffer into SRAM, and others where they have to go for it, if no more time is estimated so: what each
        step then takes whose free bytes are others. Else nothing changes; None if some step would not fit."""
        kept = {other: (other.core, other.offset) for other in offsets}
        self._admit(buffer, life, steps, offsets)
        touched = sorted({number for other in offsets for number in self._lives[other]})
        now = [self._estimate(steps[number]) for number in touched]
        before = sum(costs[number] or 0 for number in touched)
        # As near as this estimates say nothing, and what is on the chip is not moved.
        if None not in now and sum(c or 0 for c in now) * 1000 < before * (1000 + _SLACK):
            return list(zip(touched, now, strict=True))
        for number in life:
            steps[number].resident.remove(buffer)
        for other, (core, offset) in kept.items():
            other.core, other.offset = core, offset
        self._sort(steps[number] for number in touched)
        return None if None in now else []

    def _is_window(self, buffer: Buffer) -> bool:
        """Whether a cascade has taken the value's place."""
        return all(self._context.views[tensor].buffer is not buffer for tensor in self._tensors[buffer])

    def _places(self, buffer: Buffer, life: range, steps: Sequence[ScheduleStep]) -> Iterator[dict[Buffer, int]]:
        """Where a buffer may lie, and where others have to go for it: as low as can be, then as high as can be."""
        if any(len(steps[number].resident) >= MOST_BESIDE for number in life):
            return
        # In an order that does not depend on where objects lie: of equals the first one is placed first.
        rivals = dict.fromkeys(other for number in life for other in steps[number].resident)
        low = self._lowest(buffer, ((other.offset, other) for other in rivals))
        if low is None:
            around = self._around(buffer, life, steps, rivals)
            if around is not None:
                yield around
            return
        yield {buffer: low}
        high = self._highest(buffer, rivals)
        if high != low:
            yield {buffer: high}

    def _around(
        self, buffer: Buffer, life: range, steps: Sequence[ScheduleStep], rivals: Iterable[Buffer]
    ) -> dict[Buffer, int] | None:
        """Where a buffer and its rivals may lie when all of them are placed anew; None if there is no room."""
        rivals = list(rivals)
        needed = align(max(buffer.nbytes, 1))
        if len(rivals) > MOST_RIVALS:
            return None
        for number in life:
            if needed + sum(align(max(other.nbytes, 1)) for other in steps[number].resident) > self._capacity:
                return None
        lives = {other: self._lives[other] for other in rivals} | {buffer: life}
        for order in _ORDERS:
            offsets: dict[Buffer, int] = {}
            for other in sorted(lives, key=lambda other: order(other, lives[other])):
                fixed = {each for number in lives[other] for each in steps[number].resident} - lives.keys()
                beside = [(at, each) for each, at in offsets.items() if _overlap(lives[each], lives[other])]
                offset = self._lowest(other, [*beside, *((each.offset, each) for each in fixed)])
                if offset is None:
                    break
                offsets[other] = offset
            else:
                return offsets
        return None

    def _lowest(self, buffer: Buffer, taken: Iterable[tuple[int, Buffer]]) -> int | None:
        """The lowest offset beside others that are at theirs."""
        offset = 0
        for start, other in sorted(taken, key=itemgetter(0)):
            if start >= offset + buffer.nbytes:
                break
            offset = max(offset, align(start + max(other.nbytes, 1)))
        return offset if offset + buffer.nbytes <= self._capacity else None

    def _highest(self, buffer: Buffer, taken: Iterable[Buffer]) -> int:
        """The highest offset beside others, of which there is one."""
        end = self._capacity
        for other in sorted(taken, key=lambda other: other.offset, reverse=True):
            start = (end - buffer.nbytes) // ALIGNMENT * ALIGNMENT
            if start >= other.offset + max(other.nbytes, 1):
                break
            end = min(end, other.offset)
        return (end - buffer.nbytes) // ALIGNMENT * ALIGNMENT

    def _admit(self, buffer: Buffer, life: range, steps: Sequence[ScheduleStep], offsets: Mapping[Buffer, int]) -> None:
        """Put a buffer into SRAM, and others where they have to go for it."""
        self._lives[buffer] = life
        for number in life:
            steps[number].resident.append(buffer)
        for other, offset in offsets.items():
            other.core, other.offset = 0, offset
        self._sort(steps[number] for other in offsets for number in self._lives[other])

    def _sort(self, steps: Iterable[ScheduleStep]) -> None:
        for step in steps:
            step.resident.sort(key=lambda buffer: buffer.offset)

    def _estimate(self, step: ScheduleStep) -> int | None:
        """Picoseconds that a step takes as things are; None if it does not fit."""
        if step.is_empty:
            return 0
        key = self._key(step)
        if key not in self._known:
            self._known[key] = self._estimate_fitted(step)
        return self._known[key]

    def _key(self, step: ScheduleStep) -> tuple[tuple[int, ...], tuple[tuple[bool, ...], ...], tuple[Span, ...]]:
        cascade = step.cascade
        which: tuple[int, ...] = (step.groups[0].index,)
        if cascade:
            which = cascade.first, cascade.last, cascade.height, cascade.apart
        return which, tuple([self._near(group) for group in step.groups]), tuple(step.free(self._context))

    def _near(self, group: Group) -> tuple[bool, ...]:
        return tuple([buffer.on_chip for buffer in self._touched[group.index]])

    def _estimate_fitted(self, step: ScheduleStep) -> int | None:
        try:
            fitted = fit(step, self._context, made=self._made)
        except CompileError:
            return None
        if step.cascade is None:
            return fitted.lowerings[0].estimate()
        return together(step.cascade, step.groups, fitted.lowerings, self._context)

    # cascades

    def _cascades(self, steps: Sequence[ScheduleStep], costs: Sequence[int]) -> list[Cascade]:
        """The cascades that lower the estimate most: dynamic programming over where the groups are cut."""
        self._seen = [seen(self._context, group) for group in self._groups]
        cuts = Cuts(costs)
        for first in reversed(range(len(self._groups))):
            for last, cost, cascade in self._from(first, steps, costs, cuts):
                cuts.add(first, last, cost, cascade)
        return cuts.best()

    def _from(
        self, first: int, steps: Sequence[ScheduleStep], costs: Sequence[int], cuts: Cuts
    ) -> Iterator[tuple[int, int, Cascade]]:
        """Cascades that begin with a group: (last group, picoseconds, cascade)."""
        end, wanted = min(first + (LONGEST if self._keeps else 2), len(self._groups)), first
        left = self._capacity
        for last in range(first, end):
            poll()
            if rows_of(self._groups[last], self._context) is None:
                return
            # Up to where somebody reads what the groups before the last one make: no cascade ends earlier.
            if wanted >= end:
                return
            # Nor does one with more groups fit than one whose weights do not.
            left -= self._held(self._groups[last])
            if left <= 0:
                return
            groups = self._groups[first : last + 1]
            reached, wanted = wanted <= last, max(wanted, self._last_use(self._groups[last]))
            if last == first or not reached or not self._closed(groups):
                continue
            # Where everything is in SRAM as a whole there is nothing to gain, unless two units could work side by side,
            # what comes from outside takes long, or there is no need to copy what a window has padding around.
            near = self._is_near(groups)
            if near and not (
                side_by_side(groups)
                or self._may_hide(groups, steps, costs)
                or self._may_wait(groups, costs)
                or self._may_spare(groups, costs)
            ):
                continue
            alone = cuts.least(first, last)
            inner = self._windows_of(groups)
            # With all of SRAM to themselves: what that cannot gain no room can.
            best = self._known_height(groups, inner, self._capacity) if inner else None
            if best and best[0] * 100 > alone * (100 + _FAR_PERCENT):
                return
            if inner is None or best is None or best[0] >= alone:
                continue
            option = self._known_height(groups, inner, self._beside(groups, inner, steps))
            if option is None or best[0] * 1000 < option[0] * (1000 - _SLACK):
                options = [option, *self._with_others_far(groups, steps, costs)]
                option = min(filter(None, options), key=itemgetter(0), default=None)
            if option is None:
                continue
            # Estimates may be off by more than what is gained so.
            cost, cascade = option
            cost += self._waited_for(first, steps, costs)
            if cost >= alone or (near and cost * 100 > sum(costs[first : last + 1]) * (100 - CLOSE_PERCENT)):
                continue
            yield last, cost, cascade

    def _waited_for(self, first: int, steps: Sequence[ScheduleStep], costs: Sequence[int]) -> int:
        """Picoseconds that a cascade waits for the weights of its first group: they come while the group in front is at
        its last tile."""
        if first not in self._waited:
            config, held, tile = self._context.config, self._held(self._groups[first]), 0
            if held and first and not steps[first - 1].is_empty:
                try:
                    before = fit(steps[first - 1], self._context, made=self._made).lowerings[0]
                    tile = costs[first - 1] // before.turns()
                except CompileError:
                    pass
            # Weights, and with them bias and scales.
            wait = loading(held, constants_side(config), 2) if held else 0
            self._waited[first] = max(0, wait - tile)
        return self._waited[first]

    def _option(self, groups: Sequence[Group], steps: Sequence[ScheduleStep]) -> tuple[int, Cascade] | None:
        """Picoseconds of the best stripes of some groups, and these; None where there are none."""
        inner = self._windows_of(groups)
        return None if inner is None else self._known_height(groups, inner, self._beside(groups, inner, steps))

    def _with_others_far(
        self, groups: Sequence[Group], steps: Sequence[ScheduleStep], costs: Sequence[int]
    ) -> Iterator[tuple[int, Cascade] | None]:
        """What :meth:`_option` says where values at the ends of some groups are in DRAM, which leaves them their bytes;
        with what other groups then take for that."""
        first, last = groups[0].index, groups[-1].index
        ends = [
            buffer
            for buffer in dict.fromkeys(buffer for group in groups for buffer in self._touched[group.index])
            if buffer.on_chip and not first <= self._users[buffer][0] <= self._users[buffer][-1] <= last
        ]
        for far in ([end] for end in ends) if len(ends) < 2 else (*([end] for end in ends), ends):
            users = sorted({user for buffer in far for user in self._users[buffer] if not first <= user <= last})
            with self._elsewhere(far, [steps[user] for user in users], groups):
                now = [self._estimate(steps[user]) for user in users]
                option = self._option(groups, steps) if None not in now else None
            if option is not None:
                yield option[0] + sum(cost or 0 for cost in now) - sum(costs[user] for user in users), option[1]

    @contextlib.contextmanager
    def _elsewhere(
        self, far: Collection[Buffer], others: Sequence[ScheduleStep], groups: Sequence[Group]
    ) -> Iterator[None]:
        """While this is active, some values are in DRAM, for some groups and for the other steps that use them."""
        cores, residents = [buffer.core for buffer in far], [step.resident for step in others]
        first, end = groups[0].index, groups[-1].index + 1
        known = self._seen[first:end]
        for buffer in far:
            buffer.core = None
        for step in others:
            step.resident = [each for each in step.resident if each not in far]
        self._seen[first:end] = [seen(self._context, group) for group in groups]
        yield
        self._seen[first:end] = known
        for buffer, core in zip(far, cores, strict=True):
            buffer.core = core
        for step, resident in zip(others, residents, strict=True):
            step.resident = resident

    def _may_spare(self, groups: Sequence[Group], costs: Sequence[int]) -> bool:
        """Whether values between some groups are copied tile by tile, to have padding around them, for so long that
        something could be gained."""
        copied = sum(
            group.anchor.input(0).nbytes
            for group in groups[1:]
            if group.anchor is not None and group.anchor.kind == "conv" and any(group.anchor.attrs["pads"])
        )
        copying = copied * 10**12 // sram_rate(self._context.config)
        return copying * 100 > sum(costs[group.index] for group in groups) * CLOSE_PERCENT

    def _is_near(self, groups: Sequence[Group]) -> bool:
        """Whether all that some groups touch is in SRAM as a whole."""
        return all(buffer.on_chip for group in groups for buffer in self._touched[group.index])

    def _may_wait(self, groups: Sequence[Group], costs: Sequence[int]) -> bool:
        """Whether the inputs of the graph that the first of some groups reads take so long to come that the others
        could gain something meanwhile."""
        coming = loading(self._inputs[groups[0].index], self._context.config)
        others = sum(costs[group.index] for group in groups[1:])
        return min(coming, others) * 100 > (others + costs[groups[0].index]) * CLOSE_PERCENT

    def _may_hide(self, groups: Sequence[Group], steps: Sequence[ScheduleStep], costs: Sequence[int]) -> bool:
        """Whether the matrix unit waits for the vector unit in the last of some groups, and for so long that the others
        could gain something meanwhile."""
        last = groups[-1]
        if not last.chain or not all(map(on_matrix, groups)):
            return False
        if last not in self._waiting:
            try:
                fitted = fit(steps[last.index], self._context, made=self._made)
            except CompileError:
                return False
            self._waiting[last] = fitted.lowerings[0].waiting()
        others = sum(costs[group.index] for group in groups[:-1])
        return min(self._waiting[last], others) * 100 > (others + costs[last.index]) * CLOSE_PERCENT

    def _windows_of(self, groups: Sequence[Group]) -> list[Inner] | None:
        """The values that have windows where some groups run together; None if they cannot."""
        if not self._keeps and [group.anchor and group.anchor.kind for group in groups] != ["conv", "pool"]:
            return None
        inner = inners(groups, self._context)
        if inner is None or not self._keeps:
            return inner
        return [*inner, *imports(groups, inner, self._context)]

    def _last_use(self, group: Group) -> int:
        """The last group that uses a group's result; beyond all groups if the result leaves."""
        users = self._users.get(self._context.view(group.outputs[0]).buffer)
        return users[-1] if users else len(self._groups)

    def _closed(self, groups: Sequence[Group]) -> bool:
        """Nobody outside wants the values between groups, and each has its bytes for itself."""
        first, last = groups[0].index, groups[-1].index
        for group in groups[:-1]:
            buffer = self._context.views[group.outputs[0]].buffer
            users = self._users.get(buffer)
            if users is None or users[0] < first or users[-1] > last or len(self._tensors[buffer]) > 1:
                return False
        return True

    def _known_height(self, groups: Sequence[Group], inner: Sequence[Inner], room: int) -> tuple[int, Cascade] | None:
        """What :meth:`_best_height` says, while there are no windows yet, remembered."""
        numbers: dict[Tensor, int] = {}
        same = [
            numbers.setdefault(tensor, len(numbers)) for group in groups for tensor in boundary(self._context, group)
        ]
        values = [(numbers[value.tensor], *value[1:]) for value in inner]
        key = (
            *self._seen[groups[0].index : groups[-1].index + 1], tuple(same), tuple(values), room,
        )  # fmt: skip
        if key not in self._heights:
            found = self._best_height(groups, inner, room)
            self._heights[key] = found and (found[0], found[1].height, found[1].apart)
            return found
        known = self._heights[key]
        shape = outline(groups, inner, self._context) if known else None
        return (known[0], shape.cut(known[1], apart=known[2])) if known and shape else None

    def _beside(
        self,
        groups: Sequence[Group],
        inner: Sequence[Inner],
        steps: Sequence[ScheduleStep] | Mapping[int, ScheduleStep],
    ) -> int:
        """The bytes of SRAM beside what stays there while some groups run together."""
        gone = {self._context.views[value.tensor].buffer for value in inner if value.maker < len(groups)}
        resident = {b for group in groups for b in steps[group.index].resident if b not in gone and b.on_chip}
        return self._capacity - sum(align(max(buffer.nbytes, 1)) for buffer in resident)

    def _held(self, group: Group) -> int:
        """The bytes of a group's weights that stay in SRAM while it is in a cascade, beside those that always do."""
        return 0 if group.index in self._context.pinned.starts else weight_bytes(self._context, group)

    def _best_height(self, groups: Sequence[Group], inner: Sequence[Inner], room: int) -> tuple[int, Cascade] | None:
        """The stripes of least time, and what they take; of such as are near, those that take least room. Shorter ones
        may take longer and still shorter ones less: what hides behind a chain grows with their number, and so does what
        each of them costs."""
        found: list[tuple[int, int, Cascade]] = []
        held = sum(map(self._held, groups))
        height = groups[-1].outputs[0].shape[rows_of(groups[-1], self._context) or 0]
        # One stripe for all rows is for several images; of a single one nothing would be saved.
        height = height * 2 if groups[-1].outputs[0].shape[0] > 1 else height
        shape = outline(groups, inner, self._context) if room > held else None
        if shape is None:
            return None
        least, risen = None, 0
        made: list[MadeAlike] = []  # what groups see does not depend on the height
        while height > 1 and risen < _MOST_RISEN:
            height = ceil_div(height, 2)
            for apart in (True, False) if side_by_side(groups) else (True,):
                left = room - shape.window_bytes(height, apart=apart)
                if left <= held:
                    continue
                cascade = shape.cut(height, apart=apart)
                cost = self._beside_taken(groups, cascade, self._capacity - left, made)
                if cost is None:
                    continue
                found.append((cost, -left, cascade))
                risen = 0 if least is None or cost < least else risen + 1
                least = cost if least is None else min(cost, least)
                break  # what works side by side wants the room, if there is any
        if not found:
            return None
        slack = 0 if self._is_near(groups) else _HEIGHT_SLACK
        limit = min(cost for cost, _, _ in found) * (1000 + slack) // 1000
        cost, _, cascade = min((each for each in found if each[0] <= limit), key=itemgetter(1, 0))
        return cost, cascade

    def _beside_taken(self, groups: Sequence[Group], cascade: Cascade, taken: int, made: list[MadeAlike]) -> int | None:
        """Picoseconds that a cascade takes where so many bytes are others'; None if it does not fit. ``made``: see
        :class:`ScheduleStep`."""
        step = ScheduleStep(list(groups), cascade, [Buffer("taken", 0, taken, 0)], made)
        with RollingBuffers(self._context, cascade.windows):
            return self._estimate(step)

    def _with_cascades(self, cascades: Sequence[Cascade]) -> list[ScheduleStep]:
        """Steps with these cascades, their windows in place; nothing else is in SRAM."""
        for buffer in self._candidates:
            buffer.core, buffer.offset = None, 0
        steps: list[ScheduleStep] = []
        at = 0
        for cascade in cascades:
            steps += [ScheduleStep([group]) for group in self._groups[at : cascade.first]]
            step = ScheduleStep(self._groups[cascade.first : cascade.last + 1], cascade)
            made = [window for window in cascade.windows if window.source is None]
            kept = {window.inner.tensor: self._context.views[window.inner.tensor] for window in made}
            offset = 0
            for window in cascade.windows:
                window.buffer.core, window.buffer.offset = 0, offset
                offset = align(offset + window.buffer.nbytes)
                step.resident.append(window.buffer)
            for window in made:
                self._context.views[window.inner.tensor] = window.view
            if self._estimate(step) is None:
                self._context.views.update(kept)
                steps += [ScheduleStep([group]) for group in step.groups]
            else:
                self._lives.update((buffer, range(len(steps), len(steps) + 1)) for buffer in step.resident)
                steps.append(step)
            at = cascade.last + 1
        return steps + [ScheduleStep([group]) for group in self._groups[at:]]

    # what else could have been, asked afterwards

    def in_dram(self, buffer: Buffer, life: Sequence[ScheduleStep]) -> Trial:
        """A value that is in SRAM as a whole, in DRAM instead."""
        before, offset = self._total(life), buffer.offset
        _take_out(buffer, life)
        after = self._total(life)
        buffer.core, buffer.offset = 0, offset
        for step in life:
            step.resident.append(buffer)
        self._sort(life)
        return Trial((after or 0) - (before or 0))

    def in_sram(self, buffer: Buffer, life: Sequence[ScheduleStep]) -> Trial:
        """A value that is in DRAM, in SRAM as a whole instead."""
        if not self._keeps:
            return Trial(None, "SRAM keeps no values")
        before, offset = self._total(life), buffer.offset
        if not self._put_beside(buffer, life):
            taken = {other: align(max(other.nbytes, 1)) for step in life for other in step.resident}
            return Trial(None, f"no run of {buffer.nbytes} bytes is free in its time beside {sum(taken.values())}")
        costs = [self._estimate(step) for step in life]
        _take_out(buffer, life)
        buffer.offset = offset
        if None in costs:
            stuck = life[costs.index(None)].groups[0]
            return Trial(None, f"the tiles of {stuck.name} would not fit beside it")
        return Trial(sum(cost or 0 for cost in costs) - (before or 0))

    def apart(self, step: ScheduleStep) -> Trial:
        """A cascade's groups one after the other, the values between them in DRAM, or in SRAM where that is less."""
        cascade, together = step.cascade, self._estimate(step)
        assert cascade is not None
        made = [window for window in cascade.windows if window.source is None]
        windows = {window.inner.tensor: window.view for window in made}
        self._context.views.update({tensor: self._whole[tensor] for tensor in windows})
        alone = [ScheduleStep([group], None, [b for b in step.resident if not b.is_rolling]) for group in step.groups]
        costs = [self._estimate(each) for each in alone]
        moved: list[Buffer] = []
        for window in made:
            buffer = self._whole[window.inner.tensor].buffer
            first, last = window.inner.maker, max(reader.reader for reader in window.inner.readers)
            life = alone[first : last + 1]
            if not self._keeps or not self._put_beside(buffer, life):
                continue
            now = [self._estimate(each) for each in life]
            if None in now or sum(c or 0 for c in now) >= sum(c or 0 for c in costs[first : last + 1]):
                _take_out(buffer, life)
            else:
                costs[first : last + 1] = now
                moved.append(buffer)
        for buffer in moved:
            buffer.core, buffer.offset = None, 0
        self._context.views.update(windows)
        if None in costs:
            return Trial(None, f"the tiles of {alone[costs.index(None)].groups[0].name} would not fit")
        return Trial(sum(cost or 0 for cost in costs) - (together or 0))

    def in_window(self, buffer: Buffer, steps: Sequence[ScheduleStep]) -> Trial:
        """The groups from where a value in DRAM is made to where it is last read, as a cascade; ``steps``: those of
        its life, each of one group."""
        groups = [group for step in steps for group in step.groups]
        if len(groups) > LONGEST:
            return Trial(None, f"no cascade has more than {LONGEST} layers")
        for group in groups:
            if rows_of(group, self._context) is None:
                return Trial(None, f"{group.name} has no rows to stripe")
        inner = self._windows_of(groups)
        if inner is None or not self._closed(groups):
            return Trial(None, "others want what is made on the way" if self._keeps else "SRAM keeps no values")
        before = self._total(steps)
        beside = {each.groups[0].index: each for each in steps}
        option = self._best_height(groups, inner, self._beside(groups, inner, beside))
        if option is None:
            return Trial(None, f"weights and windows of {groups[0].name} to {groups[-1].name} would not fit")
        return Trial(option[0] - (before or 0))

    def _put_beside(self, buffer: Buffer, life: Sequence[ScheduleStep]) -> bool:
        """Put a buffer where nothing else is meanwhile, if there is such a place."""
        rivals = {other for step in life for other in step.resident}
        offset = self._lowest(buffer, ((other.offset, other) for other in rivals))
        if offset is None:
            return False
        buffer.core, buffer.offset = 0, offset
        for step in life:
            step.resident.append(buffer)
        self._sort(life)
        return True

    def _total(self, steps: Sequence[ScheduleStep]) -> int | None:
        costs = [self._estimate(step) for step in steps]
        return None if None in costs else sum(cost or 0 for cost in costs)


def _take_out(buffer: Buffer, life: Iterable[ScheduleStep]) -> None:
    buffer.core, buffer.offset = None, 0
    for step in life:
        step.resident.remove(buffer)


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


_ORDERS: tuple[Callable[[Buffer, range], tuple[int, ...]], ...] = (
    lambda buffer, life: (-buffer.nbytes, life.start),
    lambda buffer, life: (life.start, -len(life), -buffer.nbytes),
    lambda buffer, life: (-life.stop, -len(life), -buffer.nbytes),
)
"""The orders in which values are tried to be put side by side."""


_SLACK = 10
"""In thousandths, what estimates of the same steps may differ by and be as good."""
_MOST_RISEN = 2
"""So many heights of stripes in turn that take longer than higher ones are the last that are tried."""
_HEIGHT_SLACK = 20
"""And those of stripes of several heights: what the lower ones leave is for values beside them, if these have none."""
LONGEST = 16
"""Groups in a cascade at most."""
CLOSE_PERCENT = 1
"""Estimates may be off by so much."""
_FAR_PERCENT = 20
"""A cascade that takes so much longer than its groups do without it is the longest one to begin with the first of them
that is looked at."""
_NEAR_PERCENT = 30
"""And those of cascades by so much: groups that do not run together begin on the first rows of the one before."""
_ALIKE_PERCENT = 15
"""As near as this the forecasts of both decide. Where whole values have been faster they were estimated to take up to
8 % longer."""
MEAN_LIFE = 24
"""Steps for which values are tried in SRAM, for each step of the graph: all those of a life are estimated, so
the work would grow with the square of the graph. What is wanted for long is tried, too, while there is little of it."""
MOST_BESIDE = 24
"""Values that are in SRAM at one time, at most: an estimate looks at what is free between them."""
MOST_RIVALS = 48
"""Values that are put side by side anew for one more, at most: the work grows with the square of them."""
