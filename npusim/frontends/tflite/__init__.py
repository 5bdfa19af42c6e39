"""TFLite (LiteRT) models: ``load`` turns a file or its bytes into a Graph."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import InputError, ModelError, NpusimError, OpenInputsError, UsageError
from npusim.graph import Graph
from npusim.untrusted import FileKind

if TYPE_CHECKING:
    from npusim.frontends.tflite.importer import TfliteImporter
    from npusim.frontends.tflite.reader import ModelRecord
    from npusim.hw.config import Config

Source = str | os.PathLike[str] | bytes

MODEL = FileKind("TFLite model")
IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every file."""


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
    config: Config | None = None,
) -> Graph:
    """Import a TFLite model: the graph of its first signature, or its first graph.

    Arguments as for :func:`npusim.frontends.onnx.load`; ``input_shapes`` fixes dimensions that the model leaves open,
    which otherwise are as the file says, usually 1. If those do not fit, OpenInputsError names others. Variables are
    inputs, and outputs named ``NAME.next``; see :func:`variables`. Raises UsageError, ModelError, UnsupportedError,
    NeedsValueError, CompileError.
    """
    from npusim.ops.budget import Budget

    model = read(source)
    given = (input_shapes, bind, Budget.of(config) if config else None, arrays)
    try:
        return _import(model, *given).run()
    except ModelError as error:
        fitting = _fitting_shapes(model, input_shapes or {}, bind)
        if not fitting:
            raise
        problem = f"the model leaves input shapes open, and with the sizes in the file: {error}"
        raise OpenInputsError(problem, fitting) from None


SIZES = (224, 256, 128, 512, 1024, 64, 32, 2048, 16000)
"""Sizes that are tried for open dimensions, apart from batches, if those in the file do not fit."""


def _fitting_shapes(
    model: ModelRecord, given: Mapping[str, Sequence[int]], bind: Mapping[str, Any] | None
) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs with open dimensions with which the model can be imported; empty if none is found."""
    from npusim.frontends.tflite.importer import names_of

    names = names_of(model)
    records = {name: model.subgraphs[names.subgraph].tensors[number] for number, name in names.inputs.items()}
    asked = {
        name: record
        for name, record in records.items()
        if name not in given and name not in (bind or {}) and record.open - {0}
    }
    for size in SIZES if asked else ():
        shapes = {
            name: tuple(size if axis in record.open - {0} else dim for axis, dim in enumerate(record.shape))
            for name, record in asked.items()
        }
        with suppress(NpusimError):
            _import(model, {**given, **shapes}, bind).run()
            return shapes
    return {}


def input_names(source: Source) -> list[str]:
    """The names of the inputs of a model, without variables."""
    from npusim.frontends.tflite.importer import names_of

    return list(names_of(read(source)).inputs.values())


def shapes_of(
    source: Source,
    arrays: Mapping[str, Any],
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
) -> dict[str, tuple[int, ...]]:
    """``input_shapes`` with the shapes of the arrays added for inputs with open dimensions. Raises InputError for a
    missing array or one of another rank."""
    import numpy as np

    from npusim.frontends.tflite.importer import names_of

    model, shapes = read(source), {name: tuple(shape) for name, shape in (input_shapes or {}).items()}
    names = names_of(model)
    for number, name in names.inputs.items():
        record = model.subgraphs[names.subgraph].tensors[number]
        if name in shapes or name in (bind or {}):
            continue
        if name not in arrays:
            raise InputError(f"input {name!r} is missing: shape {list(record.shape)}")
        if record.open:
            shapes[name] = np.shape(arrays[name])
    return shapes


def variables(
    source: Source, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables of a model: their values in the first run by input name, and the input names by the names of the
    outputs that become their next values; the arguments of :meth:`Session.state`. ``input_shapes``: of inputs with open
    dimensions."""
    model = read(source)
    if not any(
        any(tensor.variable for tensor in graph.tensors) or any(op.name == "VAR_HANDLE" for op in graph.operators)
        for graph in model.subgraphs
    ):
        return {}, {}
    importer = _import(model, input_shapes)
    importer.run()
    arrays: dict[str, Any] = {}
    feeds: dict[str, str] = {}
    for variable in importer.variables.values():
        if variable.source is not None:
            arrays[variable.source.name] = variable.initial
            if variable.feed is not None:
                feeds[variable.feed] = variable.source.name
    return arrays, feeds


def _import(model: ModelRecord, *arguments: Any) -> TfliteImporter:
    from npusim.frontends.tflite.importer import TfliteImporter

    return TfliteImporter(model, *arguments)


def read(source: Source) -> ModelRecord:
    """The records of a file. Raises UsageError if it cannot be read, or without the packages that read it."""
    try:
        from npusim.frontends.tflite import reader
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("tflite", "flatbuffers"):
            raise
        raise UsageError("reading TFLite models needs the tflite package: pip install 'npusim[tflite]'") from None
    if isinstance(source, bytes | bytearray):
        return reader.parse(bytes(source), "the model")
    path = Path(source)
    try:
        with MODEL.open(path) as file:
            data = file.readall()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not data:
        raise ModelError(f"{path}: is empty")
    return reader.parse(data, str(path))
