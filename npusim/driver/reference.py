"""The reference driver: everything that software does to run programs on a device, through ``device.bus.Bus`` only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.device.bus import BAR_REGISTERS, Bus
from npusim.driver import header
from npusim.driver.alloc import Allocator
from npusim.driver.check import check_inputs
from npusim.errors import DeviceFaultError, UsageError
from npusim.program import CONSTANTS, FIRST_IO, Binding, Program

RING_ENTRIES = 64
LOG_BYTES = 512
SLICE_PS = 100 * 10**9
"""A wait is cut into pieces of 100 ms, with a look at the completion record after each: interrupts can get lost."""
TIMEOUT_PS = 3600 * 10**12
"""An hour of simulated time: longer than any job should take."""

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class LoadedProgram:
    """A program in device memory: constants and code stay there until it is unloaded. Made by :meth:`Driver.load`.

    ``resident``: its constants have been written, which the first run that computes does.
    """

    program: Program
    code: int
    regions: tuple[int, ...]  # address of each region
    table: int
    completion: int
    log: int
    loaded: bool = True
    resident: bool = False


@dataclass(frozen=True, slots=True)
class JobResult:
    """``outputs``: arrays in the storage dtype by name, none if timing only. ``cycles``: from doorbell to interrupt."""

    outputs: dict[str, Array]
    cycles: int
    fence: int


class Driver:
    """Probes the device on a bus, and loads and runs programs on it, one job at a time.

    Raises DeviceFaultError if there is no such device. After a fault the device is reset, and the driver goes on.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._probe()
        dram_bytes = self._read(header.CAP_DRAM_HI) << 32 | self._read(header.CAP_DRAM_LO)
        self._memory = Allocator(0, dram_bytes)
        self._ring = self._memory.allocate(RING_ENTRIES * header.ENTRY.size, "command ring")
        self._fence = 0
        self._tail = 0
        self.reset()

    @property
    def free_bytes(self) -> int:
        """Device memory that is not taken."""
        return self._memory.available

    def reset(self) -> None:
        """Bring the device into a state in which it takes jobs; loaded programs stay."""
        self._write(header.CONTROL, header.CONTROL_RESET)
        self._bus.wait_irq(0)  # an interrupt from before is of no interest
        self._write(header.RING_BASE_LO, self._ring & 0xFFFF_FFFF)
        self._write(header.RING_BASE_HI, self._ring >> 32)
        self._write(header.RING_SIZE, RING_ENTRIES)
        self._write(header.INT_MASK, header.INT_DONE | header.INT_FAULT)
        self._tail = 0
        if self._read(header.STATUS) != header.STATUS_READY:
            raise DeviceFaultError("NOT_READY", 0, f"status after reset is {self._read(header.STATUS):#x}")

    def load(self, program: Program) -> LoadedProgram:
        """Put a program into device memory. Raises DeviceMemoryError if it does not fit; then nothing was taken."""
        sizes = [max(size, self._least(program, region)) for region, size in enumerate(program.region_bytes)]
        blocks: list[int] = []
        try:
            for size, purpose in self._pieces(program, sizes):
                blocks.append(self._memory.allocate(size, f"program {program.name!r}: {purpose}"))
        except BaseException:
            self._free(blocks)
            raise
        code, table, completion, log, *regions = blocks
        self._bus.write_memory(code, program.code)
        rows = b"".join(header.REGION_ROW.pack(address, size) for address, size in zip(regions, sizes, strict=True))
        self._bus.write_memory(table, rows)
        return LoadedProgram(program, code, tuple(regions), table, completion, log)

    def unload(self, loaded: LoadedProgram) -> None:
        """Give a program's memory back."""
        self._check_loaded(loaded)
        loaded.loaded = False
        self._free([loaded.code, loaded.table, loaded.completion, loaded.log, *loaded.regions])

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
        needed and no outputs come back. Raises InputError, or DeviceFaultError, after which the device has been reset.
        """
        self._check_loaded(loaded)
        if not timing_only:
            arrays = check_inputs(loaded.program.inputs, inputs or {})
            self._write_constants(loaded)
            self._write_inputs(loaded, arrays)
        fence = self._submit(loaded, timing_only)
        cycles = self._wait(loaded, fence, timeout_ps)
        outputs: dict[str, Array] = {}
        if not timing_only:
            outputs = {binding.name: self._read_output(loaded, binding) for binding in loaded.program.outputs}
        return JobResult(outputs, cycles, fence)

    # Steps of a run

    def _write_constants(self, loaded: LoadedProgram) -> None:
        constants = loaded.program.constants
        if constants.size and not loaded.resident:
            self._bus.write_memory(loaded.regions[CONSTANTS], np.ascontiguousarray(constants).data)
        loaded.resident = True

    def _write_inputs(self, loaded: LoadedProgram, arrays: Sequence[Array]) -> None:
        for binding, array in zip(loaded.program.inputs, arrays, strict=True):
            if array.nbytes:
                self._bus.write_memory(loaded.regions[binding.region], array.reshape(-1).view(np.uint8).data)

    def _read_output(self, loaded: LoadedProgram, binding: Binding) -> Array:
        raw = self._bus.read_memory(loaded.regions[binding.region], binding.nbytes) if binding.nbytes else bytearray()
        return np.frombuffer(raw, binding.dtype.storage).reshape(binding.shape)

    def _submit(self, loaded: LoadedProgram, timing_only: bool) -> int:
        self._fence += 1
        self._bus.host_work("submit")
        self._bus.write_memory(loaded.completion, header.COMPLETION.pack(self._fence, header.JOB_PENDING, 0, 0, 0))
        entry = header.ENTRY.pack(
            header.ENTRY_MAGIC, header.FLAG_TIMING_ONLY if timing_only else 0, loaded.code, len(loaded.program.code),
            len(loaded.regions), loaded.table, self._fence, loaded.completion, loaded.log, LOG_BYTES, 0,
        )  # fmt: skip
        self._bus.write_memory(self._ring + self._tail % RING_ENTRIES * header.ENTRY.size, entry)
        self._tail = self._tail + 1 & 0xFFFF_FFFF
        self._write(header.RING_TAIL, self._tail)
        self._write(header.DOORBELL, header.DOORBELL_RING)
        return self._fence

    def _wait(self, loaded: LoadedProgram, fence: int, timeout_ps: int) -> int:
        """The cycles of a job once it is done."""
        left = timeout_ps
        while True:
            came = self._bus.wait_irq(min(left, SLICE_PS))
            left -= 0 if came else min(left, SLICE_PS)
            if came:
                self._write(header.INT_STATUS, header.INT_DONE | header.INT_FAULT)
            raw = self._bus.read_memory(loaded.completion, header.COMPLETION.size)
            seen, status, _, _, cycles = header.COMPLETION.unpack(raw)
            if seen == fence and status == header.JOB_DONE:
                return int(cycles)
            self._check_fault(loaded, seen == fence and status == header.JOB_FAULT)
            if not left:
                self.reset()
                raise DeviceFaultError("TIMEOUT", loaded.code, f"no completion within {timeout_ps} ps")

    def _check_fault(self, loaded: LoadedProgram, logged: bool) -> None:
        """Raise what the device reports; ``logged``: it wrote a text about it."""
        status = self._read(header.STATUS)
        if status == header.GONE:
            raise DeviceFaultError("UNPLUGGED", 0, "the device is gone from the bus")
        if not status & header.STATUS_FAULT:
            return
        code = self._read(header.FAULT_CODE)
        address = self._read(header.FAULT_ADDR_HI) << 32 | self._read(header.FAULT_ADDR_LO)
        name = header.FAULT_NAMES[code] if code < len(header.FAULT_NAMES) else f"CODE_{code}"
        text = header.FAULT_MEANINGS.get(name, "a code that this driver does not know")
        if logged:
            text = bytes(self._bus.read_memory(loaded.log, LOG_BYTES)).split(b"\0", 1)[0].decode(errors="replace")
        self.reset()
        raise DeviceFaultError(name, address, text)

    # The device

    def _probe(self) -> None:
        found = self._read(header.ID)
        if found == header.GONE:
            raise DeviceFaultError("UNPLUGGED", 0, "there is no device on the bus")
        if found != header.DEVICE_ID:
            raise DeviceFaultError("UNKNOWN_DEVICE", 0, f"device ID must be {header.DEVICE_ID:#x}, got {found:#x}")
        version = self._read(header.VERSION) >> 16
        if version != header.INTERFACE_VERSION:
            raise DeviceFaultError(
                "UNKNOWN_VERSION", 0, f"interface version must be {header.INTERFACE_VERSION}, the device has {version}"
            )

    def _read(self, register: int) -> int:
        return self._bus.read(BAR_REGISTERS, register, 4)

    def _write(self, register: int, value: int) -> None:
        self._bus.write(BAR_REGISTERS, register, 4, value)

    # Memory

    @staticmethod
    def _least(program: Program, region: int) -> int:
        """What a region must hold whatever the program says of it."""
        if region == CONSTANTS:
            return int(program.constants.nbytes)
        return max((item.nbytes for item in (*program.inputs, *program.outputs) if item.region == region), default=0)

    @staticmethod
    def _pieces(program: Program, sizes: Sequence[int]) -> list[tuple[int, str]]:
        names = ["constants", "scratch", *(f"region {number}" for number in range(FIRST_IO, len(sizes)))]
        for binding in (*program.inputs, *program.outputs):
            names[binding.region] = f"tensor {binding.name!r}"
        fixed = [
            (len(program.code), "code"),
            (len(sizes) * header.REGION_ROW.size, "region table"),
            (header.COMPLETION.size, "completion record"),
            (LOG_BYTES, "log"),
        ]
        return fixed + list(zip(sizes, names, strict=False))

    def _free(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._memory.free(block)

    @staticmethod
    def _check_loaded(loaded: LoadedProgram) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")
