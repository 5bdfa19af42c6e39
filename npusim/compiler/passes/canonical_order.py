"""One order of operators for all files of a graph: programs depend on its structure, not on the order of its nodes."""

from __future__ import annotations

from dataclasses import replace

from npusim.graph import Graph, Op, Tensor


def in_canonical_order(graph: Graph) -> Graph:
    """The graph with its operators in depth-first order from its outputs, the longest branch of an operator first.

    A branch is finished before the next one begins, so few values live at the same time. Of branches of equal length
    the one of the earlier operand comes first.
    """
    makers: dict[Tensor, Op] = {tensor: op for op in graph.ops for tensor in op.outputs}
    length: dict[Op, int] = {}
    for op in graph.ops:
        length[op] = 1 + max((length[makers[each]] for each in op.inputs if each in makers), default=0)

    def branches(op: Op) -> list[Op]:
        """What makes its operands, the last one to be visited first."""
        made = dict.fromkeys(makers[each] for each in op.inputs if each in makers)
        return [op for _, _, op in sorted((length[each], -number, each) for number, each in enumerate(made))]

    ordered: dict[Op, None] = {}
    for output in graph.outputs:
        stack = [makers[output]] if output in makers else []
        while stack:
            op = stack[-1]
            waiting = [each for each in branches(op) if each not in ordered] if op not in ordered else []
            if waiting:
                stack.extend(waiting)
            else:
                ordered[stack.pop()] = None
    return replace(graph, ops=tuple(ordered))
