"""Operators that rearrange elements, and constants made from shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.frontends.indexing import repeated
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor


@handles("RESHAPE", limits=["the shape is a constant"])
def reshape(op: Operation) -> Tensor:
    """Import RESHAPE to the shape of input 1, or else of the options."""
    x = op.input(0)
    if op.optional(1) is not None:
        shape = op.ints(1)
    else:
        shape = op.record.options.integers("ReshapeOptions", "NewShape")
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        op.damaged(f"shape {shape} must have one -1 at most and no other negative dimension")
    if -1 in shape:
        known = math.prod(dim for dim in shape if dim != -1)
        if known == 0 or x.size % known:
            op.damaged(f"{list(x.shape)} cannot be reshaped to {shape}")
        shape[shape.index(-1)] = x.size // known
    if math.prod(shape) != x.size:
        op.damaged(f"{list(x.shape)} cannot be reshaped to {shape}")
    return op.moved(op.reshape(x, shape))


@handles("SQUEEZE")
def squeeze(op: Operation) -> Tensor:
    """Import SQUEEZE of given dimensions, or of all of size 1."""
    x = op.input(0)
    given = op.record.options.integers("SqueezeOptions", "SqueezeDims")
    axes = [i for i, d in enumerate(x.shape) if d == 1] if not given else op.normal_axes(given, len(x.shape))
    if any(x.shape[axis] != 1 for axis in axes):
        op.damaged(f"axes {axes} of {list(x.shape)} are not all of size 1")
    return op.moved(op.reshape(x, [dim for axis, dim in enumerate(x.shape) if axis not in axes]))


@handles("EXPAND_DIMS", limits=["the axis is a constant"])
def expand_dims(op: Operation) -> Tensor:
    """Import EXPAND_DIMS."""
    x = op.input(0)
    axis = op.normal_axis(int(op.scalar(1)), len(x.shape) + 1)
    return op.moved(op.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])))


@handles("TRANSPOSE", limits=["the permutation is a constant"])
def transpose(op: Operation) -> Tensor:
    """Import TRANSPOSE."""
    x = op.input(0)
    perm = op.normal_axes(op.ints(1), len(x.shape))
    if len(perm) != len(x.shape):
        op.damaged(f"permutation {perm} does not describe {list(x.shape)}")
    return op.moved(op.transpose(x, perm))


@handles("CONCATENATION")
def concatenation(op: Operation) -> Tensor:
    """Import CONCATENATION; inputs of other scales are converted to that of the output."""
    axis = op.normal_axis(int(op.option("ConcatenationOptions", "Axis")), len(op.input(0).shape))
    parts = [_as_output(op, index) for index in range(len(op.inputs))]
    joined = parts[0] if len(parts) == 1 else op.add("concat", *parts, axis=axis)
    activation = int(op.option("ConcatenationOptions", "FusedActivationFunction"))
    return op.give(op.activated(op.to_real(joined, op.results[0]), activation)) if activation else joined


def _as_output(op: Operation, index: int) -> Tensor:
    """An input in the storage form of output 0."""
    if not op.quantised(op.results[0]) or op.alike(index):
        return op.input(index)
    return op.give(op.numbers(index))


@handles("PACK")
def pack(op: Operation) -> Tensor:
    """Import PACK: tensors joined along a new dimension."""
    shape = op.input(0).shape
    axis = op.normal_axis(int(op.option("PackOptions", "Axis")), len(shape) + 1)
    parts = [_as_output(op, index) for index in range(len(op.inputs))]
    if any(part.shape != shape for part in parts):
        op.damaged(f"inputs must all have shape {list(shape)}")
    return op.stack(parts, axis)


@handles("UNPACK")
def unpack(op: Operation) -> list[Tensor]:
    """Import UNPACK: the entries of one dimension."""
    x = op.input(0)
    axis = op.normal_axis(int(op.option("UnpackOptions", "Axis")), len(x.shape))
    if x.shape[axis] != len(op.results):
        op.damaged(f"dimension {axis} of {list(x.shape)} must make {len(op.results)} outputs")
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [op.moved(op.reshape(op.slice(x, axis, n, 1), rest), n) for n in range(len(op.results))]


@handles("SPLIT", "SPLIT_V", limits=["axis and sizes are constants"])
def split(op: Operation) -> list[Tensor]:
    """Import SPLIT into equal parts, or SPLIT_V into parts of given sizes."""
    equal = op.op_type == "SPLIT"
    x = op.input(1 if equal else 0)
    axis = op.normal_axis(int(op.scalar(0 if equal else 2)), len(x.shape))
    dim, count = x.shape[axis], len(op.results)
    sizes = [dim // max(count, 1)] * count if equal else op.ints(1)
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = dim - sum(sizes) - 1
    if sum(sizes) != dim or len(sizes) != count or min(sizes, default=0) < 0:
        op.damaged(f"parts of {sizes} do not add up to dimension {axis} of {list(x.shape)}")
    starts = np.cumsum([0, *sizes])
    return [op.slice(x, axis, int(start), size) for start, size in zip(starts, sizes, strict=False)]


@handles("SLICE", limits=["start and size are constants"])
def slice_(op: Operation) -> Tensor:
    """Import SLICE; a size of -1 is all that follows."""
    x, starts, sizes = op.input(0), op.ints(1), op.ints(2)
    if not len(starts) == len(sizes) == len(x.shape):
        op.damaged(f"starts {starts} and sizes {sizes} do not describe {list(x.shape)}")
    sizes = [dim - start if size == -1 else size for dim, start, size in zip(x.shape, starts, sizes, strict=True)]
    for dim, start, size in zip(x.shape, starts, sizes, strict=True):
        if not 0 <= start <= start + size <= dim or size < 0:
            op.damaged(f"starts {starts} and sizes {sizes} are outside {list(x.shape)}")
    starts = [start if size else 0 for start, size in zip(starts, sizes, strict=True)]
    return op.moved(_cut(op, x, starts, [1] * len(starts), sizes))


def _cut(op: Operation, x: Tensor, starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]) -> Tensor:
    if tuple(sizes) == x.shape and set(steps) <= {1}:
        return x
    return op.add("slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


@handles("STRIDED_SLICE", limits=["begin, end and strides are constants"])
def strided_slice(op: Operation) -> Tensor:
    """Import STRIDED_SLICE with all masks."""
    kind, x = "StridedSliceOptions", op.input(0)
    begins, ends, strides = op.ints(1), op.ints(2), op.ints(3)
    if not len(begins) == len(ends) == len(strides) or 0 in strides:
        op.damaged(f"begin {begins}, end {ends} and strides {strides} do not describe a slice")
    fields = ("BeginMask", "EndMask", "EllipsisMask", "NewAxisMask", "ShrinkAxisMask")
    begin_mask, end_mask, ellipsis_mask, new_mask, shrink_mask = (int(op.option(kind, name)) for name in fields)
    offset = op.flag(kind, "Offset")
    places = range(len(begins))
    ellipsis = [place for place in places if ellipsis_mask >> place & 1]
    fresh = [place for place in places if new_mask >> place & 1 and place not in ellipsis]
    taken = len(begins) - len(ellipsis) - len(fresh)
    rank = len(x.shape)
    if len(ellipsis) > 1 or taken > rank:
        op.damaged(f"a slice of {taken} dimensions of {list(x.shape)}")
    shape: list[int] = []
    starts, steps, sizes, axis = [0] * rank, [1] * rank, list(x.shape), 0
    for place in places:
        if place in ellipsis:
            shape += x.shape[axis : axis + rank - taken]
            axis += rank - taken
            continue
        if place in fresh:
            shape.append(1)
            continue
        dim, step, begin = x.shape[axis], strides[place], begins[place]
        if shrink_mask >> place & 1:
            index = begin + dim if begin < 0 else begin
            if not 0 <= index < dim:
                op.damaged(f"index {begin} is outside dimension {axis} of {list(x.shape)}")
            starts[axis], sizes[axis] = index, 1
        else:
            end = begin + ends[place] if offset else ends[place]
            first, last, step = slice(
                None if begin_mask >> place & 1 else begin, None if end_mask >> place & 1 else end, step
            ).indices(dim)
            size = len(range(first, last, step))
            starts[axis], steps[axis], sizes[axis] = (first if size else 0), (step if size > 1 else 1), size
            shape.append(size)
        axis += 1
    shape += x.shape[axis:]
    return op.moved(op.reshape(_cut(op, x, starts, steps, sizes), shape))


@handles("REVERSE_V2", limits=["the axes are constants"])
def reverse(op: Operation) -> Tensor:
    """Import REVERSE_V2."""
    x = op.input(0)
    return op.reverse(x, op.normal_axes(op.ints(1), len(x.shape)))


@handles("PAD", "PADV2", limits=["paddings and value are constants"])
def pad(op: Operation) -> Tensor:
    """Import PAD with the number 0, or PADV2 with a stored value."""
    x, pads = op.input(0), _paddings(op)
    value = 0.0
    if op.op_type == "PADV2":
        if op.input(2).dtype is not x.dtype:
            op.damaged(f"the value is {op.input(2).dtype.label}, the input {x.dtype.label}")
        value = op.scalar(2)
    elif op.quantised(op.type_of(0)):
        value = op.parameters(op.type_of(0))[1]
    if not any(map(any, pads)):
        return op.moved(x)
    before, after = zip(*pads, strict=True)
    return op.moved(op.add("pad", x, before=before, after=after, mode="constant", value=value))


@handles("MIRROR_PAD", limits=["the paddings are constants"])
def mirror_pad(op: Operation) -> Tensor:
    """Import MIRROR_PAD: elements at the edges are mirrored, without (REFLECT) or with (SYMMETRIC) the edge itself."""
    x, pads = op.input(0), _paddings(op)
    mode = int(op.option("MirrorPadOptions", "Mode"))
    if mode not in (0, 1):
        op.damaged(f"the mode must be 0 (REFLECT) or 1 (SYMMETRIC), is {mode}")
    for (before, after), size in zip(pads, x.shape, strict=True):
        if max(before, after) > size - (mode == 0):
            op.damaged(f"paddings {pads} are larger than {list(x.shape)}")
        op.limit(before + size + after)
    return op.mirror_pad(x, pads, edge=mode == 1)


def _paddings(op: Operation) -> list[list[int]]:
    """The constant pairs >= 0 of input 1, one for each dimension."""
    rank, numbers = len(op.input(0).shape), op.ints(1)
    if len(numbers) != 2 * rank or min(numbers, default=0) < 0:
        op.damaged(f"paddings must be {rank} pairs >= 0, are {numbers}")
    return [numbers[place : place + 2] for place in range(0, len(numbers), 2)]


@handles("TILE", limits=["the repeats are constants"])
def tile(op: Operation) -> Tensor:
    """Import TILE."""
    x, repeats = op.input(0), op.ints(1)
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        op.damaged(f"repeats {repeats} do not describe {list(x.shape)}")
    return repeated(op, x, repeats)


@handles("BROADCAST_TO", limits=["the shape is a constant"])
def broadcast_to(op: Operation) -> Tensor:
    """Import BROADCAST_TO."""
    x, shape = op.input(0), op.ints(1)
    if np.broadcast_shapes(x.shape, tuple(shape)) != tuple(shape):
        op.damaged(f"{list(x.shape)} cannot be broadcast to {shape}")
    return op.expand(x, shape)


@handles("BROADCAST_ARGS", limits=["the shapes are constants"])
def broadcast_args(op: Operation) -> Tensor:
    """Import BROADCAST_ARGS: the shape to which two shapes broadcast."""
    shape = np.broadcast_shapes(tuple(op.ints(0)), tuple(op.ints(1)))
    return op.const(np.asarray(shape, op.input(0).dtype.storage))


@handles("MATRIX_DIAG", "MATRIX_SET_DIAG")
def matrix_diag(op: Operation) -> Tensor:
    """Import matrices of zeros with a given diagonal, or given matrices with another diagonal."""
    diagonal = op.input(0 if op.op_type == "MATRIX_DIAG" else 1)
    if op.op_type == "MATRIX_DIAG":
        if not diagonal.shape:
            op.damaged("the diagonal must have at least one dimension")
        rest = op.like(0, diagonal)
        shape: tuple[int, ...] = (*diagonal.shape, diagonal.shape[-1])
    else:
        rest, shape = op.input(0), op.input(0).shape
    if len(shape) < 2 or diagonal.shape != (*shape[:-2], min(shape[-2:])):
        op.damaged(f"the diagonal {list(diagonal.shape)} does not fit {list(shape)}")
    op.limit(shape[-1] * shape[-2])
    length = min(shape[-2:])
    # Along the longer dimension, elements behind the diagonal are not selected.
    long = max(shape[-2:]) - length
    if long:
        before, after = (0,) * len(diagonal.shape), (*(0,) * (len(diagonal.shape) - 1), long)
        diagonal = op.add("pad", diagonal, before=before, after=after, mode="constant", value=0.0)
    axis = len(shape) - 1 if shape[-1] >= shape[-2] else len(shape) - 2
    placed = op.reshape(
        diagonal,
        [dim for at, dim in enumerate(shape) if at < len(shape) - 2]
        + ([1, diagonal.shape[-1]] if axis == len(shape) - 1 else [diagonal.shape[-1], 1]),
    )
    return op.add("select", op.const(np.eye(*shape[-2:], dtype=np.bool_)), placed, rest)


@handles("FILL", limits=["the shape is a constant"])
def fill(op: Operation) -> Tensor:
    """Import FILL."""
    return op.expand(op.reshape(op.input(1), ()), op.ints(0))


@handles("ZEROS_LIKE")
def zeros_like(op: Operation) -> Tensor:
    """Import ZEROS_LIKE."""
    x = op.input(0)
    zero = op.parameters(op.results[0])[1] if op.quantised(op.results[0]) else 0
    return op.expand(op.like(zero, x), x.shape)


@handles("SHAPE")
def shape(op: Operation) -> Tensor:
    """Import SHAPE as a constant."""
    dtype = op.dtype_of(op.results[0])
    return op.const(np.asarray(op.input(0).shape, dtype.storage))


@handles("RANK")
def rank(op: Operation) -> Tensor:
    """Import RANK as a constant."""
    return op.const(np.int32(len(op.input(0).shape)))


@handles("RANGE", limits=["the operands are constants"])
def sequence(op: Operation) -> Tensor:
    """Import RANGE as a constant."""
    start, limit, delta = (op.scalar(index) for index in range(3))
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        op.damaged(f"start {start}, limit {limit} and delta {delta} do not describe a sequence")
    count = max(math.ceil((limit - start) / delta), 0)
    op.limit(count)
    dtype = op.input(0).dtype
    steps = np.arange(count, dtype=np.float64 if dtype.is_float else np.int64)
    return op.const(steps * delta + start, dtype)
