"""Operators on images: pooling, resizing, exchange of space with channels or batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.frontends.tflite.operation import ACTIVATIONS, Operation
from npusim.frontends.tflite.operators.products import window_attrs
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Unary
from npusim.ops.geometry import bilinear_taps, nearest_pixels, resize_positions

MOST_PIXELS = 1 << 20
"""Largest height and width of a resized image: a table has an entry for each."""


@handles("MAX_POOL_2D", "AVERAGE_POOL_2D")
def pool(op: Operation) -> Tensor:
    """Import pooling of stored elements; input and output have the same quantisation."""
    x, function = op.image(0), "max" if op.op_type == "MAX_POOL_2D" else "average"
    activation = int(op.option("Pool2DOptions", "FusedActivationFunction"))
    if not op.alike(0):
        return op.give(op.activated(_windows(op, op.numbers(0), function), activation))
    result = _windows(op, x, function)
    record = op.results[0]
    bounds = ACTIVATIONS.get(activation)
    if not op.quantised(record) or bounds is None:
        return op.activated(result, activation)
    scale, zero = op.parameters(record)
    info = np.iinfo(x.dtype.storage)
    # An infinite bound stays infinite up to here: it becomes the largest integer.
    low, high = (np.clip(np.rint(np.float32(b) / np.float32(scale)) + zero, info.min, info.max) for b in bounds)
    return op.unary(Unary.CLIP, result, low, high)


@handles("L2_POOL_2D")
def l2_pool(op: Operation) -> Tensor:
    """Import L2_POOL_2D: the root of the mean square of each window."""
    op.image(0)
    mean = _windows(op, op.unary(Unary.SQUARE, op.numbers(0)), "average")
    activation = int(op.option("Pool2DOptions", "FusedActivationFunction"))
    return op.give(op.activated(op.unary(Unary.SQRT, mean), activation))


def _windows(op: Operation, x: Tensor, function: str) -> Tensor:
    """The largest or the mean element of each window; padding does not count."""
    kind, (_, height, width, _) = "Pool2DOptions", x.shape
    kernel = op.positive(kind, "FilterHeight"), op.positive(kind, "FilterWidth")
    attrs = window_attrs(op, kind, (height, width), kernel, dilated=False)
    top, left, bottom, right = attrs["pads"]
    room = height + top + bottom - kernel[0], width + left + right - kernel[1]
    if min(room) < 0:
        op.damaged(f"a window of {list(kernel)} does not fit into an image of {height} x {width}")
    size = tuple(space // step + 1 for space, step in zip(room, attrs["stride"], strict=True))
    return op.add("pool", x, fn=function, layout="NHWC", kernel=kernel, output_hw=size, **attrs)


@handles("RESIZE_BILINEAR", limits=["the size is a constant"])
def resize_bilinear(op: Operation) -> Tensor:
    """Import RESIZE_BILINEAR: along height, then along width."""
    kind = "ResizeBilinearOptions"
    op.image(0)
    x = op.numbers(0)
    half = op.flag(kind, "HalfPixelCenters")
    for axis, count in zip((1, 2), _size(op), strict=True):
        size = x.shape[axis]
        positions = resize_positions(size, count, op.flag(kind, "AlignCorners"), half)
        index, weight = bilinear_taps(size, positions, half)
        x = op.add("resample", x, op.i32(index), op.f32(weight), axis=axis)
    return op.give(x)


@handles("RESIZE_NEAREST_NEIGHBOR", limits=["the size is a constant"])
def resize_nearest(op: Operation) -> Tensor:
    """Import RESIZE_NEAREST_NEIGHBOR."""
    kind, x = "ResizeNearestNeighborOptions", op.image(0)
    align = op.flag(kind, "AlignCorners")
    for axis, count in zip((1, 2), _size(op), strict=True):
        positions = resize_positions(x.shape[axis], count, align, op.flag(kind, "HalfPixelCenters"))
        x = op.add("gather", x, op.i32(nearest_pixels(x.shape[axis], positions, align)), axis=axis)
    return op.moved(x)


def _size(op: Operation) -> list[int]:
    size = op.ints(1)
    if len(size) != 2 or min(size) < 1:
        op.damaged(f"the size must be two numbers >= 1, is {size}")
    if max(*size, *op.input(0).shape[1:3]) > MOST_PIXELS:
        op.refuse(f"images of at most {MOST_PIXELS} pixels in each direction are supported")
    return size


@handles("DEPTH_TO_SPACE")
def depth_to_space(op: Operation) -> Tensor:
    """Import DEPTH_TO_SPACE: blocks of channels become blocks of pixels."""
    n, h, w, c = op.image(0).shape
    block = op.positive("DepthToSpaceOptions", "BlockSize")
    depth = _divided(op, c, block * block)
    shape = (n, h * block, w * block, depth)
    return _rearranged(op, op.input(0), (n, h, w, block, block, depth), (0, 1, 3, 2, 4, 5), shape)


@handles("SPACE_TO_DEPTH")
def space_to_depth(op: Operation) -> Tensor:
    """Import SPACE_TO_DEPTH, the inverse of DEPTH_TO_SPACE."""
    n, h, w, c = op.image(0).shape
    block = op.positive("SpaceToDepthOptions", "BlockSize")
    rows, columns = _divided(op, h, block), _divided(op, w, block)
    split = (n, rows, block, columns, block, c)
    return _rearranged(op, op.input(0), split, (0, 1, 3, 2, 4, 5), (n, rows, columns, block * block * c))


@handles("SPACE_TO_BATCH_ND", limits=["block and padding are constants"])
def space_to_batch(op: Operation) -> Tensor:
    """Import SPACE_TO_BATCH_ND: space is padded; then each position within a block becomes a batch."""
    x, block, pads = op.input(0), op.ints(1), _sides(op, 2)
    rank, count = len(x.shape), len(block)
    if not 1 <= count < rank or len(pads) != count or min(block) < 1:
        op.damaged(f"blocks {block} and paddings {pads} do not fit {list(x.shape)}")
    before, after = ([0, *side, *[0] * (rank - count - 1)] for side in zip(*pads, strict=True))
    if any(before) or any(after):
        zero = op.parameters(op.type_of(0))[1] if op.quantised(op.type_of(0)) else 0
        x = op.add("pad", x, before=tuple(before), after=tuple(after), mode="constant", value=float(zero))
    rest = x.shape[count + 1 :]
    cut = [_divided(op, size, by) for size, by in zip(x.shape[1 : count + 1], block, strict=True)]
    split = (x.shape[0], *(part for pair in zip(cut, block, strict=True) for part in pair), *rest)
    inner, outer = [2 * index + 2 for index in range(count)], [2 * index + 1 for index in range(count)]
    perm = (*inner, 0, *outer, *range(2 * count + 1, len(split)))
    return _rearranged(op, x, split, perm, (int(np.prod(block)) * x.shape[0], *cut, *rest))


@handles("BATCH_TO_SPACE_ND", limits=["block and crops are constants"])
def batch_to_space(op: Operation) -> Tensor:
    """Import BATCH_TO_SPACE_ND, the inverse of SPACE_TO_BATCH_ND; the padding is removed."""
    x, block, crops = op.input(0), op.ints(1), _sides(op, 2)
    rank, count = len(x.shape), len(block)
    if not 1 <= count < rank or len(crops) != count or min(block) < 1:
        op.damaged(f"blocks {block} and crops {crops} do not fit {list(x.shape)}")
    batch, space, rest = _divided(op, x.shape[0], int(np.prod(block))), x.shape[1 : count + 1], x.shape[count + 1 :]
    perm = [count, *(part for index in range(count) for part in (count + 1 + index, index))]
    perm += range(2 * count + 1, rank + count)
    whole = [size * by for size, by in zip(space, block, strict=True)]
    y = _rearranged(op, x, (*block, batch, *space, *rest), perm, (batch, *whole, *rest))
    for axis, (first, last) in enumerate(crops, 1):
        if first + last > y.shape[axis]:
            op.damaged(f"crops {crops} exceed {whole}")
        y = op.slice(y, axis, first, y.shape[axis] - first - last)
    return y


def _sides(op: Operation, index: int) -> list[list[int]]:
    """A constant of pairs >= 0."""
    numbers = op.ints(index)
    if len(numbers) % 2 or min(numbers, default=0) < 0:
        op.damaged(f"input {index} must be pairs of numbers >= 0, is {numbers}")
    return [numbers[place : place + 2] for place in range(0, len(numbers), 2)]


def _divided(op: Operation, size: int, by: int) -> int:
    if by < 1 or size % by:
        op.damaged(f"{size} must be divisible by {by}")
    return size // by


def _rearranged(op: Operation, x: Tensor, split: Sequence[int], perm: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Dimensions cut into factors, permuted and joined again."""
    return op.reshape(op.transpose(op.reshape(x, split), perm), shape)
