"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN, BIDIRECTIONAL_SEQUENCE_RNN and SVDF compared with their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.one_operation import (
    Given,
    assert_close,
    given,
    i32,
    left_out,
    omitted,
    problem,
    real,
    result,
    run,
    scalar,
)

TYPES = [T.TENSOR_FLOAT32, T.TENSOR_FLOAT16]
ACTIVATIONS = {
    0: lambda x: x,
    1: lambda x: np.maximum(x, 0),
    2: lambda x: np.clip(x, -1, 1),
    3: lambda x: np.clip(x, 0, 6),
}


def floats(kind: T, *shape: int, seed: int, const: bool = False) -> Given:
    return given(kind, np.random.default_rng(seed).uniform(-1, 1, shape), const=const)


def layer(kind: T, units: int, inputs: int, batches: int, seed: int, const: bool = False) -> list[Given]:
    """Return weights, recurrent weights, bias, state."""
    shapes = [(units, inputs), (units, units), (units,), (batches, units)]
    return [floats(kind, *shape, seed=seed + i, const=const and i < 3) for i, shape in enumerate(shapes)]


def unroll(x: Any, operands: list[Given], activation: int, extra: Any = 0.0) -> tuple[Any, Any]:
    """Return outputs of all steps and the last state; x and the value added to it are [time, batches, ...]."""
    w, r, b, h = map(real, operands)
    outputs = []
    for step in x @ w.T + b + extra:
        h = ACTIVATIONS[activation](step + h @ r.T)
        outputs.append(h)
    return np.array(outputs), h


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_rnn(kind: T, activation: int) -> None:
    x, operands = floats(kind, 2, 5, seed=1), layer(kind, 4, 5, 2, 2, const=bool(activation % 2))
    outputs = [result(kind), result(kind)]
    state, output = run(O.RNN, [x, *operands, i32(activation)], outputs)
    wanted, _ = unroll(real(x)[None], operands, activation)
    assert_close(state, wanted[0], outputs[0])
    np.testing.assert_array_equal(state, output)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("time_major", [0, 1])
@pytest.mark.parametrize("states", [False, True])
def test_unidirectional(kind: T, time_major: int, states: bool) -> None:
    x = floats(kind, 3, 2, 5, seed=1)
    operands = layer(kind, 4, 5, 2 if time_major else 3, 2)
    outputs = [result(kind)] * (2 if states else 1)
    results = run(O.UNIDIRECTIONAL_SEQUENCE_RNN, [x, *operands, i32(1), i32(time_major)], outputs)
    order = (0, 1, 2) if time_major else (1, 0, 2)
    wanted, last = unroll(real(x).transpose(order), operands, 1)
    assert_close(results[0], wanted.transpose(order), outputs[0])
    if states:
        assert_close(results[1], last, outputs[1])


def bidirectional(
    kind: T, linking: str, time_major: bool, merge: bool, states: bool
) -> tuple[list[Given], list[Given], list[Any]]:
    """Return operands of BIDIRECTIONAL_SEQUENCE_RNN and the expected results."""
    x, aux = floats(kind, 4, 2, 5, seed=1), floats(kind, 4, 2, 3, seed=9)
    batches = 2 if time_major else 4
    forward = layer(kind, 4, 5, batches, 2)
    backward = layer(kind, 3, 3 if linking == "parallel" else 5, batches, 20)
    weights = [floats(kind, 4, 3, seed=30), floats(kind, 3, 3, seed=31)]
    order = (0, 1, 2) if time_major else (1, 0, 2)
    xs, auxs = real(x).transpose(order), real(aux).transpose(order)
    extra = [auxs @ real(w).T for w in weights] if linking == "cross" else [np.zeros(1), np.zeros(1)]
    ahead, last_ahead = unroll(xs, forward, 1, extra[0])
    source = auxs if linking == "parallel" else xs
    back, last_back = unroll(source[::-1], backward, 1, extra[1][::-1])
    sequences = [ahead.transpose(order), back[::-1].transpose(order)]
    wanted = [np.concatenate(sequences, 2)] if merge else sequences
    wanted += [last_ahead, last_back] if states else []
    none = omitted(kind)
    auxiliary = {"none": [none, left_out(kind, (0,)), none], "parallel": [aux, none, none], "cross": [aux, *weights]}[
        linking
    ]
    flags = [i32(1), scalar(T.BOOL, time_major), scalar(T.BOOL, merge)]
    return [x, *forward, *backward, *auxiliary, *flags], [result(kind) for _ in wanted], wanted


