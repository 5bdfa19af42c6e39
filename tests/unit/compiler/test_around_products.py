"""Scalars and pads beside products join them, where the result stays the same, and nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from npusim.compiler.passes.around_products import MOST_VIEWS, pad_in_convolutions, scale_results
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Unary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder

LAYOUTS = {"NCHW": (2, 3), "NHWC": (1, 2)}
PLAIN = {"stride": (1, 1), "dilation": (1, 1), "groups": 1}


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


@pytest.mark.parametrize("fn", [Binary.MUL, Binary.DIV])
@pytest.mark.parametrize("scalar", [7, -3, 1])
def test_integer_products_keep_their_factors_and_divisors(fn: Binary, scalar: int) -> None:
    """An integer has no reciprocal, and a quotient is rounded."""
    build = GraphBuilder("integers")
    x, w = build.input("x", (2, 5), DType.INT8), build.const(np.arange(15, dtype=np.int8).reshape(5, 3))
    attrs = {"x_zero": 0, "w_zero": 0, "wide": False, "w_bits": 0, "block": 0}
    y = build.add("matmul", [x, w], attrs)
    graph = build.finish([build.add("binary", [y, build.const(np.array([scalar], np.int32))], {"fn": fn})])
    assert kinds(scale_results(graph)) == ["matmul", "binary"]
    same(graph, scale_results(graph))


def inputs_of(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        x.name: rng.integers(-4, 5, x.shape).astype(x.dtype.storage)
        if x.dtype.is_integer
        else rng.standard_normal(x.shape).astype(x.dtype.storage)
        for x in graph.inputs
    }


def same(before: Graph, after: Graph, rtol: float = 0) -> None:
    inputs = inputs_of(before)
    wanted, found = reference.run(before, inputs), reference.run(after, inputs)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=rtol)


def padded(
    layout: str,
    before: Sequence[int],
    after: Sequence[int],
    value: float = 0,
    mode: str = "constant",
    zero: int | None = None,
    readers: int = 1,
) -> Graph:
    """A pad, a convolution with paddings of its own, and more readers of the pad."""
    build = GraphBuilder("padded")
    shape = (1, 4, 5, 6) if layout == "NCHW" else (1, 5, 6, 4)
    dtype = DType.FLOAT32 if zero is None else DType.INT8
    x = build.input("x", shape, dtype)
    y = build.add("pad", [x], {"before": tuple(before), "after": tuple(after), "mode": mode, "value": value})
    channels = y.shape[LAYOUTS[layout][0] - 1] if layout == "NCHW" else y.shape[3]
    rng = np.random.default_rng(1)
    w = build.const(rng.integers(-3, 4, (2, channels, 2, 3)).astype(dtype.storage), "w")
    attrs = {**PLAIN, "layout": layout, "pads": (1, 2, 3, 4), "x_zero": zero or 0}
    outputs = [build.add("conv", [y, w], attrs)]
    outputs += [build.add("unary", [y], {"fn": Unary.NEG}) for _ in range(readers - 1)]
    return build.finish(outputs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("zero", [None, 0, 3])
def test_a_pad_of_rows_and_columns_becomes_padding(layout: str, zero: int | None) -> None:
    rows, cols = LAYOUTS[layout]
    for amounts in itertools.product((0, 2), repeat=4):
        before, after = [0] * 4, [0] * 4
        before[rows], before[cols], after[rows], after[cols] = amounts
        graph = padded(layout, before, after, value=zero or 0, zero=zero)
        joined = pad_in_convolutions(graph)
        assert kinds(joined) == ["conv"]
        assert joined.ops[0].attrs["pads"] == tuple(np.add((1, 2, 3, 4), amounts))
        same(graph, joined)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "change",
    [
        {"value": 1.0},
        {"mode": "reflect"},
        {"mode": "edge"},
        {"readers": 2},
        {"zero": 3},  # the pad has zeros, the convolution pads with 3
        {"axis": "channels", "side": "before"},
        {"axis": "channels", "side": "after"},
        {"axis": "images", "side": "before"},
    ],
    ids=str,
)
def test_other_pads_stay(layout: str, change: dict[str, Any]) -> None:
    rows, _ = LAYOUTS[layout]
    axis = {"channels": 1 if layout == "NCHW" else 3, "images": 0}.get(change.get("axis", ""), rows)
    sides: dict[str, list[int]] = {"before": [0] * 4, "after": [0] * 4}
    sides[change.get("side", "before")][axis] = 1
    more = {key: value for key, value in change.items() if key in ("value", "mode", "readers", "zero")}
    graph = padded(layout, sides["before"], sides["after"], **more)
    assert [(op.kind, op.attrs) for op in pad_in_convolutions(graph).ops] == [(op.kind, op.attrs) for op in graph.ops]


def test_pads_of_what_is_no_convolution_stay() -> None:
    build = GraphBuilder("pool")
    pad = {"before": (0, 0, 1, 1), "after": (0, 0, 1, 1), "mode": "constant", "value": 0.0}
    x = build.add("pad", [build.input("x", (1, 1, 4, 4), DType.FLOAT32)], pad)
    graph = build.finish([build.add("unary", [x], {"fn": Unary.RELU})])
    assert kinds(pad_in_convolutions(graph)) == ["pad", "unary"]


def scaled(build: GraphBuilder, x: Tensor, fn: Binary, value: float, *, first: bool = False) -> Tensor:
    scalar = build.const(np.array(value, np.float32), f"{x.name}.scalar")
    return build.add("binary", [scalar, x] if first else [x, scalar], {"fn": fn})


def product(a: tuple[Binary, float, bool] | None, b: tuple[Binary, float, bool] | None, views: int = 0) -> Graph:
    """(x . a) @ (y . b), with views between the factor of x and the product."""
    build = GraphBuilder("product")
    operands = []
    for name, shape, factor in (("x", (3, 4), a), ("y", (4, 5), b)):
        tensor = build.input(name, shape, DType.FLOAT32)
        if factor is not None:
            fn, value, first = factor
            tensor = scaled(build, tensor, fn, value, first=first)
        for _ in range(views if name == "x" else 0):
            tensor = build.add("transpose", [tensor], {"perm": (1, 0)})
        operands.append(tensor)
    return build.finish([build.add("matmul", operands, {})])


FACTORS = [(Binary.MUL, 3.0, False), (Binary.MUL, 3.0, True), (Binary.DIV, 4.0, False)]


@pytest.mark.parametrize("a", [None, *FACTORS])
@pytest.mark.parametrize("b", [None, *FACTORS])
def test_factors_of_operands_become_one_of_the_result(
    a: tuple[Binary, float, bool] | None, b: tuple[Binary, float, bool] | None
) -> None:
    graph = product(a, b)
    moved = scale_results(graph)
    assert kinds(moved) == (["matmul", "binary"] if a or b else ["matmul"])
    same(graph, moved, 1e-5)


@pytest.mark.parametrize("factor", [(Binary.DIV, 4.0, True), (Binary.ADD, 3.0, False), (Binary.MUL, np.inf, False)])
def test_what_is_no_factor_stays(factor: tuple[Binary, float, bool]) -> None:
    graph = product(factor, None)
    assert kinds(scale_results(graph)) == ["binary", "matmul"]


def test_factors_whose_product_the_type_cannot_hold_stay() -> None:
    graph = product((Binary.MUL, 1e30, False), (Binary.MUL, 1e30, False))
    assert kinds(scale_results(graph)) == ["binary", "binary", "matmul"]


@pytest.mark.parametrize("views", [0, 2, MOST_VIEWS - 2, MOST_VIEWS, MOST_VIEWS + 2])
def test_factors_are_found_behind_views(views: int) -> None:
    """The view is of the operand without its factor."""
    graph = product(FACTORS[0], None, views)
    moved = scale_results(graph)
    found = kinds(moved)[-1] == "binary"
    assert found == (views < MOST_VIEWS)
    if found:
        assert kinds(moved) == ["transpose"] * views + ["matmul", "binary"]
    same(graph, moved, 1e-5)


def test_a_factor_that_others_read_too_stays() -> None:
    build = GraphBuilder("shared")
    x = scaled(build, build.input("x", (3, 4), DType.FLOAT32), Binary.MUL, 3.0)
    y = build.input("y", (4, 5), DType.FLOAT32)
    graph = build.finish([build.add("matmul", [x, y], {}), x])
    assert kinds(scale_results(graph)) == ["binary", "matmul"]


def test_a_product_with_a_bias_keeps_its_factors() -> None:
    build = GraphBuilder("bias")
    x = scaled(build, build.input("x", (3, 4), DType.FLOAT32), Binary.MUL, 3.0)
    bias = build.const(np.arange(5, dtype=np.float32), "bias")
    graph = build.finish([build.add("matmul", [x, build.input("y", (4, 5), DType.FLOAT32), bias], {})])
    assert kinds(scale_results(graph)) == ["binary", "matmul"]


@pytest.mark.parametrize(
    ("fn", "value", "becomes"),
    [
        (Binary.DIV, 4.0, Binary.MUL),
        (Binary.DIV, 0.0, Binary.DIV),
        (Binary.DIV, 1e-45, Binary.DIV),
        (Binary.MUL, 4.0, Binary.MUL),
        (Binary.ADD, 4.0, Binary.ADD),
    ],
)
def test_a_product_that_is_divided_is_multiplied(fn: Binary, value: float, becomes: Binary) -> None:
    """With the reciprocal, if there is one. Other operators stay."""
    build = GraphBuilder("divided")
    y = build.add("matmul", [build.input("x", (3, 4), DType.FLOAT32), build.input("y", (4, 5), DType.FLOAT32)], {})
    graph = build.finish([scaled(build, y, fn, value)])
    moved = scale_results(graph)
    assert kinds(moved) == ["matmul", "binary"]
    assert moved.ops[1].attrs["fn"] == becomes
    if value == 4.0:
        same(graph, moved, 1e-5)


def test_a_quotient_of_anything_else_stays() -> None:
    build = GraphBuilder("quotient")
    x = build.input("x", (3, 4), DType.FLOAT32)
    y = build.add("matmul", [build.input("y", (4, 3), DType.FLOAT32), x], {})
    graph = build.finish([scaled(build, x, Binary.DIV, 4.0), y])
    assert [op.attrs.get("fn") for op in scale_results(graph).ops if op.kind == "binary"] == [Binary.DIV]
