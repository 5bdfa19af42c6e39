"""Steps of random float32 graphs."""

from __future__ import annotations

import math

import numpy as np

from tests.support.onnx_models.random_steps import (
    MOVEMENT_STEPS,
    Grower,
    Tile,
    Value,
    convolution,
    is_image,
    max_pool,
    pooling,
)

_UNARY = ("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Erf", "HardSigmoid", "HardSwish", "Elu", "LeakyRelu", "Softplus")


def _unary(grower: Grower, value: Value) -> Value:
    return value.moved(grower.build.op(grower.pick(_UNARY), value.name), value.shape)


def _clip(grower: Grower, value: Value) -> Value:
    low, high = grower.build.scalar(-1.0), grower.build.scalar(1.5)
    return value.moved(grower.build.op("Clip", value.name, low, high), value.shape)


def _with_constant(grower: Grower, value: Value) -> Value:
    """A binary operator with a constant that broadcasts along drawn axes."""
    shape = [size if grower.flag() else 1 for size in value.shape]
    constant = grower.build.normal(shape[grower.integer(0, value.rank - 1) :], 0.5, mean=1.0)
    op = grower.pick(("Add", "Mul", "Sub", "Max", "Min"))
    operands = (value.name, constant) if grower.flag() else (constant, value.name)
    return value.moved(grower.build.op(op, *operands), value.shape)


def _skip(grower: Grower, value: Value) -> Value:
    """A binary operator with an older value of the same shape."""
    op = grower.pick(("Add", "Sub", "Max", "Min"))
    return value.moved(grower.build.op(op, grower.twin(value).name, value.name), value.shape)


def _divide(grower: Grower, value: Value) -> Value:
    """x / (|y| + 1): a division that stays of order 1."""
    twin = grower.twin(value)
    divisor = grower.build.op("Add", grower.build.op("Abs", twin.name), grower.build.scalar(1.0))
    return value.moved(grower.build.op("Div", value.name, divisor), value.shape)


def _softmax(grower: Grower, value: Value) -> Value:
    op = grower.pick(("Softmax", "LogSoftmax"))
    return value.moved(grower.build.op(op, value.name, axis=grower.integer(-value.rank, -1)), value.shape)


