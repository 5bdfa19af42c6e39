"""Layer normalisation of 16-bit integers, rounded as TFLite's integer LSTM rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Reduce

from .fixed_point import FixedPoint

_INT32_MAX = (1 << 31) - 1


def layer_norm(fixed: FixedPoint, x: Tensor, weights: Tensor, bias: Tensor, scales: Sequence[float]) -> Tensor:
    """Rows of x (INT32 [batches, gates, units], any scale) with mean 0 and variance 1, times the weights
    (INT16 [gates, units], of one scale a gate), plus the bias (INT32, that scale / 1024): INT32, Q3."""
    op, units = fixed.op, x.shape[2]
    wide = op.cast(x, DType.INT64)
    mean = fixed.divide(fixed.multiply(op.reduce(Reduce.SUM, wide, (2,)), 1024), units)
    squares = fixed.multiply(op.reduce(Reduce.SUM, fixed.multiply(wide, wide), (2,)), (1 << 20) // units)
    variance = fixed.divide(fixed.subtract(squares, fixed.multiply(mean, mean)), 1 << 20)
    number, shift = inverse_root(fixed, variance)
    centred = fixed.subtract(fixed.multiply(wide, 1024), mean)
    normal = fixed.shifted(_high(fixed, centred, number), shift)
    total = fixed.add(fixed.multiply(normal, op.cast(weights, DType.INT64)), op.cast(bias, DType.INT64))
    half = fixed.select(total, Binary.GT, 0, 512, op.const(np.asarray(-512, np.int64)))
    rounded = fixed.divide(fixed.add(total, half), 1024)
    return fixed.saturate(fixed.rescale(rounded, [scale * 4096 for scale in scales]))


def inverse_root(fixed: FixedPoint, value: Tensor) -> tuple[Tensor, Tensor]:
    """1 / sqrt(value) of INT64 integers below 2**31 as (m, s): m / 2**(31 + s); one for values below 2."""
    op = fixed.op
    zero = op.const(np.zeros(value.shape, np.int64))
    shift = fixed.select(value, Binary.GE, 1 << 29, 12, fixed.add(zero, 11))
    scaled = fixed.select(value, Binary.GE, 1 << 29, fixed.right(value, 2), value)
    for pairs in (8, 4, 2, 1):  # of bits, until the value is in [2**27, 2**29)
        limit = 1 << (29 - 2 * pairs)
        shift = fixed.select(scaled, Binary.LT, limit, fixed.subtract(shift, pairs), shift)
        scaled = fixed.select(scaled, Binary.LT, limit, fixed.left(scaled, 2 * pairs), scaled)
    root = _high(fixed, _newton(fixed, fixed.right(scaled, 1)), 1518500250)  # times sqrt(1/2)
    excess = fixed.binary(Binary.MAX, fixed.minus(0, shift), 0)
    number = fixed.select(value, Binary.LE, 1, _INT32_MAX, fixed.left(root, excess))
    return number, fixed.select(value, Binary.LE, 1, 0, fixed.binary(Binary.MAX, shift, 0))


def _newton(fixed: FixedPoint, value: Tensor) -> Tensor:
    """1 / sqrt of 32-bit numbers with 3 integer bits in [1/4, 1), by five Newton steps from 1."""
    half = fixed.rounded_right(value, 1)
    x = fixed.add(fixed.op.const(np.zeros(value.shape, np.int64)), 1 << 28)
    for _ in range(5):
        cube = _widened(fixed, _high(fixed, _high(fixed, x, x), x), 6)
        step = fixed.subtract(_high(fixed, x, (1 << 28) + (1 << 27)), _high(fixed, cube, half))
        x = _widened(fixed, step, 3)
    return x


def _widened(fixed: FixedPoint, a: Tensor, bits: int) -> Tensor:
    """The number with ``bits`` fewer integer bits, saturated to 32 bits."""
    return fixed.clip(fixed.left(a, bits), -(1 << 31), _INT32_MAX)


def _high(fixed: FixedPoint, a: Tensor, b: Tensor | int) -> Tensor:
    """The product of two 32-bit numbers (INT64): a * b / 2**31, rounded to the nearest integer, halves upwards."""
    return fixed.right(fixed.add(fixed.multiply(a, b), 1 << 30), 31)
