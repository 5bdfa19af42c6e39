"""Quantisation, and integer forms of convolution and matrix product."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.narrow_formats import FLOATS, INTEGERS, decoded, encoded
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.matrix import convolve, multiply
from npusim.frontends.onnx.registry import MICROSOFT, handles
from npusim.frontends.onnx.tensors import element_type
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.isa.matrix_types import weight_zeros
from npusim.units import ceil_div


def aligned(node: Node, parameter: Tensor, x: Tensor) -> Tensor:
    """A scale or zero point shaped to broadcast to x: one entry, one per index of an axis, or one per block."""
    axis, block = node.int_attr("axis", 1), node.int_attr("block_size", 0)
    if parameter.size == 1 and len(parameter.shape) <= 1:
        return node.reshape(parameter, ())
    axis = node.normal_axis(axis, len(x.shape))
    if not block:
        if parameter.shape != (x.shape[axis],):
            node.damaged(f"scale and zero point {list(parameter.shape)} must fit axis {axis} of {list(x.shape)}")
        return node.along(parameter, axis, len(x.shape))
    groups = ceil_div(x.shape[axis], block) if block > 0 else -1
    if parameter.shape != (*x.shape[:axis], groups, *x.shape[axis + 1 :]):
        node.damaged(f"scale and zero point {list(parameter.shape)} must have one entry per {block} of axis {axis}")
    steps = node.iota(x.shape[axis])
    # The block of each index of the axis. The gather repeats the parameters accordingly.
    places = node.binary(Binary.DIV, steps, node.like(block, steps))
    return node.add("gather", parameter, places, axis=axis)


def zero_like(node: Node, zero: Tensor | None) -> Tensor:
    """A zero point as INT32; 0 if there is none."""
    return node.const(np.int32(0)) if zero is None else node.cast(zero, DType.INT32)


@handles("QuantizeLinear", limits=["to int8, uint8, int16, uint16"])
@handles("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(node: Node) -> Tensor:
    """Import QuantizeLinear: per tensor, per axis or in blocks."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    saturate = bool(node.int_attr("saturate", 1))
    node.ignore("precision")
    code = node.int_attr("output_dtype", 0)
    form = code or (node.packed.get(zero, 0) if zero is not None else 0)
    if form in FLOATS:  # zero points of floats are 0
        ratio = node.binary(Binary.DIV, node.cast(x, DType.FLOAT32), aligned(node, node.cast(scale, DType.FLOAT32), x))
        return node.formatted(encoded(node, ratio, form, saturate), form)
    if form in INTEGERS:
        to, bits = INTEGERS[form]
        low = -(1 << (bits - 1)) if to is DType.INT8 else 0
        factor = aligned(node, node.cast(scale, DType.FLOAT32), x)
        y = node.add("quantize", x, factor, aligned(node, zero_like(node, zero), x), to=to)
        return node.formatted(node.unary(Unary.CLIP, y, low, low + (1 << bits) - 1), form)
    to = element_type(code, node.name, node.op_type) if code else zero.dtype if zero is not None else DType.UINT8
    if zero is not None and zero.dtype is not to:
        node.damaged(f"output_dtype {to.label} differs from the zero point's {zero.dtype.label}")
    factor = aligned(node, node.cast(scale, DType.FLOAT32), x)
    return node.add("quantize", x, factor, aligned(node, zero_like(node, zero), x), to=to)


def range_parameters(node: Node, x: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, zero point) of uint8 for the range of x including 0. As in onnxruntime, the scale of an empty range
    is 1."""
    none, most, axes = node.like(0, x), node.like(255, x), range(len(x.shape))
    low = node.binary(Binary.MIN, node.reduce(Reduce.MIN, x, axes, keepdims=False), none)
    high = node.binary(Binary.MAX, node.reduce(Reduce.MAX, x, axes, keepdims=False), none)
    extent = node.binary(Binary.SUB, high, low)
    # 1 for an empty range, 0 for an extent from 3e-39 on. A comparison would have another type and could not be fused
    # with the arithmetic around it.
    alone = node.unary(Unary.HARD_SIGMOID, extent, -float(np.finfo(np.float32).max), 1.0)
    scale = node.binary(Binary.ADD, node.binary(Binary.DIV, extent, most), alone)
    start = node.binary(Binary.SUB, none, node.binary(Binary.DIV, low, scale))
    return scale, node.cast(node.unary(Unary.ROUND, node.unary(Unary.CLIP, start, 0.0, 255.0)), DType.UINT8)


@handles("DynamicQuantizeLinear", limits=["values within 3e-39 of 0, and not 0, give another scale"])
def dynamic_quantize_linear(node: Node) -> list[Tensor]:
    """Import DynamicQuantizeLinear: quantised values, scale and zero point."""
    x = node.input(0)
    scale, zero = range_parameters(node, x)
    return [node.add("quantize", x, scale, node.cast(zero, DType.INT32), to=DType.UINT8), scale, zero]


@handles(
    "DequantizeLinear",
    limits=[
        "from int8, uint8, int16, uint16, int32; int4, uint4, int2, uint2 constants",
        "convolutions and products of quantised operands sum integers; with float16 scales, they and what follows them "
        "up to a quantisation are rounded to float32, not to float16",
    ],
)
@handles("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(node: Node) -> Tensor:
    """Import DequantizeLinear: per tensor, per axis or in blocks."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    node.ignore("saturate", "precision")
    code = node.int_attr("output_dtype", 0)
    to = element_type(code, node.name, node.op_type) if code else scale.dtype
    factor = aligned(node, node.cast(scale, DType.FLOAT32), x)
    if node.packed.get(x) in FLOATS:
        real = decoded(node, x, node.packed[x])
        if zero is not None:
            real = node.binary(Binary.SUB, real, aligned(node, decoded(node, zero, node.packed[x]), x))
        return node.cast(node.binary(Binary.MUL, real, factor), to)
    return node.add("dequantize", x, factor, aligned(node, zero_like(node, zero), x), to=to)


