"""Arithmetic, comparison, logic, activations and casts."""

from __future__ import annotations

import numpy as np

from npusim.dtypes import DType
from npusim.frontends.onnx.narrow_formats import FLOATS, decoded, encoded
from npusim.frontends.onnx.node import Node
from npusim.frontends.onnx.registry import handles
from npusim.frontends.onnx.tensors import PACKED, TO_ONNX, element_type
from npusim.graph import Tensor
from npusim.isa.functions import Binary, Unary

_NAMED_ALIKE = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "IsNaN",
    "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip

PLAIN_UNARY = {
    **{name: Unary[name.upper()] for name in _NAMED_ALIKE},
    "BitwiseNot": Unary.BITWISE_NOT,
    "HardSwish": Unary.HARD_SWISH,
}
PARAMETERS = {
    "Celu": (Unary.CELU, ("alpha", 1.0), None),
    "Elu": (Unary.ELU, ("alpha", 1.0), None),
    "HardSigmoid": (Unary.HARD_SIGMOID, ("alpha", 0.2), ("beta", 0.5)),
    "LeakyRelu": (Unary.LEAKY_RELU, ("alpha", 0.01), None),
    "Selu": (Unary.SELU, ("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    "Shrink": (Unary.SHRINK, ("bias", 0.0), ("lambd", 0.5)),
    "Swish": (Unary.SILU, ("alpha", 1.0), None),
    "ThresholdedRelu": (Unary.THRESHOLDED_RELU, ("alpha", 1.0), None),
}
PLAIN_BINARY = {
    **{name: Binary[name.upper()] for name in ("Add", "And", "Div", "Mul", "Or", "PRelu", "Sub", "Xor")},
    "BitwiseAnd": Binary.BIT_AND,
    "BitwiseOr": Binary.BIT_OR,
    "BitwiseXor": Binary.BIT_XOR,
    "Equal": Binary.EQ,
    "Greater": Binary.GT,
    "GreaterOrEqual": Binary.GE,
    "Less": Binary.LT,
    "LessOrEqual": Binary.LE,
}


@handles(*PLAIN_UNARY)
def plain_unary(node: Node) -> Tensor:
    """Import an elementwise function without parameters."""
    return node.unary(PLAIN_UNARY[node.op_type], node.input(0))


@handles(*PARAMETERS)
def with_parameters(node: Node) -> Tensor:
    """Import an elementwise function whose parameters are attributes."""
    fn, first, second = PARAMETERS[node.op_type]
    p0 = node.float_attr(*first)
    return node.unary(fn, node.input(0), p0, node.float_attr(*second) if second else 0.0)


@handles(*PLAIN_BINARY)
def plain_binary(node: Node) -> Tensor:
    """Import an elementwise function of two inputs, with broadcasting."""
    return node.binary(PLAIN_BINARY[node.op_type], node.input(0), node.input(1))


@handles("Gelu")
def gelu(node: Node) -> Tensor:
    """Import Gelu, exact or approximated by tanh."""
    approximate = node.text_attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        node.damaged(f"attribute approximate must be none or tanh, is {approximate!r}")
    return node.unary(Unary.GELU if approximate == "none" else Unary.GELU_TANH, node.input(0))


@handles("IsInf")
def is_inf(node: Node) -> Tensor:
    """Import IsInf for infinities of one sign or of both."""
    positive, negative = node.int_attr("detect_positive", 1), node.int_attr("detect_negative", 1)
    return node.unary(Unary.ISINF, node.input(0), positive, negative)


@handles("Mod")
def mod(node: Node) -> Tensor:
    """Import Mod, with the sign of the divisor or, with ``fmod``, of the dividend."""
    return node.binary(Binary.FMOD if node.int_attr("fmod", 0) else Binary.MOD, node.input(0), node.input(1))


@handles("BitShift")
def bit_shift(node: Node) -> Tensor:
    """Import BitShift."""
    direction = node.text_attr("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        node.damaged(f"attribute direction must be LEFT or RIGHT, is {direction!r}")
    return node.binary(Binary.SHL if direction == "LEFT" else Binary.SHR, node.input(0), node.input(1))


@handles("Pow")
def power(node: Node) -> Tensor:
    """Import Pow; the exponent is cast to the type of the base."""
    base, exponent = node.input(0), node.input(1)
    if base.dtype.is_integer and exponent.dtype.is_float:
        return node.cast(node.binary(Binary.POW, node.cast(base, exponent.dtype), exponent), base.dtype)
    return node.binary(Binary.POW, base, node.cast(exponent, base.dtype))


@handles("Sum", "Max", "Min", "Mean")
def variadic(node: Node) -> Tensor:
    """Import Max, Min, Mean and Sum of any number of inputs."""
    fn = {"Max": Binary.MAX, "Min": Binary.MIN}.get(node.op_type, Binary.ADD)
    total = node.input(0)
    for index in range(1, len(node.inputs)):
        total = node.binary(fn, total, node.input(index))
    if node.op_type == "Mean" and len(node.inputs) > 1:
        total = node.binary(Binary.DIV, total, node.like(len(node.inputs), total))
    return total


def clip_between(node: Node, x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    """x clipped to scalar bounds. Each bound may be absent or computed."""
    bounds = [None if bound is None else node.builder.value_of(bound) for bound in (low, high)]
    computed = any(bound is not None and value is None for bound, value in zip((low, high), bounds, strict=True))
    if computed or x.dtype in (DType.INT64, DType.UINT64, DType.BFLOAT16):
        # Bounds that are unknown, or that a double cannot represent exactly.
        x = x if low is None else node.binary(Binary.MAX, x, low)
        return x if high is None else node.binary(Binary.MIN, x, high)
    least, most = -np.inf, np.inf
    if not x.dtype.is_float:
        least, most = float(np.iinfo(x.dtype.storage).min), float(np.iinfo(x.dtype.storage).max)
    p0, p1 = (
        default if value is None else float(value.reshape(-1)[0])
        for default, value in zip((least, most), bounds, strict=True)
    )
    return node.unary(Unary.CLIP, x, p0, p1)


@handles("Clip")
def clip_attributes(node: Node) -> Tensor:
    """Import Clip before operator set 11: the bounds are attributes."""
    x = node.input(0)
    return node.unary(Unary.CLIP, x, node.float_attr("min", -np.inf), node.float_attr("max", np.inf))


@handles("Clip", since=11)
def clip(node: Node) -> Tensor:
    """Import Clip from operator set 11 on: the bounds are inputs."""
    return clip_between(node, node.input(0), node.optional(1), node.optional(2))


@handles("Where")
def where(node: Node) -> Tensor:
    """Import Where."""
    return node.add("select", node.input(0), node.input(1), node.input(2))


@handles("Cast")
def cast(node: Node) -> Tensor:
    """Import Cast to the type of the attribute ``to``."""
    return _converted(node, node.int_attr("to"))


@handles("CastLike")
def cast_like(node: Node) -> Tensor:
    """Import CastLike: cast to the type of the second input."""
    like = node.input(1)
    return _converted(node, node.packed.get(like, TO_ONNX[like.dtype]))


def _converted(node: Node, code: int) -> Tensor:
    """Input 0 in another type."""
    x, saturate = node.input(0), bool(node.int_attr("saturate", 1))
    rounding, source = node.text_attr("round_mode", "up"), node.packed.get(x)
    if source is not None and source != code:
        whole = DType.FLOAT32 if source in FLOATS or code in FLOATS else DType.INT32
        x = decoded(node, x, source, whole if code in PACKED else element_type(code, node.name, node.op_type))
    if code not in PACKED:
        return node.cast(x, element_type(code, node.name, node.op_type))
    return x if source == code else node.formatted(encoded(node, x, code, saturate, rounding), code)


@handles("BitCast", since=26)
def bit_cast(node: Node) -> Tensor:
    """Import BitCast between types of one size."""
    code = node.int_attr("to")
    return node.add("bitcast", node.input(0), to=element_type(code, node.name, node.op_type))
