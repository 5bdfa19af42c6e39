"""ADD to PRELU compared with double precision, over types, broadcasts and activations."""

import numpy as np
import pytest

from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import assert_close, given, holding, i32, problem, real, result, run_one

RNG = np.random.default_rng(7)
FLOATS = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16]
QUANT8 = [T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]
ZERO = {T.TENSOR_QUANT8_ASYMM: 120, T.TENSOR_QUANT8_ASYMM_SIGNED: -8}
BOUNDS = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}
SHAPES = [((2, 3), (2, 3)), ((4, 1, 2), (5, 4, 3, 1)), ((3,), (2, 2, 2, 3)), ((0, 2), (1, 2))]


def operand(kind, shape, scale=0.05, shift=0):
    numbers = RNG.uniform(-5, 5, shape)
    return holding(kind, numbers, *((scale, ZERO[kind] + shift) if kind in QUANT8 else ()))


def output(kind, scale=0.2):
    return result(kind, *((scale, ZERO[kind]) if kind in QUANT8 else ()))


def divide(a, b):
    return a / np.where(np.abs(b) < 0.25, 0.25, b)


@pytest.mark.parametrize("activation", [0, 1, 2, 3])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
@pytest.mark.parametrize(("operation", "function"), [(O.ADD, np.add), (O.SUB, np.subtract), (O.MUL, np.multiply)])
def test_fused(operation, function, kind, shapes, activation):
    a, b, y = operand(kind, shapes[0]), operand(kind, shapes[1], 0.03, 5), output(kind)
    wanted = np.clip(function(real(a), real(b)), *BOUNDS[activation])
    assert_close(run_one(operation, [a, b, i32(activation)], y), wanted, y)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("activation", [0, 2])
def test_division(kind, activation):
    a, y = operand(kind, (2, 3)), result(kind)
    b = holding(kind, [[0.5, -2.0, 3.0]])
    assert_close(run_one(O.DIV, [a, b, i32(activation)], y), np.clip(real(a) / real(b), *BOUNDS[activation]), y)


def test_integers_wrap():
    a, b = given(T.TENSOR_INT32, [[2**31 - 1, -5]]), given(T.TENSOR_INT32, [[1, 7], [2, -3]])
    y = result(T.TENSOR_INT32)
    np.testing.assert_array_equal(run_one(O.ADD, [a, b, i32(0)], y), [[-(2**31), 2], [-(2**31) + 1, -8]])
    np.testing.assert_array_equal(run_one(O.SUB, [a, b, i32(0)], y), [[2**31 - 2, -12], [2**31 - 3, -2]])
    np.testing.assert_array_equal(run_one(O.MUL, [a, b, i32(0)], y), [[2**31 - 1, -35], [-2, 15]])


