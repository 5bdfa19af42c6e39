"""The copy engine: moves bytes between host memory and DRAM, by a ring of descriptors, while jobs run.

A descriptor that wants a record gets one, whatever has become of it, and the engine goes on. Where there is no record
to tell of a fault, the engine stops until software writes CONTROL.CONTINUE; jobs go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from npusim.device.interrupts import COPIED, FAULT, FROM_COPY, FROM_FAULT
from npusim.device.port import Port, fault_of
from npusim.device.registers import BY_NAME, COPY, RegisterFile
from npusim.device.ring import COMPLETION, DESCRIPTOR, HOST, Completion, CopyFlag, Descriptor, JobStatus
from npusim.hw.hostside import PciConfig
from npusim.sim.machine import Machine
from npusim.sim.memory import AddressError
from npusim.timeline import Fault, FaultCode
from npusim.units import cycles_spanned

_log = logging.getLogger("npusim.device")

_STOPPED = next(field.mask for field in BY_NAME["STATUS"].fields if field.name == "COPY_FAULT")
_COUNT = 0xFFFF_FFFF
_WANTS_RECORD = int(CopyFlag.RECORD)


class Copies:
    """One copy after the other, in ring order. They take the link to the host; for the DRAM they compete with nobody,
    like the host's own bulk copies. ``interrupt(bits, *sources)`` raises."""

    def __init__(
        self,
        machine: Machine,
        registers: RegisterFile,
        port: Port,
        pci: PciConfig,
        interrupt: Callable[..., None],
    ) -> None:
        self._machine = machine
        self._registers = registers
        self._values = registers.values
        self._port = port
        self._pci = pci
        self._interrupt = interrupt
        self._epoch = 0
        self.reset()

    def reset(self) -> None:
        """Drop every copy, also the one under way: its bytes have not been written."""
        self._epoch += 1
        self._tail = 0  # as it was at the doorbell
        self._busy = self._stopped = self._read_entry = False

    def doorbell(self) -> None:
        """Take over TAIL. While the engine stands still after a fault, what it says waits for go_on."""
        self._tail = self._values[f"{COPY}_TAIL"]
        self._consider()

    def go_on(self) -> None:
        """After a fault: be done with the descriptor that it was in, or with all of a ring that makes no sense."""
        if not self._stopped:
            return
        self._stopped = False
        head = self._values[f"{COPY}_HEAD"] + 1 if self._read_entry else self._tail
        self._registers.set(f"{COPY}_HEAD", head & _COUNT)
        self._registers.set("COPY_FAULT_CODE", 0)
        self._registers.set_pair("COPY_FAULT_ADDR", 0)
        self._registers.set("STATUS", self._values["STATUS"] & ~_STOPPED)
        self._consider()

    def _consider(self) -> None:
        head, size = self._values[f"{COPY}_HEAD"], self._values[f"{COPY}_SIZE"]
        if self._busy or self._stopped or self._tail == head:
            return
        self._busy, self._read_entry = True, False
        waiting = self._tail - head & _COUNT
        if not size or size & (size - 1) or waiting > size:
            self._stop(Fault(FaultCode.RING, 0, f"{waiting} descriptors wait in a ring of {size}"))
            return
        address = self._registers.get_pair(f"{COPY}_BASE") + head % size * DESCRIPTOR.size
        began = self._machine.clock.now
        self._after(self._port.read_ps(address, DESCRIPTOR.size), lambda: self._fetched(address, began))

    def _fetched(self, address: int, began: int) -> None:
        try:
            raw = self._port.load(address, DESCRIPTOR.size)
        except AddressError as error:
            self._stop(fault_of(error, "copy descriptor"))
            return
        self._read_entry = True
        copy = Descriptor(*DESCRIPTOR.unpack(raw))
        problem = copy.mistake
        if problem:
            self._stop(Fault(FaultCode.RING, address, problem))
            return
        dram = self._machine.config.dram.bytes
        for place in (copy.source, copy.destination):
            # Before any time is reckoned with: the size may be anything.
            if not place & HOST and place + copy.size > dram:
                explanation = f"copy: {copy.size} bytes at {place:#x}: DRAM has {dram:#x} bytes"
                self._ended(copy, began, Fault(FaultCode.ADDRESS, place, explanation))
                return
        self._after(self._move_ps(copy), lambda: self._move(copy, began))

    def _move_ps(self, copy: Descriptor) -> int:
        """Both latencies, and the bytes once, at the narrower of what they pass."""
        ends = self._port.read_ps(copy.source, 0) + self._port.write_ps(copy.destination, 0)
        flow = self._machine.control_ps(copy.size) - self._machine.control_ps(0)
        return ends + (max(flow, self._pci.flow_ps(copy.size)) if copy.touches_host else flow)

    def _move(self, copy: Descriptor, began: int) -> None:
        fault = None
        try:
            self._port.store(copy.destination, self._port.load(copy.source, copy.size))
        except AddressError as error:
            fault = fault_of(error, "copy")
        else:
            for watcher in tuple(self._machine.watchers):
                watcher.copied(copy.source, copy.destination, copy.size)
        self._ended(copy, began, fault)

    def _ended(self, copy: Descriptor, began: int, fault: Fault | None) -> None:
        if copy.flags & _WANTS_RECORD:
            ready = self._port.write_ps(copy.completion, COMPLETION.size)
            self._after(ready, lambda: self._report(copy, began, fault))
        elif fault:
            self._stop(fault)
        else:
            self._next()

    def _report(self, copy: Descriptor, began: int, fault: Fault | None) -> None:
        status, code, address = JobStatus.DONE, FaultCode.NONE, 0
        if fault:
            _log.info("copy: fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
            status, code, address = JobStatus.FAULT, fault.code, fault.address
        cycles = cycles_spanned(self._machine.clock.now - began, self._machine.config.clock_hz)
        try:
            record = COMPLETION.pack(*Completion(copy.fence, status, code, address, cycles))
            self._port.store(copy.completion, record)
        except AddressError as error:
            self._stop(fault_of(error, "completion record of a copy"))
            return
        self._interrupt(COPIED, FROM_COPY)
        self._next()

    def _next(self) -> None:
        self._busy = False
        self._registers.set(f"{COPY}_HEAD", self._values[f"{COPY}_HEAD"] + 1 & _COUNT)
        self._consider()

    def _stop(self, fault: Fault) -> None:
        _log.info("copies have stopped: fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
        self._busy, self._stopped = False, True
        self._registers.set("COPY_FAULT_CODE", fault.code)
        self._registers.set_pair("COPY_FAULT_ADDR", fault.address)
        self._registers.set("STATUS", self._values["STATUS"] | _STOPPED)
        self._interrupt(FAULT, FROM_FAULT)

    def _after(self, delay: int, then: Callable[[], None]) -> None:
        epoch = self._epoch
        self._machine.clock.after(delay, lambda _: then() if epoch == self._epoch else None)
