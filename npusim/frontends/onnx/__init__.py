"""ONNX models: ``load`` turns a file, bytes or a ModelProto into a Graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from npusim.errors import UsageError
from npusim.graph import Graph

if TYPE_CHECKING:
    from npusim.frontends.onnx.source import Source
    from npusim.hw.config import Config

__all__ = ["load"]


def load(
    source: Source, *, input_shapes: Mapping[str, Sequence[int]] | None = None, config: Config | None = None
) -> Graph:
    """The graph of an ONNX model: operator sets 7 to the newest that the installed onnx package knows.

    ``source`` is a path, the bytes of a model, or a ModelProto; ``input_shapes`` fixes what the model leaves open.
    Constants of the graph are views into the bytes that were read where that is possible. ``config``: the device that
    it is for, whose memory decides how much import may take.

    Raises UsageError for a file that cannot be read, ModelError for a damaged model or an open input shape,
    UnsupportedError with every (node, operator, reason) that npusim does not support, CompileError for a model that
    becomes too much.
    """
    try:
        from npusim.frontends.onnx import source as reader
        from npusim.frontends.onnx.importer import Importer
        from npusim.ops.budget import Budget
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("onnx", "google"):
            raise
        raise UsageError("reading ONNX models needs the onnx package: pip install 'npusim[onnx]'") from None
    return Importer(
        reader.read(source, config.dram.bytes if config else None), input_shapes, Budget.of(config) if config else None
    ).run()
