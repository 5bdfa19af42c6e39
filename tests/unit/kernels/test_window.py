"""Pooling and resampling compared with loops over windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from tests.support.kernel_operands import (
    FLOATS,
    INTEGERS,
    assert_same,
    assert_untouched,
    layouts,
    narrow,
    place,
    random_values,
    widen,
)

F = np.float32
MAX, AVERAGE, L2 = range(3)


class Pool(NamedTuple):
    ih: int
    iw: int
    c: int
    kh: int
    kw: int
    sh: int
    sw: int
    dh: int
    dw: int
    pads: tuple[int, int, int, int]
    ceil: int  # whether windows may start beyond the last whole one
    include: bool

    def extent(self, size: int, kernel: int, stride: int, dilation: int, pads: int) -> int:
        return max(0, (size + pads - (kernel - 1) * dilation - 1) // stride + 1) + self.ceil

    @property
    def out(self) -> tuple[int, int]:
        top, left, bottom, right = self.pads
        return (
            self.extent(self.ih, self.kh, self.sh, self.dh, top + bottom),
            self.extent(self.iw, self.kw, self.sw, self.dw, left + right),
        )


pools = st.builds(
    Pool, *[st.integers(1, 7)] * 3, *[st.integers(1, 3)] * 2, *[st.integers(1, 3)] * 2, *[st.integers(1, 2)] * 2,
    st.tuples(*[st.integers(0, 2)] * 4), st.integers(0, 1), st.booleans(),
)  # fmt: skip


def window(p: Pool, i: int, j: int) -> tuple[list[tuple[int, int]], int]:
    """Return the valid pixels of a window, and the number of positions that an average counts."""
    top, left, bottom, right = p.pads
    taps = [(i * p.sh - top + r * p.dh, j * p.sw - left + q * p.dw) for r in range(p.kh) for q in range(p.kw)]
    valid = [(y, x) for y, x in taps if 0 <= y < p.ih and 0 <= x < p.iw]
    padded = [(y, x) for y, x in taps if y < p.ih + bottom and x < p.iw + right]
    return valid, len(padded) if p.include else len(valid)


def twin(fn: int, p: Pool, x: np.ndarray, dtype: DType) -> np.ndarray:
    out = np.zeros((*p.out, p.c), F if dtype.is_float else np.int64)
    lowest = -np.inf if dtype.is_float else np.iinfo(dtype.storage).min
    for i, j in np.ndindex(*p.out):
        valid, count = window(p, i, j)
        total = np.full(p.c, lowest if fn == MAX else 0, out.dtype)
        for y, at in valid:
            total = np.maximum(total, x[y, at]) if fn == MAX else total + (x[y, at] ** 2 if fn == L2 else x[y, at])
        if fn == AVERAGE and count:
            total = total.astype(F) / F(count)
            total = total if dtype.is_float else np.rint(total).astype(np.int64)
        out[i, j] = np.sqrt(total) if fn == L2 else total
    return out


@settings(max_examples=200)
@given(pools, st.sampled_from([MAX, AVERAGE, L2]), st.sampled_from([*FLOATS, DType.INT8, DType.UINT8, DType.INT16]),
       layouts(3), layouts(3), st.integers(0, 100))  # fmt: skip
def test_pool(p, fn, dtype, source, target, seed):
    if fn == L2 and not dtype.is_float:
        dtype = DType.FLOAT32
    src = place(random_values(dtype, (p.ih, p.iw, p.c), seed), source)
    dst = place(np.zeros((*p.out, p.c), dtype.storage), target)
    before = dst.memory.copy()
    _core.pool(
        fn, dtype, dst.operand, src.operand, (*p.out, p.c), (p.ih, p.iw), (p.kh, p.kw, p.sh, p.sw, p.dh, p.dw), p.pads,
        p.include,
    )  # fmt: skip
    values = widen(src.array, dtype) if dtype.is_float else src.array.astype(np.int64)
    want = twin(fn, p, values, dtype)
    if dtype.is_float:
        assert_same(widen(dst.array, dtype), widen(narrow(want, dtype), dtype))
    else:
        assert_same(dst.array, want.astype(dtype.storage))
    assert_untouched(dst, before)


def test_max_pool_keeps_nan_and_many_channels():
    values = np.zeros((2, 2, 1200), F)
    values[1, 0, 1100] = np.nan
    values[0, 1, 3] = 5
    src, dst = place(values), place(np.zeros((1, 1, 1200), F))
    window = (2, 2, 1, 1, 1, 1)
    _core.pool(MAX, DType.FLOAT32, dst.operand, src.operand, (1, 1, 1200), (2, 2), window, (0,) * 4, False)
    assert np.isnan(dst.array[0, 0, 1100])
    assert dst.array[0, 0, 3] == 5
    assert np.nansum(dst.array) == 5


@given(st.tuples(*[st.integers(1, 6)] * 3), st.integers(1, 6), st.integers(1, 4),
       st.sampled_from([*FLOATS, *INTEGERS[:5]]), layouts(3), layouts(3), st.integers(0, 100))  # fmt: skip
def test_resample_is_a_weighted_sum_in_order(dims, axis, taps, dtype, source, target, seed):
    rng = np.random.default_rng(seed)
    outer, count, inner = dims
    src = place(random_values(dtype, (outer, axis, inner), seed, 1e3), source)
    dst = place(np.zeros(dims, dtype.storage), target)
    index, weight = rng.integers(-1, axis, (count, taps)).astype(np.int32), rng.random((count, taps)).astype(F) * 2
    bad = _core.resample(
        dtype, dst.operand, src.operand, dims, axis, _core.Strided(index, 0), _core.Strided(weight, 0), taps
    )  # fmt: skip
    assert bad == -1
    x = widen(src.array, dtype) if dtype.is_float else src.array.astype(F)
    total = np.zeros(dims, F)
    with np.errstate(all="ignore"):
        for j, t in np.ndindex(count, taps):
            if index[j, t] >= 0:
                total[:, j] += weight[j, t] * x[:, index[j, t]]
    if dtype.is_float:
        assert_same(widen(dst.array, dtype), widen(narrow(total, dtype), dtype))
    else:
        info = np.iinfo(dtype.storage)
        assert_same(dst.array, np.clip(np.rint(total.astype(np.float64)), info.min, info.max).astype(dtype.storage))


@pytest.mark.parametrize("dims", [(2, 3, 700), (700, 3, 2)])
def test_one_tap_of_weight_one_copies_any_integer(dims):
    values = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (dims[0], 4, dims[2]))
    src, dst = place(values), place(np.zeros(dims, np.int64))
    index, weight = np.array([3, 0, 2], np.int32), np.ones(3, F)
    _core.resample(DType.INT64, dst.operand, src.operand, dims, 4, _core.Strided(index, 0), _core.Strided(weight, 0), 1)
    assert_same(dst.array, values[:, [3, 0, 2]])


def test_resample_names_the_first_bad_index_and_writes_nothing():
    src, dst = place(np.ones((1, 2, 1), F)), place(np.zeros((1, 2, 1), F))
    index, weight = np.array([0, 1, 2, 5], np.int32), np.ones(4, F)
    bad = _core.resample(
        DType.FLOAT32, dst.operand, src.operand, (1, 2, 1), 2, _core.Strided(index, 0), _core.Strided(weight, 0), 2
    )
    assert bad == 2
    assert not dst.array.any()


@pytest.mark.parametrize("taps", [1, 2])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_an_index_that_resample_has_written_over_is_bounded_again(taps, weight):
    """The first result overwrites the indices of the second."""
    memory = np.zeros(96, np.uint8)
    memory[32:36] = np.array([1 << 21], np.int32).view(np.uint8)
    weights = np.full(2 * taps, weight, F)
    dst, src = _core.Strided(memory, 4 * taps, (0, 16, 4)), _core.Strided(memory, 32, (0, 4, 4))
    index = _core.Strided(memory, 0)
    bad = _core.resample(DType.INT32, dst, src, (1, 2, 2), 1, index, _core.Strided(weights, 0), taps)
    assert bad == taps
    assert not memory[4 * taps + 16 : 4 * taps + 24].any()


def test_bad_arguments_are_named():
    view = place(np.zeros((1, 1, 1), np.int8)).operand
    sizes = ((1, 1, 1), (1, 1), (1,) * 6, (0,) * 4, False)
    with pytest.raises(ValueError, match=r"pool: function must be 0 \(max\), 1 \(average\) or 2 \(l2\), got 3"):
        _core.pool(3, DType.INT8, view, view, *sizes)
    with pytest.raises(ValueError, match="pool: function 2 is not defined for int8"):
        _core.pool(L2, DType.INT8, view, view, *sizes)
    with pytest.raises(ValueError, match="resample: taps must be >= 1"):
        _core.resample(DType.INT8, view, view, (1, 1, 1), 1, view, view, 0)


# Wrong addresses must not be accessed, which ``make sanitize`` checks.


def test_windows_around_an_empty_source_have_no_address() -> None:
    dst = np.full(4 * 4, 7, np.uint8)
    at, to = _core.Strided(np.zeros(0, np.uint8), 0, (64, 8, 4)), _core.Strided(dst, 0, (8, 4, 4))
    _core.pool(AVERAGE, DType.FLOAT32, to, at, (2, 2, 1), (0, 3), (3, 3, 1, 1, 1, 1), (2, 1, 2, 1), False)
    assert not dst.any()


def test_resampling_of_no_elements_has_no_address() -> None:
    dst, tables = np.full(2 * 3 * 4, 7, np.uint8), np.full(3, -1, np.int32).view(np.uint8)
    at, to = _core.Strided(np.zeros(0, np.uint8), 0, (64, 8, 4)), _core.Strided(dst, 0, (12, 4, 4))
    table = _core.Strided(tables, 0)
    assert _core.resample(DType.FLOAT32, to, at, (2, 3, 1), 0, table, table, 1) == -1
    assert not dst.any()
