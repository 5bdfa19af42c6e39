"""A small network, generated in memory, run on a device and compared with the reference; needs no files and no onnx
package.

:func:`as_onnx` converts it to a model, which needs the onnx package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npusim.dtypes import DType
from npusim.errors import UsageError
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops import reference
from npusim.ops.base import Array
from npusim.ops.build import GraphBuilder
from npusim.runtime import Result, Session

if TYPE_CHECKING:
    from npusim.hw.config import Config

TOLERANCE = 1e-5
"""Largest relative error: float32 sums may be in another order."""


@dataclass(frozen=True, slots=True)
class Demo:
    """The result of the demo: the run, and the error of its outputs relative to the largest output."""

    result: Result
    difference: float

    @property
    def correct(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.difference <= TOLERANCE


def run(config: Config) -> Demo:
    """Compile and run the network on a device, uncached; compare with the reference of the graph language."""
    graph, arrays = network(), inputs()
    session = Session(config, cache_dir=False)
    result = session.run(session.compile(graph), arrays)
    worst = 0.0
    for name, wanted in reference.run(graph, arrays).items():
        scale = float(np.abs(wanted).max()) or 1.0
        worst = max(worst, float(np.abs(result.outputs[name] - wanted).max()) / scale)
    return Demo(result, worst)


def inputs() -> dict[str, Array]:
    """The inputs of the demo by name, random with seed 1."""
    return {"image": np.random.default_rng(1).standard_normal((1, 3, 32, 32), np.float32)}


_OPERATORS: dict[str, tuple[str, dict[str, str]]] = {
    "conv": ("Conv", {"stride": "strides", "dilation": "dilations", "pads": "pads", "groups": "group"}),
    "unary": ("Relu", {}),
    "binary": ("Add", {}),
    "reduce": ("ReduceMean", {"axes": "axes", "keepdims": "keepdims"}),
    "matmul": ("Gemm", {}),
    "softmax": ("Softmax", {"axis": "axis"}),
}
"""ONNX operators and attribute names of the operators in the network."""


def as_onnx() -> bytes:
    """The network as an ONNX model, operator set 13. Raises UsageError without the onnx package."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise UsageError("writing ONNX models needs the onnx package: pip install 'npusim[onnx]'") from None
    graph = network()
    nodes = []
    for op in graph.ops:
        operator, names = _OPERATORS[op.kind]
        attributes = {there: op.attrs[here] for here, there in names.items()}
        operands = [tensor.name for tensor in op.inputs if tensor is not None]
        nodes.append(helper.make_node(operator, operands, [op.output.name], op.name, **attributes))
    inputs, outputs = (
        [helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape) for tensor in tensors]
        for tensors in (graph.inputs, graph.outputs)
    )
    weights = [numpy_helper.from_array(np.asarray(tensor.data), tensor.name) for tensor in graph.constants()]
    proto = helper.make_graph(nodes, graph.name, inputs, outputs, weights)
    # The oldest versions that the operators allow, so that every reader accepts it.
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    return bytes(model.SerializeToString(deterministic=True))


def network() -> Graph:
    """A classifier of 32x32 images for phones: convolution, residual block, head."""
    net = _Layers(GraphBuilder("demo"), np.random.default_rng(0))
    image = net.graph.input("image", (1, 3, 32, 32), DType.FLOAT32)
    stem = net.relu(net.conv("stem", image, 16, 3, stride=2), "stem.relu")
    wide = net.relu(net.conv("block.expand", stem, 64, 1), "block.expand.relu")
    deep = net.relu(net.conv("block.depthwise", wide, 64, 3, groups=64), "block.depthwise.relu")
    narrow = net.conv("block.project", deep, 16, 1)
    block = net.graph.add("binary", (stem, narrow), {"fn": Binary.ADD}, "block.add")
    head = net.relu(net.conv("head", block, 128, 3, stride=2), "head.relu")
    return net.graph.finish([net.classify(head, 10)])


class _Layers:
    """The layers of the network, with random weights that keep the scale of activations."""

    def __init__(self, graph: GraphBuilder, generator: np.random.Generator) -> None:
        self.graph = graph
        self._generator = generator

    def conv(self, name: str, x: Tensor, channels: int, size: int, *, stride: int = 1, groups: int = 1) -> Tensor:
        inputs = x.shape[1] // groups
        weight = self._weight((channels, inputs, size, size), inputs * size * size, f"{name}.weight")
        bias = self._weight((channels,), channels, f"{name}.bias")
        attributes = {
            "layout": "NCHW",
            "stride": (stride, stride),
            "dilation": (1, 1),
            "pads": (size // 2,) * 4,
            "groups": groups,
        }
        return self.graph.add("conv", (x, weight, bias), attributes, name)

    def relu(self, x: Tensor, name: str) -> Tensor:
        return self.graph.add("unary", (x,), {"fn": Unary.RELU}, name)

    def classify(self, x: Tensor, classes: int) -> Tensor:
        pooled = self.graph.add("reduce", (x,), {"fn": Reduce.MEAN, "axes": (2, 3), "keepdims": False}, "pool")
        weight = self._weight((x.shape[1], classes), x.shape[1], "classify.weight")
        bias = self._weight((classes,), classes, "classify.bias")
        scores = self.graph.add("matmul", (pooled, weight, bias), {}, "classify")
        return self.graph.add("softmax", (scores,), {"axis": 1, "log": False}, "probabilities")

    def _weight(self, shape: tuple[int, ...], fan_in: int, name: str) -> Tensor:
        values = self._generator.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
        return self.graph.const(values, name)
