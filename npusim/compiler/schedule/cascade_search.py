"""Choose the cascades: which neighbouring groups run together, stripe by stripe.

The main reason for a cascade is a value between neighbours that does not fit into the scratchpad. Every run of groups
that may form a cascade is estimated and compared with the same groups alone or in smaller cascades. Dynamic programming
(``cascade_cuts``) then finds the best partition of the whole graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, on_matrix, side_by_side
from npusim.compiler.lower.base import loading, sram_rate
from npusim.compiler.schedule.cascade import LONGEST, Cascade, Outline, outline, rows_of
from npusim.compiler.schedule.cascade_cuts import CascadeCuts
from npusim.compiler.schedule.likeness import boundary, held_bytes, seen
from npusim.compiler.schedule.memory_choices import OPEN, CascadeRun, MemoryChoices
from npusim.compiler.schedule.residency import SLACK
from npusim.compiler.schedule.rolling_buffer import StripedValue
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.step_costs import StepCosts
from npusim.compiler.schedule.stripe_heights import best_stripes, is_closed, rolling_values, room_for_cascade
from npusim.errors import CompileError, ScheduleError, named
from npusim.graph import Tensor
from npusim.hw.memory import ALIGNMENT, align, constants_side
from npusim.polling import poll

CLOSE_PERCENT = 1
"""The error of estimates: smaller gains are ignored."""
_CLOSE_ON_CORES_PERCENT = 5
"""The same limit on several cores, where constants load many steps ahead, which the estimates of steps ignore."""
_FAR_PERCENT = 20
"""If a cascade with the whole scratchpad to itself is slower than its groups alone by more than this percentage, longer
cascades from the same group are not tried."""


class CascadeSearch:
    """The search for cascades in one graph.

    ``steps``: each group alone, with the values that are in the scratchpad. ``alone``: the picoseconds of each of these
    steps.
    """

    def __init__(
        self, steps: Sequence[ScheduleStep], alone: Sequence[int], costs: StepCosts, choices: MemoryChoices
    ) -> None:
        self._choices = choices
        self._run_of = {number: run for run in choices.runs for number in range(run.first, run.last + 1)}
        self._steps, self._alone, self._costs = steps, alone, costs
        self._context, self._groups = costs.context, costs.groups
        self._keeps = self._context.config.compiler.keeps_values
        self._seen = [seen(self._context, group) for group in self._groups]
        self._idle: dict[Group, int] = {}
        self._delays: dict[int, int] = {}

    def run(self) -> list[Cascade]:
        """Return the given cascades and those that reduce the total estimate most, in order.

        Raises ScheduleError for a given cascade that cannot be built.
        """
        cuts = CascadeCuts(self._alone)
        for run in self._choices.cascade_runs:
            cost, cascade = self._given(run)
            cuts.require(run.first, run.last, cost, cascade)
        for first in reversed(range(len(self._groups) if self._choices.search_cascades else 0)):
            for last, cost, cascade in self._beginning_with(first, cuts):
                cuts.add(first, last, cost, cascade)
        return cuts.best()

    def _beginning_with(self, first: int, cuts: CascadeCuts) -> Iterator[tuple[int, int, Cascade]]:
        """Yield (last group, picoseconds, cascade) for cascades from group ``first`` that reduce the estimate."""
        for groups in self._runs(first):
            last = groups[-1].index
            near = self._costs.all_on_chip(groups)
            # If all values are in the scratchpad as a whole, only a few effects can make a cascade faster.
            if near and not self._may_gain(groups):
                continue
            alone = cuts.least(first, last)
            striped = rolling_values(groups, self._context)
            # A cascade is fastest with the whole scratchpad to itself. If it does not gain then, it never does.
            best = self._best_stripes(groups, striped, self._context.sram_bytes) if striped else None
            if best and best[0] * 100 > alone * (100 + _FAR_PERCENT):
                return
            if striped is None or best is None or best[0] >= alone:
                continue
            option = self._beside_values(groups, striped, best[0])
            if option is None:
                continue
            cost, cascade = option
            cost += self._weights_delay(first)
            least_gain = (_CLOSE_ON_CORES_PERCENT if self._costs.cores else CLOSE_PERCENT) if near else 0
            if cost < alone and cost * 100 <= sum(self._alone[first : last + 1]) * (100 - least_gain):
                yield last, cost, cascade

    def _runs(self, first: int) -> Iterator[Sequence[Group]]:
        """Yield runs of groups from ``first`` on that may form a cascade, as far as structure and weights allow."""
        end = min(first + (LONGEST if self._keeps else 2), len(self._groups))
        left, reader = self._context.sram_bytes, first
        for last in range(first, end):
            poll()
            group = self._groups[last]
            if last in self._run_of:
                return
            # A cascade cannot end before the last reader of its results, which here is out of reach.
            if rows_of(group, self._context) is None or reader >= end:
                return
            # The weights of all groups stay for all stripes. If they do not fit, a longer run does not fit either.
            left -= held_bytes(self._context, group)
            if left <= 0:
                return
            is_complete = reader <= last
            reader = max(reader, self._last_use(group))
            groups = self._groups[first : last + 1]
            if last > first and is_complete and is_closed(groups, self._costs):
                if any(self._result(each) in self._choices.areas for each in groups[:-1]):
                    return  # the schedule gives a memory area to a value that would be in a rolling buffer
                yield groups

    def _result(self, group: Group) -> Buffer:
        return self._context.views[group.outputs[0]].buffer

    def _given(self, run: CascadeRun) -> tuple[int, Cascade]:
        """The best cascade within what the schedule gives, and its picoseconds."""
        shape = given_outline(run, self._costs)
        rooms = room_for_cascade(shape.groups, shape.striped, self._steps, self._context), self._context.sram_bytes
        for room in rooms:  # beside the values in the scratchpad; if that fails, with these in DRAM
            found = best_stripes(shape.groups, shape.striped, room, self._costs, run.cascade)
            if found is not None:
                return found
        raise ScheduleError(f"{_where(run)} weights and rolling buffers do not fit into {rooms[1]} bytes")

    def _last_use(self, group: Group) -> int:
        """The last group that uses a group's result; past the end if the result is a graph output."""
        users = self._costs.users.get(self._context.view(group.outputs[0]).buffer)
        return users[-1] if users else len(self._groups)

    # Which stripes, beside which values

    def _beside_values(
        self, groups: Sequence[Group], striped: Sequence[StripedValue], best: int
    ) -> tuple[int, Cascade] | None:
        """The picoseconds and cascade of the best stripes beside the values in the scratchpad, or with some of them
        moved to DRAM.

        ``best``: the picoseconds with the whole scratchpad to itself.
        """
        option = self._best_stripes(groups, striped, room_for_cascade(groups, striped, self._steps, self._context))
        if option is not None and best * 1000 >= option[0] * (1000 - SLACK):
            return option
        return min(filter(None, [option, *self._with_values_in_dram(groups)]), key=itemgetter(0), default=None)

    def _best_stripes(
        self, groups: Sequence[Group], striped: Sequence[StripedValue], room: int
    ) -> tuple[int, Cascade] | None:
        """:func:`best_stripes`, cached for runs of groups with equal keys, because networks repeat blocks."""
        numbers: dict[Tensor, int] = {}
        same = [
            numbers.setdefault(tensor, len(numbers)) for group in groups for tensor in boundary(self._context, group)
        ]
        values = [(numbers[value.tensor], value.maker, value.axis, value.readers) for value in striped]
        looks = self._seen[groups[0].index : groups[-1].index + 1]
        key = (*looks, tuple(same), tuple(values), room)
        heights = self._costs.known.heights
        if key not in heights:
            found = best_stripes(groups, striped, room, self._costs)
            heights[key] = found and (found[0], found[1].height, found[1].apart)
            return found
        known = heights[key]
        shape = outline(groups, striped, self._context, self._costs.cores) if known else None
        return (known[0], shape.cut(known[1], apart=known[2])) if known and shape else None

    def _with_values_in_dram(self, groups: Sequence[Group]) -> Iterator[tuple[int, Cascade]]:
        """Yield the best stripes if values at the ends of the cascade move to DRAM, each alone and all together.

        The picoseconds include what the move costs other groups.
        """
        first, last = groups[0].index, groups[-1].index
        users, ends = self._costs.users, self._movable(groups)
        for moved in ([end] for end in ends) if len(ends) < 2 else (*([end] for end in ends), ends):
            others = sorted({user for buffer in moved for user in users[buffer] if not first <= user <= last})
            with self._in_dram(moved, [self._steps[user] for user in others], groups):
                after = self._costs.total(self._steps[user] for user in others)
                striped = rolling_values(groups, self._context) if after is not None else None
                option = striped and self._best_stripes(
                    groups, striped, room_for_cascade(groups, striped, self._steps, self._context)
                )
            if option and after is not None:
                yield option[0] + after - sum(self._alone[user] for user in others), option[1]

    def _movable(self, groups: Sequence[Group]) -> list[Buffer]:
        """The values at the ends of a cascade that are in the scratchpad and whose area the schedule leaves open."""
        first, last = groups[0].index, groups[-1].index
        touched = dict.fromkeys(buffer for group in groups for buffer in self._costs.touched[group.index])
        free = [each for each in touched if each.on_chip and each not in self._choices.areas]
        users = self._costs.users
        return [each for each in free if users[each][0] < first or users[each][-1] > last]

    @contextlib.contextmanager
    def _in_dram(
        self, values: Collection[Buffer], others: Sequence[ScheduleStep], groups: Sequence[Group]
    ) -> Iterator[None]:
        """Context manager: the values are in DRAM, for the groups and for the other steps that use them."""
        cores, residents = [buffer.core for buffer in values], [step.resident for step in others]
        first, end = groups[0].index, groups[-1].index + 1
        known = self._seen[first:end]
        for buffer in values:
            buffer.core = None
        for step in others:
            step.resident = [each for each in step.resident if each not in values]
        self._seen[first:end] = [seen(self._context, group) for group in groups]
        yield
        self._seen[first:end] = known
        for buffer, core in zip(values, cores, strict=True):
            buffer.core = core
        for step, resident in zip(others, residents, strict=True):
            step.resident = resident

    # Why a cascade may gain something though all values are in the scratchpad

    def _may_gain(self, groups: Sequence[Group]) -> bool:
        """Whether a cascade may gain although all its values are in the scratchpad."""
        return (
            side_by_side(groups)
            or self._may_hide_vector(groups)
            or self._may_hide_input(groups)
            or self._may_save_padding(groups)
        )

    def _may_hide_vector(self, groups: Sequence[Group]) -> bool:
        """Whether the matrix unit waits so long for the vector unit in the last group that running the other groups
        meanwhile gains something."""
        last = groups[-1]
        if not last.chain or not all(map(on_matrix, groups)):
            return False
        if last not in self._idle:
            try:
                self._idle[last] = self._costs.fitted(self._steps[last.index]).lowerings[0].waiting()
            except CompileError:
                return False
        return self._hides(self._idle[last], groups[:-1], last)

    def _may_hide_input(self, groups: Sequence[Group]) -> bool:
        """Whether graph inputs arrive so slowly at the first group that starting the others on its first rows gains
        something."""
        arriving = loading(self._costs.input_bytes[groups[0].index], self._context.config)
        return self._hides(arriving, groups[1:], groups[0])

    def _hides(self, hiding: int, others: Sequence[Group], group: Group) -> bool:
        """Whether running ``others`` during ``hiding`` picoseconds of a group gains more than the error of the
        estimates."""
        total = sum(self._alone[other.index] for other in others)
        return min(hiding, total) * 100 > (total + self._alone[group.index]) * CLOSE_PERCENT

    def _may_save_padding(self, groups: Sequence[Group]) -> bool:
        """Whether copies of tiles that only add padding take long enough to be worth avoiding. Rolling buffers include
        the padding."""
        copied = sum(
            group.anchor.input(0).nbytes
            for group in groups[1:]
            if group.anchor is not None and group.anchor.kind == "conv" and any(group.anchor.attrs["pads"])
        )
        copying = copied * 10**12 // sram_rate(self._context.config)
        return copying * 100 > sum(self._alone[group.index] for group in groups) * CLOSE_PERCENT

    def _weights_delay(self, first: int) -> int:
        """Picoseconds that a cascade waits for the weights of its first group.

        They load while the previous group computes its last tile, which hides a part.
        """
        if first not in self._delays:
            context = self._context
            held, tile = held_bytes(context, self._groups[first]), 0
            if held and first and not self._steps[first - 1].is_empty:
                with contextlib.suppress(CompileError):
                    before = self._costs.fitted(self._steps[first - 1]).lowerings[0]
                    tile = self._alone[first - 1] // before.turns()
            # Two transfers: weights, and bias with scales.
            wait = loading(held, constants_side(context.config), 2) if held else 0
            self._delays[first] = max(0, wait - tile)
        return self._delays[first]


