"""The driver's side of the job rings: submit, detect ended jobs, abort."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from npusim.driver import header
from npusim.driver.alloc import Allocator, whole
from npusim.driver.jobs import DriverJob
from npusim.driver.link import Link
from npusim.errors import DeviceFaultError, JobAbortedError, NpusimError, QueueFullError

RING_ENTRIES = 64
LOG_BYTES = 512
SLICE_PS = 100 * 10**9
"""Interrupts can be lost: completion records are read after 100 ms without one."""
RESET_PS = 10**12
"""A working device resets at once; one that takes a second counts as failed."""
RESET_SLICE_PS = 10**9
_MASK = header.INT_DONE | header.INT_FAULT


class Rings:
    """One ring per priority in device memory, and the jobs in them."""

    def __init__(self, link: Link, memory: Allocator) -> None:
        self._link = link
        self._bus = link.bus
        self._memory = memory
        link.on_gone = self.lose
        self._bases = [memory.allocate(RING_ENTRIES * header.ENTRY.size, "command ring") for _ in header.RINGS]
        self._tails = [0] * len(header.RINGS)
        self._inside: list[deque[DriverJob]] = [deque() for _ in header.RINGS]
        self._silent_ps = 0
        self._looked = False  # all records were read since the last change, and no job has ended
        self._context: int | None = None
        self.woken = False
        """Whether an interrupt ended the last poll."""

    def reset(self, reason: NpusimError | None = None) -> None:
        """Reset the device and set up its rings. Its jobs have failed with ``reason``.

        Raises DeviceGoneError if it is gone or has lost power, DeviceFaultError if it does not become ready.
        """
        if self._link.mask:
            inside = [job for ring in self._inside for job in ring]
            self._link.set_mark(inside[0].entry if inside else self._bases[0], entry=bool(inside))
        self.lose(reason or JobAbortedError("the device was reset"))
        self._link.put(header.CONTROL, header.CONTROL_RESET)
        self._bus.wait_irq(0)  # drop interrupts from before the reset
        self._set_up()
        if self._link.get(header.STATUS) != header.STATUS_READY:
            self._await_ready()
            self._set_up()  # a device that is not ready ignores the set-up
        if self._link.mark is not None:
            self._link.look()
        self._link.mask = _MASK

    def _await_ready(self) -> None:
        left = RESET_PS
        while (status := self._link.get(header.STATUS)) != header.STATUS_READY:
            if not left:
                raise DeviceFaultError("NOT_READY", 0, f"status after reset is {status:#x}")
            self._bus.wait_irq(RESET_SLICE_PS)
            left -= RESET_SLICE_PS

    def _set_up(self) -> None:
        """Set up the rings after a reset."""
        for registers, base in zip(header.RINGS, self._bases, strict=True):
            self._link.put(registers + header.BASE_LO, base & 0xFFFF_FFFF)
            self._link.put(registers + header.BASE_HI, base >> 32)
            self._link.put(registers + header.SIZE, RING_ENTRIES)
        self._link.put(header.INT_MASK, _MASK)
        self._tails = [0] * len(header.RINGS)
        if self._context is not None:
            self.preempt(self._context)

    def close(self) -> None:
        """Reset the device for the last time, so that it stops all jobs and memory accesses."""
        self.collect()
        self.lose(JobAbortedError("the driver was closed"))
        self._link.put(header.CONTROL, header.CONTROL_RESET)
        self._memory.free_all(self._bases if self._context is None else [*self._bases, self._context])

    def preempt(self, context: int) -> None:
        """Enable preemption with a context area at that address."""
        self._context = context
        self._link.put(header.CONTEXT_BASE_LO, context & 0xFFFF_FFFF)
        self._link.put(header.CONTEXT_BASE_HI, context >> 32)
        self._link.put(header.PREEMPT, header.PREEMPT_ENABLE)

    def check_room(self, ring: int) -> None:
        """Raise QueueFullError if the ring of that priority is full."""
        if len(self._inside[ring]) == RING_ENTRIES:
            raise QueueFullError(f"{RING_ENTRIES} jobs of priority {ring} are in the device: its ring holds no more")

    def submit(self, job: DriverJob) -> None:
        """Submit a job."""
        self._looked = False
        loaded, slot, ring = job.loaded, job.slot, job.priority
        assert loaded is not None
        assert slot is not None
        self._bus.host_work("submit")
        # The order record, entry, TAIL, doorbell is required: the device may read each once the next is written.
        self._bus.write_memory(slot.completion, header.COMPLETION.pack(job.seqno, header.JOB_PENDING, 0, 0, 0))
        entry = header.ENTRY.pack(
            header.ENTRY_MAGIC,
            job.flags,
            loaded.code,
            len(job.program.code),
            len(loaded.sizes),
            slot.table,
            job.seqno,
            slot.completion,
            slot.log,
            LOG_BYTES,
            loaded.number,
        )
        job.entry = self._bases[ring] + self._tails[ring] % RING_ENTRIES * header.ENTRY.size
        self._bus.write_memory(job.entry, entry)
        self._tails[ring] = self._tails[ring] + 1 & 0xFFFF_FFFF
        self._inside[ring].append(job)
        self._link.put(header.RINGS[ring] + header.TAIL, self._tails[ring])
        self._link.put(header.RINGS[ring] + header.DOORBELL, header.DOORBELL_RING)

    def abort(self, job: DriverJob) -> None:
        """Request the end of a job: an entry that was not read is marked as cancelled, a job that has begun is
        aborted."""
        job.flags |= header.FLAG_CANCELLED
        self._bus.write_memory(job.entry + header.FLAGS_OFFSET, header.FLAGS.pack(job.flags))
        self._link.put(header.ABORT_SEQNO_LO, job.seqno & 0xFFFF_FFFF)
        self._link.put(header.ABORT_SEQNO_HI, job.seqno >> 32)
        self._link.put(header.ABORT, header.ABORT_GO)

    def poll(self, timeout_ps: int) -> bool:
        """Run the device until its next interrupt, for at most ``timeout_ps``. Returns whether a job has ended.

        Raises DeviceGoneError if the device is gone, with all its jobs.
        """
        came = self._bus.wait_irq(timeout_ps)
        self.woken, self._looked = bool(came), False
        self._silent_ps = 0 if came else self._silent_ps + timeout_ps
        if not came and self._silent_ps < SLICE_PS:
            return False
        self._silent_ps = 0
        ended = self.look(self.woken)
        self._looked = not ended
        return ended

    @property
    def slice_ps(self) -> int:
        """Time in ps until records are read again: longer while the device is known to be idle."""
        return max(SLICE_PS, self._bus.quiet_ps() or 0) if self._looked else SLICE_PS

    @property
    def hung(self) -> bool:
        """Whether no job in the device will ever end, because it has no pending events and the records show none."""
        return self._looked and any(self._inside) and self._bus.quiet_ps() is None

    def look(self, interrupted: bool = False) -> bool:
        """Read completion records and, if these do not explain an interrupt, the status. Returns whether a job has
        ended."""
        if interrupted:
            self._link.put(header.INT_STATUS, header.INT_DONE | header.INT_FAULT)
        ended = self.collect()
        # An interrupt has no cause attached. STATUS is only read if the records do not explain it, because register
        # reads are slow.
        if any(self._inside) or not ended:
            ended += self._check_status()
        return ended > 0

    def lose(self, reason: NpusimError) -> None:
        """Fail all jobs in the device with ``reason``."""
        for ring in self._inside:
            for job in ring:
                job.ended, job.error = True, reason
            ring.clear()

    def collect(self) -> int:
        """Remove ended jobs from the rings, in order. Returns their number."""
        count = 0
        for ring in reversed(self._inside):
            while ring and self._take(ring[0]):
                ring.popleft()
                count += 1
        return count

    def _take(self, job: DriverJob) -> bool:
        """Whether a job has ended; sets its result."""
        slot = job.slot
        assert slot is not None
        # The bus reads a record atomically, and a record of a removed device has no valid seqno.
        raw = self._bus.read_memory(slot.completion, header.COMPLETION.size)
        seen, status, code, address, cycles = header.COMPLETION.unpack(raw)
        if seen != job.seqno or status not in (header.JOB_DONE, header.JOB_FAULT, header.JOB_ABORTED):
            return False
        self._link.proven = True  # the device has been present since the job was submitted
        job.ended, job.cycles = True, int(cycles)
        if status == header.JOB_FAULT:
            text = self._link.read_text(slot.log, LOG_BYTES).decode(errors="replace")
            job.error = DeviceFaultError(header.fault_name(code), address, text)
            self._link.put(header.CONTROL, header.CONTROL_CONTINUE)
        elif status == header.JOB_ABORTED:
            job.error = JobAbortedError(f"job {job.seqno} of program {job.program.name!r} was aborted")
        return True

    def _check_status(self) -> int:
        """Handle faults without a job. Returns the number of jobs that ended because of them."""
        status = self._link.get(header.STATUS)
        if not status & header.STATUS_FAULT:
            return 0
        # STATUS is read after the records, so records must be read again for jobs that ended in between.
        if ended := self.collect():  # a job may have ended just now
            return ended
        name = header.fault_name(self._link.get(header.FAULT_CODE))
        address = self._link.get_pair(header.FAULT_ADDR_LO)
        fault = DeviceFaultError(name, address, header.fault_meaning(name))
        lost = sum(len(ring) for ring in self._inside)
        self.reset(fault)
        return lost

    def state(self, jobs: Sequence[DriverJob]) -> dict[str, Any]:
        """The state as plain data. ``jobs``: all jobs that were started and not finished."""
        return {
            "bases": list(self._bases),
            "tails": list(self._tails),
            "inside": [[jobs.index(job) for job in ring] for ring in self._inside],
            "silent_ps": self._silent_ps,
            "context": self._context,
            "mask": self._link.mask,
        }

    def resume(self, state: Mapping[str, Any], jobs: Sequence[DriverJob]) -> None:
        """Restore a state; the device is restored already. Raises ValueError, TypeError or KeyError for invalid
        states."""
        bases, tails, inside = ([*state[name]] for name in ("bases", "tails", "inside"))
        if not len(bases) == len(tails) == len(inside) == len(header.RINGS):
            raise ValueError(f"there are {len(header.RINGS)} rings")
        numbers = [whole(number, len(jobs) - 1) for ring in inside for number in ring]
        if sorted(numbers) != list(range(len(jobs))):
            raise ValueError("each job must be in one ring, once")
        if any(jobs[number].priority != ring for ring, among in enumerate(inside) for number in among):
            raise ValueError("each job must be in the ring of its priority")
        self._bases = [whole(base) for base in bases]
        self._tails = [whole(tail, 0xFFFF_FFFF) for tail in tails]
        self._inside = [deque(jobs[number] for number in ring) for ring in inside]
        self._silent_ps, self._link.mask = whole(state["silent_ps"]), whole(state["mask"], 0xFFFF_FFFF)
        self._context = None if state["context"] is None else whole(state["context"])

    def blocks(self) -> list[int]:
        """The blocks of device memory that it uses."""
        return [*self._bases, *([] if self._context is None else [self._context])]
