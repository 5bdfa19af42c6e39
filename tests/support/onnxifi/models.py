"""Small models for ONNXIFI clients, each valid or invalid in exactly one way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Value = onnx.ValueInfoProto


def tensor(name: str, shape: Sequence[int | str | None] | None, kind: int = FLOAT) -> Value:
    """Return the declaration of an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    name: str = "graph",
    opset: int = 17,
    ir: int = 8,
    value_info: Sequence[Value] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), name, list(inputs), list(outputs), list(initializers), value_info=list(value_info)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def model(*args: Any, **kwargs: Any) -> bytes:
    return bytes(proto(*args, **kwargs).SerializeToString())


SHAPE = (2, 3)
"""Shape of all tensors in the small models."""


def unary(op: str = "Relu", kind: int = FLOAT, shape: Sequence[int | str] = SHAPE, **attributes: Any) -> bytes:
    """Build x -> y with one node of one input."""
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    return model([node], [tensor("x", shape, kind)], [tensor("y", shape, kind)])


IDENTITY = unary("Identity", shape=(4,))
"""Returns its input x, float[4], as y."""


TENTH = model(
    [helper.make_node("Div", ["x", "ten"], ["y"])],
    [tensor("x", (4,))],
    [tensor("y", (4,))],
    [numpy_helper.from_array(np.float32(10), "ten")],
)
"""Returns x / 10, which is seldom exact."""


def add(initializer: bool = False) -> bytes:
    """Build x + w -> y; w is a graph input, with a value if ``initializer``."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    values = [numpy_helper.from_array(np.ones(SHAPE, np.float32), "w")] if initializer else []
    return model([node], [tensor("x", SHAPE), tensor("w", SHAPE)], [tensor("y", SHAPE)], values)


def symbolic() -> bytes:
    """Build x [N, 3] -> relu -> y [N, 3]."""
    return unary(shape=("N", 3))


def lstm() -> bytes:
    """Build three steps of a recurrent layer, which this backend decomposes."""
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2)
    inputs = [tensor("x", (3, 1, 4)), tensor("w", (1, 8, 4)), tensor("r", (1, 8, 2))]
    return model([node], inputs, [tensor("y", (3, 1, 1, 2))])


def convolution() -> bytes:
    """Build the network of the guide's program: x float[1, 3, 16, 16], y float[1, 10]."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3), np.float32) / 5, "k": rng.standard_normal((8, 10), np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "k"], ["y"]),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return model(nodes, [tensor("x", (1, 3, 16, 16))], [tensor("y", (1, 10))], initializers)


def reads_nothing() -> bytes:
    """A node reads a name that nothing produces."""
    return model([helper.make_node("Relu", ["nobody"], ["y"])], [tensor("x", SHAPE)], [tensor("y", SHAPE)])


def versions(opset: int = 17, ir: int = 8) -> bytes:
    node = helper.make_node("Relu", ["x"], ["y"])
    return model([node], [tensor("x", SHAPE)], [tensor("y", SHAPE)], opset=opset, ir=ir)


def bad_attribute() -> bytes:
    """An interpolation mode that does not exist."""
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="spiral")
    scales = numpy_helper.from_array(np.ones(4, np.float32), "s")
    return model([node], [tensor("x", (1, 1, 2, 2))], [tensor("y", (1, 1, 2, 2))], [scales])


def bad_shape() -> bytes:
    """A convolution over four spatial dimensions."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    inputs = [tensor("x", (1, 1, 4, 4, 4, 4)), tensor("w", (1, 1, 2, 2, 2, 2))]
    return model([node], inputs, [tensor("y", (1, 1, 3, 3, 3, 3))])


def declared(shape: Sequence[int] = SHAPE, kind: int = FLOAT) -> bytes:
    """A relu whose output is declared with a wrong shape or type."""
    return model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", SHAPE)], [tensor("y", shape, kind)])


def too_large(nbytes: int) -> bytes:
    """A relu over ``nbytes`` bytes."""
    return unary(shape=(nbytes // 4,))
