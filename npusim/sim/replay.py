"""Jobs whose course is known: a job takes the same picoseconds each time that nothing disturbs it.

The first undisturbed job of a program leaves a tape: the order in which its commands ended, its length, its record. A
later one plays it: all of the arithmetic at once, in that order, and one event at the end instead of several for each
command. It does so only if nobody can look or interfere before that end: no other event comes earlier, the host does
not wake up earlier, no unit is told to break. All that software and tools see is the same bits and picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npusim.sim.fault import Fault
from npusim.sim.memory import JobMemory
from npusim.sim.plan import Step
from npusim.sim.run import Attempt, Job, JobRecord, Run, attempt
from npusim.timeline import Counters, Timeline, UnitCounters

if TYPE_CHECKING:
    from simpy.events import Event

    from npusim.sim.machine import Machine

MOST_STEPS = 1024
"""Programs of more commands keep no tape: what they would save is little beside their arithmetic."""


@dataclass(frozen=True, slots=True)
class Tape:
    """``lead_ps``: from doorbell to first fetch; ``length_ps``: from there to the end; ``dram_busy_ps``: the link's."""

    order: tuple[Step, ...]
    lead_ps: int
    length_ps: int
    dram_busy_ps: int
    record: JobRecord

    def copy(self, started_ps: int) -> JobRecord:
        """The record of a job whose doorbell rang at that time; nothing in it that can change is shared."""
        record = self.record
        timeline, counters = Timeline(record.timeline.spans[:]), _copy(record.counters)
        return JobRecord(timeline, counters, record.cycles, record.time_ps, started_ps)


def _copy(counters: Counters) -> Counters:
    units = {
        name: UnitCounters(unit.busy_ps, unit.idle_ps, unit.stalls.copy(), unit.instructions, unit.macs, unit.bytes)
        for name, unit in counters.units.items()
    }
    return Counters(
        counters.duration_ps, units, counters.dram_read_bytes, counters.dram_write_bytes, counters.dram_busy_ps,
        counters.instructions,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Plan:
    """The steps of a program, and the tape once there is one."""

    steps: list[Step]
    tape: Tape | None = None

    def learn(self, run: Run, record: JobRecord) -> None:
        """Keep the course of a job that has ended, if nothing was special about it."""
        if self.tape is None and run.undisturbed and len(self.steps) <= MOST_STEPS:
            spent = run.ended_ps - run.begun_ps
            tape = Tape(tuple(run.order), run.begun_ps - run.started_ps, spent, record.counters.dram_busy_ps, record)
            self.tape = replace(tape, record=tape.copy(record.started_ps))


class Replay:
    """A job that is played from a tape, with the verbs of :class:`npusim.sim.run.Run`."""

    fault: Fault | None = None

    def __init__(self, machine: Machine, job: Job, tape: Tape, done: Callable[[Replay], None]) -> None:
        self.over = False
        self._machine = machine
        self._job = job
        self._memory = JobMemory(machine.memory, job.regions)
        self._tape = tape
        self._done = done

    def begin(self) -> dict[Step, Attempt]:
        """Do the arithmetic and go to the end. Where it is a fault, nothing was begun: what each command gave so far
        is returned, for a run that goes through it in time."""
        if self._job.arithmetic:
            results: dict[Step, Attempt] = {}
            for step in self._tape.order:
                result = results[step] = attempt(self._memory, self._job, step)
                if result is not None:
                    return results
        self._machine.clock.after(self._tape.length_ps, self._ended)
        return {}

    def _ended(self, event: Event) -> None:
        if not self.over:
            self._machine.link.was_busy(self._tape.dram_busy_ps)
            self._machine.leave(self)
            self.over = True
            self._done(self)

    def park(self, stopped: Callable[[], None]) -> None:
        """A job that ends before it stops is not parked."""

    def leave_link(self) -> None:
        """It has nothing there."""

    def abandon(self) -> None:
        """Never go on."""
        self.over = True

    def record(self, now: int, clock_hz: int) -> JobRecord:
        """The job's history; ``now``: see the tape."""
        record = self._tape.copy(self._job.started_ps)
        assert now - self._job.started_ps == record.time_ps
        return record
