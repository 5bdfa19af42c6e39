"""Operators without effect are removed, others are replaced by simpler ones, and the values stay the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session

EDGE = load_config("edge")
SHAPE = (2, 3, 4, 4)
F32 = DType.FLOAT32


def built(add: Callable[[GraphBuilder, Tensor], Tensor], shape: tuple[int, ...] = SHAPE) -> Graph:
    build = GraphBuilder("g")
    x = build.input("x", shape, F32)
    return build.finish([add(build, build.add("unary", [x], {"fn": Unary.NEG}))])


def kinds(graph: Graph) -> list[tuple[str, Any]]:
    """Return the kinds and functions of the compiled operators. An output that equals another value is a view of it."""
    ops = prepare(graph, EDGE, Budget.of(EDGE)).ops
    return [(op.kind, op.attrs.get("fn")) for op in ops if op.kind != "reshape"]


def run(graph: Graph, x: np.ndarray) -> np.ndarray:
    with Session(EDGE, cache_dir=False) as session:
        (y,) = session.run(graph, {"x": x}).outputs.values()
    return y


def with_constant(fn: Binary, value: Any, *, first: bool = False) -> Callable[[GraphBuilder, Tensor], Tensor]:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        operands = [x, build.const(np.asarray(value, np.float32))]
        return build.add("binary", operands[::-1] if first else operands, {"fn": fn})

    return add


ZEROS, ONES = np.zeros((3, 1, 1)), np.ones(SHAPE)


@pytest.mark.parametrize(
    ("fn", "value", "first"),
    [
        (Binary.ADD, ZEROS, False),
        (Binary.ADD, 0.0, True),
        (Binary.SUB, ZEROS, False),
        (Binary.MUL, ONES, True),
        (Binary.DIV, 1.0, False),
        (Binary.POW, 1.0, False),
    ],
)
def test_neutral_constants_are_removed(fn: Binary, value: Any, first: bool) -> None:
    assert kinds(built(with_constant(fn, value, first=first))) == [("unary", Unary.NEG)]


@pytest.mark.parametrize(
    ("fn", "value", "first"),
    [
        (Binary.SUB, 0.0, True),  # 0 - x
        (Binary.DIV, 1.0, True),  # 1 / x
        (Binary.ADD, [0.0, 0.0, 0.0, 1.0], False),
        (Binary.MUL, 0.0, False),
        (Binary.ADD, np.zeros((5, *SHAPE)), False),  # the result is larger
    ],
)
def test_other_constants_stay(fn: Binary, value: Any, first: bool) -> None:
    assert ("binary", fn) in kinds(built(with_constant(fn, value, first=first)))


@pytest.mark.parametrize(
    ("steps", "low", "high"),
    [
        ([(Binary.MIN, 2.0), (Binary.MAX, -1.0)], -1.0, 2.0),
        ([(Binary.MAX, -1.0), (Binary.MIN, 2.0)], -1.0, 2.0),
        ([(Binary.MAX, 3.0), (Binary.MIN, 2.0)], 2.0, 2.0),
        ([(Binary.MIN, 2.0), (Binary.MAX, 3.0)], 3.0, 3.0),
        ([(Binary.MAX, 0.0), (Binary.MIN, 6.0), (Binary.MIN, 1.0)], 0.0, 1.0),
    ],
)
def test_bounds_one_after_the_other_are_one(steps: list[tuple[Binary, float]], low: float, high: float) -> None:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        for fn, bound in steps:
            x = with_constant(fn, bound)(build, x)
        return x

    graph = built(add)
    assert kinds(graph) == [("unary", Unary.NEG), ("unary", Unary.CLIP)]
    x = np.linspace(-8, 8, 96, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(run(graph, x), np.clip(-x, low, high))


def test_a_bound_that_another_operator_reads_stays() -> None:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        first = with_constant(Binary.MAX, 0.0)(build, x)
        return build.add("binary", [first, with_constant(Binary.MIN, 1.0)(build, first)], {"fn": Binary.ADD})

    x = np.linspace(-8, 8, 96, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_array_equal(run(built(add), x), np.maximum(-x, 0) + np.clip(-x, 0, 1))


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition_chooses(condition: bool) -> None:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        other = build.add("unary", [x], {"fn": Unary.ABS})
        return build.add("select", [build.const(np.full((3, 1, 1), condition)), x, other])

    found = [fn for kind, fn in kinds(built(add))]
    assert found == [Unary.NEG] if condition else found == [Unary.NEG, Unary.ABS]


def test_the_mean_of_a_whole_image_is_a_reduction() -> None:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        attrs = {
            "fn": "average", "layout": "NCHW", "kernel": (4, 4), "stride": (1, 1), "dilation": (1, 1),
            "pads": (0, 0, 0, 0), "output_hw": (1, 1), "count_include_pad": False,
        }  # fmt: skip
        return build.add("pool", [x], attrs)

    graph = built(add)
    assert ("reduce", Reduce.MEAN) in kinds(graph)
    x = np.linspace(-8, 8, 96, dtype=np.float32).reshape(SHAPE)
    wanted = np.mean(-x, axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(run(graph, x), wanted, rtol=1e-6, atol=1e-6)


def attention(build: GraphBuilder, x: Tensor, mask: np.ndarray, bound: float = -np.inf) -> Tensor:
    """Build the softmax of masked scores as the definition of attention writes it."""
    given = build.add("reshape", [build.add("unary", [build.const(mask)], {"fn": Unary.NEG})], {"shape": mask.shape})
    scores = build.add("binary", [x, given], {"fn": Binary.ADD})
    shares = build.add("softmax", [scores], {"axis": 3, "log": False})
    largest = build.add("reduce", [given], {"fn": Reduce.MAX, "axes": (1,), "keepdims": True})
    empty = build.add("binary", [largest, build.const(np.float32(bound))], {"fn": Binary.EQ})
    return build.add("select", [empty, build.const(np.float32(0)), shares])


def test_rows_that_a_mask_leaves_empty_are_zeros() -> None:
    mask = np.zeros((4, 4), np.float32)
    mask[1, :2] = mask[2] = np.inf
    graph = built(lambda build, x: attention(build, x, mask))
    assert "select" not in [kind for kind, _ in kinds(graph)]
    x = np.linspace(-3, 3, 96, dtype=np.float32).reshape(SHAPE)
    with np.errstate(invalid="ignore"):
        power = np.exp(-x - mask)
        wanted = np.nan_to_num(power / power.sum(3, keepdims=True))
    np.testing.assert_allclose(run(graph, x), wanted, rtol=1e-6, atol=1e-7)


def test_another_condition_is_computed() -> None:
    mask = np.zeros((4, 4), np.float32)
    graph = built(lambda build, x: attention(build, x, mask, 0.0))
    assert "select" in [kind for kind, _ in kinds(graph)]
    np.testing.assert_array_equal(run(graph, np.ones(SHAPE, np.float32)), np.zeros(SHAPE))


def test_pads_around_pads_are_one() -> None:
    def add(build: GraphBuilder, x: Tensor) -> Tensor:
        for before, after in (((0, 0, 1, 0), (0, 0, 0, 2)), ((0, 1, 0, 0), (0, 0, 3, 0))):
            x = build.add("pad", [x], {"before": before, "after": after, "mode": "constant", "value": 2.0})
        return x

    graph = built(add)
    assert [kind for kind, _ in kinds(graph)].count("pad") == 1
    x = np.linspace(-8, 8, 96, dtype=np.float32).reshape(SHAPE)
    wanted = np.pad(-x, ((0, 0), (1, 0), (1, 3), (0, 2)), constant_values=2.0)
    np.testing.assert_array_equal(run(graph, x), wanted)


def test_names_and_order_of_a_file_give_the_same_program() -> None:
    def graph(turned: bool) -> Graph:
        build = GraphBuilder("g")
        x = build.input("x", (1, 8, 8, 8), F32)
        names = ["left", "right"][:: -1 if turned else 1]
        parts = {name: build.add("unary", [x], {"fn": Unary.EXP if name == "left" else Unary.TANH}) for name in names}
        return build.finish([build.add("binary", [parts["left"], parts["right"]], {"fn": Binary.MUL})])

    assert compile_graph(graph(False), EDGE).code == compile_graph(graph(True), EDGE).code
