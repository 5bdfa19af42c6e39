"""The times at which commands enter the queues of their units. Timelines do not contain them."""

from __future__ import annotations

from npusim.sim.job import MachineJob
from npusim.sim.steps import Step
from npusim.sim.watch import Watcher


class Arrivals(Watcher):
    """For the last job that began while this was watching: arrival times of commands by unit, in ps since the device
    took the job."""

    def __init__(self) -> None:
        self.of_units: dict[str, list[int]] = {}
        self._started_ps = 0

    def job_begins(self, job: MachineJob) -> None:
        """Start the count of arrivals for a job."""
        self.of_units = {}
        self._started_ps = job.started_ps

    def dispatched(self, unit: str, step: Step, at_ps: int) -> None:
        """Record that a step entered the queue of a unit at this time."""
        self.of_units.setdefault(unit, []).append(at_ps - self._started_ps)
