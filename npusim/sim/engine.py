"""A unit of a core: takes its commands in order, waits for others, passes the time, does the arithmetic."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from simpy.events import Event, Timeout

from npusim.sim.plan import Step
from npusim.timeline import Span, UnitCounters

if TYPE_CHECKING:
    from npusim.sim.run import Run

NEVER = -1

PREEMPTED = "preempted"
"""The name of a stall: the job of a higher class has the machine, or is about to."""


class Engine:
    """One unit during one job.

    Its time is split without gaps: ``mark`` is the time up to which all of it has been counted as busy, idle (nothing
    in the queue) or stalled on a named unit, on ``dram``, beside other units of the core on ``sram``, or ``preempted``.
    """

    __slots__ = (
        "begin", "blocker", "busy_ps", "bytes", "completed", "fail_at", "hang_at", "held", "idle_ps", "macs", "mark",
        "name", "queue", "run", "stalls", "step", "wait_at", "waiters",
    )  # fmt: skip

    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.queue: deque[tuple[int, Step]] = deque()
        self.step: Step | None = None  # the head: taken from the queue, waiting or running
        self.wait_at = 0
        self.blocker: Engine | None = None
        self.waiters: list[tuple[int, Engine]] = []
        self.completed = 0
        self.begin = NEVER
        self.held = False  # the head could start, were the job not to be parked
        self.mark = run.started_ps
        self.busy_ps = self.idle_ps = self.macs = self.bytes = 0
        self.stalls: dict[str, int] = {}
        injection = run.injection
        self.hang_at = injection.hang.get(name, NEVER)
        self.fail_at = injection.dma_error.get(name, NEVER)

    def offer(self, step: Step, at: int) -> None:
        """Put a command that is dispatched at time ``at`` (now or a few cycles from now) into the queue."""
        self.queue.append((at, step))
        if self.step is None:
            self._take()

    def _take(self) -> None:
        run = self.run
        at, self.step = self.queue.popleft()
        if run.sequencer.blocked is self:
            run.sequencer.pump()
        if at > run.env.now:
            run.active += 1
            Timeout(run.env, at - run.env.now).callbacks.append(self._arrived)
        else:
            self._admit()

    def _arrived(self, event: Event) -> None:
        run = self.run
        if run.over:
            return
        run.active -= 1
        self._admit()
        if not run.active:
            run.settle()

    def _admit(self) -> None:
        now = self.run.env.now
        self.idle_ps += now - self.mark
        self.mark = now
        self.wait_at = 0
        self.proceed(now)

    def proceed(self, now: int) -> None:
        """Look at the waits from where they held last; start when all hold."""
        step = self.step
        assert step is not None
        if step.waits:
            self._leave_stall(now)
            waits, engines = step.waits, self.run.engines
            while self.wait_at < len(waits):
                number, count = waits[self.wait_at]
                other = engines[number]
                if other.completed < count:
                    self.blocker = other
                    other.waiters.append((count, self))
                    return
                self.wait_at += 1
        self._start(step, now)

    def _leave_stall(self, now: int) -> None:
        if self.blocker is not None:
            name = self.blocker.name
            self.stalls[name] = self.stalls.get(name, 0) + now - self.mark
            self.mark = now
            self.blocker = None

    def _start(self, step: Step, now: int) -> None:
        run = self.run
        if run.holding:
            self.held = True
            return
        self.begin = now
        if self.completed == self.hang_at:
            return
        run.active += 1
        charge = step.charge
        if charge.share:
            run.banks[step.core].start(charge.fixed_ps, charge.share, self._finish)
        else:
            Timeout(run.env, charge.fixed_ps).callbacks.append(self._flow if charge.bus_bytes else self._finish)

    def _flow(self, event: Event) -> None:
        run, step = self.run, self.step
        if run.over:
            return
        assert step is not None
        run.link.start(step.charge.bus_bytes, step.charge.rate, self._finish)

    def _finish(self, event: Event | None = None) -> None:
        run, step = self.run, self.step
        if run.over:
            return
        assert step is not None
        run.active -= 1
        if self.completed == self.fail_at:
            run.fail_transfer(self.name, step)
            return
        if run.arithmetic and not run.execute(step):
            return
        run.order.append(step)
        now = run.env.now
        charge = step.charge
        bound = charge.bound
        late = now - self.begin - charge.alone_ps
        if late:
            memory = "dram" if charge.bus_bytes else "sram"
            self.stalls[memory] = self.stalls.get(memory, 0) + late
            bound = "memory"
        self.busy_ps += charge.alone_ps
        self.mark = now
        self.macs += charge.macs
        self.bytes += charge.bytes
        run.reads += charge.reads
        run.writes += charge.writes
        start, end = self.begin - run.started_ps, now - run.started_ps
        run.spans.append(
            Span(self.name, start, end, step.op, step.instruction.mnemonic, charge.macs, charge.bytes, bound)
        )
        self._complete(now)
        if not run.active:
            run.settle()

    def _complete(self, now: int) -> None:
        run = self.run
        self.completed = completed = self.completed + 1
        self.begin = NEVER
        self.step = None
        run.outstanding -= 1
        if self.waiters:
            ready = [engine for count, engine in self.waiters if count <= completed]
            if ready:
                self.waiters = [waiter for waiter in self.waiters if waiter[0] > completed]
                for engine in ready:
                    engine.proceed(now)
        if self.queue:
            self._take()

    def release(self, now: int) -> None:
        """The job is back on the machine: start what was held."""
        if self.held:
            self.held = False
            assert self.step is not None
            self._start(self.step, now)

    def count(self, now: int) -> None:
        """Put the time since ``mark`` under what the unit has been doing."""
        elapsed = now - self.mark
        if self.held or self.run.parked:
            self.stalls[PREEMPTED] = self.stalls.get(PREEMPTED, 0) + elapsed
        elif self.begin != NEVER:
            self.busy_ps += elapsed
        elif self.blocker is not None:
            self.stalls[self.blocker.name] = self.stalls.get(self.blocker.name, 0) + elapsed
        else:
            self.idle_ps += elapsed
        self.mark = now

    def close(self, now: int) -> UnitCounters:
        """The counters of the job; what the unit was doing when the job ended is counted up to ``now``."""
        self.count(now)
        return UnitCounters(self.busy_ps, self.idle_ps, self.stalls, self.completed, self.macs, self.bytes)
