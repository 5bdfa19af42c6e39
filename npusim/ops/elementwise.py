"""unary, binary, select, cast: one output element from one element of each operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.graph import Op
from npusim.isa import vector
from npusim.isa.base import Unit
from npusim.isa.functions import COMPARISONS, PREDICATES, Binary, Unary
from npusim.ops.base import (
    REQUIRED,
    Array,
    Attrs,
    ElementForm,
    Inputs,
    Result,
    broadcast,
    define,
    narrow,
    operand,
    present,
    same_dtype,
    widen,
    widened,
)

INTEGER_UNARY = frozenset(
    {Unary.IDENTITY, Unary.RELU, Unary.CLIP, Unary.NEG, Unary.ABS, Unary.SIGN, Unary.BITWISE_NOT, Unary.SQUARE}
)
"""Unary functions that are defined for integers."""
LOGICAL = frozenset({Binary.AND, Binary.OR, Binary.XOR})
BITWISE = frozenset({Binary.BIT_AND, Binary.BIT_OR, Binary.BIT_XOR, Binary.SHL, Binary.SHR})
_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def _distinct(function: Callable[[Array], Array], x: Array) -> Array:
    """A slow function in double precision, computed once per distinct value."""
    # numpy has no erf: each value needs a Python call, and activations repeat values.
    values, inverse = np.unique(x, return_inverse=True)
    return function(values)[inverse].reshape(x.shape) if values.size else x.astype(np.float64)


def _sigmoid(x: Array) -> Array:
    # Every exponent is at most 0, so nothing overflows.
    return np.where(x >= 0, 1.0, np.exp(np.minimum(x, 0))) / (1.0 + np.exp(-np.abs(x)))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_Function = Callable[[Any, Any, Any], Any]
_EXACT: dict[Unary, _Function] = {
    Unary.IDENTITY: lambda x, p, q: x,
    Unary.RELU: lambda x, p, q: np.maximum(x, 0),
    Unary.CLIP: lambda x, p, q: np.minimum(np.maximum(x, p), q),
    Unary.NEG: lambda x, p, q: np.negative(x),
    Unary.ABS: lambda x, p, q: np.abs(x),
    Unary.SIGN: lambda x, p, q: np.sign(x),
    Unary.FLOOR: lambda x, p, q: np.floor(x),
    Unary.CEIL: lambda x, p, q: np.ceil(x),
    Unary.ROUND: lambda x, p, q: np.rint(x),
    Unary.NOT: lambda x, p, q: np.logical_not(x),
    Unary.BITWISE_NOT: lambda x, p, q: np.invert(x),
    Unary.ISNAN: lambda x, p, q: np.isnan(x),
    Unary.ISINF: lambda x, p, q: (np.isposinf(x) & (p != 0)) | (np.isneginf(x) & (q != 0)),
    Unary.SQUARE: lambda x, p, q: x * x,
}
"""Functions that are exact or correctly rounded in the type of the operand."""
_DOUBLE: dict[Unary, _Function] = {
    Unary.LEAKY_RELU: lambda x, p, q: np.where(x < 0, x * p, x),
    Unary.ELU: lambda x, p, q: np.where(x < 0, p * np.expm1(np.minimum(x, 0)), x),
    Unary.SELU: lambda x, p, q: q * np.where(x <= 0, p * np.expm1(np.minimum(x, 0)), x),
    Unary.CELU: lambda x, p, q: np.maximum(x, 0) + np.minimum(p * np.expm1(np.minimum(x, 0) / p), 0),
    Unary.SOFTPLUS: lambda x, p, q: _softplus(x),
    Unary.SOFTSIGN: lambda x, p, q: x / (1.0 + np.abs(x)),
    Unary.SIGMOID: lambda x, p, q: _sigmoid(x),
    Unary.HARD_SIGMOID: lambda x, p, q: np.clip(p * x + q, 0, 1),
    Unary.HARD_SWISH: lambda x, p, q: x * np.clip(x + 3, 0, 6) / 6,
    Unary.TANH: lambda x, p, q: np.tanh(x),
    # erfc(-x) instead of 1 + erf(x), which cancels for large negative x.
    Unary.GELU: lambda x, p, q: 0.5 * x * _distinct(_ERFC, -x / math.sqrt(2.0)),
    Unary.GELU_TANH: lambda x, p, q: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))),
    Unary.MISH: lambda x, p, q: x * np.tanh(_softplus(x)),
    Unary.THRESHOLDED_RELU: lambda x, p, q: np.where((x > p) | np.isnan(x), x, 0),
    Unary.SILU: lambda x, p, q: x * _sigmoid(p * x),
    Unary.EXP: lambda x, p, q: np.exp(x),
    Unary.LOG: lambda x, p, q: np.log(x),
    Unary.SQRT: lambda x, p, q: np.sqrt(x),
    Unary.RSQRT: lambda x, p, q: 1.0 / np.sqrt(x),
    Unary.RECIPROCAL: lambda x, p, q: 1.0 / x,
    Unary.ERF: lambda x, p, q: _distinct(_ERF, x),
    Unary.SIN: lambda x, p, q: np.sin(x),
    Unary.COS: lambda x, p, q: np.cos(x),
    Unary.TAN: lambda x, p, q: np.tan(x),
    Unary.ASIN: lambda x, p, q: np.arcsin(x),
    Unary.ACOS: lambda x, p, q: np.arccos(x),
    Unary.ATAN: lambda x, p, q: np.arctan(x),
    Unary.SINH: lambda x, p, q: np.sinh(x),
    Unary.COSH: lambda x, p, q: np.cosh(x),
    Unary.ASINH: lambda x, p, q: np.arcsinh(x),
    Unary.ACOSH: lambda x, p, q: np.arccosh(x),
    Unary.ATANH: lambda x, p, q: np.arctanh(x),
    Unary.SHRINK: lambda x, p, q: np.where(x < -q, x + p, np.where(x > q, x - p, np.where(np.isnan(x), x, 0))),
}
"""Functions computed in double precision and rounded once."""


def _unary_types(inputs: Inputs, attrs: Attrs) -> bool:
    """integers have identity, relu, clip, neg, abs, sign, bitwise_not and square; bool has identity and not"""
    dtype, fn = operand(inputs, 0).dtype, attrs["fn"]
    if dtype is DType.BOOL:
        return fn in (Unary.IDENTITY, Unary.NOT)
    if dtype.is_integer:
        return fn in INTEGER_UNARY
    return fn not in (Unary.NOT, Unary.BITWISE_NOT)


def _infer_unary(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x = operand(inputs, 0)
    return [(x.shape, DType.BOOL if attrs["fn"] in PREDICATES else x.dtype)]


def _unary(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    fn, p0, p1 = op.attrs["fn"], op.attrs["p0"], op.attrs["p1"]
    x = widened(op, arrays, 0)
    with np.errstate(all="ignore"):
        if fn is Unary.CLIP and op.input(0).dtype.is_integer:
            # The bounds are doubles: clip in a type that holds both exactly, so that they do not wrap.
            info = np.iinfo(x.dtype)
            p0, p1 = max(p0, info.min), min(p1, info.max)
            return [np.clip(x, x.dtype.type(int(p0)), x.dtype.type(int(p1)))]
        if fn in _EXACT:
            y = _EXACT[fn](x, p0, p1)
        else:
            y = _DOUBLE[fn](x.astype(np.float64), p0, p1)
            # Half floats are rounded through float32, because the unit computes in float32 and direct rounding could
            # differ in the last bit.
            y = y if op.output.dtype is DType.FLOAT64 else y.astype(np.float32)
    return [narrow(np.asarray(y), op.output.dtype)]


def _int_divide(a: Array, b: Array) -> Array:
    """C division of integers; division by zero gives 0."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = np.floor_divide(a, safe)
    # numpy floors and C truncates: they differ by one if the signs differ and there is a remainder.
    inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.where(b == 0, 0, quotient + inexact).astype(a.dtype)


