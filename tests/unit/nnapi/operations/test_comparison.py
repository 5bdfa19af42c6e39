"""EQUAL to SELECT, over types and quantisations."""

import operator

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import assert_close, given, holding, problem, real, result, run_one

COMPARISONS = [
    (O.EQUAL, operator.eq), (O.NOT_EQUAL, operator.ne), (O.LESS, operator.lt), (O.LESS_EQUAL, operator.le),
    (O.GREATER, operator.gt), (O.GREATER_EQUAL, operator.ge),
]  # fmt: skip
TRUTH = result(T.TENSOR_BOOL8)
QUANT8 = [T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, *QUANT8])
@pytest.mark.parametrize(("operation", "function"), COMPARISONS)
def test_comparisons_broadcast(operation, function, kind):
    quantised = (1.0, 3) if kind in QUANT8 else ()
    a, b = holding(kind, [[-3], [0], [2]], *quantised), holding(kind, [-3, 1, 2, 50], *quantised)
    np.testing.assert_array_equal(run_one(operation, [a, b], TRUTH), function(real(a), real(b)))


@pytest.mark.parametrize(("operation", "function"), COMPARISONS)
def test_truth_values_compare(operation, function):
    a, b = given(T.TENSOR_BOOL8, [[True], [False]]), given(T.TENSOR_BOOL8, [True, False])
    np.testing.assert_array_equal(run_one(operation, [a, b], TRUTH), function(a.value.astype(int), b.value.astype(int)))


@pytest.mark.parametrize("kind", QUANT8)
@pytest.mark.parametrize(("operation", "function"), COMPARISONS)
def test_quantised_numbers_compare_as_numbers(operation, function, kind):
    """1 / 0.5 + 10 and 1 / 0.25 + 4 are different levels but the same number."""
    a, b = holding(kind, [0.5, 1.0, 1.5, 2.0], 0.5, 10), holding(kind, [0.75, 1.0, 1.25, 2.0], 0.25, 4)
    np.testing.assert_array_equal(run_one(operation, [a, b], TRUTH), function(real(a), real(b)))


def test_large_integers_compare_exactly():
    a, b = given(T.TENSOR_INT32, [16777217, 2**31 - 1]), given(T.TENSOR_INT32, [16777216, 2**31 - 2])
    assert run_one(O.EQUAL, [a, b], TRUTH).tolist() == [False, False]
    assert run_one(O.GREATER, [a, b], TRUTH).tolist() == [True, True]


def test_logic():
    a, b = given(T.TENSOR_BOOL8, [[True], [False]]), given(T.TENSOR_BOOL8, [True, False])
    assert run_one(O.LOGICAL_AND, [a, b], TRUTH).tolist() == [[True, False], [False, False]]
    assert run_one(O.LOGICAL_OR, [a, b], TRUTH).tolist() == [[True, True], [True, False]]
    assert run_one(O.LOGICAL_NOT, [a], TRUTH).tolist() == [[False], [True]]


@pytest.mark.parametrize("kind", [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, *QUANT8])
@pytest.mark.parametrize("same", [False, True])
def test_select(kind, same):
    condition = given(T.TENSOR_BOOL8, [[True, False, True], [False, False, True]])
    quantised = [((0.5, 1), (0.5, 1), (0.5, 1)), ((1.5, 1), (0.5, -1 + 2 * (kind is QUANT8[0])), (1.0, 0))][not same]
    a, b, y = [(), (), ()] if kind not in QUANT8 else quantised
    x = holding(kind, np.arange(6).reshape(2, 3), *a)
    z = holding(kind, np.arange(10, 16).reshape(2, 3), *b)
    out = result(kind, *y)
    assert_close(run_one(O.SELECT, [condition, x, z], out), np.where(condition.value, real(x), real(z)), out)


def test_select_wants_one_shape():
    c, x, y = given(T.TENSOR_BOOL8, [True]), given(T.TENSOR_FLOAT32, [1.0]), result(T.TENSOR_FLOAT32)
    wide = given(T.TENSOR_FLOAT32, [1.0, 2.0])
    assert problem(O.SELECT, [c, given(T.TENSOR_FLOAT32, [[1.0]]), x], [y]) == "the inputs must have one rank"
    with pytest.raises(InvalidOperationError, match="must have one shape"):
        run_one(O.SELECT, [c, wide, wide], y)


def test_on_a_device():
    a, b = given(T.TENSOR_BOOL8, [[True], [False]]), given(T.TENSOR_BOOL8, [True, False])
    for operation, _ in COMPARISONS:
        np.testing.assert_array_equal(run_one(operation, [a, b], TRUTH, "edge"), run_one(operation, [a, b], TRUTH))
