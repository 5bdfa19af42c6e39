"""Reference workloads: small graphs that are typical for networks with operands of each type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder

from ..types import OperandType

VERSION = 3
"""Increment it with any change of a workload or its measurement."""

FEATURES = (1, 28, 28, 32)
"""Batch, height, width and channels of the feature maps: a layer in the middle of a small network."""
FILTERS = 32
INPUTS, UNITS = 512, 256
"""Sizes of a fully connected layer."""
ITERATIONS = 8
"""Iterations of a WHILE."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Graphs to run, and how often each is run."""

    graphs: tuple[tuple[Graph, int], ...]


def workload_of(kind: OperandType) -> Workload:
    """The reference workload for an operand type."""
    return Workload(tuple((graph, 1) for graph in _GRAPHS[kind]()))


def relaxed_workloads() -> tuple[Workload, Workload]:
    """Float32 that may be computed in half precision, in both ways: as float32, and as float16 between conversions."""
    return workload_of(OperandType.TENSOR_FLOAT32), Workload(((_network(DType.FLOAT16, outside=DType.FLOAT32), 1),))


def if_workload() -> Workload:
    """IF: a comparison, whose result the host reads, and one branch."""
    return Workload(((_compare(), 1), (_arithmetic(DType.FLOAT32), 1)))


def while_workload() -> Workload:
    """WHILE: the condition, once more than there are iterations, and the body."""
    return Workload(((_compare(), ITERATIONS + 1), (_arithmetic(DType.FLOAT32), ITERATIONS)))


_GRAPHS: dict[OperandType, Callable[[], Sequence[Graph]]] = {
    OperandType.FLOAT32: lambda: [_with_scalar(DType.FLOAT32)],
    OperandType.INT32: lambda: [_with_scalar(DType.INT32)],
    OperandType.UINT32: lambda: [_with_scalar(DType.INT32)],  # the device computes with the same 32 bits
    OperandType.TENSOR_FLOAT32: lambda: [_network(DType.FLOAT32)],
    OperandType.TENSOR_INT32: lambda: [_arithmetic(DType.INT32), _lookup()],
    OperandType.TENSOR_QUANT8_ASYMM: lambda: [_network(DType.UINT8)],
    OperandType.BOOL: lambda: [_selection((1,))],
    OperandType.TENSOR_QUANT16_SYMM: lambda: [_quantised_arithmetic(DType.INT16)],
    OperandType.TENSOR_FLOAT16: lambda: [_network(DType.FLOAT16)],
    OperandType.TENSOR_BOOL8: lambda: [_selection(FEATURES)],
    OperandType.FLOAT16: lambda: [_with_scalar(DType.FLOAT16)],
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: lambda: [_quantised_convolution(DType.INT8, per_channel=True)],
    OperandType.TENSOR_QUANT16_ASYMM: lambda: [_quantised_arithmetic(DType.UINT16)],
    OperandType.TENSOR_QUANT8_SYMM: lambda: [_quantised_dense(DType.INT8)],
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: lambda: [_network(DType.INT8)],
}
MEASURED = tuple(sorted(_GRAPHS))
"""The operand types that have a workload: all but SUBGRAPH."""


def _zeros(builder: GraphBuilder, shape: Sequence[int], dtype: DType) -> Tensor:
    """A constant. Timing does not depend on values."""
    return builder.const(np.zeros(tuple(shape), dtype.storage), "weights", dtype)


