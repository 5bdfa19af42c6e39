"""Function codes of the vector unit: the values of the ``fn`` field of an instruction.

The numbers are part of the instruction encoding. The kernels in ``npusim._core`` use the same numbers.
"""

from __future__ import annotations

import enum


class Unary(enum.IntEnum):
    """y = fn(x). p0 and p1 are the parameters, if a function has any."""

    IDENTITY = 0
    RELU = 1
    CLIP = 2  # p0 minimum, p1 maximum
    LEAKY_RELU = 3  # p0 alpha
    ELU = 4  # p0 alpha
    SELU = 5  # p0 alpha, p1 gamma
    CELU = 6  # p0 alpha
    SOFTPLUS = 7
    SOFTSIGN = 8
    SIGMOID = 9
    HARD_SIGMOID = 10  # p0 alpha, p1 beta
    HARD_SWISH = 11
    TANH = 12
    GELU = 13  # by erf
    GELU_TANH = 14
    MISH = 15
    THRESHOLDED_RELU = 16  # p0 alpha
    SILU = 17  # x * sigmoid(p0 * x)
    EXP = 18
    LOG = 19
    SQRT = 20
    RSQRT = 21
    RECIPROCAL = 22
    NEG = 23
    ABS = 24
    SIGN = 25
    FLOOR = 26
    CEIL = 27
    ROUND = 28  # half to even
    ERF = 29
    SIN = 30
    COS = 31
    TAN = 32
    ASIN = 33
    ACOS = 34
    ATAN = 35
    SINH = 36
    COSH = 37
    ASINH = 38
    ACOSH = 39
    ATANH = 40
    NOT = 41  # bool
    BITWISE_NOT = 42  # integers
    ISNAN = 43  # to bool
    ISINF = 44  # to bool; p0 != 0: positive counts, p1 != 0: negative counts
    SHRINK = 45  # p0 bias, p1 lambda
    SQUARE = 46


class Binary(enum.IntEnum):
    """y = fn(a, b)."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3  # integers truncate; division by zero gives 0
    POW = 4
    MIN = 5
    MAX = 6
    MOD = 7  # sign of the divisor
    FMOD = 8  # sign of the dividend
    EQ = 9
    NE = 10
    LT = 11
    LE = 12
    GT = 13
    GE = 14
    AND = 15
    OR = 16
    XOR = 17
    BIT_AND = 18
    BIT_OR = 19
    BIT_XOR = 20
    SHL = 21
    SHR = 22
    PRELU = 23  # a < 0 ? a * b : a
    SQUARED_DIFFERENCE = 24


class Reduce(enum.IntEnum):
    """The function that combines the elements of a reduction."""

    SUM = 0
    MEAN = 1
    MAX = 2
    MIN = 3
    PROD = 4
    L1 = 5
    L2 = 6
    SUM_SQUARE = 7
    ANY = 8
    ALL = 9


COMPARISONS = frozenset({Binary.EQ, Binary.NE, Binary.LT, Binary.LE, Binary.GT, Binary.GE})
"""Binary functions whose result is BOOL for any operand type."""

PREDICATES = frozenset({Unary.ISNAN, Unary.ISINF})
"""Unary functions whose result is BOOL."""

TRANSCENDENTAL = frozenset(
    {
        Unary.ELU,
        Unary.SELU,
        Unary.CELU,
        Unary.SOFTPLUS,
        Unary.SIGMOID,
        Unary.TANH,
        Unary.GELU,
        Unary.GELU_TANH,
        Unary.MISH,
        Unary.SILU,
        Unary.EXP,
        Unary.LOG,
        Unary.ERF,
        Unary.SIN,
        Unary.COS,
        Unary.TAN,
        Unary.ASIN,
        Unary.ACOS,
        Unary.ATAN,
        Unary.SINH,
        Unary.COSH,
        Unary.ASINH,
        Unary.ACOSH,
        Unary.ATANH,
    }
)
DIVIDING = frozenset({Unary.SOFTSIGN, Unary.RECIPROCAL})
ROOTS = frozenset({Unary.SQRT, Unary.RSQRT})


def unary_cost(fn: Unary) -> str:
    """The cost class of a unary function on the vector unit."""
    if fn in TRANSCENDENTAL:
        return "transcendental"
    if fn in DIVIDING:
        return "divide"
    return "sqrt" if fn in ROOTS else "simple"


def binary_cost(fn: Binary) -> str:
    """The cost class of a binary function on the vector unit."""
    if fn in (Binary.DIV, Binary.MOD, Binary.FMOD):
        return "divide"
    return "transcendental" if fn is Binary.POW else "simple"
