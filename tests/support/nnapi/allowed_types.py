"""Operand types that the specification allows, with every combination for elementwise and data movement operations."""

import itertools

from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as O

F, H, W, B = T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_BOOL8
Q, S = T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED
OTHER_Q = (T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT16_ASYMM, T.TENSOR_QUANT16_SYMM)
SCALAR = {F: T.FLOAT32, H: T.FLOAT16, W: T.INT32}
QUANT = {Q, S, *OTHER_Q}

FLOATS, FOUR, FIVE = (F, H), (F, H, Q, S), (F, H, W, Q, S)


def alike(operations, kinds, tensors, *rest):
    """Operations on ``tensors`` tensors of one type and other inputs of fixed types, with outputs of the same type."""
    return {each: [((kind,) * tensors + rest, (kind,)) for kind in kinds] for each in operations}


def optional_layout(operation, *rest):
    """An image operation with an optional layout operand."""
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
    **alike([O.EXP, O.FLOOR, O.LOG, O.SIN, O.SQRT], FLOATS, 1),
    **alike([O.RELU, O.RELU1, O.RELU6, O.LOGISTIC, O.TANH, O.HARD_SWISH, O.RSQRT], FOUR, 1),
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
    **alike([O.SQUEEZE, O.TRANSPOSE, O.PAD], FOUR, 1, W),
    **alike([O.RESHAPE, O.REVERSE], FIVE, 1, W),
    **alike([O.MIRROR_PAD], FIVE, 1, W, T.INT32),
    **alike([O.BATCH_MATMUL], (F, H, W, S), 2, T.BOOL, T.BOOL),
    O.PACK: [((T.INT32, kind, kind, kind), (kind,)) for kind in FIVE],
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
    O.TOPK_V2: [((kind, T.INT32), (kind, W)) for kind in FIVE],
}
OUTPUT = {O.LOGISTIC: (1 / 256, 0), O.TANH: (1 / 128, 128)}
"""Scale and zero point of TENSOR_QUANT8_ASYMM outputs for which they are prescribed."""
