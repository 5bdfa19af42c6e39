"""Quantised image networks with the scales of a quantised file of their float model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.ops.build import GraphBuilder
from npusim.validate.networks.files import FloatExport, planes


class Rescaled:
    """The network of a quantised file of its float export: the same layers, with the weights and scales of the file.

    Inputs and outputs are those of the file: float32 images in NCHW.
    """

    def __init__(self, graph: Graph, export: FloatExport, file: onnx.ModelProto) -> None:
        self._graph, self._names = graph, export.names
        self._stored = {tensor.name: tensor for tensor in file.graph.initializer}
        self._build = GraphBuilder(graph.name)
        self._value: dict[Tensor, Tensor] = {}
        self._sums: dict[Tensor, npt.NDArray[np.float32]] = {}
        self._quantised = {
            node.input[0].removesuffix("_QuantizeLinear_Input"): node.input[1:]
            for node in file.graph.node
            if node.op_type == "QuantizeLinear"
        }

    def graph(self) -> Graph:
        """Return the graph."""
        for tensor in self._graph.inputs:
            x = self._build.input(tensor.name, planes(tensor.shape), DType.FLOAT32)
            scale, zero, dtype = self._parameters(tensor)
            x = self._build.add("quantize", (x, scale, zero), {"to": dtype})
            self._value[tensor] = self._turned(x, (0, 2, 3, 1))
        for op in self._graph.ops:
            self._add(op)
        outputs = []
        for tensor in self._graph.outputs:
            scale, zero, _ = self._parameters(tensor)
            y = self._turned(self._value[tensor], (0, 3, 1, 2))
            outputs.append(self._build.add("dequantize", (y, scale, zero), {"to": DType.FLOAT32}))
        return self._build.finish(outputs)

    def _turned(self, x: Tensor, perm: tuple[int, ...]) -> Tensor:
        return self._build.add("transpose", (x,), {"perm": perm}) if len(x.shape) == 4 else x

    def _array(self, name: str) -> npt.NDArray[Any]:
        return numpy_helper.to_array(self._stored[name])

    def _parameters(self, tensor: Tensor) -> tuple[Tensor, Tensor, DType]:
        while self._names[tensor] not in self._quantised:
            # A value that is only moved before the first layer is quantised after the movement.
            tensor = next(op.output for op in self._graph.ops if tensor in op.inputs)
        scale, zero = map(self._array, self._quantised[self._names[tensor]])
        dtype = DType.INT8 if zero.dtype == np.int8 else DType.UINT8
        return self._build.const(np.float32(scale)), self._build.const(np.int32(zero)), dtype

    def _same(self, a: Tensor, b: Tensor) -> bool:
        (s, z, _), (t, u, _) = self._parameters(a), self._parameters(b)
        return bool(s.data == t.data and z.data == u.data)

    def _requantised(self, x: Tensor, own: Tensor, wanted: Tensor) -> Tensor:
        if self._same(own, wanted):
            return x
        scale, zero, _ = self._parameters(own)
        real = self._build.add("dequantize", (x, scale, zero), {"to": DType.FLOAT32})
        scale, zero, dtype = self._parameters(wanted)
        return self._build.add("quantize", (real, scale, zero), {"to": dtype})

    def _add(self, op: Op) -> None:
        build, attrs = self._build, dict(op.attrs)
        inputs = [
            None if t is None else self._value.get(t) if t.data is None else build.const(t.data, dtype=t.dtype)
            for t in op.inputs
        ]
        first = op.input(0)
        match op.kind:
            case "conv" | "conv_transpose" | "matmul":
                scale, zero, _ = self._parameters(first)
                weights, zeros = self._array(f"{op.name}.w_quantized"), self._array(f"{op.name}.w_zero_point")
                assert scale.data is not None
                assert zero.data is not None
                assert not zeros.any()
                bias = self._array(f"{op.name}.b_quantized")
                attrs["x_zero"] = int(zero.data)
                y = build.add(op.kind, (inputs[0], build.const(weights), build.const(bias)), attrs)
                self._sums[y] = scale.data * self._array(f"{op.name}.w_scale")
            case "dequantize":
                assert inputs[0] is not None
                if inputs[0] in self._sums:
                    factor = self._sums[inputs[0]].astype(np.float32)
                    y = build.add("dequantize", (inputs[0], build.const(factor), build.const(np.int32(0))), attrs)
                else:
                    y = build.add("dequantize", (inputs[0], *self._parameters(first)[:2]), attrs)
            case "quantize":
                scale, zero, dtype = self._parameters(op.output)
                y = build.add("quantize", (inputs[0], scale, zero), {"to": dtype})
            case "concat":
                parts = [self._requantised(self._value[t], t, op.output) for t in op.inputs if t is not None]
                y = build.add("concat", parts, attrs)
            case "pool" | "slice" | "reshape" | "gather" if attrs.get("axis") != 1:
                y = build.add(op.kind, inputs, attrs)
                y = self._requantised(y, first, op.output)
            case _:
                y = build.add(op.kind, inputs, attrs)
        self._value[op.output] = y
