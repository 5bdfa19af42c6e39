"""Writes networks as ONNX files: as PyTorch exports them, or quantised in QDQ format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from npusim.dtypes import DType
from npusim.graph import Graph, Op, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.validate.networks.build import DEVIATION, SCALE

Array = npt.NDArray[Any]

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
        self._has_steps = False

    def model(self) -> onnx.ModelProto:
        """The float model."""
        for op in self._graph.ops:
            self._write(op)
        return self._finish(
            *(
                [helper.make_tensor_value_info(self._name[t], TensorProto.FLOAT, planes(t.shape)) for t in ends]
                for ends in (self._graph.inputs, self._graph.outputs)
            )
        )

    def _finish(self, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, self._graph.name, inputs, outputs, self._stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    @property
    def names(self) -> Mapping[Tensor, str]:
        """The name of each value in the model."""
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
        getattr(self, _WRITERS[op.kind])(op, x)

    def _dequantize(self, op: Op, x: str) -> None:
        self._name[op.output] = x

    def _quantize(self, op: Op, x: str) -> None:
        # The previous node produces the value that the file quantises.
        if self._nodes and x == self._nodes[-1].output[0] and not x.startswith("q:"):
            self._nodes[-1].output[0] = x = f"q:{op.output.name}"
        self._name[op.output] = x

    def _parameters(self, op: Op, depth: int, channels: int) -> list[str]:
        """Random weights for ``depth`` summands per result, and biases of 0."""
        weights = self._rng.standard_normal(op.input(1).shape, np.float32) * np.float32((2 / depth) ** 0.5)
        return [self._store(f"{op.name}.w", weights), self._store(f"{op.name}.b", np.zeros(channels, np.float32))]

    def _conv(self, op: Op, x: str) -> None:
        attrs, w = op.attrs, op.input(1)
        names = self._parameters(op, int(np.prod(w.shape[1:])), op.input(2).size)
        shape = {
            "kernel_shape": w.shape[2:],
            "strides": attrs["stride"],
            "dilations": attrs["dilation"],
            "pads": attrs["pads"],
            "group": attrs["groups"],
        }
        if op.kind == "conv_transpose":
            shape["output_padding"] = [
                out - ((size - 1) * stride + kernel - before - after)
                for out, size, stride, kernel, before, after in zip(
                    attrs["output_hw"],
                    op.input(0).shape[1:3],
                    attrs["stride"],
                    w.shape[2:],
                    attrs["pads"][:2],
                    attrs["pads"][2:],
                    strict=True,
                )
            ]
        self._node(op, "Conv" if op.kind == "conv" else "ConvTranspose", [x, *names], **shape)

    def _matmul(self, op: Op, x: str) -> None:
        depth, channels = op.input(1).shape
        self._node(op, "Gemm", [x, *self._parameters(op, depth, channels)])

    def _unary(self, op: Op, x: str) -> None:
        attrs = op.attrs
        match attrs["fn"]:
            case Unary.SILU:
                self._nodes.append(helper.make_node("Sigmoid", [x], [f"{op.name}.share"], name=f"{op.name}.sigmoid"))
                self._node(op, "Mul", [x, self._shared(f"{op.name}.share")])
            case Unary.CLIP:
                bounds = [self._store(f"{op.name}.{p}", np.array(attrs[p], np.float32)) for p in ("p0", "p1")]
                self._node(op, "Clip", [x, *bounds])
            case function:
                kind, names = _UNARY[function]
                self._node(op, kind, [x], **dict(zip(names, (attrs["p0"], attrs["p1"]), strict=False)))

    def _shared(self, sigmoid: str) -> str:
        """The second factor of a SiLU."""
        return sigmoid

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
        self._node(
            op, "Resize", [x, *names], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )

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
                attrs["output_hw"],
                attrs["stride"],
                attrs["kernel"],
                image[1:3],
                attrs["pads"][:2],
                attrs["pads"][2:],
                strict=True,
            )
        ]
        self._node(op, kind, [x], ceil_mode=int(any(reach)), **shape)


_WRITERS = {
    "dequantize": "_dequantize",
    "quantize": "_quantize",
    "conv": "_conv",
    "conv_transpose": "_conv",
    "matmul": "_matmul",
    "unary": "_unary",
    "binary": "_binary",
    "pool": "_pool",
    "gather": "_gather",
    "concat": "_concat",
    "slice": "_slice",
    "softmax": "_softmax",
    "reshape": "_reshape",
}
"""The method that writes each kind."""


def planes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """An NHWC image shape as NCHW; other shapes are unchanged."""
    return (shape[0], shape[3], shape[1], shape[2]) if len(shape) == 4 else shape


class QdqExport(FloatExport):
    """Writes an NHWC network as a quantiser does: pairs of QuantizeLinear and DequantizeLinear around each layer, with
    the weights and the scale of the graph.

    Inputs and outputs are integers. Images are NHWC, as in files for the tools of the chips' vendors, and transposed.
    """

    def model(self) -> onnx.ModelProto:
        """The quantised model."""
        for tensor in self._graph.inputs:
            self._name[tensor] = self._real(tensor.name, tensor.name)
            if len(tensor.shape) == 4:
                self._turn(tensor.name, self._name[tensor], (0, 3, 1, 2))
                self._name[tensor] = self._rounded(f"{tensor.name}.turned")
        for op in self._graph.ops:
            self._write(op)
            if op.kind not in _CONVERSIONS and op.output.dtype == DType.INT8 and self._name[op.output] in self._made():
                self._name[op.output] = self._rounded(self._name[op.output])
        for tensor in self._graph.outputs:
            x = self._name[tensor]
            if len(tensor.shape) == 4:
                self._turn(tensor.name, x, (0, 2, 3, 1))
                x = f"{tensor.name}.turned"
            self._round(x, f"{tensor.name}.out")
        return self._finish(
            [
                helper.make_tensor_value_info(tensor.name, TensorProto.INT8, tensor.shape)
                for tensor in self._graph.inputs
            ],
            [helper.make_tensor_value_info(f"{t.name}.out", TensorProto.INT8, t.shape) for t in self._graph.outputs],
        )

    def _turn(self, name: str, x: str, perm: tuple[int, ...]) -> None:
        self._nodes.append(helper.make_node("Transpose", [x], [f"{name}.turned"], name=f"{name}.turn", perm=perm))

    def _made(self) -> Sequence[str]:
        """The results of the last node."""
        made: Sequence[str] = self._nodes[-1].output
        return made

    def _round(self, x: str, name: str) -> None:
        self._nodes.append(helper.make_node("QuantizeLinear", [x, *self._steps()], [name], name=f"{name}.q"))

    def _real(self, x: str, name: str) -> str:
        inputs = [x, *self._steps()]
        self._nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}.dq"], name=f"{name}.dq"))
        return f"{name}.dq"

    def _rounded(self, x: str) -> str:
        """The value ``x`` after its conversion to integers and back."""
        self._round(x, f"{x}.q")
        return self._real(f"{x}.q", x)

    def _steps(self) -> tuple[str, str]:
        """The names of the scale and the zero point of all values, which are stored once."""
        if not self._has_steps:
            self._store("scale", np.asarray(np.float32(SCALE)))
            self._store("zero", np.asarray(np.int8(0)))
            self._has_steps = True
        return "scale", "zero"

    def _quantize(self, op: Op, x: str) -> None:
        self._name[op.output] = self._rounded(x)

    def _parameters(self, op: Op, depth: int, channels: int) -> list[str]:
        weights, bias = op.input(1).data, op.input(2).data
        assert weights is not None
        assert bias is not None
        # Results have the deviation of the operands, whatever the number of summands.
        scales = self._rng.uniform(0.5, 1, channels).astype(np.float32) * np.float32((2 / depth) ** 0.5 / DEVIATION)
        axis = 0 if op.kind == "conv" else 1
        zeros = np.zeros(channels, np.int8)
        return [
            self._parameter(f"{op.name}.w", weights, scales, zeros, axis),
            self._parameter(f"{op.name}.b", bias, scales * np.float32(SCALE), zeros.astype(np.int32), 0),
        ]

    def _parameter(self, name: str, values: Array, scales: Array, zeros: Array, axis: int) -> str:
        """The real values of integers with one scale per channel."""
        self._store(name, np.ascontiguousarray(values))
        inputs = [name, self._store(f"{name}.scale", scales), self._store(f"{name}.zero", zeros)]
        self._nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}.dq"], name=f"{name}.dq", axis=axis))
        return f"{name}.dq"

    def _unary(self, op: Op, x: str) -> None:
        # Quantisers leave only bounds behind the sums of a layer.
        if x in self._made() and op.attrs["fn"] not in (Unary.RELU, Unary.CLIP) and not x.endswith(".dq"):
            x = self._rounded(x)
        super()._unary(op, x)

    def _shared(self, sigmoid: str) -> str:
        return self._rounded(sigmoid)


_CONVERSIONS = ("quantize", "dequantize")
