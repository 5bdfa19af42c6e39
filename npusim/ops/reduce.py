"""reduce, arg_reduce, topk: reductions of many elements to one, or to the k largest or smallest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.graph import Op
from npusim.isa.base import Unit
from npusim.isa.functions import Reduce
from npusim.isa.reduction import ArgReduce
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    Inputs,
    Lowered,
    Result,
    RowForm,
    Shape,
    check_axis,
    define,
    is_numeric,
    narrow,
    operand,
    present,
    widened,
)
from npusim.ops.quant import LEVELS, arithmetic_type, on_reals, result_type


def reduced(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape after a reduction."""
    if keepdims:
        return tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    return tuple(dim for axis, dim in enumerate(shape) if axis not in axes)


def _infer_reduce(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, axes = operand(inputs, 0), attrs["axes"]
    for axis in axes:
        check_axis(axis, len(x.shape))
    if list(axes) != sorted(set(axes)):
        raise ModelError(f"axes must be sorted and distinct, got {list(axes)}")
    return [(reduced(x.shape, axes, attrs["keepdims"]), result_type(x.dtype, attrs))]


def _reduce_types(inputs: Inputs, attrs: Attrs) -> bool:
    """any, all, max and min take bool; every other reduction takes numbers; l2 takes floats"""
    dtype, fn = arithmetic_type(operand(inputs, 0).dtype, attrs), attrs["fn"]
    if fn in (Reduce.ANY, Reduce.ALL):
        return dtype is DType.BOOL
    if fn is Reduce.L2:
        return dtype.is_float
    return dtype is not DType.BOOL or fn in (Reduce.MAX, Reduce.MIN)


def _extreme(x: Array, axes: Shape, keep: bool, fn: Reduce) -> Array:
    if x.dtype.kind == "b":
        return np.asarray((np.any if fn is Reduce.MAX else np.all)(x, axis=axes, keepdims=keep))
    if x.dtype.kind == "f":
        start = -np.inf if fn is Reduce.MAX else np.inf
    else:
        start = int(np.iinfo(x.dtype).min if fn is Reduce.MAX else np.iinfo(x.dtype).max)
    # With a neutral element, so that an empty axis has a result. numpy alone raises an error.
    return np.asarray((np.max if fn is Reduce.MAX else np.min)(x, axis=axes, keepdims=keep, initial=start))


def _sum(x: Array, axes: Shape, keep: bool, fn: Reduce) -> Array:
    """Reductions that add, in double precision or int64."""
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64)
    if fn is Reduce.PROD:
        return np.asarray(np.prod(wide, axis=axes, keepdims=keep))
    if fn is Reduce.L1:
        wide = np.abs(wide)
    elif fn in (Reduce.L2, Reduce.SUM_SQUARE):
        wide = wide * wide
    total = np.asarray(np.sum(wide, axis=axes, keepdims=keep))
    if fn is Reduce.L2:
        return np.asarray(np.sqrt(total))
    if fn is not Reduce.MEAN:
        return total
    count = math.prod(x.shape[axis] for axis in axes)
    if x.dtype.kind == "f":
        return np.asarray(total / count) if count else np.full_like(total, np.nan)
    # Towards zero, as C divides; numpy's // floors.
    return np.asarray(np.sign(total) * (np.abs(total) // max(count, 1)))


def _reduce(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, fn, axes, keep = widened(op, arrays, 0), op.attrs["fn"], tuple(op.attrs["axes"]), op.attrs["keepdims"]
    with np.errstate(all="ignore"):
        if fn in (Reduce.ANY, Reduce.ALL):
            y = np.asarray((np.any if fn is Reduce.ANY else np.all)(x, axis=axes, keepdims=keep))
        elif fn in (Reduce.MAX, Reduce.MIN):
            y = _extreme(x, axes, keep, fn)
        else:
            y = _sum(x, axes, keep, fn)
        if y.dtype == np.float64 and op.output.dtype is not DType.FLOAT64:
            y = y.astype(np.float32)
    return [narrow(y, op.output.dtype)]


def _infer_arg_reduce(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, axis = operand(inputs, 0), attrs["axis"]
    check_axis(axis, len(x.shape))
    if x.shape[axis] < 1:
        raise ModelError(f"axis {axis} of {list(x.shape)} is empty")
    return [(reduced(x.shape, (axis,), attrs["keepdims"]), DType.INT64)]


def _arg_reduce(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, axis = widened(op, arrays, 0), op.attrs["axis"]
    pick = np.argmax if op.attrs["fn"] == "max" else np.argmin
    if op.attrs["select_last"]:
        # numpy returns the first of equal elements; the first in reverse order is the last.
        y = x.shape[axis] - 1 - pick(np.flip(x, axis), axis=axis, keepdims=op.attrs["keepdims"])
    else:
        y = pick(x, axis=axis, keepdims=op.attrs["keepdims"])
    return [np.asarray(y).astype(np.int64)]


def _infer_topk(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, axis, k = operand(inputs, 0), attrs["axis"], attrs["k"]
    check_axis(axis, len(x.shape))
    if not 0 <= k <= x.shape[axis]:
        raise ModelError(f"k must be in [0, {x.shape[axis]}], got {k}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [(shape, x.dtype), (shape, DType.INT64)]


def _topk(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, axis = widened(op, arrays, 0), op.attrs["axis"]
    if not op.attrs["largest"]:
        order = np.argsort(x, axis=axis, kind="stable")
    else:
        # Sorting the reversed axis and reversing the result keeps ties at the lower index.
        order = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    index = np.take(order, np.arange(op.attrs["k"]), axis=axis)
    return [np.take_along_axis(present(arrays, 0), index, axis=axis), index.astype(np.int64)]


define(
    "reduce",
    "x",
    "the reduction (fn: Reduce) of all elements along the axes, which are sorted",
    infer=_infer_reduce,
    reference=on_reals(_reduce),
    unit=Unit.VECTOR,
    form=Lowered.TILES,
    attrs={"fn": REQUIRED, "axes": REQUIRED, "keepdims": REQUIRED, **LEVELS},
    constraints=(_reduce_types,),
)
define(
    "arg_reduce",
    "x",
    "the int64 position of the largest (fn max) or smallest (fn min) element along the axis",
    infer=_infer_arg_reduce,
    reference=_arg_reduce,
    unit=Unit.VECTOR,
    form=RowForm(
        ArgReduce,
        lambda attrs: {"fn": ("max", "min").index(attrs["fn"]), "select_last": attrs["select_last"]},
        single=True,
    ),
    attrs={"fn": REQUIRED, "axis": REQUIRED, "keepdims": REQUIRED, "select_last": False},
    constraints=(is_numeric,),
)
define(
    "topk",
    "x",
    "the k largest or smallest along the axis, sorted, ties to the lower index: values, and their int64 positions",
    infer=_infer_topk,
    reference=_topk,
    unit=Unit.SCALAR,
    form=Lowered.TILES,
    attrs={"axis": REQUIRED, "k": REQUIRED, "largest": REQUIRED},
    constraints=(is_numeric,),
)
