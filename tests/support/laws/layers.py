"""Random layers: sizes that networks have, and sizes next to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx import load
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.isa.functions import Binary
from npusim.ops.build import GraphBuilder
from npusim.units import ceil_div
from npusim.work import DmaWork, MatrixWork
from tests.support.onnx_models.small import node_model

MOST_MACS = 1 << 29
"""Per layer. Larger ones take long to compile for the smallest devices without testing anything else."""


def types(config: Config) -> list[DType]:
    """Return the types that the device's matrix unit multiplies, of those that networks use most."""
    common = (DType.INT8, DType.FLOAT16, DType.FLOAT32)
    return [dtype for dtype in common if config.matrix.throughput.get(dtype.label)]


def size(rng: Random, low: int, high: int) -> int:
    """Return a size between the two, on a logarithmic scale; often a power of two or next to one."""
    value = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    if rng.random() < 0.5:
        value = (1 << value.bit_length() - 1) + rng.choice((-1, 0, 0, 0, 1))
    return min(max(value, low), high)


@dataclass(frozen=True)
class Conv:
    """A convolution of ``n`` images [h, w, c] with constant weights.

    The result has ceil(h / stride) rows and ceil(w / stride) columns. Integer results are requantised by a shift.
    """

    dtype: DType
    n: int
    h: int
    w: int
    c: int
    o: int
    kernel: tuple[int, int]
    stride: int = 1
    dilation: int = 1
    groups: int = 1
    layout: str = "NHWC"

    @property
    def out_hw(self) -> tuple[int, int]:
        """Height and width of the result."""
        return ceil_div(self.h, self.stride), ceil_div(self.w, self.stride)

    @property
    def macs(self) -> int:
        """Multiply-accumulates, including those on padding."""
        return self.n * math.prod(self.out_hw) * self.o * (self.c // self.groups) * math.prod(self.kernel)

    def graph(self) -> Graph:
        """Build a graph with only this layer."""
        build = GraphBuilder("conv")
        shape = (self.n, self.h, self.w, self.c) if self.layout == "NHWC" else (self.n, self.c, self.h, self.w)
        return build.finish([self.add(build, build.input("x", shape, self.dtype))])

    def add(self, build: GraphBuilder, x: Tensor) -> Tensor:
        """Add the layer after ``x``."""
        pads = []
        for extent, out, kernel in zip((self.h, self.w), self.out_hw, self.kernel, strict=True):
            total = max((out - 1) * self.stride + (kernel - 1) * self.dilation + 1 - extent, 0)
            pads.append((total // 2, total - total // 2))
        (top, bottom), (left, right) = pads
        attrs: dict[str, Any] = {
            "layout": self.layout,
            "stride": (self.stride,) * 2,
            "dilation": (self.dilation,) * 2,
            "pads": (top, left, bottom, right),
            "groups": self.groups,
        }
        weights = constant(build, (self.o, self.c // self.groups, *self.kernel), self.dtype)
        return requantised(build, build.add("conv", [x, weights], attrs), self.dtype)


@dataclass(frozen=True)
class Volume:
    """A convolution of a volume [c, depth, height, width] with a cubic kernel, as the node of an ONNX model.

    The result has the size of the volume.
    """

    dtype: DType
    size: tuple[int, int, int]
    c: int
    o: int
    kernel: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those on padding included."""
        return math.prod(self.size) * self.o * self.c * self.kernel**3

    def graph(self) -> Graph:
        """The layer alone."""
        low, high = (self.kernel - 1) // 2, self.kernel // 2
        shape, kind = (1, self.c, *self.size), np.dtype(self.dtype.storage)
        weights = np.random.default_rng(self.c).integers(-127, 128, (self.o, self.c, *(self.kernel,) * 3))
        pads, x = [low] * 3 + [high] * 3, np.broadcast_to(np.zeros((), kind), shape)
        if self.dtype.is_float:
            return load(node_model("Conv", {"x": x, "w": (weights / 64).astype(kind)}, ["w"], pads=pads))
        scale, zero = np.float32(1 / 16), np.int8(0)
        operands = {
            "x": x, "x_scale": scale, "x_zero": zero, "w": weights.astype(kind), "w_scale": scale, "w_zero": zero,
            "y_scale": np.float32(1), "y_zero": zero,
        }  # fmt: skip
        return load(node_model("QLinearConv", operands, list(operands)[1:], pads=pads))

    def transposed(self) -> list[Graph]:
        """Transpositions of the input to channels innermost, and of the result back."""
        found = []
        for rows, cols in ((self.c, math.prod(self.size)), (math.prod(self.size), self.o)):
            build = GraphBuilder("transposed")
            x = build.input("x", (rows, cols), self.dtype)
            found.append(build.finish([build.add("transpose", [x], {"perm": (1, 0)})]))
        return found

    def bound_ps(self, config: Config) -> int:
        """Return the bound of an image with the rows of all slices, whose channels are those within the depth of the
        kernel. Each element of the volume is read once."""
        (depth, height, width), kernel = self.size, (self.kernel,) * 2
        image = Conv(self.dtype, 1, depth * height, width, self.c * self.kernel, self.o, kernel)
        return bound_ps(image, config, self.c)


def bound_ps(layer: Conv, config: Config, channels: int = 0) -> int:
    """Return a lower bound of a layer's time in ps.

    It is the longer of two times: all products as one instruction, or each operand and result once through the pins.
    The shortest load and store are added. ``channels``: those in DRAM, if the layer reads some of them as several.
    """
    x, w = layer.h * layer.w * (channels or layer.c), layer.o * layer.c * math.prod(layer.kernel)
    item = layer.dtype.itemsize
    y = math.prod(layer.out_hw) * layer.o
    work = MatrixWork(layer.dtype, layer.n, *layer.out_hw, layer.o, layer.c, *layer.kernel, False, True, True, item)
    model = cost_model(config)
    ends = model.transfer_ps(DmaWork(item, 1, item, item, 0))[0] + model.transfer_ps(DmaWork(item, 1, item, 0, item))[0]
    moved = item * (layer.n * (x + y) + w) * 10**12 // config.dram.bandwidth
    return max(model.product_ps(work), moved) + ends


def constant(build: GraphBuilder, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Return weights of full width, so that they cannot be packed."""
    values = np.random.default_rng(math.prod(shape)).integers(-127, 128, shape)
    return build.const(values.astype(np.float32) / 64 if dtype.is_float else values.astype(dtype.storage), dtype=dtype)


def requantised(build: GraphBuilder, sums: Tensor, dtype: DType) -> Tensor:
    """Convert sums to the type of the layer; integers get a scale per layer, as in quantised networks."""
    if dtype.is_float:
        return sums if sums.dtype is dtype else build.add("cast", [sums], {"to": dtype})
    scale, zero = build.const(np.float32(1 / 512)), build.const(np.int32(0))
    real = build.add("dequantize", [sums, scale, zero], {"to": DType.FLOAT32})
    return build.add("quantize", [real, build.const(np.float32(1)), zero], {"to": dtype})


def conv(rng: Random, config: Config, kernels: tuple[int, ...] = (1, 3, 5), stride: bool = True) -> Conv:
    """Return a convolution as in networks, with at most :data:`MOST_MACS`."""
    while True:
        side = size(rng, 5, 96)
        layer = Conv(
            rng.choice(types(config)),
            rng.choice((1, 1, 1, 2, 8)),
            side,
            side if rng.random() < 0.6 else size(rng, 5, 96),
            size(rng, 3, 512),
            size(rng, 8, 512),
            (rng.choice(kernels),) * 2,
            rng.choice((1, 1, 2)) if stride else 1,
        )
        if layer.macs <= MOST_MACS:
            return layer


def chain(rng: Random, config: Config, count: int) -> Graph:
    """Build convolutions with a skip connection, so that what is read, written and kept depends on the neighbours."""
    build = GraphBuilder("chain")
    first = replace(conv(rng, config), n=1, stride=1)
    first = replace(first, c=min(first.c, 64), o=min(first.o, 64))
    value = build.input("x", (1, first.h, first.w, first.c), first.dtype)
    value = first.add(build, value)
    for _ in range(count):
        layer = replace(first, c=first.o, kernel=(rng.choice((1, 3)),) * 2)
        inner = layer.add(build, value)
        if first.dtype.is_float and rng.random() < 0.5:
            inner = build.add("binary", [inner, value], {"fn": Binary.ADD})
        value = inner
    return build.finish([value])
