"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM compared with their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hal.nnapi.operations.lowering import InvalidOperationError
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from npusim.ops.build import GraphBuilder
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

F32, F16 = T.TENSOR_FLOAT32, T.TENSOR_FLOAT16
SCALARS = {F32: T.FLOAT32, F16: T.FLOAT16}
INPUTS, UNITS, OUTPUTS, AUXILIARY = 5, 4, 3, 2
GATES = ("input", "forget", "cell", "output")
ACTIVATIONS = {
    0: lambda x: x,
    1: lambda x: np.maximum(x, 0),
    3: lambda x: np.clip(x, 0, 6),
    4: np.tanh,
    6: lambda x: 1 / (1 + np.exp(-x)),
}
EVERYTHING = frozenset({"input gate", "peephole", "projection", "projection bias", "norm"})


class Weights:
    """The operands of one cell by name; those of unused features have no value."""

    def __init__(self, kind: T, features: frozenset[str], seed: int, inputs: int = INPUTS, batches: int = 2) -> None:
        rng = np.random.default_rng(seed)
        outputs = OUTPUTS if "projection" in features else UNITS
        coupled = "input gate" not in features
        self.kind, self.outputs = kind, outputs
        self.operands: dict[str, Given] = {}

        def add(name: str, there: bool, *shape: int) -> None:
            value = rng.uniform(-0.8, 0.8, shape)
            self.operands[name] = given(kind, value, const="const" in features) if there else omitted(kind)

        for gate in GATES:
            there = gate != "input" or not coupled
            add(f"w {gate}", there, UNITS, inputs)
            add(f"r {gate}", there, UNITS, outputs)
            add(f"bias {gate}", there, UNITS)
            add(f"norm {gate}", there and "norm" in features, UNITS)
            add(f"aux {gate}", there and "aux" in features, UNITS, AUXILIARY)
            add(f"peephole {gate}", there and gate != "cell" and "peephole" in features, UNITS)
        add("projection", "projection" in features, outputs, UNITS)
        add("projection bias", "projection bias" in features, outputs)
        self.states = [given(kind, rng.uniform(-0.8, 0.8, (batches, size))) for size in (outputs, UNITS)]

    def __getitem__(self, name: str) -> Any:
        """Return the numbers of an operand; None if it is omitted."""
        operand = self.operands[name]
        return None if operand.value is None else real(operand)

    def four(self, name: str) -> list[Given]:
        return [self.operands[f"{name} {gate}"] for gate in GATES]

    def cell(self) -> list[Given]:
        """Return the 17 operands that describe a cell."""
        peephole = [operand for gate, operand in zip(GATES, self.four("peephole"), strict=True) if gate != "cell"]
        ends = [self.operands["projection"], self.operands["projection bias"]]
        return [*self.four("w"), *self.four("r"), *peephole, *self.four("bias"), *ends]


def unroll(
    weights: Weights, x: Any, activation: int = 4, clips: tuple[float, float] = (0, 0), aux: Any = None
) -> tuple[Any, Any, Any]:
    """Return outputs of all steps, last output and cell state; x is [time, batches, inputs]."""
    h, c = map(real, weights.states)
    act, sigmoid = ACTIVATIONS[activation], ACTIVATIONS[6]

    def gate(name: str, step: int, cell: Any) -> Any:
        z = x[step] @ weights[f"w {name}"].T + h @ weights[f"r {name}"].T
        if aux is not None:
            z = z + aux[step] @ weights[f"aux {name}"].T
        if weights[f"peephole {name}"] is not None:
            z = z + cell * weights[f"peephole {name}"]
        if weights[f"norm {name}"] is not None:
            z = z - z.mean(1, keepdims=True)
            z = z / np.sqrt((z * z).mean(1, keepdims=True)) * weights[f"norm {name}"]
        return z + weights[f"bias {name}"]

    outputs = []
    for step in range(len(x)):
        forget = sigmoid(gate("forget", step, c))
        let_in = 1 - forget if weights["w input"] is None else sigmoid(gate("input", step, c))
        c = forget * c + let_in * act(gate("cell", step, c))
        c = np.clip(c, -clips[0], clips[0]) if clips[0] else c
        h = sigmoid(gate("output", step, c)) * act(c)
        if weights["projection"] is not None:
            h = h @ weights["projection"].T
            h = h + weights["projection bias"] if weights["projection bias"] is not None else h
            h = np.clip(h, -clips[1], clips[1]) if clips[1] else h
        outputs.append(h)
    return np.array(outputs), h, c