def integer_operand(node: Node, x: Tensor, zero: Tensor | None) -> tuple[Tensor, int]:
    """(operand, its zero point). A single known zero point is kept, others are subtracted."""
    if zero is None:
        return x, 0
    if zero.dtype is not x.dtype:
        node.damaged(f"the zero point must be {x.dtype.label}, is {zero.dtype.label}")
    value = node.builder.value_of(zero)
    # The zero point must not broadcast x to a larger shape.
    pairs = zip(reversed(zero.shape), reversed(x.shape), strict=False)
    spanned = zero.size == 1 or (len(zero.shape) <= len(x.shape) and all(a in (1, b) for a, b in pairs))
    # The instruction has a single zero point. Subtracting in the graph makes int16 operands, which have a lower rate.
    if value is not None and value.size and (value == value.flat[0]).all() and spanned:
        return x, int(value.flat[0])
    return _shifted(node, x, zero), 0


def _shifted(node: Node, x: Tensor, zero: Tensor) -> Tensor:
    return node.binary(Binary.SUB, node.cast(x, DType.INT16), node.cast(zero, DType.INT16))


def integer_weights(node: Node, w: Tensor, zero: Tensor | None) -> tuple[Tensor, int]:
    """As ``integer_operand``, for weights. The zero point of 16-bit weights is subtracted."""
    weights, value = integer_operand(node, w, zero)
    low, high = weight_zeros(w.dtype)
    return (weights, value) if zero is None or low <= value <= high else (_shifted(node, w, zero), 0)


def per_channel(node: Node, zero: Tensor | None, rank: int) -> Tensor | None:
    """The zero point of weights, one or one per output channel, shaped to broadcast to them."""
    if zero is None or zero.size == 1:
        return zero and node.reshape(zero, ())
    return node.along(zero, 0, rank)


def _convolution(
    node: Node, x: Tensor, w: Tensor, bias: Tensor | None, x_zero: Tensor | None, w_zero: Tensor | None
) -> Tensor:
    image, zero = integer_operand(node, x, x_zero)
    weights, weight_zero = integer_weights(node, w, per_channel(node, w_zero, len(w.shape)))
    return convolve(node, image, weights, bias, zero, weight_zero)


@handles("ConvInteger")
def conv_integer(node: Node) -> Tensor:
    """Import ConvInteger with int32 results."""
    return _convolution(node, node.input(0), node.input(1), None, node.optional(2), node.optional(3))


def integer_product(node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """Sums of products of integers minus their zero points."""
    if a_zero is not None and len(a_zero.shape) == 1 and a_zero.size > 1:  # one per row
        a_zero = node.reshape(a_zero, (a_zero.size, 1))
    left, zero = integer_operand(node, a, a_zero)
    right, right_zero = integer_weights(node, b, b_zero)
    return multiply(node, left, right, zero, right_zero)


@handles("MatMulInteger")
def matmul_integer(node: Node) -> Tensor:
    """Import MatMulInteger with int32 results."""
    return integer_product(node, node.input(0), node.input(1), node.optional(2), node.optional(3))


def dequantized_product(
    node: Node,
    a: Tensor,
    b: Tensor,
    scales: tuple[Tensor, Tensor],
    a_zero: Tensor | None,
    b_zero: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """The product of integers as floats. Scale and zero point of b may have one entry per column."""
    if scales[0].size != 1:
        node.refuse(f"a scale of A for each of {scales[0].size} columns is not supported")
    total = node.cast(integer_product(node, a, b, a_zero, b_zero), scales[0].dtype)
    # A vector of scales broadcasts along the columns, which are last.
    factor = node.binary(Binary.MUL, node.reshape(scales[0], ()), scales[1])
    y = node.binary(Binary.MUL, total, factor)
    return y if bias is None else node.binary(Binary.ADD, y, bias)


def requantize(node: Node, total: Tensor, scales: tuple[Tensor, Tensor, Tensor], zero: Tensor, axis: int) -> Tensor:
    """int32 sums with scale a * b as integers with scale y. The scale of b may have one entry per index of ``axis``."""
    a, b, y = (node.cast(scale, DType.FLOAT32) for scale in scales)
    rank = len(total.shape)
    b = node.reshape(b, ()) if b.size == 1 else node.along(b, axis, rank)
    a = node.reshape(a, ()) if a.size == 1 else node.along(a, rank - 2, rank)
    # The scales are combined first, so that each sum is divided once.
    factor = node.binary(Binary.DIV, node.reshape(y, ()), node.binary(Binary.MUL, a, b))
    return node.add("quantize", total, factor, node.reshape(zero_like(node, zero), ()), to=zero.dtype)


@handles("QLinearConv")
def qlinear_conv(node: Node) -> Tensor:
    """Import QLinearConv: an integer convolution and a requantisation."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    total = _convolution(node, x, w, node.optional(8), x_zero, w_zero)
    return requantize(node, total, (x_scale, w_scale, y_scale), y_zero, 1)


@handles("QLinearMatMul")
def qlinear_matmul(node: Node) -> Tensor:
    """Import QLinearMatMul: an integer product and a requantisation."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(index) for index in range(8))
    total = integer_product(node, a, b, a_zero, b_zero)
    return requantize(node, total, (a_scale, b_scale, y_scale), y_zero, max(len(total.shape) - 1, 0))
