"""Steps of random integer graphs: int32 arithmetic, and 8-bit quantised operators."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from onnx import helper

from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.random_steps import (
    MOVEMENT_STEPS,
    Grower,
    Quant,
    Tile,
    Value,
    convolution,
    is_image,
    max_pool,
)

_FLOAT = np.dtype(np.float32)
_INT32 = np.dtype(np.int32)
_DEVIATION = 50.0
"""Standard deviation, in steps, of quantised values: some saturate, most do not."""


def _is_int32(value: Value) -> bool:
    return value.dtype == _INT32


def _is_quantised(value: Value) -> bool:
    return value.quant is not None


def _int_binary(grower: Grower, value: Value) -> Value:
    """Arithmetic with a broadcast constant or an older value; Mul sometimes wraps."""
    op = grower.pick(("Add", "Sub", "Mul", "Max", "Min"))
    if grower.flag():
        other = grower.twin(value).name
    else:
        shape = [size if grower.flag() else 1 for size in value.shape]
        other = grower.build.const(grower.build.rng.integers(-100, 100, shape, np.int32))
    return value.moved(grower.build.op(op, value.name, other), value.shape)


def _int_divide(grower: Grower, value: Value) -> Value:
    """Division by a constant without zeros; it truncates towards zero."""
    divisor = grower.build.rng.integers(1, 9, value.shape[-1:], np.int32) * grower.build.rng.choice([-1, 1])
    name = grower.build.op("Div", value.name, grower.build.const(divisor.astype(np.int32)))
    return value.moved(name, value.shape)


def _int_unary(grower: Grower, value: Value) -> Value:
    return value.moved(grower.build.op(grower.pick(("Abs", "Neg", "Relu")), value.name), value.shape)


def _int_clip(grower: Grower, value: Value) -> Value:
    low, high = (grower.build.const(np.int32(bound)) for bound in (-500, 700))
    return value.moved(grower.build.op("Clip", value.name, low, high), value.shape)


def _int_where(grower: Grower, value: Value) -> Value:
    comparison = grower.pick(("Greater", "Less", "Equal"))
    chosen = grower.build.op(comparison, value.name, grower.build.const(np.int32(7)))
    return value.moved(grower.build.op("Where", chosen, grower.twin(value).name, value.name), value.shape)


def _int_reduce(grower: Grower, value: Value) -> Value:
    axes = sorted(grower.draw_axes(value.rank))
    shape = [1 if axis in axes else size for axis, size in enumerate(value.shape)]
    if grower.flag():
        name = grower.build.op("ReduceSum", value.name, grower.build.ints(*axes))
    else:
        name = grower.build.op(grower.pick(("ReduceMax", "ReduceMin")), value.name, axes=axes)
    return value.moved(name, shape)


def _int_matmul(grower: Grower, value: Value) -> Value:
    columns = grower.integer(1, 20)
    weight = grower.build.rng.integers(-50, 50, (value.shape[-1], columns), np.int32)
    name = grower.build.op("MatMul", value.name, grower.build.const(weight))
    return value.moved(name, (*value.shape[:-1], columns))


def _scale(raw: float, power_of_two: bool) -> float:
    """Return the scale near the raw one that is exact in float32."""
    return float(2.0 ** round(math.log2(raw)) if power_of_two else np.float32(raw))


def _quant_operands(grower: Grower, quant: Quant, dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the scale and zero point of a value as node inputs."""
    return grower.build.scalar(quant.scale), grower.build.const(np.array(quant.zero, dtype), "zero")


