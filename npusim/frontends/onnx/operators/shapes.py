"""Operators that rearrange elements: reshape, transpose, slice, concat, pad and similar."""

from __future__ import annotations

import math

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.indexing import repeated
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary
from npusim.units import ceil_div


@handles("Reshape", limits=["the shape is a constant"])
def reshape(node: Node) -> Tensor:
    """Import Reshape to a constant shape, with 0 and -1 as in ONNX."""
    x = node.input(0)
    shape = node.int_values(1)
    if not node.int_attr("allowzero", 0):
        for axis, dim in enumerate(shape):
            if dim == 0:
                if axis >= len(x.shape):
                    node.damaged(f"shape {shape} copies dimension {axis}, which {list(x.shape)} does not have")
                shape[axis] = x.shape[axis]
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        node.damaged(f"shape {shape} must have one -1 at most and no other negative dimension")
    if -1 in shape:
        known = math.prod(dim for dim in shape if dim != -1)
        if known == 0 or x.size % known:
            node.damaged(f"{list(x.shape)} cannot be reshaped to {shape}")
        shape[shape.index(-1)] = x.size // known
    return node.reshape(x, shape)


@handles("Flatten")
def flatten(node: Node) -> Tensor:
    """Import Flatten to two dimensions."""
    x = node.input(0)
    rank = len(x.shape)
    axis = node.int_attr("axis", 1)
    if not -rank <= axis <= rank:
        node.damaged(f"axis {axis} is outside a tensor of {rank} dimensions")
    axis = axis + rank if axis < 0 else axis
    return node.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _axes(node: Node) -> list[int] | None:
    """Axes from the attribute (before version 13) or the input."""
    given = node.ints_attr("axes")
    return node.int_values(1) if given is None and node.optional(1) is not None else given


@handles("Squeeze")
def squeeze(node: Node) -> Tensor:
    """Import Squeeze; axes are an attribute or a constant input."""
    x = node.input(0)
    given = _axes(node)
    axes = [i for i, d in enumerate(x.shape) if d == 1] if given is None else node.normal_axes(given, len(x.shape))
    if any(x.shape[axis] != 1 for axis in axes):
        node.damaged(f"axes {axes} of {list(x.shape)} are not all of size 1")
    return node.reshape(x, [dim for axis, dim in enumerate(x.shape) if axis not in axes])


@handles("Unsqueeze")
def unsqueeze(node: Node) -> Tensor:
    """Import Unsqueeze; axes are an attribute or a constant input."""
    x = node.input(0)
    given = _axes(node)
    if given is None:
        node.damaged("axes are required")
    shape = list(x.shape)
    for axis in sorted(node.normal_axes(given, len(shape) + len(given))):
        shape.insert(axis, 1)
    return node.reshape(x, shape)


@handles("Transpose")
def transpose(node: Node) -> Tensor:
    """Import Transpose; without ``perm`` the dimensions are reversed."""
    x = node.input(0)
    perm = node.ints_attr("perm", range(len(x.shape) - 1, -1, -1)) or []
    return node.add("transpose", x, perm=tuple(perm)) if perm != list(range(len(x.shape))) else x


@handles("Concat")
def concat(node: Node) -> Tensor:
    """Import Concat along one axis."""
    tensors = [node.input(index) for index in range(len(node.inputs))]
    if not tensors:
        node.damaged("has no inputs")
    return node.add("concat", *tensors, axis=node.axis(len(tensors[0].shape), default=1))


@handles("Split")
def split(node: Node) -> list[Tensor]:
    """Import Split into equal parts or constant sizes."""
    x = node.input(0)
    axis = node.axis(len(x.shape), default=0)
    count, dim = node.int_attr("num_outputs", len(node.proto.output)), x.shape[axis]
    sizes = node.ints_attr("split")
    if sizes is None and node.optional(1) is not None:
        sizes = node.int_values(1)
    if count < 1 or count != len(node.proto.output):
        node.damaged(f"{count} outputs are asked for, {len(node.proto.output)} are named")
    if sizes is None:
        part = ceil_div(dim, count)
        sizes = [max(min(part, dim - index * part), 0) for index in range(count)]
        # From version 18 on the last part may be shorter.
        if node.opset < 18 and dim % count:
            node.damaged(f"axis {axis} of {list(x.shape)} cannot be split into {count} equal parts")
    if sum(sizes) != dim or len(sizes) != count or min(sizes) < 0:
        node.damaged(f"parts of {sizes} do not add up to axis {axis} of {list(x.shape)}")
    starts = np.cumsum([0, *sizes])
    return [node.slice(x, axis, int(start), size) for start, size in zip(starts, sizes, strict=False)]


