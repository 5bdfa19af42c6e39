"""Operators in the forms that exporters write: a model with one operator, and equivalent graphs of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 24


@dataclass
class Build:
    """Collects the nodes of a model. Values are names; ``const`` and ``node`` make new ones."""

    inputs: dict[str, tuple[int, ...]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def const(self, value: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, *shape: int, seed: int = 0) -> str:
        """Add a float32 constant of the shape."""
        return self.const((np.random.default_rng(seed).standard_normal(shape) / 8).astype(np.float32))

    def node(self, kind: str, *inputs: str | float, **attributes: Any) -> str:
        """Add an operator and return its result; numbers become float32 constants."""
        names = [each if isinstance(each, str) else self.const(np.float32(each)) for each in inputs]
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def model(self, output: str, shape: Sequence[int | None]) -> onnx.ModelProto:
        """Return the model with a value as output ``y``."""
        nodes = [*self.nodes, helper.make_node("Identity", [output], ["y"], name="y")]
        inputs = dict(self.inputs)
        if any("x" in node.output for node in nodes):
            inputs["x0"] = inputs["x1"] = inputs.pop("x")
        graph = helper.make_graph(
            nodes,
            "form",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)


Form = Callable[[Build], str]


@dataclass(frozen=True)
class Forms:
    """``single``: the operator; ``written``: equivalent graphs by name. ``shapes``: shapes of inputs and result for a
    random size."""

    single: Form
    written: dict[str, Form]
    shapes: Callable[[Random], tuple[dict[str, tuple[int, ...]], tuple[int, ...]]]


def _rows(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    shape = (1, rng.choice((49, 128, 197, 256)), rng.choice((96, 192, 256, 768)))
    return {"x": shape}, shape


def _width(build: Build) -> int:
    return build.inputs["x"][-1]


def _axes(build: Build) -> str:
    return build.const(np.array([-1], np.int64))


def _mean(build: Build, x: str) -> str:
    return build.node("ReduceMean", x, _axes(build), keepdims=1)


def _scaled(build: Build, x: str) -> str:
    return build.node("Add", build.node("Mul", x, build.weights(_width(build))), build.weights(_width(build), seed=1))


def _layer_norm(build: Build) -> str:
    return build.node(
        "LayerNormalization", "x", build.weights(_width(build)), build.weights(_width(build), seed=1), axis=-1,
        epsilon=1e-5,
    )  # fmt: skip


def _norm_by_pow(build: Build) -> str:
    centred = build.node("Sub", "x", _mean(build, "x"))
    variance = _mean(build, build.node("Pow", centred, 2.0))
    return _scaled(build, build.node("Div", centred, build.node("Sqrt", build.node("Add", variance, 1e-5))))


def _norm_by_mul(build: Build) -> str:
    centred = build.node("Sub", "x", _mean(build, "x"))
    variance = _mean(build, build.node("Mul", centred, centred))
    root = build.node("Sqrt", build.node("Add", variance, 1e-5))
    return _scaled(build, build.node("Mul", centred, build.node("Reciprocal", root)))


def _norm_twice_centred(build: Build) -> str:
    """As written by TensorFlow's exporter: the variance subtracts the mean in separate nodes."""
    mean = _mean(build, "x")
    squares = build.node("Mul", build.node("Sub", "x", mean), build.node("Sub", "x", mean))
    root = build.node("Sqrt", build.node("Add", _mean(build, squares), 1e-5))
    factor = build.node("Mul", build.node("Reciprocal", root), build.weights(_width(build)))
    shift = build.node("Sub", build.weights(_width(build), seed=1), build.node("Mul", mean, factor))
    return build.node("Add", build.node("Mul", "x", factor), shift)


def _softmax(build: Build) -> str:
    return build.node("Softmax", "x", axis=-1)


def _softmax_by_exp(build: Build) -> str:
    powers = build.node("Exp", build.node("Sub", "x", build.node("ReduceMax", "x", _axes(build), keepdims=1)))
    return build.node("Div", powers, build.node("ReduceSum", powers, _axes(build), keepdims=1))


