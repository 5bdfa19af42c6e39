"""The contract between software and a device, and between a device and what carries it.

Who advances time: only calls of :class:`Bus`. A register access costs the host's MMIO time, a bulk copy the link's
latency and bandwidth, ``wait_irq`` runs the device until an interrupt comes, ``host_work`` is the host's own time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

BAR_REGISTERS = 0
"""Registers, 4 bytes wide, little-endian, naturally aligned."""
BAR_MEMORY = 2
"""Aperture onto device DRAM: offset = device address."""


_DOUBTFUL = [byte * size for byte in (b"\x00", b"\xff") for size in range(1, 5)]


class Turn(NamedTuple):
    """A job that the device has done before, to be done again: where its program and its regions lie, as in its ring
    entry and region table; what software writes before it and reads after it; the picoseconds that all of this took."""

    code: int
    code_bytes: int
    regions: tuple[tuple[int, int], ...]
    writes: Sequence[tuple[int, npt.NDArray[np.uint8]]]
    reads: Sequence[tuple[int, int]]
    spent_ps: int


def is_doubtful(address: int, data: bytes | bytearray) -> bool:
    """Whether a bulk copy may have read a device that was not there, or that has lost its memory, to the end: its last
    aligned word, as far as the copy goes, is all ones or zero."""
    return data[-((address + len(data) - 1) % 4 + 1) :] in _DOUBTFUL


class Bus(ABC):
    """One device as a driver reaches it, and all that a driver knows. A PCI function or a socket may implement it."""

    @abstractmethod
    def read(self, bar: int, offset: int, size: int) -> int:
        """The ``size`` (1, 2, 4 or 8) bytes at an offset of a BAR; a device that is gone reads as all ones."""

    @abstractmethod
    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """Write ``size`` (1, 2, 4 or 8) bytes at an offset of a BAR."""

    @abstractmethod
    def read_memory(self, address: int, size: int) -> bytearray:
        """A bulk copy of ``size`` bytes of device DRAM, by the host's DMA through the aperture.

        Words are read in ascending order: of a device that goes meanwhile, the rest is all ones.
        """

    @abstractmethod
    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """A bulk copy of bytes into device DRAM."""

    def fill_memory(self, address: int, size: int, fill: Callable[[npt.NDArray[np.uint8]], None]) -> None:
        """A bulk copy of ``size`` bytes that lie scattered: ``fill`` writes them into the array that it is given.

        A transport that reaches device DRAM directly gives that array, and nothing is copied twice.
        """
        data = np.empty(size, np.uint8)
        fill(data)
        self.write_memory(address, data.data)

    @abstractmethod
    def wait_irq(self, timeout_ps: int) -> int:
        """Wait for an interrupt: the set of vectors that came, as bits, which are taken off; 0 after ``timeout_ps``."""

    def now_ps(self) -> int | None:
        """The host's clock, which stands still while nothing passes the bus; None where the transport has none."""
        return None

    def quiet_ps(self) -> int | None:
        """How long the device certainly does nothing, if software does nothing: a simulator may know it. None: for
        ever, so that what has not ended will not end. 0 where the transport does not know."""
        return 0

    @abstractmethod
    def host_work(self, kind: str) -> None:
        """The host spends time of its own. ``kind``: ``submit``, the work of handing one job to the device, or ``map``,
        that of making one pool of host memory reachable for it.
        """

    def note(self, what: str, address: int = 0, size: int = 0) -> None:  # noqa: B027 - most have nobody to tell
        """For the driver sanitizer: device memory was ``allocated`` or ``freed`` by the driver, or the driver is
        ``done``, and has freed all. The device does nothing, no time passes; a driver may leave it out."""

    def repeat(self, rounds: Sequence[Sequence[Turn]], most: int) -> int:
        """Do rounds of jobs once more, in turn, up to ``most``; how many were done, and the time of that has passed.

        The effect is that of submitting them one after the other, on a device that does nothing else. A round does not
        count, and is the last, when a job is a fault or a read after it is doubtful. The default does none: it is for
        transports without a shorter way than rings and interrupts.
        """
        return 0


class RegisterModel(Protocol):
    """A device as its transport sees it: accesses take no time here, the transport charges it."""

    def read(self, bar: int, offset: int, size: int) -> int:
        """As :meth:`Bus.read`."""

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """As :meth:`Bus.write`."""


class DmaError(Exception):
    """Host memory that a device cannot reach. Arguments: bus address, why."""

    def __init__(self, address: int, explanation: str, /) -> None:
        super().__init__(address, explanation)
        self.address = address
        self.explanation = explanation


class Transport(Protocol):
    """Delivers interrupts and accesses to host memory."""

    pinned: bool
    """Whether it has an interrupt pin, so that :meth:`level` must be called."""

    def irq(self, vector: int) -> None:
        """The device sends the interrupt message of a vector."""

    def level(self) -> None:
        """The level of the interrupt pin may have changed."""

    def cancel_irqs(self) -> None:
        """Drop messages that have not been sent, after a reset."""

    def dma_read(self, address: int, size: int) -> bytes:
        """Bytes of host memory by bus address. Raises DmaError."""

    def dma_write(self, address: int, data: bytes) -> None:
        """As :meth:`dma_read`."""
