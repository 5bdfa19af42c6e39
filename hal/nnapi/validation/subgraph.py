"""Rules of a subgraph that know nothing of single operations: lists of indexes, who writes and who reads what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import OperandLifeTime, Subgraph

Rule = Callable[[Subgraph], str | None]
"""Gives the place where a rule is broken, or None. The docstring is the message."""

_WRITTEN = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)


def has_operands(subgraph: Subgraph) -> str | None:
    """there must be one operand or more"""
    return None if subgraph.operands else "operands"


def has_operations(subgraph: Subgraph) -> str | None:
    """there must be one operation or more"""
    return None if subgraph.operations else "operations"


def operations_name_operands(subgraph: Subgraph) -> str | None:
    """an operation must name operands that there are"""
    count = len(subgraph.operands)
    for number, operation in enumerate(subgraph.operations):
        for field, indexes in (("inputs", operation.inputs), ("outputs", operation.outputs)):
            for place, index in enumerate(indexes):
                if index >= count:
                    return f"operations[{number}].{field}[{place}] = {index}"
    return None


def inputs_are_listed(subgraph: Subgraph) -> str | None:
    """inputIndexes must hold exactly the operands of lifetime SUBGRAPH_INPUT, each once"""
    return _listed(subgraph, subgraph.inputIndexes, OperandLifeTime.SUBGRAPH_INPUT, "inputIndexes")


def outputs_are_listed(subgraph: Subgraph) -> str | None:
    """outputIndexes must hold exactly the operands of lifetime SUBGRAPH_OUTPUT, each once"""
    return _listed(subgraph, subgraph.outputIndexes, OperandLifeTime.SUBGRAPH_OUTPUT, "outputIndexes")


def _listed(subgraph: Subgraph, indexes: Sequence[int], lifetime: OperandLifeTime, field: str) -> str | None:
    wanted = {number for number, operand in enumerate(subgraph.operands) if operand.lifetime == lifetime}
    for place, index in enumerate(indexes):
        if index not in wanted:
            return f"{field}[{place}] = {index}"
        wanted.remove(index)
    return f"operands[{min(wanted)}]" if wanted else None


def outputs_are_variables(subgraph: Subgraph) -> str | None:
    """an operation must write to operands of lifetime TEMPORARY_VARIABLE or SUBGRAPH_OUTPUT"""
    for number, operation in enumerate(subgraph.operations):
        for place, index in enumerate(operation.outputs):
            if subgraph.operands[index].lifetime not in _WRITTEN:
                return f"operations[{number}].outputs[{place}] = {index}"
    return None


def written_once(subgraph: Subgraph) -> str | None:
    """an operand must be written by one operation only"""
    written: set[int] = set()
    for number, operation in enumerate(subgraph.operations):
        for place, index in enumerate(operation.outputs):
            if index in written:
                return f"operations[{number}].outputs[{place}] = {index}"
            written.add(index)
    return None


def written_before_read(subgraph: Subgraph) -> str | None:
    """an operation must read only what operations before it have written, or what has its value from elsewhere"""
    pending = {number for number, operand in enumerate(subgraph.operands) if operand.lifetime in _WRITTEN}
    for number, operation in enumerate(subgraph.operations):
        for place, index in enumerate(operation.inputs):
            if index in pending:
                return f"operations[{number}].inputs[{place}] = {index}"
        pending.difference_update(operation.outputs)
    return None


def all_written(subgraph: Subgraph) -> str | None:
    """an operand of lifetime TEMPORARY_VARIABLE or SUBGRAPH_OUTPUT must be written by an operation"""
    written = {index for operation in subgraph.operations for index in operation.outputs}
    for number, operand in enumerate(subgraph.operands):
        if operand.lifetime in _WRITTEN and number not in written:
            return f"operands[{number}]"
    return None


def consumers_are_counted(subgraph: Subgraph) -> str | None:
    """numberOfConsumers must be how often operations list the operand among their inputs"""
    for number, (operand, count) in enumerate(zip(subgraph.operands, count_consumers(subgraph), strict=True)):
        if operand.numberOfConsumers != count:
            return f"operands[{number}].numberOfConsumers = {operand.numberOfConsumers}, not {count}"
    return None


def count_consumers(subgraph: Subgraph) -> list[int]:
    """How often each operand is listed among the inputs of operations, all of which exist."""
    counts = [0] * len(subgraph.operands)
    for operation in subgraph.operations:
        for index in operation.inputs:
            counts[index] += 1
    return counts


RULES: tuple[Rule, ...] = (
    operations_name_operands,
    inputs_are_listed,
    outputs_are_listed,
    outputs_are_variables,
    written_once,
    written_before_read,
    all_written,
    consumers_are_counted,
)
"""In this order: each relies on those before it. ``has_operands`` and ``has_operations`` come first of all."""
