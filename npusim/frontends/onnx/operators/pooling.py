"""Max, average and Lp pooling, over windows and over whole images."""

from __future__ import annotations

import math
import operator
from dataclasses import replace

import numpy as np

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.matrix import SpatialWindow, image_of, padded, read_window, two_d, window_attrs
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.base import Array
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


@handles("MaxPool", limits=_IMAGES)
def max_pool(node: Node) -> list[Tensor]:
    """Import MaxPool."""
    columns_first = bool(node.int_attr("storage_order", 0))
    y = pool(node, node.input(0), "max")
    return [y, _places_of_maxima(node, y, columns_first)] if node.wants(1) else [y]


def _places_of_maxima(node: Node, maxima: Tensor, columns_first: bool) -> Tensor:
    """The positions of the first maximum of each window in the flat input, INT64. ``columns_first``: of images whose
    first dimension is contiguous.

    One dimension after the other, from the last one on: of equal maxima, that of the smallest position stays.
    """
    x = node.input(0)
    sizes = x.shape[2:]
    window, counts, rank = padded(read_window(node, len(sizes), None), list(sizes)), maxima.shape[2:], len(x.shape)
    node.limit(x.size)
    numbers: Array = np.arange(math.prod(sizes), dtype=np.int64)
    numbers = numbers.reshape(sizes[::-1]).T if columns_first else numbers.reshape(sizes)
    places = node.const(numbers.reshape(1, 1, *sizes))
    lowest = -math.inf if x.dtype.is_float else float(np.iinfo(x.dtype.storage).min)
    values = x
    for axis in reversed(range(len(sizes))):
        stride, reach = window.stride[axis], (counts[axis] - 1) * window.stride[axis] + window.extent(axis)
        ends = [[0] * rank, [0] * rank]
        ends[0][axis + 2] = window.begin[axis]
        ends[1][axis + 2] = max(0, reach - window.begin[axis] - sizes[axis])
        around = {"before": tuple(ends[0]), "after": tuple(ends[1])}
        if any(map(any, ends)):
            values = node.add("pad", values, mode="constant", value=lowest, **around)
            places = node.add("pad", places, mode="constant", value=-1.0, **around)

        def entry(of: Tensor, tap: int, axis: int = axis, stride: int = stride) -> Tensor:
            starts, steps, many = [0] * rank, [1] * rank, list(of.shape)
            starts[axis + 2], steps[axis + 2], many[axis + 2] = tap * window.dilation[axis], stride, counts[axis]
            return node.add("slice", of, starts=tuple(starts), steps=tuple(steps), sizes=tuple(many))

        best, place = entry(values, 0), entry(places, 0)
        for tap in range(1, window.kernel[axis]):
            other = entry(values, tap)
            larger = node.binary(Binary.GT, other, best)
            if (tap - 1) * window.dilation[axis] < window.begin[axis]:
                # Padding is no maximum, even of a window of nothing but the lowest value.
                larger = node.binary(Binary.OR, larger, node.binary(Binary.LT, place, node.const(np.int64(0))))
            place = node.add("select", larger, entry(places, tap), place)
            best = node.binary(Binary.MAX, best, other)
        values, places = best, place
    images = np.arange(math.prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *[1] * len(sizes))
    return node.binary(Binary.ADD, places, node.const(images * math.prod(sizes)))


@handles("MaxUnpool", limits=["output_shape is a constant"])
def max_unpool(node: Node) -> Tensor:
    """Import MaxUnpool as a scatter into zeros."""
    x, places, rank = node.input(0), node.input(1), len(node.input(0).shape) - 2
    if rank < 1 or places.shape != x.shape:
        node.damaged(f"indices {list(places.shape)} do not fit input {list(x.shape)}")
    window = read_window(node, rank, None)
    ends = [window.begin[axis] + window.end[axis] for axis in range(rank)]
    sizes = [(n - 1) * window.stride[i] - ends[i] + window.kernel[i] for i, n in enumerate(x.shape[2:])]
    inferred = (*x.shape[:2], *sizes)
    whole = tuple(node.int_values(2)) if node.optional(2) is not None else inferred
    if min(inferred) < 1 or len(whole) != len(inferred) or any(map(operator.gt, inferred, whole)):
        node.damaged(f"output_shape {list(whole)} must be at least {list(inferred)}")
    zeros = node.expand(node.like(0, x), (math.prod(inferred),))
    flat = node.reshape(x, (x.size,)), node.reshape(places, (x.size,))
    y = node.add("scatter_elements", zeros, flat[1], flat[0], axis=0, reduction="none")
    after = tuple(map(operator.sub, whole, inferred))
    y = node.reshape(y, inferred)
    return node.add("pad", y, mode="constant", value=0.0, before=(0,) * len(whole), after=after) if any(after) else y


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