@pytest.mark.parametrize("linking", ["none", "parallel", "cross"])
@pytest.mark.parametrize(
    ("time_major", "merge", "states"),
    [(True, False, True), (False, True, True), (False, False, False), (True, True, False)],
)
def test_bidirectional(linking: str, time_major: bool, merge: bool, states: bool) -> None:
    for kind in TYPES:
        inputs, outputs, wanted = bidirectional(kind, linking, time_major, merge, states)
        results = run(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, outputs)
        for array, numbers, output in zip(results, wanted, outputs, strict=True):
            assert_close(array, numbers, output)


def test_on_the_device() -> None:
    inputs, outputs, wanted = bidirectional(T.TENSOR_FLOAT32, "cross", False, True, True)
    for array, numbers, output in zip(
        run(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, outputs, "edge"), wanted, outputs, strict=True
    ):
        assert_close(array, numbers, output)


def test_a_sequence_without_steps_gives_back_the_state() -> None:
    x, operands = given(T.TENSOR_FLOAT32, np.zeros((0, 2, 5)), dims=(0, 2, 5)), layer(T.TENSOR_FLOAT32, 4, 5, 2, 2)
    outputs = [result(T.TENSOR_FLOAT32)] * 2
    sequence, state = run(O.UNIDIRECTIONAL_SEQUENCE_RNN, [x, *operands, i32(0), i32(1)], outputs)
    assert sequence.shape == (0, 2, 4)
    np.testing.assert_array_equal(state, operands[3].value)


def test_sizes_that_contradict_each_other() -> None:
    kind = T.TENSOR_FLOAT32
    inputs, outputs, _ = bidirectional(kind, "none", True, False, False)
    assert problem(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, outputs) is None
    wrong = [*inputs]
    wrong[3] = floats(kind, 5, seed=1)
    assert "agree in the dimensions" in str(problem(O.BIDIRECTIONAL_SEQUENCE_RNN, wrong, outputs))
    wrong[3] = floats(kind, 5, 1, seed=1)
    assert "ranks" in str(problem(O.BIDIRECTIONAL_SEQUENCE_RNN, wrong, outputs))
    wrong[3] = given(kind, np.zeros(5), dims=(0,))  # known in the execution only
    with pytest.raises(InvalidOperationError, match=r"input 3 must be \[forward = 4\], got \[5\]"):
        run(O.BIDIRECTIONAL_SEQUENCE_RNN, wrong, outputs)


def test_auxiliary_operands_come_together() -> None:
    kind = T.TENSOR_FLOAT32
    inputs, outputs, _ = bidirectional(kind, "cross", True, False, False)
    inputs[10:12] = [floats(kind, 4, 3, seed=1, const=True), omitted(kind)]
    message = "auxiliary weights: inputs 10, 11 must all have a value or all be omitted"
    assert problem(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, outputs) == message
    inputs[10] = floats(kind, 4, 3, seed=1)  # whether it is given is known in the execution only
    with pytest.raises(InvalidOperationError, match=message):
        run(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, outputs)
    inputs[9:12] = [omitted(kind), *[floats(kind, 4, 3, seed=1, const=True)] * 2]
    assert "with input 10, input 9 must have a value" in str(problem(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, outputs))


@pytest.mark.parametrize(("merge", "valid"), [(False, [False, True, False, True]), (True, [True, False, True, False])])
def test_how_many_outputs(merge: bool, valid: list[bool]) -> None:
    inputs, _, _ = bidirectional(T.TENSOR_FLOAT32, "none", True, merge, False)
    outputs = [[result(T.TENSOR_FLOAT32)] * count for count in (1, 2, 3, 4)]
    assert [problem(O.BIDIRECTIONAL_SEQUENCE_RNN, inputs, each) is None for each in outputs] == valid


