"""Operators on elements: arithmetic, comparisons, activations, conversions."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.tflite.operation import Operation
from npusim.frontends.tflite.registry import handles
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

_FUSED = {"ADD": Binary.ADD, "SUB": Binary.SUB, "MUL": Binary.MUL, "DIV": Binary.DIV}
_PLAIN = {"POW": Binary.POW, "SQUARED_DIFFERENCE": Binary.SQUARED_DIFFERENCE, "FLOOR_MOD": Binary.MOD}
_COMPARISONS = {
    "EQUAL": Binary.EQ,
    "NOT_EQUAL": Binary.NE,
    "LESS": Binary.LT,
    "LESS_EQUAL": Binary.LE,
    "GREATER": Binary.GT,
    "GREATER_EQUAL": Binary.GE,
}
_EXACT = {"LOGICAL_AND": Binary.AND, "LOGICAL_OR": Binary.OR, "BITWISE_XOR": Binary.BIT_XOR, "RIGHT_SHIFT": Binary.SHR}
_UNARY = {
    "ABS": Unary.ABS,
    "CEIL": Unary.CEIL,
    "COS": Unary.COS,
    "EXP": Unary.EXP,
    "FLOOR": Unary.FLOOR,
    "HARD_SWISH": Unary.HARD_SWISH,
    "LOG": Unary.LOG,
    "LOGISTIC": Unary.SIGMOID,
    "NEG": Unary.NEG,
    "ROUND": Unary.ROUND,
    "RSQRT": Unary.RSQRT,
    "SIGN": Unary.SIGN,
    "SIN": Unary.SIN,
    "SQRT": Unary.SQRT,
    "SQUARE": Unary.SQUARE,
    "TANH": Unary.TANH,
}
_BOUNDS = {
    "RELU": (0.0, float("inf")),
    "RELU6": (0.0, 6.0),
    "RELU_0_TO_1": (0.0, 1.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}


@handles(*_FUSED)
def fused(op: Operation) -> Tensor:
    """Import an arithmetic function of two tensors with a fused activation."""
    result = op.binary(_FUSED[op.op_type], op.numbers(0), op.numbers(1))
    function = int(op.option(f"{op.op_type.title()}Options", "FusedActivationFunction"))
    return op.give(op.activated(result, function))


@handles(*_PLAIN)
def plain(op: Operation) -> Tensor:
    """Import a function of two tensors without an activation."""
    return op.give(op.binary(_PLAIN[op.op_type], op.numbers(0), op.numbers(1)))


@handles("MAXIMUM", "MINIMUM")
def extreme(op: Operation) -> Tensor:
    """Import MAXIMUM or MINIMUM: of stored elements if these compare like the numbers."""
    function = Binary.MAX if op.op_type == "MAXIMUM" else Binary.MIN
    if op.alike(0, 1):
        return op.binary(function, op.input(0), op.input(1))
    return op.give(op.binary(function, op.numbers(0), op.numbers(1)))


@handles("FLOOR_DIV")
def floor_div(op: Operation) -> Tensor:
    """Import FLOOR_DIV; the graph's division of integers truncates."""
    a, b = op.numbers(0), op.numbers(1)
    quotient = op.binary(Binary.DIV, a, b)
    if a.dtype.is_float:
        return op.give(op.unary(Unary.FLOOR, quotient))
    # The remainders differ if the signs do and there is one: there the truncated quotient is one too high.
    high = op.binary(Binary.NE, op.binary(Binary.MOD, a, b), op.binary(Binary.FMOD, a, b))
    return op.binary(Binary.SUB, quotient, op.cast(high, a.dtype))


@handles("ADD_N")
def add_n(op: Operation) -> Tensor:
    """Import the sum of several tensors."""
    total = op.numbers(0)
    for index in range(1, len(op.inputs)):
        total = op.binary(Binary.ADD, total, op.numbers(index))
    return op.give(total)


@handles(*_COMPARISONS)
def comparison(op: Operation) -> Tensor:
    """Import a comparison of numbers."""
    if op.input(0).dtype is DType.BOOL:
        return op.binary(_COMPARISONS[op.op_type], op.cast(op.input(0), DType.INT8), op.cast(op.input(1), DType.INT8))
    return op.binary(_COMPARISONS[op.op_type], op.numbers(0), op.numbers(1))


