"""Operand types of the elementwise and the moving operations: all that the specification allows, and no other."""

import itertools

import pytest

from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.view import SCALARS, OpView
from hal.nnapi.types import Operand, Operation, Subgraph
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O

F, H, W, B = T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_BOOL8
Q, S = T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED
OTHER_Q = (T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT16_ASYMM, T.TENSOR_QUANT16_SYMM)
SCALAR = {F: T.FLOAT32, H: T.FLOAT16, W: T.INT32}
TYPES = [kind for kind in T if kind < T.OEM]
QUANT = {Q, S, *OTHER_Q}

FLOATS, FOUR, FIVE = (F, H), (F, H, Q, S), (F, H, W, Q, S)


def alike(operations, kinds, tensors, *rest):
    """Operations on ``tensors`` tensors of one type, other inputs of fixed types, and outputs of that type."""
    return {each: [((kind,) * tensors + rest, (kind,)) for kind in kinds] for each in operations}


def optional_layout(operation, *rest):
    """An operation on images that may be told of their layout."""
    return {operation: [((k, *rest, *tail), (k,)) for k in FOUR for tail in ((), (T.BOOL,))]}


FORMS = {
    **alike([O.ADD, O.SUB, O.MUL], FIVE, 2, T.INT32),
    **alike([O.DIV], (F, H, W), 2, T.INT32),
    **alike([O.MAXIMUM, O.MINIMUM], FIVE, 2),
    **alike([O.POW], FLOATS, 2),
    **alike([O.PRELU], FOUR, 2),
    **{
        each: [((kind, kind), (B,)) for kind in (B, *FIVE)]
        for each in (O.EQUAL, O.NOT_EQUAL, O.LESS, O.LESS_EQUAL, O.GREATER, O.GREATER_EQUAL)
    },
    **alike([O.LOGICAL_AND, O.LOGICAL_OR], [B], 2),
    **alike([O.LOGICAL_NOT], [B], 1),
    O.SELECT: [((B, kind, kind), (kind,)) for kind in FIVE],
    **alike([O.ABS, O.NEG], (F, H, W), 1),
    **alike([O.EXP, O.FLOOR, O.LOG, O.RSQRT, O.SIN, O.SQRT], FLOATS, 1),
    **alike([O.RELU, O.RELU1, O.RELU6, O.LOGISTIC, O.TANH, O.HARD_SWISH], FOUR, 1),
    O.ELU: [((kind, SCALAR[kind]), (kind,)) for kind in FLOATS],
    O.CAST: [((a,), (b,)) for a, b in itertools.product((F, H, W, Q), repeat=2)]
    + [((kind,), (kind,)) for kind in (B, S, *OTHER_Q)],
    O.QUANTIZE: [((a,), (b,)) for a in FLOATS for b in (Q, S)],
    O.DEQUANTIZE: [
        ((a,), (b,)) for a in (Q, S, T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT8_SYMM_PER_CHANNEL) for b in FLOATS
    ],
    **alike([O.REDUCE_ALL, O.REDUCE_ANY], [B], 1, W, T.BOOL),
    **alike([O.REDUCE_MAX, O.REDUCE_MIN], FOUR, 1, W, T.BOOL),
    **alike([O.REDUCE_PROD, O.REDUCE_SUM], FLOATS, 1, W, T.BOOL),
    **alike([O.MEAN], FOUR, 1, W, T.INT32),
    **{each: [((kind, T.INT32), (W,)) for kind in FIVE] for each in (O.ARGMAX, O.ARGMIN)},
    **alike([O.RESHAPE, O.SQUEEZE, O.TRANSPOSE, O.PAD], FOUR, 1, W),
    **alike([O.EXPAND_DIMS], FIVE, 1, T.INT32),
    **alike([O.SLICE], FIVE, 1, W, W),
    **alike([O.STRIDED_SLICE], FOUR, 1, W, W, W, T.INT32, T.INT32, T.INT32),
    O.SPLIT: [((kind, T.INT32, T.INT32), (kind,) * 2) for kind in FIVE],
    **alike([O.CONCATENATION], FOUR, 3, T.INT32),
    **alike([O.TILE], FIVE, 1, W),
    **alike([O.GATHER], FIVE, 1, T.INT32, W),
    O.FILL: [((W, SCALAR[kind]), (kind,)) for kind in (F, H, W)],
    O.RANK: [((kind,), (T.INT32,)) for kind in T if kind.name.startswith("TENSOR_") and kind < T.OEM],
    O.PAD_V2: [((kind, W, SCALAR.get(kind, T.INT32)), (kind,)) for kind in FOUR],
    **optional_layout(O.SPACE_TO_DEPTH, T.INT32),
    **optional_layout(O.DEPTH_TO_SPACE, T.INT32),
    **optional_layout(O.SPACE_TO_BATCH_ND, W, W),
    **optional_layout(O.BATCH_TO_SPACE_ND, W),
    **alike([O.CHANNEL_SHUFFLE], FOUR, 1, T.INT32, T.INT32),
}
OUTPUT = {O.LOGISTIC: (1 / 256, 0), O.TANH: (1 / 128, 128)}
"""Scale and zero point of TENSOR_QUANT8_ASYMM outputs that must have certain ones."""
IMAGES = (O.SPACE_TO_DEPTH, O.DEPTH_TO_SPACE, O.SPACE_TO_BATCH_ND, O.BATCH_TO_SPACE_ND)
VECTORS = {
    O.RESHAPE: (1,), O.SQUEEZE: (1,), O.TRANSPOSE: (1,), O.TILE: (1,), O.FILL: (0,), O.SLICE: (1, 2),
    O.STRIDED_SLICE: (1, 2, 3), O.SPACE_TO_BATCH_ND: (1,), O.BATCH_TO_SPACE_ND: (1,), O.MEAN: (1,),
    O.REDUCE_ALL: (1,), O.REDUCE_ANY: (1,), O.REDUCE_MAX: (1,), O.REDUCE_MIN: (1,), O.REDUCE_PROD: (1,),
    O.REDUCE_SUM: (1,),
}  # fmt: skip
"""Inputs that must have one dimension."""


def view(operation, inputs, outputs):
    """Operands of these types whose dimensions are unknown but of legal number."""

    def rank(index):
        if index in VECTORS.get(operation, ()):
            return 1
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
            still = (fewer, outputs) in legal or (operation is O.CONCATENATION and index < len(inputs) - 1)
            assert refused(operation, fewer, outputs) != still, fewer
