"""Units of jobs that are watched."""

from __future__ import annotations

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
