"""Weights in files, or zeros. They are loaded when they are read.

An array of weights is a view of a *source*, which can be found from the array. A graph can therefore be identified
without reading its weights, and is pickled with paths and positions (ADR 0034).
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim._mapped import MappedFile
from npusim.errors import FileCutError, ModelError
from npusim.untrusted import FileKind

MAPPED_BYTES = 1 << 16
"""Weights of this many bytes or more are mapped and identified by file; smaller ones are read."""
_ANONYMOUS = getattr(mmap, "MAP_PRIVATE", 2) | getattr(mmap, "MAP_ANONYMOUS", 32)

WEIGHTS = FileKind("external data of an ONNX model")
Array = npt.NDArray[Any]


class Stamp(NamedTuple):
    """Identifies the contents of a file without reading them: every write changes it."""

    device: int
    inode: int
    size: int
    written_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Stamp:
        """The stamp of an open file."""
        status = os.fstat(descriptor)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class WeightFile(MappedFile):
    """A read-only file of weights, mapped by :meth:`at`. It is ``cut`` if it was truncated or written since."""

    path: Path
    stamp: Stamp
    _handle: int

    @classmethod
    def at(cls, path: Path) -> WeightFile:
        """The mapped file, shared while it is in use. Raises OSError; an empty file cannot be mapped."""
        with WEIGHTS.open(path) as file:
            stamp = Stamp.of(file.fileno())
            key = ("file", os.path.abspath(path), *stamp)
            known = _SOURCES.get(key)
            if isinstance(known, WeightFile) and not known.cut:
                return known
            made = cls(file.fileno(), stamp.size, mmap.PROT_READ, 0, False)
            made.path, made.stamp, made._handle = Path(key[1]), stamp, os.dup(file.fileno())
        weakref.finalize(made, os.close, made._handle)
        _SOURCES[key] = made
        return made

    @property
    def key(self) -> tuple[str | int, ...]:
        """Arguments to create it again."""
        return "file", str(self.path), *self.stamp

    @property
    def cut(self) -> bool:
        """Whether the contents may have changed since the file was mapped."""
        # Without the change time, because unlinking a file does not change its contents.
        now = Stamp.of(self._handle)
        return super().cut or (now.size, now.written_ns) != (self.stamp.size, self.stamp.written_ns)

    def check(self, end: int = 0) -> None:
        """Raise FileCutError if it is ``cut``."""
        super().check(end)
        if self.cut:
            raise FileCutError(f"{self.path}: was modified while its weights were in use")


class MissingWeights(MappedFile):
    """Represents weights whose file does not exist; reading them is detected. See :meth:`of`."""

    where: str
    path: Path
    nbytes: int

    @classmethod
    def of(cls, nbytes: int, where: str, path: Path) -> MissingWeights:
        """A source of ``nbytes`` bytes. ``where``: their owner, for messages. ``path``: of the missing file."""
        # The mapping of an empty file: every access is behind its end and is detected.
        with tempfile.TemporaryFile() as file:
            made = cls(file.fileno(), max(nbytes, 1), mmap.PROT_READ, 0, False)
        made.where, made.path, made.nbytes = where, path, nbytes
        return made

    @property
    def key(self) -> tuple[str | int, ...]:
        """Arguments to create it again."""
        return "missing", self.where, str(self.path), self.nbytes

    def check(self, end: int = 0) -> None:
        """Raise ModelError if any of the weights were read."""
        if self.cut:
            raise ModelError(
                f"{self.where}: its values determine the program, and its external data file {self.path} is not there"
            )


class _Zeros(mmap.mmap):
    """Zero pages that share one physical page."""

    @property
    def key(self) -> tuple[str | int, ...]:
        return "zeros", len(self)


Source = WeightFile | MissingWeights | _Zeros
_SOURCES: weakref.WeakValueDictionary[tuple[str | int, ...], Source] = weakref.WeakValueDictionary()
"""Sources in use, by key."""


def zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Read-only zeros that take no memory, for weights of models that are only timed."""
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=object)) * kind.itemsize
    return view_of(_zeros(nbytes), 0, shape, None, kind)


def _zeros(nbytes: int) -> _Zeros:
    found = _SOURCES.get(("zeros", max(nbytes, 1)))
    if not isinstance(found, _Zeros):
        found = _Zeros(-1, max(nbytes, 1), prot=mmap.PROT_READ, flags=_ANONYMOUS)
        _SOURCES[found.key] = found
    return found


def view_of(
    source: Source, offset: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> Array:
    """A read-only view of elements in a source."""
    array: Array = np.ndarray(shape, dtype, memoryview(source), offset, strides)
    array.flags.writeable = False
    return array


_VIEWS = (np.ndarray, memoryview)


def owner(array: Array) -> object:
    """The object that owns the memory of an array."""
    found: object = array
    while isinstance(found, _VIEWS):
        found = found.base if isinstance(found, np.ndarray) else found.obj
    return found


def is_mapped(array: Array) -> bool:
    """Whether the elements lie in a source, and are read on access only."""
    return isinstance(owner(array), Source)


class ArrayOrigin(NamedTuple):
    """The source of an array, by its key, and the position of its elements."""

    key: tuple[str | int, ...]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: Array) -> ArrayOrigin | None:
        """The origin of an array; None if it is in memory."""
        source = owner(array)
        if not isinstance(source, WeightFile | MissingWeights | _Zeros):
            return None
        start = np.frombuffer(memoryview(source), np.uint8, 1).__array_interface__["data"][0]
        offset = array.__array_interface__["data"][0] - start
        return cls(source.key, offset, array.shape, array.strides, array.dtype.str)

    def array(self) -> Array:
        """The array. Raises ModelError for a file that has changed."""
        kind, *rest = self.key
        source: Source
        if kind == "zeros":
            source = _zeros(int(rest[0]))
        elif kind == "missing":
            source = _missing(self.key)
        else:
            source = _file(Path(str(rest[0])), Stamp(*map(int, rest[1:])))
        return view_of(source, self.offset, self.shape, self.strides, np.dtype(self.dtype))


def _missing(key: tuple[str | int, ...]) -> MissingWeights:
    found = _SOURCES.get(key)
    if not isinstance(found, MissingWeights):
        found = _SOURCES[key] = MissingWeights.of(int(key[3]), str(key[1]), Path(str(key[2])))
        assert isinstance(found, MissingWeights)
    return found


def _file(path: Path, stamp: Stamp) -> WeightFile:
    try:
        file = WeightFile.at(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: weights cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if file.stamp != stamp:
        raise ModelError(f"{path}: is not the file of weights any more that the model was read with")
    return file


def packed(array: Array) -> object:
    """The pickled form of an array, without repeated elements; the inverse is :func:`unpacked`."""
    origin = ArrayOrigin.of(array)
    if origin is not None:
        return origin
    if 0 in array.strides and array.size:
        return array[tuple(slice(None) if stride else slice(1) for stride in array.strides)], array.shape
    return array


def unpacked(found: Any) -> Array:
    """The inverse of :func:`packed`. Raises ModelError."""
    if isinstance(found, ArrayOrigin):
        return found.array()
    if isinstance(found, tuple):
        once, shape = found
        repeated: Array = np.broadcast_to(once, shape)
        return repeated
    array: Array = found
    return array


def check(arrays: Iterable[Array]) -> None:
    """Raise FileCutError for files that have changed since they were mapped, ModelError for missing weights that were
    read."""
    for source in {id(source): source for source in map(owner, arrays)}.values():
        if isinstance(source, WeightFile | MissingWeights):
            source.check()
