"""Shorten a graph of many equal layers to a few of them, on which schedules are compared.

The faster of two schedules for three equal layers is also faster for thirty. Comparing schedules of the whole network
would take several times as long as compiling it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.graph import Graph, Op, Tensor
from npusim.polling import poll

LEAST = 16
"""Minimum number of equal layers. Shorter networks are compared in full, which is exact and takes little longer."""
KEPT = 3
"""Number of layers kept: the first and the last have other neighbours than the ones between."""


def shortened(graph: Graph) -> Graph | None:
    """The graph with only KEPT of its equal layers, without the inputs and outputs of the dropped ones.

    None if it has fewer than LEAST equal layers.
    """
    found = _repeats(_signatures(graph.ops))
    if found is None:
        return None
    start, period, count = found
    first = start + (KEPT - 1) * period
    end = first + (count - KEPT) * period
    instead: dict[Tensor, Tensor] = {}
    for number in range(first, end):
        like = graph.ops[first - period + (number - first) % period]
        instead.update(zip(graph.ops[number].outputs, like.outputs, strict=True))
    ops = [*graph.ops[:first], *(_rewired(op, instead) for op in graph.ops[end:])]
    used = {operand for op in ops for operand in op.inputs}
    outputs = tuple(tensor for tensor in graph.outputs if tensor not in instead)
    inputs = tuple(tensor for tensor in graph.inputs if tensor in used)
    return Graph(graph.name, inputs, outputs, tuple(ops), graph.bound, graph.cache_rows)


def _rewired(op: Op, instead: dict[Tensor, Tensor]) -> Op:
    inputs = tuple(operand if operand is None else instead.get(operand, operand) for operand in op.inputs)
    return op if inputs == op.inputs else Op(op.name, op.kind, inputs, op.outputs, op.attrs, op.origin)


def _signatures(ops: tuple[Op, ...]) -> npt.NDArray[np.int64]:
    """A number per operator, equal for operators that differ only in names and values of constants."""
    numbers: dict[Any, int] = {}
    made = {tensor: number for number, op in enumerate(ops) for tensor in op.outputs}
    found = []
    for number, op in enumerate(ops):
        poll()
        operands = tuple(
            operand and (operand.shape, operand.dtype, operand.is_constant, number - made.get(operand, number))
            for operand in op.inputs
        )
        results = tuple((result.shape, result.dtype) for result in op.outputs)
        found.append(numbers.setdefault((op.kind, repr(sorted(op.attrs.items())), operands, results), len(numbers)))
    return np.array(found, np.int64)


def _repeats(numbers: npt.NDArray[np.int64]) -> tuple[int, int, int] | None:
    """(first operator, operators per layer, layers) of the run of equal layers that shortens the graph most."""
    best, most = None, 0
    for period in range(1, len(numbers) // LEAST + 1):
        poll()
        differ = np.flatnonzero(numbers[:-period] != numbers[period:])
        edges = np.concatenate([[-1], differ, [len(numbers) - period]])
        longest = int(np.argmax(np.diff(edges)))
        start, run = int(edges[longest]) + 1, int(edges[longest + 1] - edges[longest]) - 1
        count = run // period + 1
        dropped = (count - KEPT) * period
        if count >= LEAST and dropped > most:
            best, most = (start, period, count), dropped
    return best
