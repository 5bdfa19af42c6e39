"""Convolutions over volumes as convolutions of windows of slices: values and traffic."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.compiler.pipeline import compile_graph, prepare
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
    dilations = [rng.choice((1, 1, 2)) for _ in range(3)]
    size = [rng.randint((width - 1) * step + 1, 9) for width, step in zip(kernel, dilations, strict=True)]
    channels, outputs, batch = rng.choice((1, 3, 8, 20)), rng.choice((1, 5, 16)), rng.choice((1, 1, 2, 3))
    drawn = np.random.default_rng(seed)

    def values(*shape: int) -> npt.NDArray[Any]:
        found = drawn.integers(-9, 10, shape)
        return found.astype(np.float32 if floats else np.int8)

    inputs: dict[str, Any] = {"x": values(batch, channels, *size), "w": values(outputs, channels, *kernel)}
    options = {"pads": [rng.randint(0, 2) for _ in range(6)], "strides": [rng.randint(1, 3) for _ in range(3)]}
    options["dilations"] = dilations
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


@pytest.mark.parametrize("scale", [np.float32(0.01), np.linspace(0.01, 0.02, 6, dtype=np.float32)])
def test_quantised_volumes_stay_integer(scale: Any) -> None:
    """Weights with one scale, or one for each output channel, are moved as integers."""
    drawn, build = np.random.default_rng(1), GraphBuilder("quantised")
    one, zero = build.const(np.float32(0.05)), build.const(np.int32(3))
    x = build.add("dequantize", [build.input("x", (2, 3, 4, 5), DType.INT8), one, zero], {"to": DType.FLOAT32})
    w = build.const(drawn.integers(-100, 100, (6, 8, 5)).astype(np.int8))
    shape = (-1, *(1,) * 2) if scale.ndim else ()
    zeros = build.const(np.zeros(scale.shape, np.int32).reshape(shape))
    w = build.add("dequantize", [w, build.const(scale.reshape(shape)), zeros], {"to": DType.FLOAT32})
    w = build.add("transpose", [build.add("reshape", [w], {"shape": (6, 2, 4, 5)})], {"perm": (0, 1, 3, 2)})
    w = build.add("reshape", [w], {"shape": (6, 2, 5, 4)})
    attrs = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (2, 2, 2, 2), "groups": 1}
    x = build.add("reshape", [x], {"shape": (3, 4, 5, 2)})
    y = build.add("quantize", [build.add("conv", [x, w], attrs), one, zero], {"to": DType.INT8})
    graph = build.finish([y])
    prepared = prepare(graph, load_config("edge"))
    assert [op.input(1).dtype for op in prepared.ops if op.kind == "conv"] == [DType.INT8]
    feeds = {"x": drawn.integers(-100, 100, (2, 3, 4, 5)).astype(np.int8)}
    found, expected = (next(iter(reference.run(each, feeds).values())) for each in (prepared, graph))
    # The floats of the graph are rounded before they are quantised.
    np.testing.assert_allclose(found.astype(int), expected.astype(int), atol=1)
