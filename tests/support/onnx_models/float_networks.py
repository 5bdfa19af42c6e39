"""Quantised image networks as float models in NCHW, and with the scales of a quantised file of such a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder

OPSET = 17
_EPSILON = 1e-5
_BINARY = {Binary.ADD: "Add", Binary.SUB: "Sub", Binary.MUL: "Mul"}
_UNARY: dict[Unary, tuple[str, tuple[str, ...]]] = {
    Unary.RELU: ("Relu", ()),
    Unary.LEAKY_RELU: ("LeakyRelu", ("alpha",)),
    Unary.SIGMOID: ("Sigmoid", ()),
    Unary.TANH: ("Tanh", ()),
    Unary.HARD_SIGMOID: ("HardSigmoid", ("alpha", "beta")),
    Unary.HARD_SWISH: ("HardSwish", ()),
}


class FloatExport:
    """Writes an NHWC network as PyTorch's exporter would: NCHW, SiLU as two nodes.

    Values have the names of the graph's quantised ones; weights are random.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes: list[onnx.NodeProto] = []
        self._stored: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)
        self._name: dict[Tensor, str] = {tensor: tensor.name for tensor in graph.inputs}
        self._factors: dict[Tensor, str] = {}

    def model(self) -> onnx.ModelProto:
        """Return the float model."""
        for op in self._graph.ops:
            self._write(op)
        inputs, outputs = (
            [helper.make_tensor_value_info(self._name[t], TensorProto.FLOAT, planes(t.shape)) for t in ends]
            for ends in (self._graph.inputs, self._graph.outputs)
        )
        graph = helper.make_graph(self._nodes, self._graph.name, inputs, outputs, self._stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    @property
    def names(self) -> Mapping[Tensor, str]:
        """Return the name of each value in the model."""
        return self._name

    def _store(self, name: str, value: npt.NDArray[Any]) -> str:
        self._stored.append(numpy_helper.from_array(value, name))
        return name

    def _node(self, op: Op, kind: str, inputs: list[str], **attributes: Any) -> None:
        name = f"{op.output.name}.real"
        self._nodes.append(helper.make_node(kind, inputs, [name], name=f"{op.name}.node", **attributes))
        self._name[op.output] = name

    def _write(self, op: Op) -> None:
        x = self._name[op.input(0)]
        if op.kind not in _WRITERS:
            raise ValueError(f"{op.name}: {op.kind} is not exported")
        _WRITERS[op.kind](self, op, x)

    def _dequantize(self, op: Op, x: str) -> None:
        self._name[op.output] = x

    def _quantize(self, op: Op, x: str) -> None:
        # The previous node produces the value that the file quantises.
        if self._nodes and x == self._nodes[-1].output[0] and not x.startswith("q:"):
            self._nodes[-1].output[0] = x = f"q:{op.output.name}"
        self._name[op.output] = x

    def _parameters(self, op: Op, depth: int, channels: int) -> list[str]:
        """Return random weights for ``depth`` summands per result, and biases of 0."""
        weights = self._rng.standard_normal(op.input(1).shape, np.float32) * np.float32((2 / depth) ** 0.5)
        return [self._store(f"{op.name}.w", weights), self._store(f"{op.name}.b", np.zeros(channels, np.float32))]

    def _conv(self, op: Op, x: str) -> None:
        attrs, w = op.attrs, op.input(1)
        names = self._parameters(op, int(np.prod(w.shape[1:])), op.input(2).size)
        shape = {
            "kernel_shape": w.shape[2:], "strides": attrs["stride"], "dilations": attrs["dilation"],
            "pads": attrs["pads"], "group": attrs["groups"],
        }  # fmt: skip
        if op.kind == "conv_transpose":
            shape["output_padding"] = [
                out - ((size - 1) * stride + kernel - before - after)
                for out, size, stride, kernel, before, after in zip(
                    attrs["output_hw"], op.input(0).shape[1:3], attrs["stride"], w.shape[2:],
                    attrs["pads"][:2], attrs["pads"][2:], strict=True,
                )
            ]  # fmt: skip
        self._node(op, "Conv" if op.kind == "conv" else "ConvTranspose", [x, *names], **shape)

    def _matmul(self, op: Op, x: str) -> None:
        depth, channels = op.input(1).shape
        self._node(op, "Gemm", [x, *self._parameters(op, depth, channels)])

    def _unary(self, op: Op, x: str) -> None:
        attrs = op.attrs
        match attrs["fn"]:
            case Unary.SILU:
                self._nodes.append(helper.make_node("Sigmoid", [x], [f"{op.name}.share"], name=f"{op.name}.sigmoid"))
                self._node(op, "Mul", [x, f"{op.name}.share"])
            case Unary.CLIP:
                bounds = [self._store(f"{op.name}.{p}", np.array(attrs[p], np.float32)) for p in ("p0", "p1")]
                self._node(op, "Clip", [x, *bounds])
            case function:
                kind, names = _UNARY[function]
                self._node(op, kind, [x], **dict(zip(names, (attrs["p0"], attrs["p1"]), strict=False)))

    def _binary(self, op: Op, x: str) -> None:
        factor, shift = self._factors.pop(op.input(0), None), op.input(1)
        if factor is not None:
            # As PyTorch exports a normalisation that does not follow a convolution.
            channels = shift.size
            rows = [
                self._store(f"{op.name}.{name}", np.full(channels, value, np.float32))
                for name, value in (("mean", 0), ("var", 1 - _EPSILON))
            ]
            self._node(op, "BatchNormalization", [x, factor, self._row(op, shift), *rows], epsilon=_EPSILON)
            return
        if op.attrs["fn"] == Binary.MUL and shift.data is not None:
            self._factors[op.output], self._name[op.output] = self._row(op, shift), x
            return
        self._node(op, _BINARY[op.attrs["fn"]], [self._operand(op, index) for index in (0, 1)])

    def _gather(self, op: Op, x: str) -> None:
        axis = 2 if op.attrs["axis"] == 1 else 3
        # One node for rows and columns, as exporters write it: the node for columns does both.
        if axis == 2:
            self._name[op.output] = x
            return
        scale = op.output.shape[op.attrs["axis"]] / op.input(0).shape[op.attrs["axis"]]
        names = ["", self._store(f"{op.name}.scales", np.array([1.0, 1.0, scale, scale], np.float32))]
        self._node(op, "Resize", [x, *names], mode="nearest", coordinate_transformation_mode="asymmetric",
                   nearest_mode="floor")  # fmt: skip

    def _concat(self, op: Op, x: str) -> None:
        self._node(op, "Concat", [self._name[t] for t in op.inputs if t is not None], axis=1)

    def _slice(self, op: Op, x: str) -> None:
        shape = op.output.shape
        axes = [i for i, (a, b) in enumerate(zip(op.input(0).shape, shape, strict=True)) if a != b]
        start, size = op.attrs["starts"][axes[0]], op.attrs["sizes"][axes[0]]
        numbers = (start, start + size, 1 if len(shape) == 4 else len(shape) - 1)
        names = [self._store(f"{op.name}.{index}", np.array([value], np.int64)) for index, value in enumerate(numbers)]
        self._node(op, "Slice", [x, *names])

    def _softmax(self, op: Op, x: str) -> None:
        self._node(op, "Softmax", [x], axis=1 if len(op.output.shape) == 4 else op.attrs["axis"])

    def _reshape(self, op: Op, x: str) -> None:
        if len(op.output.shape) == 2:
            self._node(op, "Flatten", [x], axis=1)
            return
        # A sequence [batch, steps, features] as an image with one row.
        batch, _, steps, features = op.output.shape
        turned = helper.make_node("Transpose", [x], [f"{op.name}.t"], name=f"{op.name}.t", perm=[0, 2, 1])
        self._nodes.append(turned)
        shape = self._store(f"{op.name}.shape", np.array([batch, features, 1, steps], np.int64))
        self._node(op, "Reshape", [f"{op.name}.t", shape])

    def _operand(self, op: Op, index: int) -> str:
        return self._name[op.input(index)]

    def _row(self, op: Op, row: Tensor) -> str:
        """One number for each channel."""
        assert row.data is not None
        noise = self._rng.uniform(0.5, 1, row.size).astype(np.float32)
        return self._store(f"{op.name}.row", np.asarray(row.data.reshape(-1) * noise, np.float32))

    def _pool(self, op: Op, x: str) -> None:
        attrs, image = op.attrs, op.input(0).shape
        if attrs["fn"] == "average" and attrs["kernel"] == image[1:3] and not any(attrs["pads"]):
            self._node(op, "GlobalAveragePool", [x])
            return
        kind = "MaxPool" if attrs["fn"] == "max" else "AveragePool"
        shape: dict[str, Any] = {"kernel_shape": attrs["kernel"], "strides": attrs["stride"], "pads": attrs["pads"]}
        # Windows that extend beyond the image need ceil_mode.
        reach = [
            (out - 1) * stride + kernel > size + before + after
            for out, stride, kernel, size, before, after in zip(
                attrs["output_hw"], attrs["stride"], attrs["kernel"], image[1:3], attrs["pads"][:2], attrs["pads"][2:],
                strict=True,
            )
        ]  # fmt: skip
        self._node(op, kind, [x], ceil_mode=int(any(reach)), **shape)


_WRITERS = {
    "dequantize": FloatExport._dequantize,
    "quantize": FloatExport._quantize,
    "conv": FloatExport._conv,
    "conv_transpose": FloatExport._conv,
    "matmul": FloatExport._matmul,
    "unary": FloatExport._unary,
    "binary": FloatExport._binary,
    "pool": FloatExport._pool,
    "gather": FloatExport._gather,
    "concat": FloatExport._concat,
    "slice": FloatExport._slice,
    "softmax": FloatExport._softmax,
    "reshape": FloatExport._reshape,
}
"""Writer of each kind."""


def planes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an NHWC image shape as NCHW; other shapes are unchanged."""
    return (shape[0], shape[3], shape[1], shape[2]) if len(shape) == 4 else shape


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
