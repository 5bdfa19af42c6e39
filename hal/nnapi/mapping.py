"""Mapped bytes of shared memory, and the mappings that an execution or a burst keeps."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from .errors import StatusError
from .types import ErrorStatus

if TYPE_CHECKING:
    from .memory import Memory


class Mapping(np.ndarray[Any, np.dtype[np.uint8]]):
    """The mapped bytes of a pool: an array of uint8, read-only where the pool's protection says so.

    Bytes and bytes-like values may be assigned as well as numbers. ``with`` is allowed and does nothing: the mapping
    ends with its last view.
    """

    file: mmap.mmap | None = None
    """What was mapped; it holds a descriptor of its own."""
    end: int = 0
    """How long the file must be for every byte to exist."""
    sealed: bool = False
    """Whether the kernel lets nobody cut the file."""

    def __array_finalize__(self, origin: object) -> None:
        if isinstance(origin, Mapping) and self.base is not None:  # only views keep the mapping alive
            self.file, self.end, self.sealed = origin.file, origin.end, origin.sealed

    def __array_wrap__(self, array: Any, context: object = None, return_scalar: bool = False) -> Any:
        return array if array.shape else array[()]  # results of arithmetic are plain arrays

    def __setitem__(self, place: Any, value: Any) -> None:
        if self.dtype == np.uint8 and isinstance(value, bytes | bytearray | memoryview):
            value = np.frombuffer(value, np.uint8)
        super().__setitem__(place, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def check(self) -> None:
        """Fails with GENERAL_FAILURE if the file has been cut since: to touch what is gone would end the process.

        Whoever cuts a file between this check and an access to the array still does so; ``stable`` and ``store`` do not
        mind, and sealed memory (``allocate_ashmem``) cannot be cut at all.
        """
        if self.file is None:
            return
        size = self.file.size()
        if size < self.end:
            raise StatusError(
                ErrorStatus.GENERAL_FAILURE,
                f"the mapped file was cut: it has {size} bytes now, the pool needs {self.end}",
            )

    def part(self, offset: int, length: int) -> Mapping:
        """``length`` bytes from ``offset`` on."""
        return self[offset : offset + length].view(Mapping)

    def stable(self) -> npt.NDArray[np.uint8]:
        """The bytes for somebody who reads them later: a view of what is sealed, else a copy. Fails as ``check``, also
        when the file is cut meanwhile."""
        self.check()
        if self.sealed or not self.nbytes:
            return np.asarray(self)
        with _scratch() as scratch:
            _transfer(self.data, lambda piece, offset: os.pwrite(scratch, piece, offset))
            return np.frombuffer(mmap.mmap(scratch, self.nbytes), np.uint8)

    def store(self, data: npt.NDArray[np.uint8]) -> None:
        """Write the first bytes. Fails as ``check``, also when the file is cut meanwhile."""
        self.check()
        if self.sealed:
            self[: data.nbytes] = data
        elif data.nbytes:
            with _scratch() as scratch:
                _transfer(data.data, lambda piece, offset: os.pwrite(scratch, piece, offset))
                target = self.data[: data.nbytes]
                _transfer(target, lambda piece, offset: os.preadv(scratch, [piece], offset))


@contextlib.contextmanager
def _scratch() -> Iterator[int]:
    """A file in memory of our own."""
    descriptor = os.memfd_create("npusim-copy", os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _transfer(view: memoryview, move: Callable[[memoryview, int], int]) -> None:
    """Have the kernel move bytes between a mapping and a file: where the mapped file has ended by now, that is an error
    to it, and to us it would be the signal that ends the process."""
    offset = 0
    while offset < len(view):
        try:
            moved = move(view[offset:], offset)
        except OSError as error:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, f"the mapped file was cut: {error}") from None
        if not moved:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, "the mapped file was cut")
        offset += moved


Identity = tuple[int, ...]
"""What tells one piece of shared memory from another, whoever holds descriptors of it."""
Kept = tuple[Identity | None, Mapping]
"""A mapping that is kept, and of what."""


class PoolMappings:
    """The mapped pools of one execution; ``fresh`` counts what had to be mapped anew.

    ``kept`` outlives the execution: a burst keeps its mappings there under ``keys``, one for each pool of the request.
    A pool whose key is None, or that has none, is mapped for this execution alone.
    """

    def __init__(self, kept: MutableMapping[int, Kept] | None = None, keys: Sequence[int | None] = ()) -> None:
        self.fresh = 0
        self._kept = {} if kept is None else kept
        self._keys = keys
        self._once: dict[int, Mapping] = {}

    def get(self, pool_index: int, memory: Memory) -> Mapping:
        """This pool's mapping, checked against the file's present size; StatusError as from ``Memory.map``."""
        key = self._keys[pool_index] if pool_index < len(self._keys) else None
        mapping = self._once.get(pool_index) if key is None else self._find(key, memory)
        if mapping is None:
            mapping = memory.map()
            self.fresh += 1
            if key is None:
                self._once[pool_index] = mapping
            else:
                self._kept[key] = (memory.identity, mapping)
        mapping.check()
        return mapping

    def _find(self, key: int, memory: Memory) -> Mapping | None:
        identity, mapping = self._kept.get(key, (None, None))
        return mapping if identity is not None and identity == memory.identity else None
