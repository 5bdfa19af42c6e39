"""Shared memory as the interface passes it: a name, a handle and a size. The name says how to reach the bytes.

| name | descriptors | integers of the handle |
|---|---|---|
| ``ashmem`` | anonymous memory | none |
| ``mmap_fd`` | a file | protection, low and high 32 bits of the offset in the file |
| ``hardware_buffer_blob`` | the buffer's bytes | width (= bytes), height, layers, format, usage (low, high), stride |
| ``hardware_buffer`` | none | as above; a picture, which this driver describes but never maps |

A Memory owns duplicates of the descriptors it was given, as if it had come through a binder. A mapping lives as long as
any view of its bytes, whether the Memory was closed or not.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Sequence
from typing import Self

import numpy as np

from npusim._mapped import MappedFile

from ..errors import ErrorStatus, StatusError, invalid_argument
from .descriptors import WRITE_SEALS, close_all, duplicate, is_open, is_writable, seals_of
from .mapping import Identity, Mapping

ASHMEM = "ashmem"
MMAP_FD = "mmap_fd"
BLOB = "hardware_buffer_blob"
HARDWARE_BUFFER = "hardware_buffer"
MAPPABLE = (ASHMEM, MMAP_FD, BLOB)

FORMAT_BLOB = 0x21
"""AHARDWAREBUFFER_FORMAT_BLOB: bytes without a shape."""
FORMAT_R8G8B8A8_UNORM = 1

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_WORD = 0xFFFF_FFFF


class Memory:
    """The interface's ``memory``: its ``name``, ``handle`` (descriptors, owned) and ``ints`` of it, ``size`` in bytes.

    Nothing is checked here, because a driver must be able to receive anything: ``valid`` and ``check`` do it. What
    cannot be duplicated becomes -1.
    """

    def __init__(self, name: str, handle: Sequence[int] | None, size: int, ints: Sequence[int] = ()) -> None:
        self.name = name
        self.size = size
        self.ints = tuple(ints)
        self._descriptors = [duplicate(descriptor) for descriptor in handle or ()]
        self._close = weakref.finalize(self, close_all, self._descriptors)
        self._lock = threading.RLock()  # a descriptor that is closed while it is examined may already be another file
        self._file: weakref.ref[MappedFile] | None = None

    def __repr__(self) -> str:
        return f"Memory({self.name!r}, {self.handle}, {self.size}, {list(self.ints)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def handle(self) -> list[int]:
        """The descriptors, which this object still owns. Empty after ``close``."""
        return list(self._descriptors)

    @property
    def valid(self) -> bool:
        """Whether every descriptor is open and the name has the descriptors it needs."""
        with self._lock:
            if self.name == HARDWARE_BUFFER:
                return all(map(is_open, self._descriptors))
            return len(self._descriptors) == 1 and is_open(self._descriptors[0])

    @property
    def protection(self) -> int:
        """PROT_READ and PROT_WRITE, as allowed: stated by an mmap_fd, determined by the descriptor for others."""
        if self._is_file():
            return self.ints[0]
        with self._lock:
            return _READ_WRITE if self.valid and all(map(is_writable, self._descriptors)) else mmap.PROT_READ

    @property
    def offset(self) -> int:
        """The offset of the memory in its file, in bytes."""
        return (self.ints[1] & _WORD) | (self.ints[2] & _WORD) << 32 if self._is_file() else 0

    @property
    def identity(self) -> Identity | None:
        """Equal for two Memory objects exactly if they are the same bytes with the same protection; None if not
        valid."""
        with self._lock:
            if not self.valid or not self._descriptors:
                return None
            status = os.fstat(self._descriptors[0])
            # By file, not by descriptor: each process and each copy has its own descriptors.
            return (status.st_dev, status.st_ino, self.offset, self.size, self.protection)

    def dup(self) -> Memory:
        """The same memory with duplicated descriptors, as after a binder transaction."""
        with self._lock:
            return Memory(self.name, self._descriptors, self.size, self.ints)

    def __copy__(self) -> Memory:
        return self.dup()

    def __deepcopy__(self, memo: object) -> Memory:
        return self.dup()

    def close(self) -> None:
        """Close the descriptors. Views of the bytes remain valid."""
        with self._lock:
            self._close()

    def check(self) -> None:
        """Raise StatusError unless the memory can be mapped.

        GENERAL_FAILURE for unknown names and pictures, INVALID_ARGUMENT for memory that contradicts itself or its file.
        """
        with self._lock:
            self._checked()

    def _checked(self) -> tuple[int, int, int]:
        """(protection, offset, seals) of memory that can be mapped, from one query of the file. Raises as ``check``."""
        if self.name == HARDWARE_BUFFER:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, "a hardware buffer that is not a BLOB cannot be mapped")
        if self.name not in MAPPABLE:
            known = ", ".join((*MAPPABLE, HARDWARE_BUFFER))
            raise StatusError(
                ErrorStatus.GENERAL_FAILURE, f"the name of a memory must be one of {known}, got {self.name!r}"
            )
        try:
            [descriptor] = self._descriptors
            status = os.fstat(descriptor)
        except (ValueError, OSError):
            raise invalid_argument(f"memory {self.name!r} must have one open descriptor, got {self.handle}") from None
        if not _is_int(self.size) or self.size <= 0:
            raise invalid_argument(f"the size of memory {self.name!r} must be positive, got {self.size!r}")
        if self.name == MMAP_FD:
            self._check_integers()
        if not stat.S_ISREG(status.st_mode):
            raise invalid_argument(f"the descriptor of memory {self.name!r} must be that of a regular file")
        offset = self.offset
        # Accessing a page after the end of a mapped file raises SIGBUS.
        if offset + self.size > status.st_size:
            raise invalid_argument(
                f"memory {self.name!r} of {self.size} bytes at offset {offset} does not lie within its file of "
                f"{status.st_size} bytes"
            )
        mode, seals = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE, seals_of(descriptor)
        if self.name == MMAP_FD:
            protection = self.ints[0]
        else:
            protection = _READ_WRITE if mode == os.O_RDWR and not seals & WRITE_SEALS else mmap.PROT_READ
        if mode == os.O_WRONLY or (mode == os.O_RDONLY and protection & mmap.PROT_WRITE):
            kind = "write-only" if mode == os.O_WRONLY else "read-only"
            raise invalid_argument(f"the descriptor is {kind}: it cannot be mapped with protection {protection}")
        return protection, offset, seals

    def _is_file(self) -> bool:
        return self.name == MMAP_FD and len(self.ints) == 3 and all(map(_is_int, self.ints))

    def _check_integers(self) -> None:
        if not self._is_file():
            raise invalid_argument(
                f"an mmap_fd must have three integers, protection and offset (low, high), got {list(self.ints)}"
            )
        if self.protection & ~_READ_WRITE or not self.protection:
            raise invalid_argument(f"the protection must be PROT_READ, PROT_WRITE or both, got {self.protection}")
        if self.offset >= 1 << 63:
            raise invalid_argument(f"the offset must be below 2**63, got {self.offset}")

    def map(self, writable: bool | None = None) -> Mapping:
        """The bytes, without a copy. Mapped only once while a view is alive.

        ``writable``: None allows what the protection allows. True raises StatusError (INVALID_ARGUMENT) for read-only
        memory, False for write-only memory. Other errors are those of ``check``.
        """
        with self._lock:
            protection, offset, seals = self._checked()
            if writable and not protection & mmap.PROT_WRITE:
                raise invalid_argument(f"memory {self.name!r} is read-only")
            if writable is False and not protection & mmap.PROT_READ:
                raise invalid_argument(f"memory {self.name!r} is write-only")
            # The kernel maps whole pages; the interface allows any offset.
            skip = offset % mmap.ALLOCATIONGRANULARITY
            sealed = bool(seals & fcntl.F_SEAL_SHRINK)
            file = self._mapped(offset - skip, skip + self.size, protection, sealed)
        array = np.frombuffer(memoryview(file), np.uint8, self.size, skip).view(Mapping)
        array.file, array.end, array.sealed = file, offset + self.size, sealed
        array.flags.writeable = bool(protection & mmap.PROT_WRITE) and writable is not False
        return array

    def _mapped(self, start: int, length: int, protection: int, sealed: bool) -> MappedFile:
        file = self._file() if self._file else None
        # A truncated mapping contains zeros instead of the file.
        if file is None or file.cut:
            try:
                file = MappedFile(self._descriptors[0], length, protection, start, sealed)
            except (OSError, OverflowError) as error:
                raise StatusError(
                    ErrorStatus.GENERAL_FAILURE, f"memory {self.name!r} cannot be mapped: {error}"
                ) from error
            self._file = weakref.ref(file)
        return file


def allocate_ashmem(size: int) -> Memory:
    """Anonymous shared memory of ``size`` zero bytes, sealed against truncation."""
    return _anonymous(ASHMEM, size, ())


def allocate_blob(size: int) -> Memory:
    """An AHardwareBuffer of the BLOB format: ``size`` bytes of shared memory with a buffer's description."""
    return _anonymous(BLOB, size, _description(size, 1, 1, FORMAT_BLOB, 0, size))


