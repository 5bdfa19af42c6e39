"""Mutations of single operands: type, rank, scale, zero point, lifetime, consumers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hal.nnapi.operations.view import QUANTISED, SCALARS, STORAGE
from hal.nnapi.types import DataLocation, Model, Operand
from hal.nnapi.types import OperandLifeTime as Life
from hal.nnapi.types import OperandType as T
from tests.support.nnapi_examples.mutations.copies import CONSTANT, WRITTEN, each_operand, with_main, with_operand

LARGEST_COPY = 32 * 1024
"""Larger constants are not stored in ``operandValues``."""


def operand_type(model: Model) -> Iterator[tuple[str, Model]]:
    """Set an invalid operand type."""
    for number, operand in each_operand(model):
        for value in (-1, 16, 9999, 10002):
            yield f"operand {number} type := {value}", with_operand(model, number, replace(operand, type=value))


def operand_rank(model: Model) -> Iterator[tuple[str, Model]]:
    """Give a scalar dimensions."""
    for number, operand in each_operand(model):
        if operand.type in SCALARS:
            yield f"operand {number} dimensions := [0]", with_operand(model, number, replace(operand, dimensions=[0]))


def operand_scale(model: Model) -> Iterator[tuple[str, Model]]:
    """Set a scale that is invalid for the type."""
    for number, operand in each_operand(model):
        value = -1.0 if operand.type == T.TENSOR_INT32 else 0.0 if operand.type in QUANTISED else 1.0
        yield f"operand {number} scale := {value}", with_operand(model, number, replace(operand, scale=value))


ZERO_POINTS = {
    T.TENSOR_QUANT8_ASYMM: (-1, 256),
    T.TENSOR_QUANT8_ASYMM_SIGNED: (-129, 128),
    T.TENSOR_QUANT8_SYMM: (-129, -1, 1, 128),
    T.TENSOR_QUANT16_ASYMM: (-1, 65536),
    T.TENSOR_QUANT16_SYMM: (-32769, -1, 1, 32768),
}
"""Invalid zero points per type; 1 for all other types."""


def operand_zero_point(model: Model) -> Iterator[tuple[str, Model]]:
    """Set a zero point that is invalid for the type."""
    for number, operand in each_operand(model):
        for value in ZERO_POINTS.get(T(operand.type), (1,)):
            changed = replace(operand, zeroPoint=value)
            yield f"operand {number} zeroPoint := {value}", with_operand(model, number, changed)


def operand_lifetime(model: Model) -> Iterator[tuple[str, Model]]:
    """Turn a written operand into an input or constant, and an operand with a value into one that nothing writes."""
    for number, operand in each_operand(model):
        for lifetime in _other_lifetimes(operand):
            changed = _relived(model, number, lifetime)
            if changed is not None:
                inputs = [index for index in model.main.inputIndexes if index != number]
                outputs = [index for index in model.main.outputIndexes if index != number]
                if lifetime == Life.SUBGRAPH_INPUT:
                    inputs.append(number)
                elif lifetime == Life.SUBGRAPH_OUTPUT:
                    outputs.append(number)
                yield (
                    f"operand {number} lifetime := {lifetime.name}",
                    with_main(changed, inputs=inputs, outputs=outputs),
                )


def _other_lifetimes(operand: Operand) -> tuple[Life, ...]:
    if operand.lifetime in WRITTEN:
        return (Life.SUBGRAPH_INPUT, Life.CONSTANT_COPY)
    return WRITTEN if operand.lifetime in (*CONSTANT, Life.SUBGRAPH_INPUT) else ()


def operand_input_output(model: Model) -> Iterator[tuple[str, Model]]:
    """Change a lifetime without changing the lists of inputs and outputs."""
    swapped = {
        Life.CONSTANT_COPY: Life.SUBGRAPH_INPUT,
        Life.CONSTANT_REFERENCE: Life.SUBGRAPH_INPUT,
        Life.SUBGRAPH_INPUT: Life.CONSTANT_COPY,
        Life.SUBGRAPH_OUTPUT: Life.TEMPORARY_VARIABLE,
        Life.TEMPORARY_VARIABLE: Life.SUBGRAPH_OUTPUT,
    }
    for number, operand in each_operand(model):
        lifetime = swapped.get(Life(operand.lifetime))
        changed = _relived(model, number, lifetime) if lifetime is not None else None
        if lifetime is not None and changed is not None:
            yield f"operand {number} lifetime := {lifetime.name}, not listed", changed


def _relived(model: Model, number: int, lifetime: Life) -> Model | None:
    """Return the model with another lifetime of one operand. A constant gets zeros; None if it cannot be a constant."""
    operand = model.main.operands[number]
    location = DataLocation()
    values = bytes(model.operandValues)
    if lifetime == Life.CONSTANT_COPY:
        size = nbytes(operand)
        if not 0 < size <= LARGEST_COPY:
            return None
        location = DataLocation(0, len(values), size)
        values += bytes(size + -size % 4)
    changed = with_operand(model, number, replace(operand, lifetime=lifetime, location=location))
    return replace(changed, operandValues=values)


def nbytes(operand: Operand) -> int:
    """Return the bytes of an operand; 0 if a dimension is unknown."""
    size = STORAGE[operand.type].itemsize if operand.type in STORAGE else 0
    if operand.type not in SCALARS and not operand.dimensions:
        return 0
    for dim in operand.dimensions:
        size *= dim
    return size


def number_of_consumers(model: Model) -> Iterator[tuple[str, Model]]:
    """Set a number of consumers one larger or smaller than the number of operations that read the operand."""
    for number, operand in each_operand(model):
        for by in (1, -1) if operand.numberOfConsumers else (1,):
            changed = replace(operand, numberOfConsumers=operand.numberOfConsumers + by)
            yield f"operand {number} consumers {by:+}", with_operand(model, number, changed)
