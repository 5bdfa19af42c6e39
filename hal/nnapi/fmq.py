"""Message queues between a client and its burst, and the entries of its two channels.

A queue has room for a fixed number of entries. One ``write`` is one packet and is atomic.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .types import DataLocation, ErrorStatus, MeasureTiming, Timing

T = TypeVar("T")


def _never() -> bool:
    return False


class _Union:
    """A union of the interface: exactly one of the fields is set."""

    __slots__ = ()

    @property
    def member(self) -> str | None:
        """The name of the field that is set; None unless it is exactly one."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        found = [field.name for field in fields if getattr(self, field.name) is not None]
        return found[0] if len(found) == 1 else None


@dataclass(slots=True)
class FmqRequestDatum(_Union):
    """One entry of a request: the head of the packet, an operand, a dimension of an operand, a pool, or the end."""

    @dataclass(slots=True)
    class PacketInformation:
        """The head of a request. ``packetSize`` counts all entries, including this one."""

        packetSize: int
        numberOfInputOperands: int
        numberOfOutputOperands: int
        numberOfPools: int

    @dataclass(slots=True)
    class OperandInformation:
        """One argument, followed by one entry per dimension."""

        hasNoValue: bool
        location: DataLocation
        numberOfDimensions: int

    packetInformation: PacketInformation | None = None
    inputOperandInformation: OperandInformation | None = None
    inputOperandDimensionValue: int | None = None
    outputOperandInformation: OperandInformation | None = None
    outputOperandDimensionValue: int | None = None
    poolIdentifier: int | None = None
    measureTiming: MeasureTiming | int | None = None


@dataclass(slots=True)
class FmqResultDatum(_Union):
    """One entry of a result: the head of the packet, an output, a dimension of an output, or the times."""

    @dataclass(slots=True)
    class PacketInformation:
        """The head of a result. ``packetSize`` counts all entries, including this one."""

        packetSize: int
        errorStatus: ErrorStatus
        numberOfOperands: int

    @dataclass(slots=True)
    class OperandInformation:
        """One output, followed by one entry per dimension."""

        isSufficient: bool
        numberOfDimensions: int

    packetInformation: PacketInformation | None = None
    operandInformation: OperandInformation | None = None
    operandDimensionValue: int | None = None
    executionTiming: Timing | None = None


class MessageQueue(Generic[T]):
    """A queue of ``capacity`` entries. Any thread may write or read; a timeout of None is unlimited.

    ``close`` ends all waits: later writes fail, present entries can still be read.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: deque[T] = deque()
        self._packets: deque[int] = deque()  # remaining entries of each packet
        self._closed = False
        self._changed = threading.Condition()

    def getQuantumCount(self) -> int:
        """The capacity in entries."""
        return self._capacity

    def isValid(self) -> bool:
        """Whether the queue is usable: it has a capacity and is not closed."""
        return self._capacity > 0 and not self._closed

    def availableToRead(self) -> int:
        """The number of entries that can be read."""
        return len(self._entries)

    def availableToWrite(self) -> int:
        """The number of free entries."""
        return self._capacity - len(self._entries)

    def write(self, data: Sequence[T]) -> bool:
        """Write a packet without waiting; False if it does not fit."""
        return self.writeBlocking(data, 0)

    def writeBlocking(
        self, data: Sequence[T], timeout_s: float | None = None, cancelled: Callable[[], bool] = _never
    ) -> bool:
        """Write a packet, waiting for space. False after the timeout, if the queue is closed, or if the packet can
        never fit."""
        packet = list(data)
        if not packet or len(packet) > self._capacity:
            return False
        with self._changed:
            # Check again after waiting: it may have ended by timeout, close or cancellation.
            self._wait(lambda: len(packet) <= self.availableToWrite() or cancelled(), timeout_s)
            if self._closed or len(packet) > self.availableToWrite():
                return False
            self._entries.extend(packet)
            self._packets.append(len(packet))
            self._changed.notify_all()
        return True

    def read(self, count: int) -> list[T] | None:
        """Read ``count`` entries of any packets without waiting; None if there are fewer."""
        return self.readBlocking(count, 0)

    def readBlocking(self, count: int, timeout_s: float | None = None) -> list[T] | None:
        """Read ``count`` entries, waiting for them; None after the timeout or if the queue is closed."""
        with self._changed:
            self._wait(lambda: len(self._entries) >= count, timeout_s)
            return self._take(count) if 0 <= count <= len(self._entries) else None

    def readPacket(self, timeout_s: float | None = None, cancelled: Callable[[], bool] = _never) -> list[T] | None:
        """Read one packet, or its rest; None after the timeout, if the queue is closed, or if ``cancelled`` is true.

        ``cancelled`` is called after each change and after ``wake``.
        """
        with self._changed:
            self._wait(lambda: bool(self._packets) or cancelled(), timeout_s)
            return self._take(self._packets[0]) if self._packets and not cancelled() else None

    def wake(self) -> None:
        """Wake all waiting readers and writers."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], timeout_s: float | None) -> None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not (ready() or self._closed):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return
            self._changed.wait(left)

    def _take(self, count: int) -> list[T]:
        taken = [self._entries.popleft() for _ in range(count)]
        while count:
            part = min(count, self._packets[0])
            count -= part
            self._packets[0] -= part
            if not self._packets[0]:
                self._packets.popleft()
        self._changed.notify_all()
        return taken