def floats(kind: T, *shape: int, seed: int = 1) -> Given:
    return given(kind, np.random.default_rng(seed).uniform(-1, 1, shape))


def scalars(kind: T, activation: int = 4, clips: tuple[float, float] = (0, 0)) -> list[Given]:
    return [i32(activation), *(scalar(SCALARS[kind], clip) for clip in clips)]


FEATURES = [
    frozenset({"input gate"}),
    frozenset(),
    frozenset({"peephole"}),
    frozenset({"input gate", "peephole", "const"}),
    frozenset({"input gate", "projection"}),
    frozenset({"projection", "projection bias", "norm"}),
    EVERYTHING,
    EVERYTHING - {"input gate"},
    frozenset({"input gate", "norm"}),
]


@pytest.mark.parametrize("kind", [F32, F16])
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "+".join(sorted(features)) or "cifg")
def test_lstm(kind: T, features: frozenset[str]) -> None:
    x, weights = floats(kind, 2, INPUTS), Weights(kind, features, 2)
    norm = weights.four("norm") if "norm" in features or "input gate" in features else []
    inputs = [x, *weights.cell(), *weights.states, *scalars(kind), *norm]
    outputs = [result(kind)] * 4
    scratch, state, cell, output = run(O.LSTM, inputs, outputs)
    wanted, _, wanted_cell = unroll(weights, real(x)[None])
    assert scratch.shape == (2, UNITS * (4 if "input gate" in features else 3))
    assert_close(output, wanted[0], outputs[3])
    assert_close(cell, wanted_cell, outputs[2])
    np.testing.assert_array_equal(state, output)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("clips", [(0, 0), (0.25, 0.125)])
def test_activations_and_clips(activation: int, clips: tuple[float, float]) -> None:
    x, weights = floats(F32, 2, INPUTS), Weights(F32, EVERYTHING, 2)
    inputs = [x, *weights.cell(), *weights.states, *scalars(F32, activation, clips), *weights.four("norm")]
    _, _, cell, output = run(O.LSTM, inputs, [result(F32)] * 4)
    wanted, _, wanted_cell = unroll(weights, real(x)[None], activation, clips)
    assert_close(output, wanted[0], result(F32))
    assert_close(cell, wanted_cell, result(F32))
    assert not clips[0] or np.abs(cell).max() == 0.25


@pytest.mark.parametrize("kind", [F32, F16])
@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("states", [True, False])
def test_unidirectional(kind: T, time_major: bool, states: bool) -> None:
    features = EVERYTHING if states else frozenset({"projection"})
    x, weights = floats(kind, 3, 2, INPUTS), Weights(kind, features, 2, batches=2 if time_major else 3)
    inputs = [x, *weights.cell(), *weights.states, *scalars(kind), scalar(T.BOOL, time_major), *weights.four("norm")]
    outputs = [result(kind)] * (3 if states else 1)
    results = run(O.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs, outputs)
    order = (0, 1, 2) if time_major else (1, 0, 2)
    sequence, *last = unroll(weights, real(x).transpose(order))
    for array, numbers in zip(results, [sequence.transpose(order), *last][: len(outputs)], strict=True):
        assert_close(array, numbers, outputs[0])


