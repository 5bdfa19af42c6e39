"""Bindings of inputs and outputs: created by onnxSetGraphIO, used by later runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from npusim.program import Binding as ProgramBinding
from npusim.runtime import Request

from .descriptor import Descriptor, array_at
from .graph import Form, Graph, QuantizationTable
from .quantization import OUTPUTS
from .status import OnnxifiError, Status
from .tensors import Declared, check_against, check_complete, check_descriptor, match_names

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class IO:
    """One complete binding: the request of a run, with views of client memory for inputs and outputs in the storage
    types of the program. An output that is also an input has another name in the program."""

    request: Request
    outputs: Mapping[str, Array]


def set_io(graph: Graph, inputs: Sequence[Descriptor], outputs: Sequence[Descriptor]) -> IO:
    """Check the descriptors, and find or compile the program for their shapes.

    Raises OnnxifiError, and exceptions that :func:`edge.status_of` converts.
    """
    ins = match_names(inputs, graph.inputs, "graph input")
    outs = match_names(outputs, graph.outputs, "graph output")
    for descriptor in (*inputs, *outputs):
        check_descriptor(descriptor)
    check_complete(ins, graph.inputs, "graph input")
    check_complete(outs, graph.outputs, "graph output")
    quantized_in = _compare(ins, graph.inputs)
    quantized_out = _compare(outs, graph.outputs)
    for name, _ in quantized_out:
        if outs[name].data_type not in OUTPUTS:
            raise OnnxifiError(Status.MISMATCHING_DATATYPE, f"{name!r}: the device quantises to 8 and 16 bits only")
    _check_symbols(ins, graph.inputs)
    shapes = tuple((name, ins[name].shape or ()) for name, value in sorted(graph.inputs.items()) if not value.is_static)
    program = graph.program(Form(shapes, quantized_in, quantized_out))
    results = {binding.name: outs[name] for binding, name in zip(program.outputs, graph.outputs, strict=True)}
    for made in program.outputs:  # of the shapes that follow from those of the inputs
        shape = results[made.name].shape
        if shape != made.shape:
            message = f"{made.name!r} is {list(made.shape)} for these inputs, {shape} here"
            raise OnnxifiError(Status.MISMATCHING_SHAPE, message)
    request = Request(program, _views(ins, program.inputs), priority=graph.priority)
    return IO(request, _views(results, program.outputs))


def _compare(found: Mapping[str, Descriptor], wanted: Mapping[str, Declared]) -> QuantizationTable:
    """Check descriptors against the model. Returns the quantised ones by name."""
    pairs = [(name, check_against(descriptor, wanted[name])) for name, descriptor in found.items()]
    return tuple(sorted(((name, item) for name, item in pairs if item is not None), key=lambda pair: pair[0]))


def _check_symbols(found: Mapping[str, Descriptor], wanted: Mapping[str, Declared]) -> None:
    """Check that a symbol has the same size at all its occurrences in the inputs."""
    sizes: dict[str, int] = {}
    for name, descriptor in found.items():
        for dim, size in zip(wanted[name].dims or (), descriptor.shape or (), strict=False):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                message = f"{name!r}: {dim} is {size} here and {sizes[dim]} elsewhere"
                raise OnnxifiError(Status.MISMATCHING_SHAPE, message)


def _views(found: Mapping[str, Descriptor], bindings: Sequence[ProgramBinding]) -> dict[str, Array]:
    return {
        binding.name: array_at(found[binding.name].buffer, binding.dtype.storage, binding.shape) for binding in bindings
    }
