"""A driver written from docs/device.md alone.

It uses only the errors and the bus of npusim; constants come from the document. It fills the rings, although one job at
a time per priority would be enough.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npusim.errors import (
    DeviceFaultError,
    DeviceGoneError,
    DeviceMemoryError,
    InputError,
    JobAbortedError,
    QueueFullError,
    UsageError,
)

ID, VERSION, CAP_DRAM, CAP_CONTEXT = 0x000, 0x004, 0x028, 0x038
CONTROL, STATUS, INT_STATUS, INT_MASK = 0x040, 0x044, 0x048, 0x04C
FAULT_CODE, FAULT_ADDR = 0x050, 0x054
CONTEXT_BASE, PREEMPT, ABORT_SEQNO, ABORT = 0x060, 0x068, 0x070, 0x078
RINGS = (0x100, 0x120, 0x140)
BASE, SIZE, HEAD, TAIL, DOORBELL = 0x00, 0x08, 0x0C, 0x10, 0x14
RESET, CONTINUE = 1, 2
ENTRIES = 8
ENTRY = struct.Struct("<IIQIIQQQQII")
MAGIC = 0x4A4F4231
RECORD = struct.Struct("<QIIQQ")
TEXT_BYTES = 256
FAULTS = ("NONE", "RING", "PROGRAM", "ADDRESS", "DATA", "DEADLOCK", "DMA", "INTERNAL")
LOOK_PS = 10**9  # poll the records after a millisecond without an interrupt, which may have been lost
TIMEOUT_PS = 10**13


@dataclass(eq=False)
class Loaded:
    program: Any
    code: int
    constants: int
    residents: int
    users: int = 0
    loaded: bool = True


@dataclass(eq=False)
class Job:
    loaded: Loaded
    ring: int
    seqno: int
    regions: list[int]
    table: int
    record: int
    text: int
    blocks: list[int]
    entry: int = 0
    ended: bool = False
    error: Exception | None = None
    cycles: int = 0
    outputs: dict[str, Any] = field(default_factory=dict)


class DocumentDriver:
    def __init__(self, bus: Any) -> None:
        self.bus = bus
        found = self.get(ID)
        if found == 0xFFFFFFFF:
            raise DeviceGoneError("GONE", 0, "there is no device on the bus")
        if found != 0x3155504E:
            raise DeviceFaultError("DEVICE", 0, f"ID is {found:#x}")
        if self.get(VERSION) >> 16 != 2:
            raise DeviceFaultError("DEVICE", 0, f"VERSION is {self.get(VERSION):#x}")
        self.blocks: dict[int, int] = {}
        self.dram = self.get64(CAP_DRAM)
        self.rings = [self.allocate(ENTRIES * ENTRY.size) for _ in RINGS]
        self.context = 0
        self.seqno = self.loads = 0
        self.inside: list[list[Job]] = [[] for _ in RINGS]
        self.reset()

    # Registers and memory

    def get(self, register: int) -> int:
        return int(self.bus.read(0, register, 4))

    def put(self, register: int, value: int) -> None:
        self.bus.write(0, register, 4, value)

    def get64(self, register: int) -> int:
        return self.get(register) | self.get(register + 4) << 32

    def put64(self, register: int, value: int) -> None:
        self.put(register, value & 0xFFFFFFFF)
        self.put(register + 4, value >> 32)

    def allocate(self, size: int) -> int:
        """Allocate first fit in steps of 256 bytes."""
        size = max(256, size + -size % 256)
        address = 0
        for begin, taken in sorted(self.blocks.items()):
            if begin - address >= size:
                break
            address = begin + taken
        if address + size > self.dram:
            raise DeviceMemoryError(f"{size} bytes of device memory required")
        self.blocks[address] = size
        self.bus.note("allocated", address, size)
        return address

    def free(self, address: int) -> None:
        self.bus.note("freed", address, self.blocks.pop(address))

    def allocate_all(self, sizes: list[int]) -> list[int]:
        blocks: list[int] = []
        try:
            for size in sizes:
                blocks.append(self.allocate(size))
        except DeviceMemoryError:
            for block in blocks:
                self.free(block)
            raise
        return blocks

    # The device

    def reset(self) -> None:
        self.look()
        for jobs in self.inside:
            for job in jobs:
                job.ended, job.error = True, JobAbortedError(f"job {job.seqno}: the device was reset")
            jobs.clear()
        self.put(CONTROL, RESET)
        for registers, base in zip(RINGS, self.rings, strict=True):
            self.put64(registers + BASE, base)
            self.put(registers + SIZE, ENTRIES)
        self.put(INT_MASK, 3)
        self.tails = [0] * len(RINGS)
        if self.context:
            self.enable_preemption()
        if self.get(STATUS) != 1:
            raise DeviceFaultError("NOT_READY", 0, f"STATUS is {self.get(STATUS):#x} after a reset")

    def enable_preemption(self) -> None:
        self.context = self.context or self.allocate(self.get64(CAP_CONTEXT))
        self.put64(CONTEXT_BASE, self.context)
        self.put(PREEMPT, 1)

    def close(self) -> None:
        self.reset()
        self.put(CONTROL, RESET)
        for block in list(self.blocks):
            self.free(block)
        self.bus.note("done")

    # Programs

    def load(self, program: Any) -> Loaded:
        code, constants = self.allocate_all([len(program.code), program.region_bytes[0]])
        self.bus.write_memory(code, program.code)
        self.write_constants(program, constants)
        self.loads += 1
        return Loaded(program, code, constants, self.loads)

    def write_constants(self, program: Any, address: int) -> None:
        if program.constants.nbytes:
            self.bus.fill_memory(address, program.constants.nbytes, program.constants.fill)

    def unload(self, loaded: Loaded) -> None:
        self.check(loaded)
        if loaded.users:
            raise UsageError("program is running")
        loaded.loaded = False
        self.free(loaded.code)
        self.free(loaded.constants)

    @staticmethod
    def check(loaded: Loaded) -> None:
        if not loaded.loaded:
            raise UsageError(f"program {loaded.program.name!r} has been unloaded")

    # Jobs

    def run(self, loaded: Loaded, inputs: dict[str, Any], *, timeout_ps: int = TIMEOUT_PS) -> Job:
        return self.wait(self.submit(loaded, inputs), timeout_ps)

    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        self.check(loaded)
        program = loaded.program
        self.check_inputs(program, inputs)
        if len(self.inside[priority]) == ENTRIES:
            raise QueueFullError(f"{ENTRIES} jobs are in the ring")
        sizes = list(program.region_bytes)
        table, record, text, *own = blocks = self.allocate_all([16 * len(sizes), 32, TEXT_BYTES, *sizes[1:]])
        self.seqno += 1
        job = Job(loaded, priority, self.seqno, [loaded.constants, *own], table, record, text, blocks)
        loaded.users += 1
        self.write_job(job, inputs)
        self.inside[priority].append(job)
        self.hand_over(job)
        return job

    @staticmethod
    def check_inputs(program: Any, inputs: dict[str, Any]) -> None:
        for item in program.inputs:
            array = inputs.get(item.name)
            if array is None:
                raise InputError(f"{item.name!r} is missing")
            if array.dtype != item.dtype.storage or array.shape != item.shape:
                raise InputError(f"{item.name!r}: dtype must be {item.dtype.storage}, got {array.dtype}")
        if len(inputs) != len(program.inputs):
            raise InputError("unknown inputs")

    def write_job(self, job: Job, inputs: dict[str, Any]) -> None:
        sizes = job.loaded.program.region_bytes
        rows = b"".join(struct.pack("<QQ", *row) for row in zip(job.regions, sizes, strict=True))
        self.bus.write_memory(job.table, rows)
        self.write_inputs(job, inputs)
        self.bus.write_memory(job.record, RECORD.pack(job.seqno, 0, 0, 0, 0))

    def write_inputs(self, job: Job, inputs: dict[str, Any]) -> None:
        for item in job.loaded.program.inputs:
            if item.nbytes:
                self.bus.write_memory(job.regions[item.region], inputs[item.name].tobytes())

    def hand_over(self, job: Job) -> None:
        self.write_entry(job)
        self.move_tail(job.ring)
        self.ring_doorbell(job.ring)

    def write_entry(self, job: Job) -> None:
        job.entry = self.rings[job.ring] + self.tails[job.ring] % ENTRIES * ENTRY.size
        self.bus.write_memory(job.entry, self.entry_of(job))

    def entry_of(self, job: Job) -> bytes:
        loaded = job.loaded
        return ENTRY.pack(
            MAGIC, 0, loaded.code, len(loaded.program.code), len(job.regions), job.table, job.seqno, job.record,
            job.text, TEXT_BYTES, loaded.residents,
        )  # fmt: skip

    def move_tail(self, ring: int) -> None:
        self.tails[ring] = self.tails[ring] + 1 & 0xFFFFFFFF
        self.put(RINGS[ring] + TAIL, self.tails[ring])

    def ring_doorbell(self, ring: int) -> None:
        self.put(RINGS[ring] + DOORBELL, 1)

    def wait(self, job: Job, timeout_ps: int = TIMEOUT_PS) -> Job:
        left = timeout_ps
        while not job.ended:
            slice_ps = min(left, LOOK_PS)
            if self.bus.wait_irq(slice_ps):
                self.acknowledge()
            else:
                left -= slice_ps
            if not self.look() and not job.ended and not left:
                self.give_up(job, timeout_ps)
        return self.finish(job)

    def give_up(self, job: Job, timeout_ps: int) -> None:
        self.reset()
        if isinstance(job.error, JobAbortedError):
            job.error = DeviceFaultError("TIMEOUT", 0, f"not done within {timeout_ps} ps")

    def acknowledge(self) -> None:
        self.put(INT_STATUS, 3)

    def look(self) -> bool:
        """Remove finished jobs. Returns whether there were any."""
        found = self.collect()
        if not found and any(self.inside):
            found = self.look_at_status()
        return found

    def collect(self) -> bool:
        """Remove finished jobs from each ring, in order. Returns whether there were any."""
        found = False
        for jobs in self.inside:
            while jobs and self.has_ended(jobs[0]):
                jobs.pop(0)
                found = True
        return found

    def has_ended(self, job: Job) -> bool:
        seqno, status, code, address, cycles = RECORD.unpack(self.bus.read_memory(job.record, RECORD.size))
        if seqno != job.seqno or status not in (1, 2, 3):
            return False
        job.ended, job.cycles = True, cycles
        if status == 2:
            text = bytes(self.bus.read_memory(job.text, TEXT_BYTES)).split(b"\0")[0].decode()
            job.error = DeviceFaultError(self.fault_name(code), address, text)
            self.put(CONTROL, CONTINUE)
        elif status == 3:
            job.error = JobAbortedError(f"job {job.seqno} was aborted")
        return True

    def look_at_status(self) -> bool:
        status = self.get(STATUS)
        if status == 0xFFFFFFFF:
            self.lose(DeviceGoneError("GONE", 0, "the device is gone"))
            return True
        if not status & 4:
            return False
        if self.collect():  # jobs ended between reading the records and reading STATUS
            return True
        self.lose(DeviceFaultError(self.fault_name(self.get(FAULT_CODE)), self.get64(FAULT_ADDR), "of no job"))
        self.reset()
        return True

    def lose(self, error: Exception) -> None:
        for jobs in self.inside:
            for job in jobs:
                job.ended, job.error = True, error
            jobs.clear()

    @staticmethod
    def fault_name(code: int) -> str:
        return FAULTS[code] if code < len(FAULTS) else f"CODE_{code}"

    def finish(self, job: Job) -> Job:
        try:
            if job.error is not None:
                raise job.error
            self.read_outputs(job)
        finally:
            job.loaded.users -= 1
            for block in job.blocks:
                self.free(block)
        return job

    def read_outputs(self, job: Job) -> None:
        for item in job.loaded.program.outputs:
            raw = self.bus.read_memory(job.regions[item.region], item.nbytes)
            self.check_presence(raw)
            job.outputs[item.name] = np.frombuffer(raw, item.dtype.storage).reshape(item.shape)

    def check_presence(self, raw: bytes | bytearray) -> None:
        """A final word of ones or zeros may mean that the device is gone or has lost its memory. Raises DeviceGoneError
        then."""
        if raw[-4:] in (b"\xff" * 4, bytes(4)) and self.get(INT_MASK) != 3:
            raise DeviceGoneError("GONE", 0, "the device went while outputs were read")

    def abort(self, job: Job) -> None:
        if job.ended:
            return
        self.bus.write_memory(job.entry + 4, struct.pack("<I", 2))  # cancelled if it has not started
        self.put64(ABORT_SEQNO, job.seqno)
        self.put(ABORT, 1)