def _remainder(modulo: Callable[..., Array], a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return modulo(a, b)
    return np.where(b == 0, 0, modulo(a, np.where(b == 0, 1, b).astype(b.dtype))).astype(a.dtype)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a.astype(np.float64), b.astype(np.float64))
    whole = np.power(a.astype(np.int64), np.maximum(b, 0).astype(np.int64))
    # A negative exponent truncates towards zero, so only the bases 1 and -1 give a result other than 0.
    odd = (b % 2 != 0) & (a == -1)
    return np.where(b >= 0, whole, np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0)))


def _shift(a: Array, b: Array, left: bool) -> Array:
    """Shift. A negative amount, or one not less than the width, shifts out all bits."""
    bits = a.dtype.itemsize * 8
    # In C, a shift by the width or more is undefined, so the result would depend on the machine.
    amount = np.clip(b, 0, bits - 1).astype(a.dtype)
    shifted = np.left_shift(a, amount) if left else np.right_shift(a, amount)
    overflow = np.zeros_like(a) if left else np.where(a < 0, -1, 0).astype(a.dtype)
    return np.where((b < 0) | (b >= bits), overflow, shifted)


_BINARY: dict[Binary, Callable[[Any, Any], Any]] = {
    Binary.ADD: np.add,
    Binary.SUB: np.subtract,
    Binary.MUL: np.multiply,
    Binary.DIV: lambda a, b: a / b if a.dtype.kind == "f" else _int_divide(a, b),
    Binary.POW: _power,
    Binary.MIN: np.minimum,
    Binary.MAX: np.maximum,
    Binary.MOD: lambda a, b: _remainder(np.mod, a, b),
    Binary.FMOD: lambda a, b: _remainder(np.fmod, a, b),
    Binary.EQ: np.equal,
    Binary.NE: np.not_equal,
    Binary.LT: np.less,
    Binary.LE: np.less_equal,
    Binary.GT: np.greater,
    Binary.GE: np.greater_equal,
    Binary.AND: np.logical_and,
    Binary.OR: np.logical_or,
    Binary.XOR: np.logical_xor,
    Binary.BIT_AND: np.bitwise_and,
    Binary.BIT_OR: np.bitwise_or,
    Binary.BIT_XOR: np.bitwise_xor,
    Binary.SHL: lambda a, b: _shift(a, b, True),
    Binary.SHR: lambda a, b: _shift(a, b, False),
    Binary.PRELU: lambda a, b: np.where(a < 0, a * b, a),
    Binary.SQUARED_DIFFERENCE: lambda a, b: (a - b) * (a - b),
}


