"""Unary functions and casts compared with numpy and Python's math in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim import _core
from npusim.dtypes import DType
from npusim.isa.functions import Unary
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

P0, P1 = 0.625, 1.5


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


def domain(fn: Callable[[float], float]) -> Callable[[float], float]:
    """Return NaN where the function is not defined, infinity where it is not finite."""

    def total(x: float) -> float:
        try:
            return fn(x)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.copysign(math.inf, x) if fn is math.sinh else math.inf

    return total


# IEEE operations in one order, or exact: the result must be the very same float32.
EXACT: dict[Unary, Callable[[np.ndarray], np.ndarray]] = {
    Unary.IDENTITY: lambda x: x,
    Unary.RELU: lambda x: np.where(x < 0, np.float32(0), x),
    Unary.CLIP: lambda x: np.clip(x, np.float32(P0), np.float32(P1)),
    Unary.LEAKY_RELU: lambda x: np.where(x < 0, np.float32(P0) * x, x),
    Unary.SOFTSIGN: lambda x: x / (np.float32(1) + np.abs(x)),
    Unary.HARD_SIGMOID: lambda x: np.clip(np.float32(P0) * x + np.float32(P1), np.float32(0), np.float32(1)),
    Unary.HARD_SWISH: lambda x: (x * np.clip(x.astype(np.float64) + 3, 0, 6) / 6).astype(np.float32),
    Unary.THRESHOLDED_RELU: lambda x: np.where((x > np.float32(P0)) | np.isnan(x), x, np.float32(0)),
    Unary.SQRT: np.sqrt,
    Unary.RECIPROCAL: lambda x: np.float32(1) / x,
    Unary.NEG: np.negative,
    Unary.ABS: np.abs,
    Unary.SIGN: np.sign,
    Unary.FLOOR: np.floor,
    Unary.CEIL: np.ceil,
    Unary.ROUND: np.rint,
    Unary.SHRINK: lambda x: np.select(
        [np.isnan(x), x < -np.float32(P1), x > np.float32(P1)],
        [x, x + np.float32(P0), x - np.float32(P0)],
        np.float32(0),
    ),
    Unary.SQUARE: lambda x: x * x,
}
# Rounded once from double: one unit in the last place is left to the C library.
CLOSE: dict[Unary, Callable[[float], float]] = {
    Unary.ELU: lambda x: P0 * math.expm1(x) if x < 0 else x,
    Unary.SELU: lambda x: P1 * (P0 * math.expm1(x) if x < 0 else x),
    Unary.CELU: lambda x: P0 * math.expm1(x / P0) if x < 0 else x,
    Unary.SOFTPLUS: softplus,
    Unary.SIGMOID: sigmoid,
    Unary.TANH: math.tanh,
    Unary.GELU: lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    # (1 + tanh(y)) / 2 without the cancellation that it has for negative y.
    Unary.GELU_TANH: lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    Unary.MISH: lambda x: x * math.tanh(softplus(x)),
    Unary.SILU: lambda x: x * sigmoid(P0 * x),
    Unary.EXP: math.exp,
    Unary.LOG: lambda x: -math.inf if x == 0 else math.log(x),
    Unary.RSQRT: lambda x: math.inf if x == 0 else 1 / math.sqrt(x),
    Unary.ERF: math.erf,
    Unary.SIN: math.sin,
    Unary.COS: math.cos,
    Unary.TAN: math.tan,
    Unary.ASIN: math.asin,
    Unary.ACOS: math.acos,
    Unary.ATAN: math.atan,
    Unary.SINH: math.sinh,
    Unary.COSH: math.cosh,
    Unary.ASINH: math.asinh,
    Unary.ACOSH: math.acosh,
    Unary.ATANH: lambda x: math.copysign(math.inf, x) if abs(x) == 1 else math.atanh(x),
}
INTEGER = {
    Unary.IDENTITY: lambda x: x,
    Unary.RELU: lambda x: max(x, 0),
    Unary.CLIP: lambda x: min(max(x, -3), 7),
    Unary.NEG: lambda x: -x,
    Unary.ABS: abs,
    Unary.SIGN: lambda x: (x > 0) - (x < 0),
    Unary.BITWISE_NOT: lambda x: ~x,
    Unary.SQUARE: lambda x: x * x,
}
BOOLEAN = {Unary.NOT, Unary.ISNAN, Unary.ISINF}
dims4 = st.tuples(*[st.integers(1, 5)] * 4)
seeds = st.integers(0, 1000)


def run(fn, dtype, src, dst, dims, p0=P0, p1=P1):
    _core.unary(fn, dtype, dst.operand, src.operand, dims, p0, p1)


def test_every_function_has_a_twin():
    assert set(EXACT) | set(CLOSE) | set(INTEGER) | BOOLEAN == set(Unary)


@pytest.mark.parametrize("fn", EXACT, ids=lambda fn: fn.name)
@settings(max_examples=25)
@given(dims4, st.sampled_from(FLOATS), layouts(4), layouts(4), seeds)
def test_exact_functions(fn, dims, dtype, source, target, seed):
    src = place(random_values(dtype, dims, seed, 1e9), source)
    dst = place(np.zeros(dims, dtype.storage), target)
    before = dst.memory.copy()
    run(fn, dtype, src, dst, dims)
    with np.errstate(all="ignore"):
        want = narrow(EXACT[fn](widen(src.array, dtype)), dtype)
    assert_same(widen(dst.array, dtype), widen(want, dtype))
    assert_untouched(dst, before)


@pytest.mark.parametrize("fn", CLOSE, ids=lambda fn: fn.name)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.label)
def test_rounded_functions(fn, dtype):
    values = np.concatenate([np.linspace(-30, 30, 301), np.linspace(-1, 1, 101), [0.0, 1e-6, -1e-6]])
    src = place(narrow(values.astype(np.float32), dtype).reshape(1, 1, 1, -1))
    dst = place(np.zeros_like(src.array))
    run(fn, dtype, src, dst, src.array.shape)
    twin = domain(CLOSE[fn])
    want = narrow(np.array([twin(float(x)) for x in widen(src.array, dtype).ravel()]), dtype).reshape(dst.array.shape)
    bits = {2: np.int16, 4: np.int32}[dtype.itemsize]
    defined = ~np.isnan(widen(want, dtype))
    assert_same(np.isnan(widen(dst.array, dtype)), ~defined)
    distance = np.abs(dst.array.view(bits).astype(np.int64) - want.view(bits).astype(np.int64))
    assert distance[defined & (widen(want, dtype) != 0)].max() <= 1


@pytest.mark.parametrize("fn", sorted(set(EXACT) | set(CLOSE)), ids=lambda fn: fn.name)
def test_nan_stays_nan(fn):
    src, dst = place(np.full((1, 1, 1, 9), np.nan, np.float32)), place(np.zeros((1, 1, 1, 9), np.float32))
    run(fn, DType.FLOAT32, src, dst, (1, 1, 1, 9))
    assert np.isnan(dst.array).all()


@pytest.mark.parametrize("fn", INTEGER, ids=lambda fn: fn.name)
@settings(max_examples=25)
@given(dims4, st.sampled_from(INTEGERS), layouts(4), seeds)
def test_integer_functions_wrap(fn, dims, dtype, layout, seed):
    src, dst = place(random_values(dtype, dims, seed, 1e4), layout), place(np.zeros(dims, dtype.storage), layout)
    run(fn, dtype, src, dst, dims, -3.5, 7.9)
    want = [wrap(INTEGER[fn](int(x)), dtype) for x in src.array.ravel()]
    assert_same(dst.array.ravel(), np.array(want, dtype.storage))


def test_predicates_write_bool():
    src = place(np.array([0, np.nan, np.inf, -np.inf, 3], np.float32).reshape(1, 1, 1, 5))
    dst = place(np.zeros((1, 1, 1, 5), bool))
    for fn, p0, p1, want in (
        (Unary.ISNAN, 0, 0, [0, 1, 0, 0, 0]),
        (Unary.ISINF, 1, 1, [0, 0, 1, 1, 0]),
        (Unary.ISINF, 1, 0, [0, 0, 1, 0, 0]),
        (Unary.ISINF, 0, 1, [0, 0, 0, 1, 0]),
    ):
        run(fn, DType.FLOAT32, src, dst, (1, 1, 1, 5), p0, p1)
        assert_same(dst.array.ravel(), np.array(want, bool))


def test_in_place_on_the_same_view():
    view = place(random_values(DType.FLOAT32, (1, 1, 1, 1000), 0))
    want = -view.array
    run(Unary.NEG, DType.FLOAT32, view, view, (1, 1, 1, 1000))
    assert_same(view.array, want)


def test_every_instruction_set_gives_the_same_bits():
    src = place(random_values(DType.FLOAT32, (1, 1, 1, 999), 3, 1e9))
    for fn in sorted(set(EXACT) | set(CLOSE)):
        results = []
        for level in levels():
            _core.set_simd(level)
            dst = place(np.zeros((1, 1, 1, 999), np.float32))
            run(fn, DType.FLOAT32, src, dst, (1, 1, 1, 999))
            results.append(np.where(np.isnan(dst.array), 0, dst.array.view(np.int32)))
        _core.set_simd("auto")
        for result in results[1:]:
            assert_same(result, results[0])


@pytest.mark.parametrize(
    ("fn", "dtype", "message"),
    [
        (Unary.EXP, DType.INT8, "unary function 18 is not defined for int8"),
        (Unary.NOT, DType.INT32, "unary function 41 is not defined for int32"),
        (Unary.NEG, DType.BOOL, "unary function 23 is not defined for bool"),
        (Unary.BITWISE_NOT, DType.FLOAT32, "unary function 42 is not defined for float32"),
        (Unary.NEG, DType.FLOAT64, "kernels do not compute with float64"),
        (Unary.NEG, DType.UINT32, "kernels do not compute with uint32"),
        (99, DType.FLOAT32, r"unary function must be 0\.\.46, got 99"),
    ],
)
def test_unsupported_is_named(fn, dtype, message):
    view = _core.Strided(np.zeros(64, np.uint8), 0, (0, 0, 0, 4))
    with pytest.raises(ValueError, match=message):
        _core.unary(fn, dtype, view, view, (1, 1, 1, 1))


@pytest.mark.parametrize(("offset", "stride"), [(-1, 4), (61, 4), (0, 8), (0, -4)])
def test_operand_outside_its_memory_is_refused(offset, stride):
    memory = np.zeros(64, np.uint8)
    with pytest.raises(IndexError, match=r"src: bytes .* are outside its memory of 64 bytes"):
        _core.unary(
            0, DType.FLOAT32, _core.Strided(memory, 0, (0,) * 4), _core.Strided(memory, offset, (0, 0, 0, stride)),
            (1, 1, 1, 16),
        )  # fmt: skip


def cast_twin(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    if target is DType.BOOL:
        return (widen(values, source) if source.is_float else values) != 0
    if target.is_float:
        return narrow(widen(values, source) if source.is_float else values.astype(np.float32), target)
    if not source.is_float:
        return np.array([wrap(int(x), target) for x in values.ravel()], target.storage).reshape(values.shape)
    info = np.iinfo(target.storage)

    def one(x: float) -> int:
        return 0 if math.isnan(x) else info.max if x == math.inf else info.min if x == -math.inf else max(
            info.min, min(info.max, int(x)))  # fmt: skip

    wide = widen(values, source).ravel()
    return np.array([one(float(x)) for x in wide], target.storage).reshape(values.shape)


ALL = (DType.BOOL, *INTEGERS, *FLOATS)


@pytest.mark.parametrize("source", ALL, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("target", ALL, ids=lambda dtype: dtype.label)
def test_cast(source, target):
    dims = (2, 3, 5, 7)
    for seed, limit in ((0, 90.0), (1, 1e9)):
        src = place(random_values(source, dims, seed, limit))
        dst = place(np.zeros(dims, target.storage))
        _core.cast(target, dst.operand, source, src.operand, dims)
        want = cast_twin(src.array, source, target)
        if target.is_float:
            assert_same(widen(dst.array, target), widen(want, target))
        else:
            assert_same(dst.array, want)


def test_every_half_widens_and_narrows_as_in_numpy():
    bits = np.arange(65536, dtype=np.uint16)
    half = place(bits.view(np.float16).reshape(1, 1, 1, -1))
    wide = place(np.zeros((1, 1, 1, 65536), np.float32))
    _core.cast(DType.FLOAT32, wide.operand, DType.FLOAT16, half.operand, (1, 1, 1, 65536))
    assert_same(wide.array, half.array.astype(np.float32))
    with np.errstate(invalid="ignore"):
        steps = np.nextafter(wide.array, np.float32(np.inf)), wide.array, np.nextafter(wide.array, np.float32(0))
        middle = (wide.array + np.roll(wide.array, 1)) / 2
    for values in (*steps, middle):
        src, dst = place(values), place(np.zeros_like(half.array))
        _core.cast(DType.FLOAT16, dst.operand, DType.FLOAT32, src.operand, (1, 1, 1, 65536))
        with np.errstate(over="ignore"):
            assert_same(dst.array, values.astype(np.float16))
