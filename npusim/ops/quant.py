"""quantize and dequantize: conversion between numbers and integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.graph import Op
from npusim.isa import vector
from npusim.isa.base import Unit
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    ElementForm,
    Folding,
    Inputs,
    Result,
    broadcast,
    define,
    narrow,
    operand,
    present,
    widened,
)

QUANTIZED = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)


def _infer(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, scale, zero = (operand(inputs, index) for index in range(3))
    if scale.dtype is not DType.FLOAT32 or zero.dtype is not DType.INT32:
        raise ModelError(f"scale must be float32 and zero int32, got {scale.dtype.label} and {zero.dtype.label}")
    if broadcast(x.shape, scale.shape, zero.shape) != x.shape:
        raise ModelError(f"scale {list(scale.shape)} and zero {list(zero.shape)} must broadcast to x {list(x.shape)}")
    return [(x.shape, attrs["to"])]


def _quantize_types(inputs: Inputs, attrs: Attrs) -> bool:
    """quantize takes a float or int32 and makes int8, uint8, int16 or uint16"""
    dtype = operand(inputs, 0).dtype
    return (dtype.is_float or dtype is DType.INT32) and attrs["to"] in QUANTIZED


def _dequantize_types(inputs: Inputs, attrs: Attrs) -> bool:
    """dequantize takes int8, uint8, int16, uint16, int32 or int64 and makes a float"""
    return operand(inputs, 0).dtype in (*QUANTIZED, DType.INT32, DType.INT64) and attrs["to"].is_float


def _quantize(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = widened(op, arrays, 0).astype(np.float32)
    info = np.iinfo(op.output.dtype.storage)
    with np.errstate(all="ignore"):
        # The quotient is float32 by definition; the zero point is added in double, where adding any int32 is exact.
        level = np.rint(x / present(arrays, 1)).astype(np.float64)
        # A NaN becomes the zero point, which represents 0.
        level = np.where(np.isnan(level), 0.0, level) + present(arrays, 2)
        return [np.clip(level, info.min, info.max).astype(op.output.dtype.storage)]


def _dequantize(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    # The difference of two int32 takes 33 bits.
    level = present(arrays, 0).astype(np.int64) - present(arrays, 2)
    with np.errstate(all="ignore"):
        return [narrow(level.astype(np.float32) * present(arrays, 1), op.output.dtype)]


define(
    "quantize",
    "x, scale, zero",
    "clamp(rint(float32(x) / scale) + zero); scale (float32) and zero (int32) broadcast to x",
    infer=_infer,
    reference=_quantize,
    unit=Unit.VECTOR,
    form=ElementForm(
        lambda op, at, dims: vector.Quantize(op.output.dtype, *at[0], op.input(0).dtype, *at[1], *at[2], *at[3], dims)
    ),
    attrs={"to": REQUIRED},
    constraints=(_quantize_types,),
)
define(
    "dequantize",
    "x, scale, zero",
    "float32(x - zero) * scale; scale (float32) and zero (int32) broadcast to x",
    infer=_infer,
    reference=_dequantize,
    unit=Unit.VECTOR,
    form=ElementForm(
        lambda op, at, dims: vector.Dequantize(op.output.dtype, *at[0], op.input(0).dtype, *at[1], *at[2], *at[3], dims)
    ),
    attrs={"to": REQUIRED},
    constraints=(_dequantize_types,),
    folding=Folding.NEVER,
)
