"""Handles, which clients hold instead of pointers. They are looked up, never dereferenced.

A handle is a serial number and a kind. Serial numbers are never reused, so handles of freed objects, of another kind,
or made up by the client are detected.
"""

from __future__ import annotations

import enum
import itertools
import threading
from typing import Any

from .codes import ApiError, ResultCode, bad_data

KIND_BITS = 4


class Kind(enum.IntEnum):
    """The kind of a handle, with the name of its C type."""

    Memory = 1
    MemoryDesc = 2
    Model = 3
    Compilation = 4
    Execution = 5
    Burst = 6
    Event = 7
    Device = 8


class HandleTable:
    """The objects that clients hold. Safe to use from any thread."""

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._serials = itertools.count(1)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._objects)

    def add(self, kind: Kind, thing: Any) -> int:
        """A new handle for an object."""
        with self._lock:
            handle = next(self._serials) << KIND_BITS | kind
            self._objects[handle] = thing
        return handle

    def get(self, kind: Kind, handle: int, what: str) -> Any:
        """The object of a handle. Raises ApiError: UNEXPECTED_NULL for 0, BAD_DATA if no object of this kind has the
        handle."""
        if not handle:
            raise ApiError(ResultCode.UNEXPECTED_NULL, f"{what} is NULL")
        thing = self._objects.get(handle) if handle & _KIND == kind else None
        if thing is None:
            raise bad_data(f"{what} must be an ANeuralNetworks{kind.name} that exists, got {handle:#x}")
        return thing

    def pop(self, kind: Kind, handle: int, what: str) -> Any:
        """:meth:`get`, and invalidate the handle."""
        thing = self.get(kind, handle, what)
        with self._lock:
            if self._objects.pop(handle, None) is None:
                raise bad_data(f"{what} was freed by another thread: {handle:#x}")
        return thing


_KIND = (1 << KIND_BITS) - 1
TABLE = HandleTable()
"""The handles of this process."""
