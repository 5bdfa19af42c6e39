"""Dependencies in a timeline: for each span, the span whose end allowed it to start, by the waits of the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from npusim.isa.base import Command, Unit, decode, unit_name
from npusim.isa.control import Residents
from npusim.isa.repeat import expanded
from npusim.program import Program
from npusim.timeline import SEQUENCER, Span, Timeline

Queue = Sequence[tuple[int, int]]
"""(ps, number of commands waiting in the queue of a unit from then on), at each change."""


def flows(program: Program, timeline: Timeline) -> list[tuple[int, int]]:
    """Pairs (producer, consumer) of indices into ``timeline.spans``: for each command, the wait that ended last.

    For a job that did not complete, only its executed commands count.
    """
    spans = _by_unit(timeline.spans)
    issued: dict[str, int] = defaultdict(int)
    skipped: dict[str, int] = defaultdict(int)  # pinned weights that were in SRAM already: complete without a span
    found = []
    for command, loads_residents in _commands(program.code):
        name = unit_name(command.core, command.unit)
        if loads_residents and timeline.residents_held:
            skipped[name] += 1
            continue
        number, issued[name] = issued[name], issued[name] + 1
        if number >= len(spans[name]):
            continue
        waited = []
        for core, unit, completed in command.waits:
            other = unit_name(core, unit)
            place = completed - skipped[other] - 1
            if 0 <= place < len(spans[other]):
                waited.append(spans[other][place])
        if waited:
            # Of spans that end at the same time, the last one in the timeline, which is a total order.
            found.append((max(waited), spans[name][number]))
    return found


def queues(timeline: Timeline, arrivals: Mapping[str, Sequence[int]]) -> dict[str, Queue]:
    """The number of commands in the queue of each unit, without the one in execution. ``arrivals``: arrival times of
    commands in ps since the device took the job."""
    found: dict[str, Queue] = {}
    for name, places in _by_unit(timeline.spans).items():
        changes: dict[int, int] = defaultdict(int)
        free = 0
        for came, place in zip(arrivals.get(name, ()), places, strict=False):
            taken = max(came, free)
            free = timeline.spans[place].end_ps
            if taken > came:
                changes[came] += 1
                changes[taken] -= 1
        waiting, steps = 0, [(0, 0)]
        for time in sorted(changes):
            waiting += changes[time]
            steps.append((time, waiting))
        if len(steps) > 1:
            found[name] = steps
    return found


def _by_unit(spans: Sequence[Span]) -> dict[str, list[int]]:
    """Indices of the spans of each unit in the order of its commands, which is the order of their ends."""
    found: dict[str, list[int]] = defaultdict(list)
    for index, span in enumerate(spans):
        if span.unit != SEQUENCER:
            found[span.unit].append(index)
    return found


def _commands(code: bytes) -> Iterator[tuple[Command, bool]]:
    """The commands for units, each with whether it loads pinned weights."""
    end = over = 0
    for command in expanded(decode(code)):
        end += command.size
        if isinstance(command.instruction, Residents):
            over = end + command.instruction.stream_bytes
        elif command.unit != Unit.CONTROL:
            yield command, end <= over