def _binary_types(inputs: Inputs, attrs: Attrs) -> bool:
    """and, or, xor take bool; bitwise functions and shifts take integers; arithmetic takes numbers, not bool"""
    dtype, fn = operand(inputs, 0).dtype, attrs["fn"]
    if fn in LOGICAL:
        return dtype is DType.BOOL
    if fn in BITWISE:
        return dtype.is_integer
    return fn in COMPARISONS or dtype is not DType.BOOL


def _infer_binary(inputs: Inputs, attrs: Attrs) -> list[Result]:
    a, b = operand(inputs, 0), operand(inputs, 1)
    dtype = same_dtype(a, b)
    return [(broadcast(a.shape, b.shape), DType.BOOL if attrs["fn"] in COMPARISONS else dtype)]


def _binary(op: Op, arrays: Sequence[Array | None]) -> list[Array]:
    with np.errstate(all="ignore"):
        y = _BINARY[op.attrs["fn"]](widened(op, arrays, 0), widened(op, arrays, 1))
    return [narrow(np.asarray(y), op.output.dtype)]


def _infer_select(inputs: Inputs, attrs: Attrs) -> list[Result]:
    condition, a, b = (operand(inputs, index) for index in range(3))
    if condition.dtype is not DType.BOOL:
        raise ModelError(f"the condition must be bool, got {condition.dtype.label}")
    return [(broadcast(condition.shape, a.shape, b.shape), same_dtype(a, b))]


