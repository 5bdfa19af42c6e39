"""Small graphs that many tests need."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder

WINDOW = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "groups": 1}


def conv(build: GraphBuilder, x: Tensor, channels: int, kernel: int = 3, seed: int = 1) -> Tensor:
    """Add a same-size float convolution with bias."""
    rng = np.random.default_rng(seed)
    weights = build.const(rng.standard_normal((channels, x.shape[1], kernel, kernel)).astype(np.float32) / 8)
    bias = build.const(rng.standard_normal(channels).astype(np.float32))
    return build.add("conv", [x, weights, bias], {**WINDOW, "pads": (kernel // 2,) * 4})


def relu(build: GraphBuilder, x: Tensor) -> Tensor:
    return build.add("unary", [x], {"fn": Unary.RELU})


def residual_net(size: int = 16, channels: int = 16, blocks: int = 2) -> Graph:
    """Build conv-relu blocks with skip connections on a float image ``x``; the output is ``add`` or similar."""
    build = GraphBuilder("residual")
    value = relu(build, conv(build, build.input("x", (1, 3, size, size), DType.FLOAT32), channels))
    for number in range(blocks):
        inner = relu(build, conv(build, value, channels, seed=2 * number + 2))
        inner = conv(build, inner, channels, seed=2 * number + 3)
        value = relu(build, build.add("binary", [inner, value], {"fn": Binary.ADD}))
    return build.finish([value])


def product(m: int, k: int, n: int, dtype: DType = DType.INT8) -> Graph:
    """Build ``x`` [m, k] times constant weights; integer sums are not requantised."""
    build = GraphBuilder("product")
    rng = np.random.default_rng(3)
    if dtype.is_float:
        weights = build.const(rng.standard_normal((k, n)).astype(np.float32), dtype=dtype)
    else:
        weights = build.const(rng.integers(-9, 9, (k, n), dtype.storage))
    return build.finish([build.add("matmul", [build.input("x", (m, k), dtype), weights])])


def increment(size: int = 8, dtype: DType = DType.INT32, amount: int = 1) -> Graph:
    """Build ``x`` plus a constant."""
    build = GraphBuilder("increment")
    x = build.input("x", (size,), dtype)
    return build.finish([build.add("binary", [x, build.const(np.array(amount), dtype=dtype)], {"fn": Binary.ADD}, "y")])
