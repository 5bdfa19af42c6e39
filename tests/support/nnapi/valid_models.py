"""Small valid models, built anew on each call so that a test may break them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hal.nnapi.types import (
    DataLocation,
    ExtraParams,
    Model,
    Operand,
    Operation,
    Subgraph,
    SymmPerChannelQuantParams,
)
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op

NO_ACTIVATION = (0).to_bytes(4, "little")


def operand(kind: T, dims: Sequence[int] = (), life: Life = Life.TEMPORARY_VARIABLE, **fields: object) -> Operand:
    """Return an operand; ``subgraph`` counts its consumers."""
    return Operand(kind, list(dims), lifetime=life, **fields)  # type: ignore[arg-type]


def constant(kind: T, dims: Sequence[int], offset: int, length: int, **fields: object) -> Operand:
    """Return a constant in ``operandValues``."""
    return operand(kind, dims, Life.CONSTANT_COPY, location=DataLocation(0, offset, length), **fields)


def subgraph(operands: list[Operand], operations: list[Operation]) -> Subgraph:
    """Return a subgraph with consumers, inputs and outputs derived from its operands and operations."""
    for each in operands:
        each.numberOfConsumers = 0
    for operation in operations:
        for index in operation.inputs:
            operands[index].numberOfConsumers += 1
    inputs = [number for number, each in enumerate(operands) if each.lifetime == Life.SUBGRAPH_INPUT]
    outputs = [number for number, each in enumerate(operands) if each.lifetime == Life.SUBGRAPH_OUTPUT]
    return Subgraph(operands, operations, inputs, outputs)


def circle() -> Model:
    """Three additions, two of which depend on each other."""
    ends = [operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT) for _ in range(2)]
    inner = [operand(T.TENSOR_FLOAT32, [2]) for _ in range(2)]
    result = operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_OUTPUT)
    operations = [
        Operation(Op.ADD, [0, 4, 2], [3]),
        Operation(Op.ADD, [1, 3, 2], [4]),
        Operation(Op.ADD, [4, 0, 2], [5]),
    ]
    operands = [*ends, constant(T.INT32, [], 0, 4), *inner, result]
    return Model(subgraph(operands, operations), operandValues=NO_ACTIVATION)


def chain() -> Model:
    """relu(x + y): operands x, y, activation, sum, result."""
    operands = [
        operand(T.TENSOR_FLOAT32, [2, 3], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2, 3], Life.SUBGRAPH_INPUT),
        constant(T.INT32, [], 0, 4),
        operand(T.TENSOR_FLOAT32, [2, 3]),
        operand(T.TENSOR_FLOAT32, [2, 3], Life.SUBGRAPH_OUTPUT),
    ]
    operations = [Operation(Op.ADD, [0, 1, 2], [3]), Operation(Op.RELU, [3], [4])]
    return Model(subgraph(operands, operations), operandValues=NO_ACTIVATION)


def quantised() -> Model:
    """quantize(x) + constant, with activation and constant in operandValues."""
    operands = [
        operand(T.TENSOR_FLOAT32, [4], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_QUANT8_ASYMM, [4], scale=0.5, zeroPoint=100),
        constant(T.TENSOR_QUANT8_ASYMM, [4], 4, 4, scale=0.25, zeroPoint=3),
        constant(T.INT32, [], 0, 4),
        operand(T.TENSOR_QUANT8_ASYMM, [4], Life.SUBGRAPH_OUTPUT, scale=1.0),
    ]
    operations = [Operation(Op.QUANTIZE, [0], [1]), Operation(Op.ADD, [1, 2, 3], [4])]
    return Model(subgraph(operands, operations), operandValues=NO_ACTIVATION + bytes([1, 2, 3, 4]))


def convolution() -> Model:
    """A 1 x 1 convolution from 2 channels to 3 with constant filter and bias, and a filter scale per channel."""
    scales = [0.5, 0.25, 1.0]
    values = np.arange(6, dtype=np.int8).tobytes() + bytes(2) + np.arange(3, dtype=np.int32).tobytes()
    ints = np.array([1, 1, 1, 0], np.int32).tobytes()  # padding SAME, strides 1, no activation
    operands = [
        operand(T.TENSOR_QUANT8_ASYMM, [1, 4, 4, 2], Life.SUBGRAPH_INPUT, scale=0.5, zeroPoint=128),
        constant(
            T.TENSOR_QUANT8_SYMM_PER_CHANNEL, [3, 1, 1, 2], 0, 6,
            extraParams=ExtraParams(SymmPerChannelQuantParams(scales, 0)),
        ),
        constant(T.TENSOR_INT32, [3], 8, 12),
        *(constant(T.INT32, [], 20 + 4 * place, 4) for place in range(4)),
        operand(T.TENSOR_QUANT8_ASYMM, [1, 4, 4, 3], Life.SUBGRAPH_OUTPUT, scale=1.0, zeroPoint=5),
    ]  # fmt: skip
    operations = [Operation(Op.CONV_2D, list(range(7)), [7])]
    return Model(subgraph(operands, operations), operandValues=values + ints)


def _branch(kind: Op) -> Subgraph:
    operands = [
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT),
        constant(T.INT32, [], 0, 4),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_OUTPUT),
    ]
    return subgraph(operands, [Operation(kind, [0, 1, 2], [3])])


def reference(index: int) -> Operand:
    """Return an operand for a referenced subgraph."""
    return operand(T.SUBGRAPH, [], Life.SUBGRAPH, location=DataLocation(0, index, 0))


def branching() -> Model:
    """x + y or x - y."""
    operands = [
        operand(T.TENSOR_BOOL8, [1], Life.SUBGRAPH_INPUT),
        reference(0),
        reference(1),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [2], Life.SUBGRAPH_OUTPUT),
    ]
    main = subgraph(operands, [Operation(Op.IF, [0, 1, 2, 3, 4], [5])])
    return Model(main, [_branch(Op.ADD), _branch(Op.SUB)], NO_ACTIVATION)


def loop() -> Model:
    """while x < limit: x = x + x"""
    condition = subgraph(
        [
            operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_INPUT),
            operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_INPUT),
            operand(T.TENSOR_BOOL8, [1], Life.SUBGRAPH_OUTPUT),
        ],
        [Operation(Op.LESS, [0, 1], [2])],
    )
    body = subgraph(
        [
            operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_INPUT),
            operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_INPUT),
            constant(T.INT32, [], 0, 4),
            operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_OUTPUT),
        ],
        [Operation(Op.ADD, [0, 0, 2], [3])],
    )
    operands = [
        reference(0),
        reference(1),
        operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_INPUT),
        operand(T.TENSOR_FLOAT32, [1], Life.SUBGRAPH_OUTPUT),
    ]
    main = subgraph(operands, [Operation(Op.WHILE, [0, 1, 2, 3], [4])])
    return Model(main, [condition, body], NO_ACTIVATION)


ALL = {each.__name__: each for each in (chain, quantised, convolution, branching, loop)}
