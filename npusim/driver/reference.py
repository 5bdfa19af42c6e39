"""The reference driver: everything that software does to run programs on a device, through ``device.bus.Bus`` only."""

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
"""An hour: the default where the transport does not know whether the device still works."""

WOKEN_PS = 10**6
"""What an interrupt costs at least."""

FIRMWARE_PS, POLL_PS = 2 * 10**12, 10**9
"""Two seconds of simulated time for a device to start its firmware; it is asked each millisecond."""

Past = tuple[LoadedProgram, DriverJob, int]
"""A job that has been finished, its program, and the picoseconds from its request to its outputs."""


class Driver:
    """Probes the device on a bus, and loads and runs programs on it. For any thread: one waits until another is done,
    with a whole :meth:`run` or :meth:`wait`, too.

    ``firmware``: the image for a device that wants one. Raises DeviceFaultError if there is no such device, or if
    it does not run that image. After a fault of a job the device goes on with the others. A fault that belongs to
    no job, such as a damaged ring, needs a reset: all jobs in the device fail with it, and none is submitted again,
    for what it has already written to memory that it shares nobody can take back.
    """

    def __init__(self, bus: Bus, firmware: bytes | None = None) -> None:
        self.turns = Turns()
        self._bus = bus
        self._link = Link(bus)
        self.gone: DeviceGoneError | None = None
        """The error, once the device was found to be gone or to have lost its memory: make a new driver then."""
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
        """What it knows besides programs and jobs; for :func:`npusim.driver.state.driver_state`."""
        own = {"seqno": self._seqno, "loads": self._loads, "counters": dataclasses.asdict(self.counters)}
        return {**own, "memory": self._memory.state(), "rings": self._rings.state(jobs)}

    @serialised
    def resume(self, state: Mapping[str, Any], jobs: Sequence[DriverJob], blocks: Sequence[int]) -> None:
        """Know that again; see :func:`npusim.driver.state.resume_driver`. ``blocks``: of the programs and their
        slots."""
        self._memory.resume(state["memory"])
        self._rings.resume(state["rings"], jobs)
        self._seqno, self._loads = whole(state["seqno"]), whole(state["loads"])
        for field in dataclasses.fields(self.counters):
            setattr(self.counters, field.name, whole(state["counters"][field.name]))
        self._memory.check_used([*self._rings.blocks(), *blocks])

    @property
    def free_bytes(self) -> int:
        """Device memory that is not taken."""
        return self._memory.available

    @serialised
    def reset(self, reason: NpusimError | None = None) -> None:
        """Bring the device into a state in which it takes jobs; loaded programs stay, jobs that have not ended fail
        with ``reason``. Raises DeviceFaultError if the device does not come back, DeviceGoneError if it is gone."""
        self._rings.collect()
        self._rings.reset(reason)

    def _is_gone(self, gone: DeviceGoneError) -> None:
        self.gone = gone
        self._rings.lose(gone)

    @serialised
    def lose(self, reason: NpusimError) -> None:
        """The device is of no more use: every job in it has ended with ``reason``, and none is kept."""
        self._rings.lose(reason)

    @serialised
    def close(self, *, freed: bool = False) -> None:
        """Leave the device in order; the driver is of no more use. Jobs that have not ended fail. ``freed``: clients
        have unloaded all programs and freed all memory, so that what is left has been forgotten by somebody."""
        self._rings.close()
        if freed:
            self._bus.note("done")

    @serialised
    def enable_preemption(self) -> None:
        """Let a job of a higher priority interrupt one of a lower; takes device memory for what is parked.

        Without it a job waits for the end of the one that runs. Raises DeviceMemoryError.
        """
        size = self._link.get_pair(header.CAP_CONTEXT_LO)
        self._rings.preempt(self._memory.allocate(size, "context area"))

    # Raw memory

    @serialised
    def allocate(self, size: int, purpose: str = "buffer") -> int:
        """The address of new device memory; raises DeviceMemoryError."""
        return self._memory.allocate(size, purpose)

    @serialised
    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` gave."""
        self._memory.free(address)

    @serialised
    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes into device memory."""
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
        """Make so many pools of host memory reachable for the device."""
        for _ in range(pools):
            self._bus.host_work("map")
        self.counters.mappings += pools

    # Programs

    @serialised
    def load(self, program: Program, *, slots: int = 1) -> LoadedProgram:
        """Put a program into device memory, with the memory that so many runs at a time need.

        Raises DeviceMemoryError if it does not fit; then nothing was taken.
        """
        sizes = region_sizes(program)
        blocks: list[int] = []
        try:
            for purpose, size in (("code", len(program.code)), ("constants", sizes[CONSTANTS])):
                blocks.append(self._memory.allocate(size, f"program {program.name!r}: {purpose}"))
            # Never 0, and another one each time: at the same address there may be other constants now.
            self._loads = self._loads % header.MOST_RESIDENTS + 1
            loaded = LoadedProgram(program, blocks[0], blocks[1], sizes, self._loads)
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
        """Give a program's memory back. Raises UsageError while a run of it is under way."""
        self._check_loaded(loaded)
        if loaded.running:
            raise UsageError(f"program {loaded.program.name!r} is running: it cannot be unloaded")
        self.trim(loaded)
        loaded.loaded = False
        self._memory.free_all([loaded.code, loaded.constants])

    @serialised
    def trim(self, loaded: LoadedProgram) -> None:
        """Give back the memory of slots that no run uses."""
        for slot in loaded.idle:
            self._memory.free_all(slot.blocks())
        loaded.idle.clear()

    @serialised
    def write_constants(self, loaded: LoadedProgram) -> None:
        """Write the constants, unless they are there. Raises FileCutError."""
        constants = loaded.program.constants
        if constants.nbytes and not loaded.resident:
            self._bus.fill_memory(loaded.constants, constants.nbytes, constants.fill)
            self.counters.constant_bytes += constants.nbytes
        loaded.resident = True

    def footprint(self, program: Program) -> tuple[int, int]:
        """Bytes of device memory that a program takes while it is loaded, and those that each run takes besides."""
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

        Raises InputError, or DeviceFaultError, after which the driver goes on.
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
        """Make a job of a loaded program and :meth:`start` it. Raises InputError and what that raises."""
        self._check_loaded(loaded)
        job = DriverJob(loaded.program, inputs, bound=bound, priority=priority, timing_only=timing_only)
        self.start(loaded, job)
        return job

    @serialised
    def start(self, loaded: LoadedProgram, job: DriverJob) -> None:
        """Hand a job of a loaded program to the device, and wait for nothing.

        Raises DeviceMemoryError, QueueFullError, FileCutError; then the device has seen nothing of it.
        """
        self._check_loaded(loaded)
        if not self._link.mask:  # it did not come back from the last reset
            self.reset()
        self._rings.check_room(job.priority)
        # Everything that can fail for want of room comes before the first byte is written: a refusal leaves no trace.
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
                if binding.capacity:  # only the rows that there are: their places lie apart
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
        """Let the device work until its next interrupt, for at most ``timeout_ps``; True if a job has ended.

        Raises DeviceGoneError when the device is gone; every job has failed with that, too.
        """
        return self._rings.poll(timeout_ps)

    @serialised
    def look(self) -> bool:
        """Look at the records of all jobs in the device, as after an interrupt that was lost; True if one has ended."""
        return self._rings.look()

    @property
    def slice_ps(self) -> int:
        """How long to :meth:`poll` in one go. Interrupts can get lost, so records are looked at now and then; less
        often while the device certainly does nothing."""
        return self._rings.slice_ps

    @property
    def hung(self) -> bool:
        """Whether the last :meth:`poll` has shown that no job in the device will ever end, because nothing goes on in
        it. Only transports of simulated devices know that; never True on others."""
        return self._rings.hung

    @serialised
    def finish(self, job: DriverJob) -> DriverJob:
        """Read back the outputs of a job that has ended, once. Raises the error it ended with, and DeviceGoneError."""
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

        ``timeout_ps``: one that has not ended after this time, when its record is looked at for the last time, ends
        with a reset and DeviceFaultError TIMEOUT. None: as long as the device works on anything, however slowly; an
        hour where the transport does not know.
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
                elif not ended:  # an interrupt that was about nothing came early: it has not taken all of that time
                    spent += min(step, WOKEN_PS) if self._rings.woken else step
                late = self._rings.hung if timeout_ps is None else spent >= timeout_ps
                if late and not ended and not self._rings.look():
                    why = f"no completion within {timeout_ps} ps"
                    if timeout_ps is None:
                        why = "the device does nothing more, and the job has not ended"
                    self._rings.reset(DeviceFaultError("TIMEOUT", loaded.code, why))
        except DeviceGoneError:
            raise
        except DeviceFaultError as error:  # the device did not come back from a reset
            job.error = error
        return self.finish(job)

    @serialised
    def abort(self, job: DriverJob) -> None:
        """Ask the device to end a job; :meth:`poll` sees it end, with JobAbortedError unless it was quicker."""
        self._inside(job)
        if not job.ended:
            self._rings.abort(job)

    @serialised
    def repeat(self, rounds: Sequence[Sequence[Past]], most: int) -> int:
        """Do rounds of jobs once more, in turn, up to ``most``, as far as the bus has a shorter way for that; how many.

        ``rounds``: jobs that have been finished, with their loaded programs and the simulated time that each took its
        client. Nothing else may be in the device. A round does not count, and is the last, when one of its jobs is a
        fault, or when an output that is read back ends in a word of zeros or of all ones, which takes a look for the
        device; what such a round has written is undefined.
        """
        turns = [[turn for each in jobs if (turn := _turn(*each))] for jobs in rounds]
        if any(len(known) < len(jobs) for known, jobs in zip(turns, rounds, strict=True)):
            return 0
        count = self._bus.repeat(turns, most)
        if count % len(rounds):  # the round done last is another than the one whose region tables the slots remember
            for (first, *others), (loaded, _, _) in zip(zip(*turns, strict=True), rounds[0], strict=True):
                if any(other.regions != first.regions for other in others):
                    for slot in loaded.idle:
                        slot.rows = b""  # so that the next job writes its table anew
        return count

    # Steps

    def _inside(self, job: DriverJob) -> LoadedProgram:
        """The program of a job that has been started and not been finished."""
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
        """Load and start an image, unless one runs."""
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
            self._bus.wait_irq(POLL_PS)  # nothing comes: it lets time pass
            left -= POLL_PS
            state = self._link.get(header.FW_STATUS)
        self._memory.free(address)
        if state != header.FW_RUNNING:
            name = header.FW_STATES[state] if state < len(header.FW_STATES) else f"state {state:#x}"
            raise DeviceFaultError("FIRMWARE", address, f"the device does not run the image: {name}")

    @staticmethod
    def _check_loaded(loaded: LoadedProgram) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")


def _turn(loaded: LoadedProgram, job: DriverJob, spent_ps: int) -> Turn | None:
    """A job as the bus repeats it; None if its program has left the device, if making room comes first, or if it took a
    look for the device, which the next one may not."""
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
    """What puts an array into the region of its input."""

    def fill(region: npt.NDArray[np.uint8]) -> None:
        region[...] = 0  # rows that are not there yet: neither the host's memory nor what another job has left
        binding.elements(region)[...] = array

    return fill


def _flat(array: Array) -> npt.NDArray[np.uint8]:
    """The bytes of an array of a job, which is contiguous."""
    return array.reshape(-1).view(np.uint8)
