"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN, BIDIRECTIONAL_SEQUENCE_RNN: output = state = activation(W x + R state + bias).

The products with the inputs of all time steps are one matrix product; each step computes R state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from npusim.graph import Tensor

from ..types import OperationType
from .definition import define
from .dimensions import Dimensions, SequenceDimensions
from .lowering import Lowering
from .presence import all_or_none, check_presence, needs, presence_rules
from .recurrent import add, columns, give_directions, merged_outputs, product, sequence_of
from .rules import activation, one_of, outputs_beyond
from .signature import FLOATS, forms, rows
from .versions import V1_3


class Layer(NamedTuple):
    """The inputs of one layer: weights [units, inputs], recurrent weights [units, units] and bias [units] in order, its
    state, the activation, and the weights of the auxiliary input, if any."""

    first: int
    state: int
    activation: int
    auxiliary: int = -1


def _inputs(op: Lowering, layer: Layer, x: Tensor, auxiliary: Tensor | None) -> Tensor:
    """The contribution of the inputs to every time step, and the bias."""
    total = product(op, x, columns(op, op.real(layer.first)), op.real(layer.first + 2))
    if auxiliary is None:
        return total
    return add(op, total, product(op, auxiliary, columns(op, op.real(layer.auxiliary))))


def _step(op: Lowering, layer: Layer, inputs: Tensor, recurrent: Tensor, state: Tensor) -> Tensor:
    """The state after one time step; ``recurrent``: the columns of the recurrent weights."""
    return op.activate(add(op, inputs, product(op, state, recurrent)), layer.activation)


def _run(
    op: Lowering, layer: Layer, x: Tensor, auxiliary: Tensor | None, time_major: bool, backward: bool = False
) -> tuple[Tensor, Tensor]:
    """The output of every time step as a sequence, and the state after the last one."""
    state, recurrent = op.real(layer.state), columns(op, op.real(layer.first + 1))

    def step(inputs: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        return [_step(op, layer, inputs, recurrent, states[0])]

    inputs = _inputs(op, layer, x, auxiliary)
    outputs, (after,) = sequence_of(op, time_major).run(op, inputs, [state], step, backward)
    return outputs, after


_SINGLE = Layer(first=1, state=4, activation=5)
_SINGLE_SHAPES = {1: "units inputs", 2: "units units", 3: "units", 4: "batches units"}

_RNN_SHAPES = Dimensions({0: "batches inputs", **_SINGLE_SHAPES})


def _rnn(op: Lowering) -> None:
    _RNN_SHAPES.sizes(op)
    inputs = _inputs(op, _SINGLE, op.real(0), None)
    state = _step(op, _SINGLE, inputs, columns(op, op.real(_SINGLE.first + 1)), op.real(_SINGLE.state))
    for index in range(2):  # the state and the output are the same
        op.give_real(state, index)


define(OperationType.RNN, forms("T*5 i", "T*2", rows("T", FLOATS)), _rnn, _RNN_SHAPES.agree, activation(5))


_UNIDIRECTIONAL_SHAPES = SequenceDimensions(6, {0: "time batches inputs", **_SINGLE_SHAPES})


def _unidirectional(op: Lowering) -> None:
    _UNIDIRECTIONAL_SHAPES.sizes(op)
    sequence, state = _run(op, _SINGLE, op.real(0), None, bool(op.scalar(6)))
    for index, tensor in enumerate((sequence, state)[: op.output_count]):
        op.give_real(tensor, index)


define(
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    forms("T*5 i i", "T", rows("T", FLOATS)) | forms("T*5 i i", "T*2", rows("T", FLOATS)),
    _unidirectional,
    _UNIDIRECTIONAL_SHAPES.agree,
    activation(5),
    one_of(6, "the layout of time", 0, 1),
    later=[outputs_beyond(1, V1_3)],
)


_FORWARD = Layer(first=1, state=4, activation=12, auxiliary=10)
_BACKWARD = Layer(first=5, state=8, activation=12, auxiliary=11)
_AUXILIARY = 9
_TIME_MAJOR, _MERGE = 13, 14
_OPTIONAL = (9, 10, 11)
_BIDIRECTIONAL_SHAPES = SequenceDimensions(
    _TIME_MAJOR,
    {
        0: "time batches inputs",
        1: "forward inputs",
        2: "forward forward",
        3: "forward",
        4: "batches forward",
        5: "backward backward_inputs",
        6: "backward backward",
        7: "backward",
        8: "batches backward",
        9: "time batches auxiliary",
        10: "forward auxiliary",
        11: "backward auxiliary",
    },
    _OPTIONAL,
)
_LINKING = (
    all_or_none("auxiliary weights", _FORWARD.auxiliary, _BACKWARD.auxiliary),
    needs("auxiliary weights", _FORWARD.auxiliary, _AUXILIARY),
)


def _bidirectional(op: Lowering) -> None:
    """If the auxiliary input has no weights, the backward layer reads it instead of the input."""
    check_presence(op, _LINKING)
    _BIDIRECTIONAL_SHAPES.sizes(op)
    x, auxiliary = op.real(0), None if op.omitted(_AUXILIARY) else op.real(_AUXILIARY)
    backward_x = x
    if auxiliary is not None and op.omitted(_FORWARD.auxiliary):
        # Cross-linking: without weights for it, the auxiliary input replaces the backward layer's own.
        backward_x, auxiliary = auxiliary, None
    time_major = bool(op.scalar(_TIME_MAJOR))
    forward, forward_state = _run(op, _FORWARD, x, auxiliary, time_major)
    backward, backward_state = _run(op, _BACKWARD, backward_x, auxiliary, time_major, backward=True)
    give_directions(op, [forward, backward], [forward_state, backward_state], bool(op.scalar(_MERGE)))


_BIDIRECTIONAL_FORMS = [forms("T*12 i b b", f"T*{count}", rows("T", FLOATS)) for count in (1, 2, 3, 4)]
define(
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
    frozenset().union(*_BIDIRECTIONAL_FORMS),
    _bidirectional,
    *presence_rules(_LINKING),
    _BIDIRECTIONAL_SHAPES.agree,
    activation(12),
    merged_outputs(_MERGE, 2, 2),
    optional=_OPTIONAL,
    later=[outputs_beyond(2, V1_3)],
)
