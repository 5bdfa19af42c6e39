"""The identity of a model file: a digest of its bytes and of its external data."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.errors import ModelError, UnsupportedError, UsageError
from npusim.frontends.onnx.files import MODEL, Files
from npusim.frontends.onnx.wire import lift_initializers
from npusim.weights import MAPPED_BYTES, WEIGHTS, Stamp

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import TensorProto

_EXTERNAL_KEY = b"location"
"""Every external tensor has a key of this name; a model without these bytes has none, and need not be parsed."""
_PIECE = 1 << 20
"""Bytes that are read at once."""


def digest_file(path: Path, limit: int | None = None, *, values: bool = True) -> str:
    """SHA-256 over the model file and at most ``limit`` bytes of its external data.

    Without ``values``, large weights are identified by file and modification time, and not read.
    Raises UsageError if the model cannot be read, CompileError if it names more.
    """
    try:
        with MODEL.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
            stamp = Stamp.of(file.fileno())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    # Without its weights a model is small: parsing it with them would copy every byte to find a few names.
    rest, blobs = lift_initializers(data)
    # The bytes and not the parsed model: equal bytes mean the same, and hashing them is as fast as reading.
    if values or not blobs or size < MAPPED_BYTES:
        digest = hashlib.sha256(data)
    else:
        digest = hashlib.sha256(repr(stamp).encode())
        digest.update(rest)
    for name, runs in sorted(_external_runs(rest, Files(path.parent, limit), values).items()):
        try:
            with WEIGHTS.open(name) as file:
                for start, end in runs:
                    if values or end - start < MAPPED_BYTES:
                        _digest_run(digest, file, start, end)
                    else:
                        digest.update(f"{start}-{end} of {Stamp.of(file.fileno())}".encode())
        except OSError:
            continue  # gone since it was looked at, which loading will say
    return digest.hexdigest()


def _digest_run(digest: hashlib._Hash, file: io.FileIO, start: int, end: int) -> None:
    digest.update(f"{start}-{end}:".encode())
    file.seek(start)
    while start < end:
        piece = file.read(min(end - start, _PIECE))
        if not piece:
            return  # cut since it was looked at, which loading will say
        digest.update(piece)
        start += len(piece)


def _external_runs(rest: bytes, files: Files, joined: bool) -> dict[Path, list[tuple[int, int]]]:
    """Runs of bytes (first, end) that the model's tensors name in other files, in order, and, if ``joined``, apart.

    ``rest``: the model without its weights. None when the bytes are no model, and none of a tensor whose file is
    refused: loading says so, if it is needed.
    """
    if _EXTERNAL_KEY not in rest:
        return {}
    import onnx
    from google.protobuf.message import DecodeError

    from npusim.frontends.onnx.tensors import layout_of

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(rest)
    except (DecodeError, ValueError):
        return {}
    runs: dict[Path, list[tuple[int, int]]] = {}
    for tensor in _tensors(proto, onnx.TensorProto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        where = f"initializer {tensor.name!r}"
        try:
            *_, nbytes = layout_of(tensor, where)
            file, path, offset = files.open(tensor, nbytes, where)
        except (ModelError, UnsupportedError):
            continue
        file.close()
        runs.setdefault(path, []).append((offset, offset + nbytes))
    # Joined, many small runs are a large one, and the small ones are to be read all the same.
    return {path: _joined(found) if joined else sorted(set(found)) for path, found in runs.items()}


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes, each once: thousands of tensors may name the same ones."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _tensors(message: Message, kind: type[TensorProto]) -> Iterator[TensorProto]:
    """Every tensor in a message, however deep: initializers, attributes, those of subgraphs and functions."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else (value,):
                yield from _tensors(part, kind)
