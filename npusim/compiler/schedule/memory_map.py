"""The memory map of a program: what each memory holds at which bytes, from which operator to which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from npusim.compiler.buffers import Buffer
from npusim.compiler.lower.base import SlotSpec, total_bytes
from npusim.compiler.schedule.build import Build
from npusim.compiler.schedule.scratchpad import Fitted, ScheduleStep
from npusim.hw.memory import align
from npusim.isa.base import Space
from npusim.program import EVERY, Place

MOST_PLACES = 1 << 16
"""Maximum number of rows. A longer table would be larger than the instructions, so the program has none."""


def places(build: Build) -> tuple[Place, ...]:
    """The rows of the map, sorted by the first operator that uses the bytes; empty if there would be too many."""
    found = [
        Place(_memory(buffer), 0, "value", buffer.name, buffer.offset, buffer.nbytes, buffer.born, buffer.dies)
        for buffer in build.layout.buffers
        if buffer.is_scratch and buffer.nbytes and buffer.born >= 0
    ]
    found.extend(_residents(build.layout.steps))
    pinned = build.plan.context.pinned
    if pinned.nbytes:  # pinned weights stay from one inference to the next
        start = min(pinned.starts.values())
        found.append(Place("sram", EVERY, "weights", "", start, pinned.nbytes, 0, len(build.groups) - 1))
    for step, fitted in build.fitted:
        if len(found) > MOST_PLACES:
            return ()
        found.extend(_slots(step, fitted))
    return tuple(sorted(found, key=lambda place: (place.first, place.last)))


def _memory(buffer: Buffer) -> str:
    return "l2" if buffer.in_l2 else "dram"


def _residents(steps: Sequence[ScheduleStep]) -> Iterable[Place]:
    """Values and rolling buffers in the scratchpad, each from its first step to its last."""
    lives: dict[Buffer, tuple[ScheduleStep, ScheduleStep]] = {}
    for step in steps:
        for buffer in step.resident:
            lives[buffer] = (lives.get(buffer, (step,))[0], step)
    for buffer, (first, last) in lives.items():
        kind = "window" if buffer.is_rolling else "value"
        ops = first.groups[0].index, last.groups[-1].index
        yield Place("sram", buffer.core or 0, kind, buffer.name, buffer.offset, buffer.nbytes, *ops)


def _slots(step: ScheduleStep, fitted: Fitted) -> Iterable[Place]:
    """The slots of a step, with adjacent slots of one kind as one row. The groups of a cascade reuse the
    accumulators."""
    groups = step.groups
    ops = groups[0].index, groups[-1].index
    sums = 0
    for specs, starts in zip(fitted.specs, fitted.starts, strict=True):
        sums = max(sums, total_bytes(specs, Space.ACC))
        begins = iter(starts)
        taken = [
            (_kind(spec), next(begins), align(max(spec.nbytes, 1)))
            for spec in specs
            if spec.space is Space.SRAM
            for _ in range(spec.copies)
        ]
        runs: list[tuple[str, int, int]] = []
        for kind, low, size in sorted(taken):
            if runs and runs[-1][0] == kind and runs[-1][2] == low:
                runs[-1] = (kind, runs[-1][1], low + size)
            else:
                runs.append((kind, low, low + size))
        yield from (Place("sram", EVERY, kind, "", low, high - low, *ops) for kind, low, high in runs)
    if sums:
        yield Place("accumulators", EVERY, "sums", "", 0, sums, *ops)


def _kind(spec: SlotSpec) -> str:
    if spec.name == "acc":
        return "sums"
    # Of the matrix unit: weights ("w"), and their biases, scales and shifts ("p").
    return "weights" if spec.name[:2] in ("w", "w(", "p", "p(") else "tile"
