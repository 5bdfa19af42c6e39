"""The two ways in which npusim computes a model: the reference operators, and the simulated device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx

if TYPE_CHECKING:
    from npusim.runtime import Session
    from tests.support.onnx_node_tests.cases import Adapter

Array = npt.NDArray[Any]


def reference(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Import the model and evaluate each operator's numpy reference."""
    from npusim.frontends.onnx import load
    from npusim.ops.reference import run

    graph = load(model, input_shapes=dynamic_shapes(model, inputs))
    outputs = run(graph, inputs)
    return [outputs[info.name] for info in model.graph.output]


def device(model: onnx.ModelProto, inputs: Mapping[str, Array], config: str = "tiny") -> list[Array]:
    """Compile for a device and run on it."""
    session = _session(config)
    program = session.compile(model, dynamic_shapes(model, inputs))
    outputs = session.run(program, dict(inputs)).outputs
    session.unload(program)
    return [outputs[info.name] for info in model.graph.output]


ADAPTERS: dict[str, Adapter] = {"reference": reference, "device": device}


@functools.cache
def _session(config: str) -> Session:
    import npusim

    return npusim.Session(npusim.load_config(config), cache_dir=False)


def dynamic_shapes(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays for inputs whose declared shape is not static."""
    shapes = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        static = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
        if info.type.HasField("tensor_type") and not static and info.name in inputs:
            shapes[info.name] = inputs[info.name].shape
    return shapes
