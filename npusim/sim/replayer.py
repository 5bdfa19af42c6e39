"""Jobs whose course is known: a job takes the same picoseconds each time that nothing disturbs it.

The first undisturbed job of a program leaves its course: the order in which its commands ended, its length, its
timeline. A later one is replayed: all of the arithmetic at once, in that order, and one event at the end instead of
several for each command. Why that is sound: times depend on instructions, never on data, and it is done only if nobody
can look or interfere before that end: no other event comes earlier, the host does not wake up earlier, nobody
watches. All that software and tools see is the same bits and picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simpy.events import Event

from npusim.sim.job import Attempt, MachineJob, attempt
from npusim.sim.memory import JobMemory
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.parts import Parts
from npusim.sim.stepper import Stepper
from npusim.sim.steps import Step
from npusim.timeline import DeviceFault, Timeline
from npusim.timing._timeline import TimingRun

MOST_STEPS = 1024
"""The course of longer programs is not kept: what it would save is little beside their arithmetic."""


@dataclass(slots=True, eq=False)
class Course:
    """The steps of a job and, once one has gone undisturbed, how such jobs go.

    ``order``: in which steps end; ``lead_ps``: from the job's taking to its first fetch; ``length_ps``: from there to
    the end of its last step.
    """

    steps: Sequence[Step]
    order: Sequence[Step] = ()
    lead_ps: int = 0
    length_ps: int = 0
    timeline: Timeline | None = None
    foreseen: tuple[int, TimingRun | None] | None = None
    """What a job of that lead will do, as far as it can be computed in one go; see :mod:`npusim.sim.fast_forward`."""

    def learn(self, job: Stepper, timeline: Timeline) -> None:
        """Keep the course of a job that has ended, if nothing was special about it."""
        if job.undisturbed:
            self.keep(job.order, job.begun_ps - job.started_ps, job.ended_ps - job.begun_ps, timeline)

    def keep(self, order: Iterable[Step], lead_ps: int, length_ps: int, timeline: Timeline) -> None:
        """Keep a course, unless one is kept."""
        if self.timeline is None and len(self.steps) <= MOST_STEPS:
            self.order, self.lead_ps, self.length_ps = tuple(order), lead_ps, length_ps
            self.timeline = timeline.again(timeline.started_ps)


@dataclass(slots=True, eq=False)
class Replayer(EventOwner):
    """Replays a job whose course is known, with the verbs of :class:`npusim.sim.stepper.Stepper`."""

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
        """Do the arithmetic and go to the end. Where it is a fault, nothing was begun: what came of each command so far
        is returned, for a stepper that goes through it in time."""
        if self.job.arithmetic:
            order = self.course.order
            for number, step in enumerate(order):
                result = attempt(self._memory, self.job, step)
                if result is not None:
                    return {**dict.fromkeys(order[:number]), step: result}
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
        """Make it known as the job of that name."""
        owners.add(name, self)

    def leave_link(self) -> None:
        """It has nothing there."""

    def abandon(self) -> None:
        """Never go on."""
        self.over = True

    def timeline(self, now: int, clock_hz: int) -> Timeline:
        """The job's history, as it was the first time."""
        assert self.course.timeline is not None
        known, started_ps = self.course.timeline, self.job.started_ps
        assert now - started_ps == known.time_ps
        return known.again(started_ps)
