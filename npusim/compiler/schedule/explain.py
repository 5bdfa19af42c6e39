"""Explain why each value is where it is: the planner's choice, and the cost of the next best one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from npusim.compiler.buffers import Buffer
from npusim.compiler.grouping.groups import Group, outside
from npusim.compiler.schedule import alternatives
from npusim.compiler.schedule.build import Build, ProgramPlan
from npusim.compiler.schedule.cascade import Cascade
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.hw.memory import align
from npusim.program import FIRST_IO

DRAM, L2, SRAM, WINDOW, TILE, INPUT, OUTPUT = "DRAM", "L2", "SRAM", "window", "tile", "input", "output"
"""Locations of values. Inputs and outputs are in DRAM, in buffers of the client. A value on a tile never exists as a
whole."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The location of one value of ``nbytes`` bytes, and the operators that ``made`` and ``used`` it (indices; ``made``
    is -1 for an input).

    ``home``: one of the locations above, with ``offset`` and bytes ``taken`` in SRAM or L2, and ``rows`` of a rolling
    buffer. ``other``: the next best location. ``other_ps``: what it would add by estimate, for all rolling buffers of a
    cascade together. "" and None if there is none.
    """

    value: str
    nbytes: int
    made: int
    used: tuple[int, ...]
    home: str
    why: str
    other: str = ""
    other_ps: int | None = None
    offset: int = 0
    taken: int = 0
    rows: int = 0

    @property
    def first(self) -> int:
        """The first operator that uses the value."""
        return self.made if self.made >= 0 else self.used[0] if self.used else 0

    @property
    def last(self) -> int:
        """The last operator that uses the value."""
        return max(self.made, *self.used, 0)


def decisions(build: Build) -> list[Decision]:
    """The location of every value that is not a constant, in the order of first use."""
    return sorted(_Judge(build.plan).all(), key=lambda each: (each.first, each.last))


class _Judge:
    def __init__(self, plan: ProgramPlan) -> None:
        self._plan, self._steps = plan, plan.layout.steps
        self._context, self._costs = plan.context, plan.layout.costs
        if plan.shards.are_cut:  # the estimates are for the first core only
            self._context, self._costs = plan.shards.contexts[0], None
        self._step_of = {group.index: number for number, each in enumerate(self._steps) for group in each.groups}
        self._makers: dict[Buffer, int] = {}
        self._users: dict[Buffer, set[int]] = {}
        for group in plan.groups:
            self._look(group)

    def _look(self, group: Group) -> None:
        """Record which group computes and which groups use each buffer. If several groups compute parts of it, the
        first counts."""
        made = {tensor for op in group.ops for tensor in op.outputs}
        for tensor in outside(group.ops, made):
            view = self._context.views.get(tensor)
            if view is not None:
                self._users.setdefault(view.buffer, set()).add(group.index)
        for tensor in group.outputs:
            self._makers.setdefault(self._context.view(tensor).buffer, group.index)

    def all(self) -> Iterator[Decision]:
        for buffer in self._plan.layout.buffers:
            if buffer.is_constant or not buffer.nbytes:
                continue
            if buffer.region >= FIRST_IO and buffer.core is None:
                home = OUTPUT if buffer in self._makers else INPUT
                yield self._decision(buffer, buffer.nbytes, home, "is in a buffer of the client")
            elif buffer.on_chip:
                yield self._in_sram(buffer)
            elif buffer.in_l2:
                yield self._outside(buffer, L2)
            else:
                yield self._outside(buffer, DRAM)
        for step in self._steps:
            if step.cascade is not None:
                yield from self._in_windows(step, step.cascade)
        for group in self._plan.groups:
            last = set(group.outputs)
            for tensor in dict.fromkeys(tensor for op in group.ops for tensor in op.outputs if tensor not in last):
                why = f"only exists on the tiles of {group.name}"
                yield Decision(tensor.name, tensor.nbytes, group.index, (group.index,), TILE, why)

    def _decision(self, buffer: Buffer, nbytes: int, home: str, why: str, **more: Any) -> Decision:
        used = tuple(sorted(self._users.get(buffer, ())))
        return Decision(buffer.name, nbytes, self._makers.get(buffer, -1), used, home, why, **more)

    def _life(self, buffer: Buffer) -> Sequence[ScheduleStep]:
        return self._steps[self._step_of[buffer.born] : self._step_of[buffer.dies] + 1]

    def _in_sram(self, buffer: Buffer) -> Decision:
        life = self._life(buffer)
        added = alternatives.in_dram(self._costs, buffer, life) if self._costs else None
        why = f"fits beside the tiles of {life[0].groups[0].name} to {life[-1].groups[-1].name}"
        taken = align(buffer.nbytes)
        more = {"other": DRAM, "other_ps": added, "offset": buffer.offset, "taken": taken}
        return self._decision(buffer, buffer.nbytes, SRAM, why, **more)

    def _outside(self, buffer: Buffer, home: str) -> Decision:
        """A value in DRAM or L2: why it is not in the scratchpad."""
        more: dict[str, Any] = {"offset": buffer.offset, "taken": align(buffer.nbytes)} if home == L2 else {}
        if self._costs is None:
            return self._decision(buffer, buffer.nbytes, home, "several cores work on it", **more)
        life = self._life(buffer)
        trials = {SRAM: alternatives.in_scratchpad(self._costs, buffer, life)}
        if all(step.cascade is None for step in life):
            trials[WINDOW] = alternatives.in_rolling_buffer(self._costs, buffer, life)
        else:
            trials[WINDOW] = "a cascade begins or ends in its life"
        reasons = [f"{home}: {trial}" for home, trial in trials.items() if isinstance(trial, str)]
        if buffer in self._plan.layout.untried:
            reasons.insert(0, f"{SRAM}: not tried: lives for {len(life)} steps, and values with more uses came first")
        possible = {home: trial for home, trial in trials.items() if isinstance(trial, int)}
        if not possible:
            return self._decision(buffer, buffer.nbytes, home, "; ".join(reasons), **more)
        other = min(possible, key=lambda home: possible[home])
        if possible[other] >= 0:
            reasons.insert(0, f"{other}: the tiles beside it would be smaller")
        else:
            reasons.insert(0, f"{other}: was slower when it was tried, before other values were placed")
        more |= {"other": other, "other_ps": possible[other]}
        return self._decision(buffer, buffer.nbytes, home, "; ".join(reasons), **more)

    def _in_windows(self, step: ScheduleStep, cascade: Cascade) -> Iterator[Decision]:
        apart = alternatives.without_cascade(self._costs, step) if self._costs is not None else None
        why = (
            f"{step.groups[0].name} to {step.groups[-1].name} run together, "
            f"in {len(cascade.stripes) * cascade.images} stripes"
        )
        # Values that are loaded into rolling buffers are located in DRAM.
        for rolling in cascade.between:
            tensor, buffer = rolling.value.tensor, rolling.buffer
            more = {
                "other": "apart",
                "other_ps": apart if isinstance(apart, int) else None,
                "offset": buffer.offset,
                "taken": align(buffer.nbytes),
            }
            yield self._decision(buffer, tensor.nbytes, WINDOW, why, rows=buffer.nbytes // rolling.pitch, **more)
