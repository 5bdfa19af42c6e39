"""Operand types of elementwise and movement operations: exactly those that the specification allows."""

import itertools

import pytest

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.view import SCALARS, OpView
from hal.nnapi.types import Operand, Operation, Subgraph
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O
from tests.support.nnapi.allowed_types import FORMS, OUTPUT, QUANT, Q, S

TYPES = [kind for kind in T if kind < T.OEM]
IMAGES = (O.SPACE_TO_DEPTH, O.DEPTH_TO_SPACE, O.SPACE_TO_BATCH_ND, O.BATCH_TO_SPACE_ND)
VECTORS = {
    O.RESHAPE: (1,), O.SQUEEZE: (1,), O.TRANSPOSE: (1,), O.TILE: (1,), O.FILL: (0,), O.SLICE: (1, 2),
    O.STRIDED_SLICE: (1, 2, 3), O.SPACE_TO_BATCH_ND: (1,), O.BATCH_TO_SPACE_ND: (1,), O.MEAN: (1,),
    O.REDUCE_ALL: (1,), O.REDUCE_ANY: (1,), O.REDUCE_MAX: (1,), O.REDUCE_MIN: (1,), O.REDUCE_PROD: (1,),
    O.REDUCE_SUM: (1,), O.REVERSE: (1,),
}  # fmt: skip
"""Inputs that must have one dimension."""
VARIADIC = {O.CONCATENATION: (0, 1, 2), O.PACK: (1, 2, 3)}
"""Inputs that may be left out: entries of a list."""


def view(operation, inputs, outputs):
    """Return operands of these types with unknown dimensions but a valid rank."""

    def rank(index):
        if index in VECTORS.get(operation, ()):
            return 1
        if operation is O.PACK and index == len(inputs):
            return 3
        return 4 if index == 0 and operation in IMAGES else 2

    operands = [Operand(kind, [] if kind in SCALARS else [0] * rank(i)) for i, kind in enumerate((*inputs, *outputs))]
    for operand in operands:
        operand.scale = 0.5 if operand.type in QUANT else 0.0
    for operand in operands[len(inputs) :]:
        if operand.type in (Q, S) and operation in OUTPUT:
            operand.scale, zero = OUTPUT[operation]
            operand.zeroPoint = zero - 128 * (operand.type is S)
    numbers = list(range(len(operands)))
    each = Operation(operation, numbers[: len(inputs)], numbers[len(inputs) :])
    return OpView(Subgraph(operands, [each], [], []), each, lambda operand: None)


def refused(operation, inputs, outputs):
    return REGISTRY[operation].problem(view(operation, inputs, outputs)) is not None


def replaced(kinds, index, kind):
    return (*kinds[:index], kind, *kinds[index + 1 :])


@pytest.mark.parametrize("operation", FORMS, ids=lambda operation: operation.name)
def test_types(operation):
    legal = set(FORMS[operation])
    for inputs, outputs in legal:
        assert not refused(operation, inputs, outputs), REGISTRY[operation].problem(view(operation, inputs, outputs))
        for index, kind in itertools.product(range(len(inputs)), TYPES):
            changed = replaced(inputs, index, kind)
            assert ((changed, outputs) not in legal) == refused(operation, changed, outputs), (changed, outputs)
        for index, kind in itertools.product(range(len(outputs)), TYPES):
            changed = replaced(outputs, index, kind)
            assert ((inputs, changed) not in legal) == refused(operation, inputs, changed), (inputs, changed)


@pytest.mark.parametrize("operation", FORMS, ids=lambda operation: operation.name)
def test_numbers_of_operands(operation):
    legal = set(FORMS[operation])
    for inputs, outputs in legal:
        assert refused(operation, (*inputs, T.INT32), outputs) or ((*inputs, T.INT32), outputs) in legal
        assert refused(operation, inputs, (*outputs, T.INT32))
        assert refused(operation, inputs, outputs[:-1]) or (operation is O.SPLIT and len(outputs) > 1)
        for index in range(len(inputs)):
            fewer = inputs[:index] + inputs[index + 1 :]
            still = (fewer, outputs) in legal or index in VARIADIC.get(operation, ())
            assert refused(operation, fewer, outputs) != still, fewer
