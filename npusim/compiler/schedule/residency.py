"""Choose the values that live in the scratchpad as a whole.

A value in the scratchpad saves traffic, but takes space from the tiles of every group that runs during its life. So
values are tried one after another, those with the most uses per step of their life first, and a value stays if the
total estimate of those steps does not rise. The choice is greedy: later values get what earlier ones leave.

This is the only place where a whole value between groups is put into the scratchpad or taken out of it. Values whose
area is given by the schedule are not compared: they are placed first, or not tried.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import chain

from npusim.compiler.buffers import Buffer
from npusim.compiler.schedule.allocate import Scratchpad
from npusim.compiler.schedule.memory_choices import OPEN, MemoryChoices
from npusim.compiler.schedule.schedule import SCRATCHPAD
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.step_costs import StepCosts
from npusim.errors import ScheduleError, named
from npusim.hw.memory import ALIGNMENT

SLACK = 10
"""In thousandths: estimates of the same steps that differ by less are taken as equal."""
MEAN_LIFE = 24
"""Limit for the work, in steps per step of the graph. Trying a value estimates all steps of its life, so without a
limit the work would be quadratic in the size of the graph."""


def choose_values(
    steps: Sequence[ScheduleStep], costs: StepCosts, choices: MemoryChoices = OPEN, first: Container[Buffer] = ()
) -> tuple[list[int], set[Buffer]]:
    """Put values into the scratchpad, beside the residents that the steps already have. Values in ``first`` are tried
    first.

    Returns the picoseconds of each step, and the values that were not tried because of ``MEAN_LIFE``. Raises
    ScheduleError if a value that must be in the scratchpad does not fit.
    """
    lives = value_lives(steps, costs)
    scratchpad = Scratchpad(steps, costs.context.sram_bytes)
    place_given(lives, scratchpad, choices, costs)
    taken = [costs.of(step) for step in steps]

    earlier = _two_iterations_before(steps, lives)

    def order(buffer: Buffer) -> tuple[bool, float, int, int]:
        born = buffer.born
        while buffer in earlier:  # iterations of a loop are alike, although the last one has no successor
            buffer = earlier[buffer]
        uses_per_step = len(costs.users[buffer]) / len(lives[buffer])
        return buffer not in first, -uses_per_step, buffer.nbytes, born

    left = MEAN_LIFE * len(steps)
    untried: set[Buffer] = set()
    is_searched = choices.search_areas and costs.context.config.compiler.keeps_values
    tried = sorted((each for each in lives if each not in choices.areas), key=order) if is_searched else ()
    for buffer in tried:
        life = lives[buffer]
        if len(life) > left:
            untried.add(buffer)
            continue
        left -= len(life)
        found: Iterable[dict[Buffer, int]] = scratchpad.places(buffer, life)
        # In a loop, addresses that do not drift let commands be repeated.
        like = earlier.get(buffer)
        if like is not None and like.on_chip and scratchpad.is_free(buffer, life, like.offset):
            found = chain([{buffer: like.offset}], found)
        for offsets in found:
            now = _try(buffer, life, scratchpad, offsets, costs, taken)
            if now is not None:
                for number, cost in now.items():
                    taken[number] = cost
                break
    return [cost or 0 for cost in taken], untried


def _two_iterations_before(steps: Sequence[ScheduleStep], lives: Mapping[Buffer, range]) -> dict[Buffer, Buffer]:
    """For each value of an iteration of a loop, the same value two iterations before. Those of the iteration before may
    still be alive."""
    iterations: list[list[int]] = [[]]  # group numbers
    for step in steps:
        for group in step.groups:
            iterations[-1].append(group.index)
            if group.ops[0].kind == "repeat":
                iterations.append([])
    if len(iterations) == 1:
        return {}
    born: dict[int, list[Buffer]] = {}
    for buffer in lives:
        born.setdefault(buffer.born, []).append(buffer)
    found: dict[Buffer, Buffer] = {}
    for before, now in zip(iterations, iterations[2:], strict=False):
        # The first iteration of a loop may follow other groups.
        for one, other in zip(reversed(before), reversed(now), strict=False):
            found.update(zip(born.get(other, ()), born.get(one, ()), strict=False))
    return {one: other for one, other in found.items() if one.nbytes == other.nbytes}


def place_given(
    lives: Mapping[Buffer, range], scratchpad: Scratchpad, choices: MemoryChoices, costs: StepCosts | None = None
) -> None:
    """Put the values into the scratchpad that the schedule puts there. With ``costs``, choose addresses at which all
    steps still fit.

    Raises ScheduleError if a value does not fit or its given address is not free.
    """
    given_runs = {run.first for run in choices.runs if run.cascade.offsets is not None}
    for step in scratchpad.steps:
        if step.cascade is not None and step.cascade.first in given_runs:
            scratchpad.fixed.update(step.resident)
    given = [(buffer, each) for buffer, each in choices.areas.items() if each.area == SCRATCHPAD and buffer in lives]
    for buffer, entry in sorted(given, key=lambda pair: pair[1].offset is None):
        life = lives[buffer]
        if entry.offset is not None:
            if not scratchpad.is_free(buffer, life, entry.offset):
                raise ScheduleError(
                    f"memory: {named(entry.tensor)}: offset {entry.offset} is not free for {buffer.nbytes} bytes; "
                    f"must be a multiple of {ALIGNMENT}, beside other tensors, in {scratchpad.capacity} bytes"
                )
            scratchpad.add(buffer, life, {buffer: entry.offset})
            scratchpad.fixed.add(buffer)
            fits = True
        else:
            fits = any(_add_if_it_fits(buffer, life, scratchpad, at, costs) for at in scratchpad.places(buffer, life))
        if not fits:
            raise ScheduleError(
                f"memory: {named(entry.tensor)}: its {buffer.nbytes} bytes do not fit into the scratchpad beside the "
                f"tiles and other tensors of its life, {scratchpad.capacity} bytes in all"
            )


def _add_if_it_fits(
    buffer: Buffer, life: range, scratchpad: Scratchpad, offsets: Mapping[Buffer, int], costs: StepCosts | None
) -> bool:
    before = {other: (other.core, other.offset) for other in offsets}
    scratchpad.add(buffer, life, offsets)
    if costs is None or None not in [costs.of(scratchpad.steps[number]) for number in scratchpad.life_of(offsets)]:
        return True
    scratchpad.remove(buffer, before)
    return False


def value_lives(steps: Sequence[ScheduleStep], costs: StepCosts) -> dict[Buffer, range]:
    """The steps during which each value exists, except for values that were replaced by a rolling buffer.

    Also extends ``born`` and ``dies`` of each buffer to the whole of these steps.
    """
    step_of = {group.index: number for number, step in enumerate(steps) for group in step.groups}
    lives: dict[Buffer, range] = {}
    for buffer in costs.users:
        if has_rolling_buffer(buffer, costs):
            continue
        life = lives[buffer] = range(step_of[buffer.born], step_of[buffer.dies] + 1)
        # The groups of a cascade alternate, so a value that one of them uses exists during the whole cascade. The
        # layout of DRAM uses these ends too: it must not give the bytes to another value of the same cascade.
        buffer.born, buffer.dies = steps[life.start].groups[0].index, steps[life.stop - 1].groups[-1].index
    return lives


def has_rolling_buffer(buffer: Buffer, costs: StepCosts) -> bool:
    """Whether a cascade has replaced the value by a rolling buffer."""
    return all(costs.context.views[tensor].buffer is not buffer for tensor in costs.tensors[buffer])


def _try(
    buffer: Buffer,
    life: range,
    scratchpad: Scratchpad,
    offsets: Mapping[Buffer, int],
    costs: StepCosts,
    taken: Sequence[int | None],
) -> dict[int, int | None] | None:
    """Put a value into the scratchpad at ``offsets`` and keep it there if the estimate does not rise.

    Returns the new picoseconds of the steps that changed if it is kept; an empty dict if the estimate rises; None if
    some step does not fit, so that another address may work.
    """
    before = {other: (other.core, other.offset) for other in offsets}
    scratchpad.add(buffer, life, offsets)
    numbers = scratchpad.life_of(offsets)
    now = {number: costs.of(scratchpad.steps[number]) for number in numbers}
    fits = None not in now.values()
    limit = sum(taken[number] or 0 for number in numbers) * (1000 + SLACK)
    # On a tie the scratchpad wins: it saves traffic and hence energy.
    if fits and sum(cost or 0 for cost in now.values()) * 1000 < limit:
        return now
    scratchpad.remove(buffer, before)
    return {} if fits else None


def choose_values_again(
    steps: Sequence[ScheduleStep], costs: StepCosts, choices: MemoryChoices, beside: Collection[Buffer]
) -> tuple[list[int], set[Buffer]]:
    """Call :func:`choose_values` after cascades were chosen while the values ``beside`` were in the scratchpad.

    Cascades shorten the lives of values, which changes the order in which they are tried. Some of ``beside`` may then
    lose their place, although the cascades only paid off with them. If that happens, a second run tries those first,
    and the better result is kept.
    """
    rolling = [step.resident[:] for step in steps]
    best, untried = choose_values(steps, costs, choices)
    chosen = {buffer: buffer.offset for step in steps for buffer in step.resident}
    if all(buffer in chosen or has_rolling_buffer(buffer, costs) for buffer in beside):
        return best, untried
    residents = [step.resident for step in steps]
    for step, windows in zip(steps, rolling, strict=True):
        step.resident = windows
    for buffer in chosen:
        if not buffer.is_rolling:
            buffer.core, buffer.offset = None, 0
    second, untried = choose_values(steps, costs, choices, beside)
    if sum(second) < sum(best):
        return second, untried
    for buffer in costs.users:
        buffer.core, buffer.offset = None, 0
    for buffer, offset in chosen.items():
        buffer.core, buffer.offset = 0, offset
    for step, resident in zip(steps, residents, strict=True):
        step.resident = resident
    return best, untried
