"""Convolutions over volumes as convolutions of windows of slices: values and traffic."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted
from tests.support.laws.layers import Volume
from tests.support.laws.measure import measure
from tests.support.onnx_models.small import node_model

CONFIGS = tuple(load_config(name) for name in ("edge", "tiny", "server", "ethos_u65_256", "nvdla_512"))


@pytest.mark.parametrize("seed", range(24))
def test_values(seed: int) -> None:
    """Any kernel, stride, padding and number of volumes, with any SRAM, gives the exact sums of the reference."""
    rng = Random(seed)
    config = rng.choice(CONFIGS).with_(**{"sram.bytes": rng.choice((16 << 10, 64 << 10, 512 << 10))})
    floats = bool(config.matrix and config.matrix.throughput.get("float32")) and rng.random() < 0.5
    kernel = [rng.randint(1, 4) for _ in range(3)]
    size = [rng.randint(width, 9) for width in kernel]
    channels, outputs, batch = rng.choice((1, 3, 8, 20)), rng.choice((1, 5, 16)), rng.choice((1, 1, 2, 3))
    drawn = np.random.default_rng(seed)

    def values(*shape: int) -> npt.NDArray[Any]:
        found = drawn.integers(-9, 10, shape)
        return found.astype(np.float32 if floats else np.int8)

    inputs: dict[str, Any] = {"x": values(batch, channels, *size), "w": values(outputs, channels, *kernel)}
    options = {"pads": [rng.randint(0, 2) for _ in range(6)], "strides": [rng.randint(1, 3) for _ in range(3)]}
    weights = ["w"]
    if not floats:
        inputs["zero"] = np.int8(rng.randint(-5, 5))
        weights.append("zero")
    graph = load(node_model("Conv" if floats else "ConvInteger", inputs, weights, **options))
    feeds = {"x": inputs["x"]}
    (found,) = interpreted(compile_graph(graph, config), config, feeds).values()
    (expected,) = reference.run(graph, feeds).values()
    np.testing.assert_array_equal(found, expected)


def test_windows_are_not_copied() -> None:
    """A kernel over seven slices moves little more than the volume, which is transposed and padded in one pass."""
    config = load_config("edge")
    volume = Volume(DType.FLOAT16, (8, 14, 14), 16, 16, 7)
    volume_bytes = 2 * 16 * 8 * 14 * 14
    moved = measure(volume.graph(), config).traffic
    assert moved < 2.2 * volume_bytes + 2 * 16 * 16 * 7**3


def windows(axis: int, size: int, step: int) -> Graph:
    build = GraphBuilder("windows")
    x = build.input("x", (4, 9, 5), DType.INT16)
    return build.finish([build.add("windows", [x], {"axis": axis, "size": size, "step": step})])


@pytest.mark.parametrize(("axis", "size", "step"), [(0, 2, 1), (1, 4, 2), (2, 5, 1), (1, 1, 3)])
def test_windows_that_are_results(axis: int, size: int, step: int) -> None:
    """Windows that no convolution reads are copied, with each element once per window that contains it."""
    graph, x = windows(axis, size, step), np.arange(180, dtype=np.int16).reshape(4, 9, 5)
    edge = load_config("edge")
    (found,) = interpreted(compile_graph(graph, edge), edge, {"x": x}).values()
    starts = range(0, x.shape[axis] - size + 1, step)
    np.testing.assert_array_equal(found, np.stack([x.take(range(at, at + size), axis) for at in starts]))