def quantised_input(
    draw: st.DrawFn, build: ModelBuilder, shape: tuple[int, ...], power_of_two: bool
) -> tuple[Value, npt.NDArray[Any]]:
    """Add an 8-bit graph input ``x`` with an array that contains every value of the type."""
    low, high, kind = draw(st.sampled_from(((-128, 127, np.int8), (0, 255, np.uint8))))
    dtype = np.dtype(kind)
    name = build.input("x", shape, helper.np_dtype_to_tensor_dtype(dtype))
    zero = draw(st.sampled_from((0, (low + high + 1) // 2, 3)))
    quant = Quant(_scale(0.021, power_of_two), zero, power_of_two)
    array = build.rng.integers(low, high, shape, dtype, endpoint=True)
    return Value(name, shape, dtype, quant), array


def _weights(grower: Grower, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    return grower.build.rng.integers(-127, 127, shape, np.int8, endpoint=True)


def _result(grower: Grower, value: Value, fan_in: int, weight_scale: float) -> Quant:
    """Return a quantisation that fills the range for a product's result. It has the value's type, as onnxruntime
    requires."""
    assert value.quant is not None
    zero = grower.integer(-5, 5) + (128 if value.dtype == np.uint8 else 0)
    deviation = 74.0 * 73.0 * math.sqrt(fan_in) * value.quant.scale * weight_scale
    return replace(value.quant, scale=_scale(deviation / _DEVIATION, value.quant.power_of_two), zero=zero)


def _qlinear_conv(grower: Grower, value: Value) -> Value:
    """Convolution with a scale per tensor or per output channel, and sometimes a bias."""
    assert value.quant is not None
    plan = convolution(grower, value)
    channels = plan.weight_shape[0]
    base = _scale(0.011, value.quant.power_of_two)
    spread = grower.build.rng.integers(0, 2, channels) if grower.flag() else np.zeros(channels, np.int64)
    scales = (base * 2.0**spread).astype(np.float32)
    quant = _result(grower, value, math.prod(plan.weight_shape[1:]), base)
    per_channel = bool(spread.any())
    operands = [
        value.name,
        *_quant_operands(grower, value.quant, value.dtype),
        grower.build.const(_weights(grower, plan.weight_shape)),
        grower.build.const(scales if per_channel else scales[0]),
        grower.build.const(np.zeros(channels, np.int8) if per_channel else np.int8(0)),
        *_quant_operands(grower, quant, value.dtype),
    ]
    if grower.flag():
        operands.append(grower.build.const(grower.build.rng.integers(-9000, 9000, channels, np.int32)))
    return Value(grower.build.op("QLinearConv", *operands, **plan.attributes), plan.out_shape, value.dtype, quant)


def _qlinear_matmul(grower: Grower, value: Value) -> Value:
    assert value.quant is not None
    inner, columns = value.shape[-1], grower.integer(1, 40)
    weight_scale = _scale(0.011, value.quant.power_of_two)
    quant = _result(grower, value, inner, weight_scale)
    name = grower.build.op(
        "QLinearMatMul",
        value.name,
        *_quant_operands(grower, value.quant, value.dtype),
        grower.build.const(_weights(grower, (inner, columns))),
        grower.build.scalar(weight_scale),
        grower.build.const(np.int8(grower.pick((0, 2)))),
        *_quant_operands(grower, quant, value.dtype),
    )
    return Value(name, (*value.shape[:-1], columns), value.dtype, quant)


def _matmul_integer(grower: Grower, value: Value) -> Value:
    assert value.quant is not None
    columns = grower.integer(1, 20)
    zero = _quant_operands(grower, value.quant, value.dtype)[1]
    weight = grower.build.const(_weights(grower, (value.shape[-1], columns)))
    name = grower.build.op("MatMulInteger", value.name, weight, zero, grower.build.const(np.int8(0)))
    return Value(name, (*value.shape[:-1], columns), _INT32)


def _conv_integer(grower: Grower, value: Value) -> Value:
    """uint8 by uint8, the only pair of types that every implementation supports."""
    assert value.quant is not None
    plan = convolution(grower, value)
    weight = grower.build.const(_weights(grower, plan.weight_shape).view(np.uint8))
    zero = _quant_operands(grower, value.quant, value.dtype)[1]
    operands = (value.name, weight, zero, grower.build.const(np.uint8(grower.pick((0, 128)))))
    return Value(grower.build.op("ConvInteger", *operands, **plan.attributes), plan.out_shape, _INT32)


def _island(grower: Grower, value: Value) -> Value:
    """Dequantise, compute in float, and quantise again, as between the integer layers of a QDQ model."""
    assert value.quant is not None
    real = _dequantise(grower, value)
    op = grower.pick(("Relu", "Add", "Neg"))
    operands = (real, _dequantise(grower, grower.twin(value))) if op == "Add" else (real,)
    quant = replace(value.quant, scale=value.quant.scale * (2 if op == "Add" else 1))
    result = grower.build.op(op, *operands)
    name = grower.build.op("QuantizeLinear", result, *_quant_operands(grower, quant, value.dtype))
    return replace(value, name=name, quant=quant)


def _dequantise(grower: Grower, value: Value) -> str:
    assert value.quant is not None
    operands = _quant_operands(grower, value.quant, value.dtype)
    return grower.build.op("DequantizeLinear", value.name, *operands)


INT32_STEPS = (
    Tile("binary", _int_binary, _is_int32),
    Tile("unary", _int_unary, _is_int32),
    Tile("divide", _int_divide, _is_int32),
    Tile("clip", _int_clip, _is_int32),
    Tile("where", _int_where, _is_int32),
    Tile("reduce", _int_reduce, _is_int32),
    Tile("matmul", _int_matmul, _is_int32),
    *MOVEMENT_STEPS,
)
QUANT_STEPS = (
    Tile("qlinear_matmul", _qlinear_matmul, _is_quantised),
    Tile("qlinear_conv", _qlinear_conv, lambda value: _is_quantised(value) and is_image(value)),
    Tile("max_pool", max_pool, lambda value: _is_quantised(value) and is_image(value)),
    Tile("island", _island, _is_quantised),
    Tile("matmul_integer", _matmul_integer, _is_quantised),
    Tile("conv_integer", _conv_integer, lambda value: value.dtype == np.uint8 and is_image(value)),
    *INT32_STEPS,
)
