"""The jobs of a device: one ring for each class of priority, at most one job of each class begun and not ended.

The job of the highest class has the machine. When one of a higher class arrives, the one that runs is parked: it stops
at an instruction boundary and its context (SRAM and accumulators) goes to DRAM; it comes back when nothing above it is
left. A job that has not begun its first instruction simply goes back into its ring.

What software may write at any moment is taken over at one: a ring's TAIL when its doorbell rings, CONTEXT_BASE when
preemption is enabled. So neither can change between its check and its use.
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
_TIMING_ONLY, _WITHDRAWN = int(JobFlag.TIMING_ONLY), int(JobFlag.WITHDRAWN)
_HEADS = tuple(f"{name}_HEAD" for name in RINGS)
_TAILS = tuple(f"{name}_TAIL" for name in RINGS)


class JobQueues:
    """Takes jobs from the rings, gives them the machine in the order of their class, reports how they ended.

    ``interrupt(bits, *sources)`` raises bits of INT_STATUS; ``ended(seqno, timeline)`` is told of each job; the seqno
    is None when the ring entry could not be read.
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
        self._current: DeviceJob | None = None
        self._faulted: DeviceJob | None = None

    def doorbell(self, ring: int) -> None:
        """Take over the ring's TAIL. While the device stands still after a fault, what it says waits for go_on."""
        self._tails[ring] = self._values[_TAILS[ring]]
        if self._machine.adversary is not None:
            self._consider_late(self._machine.adversary)
        else:
            self.consider()

    def preempt(self, context_base: int) -> None:
        """From here on jobs are parked at that DRAM address, where there is room for them; 0: they are not parked.

        One that is parked already comes back from where it was put.
        """
        self._context_base = context_base

    def watch(self, watcher: Watcher) -> None:
        """Tell it what happens from here on, of jobs under way, too."""
        self._machine.watchers.append(watcher)
        if not watcher.steps:
            return
        self.step_by_step()  # first: what a job has done already nobody is told
        for job in self._begun:
            if job is not None and isinstance(job.player, Stepper):
                job.player.tell()
        self._machine.step_watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it nothing more. Raises ValueError for one that does not watch."""
        self._machine.watchers.remove(watcher)
        if watcher.steps:
            self._machine.step_watchers.remove(watcher)

    def step_by_step(self) -> None:
        """From here on the jobs under way go by steps, where one can look at them."""
        for job in self._begun:
            if job is not None and job.player is not None:
                job.player = self._machine.step_by_step(job.player)

    @property
    def begun(self) -> tuple[DeviceJob | None, ...]:
        """The job of each class that has been taken from its ring and has not left it."""
        return tuple(self._begun)

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

    def _consider_late(self, adversary: Adversary) -> None:
        """As long after now as somebody holds the device up."""
        self._machine.clock.after(adversary.doorbell_ps(), self._held_up, self._epoch)

    def _held_up(self, event: Event) -> None:
        if event.value == self._epoch:
            self.consider()

    def consider(self) -> None:
        """Give the machine to the job of the highest class."""
        # Software decides what becomes of the ring after a fault; until then the device stands still, as chips do.
        if self._faulted is not None:
            return
        job = self._current
        if job is None:
            self._take_next()
        elif job.stage is JobStage.RUNNING and self._preempted(job):
            job.stage = JobStage.LEAVING
            # Now, not when it has come to a stop: software may have changed its mind by then.
            job.context = self._context_base + job.ring * self._machine.context_bytes
            assert job.player is not None
            player = job.player = self._machine.step_by_step(job.player)
            if isinstance(player, Stepper):  # a job that is replayed is over before it could stop
                player.park(self._stopped)

    def _take_next(self) -> None:
        # A parked job of a higher class comes before waiting ones of lower classes, and behind waiting ones of higher.
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
        """Whether a job of a higher class waits."""
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
        if self._preempted(job):  # its context in DRAM is as good as ever
            self._machine.leave(player)
            self._parked(player)
            return
        job.stage = JobStage.RUNNING
        job.player.resume()

    # Beginning

    def _take(self, ring: int) -> None:
        """Begin with the next entry of a ring."""
        registers, name = self._registers, RINGS[ring]
        job = self._current = self._begun[ring] = DeviceJob(ring=ring, started_ps=self._machine.clock.now)
        self._show_status()
        size, head = self._values[f"{name}_SIZE"], self._values[_HEADS[ring]]
        waiting = self._tails[ring] - head & _COUNT  # this one among them
        if not size or size & (size - 1) or waiting > size:
            self._refuse(job, DeviceFault(FaultCode.RING, 0, f"{waiting} entries wait in a ring of {size}"))
            return
        address = registers.get_pair(f"{name}_BASE") + head % size * ENTRY.size
        self._read(job, address, ENTRY.size, self._entry_came)

    def _read(self, job: DeviceJob, address: int, size: int, then: Callable[[Event], None]) -> None:
        """Read control data, which takes time; ``then`` gets what :meth:`_accessed` understands.

        The bytes are those at the end of that time, so a mark that software sets meanwhile still counts.
        """
        delay = self._control_ps(size) if address < HOST else self._port.read_ps(address, size)
        if self._machine.adversary is not None:
            delay += self._machine.adversary.control_ps()
        self._machine.clock.after(delay, then, (self._epoch, job, address, size))

    def _accessed(self, event: Event) -> tuple[DeviceJob, int, int] | None:
        """Whose access it was, address and size; None after a reset, which makes it void."""
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
        elif entry.flags & _WITHDRAWN:
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
        except AddressError as error:  # it is known where the record and the text belong
            self._ended(job, None if job.aborted else fault_of(error, "region table"))
            return
        job.regions = tuple(REGION_ROW.iter_unpack(raw))
        self._start(job, job.entry, loaded=False)

    def _code_came(self, event: Event) -> None:
        """What a job needs of instructions is there; ``event``: the one of its region table, again."""
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
            # Nothing of it is on the machine yet: to give way costs nothing, with or without PREEMPT.
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
        """End the job with that seqno now, in the midst of whatever it does; no effect before it has begun."""
        for job in self._begun:
            # A job whose record is on its way has ended, as far as the record says: one record for each job.
            if job is not None and job.entry and job.entry.seqno == seqno and job.stage is not JobStage.ENDING:
                job.aborted = True
                if job.player is not None:  # else it ends when its region table has come
                    job.player = self._machine.step_by_step(job.player)
                    self._machine.drop(job.player)
                    self._ended(job)

    def _ended(self, job: DeviceJob, fault: DeviceFault | None = None) -> None:
        """The job is over; its completion record is on its way."""
        job.stage = JobStage.ENDING
        job.fault = fault
        assert job.entry is not None
        delay = job.tail_ps
        if self._machine.adversary is not None:
            delay += self._machine.adversary.control_ps()
        access = job.entry.completion, COMPLETION.size
        self._machine.clock.after(delay, self._record_went, (self._epoch, job, *access))

    def played(self, player: Player) -> None:
        """A job has ended on the machine."""
        self._ended(job_of(player), player.fault)

    def _record_went(self, event: Event) -> None:
        if (access := self._accessed(event)) is None:
            return
        job, _, _ = access
        entry, fault = job.entry, job.fault
        assert entry is not None
        timeline = self._timeline(job)
        job.player = None  # the two know each other: what it has would wait until Python looks for circles
        status = JobStatus.FAULT if fault else JobStatus.ABORTED if job.aborted else JobStatus.DONE
        code, address = (fault.code, fault.address) if fault else (FaultCode.NONE, 0)
        if fault and entry.log_bytes:
            self._store(entry.log, fault.explanation.encode()[: entry.log_bytes - 1] + b"\0")
        # Registers and interrupt come after the record: whoever sees one of them must find it written.
        record = COMPLETION.pack(*Completion(entry.seqno, status, code, address, timeline.cycles))
        unwritten = self._store(entry.completion, record)
        if unwritten and not fault:  # the registers are all that can tell of it
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
        """A fault before there is an entry that can be believed: nobody knows where a record would belong."""
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
        """Write what software waits for; the fault if that is host memory which cannot be reached."""
        try:
            self._port.store(address, data)
        except AddressError as error:
            _log.warning("write: %s", error.explanation)
            return fault_of(error, "completion record") if isinstance(error, HostError) else None
        return None
