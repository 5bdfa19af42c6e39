"""The front of the machine: fetches the instruction stream from DRAM and hands commands to the units, in order.

Fetching: a buffer of two halves of FETCH_BYTES. The stream flows in over the link to DRAM, sharing it with the DMA
engines, as long as a half is free; the latency is paid at the start and after each time that both halves were full.

Dispatch: one command in a cycle, into the queue of its unit, and ``layer_cycles`` more where the stream turns to
another layer; a full queue holds the stream up. Dispatch times are computed, not simulated: an idle unit gets a command
with the time at which it arrives.

Parking: a job that has to leave dispatches nothing more, but what is on its way to a queue arrives there. Queues, fetch
buffer and completion counts exist once for each priority, so they stay where they are.
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
"""Code comes before all data: nothing goes on without it."""

FETCH = "fetch"
"""What it is stalled on while the stream is on its way."""


class Sequencer(EventOwner):
    """The sequencer during one job. Its counters: busy = dispatching, stalled on ``fetch`` or on a full queue."""

    EVENTS = ("_fetched", "_halting", "_stream")

    __slots__ = (
        "blocked", "busy_ps", "dispatched", "fetched", "fetching", "halted", "idle_ps", "job", "last", "op", "reason",
        "requested", "stalls", "total",
    )  # fmt: skip

    def __init__(self, job: Progress) -> None:
        self.job = job
        self.blocked: Engine | None = None
        self.dispatched = self.fetched = self.requested = 0  # commands, bytes, bytes
        self.fetching = self.halted = False
        self.last = job.started_ps  # the time of the last dispatch
        self.op = NO_OP  # of the last command
        self.reason = FETCH
        self.total = job.steps[-1].end
        self.busy_ps = self.idle_ps = 0
        self.stalls: dict[str, int] = {}

    def begin(self) -> None:
        """Start fetching, now."""
        self._request(0)

    def resume(self) -> None:
        """Go on where the job was parked."""
        if self.halted:
            return
        self.pump()
        if self._room():
            self._request(0)

    def _request(self, delay: int) -> None:
        """Ask for the next half, ``delay`` ps from now, if it is there to ask for and the fetcher stands still."""
        job = self.job
        if not self.fetching and self.requested < self.total:
            self.fetching = True
            job.active += 1
            job.clock.after(delay + job.latency_ps, self._stream)

    def _stream(self, event: Event | None = None) -> None:
        job = self.job
        if job.over:
            return
        # In halves: while one is dispatched the other is filled, which hides the latency of all but the first.
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
        """Whether a half is free: what has been asked for and not been dispatched fills no more than the other one."""
        steps, at = self.job.steps, self.dispatched
        used = steps[at - 1].end if at else 0
        return self.requested < self.total and self.requested - used // FETCH_BYTES * FETCH_BYTES <= FETCH_BYTES

    def pump(self) -> None:
        """Dispatch until the stream runs dry, a queue is full, or the job halts."""
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
            # Whoever prepares a layer - writes its registers, reads its descriptor - does so once, in front of it.
            takes = cycle + job.layer_ps if step.engine != HALT and step.op != self.op else cycle
            at = self.last + takes
            # Time computed runs behind time simulated only where something held the stream up: that is the stall.
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
        """The counters of the job up to ``now``."""
        if now < self.last:  # a job that failed: commands were on their way to their queues
            self.busy_ps += now - self.last
        else:
            self.count(now)
        return UnitCounters(self.busy_ps, self.idle_ps, self.stalls, int(self.halted), 0, self.fetched)

    def count(self, now: int) -> None:
        """Put the time since the last dispatch under what held the next one up."""
        elapsed = now - self.last
        if self.halted and not self.job.parked:
            self.idle_ps += elapsed
        elif elapsed:
            reason = PREEMPTED if self.job.parked else self.reason
            self.stalls[reason] = self.stalls.get(reason, 0) + elapsed
        self.last = now
