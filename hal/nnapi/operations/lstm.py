"""LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM, BIDIRECTIONAL_SEQUENCE_LSTM: where the inputs of their cells are, and in which
order time passes."""

from __future__ import annotations

from npusim.graph import Tensor

from ..types import OperationType
from .definition import define
from .dimensions import Dimensions, SequenceDimensions
from .lowering import Lowering
from .lstm_cell import Cell, Network
from .presence import all_or_none, check_presence, needs, presence_rules
from .recurrent import give_directions, merged_outputs, sequence_of
from .rules import inputs_beyond, outputs_beyond
from .signature import FLOATS, SCALAR_OF, Form, forms
from .versions import V1_2, V1_3


def _run(
    op: Lowering, cell: Cell, x: Tensor, auxiliary: Tensor | None, time_major: bool, backward: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The output of every time step as a sequence, and output and cell state after the last one."""
    network, sequence = Network(op, cell), sequence_of(op, time_major)
    states = network.output, network.state
    outputs, after = sequence.run(op, network.inputs(x, auxiliary), states, network.step, backward)
    return outputs, after[0], after[1]


def _signatures(inputs: str, *outputs: int) -> frozenset[Form]:
    """Forms of T (a tensor) and S (a scalar of the same floating-point type), for these numbers of outputs."""
    table = [{"T": kind, "S": SCALAR_OF[kind]} for kind in FLOATS]
    return frozenset().union(*(forms(inputs, f"T*{count}", table) for count in outputs))


_STEP = Cell(first=1, state=18, scalars=20, norm=23)
_STEP_CONDITIONS = _STEP.conditions()
_STEP_SHAPES = Dimensions({0: "batches inputs", **_STEP.shapes("inputs", "units", "outputs")}, _STEP.optional())


def _lstm(op: Lowering) -> None:
    """Output 0 is scratch memory; it gets the sums of the gates."""
    check_presence(op, _STEP_CONDITIONS)
    _STEP_SHAPES.sizes(op)
    network = Network(op, _STEP)
    sums = network.sums(network.inputs(op.real(0), None))
    op.give_real(sums, 0)
    output = network.advance(sums)
    for index, tensor in enumerate((output, network.state, output), 1):
        op.give_real(tensor, index)


define(
    OperationType.LSTM,
    _signatures("T*20 i S S", 4) | _signatures("T*20 i S S T*4", 4),
    _lstm,
    *presence_rules(_STEP_CONDITIONS),
    _STEP_SHAPES.agree,
    *_STEP.rules(),
    optional=_STEP.optional(),
    later=[inputs_beyond(23, V1_2)],
)


_SEQUENCE = Cell(first=1, state=18, scalars=20, norm=24)
_SEQUENCE_TIME_MAJOR = 23
_SEQUENCE_CONDITIONS = _SEQUENCE.conditions()
_SEQUENCE_SHAPES = SequenceDimensions(
    _SEQUENCE_TIME_MAJOR,
    {0: "time batches inputs", **_SEQUENCE.shapes("inputs", "units", "outputs")},
    _SEQUENCE.optional(),
)


def _unidirectional(op: Lowering) -> None:
    check_presence(op, _SEQUENCE_CONDITIONS)
    _SEQUENCE_SHAPES.sizes(op)
    results = _run(op, _SEQUENCE, op.real(0), None, bool(op.scalar(_SEQUENCE_TIME_MAJOR)))
    for index, tensor in enumerate(results[: op.output_count]):
        op.give_real(tensor, index)


define(
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
    _signatures("T*20 i S S b T*4", 1, 3),
    _unidirectional,
    *presence_rules(_SEQUENCE_CONDITIONS),
    _SEQUENCE_SHAPES.agree,
    *_SEQUENCE.rules(),
    optional=_SEQUENCE.optional(),
    later=[outputs_beyond(1, V1_3)],
)


_FORWARD = Cell(first=1, state=35, scalars=48, norm=53, auxiliary=40)
_BACKWARD = Cell(first=18, state=37, scalars=48, norm=57, auxiliary=44)
_AUXILIARY, _MERGE, _TIME_MAJOR = 39, 51, 52
_BOTH_CONDITIONS = (
    *_FORWARD.conditions(),
    *_BACKWARD.conditions(),
    all_or_none("auxiliary weights", _FORWARD.auxiliary + 3, _BACKWARD.auxiliary + 3),
    needs("auxiliary weights", _FORWARD.auxiliary + 3, _AUXILIARY),
)
_BOTH_OPTIONAL = (*_FORWARD.optional(), *_BACKWARD.optional(), _AUXILIARY)
_BOTH_SHAPES = SequenceDimensions(
    _TIME_MAJOR,
    {
        0: "time batches inputs",
        **_FORWARD.shapes("inputs", "forward", "forward_outputs", "auxiliary"),
        **_BACKWARD.shapes("backward_inputs", "backward", "backward_outputs", "auxiliary"),
        _AUXILIARY: "time batches auxiliary",
    },
    _BOTH_OPTIONAL,
)


def _bidirectional(op: Lowering) -> None:
    """If the auxiliary input has no weights, the backward cell reads it instead of the input."""
    check_presence(op, _BOTH_CONDITIONS)
    _BOTH_SHAPES.sizes(op)
    x, auxiliary = op.real(0), None if op.omitted(_AUXILIARY) else op.real(_AUXILIARY)
    backward_x = x
    if auxiliary is not None and op.omitted(_FORWARD.auxiliary + 3):
        backward_x, auxiliary = auxiliary, None
    time_major = bool(op.scalar(_TIME_MAJOR))
    forward, *forward_states = _run(op, _FORWARD, x, auxiliary, time_major)
    backward, *backward_states = _run(op, _BACKWARD, backward_x, auxiliary, time_major, backward=True)
    give_directions(op, [forward, backward], [*forward_states, *backward_states], bool(op.scalar(_MERGE)))


define(
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
    _signatures("T*48 i S S b b T*8", 1, 2, 5, 6),
    _bidirectional,
    *presence_rules(_BOTH_CONDITIONS),
    _BOTH_SHAPES.agree,
    *_FORWARD.rules(),
    merged_outputs(_MERGE, 2, 4),
    optional=_BOTH_OPTIONAL,
    later=[outputs_beyond(2, V1_3)],
)