def convert(x: Array, source: DType, to: DType) -> Array:
    """Convert storage to storage: floats truncate and saturate to integers (NaN to 0), integers wrap, bool is != 0."""
    wide = widen(x, source)
    if to is DType.BOOL:
        return np.asarray(wide != 0)
    if source.is_float and to.is_integer:
        info = np.iinfo(to.storage)
        with np.errstate(invalid="ignore"):
            # float(2**63 - 1) is 2**63, which int64 cannot hold: smaller values are converted, others saturate.
            whole = np.trunc(np.nan_to_num(wide.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
            inside = np.where((whole > info.min) & (whole < float(info.max)), whole, 0).astype(to.storage)
        saturated = np.where(whole <= info.min, info.min, np.where(whole >= float(info.max), info.max, inside))
        return saturated.astype(to.storage)
    return narrow(wide, to)


define(
    "unary",
    "x",
    "a function (Unary) of each element, with parameters p0 and p1",
    infer=_infer_unary,
    reference=_unary,
    unit=Unit.VECTOR,
    form=ElementForm(
        lambda op, at, dims: vector.UnaryOp(
            Unary(op.attrs["fn"]), op.input(0).dtype, *at[0], *at[1], dims, op.attrs["p0"], op.attrs["p1"]
        )
    ),
    attrs={"fn": REQUIRED, "p0": 0.0, "p1": 0.0},
    constraints=(_unary_types,),
)
define(
    "binary",
    "a, b",
    "a function (Binary) of elements of one type; comparisons give bool",
    infer=_infer_binary,
    reference=_binary,
    unit=Unit.VECTOR,
    form=ElementForm(
        lambda op, at, dims: vector.BinaryOp(Binary(op.attrs["fn"]), op.input(0).dtype, *at[0], *at[1], *at[2], dims)
    ),
    attrs={"fn": REQUIRED},
    constraints=(_binary_types,),
)
define(
    "select",
    "condition, a, b",
    "a where the bool condition is true, else b",
    infer=_infer_select,
    reference=lambda op, arrays: [np.where(present(arrays, 0), present(arrays, 1), present(arrays, 2))],
    unit=Unit.VECTOR,
    form=ElementForm(lambda op, at, dims: vector.Select(op.output.dtype, *at[0], *at[1], *at[2], *at[3], dims)),
)
define(
    "cast",
    "x",
    "another type; float to integer truncates and saturates, to bool is != 0",
    infer=lambda inputs, attrs: [(operand(inputs, 0).shape, attrs["to"])],
    reference=lambda op, arrays: [convert(present(arrays, 0), op.input(0).dtype, op.attrs["to"])],
    unit=Unit.VECTOR,
    form=ElementForm(lambda op, at, dims: vector.Cast(op.output.dtype, *at[0], op.input(0).dtype, *at[1], dims)),
    attrs={"to": REQUIRED},
)


_BITS = {1: DType.UINT8, 2: DType.UINT16, 4: DType.INT32, 8: DType.INT64}


def _infer_bitcast(inputs: Inputs, attrs: Attrs) -> list[Result]:
    x, to = operand(inputs, 0), attrs["to"]
    if x.dtype.itemsize != to.itemsize:
        raise ModelError(f"{x.dtype.label} and {to.label} have different sizes")
    return [(x.shape, to)]


define(
    "bitcast",
    "x",
    "the same bits as another type of the same size",
    infer=_infer_bitcast,
    reference=lambda op, arrays: [present(arrays, 0).view(op.attrs["to"].storage)],
    unit=Unit.VECTOR,
    # The unit copies integers as they are.
    form=ElementForm(
        lambda op, at, dims: vector.UnaryOp(
            Unary.IDENTITY, _BITS[op.output.dtype.itemsize], *at[0], *at[1], dims, 0.0, 0.0
        )
    ),
    attrs={"to": REQUIRED},
)
