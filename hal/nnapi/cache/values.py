"""Selection of the constants of a model that the compilation cache stores; the programs have copies of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..operations.constants import Constants
from ..operations.view import SCALARS
from ..plan import Plan, Record, Vocabulary
from ..plan.segment import CONTROL
from ..types import DataLocation, Model, Operand, OperandLifeTime, Subgraph

Add = Callable[[memoryview], list[int]]
"""Stores bytes; returns their offset in the data and their length."""
Key = tuple[int, int, int, int]


def keep_values(model: Model, constants: Constants, plan: Plan, records: Sequence[Record], add: Add) -> Model:
    """The model with only those constant values that executions may read."""
    places: dict[Key, DataLocation] = {}
    for index, subgraph in zip((None, *range(len(model.referenced))), subgraphs(model), strict=True):
        root = [record for record in records if record.index == index and len(record.path) == 1]
        for operand in read_later(subgraph, plan.vocabulary, root):
            raw = constants.raw(operand)
            if raw is not None and _key(operand) not in places:
                places[_key(operand)] = DataLocation(0, *add(raw))
    kept = [replace(subgraph, operands=[_moved(o, places) for o in subgraph.operands]) for subgraph in subgraphs(model)]
    return replace(model, main=kept[0], referenced=tuple(kept[1:]), operandValues=b"", pools=())


def subgraphs(model: Model) -> tuple[Subgraph, ...]:
    """The main subgraph, then the referenced ones."""
    return (model.main, *model.referenced)


def _key(operand: Operand) -> Key:
    place = operand.location
    return operand.lifetime, place.poolIndex, place.offset, place.length


def _moved(operand: Operand, places: Mapping[Key, DataLocation]) -> Operand:
    if operand.lifetime not in (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE):
        return operand
    place = places.get(_key(operand), DataLocation(0, 0, 0))
    return replace(operand, lifetime=OperandLifeTime.CONSTANT_COPY, location=place)


def read_later(subgraph: Subgraph, vocabulary: Vocabulary, root: Sequence[Record]) -> Iterator[Operand]:
    """Operands that an execution may read: those of operations that it may compile, and of IF and WHILE, which are in
    no segment.

    ``root``: the first segments of the subgraph.
    """
    compiled = range(0)
    if len(root) == 1 and has_one_form(subgraph, vocabulary):
        compiled = range(root[0].segment.start, root[0].segment.stop)
    for number, operation in enumerate(subgraph.operations):
        if number not in compiled:
            yield from (subgraph.operands[index] for index in operation.inputs)


def has_one_form(subgraph: Subgraph, vocabulary: Vocabulary) -> bool:
    """Whether every execution starts with the same program: all input shapes are known, and no input is optional."""
    inputs = set(subgraph.inputIndexes)
    if any(
        subgraph.operands[number].type not in SCALARS
        and (not subgraph.operands[number].dimensions or 0 in subgraph.operands[number].dimensions)
        for number in inputs
    ):
        return False
    return not any(
        operation.inputs[place] in inputs
        for operation in subgraph.operations
        if operation.type not in CONTROL
        for place in vocabulary.definitions[operation.type].optional
        if place < len(operation.inputs)
    )
