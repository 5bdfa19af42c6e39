"""Recurrent layers, normalisations and look-ups in every type that the specification allows: the driver supports,
prepares and executes them, and refuses other types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.types import ErrorStatus, OperandLifeTime
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.allowed_types import FLOATS, FOUR, QUANT, SCALAR, F, H, Q, S, W
from tests.support.nnapi.client import Frame, execute_sync, prepared_model
from tests.support.nnapi.one_operation import Given, build, given, i32, problem, result, run, scalar, vector

Layer = tuple[list[Given], list[Given]]
"""Inputs and outputs of an operation."""
SYMM, WIDE = T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT16_SYMM
TENSORS = [kind for kind in T if kind.name.startswith("TENSOR_") and kind < T.OEM]
BATCHES, INPUTS, UNITS, TIME = 2, 3, 4, 2
"""A projection of four units has four outputs, too."""
CELL = [(UNITS, INPUTS)] * 4 + [(UNITS, UNITS)] * 4 + [(UNITS,)] * 7 + [(UNITS, UNITS), (UNITS,)]
STATES, NORMS = [(BATCHES, UNITS)] * 2, [(UNITS,)] * 4
SEQUENCE = (TIME, BATCHES, INPUTS)
RNN = [(UNITS, INPUTS), (UNITS, UNITS), (UNITS,), (BATCHES, UNITS)]


def tensors(kind: T, *shapes: tuple[int, ...]) -> list[Given]:
    """Return small numbers, with scale 1/128 for types with a scale."""
    scale = 1 / 128 if kind in QUANT or kind is T.TENSOR_QUANT8_SYMM_PER_CHANNEL else 0.0
    storage, rng = STORAGE[kind], np.random.default_rng(len(shapes))
    if storage.kind == "f":
        return [given(kind, rng.uniform(-1, 1, shape)) for shape in shapes]
    return [given(kind, rng.integers(0, 2 if storage.kind == "b" else 100, shape), scale) for shape in shapes]


def numbers(kind: T, *values: float) -> list[Given]:
    """Return scalars of the type that matches a tensor type."""
    return [scalar(SCALAR[H] if kind is H else SCALAR[F], value) for value in values]


def flags(*values: bool) -> list[Given]:
    return [scalar(T.BOOL, value) for value in values]


def outputs(kind: T, count: int = 1) -> list[Given]:
    return [result(kind, 1 / 128 if kind in QUANT else 0.0)] * count


def lstm(kind: T) -> list[Layer]:
    inputs = [*tensors(kind, (BATCHES, INPUTS), *CELL, *STATES), i32(4), *numbers(kind, 0.5, 0.5)]
    return [(inputs, outputs(kind, 4)), ([*inputs, *tensors(kind, *NORMS)], outputs(kind, 4))]


def unidirectional_lstm(kind: T) -> list[Layer]:
    scalars = [i32(4), *numbers(kind, 0.5, 0.5), *flags(True)]
    inputs = [*tensors(kind, SEQUENCE, *CELL, *STATES), *scalars, *tensors(kind, *NORMS)]
    return [(inputs, outputs(kind, count)) for count in (1, 3)]


def bidirectional_lstm(kind: T) -> list[Layer]:
    weights = tensors(kind, SEQUENCE, *CELL * 2, *STATES * 2, SEQUENCE, *[(UNITS, INPUTS)] * 8)
    clips, norms = numbers(kind, 0.5, 0.5), tensors(kind, *NORMS * 2)
    return [
        ([*weights, i32(4), *clips, *flags(merge, True), *norms], outputs(kind, 2 - merge + states))
        for merge in (False, True)
        for states in (0, 4)
    ]


def rnn(kind: T) -> list[Layer]:
    return [([*tensors(kind, (BATCHES, INPUTS), *RNN), i32(1)], outputs(kind, 2))]


def unidirectional_rnn(kind: T) -> list[Layer]:
    inputs = [*tensors(kind, SEQUENCE, *RNN), i32(1), i32(1)]
    return [(inputs, outputs(kind, count)) for count in (1, 2)]


def bidirectional_rnn(kind: T) -> list[Layer]:
    weights = tensors(kind, SEQUENCE, *RNN * 2, SEQUENCE, *[(UNITS, INPUTS)] * 2)
    return [
        ([*weights, i32(1), *flags(True, merge)], outputs(kind, 2 - merge + states))
        for merge in (False, True)
        for states in (0, 2)
    ]


def svdf(kind: T) -> list[Layer]:
    filters, memory = 4, 5
    shapes = [(BATCHES, INPUTS), (filters, INPUTS), (filters, memory), (2,), (BATCHES, filters * memory)]
    return [([*tensors(kind, *shapes), i32(2), i32(0)], outputs(kind, 2))]


def lstm_16_bit(kind: T) -> list[Layer]:
    x, state = (given(kind, np.full((BATCHES, size), 140), 1 / 128, 128) for size in (INPUTS, UNITS))
    weights = tensors(kind, *[(UNITS, INPUTS)] * 4, *[(UNITS, UNITS)] * 4)
    biases = [given(W, np.arange(UNITS), 2.0**-14)] * 4
    cell = given(WIDE, np.ones((BATCHES, UNITS)), 2.0**-11)
    return [([x, *weights, *biases, cell, state], [result(WIDE, 2.0**-11), result(kind, 1 / 128, 128)])]


def lstm_8_bit(kind: T) -> list[Layer]:
    weights = tensors(SYMM, *[(UNITS, INPUTS)] * 4, *[(UNITS, UNITS)] * 4)
    biases, projection = tensors(W, *NORMS), [*tensors(SYMM, (UNITS, UNITS)), *tensors(W, (UNITS,))]
    cell = given(WIDE, np.ones((BATCHES, UNITS)), 2.0**-11)
    states, norms = [*tensors(kind, (BATCHES, UNITS)), cell], tensors(WIDE, *NORMS)
    scales = [*numbers(F, 0, 0, 0.01, 0.01, 0.01, 0.01), i32(0), *numbers(F, 0.01)]
    inputs = [*tensors(kind, (BATCHES, INPUTS)), *weights, *tensors(WIDE, *[(UNITS,)] * 3), *biases, *projection]
    return [([*inputs, *states, *norms, *scales], [*outputs(kind), result(WIDE, 2.0**-11), *outputs(kind)])]


def embedding_lookup(kind: T) -> list[Layer]:
    return [([vector([2, 0]), *tensors(kind, (3, 2))], outputs(kind))]


def hashtable_lookup(kind: T) -> list[Layer]:
    return [([vector([2, 9]), vector([1, 2, 5]), *tensors(kind, (3, 2))], [*outputs(kind), result(Q, 1.0)])]


def lsh_projection(kind: T) -> list[Layer]:
    return [
        ([*tensors(seed, (2, 3)), *tensors(kind, (4, 2)), *tensors(seed, (4,)), i32(3)], outputs(W)) for seed in FLOATS
    ]


def multinomial(kind: T) -> list[Layer]:
    return [([*tensors(kind, (2, 5)), i32(20), vector([3, 4])], outputs(W))]


def normalisation(*scalars: float, axis: bool, scale: float = 0.0, zero: int = 0) -> Callable[[T], list[Layer]]:
    """Return an operation with scalars of the tensor's type, optionally an axis, and an output with fixed
    quantisation."""

    def layers(kind: T) -> list[Layer]:
        made = [result(kind, scale, zero - 128 * (kind is S)) if kind in QUANT else result(kind)]
        inputs = [*tensors(kind, (2, 3, 4)), *numbers(kind, *scalars)]
        return [(inputs, made), *[([*inputs, i32(-2)], made)] * axis]

    return layers


def local_response(kind: T) -> list[Layer]:
    inputs = [*tensors(kind, (2, 3, 4)), i32(1), *numbers(kind, 1, 0.5, 0.75)]
    return [(inputs, outputs(kind)), ([*inputs, i32(1)], outputs(kind))]


def log_softmax(kind: T) -> list[Layer]:
    return [([*tensors(kind, (2, 3, 4)), *numbers(kind, 0.5), i32(1)], outputs(kind))]


def instance_normalisation(kind: T) -> list[Layer]:
    return [
        ([*tensors(kind, (2, 3, 4, 2)), *numbers(kind, 2, 1, 0.5), *flags(nchw)], outputs(kind))
        for nchw in (False, True)
    ]


LAYERS: dict[O, tuple[tuple[T, ...], Callable[[T], list[Layer]]]] = {
    O.LSTM: (FLOATS, lstm),
    O.UNIDIRECTIONAL_SEQUENCE_LSTM: (FLOATS, unidirectional_lstm),
    O.BIDIRECTIONAL_SEQUENCE_LSTM: (FLOATS, bidirectional_lstm),
    O.RNN: (FLOATS, rnn),
    O.UNIDIRECTIONAL_SEQUENCE_RNN: (FLOATS, unidirectional_rnn),
    O.BIDIRECTIONAL_SEQUENCE_RNN: (FLOATS, bidirectional_rnn),
    O.SVDF: (FLOATS, svdf),
    O.QUANTIZED_16BIT_LSTM: ((Q,), lstm_16_bit),
    O.QUANTIZED_LSTM: ((S,), lstm_8_bit),
    O.EMBEDDING_LOOKUP: ((F, H, W, Q, S), embedding_lookup),
    O.HASHTABLE_LOOKUP: ((F, W, Q), hashtable_lookup),
    O.LSH_PROJECTION: (
        tuple(kind for kind in TENSORS if kind is not T.TENSOR_QUANT8_SYMM_PER_CHANNEL),
        lsh_projection,
    ),
    O.RANDOM_MULTINOMIAL: (FLOATS, multinomial),
    O.L2_NORMALIZATION: (FOUR, normalisation(axis=True, scale=1 / 128, zero=128)),
    O.LOCAL_RESPONSE_NORMALIZATION: (FLOATS, local_response),
    O.SOFTMAX: (FOUR, normalisation(0.5, axis=True, scale=1 / 256)),
    O.LOG_SOFTMAX: (FLOATS, log_softmax),
    O.INSTANCE_NORMALIZATION: (FLOATS, instance_normalisation),
}
"""The types of the main tensor, and the operation in every form for one of them."""
each_operation = pytest.mark.parametrize(
    "operation",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each is O.BIDIRECTIONAL_SEQUENCE_LSTM else [], id=each.name)
        for each in LAYERS
    ],
)
"""One has so many forms that it takes as long as ten others; its cell is that of the unidirectional one."""


@pytest.fixture(scope="module", params=["tiny", pytest.param("edge", marks=pytest.mark.slow)])
def device(request: Any, tmp_path_factory: Any) -> Any:
    with open_device(request.param, state_dir=tmp_path_factory.mktemp("state")) as opened:
        yield opened


@each_operation
def test_every_type_runs_and_agrees_with_the_reference(device: Any, operation: O) -> None:
    kinds, layers = LAYERS[operation]
    for kind in kinds:
        for inputs, made in layers(kind):
            model = build(operation, inputs, made)
            assert device.getSupportedOperations_1_3(model) == (ErrorStatus.NONE, [True]), kind
            wanted = run(operation, inputs, made)
            asked = [each.value for each in inputs if each.lifetime is OperandLifeTime.SUBGRAPH_INPUT]
            frame = Frame(asked, [array.nbytes for array in wanted])
            outcome = execute_sync(prepared_model(device, model), frame)
            assert outcome.status is ErrorStatus.NONE, kind
            for index, (each, array) in enumerate(zip(made, wanted, strict=True)):
                got = outcome.array(index, STORAGE[each.type])
                near = 5 * np.finfo(array.dtype).eps if array.dtype.kind == "f" else 0
                np.testing.assert_allclose(got, array, rtol=near, atol=near, err_msg=f"{kind.name} output {index}")
            frame.close()


@each_operation
def test_other_types_are_refused(operation: O) -> None:
    kinds, layers = LAYERS[operation]
    for kind in TENSORS:
        for inputs, made in layers(kind):
            assert (problem(operation, inputs, made) is None) == (kind in kinds), kind
