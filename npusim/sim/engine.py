"""A unit of a core: executes its commands in order, with their waits, times and arithmetic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from simpy.events import Event, Timeout

from npusim.sim.banks import Banks
from npusim.sim.job import MachineJob
from npusim.sim.owner import EventOwner
from npusim.sim.parts import Parts
from npusim.sim.steps import Step
from npusim.timeline import Span, UnitCounters
from npusim.work import Port

NEVER = -1

WAITED_FOR = ("dram", "dram", "exchange", "l2", "dram", "dram")
"""Names of the stalls on each link."""

PREEMPTED = "preempted"
"""Name of a stall: the job has been preempted, or is about to be."""


class Front(Protocol):
    """The source of commands, as the units see it."""

    blocked: Engine | None
    """The unit whose full queue blocks the stream."""

    def pump(self) -> None:
        """That queue has room again."""

    def layer_ended(self) -> None:
        """All commands that were dispatched have ended."""


class Progress(ABC):
    """The shared state of a running job.

    ``active``: number of events under way; at 0 the job is complete, or deadlocked.
    """

    engines: Sequence[Engine]
    sequencer: Front

    def __init__(self, machine: Parts, job: MachineJob, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.latency_ps = machine.fabric.latency_ps
        self.fetch_rate = machine.fabric.fetch_rate
        self.by_need = machine.config.interconnect.arbitration == "need"
        self.cycle_ps, self.layer_ps = machine.cycle_ps, machine.layer_ps
        self.by_layer = machine.config.compiler.one_by_one
        self.queue_depth = machine.config.queue_depth
        self.clock = machine.clock
        self.env = machine.clock.env
        self.link, self.ways, self.code_link = machine.link, machine.ways, machine.ways[Port.CODE]
        self.banks = [Banks(self.clock) for _ in range(machine.config.cores)]
        self.watchers, self.breaks = machine.step_watchers, machine.breaks
        self.adversary = machine.adversary
        self.started_ps = job.started_ps
        self.arithmetic = job.arithmetic
        self.order: list[Step] = []  # commands that have ended
        self.spans: list[Span] = []
        self.reads = self.writes = 0
        self.active = 0
        self.outstanding = 0  # number of dispatched commands that have not ended
        self.over = False
        self.holding = False  # no more commands start, because the job is to be preempted or is
        self.parked = False
        self.disturbed = False  # a fault has changed the timing

    @abstractmethod
    def execute(self, step: Step) -> bool:
        """Do the arithmetic of a command. False for a fault, which ends the job."""

    @abstractmethod
    def fail_transfer(self, unit: str, step: Step) -> None:
        """Report a bus error for a DMA command, whose destination is unchanged."""

    @abstractmethod
    def settle(self) -> None:
        """No events are under way any more: the job is complete or deadlocked."""


class Engine(EventOwner):
    """One unit during one job.

    Commands begin and end in order. A unit with look-ahead begins a command while it still executes older ones, at most
    ``depth`` together: the part of the command that may overlap (:class:`npusim.sim.steps.CommandCost`) passes at once,
    the rest in its turn.

    Its time is divided without gaps: ``mark`` is the time up to which all of it was counted as busy, idle (queue empty)
    or stalled: on ``dram``, ``l2``, the ``exchange`` between cores, on ``sram`` because of other units of the core, on
    another unit, or ``preempted``.
    """

    EVENTS = ("_arrived", "_asked", "_finish", "_flow")

    __slots__ = (
        "asking",
        "begin",
        "blocker",
        "busy_ps",
        "bytes",
        "completed",
        "depth",
        "flight",
        "held",
        "idle_ps",
        "job",
        "macs",
        "mark",
        "name",
        "queue",
        "stalls",
        "step",
        "wait_at",
        "waiters",
    )

    def __init__(self, job: Progress, name: str, depth: int) -> None:
        self.job = job
        self.name = name
        self.depth = depth
        self.queue: deque[tuple[int, Step]] = deque()
        self.step: Step | None = None  # the head of the queue, waiting
        # Started commands, with the time at which their overlapped part ends.
        self.flight: deque[tuple[Step, int]] = deque()
        self.asking = False  # the last command in flight does not allow another one to begin
        self.wait_at = self.completed = 0
        self.blocker: Engine | None = None
        self.waiters: list[tuple[int, Engine]] = []
        self.begin = NEVER  # start of the turn of the first command in flight
        self.held = False  # the head could start, but the job is to be preempted
        self.mark = job.started_ps
        self.busy_ps = self.idle_ps = self.macs = self.bytes = 0
        self.stalls: dict[str, int] = {}

    def offer(self, step: Step, at: int) -> None:
        """Add a command to the queue that is dispatched at time ``at`` (now or a few cycles from now)."""
        self.queue.append((at, step))
        self._take()

    def _take(self) -> None:
        """Take the next command, if there is one and the unit can begin it."""
        if self.step is not None or self.asking or len(self.flight) == self.depth or not self.queue:
            return
        job = self.job
        at, self.step = self.queue.popleft()
        # The queue has room now, and the sequencer sleeps until it is told.
        if job.sequencer.blocked is self:
            job.sequencer.pump()
        # Dispatch is computed ahead of time, so a command may be in the queue before its time.
        if at > job.env.now:
            job.active += 1
            Timeout(job.env, at - job.env.now).callbacks.append(self._arrived)
        else:
            self._admit()

    def _arrived(self, event: Event) -> None:
        job = self.job
        if job.over:
            return
        job.active -= 1
        self._admit()
        if not job.active:
            job.settle()

    def _admit(self) -> None:
        now = self.job.env.now
        if not self.flight:
            self.idle_ps += now - self.mark
            self.mark = now
        self.wait_at = 0
        self.proceed(now)

    def proceed(self, now: int) -> None:
        """Check the waits from the last failed one on; start the command if all hold."""
        step = self.step
        assert step is not None
        if step.waits:
            if self.blocker is not None:
                if not self.flight:
                    self.count(now)
                self.blocker = None
            waits, engines = step.waits, self.job.engines
            # Counts only grow, so a wait that has held once need not be checked again.
            while self.wait_at < len(waits):
                number, count = waits[self.wait_at]
                other = engines[number]
                if other.completed < count:
                    self.blocker = other
                    other.waiters.append((count, self))
                    return
                self.wait_at += 1
        self._start(step, now)

    def _start(self, step: Step, now: int) -> None:
        job = self.job
        if job.holding:
            self.held = True
            return
        job.active += 1
        self.step = None
        charge = step.charge
        self.flight.append((step, now + charge.ahead_ps))
        if self.depth > 1 and charge.front_ps:
            self.asking = True
            Timeout(job.env, charge.front_ps).callbacks.append(self._asked)
        if len(self.flight) == 1:
            self._turn(now)
        self._take()

    def _asked(self, event: Event) -> None:
        if not self.job.over:
            self.asking = False
            self._take()

    def _turn(self, now: int) -> None:
        """The turn of the first command in flight: first the rest of its overlapped part, then its own time."""
        job = self.job
        step, ready = self.flight[0]
        self.begin = now
        charge = step.charge
        left = max(0, ready - now) + charge.fixed_ps - charge.ahead_ps
        if charge.share:
            job.banks[step.core].start(left, charge.share, self._finish)
        else:
            Timeout(job.env, left).callbacks.append(self._flow if charge.bus_bytes else self._finish)

    def _flow(self, event: Event) -> None:
        job = self.job
        if job.over:
            return
        step, _ = self.flight[0]
        link = job.ways[step.charge.link]
        link.start(step.charge.bus_bytes, step.charge.rate, self._finish, step.rank if job.by_need else 0, step.core)

    def _finish(self, event: Event | None = None) -> None:
        job = self.job
        if job.over:
            return
        step, ready = self.flight[0]
        job.active -= 1
        # Data change at the end of the command, not at its start: a program with a missing wait reads old data, as on a
        # chip.
        if job.arithmetic and not job.execute(step):
            return
        job.order.append(step)
        now = job.env.now
        charge = step.charge
        due = max(0, ready - self.begin) + charge.alone_ps - charge.ahead_ps
        late = now - self.begin - due
        # The time beyond that of the command alone is a stall caused by others on the same memory.
        if late:
            memory = WAITED_FOR[charge.link] if charge.bus_bytes else "sram"
            self.stalls[memory] = self.stalls.get(memory, 0) + late
        self.busy_ps += due
        self.mark = now
        self.macs += charge.macs
        self.bytes += charge.bytes
        job.reads += charge.reads
        job.writes += charge.writes
        job.spans.append(step.span(self.name, self.begin - job.started_ps, now - job.started_ps))
        self._complete(now)
        if not job.active:
            job.settle()

    def _complete(self, now: int) -> None:
        job = self.job
        self.completed = completed = self.completed + 1
        self.begin = NEVER
        self.flight.popleft()
        job.outstanding -= 1
        if self.flight:
            self._turn(now)
        if self.waiters:
            # In the order in which they began to wait, which is a total order independent of addresses.
            ready = [engine for count, engine in self.waiters if count <= completed]
            if ready:
                self.waiters = [waiter for waiter in self.waiters if waiter[0] > completed]
                for engine in ready:
                    engine.proceed(now)
        self._take()
        if job.by_layer and not job.outstanding:
            job.sequencer.layer_ended()

    def release(self, now: int) -> None:
        """The job runs again: start the held command."""
        if self.held:
            self.held = False
            assert self.step is not None
            self._start(self.step, now)

    def count(self, now: int) -> None:
        """Count the time since ``mark`` by the current state of the unit."""
        elapsed = now - self.mark
        if self.held or self.job.parked:
            self.stalls[PREEMPTED] = self.stalls.get(PREEMPTED, 0) + elapsed
        elif self.begin != NEVER:
            self.busy_ps += elapsed
        elif self.blocker is not None:
            self.stalls[self.blocker.name] = self.stalls.get(self.blocker.name, 0) + elapsed
        else:
            self.idle_ps += elapsed
        self.mark = now

    def is_void(self, value: Any) -> bool:
        return self.job.over

    def close(self, now: int) -> UnitCounters:
        """The counters of the job, with the last state counted up to ``now``."""
        self.count(now)
        return UnitCounters(self.busy_ps, self.idle_ps, self.stalls, self.completed, self.macs, self.bytes)
