"""Replay: the accesses of a trace once more, on a device as it was or on another, to the first that goes otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from npusim.device.bus import BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.device.registers import REGISTERS
from npusim.device.traces.format import WORKS, Access, Kind, Trace, digest
from npusim.device.traces.record import Tap

_NAMES = {register.offset: register.name for register in REGISTERS}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first access that went otherwise: its number in the trace, when it began, what it is, and what was expected
    and came."""

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
"""Is told of accesses as they end: when it began and ended, what it was, how many bytes passed; 0 for an interrupt."""


def replay(trace: Trace, device: NpuDevice, told: Told | None = None) -> Difference | None:
    """Do what the trace says with a device that was just switched on; the first difference, None if there is none.

    Each access begins as long after the one before it as in the trace, so that a difference in time shows once, where
    it comes from.
    """
    return _Replay(trace, device, told).run()


def describe(access: Access, trace: Trace) -> str:
    """What an access is, in words."""
    numbers = access.numbers
    match access.kind:
        case Kind.READ | Kind.WRITE:
            bar, size, offset, value = numbers
            name = f" ({_NAMES[offset]})" if bar == BAR_REGISTERS and offset in _NAMES else ""
            what = f"{size} bytes at {offset:#x} of BAR {bar}{name}"
            return f"read of {what}" if access.kind is Kind.READ else f"write of {value:#x}, {what}"
        case Kind.READ_MEMORY:
            return f"copy of {numbers[1]} bytes from {numbers[0]:#x}"
        case Kind.WRITE_MEMORY:
            return f"copy of {len(trace.contents[numbers[1]])} bytes to {numbers[0]:#x}"
        case Kind.WAIT:
            return f"wait for an interrupt, at most {numbers[0]} ps"
        case Kind.WORK:
            return f"host work {WORKS[numbers[0]]!r}"
        case Kind.INTERRUPT:
            return f"interrupt {numbers[0]}"


class _Replay:
    def __init__(self, trace: Trace, device: NpuDevice, told: Told | None) -> None:
        self._trace = trace
        self._bus = device.bus
        self._clock = device.machine.clock
        self._came: list[tuple[int, int]] = []  # (ps, vector) since the last access
        self._told = told
        device.connect(Tap(device.carrier, self._interrupted))

    def run(self) -> Difference | None:
        expected: list[tuple[int, int]] = []
        last = self._clock.now
        for number, access in enumerate(self._trace.accesses):
            if access.kind is Kind.INTERRUPT:
                expected.append((last + access.gap_ps, access.numbers[0]))
                continue
            self._clock.advance(last + access.gap_ps - self._clock.now)
            began = self._clock.now
            came = self._do(access)
            what = describe(access, self._trace)
            spent = self._clock.now - began
            if self._told is not None:
                self._told(began, began + spent, what, _bytes(access, self._trace))
            for was, now in self._differing(access, expected, came, spent):
                return Difference(number, began, what, was, now)
            expected.clear()
            self._came.clear()
            last = self._clock.now
        return None

    def _interrupted(self, vector: int) -> None:
        self._came.append((self._clock.now, vector))
        if self._told is not None:
            self._told(self._clock.now, self._clock.now, f"interrupt {vector}", 0)

    def _differing(
        self, access: Access, expected: list[tuple[int, int]], came: int | None, spent: int
    ) -> list[tuple[str, str]]:
        """What an access should have given, and what it has, where these differ."""
        found = []
        if expected != self._came:
            found.append((_interrupts(expected), _interrupts(self._came)))
        if came is not None and came != access.numbers[-1]:
            found.append(_values(access, came))
        if spent != access.spent_ps:
            found.append((f"{access.spent_ps} ps", f"{spent} ps"))
        return found

    def _do(self, access: Access) -> int | None:
        """What came of an access that gives something: the last of its numbers."""
        bus, numbers = self._bus, access.numbers
        match access.kind:
            case Kind.READ:
                return bus.read(numbers[0], numbers[2], numbers[1])
            case Kind.WRITE:
                bus.write(numbers[0], numbers[2], numbers[1], numbers[3])
            case Kind.READ_MEMORY:
                return digest(bus.read_memory(numbers[0], numbers[1]))
            case Kind.WRITE_MEMORY:
                bus.write_memory(numbers[0], self._trace.contents[numbers[1]])
            case Kind.WAIT:
                return bus.wait_irq(numbers[0])
            case _:
                bus.host_work(WORKS[numbers[0]])
        return None


def _bytes(access: Access, trace: Trace) -> int:
    """What passed, at least one: a wait or work of the host is an access, too."""
    if access.kind in (Kind.READ, Kind.WRITE, Kind.READ_MEMORY):
        return max(access.numbers[1], 1)
    return max(len(trace.contents[access.numbers[1]]), 1) if access.kind is Kind.WRITE_MEMORY else 1


def _values(access: Access, came: int) -> tuple[str, str]:
    if access.kind is Kind.READ_MEMORY:
        return f"bytes with digest {access.numbers[-1]:032x}", f"bytes with digest {came:032x}"
    if access.kind is Kind.WAIT:
        return f"vectors {access.numbers[-1]:#b}", f"vectors {came:#b}"
    return f"{access.numbers[-1]:#x}", f"{came:#x}"


def _interrupts(came: list[tuple[int, int]]) -> str:
    return ", ".join(f"interrupt {vector} at {at} ps" for at, vector in came) or "no interrupt"
