"""Transposed convolutions become convolutions of phases: the same integers, and each tap is multiplied once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.compiler.passes import fill_groups, transposed_conv
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.ops import reference
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted
from tests.support.random_devices import TINY

RNG = np.random.default_rng(3)
WINDOW: dict[str, Any] = {"layout": "NCHW", "stride": (2, 2), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
SIZE = 5, 4


def window(kernel: tuple[int, int], more: int = 0, **changed: Any) -> dict[str, Any]:
    """Return the attributes with the full output size plus ``more``."""
    attrs = {**WINDOW, **changed}
    attrs["output_hw"] = tuple(
        (size - 1) * attrs["stride"][n] + (kernel[n] - 1) * attrs["dilation"][n] + 1
        - attrs["pads"][n] - attrs["pads"][n + 2] + more
        for n, size in enumerate(SIZE)
    )  # fmt: skip
    return attrs


CASES = [
    ((2, 2), window((2, 2))),
    ((3, 3), window((3, 3), 1, pads=(1, 1, 1, 1))),
    ((4, 4), window((4, 4), layout="NHWC", pads=(1, 1, 1, 1))),
    ((5, 3), window((5, 3), stride=(3, 2), pads=(4, 0, 1, 2))),
    ((1, 2), window((1, 2), stride=(3, 1))),
    ((2, 3), window((2, 3), groups=2, layout="NHWC", stride=(4, 2))),
    ((4, 4), window((4, 4), groups=4, pads=(1, 1, 1, 1))),
    ((3, 3), window((3, 3), groups=4, pads=(1, 1, 0, 0))),
    ((3, 3), window((3, 3), stride=(1, 1), dilation=(2, 1), pads=(4, 2, 0, 0))),
    ((3, 2), window((3, 2), stride=(3, 2), dilation=(2, 3))),
]
"""(kernel, attributes) with different properties: phases without taps or with fewer taps than others, cropped
borders."""


def image(build: GraphBuilder, attrs: dict[str, Any], dtype: DType) -> tuple[Tensor, dict[str, Any]]:
    shape = (2, 4, *SIZE) if attrs["layout"] == "NCHW" else (2, *SIZE, 4)
    value = RNG.integers(-128, 128, shape, np.int8).astype(dtype.storage)
    return build.input("x", shape, dtype), {"x": value}


def parameters(build: GraphBuilder, scale: Any, zero: Any) -> list[Tensor]:
    return [build.const(np.asarray(scale, np.float32)), build.const(np.asarray(zero, np.int32))]


@pytest.mark.parametrize(("kernel", "attrs"), CASES)
def test_integers_are_those_of_the_definition(kernel: tuple[int, int], attrs: dict[str, Any]) -> None:
    build = GraphBuilder("transposed")
    x, feeds = image(build, attrs, DType.INT8)
    weights = build.const(RNG.integers(-128, 128, (4, 3, *kernel), np.int8))
    bias = build.const(RNG.integers(-99, 99, 3 * attrs["groups"], np.int32))
    graph = build.finish([build.add("conv_transpose", [x, weights, bias], {**attrs, "x_zero": -7, "w_zero": 5})])
    assert {op.kind for op in prepare(graph, TINY).ops} <= {"conv", "reshape", "transpose", "slice"}
    (wanted,) = reference.run(graph, feeds).values()
    (got,) = interpreted(compile_graph(graph, TINY), TINY, feeds).values()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("kernel", "attrs"), CASES)
@pytest.mark.parametrize("by_channel", [False, True])
def test_quantised_ones_are_integer_products(kernel: tuple[int, int], attrs: dict[str, Any], by_channel: bool) -> None:
    """On a device without floats. The output steps are large enough that nothing is rounded."""
    config = load_config("ethos_u65_256")
    build = GraphBuilder("quantised")
    x, feeds = image(build, attrs, DType.INT8)
    scale = np.array([0.25, 0.5, 1]).reshape(1, 3, 1, 1) if by_channel else np.float32(0.5)
    zero = np.array([3, 0, -2]).reshape(1, 3, 1, 1) if by_channel else 1
    weights = build.const(RNG.integers(-100, 100, (4, 3, *kernel), np.int8))
    steps = np.tile(scale.reshape(-1), attrs["groups"]) if by_channel else scale
    bias = build.const(RNG.integers(-99, 99, 3 * attrs["groups"], np.int32))
    operands = [
        build.add("dequantize", [value, *parameters(build, *how)], {"to": DType.FLOAT32})
        for value, how in ((x, (1, -7)), (weights, (scale, zero)), (bias, (steps, np.zeros_like(steps))))
    ]
    total = build.add("conv_transpose", operands, attrs)
    graph = build.finish([build.add("quantize", [total, *parameters(build, 4096, 2)], {"to": DType.INT8})])
    (wanted,) = reference.run(graph, feeds).values()
    (got,) = interpreted(compile_graph(graph, config), config, feeds).values()
    np.testing.assert_array_equal(got, wanted)


def doubling(kernel: int, dtype: DType = DType.FLOAT32) -> Graph:
    build = GraphBuilder("doubling")
    x = build.input("x", (1, 4, *SIZE), dtype)
    weights = build.const(np.ones((4, 3, kernel, kernel), dtype.storage), dtype=dtype)
    return build.finish([build.add("conv_transpose", [x, weights], window((kernel, kernel)))])


@pytest.mark.parametrize("kernel", [2, 4])
def test_each_tap_is_multiplied_once(kernel: int) -> None:
    (macs,) = dict(compile_graph(doubling(kernel), TINY).macs).values()
    phases = (SIZE[0] + kernel // 2 - 1) * (SIZE[1] + kernel // 2 - 1)
    assert macs == phases * kernel**2 * 4 * 3


def test_no_infinity_meets_a_tap_that_is_not_there() -> None:
    """With 3 taps, one phase has 2 taps and the other 1."""
    image = np.zeros((1, 4, *SIZE), np.float32)
    image[0, 0, 2, 2] = np.inf
    graph = doubling(3)
    (wanted,) = reference.run(graph, {"x": image}).values()
    (got,) = interpreted(compile_graph(graph, TINY), TINY, {"x": image}).values()
    assert not np.isnan(wanted).any()
    np.testing.assert_array_equal(got, wanted)


def any_window(rng: np.random.Generator) -> tuple[tuple[int, int], dict[str, Any]]:
    """Draw a kernel and attributes."""
    kernel = int(rng.integers(1, 7)), int(rng.integers(1, 7))
    strides = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    pads = tuple(int(rng.integers(0, min(kernel[n % 2], 4))) for n in range(4))
    layout = str(rng.choice(["NCHW", "NHWC"]))
    attrs = window(kernel, stride=strides, pads=pads, layout=layout, groups=int(rng.choice([1, 2, 4])))
    attrs["output_hw"] = tuple(size + int(rng.integers(strides[n])) for n, size in enumerate(attrs["output_hw"]))
    return kernel, attrs


@pytest.mark.parametrize("seed", range(40))
def test_floats_have_the_bits_of_the_spread_image(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases with fewer taps add no zeros to the sums, and no infinity or NaN is multiplied by a missing tap."""
    rng = np.random.default_rng(seed)
    kernel, attrs = any_window(rng)
    build = GraphBuilder("floats")
    x, feeds = image(build, attrs, DType.FLOAT32)
    feeds["x"] = feeds["x"] / np.float32(7)
    feeds["x"][rng.random(feeds["x"].shape) < 0.03] = np.inf
    feeds["x"][rng.random(feeds["x"].shape) < 0.03] = np.nan
    weights = build.const((rng.integers(1, 128, (4, 3, *kernel)) / 9).astype(np.float32))
    graph = build.finish([build.add("conv_transpose", [x, weights], attrs)])
    filled = prepare(graph, TINY)
    assert {op.kind for op in filled.ops} <= {"conv", "reshape", "transpose", "slice"}
    joined = int(rng.choice([1, attrs["groups"]]))
    monkeypatch.setattr(fill_groups, "_joined", lambda op, homes, config: min(joined, op.attrs["groups"]))
    (found,) = interpreted(compile_graph(graph, TINY), TINY, feeds).values()
    joined_groups = fill_groups.fill_groups(filled, TINY, Budget.of(TINY))
    (prepared,) = reference.run(joined_groups, feeds).values()
    monkeypatch.setattr(transposed_conv, "_weights", lambda rewriter, op: None)
    (wanted,) = interpreted(compile_graph(graph, TINY), TINY, feeds).values()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(prepared, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 2), (5, 3), (3, 3), (7, 4)])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
def test_no_products_beside_the_output(kernel: int, stride: int, dtype: DType) -> None:
    """At most one row and one column of the phases are cropped."""
    build, side = GraphBuilder("macs"), 12
    x = build.input("x", (1, 4, side, side), dtype)
    weights = build.const(np.ones((4, 3, kernel, kernel), dtype.storage), dtype=dtype)
    total = max((side - 1) * stride + kernel - side * stride, 0)
    pads = (total // 2,) * 2 + (total - total // 2,) * 2
    attrs = {**WINDOW, "stride": (stride,) * 2, "pads": pads, "output_hw": (side * stride,) * 2}
    graph = build.finish([build.add("conv_transpose", [x, weights], attrs)])
    (macs,) = dict(compile_graph(graph, TINY).macs).values()
    assert macs <= (side + 1) ** 2 * kernel**2 * 4 * 3
