"""Units and sequencers of watched jobs, which call watchers and may have faults; and units with delays of an
adversary."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from simpy.events import Event, Timeout

from npusim.sim.engine import NEVER, Engine
from npusim.sim.sequencer import Sequencer
from npusim.sim.steps import Step
from npusim.timeline import SEQUENCER
from npusim.units import ceil_div

HANG = "hang"
"""Name of the stall of a sequencer that hangs."""


class WatchedEngine(Engine):
    """A unit that calls watchers and may hang, be slow or fail. It has the slots of its base class, so that a unit can
    change to this class while it runs."""

    __slots__ = ()

    def offer(self, step: Step, at: int) -> None:
        for watcher in self.job.watchers[:]:
            watcher.dispatched(self.name, step, at)
        super().offer(step, at)

    def _start(self, step: Step, now: int) -> None:
        job = self.job
        # Several units may be released at once, and a watcher may end the job when the first of them starts.
        if job.over:
            return
        if job.holding:
            super()._start(step, now)
            return
        for watcher in job.watchers[:]:
            watcher.step_begins(self.name, step)
        if self.job.over:  # a watcher has ended it
            return
        link = job.ways[step.charge.link]
        slowed = job.breaks.slowed(self.name, step, link.capacity)
        if slowed is not step:
            job.disturbed = True
            self.step = slowed
        # If older commands are in flight, the unit hangs at their end, and this command behind them.
        if not self.flight and job.breaks.hold(self.name, partial(self._begin_late, now)):
            job.disturbed = True
            # The command has begun without a scheduled end; `active` does not change.
            self.begin = now
            return
        super()._start(slowed, now)

    def _begin_late(self, begin: int) -> None:
        """Continue a unit that has been hanging since before the command began."""
        job = self.job
        if job.over:
            return
        step = self.step
        assert step is not None
        self.begin = NEVER
        super()._start(step, job.env.now)
        if job.holding:
            if not job.active:
                job.settle()
            return
        self.begin = begin
        self._longer(job.env.now - begin, before=True)

    def _finish(self, event: Event | None = None) -> None:
        job = self.job
        if not job.over:
            if job.breaks.hold(self.name, partial(self._finish_late, job.env.now)):
                job.disturbed = True
                job.active -= 1
                return
            if job.breaks.fails(self.name):
                job.active -= 1
                job.fail_transfer(self.name, self.flight[0][0])
                return
        super()._finish(event)

    def _finish_late(self, end: int) -> None:
        """Continue a unit that has been hanging since before the command ended."""
        job = self.job
        if job.over:
            return
        self._longer(job.env.now - end, before=False)
        job.active += 1
        self._finish()

    def _longer(self, held_ps: int, *, before: bool) -> None:
        """Count the time of the hang as time of the command. ``before``: it was before its start, otherwise at its
        end."""
        step, ready = self.flight[0]
        charge = replace(step.charge, alone_ps=step.charge.alone_ps + held_ps)
        self.flight[0] = replace(step, charge=charge), ready - held_ps * before

    def _complete(self, now: int) -> None:
        for watcher in self.job.watchers[:]:
            watcher.step_ends(self.name, self.flight[0][0])
        if not self.job.over:
            super()._complete(now)


class HinderedEngine(WatchedEngine):
    """A unit whose transfers are delayed by an adversary."""

    __slots__ = ()

    def _flow(self, event: Event) -> None:
        job = self.job
        if job.over:
            return
        assert job.adversary is not None
        delay = job.adversary.transfer_ps()
        flow = super()._flow
        if delay:
            Timeout(job.env, delay).callbacks.append(flow)
        else:
            flow(event)


class WatchedSequencer(Sequencer):
    """A sequencer that may hang or be slow. Dispatched commands still arrive."""

    __slots__ = ()

    def pump(self) -> None:
        job = self.job
        # Several overlapping holds end with several releases, possibly after the end of the stream.
        if job.over or job.holding or self.dispatched == len(job.steps):
            return
        if job.breaks.hold(SEQUENCER, self._pump_late):
            job.disturbed = True
            self.reason = HANG
            return
        factor = job.breaks.clock_factor()
        if factor == 1:
            super().pump()
            return
        job.disturbed = True
        usual = job.cycle_ps, job.layer_ps
        job.cycle_ps, job.layer_ps = (ceil_div(ps * factor.numerator, factor.denominator) for ps in usual)
        super().pump()
        job.cycle_ps, job.layer_ps = usual

    def _pump_late(self) -> None:
        job = self.job
        if not job.over and not job.parked:
            self.pump()
            if not job.active:
                job.settle()

    def _halting(self, event: Event) -> None:
        job = self.job
        if not job.over and job.breaks.hold(SEQUENCER, partial(self._halt_late, event)):
            job.disturbed = True
            job.active -= 1
            return
        super()._halting(event)

    def _halt_late(self, event: Event) -> None:
        if not self.job.over:
            self.job.active += 1
            self._halting(event)
