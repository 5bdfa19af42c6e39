"""Weights with a zero point: the matrix unit subtracts it at the rate and with the memory of 8-bit weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.isa.matrix import Conv, Depthwise
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import Session
from tests.support.graphs.execution import interpreted

TINY = load_config("tiny")
BYTES = TINY.with_(**{"matrix.throughput": {"int8": 1, "float32": 1}})
ZERO = 120
_WINDOW = {"layout": "NCHW", "stride": (2, 1), "dilation": (1, 1), "pads": (1, 0, 1, 2)}
Attrs = Mapping[str, Any]
PRODUCTS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], Attrs]] = {
    "conv": ("conv", (1, 40, 5, 6), (6, 40, 3, 2), {**_WINDOW, "groups": 1}),
    "grouped": ("conv", (2, 4, 5, 6), (6, 2, 3, 2), {**_WINDOW, "groups": 2}),
    "depthwise": ("conv", (1, 4, 5, 6), (8, 1, 3, 2), {**_WINDOW, "groups": 4}),
    "transposed": (
        "conv_transpose", (1, 4, 3, 4), (4, 3, 3, 2), {**_WINDOW, "groups": 2, "output_hw": (5, 3)},
    ),
    "matmul": ("matmul", (3, 2, 7), (7, 5), {}),
    "matmuls": ("matmul", (3, 2, 7), (3, 7, 5), {}),
}  # fmt: skip


def graph(name: str, w_type: DType, w_zero: int, *, const: bool, x_type: DType = DType.UINT8) -> Graph:
    """Build one product with a bias; the weights take every value of their type."""
    kind, x_shape, w_shape, attrs = PRODUCTS[name]
    build, info = GraphBuilder(name), np.iinfo(w_type.storage)
    values = np.random.default_rng(3).integers(info.min, info.max, w_shape, endpoint=True).astype(w_type.storage)
    values.flat[:2] = info.min, info.max
    w = build.const(values) if const else build.input("w", w_shape, w_type)
    x = build.input("x", x_shape, x_type)
    channels = {"conv": w_shape[0], "conv_transpose": w_shape[1] * attrs.get("groups", 1)}.get(kind, w_shape[-1])
    bias = build.const(np.arange(channels, dtype=np.int32) * 1000)
    y = build.add(kind, [x, w, bias], {**attrs, "x_zero": 7, "w_zero": w_zero}, "y")
    return build.finish([y])


def feed(made: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    spans = {t.name: np.iinfo(t.dtype.storage) for t in made.inputs}
    return {
        t.name: rng.integers(spans[t.name].min, spans[t.name].max, t.shape, endpoint=True).astype(t.dtype.storage)
        for t in made.inputs
    }


def zeros_of(program: Program) -> set[tuple[DType, int]]:
    """Return the type and zero point of the weights of every matrix instruction."""
    tiles = (command.instruction for command in decode(program.code))
    return {(tile.w_type, tile.w_zero) for tile in tiles if isinstance(tile, (Conv, Depthwise))}


@pytest.mark.parametrize("config", [TINY, BYTES], ids=["int8 and int16", "int8"])
@pytest.mark.parametrize("const", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_of_them_multiply_bytes(name: str, const: bool, config: Config) -> None:
    made = graph(name, DType.UINT8, ZERO, const=const)
    program = compile_graph(made, config)
    assert zeros_of(program) == {(DType.UINT8, ZERO)}
    assert [dtype for dtype, _ in program.macs] == [DType.UINT8]
    np.testing.assert_array_equal(interpreted(program, config, feed(made))["y"], reference.run(made, feed(made))["y"])


@pytest.mark.parametrize("name", ["conv", "depthwise", "matmul"])
def test_it_is_the_sum_by_widened_weights_in_the_time_of_bytes(name: str) -> None:
    """Equal to int16 weights with the zero point subtracted, and as fast as 8-bit weights without a zero point."""
    made = graph(name, DType.UINT8, ZERO, const=True)
    (op,) = made.ops
    wide = op.input(1).data.astype(np.int16) - np.int16(ZERO)  # type: ignore[union-attr]
    build = GraphBuilder("wide")
    operands = [build.input("x", op.input(0).shape, DType.UINT8), build.const(wide), build.const(op.input(2).data)]  # type: ignore[arg-type]
    widened = build.finish([build.add(op.kind, operands, {**op.attrs, "w_zero": 0}, "y")])
    runs = [
        Session("edge", cache_dir=False).run(each, feed(made))
        for each in (made, graph(name, DType.UINT8, 0, const=True), widened)
    ]
    np.testing.assert_array_equal(runs[0].outputs["y"], runs[2].outputs["y"])
    assert runs[0].cycles == runs[1].cycles
    assert runs[0].macs == runs[1].macs == runs[2].macs


@pytest.mark.parametrize("x_type", [DType.INT8, DType.INT16], ids=lambda dtype: dtype.label)
def test_signed_weights_and_wider_images(x_type: DType) -> None:
    made = graph("conv", DType.INT8, -3, const=True, x_type=x_type)
    program = compile_graph(made, TINY)
    assert [dtype for dtype, _ in program.macs] == [x_type]
    np.testing.assert_array_equal(interpreted(program, TINY, feed(made))["y"], reference.run(made, feed(made))["y"])


@pytest.mark.parametrize("make", [lambda w: w // 2 + 60, lambda w: w // 2], ids=["zero 128", "zero 1"])
def test_constants_that_fit_int8_are_centred_once(make: Callable[[Any], Any]) -> None:
    """Nothing is left for the unit to subtract."""
    build = GraphBuilder("fits")
    values = make(np.arange(0, 256, 4)).astype(np.uint8).reshape(16, 4)
    zero = 128 if values.max() > 127 else 1
    x = build.input("x", (3, 16), DType.UINT8)
    made = build.finish([build.add("matmul", [x, build.const(values)], {"w_zero": zero}, "y")])
    (op,) = prepare(made, TINY).ops
    assert (op.input(1).dtype, op.attrs["w_zero"]) == (DType.INT8, 0)
    assert zeros_of(compile_graph(made, TINY)) == {(DType.INT8, 0)}
    np.testing.assert_array_equal(
        interpreted(compile_graph(made, TINY), TINY, feed(made))["y"], reference.run(made, feed(made))["y"]
    )


def quantised(zero: Any, *, const: bool) -> Graph:
    """Build dequantize of both operands - matmul - quantize, as a model contains it."""
    build = GraphBuilder("quantised")
    x, scale = build.input("x", (4, 32), DType.UINT8), build.const(np.float32(0.25))
    values = np.random.default_rng(2).integers(0, 256, (32, 6)).astype(np.uint8)
    values[0] = 0, 255, 0, 255, 0, 255
    w = build.const(values) if const else build.input("w", (32, 6), DType.UINT8)
    real = [
        build.add("dequantize", [value, scale, build.const(np.asarray(of, np.int32))], {"to": DType.FLOAT32})
        for value, of in ((x, 9), (w, zero))
    ]
    steps = [build.add("matmul", real), build.const(np.float32(64)), build.const(np.int32(ZERO))]
    return build.finish([build.add("quantize", steps, {"to": DType.UINT8}, "y")])


@pytest.mark.parametrize("const", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("zero", [ZERO, np.full((1, 6), ZERO)], ids=["one", "equal per channel"])
def test_dequantised_weights_stay_bytes(zero: Any, const: bool) -> None:
    made = quantised(zero, const=const)
    program = compile_graph(made, TINY)
    assert zeros_of(program) == {(DType.UINT8, ZERO)}
    np.testing.assert_array_equal(interpreted(program, TINY, feed(made))["y"], reference.run(made, feed(made))["y"])


def test_zero_points_that_differ_per_channel_widen_the_weights() -> None:
    made = quantised(np.arange(118, 124).reshape(1, 6), const=True)
    program = compile_graph(made, TINY)
    assert zeros_of(program) == {(DType.INT16, 0)}
    np.testing.assert_array_equal(interpreted(program, TINY, feed(made))["y"], reference.run(made, feed(made))["y"])
