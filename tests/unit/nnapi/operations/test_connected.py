"""FULLY_CONNECTED."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperationType
from tests.support.nnapi.image_operands import (
    F32,
    KINDS,
    Q8,
    Q8C,
    Kind,
    activated,
    bias_numbers,
    biases,
    output,
    programs,
    tensor,
)
from tests.support.nnapi.one_operation import Given, assert_close, i32, problem, real, run_one

CONNECTED = OperationType.FULLY_CONNECTED
SAME_TYPES = [kind for kind in KINDS if kind.w != Q8C]
TYPES = pytest.mark.parametrize("kind", SAME_TYPES, ids=str)


def operands(kind: Kind, shape: tuple[int, ...] = (3, 8), units: int = 5, *, const: bool = True) -> list[Given]:
    x, w = tensor(kind.x, shape, 1), tensor(kind.w, (units, 8), 2, const=const)
    return [x, w, biases(kind, x, w, units, 3, const=const), i32(0)]


@TYPES
@pytest.mark.parametrize("shape", [(3, 8), (1, 8), (2, 3, 8), (3, 2, 2, 4), (6, 4), (0, 8), (2, 0, 8)])
@pytest.mark.parametrize("const", [True, False], ids=["constant", "given"])
def test_every_row_of_input_size_elements_is_a_batch(kind: Kind, shape: tuple[int, ...], const: bool) -> None:
    inputs, y = operands(kind, shape, const=const), output(kind.x)
    x, w, bias, _ = inputs
    wanted = real(x).reshape(-1, 8) @ real(w).T + bias_numbers(x, w, bias)
    assert_close(run_one(CONNECTED, inputs, y), wanted, y)


@TYPES
@pytest.mark.parametrize("function", [0, 1, 2, 3])
def test_activations(kind: Kind, function: int) -> None:
    inputs, y = [*operands(kind)[:3], i32(function)], output(kind.x, 0.1)
    x, w, bias, _ = inputs
    wanted = activated(real(x) @ real(w).T + bias_numbers(x, w, bias), function)
    assert_close(run_one(CONNECTED, inputs, y), wanted, y)


@TYPES
def test_on_a_device(kind: Kind) -> None:
    inputs, y = operands(kind, (3, 2, 2, 4)), output(kind.x)
    x, w, bias, _ = inputs
    wanted = real(x).reshape(-1, 8) @ real(w).T + bias_numbers(x, w, bias)
    assert_close(run_one(CONNECTED, inputs, y, "tiny"), wanted, y)


def test_quantised_it_is_one_operator_of_the_matrix_unit() -> None:
    [program] = programs(CONNECTED, [*operands(KINDS[2])[:3], i32(3)], output(Q8), "edge")
    assert [entry.kind for entry in program.ops] == ["matmul+dequantize+clip+quantize"]
    [(dtype, macs)] = program.macs
    assert dtype.is_integer
    assert macs == 3 * 8 * 5


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, tensor(F32, (8,), 0), "input 0 must have rank 2"),
        (0, tensor(F32, (1, 1, 1, 1, 8), 0), "input 0 must have rank 2"),
        (1, tensor(F32, (5, 2, 4), 0), "input 1 must have rank 2"),
        (2, tensor(F32, (1, 5), 0), "input 2 must have rank 1"),
        (1, tensor(Q8, (5, 8), 0), "input 1 must be TENSOR_FLOAT32"),
        (3, i32(4), "FusedActivationFunc"),
    ],
)
def test_rules(place: int, value: Given, message: str) -> None:
    inputs = operands(KINDS[0])
    assert problem(CONNECTED, inputs, [output(F32)]) is None
    inputs[place] = value
    assert message in str(problem(CONNECTED, inputs, [output(F32)]))


def test_the_scale_of_the_bias_is_the_product_of_the_others_as_far_as_float32_goes() -> None:
    inputs = operands(KINDS[2])
    near = float(np.nextafter(np.float32(inputs[2].scale), np.float32(1)))
    assert problem(CONNECTED, [*inputs[:2], replace(inputs[2], scale=near), i32(0)], [output(Q8)]) is None
    far = inputs[2].scale * 1.001
    wrong = problem(CONNECTED, [*inputs[:2], replace(inputs[2], scale=far), i32(0)], [output(Q8)])
    assert "input scale * filter scale" in str(wrong)


def test_elements_that_are_no_whole_number_of_rows() -> None:
    with pytest.raises(InvalidOperationError, match=r"5 units and 8 inputs do not fit .* 12 elements"):
        run_one(CONNECTED, operands(KINDS[0], (2, 6)), output(F32))
