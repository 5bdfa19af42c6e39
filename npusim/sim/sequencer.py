"""The front end of the machine: fetches the instruction stream from DRAM and dispatches commands to the units in order.

Fetch: a buffer of two halves of FETCH_BYTES. The stream uses the link to DRAM, shared with the DMA engines, while a
half is free. The latency is added at the start and each time both halves were full.

Dispatch: one command per cycle into the queue of its unit, plus ``compiler.layer_cycles`` when the stream switches to
another layer. With ``compiler.layer_by_layer``, the stream also waits there until all units are idle, and then for
``compiler.layer_time``. A full queue blocks the stream. Dispatch times are computed, not simulated: an idle unit gets a
command together with its arrival time.

Preemption: a preempted job dispatches nothing more, but commands on their way to a queue arrive. Queues, fetch buffer
and completion counts exist once per priority, so they keep their contents.
"""

from __future__ import annotations

from typing import Any

from simpy.events import Event

from npusim.hw.units.dma import FETCH_BYTES
from npusim.sim.engine import PREEMPTED, Engine, Progress
from npusim.sim.owner import EventOwner
from npusim.sim.steps import HALT
from npusim.timeline import NO_OP, UnitCounters

CODE_RANK = -1
"""Code comes before all data, because nothing continues without it."""

FETCH = "fetch"
"""Name of the stall while the stream is being fetched."""

LAYER = "layer"
"""Name of the stall until the units have completed the previous layer."""


class Sequencer(EventOwner):
    """The sequencer during one job. Its counters: busy = dispatching, stalled on ``fetch`` or on a full queue."""

    EVENTS = ("_fetched", "_halting", "_stream")

    __slots__ = (
        "blocked",
        "busy_ps",
        "dispatched",
        "fetched",
        "fetching",
        "halted",
        "idle_ps",
        "job",
        "last",
        "op",
        "reason",
        "requested",
        "stalls",
        "total",
    )

    def __init__(self, job: Progress) -> None:
        self.job = job
        self.blocked: Engine | None = None
        self.dispatched = self.fetched = self.requested = 0  # commands, bytes, bytes
        self.fetching = self.halted = False
        self.last = job.started_ps  # time of the last dispatch
        self.op = NO_OP  # operator of the last command
        self.reason = FETCH
        self.total = job.steps[-1].end
        self.busy_ps = self.idle_ps = 0
        self.stalls: dict[str, int] = {}

    def begin(self) -> None:
        """Start to fetch now."""
        self._request(0)

    def resume(self) -> None:
        """Continue after a preemption."""
        if self.halted:
            return
        self.pump()
        if self._room():
            self._request(0)

    def _request(self, delay: int) -> None:
        """Request the next half in ``delay`` ps, if there is one and the fetcher is idle."""
        job = self.job
        if not self.fetching and self.requested < self.total:
            self.fetching = True
            job.active += 1
            job.clock.after(delay + job.latency_ps, self._stream)

    def _stream(self, event: Event | None = None) -> None:
        job = self.job
        if job.over:
            return
        # By halves: one is filled while the other is dispatched, which hides all latencies but the first.
        size = min(FETCH_BYTES, self.total - self.requested)
        self.requested += size
        job.code_link.start(size, job.fetch_rate, self._fetched, CODE_RANK if job.by_need else 0)

    def _fetched(self) -> None:
        job = self.job
        if job.over:
            return
        job.reads += self.requested - self.fetched
        self.fetched = self.requested
        self.fetching = False
        job.active -= 1
        if self.blocked is None:
            self.pump()
        if not job.holding and not self.fetching and self._room():
            self.fetching = True
            job.active += 1
            self._stream()
        if not job.active:
            job.settle()

    def _room(self) -> bool:
        """Whether a half is free: the bytes requested and not dispatched fill at most the other one."""
        steps, at = self.job.steps, self.dispatched
        used = steps[at - 1].end if at else 0
        return self.requested < self.total and self.requested - used // FETCH_BYTES * FETCH_BYTES <= FETCH_BYTES

    def pump(self) -> None:
        """Dispatch until the stream is empty, a queue is full, or the job halts."""
        job = self.job
        if job.holding:
            return
        steps, engines, depth, cycle = job.steps, job.engines, job.queue_depth, job.cycle_ps
        now = job.env.now
        self.blocked = None
        while True:
            step = steps[self.dispatched]
            if step.end > self.fetched:
                self.reason = FETCH
                return
            if step.engine != HALT and len(engines[step.engine].queue) >= depth:
                self.blocked = engines[step.engine]
                self.reason = self.blocked.name
                return
            takes = cycle
            # A layer is prepared once, before its first command: registers are written, its descriptor is read.
            if step.engine != HALT and step.op != self.op:
                if job.by_layer:
                    self.reason = LAYER
                    if job.outstanding:
                        return
                    if self.last < now:
                        self.stalls[LAYER] = self.stalls.get(LAYER, 0) + now - self.last
                        self.last = now
                takes += job.layer_ps
            at = self.last + takes
            # The computed time is only behind the simulated time after a block of the stream: this is the stall.
            if at < now:
                self.stalls[self.reason] = self.stalls.get(self.reason, 0) + now - at
                at = now
            self.busy_ps += takes
            self.op = step.op
            self.last = at
            self.dispatched += 1
            if step.engine == HALT:
                job.active += 1
                job.clock.after(at - now, self._halting)
                return
            job.outstanding += 1
            engines[step.engine].offer(step, at)
            if self.requested < self.total and not self.fetching and self._room():
                self._request(at - now)

    def layer_ended(self) -> None:
        """Continue with the next layer, if the stream has one."""
        if self.dispatched < len(self.job.steps):
            self.pump()

    def _halting(self, event: Event) -> None:
        job = self.job
        if job.over:
            return
        job.active -= 1
        self.halted = True
        if not job.active:
            job.settle()

    def is_void(self, value: Any) -> bool:
        return self.job.over

    def close(self, now: int) -> UnitCounters:
        """The counters of the job, up to ``now``."""
        if now < self.last:  # a failed job: commands were on their way to their queues
            self.busy_ps += now - self.last
        else:
            self.count(now)
        return UnitCounters(self.busy_ps, self.idle_ps, self.stalls, int(self.halted), 0, self.fetched)

    def count(self, now: int) -> None:
        """Count the time since the last dispatch by what delayed the next one."""
        elapsed = now - self.last
        if self.halted and not self.job.parked:
            self.idle_ps += elapsed
        elif elapsed:
            reason = PREEMPTED if self.job.parked else self.reason
            self.stalls[reason] = self.stalls.get(reason, 0) + elapsed
        self.last = now
