"""The machine behind the registers: clock, memories, the link to DRAM, and one job at a time."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable

from npusim.hw.config import Config
from npusim.sim.bandwidth import SharedLink
from npusim.sim.clock import Clock
from npusim.sim.fabric import Fabric
from npusim.sim.inject import Injection
from npusim.sim.memory import DeviceMemory
from npusim.sim.plan import Layout, Planner, Step
from npusim.sim.run import Job, Run
from npusim.units import cycles_to_ps

PLANS_KEPT = 32
"""Programs whose decoded form stays in the host's memory, the most recently used ones."""


class Machine:
    """A device without its registers. Deterministic: the same calls give the same events at the same picoseconds."""

    def __init__(self, config: Config, injection: Injection | None = None) -> None:
        self.config = config
        self.injection = injection or Injection()
        self.clock = Clock()
        self.memory = DeviceMemory(config)
        self.fabric = Fabric(config)
        self.link = SharedLink(self.clock, self.fabric.capacity)
        self.layout = Layout(config)
        self.cycle_ps = cycles_to_ps(1, config.clock_hz)
        self._planner = Planner(config, self.layout, self.fabric)
        self._plans: OrderedDict[tuple[bytes, tuple[int, ...]], list[Step]] = OrderedDict()
        self.current: Run | None = None
        """The job that runs, or the last one that did."""

    def start(self, job: Job, done: Callable[[Run], None]) -> None:
        """Begin a job; ``done(run)`` is called at its end.

        Raises PlanError for a bad program, AddressError for regions outside of DRAM.
        """
        code = self.memory.slice(job.code, job.code_bytes)
        steps = self._plan(code.tobytes(), tuple(size for _, size in job.regions))
        self.current = Run(self, job, steps, done)
        self.current.sequencer.begin()

    def control_access(self, size: int, done: Callable[[], None]) -> None:
        """Read or write ``size`` bytes of control data in DRAM, a few kB at most; ``done()`` is called at the end."""
        self.clock.after(self.fabric.latency_ps + self.fabric.flow_ps(size), lambda _: done())

    def abort(self) -> None:
        """Drop the running job, if any, without a trace."""
        if self.current is not None:
            self.current.abandon()
            self.current = None

    def _plan(self, code: bytes, region_bytes: tuple[int, ...]) -> list[Step]:
        key = (hashlib.sha256(code).digest(), region_bytes)
        steps = self._plans.get(key)
        if steps is None:
            steps = self._plans[key] = self._planner.plan(code, region_bytes)
            if len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return steps
