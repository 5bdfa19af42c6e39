"""One job on the machine, from its first fetch to the moment that every unit has drained, or to its fault.

On the way it may be parked: it comes to a stop at an instruction boundary, leaves the machine to a job of a higher
class, and goes on later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npusim.errors import ProgramError
from npusim.sim.banks import Banks
from npusim.sim.engine import NEVER, Engine
from npusim.sim.fault import Fault, FaultCode
from npusim.sim.memory import AddressError, JobMemory
from npusim.sim.plan import HALT, Step
from npusim.sim.sequencer import NAME as SEQUENCER
from npusim.sim.sequencer import Sequencer
from npusim.timeline import NO_OP, Counters, Span, Timeline
from npusim.units import cycles_spanned

SAVE, RESTORE = "context.save", "context.restore"
"""Kinds of the sequencer's spans."""

if TYPE_CHECKING:
    from simpy.events import Event

    from npusim.sim.machine import Machine


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: ``code_bytes`` of instructions at DRAM address ``code``, and (address, bytes) of each region.

    ``started_ps``: when its doorbell rang; times in the timeline count from there. ``arithmetic`` False: everything
    happens but the arithmetic on the data.
    """

    code: int
    code_bytes: int
    regions: Sequence[tuple[int, int]]
    started_ps: int
    arithmetic: bool = True


@dataclass(slots=True)
class JobRecord:
    """What a job did; ``fault`` is None if it succeeded. Duration, cycles and time run from doorbell to interrupt.

    ``suspended_ps``: the part of that time in which it was parked, saving and restoring included.
    """

    timeline: Timeline = field(default_factory=Timeline)
    counters: Counters = field(default_factory=Counters)
    cycles: int = 0
    time_ps: int = 0
    started_ps: int = 0
    suspended_ps: int = 0
    preemptions: int = 0
    aborted: bool = False
    fault: Fault | None = None
    error: BaseException | None = None  # what the simulator itself raised, for FaultCode.INTERNAL


Attempt = tuple[Fault, BaseException | None] | None
"""What came of a command's arithmetic: None, or the fault and what the simulator itself raised for it."""


def attempt(memory: JobMemory, job: Job, step: Step) -> Attempt:
    """Do a command's arithmetic."""
    command = job.code + step.begin
    try:
        step.instruction.execute(memory, step.core)
    except ProgramError as error:
        return Fault(FaultCode.DATA, command, str(error)), None
    except ValueError as error:  # a kernel refuses fields that the instruction's own check has let through
        return Fault(FaultCode.PROGRAM, command, f"{step.kind}: {error}"), None
    except AddressError as error:
        return Fault(FaultCode.ADDRESS, error.address, f"{step.kind}: {error.explanation}"), None
    except Exception as error:  # noqa: BLE001 - a device never raises at software, even if its model is wrong
        return Fault(FaultCode.INTERNAL, command, f"{step.kind}: {type(error).__name__}: {error}"), error
    return None