def test_values_of_scalars() -> None:
    kind = T.TENSOR_FLOAT32
    x, operands, outputs = floats(kind, 3, 2, 5, seed=1), layer(kind, 4, 5, 2, 2), [result(kind)]
    assert "FusedActivationFunc" in str(problem(O.UNIDIRECTIONAL_SEQUENCE_RNN, [x, *operands, i32(4), i32(1)], outputs))
    assert "0, 1" in str(problem(O.UNIDIRECTIONAL_SEQUENCE_RNN, [x, *operands, i32(0), i32(2)], outputs))
    # Other types, omitted operands, operands too many or too few
    assert problem(O.RNN, [x, *operands, scalar(T.FLOAT32, 0)], outputs * 2)
    assert problem(O.RNN, [x, *operands[:3], omitted(kind), i32(0)], outputs * 2) == "input 4 must have a value"
    assert "takes 6 inputs, got 5" in str(problem(O.RNN, [x, *operands], outputs * 2))
    assert "has 1, 2 outputs, got 3" in str(
        problem(O.UNIDIRECTIONAL_SEQUENCE_RNN, [x, *operands, i32(0), i32(1)], outputs * 3)
    )


def svdf(kind: T, rank: int, bias: bool, activation: int) -> tuple[list[Given], Any, Any]:
    """Return operands of SVDF with 3 units and a memory of 4 steps, and the expected state and output."""
    units, memory, batches, inputs = 3, 4, 2, 5
    filters = units * rank
    x, feature = floats(kind, batches, inputs, seed=1), floats(kind, filters, inputs, seed=2)
    time, offset = floats(kind, filters, memory, seed=3), floats(kind, units, seed=4)
    state = floats(kind, batches, filters * memory, seed=5)
    past = real(state).reshape(batches, filters, memory).copy()
    past[:, :, -1] = real(x) @ real(feature).T
    output = (past * real(time)).sum(2).reshape(batches, units, rank).sum(2) + (real(offset) if bias else 0)
    after = np.concatenate([past[:, :, 1:], np.zeros((batches, filters, 1))], 2).reshape(batches, -1)
    operands = [x, feature, time, offset if bias else omitted(kind), state, i32(rank), i32(activation)]
    return operands, after, ACTIVATIONS[activation](output)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("rank", "bias", "activation"), [(1, False, 0), (2, True, 1), (3, True, 3), (1, True, 2)])
def test_svdf(kind: T, rank: int, bias: bool, activation: int) -> None:
    operands, after, output = svdf(kind, rank, bias, activation)
    outputs = [result(kind), result(kind)]
    for config in (None, "edge") if rank == 2 else (None,):
        results = run(O.SVDF, operands, outputs, config)
        assert_close(results[0], after, outputs[0])
        assert_close(results[1], output, outputs[1])


def test_svdf_says_what_is_wrong() -> None:
    kind = T.TENSOR_FLOAT32
    operands, _, _ = svdf(kind, 2, True, 0)
    outputs = [result(kind), result(kind)]
    with pytest.raises(InvalidOperationError, match="the rank must divide the number of filters, 6, got 4"):
        run(O.SVDF, [*operands[:5], i32(4), operands[6]], outputs)
    with pytest.raises(InvalidOperationError, match=r"input 3 must be \[units = 2\], got \[3\]"):
        run(O.SVDF, [*operands[:5], i32(3), operands[6]], outputs)
    with pytest.raises(
        InvalidOperationError, match=r"input 4 must be \[2, 6 filters \* memory of 4 >= 1\], got \[2, 23\]"
    ):
        run(O.SVDF, [*operands[:4], floats(kind, 2, 23, seed=1), *operands[5:]], outputs)
    assert "inputs 5 must be > 0" in str(problem(O.SVDF, [*operands[:5], i32(0), operands[6]], outputs))


@pytest.mark.parametrize("wrong", range(9))
def test_every_dimension_of_a_layer_is_looked_at(wrong: int) -> None:
    """Batches 2, inputs 5, units 4; one dimension of one operand differs."""
    kind = T.TENSOR_FLOAT32
    shapes = [[2, 5], [4, 5], [4, 4], [4], [2, 4]]
    places = [(index, axis) for index, shape in enumerate(shapes) for axis in range(len(shape))]
    inputs = [floats(kind, *shape, seed=1) for shape in shapes]
    assert problem(O.RNN, [*inputs, i32(0)], [result(kind)] * 2) is None
    operand, axis = places[wrong]
    shapes[operand][axis] += 1
    inputs[operand] = floats(kind, *shapes[operand], seed=1)
    assert "agree in the dimensions" in str(problem(O.RNN, [*inputs, i32(0)], [result(kind)] * 2))
