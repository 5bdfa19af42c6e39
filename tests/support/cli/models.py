"""Small ONNX models for the command line: a valid one and defective ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_models.small import text_model


def small(*, batch: int | str = 1, operator: str = "Relu") -> onnx.ModelProto:
    """Build y = operator(conv(x)) for x float32[batch, 2, 6, 6] with three output channels."""
    weight = np.random.default_rng(0).standard_normal((3, 2, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node(operator, ["c"], ["y"], "act1"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 2, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3, 6, 6])
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def unknown() -> onnx.ModelProto:
    """Build a model with two operators that do not exist."""
    model = small(operator="Frobnicate")
    model.graph.node.append(helper.make_node("Twiddle", ["y"], ["z"], "act2"))
    model.graph.output[0].name = "z"
    return model


def branching() -> onnx.ModelProto:
    """Build z float32[n, m] from x float32[n, m], y float32[n] and rate int64: -x if rate is 16000, else relu(x)
    + y."""
    return text_model("""g (float[n, m] x, float[n] y, int64 rate) => (float[n, m] z) {
        fast = Constant<value_int = 16000>() c = Equal(rate, fast) one = Constant<value_ints = [1]>()
        column = Unsqueeze(y, one)
        z = If (c) <then_branch = t () => (float[n, m] a) { a = Neg(x) },
                    else_branch = e () => (float[n, m] b) { r = Relu(x) b = Add(r, column) }> }""")


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model and return the path."""
    path.write_bytes(model.SerializeToString())
    return path
