"""The device behind the registers: takes jobs from the ring, runs them on the machine, reports how they ended.

A device never raises at software: whatever goes wrong with a job ends in STATUS.FAULT, FAULT_CODE, FAULT_ADDR, a
completion record where there is one, and an interrupt. After a reset through CONTROL the device works again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS
from npusim.device.host import HostBus
from npusim.device.registers import BY_NAME, RegisterFile
from npusim.device.ring import (
    COMPLETION,
    ENTRY,
    ENTRY_MAGIC,
    MAX_REGIONS,
    REGION_ROW,
    Completion,
    JobFlag,
    JobStatus,
    RingEntry,
)
from npusim.hw.config import Config
from npusim.isa.base import ISA_VERSION
from npusim.sim.fault import Fault, FaultCode
from npusim.sim.inject import Injection
from npusim.sim.machine import Machine
from npusim.sim.memory import AddressError
from npusim.sim.plan import PlanError
from npusim.sim.run import Job, JobRecord, Run
from npusim.timeline import Counters

_log = logging.getLogger("npusim.device")

INTERFACE_VERSION = 1
VECTOR = 0
"""The one interrupt vector."""

_READY, _BUSY, _FAULT = (BY_NAME["STATUS"].fields[number].mask for number in range(3))
_INT_DONE, _INT_FAULT = (BY_NAME["INT_STATUS"].fields[number].mask for number in range(2))


class NpuDevice:
    """A simulated device. Software gets :attr:`bus`; tools may look at :attr:`machine` and at :attr:`last_job`, which
    says what the last ended job did.

    ``injection``: faults to inject, none by default; its fields may be changed at any time.
    """

    def __init__(self, config: Config, injection: Injection | None = None) -> None:
        self.config = config
        self.injection = injection or Injection()
        self.last_job: JobRecord | None = None
        self.machine = Machine(config, self.injection)
        self._clock = self.machine.clock
        self._registers = RegisterFile(
            _capabilities(config),
            {"control": self._control, "int_mask": self._int_mask, "doorbell": self._doorbell},
            {"cycles": self._hold_cycles},
        )
        self._host = HostBus(config, self._clock, self.machine.memory, self)
        self.bus = self._host
        self._epoch = 0  # events of an earlier epoch are of before a reset
        self._started_ps = 0

    @property
    def misuse(self) -> list[str]:
        """What software did to the registers that had no effect, oldest first."""
        return self._registers.misuse

    @property
    def now_ps(self) -> int:
        """Simulated time since power-on."""
        return self._clock.now

    def unplug(self) -> None:
        """Take the device off the bus: reads give all ones from here on."""
        self.injection.unplugged = True
        self._host.connected = False

    def close(self) -> None:
        """Switch the device off for good: its memory goes back to the host at once, not when Python collects it."""
        self.unplug()
        self._epoch += 1
        self.machine.abort()
        self.machine.memory.release()

    def read(self, bar: int, offset: int, size: int) -> int:
        """An access by software; takes no time here."""
        if self.injection.unplugged or size not in (1, 2, 4, 8):
            return (1 << 8 * size) - 1
        if bar == BAR_REGISTERS:
            return self._registers.read(offset, size)
        if bar == BAR_MEMORY:
            try:
                return int.from_bytes(self.machine.memory.slice(offset, size).tobytes(), "little")
            except AddressError as fault:
                _log.warning("aperture read: %s", fault.explanation)
        return (1 << 8 * size) - 1

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """An access by software; takes no time here."""
        if self.injection.unplugged or size not in (1, 2, 4, 8):
            return
        value &= (1 << 8 * size) - 1
        if bar == BAR_REGISTERS:
            self._registers.write(offset, size, value)
        elif bar == BAR_MEMORY:
            self._store(offset, value.to_bytes(size, "little"))

    # Registers

    def _control(self, value: int) -> None:
        if value:
            self._epoch += 1
            self.machine.abort()
            self._registers.reset()

    def _int_mask(self, mask: int) -> None:
        if mask & self._registers.get("INT_STATUS"):
            self._deliver()

    def _hold_cycles(self) -> None:
        self._registers.set_pair("CYCLES", self._clock.now * self.config.clock_hz // 10**12)

    def _doorbell(self, value: int) -> None:
        if value and self._registers.get("STATUS") == _READY:
            self._take_entry()

    def _raise(self, bits: int) -> None:
        self._registers.set("INT_STATUS", self._registers.get("INT_STATUS") | bits)
        if bits & self._registers.get("INT_MASK"):
            self._deliver()

    def _deliver(self) -> None:
        if self.injection.lose_interrupts:
            self.injection.lose_interrupts -= 1
        elif not self.injection.unplugged:
            self._host.irq(VECTOR)

    # Jobs

    def _take_entry(self) -> None:
        """Begin with the next ring entry, if there is one."""
        registers = self._registers
        size, head = registers.get("RING_SIZE"), registers.get("RING_HEAD")
        waiting = registers.get("RING_TAIL") - head & 0xFFFF_FFFF
        if not waiting:
            return
        self._started_ps = self._clock.now
        registers.set("STATUS", _READY | _BUSY)
        if not size or size & (size - 1) or waiting > size:
            self._refuse(FaultCode.RING, 0, f"{waiting} entries wait in a ring of {size}")
            return
        address = registers.get_pair("RING_BASE") + head % size * ENTRY.size
        self._fetch(address, ENTRY.size, lambda raw: self._begin(address, RingEntry(*ENTRY.unpack(raw))))

    def _fetch(self, address: int, size: int, then: Callable[[bytes], None]) -> None:
        """Read control data from DRAM, which takes time; a reset meanwhile makes it void."""
        epoch = self._epoch

        def arrived() -> None:
            if epoch != self._epoch:
                return
            try:
                raw = self.machine.memory.slice(address, size).tobytes()
            except AddressError as fault:
                self._refuse(FaultCode.ADDRESS, fault.address, f"control data: {fault.explanation}")
                return
            then(raw)

        self.machine.control_access(size, arrived)

    def _begin(self, address: int, entry: RingEntry) -> None:
        problem = _bad_entry(entry)
        if problem:
            self._refuse(FaultCode.RING, address, problem)
            return
        size = entry.region_count * REGION_ROW.size
        self._fetch(entry.region_table, size, lambda raw: self._start(entry, list(REGION_ROW.iter_unpack(raw))))

    def _start(self, entry: RingEntry, regions: list[tuple[int, int]]) -> None:
        self._flip_bits()
        arithmetic = not entry.flags & JobFlag.TIMING_ONLY
        job = Job(entry.program_address, entry.program_bytes, regions, self._started_ps, arithmetic)
        try:
            self.machine.start(job, lambda run: self._ended(entry, run, run.fault))
        except PlanError as error:
            address = entry.program_address + error.offset
            self._ended(entry, None, Fault(FaultCode.PROGRAM, address, error.explanation))
        except AddressError as error:
            self._ended(entry, None, Fault(FaultCode.ADDRESS, error.address, error.explanation))
        except Exception as error:  # noqa: BLE001 - whatever software wrote must not come back to it as an exception
            _log.exception("starting a job")
            explanation = f"{type(error).__name__}: {error}"
            self._ended(entry, None, Fault(FaultCode.INTERNAL, entry.program_address, explanation))

    def _flip_bits(self) -> None:
        flips = self.injection.flips[:]
        self.injection.flips.clear()
        for address, bit in flips:
            try:
                self.machine.memory.slice(address, 1)[0] ^= np.uint8(1 << (bit & 7))
            except AddressError as fault:
                _log.warning("bit flip: %s", fault.explanation)

    def _ended(self, entry: RingEntry, run: Run | None, fault: Fault | None) -> None:
        """The job is over; its completion record is on its way to DRAM."""
        epoch = self._epoch

        def written() -> None:
            if epoch == self._epoch:
                self._report(entry, run, fault)

        self.machine.control_access(COMPLETION.size, written)

    def _report(self, entry: RingEntry, run: Run | None, fault: Fault | None) -> None:
        record = self._record(run, fault)
        self.last_job = record
        status = JobStatus.FAULT if fault else JobStatus.DONE
        code, address = (fault.code, fault.address) if fault else (FaultCode.NONE, 0)
        if fault and entry.log_bytes:
            self._store(entry.log, fault.explanation.encode()[: entry.log_bytes - 1] + b"\0")
        self._store(entry.completion, COMPLETION.pack(*Completion(entry.fence, status, code, address, record.cycles)))
        if fault:
            self._stop(fault)
            return
        registers = self._registers
        registers.set("RING_HEAD", registers.get("RING_HEAD") + 1 & 0xFFFF_FFFF)
        registers.set_pair("FENCE", entry.fence)
        registers.set("STATUS", _READY)
        self._raise(_INT_DONE)
        self._take_entry()

    def _record(self, run: Run | None, fault: Fault | None) -> JobRecord:
        now = self._clock.now
        if run is not None:
            return run.record(now, self.config.clock_hz)
        duration = now - self._started_ps
        cycles = -(-duration * self.config.clock_hz // 10**12)
        return JobRecord(counters=Counters(duration), cycles=cycles, time_ps=duration, fault=fault)

    def _refuse(self, code: FaultCode, address: int, explanation: str) -> None:
        """A fault before there is a job: no completion record."""
        fault = Fault(code, address, explanation)
        self.last_job = self._record(None, fault)
        self._stop(fault)

    def _stop(self, fault: Fault) -> None:
        _log.info("fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
        self._registers.set("STATUS", _FAULT)
        self._registers.set("FAULT_CODE", fault.code)
        self._registers.set_pair("FAULT_ADDR", fault.address)
        self._raise(_INT_FAULT | _INT_DONE)

    def _store(self, address: int, data: bytes) -> None:
        try:
            self.machine.memory.slice(address, len(data))[:] = np.frombuffer(data, np.uint8)
        except AddressError as fault:
            _log.warning("write: %s", fault.explanation)


def _bad_entry(entry: RingEntry) -> str:
    """What is wrong with a ring entry; empty if nothing is."""
    if entry.magic != ENTRY_MAGIC:
        return f"ring entry: first word must be {ENTRY_MAGIC:#x}, got {entry.magic:#x}"
    if entry.flags & ~int(JobFlag.TIMING_ONLY) or entry.reserved:
        return f"ring entry: reserved bits are set: flags {entry.flags:#x}, reserved {entry.reserved:#x}"
    if entry.region_count > MAX_REGIONS:
        return f"ring entry: region count must be <= {MAX_REGIONS}, got {entry.region_count}"
    return ""


def _capabilities(config: Config) -> dict[str, int]:
    """The values of the registers that the config decides."""
    matrix, vector = config.matrix, config.vector
    present = (matrix is not None) << 16 | (vector is not None) << 17 | (config.scalar is not None) << 18
    return {
        "VERSION": ISA_VERSION | INTERFACE_VERSION << 16,
        "CAP_UNITS": config.cores | config.dma.channels << 8 | present,
        "CAP_MATRIX": matrix.rows | matrix.cols << 16 if matrix else 0,
        "CAP_VECTOR": vector.lanes if vector else 0,
        "CAP_SRAM_LO": config.sram.bytes & 0xFFFF_FFFF,
        "CAP_SRAM_HI": config.sram.bytes >> 32,
        "CAP_ACC": matrix.accumulator_bytes if matrix else 0,
        "CAP_DRAM_LO": config.dram.bytes & 0xFFFF_FFFF,
        "CAP_DRAM_HI": config.dram.bytes >> 32,
        "CAP_CLOCK": config.clock_hz // 1000,
        "CAP_QUEUE": config.queue_depth,
    }
