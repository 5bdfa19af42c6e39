"""softmax, normalize, cumsum, cumprod, lrn: each output element depends on a whole row."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.graph import Op
from npusim.isa import reduction
from npusim.isa.base import Unit
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    Inputs,
    Result,
    RowForm,
    check_axis,
    define,
    is_float,
    is_numeric,
    narrow,
    operand,
    widened,
)


def _infer(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x = operand(inputs, 0)
    check_axis(attrs["axis"], len(x.shape))
    return [(x.shape, x.dtype)]


def _round(op: Op, y: Array) -> list[Array]:
    """Round double precision to the type of the output, once."""
    return [narrow(y if op.output.dtype in (DType.FLOAT64, DType.INT64) else y.astype(np.float32), op.output.dtype)]


def _softmax(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, axis = widened(op, arrays, 0).astype(np.float64), op.attrs["axis"]
    if not x.size:
        return [narrow(x, op.output.dtype)]
    largest = np.max(x, axis=axis, keepdims=True)
    with np.errstate(all="ignore"):
        # The maximum is subtracted so that no exponential overflows; the quotient is the same.
        shifted = x - largest
        total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
        # The logarithm of the quotient would be -inf if the quotient underflows.
        shares = shifted - np.log(total) if op.attrs["log"] else np.exp(shifted) / total
        return _round(op, np.where(largest == -np.inf, 0.0, shares) if op.attrs["masked"] else shares)


def _infer_normalize(inputs: Inputs, attrs: Attrs) -> list[Result]:
    if attrs["mode"] not in ("layer", "rms"):
        raise ModelError(f"mode must be layer or rms, got {attrs['mode']!r}")
    return _infer(inputs, attrs)


def _normalize(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = widened(op, arrays, 0).astype(np.float64)
    axes = tuple(range(op.attrs["axis"], x.ndim))
    if not x.size:
        return [narrow(x, op.output.dtype)]
    with np.errstate(all="ignore"):
        if op.attrs["mode"] == "layer":
            x = x - np.mean(x, axis=axes, keepdims=True)
        return _round(op, x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + op.attrs["epsilon"]))


def _scan(function: np.ufunc, op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    """The running result of the function, in double precision or int64."""
    x, axis = widened(op, arrays, 0), op.attrs["axis"]
    wide = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
    wide = np.flip(wide, axis) if op.attrs["reverse"] else wide
    with np.errstate(all="ignore"):
        y = function.accumulate(wide, axis=axis)
    if op.attrs["exclusive"]:
        # Exclusive: the row starts with the neutral element, and the last total is dropped.
        first = np.full_like(np.take(y, [0], axis=axis), function.identity) if y.shape[axis] else y
        y = np.concatenate([first, np.take(y, np.arange(max(y.shape[axis] - 1, 0)), axis=axis)], axis=axis)
    y = np.flip(y, axis) if op.attrs["reverse"] else y
    return _round(op, y) if x.dtype.kind == "f" else [narrow(y, op.output.dtype)]


def _infer_lrn(inputs: Inputs, attrs: Attrs) -> list[Result]:
    if attrs["size"] < 1:
        raise ModelError(f"size must be >= 1, got {attrs['size']}")
    return _infer(inputs, attrs)


def _lrn(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x, axis, size = widened(op, arrays, 0).astype(np.float64), op.attrs["axis"], op.attrs["size"]
    count = x.shape[axis]
    before, after = (size - 1) // 2, size // 2
    pads = [(0, 0)] * x.ndim
    pads[axis] = (before, after)
    with np.errstate(all="ignore"):
        squares = np.pad(x * x, pads)
        # Shifted slices instead of differences of a running sum, so that an infinity only affects windows that contain
        # it.
        window = sum(np.take(squares, np.arange(shift, shift + count), axis=axis) for shift in range(size))
        factor = op.attrs["bias"] + op.attrs["alpha"] / size * window
        return _round(op, x * np.power(factor, -op.attrs["beta"]))


define(
    "softmax",
    "x",
    "softmax along the axis, or its logarithm; masked: a row of -inf alone gives zeros",
    infer=_infer,
    reference=_softmax,
    unit=Unit.VECTOR,
    form=RowForm(reduction.Softmax),
    attrs={"axis": REQUIRED, "log": REQUIRED, "masked": False},
    constraints=(is_float,),
)
define(
    "normalize",
    "x",
    "(x - mean) / sqrt(variance + epsilon) over all dimensions from the axis on; mode rms: without the mean",
    infer=_infer_normalize,
    reference=_normalize,
    unit=Unit.VECTOR,
    form=RowForm(
        reduction.Normalize, lambda attrs: {"rms": attrs["mode"] == "rms", "epsilon": attrs["epsilon"]}, trailing=True
    ),
    attrs={"axis": REQUIRED, "mode": REQUIRED, "epsilon": REQUIRED},
    constraints=(is_float,),
)
define(
    "cumsum",
    "x",
    "running sums along the axis",
    infer=_infer,
    reference=functools.partial(_scan, np.add),
    unit=Unit.VECTOR,
    form=RowForm(reduction.CumSum),
    attrs={"axis": REQUIRED, "exclusive": REQUIRED, "reverse": REQUIRED},
    constraints=(is_numeric,),
)
define(
    "cumprod",
    "x",
    "running products along the axis",
    infer=_infer,
    reference=functools.partial(_scan, np.multiply),
    unit=Unit.VECTOR,
    form=RowForm(reduction.CumProd),
    attrs={"axis": REQUIRED, "exclusive": REQUIRED, "reverse": REQUIRED},
    constraints=(is_numeric,),
)
define(
    "lrn",
    "x",
    "x / (bias + alpha / size * sum of squares)^beta over size neighbours along the axis",
    infer=_infer_lrn,
    reference=_lrn,
    unit=Unit.VECTOR,
    form=RowForm(reduction.Lrn),
    attrs={"axis": REQUIRED, "size": REQUIRED, "alpha": REQUIRED, "beta": REQUIRED, "bias": REQUIRED},
    constraints=(is_float,),
)
