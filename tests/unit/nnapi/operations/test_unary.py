"""ABS to TANH compared with double precision, over types."""

import numpy as np
import pytest

from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import assert_close, given, holding, problem, real, result, run_one, scalar

FLOATS = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16]
QUANT8 = [T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]
ZERO = {T.TENSOR_QUANT8_ASYMM: 128, T.TENSOR_QUANT8_ASYMM_SIGNED: 0}
NUMBERS = np.array([[-8.0, -3.0, -1.0, -0.7, -0.1], [0.0, 0.3, 1.0, 2.9, 7.5]])
POSITIVE = np.array([[0.01, 0.5, 1.0], [2.0, 9.0, 40.0]])
FUNCTIONS = [
    (O.ABS, np.abs, NUMBERS), (O.NEG, np.negative, NUMBERS), (O.EXP, np.exp, NUMBERS), (O.FLOOR, np.floor, NUMBERS),
    (O.SIN, np.sin, NUMBERS), (O.LOG, np.log, POSITIVE), (O.RSQRT, lambda x: 1 / np.sqrt(x), POSITIVE),
    (O.SQRT, np.sqrt, POSITIVE),
]  # fmt: skip
RECTIFIERS = [(O.RELU, 0, np.inf), (O.RELU1, -1, 1), (O.RELU6, 0, 6)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def hard_swish(x):
    return x * np.clip(x + 3, 0, 6) / 6


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(("operation", "function", "numbers"), FUNCTIONS)
def test_functions(operation, function, numbers, kind):
    x, y = holding(kind, numbers), result(kind)
    assert_close(run_one(operation, [x], y), function(real(x)), y)


def test_integers():
    x, y = given(T.TENSOR_INT32, [-5, 0, 7, 2**31 - 1]), result(T.TENSOR_INT32)
    assert run_one(O.ABS, [x], y).tolist() == [5, 0, 7, 2**31 - 1]
    assert run_one(O.NEG, [x], y).tolist() == [5, 0, -7, 1 - 2**31]


@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
@pytest.mark.parametrize(("operation", "low", "high"), RECTIFIERS)
def test_rectifiers(operation, low, high, kind):
    quantised = (0.07, ZERO[kind] + 3) if kind in QUANT8 else ()
    x, y = holding(kind, NUMBERS, *quantised), result(kind, *quantised)
    assert_close(run_one(operation, [x], y), np.clip(real(x), low, high), y)


@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
@pytest.mark.parametrize(
    ("operation", "function", "scale", "zero"),
    [(O.LOGISTIC, sigmoid, 1 / 256, -128), (O.TANH, np.tanh, 1 / 128, 0), (O.HARD_SWISH, hard_swish, 0.03, -90)],
)
def test_activations(operation, function, scale, zero, kind):
    x = holding(kind, NUMBERS, *((0.07, ZERO[kind] + 3) if kind in QUANT8 else ()))
    y = result(kind, *((scale, zero + ZERO[kind]) if kind in QUANT8 else ()))
    assert_close(run_one(operation, [x], y), function(real(x)), y)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("alpha", [1.0, 0.25, 0.0, -0.5])
def test_elu(kind, alpha):
    half = kind is T.TENSOR_FLOAT16
    x, y = holding(kind, NUMBERS / 2), result(kind)
    wanted = np.maximum(0, real(x)) + np.minimum(0, alpha * np.expm1(real(x)))
    assert_close(run_one(O.ELU, [x, scalar(T.FLOAT16 if half else T.FLOAT32, alpha)], y), wanted, y)


def test_elu_takes_its_alpha_from_the_execution():
    x, y = given(T.TENSOR_FLOAT32, [-1.0, 2.0]), result(T.TENSOR_FLOAT32)
    wanted = np.array([3 * np.expm1(-1), 2.0])
    assert_close(run_one(O.ELU, [x, given(T.FLOAT32, 3.0)], y), wanted, y)


def test_special_numbers():
    x, y = given(T.TENSOR_FLOAT32, [-1.0, 0.0, np.inf]), result(T.TENSOR_FLOAT32)
    np.testing.assert_array_equal(run_one(O.LOG, [x], y), [np.nan, -np.inf, np.inf])
    np.testing.assert_array_equal(run_one(O.SQRT, [x], y), [np.nan, 0, np.inf])
    np.testing.assert_array_equal(run_one(O.RSQRT, [x], y), [np.nan, np.inf, 0])
    np.testing.assert_array_equal(run_one(O.RELU1, [x], y), [-1, 0, 1])


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT16, *QUANT8])
def test_on_a_device(kind):
    scale = 0.05 if kind in QUANT8 else 0.0
    x = holding(kind, NUMBERS, *((scale, ZERO[kind]) if scale else ()))
    tanh = result(kind, *((1 / 128, ZERO[kind]) if scale else ()))
    relu = result(kind, *((scale, ZERO[kind]) if scale else ()))
    for operation, y in ((O.TANH, tanh), (O.RELU6, relu)):
        np.testing.assert_array_equal(run_one(operation, [x], y, "edge"), run_one(operation, [x], y))


def test_hard_swish_on_a_device_rounds_once():
    numbers = np.concatenate([np.linspace(-4, 8, 1001), [-3e38, 3e38]])
    x, y = given(T.TENSOR_FLOAT32, numbers), result(T.TENSOR_FLOAT32)
    wanted = hard_swish(real(x)).astype(np.float32)
    np.testing.assert_array_equal(run_one(O.HARD_SWISH, [x], y), wanted)
    np.testing.assert_array_equal(run_one(O.HARD_SWISH, [x], y, "edge"), wanted)


def test_rules():
    q, deep = given(T.TENSOR_QUANT8_ASYMM, [1], 0.5, 7), given(T.TENSOR_FLOAT32, np.zeros((1,) * 5))
    y = result(T.TENSOR_FLOAT32)
    same = "input 0 and output 0 must have the same scale and zero point"
    for operation in (O.RELU, O.RELU1, O.RELU6):
        assert problem(operation, [q], [result(T.TENSOR_QUANT8_ASYMM, 0.5, 6)]) == same
        assert problem(operation, [q], [result(T.TENSOR_QUANT8_ASYMM, 0.25, 7)]) == same
    for operation in (O.RELU, O.FLOOR, O.LOGISTIC, O.TANH):
        assert problem(operation, [deep], [y]) == "input 0 must have at most rank 4"
    assert problem(O.ABS, [deep], [y]) is None
    assert "scale 0.00390625 and zero point 0" in str(problem(O.LOGISTIC, [q], [result(T.TENSOR_QUANT8_ASYMM, 0.5)]))
    assert problem(O.LOGISTIC, [q], [result(T.TENSOR_QUANT8_ASYMM, 1 / 256, 0)]) is None
    assert problem(O.TANH, [q], [result(T.TENSOR_QUANT8_ASYMM, 1 / 128, 127)]) is not None
