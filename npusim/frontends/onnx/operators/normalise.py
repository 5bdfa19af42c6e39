"""Normalisation operators and softmax."""

from __future__ import annotations

import math

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary


@handles("BatchNormalization", limits=["training mode before operator set 14 is refused"])
def batch_normalization(node: Node) -> Tensor | list[Tensor]:
    """x * factor + offset per channel. Both are constants if the statistics are."""
    x = node.input(0)
    momentum = node.float_attr("momentum", 0.9)
    node.ignore("is_test")
    if not node.int_attr("spatial", 1):
        node.refuse("attribute spatial=0 is not supported")
    if node.int_attr("training_mode", 0):
        return _normalised_in_training(node, x, momentum)
    for index in range(1, 5):
        node.no_output(index, "training mode before operator set 14 is not supported")
    if len(x.shape) < 2:
        node.damaged(f"the input must have a channel dimension, is {list(x.shape)}")
    scale, bias, mean, variance = (node.cast(node.input(index), DType.FLOAT32) for index in range(1, 5))
    epsilon = node.like(node.float_attr("epsilon", 1e-5), variance)
    deviation = node.unary(Unary.RSQRT, node.binary(Binary.ADD, variance, epsilon))
    factor = node.binary(Binary.MUL, scale, deviation)
    offset = node.binary(Binary.SUB, bias, node.binary(Binary.MUL, mean, factor))
    return affine(node, x, factor, offset, 1)


def _normalised_in_training(node: Node, x: Tensor, momentum: float) -> list[Tensor]:
    """x normalised with its own statistics, and the running statistics after it."""
    axes, rank, running = [axis for axis in range(len(x.shape)) if axis != 1], len(x.shape), []
    wide = node.cast(x, DType.FLOAT32)
    mean = node.reduce(Reduce.MEAN, wide, axes)
    variance = node.reduce(Reduce.MEAN, node.binary(Binary.SQUARED_DIFFERENCE, wide, mean), axes)
    for index, found in ((3, mean), (4, variance)):
        before, now = node.input(index), node.reshape(found, (found.size,))
        old = node.binary(Binary.MUL, node.cast(before, DType.FLOAT32), node.like(momentum, now))
        new = node.binary(Binary.MUL, now, node.like(1 - momentum, now))
        running.append(node.cast(node.binary(Binary.ADD, old, new), before.dtype))
    epsilon = node.like(node.float_attr("epsilon", 1e-5), variance)
    deviation = node.unary(Unary.RSQRT, node.binary(Binary.ADD, variance, epsilon))
    y = node.binary(Binary.MUL, node.binary(Binary.SUB, wide, mean), deviation)
    scale, bias = (node.along(node.cast(node.input(index), DType.FLOAT32), 1, rank) for index in (1, 2))
    return [node.cast(node.binary(Binary.ADD, node.binary(Binary.MUL, y, scale), bias), x.dtype), *running]


def affine(node: Node, x: Tensor, factor: Tensor, offset: Tensor | None, axis: int) -> Tensor:
    """x * factor + offset, with vectors along one axis."""
    rank = len(x.shape)
    y = node.binary(Binary.MUL, x, node.along(node.cast(factor, x.dtype), axis, rank))
    return y if offset is None else node.binary(Binary.ADD, y, node.along(node.cast(offset, x.dtype), axis, rank))


@handles("LayerNormalization")
def layer_normalization(node: Node) -> list[Tensor | None]:
    """Import LayerNormalization over the last dimensions, from ``axis`` on."""
    x, scale, bias = node.input(0), node.input(1), node.optional(2)
    axis = node.axis(len(x.shape), default=-1)
    epsilon = node.float_attr("epsilon", 1e-5)
    node.ignore("stash_type")
    y = node.binary(Binary.MUL, node.add("normalize", x, axis=axis, mode="layer", epsilon=epsilon), scale)
    y = y if bias is None else node.binary(Binary.ADD, y, bias)
    mean = deviation = None
    if any(node.wanted[1:]):
        axes = list(range(axis, len(x.shape)))
        wide = node.cast(x, DType.FLOAT32)
        mean = node.reduce(Reduce.MEAN, wide, axes)
        variance = node.reduce(Reduce.MEAN, node.binary(Binary.SQUARED_DIFFERENCE, wide, mean), axes)
        deviation = node.unary(Unary.RSQRT, node.binary(Binary.ADD, variance, node.like(epsilon, mean)))
    return [y, mean, deviation]


