"""Convolution tiles compared with a loop over k: bit for bit, with every instruction set and any split of the work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from tests.support.kernel_operands import Array, assert_same, levels, widen
from tests.support.kernel_tiles import Data, Problem, as_bytes, columns, data, problems, values, weight_zeros

SMALL = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)
FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
# The product of two float32 is exact in it and the sum nearly so: rounding it once more is what fma gives.
Wide = np.longdouble


def conv(
    p: Problem, x_type: DType, w_type: DType, d: Data, x_zero: int = 0, first: bool = False, w_zero: int = 0
) -> Array:
    """Run the kernel on a copy of the accumulators, one byte off any alignment."""
    acc = np.zeros(d.acc.nbytes + 1, np.uint8)
    acc[1:] = as_bytes(d.acc)
    x, w = np.concatenate([[np.uint8(0)], as_bytes(d.x)]), np.concatenate([[np.uint8(0)], as_bytes(d.w)])
    _core.conv(
        x_type, w_type, _core.Strided(x, 1, d.x.strides[:3]),
        _core.Strided(w, 1, (d.w.strides[0] if p.own_weights else 0,)), _core.Strided(acc, 1, d.acc.strides[:3]),
        (p.batch, p.oh, p.ow, p.oc, p.ic), (p.kh, p.kw, p.sh, p.sw, p.dh, p.dw), p.block, x_zero, first, w_zero,
    )  # fmt: skip
    return acc[1:].view(d.acc.dtype).reshape(d.acc.shape)


def twin(
    p: Problem, x_type: DType, w_type: DType, d: Data, x_zero: int = 0, first: bool = False, w_zero: int = 0
) -> Array:
    acc = np.zeros_like(d.acc) if first else d.acc.copy()
    w = np.broadcast_to(d.w, (p.batch, p.k, p.oc))[:, None, None]
    if not x_type.is_float:
        total = acc.astype(np.int64)
        for k, x in enumerate(columns(p, d.x)):
            total += (x.astype(np.int64) - x_zero)[..., None] * (w[:, :, :, k].astype(np.int64) - w_zero)
        return total.astype(np.int32)
    weights = widen(w, w_type).astype(Wide)
    for k, x in enumerate(columns(p, widen(d.x, x_type).astype(Wide))):
        acc = (x[..., None] * weights[:, :, :, k] + acc.astype(Wide)).astype(np.float32)
    return acc


@settings(max_examples=60)
@given(problems, st.sampled_from(FLOATS), st.booleans(), st.integers(0, 100))
def test_floats_are_one_chain_of_fused_multiply_adds(problem, dtype, first, seed):
    d = data(problem, dtype, dtype, seed)
    want = twin(problem, dtype, dtype, d, 0, first)
    for level in levels():
        _core.set_simd(level)
        assert_same(conv(problem, dtype, dtype, d, 0, first).view(np.int32), want.view(np.int32))


@settings(max_examples=100)
@given(problems, st.sampled_from(SMALL), weight_zeros, st.integers(-300, 300), st.booleans(), st.integers(0, 100))
def test_integers_are_exact_modulo_2_to_32(problem, x_type, weights, x_zero, first, seed):
    w_type, w_zero = weights
    d = data(problem, x_type, w_type, seed)
    want = twin(problem, x_type, w_type, d, x_zero, first, w_zero)
    for level in levels():
        _core.set_simd(level)
        assert_same(conv(problem, x_type, w_type, d, x_zero, first, w_zero), want)


@settings(max_examples=20)
@given(problems, st.integers(-5, 5), st.integers(0, 100))
def test_int32_wraps(problem, x_zero, seed):
    d = data(problem, DType.INT32, DType.INT32, seed)
    want = twin(problem, DType.INT32, DType.INT32, d, x_zero)
    for level in levels():
        _core.set_simd(level)
        assert_same(conv(problem, DType.INT32, DType.INT32, d, x_zero), want)


LARGE = (
    Problem(oh=11, ow=13, oc=300, ic=70, kh=3, kw=3),  # several chunks, blocks of pixels and panels, an odd edge
    Problem(ow=30, oc=40, ic=1300),  # a long matmul
    Problem(batch=2, ow=5, oc=33, ic=600, own_weights=True),
    Problem(oh=3, ow=40, oc=24, ic=3, kh=7, kw=7, sh=2, sw=2),  # a first layer
    Problem(ow=2, oc=100, ic=40, block=1000),
)


@pytest.mark.parametrize("problem", LARGE, ids=str)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8, DType.UINT8, DType.INT16], ids=lambda dtype: dtype.label)
def test_large_tiles(problem, dtype):
    d = data(problem, dtype, dtype, 1)
    if dtype.is_float:
        kernel = problem.kh * problem.kw
        x = np.stack(columns(problem, d.x.astype(np.float64)), -1)
        want = d.acc + np.einsum("bijk,bko->bijo", x, np.broadcast_to(d.w, (problem.batch, *d.w.shape[1:])))
        np.testing.assert_allclose(conv(problem, dtype, dtype, d), want, atol=1e-3 * kernel)
    else:
        assert_same(conv(problem, dtype, dtype, d, 3), twin(problem, dtype, dtype, d, 3))
    results = []
    for level in levels():
        _core.set_simd(level)
        results.append(conv(problem, dtype, dtype, d, 3).view(np.int32))
    for result in results[1:]:
        assert_same(result, results[0])


def rows_of(d: Data, p: Problem, i: int) -> Data:
    return Data(d.x[:, i * p.sh :], d.w, d.acc[:, i : i + 1])


def contiguous(d: Data) -> Data:
    return Data(*(np.ascontiguousarray(a) for a in d))


@settings(max_examples=30)
@given(problems.filter(lambda p: not p.own_weights), st.sampled_from([DType.FLOAT32, DType.INT8]), st.integers(0, 50),
       st.integers(0, 1000))  # fmt: skip
def test_cutting_changes_no_bit(problem, dtype, seed, cut):
    """Split by output row, by output channel, and by channel block with accumulation."""
    d = data(problem, dtype, dtype, seed)
    whole = conv(problem, dtype, dtype, d, 3)
    by_row = [conv(problem._replace(oh=1), dtype, dtype, contiguous(rows_of(d, problem, i))) if dtype.is_float else
              conv(problem._replace(oh=1), dtype, dtype, contiguous(rows_of(d, problem, i)), 3)
              for i in range(problem.oh)]  # fmt: skip
    assert_same(np.concatenate(by_row, 1), whole)
    at = cut % problem.oc
    halves = [
        conv(problem._replace(oc=stop - start), dtype, dtype,
             contiguous(Data(d.x, d.w[..., start:stop], d.acc[..., start:stop])), 3)
        for start, stop in ((0, at), (at, problem.oc)) if stop > start
    ]  # fmt: skip
    assert_same(np.concatenate(halves, -1), whole)
    acc = d.acc
    for start in range(0, problem.ic, problem.block):
        stop = min(start + problem.block, problem.ic)
        taps = problem.kh * problem.kw
        part = Data(d.x[..., start:stop], d.w[:, start * taps : stop * taps], acc)
        acc = conv(problem._replace(ic=stop - start, gap=0), dtype, dtype, contiguous(part), 3)
    assert_same(acc, whole)


def test_nothing_but_the_accumulators_is_written():
    p = Problem(oh=2, ow=3, oc=21, ic=5)
    rng = np.random.default_rng(0)
    d = data(p, DType.FLOAT32, DType.FLOAT32, 0)
    memory = rng.integers(0, 256, 6 * 40 * 4, np.uint8)
    before = memory.copy()
    _core.conv(
        DType.FLOAT32, DType.FLOAT32, _core.Strided(d.x, 0, d.x.strides[:3]), _core.Strided(d.w, 0, (0,)),
        _core.Strided(memory, 0, (0, 3 * 40 * 4, 40 * 4)), (1, 2, 3, 21, 5), (1,) * 6, 32, 0, True,
    )  # fmt: skip
    untouched = memory.reshape(6, 160)[:, 84:]
    assert_same(untouched, before.reshape(6, 160)[:, 84:])
    got = memory.reshape(6, 160)[:, :84].copy().view(np.float32).reshape(1, 2, 3, 21)
    assert_same(got, twin(p, DType.FLOAT32, DType.FLOAT32, d, 0, True))


def test_fused_multiply_add_is_not_two_roundings():
    """1 + eps squared minus 1 + 2 eps is eps squared, which only a fused operation gives."""
    eps = np.float32(2**-12)
    p, one = Problem(), np.float32(1)
    x, acc = one + eps, -(one + np.float32(2) * eps)  # older numpy made a double of a 2 that is Python's
    d = Data(np.full((1, 1, 1, 1), x), np.full((1, 1, 1), x), np.full((1, 1, 1, 1), acc))
    for level in levels():
        _core.set_simd(level)
        assert conv(p, DType.FLOAT32, DType.FLOAT32, d).item() == float(eps) ** 2


class Depthwise(NamedTuple):
    oh: int
    ow: int
    c: int
    mult: int
    kh: int
    kw: int
    stride: int
    dilation: int


depthwise_problems = st.builds(
    Depthwise, *[st.integers(1, 4)] * 2, st.one_of(st.integers(1, 40), st.just(600)), *[st.integers(1, 3)] * 3,
    *[st.integers(1, 2)] * 2,
)  # fmt: skip


@settings(max_examples=60)
@given(depthwise_problems, st.sampled_from([*FLOATS, *SMALL[:3], DType.INT32]), st.booleans(), st.integers(0, 100))
def test_depthwise(p, dtype, first, seed):
    rng = np.random.default_rng(seed)
    height, width = ((n - 1) * p.stride + (k - 1) * p.dilation + 1 for n, k in ((p.oh, p.kh), (p.ow, p.kw)))
    x, w = values(dtype, (height, width, p.c), rng), values(dtype, (p.kh, p.kw, p.c * p.mult), rng)
    start = values(DType.FLOAT32 if dtype.is_float else DType.INT32, (p.oh, p.ow, p.c * p.mult), rng)
    zero = 0 if dtype.is_float else 5
    w_zero = 99 if dtype.itemsize == 1 else 0
    want = np.zeros_like(start) if first else start.copy()
    total = want.astype(np.int64)
    for r in range(p.kh):
        for q in range(p.kw):
            rows = slice(r * p.dilation, r * p.dilation + (p.oh - 1) * p.stride + 1, p.stride)
            cols = slice(q * p.dilation, q * p.dilation + (p.ow - 1) * p.stride + 1, p.stride)
            taken = np.repeat(x[rows, cols], p.mult, -1)
            if dtype.is_float:
                product = widen(taken, dtype).astype(Wide) * widen(w[r, q], dtype).astype(Wide)
                want = (product + want.astype(Wide)).astype(np.float32)
            else:
                with np.errstate(over="ignore"):
                    total += (taken.astype(np.int64) - zero) * (w[r, q].astype(np.int64) - w_zero)
    for level in levels():
        _core.set_simd(level)
        acc = start.copy()
        _core.depthwise(
            dtype, dtype,
            _core.Strided(x, 0, x.strides[:2]), _core.Strided(w, 0), _core.Strided(acc, 0, acc.strides[:2]),
            (p.oh, p.ow, p.c, p.mult), (p.kh, p.kw, p.stride, p.stride, p.dilation, p.dilation), zero, first, w_zero,
        )  # fmt: skip
        assert_same(acc, want if dtype.is_float else total.astype(np.int32))


TILE = tuple(_core.Strided(np.zeros(64, np.uint8), 0, strides) for strides in ((0, 0, 0), (0,), (0, 0, 0)))
PLANE = tuple(_core.Strided(np.zeros(64, np.uint8), 0, strides) for strides in ((0, 0), (), (0, 0)))


@pytest.mark.parametrize(
    ("x_type", "w_type", "message"),
    [
        (DType.INT8, DType.FLOAT32, "kernels do not multiply int8 by float32"),
        (DType.INT32, DType.INT8, "kernels do not multiply int32 by int8"),
        (DType.BOOL, DType.BOOL, "kernels do not multiply bool by bool"),
        (DType.FLOAT64, DType.FLOAT64, "kernels do not compute with float64"),
    ],
)
def test_unsupported_pairs_are_named(x_type, w_type, message):
    with pytest.raises(ValueError, match=message):
        _core.conv(x_type, w_type, *TILE, (1,) * 5, (1,) * 6, 32, 0, True)
    with pytest.raises(ValueError, match=message):
        _core.depthwise(x_type, w_type, *PLANE, (1,) * 4, (1,) * 6, 0, True)


@pytest.mark.parametrize(
    ("w_type", "w_zero", "allowed"),
    [(DType.INT8, 128, "-128 to 127"), (DType.INT8, -129, "-128 to 127"), (DType.UINT8, -1, "0 to 255"),
     (DType.UINT8, 1 << 32, "0 to 255"), (DType.INT16, 1, "0 to 0")],
)  # fmt: skip
def test_weight_zeros_that_no_weight_can_be_are_refused(w_type, w_zero, allowed):
    message = f"w_zero of {w_type.label} weights must be from {allowed}, got {w_zero}"
    with pytest.raises(ValueError, match=message):
        _core.conv(DType.INT8, w_type, *TILE, (1,) * 5, (1,) * 6, 32, 0, True, w_zero)
    with pytest.raises(ValueError, match=message):
        _core.depthwise(DType.INT8, w_type, *PLANE, (1,) * 4, (1,) * 6, 0, True, w_zero)


@pytest.mark.parametrize("name", ["x", "w", "acc"])
def test_operands_outside_their_memory_are_refused(name):
    """Two pixels, two channels in and out: 16 bytes each, but one memory has 15."""
    x, w, acc = (
        _core.Strided(np.zeros(15 if name == short else 16, np.uint8), 0, strides)
        for short, strides in (("x", (0, 0, 8)), ("w", (0,)), ("acc", (0, 0, 8)))
    )
    with pytest.raises(IndexError, match=rf"{name}: bytes \[0, 16\) are outside its memory of 15 bytes"):
        _core.conv(11, 11, x, w, acc, (1, 1, 2, 2, 2), (1,) * 6, 32, 0, True)


def test_the_stride_of_a_single_element_means_nothing() -> None:
    """It is never added, not even after the last element, as ``make sanitize`` shows."""
    for far in (2**62, -(2**63), 2**63 - 1):
        acc = np.full(8, 7, np.uint8)
        places = [_core.Strided(np.ones(16, np.uint8), 0, (far,) * count) for count in (3, 1)]
        _core.conv(DType.INT8, DType.INT8, *places, _core.Strided(acc, 0, (far,) * 3), (1,) * 5, (1,) * 6, 32, 0, True)
        assert list(acc) == [1, 0, 0, 0, 7, 7, 7, 7]


def test_unknown_instruction_set_is_named():
    with pytest.raises(ValueError, match=r"instruction set must be one of auto, portable.*, got 'mmx'"):
        _core.set_simd("mmx")
