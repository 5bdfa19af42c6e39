"""REDUCE_ALL to ARGMIN, over types and axes."""

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import (
    assert_close,
    given,
    holding,
    i32,
    problem,
    real,
    result,
    run_one,
    scalar,
    vector,
)

FLOATS = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16]
QUANT8 = [T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]
RNG = np.random.default_rng(11)
NUMBERS = RNG.uniform(-2, 2, (2, 3, 4, 2))
AXES = [[0], [-1], [1, 2], [2, -3, 1], [0, 1, 2, 3]]


def operand(kind):
    return holding(kind, NUMBERS, *((0.02, 100 if kind is QUANT8[0] else -28) if kind in QUANT8 else ()))


def like(x):
    return result(x.type, x.scale, x.zero)


def reduced(function, numbers, axes, keep):
    """Reduce; a tensor has at least one dimension."""
    axes = tuple({axis % numbers.ndim for axis in axes})
    return np.atleast_1d(function(numbers, axis=axes, keepdims=keep))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
@pytest.mark.parametrize(("operation", "function"), [(O.REDUCE_MAX, np.max), (O.REDUCE_MIN, np.min)])
def test_extremes(operation, function, kind, axes, keep):
    x = operand(kind)
    array = run_one(operation, [x, vector(axes), scalar(T.BOOL, keep)], like(x))
    np.testing.assert_array_equal(array, reduced(function, x.value, axes, keep))


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", [*FLOATS, *QUANT8])
def test_mean(kind, axes, keep):
    x = operand(kind)
    y = like(x)
    assert_close(run_one(O.MEAN, [x, vector(axes), i32(keep)], y), reduced(np.mean, real(x), axes, bool(keep)), y)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(("operation", "function"), [(O.REDUCE_SUM, np.sum), (O.REDUCE_PROD, np.prod)])
def test_sums(operation, function, kind, axes):
    x, y = operand(kind), result(kind)
    inputs = [x, vector(axes), scalar(T.BOOL, False)]
    assert_close(run_one(operation, inputs, y), reduced(function, real(x), axes, False), y)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(("operation", "function"), [(O.REDUCE_ALL, np.all), (O.REDUCE_ANY, np.any)])
def test_logic(operation, function, axes):
    x = given(T.TENSOR_BOOL8, np.abs(NUMBERS) > 0.5)
    inputs = [x, vector(axes), scalar(T.BOOL, True)]
    np.testing.assert_array_equal(run_one(operation, inputs, like(x)), reduced(function, x.value, axes, True))


@pytest.mark.parametrize("axis", [0, 1, 3, -1, -4])
@pytest.mark.parametrize("kind", [*FLOATS, T.TENSOR_INT32, *QUANT8])
@pytest.mark.parametrize(("operation", "function"), [(O.ARGMAX, np.argmax), (O.ARGMIN, np.argmin)])
def test_places_of_extremes(operation, function, kind, axis):
    x = operand(kind)
    array = run_one(operation, [x, i32(axis)], result(T.TENSOR_INT32))
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, function(x.value, axis=axis))


def test_the_first_of_equals_and_one_dimension():
    x, y = given(T.TENSOR_QUANT8_ASYMM, [3, 9, 1, 9, 1], 1.0), result(T.TENSOR_INT32)
    assert run_one(O.ARGMAX, [x, i32(0)], y).tolist() == [1]
    assert run_one(O.ARGMIN, [x, i32(-1)], y).tolist() == [2]


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT32, T.TENSOR_QUANT8_ASYMM])
def test_no_axes_reduce_nothing(kind):
    x = operand(kind)
    axes = given(T.TENSOR_INT32, np.zeros(0))
    np.testing.assert_array_equal(run_one(O.MEAN, [x, axes, i32(0)], like(x)), x.value)


def test_axes_may_come_with_the_execution():
    x, y = given(T.TENSOR_FLOAT32, [[1.0, 2.0], [3.0, 5.0]]), result(T.TENSOR_FLOAT32)
    inputs = [x, given(T.TENSOR_INT32, [-1]), given(T.BOOL, True)]
    assert run_one(O.REDUCE_SUM, inputs, y).tolist() == [[3.0], [8.0]]
    with pytest.raises(InvalidOperationError, match=r"an axis must be in \[-2, 2\), got 2"):
        run_one(O.REDUCE_SUM, [x, given(T.TENSOR_INT32, [2]), given(T.BOOL, True)], y)


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT16, *QUANT8])
def test_on_a_device(kind):
    x = operand(kind)
    for operation, keep in ((O.MEAN, i32(0)), (O.REDUCE_MAX, scalar(T.BOOL, True))):
        inputs = [x, vector([1, 2]), keep]
        np.testing.assert_array_equal(run_one(operation, inputs, like(x), "edge"), run_one(operation, inputs, like(x)))
    inputs, y = [x, i32(2)], result(T.TENSOR_INT32)
    np.testing.assert_array_equal(run_one(O.ARGMIN, inputs, y, "edge"), run_one(O.ARGMIN, inputs, y))


def test_rules():
    x, keep = operand(T.TENSOR_QUANT8_ASYMM), scalar(T.BOOL, False)
    message = "input 1 must be 1-D, its entries in [-n, n), n being the rank of input 0"
    assert problem(O.REDUCE_MAX, [x, vector([4]), keep], [like(x)]) == message
    assert problem(O.REDUCE_MAX, [x, vector([-5]), keep], [like(x)]) == message
    assert problem(O.MEAN, [x, vector([[0]]), i32(0)], [like(x)]) == message
    other = result(x.type, x.scale, x.zero + 1)
    assert "same scale and zero point" in str(problem(O.REDUCE_MIN, [x, vector([0]), keep], [other]))
    assert "same scale and zero point" in str(problem(O.MEAN, [x, vector([0]), i32(0)], [other]))
    index = result(T.TENSOR_INT32)
    assert problem(O.ARGMAX, [x, i32(4)], [index]) == "input 1 must be in [-n, n), n being the rank of input 0"
    x.dims = ()
    assert problem(O.ARGMAX, [x, i32(4)], [index]) is None
