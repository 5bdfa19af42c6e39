"""Element types of the matrix unit: which products it has, the type of their sums, and zero points."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ProgramError
from npusim.units import ceil_div

CHANNEL_BLOCK = 32
"""Channels summed per position of the kernel window; part of the meaning of ``matrix.conv``."""

_FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32})
BYTES = frozenset({DType.INT8, DType.UINT8})
WEIGHT_INTEGERS = BYTES | {DType.INT16}
PIXEL_INTEGERS = WEIGHT_INTEGERS | {DType.UINT16}
PACKED_BITS = (2, 4)
"""Bits of weights that share a byte, low bits first."""


def accumulator_type(x: DType, w: DType, *, wide: bool = False, scaled: bool = False) -> DType:
    """The type of sums of products of x and w. ``scaled``: w is dequantized. Raises ProgramError for an unsupported
    pair."""
    if x in _FLOATS and (w in BYTES if scaled else w == x) and not wide:
        return DType.FLOAT32
    if x in PIXEL_INTEGERS and w in WEIGHT_INTEGERS and not scaled:
        return DType.INT64 if wide else DType.INT32
    if x is DType.INT32 and w is DType.INT32 and not (wide or scaled):
        return DType.INT32
    how = " in 64 bits" if wide else " by its scale" if scaled else ""
    raise ProgramError(f"matrix unit cannot multiply {x.label} by {w.label}{how}")


def rate_type(x: DType, w: DType) -> DType:
    """The type whose rate applies to products of x and w: the wider one."""
    return x if x.itemsize >= w.itemsize else w


def packed_bytes(count: int, dtype: DType, bits: int = 0) -> int:
    """Bytes of ``count`` contiguous weights of ``bits`` bits, or of the full type."""
    return ceil_div(count * bits, 8) if bits else count * dtype.itemsize


# The multipliers have 9 bits, which hold the difference of two bytes (ADR 0017).
def weight_zeros(w: DType) -> tuple[int, int]:
    """The lowest and highest zero point of weights of a type: any value of 8 bits, otherwise only 0."""
    if w not in (DType.INT8, DType.UINT8):
        return 0, 0
    info = np.iinfo(w.storage)
    return int(info.min), int(info.max)


def are_interchangeable(x: DType, w: DType, x_zero: int) -> bool:
    """Whether pixels may be the weights of a product, and weights its pixels."""
    low, high = weight_zeros(x)
    return (x is w or (w in PIXEL_INTEGERS and x in WEIGHT_INTEGERS)) and low <= x_zero <= high


def zero_field(dtype: DType, zero: int) -> int:
    """The field ``x_zero`` for a zero point of the type of x."""
    return zero - (1 << 16) if dtype is DType.UINT16 and zero >= 1 << 15 else zero
