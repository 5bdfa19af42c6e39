"""Host memory accessed through a socket: windows of bus addresses that map to files of the peer.

Files are read and written, not mapped: if a peer truncates a file or lies about its size, the access raises an error;
with a mapping it would kill the process.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import os
import stat
from dataclasses import dataclass
from typing import Protocol

from npusim.device.pci import DmaError

MOST_WINDOWS = 256
"""Limit, because each window may hold a file descriptor."""
END = 1 << 64
"""Bus addresses have 64 bits."""


class Remote(Protocol):
    """Access by messages to memory without a file. Raises DmaError."""

    def read(self, address: int, size: int) -> bytes: ...

    def write(self, address: int, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class DmaWindow:
    """Bus addresses from ``address`` on. ``file``: contains the bytes from ``offset`` on; None: accessed by
    messages."""

    address: int
    size: int
    readable: bool
    writable: bool
    file: int | None = None
    offset: int = 0

    @property
    def end(self) -> int:
        return self.address + self.size


class HostMemory:
    """Windows that do not overlap. Raises OSError with a number for an invalid window, DmaError for an access
    outside."""

    def __init__(self, remote: Remote | None = None) -> None:
        self._windows: list[DmaWindow] = []  # sorted by address
        self._remote = remote

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, window: DmaWindow) -> None:
        """Add a window, which then owns the descriptor; if this raises, it does not."""
        if not 0 < window.size <= END - window.address or window.address < 0:
            raise OSError(errno.EINVAL, "a window must have bytes and end within 64 bits")
        if len(self._windows) >= MOST_WINDOWS:
            raise OSError(errno.ENOSPC, f"there are {MOST_WINDOWS} windows")
        if self._overlapping(window.address, window.size):
            raise OSError(errno.EEXIST, "there is a window at these addresses")
        if window.file is not None:
            _check_file(window.file, window)
        bisect.insort(self._windows, window, key=lambda each: each.address)

    def remove(self, address: int, size: int) -> None:
        """Remove a window and close its file."""
        found = [each for each in self._windows if (each.address, each.size) == (address, size)]
        if not found:
            raise OSError(errno.ENOENT, "there is no such window")
        self._windows.remove(found[0])
        if found[0].file is not None:
            os.close(found[0].file)

    def clear(self) -> None:
        for window in list(self._windows):
            self.remove(window.address, window.size)

    def read(self, address: int, size: int) -> bytes:
        """The bytes at a bus address, possibly from several windows."""
        parts = []
        for window, begin, count in self._cover(address, size):
            if not window.readable:
                raise DmaError(begin, "the host does not let the device read there")
            parts.append(self._read(window, begin, count))
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        """Write bytes at a bus address; none if a window is missing or read-only."""
        cover = self._cover(address, len(data))
        for window, begin, _ in cover:
            if not window.writable:
                raise DmaError(begin, "the host does not let the device write there")
        for window, begin, count in cover:
            self._write(window, begin, data[begin - address : begin - address + count])

    def _read(self, window: DmaWindow, address: int, size: int) -> bytes:
        if window.file is None:
            return self._by_message().read(address, size)
        try:
            data = os.pread(window.file, size, window.offset + address - window.address)
        except OSError as error:
            raise DmaError(address, f"the host's memory cannot be read: {error.strerror}") from None
        if len(data) < size:
            raise DmaError(address + len(data), "the host has truncated the file of its memory")
        return data

    def _write(self, window: DmaWindow, address: int, data: bytes) -> None:
        if window.file is None:
            self._by_message().write(address, data)
            return
        try:
            written = os.pwrite(window.file, data, window.offset + address - window.address)
        except OSError as error:
            raise DmaError(address, f"the host's memory cannot be written: {error.strerror}") from None
        if written < len(data):
            raise DmaError(address + written, "the host's memory cannot be written: its file is full")

    def _by_message(self) -> Remote:
        if self._remote is None:
            raise AssertionError("a window without a file needs a remote")
        return self._remote

    def _overlapping(self, address: int, size: int) -> list[DmaWindow]:
        first = max(bisect.bisect_right(self._windows, address, key=lambda each: each.address) - 1, 0)
        last = bisect.bisect_left(self._windows, address + size, key=lambda each: each.address)
        return [each for each in self._windows[first:last] if each.end > address]

    def _cover(self, address: int, size: int) -> list[tuple[DmaWindow, int, int]]:
        """The windows of an access, each with its address and bytes."""
        found, here, end = [], address, address + size
        for window in self._overlapping(address, size) if size else ():
            if window.address > here:
                break
            count = min(window.end, end) - here
            found.append((window, here, count))
            here += count
        if here < end:
            raise DmaError(here, "the host has no memory for the device there")
        return found


def _check_file(file: int, window: DmaWindow) -> None:
    """Raise OSError for a descriptor that is not memory: a pipe could block the device for ever."""
    status, mode = os.fstat(file), fcntl.fcntl(file, fcntl.F_GETFL)
    access = mode & os.O_ACCMODE
    if not stat.S_ISREG(status.st_mode) or mode & (os.O_APPEND | getattr(os, "O_PATH", 0)):
        raise OSError(errno.EINVAL, "memory must be a file that can be read and written anywhere")
    if (window.readable and access == os.O_WRONLY) or (window.writable and access == os.O_RDONLY):
        raise OSError(errno.EACCES, "the file is not open for what the window allows")
    if window.offset < 0 or window.offset + window.size > status.st_size:
        raise OSError(errno.EINVAL, "the file ends before the window")
