"""The machine behind the registers: clock, memories, the link to DRAM, and the job that has it all to itself."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache

from npusim.hw.config import Config
from npusim.isa.base import ByteArray
from npusim.sim.bandwidth import SharedLink
from npusim.sim.clock import Clock
from npusim.sim.fabric import Fabric
from npusim.sim.inject import Injection
from npusim.sim.memory import DeviceMemory, JobMemory
from npusim.sim.plan import Layout, Planner, Step
from npusim.sim.replay import Plan, Replay, Tape
from npusim.sim.run import RESTORE, SAVE, Attempt, Job, Run, attempt
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
        fabric = self.fabric
        self._control_ps = lru_cache(64)(lambda size: fabric.latency_ps + fabric.flow_ps(size))
        self.layout = Layout(config)
        self.injection.bind(self.layout.names, config.dram.bytes)
        self.cycle_ps = cycles_to_ps(1, config.clock_hz)
        self._planner = Planner(config, self.layout, self.fabric)
        self._plans: OrderedDict[tuple[bytes, tuple[int, ...]], Plan] = OrderedDict()
        self._latest: tuple[bytes, tuple[int, ...], Plan] | None = None
        self.current: Run | Replay | None = None
        """The job that has the machine: it runs, or its context is on the way."""

    def start(self, job: Job, done: Callable[[Run | Replay], None]) -> Run | Replay:
        """Begin a job; ``done(run)`` is called at its end.

        Raises PlanError for a bad program, AddressError for regions outside of DRAM.
        """
        code = self.memory.slice(job.code, job.code_bytes)
        plan = self._plan(code.tobytes(), tuple([size for _, size in job.regions]))
        known: Mapping[Step, Attempt] = {}
        if plan.tape is not None and self._foreseeable(job, plan.tape):
            self.current = replay = Replay(self, job, plan.tape, done)
            known = replay.begin()
            if not known:
                return replay
        self.current = run = Run(self, job, plan.steps, done, plan.learn)
        run.known = known
        run.sequencer.begin()
        return run

    def _foreseeable(self, job: Job, tape: Tape) -> bool:
        """Whether a job will go as the tape says, and nobody can look before its end."""
        breaks = self.injection.hang or self.injection.dma_error
        on_time = self.clock.now - job.started_ps == tape.lead_ps
        return on_time and not breaks and self.clock.is_quiet(tape.length_ps)

    def arithmetic(self, job: Job) -> Callable[[], bool] | None:
        """What a job computes, to be done any number of times while nothing else happens; it gives False for a fault.
        None if the course of such jobs is not known, or will not be that of the tape."""
        code = self.memory.slice(job.code, job.code_bytes)
        plan = self._plan(code.tobytes(), tuple([size for _, size in job.regions]))
        if plan.tape is None or self.injection != Injection():
            return None
        memory, order = JobMemory(self.memory, job.regions), plan.tape.order
        return lambda: all(attempt(memory, job, step) is None for step in order)

    @property
    def context_bytes(self) -> int:
        """What one job can have in the memories of all cores."""
        return self.config.cores * (self.memory.sram_bytes + self.memory.acc_bytes)

    def save(self, run: Run, address: int, saved: Callable[[], None]) -> None:
        """Copy the memories of the cores that a stopped job uses to DRAM; ``saved()``: the machine is free.

        A core's bytes lie at ``address`` plus its number times the bytes of a core. Raises AddressError.
        """
        areas = self._context(run, address)

        def done() -> None:
            for core, area in areas:
                area[: self.memory.sram_bytes] = self.memory.sram[core]
                area[self.memory.sram_bytes :] = self.memory.acc[core]
            self.leave(run)
            saved()

        self._move_context(run, SAVE, done)

    def restore(self, run: Run, address: int, restored: Callable[[], None]) -> None:
        """The way back: give the machine to a parked job and copy its bytes into the cores' memories."""
        areas = self._context(run, address)
        self.current = run
        run.join_link()

        def done() -> None:
            for core, area in areas:
                self.memory.sram[core][:] = area[: self.memory.sram_bytes]
                self.memory.acc[core][:] = area[self.memory.sram_bytes :]
            restored()

        self._move_context(run, RESTORE, done)

    def leave(self, run: Run | Replay) -> None:
        """Take a job off the machine, if it is there; what it has on the link is dropped."""
        if self.current is run:
            run.leave_link()
            self.link.clear()
            self.current = None

    def _context(self, run: Run, address: int) -> list[tuple[int, ByteArray]]:
        """The area of each core that the job uses."""
        size = self.memory.sram_bytes + self.memory.acc_bytes
        return [(core, self.memory.slice(address + core * size, size)) for core in run.cores]

    def _move_context(self, run: Run, kind: str, done: Callable[[], None]) -> None:
        """The DRAM's latency, then the bytes at the rate that the DMA channels of these cores reach together."""
        count = len(run.cores)
        size = count * (self.memory.sram_bytes + self.memory.acc_bytes)
        rate = max(count, 1) * self.config.dma.channels * self.fabric.channel_rate
        begin = self.clock.now

        def flowed() -> None:
            if not run.over:
                run.moved_context(kind, begin, size)
                done()

        self.clock.after(self.fabric.latency_ps, lambda _: None if run.over else self.link.start(size, rate, flowed))

    def control_access(self, size: int, done: Callable[[], None]) -> None:
        """Read or write ``size`` bytes of control data in DRAM, a few kB at most; ``done()`` is called at the end."""
        self.clock.after(self._control_ps(size), lambda _: done())

    def drop(self, run: Run | Replay) -> None:
        """End a job where it is, on the machine or parked, without a word to whoever waits for it."""
        run.abandon()
        self.leave(run)

    def _plan(self, code: bytes, region_bytes: tuple[int, ...]) -> Plan:
        latest = self._latest
        if latest is not None and latest[0] == code and latest[1] == region_bytes:
            return latest[2]
        plan = self._known_plan(code, region_bytes)
        self._latest = (code, region_bytes, plan)
        return plan

    def _known_plan(self, code: bytes, region_bytes: tuple[int, ...]) -> Plan:
        key = (hashlib.sha256(code).digest(), region_bytes)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(self._planner.plan(code, region_bytes))
            if len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        else:
            self._plans.move_to_end(key)
        return plan