def _gelu(build: Build) -> str:
    return build.node("Gelu", "x")


def _gelu_by_erf(build: Build) -> str:
    erf = build.node("Erf", build.node("Div", "x", 2**0.5))
    return build.node("Mul", build.node("Mul", "x", build.node("Add", erf, 1.0)), 0.5)


def _gelu_half_first(build: Build) -> str:
    erf = build.node("Erf", build.node("Mul", "x", 0.5**0.5))
    return build.node("Mul", build.node("Mul", "x", 0.5), build.node("Add", 1.0, erf))


def _gelu_tanh(build: Build) -> str:
    return build.node("Gelu", "x", approximate="tanh")


def _gelu_by_tanh(build: Build) -> str:
    cube = build.node("Mul", build.node("Pow", "x", 3.0), 0.044715)
    tanh = build.node("Tanh", build.node("Mul", build.node("Add", "x", cube), (2 / np.pi) ** 0.5))
    return build.node("Mul", build.node("Mul", "x", 0.5), build.node("Add", tanh, 1.0))


def _silu(build: Build) -> str:
    return build.node("Mul", "x", build.node("Sigmoid", "x"))


def _silu_turned(build: Build) -> str:
    return build.node("Mul", build.node("Sigmoid", "x"), "x")


def _silu_by_exp(build: Build) -> str:
    return build.node("Div", "x", build.node("Add", build.node("Exp", build.node("Neg", "x")), 1.0))


def _image(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    side, channels = rng.choice((14, 28, 56)), rng.choice((32, 64, 128))
    return {"x": (1, channels, side, side)}, (1, channels, side, side)


def _conv(build: Build, x: str = "x", **attributes: Any) -> str:
    channels = build.inputs["x"][1]
    weights, bias = build.weights(channels, channels, 3, 3), build.weights(channels, seed=1)
    return build.node("Conv", x, weights, bias, **{"pads": [1, 1, 1, 1], **attributes})


def _pad_and_conv(build: Build) -> str:
    padded = build.node("Pad", "x", build.const(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64)))
    return _conv(build, padded, pads=[0, 0, 0, 0])


def _conv_and_bias(build: Build) -> str:
    channels = build.inputs["x"][1]
    sums = build.node("Conv", "x", build.weights(channels, channels, 3, 3), pads=[1, 1, 1, 1])
    return build.node("Add", sums, build.weights(1, channels, 1, 1, seed=1))


def _conv_and_norm(build: Build) -> str:
    channels = build.inputs["x"][1]
    sums = build.node("Conv", "x", build.weights(channels, channels, 3, 3), pads=[1, 1, 1, 1])
    parameters = [build.const(np.full(channels, value, np.float32)) for value in (1.0, 0.5, 0.25, 2.0)]
    return build.node("BatchNormalization", sums, *parameters)