def _where(run: CascadeRun) -> str:
    layers = run.cascade.layers
    return f"cascades: {named(layers[0])} to {named(layers[-1])}:"


def given_outline(run: CascadeRun, costs: StepCosts) -> Outline:
    """The outline of a cascade that the schedule gives. Raises ScheduleError if these layers cannot form one."""
    context, groups = costs.context, costs.groups[run.first : run.last + 1]
    if len(groups) > LONGEST:
        raise ScheduleError(f"{_where(run)} must have at most {LONGEST} layers, got {len(groups)}")
    for group in groups:
        if rows_of(group, context) is None:
            kinds = "convolutions with constant weights, poolings and elementwise operators on images"
            raise ScheduleError(f"{_where(run)} {named(group.name)} ({group.kind}) has no rows; must be {kinds}")
    striped = rolling_values(groups, context)
    shape = None
    if striped is not None and is_closed(groups, costs):
        if run.cascade.loads is not None:
            between = [value for value in striped if value.maker < len(groups)]
            loaded = [value for value in striped if value.maker >= len(groups)]
            kept = [value for value in loaded if value.tensor.name in run.cascade.loads]
            striped = between + [value._replace(maker=len(groups) + at) for at, value in enumerate(kept)]
        shape = outline(groups, striped, context, costs.cores)
    if shape is None:
        raise ScheduleError(
            f"{_where(run)} cannot run together; each tensor between the layers must be read by them alone, with the "
            f"same padding and along the same rows"
        )
    if run.cascade.rows > shape.heights[-1]:
        raise ScheduleError(f"{_where(run)} rows must be at most {shape.heights[-1]}, got {run.cascade.rows}")
    return shape