def bidirectional(
    kind: T, linking: str, time_major: bool, merge: bool, states: bool, features: frozenset[str] = EVERYTHING
) -> tuple[list[Given], list[Any]]:
    """Return operands of BIDIRECTIONAL_SEQUENCE_LSTM and the expected results."""
    batches = 2 if time_major else 3
    extra = frozenset({"aux"}) if linking == "cross" else frozenset()
    forward = Weights(kind, features | extra, 2, batches=batches)
    backward = Weights(kind, features | extra, 3, AUXILIARY if linking == "parallel" else INPUTS, batches)
    x, aux = floats(kind, 3, 2, INPUTS), floats(kind, 3, 2, AUXILIARY, seed=9)
    order = (0, 1, 2) if time_major else (1, 0, 2)
    xs, auxs = real(x).transpose(order), real(aux).transpose(order)
    added = auxs if linking == "cross" else None
    ahead, *last_ahead = unroll(forward, xs, aux=added)
    source = auxs if linking == "parallel" else xs
    back, *last_back = unroll(backward, source[::-1], aux=None if added is None else added[::-1])
    sequences = [ahead.transpose(order), back[::-1].transpose(order)]
    wanted = [np.concatenate(sequences, 2)] if merge else sequences
    inputs = [x, *forward.cell(), *backward.cell(), *forward.states, *backward.states]
    inputs += [omitted(kind) if linking == "none" else aux, *forward.four("aux"), *backward.four("aux")]
    inputs += [*scalars(kind), scalar(T.BOOL, merge), scalar(T.BOOL, time_major)]
    inputs += [*forward.four("norm"), *backward.four("norm")]
    return inputs, wanted + ([*last_ahead, *last_back] if states else [])


@pytest.mark.parametrize("kind", [F32, F16])
@pytest.mark.parametrize("linking", ["none", "parallel", "cross"])
@pytest.mark.parametrize(
    ("time_major", "merge", "states"), [(True, False, True), (False, True, True), (False, False, False)]
)
def test_bidirectional(kind: T, linking: str, time_major: bool, merge: bool, states: bool) -> None:
    features = frozenset({"peephole"}) if merge else EVERYTHING
    inputs, wanted = bidirectional(kind, linking, time_major, merge, states, features)
    results = run(O.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, [result(kind)] * len(wanted))
    for array, numbers in zip(results, wanted, strict=True):
        assert_close(array, numbers, result(kind))


@pytest.mark.parametrize("time_major", [True, False])
def test_long_sequences_are_loops(time_major: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, made = 20, []
    finish = GraphBuilder.finish

    def noted(self: GraphBuilder, outputs: Any) -> Any:
        made.append(finish(self, outputs))
        return made[-1]

    monkeypatch.setattr(GraphBuilder, "finish", noted)
    forward, backward = (Weights(F32, EVERYTHING | {"const"}, seed) for seed in (2, 3))
    x = floats(F32, *((steps, 2) if time_major else (2, steps)), INPUTS)
    inputs = [x, *forward.cell(), *backward.cell(), *forward.states, *backward.states, omitted(F32)]
    inputs += [*forward.four("aux"), *backward.four("aux"), *scalars(F32), scalar(T.BOOL, False)]
    inputs += [scalar(T.BOOL, time_major), *forward.four("norm"), *backward.four("norm")]
    results = run(O.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, [result(F32)] * 6, "edge")
    assert [op.attrs["times"] for op in made[-1].ops if op.kind == "repeat" and op.attrs["times"]] == [14, 14]
    order = (0, 1, 2) if time_major else (1, 0, 2)
    xs = real(x).transpose(order)
    ahead, *last_ahead = unroll(forward, xs)
    back, *last_back = unroll(backward, xs[::-1])
    wanted = [ahead.transpose(order), back[::-1].transpose(order), *last_ahead, *last_back]
    for array, numbers in zip(results, wanted, strict=True):
        assert_close(array, numbers, result(F32))


def test_on_the_device() -> None:
    inputs, wanted = bidirectional(F32, "cross", False, True, True)
    results = run(O.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, [result(F32)] * len(wanted), "edge")
    for array, numbers in zip(results, wanted, strict=True):
        assert_close(array, numbers, result(F32))


def single(features: frozenset[str]) -> tuple[Weights, list[Given]]:
    weights = Weights(F32, features | {"const"}, 2)
    x = floats(F32, 2, INPUTS)
    return weights, [x, *weights.cell(), *weights.states, *scalars(F32), *weights.four("norm")]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1, "input gate: inputs 1, 5, 12"),
        (5, "input gate: inputs 1, 5, 12"),
        (12, "input gate: inputs 1, 5, 12"),
        (10, "peephole: inputs 10, 11"),
        (9, "peephole of the input gate: with input 10, input 9 must have a value, if input 1 has one"),
        (16, "projection: with input 17, input 16"),
        (25, "layer normalisation: inputs 24, 25, 26"),
        (23, "layer normalisation of the input gate: with input 26, input 23 must have a value"),
        (2, "input 2 must have a value"),
        (19, "input 19 must have a value"),
        (21, "input 21 must have a value"),
    ],
)
def test_operands_that_come_together(index: int, message: str) -> None:
    _, inputs = single(EVERYTHING)
    outputs = [result(F32)] * 4
    assert problem(O.LSTM, inputs, outputs) is None
    inputs[index] = omitted(inputs[index].type)
    assert message in str(problem(O.LSTM, inputs, outputs))
    if not message.startswith("input "):
        inputs[index] = left_out(F32, (0,) * (2 if index in (1, 5, 16) else 1))
        with pytest.raises(InvalidOperationError, match=message.partition(",")[0]):
            run(O.LSTM, inputs, outputs)


