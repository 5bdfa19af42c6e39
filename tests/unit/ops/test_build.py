"""GraphBuilder: what it checks, folds, names and leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError, UnsupportedError, UsageError
from npusim.isa.functions import Binary, Unary
from npusim.ops import REGISTRY, reference
from npusim.ops.build import MAX_ELEMENTS, MAX_FOLDED_BYTES, GraphBuilder, checked_shape

RELU = {"fn": Unary.RELU}
ADD = {"fn": Binary.ADD}


def test_a_small_graph_is_built_and_run() -> None:
    build = GraphBuilder("net")
    x = build.input("x", (2, 3), DType.FLOAT32)
    w = build.const(np.arange(12, dtype=np.float32).reshape(3, 4), "w")
    y = build.add("matmul", [x, w], name="fc")
    graph = build.finish([build.add("unary", [y], RELU, "act")])
    assert [op.kind for op in graph.ops] == ["matmul", "unary"]
    assert (graph.outputs[0].name, graph.outputs[0].shape, graph.outputs[0].dtype) == ("act", (2, 4), DType.FLOAT32)
    array = np.array([[1, -1, 0], [0, 0, 1]], np.float32)
    np.testing.assert_array_equal(reference.run(graph, {"x": array})["act"], np.maximum(array @ w.data, 0))


def test_shapes_have_up_to_so_many_elements() -> None:
    for shape in ((MAX_ELEMENTS,), (2, MAX_ELEMENTS // 2), (0, MAX_ELEMENTS + 1)):
        assert checked_shape(shape, "x") == shape
    for more in ((MAX_ELEMENTS + 1,), (2, MAX_ELEMENTS // 2 + 1), (1 << 32, 1 << 32)):
        with pytest.raises(UnsupportedError, match=f"at most {MAX_ELEMENTS}"):
            checked_shape(more, "x")
    with pytest.raises(ModelError, match=r"x: dimensions must be >= 0, got \[2, -1\]"):
        checked_shape((2, -1), "x")


def test_names_are_made_unique_for_tensors_and_operators() -> None:
    build = GraphBuilder("net")
    x = build.input("x", (1,), DType.FLOAT32)
    first, second = build.add("unary", [x], RELU, "x"), build.add("unary", [x], RELU, "x")
    assert [t.name for t in (first, second)] == ["x_1", "x_2"]
    graph = build.finish([first, second])
    assert [op.name for op in graph.ops] == ["x", "x_1"]
    with pytest.raises(ModelError, match="'x' is already taken"):
        build.input("x", (1,), DType.FLOAT32)


def test_inputs_are_told_from_other_tensors() -> None:
    build = GraphBuilder("net")
    x, w = build.input("x", (2,), DType.FLOAT32), build.const(np.ones(2, np.float32))
    y = build.add("binary", [x, w], {"fn": Binary.ADD})
    assert [build.is_input(tensor) for tensor in (x, w, y)] == [True, False, False]
    assert build.op_count == 1
    assert [op.output for op in build.ops_since(0)] == [y]
    assert build.ops_since(1) == []


def test_dead_operators_are_left_out_and_inputs_stay() -> None:
    build = GraphBuilder("net")
    x, unused = build.input("x", (1,), DType.FLOAT32), build.input("unused", (1,), DType.FLOAT32)
    build.add("unary", [unused], RELU)
    graph = build.finish([build.add("unary", [x], RELU, "y")])
    assert [op.name for op in graph.ops] == ["y"]
    assert [tensor.name for tensor in graph.inputs] == ["x", "unused"]


@pytest.mark.parametrize(
    ("kind", "attrs", "message"),
    [
        ("unary", {}, "attribute 'fn' is required"),
        ("unary", {"fn": Unary.RELU, "alpha": 1.0}, "unknown attribute 'alpha'; unary has fn, p0, p1"),
        ("binary", ADD, "takes 2 inputs, got 1"),
        ("transpose", {"perm": (0, 0)}, r"perm must be a permutation of 2 dimensions, got \[0, 0\]"),
        ("reshape", {"shape": (7,)}, r"cannot reshape \[2, 3\] \(6 elements\) to \[7\]"),
        ("softmax", {"axis": 2, "log": False}, r"axis must be in \[0, 2\), got 2"),
    ],
)
def test_damaged_operators_are_refused_by_name_and_reason(kind: str, attrs: dict[str, object], message: str) -> None:
    build = GraphBuilder("net")
    x = build.input("x", (2, 3), DType.FLOAT32)
    with pytest.raises(ModelError, match=f"node .{kind}.: .*{message}"):
        build.add(kind, [x], attrs, "node")


def test_a_tensor_of_too_many_elements_is_not_supported() -> None:
    build = GraphBuilder("net")
    x = build.input("x", (2, 3), DType.FLOAT32)
    with pytest.raises(
        UnsupportedError, match=r"node .*: shape .* has \d+ elements, at most 1099511627776 are supported"
    ):
        build.add("expand", [x], {"shape": (1 << 21, 1 << 20, 2, 3)}, "node")


def test_a_broken_constraint_is_told_in_its_own_words() -> None:
    build = GraphBuilder("net")
    x = build.input("x", (2,), DType.INT8)
    with pytest.raises(UnsupportedError) as caught:
        build.add("unary", [x], {"fn": Unary.EXP}, "e")
    ((name, kind, reason),) = caught.value.reasons
    assert (name, kind) == ("e", "unary")
    assert reason.startswith("integers have identity, relu")
    assert reason.endswith("(got int8)")


def test_every_constraint_has_a_sentence() -> None:
    for definition in REGISTRY.values():
        for constraint in definition.constraints:
            assert constraint.__doc__
            assert "\n" not in constraint.__doc__


def test_unknown_kinds_and_several_outputs_are_the_callers_mistake() -> None:
    build = GraphBuilder("net")
    x = build.input("x", (4,), DType.FLOAT32)
    with pytest.raises(UsageError, match="unknown operator kind 'convolve'; known: arg_reduce, "):
        build.add("convolve", [x])
    with pytest.raises(UsageError, match="topk has 2 outputs"):
        build.add("topk", [x], {"axis": 0, "k": 2, "largest": True})
    values, indices = build.add_all("topk", [x], {"axis": 0, "k": 2, "largest": True}, "top")
    assert (values.name, indices.name, indices.dtype) == ("top", "top:1", DType.INT64)


def test_folding_computes_what_is_small_and_keeps_views_of_what_is_large() -> None:
    build = GraphBuilder("net", fold=True)
    one = build.const(np.float32(1), "one")
    large = build.add("expand", [one], {"shape": (1 << 24,)})
    assert large.is_constant
    assert large.data is not None
    assert large.data.strides == (0,)
    again = build.add("reshape", [large], {"shape": (1 << 12, 1 << 12)})
    assert again.data is not None
    assert again.data.strides == (0, 0)
    kept = build.add("binary", [again, one], ADD)
    assert not kept.is_constant
    assert kept.nbytes > MAX_FOLDED_BYTES
    assert build.add("binary", [one, one], ADD).data == np.float32(2)


def test_quantised_weights_are_not_folded_but_their_value_is_known() -> None:
    build = GraphBuilder("net", fold=True)
    levels, scale, zero = (build.const(value) for value in (np.int8([-2, 4]), np.float32(0.5), np.int32(1)))
    real = build.add("dequantize", [levels, scale, zero], {"to": DType.FLOAT32})
    doubled = build.add("binary", [real, real], ADD)
    assert not real.is_constant
    assert not doubled.is_constant
    np.testing.assert_array_equal(build.value_of(doubled), np.float32([-3, 3]))
    x = build.input("x", (2,), DType.FLOAT32)
    assert build.value_of(build.add("binary", [doubled, x], ADD)) is None


def test_a_long_chain_of_derived_values_is_evaluated_once_each() -> None:
    build = GraphBuilder("net", fold=True)
    value = build.add("dequantize", [build.const(np.int8(1)), build.const(np.float32(1)), build.const(np.int32(0))],
                      {"to": DType.FLOAT32})  # fmt: skip
    for _ in range(5000):
        value = build.add("binary", [value, value], {"fn": Binary.MAX})
    assert build.value_of(value) == np.float32(1)


def test_constants_take_the_type_they_are_given() -> None:
    build = GraphBuilder("net")
    assert build.const([1, 2], dtype=DType.INT8).data.dtype == np.int8  # type: ignore[union-attr]
    assert build.const(1.0, dtype=DType.BFLOAT16).data == np.uint16(0x3F80)
    bits = np.array([0x4000], np.uint16)
    assert build.const(bits, dtype=DType.BFLOAT16).data is bits
    assert build.const(bits).dtype is DType.UINT16


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "the graph's inputs are x; got none"),
        ({"x": np.zeros(2, np.float32), "z": 1}, "the graph's inputs are x; got x, z"),
        ({"x": np.zeros(3, np.float32)}, r"input 'x' must be float32\[2\], got float32\[3\]"),
        ({"x": np.zeros(2, np.float64)}, r"input 'x' must be float32\[2\], got float64\[2\]"),
        ({"x": np.array(["a", "b"])}, "input 'x': no element type"),
    ],
)
def test_the_reference_refuses_inputs_that_do_not_match(inputs: dict[str, object], message: str) -> None:
    build = GraphBuilder("net")
    x = build.input("x", (2,), DType.FLOAT32)
    graph = build.finish([build.add("unary", [x], RELU)])
    with pytest.raises(InputError, match=message):
        reference.run(graph, inputs)


def test_bfloat16_goes_in_and_out_as_ml_dtypes_or_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    build = GraphBuilder("net")
    x = build.input("x", (3,), DType.BFLOAT16)
    graph = build.finish([build.add("unary", [x], {"fn": Unary.SQUARE}, "y")])
    values = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    for array in (values, values.view(np.uint16)):
        result = reference.run(graph, {"x": array})["y"]
        assert result.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(result.astype(np.float32), np.float32([2.25, 4, 9]))


def test_the_inputs_that_a_value_follows_from() -> None:
    build = GraphBuilder("net")
    a, b, c = (build.input(name, (2,), DType.FLOAT32) for name in "abc")
    one = build.const(np.float32([1, 1]))
    left = build.add("binary", [a, one], ADD)
    assert build.inputs_of(left) == [a]
    both = build.add("binary", [build.add("unary", [c], RELU), left], ADD)
    assert build.inputs_of(both) == [a, c]
    assert (build.inputs_of(b), build.inputs_of(one)) == ([b], [])
    assert build.inputs == (a, b, c)


def test_whoever_asks_too_often_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a model with many refused nodes would take quadratic time."""
    monkeypatch.setattr("npusim.ops.build.MAX_TRACED", 7)
    build = GraphBuilder("net")
    value = x = build.input("x", (2,), DType.FLOAT32)
    for _ in range(2):
        value = build.add("unary", [value], RELU)
    assert [build.inputs_of(value) for _ in range(4)] == [[x], [x], [], []]
