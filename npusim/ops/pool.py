"""pool and resample: windows over an image, and weighted sums of elements along one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
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
    check_axis,
    define,
    is_numeric,
    narrow,
    operand,
    present,
    widen,
    widened,
)
from npusim.ops.matrix import check_window, image, spatial, window_extent
from npusim.ops.quant import LEVELS, arithmetic_type, on_reals, result_type

POOLS = ("max", "average", "l2")


def _infer_pool(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x = operand(inputs, 0)
    check_window(attrs)
    n, c, h, w = spatial(x.shape, attrs["layout"])
    if attrs["fn"] not in POOLS:
        raise ModelError(f"fn must be one of {', '.join(POOLS)}, got {attrs['fn']!r}")
    if len(attrs["kernel"]) != 2 or min(attrs["kernel"]) < 1:
        raise ModelError(f"kernel must be 2 integers >= 1, got {list(attrs['kernel'])}")
    out = attrs["output_hw"]
    for axis, (size, before) in enumerate(((h, attrs["pads"][0]), (w, attrs["pads"][1]))):
        # Every window must start inside the image or the padding before it: a window entirely behind it would have no
        # elements.
        last = (out[axis] - 1) * attrs["stride"][axis] - before
        if out[axis] < 1 or last >= size + attrs["pads"][axis + 2]:
            raise ModelError(f"output_hw {list(out)} does not fit an image of {h} x {w}")
    return [(image(n, c, (out[0], out[1]), attrs["layout"]), result_type(x.dtype, attrs))]


def _pool_types(inputs: Inputs, attrs: Attrs) -> bool:
    """max pooling takes any number, average pooling floats and 8- to 32-bit integers, l2 pooling floats"""
    dtype = arithmetic_type(operand(inputs, 0).dtype, attrs)
    if attrs["fn"] == "max":
        return dtype is not DType.BOOL
    return dtype.is_float or (attrs["fn"] == "average" and dtype.is_integer and dtype.itemsize <= 4)


def _windows(x: Array, attrs: Attrs, fill: float | int) -> Iterator[Array]:
    """For each tap of the window, in row-major order, its [N, C, OH, OW] elements. Elements outside x are ``fill``."""
    (kh, kw), (sh, sw), (dh, dw) = attrs["kernel"], attrs["stride"], attrs["dilation"]
    (oh, ow), (top, left) = attrs["output_hw"], attrs["pads"][:2]
    need_h = (oh - 1) * sh + window_extent(kh, dh)
    need_w = (ow - 1) * sw + window_extent(kw, dw)
    # Windows may reach beyond the padding (ceil mode), and padding beyond the last window.
    padded = np.full((*x.shape[:2], max(need_h, top + x.shape[2]), max(need_w, left + x.shape[3])), fill, x.dtype)
    padded[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    for r in range(kh):
        for q in range(kw):
            rows = slice(r * dh, r * dh + (oh - 1) * sh + 1, sh)
            yield padded[:, :, rows, q * dw : q * dw + (ow - 1) * sw + 1 : sw]


def _counts(hw: tuple[int, int], attrs: Attrs) -> Array:
    """Number of positions of each window that count for its average, [1, 1, OH, OW]."""
    top, left, bottom, right = attrs["pads"]
    if not attrs["count_include_pad"]:
        return sum(_windows(np.ones((1, 1, *hw), np.int64), attrs, 0), np.zeros((), np.int64))
    # Padding counts like the image; positions beyond the padding do not count.
    whole = np.ones((1, 1, hw[0] + top + bottom, hw[1] + left + right), np.int64)
    return sum(_windows(whole, {**attrs, "pads": (0, 0, 0, 0)}, 0), np.zeros((), np.int64))


def lowest(dtype: np.dtype[Any]) -> float | int:
    """The identity of max: -inf, or the lowest integer."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _pool(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, attrs, fn = widened(op, arrays, 0), op.attrs, op.attrs["fn"]
    if attrs["layout"] == "NHWC":
        x = x.transpose(0, 3, 1, 2)
    if fn == "max":
        y = None
        for part in _windows(x, attrs, lowest(x.dtype)):
            y = part.copy() if y is None else np.maximum(y, part)
        assert y is not None  # a kernel has at least one tap
    else:
        # In double or int64: sums of integers are exact for every window size, sums of floats are rounded once, at the
        # end.
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64)
        total = np.zeros((), wide.dtype)
        for part in _windows(wide, attrs, 0):
            total = total + (part * part if fn == "l2" else part)
        y = np.sqrt(total) if fn == "l2" else total / np.maximum(_counts((x.shape[2], x.shape[3]), attrs), 1)
        y = np.rint(y.astype(np.float32)) if op.output.dtype.is_integer else y
    y = y if attrs["layout"] == "NCHW" else y.transpose(0, 2, 3, 1)
    return [narrow(y if op.output.dtype is DType.FLOAT64 or fn == "max" else y.astype(np.float32), op.output.dtype)]


