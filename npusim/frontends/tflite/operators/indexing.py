"""Gather and scatter."""

from __future__ import annotations

import math

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.indexing import gather_tuples, reversed_order, scatter_tuples
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary


@handles("GATHER")
def gather(op: Operation) -> Tensor:
    """Import GATHER along an axis; leading batch dimensions have indices of their own."""
    x, indices = op.input(0), op.input(1)
    axis = op.normal_axis(int(op.option("GatherOptions", "Axis")), len(x.shape))
    batch = int(op.option("GatherOptions", "BatchDims"))
    batch += len(indices.shape) if batch < 0 else 0
    if not 0 <= batch <= min(axis, len(indices.shape)) or x.shape[:batch] != indices.shape[:batch]:
        op.damaged(f"{batch} batch dimensions of {list(x.shape)}, axis {axis} and indices {list(indices.shape)}")
    if not batch:
        return op.moved(op.add("gather", x, indices, axis=axis))
    # The batches and the axis become one dimension, of which each batch has its own part.
    perm = [*range(batch), axis, *range(batch, axis), *range(axis + 1, len(x.shape))]
    moved = op.transpose(x, perm)
    count = math.prod(x.shape[:batch])
    op.limit(count)
    rows = op.reshape(moved, (count * x.shape[axis], *moved.shape[batch + 1 :]))
    offsets = np.arange(count, dtype=np.int64).reshape(*x.shape[:batch], *[1] * (len(indices.shape) - batch))
    places = op.binary(Binary.ADD, op.cast(indices, DType.INT64), op.const(offsets * x.shape[axis]))
    y = op.add("gather", rows, places, axis=0)
    # The gathered dimensions are behind the batches; those before the axis belong between.
    own = len(indices.shape) - batch
    before = range(batch + own, batch + own + axis - batch)
    order = [*range(batch), *before, *range(batch, batch + own), *range(batch + own + axis - batch, len(y.shape))]
    return op.moved(op.transpose(y, order))


@handles("EMBEDDING_LOOKUP")
def embedding_lookup(op: Operation) -> Tensor:
    """Import EMBEDDING_LOOKUP: rows of a table."""
    if op.quantised(op.type_of(1)) and not op.quantised(op.results[0]):
        return op.add("gather", op.real(1), op.input(0), axis=0)
    return op.add("gather", op.input(1), op.input(0), axis=0)


@handles("GATHER_ND")
def gather_nd(op: Operation) -> Tensor:
    """Import GATHER_ND."""
    return gather_tuples(op, op.input(0), op.input(1), 0)


@handles("SCATTER_ND", limits=["the shape is a constant"])
def scatter_nd(op: Operation) -> Tensor:
    """Import SCATTER_ND: updates of equal places are added."""
    updates, shape = op.input(1), op.ints(2)
    if min(shape, default=0) < 0:
        op.damaged(f"the shape {shape} must not be negative")
    if updates.dtype is DType.BOOL:
        op.refuse("bool is not supported")
    return scatter_tuples(op, op.expand(op.like(0, updates), shape), op.input(0), updates, "add")


@handles("ONE_HOT", limits=["the depth is a constant"])
def one_hot(op: Operation) -> Tensor:
    """Import ONE_HOT."""
    indices, depth = op.input(0), int(op.scalar(1))
    rank = len(indices.shape)
    axis = int(op.option("OneHotOptions", "Axis"))
    axis = rank if axis == -1 else op.normal_axis(axis, rank + 1)
    if depth < 1:
        op.damaged(f"the depth must be >= 1, is {depth}")
    on, off = (op.reshape(op.input(index), ()) for index in (2, 3))
    column = op.reshape(op.cast(indices, DType.INT64), (*indices.shape[:axis], 1, *indices.shape[axis:]))
    hit = op.binary(Binary.EQ, op.along(op.iota(depth), axis, rank + 1), column)
    return op.add("select", hit, on, off)


@handles("REVERSE_SEQUENCE", limits=["the lengths are constants"])
def reverse_sequence(op: Operation) -> Tensor:
    """Import REVERSE_SEQUENCE."""
    rank = len(op.input(0).shape)
    seq, batch = (op.normal_axis(int(op.option("ReverseSequenceOptions", n)), rank) for n in ("SeqDim", "BatchDim"))
    return reversed_order(op, op.input(0), op.ints(1), seq, batch)


@handles("DYNAMIC_UPDATE_SLICE", limits=["one dimension at most is updated in part if the start is not constant"])
def dynamic_update_slice(op: Operation) -> Tensor:
    """Import DYNAMIC_UPDATE_SLICE: part of a tensor is replaced. The start is moved so that the update fits."""
    x, update, start = op.input(0), op.input(1), op.input(2)
    rank = len(x.shape)
    room = [size - part for size, part in zip(x.shape, update.shape, strict=True)]
    if min(room, default=0) < 0 or start.size != rank:
        op.damaged(f"update {list(update.shape)} and start {list(start.shape)} do not fit {list(x.shape)}")
    axes = [axis for axis in range(rank) if room[axis]]
    if not axes:
        return update
    if len(axes) > 1:
        op.refuse(f"an update of {list(update.shape)} in {list(x.shape)} is smaller in {len(axes)} dimensions")
    axis = axes[0]
    first = op.cast(op.slice(op.reshape(start, (rank,)), 0, axis, 1), DType.INT64)
    first = op.binary(Binary.MIN, op.binary(Binary.MAX, first, op.like(0, first)), op.like(room[axis], first))
    places = op.binary(Binary.ADD, op.along(op.iota(update.shape[axis]), axis, rank), op.along(first, axis, rank))
    return op.add("scatter_elements", x, op.expand(places, update.shape), update, axis=axis, reduction="none")
