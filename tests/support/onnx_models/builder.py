"""Write an ONNX graph as a sequence of calls, with seeded weights of a sensible size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


class ModelBuilder:
    """Collects nodes and initializers; every method returns the name of the value that it added.

    ``opset`` is the ai.onnx version of the model; ``seed`` determines every weight.
    """

    def __init__(self, name: str, *, seed: int = 0, opset: int = 17, ir_version: int = 8) -> None:
        self.name = name
        self.opset = opset
        self.ir_version = ir_version
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def fresh(self, stem: str) -> str:
        """Return an unused name."""
        self._count += 1
        return f"{stem}_{self._count}"

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        """Declare a graph input of static shape."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def const(self, array: Any, stem: str = "const") -> str:
        """Add an initializer with the array."""
        name = self.fresh(stem)
        self._initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        """Add an int64 vector, as used for shapes and axes."""
        return self.const(np.array(values, np.int64), "ints")

    def scalar(self, value: float) -> str:
        """Add a float32 scalar of rank 0."""
        return self.const(np.float32(value), "scalar")

    def normal(self, shape: Sequence[int], scale: float = 1.0, mean: float = 0.0, stem: str = "weight") -> str:
        """Add a float32 initializer drawn from a normal distribution."""
        values = self.rng.standard_normal(tuple(shape), np.float32)
        return self.const(values * np.float32(scale) + np.float32(mean), stem)

    def op(self, op_type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append a node with one output; ``""`` stands for an absent optional input."""
        return self.multi(op_type, 1, *inputs, name=name, **attributes)[0]

    def multi(self, op_type: str, outputs: int, *inputs: str, name: str = "", **attributes: Any) -> list[str]:
        """Append a node with several outputs and return their names."""
        name = name or self.fresh(op_type)
        results = [f"{name}_output_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), results, name=name, **attributes))
        return results

    def conv(
        self,
        x: str,
        channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        dilation: int = 1,
        gain: float = 2.0,
        bias: bool = True,
    ) -> str:
        """Add a convolution with "same" padding; ``gain`` is output variance per input power (2 after a Relu)."""
        fan_in = channels // groups * kernel * kernel
        weight = self.normal((out_channels, channels // groups, kernel, kernel), (gain / fan_in) ** 0.5)
        operands = [x, weight]
        if bias:
            operands.append(self.normal((out_channels,), 0.1, stem="bias"))
        pad = dilation * (kernel - 1) // 2
        return self.op(
            "Conv",
            *operands,
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad] * 4,
            dilations=[dilation, dilation],
            group=groups,
        )

    def linear(self, x: str, features: int, out_features: int, *, gain: float = 1.0, bias: bool = True) -> str:
        """Add ``x @ W + b`` on the last axis, as exporters write a linear layer on a sequence."""
        y = self.op("MatMul", x, self.normal((features, out_features), (gain / features) ** 0.5))
        return self.op("Add", self.normal((out_features,), 0.1, stem="bias"), y) if bias else y

    def gemm(self, x: str, features: int, out_features: int, *, gain: float = 1.0) -> str:
        """Add ``x @ W.T + b`` for a matrix x, as exporters write a classifier head."""
        weight = self.normal((out_features, features), (gain / features) ** 0.5)
        return self.op("Gemm", x, weight, self.normal((out_features,), 0.1, stem="bias"), transB=1)

    def finish(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the model after shape inference and a check by onnx."""
        bare = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, bare, self._initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = self.ir_version
        model.producer_name = "npusim-tests"
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        typed = {info.name: info for info in inferred.graph.value_info}
        for info in inferred.graph.output:
            if not info.type.HasField("tensor_type"):
                info.CopyFrom(typed[info.name])
        del inferred.graph.value_info[:]
        onnx.checker.check_model(inferred)
        return inferred
