"""Sums of products of quantised operands: convolutions and FULLY_CONNECTED as integer products of the matrix unit."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Tensor

from ..types import OperandType
from .definition import Rule, stated
from .lowering import Lowering
from .view import QUANTISED, Array, OpView

X, FILTER, BIAS = 0, 1, 2
"""Inputs of every operation of this kind."""

_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_SCALE_SLACK = 1e-6
"""Scales are rounded to FLOAT32, and so is their product."""


def is_quantised(op: Lowering) -> bool:
    """Whether the operation multiplies integers."""
    return op.type(X) in QUANTISED


def factors(op: Lowering) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Input, filter and attributes of their product: the zero points of integers. Scales per channel have none."""
    if not is_quantised(op):
        return op.tensor(X), op.tensor(FILTER), {}
    w_zero = 0 if op.type(FILTER) == _PER_CHANNEL else op.view.inputs[FILTER].zeroPoint
    return op.tensor(X), op.tensor(FILTER), {"x_zero": op.view.inputs[X].zeroPoint, "w_zero": w_zero}


def give_product(op: Lowering, product: Tensor, axis: int, activation: int | None = None) -> None:
    """Output 0 is a sum of products (INT32 of quantised operands), its channels on dimension ``axis``, after the fused
    activation that input ``activation`` names, if any."""
    if is_quantised(op):
        product = _real_product(op, product, axis)
    if activation is not None:
        product = op.activate(product, activation)
    op.give_real(product)


def _real_product(op: Lowering, product: Tensor, axis: int) -> Tensor:
    dims = [1] * len(product.shape)
    scales = product_scales(op.view)
    dims[axis] = scales.size
    return op.add("dequantize", [product, op.f32(scales.reshape(dims)), op.i32(0)], {"to": DType.FLOAT32})


def product_scales(view: OpView) -> Array:
    """Scale of input 0 times that of the filter: one, or one for each output channel, FLOAT32."""
    quant = view.extra(FILTER).channelQuant if view.type(FILTER) == _PER_CHANNEL else None
    scales = (view.inputs[FILTER].scale,) if quant is None else quant.scales
    # In single precision, like the scales of the interface.
    return np.asarray(np.float32(view.inputs[X].scale) * np.asarray(scales, np.float32), np.float32)


def bias_scale(view: OpView) -> bool:
    """the bias of quantised operands must have zero point 0 and scale input scale * filter scale; scale 0 if the filter
    has scales per channel"""
    bias, filters = view.inputs[BIAS], view.inputs[FILTER]
    if bias.type != OperandType.TENSOR_INT32:
        return True
    if filters.type == _PER_CHANNEL:
        return bias.scale == 0 and bias.zeroPoint == 0
    product = view.inputs[X].scale * filters.scale
    return bias.zeroPoint == 0 and abs(product - bias.scale) <= _SCALE_SLACK * min(product, bias.scale)


def channel_dim(dim: int) -> Rule:
    """The rule that scales per channel are those of dimension ``dim`` of the filter."""

    def rule(view: OpView) -> bool:
        quant = view.extra(FILTER).channelQuant
        return view.type(FILTER) != _PER_CHANNEL or (quant is not None and quant.channelDim == dim)

    return stated(f"the channel dimension of a filter with scales per channel must be {dim}", rule)
