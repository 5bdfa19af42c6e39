"""AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D compared with windows computed tap by tap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import Array
from hal.nnapi.types import OperandType, OperationType
from tests.support.nnapi.image_operands import (
    F16,
    F32,
    Q8,
    Q8S,
    activated,
    boolean,
    laid_out,
    nhwc,
    same_pads,
    taps,
    tensor,
)
from tests.support.nnapi.one_operation import Given, assert_close, given, i32, problem, real, result, run_one

AVERAGE, MAX, L2 = OperationType.AVERAGE_POOL_2D, OperationType.MAX_POOL_2D, OperationType.L2_POOL_2D
OPERATIONS = [(AVERAGE, F32), (AVERAGE, F16), (AVERAGE, Q8), (AVERAGE, Q8S), (MAX, F32), (MAX, F16), (MAX, Q8),
              (MAX, Q8S), (L2, F32), (L2, F16)]  # fmt: skip
ALL = pytest.mark.parametrize(("operation", "kind"), OPERATIONS, ids=lambda each: each.name.removeprefix("TENSOR_"))


def pooled(operation: OperationType, x: Array, kernel: Any, stride: Any, pads: Sequence[int]) -> Array:
    """Return pooling of an NHWC image; padding does not count."""
    if operation == MAX:
        return np.max(list(taps(x, kernel, stride, (1, 1), pads, -np.inf).values()), axis=0)
    numbers = x * x if operation == L2 else x
    total = np.sum(list(taps(numbers, kernel, stride, (1, 1), pads).values()), axis=0)
    mean = total / np.sum(list(taps(np.ones_like(x), kernel, stride, (1, 1), pads).values()), axis=0)
    return np.sqrt(mean) if operation == L2 else mean


def output(x: Given) -> Given:
    return result(x.type, x.scale, x.zero)


def arguments(pads: Any, stride: Sequence[int], kernel: Sequence[int], function: int) -> list[Given]:
    """Return scalars; stride and kernel are (height, width), pads top, left, bottom, right."""
    side = [pads] if isinstance(pads, int) else [pads[1], pads[3], pads[0], pads[2]]
    return [i32(value) for value in (*side, *stride[::-1], *kernel[::-1], function)]


@ALL
@pytest.mark.parametrize("pads", [0, 1, 2, (1, 0, 2, 1)], ids=["none", "same", "valid", "explicit"])
@pytest.mark.parametrize("layout", [None, False, True], ids=["default", "nhwc", "nchw"])
def test_windows(operation: OperationType, kind: OperandType, pads: Any, layout: bool | None) -> None:
    x, nchw = tensor(kind, (2, 7, 6, 3), 1), layout is True
    inputs = [laid_out(x, nchw=nchw), *arguments(pads, (2, 1), (3, 2), 0)]
    got = run_one(operation, inputs if layout is None else [*inputs, boolean(layout)], output(x))
    (top, bottom), (left, right) = (same_pads(7, 2, 3), same_pads(6, 1, 2)) if pads == 1 else ((0, 0), (0, 0))
    sides = pads if isinstance(pads, tuple) else (top, left, bottom, right)
    assert_close(nhwc(got, nchw=nchw), pooled(operation, real(x), (3, 2), (2, 1), sides), output(x))


@ALL
@pytest.mark.parametrize("function", [1, 2, 3])
def test_activations(operation: OperationType, kind: OperandType, function: int) -> None:
    x = tensor(kind, (1, 4, 4, 5), 2)
    x = replace(x, scale=0.1) if x.scale else replace(x, value=(x.value * 3).astype(x.value.dtype))  # type: ignore[operator]
    got = run_one(operation, [x, *arguments(2, (1, 1), (2, 2), function)], output(x))
    wanted = pooled(operation, real(x), (2, 2), (1, 1), (0, 0, 0, 0))
    assert_close(got, activated(wanted, function), output(x))
    cuts = not np.array_equal(wanted, activated(wanted, function))
    assert cuts or (operation, function) == (L2, 1)  # a root is never negative


def test_bounds_beyond_what_the_integers_reach() -> None:
    """6 is more than 255 steps of 0.01, so there is no upper clipping; 0 is below the least number, so there is no
    lower clipping."""
    x = given(Q8, [[[[0], [100], [255]]]], 0.01, 0)
    got = run_one(MAX, [x, *arguments(2, (1, 1), (1, 1), 3)], output(x))
    assert got.reshape(-1).tolist() == [0, 100, 255]


@ALL
def test_on_a_device(operation: OperationType, kind: OperandType) -> None:
    x = tensor(kind, (1, 5, 5, 3), 3)
    got = run_one(operation, [x, *arguments((1, 1, 1, 1), (2, 2), (3, 3), 1)], output(x), "tiny")
    wanted = pooled(operation, real(x), (3, 3), (2, 2), (1, 1, 1, 1))
    assert_close(got, activated(wanted, 1), output(x))


@ALL
def test_no_images(operation: OperationType, kind: OperandType) -> None:
    x = tensor(kind, (0, 5, 4, 3), 4)
    assert run_one(operation, [x, *arguments(1, (2, 2), (3, 3), 0)], output(x), "tiny").shape == (0, 3, 2, 3)


X = tensor(F32, (1, 5, 5, 2), 5)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tensor(F32, (5, 5, 2), 0), *arguments(1, (1, 1), (2, 2), 0)], "input 0 must have rank 4"),
        ([X, *arguments(-1, (1, 1), (2, 2), 0)], "padding scheme"),
        ([X, *arguments(3, (1, 1), (2, 2), 0)], "padding scheme"),
        ([X, *arguments((0, -1, 0, 0), (1, 1), (2, 2), 0)], "padding"),
        ([X, *arguments(1, (0, 1), (2, 2), 0)], "strides"),
        ([X, *arguments(1, (1, 1), (2, 0), 0)], "sizes of windows"),
        ([X, *arguments(1, (1, 1), (2, 2), 4)], "FusedActivationFunc"),
        ([X, *arguments(1, (1, 1), (2, 2), 0), i32(1)], "input 7 must be BOOL"),
        ([X, *arguments(1, (1, 1), (2, 2), 0)][:-1], "takes 7, 8, 10, 11 inputs, got 6"),
        ([X, *arguments((0,) * 4, (1, 1), (2, 2), 0), boolean(True), i32(1)], "takes 7, 8, 10, 11 inputs, got 12"),
    ],
)
@pytest.mark.parametrize("operation", [AVERAGE, MAX, L2])
def test_rules(operation: OperationType, inputs: list[Given], message: str) -> None:
    assert message in str(problem(operation, inputs, [result(F32)]))


@pytest.mark.parametrize("operation", [AVERAGE, MAX])
def test_quantised_pools_keep_scale_and_zero_point(operation: OperationType) -> None:
    x = tensor(Q8, (1, 5, 5, 2), 6)
    inputs = [x, *arguments(1, (1, 1), (2, 2), 0)]
    for out in (replace(output(x), scale=0.5), replace(output(x), zero=0)):
        assert "same scale and zero point" in str(problem(operation, inputs, [out]))
    assert problem(operation, inputs, [output(x)]) is None


def test_l2_pools_are_of_floats() -> None:
    x = tensor(Q8, (1, 5, 5, 2), 7)
    message = problem(L2, [x, *arguments(1, (1, 1), (2, 2), 0)], [output(x)])
    assert "input 0 must be TENSOR_FLOAT32, TENSOR_FLOAT16" in str(message)


@pytest.mark.parametrize(
    ("pads", "kernel", "message"),
    [((0, 0, 0, 0), (6, 1), "does not fit"), ((2, 0, 0, 0), (2, 2), "less than the window"),
     ((0, 0, 0, 3), (3, 3), "less than the window")],
)  # fmt: skip
def test_windows_that_see_nothing(pads: Any, kernel: Any, message: str) -> None:
    with pytest.raises(InvalidOperationError, match=message):
        run_one(AVERAGE, [X, *arguments(pads, (1, 1), kernel, 0)], result(F32))
