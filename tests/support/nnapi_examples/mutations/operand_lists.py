"""Operations with one input or output too many or too few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hal.nnapi.types import Model, Operand
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from hal.nnapi.types import OperationType as Op
from tests.support.nnapi_examples.mutations.copies import consumed, each_operation, with_main, with_operation


def may_lose(kind: Op, count: int, place: int) -> bool:
    """Return whether an operation with ``count`` inputs is valid without one: a layout, a dilation, an axis, or a list
    entry."""
    if kind == Op.CONCATENATION:
        return count > 2 and place != count - 1
    if kind == Op.PACK:
        return count > 2 and place > 0
    if kind == Op.RESIZE_BILINEAR:
        return count >= 4 and place >= 3
    if kind == Op.RESIZE_NEAREST_NEIGHBOR:
        return count >= 5 and place >= 3
    return (count, place) in OPTIONAL_INPUTS.get(kind, ())


_POOL = ((11, 10), (8, 7))
OPTIONAL_INPUTS = {
    Op.CONV_2D: _POOL,
    Op.AVERAGE_POOL_2D: _POOL,
    Op.MAX_POOL_2D: _POOL,
    Op.L2_POOL_2D: _POOL,
    Op.DEPTHWISE_CONV_2D: ((12, 11), (9, 8)),
    Op.SPACE_TO_DEPTH: ((3, 2),),
    Op.DEPTH_TO_SPACE: ((3, 2),),
    Op.BATCH_TO_SPACE_ND: ((3, 2),),
    Op.SPACE_TO_BATCH_ND: ((4, 3),),
    Op.L2_NORMALIZATION: ((2, 1),),
    Op.LOCAL_RESPONSE_NORMALIZATION: ((6, 5),),
    Op.SOFTMAX: ((3, 2),),
}
"""(number of inputs, place of the one that may be missing)."""


def remove_operation_input(model: Model) -> Iterator[tuple[str, Model]]:
    """Remove an input of an operation."""
    for number, operation in each_operation(model):
        count = len(operation.inputs)
        for place, index in enumerate(operation.inputs):
            if not may_lose(Op(operation.type), count, place):
                inputs = [*operation.inputs[:place], *operation.inputs[place + 1 :]]
                changed = with_operation(model, number, replace(operation, inputs=inputs))
                yield f"operation {number} input {place} removed", with_main(changed, consumed(model, [index], -1))


def remove_operation_output(model: Model) -> Iterator[tuple[str, Model]]:
    """Remove an output of an operation."""
    for number, operation in each_operation(model):
        for place in range(len(operation.outputs)):
            outputs = [*operation.outputs[:place], *operation.outputs[place + 1 :]]
            changed = with_operation(model, number, replace(operation, outputs=outputs))
            yield f"operation {number} output {place} removed", changed


def may_gain(kind: Op, count: int) -> bool:
    """Return whether an operation with ``count`` inputs may have another INT32."""
    if kind in (Op.RESIZE_BILINEAR, Op.RESIZE_NEAREST_NEIGHBOR):
        return count < 6
    return count == {Op.L2_NORMALIZATION: 1, Op.LOCAL_RESPONSE_NORMALIZATION: 5, Op.SOFTMAX: 2}.get(kind)


def add_operation_input(model: Model) -> Iterator[tuple[str, Model]]:
    """Add an INT32 input to an operation and to the model."""
    fresh = len(model.main.operands)
    operand = Operand(T.INT32, [], 1, lifetime=Life.SUBGRAPH_INPUT)
    for number, operation in each_operation(model):
        if not may_gain(Op(operation.type), len(operation.inputs)):
            changed = with_operation(model, number, replace(operation, inputs=[*operation.inputs, fresh]))
            inputs = [*model.main.inputIndexes, fresh]
            yield (
                f"operation {number} with one input more",
                with_main(changed, [*model.main.operands, operand], None, inputs),
            )


def add_operation_output(model: Model) -> Iterator[tuple[str, Model]]:
    """Add an INT32 output to an operation and to the model, with and without a false consumer."""
    fresh = len(model.main.operands)
    for number, operation in each_operation(model):
        changed = with_operation(model, number, replace(operation, outputs=[*operation.outputs, fresh]))
        for consumers in (1, 0):
            operand = Operand(T.INT32, [], consumers, lifetime=Life.SUBGRAPH_OUTPUT)
            operands, outputs = [*model.main.operands, operand], [*model.main.outputIndexes, fresh]
            yield (
                f"operation {number} with one output more, of {consumers} consumers",
                with_main(changed, operands, None, None, outputs),
            )
