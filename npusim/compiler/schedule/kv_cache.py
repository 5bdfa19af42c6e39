"""Caches that grow where they lie: an input to which new rows are concatenated, and the output that this is.

Both are one buffer with room for all rows. What comes in lies there already, the new rows are written beside it, and
whoever reads the output reads the buffer: nothing is copied to grow.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.errors import CompileError
from npusim.graph import DOUBLING, Graph


class CacheGrowth(NamedTuple):
    """Input ``source`` and output ``target`` of a graph, by number; the rows are those along ``axis``."""

    source: int
    target: int
    axis: int
    capacity: int


def growths(graph: Graph) -> list[CacheGrowth]:
    """The caches of a graph, if its ``cache_rows`` let there be any. Raises CompileError if those are too few."""
    rows = graph.cache_rows
    if rows is None:
        return []
    inputs = {tensor: number for number, tensor in enumerate(graph.inputs)}
    makers = {op.output: op for op in graph.ops if op.kind == "concat"}
    found: list[CacheGrowth] = []
    for target, tensor in enumerate(graph.outputs):
        op = makers.get(tensor)
        if op is None or op.inputs.count(op.inputs[0]) > 1:
            continue
        first, axis = op.input(0), op.attrs["axis"]
        # The second output that grows from the same input would be written over the first.
        source = inputs.pop(first, None)
        if source is None:
            continue
        grown = tensor.shape[axis]
        if 0 < rows < grown:
            raise CompileError(
                f"{first.name!r} grows to {grown} rows as {tensor.name!r}, there is to be room for {rows}"
            )
        if tensor.size:
            found.append(CacheGrowth(source, target, axis, _room(rows, grown)))
    return found


def _room(rows: int, grown: int) -> int:
    if rows == DOUBLING:
        return 1 << (grown - 1).bit_length()
    return rows or grown
