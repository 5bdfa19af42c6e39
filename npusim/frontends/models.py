"""Model files of any format: each function calls that of the format, which the contents of the file decide."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from npusim.errors import UnsupportedError
from npusim.frontends import tflite
from npusim.frontends.tflite import load as load_tflite
from npusim.graph import Graph
from npusim.program import Binding

if TYPE_CHECKING:
    from npusim.frontends.onnx.plan import PlannedModel
    from npusim.frontends.onnx.source import Source
    from npusim.frontends.tflite.plan import PlannedTflite
    from npusim.hw.config import Config

EXPORTS: Mapping[str, tuple[str, str]] = {
    ".pt": ("PyTorch", "torch.onnx.export(model, args, 'model.onnx', dynamo=True)"),
    ".pth": ("PyTorch", "torch.onnx.export(model, args, 'model.onnx', dynamo=True)"),
    ".h5": ("Keras", "keras.models.load_model('{name}').export('model.onnx', format='onnx')"),
    ".keras": ("Keras", "keras.models.load_model('{name}').export('model.onnx', format='onnx')"),
    ".safetensors": ("safetensors", "optimum-cli export onnx --model FOLDER_OF_THE_MODEL onnx/"),
    ".gguf": ("GGUF", "optimum-cli export onnx --model NAME_OF_THE_ORIGINAL_MODEL onnx/"),
    ".pb": ("TensorFlow", "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx"),
    ".mlmodel": ("Core ML", "onnxmltools.save_model(onnxmltools.convert_coreml(model), 'model.onnx')"),
}
"""Formats that are not read: by suffix, their name and the line that exports a model to ONNX."""
_ONNX_TOO = frozenset({".pb", ".mlmodel"})
"""Suffixes of protobuf messages, which ONNX models are as well."""


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Any] | None = None,
    config: Config | None = None,
    timing_only: bool = False,
) -> Graph:
    """The graph of a model: a path, bytes or a ModelProto. Arguments and errors as for
    :func:`npusim.frontends.onnx.load`."""
    options: dict[str, Any] = {"input_shapes": input_shapes, "bind": bind, "arrays": arrays, "config": config}
    if is_tflite(source):
        assert isinstance(source, str | os.PathLike | bytes)
        return load_tflite(source, **options)
    from npusim.frontends.onnx import load as load_onnx

    return load_onnx(source, **options, timing_only=timing_only)


def planned_model(source: Source, *arguments: Any) -> PlannedModel | PlannedTflite:
    """A model that decides at run time what is computed. Arguments as for PlannedModel."""
    if is_tflite(source):
        from npusim.frontends.tflite.plan import PlannedTflite

        assert isinstance(source, str | os.PathLike | bytes)
        return PlannedTflite(source, *arguments)
    from npusim.frontends.onnx.plan import PlannedModel

    return PlannedModel(source, *arguments)


def input_names(source: Source) -> list[str]:
    """The names of the required inputs of a model."""
    found: list[str] = _format(source).input_names(source)
    return found


def shapes_of(
    source: Source,
    arrays: Mapping[str, Any],
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
) -> dict[str, tuple[int, ...]]:
    """``input_shapes`` with the shapes of the arrays added for inputs with open dimensions. Raises InputError."""
    found: dict[str, tuple[int, ...]] = _format(source).shapes_of(source, arrays, input_shapes, bind)
    return found


def variables(source: Source, program_inputs: Iterable[Binding] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables that a model keeps between runs: their first values by input name, and the input names by the
    names of the outputs that become their next values. ONNX models have none. ``program_inputs``: of a program of the
    model, whose shapes its open dimensions have."""
    if not is_tflite(source):
        return {}, {}
    assert isinstance(source, str | os.PathLike | bytes)
    shapes = {binding.name: binding.shape for binding in program_inputs or ()}
    return tflite.variables(source, {name: shapes[name] for name in tflite.input_names(source) if name in shapes})


def digest_file(path: Path, limit: int | None = None, *, values: bool = True) -> str:
    """The identity of a model file; see :func:`npusim.frontends.onnx.external.digest_file`."""
    if is_tflite(path):
        with tflite.MODEL.open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    from npusim.frontends.onnx import external

    return external.digest_file(path, limit, values=values)


def is_tflite(source: Source) -> bool:
    """Whether a source is a TFLite model. Raises UnsupportedError for a format that is not read."""
    if isinstance(source, bytes | bytearray):
        return bytes(source[4:8]) == tflite.IDENTIFIER
    if not isinstance(source, str | os.PathLike):
        return False
    path = Path(source)
    try:
        with tflite.MODEL.open(path) as file:
            head = file.read(8)
    except OSError:
        return False  # the reader of the other format reports it
    if head[4:8] == tflite.IDENTIFIER:
        return True
    suffix = path.suffix.lower()
    # The first field of most ONNX models is its version, which makes this byte.
    if suffix in EXPORTS and not (suffix in _ONNX_TOO and head[:1] == b"\x08"):
        format_name, line = EXPORTS[suffix]
        reason = f"{format_name} files are not read. Export the model to ONNX: {line.format(name=path.name)}"
        raise UnsupportedError([(str(path), suffix, reason)])
    return False


def _format(source: Source) -> ModuleType:
    if is_tflite(source):
        return tflite
    from npusim.frontends import onnx

    return onnx
