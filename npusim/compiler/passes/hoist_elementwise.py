"""Move elementwise operators in front of data movement, to the convolution or product whose results are moved.

``conv -> reshape -> transpose -> reshape -> relu`` is the form of pixel shuffles and detection heads, and ``matmul ->
reshape -> add`` that of linear layers. In front of the movement, elementwise operators join the product's tile, and the
moved elements are often narrower.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.passes.rewrite import Rewriter
from npusim.graph import Graph, Op, Tensor

Array = npt.NDArray[Any]

_ELEMENTS = frozenset({"unary", "cast", "binary", "quantize", "dequantize"})
_MOVEMENT = frozenset({"reshape", "transpose", "slice"})


def raise_elements(graph: Graph) -> Graph:
    """The graph with elementwise operators hoisted. Results are bit-identical."""
    if not any(op.kind in _MOVEMENT for op in graph.ops):
        return graph
    return Rewriter(Rewriter(graph).run(_raise)).run(_move_narrow)


def _raise(rewriter: Rewriter, op: Op) -> bool:
    if op.kind not in _ELEMENTS:
        return False
    moved = [tensor for tensor in op.inputs if tensor is not None and tensor.data is None]
    if len(moved) != 1 or moved[0].shape != op.output.shape or not op.output.size:
        return False
    chain = _chain(rewriter, moved[0])
    if not chain or not _of_product(rewriter, chain[0].input(0)):
        return False
    source, inputs = chain[0].input(0), []
    # The operator would also compute elements that a slice drops: accept at most a third more.
    if 4 * op.output.size < 3 * source.size:
        return False
    for tensor in op.inputs:
        assert tensor is not None
        row = None if tensor.data is None else _before(chain, tensor.data)
        if tensor.data is not None and row is None:
            return False
        inputs.append(source if row is None else rewriter.const(f"{tensor.name}.early", row, tensor.dtype))
    value = rewriter.add(op.name, op.kind, inputs, op.attrs)
    for step in chain:
        rewriter.uses[value] = 1
        value = rewriter.add(step.name, step.kind, (value,), step.attrs)
    rewriter.substitute(op.output, value)
    return True


def _move_narrow(rewriter: Rewriter, op: Op) -> bool:
    """Move a dequantisation back behind the movement if nothing was fused with it, so that bytes are moved, not
    floats."""
    source = rewriter.made_by(op.inputs[0], "dequantize") if op.kind in _MOVEMENT else None
    if source is None or source.input(0).dtype.itemsize >= source.output.dtype.itemsize:
        return False
    given = [(tensor, tensor.data) for tensor in map(source.input, (1, 2))]
    one = [
        rewriter.const(f"{t.name}.one", data.reshape(()), t.dtype)
        for t, data in given
        if data is not None and data.size == 1
    ]
    if rewriter.uses.get(source.output) != 1 or len(one) < len(given):
        return False
    moved = rewriter.add(f"{op.name}.quantised", op.kind, (source.input(0),), op.attrs)
    rewriter.substitute(op.output, rewriter.add(source.name, "dequantize", (moved, *one), source.attrs))
    return True


def _chain(rewriter: Rewriter, tensor: Tensor) -> list[Op]:
    """The movement operators that produce a tensor, in order, each without other readers."""
    found: list[Op] = []
    while rewriter.uses.get(tensor) == 1:
        step = rewriter.producer.get(tensor)
        if step is None or step.kind not in _MOVEMENT:
            break
        found.insert(0, step)
        tensor = step.input(0)
    return found if rewriter.uses.get(tensor) == 1 else found[1:]


def _of_product(rewriter: Rewriter, tensor: Tensor) -> bool:
    """Whether it is the result of a convolution or product, possibly followed by elementwise operators."""
    while True:
        maker = rewriter.producer.get(tensor)
        if maker is None or maker.kind not in _ELEMENTS:
            return maker is not None and maker.kind in ("conv", "matmul")
        tensor = maker.input(0)


def _before(chain: Sequence[Op], constant: Array) -> Array | None:
    """Convert a constant that is combined with the result of a chain to one for the chain's input.

    Returns None unless it is a single number, or one per position along a dimension.
    """
    if constant.size == 1:
        return constant.reshape(())
    row = constant.reshape((1,) * (len(chain[-1].output.shape) - constant.ndim) + constant.shape)
    for step in reversed(chain):
        before, after = step.input(0).shape, step.output.shape
        if step.kind == "transpose":
            row = row.transpose(np.argsort(step.attrs["perm"]))
        elif step.kind == "slice":
            if any(own > 1 and new != old for own, new, old in zip(row.shape, after, before, strict=True)):
                return None
        else:
            row = _unshaped(row, before, after)
    return np.ascontiguousarray(row) if sum(dim > 1 for dim in row.shape) <= 1 else None


def _unshaped(row: Array, before: Sequence[int], after: Sequence[int]) -> Array:
    """Convert a row that is combined with the result of a reshape to one for its input. No size is 0."""
    whole: list[int] = []
    shape: list[int] = []
    first = last = 0
    for start, stop, low, high in _blocks(before, after):
        constant = max(row.shape[low:high], default=1) == 1
        whole += row.shape[low:high] if constant else after[low:high]
        shape += [1] * (stop - start) if constant else before[start:stop]
        first, last = stop, high
    assert (first, last) == (len(before), len(after))
    return np.broadcast_to(row, whole).reshape(shape)


def _blocks(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """(start, stop, low, high): runs of dimensions of both shapes with the same number of elements."""
    found, start, low = [], 0, 0
    for stop in range(1, len(before) + 1):
        high = low
        while high < len(after) and prod(after[low : high + 1]) <= prod(before[start:stop]):
            high += 1
        if high > low and prod(after[low:high]) == prod(before[start:stop]):
            found.append((start, stop, low, high))
            start, low = stop, high
    if (start, low) != (len(before), len(after)):
        found.append((start, len(before), low, len(after)))  # dimensions of size one at the end
    return found