class _Layers:
    """Adds the layers of a network, in float or quantised."""

    def __init__(self, builder: GraphBuilder, dtype: DType) -> None:
        self._builder = builder
        self._dtype = dtype

    def conv(self, x: Tensor, channels: int, kernel: int = 1, *, stride: int = 1, depthwise: bool = False) -> Tensor:
        """A convolution of an image and a clipped activation. A depthwise one keeps the channels."""
        builder, groups = self._builder, x.shape[3] if depthwise else 1
        filters = _zeros(builder, (channels, x.shape[3] // groups, kernel, kernel), self._dtype)
        bias = _zeros(builder, (channels,), self._dtype if self._dtype.is_float else DType.INT32)
        pad = kernel // 2
        attrs: dict[str, Any] = {**_SAME, "stride": (stride, stride), "pads": (pad, pad, pad, pad), "groups": groups}
        if not self._dtype.is_float:
            attrs["x_zero"] = 3
        return self._clipped(builder.add("conv", [x, filters, bias], attrs))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """A sum and a clipped activation."""
        return self._clipped(self._builder.add("binary", [self._real(a), self._real(b)], {"fn": Binary.ADD}))

    def _clipped(self, x: Tensor) -> Tensor:
        y = self._builder.add("unary", [self._real(x)], {"fn": Unary.CLIP, "p0": 0.0, "p1": 6.0})
        if self._dtype.is_float:
            return y
        scale, zero = self._builder.const(np.float32(0.1)), self._builder.const(np.int32(3))
        return self._builder.add("quantize", [y, scale, zero], {"to": self._dtype})

    def _real(self, x: Tensor) -> Tensor:
        if x.dtype.is_float:
            return x
        scale, zero = self._builder.const(np.float32(0.002)), self._builder.const(np.int32(0))
        return self._builder.add("dequantize", [x, scale, zero], {"to": DType.FLOAT32})


def _network(dtype: DType, outside: DType | None = None) -> Graph:
    """Blocks of networks that classify images, from 56 x 56 to 14 x 14 pixels: an inverted residual of MobileNet v2,
    separable convolutions of MobileNet v1 and bottlenecks of ResNet. ``outside``: the type of input and output."""
    label = dtype.label if outside is None else f"{dtype.label} within {outside.label}"
    builder = GraphBuilder(f"network {label}")
    layers = _Layers(builder, dtype)
    x = given = builder.input("x", (1, 56, 56, 32), outside or dtype)
    if outside is not None:
        x = given = builder.add("cast", [x], {"to": dtype})
    x = layers.conv(layers.conv(layers.conv(x, 96), 96, 3, depthwise=True), 32)
    x = layers.add(given, x)
    for inner, channels in ((64, 128), (128, 256)):
        x = layers.conv(layers.conv(x, x.shape[3], 3, stride=2, depthwise=True), channels)
        x = layers.add(x, layers.conv(layers.conv(layers.conv(x, inner), inner, 3), channels))
    return builder.finish([x if outside is None else builder.add("cast", [x], {"to": outside})])


_SAME = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}


def _arithmetic(dtype: DType) -> Graph:
    builder = GraphBuilder(f"arithmetic {dtype.label}")
    a, b = builder.input("a", FEATURES, dtype), builder.input("b", FEATURES, dtype)
    total = builder.add("binary", [a, b], {"fn": Binary.ADD})
    if dtype.is_float:
        total = builder.add("unary", [total], {"fn": Unary.SIGMOID})
    return builder.finish([total])


def _with_scalar(dtype: DType) -> Graph:
    builder = GraphBuilder(f"scalar {dtype.label}")
    x, s = builder.input("x", FEATURES, dtype), builder.input("s", (1,), dtype)
    return builder.finish([builder.add("binary", [x, s], {"fn": Binary.MUL})])


def _compare() -> Graph:
    builder = GraphBuilder("condition")
    a, b = builder.input("a", (1,), DType.INT32), builder.input("b", (1,), DType.INT32)
    return builder.finish([builder.add("binary", [a, b], {"fn": Binary.LT})])


def _selection(condition: Sequence[int]) -> Graph:
    builder = GraphBuilder("selection")
    chosen = builder.input("c", condition, DType.BOOL)
    a, b = builder.input("a", FEATURES, DType.FLOAT32), builder.input("b", FEATURES, DType.FLOAT32)
    return builder.finish([builder.add("select", [chosen, a, b], {})])


def _lookup() -> Graph:
    builder = GraphBuilder("lookup")
    table, rows = builder.input("x", (INPUTS, UNITS), DType.INT32), builder.input("i", (64,), DType.INT32)
    return builder.finish([builder.add("gather", [table, rows], {"axis": 0})])


def _quantised_convolution(dtype: DType, *, per_channel: bool = False) -> Graph:
    builder = GraphBuilder(f"quantised convolution {dtype.label}")
    image = builder.input("x", FEATURES, dtype)
    filters = _zeros(builder, (FILTERS, FEATURES[3], 3, 3), dtype)
    sums = builder.add("conv", [image, filters, _zeros(builder, (FILTERS,), DType.INT32)], {**_SAME, "x_zero": 3})
    return builder.finish([_requantised(builder, sums, dtype, (1, 1, 1, FILTERS) if per_channel else ())])


def _quantised_dense(dtype: DType) -> Graph:
    builder = GraphBuilder(f"quantised dense {dtype.label}")
    vector = builder.input("x", (1, INPUTS), dtype)
    weights, bias = _zeros(builder, (INPUTS, UNITS), dtype), _zeros(builder, (UNITS,), DType.INT32)
    sums = builder.add("matmul", [vector, weights, bias], {"x_zero": 3})
    return builder.finish([_requantised(builder, sums, dtype, ())])


def _requantised(builder: GraphBuilder, sums: Tensor, dtype: DType, scales: Sequence[int]) -> Tensor:
    scale = builder.const(np.full(tuple(scales), 0.002, np.float32))
    real = builder.add("dequantize", [sums, scale, builder.const(np.int32(0))], {"to": DType.FLOAT32})
    return builder.add("quantize", [real, builder.const(np.float32(0.1)), builder.const(np.int32(3))], {"to": dtype})


def _quantised_arithmetic(dtype: DType) -> Graph:
    builder = GraphBuilder(f"quantised arithmetic {dtype.label}")
    scale, zero = builder.const(np.float32(0.1)), builder.const(np.int32(0))
    operands = [
        builder.add("dequantize", [builder.input(name, FEATURES, dtype), scale, zero], {"to": DType.FLOAT32})
        for name in "ab"
    ]
    total = builder.add("binary", operands, {"fn": Binary.MUL})
    return builder.finish([builder.add("quantize", [total, scale, zero], {"to": dtype})])
