"""Operators of onnxruntime's own domain, as written by quantisation tools and exporters."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.operators.matrix import multiply, scaled
from npusim.frontends.onnx.operators.pooling import pool
from npusim.frontends.onnx.operators.quantised import dequantized_product, integer_product, range_parameters, zero_like
from npusim.frontends.onnx.registry import MICROSOFT, handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce, Unary


def real(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Dequantise a tensor with one scale to float32."""
    return node.add("dequantize", x, node.reshape(scale, ()), node.reshape(zero_like(node, zero), ()), to=DType.FLOAT32)


def integer(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """Quantise a float32 tensor with one scale."""
    return node.add("quantize", x, node.reshape(scale, ()), node.reshape(zero_like(node, zero), ()), to=dtype)


@handles("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(node: Node) -> Tensor:
    """Import QLinearAdd and QLinearMul: dequantise, compute, quantise."""
    a = real(node, node.input(0), node.input(1), node.optional(2))
    b = real(node, node.input(3), node.input(4), node.optional(5))
    y = node.binary(Binary.ADD if node.op_type == "QLinearAdd" else Binary.MUL, a, b)
    return integer(node, y, node.input(6), node.optional(7), node.input(0).dtype)


def _around(node: Node, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Inputs x, x scale, x zero, y scale, y zero: dequantise, compute, quantise."""
    y = compute(real(node, node.input(0), node.input(1), node.optional(2)))
    return integer(node, y, node.input(3), node.optional(4), node.input(0).dtype)


@handles("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_activation(node: Node) -> Tensor:
    """Import QLinearSigmoid and QLinearLeakyRelu: dequantise, compute, quantise."""
    if node.op_type == "QLinearSigmoid":
        return _around(node, lambda x: node.unary(Unary.SIGMOID, x))
    return _around(node, lambda x: node.unary(Unary.LEAKY_RELU, x, node.float_attr("alpha", 0.01)))


def _around_image(node: Node, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """As ``_around``, on an image with its channels first. It is transposed if the model has ``channels_last``."""
    if not node.int_attr("channels_last", 0):
        return _around(node, compute)
    last = len(node.input(0).shape) - 1
    to_front, to_back = (0, last, *range(1, last)), (0, *range(2, last + 1), 1)
    return _around(node, lambda x: node.transpose(compute(node.transpose(x, to_front)), to_back))


@handles("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(node: Node) -> Tensor:
    """Import QLinearAveragePool."""
    # If padding counts, onnxruntime divides by the whole window, even beyond the padding.
    padded = bool(node.int_attr("count_include_pad", 0))
    return _around_image(node, lambda x: pool(node, x, "average", padded, whole=padded))


@handles("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(node: Node) -> Tensor:
    """Import QLinearGlobalAveragePool."""
    return _around_image(node, lambda x: node.reduce(Reduce.MEAN, x, list(range(2, len(x.shape)))))


@handles("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: Node) -> Tensor:
    """Import QLinearConcat; inputs may have different scales."""
    scale, zero = node.input(0), node.input(1)
    parts = [real(node, *(node.input(i + k) for k in range(3))) for i in range(2, len(node.inputs), 3)]
    y = node.add("concat", *parts, axis=node.axis(len(parts[0].shape)))
    return integer(node, y, scale, zero, zero.dtype)


@handles("QLinearWhere", domain=MICROSOFT)
def qlinear_where(node: Node) -> Tensor:
    """Import QLinearWhere; both inputs may have a scale of their own."""
    x, y = (real(node, node.input(i), node.input(i + 1), node.optional(i + 2)) for i in (1, 4))
    return integer(node, node.add("select", node.input(0), x, y), node.input(7), node.optional(8), node.input(1).dtype)


@handles("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(node: Node) -> Tensor:
    """Import QLinearSoftmax: dequantise, compute, quantise."""
    shape = node.input(0).shape
    axis = node.axis(len(shape), default=-1)
    # Before operator set 13, over all dimensions from the axis on.
    rows = shape if node.int_attr("opset", 13) >= 13 else (*shape[:axis], math.prod(shape[axis:]))
    y = _around(node, lambda x: node.add("softmax", node.reshape(x, rows), axis=axis, log=False))
    return node.reshape(y, shape)


@handles("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(node: Node) -> Tensor:
    """Import QLinearReduceMean: dequantise, compute, quantise."""
    rank, keep = len(node.input(0).shape), bool(node.int_attr("keepdims", 1))
    axes = node.normal_axes(node.ints_attr("axes") or range(rank), rank)
    return _around(node, lambda x: node.reduce(Reduce.MEAN, x, axes, keep))


@handles("QGemm", domain=MICROSOFT)
def qgemm(node: Node) -> Tensor:
    """Import QGemm: an integer product with an INT32 bias and a factor, as floats or requantised."""
    a, a_scale, a_zero, b, b_scale, b_zero = (node.input(index) for index in range(6))
    a, b = _swapped(node, a, "transA"), _swapped(node, b, "transB")
    total, bias = integer_product(node, a, b, a_zero, b_zero), node.optional(6)
    total = total if bias is None else node.binary(Binary.ADD, total, bias)
    # One scale, or one per column, which is the last dimension.
    scale = node.binary(
        Binary.MUL, node.reshape(a_scale, ()), b_scale if b_scale.size > 1 else node.reshape(b_scale, ())
    )
    factor = node.float_attr("alpha", 1.0)
    scale = scale if factor == 1.0 else node.binary(Binary.MUL, scale, node.like(factor, scale))
    y = node.add("dequantize", total, scale, node.const(np.int32(0)), to=DType.FLOAT32)
    if node.optional(7) is None:
        return y
    zero = node.optional(8)
    return integer(node, y, node.input(7), zero, a.dtype if zero is None else zero.dtype)


@handles("MatMulIntegerToFloat", domain=MICROSOFT, limits=["the scale of A is one number"])
def matmul_integer_to_float(node: Node) -> Tensor:
    """Import MatMulIntegerToFloat: an integer product with a scale and a bias."""
    a, b, a_scale, b_scale = (node.input(index) for index in range(4))
    return dequantized_product(node, a, b, (a_scale, b_scale), node.optional(4), node.optional(5), node.optional(6))


@handles("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(node: Node) -> Tensor:
    """Import DynamicQuantizeMatMul: the scale of A is computed at run time."""
    x, b, b_scale = (node.input(index) for index in range(3))
    scale, zero = range_parameters(node, x)
    numbers = integer(node, x, scale, zero, DType.UINT8)
    return dequantized_product(node, numbers, b, (scale, b_scale), zero, node.optional(3), node.optional(4))


@handles("Gelu", "FastGelu", "BiasGelu", "QuickGelu", domain=MICROSOFT)
def gelu(node: Node) -> Tensor:
    """Import Gelu and FastGelu, with an optional bias."""
    x, bias = node.input(0), node.optional(1)
    x = x if bias is None else node.binary(Binary.ADD, x, bias)
    if node.op_type == "QuickGelu":
        return node.unary(Unary.SILU, x, node.float_attr("alpha", 1.702))
    return node.unary(Unary.GELU_TANH if node.op_type == "FastGelu" else Unary.GELU, x)


@handles("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: Node) -> Tensor:
    """Import FusedMatMul: transpositions, a product and a factor."""
    a, b = (_batch_first(node, node.input(index), f"transBatch{name}") for index, name in enumerate("AB"))
    y = multiply(node, _swapped(node, a, "transA"), _swapped(node, b, "transB"))
    return scaled(node, y, node.float_attr("alpha", 1.0))


def _batch_first(node: Node, x: Tensor, attribute: str) -> Tensor:
    """x with its first dimension after those of the batch if the attribute says so."""
    rank = len(x.shape)
    if not node.int_attr(attribute, 0) or rank < 3:
        return x
    return node.transpose(x, (*range(1, rank - 1), 0, rank - 1))


def _swapped(node: Node, x: Tensor, attribute: str) -> Tensor:
    """x with its last two dimensions swapped if the attribute says so."""
    rank = len(x.shape)
    if not node.int_attr(attribute, 0) or rank < 2:
        return x
    return node.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


@handles("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(node: Node) -> list[Tensor | None]:
    """Import SkipLayerNormalization: the sum of the inputs, normalised."""
    simplified = "Simplified" in node.op_type
    offset = None if simplified else node.optional(3)
    bias = node.optional(3 if simplified else 4)
    total = node.binary(Binary.ADD, node.input(0), node.input(1))
    total = total if bias is None else node.binary(Binary.ADD, total, bias)
    for index in (1, 2):
        node.no_output(index, "statistics are not supported")
    mode = "rms" if simplified else "layer"
    y = node.add("normalize", total, axis=len(total.shape) - 1, mode=mode, epsilon=node.float_attr("epsilon", 1e-12))
    y = node.binary(Binary.MUL, y, node.input(2))
    y = y if offset is None else node.binary(Binary.ADD, y, offset)
    return [y, None, None, total]
