"""The copy engine: moves bytes between host memory and DRAM by a ring of descriptors, concurrently with jobs.

A descriptor with the flag RECORD always gets a completion record, and the engine continues. Without a record to report
a fault, the engine halts until software writes CONTROL.CONTINUE; jobs continue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from npusim.device.interrupts import COPIED, FAULT, FROM_COPY, FROM_FAULT
from npusim.device.port import ControlPort, fault_of
from npusim.device.registers import BY_NAME, COPY, RegisterFile
from npusim.device.ring import COMPLETION, DESCRIPTOR, HOST, Completion, CopyFlag, Descriptor, JobStatus
from npusim.hw.hostside import PciConfig
from npusim.sim.clock import Event
from npusim.sim.jobstate import fault_of as fault_of_state
from npusim.sim.jobstate import fault_state
from npusim.sim.machine import Machine
from npusim.sim.memory import AddressError
from npusim.sim.owner import EventOwner
from npusim.sim.saved import Saved
from npusim.timeline import DeviceFault, FaultCode
from npusim.units import cycles_spanned

_log = logging.getLogger("npusim.device")

_STOPPED = next(field.mask for field in BY_NAME["STATUS"].fields if field.name == "COPY_FAULT")
_COUNT = 0xFFFF_FFFF
_WANTS_RECORD = int(CopyFlag.RECORD)


class _Turn(NamedTuple):
    """Progress of one copy: the address of its descriptor, the time at which it was taken, the descriptor once it has
    been read, and the result."""

    epoch: int
    address: int
    began: int
    copy: Descriptor | None = None
    fault: DeviceFault | None = None


class Copies(EventOwner):
    """Executes copies in ring order. They use the link to the host; like bulk copies by the host, they do not compete
    for DRAM bandwidth. ``interrupt(bits, *sources)`` raises interrupts."""

    EVENTS = ("_fetched", "_move", "_report")

    def __init__(
        self,
        machine: Machine,
        registers: RegisterFile,
        port: ControlPort,
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
        """Drop every copy. The bytes of the current one have not been written."""
        self._epoch += 1
        self._tail = 0  # as latched at the doorbell
        self._busy = self._stopped = self._read_entry = False

    def doorbell(self) -> None:
        """Latch TAIL. While the engine is halted after a fault, the new descriptors wait for go_on."""
        self._tail = self._values[f"{COPY}_TAIL"]
        self._consider()

    def go_on(self) -> None:
        """Continue after a fault: drop the descriptor with the fault, or all of a ring that is invalid."""
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
            self._stop(DeviceFault(FaultCode.RING, 0, f"{waiting} descriptors wait in a ring of {size}"))
            return
        address = self._registers.get_pair(f"{COPY}_BASE") + head % size * DESCRIPTOR.size
        began = self._machine.clock.now
        delay = self._port.read_ps(address, DESCRIPTOR.size)
        self._machine.clock.after(delay, self._fetched, _Turn(self._epoch, address, began))

    def _fetched(self, event: Event) -> None:
        turn = cast("_Turn", event.value)
        if self.is_void(turn):
            return
        address = turn.address
        try:
            raw = self._port.load(address, DESCRIPTOR.size)
        except AddressError as error:
            self._stop(fault_of(error, "copy descriptor"))
            return
        self._read_entry = True
        copy = Descriptor(*DESCRIPTOR.unpack(raw))
        problem = copy.mistake
        if problem:
            self._stop(DeviceFault(FaultCode.RING, address, problem))
            return
        dram = self._machine.config.dram.bytes
        for place in (copy.source, copy.destination):
            # Checked before the time is computed, because the size may be any value.
            if not place & HOST and place + copy.size > dram:
                explanation = f"copy: {copy.size} bytes at {place:#x}: DRAM has {dram:#x} bytes"
                self._ended(turn._replace(copy=copy, fault=DeviceFault(FaultCode.ADDRESS, place, explanation)))
                return
        self._machine.clock.after(self._move_ps(copy), self._move, turn._replace(copy=copy))

    def _move_ps(self, copy: Descriptor) -> int:
        """The time of a copy in ps: both latencies, and the bytes at the lowest bandwidth on the path."""
        ends = self._port.read_ps(copy.source, 0) + self._port.write_ps(copy.destination, 0)
        flow = self._machine.control_ps(copy.size) - self._machine.control_ps(0)
        return ends + (max(flow, self._pci.flow_ps(copy.size)) if copy.touches_host else flow)

    def _move(self, event: Event) -> None:
        turn = cast("_Turn", event.value)
        if self.is_void(turn):
            return
        copy, fault = turn.copy, None
        assert copy is not None
        try:
            self._port.store(copy.destination, self._port.load(copy.source, copy.size))
        except AddressError as error:
            fault = fault_of(error, "copy")
        else:
            for watcher in tuple(self._machine.watchers):
                watcher.copied(copy.source, copy.destination, copy.size)
        self._ended(turn._replace(fault=fault))

    def _ended(self, turn: _Turn) -> None:
        copy = turn.copy
        assert copy is not None
        if copy.flags & _WANTS_RECORD:
            ready = self._port.write_ps(copy.completion, COMPLETION.size)
            self._machine.clock.after(ready, self._report, turn)
        elif turn.fault:
            self._stop(turn.fault)
        else:
            self._next()

    def _report(self, event: Event) -> None:
        turn = cast("_Turn", event.value)
        if self.is_void(turn):
            return
        copy, fault = turn.copy, turn.fault
        assert copy is not None
        status, code, address = JobStatus.DONE, FaultCode.NONE, 0
        if fault:
            _log.info("copy: fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
            status, code, address = JobStatus.FAULT, fault.code, fault.address
        cycles = cycles_spanned(self._machine.clock.now - turn.began, self._machine.config.clock_hz)
        try:
            record = COMPLETION.pack(*Completion(copy.seqno, status, code, address, cycles))
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

    def _stop(self, fault: DeviceFault) -> None:
        _log.info("copies have stopped: fault %s at %#x: %s", fault.code.name, fault.address, fault.explanation)
        self._busy, self._stopped = False, True
        self._registers.set("COPY_FAULT_CODE", fault.code)
        self._registers.set_pair("COPY_FAULT_ADDR", fault.address)
        self._registers.set("STATUS", self._values["STATUS"] | _STOPPED)
        self._interrupt(FAULT, FROM_FAULT)

    # Its state

    def is_void(self, value: Any) -> bool:
        return cast("_Turn", value).epoch != self._epoch

    def awaits(self) -> list[list[str]]:
        """The events that may be pending for the current copy."""
        return [["_fetched", "_move", "_report"]] * self._busy

    def value_state(self, value: Any) -> list[Any]:
        turn = cast("_Turn", value)
        copy = None if turn.copy is None else list(turn.copy)
        return [turn.address, turn.began, copy, fault_state(turn.fault)]

    def value_of(self, method: str, saved: Saved) -> _Turn:
        address, began, fields, fault = saved.items(4)
        copy = None
        if not fields.missing:
            copy = Descriptor(*fields.integers(len(Descriptor._fields), 0, (1 << 64) - 1))
        if (copy is None) != (method == "_fetched") or (copy and copy.mistake):
            raise fields.refuse("a copy descriptor, where one has been read")
        dram = self._machine.config.dram.bytes
        began_ps = began.integer(0, self._machine.clock.now)
        known = fault_of_state(fault)[0]
        if (
            copy
            and not known
            and any(not at & HOST and at + copy.size > dram for at in (copy.source, copy.destination))
        ):
            raise fields.refuse("a copy within DRAM")
        return _Turn(self._epoch, address.integer(0, (1 << 64) - 1), began_ps, copy, known)

    def state(self) -> dict[str, Any]:
        """The state as plain data."""
        return {"tail": self._tail, "busy": self._busy, "stopped": self._stopped, "read_entry": self._read_entry}

    def restore(self, saved: Saved) -> None:
        """Restore the state after a reset. Raises CheckpointError."""
        self._tail = saved["tail"].integer(0, _COUNT)
        self._busy, self._stopped = saved["busy"].flag(), saved["stopped"].flag()
        self._read_entry = saved["read_entry"].flag()