def slice_range(start: int, end: int, step: int, dim: int) -> tuple[int, int, int]:
    """(start, step, size) of a slice, clamped as in numpy and ONNX."""
    # Python clamps as ONNX does, including INT64_MAX and INT64_MIN for "to the end".
    first, last, step = slice(start, end, step).indices(dim)
    size = len(range(first, last, step))
    # Normalised, so that an empty or single element never has an offset or step outside the tensor.
    return (first if size else 0), (step if size > 1 else 1), size


def _slice(node: Node, starts: list[int], ends: list[int], axes: list[int] | None, steps: list[int] | None) -> Tensor:
    x = node.input(0)
    rank = len(x.shape)
    axes = node.normal_axes(list(range(len(starts))) if axes is None else axes, rank)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        node.damaged(f"starts {starts}, ends {ends}, axes {axes}, steps {steps} do not describe a slice")
    ranges = [(0, 1, dim) for dim in x.shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        ranges[axis] = slice_range(start, end, step, x.shape[axis])
    if all(entry == (0, 1, dim) for entry, dim in zip(ranges, x.shape, strict=True)):
        return x
    first, stride, sizes = zip(*ranges, strict=True)
    return node.add("slice", x, starts=first, steps=stride, sizes=sizes)


@handles("Slice")
def slice_attributes(node: Node) -> Tensor:
    """Import Slice before operator set 10: its operands are attributes."""
    return _slice(node, node.ints_attr("starts") or [], node.ints_attr("ends") or [], node.ints_attr("axes"), None)


@handles("Slice", since=10, limits=["starts, ends, axes and steps are constants"])
def slice_inputs(node: Node) -> Tensor:
    """Import Slice from operator set 10 on: its operands are constant inputs."""
    axes = node.int_values(3) if node.optional(3) is not None else None
    steps = node.int_values(4) if node.optional(4) is not None else None
    return _slice(node, node.int_values(1), node.int_values(2), axes, steps)


def _pad(node: Node, pads: list[int], value: float, axes: list[int] | None) -> Tensor:
    x = node.input(0)
    rank = len(x.shape)
    mode = node.text_attr("mode", "constant")
    axes = list(range(rank)) if axes is None else node.normal_axes(axes, rank)
    if len(pads) != 2 * len(axes):
        node.damaged(f"pads {pads} do not describe {len(axes)} dimensions")
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
        # Negative padding removes elements before any are added.
        low, high = max(-before[axis], 0), max(-after[axis], 0)
        if low or high:
            x = node.slice(x, axis, low, x.shape[axis] - low - high)
    before, after = [max(pad, 0) for pad in before], [max(pad, 0) for pad in after]
    if not any(before) and not any(after):
        return x
    return node.add("pad", x, before=tuple(before), after=tuple(after), mode=mode, value=value)


@handles("Pad")
def pad_attributes(node: Node) -> Tensor:
    """Import Pad before operator set 11: its operands are attributes."""
    return _pad(node, node.ints_attr("pads") or [], node.float_attr("value", 0.0), None)


@handles("Pad", since=11, limits=["pads, value and axes are constants"])
def pad(node: Node) -> Tensor:
    """Import Pad from operator set 11 on: its operands are constant inputs."""
    value = node.scalar_value(2) if node.optional(2) is not None else 0
    axes = node.int_values(3) if node.optional(3) is not None else None
    return _pad(node, node.int_values(1), value, axes)


@handles("Expand", limits=["the shape is a constant"])
def expand(node: Node) -> Tensor:
    """Import Expand to a constant shape."""
    x = node.input(0)
    try:
        return node.expand(x, np.broadcast_shapes(x.shape, tuple(node.int_values(1))))
    except ValueError as error:
        node.damaged(str(error))


@handles("Tile", limits=["the repeats are constants"])
def tile(node: Node) -> Tensor:
    """Import Tile with constant repeats."""
    x = node.input(0)
    repeats = node.int_values(1)
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        node.damaged(f"repeats {repeats} do not describe {list(x.shape)}")
    return repeated(node, x, repeats)


def _blocks(node: Node) -> tuple[Tensor, int, tuple[int, int, int, int]]:
    x, block = node.input(0), node.int_attr("blocksize")
    if len(x.shape) != 4 or block < 1:
        node.damaged(f"needs a 4-dimensional input and blocksize >= 1, has {list(x.shape)} and {block}")
    n, c, h, w = x.shape
    return x, block, (n, c, h, w)


@handles("DepthToSpace")
def depth_to_space(node: Node) -> Tensor:
    """Import DepthToSpace in the modes DCR and CRD."""
    x, block, (n, c, h, w) = _blocks(node)
    mode = node.text_attr("mode", "DCR")
    if mode not in ("DCR", "CRD") or c % (block * block):
        node.damaged(f"mode {mode!r} must be DCR or CRD, and {c} channels must make blocks of {block}")
    depth = c // (block * block)
    if mode == "DCR":
        parts = node.transpose(node.reshape(x, (n, block, block, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = node.transpose(node.reshape(x, (n, depth, block, block, h, w)), (0, 1, 4, 2, 5, 3))
    return node.reshape(parts, (n, depth, h * block, w * block))


@handles("SpaceToDepth")
def space_to_depth(node: Node) -> Tensor:
    """Import SpaceToDepth."""
    x, block, (n, c, h, w) = _blocks(node)
    if h % block or w % block:
        node.damaged(f"an image of {h} x {w} cannot be divided into blocks of {block}")
    mode = node.text_attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        node.damaged(f"mode must be DCR or CRD, is {mode!r}")
    parts = node.reshape(x, (n, c, h // block, block, w // block, block))
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return node.reshape(node.transpose(parts, perm), (n, c * block * block, h // block, w // block))


@handles("Trilu", limits=["k is a constant"])
def trilu(node: Node) -> Tensor:
    """Import Trilu as a selection with a constant mask."""
    x = node.input(0)
    k = int(node.scalar_value(1)) if node.optional(1) is not None else 0
    if len(x.shape) < 2:
        node.damaged(f"the input must have at least 2 dimensions, is {list(x.shape)}")
    rows, columns = x.shape[-2:]
    node.limit(rows * columns)
    offset = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    mask = offset >= k if node.int_attr("upper", 1) else offset <= k
    return node.add("select", node.const(mask), x, node.like(0, x))


@handles("OneHot", limits=["the depth is a constant"])
def one_hot(node: Node) -> Tensor:
    """Import OneHot with a constant depth."""
    indices, values = node.input(0), node.input(2)
    depth = int(node.scalar_value(1))
    rank = len(indices.shape)
    axis = node.int_attr("axis", -1)
    if not -rank - 1 <= axis <= rank or depth < 1 or values.shape != (2,):
        node.damaged(f"axis {axis}, depth {depth} or values {list(values.shape)} are out of range")
    axis = axis + rank + 1 if axis < 0 else axis
    whole = node.cast(indices, DType.INT64)
    column = node.reshape(whole, (*indices.shape[:axis], 1, *indices.shape[axis:]))
    places = node.along(node.iota(depth), axis, rank + 1)
    # A negative index counts from the end.
    hit = node.binary(Binary.EQ, places, column)
    wrapped = node.binary(Binary.EQ, places, node.binary(Binary.ADD, column, node.like(depth, column)))
    off, on = (node.reshape(node.slice(values, 0, index, 1), ()) for index in range(2))
    return node.add("select", node.binary(Binary.OR, hit, wrapped), on, off)
