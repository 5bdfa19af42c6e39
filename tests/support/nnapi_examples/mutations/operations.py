"""Mutations of operations: order, type, and operand lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hal.nnapi.types import Model
from hal.nnapi.types import OperationType as Op
from tests.support.nnapi_examples.mutations.copies import (
    WRITTEN,
    consumed,
    each_operand,
    each_operation,
    fresh,
    with_main,
    with_operation,
)


def execution_order(model: Model) -> Iterator[tuple[str, Model]]:
    """Move an operation that reads another's output to the front, and one whose output is read to the end."""
    operands, operations = model.main.operands, list(model.main.operations)
    for number, operation in each_operation(model):
        rest = operations[:number] + operations[number + 1 :]
        if any(operands[index].lifetime in WRITTEN for index in operation.inputs):
            yield f"operation {number} first", with_main(model, operations=[operation, *rest])
        if any(operands[index].numberOfConsumers for index in operation.outputs):
            yield f"operation {number} last", with_main(model, operations=[*rest, operation])


def add_writer(model: Model) -> Iterator[tuple[str, Model]]:
    """Add a second operation that writes another one's output."""
    for number, operation in each_operation(model):
        for place in range(len(operation.outputs)):
            operands = consumed(model, operation.inputs, 1)
            outputs = list(operation.outputs)
            for other in range(len(outputs)):
                if other != place:
                    operands.append(fresh(operands[outputs[other]]))
                    outputs[other] = len(operands) - 1
            operations = [*model.main.operations, replace(operation, outputs=outputs)]
            yield f"a second writer of output {place} of operation {number}", with_main(model, operands, operations)


def operation_type(model: Model) -> Iterator[tuple[str, Model]]:
    """Set an operation type that no version of the interface has."""
    for number, operation in each_operation(model):
        for value in (106, 9999, 10001):
            changed = with_operation(model, number, replace(operation, type=value))
            yield f"operation {number} type := {value}", changed


def input_operand_index(model: Model) -> Iterator[tuple[str, Model]]:
    """Read an operand that does not exist."""
    beyond = len(model.main.operands)
    for number, operation in each_operation(model):
        for place in range(len(operation.inputs)):
            inputs = _set(operation.inputs, place, beyond)
            changed = with_operation(model, number, replace(operation, inputs=inputs))
            yield f"operation {number} input {place} := {beyond}", changed


def output_operand_index(model: Model) -> Iterator[tuple[str, Model]]:
    """Write an operand that does not exist."""
    beyond = len(model.main.operands)
    for number, operation in each_operation(model):
        for place in range(len(operation.outputs)):
            outputs = _set(operation.outputs, place, beyond)
            changed = with_operation(model, number, replace(operation, outputs=outputs))
            yield f"operation {number} output {place} := {beyond}", changed


def _set(values: Sequence[int], place: int, value: int) -> list[int]:
    return [*values[:place], value, *values[place + 1 :]]


def remove_write(model: Model) -> Iterator[tuple[str, Model]]:
    """Remove the write of an operand that is read."""
    for number, operation in each_operation(model):
        for place, index in enumerate(operation.outputs):
            operand = model.main.operands[index]
            if operand.numberOfConsumers:
                outputs = _set(operation.outputs, place, len(model.main.operands))
                changed = with_operation(model, number, replace(operation, outputs=outputs))
                yield (
                    f"operation {number} output {place} redirected",
                    with_main(changed, [*model.main.operands, fresh(operand)]),
                )


MANY_OUTPUTS = (
    Op.SPLIT,
    Op.UNIDIRECTIONAL_SEQUENCE_LSTM,
    Op.UNIDIRECTIONAL_SEQUENCE_RNN,
    Op.BIDIRECTIONAL_SEQUENCE_LSTM,
    Op.BIDIRECTIONAL_SEQUENCE_RNN,
)
"""Operations whose last outputs are optional."""


def remove_operand(model: Model) -> Iterator[tuple[str, Model]]:
    """Remove an operand and all references to it, without renumbering the others."""
    main = model.main
    for number, operand in each_operand(model):
        optional = any(number in each.outputs and each.type in MANY_OUTPUTS for each in main.operations)
        if operand.numberOfConsumers and not optional:
            changed = with_main(
                model,
                [*main.operands[:number], *main.operands[number + 1 :]],
                [
                    replace(each, inputs=_without(each.inputs, number), outputs=_without(each.outputs, number))
                    for each in main.operations
                ],
                _without(main.inputIndexes, number),
                _without(main.outputIndexes, number),
            )
            yield f"operand {number} removed", changed


def _without(values: Sequence[int], value: int) -> list[int]:
    return [each for each in values if each != value]


def remove_operation(model: Model) -> Iterator[tuple[str, Model]]:
    """Remove an operation."""
    for number, operation in each_operation(model):
        operations = [*model.main.operations[:number], *model.main.operations[number + 1 :]]
        yield f"operation {number} removed", with_main(model, consumed(model, operation.inputs, -1), operations)
