"""Convolutions whose channel counts are just below, at and above a multiple of the block, with both kinds of
weights."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.hw.config import load_config
from npusim.isa.matrix_types import CHANNEL_BLOCK
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted

TINY = load_config("tiny")


@pytest.mark.parametrize("computed", [False, True], ids=["constant", "computed"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [blocks * CHANNEL_BLOCK + more for blocks in (1, 2) for more in (-1, 0, 1)])
def test_every_channel_is_summed(channels: int, groups: int, computed: bool) -> None:
    rng, build = np.random.default_rng(channels), GraphBuilder("blocks")
    weights = rng.integers(-9, 10, (4, channels, 2, 1)).astype(np.int8)
    x = build.input("x", (1, 3, 3, channels * groups), DType.INT8)
    w = build.input("w", weights.shape, DType.INT8) if computed else build.const(weights)
    window = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": groups}
    graph = build.finish([build.add("conv", [x, w], window, "y")])
    feeds = {"x": rng.integers(-9, 10, x.shape).astype(np.int8), **({"w": weights} if computed else {})}
    found = interpreted(compile_graph(graph, TINY), TINY, feeds)["y"]
    np.testing.assert_array_equal(found, reference.run(graph, feeds)["y"])
