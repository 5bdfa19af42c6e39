"""L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION, SOFTMAX, LOG_SOFTMAX, INSTANCE_NORMALIZATION."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.operations.view import Array
from hal.nnapi.types import OperandType, OperationType
from tests.support.nnapi.image_operands import F16, F32, Q8, Q8S, boolean, laid_out, nhwc, output, tensor
from tests.support.nnapi.one_operation import Given, assert_close, given, i32, problem, real, result, run_one, scalar

L2, LRN = OperationType.L2_NORMALIZATION, OperationType.LOCAL_RESPONSE_NORMALIZATION
SOFTMAX, LOG_SOFTMAX = OperationType.SOFTMAX, OperationType.LOG_SOFTMAX
INSTANCE = OperationType.INSTANCE_NORMALIZATION
FLOATS, ALL = [F32, F16], [F32, F16, Q8, Q8S]
CONFIGS = pytest.mark.parametrize("config", [None, "tiny"], ids=["reference", "device"])


def types(*kinds: OperandType) -> Any:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.name.removeprefix("TENSOR_"))


def number(kind: OperandType, value: float) -> Given:
    """Return a scalar of the type that matches a tensor type."""
    return scalar(OperandType.FLOAT16 if kind == F16 else OperandType.FLOAT32, value)


def unit(kind: OperandType) -> Given:
    """Return the output of L2_NORMALIZATION."""
    return output(kind, 1 / 128, 128)


def share(kind: OperandType) -> Given:
    """Return the output of SOFTMAX."""
    return output(kind, 1 / 256, 0)


@types(*ALL)
@pytest.mark.parametrize(("shape", "axis"), [((5,), None), ((2, 3, 4, 5), None), ((2, 3, 4, 5), 1), ((3, 4), -2)])
@CONFIGS
def test_l2_normalization(kind: OperandType, shape: tuple[int, ...], axis: int | None, config: Any) -> None:
    x = tensor(kind, shape, 1)
    got = run_one(L2, [x] if axis is None else [x, i32(axis)], unit(kind), config)
    numbers = real(x)
    norm = np.sqrt(np.sum(numbers**2, axis=-1 if axis is None else axis, keepdims=True))
    assert_close(got, numbers / norm, unit(kind))


@types(*ALL)
def test_l2_normalization_of_nothing_but_zeros_is_zero(kind: OperandType) -> None:
    x = given(kind, np.full((2, 3), 7), 0.5, 7) if kind in (Q8, Q8S) else given(kind, np.zeros((2, 3)))
    assert_close(run_one(L2, [x], unit(kind)), np.zeros((2, 3)), unit(kind))


def test_l2_normalization_of_small_and_large_numbers() -> None:
    x = given(F32, [[3e-18, 4e-18], [3e18, -4e18]])
    assert_close(run_one(L2, [x], unit(F32)), np.array([[0.6, 0.8], [0.6, -0.8]]), unit(F32))


def responses(x: Array, radius: int, bias: float, alpha: float, beta: float, axis: int) -> Array:
    x = np.moveaxis(x, axis, -1)
    sums = np.zeros_like(x)
    for place in range(x.shape[-1]):
        around = x[..., max(place - radius, 0) : place + radius + 1]
        sums[..., place] = np.sum(around**2, axis=-1)
    return np.moveaxis(x / (bias + alpha * sums) ** beta, -1, axis)


@types(*FLOATS)
@pytest.mark.parametrize(("axis", "radius"), [(None, 2), (1, 1), (-3, 0), (0, 20)])
@CONFIGS
def test_local_response_normalization(kind: OperandType, axis: int | None, radius: int, config: Any) -> None:
    x = tensor(kind, (3, 4, 2, 6), 2)
    parameters = [number(kind, value) for value in (9.0, 0.5, 0.75)]
    inputs = [x, i32(radius), *parameters]
    got = run_one(LRN, inputs if axis is None else [*inputs, i32(axis)], result(kind), config)
    assert_close(got, responses(real(x), radius, 9.0, 0.5, 0.75, -1 if axis is None else axis), result(kind))


def exponentials(x: Array, beta: float, axis: int) -> Array:
    powers = np.exp((x - x.max(axis=axis, keepdims=True)) * beta)
    return powers / powers.sum(axis=axis, keepdims=True)


@types(*ALL)
@pytest.mark.parametrize(
    ("shape", "axis", "beta"), [((2, 5), None, 1.0), ((2, 3, 4, 5), None, 0.5), ((2, 3, 4), 1, 2.0), ((6,), -1, 0.125)]
)
@CONFIGS
def test_softmax(kind: OperandType, shape: tuple[int, ...], axis: int | None, beta: float, config: Any) -> None:
    x = tensor(kind, shape, 3)
    inputs = [x, number(kind, beta)]
    got = run_one(SOFTMAX, inputs if axis is None else [*inputs, i32(axis)], share(kind), config)
    assert_close(got, exponentials(real(x), beta, -1 if axis is None else axis), share(kind))


def test_softmax_of_numbers_that_are_far_from_zero() -> None:
    """If multiplied by beta first, they would lose the digits in which they differ."""
    x = given(F32, [[10000.0, 10001.0, 10000.5, 9990.0]])
    assert_close(run_one(SOFTMAX, [x, number(F32, 0.3)], share(F32)), exponentials(real(x), 0.3, -1), share(F32))


def test_softmax_with_a_beta_that_is_given_at_execution() -> None:
    x, beta = tensor(F32, (2, 5), 4), given(OperandType.FLOAT32, 0.7)
    assert_close(run_one(SOFTMAX, [x, beta], share(F32)), exponentials(real(x), np.float32(0.7), -1), share(F32))


@types(*FLOATS)
@pytest.mark.parametrize(("shape", "axis", "beta"), [((2, 5), 1, 1.0), ((1, 2, 1, 4, 2), -4, 2.0), ((4,), 0, 0.5)])
@CONFIGS
def test_log_softmax(kind: OperandType, shape: tuple[int, ...], axis: int, beta: float, config: Any) -> None:
    x = tensor(kind, shape, 5)
    got = run_one(LOG_SOFTMAX, [x, number(kind, beta), i32(axis)], result(kind), config)
    assert_close(got, np.log(exponentials(real(x), beta, axis)), result(kind))


@types(*FLOATS)
@pytest.mark.parametrize("nchw", [False, True], ids=["nhwc", "nchw"])
@CONFIGS
def test_instance_normalization(kind: OperandType, nchw: bool, config: Any) -> None:
    x = tensor(kind, (2, 4, 3, 5), 6)
    parameters = [number(kind, value) for value in (1.5, -0.25, 0.125)]
    got = run_one(INSTANCE, [laid_out(x, nchw=nchw), *parameters, boolean(nchw)], result(kind), config)
    numbers = real(x)
    mean, variance = (f(numbers, axis=(1, 2), keepdims=True) for f in (np.mean, np.var))
    assert_close(nhwc(got, nchw=nchw), 1.5 * (numbers - mean) / np.sqrt(variance + 0.125) - 0.25, result(kind))


@pytest.mark.parametrize(
    ("operation", "rest", "out"),
    [
        (L2, [], unit(F32)),
        (LRN, [i32(1), *[number(F32, 1.0)] * 3], result(F32)),
        (SOFTMAX, [number(F32, 2.0)], share(F32)),
        (LOG_SOFTMAX, [number(F32, 2.0), i32(-1)], result(F32)),
        (INSTANCE, [*[number(F32, 1.0)] * 3, boolean(False)], result(F32)),
    ],
)
def test_no_images(operation: OperationType, rest: list[Given], out: Given) -> None:
    assert run_one(operation, [tensor(F32, (0, 2, 3, 4), 7), *rest], out, "tiny").shape == (0, 2, 3, 4)


X = tensor(F32, (2, 3, 4, 5), 8)
FIVE = tensor(F32, (1, 1, 1, 1, 2), 9)
ONES = [number(F32, 1.0)] * 3


@pytest.mark.parametrize(
    ("operation", "inputs", "message"),
    [
        (L2, [FIVE], "input 0 must have at most rank 4"),
        (L2, [X, i32(4)], r"input 1 must be in [-n, n)"),
        (L2, [X, i32(0), i32(0)], "takes 1, 2 inputs, got 3"),
        (LRN, [FIVE, i32(1), *ONES], "input 0 must have at most rank 4"),
        (LRN, [X, i32(-1), *ONES], "the radius, must be >= 0"),
        (LRN, [X, i32(1), *ONES, i32(-5)], "input 5 must be in [-n, n)"),
        (LRN, [X, i32(1), *ONES[:2], number(F16, 1.0)], "input 4 must be FLOAT32"),
        (SOFTMAX, [FIVE, ONES[0]], "input 0 must have at most rank 4"),
        (SOFTMAX, [X, number(F32, 0.0)], "inputs 1 must be > 0"),
        (SOFTMAX, [X, ONES[0], i32(4)], "input 2 must be in [-n, n)"),
        (SOFTMAX, [X, number(F16, 1.0)], "input 1 must be FLOAT32"),
        (LOG_SOFTMAX, [X, ONES[0]], "takes 3 inputs, got 2"),
        (LOG_SOFTMAX, [X, number(F32, -1.0), i32(0)], "inputs 1 must be > 0"),
        (LOG_SOFTMAX, [X, ONES[0], i32(-5)], "input 2 must be in [-n, n)"),
        (INSTANCE, [FIVE, *ONES, boolean(True)], "input 0 must have rank 4"),
        (INSTANCE, [X, *ONES, i32(0)], "input 4 must be BOOL"),
    ],
)
def test_rules(operation: OperationType, inputs: Sequence[Given], message: str) -> None:
    assert message in str(problem(operation, inputs, [result(F32)]))


@types(Q8, Q8S)
def test_quantised_outputs_have_one_scale_and_zero_point(kind: OperandType) -> None:
    x = tensor(kind, (2, 3), 10)
    for operation, inputs, out in ((L2, [x], unit(kind)), (SOFTMAX, [x, ONES[0]], share(kind))):
        assert problem(operation, inputs, [out]) is None
        for wrong in (replace(out, scale=out.scale * 2), replace(out, zero=out.zero + 1)):
            assert "must have scale" in str(problem(operation, inputs, [wrong]))


def test_a_radius_that_is_given_at_execution() -> None:
    radius = given(OperandType.INT32, 1)
    got = run_one(LRN, [X, radius, *ONES], result(F32))
    assert_close(got, responses(real(X), 1, 1.0, 1.0, 1.0, -1), result(F32))
    with pytest.raises(InvalidOperationError, match="radius, must be >= 0, got -1"):
        run_one(LRN, [X, given(OperandType.INT32, -1), *ONES], result(F32))
