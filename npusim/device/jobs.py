"""The job queues of a device: one ring per priority, with at most one started job each.

The job of the highest priority runs. When a job of a higher priority arrives, the running job is preempted: it stops at
an instruction boundary and its context (SRAM and accumulators) is saved in DRAM. It resumes when no job of a higher
priority is left. A job that has not started its first instruction returns to its ring instead.

Values that software may change at any time are latched: TAIL of a ring at its doorbell, CONTEXT_BASE when preemption is
enabled. So they cannot change between check and use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from npusim.device.interrupts import DONE, FAULT, FROM_FAULT
from npusim.device.job import DeviceJob, JobStage, job_of
from npusim.device.port import ControlPort, HostError, fault_of
from npusim.device.registers import BY_NAME, RINGS, RegisterFile
from npusim.device.ring import COMPLETION, ENTRY, HOST, REGION_ROW, Completion, JobFlag, JobStatus, RingEntry
from npusim.sim.adversary import Adversary
from npusim.sim.clock import Event
from npusim.sim.machine import Machine, Player
from npusim.sim.memory import AddressError
from npusim.sim.stepper import Stepper
from npusim.sim.steps import InvalidProgramError
from npusim.sim.watch import Watcher
from npusim.timeline import Counters, DeviceFault, FaultCode, Timeline
from npusim.units import cycles_spanned

_log = logging.getLogger("npusim.device")

_READY, _BUSY, _FAULT, _FIRMWARE, _COPY_FAULT = (field.mask for field in BY_NAME["STATUS"].fields)
_OF_OTHERS = _FIRMWARE | _COPY_FAULT
_COUNT = 0xFFFF_FFFF
_DOWN = tuple(reversed(range(len(RINGS))))
_TIMING_ONLY, _CANCELLED = int(JobFlag.TIMING_ONLY), int(JobFlag.CANCELLED)
_HEADS = tuple(f"{name}_HEAD" for name in RINGS)
_TAILS = tuple(f"{name}_TAIL" for name in RINGS)


class JobQueues:
    """Takes jobs from the rings, runs them in the order of their priority, and reports how they ended.

    ``interrupt(bits, *sources)`` raises bits of INT_STATUS. ``ended(seqno, timeline)`` is called for each job; the
    seqno is None if the ring entry could not be read.
    """

    def __init__(
        self,
        machine: Machine,
        registers: RegisterFile,
        port: ControlPort,
        interrupt: Callable[..., None],
        ended: Callable[[int | None, Timeline], None],
    ) -> None:
        self._machine = machine
        self._registers = registers
        self._values = registers.values
        self._port = port
        self._load, self._control_ps = port.load, machine.control_ps
        self._interrupt = interrupt
        self._tell = ended
        self._begun: list[DeviceJob | None] = []
        self._epoch = 0
        self.reset()

    def reset(self) -> None:
        """Drop every job without a report."""
        # Pending events cannot be removed. Their callbacks compare the epoch and do nothing after a reset.
        self._epoch += 1
        for job in self._begun:
            if job is not None and job.player is not None:
                self._machine.drop(job.player)
        self._machine.forget_residents()  # a driver may use the same numbers for other programs after a reset
        self._tails = [0] * len(RINGS)  # as latched at the doorbells
        self._context_base = 0  # 0: no preemption
        self._begun = [None] * len(RINGS)
        self._current: DeviceJob | None = None
        self._faulted: DeviceJob | None = None

    def doorbell(self, ring: int) -> None:
        """Latch TAIL of a ring. While the device is halted after a fault, the new entries wait for go_on."""
        self._tails[ring] = self._values[_TAILS[ring]]
        if self._machine.adversary is not None:
            self._consider_late(self._machine.adversary)
        else:
            self.consider()

    def preempt(self, context_base: int) -> None:
        """Save contexts of preempted jobs at this DRAM address, if there is room for them. 0: no preemption.

        A job that is parked already is restored from its old address.
        """
        self._context_base = context_base

    def watch(self, watcher: Watcher) -> None:
        """Call a watcher for all events from now on, including those of jobs under way."""
        self._machine.watchers.append(watcher)
        if not watcher.steps:
            return
        self.step_by_step()  # first, because a fast-forwarded job no longer produces events
        for job in self._begun:
            if job is not None and isinstance(job.player, Stepper):
                job.player.tell()
        self._machine.step_watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Remove a watcher. Raises ValueError if it is not registered."""
        self._machine.watchers.remove(watcher)
        if watcher.steps:
            self._machine.step_watchers.remove(watcher)

    def step_by_step(self) -> None:
        """Continue the jobs under way event by event, so that their state can be inspected."""
        for job in self._begun:
            if job is not None and job.player is not None:
                job.player = self._machine.step_by_step(job.player)

    @property
    def begun(self) -> tuple[DeviceJob | None, ...]:
        """The jobs that have been taken from their rings and are not finished, by ring."""
        return tuple(self._begun)

    def go_on(self) -> None:
        """Continue after a fault: drop the job with the fault, or all entries of a ring that is invalid."""
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

    def _consider_late(self, adversary: Adversary) -> None:
        """Call consider after the delay that the adversary chooses."""
        self._machine.clock.after(adversary.doorbell_ps(), self._held_up, self._epoch)

    def _held_up(self, event: Event) -> None:
        if event.value == self._epoch:
            self.consider()

    def consider(self) -> None:
        """Run the job of the highest priority."""
        # Software decides how to continue after a fault. Until then the device is halted.
        if self._faulted is not None:
            return
        job = self._current
        if job is None:
            self._take_next()
        elif job.stage is JobStage.RUNNING and self._preempted(job):
            job.stage = JobStage.LEAVING
            # Fix the address now, because software may change CONTEXT_BASE before the job has stopped.
            job.context = self._context_base + job.ring * self._machine.context_bytes
            assert job.player is not None
            player = job.player = self._machine.step_by_step(job.player)
            if isinstance(player, Stepper):  # a replayed job ends before it could be stopped
                player.park(self._stopped)

    def _take_next(self) -> None:
        # Order: waiting jobs of higher priority, then a parked job, then waiting jobs of lower priority.
        for ring in _DOWN:
            job = self._begun[ring]
            if job is None:
                if self._tails[ring] != self._values[_HEADS[ring]]:
                    self._take(ring)
                    return
            elif job.stage is JobStage.PARKED:
                assert isinstance(job.player, Stepper)
                job.stage = JobStage.RETURNING
                self._current = job
                self._machine.restore(job.player, job.context, self._returned)
                return

    def _higher(self, job: DeviceJob) -> bool:
        """Whether a job of a higher priority waits."""
        for ring in _DOWN[: -1 - job.ring]:
            if self._begun[ring] is None and self._tails[ring] != self._values[_HEADS[ring]]:
                return True
        return False

    def _preempted(self, job: DeviceJob) -> bool:
        return self._context_base != 0 and self._higher(job)

    def _stopped(self, player: Stepper) -> None:
        self._machine.save(player, job_of(player).context, self._parked)

    def _parked(self, player: Player) -> None:
        job_of(player).stage = JobStage.PARKED
        self._current = None
        self.consider()

    def _returned(self, player: Player) -> None:
        job = job_of(player)
        assert isinstance(job.player, Stepper)
        if self._preempted(job):  # its saved context in DRAM is still valid
            self._machine.leave(player)
            self._parked(player)
            return
        job.stage = JobStage.RUNNING
        job.player.resume()

    # Beginning

    def _take(self, ring: int) -> None:
        """Take the next entry of a ring."""
        registers, name = self._registers, RINGS[ring]
        job = self._current = self._begun[ring] = DeviceJob(ring=ring, started_ps=self._machine.clock.now)
        self._show_status()
        size, head = self._values[f"{name}_SIZE"], self._values[_HEADS[ring]]
        waiting = self._tails[ring] - head & _COUNT  # including this one
        if not size or size & (size - 1) or waiting > size:
            self._refuse(job, DeviceFault(FaultCode.RING, 0, f"{waiting} entries wait in a ring of {size}"))
            return
        address = registers.get_pair(f"{name}_BASE") + head % size * ENTRY.size
        self._read(job, address, ENTRY.size, self._entry_came)

    def _read(self, job: DeviceJob, address: int, size: int, then: Callable[[Event], None]) -> None:
        """Read control data, which takes time. ``then`` is called with an event for :meth:`_accessed`.

        The bytes are read at the end of that time, so a flag that software sets meanwhile is seen.
        """
        delay = self._control_ps(size) if address < HOST else self._port.read_ps(address, size)
        if self._machine.adversary is not None:
            delay += self._machine.adversary.control_ps()
        self._machine.clock.after(delay, then, (self._epoch, job, address, size))

    def _accessed(self, event: Event) -> tuple[DeviceJob, int, int] | None:
        """(job, address, size) of a finished access; None if a reset has made it void."""
        value: Any = event.value
        epoch, job, address, size = value
        return (job, address, size) if epoch == self._epoch else None

    def _entry_came(self, event: Event) -> None:
        if (access := self._accessed(event)) is None:
            return
        job, address, size = access
        try:
            raw = self._load(address, size)
        except AddressError as error:
            self._refuse(job, fault_of(error, "ring entry"))
            return
        entry = job.entry = RingEntry(*ENTRY.unpack(raw))
        place, size = entry.completion, COMPLETION.size
        job.tail_ps = self._control_ps(size) if place < HOST else self._port.write_ps(place, size)
        problem = entry.mistake
        if problem:
            self._refuse(job, DeviceFault(FaultCode.RING, address, problem))
        elif entry.flags & _CANCELLED:
            job.aborted = True
            self._ended(job)
        else:
            self._read(job, entry.region_table, entry.region_count * REGION_ROW.size, self._table_came)

    def _table_came(self, event: Event) -> None:
        if (access := self._accessed(event)) is None:
            return
        job, address, size = access
        assert job.entry is not None
        try:
            raw = self._load(address, size)
        except AddressError as error:  # the entry is valid, so the addresses of record and fault log are known
            self._ended(job, None if job.aborted else fault_of(error, "region table"))
            return
        job.regions = tuple(REGION_ROW.iter_unpack(raw))
        self._start(job, job.entry, loaded=False)

    def _code_came(self, event: Event) -> None:
        """The instructions needed to start a job have arrived. ``event``: the event of its region table."""
        if (access := self._accessed(event)) is None:
            return
        job, _, _ = access
        assert job.entry is not None
        self._start(job, job.entry, loaded=True)

    def _start(self, job: DeviceJob, entry: RingEntry, *, loaded: bool) -> None:
        if job.aborted:
            self._ended(job)
            return
        if self._higher(job):
            # The job has not started, so it can be replaced at no cost, also without PREEMPT.
            self._begun[job.ring] = self._current = None
            self.consider()
            return
        job.code, job.code_bytes = entry.program_address, entry.program_bytes
        job.arithmetic, job.residents = not entry.flags & _TIMING_ONLY, entry.residents
        try:
            if not loaded and (delay := self._machine.loading_ps(job)):
                access = entry.region_table, entry.region_count * REGION_ROW.size
                self._machine.clock.after(delay, self._code_came, (self._epoch, job, *access))
                return
            job.stage = JobStage.RUNNING
            job.player = self._machine.start(job, self.played)
        except InvalidProgramError as error:
            self._ended(job, DeviceFault(FaultCode.PROGRAM, entry.program_address + error.offset, error.explanation))
        except AddressError as error:
            self._ended(job, DeviceFault(FaultCode.ADDRESS, error.address, error.explanation))
        except Exception as error:  # noqa: BLE001 - whatever software wrote must not come back to it as an exception
            _log.exception("starting a job")
            self._ended(job, DeviceFault(FaultCode.INTERNAL, entry.program_address, f"{type(error).__name__}: {error}"))

    # Ending

    def abort(self, seqno: int) -> None:
        """Abort the job with that seqno at once. No effect on jobs that have not begun."""
        for job in self._begun:
            # A job whose record is being written counts as ended, so that each job has one record.
            if job is not None and job.entry and job.entry.seqno == seqno and job.stage is not JobStage.ENDING:
                job.aborted = True
                if job.player is not None:  # otherwise it ends when its region table has been read
                    job.player = self._machine.step_by_step(job.player)
                    self._machine.drop(job.player)
                    self._ended(job)

    def _ended(self, job: DeviceJob, fault: DeviceFault | None = None) -> None:
        """End a job and start to write its completion record."""
        job.stage = JobStage.ENDING
        job.fault = fault
        assert job.entry is not None
        delay = job.tail_ps
        if self._machine.adversary is not None:
            delay += self._machine.adversary.control_ps()
        access = job.entry.completion, COMPLETION.size
        self._machine.clock.after(delay, self._record_went, (self._epoch, job, *access))

    def played(self, player: Player) -> None:
        """Handle the end of a job on the machine."""
        self._ended(job_of(player), player.fault)

    def _record_went(self, event: Event) -> None:
        if (access := self._accessed(event)) is None:
            return
        job, _, _ = access
        entry, fault = job.entry, job.fault
        assert entry is not None
        timeline = self._timeline(job)
        job.player = None  # break the reference cycle, so that memory is released without the garbage collector
        status = JobStatus.FAULT if fault else JobStatus.ABORTED if job.aborted else JobStatus.DONE
        code, address = (fault.code, fault.address) if fault else (FaultCode.NONE, 0)
        if fault and entry.log_bytes:
            self._store(entry.log, fault.explanation.encode()[: entry.log_bytes - 1] + b"\0")
        # Set registers and raise the interrupt after the record is written, so that software that sees them finds the
        # record.
        record = COMPLETION.pack(*Completion(entry.seqno, status, code, address, timeline.cycles))
        unwritten = self._store(entry.completion, record)
        if unwritten and not fault:  # the record could not be written, so only the registers can report the fault
            fault = timeline.fault = job.fault = unwritten
        self._forget(job)
        self._tell_end(job, entry.seqno, timeline)
        if fault:
            self._stop(job, fault)
            return
        registers, name = self._registers, RINGS[job.ring]
        registers.set(f"{name}_HEAD", self._values[f"{name}_HEAD"] + 1 & _COUNT)
        if not job.aborted:
            registers.set_pair("SEQNO", entry.seqno)
        self._show_status()
        self._interrupt(DONE, job.ring)
        if self._machine.adversary is not None:
            self._consider_late(self._machine.adversary)
        else:
            self.consider()

    def _tell_end(self, job: DeviceJob, seqno: int | None, timeline: Timeline) -> None:
        for watcher in self._machine.watchers[:]:
            watcher.job_ends(job, timeline)
        self._tell(seqno, timeline)

    def _forget(self, job: DeviceJob) -> None:
        self._begun[job.ring] = None
        if self._current is job:
            self._current = None

    def _timeline(self, job: DeviceJob) -> Timeline:
        now, clock_hz = self._machine.clock.now, self._machine.config.clock_hz
        if job.player is not None:
            timeline = job.player.timeline(now, clock_hz)
        else:
            spent = now - job.started_ps
            timeline = Timeline([], Counters(spent), cycles_spanned(spent, clock_hz), spent, job.started_ps)
            timeline.fault = job.fault
        timeline.aborted, timeline.residents_held = job.aborted, job.held
        return timeline

    def _refuse(self, job: DeviceJob, fault: DeviceFault) -> None:
        """Handle a fault without a valid entry, so that there is no address for a record."""
        job.fault = fault
        self._forget(job)
        self._tell_end(job, None, self._timeline(job))
        self._stop(job, fault)

    def _stop(self, job: DeviceJob, fault: DeviceFault) -> None:
        _log.info("fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
        self._faulted = job
        self._registers.set("FAULT_CODE", fault.code)
        self._registers.set("FAULT_RING", 1 << job.ring)
        self._registers.set_pair("FAULT_ADDR", fault.address)
        self._show_status()
        self._interrupt(FAULT | DONE, FROM_FAULT, job.ring)

    def _show_status(self) -> None:
        own = _FAULT if self._faulted else _READY | (_BUSY if any(self._begun) else 0)
        self._registers.set("STATUS", own | self._values["STATUS"] & _OF_OTHERS)

    def _store(self, address: int, data: bytes) -> DeviceFault | None:
        """Write data for software. Returns a fault if it is in host memory that cannot be accessed."""
        try:
            self._port.store(address, data)
        except AddressError as error:
            _log.warning("write: %s", error.explanation)
            return fault_of(error, "completion record") if isinstance(error, HostError) else None
        return None
