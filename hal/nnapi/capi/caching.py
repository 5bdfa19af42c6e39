"""Files of the compilation cache, in the client's directory.

Their names depend on the client's token and on all other inputs of the compilation. The token identifies the model: the
interface requires different tokens for different models. The name also covers everything that determines how the model
is partitioned and compiled (the available devices with their versions, the types of the operations, preference and
priority), so that a compilation that finds its files need not ask the devices what they support. The drivers validate
the contents of the files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from npusim.errors import NpusimError
from npusim.trusted_files import open_descriptor, replace_file
from npusim.untrusted import FileKind

from ..aidl.types import BYTE_SIZE_OF_CACHE_TOKEN
from .devices import Device
from .partition import Stretch

NOTE = FileKind("note of the NNAPI compilation cache", 1 << 20, own=True)
"""How a model was partitioned: about ten bytes per stretch."""

_log = logging.getLogger("hal.nnapi.capi")


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache settings of the client: a directory and a token."""

    directory: str
    token: bytes

    def entry(self, device: Device, *what: object) -> CacheEntry:
        """The files for one device. ``what``: all other inputs of the compilation."""
        digest = self._digest(device.name, device.version, *what)
        count = device.aidl.getNumberOfCacheFilesNeeded()
        stem = os.path.join(self.directory, digest.hex())
        return CacheEntry(
            [f"{stem}.model{number}" for number in range(count.numModelCache)],
            [f"{stem}.data{number}" for number in range(count.numDataCache)],
            digest[:BYTE_SIZE_OF_CACHE_TOKEN],
        )

    def note_path(self, *what: object) -> str:
        """The path of the file that records the partitioning of a model."""
        return os.path.join(self.directory, f"{self._digest(*what).hex()}.cut")

    def _digest(self, *what: object) -> bytes:
        # repr distinguishes ("a", "bc") from ("ab", "c"); joined text would not.
        return hashlib.sha256(self.token + repr(what).encode()).digest()


class CachedCompilation:
    """The cache files of one compilation: ``count`` operations for the best of ``devices``. ``what``: all other inputs
    of the compilation."""

    def __init__(self, cache: Cache, devices: Sequence[Device], count: int, *what: object) -> None:
        self._cache = cache
        self._devices = devices
        self._count = count
        self._what = ([(device.name, device.version) for device in devices], *what)

    def entry(self, stretch: Stretch) -> CacheEntry:
        """The files of a stretch of the operations."""
        device, numbers = stretch
        return self._cache.entry(device, numbers.start, numbers.stop, *self._what)

    def candidates(self) -> Iterator[list[Stretch]]:
        """Possible partitionings: all operations on one device, or the stored one. Only actual partitionings have
        entries, so a modified note finds none."""
        for device in self._devices:
            yield [(device, range(self._count))]
        noted = self._noted()
        if noted:
            yield noted

    def note(self, stretches: Sequence[Stretch]) -> None:
        """Store the partitioning. A model that is whole on one device needs no note."""
        if len(stretches) == 1:
            return
        lengths = [(self._devices.index(device), len(numbers)) for device, numbers in stretches]
        path = Path(self._cache.note_path(*self._what))
        try:
            if path.parent.is_dir():  # otherwise the error was logged for the models
                replace_file(path, [json.dumps(lengths).encode()])
        except OSError as error:
            _log.warning("%s: the compilation is not cached: %s", path, error.strerror or error)

    def _noted(self) -> list[Stretch]:
        path = Path(self._cache.note_path(*self._what))
        try:
            if not os.path.lexists(path):
                return []
            lengths = NOTE.json(path)
            stretches: list[Stretch] = []
            start = 0
            for place, length in lengths:
                stretches.append((self._devices[place], range(start, start + length)))
                start += length
            if start != self._count or not all(numbers for _, numbers in stretches):
                raise ValueError(f"{lengths} are not the lengths of stretches of {self._count} operations")
            return stretches
        except (NpusimError, ValueError, TypeError, IndexError) as error:
            _log.warning("%s: how the model was cut is forgotten: %s", path, error)
        return []


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one compiled model, and the token that the driver binds them to."""

    model_files: Sequence[str]
    data_files: Sequence[str]
    token: bytes

    @contextlib.contextmanager
    def opened(self, *, create: bool) -> Iterator[tuple[list[int], list[int]] | None]:
        """Descriptors of the files for reading and writing; None if they do not exist or cannot be opened.

        Files that are not this user's alone are not opened; ``create`` replaces them.
        """
        descriptors: list[int] = []
        try:
            for path in (*self.model_files, *self.data_files):
                descriptors.append(_created(Path(path)) if create else _opened(Path(path)))
        except OSError as error:
            # A new file must not exist yet; if it exists, it was refused before and the reason was logged.
            if create == (not os.path.lexists(path)):
                problem = "the compilation is not cached" if create else "is not used"
                _log.warning("%s: %s: %s", path, problem, error.strerror or error)
        try:
            complete = bool(descriptors) and len(descriptors) == len(self.model_files) + len(self.data_files)
            split = len(self.model_files)
            yield (descriptors[:split], descriptors[split:]) if complete else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


class CacheFiles:
    """Duplicates of a client's open files, closed at the end of a ``with`` statement or when they are collected."""

    def __init__(self, model_files: Sequence[int], data_files: Sequence[int], token: bytes) -> None:
        self.token = token
        self.model_files: list[int] = []
        self.data_files: list[int] = []
        self._close = weakref.finalize(self, _close_all, self.model_files, self.data_files)
        self._close.atexit = False
        for given, own in ((model_files, self.model_files), (data_files, self.data_files)):
            for descriptor in given:
                own.append(os.dup(descriptor))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


def _close_all(*lists: list[int]) -> None:
    for descriptors in lists:
        while descriptors:
            os.close(descriptors.pop())


def _opened(path: Path, flags: int = 0) -> int:
    """A file for reading and writing, which must be this user's. Raises OSError."""
    descriptor = open_descriptor(path, os.O_RDWR | flags, own=True)
    if os.fstat(descriptor).st_nlink > 1:  # writing in place would modify a file elsewhere
        os.close(descriptor)
        raise OSError(errno.EMLINK, "has another name", str(path))
    return descriptor


_STRANGE = {errno.EACCES, errno.EINVAL, errno.ELOOP, errno.EMLINK, errno.ENXIO}
"""Reasons why an existing file is not used."""


def _created(path: Path) -> int:
    """Open the file, or create it, replacing a file that must not be used."""
    try:
        return _opened(path, os.O_CREAT)
    except OSError as error:
        if error.errno not in _STRANGE:  # out of descriptors or space, which says nothing about the file
            raise
        path.unlink()
        return _opened(path, os.O_CREAT | os.O_EXCL)
