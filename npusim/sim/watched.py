"""Units of jobs that are watched, or hindered."""

from __future__ import annotations

from simpy.events import Event, Timeout

from npusim.sim.engine import Engine
from npusim.sim.steps import Step


class WatchedEngine(Engine):
    """A unit that tells. It has the slots of its base, so a unit under way may become one."""

    __slots__ = ()

    def offer(self, step: Step, at: int) -> None:
        for watcher in tuple(self.job.watchers):
            watcher.dispatched(self.name, step, at)
        super().offer(step, at)

    def _start(self, step: Step, now: int) -> None:
        if not self.job.holding:
            for watcher in tuple(self.job.watchers):
                watcher.step_begins(self.name, step)
        super()._start(step, now)

    def _complete(self, now: int) -> None:
        assert self.step is not None
        for watcher in tuple(self.job.watchers):
            watcher.step_ends(self.name, self.step)
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