class Run:
    """The state of a running job. ``active`` counts the events under way: none left means done, or deadlock."""

    def __init__(
        self,
        machine: Machine,
        job: Job,
        steps: list[Step],
        done: Callable[[Run], None],
        learn: Callable[[Run, JobRecord], None],
    ) -> None:
        self._machine = machine
        self.clock = machine.clock
        self.env = machine.clock.env
        self.link = machine.link
        self.latency_ps = machine.fabric.latency_ps
        self.fetch_rate = machine.fabric.fetch_rate
        self.cycle_ps = machine.cycle_ps
        self.queue_depth = machine.config.queue_depth
        self.injection = machine.injection
        self.memory = JobMemory(machine.memory, job.regions)
        self.job = job
        self.started_ps = job.started_ps
        self.arithmetic = job.arithmetic
        self.steps = steps
        self.known: Mapping[Step, Attempt] = {}  # arithmetic that is done already
        self.order: list[Step] = []  # commands that have ended
        self.begun_ps = self.ended_ps = machine.clock.now
        self.spans: list[Span] = []
        self.reads = self.writes = 0
        self.active = 0
        self.outstanding = 0  # commands dispatched and not completed
        self.over = False
        self.holding = False  # no command starts any more: the job is to be parked, or is
        self.parked = False
        self.parked_ps = 0  # since when
        self.suspended_ps = 0
        self.preemptions = 0
        self.fault: Fault | None = None
        self.error: BaseException | None = None
        self._done = done
        self._learn = learn
        self._stopped: Callable[[], None] | None = None
        self._dram_busy_ps = 0
        self._link_mark = machine.link.settle()
        self.banks = [Banks(self.clock) for _ in range(machine.config.cores)]
        self.engines = [Engine(self, name) for name in machine.layout.names]
        self.sequencer = Sequencer(self)

    @property
    def cores(self) -> list[int]:
        """The cores that the job uses."""
        return sorted({step.core for step in self.steps if step.engine != HALT})

    def execute(self, step: Step) -> bool:
        """Do a command's arithmetic; False if that was a fault, which ends the job."""
        result = self.known[step] if step in self.known else attempt(self.memory, self.job, step)
        if result is None:
            return True
        fault, self.error = result
        self.fail(fault)
        return False

    def fail_transfer(self, unit: str, step: Step) -> None:
        """The bus reports an error for a DMA command."""
        self.fail(Fault(FaultCode.DMA, self.job.code + step.begin, f"{unit}: {step.kind}: bus error"))

    def fail(self, fault: Fault) -> None:
        """End the job here."""
        self.fault = fault
        self._end()

    def settle(self) -> None:
        """Nothing is under way any more: the job is complete, or it can never be."""
        if self.over:
            return
        if self.sequencer.halted and not self.outstanding:
            self._end()
        elif self.holding and all(engine.begin == NEVER for engine in self.engines):
            self._stop()
        else:
            self.fail(Fault(FaultCode.DEADLOCK, 0, f"no unit can go on: {self._stuck()}"))

    def _stuck(self) -> str:
        lines = []
        for engine in self.engines:
            if engine.blocker is not None:
                lines.append(f"{engine.name} waits for {engine.blocker.name}")
            elif engine.step is not None:
                lines.append(f"{engine.name} hangs in {engine.step.kind} after {engine.completed} commands")
        return "; ".join(lines) or "all queues are empty and the stream has no halt"

    def park(self, stopped: Callable[[], None]) -> None:
        """Come to a stop: units finish the commands that they are in, then ``stopped()`` is called.

        A job that ends before it stops, well or not, is not parked. Commands that the sequencer has sent off arrive.
        """
        self.holding = True
        self._stopped = stopped
        self.active += 1
        self.clock.after(max(0, self.sequencer.last - self.clock.now), self._arrived)

    def _arrived(self, event: Event) -> None:
        if self.over:
            return
        self.active -= 1
        if not self.active:
            self.settle()

    def _stop(self) -> None:
        self._count()
        self.parked = True
        self.parked_ps = self.clock.now
        self.preemptions += 1
        assert self._stopped is not None
        self._stopped()

    def resume(self) -> None:
        """Go on, with the machine as it was when the job stopped."""
        self._count()
        self.parked = self.holding = False
        now = self.clock.now
        self.suspended_ps += now - self.parked_ps
        for engine in self.engines:
            engine.release(now)
        self.sequencer.resume()
        if not self.active:
            self.settle()

    def _count(self) -> None:
        for engine in self.engines:
            engine.count(self.clock.now)
        self.sequencer.count(self.clock.now)

    def leave_link(self) -> None:
        """From here on what the link to DRAM does is another job's."""
        self._dram_busy_ps += self.link.settle() - self._link_mark

    def join_link(self) -> None:
        """The link is this job's again."""
        self._link_mark = self.link.settle()

    def moved_context(self, kind: str, begin: int, size: int) -> None:
        """``size`` bytes of SRAM and accumulators have been saved or restored, from time ``begin`` to now."""
        now = self.clock.now
        if kind == SAVE:
            self.writes += size
        else:
            self.reads += size
        self.spans.append(
            Span(SEQUENCER, begin - self.started_ps, now - self.started_ps, NO_OP, kind, 0, size, "memory")
        )

    @property
    def undisturbed(self) -> bool:
        """Whether the job went as any other of its program will, if nobody interferes. It has ended."""
        special = self.fault is not None or self.holding or self.preemptions > 0
        return not special and len(self.order) == len(self.steps) - 1 and not (self.injection.hang or self.known)

    def abandon(self) -> None:
        """Never go on: every event of the job that still comes is void."""
        self.over = True

    def _end(self) -> None:
        self.abandon()
        self.ended_ps = self.clock.now
        self._machine.leave(self)
        self._done(self)

    def record(self, now: int, clock_hz: int) -> JobRecord:
        """The job's history, its interrupt being raised at ``now``. It has left the link."""
        duration = now - self.started_ps
        counters = Counters(duration, dram_read_bytes=self.reads, dram_write_bytes=self.writes)
        counters.units = {engine.name: engine.close(now) for engine in self.engines}
        counters.units[SEQUENCER] = self.sequencer.close(now)
        counters.dram_busy_ps = self._dram_busy_ps
        counters.instructions = sum(unit.instructions for unit in counters.units.values())
        self.spans.sort(key=lambda span: (span.end_ps, span.unit, span.start_ps))
        cycles = cycles_spanned(duration, clock_hz)
        suspended = self.suspended_ps + (now - self.parked_ps if self.parked else 0)
        record = JobRecord(
            Timeline(self.spans), counters, cycles, duration, self.started_ps, suspended, self.preemptions,
            fault=self.fault, error=self.error,
        )  # fmt: skip
        self._learn(self, record)
        return record
