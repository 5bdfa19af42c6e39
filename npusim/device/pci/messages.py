"""Interrupt messages: MSI and MSI-X, their masks and pending bits. The pin is in :mod:`npusim.device.pci.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from npusim.device.pci import space
from npusim.device.pci.space import ConfigSpace

ROW_BYTES = 16
"""An entry of the MSI-X table: address (8), data (4), control (4), whose bit 0 is the mask."""
_MASKED = 1


class Message(NamedTuple):
    """The write to host memory that signals an interrupt."""

    address: int
    data: int


class Messages:
    """Decides whether the message of a vector is sent, pending behind a mask, or dropped.

    ``send(vector)`` sends it. ``host_masks``: the transport keeps the MSI-X table and its masks itself, as clients of
    VFIO do, so they are ignored here.
    """

    def __init__(self, config: ConfigSpace, vectors: int, send: Callable[[int], None], host_masks: bool) -> None:
        self._config = config
        self._vectors = vectors
        self._send = send
        self._host_masks = host_masks
        self.table = bytearray()
        """The MSI-X table as read by software."""
        self._pending = 0
        self.reset()

    def reset(self) -> None:
        """Mask all MSI-X vectors and clear their addresses and all pending bits."""
        self.table[:] = (bytes(12) + _MASKED.to_bytes(4, "little")) * self._vectors
        self.forget()

    def forget(self) -> None:
        """Drop pending messages."""
        self._pending = 0
        self._config.set(space.MSI_PENDING, 4, 0)

    @property
    def pending(self) -> int:
        """The MSI-X pending bits."""
        return 0 if self.kind == "msi" else self._pending

    @property
    def kind(self) -> str:
        """``msix``, ``msi``, or ``intx`` if neither is enabled. MSI-X has precedence; software must not enable both."""
        if self._config.get(space.MSIX_CONTROL, 2) & space.MSIX_ENABLE:
            return "msix"
        return "msi" if self._config.get(space.MSI_CONTROL, 2) & space.MSI_ENABLE else "intx"

    def raise_(self, vector: int) -> None:
        """Raise a vector. With MSI, several vectors share a message if software has granted fewer messages than there
        are vectors."""
        kind = self.kind
        if kind == "intx":
            return
        if kind == "msi":
            vector &= self._granted() - 1
        self._pending |= 1 << vector
        self.settle()

    def settle(self) -> None:
        """Send pending messages that are no longer masked."""
        kind = self.kind
        if kind == "intx":
            self._pending = 0
        ready = self._pending & ~self._masked(kind) if self._pending else 0
        self._pending &= ~ready
        # Before a message is sent, because its receiver may read the bits.
        self._config.set(space.MSI_PENDING, 4, self._pending if kind == "msi" else 0)
        while ready:
            vector = (ready & -ready).bit_length() - 1
            ready &= ready - 1
            self._send(vector)

    def message(self, vector: int) -> Message:
        """Address and data of the message of a vector, as set up by software."""
        if self.kind == "msix":
            row = self.table[vector * ROW_BYTES : (vector + 1) * ROW_BYTES]
            return Message(int.from_bytes(row[:8], "little"), int.from_bytes(row[8:12], "little"))
        data = self._config.get(space.MSI_DATA, 2)
        return Message(self._config.get(space.MSI_ADDRESS, 8), data & ~(self._granted() - 1) | vector)

    def _granted(self) -> int:
        """Number of MSI messages granted by software."""
        control = self._config.get(space.MSI_CONTROL, 2)
        return 1 << min(control >> 4 & 7, control >> 1 & 7)

    def _masked(self, kind: str) -> int:
        if kind == "msi":
            return self._config.get(space.MSI_MASK, 4)
        if self._host_masks:
            return 0
        if self._config.get(space.MSIX_CONTROL, 2) & space.MSIX_MASK_ALL:
            return -1
        return sum((self.table[vector * ROW_BYTES + 12] & _MASKED) << vector for vector in range(self._vectors))

    # The MSI-X structures in BAR 0

    def read_table(self, offset: int, size: int) -> int:
        """Read the MSI-X table as software."""
        return int.from_bytes(self.table[offset : offset + size], "little")

    def write_table(self, offset: int, size: int, value: int) -> None:
        """``offset`` is aligned and in the table, ``size`` is 4 or 8."""
        for place in range(offset, offset + size, 4):
            part = value >> 8 * (place - offset) & 0xFFFF_FFFF
            part &= {0: 0xFFFF_FFFC, 12: _MASKED}.get(place % ROW_BYTES, 0xFFFF_FFFF)
            self.table[place : place + 4] = part.to_bytes(4, "little")
        self.settle()
