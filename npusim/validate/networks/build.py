"""Builds quantised networks with int8 values and weights.

Times depend on shapes and on the bits of weights, so weights are drawn from a distribution. All values have one scale
and zero point. Images are NHWC. The result of a layer is quantised after its activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.ops.matrix import window_extent
from npusim.units import ceil_div

Pair = tuple[int, int]
Size = int | Pair
SCALE = 1 / 16

DEVIATION = 32
"""Standard deviation of weights: those of a layer are normally distributed, and the largest of some hundred determines
their scale."""

_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "relu": {"fn": Unary.RELU},
    "relu6": {"fn": Unary.CLIP, "p0": 0.0, "p1": 6.0},
    "leaky": {"fn": Unary.LEAKY_RELU, "p0": 0.1},
    "silu": {"fn": Unary.SILU, "p0": 1.0},
    "sigmoid": {"fn": Unary.SIGMOID},
    "tanh": {"fn": Unary.TANH},
    "hard_sigmoid": {"fn": Unary.HARD_SIGMOID, "p0": 1 / 6, "p1": 0.5},
    "hard_swish": {"fn": Unary.HARD_SWISH},
}
"""Activation functions by name."""


def pair(size: Size) -> Pair:
    """Rows and columns; a single number stands for both."""
    return (size, size) if isinstance(size, int) else size


class Net:
    """A network that grows layer by layer. Every method takes and returns values of one type.

    ``pad``: ``"same"`` as in TensorFlow (the odd element is at the end), ``"valid"``, or rows and columns on each side.
    ``act``: one of relu, relu6, leaky, silu, sigmoid, tanh, hard_sigmoid and hard_swish, or empty.
    """

    def __init__(self, name: str, dtype: DType = DType.INT8) -> None:
        self._build = GraphBuilder(name)
        self._dtype = dtype
        self._scale = self._build.const(np.float32(SCALE), "scale")
        self._zero = self._build.const(np.int32(0), "zero")

    def input(self, *shape: int, name: str = "x") -> Tensor:
        """A quantised input. Images are batch, rows, columns, channels."""
        return self._build.input(name, shape, self._dtype)

    def finish(self, *outputs: Tensor) -> Graph:
        """The graph."""
        return self._build.finish(outputs)

    # layers with weights

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: Size = 1,
        stride: Size = 1,
        pad: str | Size = "same",
        *,
        act: str = "relu",
        groups: int = 1,
        dilation: Size = 1,
    ) -> Tensor:
        """A convolution with bias, activation and requantisation."""
        k, s, d = pair(kernel), pair(stride), pair(dilation)
        pads, _ = self._window(x, k, s, d, pad)
        w = self._weights(channels, x.shape[3] // groups, *k)
        attrs = {"layout": "NHWC", "stride": s, "dilation": d, "pads": pads, "groups": groups}
        return self._out(self._build.add("conv", (x, w, self._bias(channels)), attrs), act)

    def depthwise(
        self,
        x: Tensor,
        kernel: Size = 3,
        stride: Size = 1,
        pad: str | Size = "same",
        *,
        act: str = "relu",
        dilation: Size = 1,
    ) -> Tensor:
        """A depthwise convolution."""
        channels = x.shape[3]
        return self.conv(x, channels, kernel, stride, pad, act=act, groups=channels, dilation=dilation)

    def upconv(self, x: Tensor, channels: int, kernel: int, stride: int, *, act: str = "relu") -> Tensor:
        """A transposed convolution that multiplies rows and columns by the stride."""
        _, h, w, c = x.shape
        more = max(0, kernel - stride)
        pads = (more // 2, more // 2, more - more // 2, more - more // 2)
        attrs = {
            "layout": "NHWC",
            "stride": (stride, stride),
            "dilation": (1, 1),
            "pads": pads,
            "groups": 1,
            "output_hw": (h * stride, w * stride),
        }
        weights = self._weights(c, channels, kernel, kernel)
        return self._out(self._build.add("conv_transpose", (x, weights, self._bias(channels)), attrs), act)

    def dense(self, x: Tensor, channels: int, *, act: str = "") -> Tensor:
        """A fully connected layer over all elements of a batch item."""
        flat = self.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
        w = self._weights(flat.shape[1], channels)
        return self._out(self._build.add("matmul", (flat, w, self._bias(channels))), act)

    # windows

    def maxpool(self, x: Tensor, kernel: Size, stride: Size, pad: str | Size = "same", *, ceil: bool = False) -> Tensor:
        """The maximum of each window. ``ceil``: the last window may exceed the image."""
        return self._build.add("pool", (x,), self._pool(x, "max", kernel, stride, pad, ceil))

    def avgpool(self, x: Tensor, kernel: Size, stride: Size, pad: str | Size = "same") -> Tensor:
        """The mean of each window, without padding."""
        attrs = self._pool(x, "average", kernel, stride, pad, False)
        return self._build.add("pool", (x,), attrs)

    def mean(self, x: Tensor) -> Tensor:
        """The mean of each channel, as an image of one pixel."""
        return self.avgpool(x, (x.shape[1], x.shape[2]), 1, "valid")

    def upsample(self, x: Tensor, factor: int = 2) -> Tensor:
        """Repeat each pixel ``factor`` times in rows and columns."""
        for axis in (1, 2):
            rows = self._build.const(np.repeat(np.arange(x.shape[axis], dtype=np.int32), factor))
            x = self._build.add("gather", (x, rows), {"axis": axis})
        return x

    # values and values

    def add(self, a: Tensor, b: Tensor, *, act: str = "") -> Tensor:
        """The sum, requantised."""
        return self._binary(Binary.ADD, a, b, act)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """The difference, requantised."""
        return self._binary(Binary.SUB, a, b, "")

    def mul(self, a: Tensor, b: Tensor, *, act: str = "") -> Tensor:
        """The product, requantised; ``b`` may be an image of one pixel."""
        return self._binary(Binary.MUL, a, b, act)

    def concat(self, *values: Tensor) -> Tensor:
        """Concatenate channels."""
        return self._build.add("concat", values, {"axis": len(values[0].shape) - 1})

    def channels(self, x: Tensor, first: int, count: int) -> Tensor:
        """``count`` channels from ``first`` on."""
        starts = (*(0 for _ in x.shape[1:]), first)
        sizes = (*x.shape[:-1], count)
        return self._build.add("slice", (x,), {"starts": starts, "steps": (1,) * len(starts), "sizes": sizes})

    def scale(self, x: Tensor, *, act: str = "relu") -> Tensor:
        """A factor and an offset per channel: a batch normalisation that cannot be folded into a convolution."""
        shape = (1,) * (len(x.shape) - 1) + (x.shape[-1],)
        factor, shift = (self._build.const(np.full(shape, value, np.float32)) for value in (0.5, 0.25))
        y = self._build.add("binary", (self._real(x), factor), {"fn": Binary.MUL})
        return self._quantised(self._act(self._build.add("binary", (y, shift), {"fn": Binary.ADD}), act))

    def act(self, x: Tensor, act: str) -> Tensor:
        """A separate activation."""
        return self._quantised(self._act(self._real(x), act))

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax over the last axis."""
        return self._quantised(self._build.add("softmax", (self._real(x),), {"axis": len(x.shape) - 1, "log": False}))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same elements in another shape."""
        return x if x.shape == tuple(shape) else self._build.add("reshape", (x,), {"shape": tuple(shape)})

    # parts

    def _binary(self, fn: Binary, a: Tensor, b: Tensor, act: str) -> Tensor:
        y = self._build.add("binary", (self._real(a), self._real(b)), {"fn": fn})
        return self._quantised(self._act(y, act))

    def _weights(self, *shape: int) -> Tensor:
        # Of the whole range, so that they cannot be packed. Weights of the first index are broadcast, which takes no
        # memory.
        values = np.random.default_rng(math.prod(shape)).normal(0, DEVIATION, shape[1:])
        values.flat[0] = 127
        row = np.clip(np.rint(values), -127, 127).astype(np.int8)
        return self._build.const(np.broadcast_to(row, shape), "w")

    def _bias(self, channels: int) -> Tensor:
        return self._build.const(np.broadcast_to(np.int32(0), (channels,)), "b")

    def _out(self, total: Tensor, act: str) -> Tensor:
        """Sums dequantised, activated and requantised."""
        return self._quantised(self._act(self._real(total), act))

    def _real(self, x: Tensor) -> Tensor:
        return self._build.add("dequantize", (x, self._scale, self._zero), {"to": DType.FLOAT32})

    def _act(self, x: Tensor, act: str) -> Tensor:
        return self._build.add("unary", (x,), _ACTIVATIONS[act]) if act else x

    def _quantised(self, x: Tensor) -> Tensor:
        return self._build.add("quantize", (x, self._scale, self._zero), {"to": self._dtype})

    def _pool(self, x: Tensor, fn: str, kernel: Size, stride: Size, pad: str | Size, ceil: bool) -> dict[str, Any]:
        k, s = pair(kernel), pair(stride)
        pads, out = self._window(x, k, s, (1, 1), pad, ceil=ceil)
        return {
            "fn": fn,
            "layout": "NHWC",
            "kernel": k,
            "stride": s,
            "dilation": (1, 1),
            "pads": pads,
            "output_hw": out,
        }

    @staticmethod
    def _window(
        x: Tensor, k: Pair, s: Pair, d: Pair, pad: str | Size, *, ceil: bool = False
    ) -> tuple[tuple[int, int, int, int], Pair]:
        """(top, left, bottom, right) and the rows and columns of the result."""
        before, after, out = [0, 0], [0, 0], [0, 0]
        for axis in (0, 1):
            size, extent = x.shape[1 + axis], window_extent(k[axis], d[axis])
            if pad == "same":
                out[axis] = ceil_div(size, s[axis])
                total = max(0, (out[axis] - 1) * s[axis] + extent - size)
                before[axis], after[axis] = total // 2, total - total // 2
                continue
            before[axis] = after[axis] = 0 if isinstance(pad, str) else pair(pad)[axis]
            room = size + 2 * before[axis] - extent
            out[axis] = (ceil_div(room, s[axis]) if ceil else room // s[axis]) + 1
        return (before[0], before[1], after[0], after[1]), (out[0], out[1])


Maker = Callable[[tuple[int, ...]], Graph]
"""Builds a network for an input shape."""
