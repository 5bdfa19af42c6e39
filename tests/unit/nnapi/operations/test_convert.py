"""CAST, QUANTIZE, DEQUANTIZE: every pair of types."""

import numpy as np
import pytest

from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import assert_close, given, problem, real, result, run_one

FLOATS = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16]
QUANT8 = [T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED]
CASTABLE = [*FLOATS, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM]


def typed(kind, values):
    """Return an operand with a quantisation that a cast must ignore."""
    return given(kind, values, *((0.25, 3) if kind in QUANT8 else ()))


@pytest.mark.parametrize("target", CASTABLE)
@pytest.mark.parametrize("source", CASTABLE)
def test_cast(source, target):
    values = [0, 1, 100, 200, 255] if source is T.TENSOR_QUANT8_ASYMM else [-3, 0, 1, 100, 255, 300, 1000]
    y = result(target, *((2.0, 9) if target in QUANT8 else ()))
    wanted = np.clip(values, 0, 255) if target is T.TENSOR_QUANT8_ASYMM else values
    array = run_one(O.CAST, [typed(source, values)], y)
    assert array.dtype == STORAGE[target]
    np.testing.assert_array_equal(array, np.asarray(wanted))


@pytest.mark.parametrize("source", FLOATS)
def test_casts_of_fractions_truncate(source):
    x = given(source, [-1.75, -0.5, 0.5, 1.75, 300.5])
    assert run_one(O.CAST, [x], result(T.TENSOR_INT32)).tolist() == [-1, 0, 0, 1, 300]
    assert run_one(O.CAST, [x], result(T.TENSOR_QUANT8_ASYMM, 1.0)).tolist() == [0, 0, 0, 1, 255]


@pytest.mark.parametrize(
    ("kind", "scale"),
    [
        (T.TENSOR_BOOL8, 0.0), (T.TENSOR_QUANT16_ASYMM, 0.5), (T.TENSOR_QUANT16_SYMM, 0.5),
        (T.TENSOR_QUANT8_ASYMM_SIGNED, 0.5), (T.TENSOR_QUANT8_SYMM, 0.5),
    ],
)  # fmt: skip
def test_cast_to_the_same_type(kind, scale):
    x = given(kind, [[1, 0, 3]], scale)
    np.testing.assert_array_equal(run_one(O.CAST, [x], result(kind, scale)), x.value)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize(("target", "zero"), [(T.TENSOR_QUANT8_ASYMM, 100), (T.TENSOR_QUANT8_ASYMM_SIGNED, -10)])
def test_quantize(source, target, zero):
    x, y = given(source, np.linspace(-60, 90, 31).reshape(1, 31)), result(target, 0.5, zero)
    array = run_one(O.QUANTIZE, [x], y)
    assert_close(array, real(x), y)
    info = np.iinfo(array.dtype)
    assert array.max() == info.max
    assert (array == zero).any()


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize(
    ("source", "zero"), [(T.TENSOR_QUANT8_ASYMM, 7), (T.TENSOR_QUANT8_ASYMM_SIGNED, -7), (T.TENSOR_QUANT8_SYMM, 0)]
)
def test_dequantize(source, zero, target):
    info = np.iinfo(STORAGE[source])
    x, y = given(source, [[info.min, 0, 1, info.max]], 0.3, zero), result(target)
    assert_close(run_one(O.DEQUANTIZE, [x], y), real(x), y)


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_dequantize_per_channel(target, dim):
    shape = (2, 3, 4)
    scales = [0.5, 2.0, 0.125, 1.0][: shape[dim]]
    x = given(T.TENSOR_QUANT8_SYMM_PER_CHANNEL, np.arange(-12, 12).reshape(shape), channels=(scales, dim))
    y = result(target)
    for config in (None, "edge"):
        assert_close(run_one(O.DEQUANTIZE, [x], y, config), real(x), y)


def test_rules():
    deep = given(T.TENSOR_QUANT8_ASYMM, np.zeros((1,) * 5), 1.0)
    assert problem(O.DEQUANTIZE, [deep], [result(T.TENSOR_FLOAT32)]) == "input 0 must have at most rank 4"
    assert problem(O.CAST, [given(T.TENSOR_BOOL8, [True])], [result(T.TENSOR_INT32)]) is not None
    assert problem(O.QUANTIZE, [given(T.TENSOR_INT32, [1])], [result(T.TENSOR_QUANT8_ASYMM, 1.0)]) is not None
