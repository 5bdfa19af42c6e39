"""Convolutions without spatial neighbours: the pixels of all rows and images form one run."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from npusim.compiler.codegen.issue import Tile
from npusim.compiler.lower.base import SlotTable
from npusim.compiler.lower.conv import ConvLowering
from npusim.compiler.lower.image_product import ImageProductLowering
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.compiler.passes import fill_groups
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.explore.evaluate import simulate
from npusim.graph import Tensor
from npusim.hw.config import Config, load_config
from npusim.isa.functions import Binary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.graphs.execution import interpreted

CONFIGS = [load_config(name) for name in ("tiny", "ethos_u65_256", "nvdla_small")]


def _types(config: Config) -> list[DType]:
    rates = config.matrix.throughput if config.matrix else {}
    return [dtype for dtype in (DType.INT8, DType.FLOAT32) if rates.get(dtype.label)]


@pytest.mark.parametrize("seed", range(60))
def test_results_are_those_of_the_reference(seed: int) -> None:
    rng = Random(seed)
    sizes = rng.choice((1, 2, 3)), rng.choice((1, 2, 5)), rng.choice((1, 4, 9)), rng.choice((1, 3, 40))
    _check(rng, *sizes, rng.choice((1, 5, 70)), rng.choice(("NHWC", "NCHW")), rng.choice((1, 1, 2)), rng.choice((1, 3)))


def test_products_of_weights_and_images_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a convolution seems faster; each group of a convolution is a separate product."""
    monkeypatch.setattr(ConvLowering, "estimate", lambda _: 1 << 62)
    monkeypatch.setattr(fill_groups, "_joined", lambda op, homes, config: 1)
    made = []

    def steps(self: ImageProductLowering, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        made.append(self)
        return MatMulLowering.steps(self, table, core, cores)

    monkeypatch.setattr(ImageProductLowering, "steps", steps)
    for seed in range(60):
        rng = Random(seed)
        sizes = rng.choice((1, 2, 3)), rng.choice((1, 2, 5)), rng.choice((4, 9)), rng.choice((3, 40, 70))
        _check(rng, *sizes, rng.choice((5, 70)), "NCHW", rng.choice((1, 1, 2, 3)), 1)
    assert len(made) >= 30, "not products"


def _check(rng: Random, n: int, h: int, w: int, c: int, o: int, layout: str, groups: int, width: int) -> None:
    """Compare with the reference: broadcast operands, several tiles, per-channel biases and scales, zero points."""
    config = rng.choice(CONFIGS)
    dtype = rng.choice(_types(config))
    pad = rng.choice((0, 1)) if width > 1 else 0
    w += width - 1 - 2 * pad
    left = w - width + 1 + 2 * pad
    shape, out = [
        (n, h, cols, k) if layout == "NHWC" else (n, k, h, cols) for k, cols in ((c * groups, w), (o * groups, left))
    ]
    values = np.random.default_rng(rng.randrange(1000))

    def drawn(shape: tuple[int, ...]) -> Any:
        return values.integers(-9, 10, shape).astype(dtype.storage)

    build = GraphBuilder("run")
    attrs = {"layout": layout, "stride": (1, 1), "dilation": (1, 1), "pads": (0, pad, 0, pad)}
    x, weights = build.input("x", shape, dtype), build.const(drawn((o * groups, c, 1, width)), dtype=dtype)
    sums = DType.FLOAT32 if dtype.is_float else DType.INT32
    bias = build.const(values.integers(-99, 100, o * groups).astype(sums.storage)) if rng.random() < 0.5 else None
    zeros = {} if dtype.is_float else {"x_zero": rng.randint(-9, 9), "w_zero": rng.choice((0, 3))}
    y = build.add("conv", [x, weights, *([bias] if bias else [])], {**attrs, "groups": groups, **zeros})
    feeds = {"x": drawn(shape)}
    if dtype.is_float:
        # Full size, or one value per image, row, column or channel.
        for number in range(rng.choice((0, 1, 2))):
            kept = rng.choice(((0, 1, 2, 3), (0,), (1,), (2,), (3,), (0, 1), ()))
            operand = tuple(dim if axis in kept else 1 for axis, dim in enumerate(out))
            feeds[f"z{number}"] = drawn(operand)
            y = build.add("binary", [y, build.input(f"z{number}", operand, dtype)], {"fn": Binary.ADD})
        y = build.add("binary", [y, build.const(np.float32(3))], {"fn": Binary.MAX})
    elif rng.random() < 0.7:
        y = _requantised(build, y, rng.choice((1, o * groups)), layout, values)
    graph = build.finish([y])
    config = config.with_(**{"sram.bytes": rng.choice((8 << 10, 32 << 10, 512 << 10)), "cores": rng.choice((1, 1, 3))})
    (found,) = interpreted(compile_graph(graph, config), config, feeds).values()
    (expected,) = reference.run(graph, feeds).values()
    np.testing.assert_array_equal(found, expected)


def _requantised(build: GraphBuilder, sums: Tensor, scales: int, layout: str, values: np.random.Generator) -> Tensor:
    """Requantise with one scale for all channels or one per channel."""
    shape = () if scales == 1 else (scales,) if layout == "NHWC" else (scales, 1, 1)
    scale, zero = build.const(values.uniform(1e-3, 1e-2, shape).astype(np.float32)), build.const(np.int32(0))
    real = build.add("dequantize", [sums, scale, zero], {"to": DType.FLOAT32})
    return build.add("quantize", [real, build.const(np.float32(0.1)), zero], {"to": DType.INT8})


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_weights_are_loaded_once_for_a_batch(layout: str) -> None:
    config, build = load_config("edge"), GraphBuilder("batch")
    x = build.input("x", (32, 5, 5, 256) if layout == "NHWC" else (32, 256, 5, 5), DType.INT8)
    window = {"layout": layout, "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    y = build.add("conv", [x, build.const(np.ones((512, 256, 1, 1), np.int8), dtype=DType.INT8)], window)
    read = simulate(build.finish([y]), config).dram_read_bytes
    assert read <= 1.1 * (x.nbytes + 256 * 512)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, id=f"{name}-{dtype.label}")
        for name in ("tiny", "edge", "ethos_u65_256", "nvdla_small")
        for dtype in (DType.INT8, DType.FLOAT32)
        if dtype in _types(load_config(name))
    ],
)
def test_images_are_not_transposed_for_the_unit(name: str, dtype: DType) -> None:
    """A convolution of [1, C, H, W] takes as long as the matrix product of its weights with the same bytes."""
    config = load_config(name)
    weights, times = np.ones((24, 48), dtype.storage), []
    for form in ("conv", "matmul"):
        build = GraphBuilder(form)
        if form == "conv":
            x = build.input("x", (1, 48, 9, 11), dtype)
            window = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
            y = build.add("conv", [x, build.const(weights.reshape(24, 48, 1, 1))], window)
        else:
            y = build.add("matmul", [build.const(weights), build.input("x", (48, 99), dtype)])
        times.append(simulate(build.finish([y]), config).time_ps)
    assert times[0] <= 1.03 * times[1]
