"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR compared with positions written out pixel by pixel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import Array
from hal.nnapi.types import OperandType, OperationType
from npusim.errors import UnsupportedError
from tests.support.nnapi.image_operands import F16, F32, Q8, Q8S, boolean, laid_out, nhwc, output, tensor
from tests.support.nnapi.one_operation import Given, assert_close, given, i32, problem, real, result, run_one, scalar

BILINEAR, NEAREST = OperationType.RESIZE_BILINEAR, OperationType.RESIZE_NEAREST_NEIGHBOR
OPERATIONS = pytest.mark.parametrize("operation", [BILINEAR, NEAREST], ids=lambda each: each.name)
TYPES = pytest.mark.parametrize("kind", [F32, F16, Q8, Q8S], ids=lambda kind: kind.name.removeprefix("TENSOR_"))
CONVENTIONS = pytest.mark.parametrize(
    ("align", "half"), [(False, False), (True, False), (False, True)], ids=["plain", "align_corners", "half_pixel"]
)


def position(i: int, size: int, count: int, *, align: bool, half: bool) -> float:
    """Return the position of element i of ``count`` within ``size`` pixels; 0 is the first pixel."""
    if align and count > 1:
        return i * (size - 1) / (count - 1)
    return (i + 0.5) * size / count - 0.5 if half else i * size / count


def bilinear(x: Array, axis: int, count: int, **convention: bool) -> Array:
    parts = []
    for i in range(count):
        place = min(max(position(i, x.shape[axis], count, **convention), 0.0), x.shape[axis] - 1.0)
        low = math.floor(place)
        high = min(low + 1, x.shape[axis] - 1)
        parts.append(np.take(x, low, axis) * (1 - (place - low)) + np.take(x, high, axis) * (place - low))
    return np.stack(parts, axis)


def nearest(x: Array, axis: int, count: int, *, align: bool, half: bool) -> Array:
    size = x.shape[axis]
    places = [position(i, size, count, align=align, half=half) for i in range(count)]
    # Without aligned corners a pixel reaches from its place (or half a pixel before it) to the next one's.
    wanted = [math.floor(place + (0.5 if align or half else 0.0)) for place in places]
    return np.take(x, [min(each, size - 1) for each in wanted], axis)


def resized(operation: OperationType, x: Array, hw: tuple[int, int], **convention: bool) -> Array:
    function = bilinear if operation == BILINEAR else nearest
    return function(function(x, 1, hw[0], **convention), 2, hw[1], **convention)


def like(x: Given) -> Given:
    return result(x.type, x.scale, x.zero)


@OPERATIONS
@TYPES
@CONVENTIONS
@pytest.mark.parametrize("nchw", [False, True], ids=["nhwc", "nchw"])
@pytest.mark.parametrize("hw", [(8, 6), (4, 9), (2, 1)])
def test_to_a_size(
    operation: OperationType, kind: OperandType, align: bool, half: bool, nchw: bool, hw: tuple[int, int]
) -> None:
    x = tensor(kind, (2, 4, 3, 2), 1)
    inputs = [laid_out(x, nchw=nchw), i32(hw[1]), i32(hw[0]), boolean(nchw), boolean(align), boolean(half)]
    got = nhwc(run_one(operation, inputs, like(x)), nchw=nchw)
    assert_close(got, resized(operation, real(x), hw, align=align, half=half), like(x))


@OPERATIONS
@TYPES
def test_by_factors(operation: OperationType, kind: OperandType) -> None:
    """The size is rounded down."""
    x, number = tensor(kind, (1, 4, 3, 2), 2), OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32
    got = run_one(operation, [x, scalar(number, 1.6), scalar(number, 0.9), boolean(False)], like(x))
    assert_close(got, resized(operation, real(x), (3, 4), align=False, half=False), like(x))


@pytest.mark.parametrize("beyond", [np.inf, np.nan])
def test_a_position_on_a_pixel_sees_no_other(beyond: float) -> None:
    x = given(F32, np.array([1, beyond, 3]).reshape(1, 1, 3, 1))
    with np.errstate(invalid="ignore"):  # infinity times the share of 0
        got = run_one(BILINEAR, [x, i32(5), i32(1), boolean(False), boolean(True)], result(F32)).reshape(-1)
    np.testing.assert_array_equal(got[[0, -1]], [1, 3])
    np.testing.assert_array_equal(np.isfinite(got), [True, False, False, False, True])


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_bilinear_has_defaults(count: int) -> None:
    x = tensor(F32, (1, 4, 3, 2), 3)
    inputs = [x, i32(5), i32(7), boolean(False), boolean(False), boolean(False)][:count]
    wanted = resized(BILINEAR, real(x), (7, 5), align=False, half=False)
    assert_close(run_one(BILINEAR, inputs, result(F32)), wanted, result(F32))