def test_integer_division_rounds_down():
    pairs = [(5, 2), (-5, 2), (5, -2), (-5, -2), (6, 3), (-6, 3), (0, 7), (-(2**31), 3), (2**31 - 1, -2), (1, -(2**31))]
    a, b = (given(T.TENSOR_INT32, column) for column in zip(*pairs, strict=True))
    y = run_one(O.DIV, [a, b, i32(0)], result(T.TENSOR_INT32))
    assert y.tolist() == [x // z for x, z in pairs]


@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(("operation", "function"), [(O.MAXIMUM, np.maximum), (O.MINIMUM, np.minimum)])
def test_extremes(operation, function, kind, same):
    a = operand(kind, (2, 3, 1))
    b = operand(kind, (3, 4), *((0.05, 0) if same else (0.03, 3)))
    y = output(kind, 0.05 if same else 0.2)
    array = run_one(operation, [a, b], y)
    assert_close(array, function(real(a), real(b)), y)
    if same and kind in QUANT8:
        np.testing.assert_array_equal(array, function(a.value, b.value))


def test_extremes_of_integers():
    a, b = given(T.TENSOR_INT32, [2**31 - 1, -(2**31), 16777217]), given(T.TENSOR_INT32, [[0], [16777216]])
    y = result(T.TENSOR_INT32)
    np.testing.assert_array_equal(run_one(O.MAXIMUM, [a, b], y), np.maximum(a.value, b.value))
    np.testing.assert_array_equal(run_one(O.MINIMUM, [a, b], y), np.minimum(a.value, b.value))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("exponent", [[0.5], [[2.0], [-1.0]], [0.0, 1.0, 3.0]])
def test_power(kind, exponent):
    a, b, y = holding(kind, [0.25, 1.5, 3.0]), holding(kind, exponent), result(kind)
    assert_close(run_one(O.POW, [a, b], y), np.power(real(a), real(b)), y)


def test_power_of_a_negative_base():
    a, b = given(T.TENSOR_FLOAT32, [-2.0, -2.0]), given(T.TENSOR_FLOAT32, [3.0, 0.5])
    y = run_one(O.POW, [a, b], result(T.TENSOR_FLOAT32))
    assert y[0] == -8
    assert np.isnan(y[1])


@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
@pytest.mark.parametrize("shapes", [((2, 2, 2, 3), (1, 1, 3)), ((4, 1, 2), (5, 4, 3, 1))])
def test_prelu(kind, shapes):
    x, alpha, y = operand(kind, shapes[0]), operand(kind, shapes[1], 0.02, 2), output(kind)
    wanted = np.where(real(x) < 0, real(x) * real(alpha), real(x))
    assert_close(run_one(O.PRELU, [x, alpha], y), wanted, y)


@pytest.mark.parametrize("operation", [O.ADD, O.MUL, O.MAXIMUM, O.PRELU])
@pytest.mark.parametrize("kind", QUANT8)
def test_results_saturate(operation, kind):
    a, b, y = operand(kind, (2, 50)), operand(kind, (50,)), result(kind, 0.01, ZERO[kind])
    function = {O.ADD: np.add, O.MUL: np.multiply, O.MAXIMUM: np.maximum}.get(operation)
    wanted = np.where(real(a) < 0, real(a) * real(b), real(a)) if function is None else function(real(a), real(b))
    assert (np.abs(wanted / 0.01) > 200).any()
    assert_close(run_one(operation, [a, b, i32(0)] if operation in (O.ADD, O.MUL) else [a, b], y), wanted, y)


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT16, T.TENSOR_QUANT8_ASYMM_SIGNED, T.TENSOR_INT32])
def test_on_a_device(kind):
    quantised = (0.05, 3) if kind in QUANT8 else ()
    a, b = (holding(kind, RNG.integers(-9, 9, (4, 5)) * 0.5, *quantised) for _ in range(2))
    y = result(kind, *quantised)
    for operation in (O.ADD, O.MUL) if kind in QUANT8 else (O.ADD, O.DIV):
        y.scale = 0.3 if kind in QUANT8 else 0.0
        inputs = [a, b, i32(0)]
        np.testing.assert_array_equal(run_one(operation, inputs, y, "edge"), run_one(operation, inputs, y))


def test_rules():
    f, q = given(T.TENSOR_FLOAT32, [1.0]), given(T.TENSOR_QUANT8_ASYMM, [1], 0.5)
    whole = given(T.TENSOR_INT32, [1])
    deep = given(T.TENSOR_FLOAT32, np.zeros((1, 1, 1, 1, 1)))
    y, yq = result(T.TENSOR_FLOAT32), result(T.TENSOR_QUANT8_ASYMM, 0.25)
    assert problem(O.ADD, [f, f, i32(4)], [y]) == "input 2 must be a FusedActivationFunc: 0 to 3"
    assert problem(O.ADD, [deep, f, i32(0)], [y]) == "input 0 must have at most rank 4"
    assert problem(O.SUB, [f, deep, i32(0)], [y]) == "input 1 must have at most rank 4"
    assert problem(O.POW, [deep, f], [y]) is None
    assert "must be NONE" in str(problem(O.MUL, [whole, whole, i32(1)], [result(T.TENSOR_INT32)]))
    assert "greater than the product" in str(problem(O.MUL, [q, q, i32(0)], [yq]))
    yq.scale = 0.2501
    assert problem(O.MUL, [q, q, i32(0)], [yq]) is None