@handles("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: Node) -> list[Tensor | None]:
    """Import SimplifiedLayerNormalization, which onnxruntime has before RMSNormalization."""
    node.no_output(1, "the inverse of the root is not supported")
    return [rms_normalization(node), None]


@handles("RMSNormalization")
def rms_normalization(node: Node) -> Tensor:
    """Import RMSNormalization over the last dimensions, from ``axis`` on."""
    x = node.input(0)
    axis = node.axis(len(x.shape), default=-1)
    node.ignore("stash_type")
    y = node.add("normalize", x, axis=axis, mode="rms", epsilon=node.float_attr("epsilon", 1e-5))
    return node.cast(node.binary(Binary.MUL, y, node.cast(node.input(1), y.dtype)), node.input(1).dtype)


@handles("InstanceNormalization")
def instance_normalization(node: Node) -> Tensor:
    """Import InstanceNormalization over the spatial dimensions."""
    x = node.input(0)
    if len(x.shape) < 3:
        node.damaged(f"the input must have spatial dimensions, is {list(x.shape)}")
    y = node.add("normalize", x, axis=2, mode="layer", epsilon=node.float_attr("epsilon", 1e-5))
    return affine(node, y, node.input(1), node.input(2), 1)


@handles("GroupNormalization")
def group_normalization(node: Node) -> Tensor:
    """Import GroupNormalization: channels are normalised in groups."""
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    groups = node.int_attr("num_groups")
    node.ignore("stash_type")
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        node.damaged(f"the channels of {list(x.shape)} cannot be divided into {groups} groups")
    rows = node.reshape(x, (x.shape[0], groups, x.size // max(x.shape[0] * groups, 1)))
    y = node.add("normalize", rows, axis=2, mode="layer", epsilon=node.float_attr("epsilon", 1e-5))
    if node.opset < 21:
        # Before operator set 21, scale and offset have one entry per group instead of one per channel.
        return node.reshape(affine(node, y, scale, bias, 1), x.shape)
    return affine(node, node.reshape(y, x.shape), scale, bias, 1)


@handles("LpNormalization")
def lp_normalization(node: Node) -> Tensor:
    """Import LpNormalization with p 1 or 2."""
    x = node.input(0)
    axis, p = node.axis(len(x.shape), default=-1), node.int_attr("p", 2)
    if p not in (1, 2):
        node.damaged(f"attribute p must be 1 or 2, is {p}")
    norm = node.reduce(Reduce.L1 if p == 1 else Reduce.L2, x, [axis])
    # A row of zeros stays zero.
    least = 2.0**-24 if x.dtype is DType.FLOAT16 else 2.0**-126
    return node.binary(Binary.DIV, x, node.binary(Binary.MAX, norm, node.like(least, norm)))


@handles("LRN")
def lrn(node: Node) -> Tensor:
    """Import LRN: local response normalisation across channels."""
    x = node.input(0)
    if len(x.shape) < 2:
        node.damaged(f"the input must have a channel dimension, is {list(x.shape)}")
    return node.add(
        "lrn",
        x,
        axis=1,
        size=node.int_attr("size"),
        alpha=node.float_attr("alpha", 1e-4),
        beta=node.float_attr("beta", 0.75),
        bias=node.float_attr("bias", 1.0),
    )


@handles("Softmax", "LogSoftmax", "Hardmax")
def flattened_softmax(node: Node) -> Tensor:
    """Before operator set 13: the dimensions from ``axis`` on form one row."""
    x = node.input(0)
    rank = len(x.shape)
    axis = rank if rank and node.int_attr("axis", 1) == rank else node.axis(rank, default=1)
    rows = node.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return node.reshape(_softmax(node, rows, 1), x.shape)


@handles("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(node: Node) -> Tensor:
    """Import Softmax, LogSoftmax and Hardmax along one axis."""
    x = node.input(0)
    return _softmax(node, x, node.axis(len(x.shape), default=-1))


def _softmax(node: Node, x: Tensor, axis: int) -> Tensor:
    if node.op_type != "Hardmax":
        return node.add("softmax", x, axis=axis, log=node.op_type == "LogSoftmax")
    best = node.add("arg_reduce", x, fn="max", axis=axis, keepdims=True)
    places = node.along(node.iota(x.shape[axis]), axis, len(x.shape))
    return node.cast(node.binary(Binary.EQ, places, best), x.dtype)
