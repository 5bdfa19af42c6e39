"""Variants of gather and scatter."""

from __future__ import annotations

import math

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce


@handles("Gather", "GatherElements")
def gather(node: Node) -> Tensor:
    """Import Gather along one axis."""
    x, kind = node.input(0), "gather" if node.op_type == "Gather" else "gather_elements"
    return node.add(kind, x, node.input(1), axis=node.axis(len(x.shape), default=0))


@handles("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Tensor:
    """Import ScatterElements, with its reduction."""
    x = node.input(0)
    return node.add(
        "scatter_elements",
        x,
        node.input(1),
        node.input(2),
        axis=node.axis(len(x.shape), default=0),
        reduction=node.text_attr("reduction", "none"),
    )


def flat_positions(node: Node, indices: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Index tuples [..., k] into dimensions ``dims`` as row-major positions [...]. Negative indices count from the
    end."""
    whole = node.cast(indices, DType.INT64)
    sizes = node.const(np.asarray(dims, np.int64))
    wrapped = node.binary(Binary.ADD, whole, sizes)
    whole = node.add("select", node.binary(Binary.LT, whole, node.like(0, whole)), wrapped, whole)
    steps = [math.prod(dims[index + 1 :]) for index in range(len(dims))]
    weighted = node.binary(Binary.MUL, whole, node.const(np.asarray(steps, np.int64)))
    return node.reduce(Reduce.SUM, weighted, [len(indices.shape) - 1], keepdims=False)


@handles("GatherND")
def gather_nd(node: Node) -> Tensor:
    """Import GatherND as a gather of flattened positions."""
    x, indices = node.input(0), node.input(1)
    batch = node.int_attr("batch_dims", 0)
    depth = indices.shape[-1] if indices.shape else 0
    if not 0 <= batch < min(len(x.shape), len(indices.shape)) or not 1 <= depth <= len(x.shape) - batch:
        node.damaged(f"indices {list(indices.shape)} do not fit data {list(x.shape)} with batch_dims {batch}")
    if x.shape[:batch] != indices.shape[:batch]:
        node.damaged(f"the batch dimensions of {list(x.shape)} and {list(indices.shape)} differ")
    dims, rest = x.shape[batch : batch + depth], x.shape[batch + depth :]
    positions = flat_positions(node, indices, dims)
    if batch:
        count = math.prod(x.shape[:batch])
        node.limit(count)
        offsets = np.arange(count, dtype=np.int64) * math.prod(dims)
        shape = (*x.shape[:batch], *(1 for _ in positions.shape[batch:]))
        positions = node.binary(Binary.ADD, positions, node.const(offsets.reshape(shape)))
    # Indices into several dimensions are one index into their product, so one gather of rows is enough.
    rows = node.reshape(x, (math.prod(x.shape[: batch + depth]), *rest))
    return node.add("gather", rows, positions, axis=0)


@handles("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    """Import ScatterND as a scatter of flattened positions."""
    x, indices, updates = node.input(0), node.input(1), node.input(2)
    depth = indices.shape[-1] if indices.shape else 0
    if not 1 <= depth <= len(x.shape):
        node.damaged(f"indices {list(indices.shape)} do not fit data {list(x.shape)}")
    dims, rest = x.shape[:depth], x.shape[depth:]
    if updates.shape != (*indices.shape[:-1], *rest):
        node.damaged(f"updates {list(updates.shape)} must be {[*indices.shape[:-1], *rest]}")
    count, width = math.prod(indices.shape[:-1]), math.prod(rest)
    positions = node.reshape(flat_positions(node, indices, dims), (count, 1))
    y = node.add(
        "scatter_elements",
        node.reshape(x, (math.prod(dims), width)),
        node.expand(positions, (count, width)),
        node.reshape(updates, (count, width)),
        axis=0,
        reduction=node.text_attr("reduction", "none"),
    )
    return node.reshape(y, x.shape)


@handles("TensorScatter")
def tensor_scatter(node: Node) -> Tensor:
    """Import TensorScatter: write new rows of a cache, at a different position per sample."""
    cache, update = node.input(0), node.input(1)
    rank, mode = len(cache.shape), node.text_attr("mode", "linear")
    axis = node.axis(rank, default=-2)
    rest = [dim for other, dim in enumerate(cache.shape) if other != axis]
    if axis == 0 or mode not in ("linear", "circular") or len(update.shape) != rank:
        node.damaged(f"axis {axis}, mode {mode!r} or update {list(update.shape)} is illegal")
    if [dim for other, dim in enumerate(update.shape) if other != axis] != rest or update.shape[axis] > cache.shape[
        axis
    ]:
        node.damaged(f"update {list(update.shape)} does not fit cache {list(cache.shape)}")
    places = node.along(node.iota(update.shape[axis]), axis, rank)
    starts = node.optional(2)
    if starts is not None:
        places = node.binary(Binary.ADD, places, node.along(node.cast(starts, DType.INT64), 0, rank))
    if mode == "circular":
        places = node.binary(Binary.MOD, places, node.const(np.int64(cache.shape[axis])))
    index = node.expand(places, update.shape)
    return node.add("scatter_elements", cache, index, update, axis=axis, reduction="none")


@handles("Compress", limits=["the condition is a constant"])
def compress(node: Node) -> Tensor:
    """Import Compress with a constant condition."""
    x = node.input(0)
    condition = node.value(1).reshape(-1)
    axis = node.axis(len(x.shape)) if node.has("axis") else None
    flat = x if axis is not None else node.reshape(x, (x.size,))
    chosen = np.flatnonzero(condition).astype(np.int64)
    return node.add("gather", flat, node.const(chosen), axis=axis or 0)


@handles("ReverseSequence", limits=["the lengths are constants"])
def reverse_sequence(node: Node) -> Tensor:
    """Import ReverseSequence with constant lengths."""
    x = node.input(0)
    time, batch = node.axis(len(x.shape), "time_axis", 0), node.axis(len(x.shape), "batch_axis", 1)
    lengths = node.int_values(1)
    if time == batch or len(lengths) != x.shape[batch] or any(not 0 <= n <= x.shape[time] for n in lengths):
        node.damaged(f"lengths {lengths} do not fit {list(x.shape)}")
    node.limit(x.shape[time] * len(lengths))
    order = np.tile(np.arange(x.shape[time], dtype=np.int64), (len(lengths), 1))
    for row, length in enumerate(lengths):
        order[row, :length] = order[row, :length][::-1]
    shape = [1] * len(x.shape)
    shape[time], shape[batch] = x.shape[time], x.shape[batch]
    index = node.const((order.T if time < batch else order).reshape(shape))
    return node.add("gather_elements", x, node.expand(index, x.shape), axis=time)