def hardware_buffer(
    width: int, height: int, layers: int = 1, pixel_format: int = FORMAT_R8G8B8A8_UNORM, usage: int = 0
) -> Memory:
    """The description of an AHardwareBuffer that contains a picture. It cannot be mapped; its size is 0, as on
    Android."""
    if pixel_format == FORMAT_BLOB:
        raise invalid_argument("a hardware buffer of the BLOB format must be made by allocate_blob")
    return Memory(HARDWARE_BUFFER, (), 0, _description(width, height, layers, pixel_format, usage, width))


def from_fd(size: int, prot: int, fd: int, offset: int = 0) -> Memory:
    """``size`` bytes of a file from ``offset`` on, with protection ``prot`` (PROT_READ | PROT_WRITE).

    The descriptor is duplicated. The offset need not be a multiple of the page size. Raises StatusError
    (INVALID_ARGUMENT) for what the file does not allow.
    """
    if offset < 0:
        raise invalid_argument(f"the offset must not be negative, got {offset}")
    memory = Memory(MMAP_FD, (fd,), size, (prot, offset & _WORD, offset >> 32))
    try:
        memory.check()
    except StatusError:
        memory.close()
        raise
    return memory


def _anonymous(name: str, size: int, ints: Sequence[int]) -> Memory:
    if size <= 0:
        raise invalid_argument(f"the size of memory {name!r} must be positive, got {size}")
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        # Prevents truncation under a mapping; the last seal prevents further seals, such as one against writing.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return Memory(name, (descriptor,), size, ints)
    finally:
        os.close(descriptor)


def _description(width: int, height: int, layers: int, pixel_format: int, usage: int, stride: int) -> tuple[int, ...]:
    return (width, height, layers, pixel_format, usage & _WORD, usage >> 32, stride)


def _is_int(value: object) -> bool:
    return isinstance(value, int)
