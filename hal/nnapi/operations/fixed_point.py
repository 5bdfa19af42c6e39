"""Fixed-point arithmetic as gemmlowp defines it, bit for bit, in integer operators of the vector unit.

A number is an integer divided by a power of two. ``Qn`` is a 16-bit number with n integer bits: raw / 2**(15 - n).
Tensors are INT32, so that products of two of them fit; INT64 for products of 32-bit numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

from .lowering import InvalidOperationError, Lowering
from .view import Array

ONE = 32767
"""The largest Q0, slightly less than one."""
_EXP_FACTORS = {-2: 25520, -1: 19875, 0: 12055, 1: 4435, 2: 600, 3: 11, 4: 0}
"""exp(-2**k) as Q0, by k."""


class FixedPoint:
    """Integer operators of one operation being lowered; an int operand is a constant."""

    def __init__(self, op: Lowering) -> None:
        self.op = op

    # Integers

    def binary(self, function: Binary, a: Tensor, b: Tensor | int | Array) -> Tensor:
        """An elementwise function; a number becomes a constant of the tensor's type."""
        other = b if isinstance(b, Tensor) else self.op.const(np.asarray(b, a.dtype.storage))
        return self.op.binary(function, a, other)

    def add(self, a: Tensor, b: Tensor | int | Array) -> Tensor:
        """a + b."""
        return self.binary(Binary.ADD, a, b)

    def multiply(self, a: Tensor, b: Tensor | int | Array) -> Tensor:
        """a * b."""
        return self.binary(Binary.MUL, a, b)

    def minus(self, a: int, b: Tensor) -> Tensor:
        """a - b."""
        return self.op.binary(Binary.SUB, self.op.const(np.asarray(a, b.dtype.storage)), b)

    def subtract(self, a: Tensor, b: Tensor | int) -> Tensor:
        """a - b."""
        return self.binary(Binary.SUB, a, b)

    def divide(self, a: Tensor, b: int) -> Tensor:
        """a / b towards zero."""
        return self.binary(Binary.DIV, a, b)

    def left(self, a: Tensor, bits: Tensor | int | Array) -> Tensor:
        """a * 2**bits."""
        return self.binary(Binary.SHL, a, bits)

    def right(self, a: Tensor, bits: Tensor | int | Array) -> Tensor:
        """a / 2**bits towards minus infinity."""
        return self.binary(Binary.SHR, a, bits)

    def clip(self, a: Tensor, least: int, most: int) -> Tensor:
        """a within bounds."""
        return self.op.unary(Unary.CLIP, a, least, most)

    def saturate(self, a: Tensor) -> Tensor:
        """a as a 16-bit number."""
        return self.clip(a, -32768, 32767)

    def select(self, a: Tensor, test: Binary, b: int, then: Tensor | int, otherwise: Tensor) -> Tensor:
        """``then`` where a (test) b holds, ``otherwise`` elsewhere."""
        chosen = then if isinstance(then, Tensor) else self.op.const(np.asarray(then, otherwise.dtype.storage))
        return self.op.add("select", [self.binary(test, a, b), chosen, otherwise])

    # Rounding

    def rounded_right(self, a: Tensor, bits: int) -> Tensor:
        """a / 2**bits to the nearest integer, halves away from zero."""
        if bits <= 0:
            return self.left(a, -bits) if bits else a
        # -1 where a is negative: at the half, it rounds away from zero instead of up.
        sign = self.right(a, a.dtype.itemsize * 8 - 1)
        return self.right(self.add(self.add(a, sign), 1 << (bits - 1)), bits)

    def high(self, a: Tensor, b: Tensor | int) -> Tensor:
        """The product of two 16-bit numbers: a * b / 2**15, rounded to the nearest integer, halves upwards."""
        return self.right(self.add(self.multiply(a, b), 1 << 14), 15)

    def rescale(self, a: Tensor, factors: Sequence[float]) -> Tensor:
        """a (INT32, or INT64 with values that fit) times real factors, one or one for each entry of its last dimension
        but one, rounded like TFLite's product with a quantised multiplier: INT32."""
        pairs = [quantised_multiplier(factor) for factor in factors]
        shape = (len(pairs), 1) if len(pairs) > 1 else ()
        numbers = np.asarray([number for number, _ in pairs], np.int64).reshape(shape)
        shifts = np.asarray([shift for _, shift in pairs], np.int64).reshape(shape)
        wide = self.op.cast(a, DType.INT64)
        if shifts.max() > 0:
            wide = self.left(wide, np.maximum(shifts, 0))
        # Rounded twice, here and in the following shift, like TFLite's multiplier and shift; rounding once gives other
        # values.
        wide = self.right(self.add(self.multiply(wide, numbers), 1 << 30), 31)
        return self.op.cast(self.shifted(wide, np.maximum(-shifts, 0)), DType.INT32)

    def shifted(self, a: Tensor, bits: Tensor | Array) -> Tensor:
        """a (INT64) / 2**bits to the nearest integer, halves away from zero; bits >= 0, one for each element."""
        if not isinstance(bits, Tensor):
            if not bits.any():
                return a
            half, fix = (1 << bits) >> 1, -(bits > 0).astype(np.int64)
            sign = self.binary(Binary.BIT_AND, self.right(a, 63), fix)
            return self.right(self.add(self.add(a, sign), half), bits)
        one = self.op.const(np.asarray(1, np.int64))
        halves = self.right(self.op.binary(Binary.SHL, one, bits), 1)
        sign = self.binary(Binary.MAX, self.right(a, 63), self.op.unary(Unary.NEG, halves))
        return self.right(self.add(self.add(a, sign), halves), bits)

    # Functions

    def logistic(self, a: Tensor) -> Tensor:
        """1 / (1 + exp(-a)) of Q3 numbers: Q0."""
        negative = self.binary(Binary.MIN, a, self.op.unary(Unary.NEG, a))
        # The reciprocal is Q2 of twice its value, which is its value as Q1.
        positive = self.binary(Binary.MIN, self.left(self._reciprocal(self._exp(negative, 3)), 1), ONE)
        signed = self.select(a, Binary.GT, 0, positive, self.minus(ONE, positive))
        return self.select(a, Binary.EQ, 0, 1 << 14, signed)

    def tanh(self, a: Tensor, integer_bits: int) -> Tensor:
        """tanh of Q numbers with that many integer bits: Q0."""
        negative = self.binary(Binary.MIN, a, self.op.unary(Unary.NEG, a))
        # With one more integer bit the same integers represent twice the numbers: exp(-2|a|).
        quotient = self.subtract(self._reciprocal(self._exp(negative, integer_bits + 1)), 1 << 13)
        positive = self.binary(Binary.MIN, self.left(quotient, 2), ONE)
        signed = self.select(a, Binary.LT, 0, self.op.unary(Unary.NEG, positive), positive)
        return self.select(a, Binary.EQ, 0, 0, signed)

    def _exp(self, a: Tensor, integer_bits: int) -> Tensor:
        """exp of numbers <= 0: Q0. A power series within a quarter, then a factor for each remaining bit."""
        fraction = 15 - integer_bits
        quarter = 1 << (fraction - 2)
        within = self.subtract(self.binary(Binary.BIT_AND, a, quarter - 1), quarter)
        result = self._exp_series(self.left(within, integer_bits))
        remainder = self.subtract(within, a)
        for power, factor in _EXP_FACTORS.items():
            if integer_bits > power:
                bit = self.binary(Binary.BIT_AND, remainder, 1 << (fraction + power))
                result = self.select(bit, Binary.NE, 0, self.high(result, factor), result)
        if integer_bits > 5:
            result = self.select(a, Binary.LT, -32 << fraction, 0, result)
        return self.select(a, Binary.EQ, 0, ONE, result)

    def _exp_series(self, a: Tensor) -> Tensor:
        """exp of Q0 numbers in [-1/4, 0): the Taylor series around -1/8."""
        center = 28918  # exp(-1/8)
        x = self.add(a, 1 << 12)
        x2 = self.high(x, x)
        x3, x4 = self.high(x2, x), self.high(x2, x2)
        third = self.high(self.add(self.rounded_right(x4, 2), x3), 10923)
        rest = self.rounded_right(self.add(third, x2), 1)
        return self.binary(Binary.MIN, self.add(self.high(self.add(x, rest), center), center), ONE)

    def _reciprocal(self, a: Tensor) -> Tensor:
        """2 / (1 + a) of Q0 numbers in [0, 1]: Q2, by three Newton steps. They cannot overflow: the first guess is
        right within 1/17."""
        half = self.right(self.add(a, ONE + 1), 1)
        x = self.add(self.high(half, -15420), 23130)  # 48/17 - 32/17 * half
        for _ in range(3):
            error = self.minus(1 << 13, self.high(half, x))
            x = self.add(x, self.left(self.high(x, error), 2))
        return x


def quantised_multiplier(factor: float) -> tuple[int, int]:
    """(m, s) with factor = m / 2**31 * 2**s and m in [2**30, 2**31); (0, 0) if it vanishes."""
    if not math.isfinite(factor) or factor < 0:
        raise InvalidOperationError(f"a scale must be a finite number >= 0, got {factor}")
    fraction, shift = math.frexp(factor)
    number = math.floor(fraction * (1 << 31) + 0.5)
    if number == 1 << 31:
        number, shift = number // 2, shift + 1
    if shift > 30:
        raise InvalidOperationError(f"the scale {factor} between integers is too large: at most 2**30 is possible")
    return (number, shift) if number and shift >= -31 else (0, 0)
