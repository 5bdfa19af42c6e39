"""Fast-forward of timing-only jobs: their timing is computed in one call.

A timing-only job has no visible effects before its end. If no other event comes earlier and nobody watches, its events
need not be events of the clock. :func:`npusim.timing._timeline.timing_run` computes them by the rules and in the order
of the stepper, and only the end is scheduled. If the job is aborted or preempted, it is executed again event by event
from its start up to that time. Later jobs may be replayed (:mod:`npusim.sim.replayer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simpy.events import Event

from npusim.hw.units.dma import FETCH_BYTES
from npusim.sim.job import MachineJob
from npusim.sim.memory import JobMemory
from npusim.sim.owner import EventOwner
from npusim.sim.parts import Parts
from npusim.sim.replayer import Course
from npusim.sim.sequencer import CODE_RANK, FETCH, LAYER
from npusim.sim.stepper import Stepper
from npusim.sim.steps import HALT
from npusim.timeline import NO_OP, ORDER, SEQUENCER, Counters, DeviceFault, Span, Timeline, UnitCounters
from npusim.timing._timeline import TimingRun, timing_run
from npusim.units import cycles_spanned


def foresee(machine: Parts, course: Course, lead_ps: int) -> TimingRun | None:
    """The timing of a job that was taken ``lead_ps`` ago; None if it never ends, which the stepper reports."""
    if course.foreseen is None or course.foreseen[0] != lead_ps:
        fabric, config = machine.fabric, machine.config
        found = timing_run(
            course.steps,
            machine.layout.depths,
            config.cores,
            lead_ps,
            machine.cycle_ps,
            machine.layer_ps,
            config.compiler.one_by_one,
            config.queue_depth,
            fabric.latency_ps,
            fabric.fetch_rate,
            FETCH_BYTES,
            fabric.capacities,
            fabric.ports,
            CODE_RANK,
            config.interconnect.arbitration == "need",
            NO_OP,
            config.interconnect.separate_code_port,
        )
        course.foreseen = lead_ps, found
    return course.foreseen[1]


@dataclass(slots=True, eq=False)
class FastForward(EventOwner):
    """Executes a job from its precomputed timing, with the methods of :class:`npusim.sim.stepper.Stepper`."""

    machine: Parts
    job: MachineJob
    _course: Course
    _found: TimingRun
    done: Callable[[FastForward | Stepper], None]
    over: bool = False
    fault: DeviceFault | None = None
    preemptions: int = 0
    begun_ps: int = 0

    def begin(self) -> None:
        """Schedule the end."""
        clock = self.machine.clock
        self.begun_ps = clock.now
        clock.after(self._found.length_ps, self._ended)

    def stepper(self, memory: JobMemory) -> Stepper:
        """A stepper for the job, from its start."""
        return Stepper(self.machine, self.job, memory, self._course.steps, self.done, self._course.learn, {})

    @property
    def _lead_ps(self) -> int:
        return self.begun_ps - self.job.started_ps

    def _ended(self, event: Event) -> None:
        if not self.over:
            self.machine.link.busy_ps += self._found.link_busy_ps
            self.over = True
            self.done(self)

    def is_void(self, value: Any) -> bool:
        return self.over

    def leave_link(self) -> None:
        """Nothing to do: it has no transfers on a link."""

    def abandon(self) -> None:
        """Stop for good."""
        self.over = True

    def timeline(self, now: int, clock_hz: int) -> Timeline:
        """The timeline of the job. ``now``: time of its interrupt."""
        started, found = self.job.started_ps, self._found
        duration = now - started
        spans, units = self._spans(), self._units(duration)
        instructions = sum(unit.instructions for unit in units.values())
        charges = [step.charge for step in self._course.steps]
        reads = found.sequencer[3] + sum([charge.reads for charge in charges])
        writes = sum([charge.writes for charge in charges])
        counters = Counters(duration, units, reads, writes, found.link_busy_ps, instructions)
        timeline = Timeline(spans, counters, cycles_spanned(duration, clock_hz), duration, started)
        self._course.keep(
            [self._course.steps[number] for number in found.order], self._lead_ps, found.length_ps, timeline
        )
        return timeline

    def _spans(self) -> list[Span]:
        names, steps, lead = self.machine.layout.names, self._course.steps, self._lead_ps
        begins, ends = self._found.begins, self._found.ends
        spans = []
        for number in self._found.order:
            step = steps[number]
            charge, begin, end = step.charge, begins[number], ends[number]
            bound = charge.bound if end - begin == charge.alone_ps else charge.bound_in(end - begin)
            # Equivalent to Step.span, without a call per instruction.
            spans.append(
                Span(
                    names[step.engine],
                    begin + lead,
                    end + lead,
                    step.op,
                    step.instruction.mnemonic,
                    charge.macs,
                    charge.bytes,
                    bound,
                    charge.reads + charge.writes,
                )
            )
        spans.sort(key=ORDER)
        return spans

    def _units(self, duration: int) -> dict[str, UnitCounters]:
        names, found, lead = self.machine.layout.names, self._found, self._lead_ps
        macs, moved = [0] * len(names), [0] * len(names)
        for step in self._course.steps:
            if step.engine != HALT:
                macs[step.engine] += step.charge.macs
                moved[step.engine] += step.charge.bytes
        units = {}
        reasons = (*names, "dram", "sram", "exchange", "l2")
        for name, (busy, idle, mark, completed, stalls), *sums in zip(names, found.units, macs, moved, strict=True):
            stalled = {reasons[reason]: ps for reason, ps in stalls}
            units[name] = UnitCounters(busy, idle + duration - lead - mark, stalled, completed, *sums)
        busy, last, stalls, fetched = found.sequencer
        reasons = (*names, FETCH, LAYER)
        stalled = {reasons[reason]: ps for reason, ps in stalls}
        units[SEQUENCER] = UnitCounters(busy, duration - lead - last, stalled, 1, 0, fetched)
        return units
