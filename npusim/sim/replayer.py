"""Replay of jobs: an undisturbed job takes the same time as the previous one of its program.

The first undisturbed job of a program records the order in which its commands ended, its length and its timeline. Later
jobs are replayed: all arithmetic at once in that order, and one event at the end instead of several per command. This
is sound because times depend on instructions and never on data, and because a job is only replayed if nobody can
observe or interfere before its end: no other event comes earlier, the host does not wake up earlier, and nobody
watches. Software and tools see the same bits and picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simpy.events import Event

from npusim.isa.base import Call
from npusim.sim.job import Attempt, MachineJob, failed
from npusim.sim.memory import JobMemory
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.parts import Parts
from npusim.sim.stepper import Stepper
from npusim.sim.steps import Step
from npusim.timeline import DeviceFault, Timeline
from npusim.timing._timeline import TimingRun

MOST_STEPS = 1 << 18
"""Longest program that is recorded, because a record takes memory."""
MOST_BOUND = 1 << 14
"""Longest program whose kernel calls are kept, each about half a kilobyte. Repeated commands count once."""


@dataclass(slots=True, eq=False)
class Course:
    """The steps of a job and, after an undisturbed job, its timing.

    ``order``: of the ends of steps. ``lead_ps``: from taking the job to its first fetch. ``length_ps``: from there to
    the end of its last step.
    """

    steps: Sequence[Step]
    order: Sequence[Step] = ()
    lead_ps: int = 0
    length_ps: int = 0
    timeline: Timeline | None = None
    foreseen: tuple[int, TimingRun | None] | None = None
    """(lead, precomputed timing) of a job, see :mod:`npusim.sim.fast_forward`."""
    _last: JobMemory | None = None
    """The memory of the previous job in replay."""
    _bound: tuple[JobMemory, list[Sequence[Call]]] | None = None
    """A memory, and the kernel calls of all commands with their operands in it."""

    def learn(self, job: Stepper, timeline: Timeline) -> None:
        """Record the timing of a job that has ended, if it was undisturbed."""
        if job.undisturbed:
            self.keep(job.order, job.begun_ps - job.started_ps, job.ended_ps - job.begun_ps, timeline)

    def keep(self, order: Iterable[Step], lead_ps: int, length_ps: int, timeline: Timeline) -> None:
        """Record a timing, unless there is one."""
        if self.timeline is None and len(self.steps) <= MOST_STEPS:
            self.order, self.lead_ps, self.length_ps = tuple(order), lead_ps, length_ps
            self.timeline = timeline.again(timeline.started_ps)

    def compute(self, memory: JobMemory, job: MachineJob) -> dict[Step, Attempt]:
        """Do the arithmetic of all commands, in the recorded order. Returns the results until the first fault; empty if
        there is none."""
        done = 0
        try:
            for calls in self._calls(memory):
                for function, arguments in calls:
                    function(*arguments)
                done += 1
        except Exception as error:  # noqa: BLE001 - a device never raises at software, even if its model is wrong
            step = self.order[done]
            return {**dict.fromkeys(self.order[:done]), step: failed(job, step, error)}
        return {}

    def _calls(self, memory: JobMemory) -> Iterable[Sequence[Call]]:
        """The kernel calls of each command."""
        if self._bound is not None and self._bound[0] is memory:
            return self._bound[1]
        return self._located(memory)

    def _located(self, memory: JobMemory) -> Iterator[Sequence[Call]]:
        """As ``_calls``, with operands that are located now. They are kept for the next job, but not if each job has
        another memory."""
        keep, self._last = self._bound is None or self._last is memory, memory
        known: dict[tuple[int, int], Sequence[Call]] = {}
        made: list[Sequence[Call]] = []
        for step in self.order:
            key = id(step.instruction), step.core
            calls = known.get(key) or step.instruction.calls(memory, step.core)
            if len(known) < MOST_BOUND:
                known[key] = calls
                made.append(calls)
            yield calls
        if keep and len(known) < MOST_BOUND:
            self._bound = memory, made


@dataclass(slots=True, eq=False)
class Replayer(EventOwner):
    """Replays a job with known timing, with the methods of :class:`npusim.sim.stepper.Stepper`."""

    EVENTS = ("_ended",)

    _machine: Parts
    job: MachineJob
    _memory: JobMemory
    course: Course
    done: Callable[[Replayer], None]
    over: bool = False
    fault: DeviceFault | None = None
    preemptions: int = 0

    def begin(self) -> dict[Step, Attempt]:
        """Do the arithmetic and schedule the end. If there is a fault, nothing is scheduled: the results of the
        commands so far are returned for a stepper."""
        if self.job.arithmetic:
            found = self.course.compute(self._memory, self.job)
            if found:
                return found
        self._machine.clock.after(self.course.length_ps, self._ended)
        return {}

    def _ended(self, event: Event) -> None:
        if not self.over:
            assert self.course.timeline is not None
            self._machine.link.busy_ps += self.course.timeline.counters.dram_busy_ps
            self.over = True
            self.done(self)

    def is_void(self, value: Any) -> bool:
        return self.over

    def own(self, owners: Owners, name: str) -> None:
        """Register it as the job of that name."""
        owners.add(name, self)

    def leave_link(self) -> None:
        """Nothing to do: it has no transfers on a link."""

    def abandon(self) -> None:
        """Stop for good."""
        self.over = True

    def timeline(self, now: int, clock_hz: int) -> Timeline:
        """The recorded timeline."""
        assert self.course.timeline is not None
        known, started_ps = self.course.timeline, self.job.started_ps
        assert now - started_ps == known.time_ps
        return known.again(started_ps)
