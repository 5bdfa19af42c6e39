"""Rules of IF and WHILE that need the referenced subgraphs, and of references between subgraphs."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidModelError
from ..operations.signature import type_name
from ..operations.view import OpView, dims_of
from ..types import Model, Operand, OperandLifeTime, OperandType, OperationType, Subgraph


def check_references(model: Model) -> None:
    """Check that subgraphs do not refer to each other in a cycle. Raises InvalidModelError."""
    edges = [
        [operand.location.offset for operand in each.operands if operand.lifetime == OperandLifeTime.SUBGRAPH]
        for each in model.referenced
    ]
    finished: set[int] = set()
    for root in range(len(edges)):
        path: dict[int, list[int]] = {root: list(edges[root])}  # no recursion, because a client decides the depth
        while path:
            current = next(reversed(path))
            if not path[current]:
                finished.add(current)
                del path[current]
                continue
            following = path[current].pop()
            if following in path:
                circle = " -> ".join(str(number) for number in (*path, following))
                raise InvalidModelError("referenced", f"subgraphs must not refer to each other in a circle: {circle}")
            if following not in finished:
                path[following] = list(edges[following])


def problem(view: OpView, model: Model) -> str | None:
    """Return what is wrong with an IF or a WHILE whose own operands are valid; None if nothing is, or for any other
    operation."""
    if view.operation.type == OperationType.IF:
        return _if_problem(view, model)
    if view.operation.type == OperationType.WHILE:
        return _while_problem(view, model)
    return None


def _if_problem(view: OpView, model: Model) -> str | None:
    """Both branches take inputs 3 on and return the outputs."""
    for index in (1, 2):
        branch = _subgraph(view, index, model)
        wrong = _match(view.inputs[3:], _inputs(branch), "input", "input", 3) or _match(
            view.outputs, _outputs(branch), "output", "output"
        )
        if wrong:
            return f"the subgraph of input {index} does not fit: {wrong}"
    return None


def _while_problem(view: OpView, model: Model) -> str | None:
    """Condition and body take inputs 2 on. The body returns the first of these inputs; they start with the outputs."""
    condition, body = _subgraph(view, 0, model), _subgraph(view, 1, model)
    given = view.inputs[2:]
    wrong = _match(given, _inputs(condition), "input", "input", 2) or _condition_problem(_outputs(condition))
    if wrong:
        return f"the subgraph of input 0 does not fit: {wrong}"
    count = len(body.outputIndexes)
    if not len(view.outputs) <= count <= len(given):
        return (
            f"the subgraph of input 1 does not fit: it must have at least {len(view.outputs)} outputs and at most "
            f"{len(given)}, got {count}"
        )
    wrong = (
        _match(given, _inputs(body), "input", "input", 2)
        or _match(view.outputs, _outputs(body)[: len(view.outputs)], "output", "output")
        or _match(_inputs(body)[:count], _outputs(body), "its input", "output")
    )
    return f"the subgraph of input 1 does not fit: {wrong}" if wrong else None


def _condition_problem(outputs: Sequence[Operand]) -> str | None:
    if [each.type for each in outputs] != [OperandType.TENSOR_BOOL8]:
        return f"its output must be one TENSOR_BOOL8, got {', '.join(type_name(each.type) for each in outputs)}"
    if any(dim not in (0, 1) for dim in outputs[0].dimensions):
        return f"its output must have one element, got dimensions {list(outputs[0].dimensions)}"
    return None


def _subgraph(view: OpView, index: int, model: Model) -> Subgraph:
    return model.referenced[view.inputs[index].location.offset]


def _inputs(subgraph: Subgraph) -> list[Operand]:
    return [subgraph.operands[number] for number in subgraph.inputIndexes]


def _outputs(subgraph: Subgraph) -> list[Operand]:
    return [subgraph.operands[number] for number in subgraph.outputIndexes]


def _match(outer: Sequence[Operand], inner: Sequence[Operand], word: str, own: str, first: int = 0) -> str | None:
    """Return why operands cannot be passed to or from a subgraph, or None.

    ``word`` and ``own``: names for outer and inner operands; ``first``: the number of the first outer one.
    """
    if len(outer) != len(inner):
        return f"it must have {len(outer)} {own}s, got {len(inner)}"
    for number, (one, other) in enumerate(zip(outer, inner, strict=True)):
        if not compatible(one, other):
            return f"{word} {number + first} is {_shown(one)}, but its {own} {number} is {_shown(other)}"
    return None


def compatible(one: Operand, other: Operand) -> bool:
    """Return whether two operands can have the same value: equal type and quantisation, and known dimensions agree."""
    if one.type != other.type or one.scale != other.scale or one.zeroPoint != other.zeroPoint:
        return False
    if one.extraParams != other.extraParams:
        return False
    dims, others = dims_of(one), dims_of(other)
    # An unknown rank or dimension agrees with any. It is checked again at execution, when it is known.
    if not dims or not others:
        return True
    return len(dims) == len(others) and all(a == b or not a or not b for a, b in zip(dims, others, strict=True))


def _shown(operand: Operand) -> str:
    return f"{type_name(operand.type)} {list(operand.dimensions)} ({operand.scale}, {operand.zeroPoint})"
