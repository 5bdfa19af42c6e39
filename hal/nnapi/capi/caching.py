"""Files of the compilation cache: in the client's directory, named by its token and by what else must be the same."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..aidl.types import BYTE_SIZE_OF_CACHE_TOKEN
from .devices import Device

_log = logging.getLogger("hal.nnapi.capi")


@dataclass(frozen=True, slots=True)
class Cache:
    """What the client gave: a directory and a token."""

    directory: str
    token: bytes

    def entry(self, device: Device, *what: object) -> CacheEntry:
        """The files for one device; ``what``: everything else on which the compiled program depends."""
        text = repr((device.name, device.version, *what)).encode()
        digest = hashlib.sha256(self.token + text).digest()
        count = device.aidl.getNumberOfCacheFilesNeeded()
        stem = os.path.join(self.directory, digest.hex())
        return CacheEntry(
            [f"{stem}.model{number}" for number in range(count.numModelCache)],
            [f"{stem}.data{number}" for number in range(count.numDataCache)],
            digest[:BYTE_SIZE_OF_CACHE_TOKEN],
        )


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one compiled model, and the token that the driver binds them to."""

    model_files: Sequence[str]
    data_files: Sequence[str]
    token: bytes

    @contextlib.contextmanager
    def opened(self, *, create: bool) -> Iterator[tuple[list[int], list[int]] | None]:
        """Descriptors of the files for reading and writing; None if they are not there, or cannot be opened."""
        descriptors: list[int] = []
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            try:
                for path in (*self.model_files, *self.data_files):
                    descriptors.append(os.open(path, flags, 0o600))
            except FileNotFoundError as error:
                if create:
                    _log.warning("the compilation is not cached: %s", error)
            except OSError as error:
                _log.warning("the compilation is not cached: %s", error)
            complete = bool(descriptors) and len(descriptors) == len(self.model_files) + len(self.data_files)
            split = len(self.model_files)
            yield (descriptors[:split], descriptors[split:]) if complete else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