def test_operands_that_an_execution_leaves_out() -> None:
    weights, inputs = single(frozenset())
    for index in (1, 5, 9, 10, 11, 12, 16, 17, 23, 24, 25, 26):
        assert inputs[index].value is None
        inputs[index] = left_out(F32, (0,))
    _, _, _, output = run(O.LSTM, inputs, [result(F32)] * 4)
    assert_close(output, unroll(weights, real(inputs[0])[None])[1], result(F32))


def test_values_and_sizes_that_make_no_sense() -> None:
    _, inputs = single(EVERYTHING)
    outputs = [result(F32)] * 4
    for index, operand, message in [
        (20, i32(2), "input 20 must be an activation: 0, 1, 3, 4, 6"),
        (21, scalar(T.FLOAT32, -1), "inputs 21, 22 must be >= 0"),
        (13, floats(F32, UNITS + 1), "agree in the dimensions"),
        (21, scalar(T.FLOAT16, 0), "input 21 must be FLOAT32, got FLOAT16"),
        (7, floats(F16, UNITS, OUTPUTS), "input 7 must be TENSOR_FLOAT32, got TENSOR_FLOAT16"),
    ]:
        assert message in str(problem(O.LSTM, [*inputs[:index], operand, *inputs[index + 1 :]], outputs))
    assert "takes 23, 27 inputs, got 26" in str(problem(O.LSTM, inputs[:-1], outputs))
    assert "has 4 outputs, got 3" in str(problem(O.LSTM, inputs, outputs[:3]))
    _, inputs = single(EVERYTHING - {"projection", "projection bias"})
    for index in range(5, 9):
        inputs[index] = floats(F32, UNITS, OUTPUTS)
    inputs[18] = floats(F32, 2, OUTPUTS)
    with pytest.raises(
        InvalidOperationError, match="without a projection there must be as many outputs as units, 4, got 3"
    ):
        run(O.LSTM, inputs, outputs)


def test_how_many_outputs() -> None:
    for merge, valid in ((False, [2, 6]), (True, [1, 5])):
        inputs, _ = bidirectional(F32, "none", True, merge, False)
        counts = [n for n in range(1, 8) if problem(O.BIDIRECTIONAL_SEQUENCE_LSTM, inputs, [result(F32)] * n) is None]
        assert counts == valid


def test_nothing_to_do() -> None:
    """No batches; and no time steps, which leaves the states unchanged."""
    for steps, batches in ((3, 0), (0, 2)):
        weights = Weights(F32, EVERYTHING, 2, batches=batches)
        states = [given(F32, each.value, dims=()) for each in weights.states]
        x = given(F32, np.zeros((steps, batches, INPUTS)), dims=(0, 0, INPUTS))
        inputs = [x, *weights.cell(), *states, *scalars(F32), scalar(T.BOOL, True), *weights.four("norm")]
        for config in (None, "edge"):
            sequence, *last = run(O.UNIDIRECTIONAL_SEQUENCE_LSTM, inputs, [result(F32)] * 3, config)
            assert sequence.shape == (steps, batches, OUTPUTS)
            for array, state in zip(last, weights.states, strict=True):
                np.testing.assert_array_equal(array, state.value)
