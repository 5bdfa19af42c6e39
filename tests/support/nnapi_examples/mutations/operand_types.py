"""Operands with every other type, and which of them are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hal.nnapi.operations.view import QUANTISED, SCALARS, STORAGE
from hal.nnapi.types import ExtraParams, Model, Operand, SymmPerChannelQuantParams
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from tests.support.nnapi_examples.mutations.copies import each_operand, with_operand


def operation_operand_type(model: Model) -> Iterator[tuple[str, Model]]:
    """Give an operand every other type, with dimensions, scale and zero point valid for that type."""
    for number, operand in each_operand(model):
        legal = legal_types(model, number)
        for kind in T:
            if kind not in (operand.type, T.OEM, T.TENSOR_OEM_BYTE) and kind not in legal:
                yield f"operand {number} as {kind.name}", with_operand(model, number, retyped(operand, kind))


def retyped(operand: Operand, kind: T) -> Operand:
    """Return the operand with another type, valid by itself."""
    tensor = kind not in SCALARS and kind != T.SUBGRAPH
    dims = (list(operand.dimensions) or [1]) if tensor else []
    low, high = ZERO_LIMITS.get(kind, (0, 0))
    extra = None
    if kind == T.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        extra = ExtraParams(SymmPerChannelQuantParams([1.0] * dims[0], 0))
    return replace(
        operand,
        type=kind,
        dimensions=dims,
        scale=(operand.scale or 1.0) if kind in QUANTISED else operand.scale if kind == T.TENSOR_INT32 else 0.0,
        zeroPoint=operand.zeroPoint if low <= operand.zeroPoint <= high else 0,
        extraParams=extra,
    )


ZERO_LIMITS = {
    T.TENSOR_QUANT8_ASYMM: (0, 255),
    T.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127),
    T.TENSOR_QUANT16_ASYMM: (0, 65535),
}
QUANT8 = {T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_ASYMM_SIGNED}
FLOATS = {T.TENSOR_FLOAT32, T.TENSOR_FLOAT16}
TENSORS = set(STORAGE) - SCALARS
CONVOLUTIONS = (Op.CONV_2D, Op.DEPTHWISE_CONV_2D, Op.GROUPED_CONV_2D, Op.TRANSPOSE_CONV_2D)
ANYWHERE = {
    Op.CAST: {*FLOATS, T.TENSOR_INT32, *QUANT8},
    Op.ARGMAX: {*FLOATS, T.TENSOR_INT32, *QUANT8},
    Op.ARGMIN: {*FLOATS, T.TENSOR_INT32, *QUANT8},
}
"""Operations that accept many types. In a model with such an operation, no operand is changed to one of them."""
INPUT_TYPES: dict[tuple[Op, int], set[T]] = {
    (Op.QUANTIZE, 0): FLOATS,
    (Op.DEQUANTIZE, 0): {*QUANT8, T.TENSOR_QUANT8_SYMM, T.TENSOR_QUANT8_SYMM_PER_CHANNEL},
    (Op.RANDOM_MULTINOMIAL, 0): FLOATS,
    (Op.LSH_PROJECTION, 1): set(T),
    (Op.AXIS_ALIGNED_BBOX_TRANSFORM, 1): QUANT8,
    (Op.RANK, 0): {T(kind) for kind in TENSORS},
    **{(kind, 1): {T.TENSOR_QUANT8_ASYMM, T.TENSOR_QUANT8_SYMM_PER_CHANNEL} for kind in CONVOLUTIONS},
}
"""Other types that an input may have, whatever the other operands are."""
OUTPUT_TYPES: dict[Op, set[T]] = {Op.QUANTIZE: QUANT8, Op.DEQUANTIZE: FLOATS}


def legal_types(model: Model, number: int) -> set[T]:
    """Return the types that an operand may have instead of its own."""
    legal: set[T] = set()
    for operation in model.main.operations:
        kind = Op(operation.type)
        legal |= ANYWHERE.get(kind, set())
        for place, index in enumerate(operation.inputs):
            if index == number:
                legal |= INPUT_TYPES.get((kind, place), set())
        if operation.outputs and operation.outputs[0] == number:
            legal |= OUTPUT_TYPES.get(kind, set())
    return legal
