"""Rules of a subgraph that are independent of the kinds of operations: index lists, and reads and writes of
operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import OperandLifeTime, Subgraph

Rule = Callable[[Subgraph], str | None]
"""Returns what is wrong, or None. The docstring is the rule in general form, for the manual."""

_WRITTEN = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)


def has_operands(subgraph: Subgraph) -> str | None:
    """a subgraph must have at least one operand"""
    return None if subgraph.operands else "the subgraph has no operands"


def has_operations(subgraph: Subgraph) -> str | None:
    """a subgraph must have at least one operation"""
    return None if subgraph.operations else "the subgraph has no operations"


def operations_name_operands(subgraph: Subgraph) -> str | None:
    """inputs and outputs of operations must refer to operands of the subgraph"""
    count = len(subgraph.operands)
    for number, operation in enumerate(subgraph.operations):
        for word, indexes in (("input", operation.inputs), ("output", operation.outputs)):
            for place, index in enumerate(indexes):
                if index >= count:
                    return f"operation {number}: {word} {place} {_missing(subgraph, index)}"
    return None


def _missing(subgraph: Subgraph, index: int) -> str:
    return f"refers to operand {index}, but the subgraph has operands 0 to {len(subgraph.operands) - 1}"


def inputs_are_listed(subgraph: Subgraph) -> str | None:
    """inputIndexes must list every operand of lifetime SUBGRAPH_INPUT once, and no other operand"""
    return _listed(subgraph, subgraph.inputIndexes, OperandLifeTime.SUBGRAPH_INPUT, "inputIndexes")


def outputs_are_listed(subgraph: Subgraph) -> str | None:
    """outputIndexes must list every operand of lifetime SUBGRAPH_OUTPUT once, and no other operand"""
    return _listed(subgraph, subgraph.outputIndexes, OperandLifeTime.SUBGRAPH_OUTPUT, "outputIndexes")


def _listed(subgraph: Subgraph, indexes: Sequence[int], lifetime: OperandLifeTime, field: str) -> str | None:
    wanted = {number for number, operand in enumerate(subgraph.operands) if operand.lifetime == lifetime}
    for place, index in enumerate(indexes):
        if index >= len(subgraph.operands):
            return f"{field}[{place}] {_missing(subgraph, index)}"
        found = OperandLifeTime(subgraph.operands[index].lifetime)
        if found != lifetime:
            return f"{field}[{place}] refers to operand {index}, whose lifetime is {found.name}, not {lifetime.name}"
        if index not in wanted:
            return f"{field} lists operand {index} twice"
        wanted.remove(index)
    return f"operand {min(wanted)} has lifetime {lifetime.name}, but {field} does not list it" if wanted else None


def outputs_are_variables(subgraph: Subgraph) -> str | None:
    """operations must write only to operands of lifetime TEMPORARY_VARIABLE or SUBGRAPH_OUTPUT"""
    for number, operation in enumerate(subgraph.operations):
        for place, index in enumerate(operation.outputs):
            lifetime = OperandLifeTime(subgraph.operands[index].lifetime)
            if lifetime not in _WRITTEN:
                return f"operation {number}: output {place} is operand {index}, whose lifetime is {lifetime.name}"
    return None


def written_once(subgraph: Subgraph) -> str | None:
    """no operand may be written twice"""
    writers: dict[int, int] = {}
    for number, operation in enumerate(subgraph.operations):
        for place, index in enumerate(operation.outputs):
            if index in writers:
                first = f"operation {writers[index]} writes already"
                return f"operation {number}: output {place} is operand {index}, which {first}"
            writers[index] = number
    return None


def written_before_read(subgraph: Subgraph) -> str | None:
    """operations must read only what earlier operations have written, or what has its value from elsewhere"""
    pending = {number for number, operand in enumerate(subgraph.operands) if operand.lifetime in _WRITTEN}
    for number, operation in enumerate(subgraph.operations):
        for place, index in enumerate(operation.inputs):
            if index in pending:
                return f"operation {number}: input {place} is operand {index}, which no earlier operation writes"
        pending.difference_update(operation.outputs)
    return None


def all_written(subgraph: Subgraph) -> str | None:
    """every operand of lifetime TEMPORARY_VARIABLE or SUBGRAPH_OUTPUT must be written by an operation"""
    written = {index for operation in subgraph.operations for index in operation.outputs}
    for number, operand in enumerate(subgraph.operands):
        if operand.lifetime in _WRITTEN and number not in written:
            return f"operand {number} has lifetime {OperandLifeTime(operand.lifetime).name}, but no operation writes it"
    return None


def consumers_are_counted(subgraph: Subgraph) -> str | None:
    """numberOfConsumers must be how often an operand is an input of operations"""
    for number, (operand, count) in enumerate(zip(subgraph.operands, count_consumers(subgraph), strict=True)):
        if operand.numberOfConsumers != count:
            return f"operand {number}: numberOfConsumers must be {count}, got {operand.numberOfConsumers}"
    return None


def count_consumers(subgraph: Subgraph) -> list[int]:
    """Return how often each operand is listed among the inputs of operations, all of which exist."""
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
"""In order of their dependencies. ``has_operands`` and ``has_operations`` come first."""
