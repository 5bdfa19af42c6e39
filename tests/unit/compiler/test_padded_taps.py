"""Kernel rows and columns that read padding alone are not computed, and change no value."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from npusim.compiler.passes.padded_taps import leave_out_padded_taps
from npusim.dtypes import DType
from npusim.graph import Graph, Op
from npusim.hw.config import load_config
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.laws.measure import measure


def drawn(rng: Random, *, weight: float = 1.0) -> tuple[Graph, dict[str, Any]] | None:
    """A small convolution with much padding and large dilations; ``weight``: its first weight."""
    size, kernel = [[rng.randint(1, most) for _ in range(2)] for most in (9, 5)]
    stride, dilation = [[rng.randint(1, most) for _ in range(2)] for most in (3, 12)]
    pads = [rng.randint(0, 24) for _ in range(4)]
    if any(
        at + sum(pads[n::2]) < (k - 1) * d + 1 for n, (at, k, d) in enumerate(zip(size, kernel, dilation, strict=True))
    ):
        return None
    groups, layout, floats = rng.choice((1, 1, 2)), rng.choice(("NHWC", "NCHW")), rng.random() < 0.5
    values, build = np.random.default_rng(rng.randrange(1000)), GraphBuilder("padded")
    shape = (2, *size, 4) if layout == "NHWC" else (2, 4, *size)
    kind = np.float32 if floats else np.int8
    x = build.input("x", shape, DType.FLOAT32 if floats else DType.INT8)
    data = values.integers(-9, 10, (6, 4 // groups, *kernel)).astype(kind)
    data.flat[0] = weight
    attrs = {
        "layout": layout, "stride": tuple(stride), "dilation": tuple(dilation), "pads": tuple(pads), "groups": groups,
        "x_zero": 0 if floats else rng.randint(-9, 9),
    }  # fmt: skip
    graph = build.finish([build.add("conv", [x, build.const(data)], attrs, "y")])
    return graph, {"x": values.integers(-9, 10, shape).astype(kind)}


def reads(op: Op, number: int, tap: int) -> bool:
    """Whether a kernel row (0) or column (1) reads the image for any output."""
    axis = number + (2 if op.attrs["layout"] == "NCHW" else 1)
    stride, dilation, pad = (op.attrs[name][number] for name in ("stride", "dilation", "pads"))
    places = [out * stride + tap * dilation - pad for out in range(op.output.shape[axis])]
    return any(0 <= place < op.input(0).shape[axis] for place in places)


@pytest.mark.parametrize("seed", range(30))
def test_values_and_taps(seed: int) -> None:
    """The values of the whole kernel, from the fewest rows and columns."""
    rng = Random(seed)
    for _ in range(40):
        made = drawn(rng)
        if made is None:
            continue
        graph, feeds = made
        (before,), changed = graph.ops, leave_out_padded_taps(graph)
        np.testing.assert_array_equal(reference.run(changed, feeds)["y"], reference.run(graph, feeds)["y"])
        after = changed.ops[-1]
        used = [[tap for tap in range(before.input(1).shape[2 + n]) if reads(before, n, tap)] for n in (0, 1)]
        needed = [taps[-1] - taps[0] + 1 if taps else 0 for taps in used]
        # A convolution of padding alone stays as it is.
        assert list(after.input(1).shape[2:]) == (needed if all(needed) else list(before.input(1).shape[2:]))


def test_weights_that_are_not_finite_stay() -> None:
    """The product of padding and an infinity is not a number."""
    rng, kept = Random(1), 0
    for _ in range(300):
        made = drawn(rng, weight=1.0)
        if made is None or made[0].ops[0].input(1).dtype is not DType.FLOAT32:
            continue
        graph, _ = made
        if leave_out_padded_taps(graph) is graph or len(leave_out_padded_taps(graph).ops) != 1:
            continue
        weights = graph.ops[0].input(1).data
        assert weights is not None
        shorter = leave_out_padded_taps(graph).ops[0].input(1).shape != weights.shape
        weights.flat[0] = np.inf
        assert leave_out_padded_taps(graph).ops[0].input(1).shape == weights.shape
        kept += shorter
    assert kept > 5


def test_a_dilation_beyond_the_image() -> None:
    """Of a kernel of 5 x 5 the one tap in the middle is left."""
    build = GraphBuilder("wide")
    x = build.input("x", (1, 16, 16, 64), DType.INT8)
    w = build.const(np.full((8, 64, 5, 5), 3, np.int8))
    attrs = {"layout": "NHWC", "stride": (1, 1), "dilation": (29, 29), "pads": (58,) * 4, "groups": 1}
    graph = build.finish([build.add("conv", [x, w], attrs)])
    assert measure(graph, load_config("edge")).macs == 16 * 16 * 64 * 8
