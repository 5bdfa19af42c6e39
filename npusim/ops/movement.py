"""Kinds that move elements without arithmetic; any element type."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType, float32_to_bfloat16
from npusim.errors import InputError, ModelError
from npusim.graph import Op
from npusim.isa.base import Unit
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    Folding,
    Inputs,
    Lowered,
    Result,
    broadcast,
    check_axis,
    define,
    narrow,
    operand,
    present,
    same_dtype,
    widen,
)

PAD_MODES = ("constant", "edge", "reflect", "wrap")
REDUCTIONS = ("none", "add", "mul", "max", "min")


def _check_shape(shape: Sequence[int]) -> None:
    if any(dim < 0 for dim in shape):
        raise ModelError(f"dimensions must be >= 0, got {list(shape)}")


def _infer_reshape(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, shape = operand(inputs, 0), tuple(attrs["shape"])
    _check_shape(shape)
    if math.prod(shape) != x.size:
        raise ModelError(f"cannot reshape {list(x.shape)} ({x.size} elements) to {list(shape)}")
    return [(shape, x.dtype)]


def _reshape(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = present(arrays, 0)
    if x.size and not any(stride for stride, dim in zip(x.strides, x.shape, strict=True) if dim > 1):
        # An element that a broadcast view repeats is stored once.
        return [np.broadcast_to(x[(0,) * x.ndim], op.attrs["shape"])]
    return [x.reshape(op.attrs["shape"])]


def _infer_transpose(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, perm = operand(inputs, 0), attrs["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise ModelError(f"perm must be a permutation of {len(x.shape)} dimensions, got {list(perm)}")
    return [(tuple(x.shape[axis] for axis in perm), x.dtype)]


def _infer_slice(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x = operand(inputs, 0)
    starts, steps, sizes = attrs["starts"], attrs["steps"], attrs["sizes"]
    if not len(starts) == len(steps) == len(sizes) == len(x.shape):
        raise ModelError(f"starts, steps and sizes must have {len(x.shape)} entries each")
    for axis, (start, step, size, dim) in enumerate(zip(starts, steps, sizes, x.shape, strict=True)):
        last = start + (size - 1) * step
        if size < 0 or step == 0 or (size > 0 and not (0 <= start < dim and 0 <= last < dim)):
            raise ModelError(
                f"axis {axis}: {size} elements from {start} in steps of {step} do not fit into a dimension of {dim}"
            )
    return [(tuple(sizes), x.dtype)]


def _infer_windows(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, (axis, size, step) = operand(inputs, 0), (attrs[name] for name in ("axis", "size", "step"))
    if not 0 <= axis < len(x.shape) or min(size, step) < 1 or size > x.shape[axis]:
        raise ModelError(f"windows of {size} in steps of {step} along axis {axis} do not fit into {list(x.shape)}")
    count = (x.shape[axis] - size) // step + 1
    return [((count, *x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)]


def _windows(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    axis, size, step = (op.attrs[name] for name in ("axis", "size", "step"))
    found = np.lib.stride_tricks.sliding_window_view(present(arrays, 0), size, axis)
    # Windows come first, and their elements at the place of the axis.
    return [np.moveaxis(np.moveaxis(found, axis, 0)[::step], -1, axis + 1)]


def _slice(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    index = []
    for start, step, size in zip(op.attrs["starts"], op.attrs["steps"], op.attrs["sizes"], strict=True):
        stop = start + size * step
        # numpy interprets the stop -1 of a backward slice as the last element. None means up to the first.
        index.append(slice(0, 0) if size == 0 else slice(start, stop if stop >= 0 else None, step))
    return [present(arrays, 0)[tuple(index)]]


def _infer_concat(inputs: Inputs, attrs: Attrs) -> list[Result]:
    first, axis = operand(inputs, 0), attrs["axis"]
    check_axis(axis, len(first.shape))
    total = 0
    for tensor in inputs:
        assert tensor is not None  # check_arity has verified that variadic operands are present
        around = (tensor.shape[:axis], tensor.shape[axis + 1 :])
        if len(tensor.shape) != len(first.shape) or around != (first.shape[:axis], first.shape[axis + 1 :]):
            raise ModelError(f"shapes {list(first.shape)} and {list(tensor.shape)} differ outside axis {axis}")
        total += tensor.shape[axis]
    return [((*first.shape[:axis], total, *first.shape[axis + 1 :]), same_dtype(*inputs))]


def _infer_pad(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, before, after, mode = operand(inputs, 0), attrs["before"], attrs["after"], attrs["mode"]
    if not len(before) == len(after) == len(x.shape) or min((*before, *after), default=0) < 0:
        raise ModelError(f"before and after must have {len(x.shape)} entries >= 0, got {list(before)}, {list(after)}")
    if mode not in PAD_MODES:
        raise ModelError(f"mode must be one of {', '.join(PAD_MODES)}, got {mode!r}")
    for axis, dim in enumerate(x.shape):
        # An empty axis has nothing to repeat; a reflection excludes the edge element, so it reaches one less.
        most = {"edge": dim and 1 << 62, "reflect": max(dim - 1, 0), "wrap": dim}.get(mode, 1 << 62)
        if max(before[axis], after[axis]) > most:
            raise ModelError(f"{mode} padding of axis {axis} (size {dim}) is at most {most} on a side")
    return [(tuple(b + d + a for b, d, a in zip(before, x.shape, after, strict=True)), x.dtype)]


def _pad(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, attrs = present(arrays, 0), op.attrs
    pads = list(zip(attrs["before"], attrs["after"], strict=True))
    if not pads:
        return [x]
    if attrs["mode"] != "constant":
        return [np.pad(x, pads, mode=attrs["mode"])]
    return [np.pad(x, pads, constant_values=scalar(attrs["value"], op.output.dtype))]


def scalar(value: float | int | bool, dtype: DType) -> Array:
    """A rank-0 array in storage form."""
    if dtype is DType.BFLOAT16:
        return float32_to_bfloat16(np.asarray(value, np.float32)).reshape(())
    return np.asarray(value).astype(dtype.storage)


def _infer_expand(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, shape = operand(inputs, 0), tuple(attrs["shape"])
    _check_shape(shape)
    if broadcast(x.shape, shape) != shape:
        raise ModelError(f"cannot expand {list(x.shape)} to {list(shape)}")
    return [(shape, x.dtype)]


def _check_indices(dtype: DType) -> None:
    if dtype not in (DType.INT32, DType.INT64):
        raise ModelError(f"indices must be int32 or int64, got {dtype.label}")


def _positions(index: Array, dim: int) -> Array:
    """Indices with negative ones counted from the end. Raises InputError if one is out of range."""
    if index.size and (int(index.min()) < -dim or int(index.max()) >= dim):
        span = f"the indices span {int(index.min())} to {int(index.max())}"
        raise InputError(f"an index is outside [{-dim}, {dim}): {span}")
    return np.where(index < 0, index + dim, index)


def _infer_gather(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, index, axis = operand(inputs, 0), operand(inputs, 1), attrs["axis"]
    check_axis(axis, len(x.shape))
    _check_indices(index.dtype)
    return [((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)]


def _gather(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, axis = present(arrays, 0), op.attrs["axis"]
    return [np.take(x, _positions(present(arrays, 1), x.shape[axis]), axis=axis)]


def _check_elements(inputs: Inputs, axis: int) -> None:
    x, index = operand(inputs, 0), operand(inputs, 1)
    check_axis(axis, len(x.shape))
    _check_indices(index.dtype)
    if len(index.shape) != len(x.shape):
        raise ModelError(f"indices must have {len(x.shape)} dimensions, got {list(index.shape)}")
    for other, (mine, dim) in enumerate(zip(index.shape, x.shape, strict=True)):
        if other != axis and mine > dim:
            raise ModelError(f"indices {list(index.shape)} are larger than {list(x.shape)} outside axis {axis}")


def _infer_gather_elements(inputs: Inputs, attrs: Attrs) -> list[Result]:
    _check_elements(inputs, attrs["axis"])
    return [(operand(inputs, 1).shape, operand(inputs, 0).dtype)]


def _along(index: Array, shape: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Coordinates of every element of index, as broadcastable arrays, with index itself along axis."""
    # Broadcastable, so that no coordinate is stored per element.
    grid = list(np.ogrid[tuple(slice(dim) for dim in index.shape)])
    grid[axis] = _positions(index, shape[axis])
    return tuple(grid)


