"""Changed copies of models that share everything unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hal.nnapi.types import DataLocation, Model, Operand, Operation
from hal.nnapi.types import OperandLifeTime as Life

Mutation = Callable[[Model], Iterator[tuple[str, Model]]]
"""Yields a description and the mutated model."""

WRITTEN = (Life.TEMPORARY_VARIABLE, Life.SUBGRAPH_OUTPUT)
CONSTANT = (Life.CONSTANT_COPY, Life.CONSTANT_REFERENCE)


def with_main(
    model: Model,
    operands: Sequence[Operand] | None = None,
    operations: Sequence[Operation] | None = None,
    inputs: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
) -> Model:
    main = model.main
    changed = replace(
        main,
        operands=main.operands if operands is None else operands,
        operations=main.operations if operations is None else operations,
        inputIndexes=main.inputIndexes if inputs is None else inputs,
        outputIndexes=main.outputIndexes if outputs is None else outputs,
    )
    return replace(model, main=changed)


def with_operand(model: Model, number: int, operand: Operand) -> Model:
    operands = list(model.main.operands)
    operands[number] = operand
    return with_main(model, operands)


def with_operation(model: Model, number: int, operation: Operation) -> Model:
    operations = list(model.main.operations)
    operations[number] = operation
    return with_main(model, operations=operations)


def consumed(model: Model, numbers: Sequence[int], by: int) -> list[Operand]:
    """Return the operands with ``by`` added to the consumers of an operand each time it is listed."""
    operands = list(model.main.operands)
    for number, times in Counter(numbers).items():
        count = operands[number].numberOfConsumers + by * times
        operands[number] = replace(operands[number], numberOfConsumers=count)
    return operands


def each_operand(model: Model) -> Iterator[tuple[int, Operand]]:
    yield from enumerate(model.main.operands)


def each_operation(model: Model) -> Iterator[tuple[int, Operation]]:
    yield from enumerate(model.main.operations)


def fresh(operand: Operand) -> Operand:
    """Return an unused temporary like an operand."""
    return replace(operand, lifetime=Life.TEMPORARY_VARIABLE, numberOfConsumers=0, location=DataLocation())