def test_a_size_that_is_given_at_execution() -> None:
    x = tensor(F32, (1, 4, 3, 2), 4)
    inputs = [x, given(OperandType.INT32, 5), given(OperandType.INT32, 7)]
    wanted = resized(BILINEAR, real(x), (7, 5), align=False, half=False)
    assert_close(run_one(BILINEAR, inputs, result(F32)), wanted, result(F32))
    with pytest.raises(InvalidOperationError, match="input 1 must make an output of >= 1 pixels"):
        run_one(BILINEAR, [x, given(OperandType.INT32, 0), i32(7)], result(F32))


@OPERATIONS
@TYPES
def test_on_a_device(operation: OperationType, kind: OperandType) -> None:
    x = tensor(kind, (1, 4, 3, 2), 5)
    got = run_one(operation, [x, i32(6), i32(8), boolean(False)], like(x), "tiny")
    assert_close(got, resized(operation, real(x), (8, 6), align=False, half=False), like(x))


@OPERATIONS
@TYPES
def test_no_images(operation: OperationType, kind: OperandType) -> None:
    x = tensor(kind, (0, 4, 3, 2), 6)
    assert run_one(operation, [x, i32(6), i32(8), boolean(False)], like(x), "tiny").shape == (0, 8, 6, 2)


X = tensor(F32, (1, 4, 3, 2), 7)
NO, YES = boolean(False), boolean(True)


@pytest.mark.parametrize(
    ("operation", "inputs", "message"),
    [
        (BILINEAR, [tensor(F32, (4, 3, 2), 0), i32(2), i32(2)], "input 0 must have rank 4"),
        (BILINEAR, [X, i32(0), i32(2)], "must be > 0"),
        (NEAREST, [X, i32(2), i32(-2), NO], "must be > 0"),
        (BILINEAR, [X, scalar(OperandType.FLOAT32, 0.5), scalar(OperandType.FLOAT32, 0.0)], "must be > 0"),
        (BILINEAR, [X, scalar(OperandType.FLOAT32, 0.5), i32(2)], "input 2 must be FLOAT32"),
        (BILINEAR, [X, scalar(OperandType.FLOAT16, 0.5), i32(2)], "input 1 must be FLOAT32, INT32"),
        (BILINEAR, [X, i32(2), i32(2), NO, YES, YES], "must not both be true"),
        (NEAREST, [X, i32(2), i32(2), NO, YES, YES], "must not both be true"),
        (NEAREST, [X, i32(2), i32(2)], "takes 4, 5, 6 inputs, got 3"),
        (BILINEAR, [X, i32(2), i32(2), i32(1)], "input 3 must be BOOL"),
        (BILINEAR, [X, i32(2), i32(2), NO, NO, NO, NO], "takes 3, 4, 5, 6 inputs, got 7"),
    ],
)
def test_rules(operation: OperationType, inputs: list[Given], message: str) -> None:
    assert message in str(problem(operation, inputs, [result(F32)]))


@OPERATIONS
def test_quantised_images_keep_scale_and_zero_point(operation: OperationType) -> None:
    x = tensor(Q8, (1, 4, 3, 2), 8)
    inputs: list[Any] = [x, i32(2), i32(2), NO]
    assert problem(operation, inputs, [like(x)]) is None
    assert "same scale and zero point" in str(problem(operation, inputs, [output(Q8)]))


def test_factors_that_leave_nothing() -> None:
    with pytest.raises(InvalidOperationError, match=r"input 2 must make an output .* of 4, got 0\.125"):
        run_one(BILINEAR, [X, scalar(OperandType.FLOAT32, 1.0), scalar(OperandType.FLOAT32, 0.125)], result(F32))


@OPERATIONS
def test_images_that_are_wider_than_anything(operation: OperationType) -> None:
    with pytest.raises(UnsupportedError, match="at most 1048576 pixels in each direction are supported"):
        run_one(operation, [X, i32(2**31 - 1), i32(2), NO], result(F32))
