"""Fourier transforms as products with constant matrices of sines and cosines."""

from __future__ import annotations

import math

import numpy as np

from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary
from npusim.ops.base import Array

_PARTS = 2
"""A complex number is two elements, real part first."""


def waves(length: int, bins: int, rows: int, sign: float) -> tuple[Array, Array]:
    """(cosines, sines) of the angle ``sign`` * 2 pi * row * bin / length, as [rows, bins] in float64."""
    # The product of row and bin is reduced as an integer, because large angles lose significant digits.
    angles = sign * 2 * math.pi * ((np.arange(rows)[:, None] * np.arange(bins)) % length) / length
    return np.cos(angles), np.sin(angles)


def _dft(node: Node, axis: int, length: int | None) -> Tensor:
    x = node.input(0)
    inverse, onesided = bool(node.int_attr("inverse", 0)), bool(node.int_attr("onesided", 0))
    rank, parts = len(x.shape), x.shape[-1] if x.shape else 0
    if rank < 2 or parts not in (1, _PARTS) or axis == rank - 1:
        node.damaged(f"the input must be numbers of one or two parts beside axis {axis}, is {list(x.shape)}")
    back = onesided and inverse  # from half a spectrum, whose other half is its mirror image, to real numbers
    if onesided and parts != 1 + inverse:
        node.damaged(f"onesided {'needs' if inverse else 'does not support'} complex numbers")
    length = (2 * (x.shape[axis] - 1) if back else x.shape[axis]) if length is None else length
    if length < 1:
        node.damaged(f"the length must be > 0, is {length}")
    bins = length // 2 + 1 if onesided and not inverse else length
    rows, results = min(length // 2 + 1 if back else length, x.shape[axis]), 1 if back else _PARTS
    node.limit(rows * parts * bins * results)
    cos, sin = waves(length, bins, rows, 1.0 if inverse else -1.0)
    # Rows: parts of an element; columns: parts of a bin.
    matrix = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], 1)[..., :results]
    if inverse:
        matrix /= length
    if back:
        matrix[1 : (length + 1) // 2] *= 2
    order = [*(d for d in range(rank - 1) if d != axis), axis, rank - 1]
    signal = node.transpose(node.slice(x, axis, 0, rows), order)
    flat = node.reshape(signal, (*signal.shape[:-2], rows * parts))
    y = node.add("matmul", flat, node.const(matrix.reshape(rows * parts, bins * results), x.dtype))
    result = node.reshape(y, (*y.shape[:-1], bins, results))
    return node.transpose(result, [order.index(d) for d in range(rank)])


def _length(node: Node, index: int) -> int | None:
    return None if node.optional(index) is None else int(node.scalar_value(index))


@handles("DFT", since=17)
def dft_of_attribute(node: Node) -> Tensor:
    """Import DFT of operator set 17: the axis is an attribute."""
    return _dft(node, node.axis(len(node.input(0).shape), default=1), _length(node, 1))


@handles("DFT", since=20)
def dft(node: Node) -> Tensor:
    """Import DFT from operator set 20 on: the axis is an input."""
    axis = -2 if node.optional(2) is None else int(node.scalar_value(2))
    return _dft(node, node.normal_axis(axis, len(node.input(0).shape)), _length(node, 1))


@handles("STFT", since=17, limits=["of real signals"])
def stft(node: Node) -> Tensor:
    """Import STFT as a convolution: each bin is two kernels of the length of a frame, and the stride is the frame
    step."""
    x, step, window = node.input(0), int(node.scalar_value(1)), node.optional(2)
    if len(x.shape) not in (2, 3) or x.shape[2:] not in ((), (1,)):
        node.refuse(f"signals of complex numbers are not supported: {list(x.shape)}")
    length = _length(node, 3)
    if length is None:
        length = window.size if window is not None else x.shape[1]
    if step < 1 or not 0 < length <= x.shape[1] or (window is not None and window.shape != (length,)):
        node.damaged(f"frames of {length} at a distance of {step} do not fit a signal of {x.shape[1]} and its window")
    bins = length // 2 + 1 if node.int_attr("onesided", 1) else length
    node.limit(length * bins * _PARTS)
    kernels = np.stack(waves(length, bins, length, -1.0), -1).reshape(length, bins * _PARTS).T
    weights = node.const(np.ascontiguousarray(kernels)[:, None, None, :], x.dtype)
    if window is not None:
        weights = node.binary(Binary.MUL, weights, window)
    image = node.reshape(x, (x.shape[0], 1, 1, x.shape[1]))
    y = node.add(
        "conv",
        image,
        weights,
        None,
        layout="NCHW",
        groups=1,
        stride=(1, step),
        dilation=(1, 1),
        pads=(0, 0, 0, 0),
        x_zero=0,
        w_zero=0,
    )
    frames = node.transpose(node.reshape(y, (y.shape[0], y.shape[1], y.shape[3])), (0, 2, 1))
    return node.reshape(frames, (*frames.shape[:2], bins, _PARTS))
