"""Quantised models are compiled to integer operators: which movements, cancellations, folds and fusions happen before
tiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.pipeline import prepare
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder

TINY = load_config("tiny")
F32, I8, U8, I16, I32 = DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16, DType.INT32
RNG = np.random.default_rng(5)


def shown(graph: Graph) -> list[tuple[str, DType]]:
    """Return the kind and output type of each remaining operator."""
    return [(op.kind, op.output.dtype) for op in prepare(graph, TINY).ops]


def agrees(graph: Graph) -> None:
    """Check that the prepared graph computes what the model defines."""
    feed = {t.name: RNG.integers(0, 100, t.shape).astype(t.dtype.storage) for t in graph.inputs}
    wanted, prepared = reference.run(graph, feed), prepare(graph, TINY)
    got = reference.run(prepared, feed)
    for before, after in zip(graph.outputs, prepared.outputs, strict=True):
        # Sums that cancel keep the rounding error of their terms.
        most = np.abs(wanted[before.name]).max(initial=1)
        np.testing.assert_allclose(got[after.name], wanted[before.name], rtol=1e-5, atol=1e-6 * most + 1e-5)


def dequantized(build: GraphBuilder, x: Tensor, scale: Any = 0.5, zero: Any = 3) -> Tensor:
    parameters = [build.const(np.asarray(scale, np.float32)), build.const(np.asarray(zero, np.int32))]
    return build.add("dequantize", [x, *parameters], {"to": F32})


def quantized(build: GraphBuilder, x: Tensor, scale: Any = 0.5, zero: Any = 3, to: DType = U8) -> Tensor:
    parameters = [build.const(np.asarray(scale, np.float32)), build.const(np.asarray(zero, np.int32))]
    return build.add("quantize", [x, *parameters], {"to": to})


WINDOW = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0)}
MAXIMUM = {"fn": "max", "kernel": (2, 2), "output_hw": (3, 3), **WINDOW}
MOVES: dict[str, Callable[[GraphBuilder, Tensor], Tensor]] = {
    "reshape": lambda b, x: b.add("reshape", [x], {"shape": (4, 8)}),
    "transpose": lambda b, x: b.add("transpose", [x], {"perm": (0, 2, 1, 3)}),
    "slice": lambda b, x: b.add("slice", [x], {"starts": (0, 1, 0, 0), "steps": (1,) * 4, "sizes": (1, 1, 4, 4)}),
    "expand": lambda b, x: b.add("expand", [x], {"shape": (3, 2, 4, 4)}),
    "windows": lambda b, x: b.add("windows", [x], {"axis": 2, "size": 3, "step": 1}),
    "gather": lambda b, x: b.add("gather", [x, b.const(np.array([1, 0, 0], np.int32))], {"axis": 1}),
    "pool": lambda b, x: b.add("pool", [x], MAXIMUM),
}


@pytest.mark.parametrize("kind", MOVES)
def test_movement_moves_integers(kind: str) -> None:
    """Requantising with equal parameters leaves a view; another scale or type leaves one conversion at the end."""
    for scale, zero, to, left in (
        (0.5, 3, U8, [("reshape", U8)]),
        (0.25, 3, U8, [("dequantize", F32), ("quantize", U8)]),
        (0.5, 4, U8, [("dequantize", F32), ("quantize", U8)]),
        (0.5, 3, I8, [("dequantize", F32), ("quantize", I8)]),
    ):
        build = GraphBuilder("g")
        moved = MOVES[kind](build, dequantized(build, build.input("x", (1, 2, 4, 4), U8)))
        graph = build.finish([quantized(build, moved, scale, zero, to)])
        assert shown(graph) == [(kind, U8), *left]
        agrees(graph)


@pytest.mark.parametrize("shape", [(1, 6, 4), (1, 1, 6, 4), (2, 3, 4)])
def test_a_product_has_the_dimensions_of_what_follows(shape: tuple[int, ...]) -> None:
    """A reshape between a matrix product and a chain with more dimensions is absorbed, so both form one group."""
    build = GraphBuilder("g")
    weights = dequantized(build, build.const(RNG.integers(-9, 9, (8, 4)).astype(np.int8)), [[0.5, 0.25, 0.125, 1.0]], 0)
    value = build.add("matmul", [dequantized(build, build.input("x", (6, 8), U8)), weights])
    value = build.add("reshape", [dequantized(build, quantized(build, value))], {"shape": shape})
    graph = build.finish([build.add("unary", [value], {"fn": Unary.TANH})])
    prepared = prepare(graph, TINY)
    groups = [group.kind for group in form_groups(prepared.ops, prepared.outputs) if group.kind != "reshape"]
    assert groups == ["matmul+dequantize+quantize+dequantize+tanh"]
    agrees(graph)


def test_what_computes_converts_what_it_reads() -> None:
    """The dequantisation before the concatenation moves behind it; the pool converts its own operand."""
    build = GraphBuilder("g")
    real = dequantized(build, build.input("x", (1, 2, 4, 4), U8))
    mean = build.add("pool", [real], {**MAXIMUM, "fn": "average"})
    graph = build.finish([mean, build.add("concat", [real, real], {"axis": 0})])
    assert [kind for kind, _ in shown(graph)] == ["pool", "concat", "dequantize"]
    agrees(graph)


def test_parameters_of_channels_turn_with_their_tensor() -> None:
    build = GraphBuilder("g")
    real = dequantized(build, build.input("x", (4, 2, 3), U8), [[1.0], [2.0]], [[1], [5]])
    graph = build.finish([build.add("transpose", [real], {"perm": (1, 2, 0)})])
    assert shown(graph) == [("transpose", U8), ("dequantize", F32)]
    (_, convert) = prepare(graph, TINY).ops
    assert [convert.input(1).shape, convert.input(2).shape] == [(2, 1, 1), (2, 1, 1)]
    agrees(graph)


@pytest.mark.parametrize("kind", ["reshape", "slice", "gather", "pool"])
def test_parameters_of_channels_hold_back_other_movement(kind: str) -> None:
    build = GraphBuilder("g")
    real = dequantized(build, build.input("x", (1, 2, 4, 4), U8), [[[1.0]], [[2.0]]], [[[1]], [[5]]])
    graph = build.finish([MOVES[kind](build, real)])
    assert shown(graph) == [("dequantize", F32), (kind, F32)]


def test_parameters_that_are_computed_hold_it_back() -> None:
    build = GraphBuilder("g")
    x, scale = build.input("x", (2, 3), U8), build.input("s", (2, 1), F32)
    real = build.add("dequantize", [x, scale, build.const(np.int32(0))], {"to": F32})
    assert shown(build.finish([build.add("transpose", [real], {"perm": (1, 0)})])) == [
        ("dequantize", F32), ("transpose", F32),
    ]  # fmt: skip


def test_what_others_read_stays_beside_what_moves() -> None:
    build = GraphBuilder("g")
    real = dequantized(build, build.input("x", (2, 3), U8))
    graph = build.finish(
        [build.add("transpose", [real], {"perm": (1, 0)}), build.add("unary", [real], {"fn": Unary.EXP})]
    )
    assert sorted(shown(graph)) == sorted([("transpose", U8), ("dequantize", F32), ("dequantize", F32), ("unary", F32)])
    agrees(graph)


# Products


def layer(build: GraphBuilder, weights: npt.NDArray[Any], scale: Any, zero: Any, bias: Tensor | None = None) -> Tensor:
    left = dequantized(build, build.input("x", (3, weights.shape[0]), U8), 0.5, 7)
    return build.add("matmul", [left, dequantized(build, build.const(weights), scale, zero), bias])


W = RNG.integers(-100, 100, (4, 2)).astype(np.int8)


def product(graph: Graph) -> Any:
    (op,) = (op for op in prepare(graph, TINY).ops if op.kind in ("matmul", "conv"))
    return op


@pytest.mark.parametrize(("zero", "left"), [(0, 0), (5, 5), (-128, -128), (127, 127)])
def test_one_zero_point_of_weights_is_subtracted_by_the_unit_or_before(zero: int, left: int) -> None:
    """If the weights minus their zero point fit int8, the constant is rewritten; otherwise the unit subtracts it."""
    build = GraphBuilder("g")
    graph = build.finish([layer(build, W, 0.25, zero)])
    op = product(graph)
    fits = np.abs(W.astype(int) - zero - 0.5).max() <= 127.5
    assert op.attrs["x_zero"] == 7
    assert op.attrs["w_zero"] == (0 if fits else left)
    assert op.input(1).dtype is I8
    assert shown(graph) == [("matmul", I32), ("dequantize", F32)]
    agrees(graph)


def test_zero_points_of_channels_make_wider_weights_if_need_be() -> None:
    for zeros, dtype in (([1, -1], I8), ([100, -100], I16)):
        build = GraphBuilder("g")
        graph = build.finish([layer(build, W, [0.25, 0.5], zeros)])
        op = product(graph)
        assert (op.input(1).dtype, op.attrs["w_zero"]) == (dtype, 0)
        np.testing.assert_array_equal(op.input(1).data, W.astype(int) - zeros)
        agrees(graph)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_scales_that_are_no_scales_stay_real(scale: float) -> None:
    build = GraphBuilder("g")
    assert product(build.finish([layer(build, W, scale, 0)])).output.dtype is F32


def test_scales_along_the_sum_stay_real() -> None:
    build = GraphBuilder("g")
    assert product(build.finish([layer(build, W, [[1.0], [2.0], [3.0], [4.0]], [[0]] * 4)])).output.dtype is F32


def test_wide_integers_stay_real() -> None:
    build = GraphBuilder("g")
    assert product(build.finish([layer(build, W.astype(np.int32), 1.0, 0)])).output.dtype is F32


STEP = 0.5 * 0.25
BIASES = [
    ([8 * STEP, -3 * STEP], [8, -3]),  # multiples of the step of a sum
    ([8 * STEP, -3.0005 * STEP], [8, -3]),
    ([8 * STEP, -3.01 * STEP], None),
    ([STEP * 2.0**31, 0.0], None),
    ([STEP * 2.0**30, 0.0], [2**30, 0]),
]


@pytest.mark.parametrize(("bias", "integers"), BIASES)
def test_biases_that_are_whole_numbers_of_steps_are_integers(bias: list[float], integers: list[int] | None) -> None:
    build = GraphBuilder("g")
    graph = build.finish([layer(build, W, 0.25, 0, build.const(np.array(bias, np.float32)))])
    op = product(graph)
    if integers is None:
        assert len(op.inputs) == 2
        assert shown(graph) == [("matmul", I32), ("dequantize", F32), ("binary", F32)]
    else:
        np.testing.assert_array_equal(op.input(2).data, integers)
        assert shown(graph) == [("matmul", I32), ("dequantize", F32)]
    agrees(graph)


@pytest.mark.parametrize(("scale", "zero", "taken"), [(STEP, 0, True), (STEP, 1, False), (STEP * 1.01, 0, False)])
def test_dequantised_biases_of_the_same_scale_are_taken_as_they_are(scale: float, zero: int, taken: bool) -> None:
    build = GraphBuilder("g")
    values = np.array([1001, -7], np.int32)
    bias = dequantized(build, build.const(values), scale, zero)
    op = product(build.finish([layer(build, W, 0.25, 0, bias)]))
    if taken:
        np.testing.assert_array_equal(op.input(2).data, values)
    else:
        assert len(op.inputs) == 2


# Scales and shifts of floats


def affine(fn: Binary, row: Any, *, swapped: bool = False, bias: bool = True, kind: str = "matmul") -> Graph:
    build = GraphBuilder("g")
    offsets = build.const(np.array([3, 5], np.float32)) if bias else None
    if kind == "conv":
        weights = build.const(RNG.standard_normal((2, 3, 1, 1)).astype(np.float32))
        value = build.add("conv", [build.input("x", (1, 3, 2, 2), F32), weights, offsets], {**WINDOW, "groups": 1})
        row = np.reshape(row, (-1, 1, 1)) if np.ndim(row) else row
    else:
        weights = build.const(RNG.standard_normal((3, 2)).astype(np.float32))
        value = build.add("matmul", [build.input("x", (4, 3), F32), weights, offsets])
    other = build.const(np.asarray(row, np.float32))
    return build.finish([build.add("binary", [other, value] if swapped else [value, other], {"fn": fn})])


@pytest.mark.parametrize("kind", ["matmul", "conv"])
@pytest.mark.parametrize("row", [2.0, [2.0, -3.0], [[2.0, -3.0]]])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("fn", "swapped"),
    [(Binary.MUL, False), (Binary.MUL, True), (Binary.ADD, True), (Binary.ADD, False), (Binary.SUB, False)],
)
def test_scales_and_shifts_go_into_weights(fn: Binary, swapped: bool, bias: bool, row: Any, kind: str) -> None:
    if kind == "conv" and np.ndim(row) == 2:
        return
    graph = affine(fn, row, swapped=swapped, bias=bias, kind=kind)
    assert [k for k, _ in shown(graph)] == [kind]
    assert len(product(graph).inputs) == (2 if fn is Binary.MUL and not bias else 3)
    agrees(graph)


def test_what_is_no_scale_of_channels_stays() -> None:
    for graph in (
        affine(Binary.SUB, 2.0, swapped=True),
        affine(Binary.MUL, [[1.0], [2.0], [3.0], [4.0]]),
        affine(Binary.MUL, np.ones((2, 1, 1))),
    ):
        assert [k for k, _ in shown(graph)] == ["matmul", "binary"]
        agrees(graph)


def test_values_that_others_read_are_not_scaled() -> None:
    build = GraphBuilder("g")
    weights = build.const(RNG.standard_normal((3, 2)).astype(np.float32))
    value = build.add("matmul", [build.input("x", (4, 3), F32), weights])
    scaled = build.add("binary", [value, build.const(np.float32(2))], {"fn": Binary.MUL})
    graph = build.finish([scaled, build.add("unary", [value], {"fn": Unary.EXP})])
    assert [k for k, _ in shown(graph)] == ["matmul", "binary", "unary"]
    graph = build.finish([scaled, value])
    assert [k for k, _ in shown(graph)] == ["matmul", "binary"]
    agrees(graph)


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_a_maximum_stays_behind_a_scale_that_does_not_rise(scale: float) -> None:
    """A negative scale reverses the order: the maximum is the least of the integers."""
    build = GraphBuilder("g")
    x = build.input("x", (1, 1, 4, 4), U8)
    graph = build.finish([build.add("pool", [dequantized(build, x, scale)], MAXIMUM)])
    assert [kind for kind, _ in shown(graph)] == ["dequantize", "pool"]
    agrees(graph)


def test_what_constants_alone_make_is_a_constant() -> None:
    """Quantised scale and shift constants of a normalisation after a convolution, as export tools write them."""
    build = GraphBuilder("normalised")
    x = dequantized(build, build.input("x", (1, 3, 5, 5), U8))
    w = dequantized(build, build.const(RNG.integers(-9, 9, (4, 3, 1, 1), np.int8)), zero=0)
    value = quantized(build, build.add("conv", [x, w], {**WINDOW, "groups": 1}))
    scale, shift = (dequantized(build, build.const(RNG.integers(1, 9, (4, 1, 1), np.uint8)), zero=0) for _ in range(2))
    value = build.add("binary", [dequantized(build, value), scale], {"fn": Binary.MUL})
    value = build.add("binary", [value, build.add("unary", [shift], {"fn": Unary.SQRT})], {"fn": Binary.SUB})
    graph = build.finish([quantized(build, value)])
    prepared = prepare(graph, TINY)
    assert all(any(t is not None and t.data is None for t in op.inputs) for op in prepared.ops)
    agrees(graph)


def test_weights_that_products_take_as_they_are_stay_narrow() -> None:
    """Weights of float products stay at four bits in memory and are only converted in the array."""
    build = GraphBuilder("weights")
    x = build.input("x", (2, 8), F32)
    w = dequantized(build, build.const(RNG.integers(-8, 8, (8, 4), np.int8)), zero=0)
    graph = build.finish([build.add("matmul", [x, w])])
    (product,) = (op for op in prepare(graph, load_config("edge")).ops if op.kind == "matmul")
    assert product.input(1).dtype is not F32


def half(build: GraphBuilder, x: Tensor, scale: float, zero: int = 3) -> Tensor:
    parameters = [build.const(np.float32(scale)), build.const(np.int32(zero))]
    return build.add("dequantize", [x, *parameters], {"to": DType.FLOAT16})


@pytest.mark.parametrize("kind", ["average", "mean", "resample"])
def test_float16_scales_round_as_the_model_does(kind: str) -> None:
    """Operators between integers round to float16 where the model does, so the results are equal."""
    build = GraphBuilder("g")
    real = half(build, build.input("x", (1, 2, 4, 4), U8), 0.031)
    if kind == "average":
        value = build.add("pool", [real], {**MAXIMUM, "fn": "average"})
    elif kind == "mean":
        value = build.add("reduce", [real], {"fn": Reduce.MEAN, "axes": (1,), "keepdims": True})
    else:
        index, weight = np.int32([[0, 1], [1, 2], [2, 3]]), np.float32([[0.3, 0.7]] * 3)
        value = build.add("resample", [real, build.const(index), build.const(weight)], {"axis": 2})
    graph = build.finish([quantized(build, value, 0.017, 7)])
    assert shown(graph) == [({"average": "pool", "mean": "reduce"}.get(kind, kind), U8)]
    feed = {"x": RNG.integers(0, 256, (1, 2, 4, 4)).astype(np.uint8)}
    (wanted,), (got,) = (reference.run(each, feed).values() for each in (graph, prepare(graph, TINY)))
    np.testing.assert_array_equal(got, wanted)


def test_products_with_float16_scales_compute_on_integers() -> None:
    """Up to the quantisation, with float32 in between; other readers get the value as float16."""
    build = GraphBuilder("g")
    x = half(build, build.input("x", (8, 32), U8), 0.031)
    w = half(build, build.const(RNG.integers(-9, 9, (32, 8)).astype(np.int8)), 0.02, 0)
    bias = half(build, build.const(np.arange(8, dtype=np.int32)), 0.00062, 0)
    beside = half(build, build.input("y", (8, 8), U8), 0.1)
    value = build.add("unary", [build.add("matmul", [x, w, bias])], {"fn": Unary.RELU})
    total = build.add("binary", [value, beside], {"fn": Binary.ADD})
    graph = build.finish([quantized(build, total, 0.11, 7), build.add("unary", [value], {"fn": Unary.NEG})])
    kinds = shown(graph)
    assert ("matmul", I32) in kinds
    assert ("cast", DType.FLOAT16) in kinds
    feed = {"x": RNG.integers(0, 256, (8, 32)).astype(np.uint8), "y": RNG.integers(0, 256, (8, 8)).astype(np.uint8)}
    wanted, prepared = list(reference.run(graph, feed).values()), prepare(graph, TINY)
    got = list(reference.run(prepared, feed).values())
    assert np.abs(got[0].astype(int) - wanted[0]).max() <= 1
    np.testing.assert_allclose(got[1].astype(np.float32), wanted[1].astype(np.float32), rtol=2**-9, atol=2**-9)


def test_what_other_operators_read_is_not_computed_again_by_a_table() -> None:
    """A requantisation of a table's result reads the result; a separate table would keep the operand alive, too."""

    def graph(others: bool) -> Graph:
        build = GraphBuilder("g")
        real = dequantized(build, build.input("x", (4, 4), I8), 0.1, 0)
        share = dequantized(
            build, quantized(build, build.add("unary", [real], {"fn": Unary.SIGMOID}), 0.01, 0, I8), 0.01, 0
        )
        value = quantized(build, build.add("binary", [real, share], {"fn": Binary.MUL}), 0.1, 1, I8)
        again = quantized(build, dequantized(build, value, 0.1, 1), 0.2, 3, I8)
        beside = [build.add("transpose", [value], {"perm": (1, 0)})] if others else []
        return build.finish([again, *beside])

    assert [kind for kind, _ in shown(graph(False))] == ["lookup"]
    assert [kind for kind, _ in shown(graph(True))] == ["lookup", "dequantize", "quantize", "transpose"]
