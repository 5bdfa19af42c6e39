"""The best stripes of a cascade: how many rows of its last result a stripe computes.

High stripes repeat little work. Low ones leave space for other values and larger tiles, and let the units of
neighbouring groups overlap earlier. Heights are halved, starting from the whole image. The time has several minima,
because both the hidden and the repeated work grow with the number of stripes, so the search continues a little after
the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, side_by_side
from npusim.compiler.lower.base import Context
from npusim.compiler.schedule.cascade import (
    Cascade,
    Outline,
    outline,
    rows_of,
    values_between,
    values_reread,
    whole_tensor,
)
from npusim.compiler.schedule.likeness import held_bytes
from npusim.compiler.schedule.rolling_buffer import StripedValue
from npusim.compiler.schedule.schedule import LayerCascade
from npusim.compiler.schedule.scratchpad import MadeAlike, ScheduleStep, rolling_views
from npusim.compiler.schedule.step_costs import StepCosts
from npusim.hw.memory import align
from npusim.units import ceil_div

_MOST_RISEN = 2
"""The search stops after this many consecutive heights that are slower than the best."""
_HEIGHT_SLACK = 20
"""In thousandths: among heights whose times differ by less, the one that needs the fewest bytes is chosen, to leave
more for values beside the cascade. If all of those are in the scratchpad already, time alone decides."""


def rolling_values(groups: Sequence[Group], context: Context) -> list[StripedValue] | None:
    """The values that get rolling buffers if these groups form a cascade; None if they cannot form one."""
    keeps = context.config.compiler.keeps_values
    # A scratchpad that keeps no values can still pass rows from a convolution to its pooling.
    if not keeps and [group.anchor and group.anchor.kind for group in groups] != ["conv", "pool"]:
        return None
    striped = values_between(groups, context)
    if striped is None or not keeps:
        return striped
    return [*striped, *values_reread(groups, striped, context)]


def is_closed(groups: Sequence[Group], costs: StepCosts) -> bool:
    """Whether no other group or core uses the values between these groups, and each of these values has its own
    buffer."""
    first, last = groups[0].index, groups[-1].index
    for group in groups[:-1]:
        buffer = costs.context.views[group.outputs[0]].buffer
        users = costs.users.get(buffer)
        if users is None or users[0] < first or users[-1] > last or buffer.is_met:
            return False
        if len({whole_tensor(tensor, costs.context) for tensor in costs.tensors[buffer]}) > 1:
            return False
    return True


def room_for_cascade(
    groups: Sequence[Group],
    striped: Sequence[StripedValue],
    steps: Sequence[ScheduleStep] | Mapping[int, ScheduleStep],
    context: Context,
) -> int:
    """Bytes of the scratchpad that are left for a cascade beside the values that stay there.

    ``steps``: each group alone, by its number.
    """
    replaced = {context.views[value.tensor].buffer for value in striped if value.maker < len(groups)}
    resident = {
        buffer
        for group in groups
        for buffer in steps[group.index].resident
        if buffer not in replaced and buffer.on_chip
    }
    return context.sram_bytes - sum(align(max(buffer.nbytes, 1)) for buffer in resident)


def best_stripes(
    groups: Sequence[Group],
    striped: Sequence[StripedValue],
    room: int,
    costs: StepCosts,
    given: LayerCascade | None = None,
) -> tuple[int, Cascade] | None:
    """The fastest cascade that fits into ``room`` bytes, as (picoseconds, cascade); None if none fits.

    ``given``: the rows and overlap that a schedule requires.
    """
    held = sum(held_bytes(costs.context, group) for group in groups)
    shape = outline(groups, striped, costs.context, costs.cores) if room > held else None
    if shape is None:
        return None
    found: list[tuple[int, int, Cascade]] = []
    least, risen = None, 0
    made: list[MadeAlike] = []  # shared by all heights, because the keys of the groups do not depend on the height
    height = _highest(groups, costs.context)
    rows, overlaps = (given.rows, given.overlap) if given is not None else (0, None)
    # Separate stripes let two units overlap, so they are preferred if there is space for them.
    ways = (overlaps,) if overlaps is not None else (True, False) if side_by_side(groups) else (True,)
    while height > 1 and risen < _MOST_RISEN:
        height = rows or ceil_div(height, 2)
        option = _of_height(shape, height, ways, room, held, costs, made)
        if option is not None:
            found.append(option)
            cost = option[0]
            risen = 0 if least is None or cost < least else risen + 1
            least = cost if least is None else min(cost, least)
        if rows:
            break
    if least is None:
        return None
    slack = 0 if costs.all_on_chip(groups) else _HEIGHT_SLACK
    limit = least * (1000 + slack) // 1000
    cost, _, cascade = min((each for each in found if each[0] <= limit), key=itemgetter(1, 0))
    return cost, cascade


def _highest(groups: Sequence[Group], context: Context) -> int:
    """Twice the first height that is tried."""
    result = groups[-1].outputs[0]
    rows = result.shape[rows_of(groups[-1], context) or 0]
    # One stripe of all rows is a cascade over the images of a batch. For a single image it would gain nothing.
    return rows * 2 if result.shape[0] > 1 else rows


def _of_height(
    shape: Outline,
    height: int,
    ways: Sequence[bool],
    room: int,
    held: int,
    costs: StepCosts,
    made: list[MadeAlike],
) -> tuple[int, int, Cascade] | None:
    """Try one height. Returns (picoseconds, minus the bytes left in ``room``, cascade); None if it does not fit."""
    for apart in ways:
        left = room - shape.rolling_bytes(height, apart=apart)
        if left <= held:
            continue
        cascade = shape.cut(height, apart=apart)
        # One dummy value at the low end represents the bytes that the cascade may not use: only the size of the rest
        # matters.
        others = Buffer("others", 0, costs.context.sram_bytes - left, 0)
        step = ScheduleStep(list(shape.groups), cascade, [others], made)
        with rolling_views(costs.context, cascade.rolling):
            cost = costs.of(step)
        if cost is not None:
            return cost, -left, cascade
    return None
