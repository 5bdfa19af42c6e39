"""Convolutions and matrix products: of floats, of integers, and of floats with integer weights."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.reader import TensorRecord
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor
from npusim.ops.base import Array
from npusim.ops.geometry import same_pads

SAME, VALID = 0, 1
_BYTES = frozenset({DType.INT8, DType.UINT8})
_MOST = 0xFFFF
"""Largest stride and dilation factor."""
Pair = tuple[int, int]


def multiply(
    op: Operation, kind: str, places: tuple[int, int, int], perm: Sequence[int], attrs: dict[str, Any], axis: int
) -> Tensor:
    """The real sum of products of an input and weights, with a bias. ``places``: the inputs that are x, weights and
    bias. ``perm``: the order of dimensions of the weights for the graph operator; ``axis``: the channels of its result.
    """
    x, w, bias = op.input(places[0]), op.input(places[1]), op.optional(places[2])
    x_type, w_type = op.type_of(places[0]), op.type_of(places[1])
    if _on_integers(op, kind, x, w, x_type, w_type):
        return _integers(op, kind, (x, op.transpose(w, perm), bias), (x_type, w_type), attrs, axis)
    # Integer weights of floats stay integers, which the compiler scales in the product.
    real_x = op.real(places[0]) if op.quantised(x_type) else x
    real_w = op.transpose(op.real(places[1]) if op.quantised(w_type) else w, perm)
    if bias is not None and not bias.dtype.is_float:
        bias = op.real(places[2])
    return op.add(kind, real_x, real_w, bias, **attrs)


def _on_integers(op: Operation, kind: str, x: Tensor, w: Tensor, x_type: TensorRecord, w_type: TensorRecord) -> bool:
    """Whether the device multiplies the stored integers."""
    if not op.quantised(x_type) or not op.quantised(w_type) or w.dtype not in _BYTES:
        return False
    assert x_type.quantization is not None
    assert w_type.quantization is not None
    same_zero = len(set(w_type.quantization.zero.tolist())) == 1
    narrow = x.dtype in _BYTES or kind != "conv_transpose"
    return same_zero and narrow and len(x_type.quantization.scale) == 1


def _integers(
    op: Operation,
    kind: str,
    operands: tuple[Tensor, Tensor, Tensor | None],
    types: tuple[TensorRecord, TensorRecord],
    attrs: dict[str, Any],
    axis: int,
) -> Tensor:
    x, w, bias = operands
    x_scale, x_zero = op.parameters(types[0])
    found = types[1].quantization
    assert found is not None
    wide = x.dtype is DType.INT16
    zeros: dict[str, Any] = {"x_zero": x_zero, "w_zero": int(found.zero[0])} | ({"wide": True} if wide else {})
    if bias is not None:
        bias = op.cast(bias, DType.INT64 if wide else DType.INT32)
    total = op.add(kind, x, w, bias, **attrs, **zeros)
    scales: Array = np.float32(x_scale) * found.scale
    dims = [1] * len(total.shape)
    dims[axis] = scales.size
    return op.add("dequantize", total, op.f32(scales.reshape(dims)), op.i32(0), to=DType.FLOAT32)


def window_attrs(op: Operation, kind: str, hw: Pair, kernel: Pair, *, dilated: bool = True) -> dict[str, Any]:
    """stride, dilation and pads of a window over ``hw`` pixels, from options of ``kind``."""
    stride = op.positive(kind, "StrideH"), op.positive(kind, "StrideW")
    dilation = (1, 1)
    if dilated:
        dilation = op.positive(kind, "DilationHFactor"), op.positive(kind, "DilationWFactor")
    # Distances between taps of a kernel of one are never used.
    dilation = (dilation[0] if kernel[0] > 1 else 1, dilation[1] if kernel[1] > 1 else 1)
    extent = [(taps - 1) * factor + 1 for taps, factor in zip(kernel, dilation, strict=True)]
    scheme = int(op.option(kind, "Padding"))
    if scheme not in (SAME, VALID):
        op.damaged(f"padding must be 0 (SAME) or 1 (VALID), is {scheme}")
    pads = [same_pads(*each) if scheme == SAME else (0, 0) for each in zip(hw, stride, extent, strict=True)]
    # Strides beyond the image are never used.
    stride = min(stride[0], hw[0] + sum(pads[0])), min(stride[1], hw[1] + sum(pads[1]))
    if max(*stride, *dilation, *kernel) > _MOST:
        op.refuse(f"windows, strides and dilation factors of at most {_MOST} are supported")
    return {"stride": stride, "dilation": dilation, "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1])}


@handles("CONV_2D")
def conv(op: Operation) -> Tensor:
    """Import CONV_2D; filters of fewer channels than the image make groups."""
    x, w = op.image(0), op.image(1)
    depth, channels = w.shape[3], x.shape[3]
    if channels % depth or w.shape[0] % (channels // depth):
        op.damaged(f"filters {list(w.shape)} do not fit an image of {channels} channels")
    attrs = window_attrs(op, "Conv2DOptions", (x.shape[1], x.shape[2]), (w.shape[1], w.shape[2]))
    attrs |= {"layout": "NHWC", "groups": channels // depth}
    real = multiply(op, "conv", (0, 1, 2), (0, 3, 1, 2), attrs, 3)
    return op.give(op.activated(real, int(op.option("Conv2DOptions", "FusedActivationFunction"))))


@handles("DEPTHWISE_CONV_2D")
def depthwise_conv(op: Operation) -> Tensor:
    """Import DEPTHWISE_CONV_2D: output channel c * multiplier + m depends on input channel c alone."""
    x, w = op.image(0), op.image(1)
    if w.shape[0] != 1 or w.shape[3] % x.shape[3]:
        op.damaged(f"filters {list(w.shape)} do not fit an image of {x.shape[3]} channels")
    attrs = window_attrs(op, "DepthwiseConv2DOptions", (x.shape[1], x.shape[2]), (w.shape[1], w.shape[2]))
    attrs |= {"layout": "NHWC", "groups": x.shape[3]}
    real = multiply(op, "conv", (0, 1, 2), (3, 0, 1, 2), attrs, 3)
    return op.give(op.activated(real, int(op.option("DepthwiseConv2DOptions", "FusedActivationFunction"))))


@handles("TRANSPOSE_CONV", limits=["the output shape is a constant"])
def transpose_conv(op: Operation) -> Tensor:
    """Import TRANSPOSE_CONV into an output of a given shape."""
    x, w, asked = op.image(2), op.image(1), op.ints(0)
    if len(asked) != 4 or asked[0] != x.shape[0] or asked[3] != w.shape[0] or min(asked) < 1:
        op.damaged(f"output shape {asked} does not fit {x.shape[0]} images and {w.shape[0]} filters")
    kind = "TransposeConvOptions"
    stride = op.positive(kind, "StrideH"), op.positive(kind, "StrideW")
    real = _transposed(op, (2, 1, 3), stride, (asked[1], asked[2]), int(op.option(kind, "Padding")) == SAME)
    return op.give(op.activated(real, int(op.option(kind, "FusedActivationFunction"))))


@handles("CUSTOM:Convolution2DTransposeBias")
def transpose_conv_bias(op: Operation) -> Tensor:
    """Import MediaPipe's transposed convolution. Its options are padding (1 SAME, 2 VALID), width and height of the
    stride, as 32-bit integers."""
    x, w = op.image(0), op.image(1)
    scheme, *steps = struct.unpack_from("<3i", op.record.custom)
    stride = steps[1], steps[0]
    if scheme not in (1, 2) or min(stride) < 1:
        op.damaged(f"padding must be 1 or 2 and strides >= 1, are {scheme} and {list(stride)}")
    grow = [0 if scheme == 1 else max(taps - step, 0) for taps, step in zip(w.shape[1:3], stride, strict=True)]
    size = x.shape[1] * stride[0] + grow[0], x.shape[2] * stride[1] + grow[1]
    return op.give(_transposed(op, (0, 1, 2), stride, size, scheme == 1))


def _transposed(op: Operation, places: tuple[int, int, int], stride: Pair, out: Pair, same: bool) -> Tensor:
    """A transposed convolution of ``out`` pixels: the reverse of a convolution of that image."""
    x, w = op.image(places[0]), op.image(places[1])
    kernel = w.shape[1], w.shape[2]
    if w.shape[3] != x.shape[3]:
        op.damaged(f"filters {list(w.shape)} do not fit an image of {x.shape[3]} channels")
    if max(*stride, *kernel, *out) > _MOST:
        op.refuse(f"windows, strides and images of at most {_MOST} are supported")
    pads, more = [], []
    for pixels, step, taps, size in zip(x.shape[1:3], stride, kernel, out, strict=True):
        full = (pixels - 1) * step + taps
        first = same_pads(size, step, taps)[0] if same else 0
        pads.append((first, full - first - size))
        # The operator has no outputs that no input reaches: behind an image padded with zeros they are the bias.
        more.append(max(-(full - first - size) + step - 1, 0) // step)
    attrs: dict[str, Any] = {"layout": "NHWC", "stride": stride, "dilation": (1, 1), "groups": 1, "output_hw": out}
    if any(more):
        zero = op.parameters(op.type_of(places[0]))[1] if op.quantised(op.type_of(places[0])) else 0
        after = (0, *more, 0)
        op.inputs[places[0]] = op.add("pad", x, before=(0, 0, 0, 0), after=after, mode="constant", value=float(zero))
    ends = [last + extra * step for (_, last), extra, step in zip(pads, more, stride, strict=True)]
    attrs["pads"] = (pads[0][0], pads[1][0], ends[0], ends[1])
    return multiply(op, "conv_transpose", places, (3, 0, 1, 2), attrs, 3)


@handles("FULLY_CONNECTED", limits=["weights are in the default format"])
def fully_connected(op: Operation) -> Tensor:
    """Import FULLY_CONNECTED: rows of the input times the weights [units, size]."""
    kind = "FullyConnectedOptions"
    x, w = op.input(0), op.input(1)
    if int(op.option(kind, "WeightsFormat")):
        op.refuse("shuffled weights are not supported")
    if len(w.shape) != 2 or w.shape[1] < 1 or x.size % w.shape[1]:
        op.damaged(f"weights {list(w.shape)} do not fit an input of {list(x.shape)}")
    units, size = w.shape
    keep = op.flag(kind, "KeepNumDims")
    if keep and x.shape[-1:] != (size,):
        op.damaged(f"weights {list(w.shape)} do not fit an input of {list(x.shape)}")
    op.inputs[0] = op.reshape(x, (x.size // size, size))
    bias = op.optional(2)
    if bias is not None:
        op.inputs[2] = op.reshape(bias, (units,))
    real = multiply(op, "matmul", (0, 1, 2), (1, 0), {}, 1)
    result = op.give(op.activated(real, int(op.option(kind, "FusedActivationFunction"))))
    return op.reshape(result, (*x.shape[:-1], units)) if keep else result


@handles("BATCH_MATMUL")
def batch_matmul(op: Operation) -> Tensor:
    """Import BATCH_MATMUL, with either operand transposed."""
    kind = "BatchMatMulOptions"
    a, b = op.input(0), op.input(1)
    if min(len(a.shape), len(b.shape)) < 2:
        op.damaged(f"operands must have at least 2 dimensions, have {list(a.shape)} and {list(b.shape)}")
    if op.flag(kind, "AdjX"):
        op.inputs[0] = op.transpose(a, _swapped(len(a.shape)))
    perm = _swapped(len(b.shape)) if op.flag(kind, "AdjY") else range(len(b.shape))
    rank = max(len(a.shape), len(b.shape))
    if op.results[0].quantization is None and not a.dtype.is_float:
        # Without a scale the output is the sums of products.
        x_zero, w_zero = (op.parameters(op.type_of(index))[1] for index in (0, 1))
        return op.add("matmul", op.input(0), op.transpose(b, perm), x_zero=x_zero, w_zero=w_zero)
    return op.give(multiply(op, "matmul", (0, 1, 2), perm, {}, rank - 1))


def _swapped(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]
