"""One job on the machine, from its first fetch to the moment that every unit has drained, or to its fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npusim.errors import ProgramError
from npusim.sim.banks import Banks
from npusim.sim.engine import Engine
from npusim.sim.fault import Fault, FaultCode
from npusim.sim.memory import AddressError, JobMemory
from npusim.sim.plan import Step
from npusim.sim.sequencer import NAME as SEQUENCER
from npusim.sim.sequencer import Sequencer
from npusim.timeline import Counters, Span, Timeline

if TYPE_CHECKING:
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
    """What a job did; ``fault`` is None if it succeeded. Duration, cycles and time run from doorbell to interrupt."""

    timeline: Timeline = field(default_factory=Timeline)
    counters: Counters = field(default_factory=Counters)
    cycles: int = 0
    time_ps: int = 0
    fault: Fault | None = None
    error: BaseException | None = None  # what the simulator itself raised, for FaultCode.INTERNAL


class Run:
    """The state of a running job. ``active`` counts the events under way: none left means done, or deadlock."""

    def __init__(self, machine: Machine, job: Job, steps: list[Step], done: Callable[[Run], None]) -> None:
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
        self.spans: list[Span] = []
        self.reads = self.writes = 0
        self.active = 0
        self.outstanding = 0  # commands dispatched and not completed
        self.over = False
        self.fault: Fault | None = None
        self.error: BaseException | None = None
        self._done = done
        self._link_busy_ps = machine.link.settle()
        self.banks = [Banks(self.clock) for _ in range(machine.config.cores)]
        self.engines = [Engine(self, name) for name in machine.layout.names]
        self.sequencer = Sequencer(self)

    def execute(self, step: Step) -> bool:
        """Do a command's arithmetic; False if that was a fault, which ends the job."""
        command = self.job.code + step.begin
        try:
            step.instruction.execute(self.memory, step.core)
        except ProgramError as error:
            self.fail(Fault(FaultCode.DATA, command, str(error)))
        except ValueError as error:  # a kernel refuses fields that the instruction's own check has let through
            self.fail(Fault(FaultCode.PROGRAM, command, f"{step.kind}: {error}"))
        except AddressError as error:
            self.fail(Fault(FaultCode.ADDRESS, error.address, f"{step.kind}: {error.explanation}"))
        except Exception as error:  # noqa: BLE001 - a device never raises at software, even if its model is wrong
            self.error = error
            self.fail(Fault(FaultCode.INTERNAL, command, f"{step.kind}: {type(error).__name__}: {error}"))
        else:
            return True
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

    def abandon(self) -> None:
        """Stop without telling anybody: the device was reset."""
        self.over = True
        self.link.clear()

    def _end(self) -> None:
        self.over = True
        self.link.clear()
        self._done(self)

    def record(self, now: int, clock_hz: int) -> JobRecord:
        """The job's history, its interrupt being raised at ``now``."""
        duration = now - self.started_ps
        counters = Counters(duration, dram_read_bytes=self.reads, dram_write_bytes=self.writes)
        counters.units = {engine.name: engine.close(now) for engine in self.engines}
        counters.units[SEQUENCER] = self.sequencer.close(now)
        counters.dram_busy_ps = self.link.settle() - self._link_busy_ps
        counters.instructions = sum(unit.instructions for unit in counters.units.values())
        self.spans.sort(key=lambda span: (span.end_ps, span.unit, span.start_ps))
        cycles = -(-duration * clock_hz // 10**12)
        return JobRecord(Timeline(self.spans), counters, cycles, duration, self.fault, self.error)
