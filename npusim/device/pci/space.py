"""Configuration space: its bytes, which of them are writable, and the capability structures.

Names and offsets are those of Linux' ``pci_regs.h``; access rules are those of the PCI Express Base Specification 3.0,
chapter 7. All capabilities are below 0x100; there are no extended capabilities.
"""

from __future__ import annotations

from typing import NamedTuple

SPACE_BYTES = 4096
VENDOR_ID, DEVICE_ID = 0x1E4E, 0x0042
CLASS = 0x12_00_00
"""Processing accelerator."""

COMMAND, STATUS, BAR0, BAR2 = 0x04, 0x06, 0x10, 0x18
COMMAND_MEMORY, COMMAND_MASTER, COMMAND_INTX_DISABLE = 1 << 1, 1 << 2, 1 << 10
_COMMAND_WRITABLE = COMMAND_MEMORY | COMMAND_MASTER | 1 << 6 | 1 << 8 | COMMAND_INTX_DISABLE
STATUS_INTERRUPT, STATUS_TARGET_ABORT, STATUS_MASTER_ABORT = 1 << 3, 1 << 12, 1 << 13
_STATUS_CAPABILITIES, _STATUS_CLEARED = 1 << 4, 0xF900
_CACHE_LINE, _SUBSYSTEM, _CAPABILITIES, _INTERRUPT_LINE, _INTERRUPT_PIN = 0x0C, 0x2C, 0x34, 0x3C, 0x3D

PM, MSI, MSIX, EXPRESS = 0x40, 0x50, 0x70, 0x80
"""Offsets of the capabilities, in the order of the list."""
PM_CONTROL, PM_STATE = PM + 4, 3
MSI_CONTROL, MSI_ADDRESS, MSI_DATA, MSI_MASK, MSI_PENDING = MSI + 2, MSI + 4, MSI + 12, MSI + 16, MSI + 20
MSI_ENABLE = 1
MSIX_CONTROL, MSIX_MASK_ALL, MSIX_ENABLE = MSIX + 2, 1 << 14, 1 << 15
DEVICE_CONTROL, DEVICE_RESET = EXPRESS + 8, 1 << 15
DEVICE_STATUS, DEVICE_UNSUPPORTED = EXPRESS + 10, 1 << 3
_LINK_CONTROL, _LINK_STATUS, _DEVICE_CONTROL_2 = EXPRESS + 0x10, EXPRESS + 0x12, EXPRESS + 0x28
_LINK_CAPABILITIES_2, _LINK_CONTROL_2 = EXPRESS + 0x2C, EXPRESS + 0x30

_LINK_SPEED, _LINK_WIDTH = 3, 8
"""8 GT/s with eight lanes, as reported to software; the times of transfers depend on the config."""


class Bar(NamedTuple):
    """A base address register. ``prefetchable_64bit``: of that kind; else not prefetchable and below 4 GiB."""

    number: int
    size: int
    prefetchable_64bit: bool


class Features(NamedTuple):
    """Features of a function. ``vectors``: number of interrupt messages. ``table``, ``pending``: offsets of the MSI-X
    structures in BAR 0. ``revision``: of the device."""

    vectors: int
    table: int
    pending: int
    revision: int
    msi: bool = True
    msix: bool = True
    power_states: bool = True
    function_reset: bool = True


