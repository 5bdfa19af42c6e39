"""One job on the machine, event by event, from its first fetch until all units are idle, or until its fault.

It may be preempted: it stops at an instruction boundary, leaves the machine to a job of a higher priority, and resumes
later.
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
"""Kinds of spans of the sequencer."""


class Stepper(Progress, EventOwner):
    """Executes a job on the units of the machine, with an event for each change."""

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
        """``known``: results of arithmetic that was done already."""
        super().__init__(machine, job, steps)
        self.memory = memory
        self.job = job
        self.known = known
        self.begun_ps = self.ended_ps = machine.clock.now
        self.parked_ps = 0  # time of the preemption
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
        """End the job with a fault."""
        self.fault = fault
        self._end()

    def settle(self) -> None:
        if self.over:
            return
        # Nothing is scheduled any more. The job is complete, or it was asked to stop and every unit has, or it is
        # deadlocked: a program waits for itself, which is a fault that names the units.
        if self.sequencer.halted and not self.outstanding:
            self._end()
        elif self.holding and SEQUENCER not in self.breaks.hangs and all(each.begin == NEVER for each in self.engines):
            self._count()
            self.parked = True
            self.parked_ps = self.clock.now
            self.preemptions += 1
            assert self.stopped is not None
            self.stopped(self)
        elif not self.breaks.hangs:  # a hanging unit is silent and is detected by a time-out
            self.fail(DeviceFault(FaultCode.DEADLOCK, 0, f"no unit can continue: {self._stuck()}"))

    def _stuck(self) -> str:
        lines = []
        for engine in self.engines:
            if engine.blocker is not None:
                lines.append(f"{engine.name} waits for {engine.blocker.name}")
        return "; ".join(lines) or "all queues are empty and the stream has no halt"

    def park(self, stopped: Callable[[Stepper], None]) -> None:
        """Stop the job: units finish their current commands, then ``stopped(self)`` is called.

        A job that ends before it stops is not preempted. Commands that were dispatched arrive in their queues.
        """
        self.holding = True
        self.stopped = stopped
        # Dispatched commands have left the sequencer, so the stop waits until they are in their queues.
        self.active += 1
        self.clock.after(max(0, self.sequencer.last - self.clock.now), self._arrived)

    def _arrived(self, event: Event) -> None:
        if self.over:
            return
        self.active -= 1
        if not self.active:
            self.settle()

    def resume(self) -> None:
        """Continue, with the machine as it was when the job stopped."""
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
        """Notify watchers from now on."""
        for engine in self.engines:
            if not isinstance(engine, WatchedEngine):
                engine.__class__ = WatchedEngine
        self.sequencer.__class__ = WatchedSequencer

    def leave_link(self) -> None:
        """Detach from the link to DRAM, which another job uses from now on."""
        self.dram_busy_ps += self.link.settle() - self.link_mark

    def join_link(self) -> None:
        """Attach to the link again."""
        self.link_mark = self.link.settle()

    def moved_context(self, kind: str, begin: int, size: int) -> None:
        """Record a context move of ``size`` bytes of SRAM and accumulators, from time ``begin`` to now."""
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
        """Whether the job, which has ended, had the timing of any undisturbed job of its program."""
        special = self.fault is not None or self.holding or self.preemptions > 0
        return not special and len(self.order) == len(self.steps) - 1 and not (self.disturbed or self.known)

    def is_void(self, value: Any) -> bool:
        return self.over

    def own(self, owners: Owners, name: str) -> None:
        """Register its parts as parts of the job of that name."""
        owners.add(name, self)
        owners.add(f"{name}/sequencer", self.sequencer)
        for engine in self.engines:
            owners.add(f"{name}/{engine.name}", engine)
        for core, banks in enumerate(self.banks):
            owners.add(f"{name}/core{core}.sram", banks)

    def abandon(self) -> None:
        """Stop for good: all pending events of the job become void."""
        self.over = True

    def _end(self) -> None:
        self.abandon()
        self.ended_ps = self.clock.now
        self.done(self)

    def timeline(self, now: int, clock_hz: int) -> Timeline:
        """The timeline of the job. ``now``: time of its interrupt. It has left the link."""
        duration = now - self.started_ps
        units = {engine.name: engine.close(now) for engine in self.engines}
        units[SEQUENCER] = self.sequencer.close(now)
        instructions = sum(unit.instructions for unit in units.values())
        counters = Counters(duration, units, self.reads, self.writes, self.dram_busy_ps, instructions)
        # The order in which units end depends on the interleaving of events; the record must not.
        self.spans.sort(key=ORDER)
        cycles = cycles_spanned(duration, clock_hz)
        suspended = self.suspended_ps + (now - self.parked_ps if self.parked else 0)
        timeline = Timeline(
            self.spans,
            counters,
            cycles,
            duration,
            self.started_ps,
            suspended,
            self.preemptions,
            fault=self.fault,
            error=self.error,
        )
        self._learn(self, timeline)
        return timeline
