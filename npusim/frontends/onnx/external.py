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
"""Every external tensor has a key with this name. A model without these bytes has none and need not be parsed."""
_PIECE = 1 << 20
"""Bytes per read."""


def digest_file(path: Path, limit: int | None = None, *, values: bool = True) -> str:
    """SHA-256 over the model file and at most ``limit`` bytes of its external data.

    Without ``values``, large weights are identified by file and modification time and not read. Raises UsageError if
    the model cannot be read, CompileError if it refers to more bytes.
    """
    try:
        with MODEL.open(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
            stamp = Stamp.of(file.fileno())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    # Parse without weights, because parsing with them would copy every byte to find a few names.
    rest, blobs = lift_initializers(data)
    # The bytes, not the parsed model: equal bytes have equal meaning, and hashing is as fast as reading.
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
            continue  # removed meanwhile; loading reports it
    return digest.hexdigest()


def _digest_run(digest: hashlib._Hash, file: io.FileIO, start: int, end: int) -> None:
    digest.update(f"{start}-{end}:".encode())
    file.seek(start)
    while start < end:
        piece = file.read(min(end - start, _PIECE))
        if not piece:
            return  # truncated meanwhile; loading reports it
        digest.update(piece)
        start += len(piece)


def _external_runs(rest: bytes, files: Files, joined: bool) -> dict[Path, list[tuple[int, int]]]:
    """Ranges of bytes (first, end) in other files that tensors of the model refer to, merged if ``joined``.

    ``rest``: the model without its weights. Empty if the bytes are not a model. Tensors with a refused file are
    skipped; loading reports both.
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
    # Without merging, each tensor is read separately, so overlapping ranges count repeatedly.
    return {path: _joined(found) if joined else sorted(set(found)) for path, found in runs.items()}


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges, because thousands of tensors may refer to the same bytes."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _tensors(message: Message, kind: type[TensorProto]) -> Iterator[TensorProto]:
    """All tensors in a message at any depth: initializers, attributes, subgraphs and functions."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else (value,):
                yield from _tensors(part, kind)
