"""Files of external data next to a model. Requests are checked before a byte is read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from npusim.errors import CompileError, ModelError
from npusim.ops.base import Array
from npusim.untrusted import FileKind
from npusim.weights import MAPPED_BYTES, WEIGHTS, MissingWeights, WeightFile, view_of

if TYPE_CHECKING:
    from onnx import TensorProto


MODEL = FileKind("ONNX model")


class Files:
    """Files of tensors with external data, of at most ``limit`` bytes in total, if given.

    ``may_miss``: a missing file is an error only if its contents are read.
    """

    def __init__(self, directory: Path, limit: int | None = None, *, may_miss: bool = False) -> None:
        self._directory = directory
        self._limit = limit
        self._may_miss = may_miss
        self._taken = 0
        self.mapped: dict[int, WeightFile | MissingWeights] = {}
        """The buffers of which arrays of the model are views."""

    def again(self) -> Files:
        """A copy with the whole limit left."""
        return Files(self._directory, self._limit, may_miss=self._may_miss)

    def read(self, proto: TensorProto, nbytes: int, where: str) -> Array:
        """The bytes of a tensor, large ones as a view of their file. Raises ModelError and CompileError as :meth:`open`
        does."""
        try:
            file, path, offset = self.open(proto, nbytes, where)
        except ModelError as error:
            if not (self._may_miss and isinstance(error.__cause__, FileNotFoundError)):
                raise
            source = MissingWeights.of(nbytes, where, Path(error.__cause__.filename))
            self.mapped[id(source)] = source
            return view_of(source, 0, (nbytes,), None, np.dtype(np.uint8))
        with file:
            if nbytes >= MAPPED_BYTES:
                found = WeightFile.at(path)
                self.mapped[id(found)] = found
                if offset + nbytes <= found.stamp.size:
                    return view_of(found, offset, (nbytes,), None, np.dtype(np.uint8))
            file.seek(offset)
            data = np.fromfile(file, np.uint8, nbytes)
        if len(data) != nbytes:
            raise ModelError(f"{where}: external data has been cut to {len(data)} of {nbytes} bytes while it was read")
        return data

    def check(self) -> None:
        """Raise FileCutError for a changed file, ModelError for missing data that was read."""
        for source in self.mapped.values():
            source.check()

    def open(self, proto: TensorProto, nbytes: int, where: str) -> tuple[io.FileIO, Path, int]:
        """(file, path, offset) of a tensor of this size.

        Raises ModelError for a file outside the folder of the model, missing or too short; CompileError beyond the
        limit.
        """
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if not location:
            raise ModelError(f"{where}: external data without a location")
        try:
            offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(nbytes)))
        except ValueError:
            raise ModelError(f"{where}: offset and length of external data must be integers") from None
        if length != nbytes:
            raise ModelError(f"{where}: needs {nbytes} bytes, its entry for {location!r} says {length}")
        # A sparse file may have any length at no cost, so its length does not bound the data.
        self._taken += nbytes
        if self._limit is not None and self._taken > self._limit:
            raise CompileError(
                f"{where}: external data of {nbytes} bytes makes {self._taken} in all, the device has {self._limit}"
            )
        path = self._inside(location, where)
        try:
            file = WEIGHTS.open(path)
        except OSError as error:
            raise ModelError(f"{where}: external data file {path}: {error.strerror}") from error
        size = file.seek(0, io.SEEK_END)
        if offset < 0 or offset + length > size:
            file.close()
            raise ModelError(f"{where}: bytes {offset} to {offset + length} are beyond {path} of {size} bytes")
        return file, path, offset

    def _inside(self, location: str, where: str) -> Path:
        # Links are followed first, because an untrusted model must not read files outside its directory.
        try:
            path = (self._directory / location).resolve()
            inside = path.is_relative_to(self._directory.resolve())
        except (OSError, RuntimeError, ValueError) as error:  # cyclic links, a NUL in the name
            raise ModelError(f"{where}: external data {location!r}: {error}") from None
        if not inside:
            raise ModelError(f"{where}: external data {location!r} is outside the model's directory {self._directory}")
        return path