@handles(*_EXACT)
def exact(op: Operation) -> Tensor:
    """Import a function of two bools or integers."""
    return op.binary(_EXACT[op.op_type], op.input(0), op.input(1))


@handles("LOGICAL_NOT")
def logical_not(op: Operation) -> Tensor:
    """Import LOGICAL_NOT."""
    return op.unary(Unary.NOT, op.input(0))


@handles(*_UNARY)
def unary(op: Operation) -> Tensor:
    """Import a function of one tensor."""
    return op.give(op.unary(_UNARY[op.op_type], op.numbers(0)))


@handles(*_BOUNDS)
def rectify(op: Operation) -> Tensor:
    """Import an activation that clamps numbers to two bounds."""
    return op.give(op.unary(Unary.CLIP, op.numbers(0), *_BOUNDS[op.op_type]))


@handles("ELU")
def elu(op: Operation) -> Tensor:
    """Import ELU."""
    return op.give(op.unary(Unary.ELU, op.numbers(0), 1.0))


@handles("GELU")
def gelu(op: Operation) -> Tensor:
    """Import GELU by erf, or its approximation by tanh."""
    function = Unary.GELU_TANH if op.flag("GeluOptions", "Approximate") else Unary.GELU
    return op.give(op.unary(function, op.numbers(0)))


@handles("LEAKY_RELU")
def leaky_relu(op: Operation) -> Tensor:
    """Import LEAKY_RELU."""
    return op.give(op.unary(Unary.LEAKY_RELU, op.numbers(0), float(op.option("LeakyReluOptions", "Alpha"))))


@handles("PRELU")
def prelu(op: Operation) -> Tensor:
    """Import PRELU; the slopes broadcast."""
    return op.give(op.binary(Binary.PRELU, op.numbers(0), op.numbers(1)))


@handles("ATAN2")
def atan2(op: Operation) -> Tensor:
    """Import ATAN2: the arc tangent of the quotient, turned by half a circle where the second operand is negative."""
    y, x = op.numbers(0), op.numbers(1)
    zero = op.like(0, x)
    angle = op.unary(Unary.ATAN, op.binary(Binary.DIV, y, x))
    left = op.binary(Binary.LT, x, zero)
    half = op.add("select", op.binary(Binary.LT, y, zero), op.like(-np.pi, x), op.like(np.pi, x))
    turned = op.add("select", left, op.binary(Binary.ADD, angle, half), angle)
    # 0 / 0 is no number.
    nothing = op.binary(Binary.AND, op.binary(Binary.EQ, x, zero), op.binary(Binary.EQ, y, zero))
    return op.give(op.add("select", nothing, zero, turned))


@handles("SELECT", "SELECT_V2")
def select(op: Operation) -> Tensor:
    """Import a selection; SELECT takes whole entries of dimension 0 by a condition of one dimension."""
    condition, a, b = (op.input(index) for index in range(3))
    if op.op_type == "SELECT" and len(condition.shape) == 1 < len(a.shape):
        condition = op.along(condition, 0, len(a.shape))
    if op.alike(1, 2):
        return op.add("select", condition, a, b)
    return op.give(op.add("select", condition, op.numbers(1), op.numbers(2)))


@handles("CAST")
def cast(op: Operation) -> Tensor:
    """Import a conversion of stored elements."""
    return op.cast(op.input(0), op.dtype_of(op.results[0]))


@handles("QUANTIZE")
def quantize(op: Operation) -> Tensor:
    """Import QUANTIZE, from floats or from another quantisation."""
    return op.give(op.numbers(0))


@handles("DEQUANTIZE")
def dequantize(op: Operation) -> Tensor:
    """Import DEQUANTIZE; half floats are widened, and constants of them become constants."""
    x = op.input(0)
    if x.dtype.is_float and x.data is not None:
        return op.const(x.data.astype(np.float32))
    return op.real(0)


@handles("DENSIFY", limits=["the sparse tensor is a constant"])
def densify(op: Operation) -> Tensor:
    """Import DENSIFY; sparse constants are made dense when they are read."""
    if op.input(0).data is None:
        op.refuse("input 0 must be a constant")
    return op.input(0)
