"""The drain of the accumulators compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from tests.support.kernel_operands import Layout, View, assert_same, assert_untouched, levels, narrow, place, widen

F = np.float32
INTEGER = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32)
FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
dims4 = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.one_of(st.integers(1, 40), st.just(700)))


def rows(values: np.ndarray, gap: int) -> View:
    """Return contiguous channels with pixels ``gap`` channels apart."""
    dense = place(np.concatenate([values, np.zeros((*values.shape[:3], gap), values.dtype)], -1),
                  Layout((0, 1, 2, 3), (0,) * 4, (False,) * 4, 3))  # fmt: skip
    array = dense.array[..., : values.shape[3]]
    return View(dense.memory, dense.offset, dense.strides, array)


def finish(acc_type, out_type, acc, dst, dims, bias, mult, stride, zero, low, high, out_scale=1.0):
    _core.finish(
        acc_type, out_type, _core.Strided(dst.memory, dst.offset, dst.strides[:3]),
        _core.Strided(acc.memory, acc.offset, acc.strides[:3]), dims,
        None if bias is None else _core.Strided(bias, 0, (0,)),
        None if mult is None else _core.Strided(mult, 0, (0, stride)), zero, low, high, out_scale,
    )  # fmt: skip


def twin(acc, out_type, bias, mult, zero, low, high, out_scale):
    with np.errstate(all="ignore"):
        value = acc if bias is None else acc + bias
        exact = acc.dtype == np.int32 and mult is None and out_scale == 1
        if not exact:
            value = value.astype(F)
            value = value if mult is None else value * mult
        if out_type.is_float:
            value = value.astype(F)
            return narrow(np.where(np.isnan(value), value, np.clip(value, F(low), F(high))), out_type)
        value = value if exact else np.rint(value / F(out_scale)).astype(np.float64)
        info = np.iinfo(out_type.storage)
        value = np.clip(np.where(np.isnan(value), 0, value).astype(object), -(10**12), 10**12)
        limits = max(info.min, low), min(info.max, high)
        return np.clip(value + zero, *limits).astype(np.float64).astype(out_type.storage)


LIMITS = ((-np.inf, np.inf), (0.0, 6.0), (-20.0, 90.0))


@given(
    dims4,
    st.sampled_from([DType.FLOAT32, DType.INT32]),
    st.sampled_from([*INTEGER, *FLOATS]),
    st.booleans(),
    st.sampled_from([None, 0, 4]),
    st.integers(-9, 9),
    st.sampled_from(LIMITS),
    st.sampled_from([1.0, 0.3]),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_finish(dims, acc_type, out_type, biased, stride, zero, limits, out_scale, gap, seed):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(dims) * 200
    if acc_type is DType.FLOAT32:
        values[rng.random(dims) < 0.05] = np.nan
        values[rng.random(dims) < 0.05] = np.inf
    else:
        values *= rng.choice([1, 1e5], dims)
    acc = rows(values.astype(acc_type.storage), gap)
    bias = (rng.standard_normal(dims[3]) * 50).astype(acc_type.storage) if biased else None
    mult = None if stride is None else rng.random(dims[3] if stride else 1).astype(F)
    want = twin(acc.array, out_type, bias, mult, zero, *limits, out_scale)
    for level in levels():
        _core.set_simd(level)
        dst = rows(np.zeros(dims, out_type.storage), gap)
        before = dst.memory.copy()
        finish(acc_type, out_type, acc, dst, dims, bias, mult, stride or 0, zero, *limits, out_scale)
        if out_type.is_float:
            assert_same(widen(dst.array, out_type), widen(want, out_type))
        else:
            assert_same(dst.array, want)
        assert_untouched(dst, before)


def test_int32_sums_wrap_and_stay_exact():
    acc = place(np.array([2**31 - 1, -(2**31), 2**24 + 1], np.int32).reshape(1, 1, 1, 3))
    dst = place(np.zeros((1, 1, 1, 3), np.int32))
    finish(
        DType.INT32, DType.INT32, acc, dst, (1, 1, 1, 3), np.array([1, -1, 2], np.int32), None, 0, 0, -np.inf, np.inf
    )
    assert dst.array.ravel().tolist() == [-(2**31), 2**31 - 1, 2**24 + 3]


def test_half_goes_to_even():
    acc = place(np.array([1, 3, 5, -1, -3], np.int32).reshape(1, 1, 1, 5))
    dst = place(np.zeros((1, 1, 1, 5), np.int8))
    finish(DType.INT32, DType.INT8, acc, dst, (1, 1, 1, 5), None, np.array([0.5], F), 0, 0, -np.inf, np.inf)
    assert dst.array.ravel().tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize(
    ("acc_type", "out_type", "zero", "out_scale", "message"),
    [
        (DType.INT8, DType.INT8, 0, 1, "accumulators must be float32, int32 or int64, got int8"),
        (DType.INT32, DType.INT64, 0, 1, "only int64 sums that nothing changes leave as int64, got int32"),
        (DType.INT32, DType.INT8, 1 << 20, 1, "out_zero must be within 16 bits, got 1048576"),
        (DType.INT32, DType.INT8, 0, 0, "out_scale must be above 0, got 0"),
    ],
)
def test_bad_arguments_are_named(acc_type, out_type, zero, out_scale, message):
    view = place(np.zeros((1, 1, 1, 1), np.int32))
    with pytest.raises(ValueError, match=message):
        finish(acc_type, out_type, view, view, (1, 1, 1, 1), None, None, 0, zero, -np.inf, np.inf, out_scale)
