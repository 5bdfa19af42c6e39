"""Small models for the importer's tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.capi import onnxruntime_pybind11_state

from npusim.frontends.onnx import load
from npusim.ops import reference
from tests.support.onnx_models.oracle import runtime_outputs

Array = npt.NDArray[Any]
OPSET = 21
MICROSOFT = "com.microsoft"


def node_model(
    op_type: str,
    inputs: Mapping[str, Array],
    constants: Sequence[str] = (),
    *,
    opset: int = OPSET,
    domain: str = "",
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one node. Inputs listed in ``constants`` are initializers."""
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"onnx {onnx.__version__} does not know operator set {opset}")
    names = [name if inputs[name] is not None else "" for name in inputs]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, names, results, name="node", domain=domain, **attributes)
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
        if array is not None and name not in constants
    ]
    weights = [numpy_helper.from_array(inputs[name], name) for name in constants]
    produced = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph([node], "graph", declared, produced, weights)
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def evaluate(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Array]:
    """Return the model's outputs from the reference operators, in order."""
    graph = load(model)
    results = reference.run(graph, inputs)
    return [results[output.name] for output in model.graph.output]


def run_node(op_type: str, inputs: Mapping[str, Any], constants: Sequence[str] = (), **options: Any) -> list[Array]:
    """Return the outputs of a model of one node."""
    model = node_model(op_type, inputs, constants, **options)
    fed = {name: array for name, array in inputs.items() if array is not None and name not in constants}
    return evaluate(model, fed)


def compared(
    op: str, inputs: dict[str, Any], outputs: int = 1, constants: tuple[str, ...] = (), valid: int | None = None,
    **attrs: Any,
) -> None:  # fmt: skip
    """Assert that a node gives what onnxruntime computes. Inputs of None are left out.

    ``valid``: the entries of keys and values that count.
    """
    model = node_model(op, inputs, constants, outputs=outputs, domain=MICROSOFT, **attrs)
    fed = {name: array for name, array in inputs.items() if array is not None and name not in constants}
    found = reference.run(load(model), fed)
    stated = reference.run(load(with_defaults(model)), fed)
    assert {name: array.tobytes() for name, array in stated.items()} == {n: a.tobytes() for n, a in found.items()}
    for name, wanted in runtime_outputs(model, fed, optimise=False).items():
        assert found[name].shape == wanted.shape, name
        assert found[name].dtype == wanted.dtype, name
        part = np.s_[:, :, :valid] if wanted.ndim == 4 else np.s_[:]
        np.testing.assert_allclose(found[name][part], wanted[part], 1e-4, 1e-4, err_msg=name)


@functools.cache
def default_attributes() -> dict[str, list[onnx.AttributeProto]]:
    """The attributes of onnxruntime's own operators that have a default, by operator."""
    schemas = [each for each in onnxruntime_pybind11_state.get_all_operator_schema() if each.domain == MICROSOFT]
    return {
        schema.name: [onnx.AttributeProto.FromString(each._default_value) for each in schema.attributes.values()]
        for schema in schemas
    }


def with_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all default attributes of onnxruntime's operators, as its execution providers see it."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node:
        given = {each.name for each in node.attribute}
        node.attribute.extend(each for each in default_attributes()[node.op_type] if each.name not in {"", *given})
    return made


def normal(seed: int, *shape: int) -> Array:
    """Return seeded standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def text_model(text: str, opset: int = OPSET, ir_version: int = 10) -> onnx.ModelProto:
    """Parse a model in ONNX's text notation, without its header."""
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}, "local" : 1]> {text}')


def external(array: Array, name: str, location: str, **entries: int) -> TensorProto:
    """Return an initializer with its data in a file."""
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def weighted(weight: TensorProto) -> onnx.ModelProto:
    """Build y = x + w for one initializer w."""
    shape = list(weight.dims)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "graph",
        [helper.make_tensor_value_info("x", weight.data_type, shape)],
        [helper.make_tensor_value_info("y", weight.data_type, shape)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def ramp(*shape: int) -> Array:
    """Return distinct float32 values."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
