"""Whether a device supports a model. It is compiled as by onnxInitGraph, but not loaded onto the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from onnx import GraphProto

from npusim.errors import CompileError, ModelError, NeedsValueError, NpusimError, UnsupportedError, UsageError
from npusim.frontends.onnx.signature import DeclaredTypeError
from npusim.frontends.onnx.source import Model
from npusim.graph import Graph
from npusim.hw.config import Config

from .causes import cause
from .importing import compile_nodes, import_graph
from .model import parse
from .status import OnnxifiError, Status
from .tensors import Declared, declared

_TRIAL_SIZE = 1
"""Size used for a symbolic dimension that nothing else determines."""


def compatibility(config: Config, data: bytes, *, lenient: bool) -> Status:
    """Return SUCCESS, or FALLBACK if operators are decomposed.

    A model without weights may get them with onnxInitGraph, so nothing that depends on their values is decided here.
    Raises OnnxifiError, and exceptions that :func:`edge.status_of` converts.
    """
    model = parse(data, lenient=lenient)
    inputs = dynamic_inputs(model.proto.graph)
    if all(value.is_static for value in inputs):
        decomposed = _static(model, inputs, config)
    else:
        decomposed = try_symbolic(model, inputs, config)
    return Status.FALLBACK if decomposed else Status.SUCCESS


def dynamic_inputs(graph: GraphProto) -> list[Declared]:
    """Return the inputs without an initializer."""
    weights = {tensor.name for tensor in graph.initializer}
    return [declared(value) for value in graph.input if value.name not in weights]


def _static(model: Model, inputs: Sequence[Declared], config: Config) -> bool:
    try:
        return _decomposed(model, config)
    except NeedsValueError as error:
        # Weights come as initializers or as descriptors, not both. There are no weights if nothing would be left to
        # run.
        if model.proto.graph.initializer or not _remaining(inputs, error.values):
            raise
        return _tried(model, inputs, error.values, config)


def _tried(model: Model, inputs: Sequence[Declared], values: Mapping[str, Any], config: Config) -> bool:
    """The result for a model with plausible values of its weights. Raises NeedsValueError if it needs the values of all
    inputs. Other errors may be due to these values."""
    bind = dict(values)
    while True:
        try:
            return _decomposed(model, config, bind)
        except NeedsValueError as error:
            if not _remaining(inputs, {**bind, **error.values}):
                raise
            if error.values.keys() <= bind.keys():
                return False
            bind.update(error.values)
        except (NpusimError, OnnxifiError):
            return False


def _decomposed(model: Model, config: Config, bind: Mapping[str, Any] = MappingProxyType({})) -> bool:
    graph, decomposed = import_graph(model, config, bind=bind)
    check_capacity(graph, config, Status.UNSUPPORTED_SHAPE)
    _, several = compile_nodes(graph, config)
    return decomposed or several


def _remaining(inputs: Sequence[Declared], values: Mapping[str, Any]) -> list[str]:
    """Return the inputs that remain for runs."""
    return [value.name for value in inputs if value.name not in values]


def try_symbolic(model: Model, inputs: Sequence[Declared], config: Config) -> bool:
    """Return whether operators of a model with open dimensions are decomposed, without checks that need shapes.

    Raises UnsupportedError for operators that are unsupported with every shape.
    """
    if any(value.dims is None for value in inputs):
        return False
    symbols = {value.name: [_TRIAL_SIZE if not isinstance(d, int) else d for d in value.dims or ()] for value in inputs}
    try:
        graph, decomposed = import_graph(model, config, symbols)
        _, several = compile_nodes(graph, config)
    except UnsupportedError as error:
        if reasons := [reason for reason in error.reasons if cause(reason[2]) is not Status.UNSUPPORTED_SHAPE]:
            raise UnsupportedError(reasons) from error
        return False
    except DeclaredTypeError:
        raise
    except (ModelError, UsageError, CompileError):
        return False  # of these sizes, and perhaps not of those to come
    return decomposed or several


def check_capacity(graph: Graph, config: Config, status: Status) -> None:
    """Raise ``status`` if a graph's inputs, outputs and constants alone do not fit the device's memory."""
    tensors = {tensor for op in graph.ops for tensor in op.inputs if tensor is not None and tensor.is_constant}
    needed = sum(tensor.nbytes for tensor in (*tensors, *graph.inputs, *graph.outputs))
    if needed > config.dram.bytes:
        raise OnnxifiError(status, f"needs {needed} bytes of memory, {config.name} has {config.dram.bytes}")