def resampled_axes(op: Op) -> list[tuple[int, int]]:
    """The axes that a resampling runs along, in order, each with the number of the input of its index table."""
    second = op.attrs["second"]
    return [(op.attrs["axis"], 1), *([] if second is None else [(second, 3)])]


def _infer_resample(inputs: Inputs, attrs: Attrs) -> list[Result]:
    shape, second = list(operand(inputs, 0).shape), attrs["second"]
    if (second is None) != (len(inputs) == 3) or second == attrs["axis"]:
        raise ModelError(f"a second axis, other than {attrs['axis']}, has tables of its own; got {second}")
    for axis, first in ((attrs["axis"], 1), *([] if second is None else [(second, 3)])):
        index, weight = operand(inputs, first), operand(inputs, first + 1)
        check_axis(axis, len(shape))
        if len(index.shape) != 2 or index.shape != weight.shape:
            raise ModelError(f"index and weight must be [n, taps], got {list(index.shape)} and {list(weight.shape)}")
        if index.dtype is not DType.INT32 or weight.dtype is not DType.FLOAT32:
            raise ModelError(
                f"index must be int32 and weight float32, got {index.dtype.label} and {weight.dtype.label}"
            )
        if index.data is not None and index.size and int(index.data.max()) >= shape[axis]:
            raise ModelError(f"index {int(index.data.max())} is outside axis {axis} of {shape}")
        shape[axis] = index.shape[0]
    return [(tuple(shape), result_type(operand(inputs, 0).dtype, attrs))]


def _constant_tables(inputs: Inputs, attrs: Attrs) -> bool:
    """the index and weight tables are constants"""
    return all(operand(inputs, index).is_constant for index in range(1, len(inputs)))


def _resample(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = present(arrays, 0)
    for axis, first in resampled_axes(op):
        x = _along(x, op.output.dtype, present(arrays, first), present(arrays, first + 1), axis)
    return [x]


def _along(x: Array, dtype: DType, index: Array, weight: Array, axis: int) -> Array:
    if index.shape[1] == 1 and bool(np.all(weight == 1)) and bool(np.all(index >= 0)):
        # One tap of weight 1 only moves elements: integers beyond 24 bits would not survive float32.
        return np.take(x, index[:, 0], axis=axis)
    wide = widen(x, dtype).astype(np.float32)
    shape = [1] * x.ndim
    shape[axis] = index.shape[0]
    # In float32 and tap by tap: the order and width of the unit's additions.
    y = np.zeros((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), np.float32)
    for tap in range(index.shape[1]):
        counts = (index[:, tap] >= 0).reshape(shape)  # masked, not weighted by 0: 0 times infinity is not nothing
        term = weight[:, tap].reshape(shape) * np.take(wide, np.maximum(index[:, tap], 0), axis=axis)
        y = y + np.where(counts, term, np.float32(0))
    if dtype.is_integer:
        info = np.iinfo(dtype.storage)
        return np.clip(np.rint(y).astype(np.float64), info.min, info.max).astype(dtype.storage)
    return narrow(y, dtype)


define(
    "pool",
    "x",
    "the maximum, average or root of the mean square under each window (fn: max, average, l2) of an image",
    infer=_infer_pool,
    reference=on_reals(_pool),
    unit=Unit.VECTOR,
    form=Lowered.TILES,
    attrs={
        "fn": REQUIRED,
        "layout": REQUIRED,
        "kernel": REQUIRED,
        "stride": REQUIRED,
        "dilation": REQUIRED,
        "pads": REQUIRED,
        "output_hw": REQUIRED,
        "count_include_pad": False,
        **LEVELS,
    },
    constraints=(_pool_types,),
    folding=Folding.HEAVY,
)
define(
    "resample",
    "x, index, weight, second_index*, second_weight*",
    "y[.., j, ..] = sum over t of weight[j, t] * x[.., index[j, t], ..]; index (int32) and weight (float32) are "
    "[n, taps], and an index below 0 contributes nothing. second: an axis along which the result is resampled again",
    infer=_infer_resample,
    reference=on_reals(_resample),
    unit=Unit.VECTOR,
    form=Lowered.TILES,
    attrs={"axis": REQUIRED, "second": None, **LEVELS},
    constraints=(_constant_tables, is_numeric),
)
