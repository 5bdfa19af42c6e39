"""Operators as exporters write them: a model with one operator, and the graphs that say the same in several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20


@dataclass
class Build:
    """Collects the nodes of a model. Values are names; ``const`` and ``node`` make new ones."""

    inputs: dict[str, tuple[int, ...]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def const(self, value: Any) -> str:
        """A constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, *shape: int, seed: int = 0) -> str:
        """A float32 constant of the shape."""
        return self.const((np.random.default_rng(seed).standard_normal(shape) / 8).astype(np.float32))

    def node(self, kind: str, *inputs: str | float, **attributes: Any) -> str:
        """The result of an operator; numbers become float32 constants."""
        names = [each if isinstance(each, str) else self.const(np.float32(each)) for each in inputs]
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [output], name=f"n{len(self.nodes)}", **attributes))
        return output

    def model(self, output: str, shape: Sequence[int | None]) -> onnx.ModelProto:
        """The model that gives a value as ``y``."""
        nodes = [*self.nodes, helper.make_node("Identity", [output], ["y"], name="y")]
        graph = helper.make_graph(
            nodes,
            "form",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in self.inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


Form = Callable[[Build], str]


@dataclass(frozen=True)
class Forms:
    """``single``: the operator; ``written``: by name, what exporters write for it. ``shapes``: those of inputs and the
    result for a random size."""

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
    """As TensorFlow's exporter: the mean of squared differences from a mean of its own."""
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
    """The pattern that the compiler's own tests use: scores scaled behind the product."""
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    shares = build.node("Softmax", build.node("Mul", scores, _width(build) ** -0.5), axis=-1)
    return build.node("MatMul", shares, "v")


def _attention_divided(build: Build) -> str:
    scores = build.node("MatMul", "x", build.node("Transpose", "k", perm=[0, 1, 3, 2]))
    shares = build.node("Softmax", build.node("Div", scores, _width(build) ** 0.5), axis=-1)
    return build.node("MatMul", shares, "v")


def _attention_of_scaled(build: Build) -> str:
    """As PyTorch exports it: the root of the factor on both operands."""
    root = _width(build) ** -0.25
    keys = build.node("Transpose", "k", perm=[0, 1, 3, 2])
    scores = build.node("MatMul", build.node("Mul", "x", root), build.node("Mul", keys, root))
    return build.node("MatMul", build.node("Softmax", scores, axis=-1), "v")


FORMS = {
    "layer norm": Forms(
        _layer_norm, {"by Pow": _norm_by_pow, "by Mul": _norm_by_mul, "twice centred": _norm_twice_centred}, _rows
    ),
    "softmax": Forms(_softmax, {"by Exp": _softmax_by_exp}, _rows),
    "GELU": Forms(_gelu, {"by Erf": _gelu_by_erf, "half first": _gelu_half_first}, _rows),
    "GELU by tanh": Forms(_gelu_tanh, {"by Tanh": _gelu_by_tanh}, _rows),
    "SiLU": Forms(_silu, {"operands turned": _silu_turned, "by Exp": _silu_by_exp}, _rows),
    "convolution": Forms(
        _conv, {"Pad": _pad_and_conv, "Add": _conv_and_bias, "BatchNormalization": _conv_and_norm}, _image
    ),
    "product": Forms(
        _gemm, {"transB": _gemm_turned, "Add": _matmul_and_add, "Transpose": _matmul_of_turned}, _product
    ),
    "attention": Forms(_attention, {"Div": _attention_divided, "operands scaled": _attention_of_scaled}, _heads),
}  # fmt: skip


def models(name: str, form: str, rng: Random) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model with one operator and the one of a form, of the same random size."""
    forms = FORMS[name]
    inputs, shape = forms.shapes(rng)
    made = []
    for write in (forms.single, forms.written[form]):
        build = Build(inputs)
        made.append(build.model(write(build), shape))
    return made[0], made[1]
