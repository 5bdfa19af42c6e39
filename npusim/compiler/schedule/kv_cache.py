"""KV caches that grow in place: an input to which rows are appended, with the result as an output.

Input and output share one buffer with space for all rows. Old rows stay, and new rows are written after them, so
nothing is copied when the cache grows.
"""

from __future__ import annotations

from npusim.errors import CompileError
from npusim.graph import DOUBLING, Graph


def growths(graph: Graph) -> list[tuple[int, int, int, int]]:
    """The caches of a graph with ``cache_rows``: (input number, output number, row dimension, rows of the buffer).

    Raises CompileError if ``cache_rows`` is too small.
    """
    rows = graph.cache_rows
    if rows is None:
        return []
    inputs = {tensor: number for number, tensor in enumerate(graph.inputs)}
    makers = {op.output: op for op in graph.ops if op.kind == "concat"}
    found = []
    for target, tensor in enumerate(graph.outputs):
        op = makers.get(tensor)
        if op is None or op.inputs.count(op.inputs[0]) > 1:
            continue
        first, axis = op.input(0), op.attrs["axis"]
        # A second output that grows from the same input would overwrite the first.
        source = inputs.pop(first, None)
        if source is None:
            continue
        grown = tensor.shape[axis]
        if 0 < rows < grown:
            raise CompileError(
                f"{first.name!r} grows to {grown} rows as {tensor.name!r}, but the cache has room for {rows}"
            )
        if tensor.size:
            found.append((source, target, axis, _room(rows, grown)))
    return found


def _room(rows: int, grown: int) -> int:
    if rows == DOUBLING:
        return 1 << (grown - 1).bit_length()
    return rows or grown
