"""Nodes EPContext: a compiled group in a model, or in a file beside it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from onnx import ModelProto, NodeProto

from npusim.cache import is_program, read_program, write_program
from npusim.errors import ModelError, UsageError
from npusim.frontends.onnx.source import Model, read
from npusim.program import Program

EP_CONTEXT = "EPContext"
MOST_BYTES = (1 << 31) - (1 << 20)
"""Protobuf ends at 2 GiB."""


def write_context(source: Model | Program, file: Path | None) -> dict[str, bytes | int]:
    """Attributes of the node for a group: its program, or its model if shapes or values decide on the program.

    ``file``: receives it; None: the attribute holds it. Raises UsageError."""
    try:
        if file is not None:
            _write(source, file)
            return {"ep_cache_context": file.name.encode(), "embed_mode": 0}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "context")
            _write(source, path)
            if path.stat().st_size > MOST_BYTES:
                raise UsageError(f"a compiled group of {path.stat().st_size} bytes needs ep.context_embed_mode 0")
            return {"ep_cache_context": path.read_bytes(), "embed_mode": 1}
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None


def _write(source: Model | Program, path: Path) -> None:
    if isinstance(source, Program):
        write_program(source, path)
        return
    proto = ModelProto()
    proto.CopyFrom(source.proto)
    if proto.ByteSize() + sum(map(len, source.blobs.values())) > MOST_BYTES:
        raise UsageError("a group with open sizes and more than 2 GiB of weights cannot be written")
    for tensor in proto.graph.initializer:
        if tensor.name in source.blobs:
            tensor.raw_data = bytes(source.blobs[tensor.name])
    path.write_bytes(proto.SerializeToString())


def read_context(node: NodeProto, model: str) -> Model | Program:
    """The program or model of a node. ``model``: path of the model that has the node. Raises ModelError for a node that
    is not as :func:`write_context` makes it, UsageError for a file that cannot be read."""
    values = {each.name: each for each in node.attribute}
    if not values.keys() >= {"ep_cache_context", "embed_mode"}:
        raise ModelError(f"{node.name} (EPContext): attributes ep_cache_context and embed_mode are required")
    data, embedded = values["ep_cache_context"].s, values["embed_mode"].i
    if not embedded:
        name = data.decode("utf-8", "replace")
        if not model:
            raise UsageError(f"{node.name} (EPContext): load the model from its path to find the file {name!r}")
        if Path(name).name != name:
            raise ModelError(f"{node.name} (EPContext): must name a file beside the model, got {name!r}")
        return _read(Path(model).parent / name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "embedded EPContext")
        path.write_bytes(data)
        return _read(path)


def _read(path: Path) -> Model | Program:
    if is_program(path):
        return read_program(path)
    found = read(path)
    found.files = None  # the weights are inside
    return found
