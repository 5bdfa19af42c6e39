"""Convolutions without a neighbourhood, whose pixels of all rows and images are one run."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary
from npusim.isa.matrix import Conv
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted

CONFIGS = [load_config(name) for name in ("tiny", "ethos_u65_256", "nvdla_small")]


@pytest.mark.parametrize("seed", range(40))
def test_results_are_those_of_the_reference(seed: int) -> None:
    """Batches in both layouts, kernels of one row, operands of the chain that are broadcast, several tiles."""
    rng = Random(seed)
    config = rng.choice(CONFIGS)
    dtype = rng.choice([dtype for dtype in (DType.INT8, DType.FLOAT32) if config.matrix.throughput.get(dtype.label)])
    n, h, w = rng.choice((1, 2, 3)), rng.choice((1, 2, 5)), rng.choice((1, 4, 9))
    c, o, layout = rng.choice((1, 3, 40)), rng.choice((1, 5, 70)), rng.choice(("NHWC", "NCHW"))
    width, pad = rng.choice(((1, 0), (1, 0), (3, 1), (3, 0)))
    w += width - 1 - 2 * pad
    groups = rng.choice((1, 1, 2))
    left = w - width + 1 + 2 * pad
    shape, out = [
        (n, h, cols, k) if layout == "NHWC" else (n, k, h, cols) for k, cols in ((c * groups, w), (o * groups, left))
    ]
    values = np.random.default_rng(seed)

    def drawn(shape: tuple[int, ...]) -> Any:
        return values.integers(-9, 10, shape).astype(dtype.storage)

    build = GraphBuilder("run")
    attrs = {"layout": layout, "stride": (1, 1), "dilation": (1, 1), "pads": (0, pad, 0, pad)}
    x, weights = build.input("x", shape, dtype), build.const(drawn((o * groups, c, 1, width)), dtype=dtype)
    y = build.add("conv", [x, weights], {**attrs, "groups": groups})
    feeds = {"x": drawn(shape)}
    if dtype.is_float:
        # Whole, one value for each image, for each row, for each column, and for each channel.
        for number in range(rng.choice((0, 1, 2))):
            kept = rng.choice(((0, 1, 2, 3), (0,), (1,), (2,), (3,), (0, 1), ()))
            operand = tuple(dim if axis in kept else 1 for axis, dim in enumerate(out))
            feeds[f"z{number}"] = drawn(operand)
            y = build.add("binary", [y, build.input(f"z{number}", operand, dtype)], {"fn": Binary.ADD})
        y = build.add("binary", [y, build.const(np.float32(3))], {"fn": Binary.MAX})
    graph = build.finish([y])
    config = config.with_(**{"sram.bytes": rng.choice((8 << 10, 32 << 10, 512 << 10))})
    (found,) = interpreted(compile_graph(graph, config), config, feeds).values()
    (expected,) = reference.run(graph, feeds).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_weights_are_loaded_once_for_a_batch(layout: str) -> None:
    config, build = load_config("edge"), GraphBuilder("batch")
    x = build.input("x", (32, 7, 7, 64) if layout == "NHWC" else (32, 64, 7, 7), DType.INT8)
    window = {"layout": layout, "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    y = build.add("conv", [x, build.const(np.ones((64, 64, 1, 1), np.int8))], window)
    products = [each for each in decode(compile_graph(build.finish([y]), config).code) if isinstance(each, Conv)]
    assert len(products) < 32, "an instruction for each image"
