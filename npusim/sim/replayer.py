"""Replay of jobs: an undisturbed job takes the same time as the previous one of its program.

The first undisturbed job of a program records the order in which its commands ended, its length and its timeline. Later
jobs are replayed: all arithmetic at once in that order, and one event at the end instead of several per command. This
is sound because times depend on instructions and never on data, and because a job is only replayed if nobody can
observe or interfere before its end: no other event comes earlier, the host does not wake up earlier, and nobody
watches. Software and tools see the same bits and picoseconds.
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

MOST_STEPS = 1 << 18
"""Longest program that is recorded, because a record takes memory."""


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

    def learn(self, job: Stepper, timeline: Timeline) -> None:
        """Record the timing of a job that has ended, if it was undisturbed."""
        if job.undisturbed:
            self.keep(job.order, job.begun_ps - job.started_ps, job.ended_ps - job.begun_ps, timeline)

    def keep(self, order: Iterable[Step], lead_ps: int, length_ps: int, timeline: Timeline) -> None:
        """Record a timing, unless there is one."""
        if self.timeline is None and len(self.steps) <= MOST_STEPS:
            self.order, self.lead_ps, self.length_ps = tuple(order), lead_ps, length_ps
            self.timeline = timeline.again(timeline.started_ps)


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
