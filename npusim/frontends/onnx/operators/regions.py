"""DeformConv and RoiAlign: sums of pixels at positions that tensors give; Det."""

from __future__ import annotations

import functools
import math

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.matrix import read_window
from npusim.frontends.onnx.operators.sampling import SampleTap, interpolated, taps_along, weighted_pixels
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.base import Array


def _pixel_rows(node: Node, x: Tensor, images: int) -> Tensor:
    """The pixels of NCHW images, whose channels are in as many groups as make ``images``, as rows [n, channels]."""
    pixels = math.prod(x.shape[2:])
    channels = math.prod(x.shape[:2]) // images
    return node.reshape(
        node.transpose(node.reshape(x, (images, channels, pixels)), (0, 2, 1)), (images * pixels, channels)
    )


@handles("DeformConv")
def deform_conv(node: Node) -> Tensor:
    """Import DeformConv as a convolution of sampled pixels, which are columns of an image."""
    x, w, offset, bias, mask = node.input(0), node.input(1), node.input(2), node.optional(3), node.optional(4)
    rank, groups, fields = len(x.shape) - 2, node.int_attr("group", 1), node.int_attr("offset_group", 1)
    if rank < 1 or len(w.shape) != rank + 2 or len(offset.shape) != rank + 2 or not x.size:
        node.damaged(f"input {list(x.shape)}, weights {list(w.shape)}, offset {list(offset.shape)} do not fit")
    window, out = read_window(node, rank, w.shape[2:]), offset.shape[2:]
    batch, channels, sizes, taps = x.shape[0], x.shape[1], x.shape[2:], math.prod(window.kernel)
    ends = zip(sizes, window.begin, window.end, strict=True)
    counts = [(sum(each) - window.extent(axis)) // window.stride[axis] + 1 for axis, each in enumerate(ends)]
    if fields < 1 or channels % fields or offset.shape != (batch, fields * taps * rank, *counts) or min(counts) < 1:
        node.damaged(f"offset {list(offset.shape)} must be {[batch, fields * taps * rank, *counts]}")
    if mask is not None and mask.shape != (batch, fields * taps, *out):
        node.damaged(f"mask {list(mask.shape)} must be {[batch, fields * taps, *out]}")
    node.limit(taps * math.prod(out) * rank + batch * fields)
    moved = node.reshape(node.cast(offset, DType.FLOAT32), (batch, fields, taps, rank, *out))
    options = []
    places = np.indices(window.kernel).reshape(rank, taps)
    for axis, size in enumerate(sizes):
        tap = (places[axis] * window.dilation[axis] - window.begin[axis]).reshape(taps, *[1] * rank)
        along = np.arange(out[axis]).reshape([-1 if other == axis else 1 for other in range(rank)])
        base = node.const(np.asarray(tap + along * window.stride[axis], np.float32))
        position = node.reshape(node.slice(moved, 3, axis, 1), (batch, fields, taps, *out))
        position = node.binary(Binary.ADD, position, base)
        options.append(taps_along(node, position, size, "linear", "zeros", False))
    images = np.arange(batch * fields, dtype=np.int64).reshape(batch, fields, *[1] * (rank + 1))
    rows = _pixel_rows(node, x, batch * fields)
    columns = interpolated(node, rows, node.const(images * math.prod(sizes)), sizes, options)
    if mask is not None:
        columns = node.binary(Binary.MUL, columns, node.reshape(mask, (batch, fields, taps, *out, 1)))
    columns = node.reshape(columns, (batch, fields, taps, math.prod(out), channels // fields))
    columns = node.reshape(node.transpose(columns, (0, 1, 4, 2, 3)), (batch, channels, taps, math.prod(out)))
    weights = node.reshape(w, (*w.shape[:2], taps, 1))
    window_of_one = {"stride": (1, 1), "dilation": (1, 1), "pads": (0, 0, 0, 0)}
    y = node.add("conv", columns, weights, bias, layout="NCHW", groups=groups, **window_of_one)
    return node.reshape(y, (batch, w.shape[0], *out))


def _samples(node: Node, start: Tensor, extent: Tensor, bins: int, grid: Array, size: int) -> list[SampleTap]:
    """Samples along one dimension of regions, as [regions, bins, samples]: bins of equal size, in each of which
    ``grid`` samples are equally far apart. Those more than a pixel outside the image have weight 0.

    ``start``, ``extent``: of the regions, [n, 1, 1]. ``grid``: per region, or one for all, [n, 1, 1].
    """
    most = int(grid.max(initial=1))
    inside = (np.arange(most) + 0.5) / np.maximum(grid, 1)
    steps = node.const(np.asarray((np.arange(bins)[:, None] + inside) / bins, np.float32))
    position = node.binary(Binary.ADD, start, node.binary(Binary.MUL, extent, steps))
    clamped = node.binary(Binary.MAX, position, node.like(0, position))
    clamped = node.binary(Binary.MIN, clamped, node.like(size - 1, position))
    near = [node.binary(Binary.GE, position, node.like(-1, position))]
    near.append(node.binary(Binary.LE, position, node.like(size, position)))
    there = node.cast(node.binary(Binary.AND, *near), DType.FLOAT32)
    found = taps_along(node, clamped, size, "linear", "border", False)
    weights = [there if tap.weight is None else node.binary(Binary.MUL, tap.weight, there) for tap in found]
    return [SampleTap(tap.index, weight) for tap, weight in zip(found, weights, strict=True)]


@handles("RoiAlign", limits=["sampling_ratio 0: the regions decide the number of samples at run time"])
def roi_align(node: Node) -> Tensor:
    """Import RoiAlign as gathers with weights, and a reduction over the samples of each bin."""
    x, rois, images = node.input(0), node.input(1), node.input(2)
    mode = node.text_attr("mode", "avg").lower()
    half = node.text_attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    bins = node.int_attr("output_height", 1), node.int_attr("output_width", 1)
    ratio, scale = node.int_attr("sampling_ratio", 0), node.float_attr("spatial_scale", 1.0)
    if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 4 or images.shape != rois.shape[:1]:
        node.damaged(f"input {list(x.shape)}, rois {list(rois.shape)}, batch_indices {list(images.shape)} do not fit")
    if mode not in ("avg", "max") or min(*bins, ratio + 1) < 1 or not x.size or not rois.size:
        node.damaged(f"mode {mode!r}, output {list(bins)}, sampling_ratio {ratio} or an empty input is illegal")
    count, sizes, shift = rois.shape[0], x.shape[2:], 0.5 if half.lower() == "half_pixel" else 0.0
    scaled = node.binary(Binary.MUL, node.cast(rois, DType.FLOAT32), node.const(np.float32(scale)))
    scaled = node.binary(Binary.SUB, scaled, node.const(np.float32(shift)))
    corners = [node.reshape(node.slice(scaled, 1, place, 1), (count, 1, 1)) for place in range(4)]
    extents = [node.binary(Binary.SUB, corners[axis + 2], corners[axis]) for axis in range(2)]
    if not shift:
        extents = [node.binary(Binary.MAX, extent, node.const(np.float32(1))) for extent in extents]
    grids = [np.full((1, 1, 1), ratio)] * 2
    if not ratio:
        known = [
            node.decided(each, "the rois", "the rois must be constants without sampling_ratio") for each in extents
        ]
        grids = [np.ceil(each / n).astype(np.int64).clip(0) for each, n in zip(known, reversed(bins), strict=True)]
    most = [int(grid.max(initial=1)) for grid in reversed(grids)]
    node.limit(count * math.prod(bins) * math.prod(most))
    down = _samples(node, corners[1], extents[1], bins[0], grids[1], sizes[0])
    across = _samples(node, corners[0], extents[0], bins[1], grids[0], sizes[1])
    options = [[_spread(node, tap, down=True) for tap in down], [_spread(node, tap, down=False) for tap in across]]
    first = node.binary(Binary.MUL, node.cast(images, DType.INT64), node.const(np.int64(math.prod(sizes))))
    start, rows = node.reshape(first, (count, 1, 1, 1, 1)), _pixel_rows(node, x, x.shape[0])
    used = (np.arange(most[0]) < grids[1])[:, :, :, None, None] & (np.arange(most[1]) < grids[0])[:, None, None, :, :]
    if mode == "avg":
        number = np.maximum(grids[0] * grids[1], 1)[:, :, :, None, None]
        share = node.const(np.asarray((used / number)[..., None], np.float32))
        values = node.binary(Binary.MUL, interpolated(node, rows, start, sizes, options), node.cast(share, x.dtype))
        y = node.reduce(Reduce.SUM, values, [2, 4], keepdims=False)
    else:
        # As the standard's definition has it: the largest of the weighted pixels, not of their sums.
        values = functools.reduce(
            functools.partial(node.binary, Binary.MAX), weighted_pixels(node, rows, start, sizes, options)
        )
        if not used.all():
            values = node.add("select", node.const(used[..., None]), values, node.like(-math.inf, values))
        y = node.reduce(Reduce.MAX, values, [2, 4], keepdims=False)
    return node.transpose(y, (0, 3, 1, 2))


def _spread(node: Node, tap: SampleTap, *, down: bool) -> SampleTap:
    """A tap as [regions, rows, samples, columns, samples], from one along the rows or the columns."""
    region, bins, samples = tap.index.shape
    shape = (region, bins, samples, 1, 1) if down else (region, 1, 1, bins, samples)
    assert tap.weight is not None
    return SampleTap(node.reshape(tap.index, shape), node.reshape(tap.weight, shape))


MOST_ROWS = 64
"""Limit of the matrices of Det, whose elimination is unrolled."""


@handles("Det", limits=[f"matrices of up to {MOST_ROWS} rows"])
def det(node: Node) -> Tensor:
    """Import Det as an elimination with the largest element of each column as pivot."""
    x = node.input(0)
    rows = x.shape[-1] if x.shape else 0
    if len(x.shape) < 2 or x.shape[-2] != rows or not x.size:
        node.damaged(f"the input must be square matrices, is {list(x.shape)}")
    if rows > MOST_ROWS:
        node.refuse(f"matrices of {rows} rows: at most {MOST_ROWS} are supported")
    batch = x.shape[:-2]
    matrix = node.reshape(x, (math.prod(batch), rows, rows))
    y: Tensor | None = None
    while rows > 1:
        column = node.slice(matrix, 2, 0, 1)
        places = node.const(np.arange(rows, dtype=np.int64).reshape(1, rows, 1))
        size_of = node.unary(Unary.ABS, column)
        largest = node.add("arg_reduce", size_of, fn="max", axis=1, keepdims=True, select_last=False)
        chosen = node.binary(Binary.EQ, places, largest)
        zeros = node.like(0, matrix)
        pivots = node.reduce(Reduce.SUM, node.add("select", chosen, matrix, zeros), [1])
        first = node.slice(matrix, 1, 0, 1)
        # The first row takes the place of the pivot's, which changes the sign if they differ.
        rest = node.add("select", node.slice(chosen, 1, 1, rows - 1), first, node.slice(matrix, 1, 1, rows - 1))
        pivot = node.slice(pivots, 2, 0, 1)
        divisor = node.add("select", node.binary(Binary.EQ, pivot, zeros), node.like(1, pivot), pivot)
        factors = node.binary(Binary.DIV, node.slice(rest, 2, 0, 1), divisor)
        signed = node.add("select", node.slice(chosen, 1, 0, 1), pivot, node.unary(Unary.NEG, pivot))
        y = signed if y is None else node.binary(Binary.MUL, y, signed)
        rows -= 1
        matrix = node.binary(
            Binary.SUB,
            node.slice(rest, 2, 1, rows),
            node.binary(Binary.MUL, factors, node.slice(pivots, 2, 1, rows)),
        )
    y = matrix if y is None else node.binary(Binary.MUL, y, matrix)
    return node.reshape(y, batch)
