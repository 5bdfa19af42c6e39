"""The reference driver: runs programs on a device through ``device.bus.Bus`` only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.device.bus import BAR_REGISTERS, Bus, Turn
from npusim.driver import header
from npusim.driver.alloc import Allocator, block_bytes, whole
from npusim.driver.jobs import Array, DriverJob, HostCounters, LoadedProgram, Priority, region_sizes
from npusim.driver.link import Link
from npusim.driver.rings import Rings
from npusim.driver.slots import SlotFactory
from npusim.errors import DeviceFaultError, DeviceGoneError, FileCutError, NpusimError, UsageError
from npusim.program import CONSTANTS, Binding, Program
from npusim.turns import Turns, serialised

TIMEOUT_PS = 3600 * 10**12
"""One hour: the default if the transport does not know whether the device is idle."""

WOKEN_PS = 10**6
"""Lower bound in ps for the time of an interrupt."""

FIRMWARE_PS, POLL_PS = 2 * 10**12, 10**9
"""Time-out for the start of firmware (2 s simulated) and interval of its polls (1 ms)."""

Past = tuple[LoadedProgram, DriverJob, int]
"""A finished job, its program, and the picoseconds from request to outputs."""


class Driver:
    """Probes the device on a bus, and loads and runs programs on it. Thread-safe: :meth:`run` and :meth:`wait` block
    other threads until they return.

    ``firmware``: the image for a device that needs one. Raises DeviceFaultError if there is no supported device, or if
    it does not start the image. After the fault of a job the device continues with others. A fault without a job, such
    as an invalid ring, requires a reset: all jobs in the device fail, and none is submitted again, because shared
    memory that they have written cannot be restored.
    """

    def __init__(self, bus: Bus, firmware: bytes | None = None) -> None:
        self.turns = Turns()
        self._bus = bus
        self._link = Link(bus)
        self.gone: DeviceGoneError | None = None
        """The error once the device is found to be gone or to have lost its memory. A new driver is needed then."""
        self.counters = HostCounters()
        self._probe()
        self._memory = Allocator(0, self._link.get_pair(header.CAP_DRAM_LO), bus.note)
        if firmware is not None:
            self._boot(firmware)
        self._rings = Rings(self._link, self._memory)
        self._link.on_gone = self._is_gone
        self._slots = SlotFactory(bus, self._memory)
        self._seqno = self._loads = 0
        self.reset()

    @serialised
    def state(self, jobs: Sequence[DriverJob]) -> dict[str, Any]:
        """The state except programs and jobs, for :func:`npusim.driver.state.driver_state`."""
        own = {"seqno": self._seqno, "loads": self._loads, "counters": dataclasses.asdict(self.counters)}
        return {**own, "memory": self._memory.state(), "rings": self._rings.state(jobs)}

    @serialised
    def resume(
        self,
        state: Mapping[str, Any],
        loaded: Sequence[LoadedProgram],
        jobs: Sequence[DriverJob],
        blocks: Sequence[int],
    ) -> None:
        """Restore the state, see :func:`npusim.driver.state.resume_driver`. ``blocks``: of programs and slots."""
        for each in loaded:
            each.memory = self._memory
        self._memory.resume(state["memory"])
        self._rings.resume(state["rings"], jobs)
        self._seqno, self._loads = whole(state["seqno"]), whole(state["loads"])
        for field in dataclasses.fields(self.counters):
            setattr(self.counters, field.name, whole(state["counters"][field.name]))
        self._memory.check_used([*self._rings.blocks(), *blocks])

    @property
    def free_bytes(self) -> int:
        """Free device memory in bytes."""
        return self._memory.available

    @serialised
    def reset(self, reason: NpusimError | None = None) -> None:
        """Reset the device and set it up again. Loaded programs stay; jobs that have not ended fail with ``reason``.
        Raises DeviceFaultError if the device does not become ready, DeviceGoneError if it is gone."""
        self._rings.collect()
        self._rings.reset(reason)

    def _is_gone(self, gone: DeviceGoneError) -> None:
        self.gone = gone
        self._rings.lose(gone)

    @serialised
    def lose(self, reason: NpusimError) -> None:
        """The device is unusable: all its jobs end with ``reason``."""
        self._rings.lose(reason)

    @serialised
    def close(self, *, freed: bool = False) -> None:
        """Shut the device down. Jobs that have not ended fail, and the driver cannot be used any more. ``freed``:
        clients have unloaded all programs and freed all memory, so that remaining blocks are leaks."""
        self._rings.close()
        if freed:
            self._bus.note("done")

    @serialised
    def enable_preemption(self) -> None:
        """Enable preemption of jobs by jobs of a higher priority; allocates device memory for contexts.

        Without it a job waits for the end of the running one. Raises DeviceMemoryError.
        """
        size = self._link.get_pair(header.CAP_CONTEXT_LO)
        self._rings.preempt(self._memory.allocate(size, "context area"))

    # Raw memory

    @serialised
    def allocate(self, size: int, purpose: str = "buffer") -> int:
        """Allocate device memory. Returns its address; raises DeviceMemoryError."""
        return self._memory.allocate(size, purpose)

    @serialised
    def free(self, address: int) -> None:
        """Free a block of :meth:`allocate`."""
        self._memory.free(address)

    @serialised
    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to device memory."""
        self._link.write(address, data)
        self.counters.buffer_write_bytes += len(data)

    @serialised
    def read(self, address: int, size: int) -> bytearray:
        """Copy bytes from device memory. Raises DeviceGoneError."""
        data = self._link.read(address, size)
        self.counters.buffer_read_bytes += size
        return data

    @serialised
    def map_memory(self, pools: int) -> None:
        """Map this number of host memory pools for the device."""
        for _ in range(pools):
            self._bus.host_work("map")
        self.counters.mappings += pools

    # Programs

    @serialised
    def load(self, program: Program, *, slots: int = 1) -> LoadedProgram:
        """Load a program into device memory, with memory for ``slots`` concurrent runs.

        Raises DeviceMemoryError if it does not fit; then nothing is allocated.
        """
        sizes = region_sizes(program)
        blocks: list[int] = []
        try:
            for purpose, size in (("code", len(program.code)), ("constants", sizes[CONSTANTS])):
                blocks.append(self._memory.allocate(size, f"program {program.name!r}: {purpose}"))
            # Never 0 and different each time, because other constants may be at the same address now.
            self._loads = self._loads % header.MOST_RESIDENTS + 1
            loaded = LoadedProgram(program, blocks[0], blocks[1], sizes, self._loads, memory=self._memory)
            for _ in range(slots):
                loaded.idle.append(self._slots.make(loaded, {}))
                blocks += loaded.idle[-1].blocks()
        except BaseException:
            self._memory.free_all(blocks)
            raise
        self._bus.write_memory(loaded.code, program.code)
        self.counters.code_bytes += len(program.code)
        for slot in loaded.idle:
            self._slots.write_table(loaded, slot, {})
        return loaded

    @serialised
    def unload(self, loaded: LoadedProgram) -> None:
        """Free the memory of a program. Raises UsageError while a run is under way."""
        self._check_loaded(loaded)
        if loaded.running:
            raise UsageError(f"program {loaded.program.name!r} is running: it cannot be unloaded")
        self.trim(loaded)
        loaded.loaded = False
        self._memory.free_all([loaded.code, loaded.constants])

    @serialised
    def trim(self, loaded: LoadedProgram) -> None:
        """Free the memory of unused slots."""
        for slot in loaded.idle:
            self._memory.free_all(slot.blocks())
        loaded.idle.clear()

    @serialised
    def write_constants(self, loaded: LoadedProgram) -> None:
        """Write the constants, unless they are on the device. Raises FileCutError."""
        constants = loaded.program.constants
        if constants.nbytes and not loaded.resident:
            self._bus.fill_memory(loaded.constants, constants.nbytes, constants.fill)
            self.counters.constant_bytes += constants.nbytes
        loaded.resident = True

    def footprint(self, program: Program) -> tuple[int, int]:
        """Device memory in bytes that a loaded program takes, and that each run takes in addition."""
        sizes = region_sizes(program)
        return block_bytes(len(program.code)) + block_bytes(sizes[CONSTANTS]), SlotFactory.bytes_of(sizes)

    # Runs

    @serialised
    def run(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Array] | None = None,
        *,
        timing_only: bool = False,
        timeout_ps: int | None = None,
    ) -> DriverJob:
        """Run a loaded program once; return its job with outputs. Arguments: see :class:`DriverJob` and :meth:`wait`.

        Raises InputError, or DeviceFaultError, after which the driver can be used further.
        """
        return self.wait(self.submit(loaded, inputs, timing_only=timing_only), timeout_ps)

    @serialised
    def submit(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Array] | None = None,
        *,
        bound: Mapping[int, int] | None = None,
        priority: int = Priority.MEDIUM,
        timing_only: bool = False,
    ) -> DriverJob:
        """Create a job of a loaded program and :meth:`start` it. Raises InputError and the errors of :meth:`start`."""
        self._check_loaded(loaded)
        job = DriverJob(loaded.program, inputs, bound=bound, priority=priority, timing_only=timing_only)
        self.start(loaded, job)
        return job

    @serialised
    def start(self, loaded: LoadedProgram, job: DriverJob) -> None:
        """Submit a job of a loaded program without waiting.

        Raises DeviceMemoryError, QueueFullError, FileCutError, before the device is accessed.
        """
        self._check_loaded(loaded)
        if not self._link.mask:  # the device did not become ready after the last reset
            self.reset()
        self._rings.check_room(job.priority)
        # All allocations come before the first write, so that an error has no effects.
        slot = self._slots.take(loaded, job.bound)
        if not job.timing_only:
            try:
                self.write_constants(loaded)
            except FileCutError:
                loaded.idle.append(slot)
                raise
        addresses = self._slots.write_table(loaded, slot, job.bound)
        for binding, array in job.arrays:
            if array.nbytes:
                if binding.capacity:  # only the rows in use, which are not contiguous
                    self._bus.fill_memory(addresses[binding.region], binding.nbytes, _filler(binding, array))
                else:
                    self._bus.write_memory(addresses[binding.region], _flat(array).data)
                self.counters.input_bytes += array.nbytes
        self._seqno += 1
        job.seqno, job.loaded, job.slot, job.addresses = self._seqno, loaded, slot, addresses
        job.flags = header.FLAG_TIMING_ONLY if job.timing_only else 0
        loaded.running += 1
        self._rings.submit(job)
        self.counters.jobs += 1

    @serialised
    def poll(self, timeout_ps: int) -> bool:
        """Run the device until its next interrupt, for at most ``timeout_ps``. Returns whether a job has ended.

        Raises DeviceGoneError if the device is gone; all jobs have failed with it then.
        """
        return self._rings.poll(timeout_ps)

    @serialised
    def look(self) -> bool:
        """Read the records of all jobs in the device, as after a lost interrupt. Returns whether one has ended."""
        return self._rings.look()

    @property
    def slice_ps(self) -> int:
        """Time-out in ps for one :meth:`poll`. Interrupts can be lost, so records are read from time to time; less
        often while the device is known to be idle."""
        return self._rings.slice_ps

    @property
    def hung(self) -> bool:
        """Whether the last :meth:`poll` has shown that no job in the device will ever end, because it has no pending
        events. Only known for simulated devices, otherwise False."""
        return self._rings.hung

    @serialised
    def finish(self, job: DriverJob) -> DriverJob:
        """Read the outputs of a job that has ended, once. Raises its error, or DeviceGoneError."""
        loaded = self._inside(job)
        if not job.ended:
            raise UsageError(f"job {job.seqno} has not ended")
        loaded.running -= 1
        if job.slot is not None:
            loaded.idle.append(job.slot)
        job.loaded = None
        if job.error is not None:
            raise job.error
        looks, outputs = self._link.looks, dict[str, Array]()
        for binding in job.read_back:
            address, size = job.addresses[binding.region], binding.nbytes
            raw = self._link.read(address, size) if size else bytearray()
            found = binding.elements(np.frombuffer(raw, np.uint8))
            self.counters.output_bytes += found.nbytes
            outputs[binding.name] = found if found.flags.c_contiguous else found.copy()
        job.outputs, job.looked = outputs, self._link.looks > looks
        return job

    @serialised
    def wait(self, job: DriverJob, timeout_ps: int | None = None) -> DriverJob:
        """Wait for a job and :meth:`finish` it.

        ``timeout_ps``: a job that has not ended after this time, when its record is read a last time, ends with a reset
        and DeviceFaultError TIMEOUT. None: as long as the device has pending events, or one hour if the transport does
        not know.
        """
        loaded, began = self._inside(job), self._bus.now_ps()
        if timeout_ps is None and began is None:
            timeout_ps = TIMEOUT_PS
        spent = 0
        try:
            while not job.ended:
                step = self._rings.slice_ps
                if timeout_ps is not None:
                    step = min(step, max(0, timeout_ps - spent))
                ended = self._rings.poll(step)
                now = self._bus.now_ps()
                if now is not None and began is not None:
                    spent = now - began
                elif not ended:  # a spurious interrupt ended the wait early
                    spent += min(step, WOKEN_PS) if self._rings.woken else step
                late = self._rings.hung if timeout_ps is None else spent >= timeout_ps
                if late and not ended and not self._rings.look():
                    why = f"no completion within {timeout_ps} ps"
                    if timeout_ps is None:
                        why = "the device is idle, but the job has not ended"
                    self._rings.reset(DeviceFaultError("TIMEOUT", loaded.code, why))
        except DeviceGoneError:
            raise
        except DeviceFaultError as error:  # the device did not become ready after a reset
            job.error = error
        return self.finish(job)

    @serialised
    def abort(self, job: DriverJob) -> None:
        """Request the end of a job. :meth:`poll` sees it end, with JobAbortedError unless it has ended before."""
        self._inside(job)
        if not job.ended:
            self._rings.abort(job)

    @serialised
    def repeat(self, rounds: Sequence[Sequence[Past]], most: int) -> int:
        """Repeat rounds of jobs, up to ``most``, if the bus has a fast way to do so; returns how many were done.

        ``rounds``: finished jobs with their loaded programs and simulated times. No other job may be in the device. A
        round does not count, and is the last, when a job is a fault, or when an output ends in a word of zeros or ones,
        which requires a check of the device; the outputs of such a round are undefined.
        """
        turns = [[turn for each in jobs if (turn := _turn(*each))] for jobs in rounds]
        if any(len(known) < len(jobs) for known, jobs in zip(turns, rounds, strict=True)):
            return 0
        count = self._bus.repeat(turns, most)
        if count % len(rounds):  # the last round is not the one whose region tables the slots remember
            for (first, *others), (loaded, _, _) in zip(zip(*turns, strict=True), rounds[0], strict=True):
                if any(other.regions != first.regions for other in others):
                    for slot in loaded.idle:
                        slot.rows = b""  # the next job must write its region table again
        return count

    # Steps

    def _inside(self, job: DriverJob) -> LoadedProgram:
        """The program of a job that was started and not finished."""
        if job.loaded is None:
            raise UsageError(f"there is no job {job.seqno} in the device")
        return job.loaded

    # The device

    def _probe(self) -> None:
        found = self._bus.read(BAR_REGISTERS, header.ID, 4)
        if found == header.GONE:
            raise DeviceGoneError("UNPLUGGED", 0, "there is no device on the bus")
        if found != header.DEVICE_ID:
            raise DeviceFaultError("UNKNOWN_DEVICE", 0, f"device ID must be {header.DEVICE_ID:#x}, got {found:#x}")
        version = self._link.get(header.VERSION) >> 16
        if version != header.INTERFACE_VERSION:
            raise DeviceFaultError(
                "UNKNOWN_VERSION", 0, f"interface version must be {header.INTERFACE_VERSION}, the device has {version}"
            )

    def _boot(self, firmware: bytes) -> None:
        """Load and start a firmware image, unless firmware is running."""
        if not self._link.get(header.STATUS) & header.STATUS_FIRMWARE:
            return
        address = self._memory.allocate(len(firmware), "firmware")
        self._bus.write_memory(address, firmware)
        for register, value in (
            (header.FW_ADDR_LO, address & 0xFFFF_FFFF),
            (header.FW_ADDR_HI, address >> 32),
            (header.FW_BYTES, len(firmware)),
            (header.FW_BOOT, header.FW_BOOT_GO),
        ):
            self._link.put(register, value)
        state, left = header.FW_BOOTING, FIRMWARE_PS
        while state == header.FW_BOOTING and left:
            self._bus.wait_irq(POLL_PS)  # no interrupt comes: this only lets time pass
            left -= POLL_PS
            state = self._link.get(header.FW_STATUS)
        self._memory.free(address)
        if state != header.FW_RUNNING:
            name = header.FW_STATES[state] if state < len(header.FW_STATES) else f"state {state:#x}"
            raise DeviceFaultError("FIRMWARE", address, f"the device does not run the image: {name}")

    def _check_loaded(self, loaded: LoadedProgram) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")
        if loaded.memory is not self._memory:
            raise UsageError(f"program {loaded.program.name!r} was loaded by another driver")


def _turn(loaded: LoadedProgram, job: DriverJob, spent_ps: int) -> Turn | None:
    """A job in the form that the bus can repeat; None if its program is not loaded, if memory must be freed first, or
    if it needs a check of the device."""
    own = loaded.idle[-1].own if loaded.loaded and loaded.resident and loaded.idle else {}
    addresses = {CONSTANTS: loaded.constants, **own, **job.bound}
    if len(addresses) < len(loaded.sizes) or job.program.states or job.looked:
        return None
    return Turn(
        loaded.code,
        len(job.program.code),
        tuple((addresses[region], size) for region, size in enumerate(loaded.sizes)),
        [(addresses[binding.region], _flat(array)) for binding, array in job.arrays],
        [(addresses[binding.region], binding.nbytes) for binding in job.read_back],
        spent_ps,
    )


def _filler(binding: Binding, array: Array) -> Callable[[npt.NDArray[np.uint8]], None]:
    """A function that writes an array into the region of its input."""

    def fill(region: npt.NDArray[np.uint8]) -> None:
        region[...] = 0  # unused rows: they must not keep old contents
        binding.elements(region)[...] = array

    return fill


def _flat(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of the contiguous array of a job."""
    return array.reshape(-1).view(np.uint8)
