"""Variants of gather and scatter."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.indexing import gather_tuples, reversed_order, scatter_tuples
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary


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


@handles("GatherND")
def gather_nd(node: Node) -> Tensor:
    """Import GatherND as a gather of flattened positions."""
    return gather_tuples(node, node.input(0), node.input(1), node.int_attr("batch_dims", 0))


@handles("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    """Import ScatterND as a scatter of flattened positions."""
    reduction = node.text_attr("reduction", "none")
    return scatter_tuples(node, node.input(0), node.input(1), node.input(2), reduction)


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
    return reversed_order(node, x, node.int_values(1), time, batch)
