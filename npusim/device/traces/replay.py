"""Replay: repeat the accesses of a trace on a device up to the first difference."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from npusim.device.bus import BAR_REGISTERS, Bus, DmaError
from npusim.device.npu import NpuDevice
from npusim.device.pci import PciFunction
from npusim.device.registers import REGISTERS
from npusim.device.traces.format import FROM_DEVICE, WORKS, RecordKind, Trace, TraceRecord, digest
from npusim.device.traces.record import InterruptTap
from npusim.errors import InputError

_NAMES = {register.offset: register.name for register in REGISTERS}
_Event = tuple[int, str]
"""(time in ps, text)."""


@dataclass(frozen=True, slots=True)
class TraceDifference:
    """The first access that differs: its number in the trace, its start, its text, and the expected and actual
    results."""

    number: int
    at_ps: int
    access: str
    expected: str
    came: str

    def to_json_dict(self) -> dict[str, int | str]:
        """JSON values, by the names of the fields."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"access {self.number} at {self.at_ps} ps: {self.access}: expected {self.expected}, got {self.came}"


Told = Callable[[int, int, str, int], None]
"""Called when an access ends: start, end, text, number of bytes; 0 bytes for actions of the device."""


def replay(trace: Trace, device: NpuDevice, told: Told | None = None) -> TraceDifference | None:
    """Repeat a trace on a device in the state after power-on. Returns the first difference, or None.

    Each access begins at the same distance from the previous one as in the trace, so that a difference in time is
    reported once, at its cause. For a trace that is not ``complete``, only its records are compared. Raises InputError
    for a trace that does not fit the device, and for one without accesses.
    """
    played = _Replay(trace, device, told)
    if not trace.compared:
        cut = "" if trace.complete else ": the file was cut off before the first"
        raise InputError(f"bus trace: nothing was compared, because it has no accesses{cut}")
    return played.run()


def describe(access: TraceRecord, trace: Trace) -> str:
    """An access as text."""
    numbers = access.numbers
    match access.kind:
        case RecordKind.READ | RecordKind.WRITE:
            bar, size, offset, value = numbers
            name = f" ({_NAMES[offset]})" if bar == BAR_REGISTERS and offset in _NAMES else ""
            what = f"{size} bytes at {offset:#x} of BAR {bar}{name}"
            return f"read of {what}" if access.kind is RecordKind.READ else f"write of {value:#x}, {what}"
        case RecordKind.CONFIG_READ | RecordKind.CONFIG_WRITE:
            size, offset, value = numbers
            what = f"{size} bytes at {offset:#x} of configuration space"
            return f"read of {what}" if access.kind is RecordKind.CONFIG_READ else f"write of {value:#x}, {what}"
        case RecordKind.READ_MEMORY:
            return f"copy of {numbers[1]} bytes from {numbers[0]:#x}"
        case RecordKind.WRITE_MEMORY:
            return f"copy of {len(trace.contents[numbers[1]])} bytes to {numbers[0]:#x}"
        case RecordKind.WAIT:
            return f"wait for an interrupt, at most {numbers[0]} ps"
        case RecordKind.WORK:
            return f"host work {WORKS[numbers[0]]!r}"
        case RecordKind.PASS:
            return "the end of the trace"
        case RecordKind.RESTART:
            return "reset by the transport"
        case _:
            return _event(access, trace)


def _event(access: TraceRecord, trace: Trace) -> str:
    """An action of the device as text; different actions have different texts."""
    numbers = access.numbers
    match access.kind:
        case RecordKind.INTERRUPT:
            return f"interrupt {numbers[0]}"
        case RecordKind.PIN:
            return f"pin {'asserted' if numbers[0] else 'released'}"
        case RecordKind.DMA_READ:
            return f"DMA read of {len(trace.contents[numbers[1]])} bytes at {numbers[0]:#x}"
        case RecordKind.DMA_WRITE:
            return f"DMA write of {numbers[1]} bytes at {numbers[0]:#x}, digest {numbers[2]:032x}"
        case _:
            return f"DMA of {numbers[1]} bytes at {numbers[0]:#x}"


class _Host:
    """The host of a replayed function. Reads of its memory return the data of the trace."""

    def __init__(self, trace: Trace, tell: Callable[[str], None], reads: deque[TraceRecord]) -> None:
        self._trace = trace
        self._tell = tell
        self._reads = reads  # includes refused reads, in the order of the trace

    def interrupt(self, vector: int) -> None:
        self._tell(f"interrupt {vector}")

    def intx(self, asserted: bool) -> None:
        self._tell(f"pin {'asserted' if asserted else 'released'}")

    def dma_read(self, address: int, size: int) -> bytes:
        if self._reads and self._reads[0].kind is RecordKind.DMA_READ and self._reads[0].numbers[0] == address:
            data = self._trace.contents[self._reads.popleft().numbers[1]]
            if len(data) == size:
                self._tell(f"DMA read of {size} bytes at {address:#x}")
                return data
        self._refuse(address, size)
        raise DmaError(address, "the trace has no such read")

    def dma_write(self, address: int, data: bytes) -> None:
        if self._reads and self._reads[0].kind is RecordKind.DMA_REFUSED and self._reads[0].numbers[0] == address:
            self._refuse(address, len(data))
        self._tell(f"DMA write of {len(data)} bytes at {address:#x}, digest {digest(data):032x}")

    def _refuse(self, address: int, size: int) -> None:
        self._tell(f"DMA of {size} bytes at {address:#x}")
        if self._reads and self._reads[0].kind is RecordKind.DMA_REFUSED and self._reads[0].numbers[0] == address:
            raise DmaError(self._reads.popleft().numbers[2], "as in the trace")