def given_cascade(run: CascadeRun, costs: StepCosts) -> Cascade:
    """Build a cascade that the schedule gives completely. Raises ScheduleError if it cannot be built."""
    return given_outline(run, costs).cut(run.cascade.rows, apart=bool(run.cascade.overlap))


def _given_offsets(run: CascadeRun, buffers: Sequence[Buffer], capacity: int) -> Sequence[int]:
    """The addresses of rolling buffers that the schedule gives. Raises ScheduleError if they overlap or do not fit."""
    offsets = run.cascade.offsets or ()
    ends = [start + buffer.nbytes for start, buffer in zip(offsets, buffers, strict=False)]
    spans = sorted(zip(offsets, ends, strict=False))
    apart = all(one[1] <= other[0] for one, other in pairwise(spans))
    if len(offsets) != len(buffers) or not apart or any(start % ALIGNMENT for start in offsets) or max(ends) > capacity:
        sizes = [buffer.nbytes for buffer in buffers]
        raise ScheduleError(
            f"{_where(run)} offsets must be multiples of {ALIGNMENT} for rolling buffers of {sizes} bytes, one beside "
            f"the other in {capacity} bytes, got {list(offsets)}"
        )
    return offsets


def with_cascades(cascades: Sequence[Cascade], costs: StepCosts, choices: MemoryChoices = OPEN) -> list[ScheduleStep]:
    """Return steps with these cascades; the scratchpad contains only their rolling buffers, at its low end.

    A cascade that does not fit after all is split into single groups. Raises ScheduleError if the schedule requires it.
    """
    context, groups = costs.context, costs.groups
    for buffer in costs.users:
        buffer.core, buffer.offset = None, 0
    steps: list[ScheduleStep] = []
    given = {run.first: run for run in choices.cascade_runs}
    at = 0
    for cascade in cascades:
        steps += [ScheduleStep([group]) for group in groups[at : cascade.first]]
        step = ScheduleStep(list(groups[cascade.first : cascade.last + 1]), cascade)
        made = {tensor: view for each in cascade.between for tensor, view in each.views.items()}
        whole = {tensor: context.views[tensor] for tensor in made}
        buffers = [each.buffer for each in cascade.rolling]
        offsets: Sequence[int] = list(accumulate((align(buffer.nbytes) for buffer in buffers[:-1]), initial=0))
        if cascade.first in given and given[cascade.first].cascade.offsets is not None:
            offsets = _given_offsets(given[cascade.first], buffers, context.sram_bytes)
        for buffer, offset in zip(buffers, offsets, strict=True):
            buffer.core, buffer.offset = 0, offset
            step.resident.append(buffer)
        step.resident.sort(key=lambda buffer: buffer.offset)
        context.views.update(made)
        # All cores have their rolling buffers at the same addresses.
        for number, other in enumerate(cascade.others, 1):
            for each, offset in zip(other.rolling, offsets, strict=True):
                each.buffer.core, each.buffer.offset = number, offset
        # Nothing is estimated for a complete schedule: emission shows whether it fits.
        if not choices.are_complete and costs.of(step) is None:
            if cascade.first in given:
                raise ScheduleError(f"{_where(given[cascade.first])} does not fit into {context.sram_bytes} bytes")
            context.views.update(whole)
            steps += [ScheduleStep([group]) for group in step.groups]
        else:
            steps.append(step)
            for core, other in zip(costs.cores, cascade.others, strict=False):
                for each in other.between:
                    core.context.views.update(each.views)
        at = cascade.last + 1
    return steps + [ScheduleStep([group]) for group in groups[at:]]