def _product(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    rows, depth = rng.choice((64, 128, 197)), rng.choice((128, 256, 512))
    return {"x": (rows, depth)}, (rows, 256)


def _gemm(build: Build) -> str:
    return build.node("Gemm", "x", build.weights(_width(build), 256), build.weights(256, seed=1))


def _gemm_turned(build: Build) -> str:
    return build.node("Gemm", "x", build.weights(256, _width(build)), build.weights(256, seed=1), transB=1)


def _matmul_and_add(build: Build) -> str:
    return build.node("Add", build.node("MatMul", "x", build.weights(_width(build), 256)), build.weights(256, seed=1))


def _matmul_of_turned(build: Build) -> str:
    turned = build.node("Transpose", build.weights(256, _width(build)), perm=[1, 0])
    return build.node("Add", build.node("MatMul", "x", turned), build.weights(256, seed=1))


def _heads(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    shape = (1, rng.choice((2, 4, 8)), rng.choice((64, 128, 197)), rng.choice((32, 64)))
    return {"x": shape, "k": shape, "v": shape}, shape


def _attention(build: Build) -> str:
    """The pattern of the compiler's own tests: scores are scaled after the product."""
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    shares = build.node("Softmax", build.node("Mul", scores, _width(build) ** -0.5), axis=-1)
    return build.node("MatMul", shares, "v")


def _attention_divided(build: Build) -> str:
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    shares = build.node("Softmax", build.node("Div", scores, _width(build) ** 0.5), axis=-1)
    return build.node("MatMul", shares, "v")


def _attention_of_scaled(build: Build) -> str:
    """As PyTorch exports it: both operands are scaled by the root of the factor."""
    root = _width(build) ** -0.25
    keys = build.node("Transpose", "k", perm=[0, 1, 3, 2])
    scores = build.node("MatMul", build.node("Mul", "x", root), build.node("Mul", keys, root))
    return build.node("MatMul", build.node("Softmax", scores, axis=-1), "v")


def _rms_norm(build: Build) -> str:
    return build.node("RMSNormalization", "x", build.weights(_width(build)), axis=-1, epsilon=1e-6)


def _root_of_mean_square(build: Build, x: str) -> str:
    return build.node("Sqrt", build.node("Add", _mean(build, build.node("Pow", x, 2.0)), 1e-6))


def _rms_by_pow(build: Build) -> str:
    """As PyTorch exports the Llama module."""
    factor = build.node("Div", 1.0, _root_of_mean_square(build, "x"))
    return build.node("Mul", build.weights(_width(build)), build.node("Mul", "x", factor))


def _rms_by_div(build: Build) -> str:
    scaled = build.node("Mul", "x", build.weights(_width(build)))
    return build.node("Div", scaled, _root_of_mean_square(build, "x"))


def _rms_with_casts(build: Build) -> str:
    """Computed in float32 for any model type; here both casts have no effect."""
    x = build.node("Cast", "x", to=TensorProto.FLOAT)
    normal = build.node("Mul", x, build.node("Reciprocal", _root_of_mean_square(build, x)))
    return build.node("Mul", build.node("Cast", normal, to=TensorProto.FLOAT), build.weights(_width(build)))


def _norm_by_sums(build: Build) -> str:
    """Means as a sum and a division."""
    width = float(_width(build))
    mean = build.node("Div", build.node("ReduceSum", "x", _axes(build), keepdims=1), width)
    centred = build.node("Sub", "x", mean)
    squares = build.node("ReduceSum", build.node("Mul", centred, centred), _axes(build), keepdims=1)
    root = build.node("Sqrt", build.node("Add", build.node("Mul", squares, 1 / width), 1e-5))
    return _scaled(build, build.node("Div", centred, root))


def _norm_of_square_mean(build: Build) -> str:
    """The variance as the mean of squares minus the square of the mean."""
    mean, square = _mean(build, "x"), _mean(build, build.node("Mul", "x", "x"))
    variance = build.node("Sub", square, build.node("Mul", mean, mean))
    root = build.node("Sqrt", build.node("Add", variance, 1e-5))
    return _scaled(build, build.node("Div", build.node("Sub", "x", mean), root))


def _half(build: Build, x: str = "x") -> str:
    return build.node("Cast", x, to=TensorProto.FLOAT16)


def _single(build: Build, x: str) -> str:
    return build.node("Cast", x, to=TensorProto.FLOAT)


def _half_weights(build: Build) -> str:
    return build.const((np.random.default_rng(0).standard_normal(_width(build)) / 8).astype(np.float16))


def _half_rms_norm(build: Build) -> str:
    normal = build.node("RMSNormalization", _half(build), _half_weights(build), axis=-1, epsilon=1e-6)
    return _single(build, normal)


def _half_rms_in_float32(build: Build) -> str:
    """As PyTorch exports Llama in float16: the mean is computed in float32."""
    x = _single(build, _half(build))
    normal = build.node("Mul", x, build.node("Reciprocal", _root_of_mean_square(build, x)))
    return _single(build, build.node("Mul", _half_weights(build), _half(build, normal)))


def _half_layer_norm(build: Build) -> str:
    scale = _half_weights(build)
    return _single(build, build.node("LayerNormalization", _half(build), scale, scale, axis=-1, epsilon=1e-5))


def _half_norm_in_float32(build: Build) -> str:
    """Only the variance is computed in float32."""
    x, scale = _half(build), _half_weights(build)
    centred = build.node("Sub", x, _mean(build, x))
    variance = _mean(build, build.node("Pow", _single(build, centred), 2.0))
    root = _half(build, build.node("Sqrt", build.node("Add", variance, 1e-5)))
    normal = build.node("Mul", build.node("Div", centred, root), scale)
    return _single(build, build.node("Add", normal, scale))


def _half_softmax(build: Build) -> str:
    return _single(build, build.node("Softmax", _half(build), axis=-1))


def _half_softmax_in_float32(build: Build) -> str:
    shares = build.node("Softmax", _single(build, _half(build)), axis=-1)
    return _single(build, _half(build, shares))


def _log_softmax(build: Build) -> str:
    return build.node("LogSoftmax", "x", axis=-1)


def _log_softmax_by_sum(build: Build) -> str:
    centred = build.node("Sub", "x", build.node("ReduceMax", "x", _axes(build), keepdims=1))
    total = build.node("ReduceSum", build.node("Exp", centred), _axes(build), keepdims=1)
    return build.node("Sub", centred, build.node("Log", total))


def _softmax_turned(build: Build) -> str:
    """Over another axis, with transposes around it."""
    turned = build.node("Softmax", build.node("Transpose", "x", perm=[0, 2, 1]), axis=1)
    return build.node("Transpose", turned, perm=[0, 2, 1])


def _softmax_flat(build: Build) -> str:
    """As defined by opset 12: all dimensions from the axis on count as one."""
    rows = build.node("Reshape", "x", build.const(np.array([-1, _width(build)], np.int64)))
    shape = build.const(np.array(build.inputs["x"], np.int64))
    return build.node("Reshape", build.node("Softmax", rows, axis=1), shape)


def _gelu_by_division_twice(build: Build) -> str:
    erf = build.node("Erf", build.node("Div", "x", 2**0.5))
    return build.node("Div", build.node("Mul", "x", build.node("Add", erf, 1.0)), 2.0)


def _gelu_tanh_by_products(build: Build) -> str:
    """x * x * x instead of a power."""
    cube = build.node("Mul", build.node("Mul", build.node("Mul", "x", "x"), "x"), 0.044715)
    tanh = build.node("Tanh", build.node("Mul", (2 / np.pi) ** 0.5, build.node("Add", "x", cube)))
    return build.node("Mul", 0.5, build.node("Mul", "x", build.node("Add", 1.0, tanh)))


def _gelu_tanh_factored(build: Build) -> str:
    """x * (1 + 0.044715 * x * x) instead of the sum."""
    square = build.node("Mul", build.node("Mul", "x", 0.044715), "x")
    inner = build.node("Mul", build.node("Mul", "x", 0.7978845608), build.node("Add", square, 1.0))
    return build.node("Mul", build.node("Mul", "x", build.node("Add", build.node("Tanh", inner), 1.0)), 0.5)


def _quick_gelu(build: Build) -> str:
    return build.node("Swish", "x", alpha=1.702)


def _quick_gelu_by_sigmoid(build: Build) -> str:
    return build.node("Mul", "x", build.node("Sigmoid", build.node("Mul", "x", 1.702)))


def _hard_swish(build: Build) -> str:
    return build.node("HardSwish", "x")


def _hard_swish_by_clip(build: Build) -> str:
    """As in MobileNetV3."""
    clipped = build.node("Clip", build.node("Add", "x", 3.0), 0.0, 6.0)
    return build.node("Div", build.node("Mul", "x", clipped), 6.0)


def _hard_swish_by_hard_sigmoid(build: Build) -> str:
    return build.node("Mul", "x", build.node("HardSigmoid", "x", alpha=1 / 6, beta=0.5))


def _mish(build: Build) -> str:
    return build.node("Mish", "x")


def _mish_by_softplus(build: Build) -> str:
    return build.node("Mul", "x", build.node("Tanh", build.node("Softplus", "x")))


def _mish_by_log(build: Build) -> str:
    softplus = build.node("Log", build.node("Add", build.node("Exp", "x"), 1.0))
    return build.node("Mul", "x", build.node("Tanh", softplus))


def _leaky(build: Build) -> str:
    return build.node("LeakyRelu", "x", alpha=0.1)


def _leaky_by_max(build: Build) -> str:
    return build.node("Max", "x", build.node("Mul", "x", 0.1))


def _leaky_by_prelu(build: Build) -> str:
    return build.node("PRelu", "x", build.const(np.full(1, 0.1, np.float32)))


def _clip(build: Build) -> str:
    return build.node("Clip", "x", 0.0, 6.0)


def _clip_by_min(build: Build) -> str:
    return build.node("Min", build.node("Relu", "x"), 6.0)


def _clip_by_max(build: Build) -> str:
    return build.node("Max", build.node("Min", "x", 6.0), 0.0)


def _pooled(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    inputs, shape = _image(rng)
    return inputs, (*shape[:2], 1, 1)


def _global_pool(build: Build) -> str:
    return build.node("GlobalAveragePool", "x")


def _mean_of_pixels(build: Build) -> str:
    return build.node("ReduceMean", "x", build.const(np.array([2, 3], np.int64)), keepdims=1)


def _pool_of_all(build: Build) -> str:
    side = build.inputs["x"][2]
    return build.node("AveragePool", "x", kernel_shape=[side, side])


def _mean_of_row(build: Build) -> str:
    """Flatten the pixels to one dimension, take their mean, and restore the dimension."""
    n, channels, *_ = build.inputs["x"]
    flat = build.node("Reshape", "x", build.const(np.array([n, channels, -1], np.int64)))
    return build.node("Unsqueeze", _mean(build, flat), build.const(np.array([3], np.int64)))


def _conv_and_scale(build: Build) -> str:
    """A normalisation as a product and a sum."""
    channels = build.inputs["x"][1]
    sums = build.node("Conv", "x", build.weights(channels, channels, 3, 3), pads=[1, 1, 1, 1])
    scaled = build.node("Mul", sums, build.weights(1, channels, 1, 1, seed=2))
    return build.node("Add", scaled, build.weights(1, channels, 1, 1, seed=1))


def _conv_of_rows(build: Build) -> str:
    """Padding in two steps, one per dimension."""
    rows = build.node("Pad", "x", build.const(np.array([0, 0, 1, 0, 0, 0, 1, 0], np.int64)))
    cols = build.node("Pad", rows, build.const(np.array([0, 0, 0, 1, 0, 0, 0, 1], np.int64)))
    return _conv(build, cols, pads=[0, 0, 0, 0])


def _gemm_of_flat(build: Build) -> str:
    rows, depth = build.inputs["x"]
    cube = build.node("Reshape", "x", build.const(np.array([1, rows, 1, depth], np.int64)))
    product = build.node("MatMul", cube, build.weights(depth, 256))
    flat = build.node("Reshape", product, build.const(np.array([rows, 256], np.int64)))
    return build.node("Add", flat, build.weights(256, seed=1))


def _product_as_conv(build: Build) -> str:
    """A linear layer as a 1x1 convolution of one row of pixels."""
    rows, depth = build.inputs["x"]
    turned = build.node("Transpose", "x", perm=[1, 0])
    image = build.node("Reshape", turned, build.const(np.array([1, depth, 1, rows], np.int64)))
    sums = build.node("Conv", image, build.weights(256, depth, 1, 1), build.weights(256, seed=1))
    flat = build.node("Reshape", sums, build.const(np.array([256, rows], np.int64)))
    return build.node("Transpose", flat, perm=[1, 0])


def _product_as_einsum(build: Build) -> str:
    product = build.node("Einsum", "x", build.weights(_width(build), 256), equation="ij,jk->ik")
    return build.node("Add", product, build.weights(256, seed=1))


def _gemm_scaled(build: Build) -> str:
    return build.node("Gemm", "x", build.weights(_width(build), 256), build.weights(256, seed=1), alpha=0.5, beta=2.0)


def _masked(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    inputs, shape = _heads(rng)
    return {**inputs, "mask": (1, 1, shape[2], shape[2])}, shape


def _attention_op(build: Build) -> str:
    return build.node("Attention", "x", "k", "v")


def _attention_op_masked(build: Build) -> str:
    return build.node("Attention", "x", "k", "v", "mask")


def _attention_masked(build: Build) -> str:
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    scaled = build.node("Div", scores, _width(build) ** 0.5)
    shares = build.node("Softmax", build.node("Add", scaled, "mask"), axis=-1)
    return build.node("MatMul", shares, "v")


def _attention_of_scaled_query(build: Build) -> str:
    query = build.node("Mul", "x", _width(build) ** -0.5)
    scores = build.node("MatMul", query, build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    return build.node("MatMul", build.node("Softmax", scores, axis=-1), "v")


def _attention_by_exp(build: Build) -> str:
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    scores = build.node("Mul", scores, _width(build) ** -0.5)
    centred = build.node("Sub", scores, build.node("ReduceMax", scores, _axes(build), keepdims=1))
    powers = build.node("Exp", centred)
    shares = build.node("Div", powers, build.node("ReduceSum", powers, _axes(build), keepdims=1))
    return build.node("MatMul", shares, "v")


def _attention_divided_late(build: Build) -> str:
    """The result is divided by the sum of the exponentials."""
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    scores = build.node("Mul", scores, _width(build) ** -0.5)
    shares = build.node("Softmax", scores, axis=3)
    return build.node("MatMul", build.node("Identity", shares), "v")


def _group_norm(build: Build) -> str:
    channels = build.inputs["x"][1]
    return build.node(
        "GroupNormalization", "x", build.weights(channels), build.weights(channels, seed=1), num_groups=8, epsilon=1e-5
    )


def _group_norm_by_instance(build: Build) -> str:
    """As PyTorch exports it: an instance normalisation of the groups, then a scale per channel."""
    n, channels, *sides = build.inputs["x"]
    groups = build.node("Reshape", "x", build.const(np.array([n, 8, -1], np.int64)))
    ones, zeros = build.const(np.ones(8, np.float32)), build.const(np.zeros(8, np.float32))
    normal = build.node("InstanceNormalization", groups, ones, zeros, epsilon=1e-5)
    whole = build.node("Reshape", normal, build.const(np.array([n, channels, *sides], np.int64)))
    scaled = build.node("Mul", whole, build.weights(channels, 1, 1))
    return build.node("Add", scaled, build.weights(channels, 1, 1, seed=1))


def _blocks(rng: Random) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    inputs, (n, channels, height, width) = _image(rng)
    return inputs, (n, channels // 4, height * 2, width * 2)


def _depth_to_space(build: Build) -> str:
    return build.node("DepthToSpace", "x", blocksize=2, mode="CRD")


def _pixel_shuffle(build: Build) -> str:
    n, channels, height, width = build.inputs["x"]
    parts = build.const(np.array([n, channels // 4, 2, 2, height, width], np.int64))
    turned = build.node("Transpose", build.node("Reshape", "x", parts), perm=[0, 1, 4, 2, 5, 3])
    shape = build.const(np.array([n, channels // 4, height * 2, width * 2], np.int64))
    return build.node("Reshape", turned, shape)


FORMS = {
    "layer norm": Forms(
        _layer_norm,
        {
            "by Pow": _norm_by_pow,
            "by Mul": _norm_by_mul,
            "twice centred": _norm_twice_centred,
            "by sums": _norm_by_sums,
            "mean of squares": _norm_of_square_mean,
        },
        _rows,
    ),
    "RMS norm": Forms(_rms_norm, {"by Pow": _rms_by_pow, "by Div": _rms_by_div, "casts": _rms_with_casts}, _rows),
    "half RMS norm": Forms(_half_rms_norm, {"float32": _half_rms_in_float32}, _rows),
    "half layer norm": Forms(_half_layer_norm, {"float32": _half_norm_in_float32}, _rows),
    "half softmax": Forms(_half_softmax, {"float32": _half_softmax_in_float32}, _rows),
    "group norm": Forms(_group_norm, {"InstanceNormalization": _group_norm_by_instance}, _image),
    "softmax": Forms(
        _softmax, {"by Exp": _softmax_by_exp, "transposes": _softmax_turned, "two dimensions": _softmax_flat}, _rows
    ),
    "log softmax": Forms(_log_softmax, {"by sum": _log_softmax_by_sum}, _rows),
    "GELU": Forms(
        _gelu,
        {"by Erf": _gelu_by_erf, "half first": _gelu_half_first, "divided": _gelu_by_division_twice},
        _rows,
    ),
    "GELU by tanh": Forms(
        _gelu_tanh,
        {"by Tanh": _gelu_by_tanh, "products": _gelu_tanh_by_products, "factored": _gelu_tanh_factored},
        _rows,
    ),
    "quick GELU": Forms(_quick_gelu, {"Sigmoid": _quick_gelu_by_sigmoid}, _rows),
    "hard swish": Forms(
        _hard_swish, {"Clip": _hard_swish_by_clip, "HardSigmoid": _hard_swish_by_hard_sigmoid}, _image
    ),
    "Mish": Forms(_mish, {"Softplus": _mish_by_softplus, "Log": _mish_by_log}, _image),
    "leaky ReLU": Forms(_leaky, {"Max": _leaky_by_max, "PRelu": _leaky_by_prelu}, _image),
    "ReLU6": Forms(_clip, {"Min": _clip_by_min, "Max": _clip_by_max}, _image),
    "global pool": Forms(
        _global_pool, {"ReduceMean": _mean_of_pixels, "AveragePool": _pool_of_all, "one row": _mean_of_row}, _pooled
    ),
    "depth to space": Forms(_depth_to_space, {"Transpose": _pixel_shuffle}, _blocks),
    "SiLU": Forms(_silu, {"operands turned": _silu_turned, "by Exp": _silu_by_exp}, _rows),
    "convolution": Forms(
        _conv,
        {
            "Pad": _pad_and_conv,
            "Add": _conv_and_bias,
            "BatchNormalization": _conv_and_norm,
            "Mul": _conv_and_scale,
            "two pads": _conv_of_rows,
        },
        _image,
    ),
    "product": Forms(
        _gemm,
        {
            "transB": _gemm_turned,
            "Add": _matmul_and_add,
            "Transpose": _matmul_of_turned,
            "dimensions": _gemm_of_flat,
            "Conv": _product_as_conv,
            "Einsum": _product_as_einsum,
            "alpha": _gemm_scaled,
        },
        _product,
    ),
    "attention": Forms(
        _attention_op,
        {
            "Mul": _attention,
            "Div": _attention_divided,
            "operands scaled": _attention_of_scaled,
            "query scaled": _attention_of_scaled_query,
            "by Exp": _attention_by_exp,
            "positive axis": _attention_divided_late,
        },
        _heads,
    ),
    "masked attention": Forms(_attention_op_masked, {"Add": _attention_masked}, _masked),
}  # fmt: skip


def models(name: str, form: str, rng: Random, *, small: bool = False) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the model with one operator and the model in a given form.

    Both have the same random size and follow the same operators. ``small``: sizes for comparing values.
    """
    forms = FORMS[name]
    inputs, shape = forms.shapes(_Small(rng.random()) if small else rng)
    before = rng.choice(tuple(_BEFORE))
    made = []
    for write in (forms.single, forms.written[form]):
        build = Build(dict(inputs))
        if before != "nothing" and "k" not in inputs:
            build.nodes.append(helper.make_node(*_BEFORE[before], ["x0", "x1"], ["x"], name="before"))
        made.append(build.model(write(build), shape))
    return made[0], made[1]


_BEFORE: dict[str, tuple[str, ...]] = {"nothing": (), "Add": ("Add",), "Mul": ("Mul",)}
"""Operators that produce the input, because patterns must also be found after other elementwise operators."""


class _Small(Random):
    """Chooses the smallest of several sizes."""

    def choice(self, seq: Any) -> Any:
        return min(seq)