class _Replay:
    def __init__(self, trace: Trace, device: NpuDevice, told: Told | None) -> None:
        self._trace = trace
        self._clock = device.machine.clock
        self._came: list[_Event] = []  # since the last access
        self._told = told
        self._carried: Bus | PciFunction
        if trace.head.get("seam", "bus") == "function":
            asked = (RecordKind.DMA_READ, RecordKind.DMA_REFUSED)
            host = _Host(trace, self._tell, deque(each for each in trace.accesses if each.kind in asked))
            self._carried = PciFunction(device, host, **_how(trace))
        else:
            self._carried = device.bus
            device.connect(InterruptTap(device.transport, lambda vector: self._tell(f"interrupt {vector}")))

    def run(self) -> TraceDifference | None:
        expected: list[_Event] = []
        last = self._clock.now
        for number, access in enumerate(self._trace.accesses):
            if access.kind in FROM_DEVICE:
                expected.append((last + access.gap_ps, _event(access, self._trace)))
                continue
            self._clock.advance(last + access.gap_ps - self._clock.now)
            began = self._clock.now
            came = self._do(access)
            what = describe(access, self._trace)
            spent = self._clock.now - began
            if self._told is not None:
                self._told(began, began + spent, what, _bytes(access, self._trace))
            for was, now in self._differing(access, expected, came, spent):
                return TraceDifference(number, began, what, was, now)
            expected.clear()
            self._came.clear()
            last = self._clock.now
        return None

    def _tell(self, what: str) -> None:
        now = self._clock.now
        self._came.append((now, what))
        if self._told is not None:
            self._told(now, now, what, 0)

    def _differing(
        self, access: TraceRecord, expected: list[_Event], came: int | None, spent: int
    ) -> list[tuple[str, str]]:
        """The expected and actual results of an access that differ."""
        found = []
        if expected != self._came:
            found.append(_parting(expected, self._came))
        if came is not None and came != access.numbers[-1]:
            found.append(_values(access, came))
        if spent != access.spent_ps:
            found.append((f"{access.spent_ps} ps", f"{spent} ps"))
        return found

    def _do(self, access: TraceRecord) -> int | None:
        """Execute an access. Returns its value, if it has one."""
        carried, numbers = self._carried, access.numbers
        match access.kind:
            case RecordKind.READ:
                return carried.read(numbers[0], numbers[2], numbers[1])
            case RecordKind.WRITE:
                carried.write(numbers[0], numbers[2], numbers[1], numbers[3])
            case RecordKind.READ_MEMORY:
                return digest(carried.read_memory(numbers[0], numbers[1]))
            case RecordKind.WRITE_MEMORY:
                carried.write_memory(numbers[0], self._trace.contents[numbers[1]])
            case RecordKind.PASS:
                pass
            case _ if isinstance(carried, PciFunction):
                return _do_to_function(carried, access)
            case RecordKind.WAIT:
                return carried.wait_irq(numbers[0])
            case RecordKind.WORK:
                carried.host_work(WORKS[numbers[0]])
            case _:
                raise _misplaced(access)
        return None


def _do_to_function(function: PciFunction, access: TraceRecord) -> int | None:
    if access.kind is RecordKind.CONFIG_READ:
        return function.config_read(access.numbers[1], access.numbers[0])
    if access.kind is RecordKind.CONFIG_WRITE:
        function.config_write(access.numbers[1], access.numbers[0], access.numbers[2])
    elif access.kind is RecordKind.RESTART:
        function.restart()
    else:
        raise _misplaced(access)
    return None


def _misplaced(access: TraceRecord) -> InputError:
    return InputError(f"bus trace: {access.kind.name} is not allowed in a trace of this kind")


def _how(trace: Trace) -> dict[str, Any]:
    """The parameters of the function. Raises InputError."""
    how = trace.head.get("function")
    if isinstance(how, dict) and how.keys() <= {"host_masks", "aperture"}:
        masks, aperture = how.get("host_masks", False), how.get("aperture")
        if isinstance(masks, bool) and (aperture is None or (isinstance(aperture, int) and aperture > 15)):
            return {"host_masks": masks, "aperture": aperture}
    raise InputError("bus trace: its head lacks the parameters of the function")


def _bytes(access: TraceRecord, trace: Trace) -> int:
    """Number of bytes; at least one, because waits and host work are accesses, too."""
    if access.kind in (RecordKind.READ, RecordKind.WRITE, RecordKind.READ_MEMORY):
        return max(access.numbers[1], 1)
    return max(len(trace.contents[access.numbers[1]]), 1) if access.kind is RecordKind.WRITE_MEMORY else 1


def _values(access: TraceRecord, came: int) -> tuple[str, str]:
    if access.kind is RecordKind.READ_MEMORY:
        return f"bytes with digest {access.numbers[-1]:032x}", f"bytes with digest {came:032x}"
    if access.kind is RecordKind.WAIT:
        return f"vectors {access.numbers[-1]:#b}", f"vectors {came:#b}"
    return f"{access.numbers[-1]:#x}", f"{came:#x}"


def _parting(expected: list[_Event], came: list[_Event]) -> tuple[str, str]:
    """The first events that differ, as text."""
    place = next((n for n, pair in enumerate(zip(expected, came, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        place = min(len(expected), len(came))
    both = (events[place : place + 1] for events in (expected, came))
    was, now = (f"{each[0][1]} at {each[0][0]} ps" if each else "no more of the device" for each in both)
    return was, now
