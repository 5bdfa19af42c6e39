"""The cost of placing one value elsewhere: the figures of ``npusim explain --memory``.

After planning, one value is moved while all others stay, the steps of its life are estimated again with the planner's
estimates, and the value is moved back. So a figure is what the move alone would add. A plan made without the value from
the start might be better.
"""

from __future__ import annotations

from collections.abc import Sequence

from npusim.compiler.buffers import Buffer
from npusim.compiler.schedule.allocate import Scratchpad
from npusim.compiler.schedule.cascade import LONGEST, rows_of
from npusim.compiler.schedule.rolling_buffer import RollingBuffer
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.step_costs import StepCosts
from npusim.compiler.schedule.stripe_heights import best_stripes, is_closed, rolling_values, room_for_cascade
from npusim.hw.memory import align

Alternative = int | str
"""Estimated picoseconds that another memory area would add; or a string that says why it is impossible."""


def in_dram(costs: StepCosts, buffer: Buffer, life: Sequence[ScheduleStep]) -> Alternative:
    """The cost of moving a value from the scratchpad to DRAM. ``life``: the steps of its life."""
    before, offset = costs.total(life), buffer.offset
    scratchpad = Scratchpad(life, costs.context.sram_bytes)
    scratchpad.remove(buffer, {buffer: (None, 0)})
    after = costs.total(life)
    scratchpad.add(buffer, range(len(life)), {buffer: offset})
    return (after or 0) - (before or 0)


def in_scratchpad(costs: StepCosts, buffer: Buffer, life: Sequence[ScheduleStep]) -> Alternative:
    """The cost of moving a value from DRAM to the scratchpad, beside what is there."""
    if not costs.context.config.compiler.keeps_values:
        return "SRAM keeps no values"
    before, place = costs.total(life), {buffer: (buffer.core, buffer.offset)}
    scratchpad = Scratchpad(life, costs.context.sram_bytes)
    if not scratchpad.add_beside(buffer, range(len(life))):
        taken = sum({other: align(max(other.nbytes, 1)) for step in life for other in step.resident}.values())
        return f"no gap of {buffer.nbytes} bytes is free during its life, beside {taken} bytes of other values"
    after = [costs.of(step) for step in life]
    scratchpad.remove(buffer, place)
    if None in after:
        stuck = life[after.index(None)].groups[0]
        return f"the tiles of {stuck.name} would not fit beside it"
    return sum(ps or 0 for ps in after) - (before or 0)


def without_cascade(costs: StepCosts, step: ScheduleStep) -> Alternative:
    """The cost of running the groups of a cascade one after another. Each value between them is in DRAM, or in the
    scratchpad where that is faster."""
    assert step.cascade is not None
    together = costs.of(step)
    rolling = step.cascade.between
    views, whole = costs.context.views, costs.whole_views
    views.update({tensor: whole[tensor] for each in rolling for tensor in each.views})
    alone = [ScheduleStep([group], None, [b for b in step.resident if not b.is_rolling]) for group in step.groups]
    apart = _with_values_between(costs, alone, rolling)
    for each in rolling:
        views.update(each.views)
    if None in apart:
        return f"the tiles of {alone[apart.index(None)].groups[0].name} would not fit"
    return sum(ps or 0 for ps in apart) - (together or 0)


def _with_values_between(
    costs: StepCosts, steps: Sequence[ScheduleStep], rolling: Sequence[RollingBuffer]
) -> list[int | None]:
    """Picoseconds of steps, with values in the scratchpad where that is faster. Moves these back to DRAM afterwards."""
    scratchpad = Scratchpad(steps, costs.context.sram_bytes)
    found = [costs.of(step) for step in steps]
    moved: list[Buffer] = []
    for each in rolling if costs.context.config.compiler.keeps_values else ():
        buffer = costs.whole_views[each.value.tensor].buffer
        life = range(each.value.maker, max(reader.reader for reader in each.value.readers) + 1)
        if not scratchpad.add_beside(buffer, life):
            continue
        now = [costs.of(steps[number]) for number in life]
        if None in now or sum(c or 0 for c in now) >= sum(c or 0 for c in found[life.start : life.stop]):
            scratchpad.remove(buffer, {buffer: (None, 0)})
        else:
            found[life.start : life.stop] = now
            moved.append(buffer)
    for buffer in moved:
        buffer.core, buffer.offset = None, 0
    return found


def in_rolling_buffer(costs: StepCosts, buffer: Buffer, steps: Sequence[ScheduleStep]) -> Alternative:
    """The cost of a cascade from the group that computes a value in DRAM to the last one that reads it. ``steps``:
    those of its life, each of one group."""
    groups = [group for step in steps for group in step.groups]
    if len(groups) > LONGEST:
        return f"no cascade has more than {LONGEST} layers"
    for group in groups:
        if rows_of(group, costs.context) is None:
            return f"{group.name} has no rows to stripe"
    striped = rolling_values(groups, costs.context)
    if striped is None or not is_closed(groups, costs):
        keeps = costs.context.config.compiler.keeps_values
        return "other layers read values between them" if keeps else "SRAM keeps no values"
    before = costs.total(steps)
    beside = {each.groups[0].index: each for each in steps}
    room = room_for_cascade(groups, striped, beside, costs.context)
    option = best_stripes(groups, striped, room, costs)
    if option is None:
        return f"weights and rolling buffers of {groups[0].name} to {groups[-1].name} would not fit"
    return option[0] - (before or 0)
