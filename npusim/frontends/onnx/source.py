"""Reads a path, bytes or a ModelProto as a checked ModelProto without its large tensors."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from npusim.errors import ModelError, UsageError
from npusim.frontends.onnx.files import MODEL, Files
from npusim.frontends.onnx.wire import lift_initializers
from npusim.weights import MAPPED_BYTES, WeightFile


@dataclass
class Model:
    """A parsed model. ``blobs``: raw data of initializers by name. ``files``: its external data."""

    proto: onnx.ModelProto
    files: Files | None = None
    blobs: dict[str, memoryview] = field(default_factory=dict)
    """Views of the bytes that were read, or of the mapped file."""

    def release(self) -> None:
        """Release the weights of the message, which have been extracted."""
        self.blobs.clear()

    def again(self) -> Model:
        """The same model for another import, which releases its own weights."""
        return Model(self.proto, self.files and self.files.again(), dict(self.blobs))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the message and of all weights."""
        digest = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for name, blob in sorted(self.blobs.items()):
            digest.update(f"{name} {len(blob)}:".encode())
            digest.update(blob)
        return digest.hexdigest()


Source = str | os.PathLike[str] | bytes | onnx.ModelProto | Model


def read(source: Source, limit: int | None = None, *, timing_only: bool = False) -> Model:
    """Parse the source. Raises UsageError for a file that cannot be read, ModelError for one that is not a model.

    ``limit``: maximum bytes of external data. ``timing_only``: a large model is mapped, and files next to it may be
    missing.
    """
    if isinstance(source, Model):
        return _checked(source.again(), "the model")
    if isinstance(source, onnx.ModelProto):
        return _checked(Model(source), "the model")
    if isinstance(source, bytes | bytearray):
        return _parse(bytes(source), None, "the model")
    path = Path(source)
    try:
        with MODEL.open(path) as file:
            large = timing_only and os.fstat(file.fileno()).st_size >= MAPPED_BYTES
            mapped, data = (WeightFile.at(path), b"") if large else (None, file.readall())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    files = Files(path.parent, limit, may_miss=timing_only)
    if mapped is not None:
        files.mapped[id(mapped)] = mapped
    return _parse(data if mapped is None else memoryview(mapped), files, str(path))


def _parse(data: bytes | memoryview, files: Files | None, where: str) -> Model:
    if not data:
        raise ModelError(f"{where}: is empty")
    rest, blobs = lift_initializers(data)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(rest)
    except (DecodeError, ValueError):
        raise ModelError(f"{where}: is not an ONNX model, or is truncated ({len(data)} bytes)") from None
    return _checked(Model(proto, files, blobs), where)


def _checked(model: Model, where: str) -> Model:
    proto = model.proto
    if not proto.HasField("graph") or not (proto.opset_import or proto.ir_version):
        raise ModelError(f"{where}: is not an ONNX model: it has no graph or no version")
    if not proto.graph.output:
        raise ModelError(f"{where}: its graph has no outputs")
    return model
