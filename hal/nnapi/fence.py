"""Sync fences: file descriptors that signal the end of an operation and its success.

A fence is an eventfd. Its state is visible to ``poll``, so any number of holders can read it without changing it:

| state | counter | POLLIN | POLLOUT |
|---|---|---|---|
| ACTIVE | 0 | no | yes |
| SIGNALED | from 1 on | yes | yes |
| ERROR | 2**64 - 2, the most there can be | yes | no |

The kernel makes the first signal final: a full counter accepts nothing more, and a counter other than 0 has no space
for the error value. Nobody may read the counter, which would reset it. Two other kinds of descriptors are accepted:

- sync_files of the Linux kernel. They poll as readable once they are signalled, with or without an error, and never as
  writable; SYNC_IOC_FILE_INFO distinguishes the two.
- Readable ends of pipes and sockets: data means SIGNALED, and a writer that has closed without data means ERROR.

A handle is a list of one descriptor. The caller owns handles that are arguments; the receiver of a handle closes its
descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import fcntl
import os
import select
import socket
import stat
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Self

from .errors import StatusError, invalid_argument
from .types import ErrorStatus

Handle = Sequence[int] | None

_ERROR_COUNT = (1 << 64) - 2

# From <linux/sync_file.h>.
_SYNC_IOC_FILE_INFO = 0xC0383E04
_FILE_INFO = struct.Struct("=32s i I I I Q")
"""struct sync_file_info: name, status, flags, num_fences, padding, address of the fences."""
_FENCE_INFO_BYTES = 80
"""Bytes of a struct sync_fence_info."""


class FenceStatus(enum.Enum):
    """The states of a fence."""

    ACTIVE = "active"
    SIGNALED = "signaled"
    ERROR = "error"


class Fence:
    """The owner of a fence, which signals it.

    A fence that is closed or collected without a signal enters the error state, so that no one waits forever.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._close = weakref.finalize(self, _abandon, self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def status(self) -> FenceStatus:
        """The current state."""
        return status(self._descriptor)

    def signal(self) -> None:
        """Signal success. No effect on a fence in the error state."""
        self._settle(1)

    def signal_error(self) -> None:
        """Signal failure. No effect on a fence that is already signalled."""
        self._settle(_ERROR_COUNT)

    def _settle(self, count: int) -> None:
        if not self._close.alive:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, "the fence is closed")
        _write(self._descriptor, count)

    @property
    def handle(self) -> list[int]:
        """A handle to pass as an argument. The fence still owns the descriptor."""
        return [self._descriptor]

    def dup(self) -> list[int]:
        """A handle to give away. Its receiver closes the descriptor."""
        return [os.dup(self._descriptor)]

    def close(self) -> None:
        """Close the descriptor. Duplicates keep the state."""
        self._close()


def create() -> Fence:
    """A new fence, ACTIVE."""
    return Fence()


def check(handle: Handle) -> int:
    """The descriptor of a fence handle. Raises StatusError (INVALID_ARGUMENT) if it is null, closed or not a fence."""
    if not isinstance(handle, Sequence) or len(handle) != 1 or not isinstance(handle[0], int):
        raise invalid_argument(f"a fence handle must hold one descriptor, got {handle!r}")
    status(handle[0])
    return handle[0]


def check_good(handle: Handle) -> None:
    """As :func:`check`. A fence in the error state also raises StatusError (INVALID_ARGUMENT)."""
    descriptor = check(handle)
    if status(descriptor) is FenceStatus.ERROR:
        raise invalid_argument(f"the sync fence behind descriptor {descriptor} is in error")


def status(descriptor: int) -> FenceStatus:
    """The state of the fence with a descriptor. Raises StatusError (INVALID_ARGUMENT) if it is not a fence."""
    kind = _kind(descriptor)
    events = _poll(descriptor, select.POLLIN | select.POLLOUT, 0)
    if kind == 0:
        if events & select.POLLOUT:
            return FenceStatus.SIGNALED if events & select.POLLIN else FenceStatus.ACTIVE
        told = _sync_file_status(descriptor)
        if told is not None:
            return told
        if not events & select.POLLIN:
            raise invalid_argument(
                f"descriptor {descriptor} is not a fence: it is neither an eventfd nor a sync_file of the kernel"
            )
        return FenceStatus.ERROR
    if events & select.POLLIN:
        return FenceStatus.SIGNALED if kind == stat.S_IFIFO or _has_data(descriptor) else FenceStatus.ERROR
    return FenceStatus.ERROR if events & (select.POLLHUP | select.POLLERR) else FenceStatus.ACTIVE


def wait(handle: Handle, timeout_s: float | None = None) -> FenceStatus:
    """Wait for one fence, without a limit or for ``timeout_s`` seconds. Returns ACTIVE after a timeout."""
    descriptor = check(handle)
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while (state := status(descriptor)) is FenceStatus.ACTIVE:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            break
        # Rounded up: poll takes whole milliseconds, and with 0 the last one would be spent spinning.
        _poll(descriptor, select.POLLIN, None if left is None else left * 1000 + 1)
    return state


def _sync_file_status(descriptor: int) -> FenceStatus | None:
    """The state of a sync_file; None for any other descriptor."""
    info = bytearray(_FILE_INFO.pack(b"", 0, 0, 0, 0, 0))
    try:
        fcntl.ioctl(descriptor, _SYNC_IOC_FILE_INFO, info)
        _, state, _, count, _, _ = _FILE_INFO.unpack(info)
        if state == 1 and count:
            # A second query with space for all members: a merged fence is signalled even if one of them has failed.
            fences = ctypes.create_string_buffer(count * _FENCE_INFO_BYTES)
            info = bytearray(_FILE_INFO.pack(b"", 0, 0, count, 0, ctypes.addressof(fences)))
            fcntl.ioctl(descriptor, _SYNC_IOC_FILE_INFO, info)
            members = _FILE_INFO.unpack(info)[1]
            state = members if members < 0 else state
    except OSError:
        return None
    if state < 0:
        return FenceStatus.ERROR
    return FenceStatus.SIGNALED if state else FenceStatus.ACTIVE


def _kind(descriptor: int) -> int:
    """0 for an eventfd or a sync_file (they have no file type), S_IFIFO or S_IFSOCK."""
    try:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, TypeError, OverflowError, ValueError) as error:
        raise invalid_argument(f"descriptor {descriptor} is not open: {error}") from None
    # Nothing is known about data in the pipe of a write end.
    if kind not in {0, stat.S_IFIFO, stat.S_IFSOCK} or mode == os.O_WRONLY:
        raise invalid_argument(
            f"descriptor {descriptor} is not a fence: it must be an eventfd, a sync_file, or the readable end of a "
            "pipe or socket"
        )
    return kind


def _poll(descriptor: int, mask: int, timeout_ms: float | None) -> int:
    poller = select.poll()
    poller.register(descriptor, mask)
    found = poller.poll(timeout_ms)
    return found[0][1] if found else 0


def _has_data(descriptor: int) -> bool:
    """Whether a readable socket has data, and not only end of file."""
    with contextlib.closing(socket.socket(fileno=os.dup(descriptor))) as duplicate:
        try:
            # Peek, since others may hold the same fence.
            return bool(duplicate.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


def _write(descriptor: int, count: int) -> None:
    with contextlib.suppress(BlockingIOError):  # no space: the fence was settled before
        os.eventfd_write(descriptor, count)


def _abandon(descriptor: int) -> None:
    _write(descriptor, _ERROR_COUNT)
    os.close(descriptor)
