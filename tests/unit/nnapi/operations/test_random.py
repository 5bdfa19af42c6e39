"""RANDOM_MULTINOMIAL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from npusim.hw.config import load_config
from tests.support.nnapi.one_operation import given, i32, problem, result, run_one, scalar, vector

TINY = load_config("tiny")
LOGITS = np.array([[0.0, 1.0, -1.0, 2.0, 0.5], [3.0, 3.0, -9.0, 3.0, 1.0]])
OUT = result(T.TENSOR_INT32)
each_float = pytest.mark.parametrize("kind", [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16])


def draw(kind: T, seeds: list[int], samples: int, config: Any = None) -> np.ndarray:
    return run_one(O.RANDOM_MULTINOMIAL, [given(kind, LOGITS), i32(samples), vector(seeds)], OUT, config)


@each_float
def test_classes_come_as_often_as_their_logits_say(kind: T) -> None:
    wanted = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    drawn = draw(kind, [37, 42], 20_000)
    assert drawn.shape == (2, 20_000)
    for row, chances in zip(drawn, wanted, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=5) / row.size, chances, atol=0.015)


@each_float
@pytest.mark.parametrize("seeds", [[0, 0], [-1, 5], [2**31 - 1, -(2**31)]])
def test_the_seeds_alone_decide(kind: T, seeds: list[int]) -> None:
    drawn = draw(kind, seeds, 50)
    np.testing.assert_array_equal(draw(kind, seeds, 50, TINY), drawn, err_msg="the device draws the same")
    assert (draw(kind, [seeds[0], seeds[1] ^ 1], 50) != drawn).any()
    assert (draw(kind, [seeds[0] ^ 1, seeds[1]], 50) != drawn).any()


def test_a_negative_number_of_samples_is_refused() -> None:
    inputs = [given(T.TENSOR_FLOAT32, LOGITS), given(T.INT32, 0), vector([1, 2])]
    with pytest.raises(InvalidOperationError, match="input 1 must be >= 1, got 0"):
        run_one(O.RANDOM_MULTINOMIAL, inputs, OUT)


def test_what_validation_refuses() -> None:
    logits = given(T.TENSOR_FLOAT32, LOGITS)
    kind = O.RANDOM_MULTINOMIAL
    assert problem(kind, [logits, i32(3), vector([1, 2])], [OUT]) is None
    assert problem(kind, [logits, i32(0), vector([1, 2])], [OUT]) == "inputs 1 must be > 0"
    assert problem(kind, [logits, i32(3), vector([1, 2, 3])], [OUT]) == "input 2 must be 1-D with two seeds"
    assert (
        problem(kind, [given(T.TENSOR_FLOAT32, LOGITS[0]), i32(3), vector([1, 2])], [OUT]) == "input 0 must have rank 2"
    )
    assert "input 1 must be INT32" in (problem(kind, [logits, scalar(T.FLOAT32, 3), vector([1, 2])], [OUT]) or "")
