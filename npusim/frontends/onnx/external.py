"""The identity of a model file: its bytes, and those of the files that it keeps weights in."""

from __future__ import annotations

import hashlib
from pathlib import Path

from npusim.errors import UsageError

_EXTERNAL_KEY = b"location"
"""Every external tensor has a key of this name; a file without these bytes has none, and need not be parsed."""


def digest_file(path: Path) -> str:
    """SHA-256 over the model file and its external data files. Raises UsageError if the model cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    digest = hashlib.sha256(data)
    if _EXTERNAL_KEY in data:
        for name in _external_files(data):
            digest.update(name.encode())
            file = path.parent / name
            if file.is_file():  # what is missing or lies elsewhere is refused when the model is loaded
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _external_files(data: bytes) -> list[str]:
    """The names of external files, sorted; none when the bytes are no model, which loading will say."""
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError):
        return []
    names: set[str] = set()
    for tensor in onnx.external_data_helper._get_all_tensors(proto):
        names.update(entry.value for entry in tensor.external_data if entry.key == "location")
    return sorted(names)
