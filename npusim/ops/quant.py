"""quantize and dequantize: conversion between numbers and integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.graph import Op, Tensor
from npusim.isa import vector
from npusim.isa.base import Unit
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    ElementForm,
    Folding,
    Inputs,
    Reference,
    Result,
    broadcast,
    define,
    narrow,
    operand,
    present,
    widen,
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


def quantised(x: Array, scale: Any, zero: Any, dtype: DType) -> Array:
    """Quantise float32 numbers to integers of a type."""
    info = np.iinfo(dtype.storage)
    with np.errstate(all="ignore"):
        # The quotient is float32 by definition; the zero point is added in double, where adding any int32 is exact.
        level = np.rint(x / scale).astype(np.float64)
        # A NaN becomes the zero point, which represents 0.
        level = np.where(np.isnan(level), 0.0, level) + zero
        return np.asarray(np.clip(level, info.min, info.max).astype(dtype.storage))


def real(x: Array, scale: Any, zero: Any) -> Array:
    """Dequantise integers to float32."""
    # The difference of two int32 takes 33 bits.
    with np.errstate(all="ignore"):
        return np.asarray((x.astype(np.int64) - zero).astype(np.float32) * scale)


def _quantize(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = widened(op, arrays, 0).astype(np.float32)
    return [quantised(x, present(arrays, 1), present(arrays, 2), op.output.dtype)]


def _dequantize(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    return [narrow(real(present(arrays, 0), present(arrays, 1), present(arrays, 2)), op.output.dtype)]


LEVELS: dict[str, Any] = {"source": None, "target": None, "real": DType.FLOAT32}
"""Attributes of kinds that can compute on quantised values: (scale, zero) of the operand; (scale, zero, type) of the
result. ``real``: the type of intermediate values, float32 or a narrower float."""


def arithmetic_type(x: DType, attrs: Attrs) -> DType:
    """The type of the arithmetic of such an operator. Raises ModelError for a quantised operand of another type."""
    if attrs["source"] is not None and x not in QUANTIZED:
        raise ModelError(f"source: the operand must be int8, uint8, int16 or uint16, is {x.label}")
    real: DType = attrs["real"]
    return real if attrs["source"] is not None else x


def result_type(x: DType, attrs: Attrs) -> DType:
    """The type of its result. Raises ModelError for an invalid target."""
    computed = arithmetic_type(x, attrs)
    if attrs["target"] is None:
        return computed
    target: DType = attrs["target"][2]
    if computed is not attrs["real"] or target not in QUANTIZED:
        wanted = f"int8, uint8, int16 or uint16 of {attrs['real'].label}"
        raise ModelError(f"target: {target.label} of {computed.label}; must be {wanted}")
    return target


def on_reals(reference: Reference) -> Reference:
    """The reference of an operator with these attributes, made from the reference on plain numbers."""

    def levels(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
        source, target = op.attrs["source"], op.attrs["target"]
        if source is None and target is None:
            return reference(op, arrays)
        x, y = op.input(0), Tensor(op.output.name, op.output.shape, op.attrs["real"])
        first = present(arrays, 0)
        if source is not None:
            x = Tensor(x.name, x.shape, y.dtype)
            first = narrow(real(first, np.float32(source[0]), source[1]), y.dtype)
        plain = {**op.attrs, **LEVELS}
        (result,) = reference(Op(op.name, op.kind, (x, *op.inputs[1:]), (y,), plain), [first, *arrays[1:]])
        if target is None:
            return [result]
        numbers = widen(result, y.dtype).astype(np.float32)
        return [quantised(numbers, np.float32(target[0]), *target[1:])]

    return levels


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


def _infer_lookup(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, to, table = operand(inputs, 0), attrs["to"], attrs["table"]
    if x.dtype not in (DType.INT8, DType.UINT8):
        raise ModelError(f"the operand must be int8 or uint8, is {x.dtype.label}")
    if len(table) != vector.ENTRIES * to.itemsize:
        raise ModelError(f"table: must have {vector.ENTRIES * to.itemsize} bytes, has {len(table)}")
    return [(x.shape, to)]


def table_of(op: Op) -> Array:
    """The table of a lookup operator."""
    return np.frombuffer(op.attrs["table"], op.attrs["to"].storage)


def _lookup(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    x = present(arrays, 0)
    return [table_of(op)[x.astype(np.int16) - np.iinfo(x.dtype).min]]


define(
    "lookup",
    "x",
    "the entry of each 8-bit element in a table of 256 (table: its bytes), the first for the lowest value of x's type",
    infer=_infer_lookup,
    reference=_lookup,
    unit=Unit.VECTOR,
    # The address of the table follows those of the operands.
    form=ElementForm(
        lambda op, at, dims: vector.Lookup(op.output.dtype, *at[0], op.input(0).dtype, *at[1], at[2][0], dims)
    ),
    attrs={"to": REQUIRED, "table": REQUIRED},
)
