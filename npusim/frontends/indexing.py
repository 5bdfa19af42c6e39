"""Gather and scatter by index tuples, reversed sequences and repetitions, as operators of the graph language."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.operation import ImportedOperation
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce


def flat_positions(op: ImportedOperation, indices: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Index tuples [..., k] into dimensions ``dims`` as row-major positions [...]. Negative indices count from the
    end."""
    whole = op.cast(indices, DType.INT64)
    sizes = op.const(np.asarray(dims, np.int64))
    wrapped = op.binary(Binary.ADD, whole, sizes)
    whole = op.add("select", op.binary(Binary.LT, whole, op.like(0, whole)), wrapped, whole)
    steps = [math.prod(dims[index + 1 :]) for index in range(len(dims))]
    weighted = op.binary(Binary.MUL, whole, op.const(np.asarray(steps, np.int64)))
    return op.reduce(Reduce.SUM, weighted, [len(indices.shape) - 1], keepdims=False)


def gather_tuples(op: ImportedOperation, x: Tensor, indices: Tensor, batch: int) -> Tensor:
    """The slices of x at index tuples [batches..., ..., k], as a gather of flattened positions."""
    depth = indices.shape[-1] if indices.shape else 0
    if not 0 <= batch < min(len(x.shape), len(indices.shape)) or not 1 <= depth <= len(x.shape) - batch:
        op.damaged(f"indices {list(indices.shape)} do not fit data {list(x.shape)} with batch_dims {batch}")
    if x.shape[:batch] != indices.shape[:batch]:
        op.damaged(f"the batch dimensions of {list(x.shape)} and {list(indices.shape)} differ")
    dims, rest = x.shape[batch : batch + depth], x.shape[batch + depth :]
    positions = flat_positions(op, indices, dims)
    if batch:
        count = math.prod(x.shape[:batch])
        op.limit(count)
        offsets = np.arange(count, dtype=np.int64) * math.prod(dims)
        shape = (*x.shape[:batch], *(1 for _ in positions.shape[batch:]))
        positions = op.binary(Binary.ADD, positions, op.const(offsets.reshape(shape)))
    # Indices into several dimensions are one index into their product, so one gather of rows is enough.
    rows = op.reshape(x, (math.prod(x.shape[: batch + depth]), *rest))
    return op.add("gather", rows, positions, axis=0)


def scatter_tuples(op: ImportedOperation, x: Tensor, indices: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """x with updates written, or combined, at index tuples [..., k], as a scatter of flattened positions."""
    depth = indices.shape[-1] if indices.shape else 0
    if not 1 <= depth <= len(x.shape):
        op.damaged(f"indices {list(indices.shape)} do not fit data {list(x.shape)}")
    dims, rest = x.shape[:depth], x.shape[depth:]
    if updates.shape != (*indices.shape[:-1], *rest):
        op.damaged(f"updates {list(updates.shape)} must be {[*indices.shape[:-1], *rest]}")
    count, width = math.prod(indices.shape[:-1]), math.prod(rest)
    positions = op.reshape(flat_positions(op, indices, dims), (count, 1))
    y = op.add(
        "scatter_elements",
        op.reshape(x, (math.prod(dims), width)),
        op.expand(positions, (count, width)),
        op.reshape(updates, (count, width)),
        axis=0,
        reduction=reduction,
    )
    return op.reshape(y, x.shape)


def reversed_order(op: ImportedOperation, x: Tensor, lengths: Sequence[int], time: int, batch: int) -> Tensor:
    """x with the first ``lengths[b]`` elements along ``time`` of each entry of ``batch`` in reverse order."""
    if time == batch or len(lengths) != x.shape[batch] or any(not 0 <= n <= x.shape[time] for n in lengths):
        op.damaged(f"lengths {list(lengths)} do not fit {list(x.shape)}")
    op.limit(x.shape[time] * len(lengths))
    order = np.tile(np.arange(x.shape[time], dtype=np.int64), (len(lengths), 1))
    for row, length in enumerate(lengths):
        order[row, :length] = order[row, :length][::-1]
    shape = [1] * len(x.shape)
    shape[time], shape[batch] = x.shape[time], x.shape[batch]
    index = op.const((order.T if time < batch else order).reshape(shape))
    return op.add("gather_elements", x, op.expand(index, x.shape), axis=time)


def repeated(op: ImportedOperation, x: Tensor, repeats: Sequence[int]) -> Tensor:
    """x repeated along each dimension, as the Tile operators do."""
    if all(count == 1 for count in repeats):
        return x
    # A dimension of 1 before each one is repeated by a view. The reshape then makes the only copy.
    one = [part for dim in x.shape for part in (1, dim)]
    many = [part for count, dim in zip(repeats, x.shape, strict=True) for part in (count, dim)]
    whole = [count * dim for count, dim in zip(repeats, x.shape, strict=True)]
    return op.reshape(op.expand(op.reshape(x, one), many), whole)
