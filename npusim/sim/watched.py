"""Units and the sequencer of jobs that are watched: they tell, and they may be broken; and units that are hindered."""

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
"""The name of the sequencer's stall while it hangs."""


class WatchedEngine(Engine):
    """A unit that tells, hangs, is slow or fails. It has the slots of its base, so a unit under way may become one."""

    __slots__ = ()

    def offer(self, step: Step, at: int) -> None:
        for watcher in self.job.watchers[:]:
            watcher.dispatched(self.name, step, at)
        super().offer(step, at)

    def _start(self, step: Step, now: int) -> None:
        job = self.job
        # Several units may be released in one go, and a watcher may end the job when the first of them starts.
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
        # With older ones in flight it is those that are held, at their end, and this one behind them.
        if not self.flight and job.breaks.hold(self.name, partial(self._begin_late, now)):
            job.disturbed = True
            # It has begun and schedules no end; `active` stays as it is.
            self.begin = now
            return
        super()._start(slowed, now)

    def _begin_late(self, begin: int) -> None:
        """The unit goes on that has hung since the command was to begin."""
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
        """The unit goes on that has hung since the command was to end."""
        job = self.job
        if job.over:
            return
        self._longer(job.env.now - end, before=False)
        job.active += 1
        self._finish()

    def _longer(self, held_ps: int, *, before: bool) -> None:
        """Count the time that it hung, ``before`` it began or at its end, as the command's own."""
        step, ready = self.flight[0]
        charge = replace(step.charge, alone_ps=step.charge.alone_ps + held_ps)
        self.flight[0] = replace(step, charge=charge), ready - held_ps * before

    def _complete(self, now: int) -> None:
        for watcher in self.job.watchers[:]:
            watcher.step_ends(self.name, self.flight[0][0])
        if not self.job.over:
            super()._complete(now)


class HinderedEngine(WatchedEngine):
    """A unit whose transfers wait for those of somebody else, as long as an adversary says."""

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
    """A sequencer that hangs or is slow. What it has sent off arrives."""

    __slots__ = ()

    def pump(self) -> None:
        job = self.job
        # What was held more than once goes on more than once: perhaps behind the end of the stream.
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
