"""Sort operators into one order for all files of the same graph, so that programs do not depend on the order of
nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from npusim.graph import Graph, Op, Tensor
from npusim.polling import poll


def in_canonical_order(graph: Graph) -> Graph:
    """Sort operators depth first from the outputs, the longest branch of each operator first.

    A branch is finished before the next one starts, so few values are alive at the same time. Among branches of equal
    length, that of the earlier operand comes first. Operators that read only one and the same value are consecutive,
    unless their result is larger, so that the value is freed early.
    """
    makers: dict[Tensor, Op] = {tensor: op for op in graph.ops for tensor in op.outputs}
    return replace(graph, ops=tuple(_siblings_together(_depth_first(graph, makers), makers, set(graph.outputs))))


def _depth_first(graph: Graph, makers: Mapping[Tensor, Op]) -> dict[Op, None]:
    length: dict[Op, int] = {}
    for op in graph.ops:
        poll()
        length[op] = 1 + max((length[makers[each]] for each in _computed(op, makers)), default=0)

    def branches(op: Op) -> list[Op]:
        """The operators that compute its operands, the last to be visited first."""
        made = dict.fromkeys(makers[each] for each in _computed(op, makers))
        return [op for _, _, op in sorted((length[each], -number, each) for number, each in enumerate(made))]

    ordered: dict[Op, None] = {}
    for output in graph.outputs:
        stack = [makers[output]] if output in makers else []
        while stack:
            poll()
            op = stack[-1]
            waiting = [each for each in branches(op) if each not in ordered] if op not in ordered else []
            if waiting:
                stack.extend(waiting)
            else:
                ordered[stack.pop()] = None
    return ordered


def _siblings_together(ordered: Iterable[Op], makers: Mapping[Tensor, Op], kept: Container[Tensor]) -> Iterable[Op]:
    alone: dict[Tensor, list[Op]] = {}
    readers: Counter[Tensor] = Counter()
    for op in ordered:
        poll()
        readers.update({each for each in op.inputs if each is not None})
        if (read := _read_alone(op, makers)) is not None:
            alone.setdefault(read, []).append(op)
    together: dict[Op, None] = {}
    for op in ordered:
        poll()
        if op in together:
            continue
        read = _read_alone(op, makers)
        for sibling in [op] if read is None else alone[read]:
            # Operators that may be fused with it follow directly, because a group is placed at its last operator.
            while sibling not in together:
                together[sibling] = None
                result = sibling.outputs[0]
                if readers[result] == 1 and result not in kept and result in alone:
                    (sibling,) = alone[result]
    return together


def _read_alone(op: Op, makers: Mapping[Tensor, Op]) -> Tensor | None:
    """The only computed operand of an operator whose result is not larger than it; else None."""
    read = set(_computed(op, makers))
    if len(read) != 1 or len(op.outputs) != 1:
        return None
    (value,) = read
    return value if op.output.nbytes <= value.nbytes else None


def _computed(op: Op, makers: Mapping[Tensor, Op]) -> list[Tensor]:
    return [each for each in op.inputs if each is not None and each in makers]
