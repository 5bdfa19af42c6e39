"""Resampling along two axes as one operator: values, for tiles of any size, and traffic."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.explore.evaluate import simulate
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted

TINY = load_config("tiny")
TYPES = (DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.UINT8)


def tables(rng: Random, size: int, most: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Neighbours of random positions, in either direction, some of them outside."""
    count, taps = rng.choice((1, 4, most)), rng.choice((2, 4))
    positions = np.sort([rng.random() * (size - 1) for _ in range(count)]).astype(np.int32)
    index = np.clip(positions[:, np.newaxis] + np.arange(taps), 0, size - 1).astype(np.int32)
    if rng.random() < 0.3:
        index[rng.randrange(count)] = -1
    return index[:: rng.choice((1, -1))].copy(), np.random.default_rng(count).random((count, taps), np.float32)


def random_graph(rng: Random) -> Graph:
    """Two resamplings, of floats, of integers, or between a dequantisation and a quantisation."""
    dtype = rng.choice(TYPES)
    shape = rng.choice((1, 2)), rng.choice((1, 3, 8)), rng.choice((1, 7, 40, 200)), rng.choice((1, 5, 33))
    build = GraphBuilder("g")
    y = build.input("x", shape, dtype)
    quantised = dtype.is_integer and rng.random() < 0.7
    if quantised:
        parameters = build.const(np.float32(0.07)), build.const(np.int32(3))
        y = build.add("dequantize", [y, *parameters], {"to": rng.choice((DType.FLOAT32, DType.FLOAT16))})
    for axis, most in zip(rng.sample(range(1, 4), 2), (300, 50), strict=True):
        y = build.add("resample", [y, *map(build.const, tables(rng, shape[axis], most))], {"axis": axis})
    if quantised and rng.random() < 0.7:
        parameters = build.const(np.float32(0.11)), build.const(np.int32(-2))
        y = build.add("quantize", [y, *parameters], {"to": dtype})
    return build.finish([y])


@pytest.mark.parametrize("seed", range(24))
def test_values_are_those_of_one_axis_after_the_other(seed: int) -> None:
    rng = Random(seed)
    graph = random_graph(rng)
    config = TINY.with_(**{"sram.bytes": rng.choice(("16 KiB", "64 KiB")), "cores": rng.choice((1, 1, 2))})
    x = np.random.default_rng(seed).integers(0, 100, graph.inputs[0].shape).astype(graph.inputs[0].dtype.storage)
    (wanted,) = reference.run(graph, {"x": x}).values()
    (got,) = interpreted(compile_graph(graph, config), config, {"x": x}).values()
    assert [op.kind for op in prepare(graph, config).ops] == ["resample"]
    np.testing.assert_array_equal(got, wanted)


def test_values_between_two_axes_stay_in_sram() -> None:
    """Small scratchpads have one row of results a tile, whose two source rows are read for each."""
    build = GraphBuilder("g")
    x = build.input("x", (1, 96, 96, 64), DType.INT8)
    y = build.add("dequantize", [x, build.const(np.float32(0.1)), build.const(np.int32(3))], {"to": DType.FLOAT32})
    index = np.repeat(np.arange(96), 2)[:, np.newaxis] + np.array([-1, 0])
    for axis in (1, 2):
        weight = np.full(index.shape, 0.5, np.float32)
        y = build.add(
            "resample", [y, build.const(np.maximum(index, 0).astype(np.int32)), build.const(weight)], {"axis": axis}
        )
    y = build.add("quantize", [y, build.const(np.float32(0.2)), build.const(np.int32(0))], {"to": DType.INT8})
    graph = build.finish([y])
    for size, most in (("48 KiB", 1.7), ("512 KiB", 1.25)):
        result = simulate(graph, load_config("edge").with_(**{"sram.bytes": size}))
        assert result.dram_read_bytes + result.dram_write_bytes <= most * 96 * 96 * 64 * 5
