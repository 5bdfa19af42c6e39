"""The contract between software and a device, and between a device and its transport.

Time only advances in calls of :class:`Bus`. A register access takes the MMIO time of the host, a bulk copy the latency
and bandwidth of the link. ``wait_irq`` runs the device until an interrupt arrives; ``host_work`` takes time on the
host.
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
"""Aperture onto device DRAM: offset = DRAM address."""


_DOUBTFUL = [byte * size for byte in (b"\x00", b"\xff") for size in range(1, 5)]


class Turn(NamedTuple):
    """One job of a round to be repeated (:meth:`Bus.repeat`): the addresses of its program and regions, as in its ring
    entry and region table; the bulk writes before it and reads after it; the picoseconds that all of this took."""

    code: int
    code_bytes: int
    regions: tuple[tuple[int, int], ...]
    writes: Sequence[tuple[int, npt.NDArray[np.uint8]]]
    reads: Sequence[tuple[int, int]]
    spent_ps: int


def is_doubtful(address: int, data: bytes | bytearray) -> bool:
    """Whether a bulk copy may have read a device that was removed or has lost its memory: its last aligned word, as far
    as it was copied, is all ones or zero."""
    return data[-((address + len(data) - 1) % 4 + 1) :] in _DOUBTFUL


class Bus(ABC):
    """One device as its driver sees it. A bus may be a simulated host, a PCI function or a socket."""

    @abstractmethod
    def read(self, bar: int, offset: int, size: int) -> int:
        """Read ``size`` (1, 2, 4 or 8) bytes at an offset of a BAR. A removed device reads as all ones."""

    @abstractmethod
    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """Write ``size`` (1, 2, 4 or 8) bytes at an offset of a BAR."""

    @abstractmethod
    def read_memory(self, address: int, size: int) -> bytearray:
        """Copy ``size`` bytes from device DRAM, by DMA of the host through the aperture.

        Words are read in ascending order. If the device is removed meanwhile, the rest reads as all ones.
        """

    @abstractmethod
    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Copy bytes to device DRAM."""

    def fill_memory(self, address: int, size: int, fill: Callable[[npt.NDArray[np.uint8]], None]) -> None:
        """Copy ``size`` scattered bytes to device DRAM: ``fill`` writes them into the array that it is given.

        A transport with direct access to device DRAM passes that array, which saves a copy.
        """
        data = np.empty(size, np.uint8)
        fill(data)
        self.write_memory(address, data.data)

    @abstractmethod
    def wait_irq(self, timeout_ps: int) -> int:
        """Wait for an interrupt. Returns the vectors that have arrived as bits, and clears them; 0 after
        ``timeout_ps``."""

    def now_ps(self) -> int | None:
        """Host time in ps, which only advances in calls of the bus; None if the transport does not know it."""
        return None

    def quiet_ps(self) -> int | None:
        """How long in ps the device will be idle if software does nothing, as a simulator may know. None: for ever, so
        that jobs that have not ended never will. 0 if the transport does not know."""
        return 0

    @abstractmethod
    def host_work(self, kind: str) -> None:
        """Spend time on the host. ``kind``: ``submit`` for submitting one job, or ``map`` for mapping one pool of host
        memory for the device."""

    def note(self, what: str, address: int = 0, size: int = 0) -> None:  # noqa: B027 - most have nobody to tell
        """A hint for the driver sanitizer: device memory was ``allocated`` or ``freed`` by the driver, or the driver is
        ``done`` and has freed everything. No effect on the device and on time. Optional for drivers."""

    def repeat(self, rounds: Sequence[Sequence[Turn]], most: int) -> int:
        """Repeat rounds of jobs, in turn, up to ``most`` rounds. Returns how many were done; their time has passed.

        The effect is that of submitting them one after the other, on a device that does nothing else. A round does not
        count, and is the last, when a job is a fault or a read after it is doubtful. The default does none: it is for
        transports without a shorter way than rings and interrupts.
        """
        return 0


class RegisterModel(Protocol):
    """A device as its transport sees it. Accesses take no time here; the transport adds it."""

    def read(self, bar: int, offset: int, size: int) -> int:
        """As :meth:`Bus.read`."""

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """As :meth:`Bus.write`."""


class DmaError(Exception):
    """An address in host memory that the device cannot access. Arguments: bus address, reason."""

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
        """Write bytes of host memory by bus address. Raises DmaError."""