def _gather_elements(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = present(arrays, 0)
    return [np.asarray(x[_along(present(arrays, 1), x.shape, op.attrs["axis"])])]


def _infer_scatter_elements(inputs: Inputs, attrs: Attrs) -> list[Result]:
    _check_elements(inputs, attrs["axis"])
    x, index, updates = (operand(inputs, i) for i in range(3))
    if updates.shape != index.shape:
        raise ModelError(f"updates {list(updates.shape)} must have the indices' shape {list(index.shape)}")
    if attrs["reduction"] not in REDUCTIONS:
        raise ModelError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {attrs['reduction']!r}")
    return [(x.shape, same_dtype(x, updates))]


def _scatter_types(inputs: Inputs, attrs: Attrs) -> bool:
    """a reduction other than none takes numbers, not bool"""
    return attrs["reduction"] == "none" or operand(inputs, 0).dtype is not DType.BOOL


def _scatter_elements(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, index, updates = present(arrays, 0), present(arrays, 1), present(arrays, 2)
    dtype, reduction = op.output.dtype, op.attrs["reduction"]
    where = np.broadcast_arrays(*_along(index, x.shape, op.attrs["axis"])) if x.ndim else []
    if reduction == "none":
        y = x.copy()
        # One at a time, in order: numpy does not define which of several writes to one element wins.
        for target, value in zip(zip(*(w.ravel() for w in where), strict=True), updates.ravel(), strict=True):
            y[target] = value
        return [y]
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction]
    wide = widen(x, dtype).copy()
    with np.errstate(all="ignore"):
        ufunc.at(wide, tuple(where), widen(updates, dtype))
    return [narrow(wide, dtype)]


def _infer_repeat(inputs: Inputs, attrs: Attrs) -> list[Result]:
    states, times = attrs["states"], attrs["times"]
    if not 0 <= states <= len(inputs) or times < 0:
        raise ModelError(f"{states} states of {len(inputs)} operands, and {times} iterations, are impossible")
    given = [operand(inputs, index) for index in range(len(inputs))]
    rows = given[states:]
    if any(not row.shape or row.shape[0] != 1 for row in rows):
        raise ModelError("the first dimension of a row must be 1")
    stacked = [((times, *row.shape[1:]), row.dtype) for row in rows] if times else []
    return [*((each.shape, each.dtype) for each in given), *stacked]


def _repeat(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    if op.attrs["times"]:
        raise ModelError(f"{op.name}: iterations are not written out, see npusim.ops.unrolling")
    return [present(arrays, index) for index in range(len(arrays))]


define(
    "reshape",
    "x",
    "the same elements in row-major order in another shape",
    infer=_infer_reshape,
    reference=_reshape,
    unit=Unit.DMA,
    form=Lowered.VIEW,
    attrs={"shape": REQUIRED},
)
define(
    "transpose",
    "x",
    "dimension i is dimension perm[i] of x",
    infer=_infer_transpose,
    reference=lambda op, arrays: [present(arrays, 0).transpose(op.attrs["perm"])],
    unit=Unit.DMA,
    form=Lowered.VIEW,
    attrs={"perm": REQUIRED},
    folding=Folding.VIEW,
)
define(
    "slice",
    "x",
    "element i of a dimension is x[start + i * step]; one of each per dimension, and steps may be negative",
    infer=_infer_slice,
    reference=_slice,
    unit=Unit.DMA,
    form=Lowered.VIEW,
    attrs={"starts": REQUIRED, "steps": REQUIRED, "sizes": REQUIRED},
    folding=Folding.VIEW,
)
define(
    "windows",
    "x",
    "element i of a new first dimension is the part of x from i * step to i * step + size along the axis",
    infer=_infer_windows,
    reference=_windows,
    unit=Unit.DMA,
    form=Lowered.VIEW,
    attrs={"axis": REQUIRED, "size": REQUIRED, "step": REQUIRED},
    folding=Folding.VIEW,
)
define(
    "concat",
    "x, *xs",
    "joined along the axis",
    infer=_infer_concat,
    reference=lambda op, arrays: [
        np.concatenate([present(arrays, index) for index in range(len(arrays))], axis=op.attrs["axis"])
    ],
    unit=Unit.DMA,
    form=Lowered.TILES,
    attrs={"axis": REQUIRED},
)
define(
    "pad",
    "x",
    "elements before and after each dimension; mode: constant, edge, reflect or wrap",
    infer=_infer_pad,
    reference=_pad,
    unit=Unit.DMA,
    form=Lowered.TILES,
    attrs={"before": REQUIRED, "after": REQUIRED, "mode": REQUIRED, "value": 0},
)
define(
    "expand",
    "x",
    "broadcast to the shape, as numpy does",
    infer=_infer_expand,
    reference=lambda op, arrays: [np.broadcast_to(present(arrays, 0), op.attrs["shape"])],
    unit=Unit.DMA,
    form=Lowered.VIEW,
    attrs={"shape": REQUIRED},
    folding=Folding.VIEW,
)
define(
    "gather",
    "x, indices",
    "the slices of x at the indices (int32 or int64, any rank) along the axis; negative ones count from the end",
    infer=_infer_gather,
    reference=_gather,
    unit=Unit.DMA,
    form=Lowered.TILES,
    attrs={"axis": REQUIRED},
)
define(
    "gather_elements",
    "x, indices",
    "the element of x at the position of each index, but at the index along the axis",
    infer=_infer_gather_elements,
    reference=_gather_elements,
    unit=Unit.SCALAR,
    form=Lowered.TILES,
    attrs={"axis": REQUIRED},
)
define(
    "scatter_elements",
    "x, indices, updates",
    "x with the updates written, or combined (reduction: none, add, mul, max, min), where gather_elements would read",
    infer=_infer_scatter_elements,
    reference=_scatter_elements,
    unit=Unit.SCALAR,
    form=Lowered.TILES,
    attrs={"axis": REQUIRED, "reduction": REQUIRED},
    constraints=(_scatter_types,),
    folding=Folding.HEAVY,
)
define(
    "repeat",
    "x, *xs",
    "ends an iteration of a loop: its operands are the states, then the rows that the iteration adds to the results; "
    "times: repeat the iteration that often, with slices that advance as from the previous one; further results are "
    "the rows of these iterations, stacked in order of time, or backwards",
    infer=_infer_repeat,
    reference=_repeat,
    unit=Unit.DMA,
    form=Lowered.TILES,
    attrs={"states": REQUIRED, "times": 0, "backwards": False},
    folding=Folding.NEVER,
)
