"""What a schedule would take if one value lived elsewhere: the figures of ``npusim explain --memory``.

Asked after planning. One value is moved, all others stay where they are, the steps of its life are estimated again by
the estimates that the planner uses, and the value is moved back. So a figure is what the move alone would add; a plan
made without the value might come out better.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from npusim.compiler.buffers import Buffer
from npusim.compiler.schedule.allocate import Scratchpad
from npusim.compiler.schedule.cascade import rows_of
from npusim.compiler.schedule.cascade_search import LONGEST
from npusim.compiler.schedule.rolling_buffer import RollingBuffer
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.step_costs import StepCosts
from npusim.compiler.schedule.stripe_heights import best_stripes, is_closed, rolling_values, room_for_cascade
from npusim.hw.memory import align


class Alternative(NamedTuple):
    """Picoseconds that another memory area would add, by estimate; None if it is not possible, with the reason."""

    added_ps: int | None
    obstacle: str = ""


class Alternatives:
    """Answers for one finished plan. ``untried``: values that were never tried in the scratchpad."""

    def __init__(self, costs: StepCosts, untried: Collection[Buffer]) -> None:
        self.costs, self.untried = costs, untried
        self._context = costs.context
        self._keeps = costs.context.config.sram.keeps_values

    def in_dram(self, buffer: Buffer, life: Sequence[ScheduleStep]) -> Alternative:
        """A value of the scratchpad in DRAM instead; ``life``: the steps of its life."""
        before, offset = self.costs.total(life), buffer.offset
        scratchpad = Scratchpad(life, self._context.sram_bytes)
        scratchpad.remove(buffer, {buffer: (None, 0)})
        after = self.costs.total(life)
        scratchpad.add(buffer, range(len(life)), {buffer: offset})
        return Alternative((after or 0) - (before or 0))

    def in_scratchpad(self, buffer: Buffer, life: Sequence[ScheduleStep]) -> Alternative:
        """A value of DRAM in the scratchpad instead, beside all that is there."""
        if not self._keeps:
            return Alternative(None, "SRAM keeps no values")
        before, place = self.costs.total(life), {buffer: (buffer.core, buffer.offset)}
        scratchpad = Scratchpad(life, self._context.sram_bytes)
        if not scratchpad.add_beside(buffer, range(len(life))):
            taken = sum({other: align(max(other.nbytes, 1)) for step in life for other in step.resident}.values())
            return Alternative(None, f"no run of {buffer.nbytes} bytes is free in its time beside {taken}")
        costs = [self.costs.of(step) for step in life]
        scratchpad.remove(buffer, place)
        if None in costs:
            stuck = life[costs.index(None)].groups[0]
            return Alternative(None, f"the tiles of {stuck.name} would not fit beside it")
        return Alternative(sum(cost or 0 for cost in costs) - (before or 0))

    def without_cascade(self, step: ScheduleStep) -> Alternative:
        """The groups of a cascade one after the other, each value between them in DRAM, or in the scratchpad where that
        takes less."""
        assert step.cascade is not None
        together = self.costs.of(step)
        rolling = step.cascade.between
        views, whole = self._context.views, self.costs.uses.views
        views.update({each.value.tensor: whole[each.value.tensor] for each in rolling})
        alone = [ScheduleStep([group], None, [b for b in step.resident if not b.is_rolling]) for group in step.groups]
        costs = self._with_values_between(alone, rolling)
        views.update({each.value.tensor: each.view for each in rolling})
        if None in costs:
            return Alternative(None, f"the tiles of {alone[costs.index(None)].groups[0].name} would not fit")
        return Alternative(sum(cost or 0 for cost in costs) - (together or 0))

    def _with_values_between(self, steps: Sequence[ScheduleStep], rolling: Sequence[RollingBuffer]) -> list[int | None]:
        """Picoseconds of steps, with those values in the scratchpad that are worth it; they are moved back to DRAM."""
        scratchpad = Scratchpad(steps, self._context.sram_bytes)
        costs = [self.costs.of(step) for step in steps]
        moved: list[Buffer] = []
        for each in rolling if self._keeps else ():
            buffer = self.costs.uses.views[each.value.tensor].buffer
            life = range(each.value.maker, max(reader.reader for reader in each.value.readers) + 1)
            if not scratchpad.add_beside(buffer, life):
                continue
            now = [self.costs.of(steps[number]) for number in life]
            if None in now or sum(c or 0 for c in now) >= sum(c or 0 for c in costs[life.start : life.stop]):
                scratchpad.remove(buffer, {buffer: (None, 0)})
            else:
                costs[life.start : life.stop] = now
                moved.append(buffer)
        for buffer in moved:
            buffer.core, buffer.offset = None, 0
        return costs

    def in_rolling_buffer(self, buffer: Buffer, steps: Sequence[ScheduleStep]) -> Alternative:
        """A cascade of the groups from the one that makes a value of DRAM to the one that reads it last; ``steps``: of
        its life, each of one group."""
        groups = [group for step in steps for group in step.groups]
        if len(groups) > LONGEST:
            return Alternative(None, f"no cascade has more than {LONGEST} layers")
        for group in groups:
            if rows_of(group, self._context) is None:
                return Alternative(None, f"{group.name} has no rows to stripe")
        striped = rolling_values(groups, self._context)
        if striped is None or not is_closed(groups, self.costs.uses, self._context):
            return Alternative(None, "others want what is made on the way" if self._keeps else "SRAM keeps no values")
        before = self.costs.total(steps)
        beside = {each.groups[0].index: each for each in steps}
        room = room_for_cascade(groups, striped, beside, self._context)
        option = best_stripes(groups, striped, room, self.costs)
        if option is None:
            return Alternative(None, f"weights and windows of {groups[0].name} to {groups[-1].name} would not fit")
        return Alternative(option[0] - (before or 0))
