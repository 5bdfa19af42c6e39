"""Max, average and Lp pooling, over windows and over whole images."""

from __future__ import annotations

import math
from dataclasses import replace

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.matrix import SpatialWindow, image_of, padded, read_window, two_d, window_attrs
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.units import ceil_div


def _output_sizes(node: Node, window: SpatialWindow, sizes: list[int]) -> list[int]:
    """Number of windows per dimension. With ceil_mode the last window may exceed the padding, but must start before
    it."""
    ceil = node.int_attr("ceil_mode", 0)
    out = []
    for axis, size in enumerate(sizes):
        stride = window.stride[axis]
        room = size + window.begin[axis] + window.end[axis] - window.extent(axis)
        count = (ceil_div(room, stride) if ceil else room // stride) + 1
        if ceil and (count - 1) * stride >= size + window.begin[axis]:
            count -= 1
        if count < 1:
            node.damaged(f"a window of {window.extent(axis)} does not fit into {size} pixels")
        out.append(count)
    return out


def pool(node: Node, x: Tensor, fn: str, count_include_pad: bool = False, *, whole: bool = False) -> Tensor:
    """The pool with the attributes of the node. ``whole``: padding extends to the end of the last window."""
    rank = len(x.shape) - 2
    if rank > 3:
        node.refuse(f"one to three spatial dimensions are supported, the operand is {list(x.shape)}")
    sizes = list(x.shape[2:])
    window = padded(read_window(node, rank, None), sizes)
    counts = _output_sizes(node, window, sizes)
    if whole:
        reach = [(count - 1) * window.stride[axis] + window.extent(axis) for axis, count in enumerate(counts)]
        ends = zip(window.end, reach, window.begin, sizes, strict=True)
        window = replace(window, end=[max(end, last - begin - size) for end, last, begin, size in ends])

    def part(image: Tensor, over: SpatialWindow, out: list[int]) -> Tensor:
        return node.add(
            "pool",
            image,
            fn=fn,
            layout="NCHW",
            kernel=two_d(over.kernel, 1),
            count_include_pad=count_include_pad,
            output_hw=two_d(out, 1),
            **window_attrs(over),
        )

    if rank < 3:
        y = part(image_of(node, x), window, counts)
        return node.reshape(y, (*y.shape[:2], y.shape[3])) if rank == 1 else y
    # Pool each image, then the images: maximum of maxima, mean of means, norm of norms.
    batch, channels, depth, height, width = x.shape
    images = part(node.reshape(x, (batch, channels * depth, height, width)), window.plane, counts[1:])
    columns = node.reshape(images, (batch, channels, depth, math.prod(counts[1:])))
    y = part(columns, window.column, [counts[0], math.prod(counts[1:])])
    return node.reshape(y, (batch, channels, *counts))


_IMAGES = ["one to three spatial dimensions"]


@handles("MaxPool", limits=[*_IMAGES, "the Indices output is refused"])
def max_pool(node: Node) -> Tensor:
    """Import MaxPool without its Indices output."""
    node.ignore("storage_order")
    node.no_output(1, "indices of maxima are not supported")
    return pool(node, node.input(0), "max")


@handles("AveragePool", limits=_IMAGES)
def average_pool(node: Node) -> Tensor:
    """Import AveragePool."""
    return pool(node, node.input(0), "average", bool(node.int_attr("count_include_pad", 0)))


@handles("LpPool", limits=[*_IMAGES, "ceil_mode with p other than 2 is refused"])
def lp_pool(node: Node) -> Tensor:
    """Import LpPool as a pool of powers."""
    p = node.int_attr("p", 2)
    if p == 2:
        return pool(node, node.input(0), "l2")
    if node.int_attr("ceil_mode", 0) or p < 1:
        node.refuse(f"p={p} is supported without ceil_mode and for p >= 1 only")
    powers = node.unary(Unary.ABS, node.input(0))
    if p != 1:
        powers = node.binary(Binary.POW, powers, node.like(p, powers))
    # An average that counts padding is the sum divided by a constant.
    mean = pool(node, powers, "average", count_include_pad=True)
    total = node.binary(Binary.MUL, mean, node.like(math.prod(node.ints_attr("kernel_shape") or []), mean))
    return total if p == 1 else node.binary(Binary.POW, total, node.like(1 / p, total))


def _image_axes(node: Node) -> tuple[Tensor, list[int]]:
    x = node.input(0)
    if len(x.shape) < 3:
        node.damaged(f"the input must have spatial dimensions, is {list(x.shape)}")
    return x, list(range(2, len(x.shape)))


@handles("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: Node) -> Tensor:
    """Import GlobalAveragePool and GlobalMaxPool as reductions."""
    return node.reduce(Reduce.MAX if node.op_type == "GlobalMaxPool" else Reduce.MEAN, *_image_axes(node))


@handles("GlobalLpPool", limits=["p is 1 or 2"])
def global_lp_pool(node: Node) -> Tensor:
    """Import GlobalLpPool with p 1 or 2."""
    p = node.int_attr("p", 2)
    if p not in (1, 2):
        node.refuse(f"p={p} is not supported; it must be 1 or 2")
    return node.reduce(Reduce.L1 if p == 1 else Reduce.L2, *_image_axes(node))
