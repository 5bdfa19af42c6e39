"""The reference driver: everything that software does to run programs on a device, through ``device.bus.Bus`` only."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npusim.device.bus import BAR_REGISTERS, Bus
from npusim.driver import header
from npusim.driver.alloc import Allocator
from npusim.driver.check import check_inputs
from npusim.driver.jobs import Array, Flight, HostCounters, JobResult, LoadedProgram, Priority
from npusim.driver.rings import SLICE_PS, Rings
from npusim.driver.slots import Slots
from npusim.errors import DeviceFaultError, DeviceGoneError, FileCutError, UsageError
from npusim.program import CONSTANTS, Binding, Program

TIMEOUT_PS = 3600 * 10**12
"""An hour of simulated time: longer than any job should take."""


class Driver:
    """Probes the device on a bus, and loads and runs programs on it. Not for several threads at once.

    Raises DeviceFaultError if there is no such device. After a fault of a job the device goes on with the others. A
    fault that belongs to no job, such as a damaged ring, needs a reset: all jobs in the device fail with it, and none
    is submitted again, for what it has already written to memory that it shares nobody can take back.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.counters = HostCounters()
        self._probe()
        self._memory = Allocator(0, self._read_pair(header.CAP_DRAM_LO))
        self._rings = Rings(bus, self._memory)
        self._slots = Slots(bus, self._memory)
        self._flights: dict[int, Flight] = {}
        self._fence = 0
        self.reset()

    @property
    def free_bytes(self) -> int:
        """Device memory that is not taken."""
        return self._memory.available

    def reset(self) -> None:
        """Bring the device into a state in which it takes jobs; loaded programs stay, jobs in the device fail."""
        self._rings.reset()

    def enable_preemption(self) -> None:
        """Let a job of a higher class interrupt one of a lower; takes device memory for what is parked.

        Without it a job waits for the end of the one that runs. Raises DeviceMemoryError.
        """
        size = self._read_pair(header.CAP_CONTEXT_LO)
        self._rings.preempt(self._memory.allocate(size, "context area"))

    # Raw memory

    def allocate(self, size: int, purpose: str = "buffer") -> int:
        """The address of new device memory; raises DeviceMemoryError."""
        return self._memory.allocate(size, purpose)

    def free(self, address: int) -> None:
        """Give back what :meth:`allocate` gave."""
        self._memory.free(address)

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes into device memory."""
        self._bus.write_memory(address, data)
        self.counters.buffer_write_bytes += len(data)

    def read(self, address: int, size: int) -> bytearray:
        """Copy bytes from device memory."""
        self.counters.buffer_read_bytes += size
        return self._bus.read_memory(address, size)

    def map_memory(self, pools: int) -> None:
        """Make so many pools of host memory reachable for the device."""
        for _ in range(pools):
            self._bus.host_work("map")
        self.counters.mappings += pools

    # Programs

    def load(self, program: Program, *, slots: int = 1) -> LoadedProgram:
        """Put a program into device memory, with the memory that so many runs at a time need.

        Raises DeviceMemoryError if it does not fit; then nothing was taken.
        """
        sizes = tuple(max(size, _least(program, region)) for region, size in enumerate(program.region_bytes))
        blocks: list[int] = []
        try:
            for purpose, size in (("code", len(program.code)), ("constants", sizes[CONSTANTS])):
                blocks.append(self._memory.allocate(size, f"program {program.name!r}: {purpose}"))
            loaded = LoadedProgram(program, blocks[0], blocks[1], sizes)
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

    def unload(self, loaded: LoadedProgram) -> None:
        """Give a program's memory back. Raises UsageError while a run of it is under way."""
        self._check_loaded(loaded)
        if loaded.running:
            raise UsageError(f"program {loaded.program.name!r} is running: it cannot be unloaded")
        self.trim(loaded)
        loaded.loaded = False
        self._memory.free_all([loaded.code, loaded.constants])

    def trim(self, loaded: LoadedProgram) -> None:
        """Give back the memory of slots that no run uses."""
        for slot in loaded.idle:
            self._memory.free_all(slot.blocks())
        loaded.idle.clear()

    def write_constants(self, loaded: LoadedProgram) -> None:
        """Write the constants, unless they are there. Raises FileCutError."""
        constants = loaded.program.constants
        if constants.nbytes and not loaded.resident:
            self._bus.fill_memory(loaded.constants, constants.nbytes, constants.fill)
            self.counters.constant_bytes += constants.nbytes
        loaded.resident = True

    def regions(self, loaded: LoadedProgram, bound: Mapping[int, int]) -> list[tuple[int, int]] | None:
        """(address, bytes) of each region in the next run, with these bound; None if that must make room for more."""
        own = loaded.idle[-1].own if loaded.idle and loaded.resident else {}
        addresses = {CONSTANTS: loaded.constants, **own, **bound}
        if len(addresses) < len(loaded.sizes):
            return None
        return [(addresses[region], size) for region, size in enumerate(loaded.sizes)]

    def forget_table(self, loaded: LoadedProgram) -> None:
        """Have the next run tell the device where its regions are, whatever the one before told."""
        for slot in loaded.idle:
            slot.rows = b""

    # Runs

    def run(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Array] | None = None,
        *,
        timing_only: bool = False,
        timeout_ps: int = TIMEOUT_PS,
    ) -> JobResult:
        """Run a loaded program once.

        ``inputs``: for each input binding an array of its shape in its storage dtype; with ``timing_only`` none are
        needed and no outputs come back. Raises InputError, or DeviceFaultError, after which the driver goes on.
        """
        return self.wait(self.submit(loaded, inputs, timing_only=timing_only), timeout_ps)

    def submit(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Array] | None = None,
        *,
        bound: Mapping[int, int] | None = None,
        priority: int = Priority.MEDIUM,
        timing_only: bool = False,
        checked: bool = False,
    ) -> int:
        """Hand a job to the device and return its fence at once.

        ``bound``: regions of inputs and outputs that lie at a device address of the caller's; such inputs are not
        written, such outputs not read back. ``checked``: the inputs are what ``check_inputs`` has given.
        Raises InputError, DeviceMemoryError, QueueFullError, FileCutError.
        """
        self._check_loaded(loaded)
        self._rings.check_room(priority)
        bound, program = bound or {}, loaded.program
        written = [] if timing_only else [item for item in program.inputs if item.region not in bound]
        if checked and inputs is not None:
            arrays = [inputs[item.name] for item in written]
        else:
            arrays = [] if timing_only else check_inputs(written, inputs or {})
        slot = self._slots.take(loaded, bound)
        if not timing_only:
            try:
                self.write_constants(loaded)
            except FileCutError:
                loaded.idle.append(slot)
                raise
        addresses = self._slots.write_table(loaded, slot, bound)
        for binding, array in zip(written, arrays, strict=True):
            if array.nbytes:
                self._bus.write_memory(addresses[binding.region], array.reshape(-1).view(np.uint8).data)
                self.counters.input_bytes += array.nbytes
        reads = () if timing_only else tuple(out.region for out in program.outputs if out.region not in bound)
        self._fence += 1
        flight = Flight(self._fence, loaded, slot, addresses, reads, int(priority))
        flight.flags = header.FLAG_TIMING_ONLY if timing_only else 0
        self._flights[flight.fence] = flight
        loaded.running += 1
        self._rings.submit(flight)
        self.counters.jobs += 1
        return flight.fence

    def poll(self, timeout_ps: int) -> bool:
        """Let the device work until its next interrupt, for at most ``timeout_ps``; True if a job has ended.

        Raises DeviceGoneError when the device is gone; every job has failed with that, too.
        """
        return self._rings.poll(timeout_ps)

    def ended(self, fence: int) -> bool:
        """Whether a job has ended, as far as :meth:`poll` has seen."""
        return self._flight(fence).done

    def finish(self, fence: int) -> JobResult:
        """The result of a job that has ended, read back now; the fence is used up. Raises the error it ended with."""
        flight = self._flight(fence)
        if not flight.done:
            raise UsageError(f"job {fence} has not ended")
        del self._flights[fence]
        loaded = flight.loaded
        loaded.running -= 1
        loaded.idle.append(flight.slot)
        if flight.error is not None:
            raise flight.error
        outputs = {
            binding.name: self._read_output(flight.addresses[binding.region], binding)
            for binding in loaded.program.outputs
            if binding.region in flight.reads
        }
        return JobResult(outputs, flight.cycles, fence)

    def wait(self, fence: int, timeout_ps: int = TIMEOUT_PS) -> JobResult:
        """Wait for a job. Raises what it ended with; one that takes longer than ``timeout_ps`` ends with a reset."""
        flight, left = self._flight(fence), timeout_ps
        while not flight.done:
            step = min(left, SLICE_PS)
            if self._rings.poll(step):
                continue
            left -= step
            if not left and not self._rings.look():
                code = flight.loaded.code
                self._rings.reset(DeviceFaultError("TIMEOUT", code, f"no completion within {timeout_ps} ps"))
        return self.finish(fence)

    def abort(self, fence: int) -> None:
        """Ask the device to end a job; :meth:`poll` sees it end, with JobAbortedError unless it was quicker."""
        flight = self._flight(fence)
        if not flight.done:
            self._rings.abort(flight)

    # Steps

    def _flight(self, fence: int) -> Flight:
        if fence not in self._flights:
            raise UsageError(f"there is no job {fence}")
        return self._flights[fence]

    def _read_output(self, address: int, binding: Binding) -> Array:
        raw = self._bus.read_memory(address, binding.nbytes) if binding.nbytes else bytearray()
        self.counters.output_bytes += binding.nbytes
        return np.frombuffer(raw, binding.dtype.storage).reshape(binding.shape)

    # The device

    def _probe(self) -> None:
        found = self._bus.read(BAR_REGISTERS, header.ID, 4)
        if found == header.GONE:
            raise DeviceGoneError("UNPLUGGED", 0, "there is no device on the bus")
        if found != header.DEVICE_ID:
            raise DeviceFaultError("UNKNOWN_DEVICE", 0, f"device ID must be {header.DEVICE_ID:#x}, got {found:#x}")
        version = self._bus.read(BAR_REGISTERS, header.VERSION, 4) >> 16
        if version != header.INTERFACE_VERSION:
            raise DeviceFaultError(
                "UNKNOWN_VERSION", 0, f"interface version must be {header.INTERFACE_VERSION}, the device has {version}"
            )

    def _read_pair(self, low: int) -> int:
        """The 64 bits of a register and the one behind it."""
        return self._bus.read(BAR_REGISTERS, low + 4, 4) << 32 | self._bus.read(BAR_REGISTERS, low, 4)

    @staticmethod
    def _check_loaded(loaded: LoadedProgram) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")


def _least(program: Program, region: int) -> int:
    """What a region must hold whatever the program says of it."""
    if region == CONSTANTS:
        return program.constants.nbytes
    return max((item.nbytes for item in (*program.inputs, *program.outputs) if item.region == region), default=0)