class ConfigSpace:
    """The 4096 bytes."""

    def __init__(self, bars: tuple[Bar, ...], features: Features) -> None:
        self._values = bytearray(SPACE_BYTES)
        self._writable = bytearray(SPACE_BYTES)
        self._cleared = bytearray(SPACE_BYTES)  # bits that a 1 clears
        self._features = features
        self._header(features.revision)
        for bar in bars:
            self._bar(bar)
        last = _CAPABILITIES
        for place, make, there in (
            (PM, self._power, features.power_states),
            (MSI, self._messages, features.msi),
            (MSIX, self._many_messages, features.msix),
            (EXPRESS, self._express, True),
        ):
            if there:
                self._put(last, 1, place)
                make()
                last = place + 1
        self._reset = bytes(self._values)

    def reset(self) -> None:
        """Reset to the state after power-on."""
        self._values[:] = self._reset

    def read(self, offset: int, size: int) -> int:
        """Read ``size`` bytes as software; all ones for an invalid access."""
        if not self._has(offset, size):
            return (1 << 8 * max(size, 0)) - 1
        return self.get(offset, size)

    def write(self, offset: int, size: int, value: int) -> None:
        """Write ``size`` bytes as software: read-only bits do not change, write-1-to-clear bits are cleared."""
        if not self._has(offset, size):
            return
        for place, byte in enumerate((value & (1 << 8 * size) - 1).to_bytes(size, "little"), offset):
            writable = self._writable[place]
            kept = self._values[place] & ~writable | byte & writable
            self._values[place] = kept & ~(byte & self._cleared[place])

    def get(self, offset: int, size: int) -> int:
        """Read a field as the function itself."""
        return int.from_bytes(self._values[offset : offset + size], "little")

    def set(self, offset: int, size: int, value: int) -> None:
        """Write a field as the function itself, whether software may write it or not."""
        self._values[offset : offset + size] = value.to_bytes(size, "little")

    @staticmethod
    def _has(offset: int, size: int) -> bool:
        return size in (1, 2, 4) and 0 <= offset <= SPACE_BYTES - size and not offset % size

    def _put(self, offset: int, size: int, value: int, writable: int = 0, cleared: int = 0) -> None:
        for place, number in ((self._values, value), (self._writable, writable), (self._cleared, cleared)):
            place[offset : offset + size] = number.to_bytes(size, "little")

    def _header(self, revision: int) -> None:
        """Header type 0; no expansion ROM, no I/O space."""
        self._put(0x00, 4, VENDOR_ID | DEVICE_ID << 16)
        self._put(COMMAND, 2, 0, _COMMAND_WRITABLE)
        self._put(STATUS, 2, _STATUS_CAPABILITIES, 0, _STATUS_CLEARED)
        self._put(0x08, 4, revision & 0xFF | CLASS << 8)
        self._put(_CACHE_LINE, 1, 0, 0xFF)
        self._put(_SUBSYSTEM, 4, VENDOR_ID | DEVICE_ID << 16)
        self._put(_INTERRUPT_LINE, 1, 0, 0xFF)
        self._put(_INTERRUPT_PIN, 1, 1)  # INTA#

    def _bar(self, bar: Bar) -> None:
        """Software sizes a BAR by writing ones: the address bits below the size stay 0."""
        size, kind = (8, 0xC) if bar.prefetchable_64bit else (4, 0)
        self._put(BAR0 + 4 * bar.number, size, kind, -bar.size & (1 << 8 * size) - 1 & ~0xF)

    # Capabilities: byte 1, the offset of the next one, is set when they are linked.

    def _power(self) -> None:
        self._put(PM, 4, 0x01 | 3 << 16)  # version 3; neither D1, D2 nor PME
        self._put(PM_CONTROL, 2, 0, PM_STATE)

    def _messages(self) -> None:
        """MSI: powers of two of messages, 64-bit addresses, a mask for each message."""
        capable = (self._features.vectors - 1).bit_length()
        self._put(MSI, 2, 0x05)
        self._put(MSI_CONTROL, 2, capable << 1 | 1 << 7 | 1 << 8, MSI_ENABLE | 7 << 4)
        self._put(MSI_ADDRESS, 8, 0, (1 << 64) - 4)
        self._put(MSI_DATA, 2, 0, 0xFFFF)
        self._put(MSI_MASK, 4, 0, (1 << self._features.vectors) - 1)

    def _many_messages(self) -> None:
        """MSI-X: the low three bits of both offsets are the BAR, which is 0."""
        self._put(MSIX, 2, 0x11)
        self._put(MSIX_CONTROL, 2, self._features.vectors - 1, MSIX_MASK_ALL | MSIX_ENABLE)
        self._put(MSIX + 4, 4, self._features.table)
        self._put(MSIX + 8, 4, self._features.pending)

    def _express(self) -> None:
        self._put(EXPRESS, 4, 0x10 | 2 << 16)  # version 2, an endpoint
        # 256 bytes of payload, role-based error reporting, function level reset
        self._put(EXPRESS + 4, 4, 1 | 1 << 15 | self._features.function_reset << 28)
        self._put(DEVICE_CONTROL, 2, 2 << 12 | 1 << 11 | 1 << 4, 0x7FFF)
        self._put(DEVICE_STATUS, 2, 0, 0, 0xF)
        self._put(EXPRESS + 0x0C, 4, _LINK_SPEED | _LINK_WIDTH << 4)
        self._put(_LINK_CONTROL, 2, 0, 0x00C3)
        self._put(_LINK_STATUS, 2, _LINK_SPEED | _LINK_WIDTH << 4)
        self._put(_DEVICE_CONTROL_2, 2, 0, 0x1F)
        self._put(_LINK_CAPABILITIES_2, 4, (1 << _LINK_SPEED) - 1 << 1)
        self._put(_LINK_CONTROL_2, 2, _LINK_SPEED, 0xF)
