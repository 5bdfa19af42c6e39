"""File descriptors: access modes and duplicates."""

from __future__ import annotations

import contextlib
import fcntl
import os

WRITE_SEALS = fcntl.F_SEAL_WRITE | 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1; Python has no name for it
"""Seals that prevent new writable mappings of a file."""


def duplicate(descriptor: int) -> int:
    """A duplicate of the descriptor, or -1 on failure."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except (OSError, TypeError, ValueError, OverflowError):
        return -1


def is_open(descriptor: int) -> bool:
    """Whether the descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def seals_of(descriptor: int) -> int:
    """The seals of a file; none if its kind does not support seals."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # a file that does not support seals
        return 0


def is_writable(descriptor: int) -> bool:
    """Whether the file can be read and written through the descriptor."""
    mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return mode == os.O_RDWR and not seals_of(descriptor) & WRITE_SEALS


def close_all(descriptors: list[int]) -> None:
    """Close descriptors and clear the list; -1 is skipped."""
    while descriptors:
        descriptor = descriptors.pop()
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
