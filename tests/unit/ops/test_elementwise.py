"""unary, binary, select and cast compared with scalar definitions and known values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.errors import ModelError, UnsupportedError
from npusim.isa.functions import Binary, Unary
from tests.support.graphs.single_operator import run

X = np.float32([-20, -3.5, -2.5, -1, -0.5, -0.0, 0, 0.25, 0.5, 1, 1.5, 2.5, 7, 80])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0)


SCALAR: dict[Unary, Callable[[float], float]] = {
    Unary.IDENTITY: lambda x: x,
    Unary.RELU: lambda x: max(x, 0),
    Unary.CLIP: lambda x: min(max(x, -0.75), 2.0),
    Unary.LEAKY_RELU: lambda x: x if x >= 0 else -0.75 * x,
    Unary.ELU: lambda x: x if x >= 0 else -0.75 * math.expm1(x),
    Unary.SELU: lambda x: 2.0 * (x if x > 0 else -0.75 * math.expm1(x)),
    Unary.CELU: lambda x: max(x, 0) + min(0.0, -0.75 * math.expm1(x / -0.75)) if x < 0 else x,
    Unary.SOFTPLUS: softplus,
    Unary.SOFTSIGN: lambda x: x / (1 + abs(x)),
    Unary.SIGMOID: sigmoid,
    Unary.HARD_SIGMOID: lambda x: min(max(-0.75 * x + 2.0, 0), 1),
    Unary.HARD_SWISH: lambda x: x * min(max(x + 3, 0), 6) / 6,
    Unary.TANH: math.tanh,
    Unary.GELU: lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    Unary.GELU_TANH: lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    Unary.MISH: lambda x: x * math.tanh(softplus(x)),
    Unary.THRESHOLDED_RELU: lambda x: x if x > -0.75 else 0,
    Unary.SILU: lambda x: x * sigmoid(-0.75 * x),
    Unary.EXP: math.exp,
    Unary.NEG: lambda x: -x,
    Unary.ABS: abs,
    Unary.SIGN: lambda x: float(x > 0) - float(x < 0),
    Unary.FLOOR: math.floor,
    Unary.CEIL: math.ceil,
    Unary.ROUND: round,
    Unary.ERF: math.erf,
    Unary.SIN: math.sin,
    Unary.COS: math.cos,
    Unary.TAN: math.tan,
    Unary.ATAN: math.atan,
    Unary.SINH: math.sinh,
    Unary.ASINH: math.asinh,
    Unary.COSH: math.cosh,
    Unary.SHRINK: lambda x: x - 0.75 if x < -2 else x + 0.75 if x > 2 else 0,
    Unary.SQUARE: lambda x: x * x,
}
DOMAIN: dict[Unary, tuple[Callable[[float], float], list[float]]] = {
    Unary.LOG: (math.log, [1e-3, 0.5, 1, 7]),
    Unary.SQRT: (math.sqrt, [0, 0.5, 2, 9]),
    Unary.RSQRT: (lambda x: 1 / math.sqrt(x), [0.25, 2, 9]),
    Unary.RECIPROCAL: (lambda x: 1 / x, [-4, 0.5, 3]),
    Unary.ASIN: (math.asin, [-1, 0.3, 1]),
    Unary.ACOS: (math.acos, [-1, 0.3, 1]),
    Unary.ACOSH: (math.acosh, [1, 2, 9]),
    Unary.ATANH: (math.atanh, [-0.9, 0, 0.9]),
}


@pytest.mark.parametrize("fn", sorted(SCALAR))
def test_unary_functions(fn: Unary) -> None:
    expected = [SCALAR[fn](float(x)) for x in X]
    np.testing.assert_allclose(run("unary", X, fn=fn, p0=-0.75, p1=2.0), np.float32(expected), rtol=3e-7, atol=1e-30)


@pytest.mark.parametrize("fn", sorted(DOMAIN))
def test_unary_functions_of_a_limited_domain(fn: Unary) -> None:
    function, points = DOMAIN[fn]
    expected = [function(float(np.float32(x))) for x in points]
    np.testing.assert_allclose(run("unary", np.float32(points), fn=fn), np.float32(expected), rtol=3e-7, atol=1e-7)


def test_every_unary_function_has_a_test() -> None:
    other = {Unary.NOT, Unary.BITWISE_NOT, Unary.ISNAN, Unary.ISINF}
    assert set(Unary) == set(SCALAR) | set(DOMAIN) | other


def test_predicates_and_complements() -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 1])
    assert run("unary", x, fn=Unary.ISNAN).tolist() == [True, False, False, False]
    assert run("unary", x, fn=Unary.ISINF, p0=1.0, p1=0.0).tolist() == [False, True, False, False]
    assert run("unary", x, fn=Unary.ISINF, p0=0.0, p1=1.0).tolist() == [False, False, True, False]
    assert run("unary", np.array([True, False]), fn=Unary.NOT).tolist() == [False, True]
    assert run("unary", np.uint8([0, 5]), fn=Unary.BITWISE_NOT).tolist() == [255, 250]


@pytest.mark.parametrize(
    "fn", [Unary.RELU, Unary.CLIP, Unary.SIGMOID, Unary.THRESHOLDED_RELU, Unary.SHRINK, Unary.GELU]
)
def test_nan_stays_nan(fn: Unary) -> None:
    assert np.isnan(run("unary", np.float32([np.nan]), fn=fn, p0=0.0, p1=1.0)).all()


def test_integer_clip_takes_bounds_outside_its_type() -> None:
    x = np.int8([-128, -3, 0, 90, 127])
    assert run("unary", x, fn=Unary.CLIP, p0=-1000.0, p1=64.0).tolist() == [-128, -3, 0, 64, 64]


@given(st.integers(-128, 127), st.integers(-128, 127))
def test_integer_division_and_remainders(a: int, b: int) -> None:
    x, y = np.int8([a]), np.int8([b])
    quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    assert run("binary", x, y, fn=Binary.DIV)[0] == np.int64(quotient).astype(np.int8)
    assert run("binary", x, y, fn=Binary.MOD)[0] == (a % b if b else 0)
    assert run("binary", x, y, fn=Binary.FMOD)[0] == (int(math.fmod(a, b)) if b else 0)


@given(st.integers(-6, 6), st.integers(-5, 9))
def test_integer_powers_truncate_and_wrap(base: int, exponent: int) -> None:
    exact = base**exponent if exponent >= 0 else (0 if base == 0 else int(base**exponent))
    got = run("binary", np.int32([base]), np.int32([exponent]), fn=Binary.POW)[0]
    assert got == np.int64(exact).astype(np.int32)


@pytest.mark.parametrize("amount", [-1, 0, 1, 7, 8, 63])
def test_shifts_by_any_amount(amount: int) -> None:
    x = np.int8([-128, -3, 5, 127])
    left = [0 if not 0 <= amount < 8 else (int(v) << amount) for v in x]
    right = [(-1 if v < 0 else 0) if not 0 <= amount < 8 else int(v) >> amount for v in x]
    shift = np.full(4, amount, np.int8)
    np.testing.assert_array_equal(run("binary", x, shift, fn=Binary.SHL), np.int64(left).astype(np.int8))
    np.testing.assert_array_equal(run("binary", x, shift, fn=Binary.SHR), np.int64(right).astype(np.int8))


def test_integers_wrap() -> None:
    assert run("binary", np.uint8([250]), np.uint8([10]), fn=Binary.ADD)[0] == 4
    assert run("binary", np.int32([2**31 - 1]), np.int32([2]), fn=Binary.MUL)[0] == -2


def test_half_floats_are_rounded_once() -> None:
    a, b = np.float16([2048]), np.float16([1])
    assert run("binary", a, b, fn=Binary.ADD)[0] == 2048
    ulp = np.float16([0.1])
    exact = np.float32(0.1).astype(np.float16).astype(np.float32) ** 2
    assert run("binary", ulp, ulp, fn=Binary.MUL)[0] == exact.astype(np.float16)


def test_binary_operands_broadcast_and_must_have_one_type() -> None:
    y = run("binary", np.float32([[1], [2]]), np.float32([10, 20, 30]), fn=Binary.PRELU)
    assert y.shape == (2, 3)
    with pytest.raises(ModelError, match="operands must have the same type, got float32, int8"):
        run("binary", np.float32([1]), np.int8([1]), fn=Binary.ADD)
    with pytest.raises(ModelError, match=r"shapes \[2\] and \[3\] do not broadcast"):
        run("binary", np.float32([1, 2]), np.float32([1, 2, 3]), fn=Binary.ADD)
    with pytest.raises(UnsupportedError, match="and, or, xor take bool"):
        run("binary", np.int8([1]), np.int8([1]), fn=Binary.AND)


def test_comparisons_give_bool() -> None:
    y = run("binary", np.float32([1, np.nan]), np.float32([1, np.nan]), fn=Binary.LE)
    assert y.dtype == np.bool_
    assert y.tolist() == [True, False]


def test_select_broadcasts_three_ways() -> None:
    y = run("select", np.array([[True], [False]]), np.int64([1, 2]), np.int64(9))
    assert y.tolist() == [[1, 2], [9, 9]]
    with pytest.raises(ModelError, match="the condition must be bool, got int8"):
        run("select", np.int8([1]), np.int8([1]), np.int8([1]))


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (DType.INT8, [0, 1, -1, 127, -128, 127]),
        (DType.UINT8, [0, 1, 0, 255, 0, 255]),
        (DType.INT64, [0, 1, -1, 300, -(2**63), 2**63 - 1]),
        (DType.BOOL, [True, True, True, True, True, True]),
    ],
)
def test_casts_from_float_truncate_and_saturate(to: DType, expected: list[int]) -> None:
    x = np.float32([np.nan, 1.9, -1.9, 300, -np.inf, np.inf])
    assert run("cast", x, to=to).tolist() == expected


def test_casts_between_integers_wrap() -> None:
    assert run("cast", np.int64([300, -1]), to=DType.UINT8).tolist() == [44, 255]
    assert run("cast", np.array([True, False]), to=DType.FLOAT32).tolist() == [1.0, 0.0]


@given(st.floats(width=32, allow_nan=False))
def test_casts_to_half_floats_round_to_nearest_even(value: float) -> None:
    with np.errstate(over="ignore"):
        assert run("cast", np.float32([value]), to=DType.FLOAT16)[0] == np.float32(value).astype(np.float16)
    assert float(run("cast", np.float32([1 + 2.0**-8]), to=DType.BFLOAT16)[0]) == 1.0
    assert float(run("cast", np.float32([1 + 3 * 2.0**-8]), to=DType.BFLOAT16)[0]) == 1 + 2.0**-6
