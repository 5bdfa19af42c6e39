"""Element types of less than 8 bits and floats of 8 bits, which the device stores in bytes.

Integers are stored as their value, floats as their bits. The device decodes floats with a table, and encodes them with
integer arithmetic on the bits of a float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from onnx import TensorProto

from npusim.dtypes import DType
from npusim.errors import UnsupportedError
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary
from npusim.isa.vector import ENTRIES
from npusim.ops.base import Array
from npusim.ops.emit import Emitter

_FLOATS = {
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
    "FLOAT8E8M0": ml_dtypes.float8_e8m0fnu,
}
_INTEGERS = {"INT4": (DType.INT8, 4), "UINT4": (DType.UINT8, 4), "INT2": (DType.INT8, 2), "UINT2": (DType.UINT8, 2)}
_KNOWN = TensorProto.DataType.keys()  # packages before onnx 1.20 have no 2-bit types
FLOATS = {TensorProto.DataType.Value(name): kind for name, kind in _FLOATS.items() if name in _KNOWN}
"""Float formats by ONNX's code, as numpy types."""
INTEGERS = {TensorProto.DataType.Value(name): entry for name, entry in _INTEGERS.items() if name in _KNOWN}
"""(type of storage, bits) of integer formats by ONNX's code."""
_MANTISSA, _BIAS, _NOT_A_NUMBER = 23, 127, 0x7F800000
"""Bits of a float32's mantissa, its bias, and the bits of infinity."""


def bits_of(code: int) -> int:
    """Bits of an element in a file."""
    return int(ml_dtypes.finfo(FLOATS[code]).bits) if code in FLOATS else INTEGERS[code][1]  # type: ignore[no-untyped-call]


def decoded(emit: Emitter, x: Tensor, code: int, to: DType = DType.FLOAT32) -> Tensor:
    """The numbers of a format in a type that the device computes with."""
    if code not in FLOATS:
        return emit.cast(x, to)
    if to not in (DType.FLOAT32, DType.FLOAT16):  # bfloat16 has no numpy type of its own
        return emit.cast(decoded(emit, x, code), to)
    return emit.emit("lookup", [x], {"to": to, "table": _table(code, to).tobytes()})


@functools.cache
def _table(code: int, to: DType) -> Array:
    kind = np.dtype(FLOATS[code])
    numbers = (np.arange(ENTRIES) % (1 << bits_of(code))).astype(np.uint8).view(kind)
    with np.errstate(all="ignore"):
        table: Array = numbers.astype(np.float32).astype(to.storage)
    return table


def encoded(emit: Emitter, x: Tensor, code: int, saturate: bool, rounding: str = "up") -> Tensor:
    """Numbers in a format. Integers keep their lowest bits; floats beyond the largest one become it if ``saturate``,
    otherwise infinity or NaN. ``rounding``: of numbers that are no power of 2, in the format of exponents alone."""
    if code in INTEGERS:
        dtype, bits = INTEGERS[code]
        whole = emit.cast(x, DType.INT32)
        half = 1 << (bits - 1) if dtype is DType.INT8 else 0
        low = _int(emit, Binary.BIT_AND, _int(emit, Binary.ADD, whole, half), (1 << bits) - 1)
        return emit.cast(_int(emit, Binary.SUB, low, half), dtype)
    wide = emit.cast(x, DType.FLOAT32)
    raw = emit.emit("bitcast", [wide], {"to": DType.INT32})
    magnitude = _int(emit, Binary.BIT_AND, raw, 0x7FFFFFFF)
    if np.dtype(FLOATS[code]) == np.dtype(ml_dtypes.float8_e8m0fnu):
        return _exponents(emit, magnitude, saturate, rounding)
    form = _format(code)
    shift = _MANTISSA - form.mantissa
    odd = _int(emit, Binary.BIT_AND, _int(emit, Binary.SHR, magnitude, shift), 1)
    half_up = emit.binary(Binary.ADD, _int(emit, Binary.ADD, magnitude, (1 << (shift - 1)) - 1), odd)
    normal = _int(emit, Binary.SUB, _int(emit, Binary.SHR, half_up, shift), (_BIAS - form.bias) << form.mantissa)
    # Below the smallest normal number the steps are equal.
    step = emit.like(2.0 ** (form.bias - 1 + form.mantissa), wide)
    small = emit.unary(Unary.ROUND, emit.binary(Binary.MUL, emit.unary(Unary.ABS, wide), step))
    least = emit.like((_BIAS + 1 - form.bias) << _MANTISSA, magnitude)
    y = emit.emit("select", [emit.binary(Binary.LT, magnitude, least), emit.cast(small, DType.INT32), normal])
    over = emit.like(form.largest if saturate else form.infinity, y)
    y = emit.emit("select", [emit.binary(Binary.GT, y, emit.like(form.largest, y)), over, y])
    sign = _int(emit, Binary.SHL, _int(emit, Binary.SHR, raw, 31), form.sign)
    sign = _int(emit, Binary.BIT_AND, sign, 1 << form.sign)
    if form.one_zero:
        none = emit.like(0, y)
        signed = emit.binary(Binary.NE, y, none)
        sign = emit.emit("select", [signed, sign, none])
    y = emit.binary(Binary.BIT_OR, y, sign)
    infinite = emit.like(_NOT_A_NUMBER, magnitude)
    y = emit.emit("select", [emit.binary(Binary.GT, magnitude, infinite), emit.like(form.nan, y), y])
    return emit.cast(y, DType.UINT8)


def _int(emit: Emitter, fn: Binary, x: Tensor, number: int) -> Tensor:
    return emit.binary(fn, x, emit.like(number, x))


def _exponents(emit: Emitter, magnitude: Tensor, saturate: bool, rounding: str) -> Tensor:
    """The biased exponents of numbers. 255 is NaN."""
    added = {"up": (1 << _MANTISSA) - 1, "nearest": 1 << (_MANTISSA - 1), "down": 0}
    if rounding not in added:
        raise UnsupportedError([("", "", f"attribute round_mode must be up, down or nearest, is {rounding!r}")])
    exponent = _int(emit, Binary.SHR, _int(emit, Binary.ADD, magnitude, added[rounding]), _MANTISSA)
    exponent = _int(emit, Binary.MIN, exponent, 254 if saturate else 255)
    infinite = emit.like(_NOT_A_NUMBER, magnitude)
    nan = emit.binary(Binary.GT, magnitude, infinite)
    return emit.cast(emit.emit("select", [nan, emit.like(255, exponent), exponent]), DType.UINT8)


@dataclass(frozen=True)
class _Format:
    """A float format: bits of the mantissa, bias, position of the sign, and the bits of special values.

    ``one_zero``: there is no negative zero.
    """

    mantissa: int
    bias: int
    sign: int
    largest: int
    infinity: int
    nan: int
    one_zero: bool


@functools.cache
def _format(code: int) -> _Format:
    kind = np.dtype(FLOATS[code])
    limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        special = np.array([float(limits.max), np.inf, np.nan, -0.0], np.float32).astype(kind).view(np.uint8)
    largest, infinity, nan, zero = (int(bits) for bits in special)
    return _Format(limits.nmant, 1 - limits.minexp, limits.bits - 1, largest, infinity, nan, zero == 0)
