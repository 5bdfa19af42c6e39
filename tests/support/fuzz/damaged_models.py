"""ONNX models for fuzzing the C library: a few small valid ones, and ways to damage them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

F = TensorProto.FLOAT
Dims = Sequence[int | str]


def _model(nodes: list[object], inputs: dict[str, Dims], outputs: dict[str, Dims], weights: dict[str, object]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "fuzz",
        [helper.make_tensor_value_info(name, F, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, F, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    return bytes(made.SerializeToString())


@lru_cache(1)
def seeds() -> list[bytes]:
    """Return models from x to y. The first ones are used with SetGraphIO."""
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal((2, 1, 3, 3)).astype(np.float32)
    node = helper.make_node
    return [
        _model([node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]}, {}),
        _model([node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]}, {}),
        _model([node("Add", ["x", "w"], ["y"])], {"x": [4], "w": [4]}, {"y": [4]}, {}),
        _model([node("Conv", ["x", "k"], ["y"], pads=[1, 1, 1, 1])], {"x": [1, 1, 5, 5]}, {"y": [1, 2, 5, 5]},
               {"k": kernel}),
        _model([node("Gemm", ["x", "w", "b"], ["h"], transB=1), node("Softmax", ["h"], ["y"], axis=1)],
               {"x": [1, 4]}, {"y": [1, 3]},
               {"w": kernel.reshape(-1)[:12].reshape(3, 4), "b": np.zeros(3, np.float32)}),
        _model([node("MaxPool", ["x"], ["h"], kernel_shape=[2, 2], strides=[2, 2]), node("Reshape", ["h", "s"], ["y"])],
               {"x": [1, 1, 4, 4]}, {"y": [1, 4]}, {"s": np.array([1, 4], np.int64)}),
        _model([node("Split", ["x", "s"], ["a", "b"], axis=0), node("Concat", ["b", "a"], ["y"], axis=0)],
               {"x": [4]}, {"y": [4]}, {"s": np.array([1, 3], np.int64)}),
        _model([node("Slice", ["x", "b", "e"], ["h"]), node("Transpose", ["h"], ["y"], perm=[1, 0])],
               {"x": [3, 4]}, {"y": [4, 2]}, {"b": np.array([1], np.int64), "e": np.array([3], np.int64)}),
        _model([node("LayerNormalization", ["x", "g"], ["y"], axis=-1)], {"x": [2, 4]}, {"y": [2, 4]},
               {"g": np.ones(4, np.float32)}),
    ]  # fmt: skip


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))] or b"\0"


def flipped(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


def spliced(data: bytes, rng: random.Random) -> bytes:
    other = rng.choice(seeds())
    begin, end = sorted(rng.randrange(len(other)) for _ in range(2))
    at, gone = rng.randrange(len(data)), rng.choice((0, 0, 1, 10))
    return data[:at] + other[begin:end][:200] + data[at + gone :]


def noise(data: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 2, 10, 100, 1000)))


NUMBERS = (0, 1, -1, 2, 3, 4, 5, 8, 255, 65536, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))
NAMES = ("", "x", "y", "w", "h", "nobody", "\u00e9", "a" * 300, "x\0y")
OPERATORS = (
    "Relu", "Add", "Conv", "Gemm", "Reshape", "If", "Loop", "Cast", "Gather", "Pad", "ConvTranspose", "TopK", "Resize",
    "LSTM", "Expand", "Tile", "Slice", "Split", "Einsum", "QuantizeLinear", "ConstantOfShape", "Range", "NonZero",
    "ScatterND", "Constant", "BatchNormalization", "Identity", "Nonsense", "",
)  # fmt: skip


def _edit_node(model: ModelProto, rng: random.Random) -> None:
    node = rng.choice(model.graph.node)
    kind = rng.randrange(5)
    if kind == 0:
        node.op_type = rng.choice(OPERATORS)
    elif kind == 1:
        names = rng.choice((node.input, node.output))
        if names and rng.random() < 0.7:
            names[rng.randrange(len(names))] = rng.choice(NAMES[:7])
        else:
            names.append(rng.choice(NAMES[:7]))
    elif kind == 2:
        node.domain = rng.choice(("", "ai.onnx", "com.example"))
    elif kind == 3 and node.attribute:
        attribute = rng.choice(node.attribute)
        attribute.i = rng.choice(NUMBERS)
        attribute.ints[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(6))]
        attribute.type = rng.choice((1, 2, 3, 4, 6, 7, attribute.type, attribute.type, attribute.type))
    else:
        value = rng.choice((rng.choice(NUMBERS), [rng.choice(NUMBERS), 1], 0.5, float("nan"), "text", [1.0, 2.0]))
        name = rng.choice(("axis", "axes", "pads", "strides", "group", "perm", "to", "alpha", "mode", "value_int"))
        node.attribute.append(helper.make_attribute(name, value))


def _edit_value(model: ModelProto, rng: random.Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    kind = rng.randrange(4)
    if kind == 0:
        value.name = rng.choice(NAMES[:7])
    elif kind == 1:
        value.type.tensor_type.elem_type = rng.randrange(25)
    elif kind == 2:
        value.type.Clear()
    else:
        dims = value.type.tensor_type.shape.dim
        if dims and rng.random() < 0.7:
            dims[rng.randrange(len(dims))].dim_value = rng.choice(NUMBERS)
        else:
            dims.add().dim_param = rng.choice(("n", "", "m"))


def _edit_weight(model: ModelProto, rng: random.Random) -> None:
    weight = rng.choice(model.graph.initializer) if model.graph.initializer else model.graph.initializer.add()
    kind = rng.randrange(5)
    if kind == 0:
        weight.name = rng.choice(NAMES[:7])
    elif kind == 1:
        weight.data_type = rng.randrange(25)
    elif kind == 2:
        weight.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(5))]
    elif kind == 3:
        weight.raw_data = rng.randbytes(rng.choice((0, 1, 8, 48, 1000)))
    else:
        weight.data_location = 1


def _edit_model(model: ModelProto, rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0:
        model.ir_version = rng.choice(NUMBERS)
    elif kind == 1:
        model.opset_import[0].version = rng.choice((*NUMBERS, 7, 9, 11, 12, 14, 17, 21))
    elif kind == 2:
        model.graph.name = ""
    elif kind == 3:
        model.graph.node.extend([rng.choice(model.graph.node)])
    else:
        model.graph.ClearField(rng.choice(("node", "input", "output", "initializer")))


EDITS: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _edit_node,
    _edit_node,
    _edit_value,
    _edit_weight,
    _edit_model,
)


def edited(data: bytes, rng: random.Random) -> bytes:
    model = ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not (model.graph.node and model.graph.input and model.graph.output and model.opset_import):
            break
        rng.choice(EDITS)(model, rng)
    return bytes(model.SerializeToString())


BREAKS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    edited,
    edited,
    edited,
    flipped,
    flipped,
    truncated,
    spliced,
    noise,
)


def broken(rng: random.Random) -> bytes:
    """Return a model that is probably invalid."""
    return rng.choice(BREAKS)(rng.choice(seeds()), rng)
