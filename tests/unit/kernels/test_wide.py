"""64-bit sums compared with a loop over k: exact where 32 bits are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from tests.support.kernel_operands import assert_same, levels, place
from tests.support.kernel_tiles import Data, Problem, as_bytes, columns, data, problems, values, weight_zeros

PIXELS = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def wide(p: Problem, x_type: DType, w_type: DType, d: Data, x_zero: int, first: bool, w_zero: int) -> np.ndarray:
    """Run the kernel on accumulators one byte off any alignment, and compare with the loop."""
    sums = d.acc.astype(np.int64) << 20
    memory = np.zeros(sums.nbytes + 1, np.uint8)
    memory[1:] = as_bytes(sums)
    _core.conv_wide(
        x_type, w_type, _core.Strided(as_bytes(d.x), 0, d.x.strides[:3]),
        _core.Strided(as_bytes(d.w), 0, (d.w.strides[0] if p.own_weights else 0,)),
        _core.Strided(memory, 1, sums.strides[:3]), (p.batch, p.oh, p.ow, p.oc, p.ic),
        (p.kh, p.kw, p.sh, p.sw, p.dh, p.dw), p.block, x_zero, first, w_zero,
    )  # fmt: skip
    total = np.zeros_like(sums) if first else sums
    w = np.broadcast_to(d.w, (p.batch, p.k, p.oc))[:, None, None].astype(np.int64) - w_zero
    for k, x in enumerate(columns(p, d.x)):
        total = total + (x.astype(np.int64) - x_zero)[..., None] * w[:, :, :, k]
    got: np.ndarray = memory[1:].view(np.int64).reshape(sums.shape)
    assert_same(got, total)
    return got


@settings(max_examples=60)
@given(problems, st.sampled_from(PIXELS), weight_zeros, st.integers(-300, 65535), st.booleans(), st.integers(0, 100))
def test_sums_are_exact(problem, x_type, weights, x_zero, first, seed):
    w_type, w_zero = weights
    for level in levels():
        _core.set_simd(level)
        wide(problem, x_type, w_type, data(problem, x_type, w_type, seed), x_zero, first, w_zero)


def test_a_sum_that_32_bits_do_not_hold():
    p = Problem(ic=1000)
    d = Data(np.full(p.image, 65535, np.uint16), np.full((1, 1000, 1), -128, np.int8), np.zeros((1, 1, 1, 1), np.int32))
    assert wide(p, DType.UINT16, DType.INT8, d, 0, True, 0).item() == -65535 * 128 * 1000


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(1, 3), st.sampled_from(PIXELS), weight_zeros, st.booleans(), st.integers(0, 99))
def test_depthwise(channels, mult, x_type, weights, first, seed):
    rng, (w_type, w_zero) = np.random.default_rng(seed), weights
    x, w = values(x_type, (4, 5, channels), rng), values(w_type, (3, 2, channels * mult), rng)
    acc = values(DType.INT32, (2, 4, channels * mult), rng).astype(np.int64) << 8
    want = np.zeros_like(acc) if first else acc.copy()
    spread = np.repeat(x.astype(np.int64) - 7, mult, axis=2)
    for r in range(3):
        for q in range(2):
            want += spread[r : r + 2, q : q + 4] * (w[r, q].astype(np.int64) - w_zero)
    for level in levels():
        _core.set_simd(level)
        got = acc.copy()
        _core.depthwise(
            x_type, w_type, _core.Strided(as_bytes(x), 0, x.strides[:2]), _core.Strided(as_bytes(w), 0),
            _core.Strided(as_bytes(got), 0, got.strides[:2]), (2, 4, channels, mult), (3, 2, 1, 1, 1, 1), 7, first,
            w_zero, True,
        )  # fmt: skip
        assert_same(got, want)


@pytest.mark.parametrize("out_type", [DType.UINT16, DType.INT16, DType.INT8, DType.FLOAT32])
def test_they_leave_by_scale_and_shift(out_type):
    """(acc + bias) * scale + shift, in float32 from the sum on."""
    rng = np.random.default_rng(3)
    acc = rng.integers(-(1 << 40), 1 << 40, (1, 2, 3, 5))
    bias, scale, shift = rng.integers(-(1 << 30), 1 << 30, 5).astype(np.int32), rng.random(5), rng.normal(size=5)
    scale, shift = (scale * 2.0**-26).astype(np.float32), (shift * 1000).astype(np.float32)
    value = (acc + bias).astype(np.float32) * scale + shift
    assert value.dtype == np.float32
    if out_type is DType.FLOAT32:
        want = value
    else:
        info = np.iinfo(out_type.storage)
        want = np.clip(np.rint(value / np.float32(0.5)).astype(np.float64) + 9, info.min, info.max)
    for level in levels():
        _core.set_simd(level)
        got = np.zeros(acc.shape, out_type.storage)
        view = place(got)
        row = [_core.Strided(as_bytes(array), 0, (20,)) for array in (bias, shift)]
        _core.finish(
            DType.INT64, out_type, _core.Strided(view.memory, view.offset, view.strides[:3]),
            _core.Strided(as_bytes(acc), 0, acc.strides[:3]), acc.shape, row[0],
            _core.Strided(as_bytes(scale), 0, (20, 4)), 0 if out_type is DType.FLOAT32 else 9, -np.inf, np.inf,
            1.0 if out_type is DType.FLOAT32 else 0.5, row[1],
        )  # fmt: skip
        assert_same(view.array, want.astype(out_type.storage))


def test_to_int32_they_wrap():
    acc = np.array([1 << 40 | 5, -3, (1 << 33) - 1], np.int64).reshape(1, 1, 1, 3)
    got = np.zeros(3, np.int32)
    _core.finish(
        DType.INT64, DType.INT32, _core.Strided(as_bytes(got), 0, (0, 0, 0)),
        _core.Strided(as_bytes(acc), 0, (0, 0, 0)), (1, 1, 1, 3), None, None, 0, -np.inf, np.inf,
    )  # fmt: skip
    assert got.tolist() == [5, -3, -1]


def test_what_has_no_wide_sums_is_named():
    d = data(Problem(), DType.FLOAT32, DType.FLOAT32, 0)
    with pytest.raises(ValueError, match="kernels sum float32 by float32 in no int64"):
        wide(Problem(), DType.FLOAT32, DType.FLOAT32, d, 0, True, 0)
