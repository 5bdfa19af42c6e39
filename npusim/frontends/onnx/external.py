"""The identity of a model file: its bytes, and those of the files that it keeps weights in."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from npusim.errors import UsageError
from npusim.frontends.onnx.wire import lift_initializers

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import TensorProto

Buffer = bytes | mmap.mmap
_EXTERNAL_KEY = b"location"
"""Every external tensor has a key of this name; a model without these bytes has none, and need not be parsed."""


def digest_file(path: Path) -> str:
    """SHA-256 over the model file and its external data files. Raises UsageError if the model cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    # The bytes and not the parsed model: equal bytes mean the same, and hashing them is as fast as reading.
    digest = hashlib.sha256(data)
    for name in _external_files(data) if size else ():
        digest.update(name.encode())
        file_path = path.parent / name
        if file_path.is_file():  # what is missing or lies elsewhere is refused when the model is loaded
            with file_path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _external_files(data: Buffer) -> list[str]:
    """The names of external files, sorted; none when the bytes are no model, which loading will say."""
    # Without its weights a model is small: parsing it with them would copy every byte to find a few names.
    rest, _ = lift_initializers(data)
    if _EXTERNAL_KEY not in rest:
        return []
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(rest))
    except (DecodeError, ValueError):
        return []
    entries = [entry for tensor in _tensors(proto, onnx.TensorProto) for entry in tensor.external_data]
    return sorted({entry.value for entry in entries if entry.key == _EXTERNAL_KEY.decode()})


def _tensors(message: Message, kind: type[TensorProto]) -> Iterator[TensorProto]:
    """Every tensor in a message, however deep: initializers, attributes, those of subgraphs and functions."""
    if isinstance(message, kind):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else (value,):
                yield from _tensors(part, kind)
