"""The jobs of a device: one ring for each class of priority, at most one job of each class begun and not ended.

The job of the highest class has the machine. When one of a higher class arrives, the one that runs is parked: it stops
at an instruction boundary and its context (SRAM and accumulators) goes to DRAM; it comes back when nothing above it is
left. A job that has not begun its first instruction simply goes back into its ring.

What software may write at any moment is taken over at one: a ring's TAIL when its doorbell rings, CONTEXT_BASE when
preemption is enabled. So neither can change between its check and its use.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from npusim.device.registers import BY_NAME, RINGS, RegisterFile
from npusim.device.ring import COMPLETION, ENTRY, REGION_ROW, Completion, JobFlag, JobStatus, RingEntry
from npusim.sim import job as machine_job
from npusim.sim.machine import Machine, Player
from npusim.sim.memory import AddressError
from npusim.sim.stepper import Stepper
from npusim.sim.steps import RefusedError
from npusim.timeline import Counters, Fault, FaultCode, Timeline
from npusim.units import cycles_spanned

_log = logging.getLogger("npusim.device")

_READY, _BUSY, _FAULT = (field.mask for field in BY_NAME["STATUS"].fields)
_INT_DONE, _INT_FAULT = (field.mask for field in BY_NAME["INT_STATUS"].fields)
_COUNT = 0xFFFF_FFFF
_DOWN = tuple(reversed(range(len(RINGS))))
_TIMING_ONLY, _WITHDRAWN = int(JobFlag.TIMING_ONLY), int(JobFlag.WITHDRAWN)
_HEADS = tuple(f"{name}_HEAD" for name in RINGS)
_TAILS = tuple(f"{name}_TAIL" for name in RINGS)


class Stage(enum.Enum):
    """Where a job is on its way."""

    FETCHING = "ring entry and region table are on the way"
    RUNNING = "has the machine"
    LEAVING = "comes to a stop, then its context is saved"
    PARKED = "waits with its context in DRAM"
    RETURNING = "its context is restored"
    ENDING = "its completion record is on the way"


@dataclass(slots=True, eq=False)
class Job(machine_job.Job):
    """A job that the device has taken from a ring. ``player``: what carries it through the machine, once it has begun
    there; ``context``: where it is parked."""

    ring: int = 0
    stage: Stage = Stage.FETCHING
    entry: RingEntry | None = None
    player: Player | None = None
    fault: Fault | None = None
    aborted: bool = False
    context: int = 0


class JobQueues:
    """Takes jobs from the rings, gives them the machine in the order of their class, reports how they ended.

    ``interrupt(bits)`` raises bits of INT_STATUS; ``ended(fence, timeline)`` is told of each job; the fence is None
    when the ring entry could not be read.
    """

    def __init__(
        self,
        machine: Machine,
        registers: RegisterFile,
        interrupt: Callable[[int], None],
        ended: Callable[[int | None, Timeline], None],
    ) -> None:
        self._machine = machine
        self._registers = registers
        self._values = registers.values
        self._interrupt = interrupt
        self._tell = ended
        self._begun: list[Job | None] = []
        self._epoch = 0
        self.reset()

    def reset(self) -> None:
        """Drop every job without a trace."""
        # Events cannot be taken back: those of before the reset see that their epoch is over.
        self._epoch += 1
        for job in self._begun:
            if job is not None and job.player is not None:
                self._machine.drop(job.player)
        self._machine.forget_residents()  # a driver that begins anew may give the same numbers to other programs
        self._tails = [0] * len(RINGS)  # as they were at the doorbells
        self._context_base = 0  # 0: jobs are not parked
        self._begun = [None] * len(RINGS)
        self._current: Job | None = None
        self._faulted: Job | None = None

    def doorbell(self, ring: int) -> None:
        """Take over the ring's TAIL. While the device stands still after a fault, what it says waits for go_on."""
        self._tails[ring] = self._values[_TAILS[ring]]
        self.consider()

    def preempt(self, context_base: int) -> None:
        """From here on jobs are parked at that DRAM address, where there is room for them; 0: they are not parked.

        One that is parked already comes back from where it was put.
        """
        self._context_base = context_base

    def go_on(self) -> None:
        """After a fault: be done with the job that it was in, or with all of a ring that makes no sense."""
        job, self._faulted = self._faulted, None
        if job is None:
            return
        head = _HEADS[job.ring]
        done = self._values[head] + 1 if job.entry else self._tails[job.ring]
        self._registers.set(head, done & _COUNT)
        self._registers.set("FAULT_CODE", 0)
        self._registers.set("FAULT_RING", 0)
        self._registers.set_pair("FAULT_ADDR", 0)
        self._show_status()
        self.consider()

    # Who has the machine

    def consider(self) -> None:
        """Give the machine to the job of the highest class."""
        # Software decides what becomes of the ring after a fault; until then the device stands still, as chips do.
        if self._faulted is not None:
            return
        job = self._current
        if job is None:
            self._take_next()
        elif job.stage is Stage.RUNNING and self._preempted(job):
            job.stage = Stage.LEAVING
            # Now, not when it has come to a stop: software may have changed its mind by then.
            job.context = self._context_base + job.ring * self._machine.context_bytes
            assert job.player is not None
            player = job.player = self._machine.step_by_step(job.player)
            if isinstance(player, Stepper):  # a job that is replayed is over before it could stop
                player.park(lambda: self._machine.save(player, job.context, partial(self._parked, job)))

    def _take_next(self) -> None:
        # A parked job of a higher class comes before waiting ones of lower classes, and behind waiting ones of higher.
        for ring in _DOWN:
            job = self._begun[ring]
            if job is None:
                if self._tails[ring] != self._values[_HEADS[ring]]:
                    self._take(ring)
                    return
            elif job.stage is Stage.PARKED:
                assert isinstance(job.player, Stepper)
                job.stage = Stage.RETURNING
                self._current = job
                self._machine.restore(job.player, job.context, partial(self._returned, job))
                return

    def _higher(self, job: Job) -> bool:
        """Whether a job of a higher class waits."""
        for ring in _DOWN[: -1 - job.ring]:
            if self._begun[ring] is None and self._tails[ring] != self._values[_HEADS[ring]]:
                return True
        return False

    def _preempted(self, job: Job) -> bool:
        return self._context_base != 0 and self._higher(job)

    def _parked(self, job: Job) -> None:
        job.stage = Stage.PARKED
        self._current = None
        self.consider()

    def _returned(self, job: Job) -> None:
        assert isinstance(job.player, Stepper)
        if self._preempted(job):  # its context in DRAM is as good as ever
            self._machine.leave(job.player)
            self._parked(job)
            return
        job.stage = Stage.RUNNING
        job.player.resume()

    # Beginning

    def _take(self, ring: int) -> None:
        """Begin with the next entry of a ring."""
        registers, name = self._registers, RINGS[ring]
        job = self._current = self._begun[ring] = Job(ring=ring, started_ps=self._machine.clock.now)
        self._show_status()
        size, head = self._values[f"{name}_SIZE"], self._values[_HEADS[ring]]
        waiting = self._tails[ring] - head & _COUNT  # this one among them
        if not size or size & (size - 1) or waiting > size:
            self._refuse(job, FaultCode.RING, 0, f"{waiting} entries wait in a ring of {size}")
            return
        address = registers.get_pair(f"{name}_BASE") + head % size * ENTRY.size
        self._fetch(job, address, ENTRY.size, lambda raw: self._begin(job, address, RingEntry(*ENTRY.unpack(raw))))

    def _fetch(self, job: Job, address: int, size: int, then: Callable[[bytes], None]) -> None:
        """Read a ring entry or a region table from DRAM, which takes time; a reset meanwhile makes it void.

        The bytes are those at the end of that time, so a mark that software sets meanwhile still counts.
        """

        def arrived() -> None:
            try:
                raw = self._machine.memory.slice(address, size).tobytes()
            except AddressError as error:
                if job.entry is None:
                    self._refuse(job, FaultCode.ADDRESS, error.address, f"ring entry: {error.explanation}")
                else:  # the entry has come, so it is known where the record and the text belong
                    fault = Fault(FaultCode.ADDRESS, error.address, f"region table: {error.explanation}")
                    self._ended(job, None if job.aborted else fault)
                return
            then(raw)

        self._after_access(size, arrived)

    def _after_access(self, size: int, then: Callable[[], None]) -> None:
        """``then()`` after the time of reading or writing control data in DRAM, unless there is a reset meanwhile."""
        epoch = self._epoch
        self._machine.clock.after(self._machine.control_ps(size), lambda _: then() if epoch == self._epoch else None)

    def _begin(self, job: Job, address: int, entry: RingEntry) -> None:
        job.entry = entry
        problem = entry.mistake
        if problem:
            self._refuse(job, FaultCode.RING, address, problem)
        elif entry.flags & _WITHDRAWN:
            job.aborted = True
            self._ended(job)
        else:
            size = entry.region_count * REGION_ROW.size
            self._fetch(job, entry.region_table, size, lambda raw: self._start(job, entry, raw))

    def _start(self, job: Job, entry: RingEntry, table: bytes) -> None:
        if job.aborted:
            self._ended(job)
            return
        if self._higher(job):
            # Nothing of it is on the machine yet: to give way costs nothing, with or without PREEMPT.
            self._begun[job.ring] = self._current = None
            self.consider()
            return
        if self._machine.injection.flips:
            for address, bit in self._machine.injection.flips:
                self._machine.memory.dram[address] ^= 1 << int(bit)
            self._machine.injection.flips.clear()
        job.code, job.code_bytes = entry.program_address, entry.program_bytes
        job.regions = tuple(REGION_ROW.iter_unpack(table))
        job.arithmetic, job.residents = not entry.flags & _TIMING_ONLY, entry.residents
        job.stage = Stage.RUNNING
        try:
            job.player = self._machine.start(job, lambda player: self._ended(job, player.fault))
        except RefusedError as error:
            self._ended(job, Fault(FaultCode.PROGRAM, entry.program_address + error.offset, error.explanation))
        except AddressError as error:
            self._ended(job, Fault(FaultCode.ADDRESS, error.address, error.explanation))
        except Exception as error:  # noqa: BLE001 - whatever software wrote must not come back to it as an exception
            _log.exception("starting a job")
            self._ended(job, Fault(FaultCode.INTERNAL, entry.program_address, f"{type(error).__name__}: {error}"))

    # Ending

    def abort(self, fence: int) -> None:
        """End the job of that fence now, in the midst of whatever it does; no effect before it has begun."""
        for job in self._begun:
            # A job whose record is on its way has ended, as far as the record says: one record for each job.
            if job is not None and job.entry and job.entry.fence == fence and job.stage is not Stage.ENDING:
                job.aborted = True
                if job.player is not None:  # else it ends when its region table has come
                    job.player = self._machine.step_by_step(job.player)
                    self._machine.drop(job.player)
                    self._ended(job)

    def _ended(self, job: Job, fault: Fault | None = None) -> None:
        """The job is over; its completion record is on its way to DRAM."""
        job.stage = Stage.ENDING
        job.fault = fault
        self._after_access(COMPLETION.size, lambda: self._report(job))

    def _report(self, job: Job) -> None:
        entry, fault = job.entry, job.fault
        assert entry is not None
        timeline = self._timeline(job)
        job.player = None  # the two know each other: what it has would wait until Python looks for circles
        status = JobStatus.FAULT if fault else JobStatus.ABORTED if job.aborted else JobStatus.DONE
        code, address = (fault.code, fault.address) if fault else (FaultCode.NONE, 0)
        if fault and entry.log_bytes:
            self._store(entry.log, fault.explanation.encode()[: entry.log_bytes - 1] + b"\0")
        # Registers and interrupt come after the record: whoever sees one of them must find it written.
        self._store(entry.completion, COMPLETION.pack(*Completion(entry.fence, status, code, address, timeline.cycles)))
        self._forget(job)
        self._tell(entry.fence, timeline)
        if fault:
            self._stop(job, fault)
            return
        registers, name = self._registers, RINGS[job.ring]
        registers.set(f"{name}_HEAD", self._values[f"{name}_HEAD"] + 1 & _COUNT)
        if not job.aborted:
            registers.set_pair("FENCE", entry.fence)
        self._show_status()
        self._interrupt(_INT_DONE)
        self.consider()

    def _forget(self, job: Job) -> None:
        self._begun[job.ring] = None
        if self._current is job:
            self._current = None

    def _timeline(self, job: Job) -> Timeline:
        now, clock_hz = self._machine.clock.now, self._machine.config.clock_hz
        if job.player is not None:
            timeline = job.player.timeline(now, clock_hz)
        else:
            spent = now - job.started_ps
            timeline = Timeline([], Counters(spent), cycles_spanned(spent, clock_hz), spent, job.started_ps)
            timeline.fault = job.fault
        timeline.aborted, timeline.residents_held = job.aborted, job.held
        return timeline

    def _refuse(self, job: Job, code: FaultCode, address: int, explanation: str) -> None:
        """A fault before there is an entry that can be believed: nobody knows where a record would belong."""
        job.fault = Fault(code, address, explanation)
        self._forget(job)
        self._tell(None, self._timeline(job))
        self._stop(job, job.fault)

    def _stop(self, job: Job, fault: Fault) -> None:
        _log.info("fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
        self._faulted = job
        self._registers.set("FAULT_CODE", fault.code)
        self._registers.set("FAULT_RING", 1 << job.ring)
        self._registers.set_pair("FAULT_ADDR", fault.address)
        self._show_status()
        self._interrupt(_INT_FAULT | _INT_DONE)

    def _show_status(self) -> None:
        self._registers.set("STATUS", _FAULT if self._faulted else _READY | (_BUSY if any(self._begun) else 0))

    def _store(self, address: int, data: bytes) -> None:
        try:
            self._machine.memory.store(address, data)
        except AddressError as fault:
            _log.warning("write: %s", fault.explanation)
