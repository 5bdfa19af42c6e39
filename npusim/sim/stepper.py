"""One job on the machine, from its first fetch to the moment that every unit has drained, or to its fault.

On the way it may be parked: it comes to a stop at an instruction boundary, leaves the machine to a job of a higher
class, and goes on later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simpy.events import Event

from npusim.sim.engine import NEVER, Engine, Progress
from npusim.sim.job import Attempt, MachineJob, attempt
from npusim.sim.memory import JobMemory
from npusim.sim.owner import EventOwner, Owners
from npusim.sim.parts import Parts
from npusim.sim.sequencer import Sequencer
from npusim.sim.steps import HALT, Step
from npusim.sim.watched import HinderedEngine, WatchedEngine, WatchedSequencer
from npusim.timeline import NO_OP, ORDER, SEQUENCER, Counters, DeviceFault, FaultCode, Span, Timeline
from npusim.units import cycles_spanned

SAVE, RESTORE = "context.save", "context.restore"
"""Kinds of the sequencer's spans."""


class Stepper(Progress, EventOwner):
    """Steps a job through the units of the machine, with an event for each thing that happens."""

    EVENTS = ("_arrived",)

    sequencer: Sequencer

    def __init__(
        self,
        machine: Parts,
        job: MachineJob,
        memory: JobMemory,
        steps: Sequence[Step],
        done: Callable[[Stepper], None],
        learn: Callable[[Stepper, Timeline], None],
        known: Mapping[Step, Attempt],
    ) -> None:
        """``known``: what came of arithmetic that has been done already."""
        super().__init__(machine, job, steps)
        self.memory = memory
        self.job = job
        self.known = known
        self.begun_ps = self.ended_ps = machine.clock.now
        self.parked_ps = 0  # since when
        self.suspended_ps = 0
        self.preemptions = 0
        self.fault: DeviceFault | None = None
        self.error: BaseException | None = None
        self.done = done
        self._learn = learn
        self.stopped: Callable[[Stepper], None] | None = None
        self.dram_busy_ps = 0
        self.link_mark = machine.link.settle()
        kind = HinderedEngine if self.adversary else WatchedEngine if self.watchers else Engine
        layout = machine.layout
        self.engines = [kind(self, name, depth) for name, depth in zip(layout.names, layout.depths, strict=True)]
        self.sequencer = WatchedSequencer(self) if self.watchers else Sequencer(self)

    @property
    def cores(self) -> list[int]:
        """The cores whose memories the job uses."""
        return sorted(
            {
                core
                for step in self.steps
                if step.engine != HALT
                for core in (step.core, *step.instruction.targets(step.core))
            }
        )

    def execute(self, step: Step) -> bool:
        result = self.known[step] if step in self.known else attempt(self.memory, self.job, step)
        if result is None:
            return True
        fault, self.error = result
        self.fail(fault)
        return False

    def fail_transfer(self, unit: str, step: Step) -> None:
        self.fail(DeviceFault(FaultCode.DMA, self.job.code + step.begin, f"{unit}: {step.kind}: bus error"))

    def fail(self, fault: DeviceFault) -> None:
        """End the job here."""
        self.fault = fault
        self._end()

    def settle(self) -> None:
        if self.over:
            return
        # Nothing is scheduled any more. Either all is done, or the job was asked to stop and every unit has, or nobody
        # will ever wake anybody again: a program that waits for itself, which is a fault that says who waits for whom.
        if self.sequencer.halted and not self.outstanding:
            self._end()
        elif self.holding and SEQUENCER not in self.breaks.hangs and all(each.begin == NEVER for each in self.engines):
            self._count()
            self.parked = True
            self.parked_ps = self.clock.now
            self.preemptions += 1
            assert self.stopped is not None
            self.stopped(self)
        elif not self.breaks.hangs:  # what hangs is silent: somebody outside has to notice
            self.fail(DeviceFault(FaultCode.DEADLOCK, 0, f"no unit can go on: {self._stuck()}"))

    def _stuck(self) -> str:
        lines = []
        for engine in self.engines:
            if engine.blocker is not None:
                lines.append(f"{engine.name} waits for {engine.blocker.name}")
        return "; ".join(lines) or "all queues are empty and the stream has no halt"

    def park(self, stopped: Callable[[Stepper], None]) -> None:
        """Come to a stop: units finish the commands that they are in, then ``stopped(self)`` is called.

        A job that ends before it stops, well or not, is not parked. Commands that the sequencer has sent off arrive.
        """
        self.holding = True
        self.stopped = stopped
        # Commands that are dispatched have left the sequencer for good: parking waits until they are in their queues.
        self.active += 1
        self.clock.after(max(0, self.sequencer.last - self.clock.now), self._arrived)

    def _arrived(self, event: Event) -> None:
        if self.over:
            return
        self.active -= 1
        if not self.active:
            self.settle()

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

    def tell(self) -> None:
        """From here on its units tell whoever watches."""
        for engine in self.engines:
            if not isinstance(engine, WatchedEngine):
                engine.__class__ = WatchedEngine
        self.sequencer.__class__ = WatchedSequencer

    def leave_link(self) -> None:
        """From here on what the link to DRAM does is another job's."""
        self.dram_busy_ps += self.link.settle() - self.link_mark

    def join_link(self) -> None:
        """The link is this job's again."""
        self.link_mark = self.link.settle()

    def moved_context(self, kind: str, begin: int, size: int) -> None:
        """``size`` bytes of SRAM and accumulators have been saved or restored, from time ``begin`` to now."""
        now = self.clock.now
        if kind == SAVE:
            self.writes += size
        else:
            self.reads += size
        self.spans.append(
            Span(SEQUENCER, begin - self.started_ps, now - self.started_ps, NO_OP, kind, 0, size, "memory", size)
        )

    @property
    def undisturbed(self) -> bool:
        """Whether the job went as any other of its program will, if nobody interferes. It has ended."""
        special = self.fault is not None or self.holding or self.preemptions > 0
        return not special and len(self.order) == len(self.steps) - 1 and not (self.disturbed or self.known)

    def is_void(self, value: Any) -> bool:
        return self.over

    def own(self, owners: Owners, name: str) -> None:
        """Make its parts known, as parts of the job of that name."""
        owners.add(name, self)
        owners.add(f"{name}/sequencer", self.sequencer)
        for engine in self.engines:
            owners.add(f"{name}/{engine.name}", engine)
        for core, banks in enumerate(self.banks):
            owners.add(f"{name}/core{core}.sram", banks)

    def abandon(self) -> None:
        """Never go on: every event of the job that still comes is void."""
        self.over = True

    def _end(self) -> None:
        self.abandon()
        self.ended_ps = self.clock.now
        self.done(self)

    def timeline(self, now: int, clock_hz: int) -> Timeline:
        """The job's history, its interrupt being raised at ``now``. It has left the link."""
        duration = now - self.started_ps
        units = {engine.name: engine.close(now) for engine in self.engines}
        units[SEQUENCER] = self.sequencer.close(now)
        instructions = sum(unit.instructions for unit in units.values())
        counters = Counters(duration, units, self.reads, self.writes, self.dram_busy_ps, instructions)
        # Units end in an order that depends on how events interleave; the record must not.
        self.spans.sort(key=ORDER)
        cycles = cycles_spanned(duration, clock_hz)
        suspended = self.suspended_ps + (now - self.parked_ps if self.parked else 0)
        timeline = Timeline(
            self.spans, counters, cycles, duration, self.started_ps, suspended, self.preemptions,
            fault=self.fault, error=self.error,
        )  # fmt: skip
        self._learn(self, timeline)
        return timeline