def _reduce(grower: Grower, value: Value) -> Value:
    axes = sorted(grower.draw_axes(value.rank))
    keep = grower.flag() or len(axes) == value.rank
    op = grower.pick(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"))
    name = grower.build.op(op, value.name, axes=axes, keepdims=int(keep))
    shape = [1 if axis in axes else size for axis, size in enumerate(value.shape) if keep or axis not in axes]
    if len(shape) < 2:
        shape = [1] * (2 - len(shape)) + shape
        name = grower.build.op("Reshape", name, grower.build.ints(*shape))
    return value.moved(name, shape)


def _matmul(grower: Grower, value: Value) -> Value:
    """Multiply the last axis by a constant matrix, sometimes with a bias."""
    inner, columns = value.shape[-1], grower.integer(1, 40)
    name = grower.build.op("MatMul", value.name, grower.build.normal((inner, columns), inner**-0.5))
    if grower.flag():
        name = grower.build.op("Add", name, grower.build.normal((columns,), 0.2))
    return value.moved(name, (*value.shape[:-1], columns))


def _self_product(grower: Grower, value: Value) -> Value:
    """x @ x.T, scaled like attention scores: both operands are computed on the device."""
    perm = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    other = grower.build.op("Transpose", grower.twin(value).name, perm=perm)
    scores = grower.build.op("MatMul", value.name, other)
    scale = grower.build.scalar(1 / math.sqrt(value.shape[-1]))
    return value.moved(grower.build.op("Mul", scores, scale), (*value.shape[:-1], value.shape[-2]))


def _gemm(grower: Grower, value: Value) -> Value:
    """alpha * x @ W + beta * c for a matrix."""
    inner, columns = value.shape[-1], grower.integer(1, 40)
    transposed = grower.flag()
    weight = grower.build.normal((columns, inner) if transposed else (inner, columns), inner**-0.5)
    bias = grower.build.normal((columns,), 0.2)
    scale = grower.pick((1.0, 0.5))
    name = grower.build.op("Gemm", value.name, weight, bias, transB=int(transposed), alpha=scale, beta=2 * scale)
    return value.moved(name, (value.shape[0], columns))


def _conv(grower: Grower, value: Value) -> Value:
    plan = convolution(grower, value)
    weight = grower.build.normal(plan.weight_shape, math.prod(plan.weight_shape[1:]) ** -0.5)
    operands = [value.name, weight]
    if grower.flag():
        operands.append(grower.build.normal(plan.weight_shape[:1], 0.2))
    name = grower.build.op("Conv", *operands, **plan.attributes)
    follow = grower.pick(("", "Relu", "Sigmoid"))
    return value.moved(grower.build.op(follow, name) if follow else name, plan.out_shape)


def _conv_transpose(grower: Grower, value: Value) -> Value:
    batch, channels, *image = value.shape
    out, kernel, stride = grower.integer(1, 6), grower.integer(1, 3), grower.integer(1, 2)
    weight = grower.build.normal((channels, out, kernel, kernel), (channels * kernel) ** -0.5)
    name = grower.build.op("ConvTranspose", value.name, weight, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    return value.moved(name, (batch, out, *((size - 1) * stride + kernel for size in image)))


def _average_pool(grower: Grower, value: Value) -> Value:
    shape, attributes = pooling(grower, value)
    name = grower.build.op("AveragePool", value.name, count_include_pad=int(grower.flag()), **attributes)
    return value.moved(name, shape)


def _global_pool(grower: Grower, value: Value) -> Value:
    op = grower.pick(("GlobalAveragePool", "GlobalMaxPool"))
    return value.moved(grower.build.op(op, value.name), (*value.shape[:2], 1, 1))


def _batch_norm(grower: Grower, value: Value) -> Value:
    channels = value.shape[1]
    parts = [grower.build.normal((channels,), 0.1, mean) for mean in (1.0, 0.0, 0.0)]
    variance = grower.build.const(grower.build.rng.uniform(0.5, 1.5, channels).astype(np.float32))
    return value.moved(grower.build.op("BatchNormalization", value.name, *parts, variance), value.shape)


def _layer_norm(grower: Grower, value: Value) -> Value:
    features = value.shape[-1]
    scale, shift = grower.build.normal((features,), 0.1, 1.0), grower.build.normal((features,), 0.1)
    name = grower.build.op("LayerNormalization", value.name, scale, shift, axis=-1, epsilon=0.1)
    return value.moved(name, value.shape)


def _where(grower: Grower, value: Value) -> Value:
    chosen = grower.build.op("Greater", value.name, grower.build.scalar(0.1))
    return value.moved(grower.build.op("Where", chosen, value.name, grower.twin(value).name), value.shape)


FLOAT_STEPS = (
    Tile("unary", _unary),
    Tile("clip", _clip),
    Tile("with_constant", _with_constant),
    Tile("skip", _skip),
    Tile("divide", _divide),
    Tile("where", _where),
    Tile("softmax", _softmax),
    Tile("reduce", _reduce),
    Tile("layer_norm", _layer_norm),
    Tile("matmul", _matmul),
    Tile("self_product", _self_product),
    Tile("gemm", _gemm, lambda value: value.rank == 2),
    Tile("conv", _conv, is_image),
    Tile("conv_transpose", _conv_transpose, is_image),
    Tile("max_pool", max_pool, is_image),
    Tile("average_pool", _average_pool, is_image),
    Tile("global_pool", _global_pool, is_image),
    Tile("batch_norm", _batch_norm, is_image),
    *MOVEMENT_STEPS,
)
