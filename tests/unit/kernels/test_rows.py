"""Reductions and row kernels compared with numpy in double precision."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from npusim.isa.functions import Reduce
from tests.support.kernel_operands import (
    FLOATS,
    INTEGERS,
    assert_same,
    assert_untouched,
    layouts,
    levels,
    narrow,
    place,
    random_values,
    widen,
    wrap,
)

dims4 = st.tuples(*[st.integers(1, 5)] * 4)
dims3 = st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 4))
seeds = st.integers(0, 1000)


def fold(fn: Reduce, values: list, floating: bool):
    """Return one reduction, element by element, with Python numbers (floats are doubles)."""
    total = {Reduce.MAX: None, Reduce.MIN: None, Reduce.PROD: 1, Reduce.ANY: False, Reduce.ALL: True}.get(fn, 0)
    for x in values:
        if fn in (Reduce.MAX, Reduce.MIN):
            better = total is None or math.isnan(x) or (x > total if fn is Reduce.MAX else x < total)
            total = x if better and not (total is not None and math.isnan(total)) else total
        elif fn is Reduce.PROD:
            total = total * x
        elif fn in (Reduce.ANY, Reduce.ALL):
            total = (total or x != 0) if fn is Reduce.ANY else (total and x != 0)
        else:
            total = total + {Reduce.L1: abs(x), Reduce.L2: x * x, Reduce.SUM_SQUARE: x * x}.get(fn, x)
    if not floating:
        total = wrap(int(total), DType.INT64)
    if fn is Reduce.MEAN:
        return total / len(values) if floating else int(np.trunc(np.longdouble(total) / len(values)))
    if fn is Reduce.L2:
        return np.sqrt(total) if floating else (int(np.sqrt(np.float64(total))) if total >= 0 else 0)
    return total


def reduce_all(fn, dtype, src, dims, axes, cuts=1):
    """Run the kernel over ``axes``, with the first dimension in ``cuts`` pieces, and finish."""
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(dims))
    acc, dst = place(np.full(kept, 7, np.int64)), place(np.zeros(kept, dtype.storage))
    strides = tuple(0 if axis in axes else stride for axis, stride in enumerate(acc.strides))
    edges = np.linspace(0, dims[0], cuts + 1).astype(int)
    for start, stop in itertools.pairwise(edges.tolist()):
        first = start == 0 or 0 not in axes
        to = _core.Strided(acc.memory, acc.offset + start * strides[0], strides)
        part = _core.Strided(src.memory, src.offset + start * src.strides[0], src.strides)
        _core.reduce(fn, dtype, to, part, (stop - start, *dims[1:]), first)
    count = int(np.prod([dims[axis] for axis in axes], dtype=int))
    _core.reduce_finish(fn, dtype, dst.operand, acc.operand, kept, count)
    return dst.array


@pytest.mark.parametrize("fn", Reduce, ids=lambda fn: fn.name)
@settings(max_examples=25)
@given(dims4, st.sets(st.integers(0, 3), min_size=1), st.sampled_from([*FLOATS, *INTEGERS]), layouts(4), seeds,
       st.sampled_from([9.0, 1e9]))  # fmt: skip
def test_reduce_is_a_fold_in_row_major_order(fn, dims, axes, dtype, layout, seed, limit):
    src = place(random_values(dtype, dims, seed, limit), layout)
    got = reduce_all(fn, dtype, src, dims, axes)
    values = widen(src.array, dtype).astype(np.float64) if dtype.is_float else src.array
    for at in np.ndindex(*got.shape):
        picked = values[tuple(slice(None) if axis in axes else slice(i, i + 1) for axis, i in enumerate(at))]
        with np.errstate(all="ignore"):
            want = fold(fn, picked.ravel().tolist(), dtype.is_float)
            if dtype.is_float:
                assert_same(widen(got[at], dtype), widen(narrow(np.float32(want), dtype), dtype))
            else:
                assert int(got[at]) == wrap(int(want), dtype)


@given(st.sampled_from([DType.FLOAT32, DType.INT16]), st.integers(2, 6), seeds)
def test_a_reduction_in_pieces_is_the_same(dtype, cuts, seed):
    dims = (6, 3, 4, 5)
    src = place(random_values(dtype, dims, seed))
    for axes in ({0, 2}, {0, 1, 2, 3}, {3}):
        assert_same(
            reduce_all(Reduce.SUM, dtype, src, dims, axes, cuts), reduce_all(Reduce.SUM, dtype, src, dims, axes)
        )


def test_any_and_all_of_bool():
    src = place(np.array([[0, 0, 0], [0, 1, 0], [1, 1, 1]], bool).reshape(1, 1, 3, 3))
    assert reduce_all(Reduce.ANY, DType.BOOL, src, (1, 1, 3, 3), {3}).ravel().tolist() == [False, True, True]
    assert reduce_all(Reduce.ALL, DType.BOOL, src, (1, 1, 3, 3), {3}).ravel().tolist() == [False, False, True]
    with pytest.raises(ValueError, match="reduction 0 is not defined for bool"):
        reduce_all(Reduce.SUM, DType.BOOL, src, (1, 1, 3, 3), {3})


def softmax(x, log):
    e = np.exp(x - x.max(1, keepdims=True))
    total = e.sum(1, keepdims=True)
    return x - x.max(1, keepdims=True) - np.log(total) if log else e / total


def layer(x, rms):
    centred = x if rms else x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)


def lrn(x, size, beta):
    total = np.zeros_like(x)
    for r in range(x.shape[1]):
        low = max(0, r - (size - 1) // 2)
        total[:, r] = (x[:, low : max(low, r - (size - 1) // 2 + size)] ** 2).sum(1)
    return x / (1.5 + 0.01 / size * total) ** beta


def cumsum(x, exclusive, reverse):
    x = x[:, ::-1] if reverse else x
    total = np.cumsum(x, 1) - (x if exclusive else 0)
    return total[:, ::-1] if reverse else total


ROW_KERNELS = {
    "softmax": (lambda *v: _core.softmax(*v, False), lambda x: softmax(x, False)),
    "log_softmax": (lambda *v: _core.softmax(*v, True), lambda x: softmax(x, True)),
    "layer": (lambda *v: _core.normalize(*v, 0, 1e-5), lambda x: layer(x, False)),
    "rms": (lambda *v: _core.normalize(*v, 1, 1e-5), lambda x: layer(x, True)),
    "lrn3": (lambda *v: _core.lrn(*v, 3, 0.01, 0.75, 1.5), lambda x: lrn(x, 3, 0.75)),
    "lrn4": (lambda *v: _core.lrn(*v, 4, 0.01, 0.6, 1.5), lambda x: lrn(x, 4, 0.6)),
    **{
        f"cumsum{exclusive:d}{reverse:d}": (
            lambda *v, e=exclusive, r=reverse: _core.cumsum(*v, e, r),
            lambda x, e=exclusive, r=reverse: cumsum(x, e, r),
        )
        for exclusive in (False, True)
        for reverse in (False, True)
    },
}


@pytest.mark.parametrize("name", ROW_KERNELS)
@settings(max_examples=25)
@given(dims3, st.sampled_from(FLOATS), layouts(3), layouts(3), seeds)
def test_row_kernels(name, dims, dtype, source, target, seed):
    kernel, reference = ROW_KERNELS[name]
    src = place(random_values(dtype, dims, seed, 20.0), source)
    want = narrow(reference(widen(src.array, dtype).astype(np.float64)), dtype)
    tolerance = {DType.FLOAT32: 3e-7, DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}[dtype]
    results = []
    for level in levels():
        _core.set_simd(level)
        dst = place(np.zeros(dims, dtype.storage), target)
        before = dst.memory.copy()
        kernel(dtype, dst.operand, src.operand, dims)
        np.testing.assert_allclose(widen(dst.array, dtype), widen(want, dtype), rtol=tolerance, atol=tolerance)
        assert_untouched(dst, before)
        results.append(widen(dst.array, dtype).tobytes())
    assert len(set(results)) == 1


@given(dims3, st.sampled_from(INTEGERS), layouts(3), seeds, st.booleans(), st.booleans())
def test_integer_cumsum_wraps(dims, dtype, layout, seed, exclusive, reverse):
    src, dst = place(random_values(dtype, dims, seed, 1e5), layout), place(np.zeros(dims, dtype.storage), layout)
    _core.cumsum(dtype, dst.operand, src.operand, dims, exclusive, reverse)
    with np.errstate(over="ignore"):
        assert_same(dst.array, cumsum(src.array.astype(np.int64), exclusive, reverse).astype(dtype.storage))


def test_softmax_of_large_values_and_of_nan():
    src = place(np.array([[1e30, 1e30, -np.inf], [0, np.nan, 1]], np.float32).reshape(2, 3, 1))
    dst = place(np.zeros((2, 3, 1), np.float32))
    _core.softmax(DType.FLOAT32, dst.operand, src.operand, (2, 3, 1), False)
    assert dst.array[0].ravel().tolist() == [0.5, 0.5, 0.0]
    assert np.isnan(dst.array[1]).all()


@given(dims3, st.sampled_from([*FLOATS, *INTEGERS, DType.BOOL]), layouts(3), seeds, st.booleans(), st.booleans())
def test_arg_reduce(dims, dtype, layout, seed, minimum, last):
    src = place(random_values(dtype, dims, seed, 3.0), layout)
    dst = place(np.zeros((dims[0], 1, dims[2]), np.int64))
    _core.arg_reduce(minimum, dtype, dst.operand, src.operand, dims, last)
    values = widen(src.array, dtype) if dtype.is_float else src.array
    values = values[:, ::-1] if last else values
    want = (np.argmin if minimum else np.argmax)(values, 1)
    assert_same(dst.array[:, 0], dims[1] - 1 - want if last else want)


def test_arg_reduce_finds_nan_first():
    src = place(np.array([1, np.nan, 9, np.nan, -9], np.float32).reshape(1, 5, 1))
    for fn, last, want in ((0, False, 1), (1, False, 1), (0, True, 3), (1, True, 3)):
        dst = place(np.zeros((1, 1, 1), np.int64))
        _core.arg_reduce(fn, DType.FLOAT32, dst.operand, src.operand, (1, 5, 1), last)
        assert dst.array.item() == want


@given(dims3, st.sampled_from([*FLOATS, *INTEGERS]), layouts(3), layouts(3), seeds, st.booleans(), st.integers(0, 20))
def test_topk(dims, dtype, source, target, seed, largest, k):
    k = min(k, dims[1])
    shape = (dims[0], k, dims[2])
    src = place(random_values(dtype, dims, seed, 3.0), source)
    values, indices = place(np.zeros(shape, dtype.storage), target), place(np.zeros(shape, np.int64), target)
    _core.topk(dtype, values.operand, indices.operand, src.operand, dims, k, largest)
    wide = widen(src.array, dtype).astype(np.float64) if dtype.is_float else src.array.astype(object)
    for o, i in np.ndindex(dims[0], dims[2]):
        order = sorted(range(dims[1]), key=lambda j: (-wide[o, j, i] if largest else wide[o, j, i], j))[:k]
        assert indices.array[o, :, i].tolist() == order
        assert_same(values.array[o, :, i], src.array[o, order, i])


def test_topk_takes_nan_as_largest():
    src = place(np.array([1, np.nan, 3], np.float32).reshape(1, 3, 1))
    for largest, want in ((True, [1, 2, 0]), (False, [0, 2, 1])):
        values, indices = place(np.zeros((1, 3, 1), np.float32)), place(np.zeros((1, 3, 1), np.int64))
        _core.topk(DType.FLOAT32, values.operand, indices.operand, src.operand, (1, 3, 1), 3, largest)
        assert indices.array.ravel().tolist() == want


def test_bad_arguments_are_named():
    view = place(np.zeros((1, 2, 1), np.int8)).operand
    dims = (1, 2, 1)
    for call, message in (
        (lambda: _core.softmax(DType.INT8, view, view, dims, False), "softmax: type must be a float type, got int8"),
        (lambda: _core.normalize(DType.FLOAT16, view, view, dims, 2, 0.0), "mode must be 0 .* or 1 .*, got 2"),
        (lambda: _core.lrn(DType.FLOAT32, view, view, dims, 0, 1, 1, 1), "lrn: size must be >= 1, got 0"),
        (lambda: _core.topk(DType.INT8, view, view, view, dims, 3, True), r"topk: k must be 0\.\.2, got 3"),
        (lambda: _core.reduce(10, DType.INT8, view, view, (1, 1, 1, 1), True), "must be 0..9, got 10"),
        (lambda: _core.cumsum(DType.BOOL, view, view, dims, False, False), "cumsum: type must be a number, got bool"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
