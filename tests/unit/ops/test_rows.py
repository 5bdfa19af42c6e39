"""Reductions, rows, movement and quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError, UnsupportedError
from npusim.isa.functions import Reduce
from tests.support.graphs.single_operator import Array, run, run_all

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)

REDUCTIONS = {
    Reduce.SUM: np.sum,
    Reduce.MEAN: np.mean,
    Reduce.MAX: np.max,
    Reduce.MIN: np.min,
    Reduce.PROD: np.prod,
    Reduce.L1: lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims),
    Reduce.L2: lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims)),
    Reduce.SUM_SQUARE: lambda x, axis, keepdims: np.sum(x * x, axis=axis, keepdims=keepdims),
}


@pytest.mark.parametrize("fn", sorted(REDUCTIONS))
@pytest.mark.parametrize(("axes", "keepdims"), [((1,), True), ((0, 2), False), ((), True), ((0, 1, 2), False)])
def test_reductions(fn: Reduce, axes: tuple[int, ...], keepdims: bool) -> None:
    y = run("reduce", X, fn=fn, axes=axes, keepdims=keepdims)
    expected = REDUCTIONS[fn](X.astype(np.float64), axis=axes, keepdims=keepdims)
    assert y.shape == np.shape(expected)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_logical_and_integer_reductions() -> None:
    flags = np.array([[True, False], [True, True]])
    assert run("reduce", flags, fn=Reduce.ALL, axes=(1,), keepdims=False).tolist() == [False, True]
    assert run("reduce", flags, fn=Reduce.ANY, axes=(0, 1), keepdims=False).item() is True
    assert run("reduce", np.int8([100, 100]), fn=Reduce.SUM, axes=(0,), keepdims=False) == np.int8(-56)
    assert run("reduce", np.int32([-3, -4]), fn=Reduce.MEAN, axes=(0,), keepdims=False) == -3
    with pytest.raises(UnsupportedError, match="l2 takes floats"):
        run("reduce", np.int32([1]), fn=Reduce.L2, axes=(0,), keepdims=False)
    with pytest.raises(ModelError, match=r"axes must be sorted and distinct, got \[1, 0\]"):
        run("reduce", X, fn=Reduce.SUM, axes=(1, 0), keepdims=False)


def test_an_empty_reduction_gives_the_identity() -> None:
    empty = np.zeros((2, 0), np.float32)
    assert run("reduce", empty, fn=Reduce.SUM, axes=(1,), keepdims=False).tolist() == [0, 0]
    assert run("reduce", empty, fn=Reduce.MAX, axes=(1,), keepdims=False).tolist() == [-np.inf, -np.inf]


def test_arg_reductions_break_ties_as_asked() -> None:
    x = np.int32([[1, 3, 3], [2, 2, 0]])
    assert run("arg_reduce", x, fn="max", axis=1, keepdims=False).tolist() == [1, 0]
    assert run("arg_reduce", x, fn="max", axis=1, keepdims=False, select_last=True).tolist() == [2, 1]
    assert run("arg_reduce", x, fn="min", axis=0, keepdims=True).tolist() == [[0, 1, 1]]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.booleans(), st.data())
def test_topk_sorts_with_ties_at_the_lower_index(values: list[int], largest: bool, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    best, index = run_all("topk", np.int32(values), axis=0, k=k, largest=largest)
    order = sorted(range(len(values)), key=lambda i: (-values[i] if largest else values[i], i))[:k]
    assert index.tolist() == order
    assert best.tolist() == [values[i] for i in order]


def test_softmax_survives_large_numbers() -> None:
    x = np.float32([[1000, 1001], [-np.inf, 0]])
    expected = [[1 / (1 + np.e), np.e / (1 + np.e)], [0, 1]]
    np.testing.assert_allclose(run("softmax", x, axis=1, log=False), expected, rtol=1e-6)
    np.testing.assert_allclose(run("softmax", x[:1], axis=1, log=True), np.log(expected[:1]), rtol=1e-6)
    with pytest.raises(UnsupportedError, match="floating point"):
        run("softmax", np.int8([1]), axis=0, log=False)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_normalize(axis: int) -> None:
    axes = tuple(range(axis, 3))
    y = run("normalize", X * 3 + 5, axis=axis, mode="layer", epsilon=0.0)
    np.testing.assert_allclose(y.mean(axes), 0, atol=1e-6)
    np.testing.assert_allclose(y.std(axes), 1, rtol=1e-5)
    rms = run("normalize", X, axis=axis, mode="rms", epsilon=0.5)
    np.testing.assert_allclose(rms, X / np.sqrt((X * X).mean(axes, keepdims=True) + 0.5), rtol=1e-5)


@pytest.mark.parametrize(
    ("exclusive", "reverse", "expected"),
    [(False, False, [1, 3, 6]), (True, False, [0, 1, 3]), (False, True, [6, 5, 3]), (True, True, [5, 3, 0])],
)
def test_cumsum(exclusive: bool, reverse: bool, expected: list[int]) -> None:
    assert run("cumsum", np.int32([1, 2, 3]), axis=0, exclusive=exclusive, reverse=reverse).tolist() == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lrn_sums_over_neighbouring_channels(size: int) -> None:
    y = run("lrn", X, axis=1, size=size, alpha=0.3, beta=0.75, bias=1.5)
    for channel in range(4):
        low, high = max(channel - (size - 1) // 2, 0), min(channel + size // 2, 3)
        total = (X[:, low : high + 1].astype(np.float64) ** 2).sum(1)
        np.testing.assert_allclose(y[:, channel], X[:, channel] / (1.5 + 0.3 / size * total) ** 0.75, rtol=1e-5)


def test_slices_may_run_backwards() -> None:
    x = np.arange(12, dtype=np.int16).reshape(3, 4)
    y = run("slice", x, starts=(2, 3), steps=(-1, -2), sizes=(3, 2))
    np.testing.assert_array_equal(y, x[::-1, ::-2])
    with pytest.raises(ModelError, match="axis 1: 3 elements from 3 in steps of -2 do not fit into a dimension of 4"):
        run("slice", x, starts=(0, 3), steps=(1, -2), sizes=(3, 3))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(mode: str) -> None:
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    y = run("pad", x, before=(1, 2), after=(0, 1), mode=mode, value=7)
    expected = np.pad(x, ((1, 0), (2, 1)), mode=mode, **({"constant_values": 7} if mode == "constant" else {}))  # type: ignore[call-overload]
    np.testing.assert_array_equal(y, expected)


def test_pads_that_reach_too_far_are_refused() -> None:
    with pytest.raises(ModelError, match=r"reflect padding of axis 0 \(size 2\) is at most 1 on a side"):
        run("pad", np.zeros(2, np.float32), before=(2,), after=(0,), mode="reflect")


def test_gather_counts_negative_indices_from_the_end_and_checks_the_rest() -> None:
    y = run("gather", X, np.int64([[0, -1]]), axis=1)
    np.testing.assert_array_equal(y, X[:, [[0, 3]]])
    np.testing.assert_array_equal(run("gather_elements", X, np.int32([[[-1]]]), axis=2), X[:1, :1, 4:])
    with pytest.raises(InputError, match=r"an index is outside \[-4, 4\): the indices span 0 to 4"):
        run("gather", X, np.int64([0, 4]), axis=1)


@pytest.mark.parametrize(
    ("reduction", "expected"), [("none", [9, 2, 5]), ("add", [1, 2, 15]), ("mul", [1, 2, 72]), ("max", [1, 2, 9])]
)
def test_scatter_combines_in_order(reduction: str, expected: list[int]) -> None:
    index = np.int64([2, 0, 2] if reduction == "none" else [2, 0, -1])
    updates = {"none": [4, 9, 5], "add": [4, 0, 8], "mul": [4, 1, 6], "max": [9, 0, 8]}[reduction]
    y = run("scatter_elements", np.float32([1, 2, 3]), index, np.float32(updates), axis=0, reduction=reduction)
    assert y.tolist() == expected


def test_resample_weighs_picks_and_skips() -> None:
    x = np.float32([10, 20, 40])
    index, weight = np.int32([[0, 1], [2, -1]]), np.float32([[0.25, 0.75], [0.5, 9]])
    assert run("resample", x, index, weight, axis=0).tolist() == [17.5, 20]
    exact = np.int64([2**60 + 1, 5])
    assert run("resample", exact, np.int32([[1], [0]]), np.float32([[1], [1]]), axis=0).tolist() == [5, 2**60 + 1]
    assert run("resample", np.uint8([255, 1]), np.int32([[0, 1]]), np.float32([[2, 0]]), axis=0).tolist() == [255]


@given(st.sampled_from([DType.INT8, DType.UINT8, DType.INT16, DType.UINT16]), st.integers(0, 99))
def test_quantize_rounds_half_to_even_and_saturates(to: DType, zero: int) -> None:
    x = np.float32([0.25, 0.75, 1.25, -0.25, 1e9, -1e9, np.nan])
    info = np.iinfo(to.storage)
    levels = [0, 2, 2, 0, 10**12, -(10**12), 0]
    got = run("quantize", x, np.float32(0.5), np.int32(zero), to=to)
    assert got.tolist() == [min(max(level + zero, info.min), info.max) for level in levels]


def test_dequantize_per_channel() -> None:
    x, scale, zero = np.uint8([[1, 2], [3, 4]]), np.float32([[0.5], [2]]), np.int32([[1], [4]])
    assert run("dequantize", x, scale, zero, to=DType.FLOAT32).tolist() == [[0, 0.5], [-2, 0]]
    with pytest.raises(ModelError, match=r"scale \[1, 2, 2\] and zero \[\] must broadcast to x \[2, 2\]"):
        run("dequantize", x, np.ones((1, 2, 2), np.float32), np.int32(0), to=DType.FLOAT32)


def matches(y: Array, expected: Any) -> None:
    np.testing.assert_array_equal(y, expected)


def test_moves_keep_every_element() -> None:
    matches(run("transpose", X, perm=(2, 0, 1)), X.transpose(2, 0, 1))
    matches(run("reshape", X, shape=(5, 12)), X.reshape(5, 12))
    matches(run("concat", X, X[:1], axis=0), np.concatenate([X, X[:1]]))
    matches(run("expand", X[:, :1], shape=(2, 3, 4, 5)), np.broadcast_to(X[:, :1], (2, 3, 4, 5)))
    with pytest.raises(ModelError, match="differ outside axis 0"):
        run("concat", X, X[:, :1], axis=0)
    with pytest.raises(ModelError, match=r"shapes \[3, 4, 5\] and \[3, 4\] differ outside axis 2"):
        run("concat", X, X[:, :, 0], axis=2)
