"""9-bit weights with per-channel zero points on 8-bit matrix units give the same sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.errors import UnsupportedError
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted

BYTES = load_config("tiny").with_(**{"matrix.throughput": {"int8": 1, "float32": 1}})
RNG = np.random.default_rng(1)


def weights(build: GraphBuilder, shape: tuple[int, ...], channels: int) -> Tensor:
    """Return bytes minus the zero point of their channel (dimension ``channels``) as an INT16 constant."""
    zeros = RNG.integers(70, 190, shape[channels]).reshape(
        [-1 if axis == channels else 1 for axis in range(len(shape))]
    )
    return build.const((RNG.integers(0, 256, shape) - zeros).astype(np.int16))


def conv(groups: int, layout: str) -> Graph:
    build = GraphBuilder("conv", fold=True)
    x = build.input("x", (2, 5, 6, 4) if layout == "NHWC" else (2, 4, 5, 6), DType.UINT8)
    w = build.add("transpose", [weights(build, (4, 3, 2, 4 // groups), 0)], {"perm": (0, 3, 1, 2)})
    bias = build.const(RNG.integers(-99, 99, 4).astype(np.int32))
    window = {"stride": (1, 2), "dilation": (1, 1), "pads": (1, 0, 1, 2), "groups": groups, "x_zero": 130}
    return build.finish([build.add("conv", [x, w, bias], {"layout": layout, **window}, "y")])


def matmul() -> Graph:
    build = GraphBuilder("matmul")
    x = build.input("x", (3, 2, 7), DType.INT8)
    w = weights(build, (7, 5), 1)
    return build.finish([build.add("matmul", [x, w], {"x_zero": -5}, "y")])


def check(graph: Graph, config: Config) -> None:
    feed: dict[str, Any] = {
        t.name: RNG.integers(*_span(t.dtype), t.shape).astype(t.dtype.storage) for t in graph.inputs
    }
    program = compile_graph(graph, config)
    assert all(dtype.itemsize == 1 for dtype, _ in program.macs)
    np.testing.assert_array_equal(interpreted(program, config, feed)["y"], reference.run(graph, feed)["y"])


def _span(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.storage)
    return int(info.min), int(info.max) + 1


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolutions(groups: int, layout: str) -> None:
    check(conv(groups, layout), BYTES)


def test_products() -> None:
    check(matmul(), BYTES)


def test_a_unit_that_multiplies_int16_does() -> None:
    graph = matmul()
    assert [op.kind for op in prepare(graph, load_config("tiny")).ops] == ["matmul"]


@pytest.mark.parametrize(("low", "high"), [(-257, 0), (0, 255)])
def test_more_than_9_bits_are_refused(low: int, high: int) -> None:
    build = GraphBuilder("wide")
    x, w = build.input("x", (2, 2), DType.INT8), build.const(np.array([[low, high], [0, 0]], np.int16))
    graph = build.finish([build.add("matmul", [x, w], {})])
    with pytest.raises(UnsupportedError, match="does not compute with int16"):
        compile_graph(graph, BYTES)


def test_weights_that_may_be_anything_are_refused() -> None:
    build = GraphBuilder("wide")
    x, w = build.input("x", (2, 2), DType.INT8), build.input("w", (2, 2), DType.INT16)
    graph = build.finish([build.add("matmul", [x, w], {})])
    with pytest.raises(UnsupportedError, match="does not compute with int16"):
        compile_graph(graph, BYTES)
