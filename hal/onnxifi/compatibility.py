"""Can this device do that model? Answered without compiling it, so that one node takes well under a millisecond."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import GraphProto

from npusim.compiler.pipeline import prepare
from npusim.errors import ModelError, UnsupportedError, UsageError
from npusim.frontends.onnx.signature import DeclaredTypeError
from npusim.frontends.onnx.source import Model
from npusim.graph import Graph
from npusim.hw.config import Config

from .causes import Reason, cause, waits_for_value
from .importing import import_graph
from .model import parse
from .status import OnnxifiError, Status
from .tensors import Declared, declared

_TRIAL_SIZE = 1
"""What a symbolic dimension is while nobody has said better."""


def compatibility(config: Config, data: bytes, *, lenient: bool) -> Status:
    """SUCCESS, or FALLBACK if operators are decomposed. Raises OnnxifiError and what :func:`edge.status_of` knows.

    Values of graph inputs may yet come as weights: what depends on them alone is not decided here.
    """
    model = parse(data, lenient=lenient)
    inputs = dynamic_inputs(model.proto.graph)
    if all(value.is_static for value in inputs):
        decomposed = _static(model, config)
    else:
        decomposed = try_symbolic(model, inputs, config)
    return Status.FALLBACK if decomposed else Status.SUCCESS


def dynamic_inputs(graph: GraphProto) -> list[Declared]:
    """The inputs that no initializer fills."""
    weights = {tensor.name for tensor in graph.initializer}
    return [declared(value) for value in graph.input if value.name not in weights]


def _static(model: Model, config: Config) -> bool:
    try:
        graph, decomposed = import_graph(model, config)
        check_capacity(graph, config, Status.UNSUPPORTED_SHAPE)
        prepare(graph, config)
    except UnsupportedError as error:
        _raise_if_any(reason for reason in error.reasons if not waits_for_value(reason[2]))
        return False
    return bool(decomposed)


def try_symbolic(model: Model, inputs: Sequence[Declared], config: Config) -> bool:
    """Whether operators of a model with open dimensions are decomposed; what the shapes decide waits for them.

    Raises UnsupportedError for what no shape can help.
    """
    if any(value.dims is None for value in inputs):
        return False
    symbols = {value.name: [_TRIAL_SIZE if not isinstance(d, int) else d for d in value.dims or ()] for value in inputs}
    try:
        graph, decomposed = import_graph(model, config, symbols)
        prepare(graph, config)
    except UnsupportedError as error:
        _raise_if_any(reason for reason in error.reasons if cause(reason[2]) is not Status.UNSUPPORTED_SHAPE)
        return False
    except DeclaredTypeError:
        raise
    except (ModelError, UsageError):
        return False  # of these sizes, and perhaps not of those to come
    return bool(decomposed)


def check_capacity(graph: Graph, config: Config, status: Status) -> None:
    """Raise ``status`` if a graph's inputs, outputs and constants alone do not fit the device's memory."""
    tensors = {tensor for op in graph.ops for tensor in op.inputs if tensor is not None and tensor.is_constant}
    needed = sum(tensor.nbytes for tensor in (*tensors, *graph.inputs, *graph.outputs))
    if needed > config.dram.bytes:
        raise OnnxifiError(status, f"needs {needed} bytes of memory, {config.name} has {config.dram.bytes}")


def _raise_if_any(reasons: Iterable[Reason]) -> None:
    kept = list(reasons)
    if kept:
        raise UnsupportedError(kept)
