"""Llama-like decoders: RMSNorm, rotary positions, SwiGLU, one decoding step with a key-value cache.

The weights are in one sparse file beside the model: holes read as zeros and take no space, while shapes, types and
times are those of a real network, even with 7 billion weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

OPSET = 17
_EXTERNAL = 1 << 10
"""Weights of at least this many bytes are stored in the file."""


@dataclass(frozen=True)
class LlamaSizes:
    """Sizes of a decoder, by default those of Llama-2-7B. ``past``: tokens in the cache."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    feed_forward: int = 11008
    vocabulary: int = 32000
    past: int = 511

    @property
    def width(self) -> int:
        """Elements per head."""
        return self.hidden // self.heads


@dataclass
class _Model:
    """Nodes, and initializers with their data in ``file``, one after the other."""

    file: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    offset: int = 0

    def add(self, kind: str, *inputs: str, name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def const(self, name: str, values: npt.NDArray[np.generic]) -> str:
        self.initializers.append(onnx.numpy_helper.from_array(values, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT16)
        size = math.prod(shape) * 2
        if size < _EXTERNAL:
            tensor.raw_data = np.ones(shape, np.float16).tobytes()
        else:
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", self.file), ("offset", self.offset), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            self.offset += (size + 4095) // 4096 * 4096
        self.initializers.append(tensor)
        return name


def _norm(m: _Model, x: str, name: str, sizes: LlamaSizes) -> str:
    square = m.add("Mul", x, x, name=f"{name}.square")
    mean = m.add("ReduceMean", square, name=f"{name}.mean", axes=[-1], keepdims=1)
    root = m.add("Sqrt", m.add("Add", mean, "epsilon", name=f"{name}.safe"), name=f"{name}.root")
    scaled = m.add("Div", x, root, name=f"{name}.scaled")
    return m.add("Mul", scaled, m.weight(f"{name}.weight", sizes.hidden), name=name)


def _rotated(m: _Model, x: str, name: str) -> str:
    low = m.add("Slice", x, "zero", "half", "last", name=f"{name}.low")
    high = m.add("Slice", x, "half", "end", "last", name=f"{name}.high")
    turned = m.add("Concat", m.add("Neg", high, name=f"{name}.minus"), low, name=f"{name}.turned", axis=-1)
    straight = m.add("Mul", x, "cos", name=f"{name}.cos")
    return m.add("Add", straight, m.add("Mul", turned, "sin", name=f"{name}.sin"), name=name)


def _heads(m: _Model, x: str, name: str, sizes: LlamaSizes) -> str:
    projected = m.add("MatMul", x, m.weight(f"{name}.weight", sizes.hidden, sizes.hidden), name=name)
    split = m.add("Reshape", projected, "split", name=f"{name}.split")
    return m.add("Transpose", split, name=f"{name}.heads", perm=[0, 2, 1, 3])


def _layer(m: _Model, x: str, number: int, sizes: LlamaSizes) -> str:
    at = f"layer{number}"
    normed = _norm(m, x, f"{at}.attention_norm", sizes)
    query = _rotated(m, _heads(m, normed, f"{at}.q", sizes), f"{at}.q.rotated")
    key = _rotated(m, _heads(m, normed, f"{at}.k", sizes), f"{at}.k.rotated")
    value = _heads(m, normed, f"{at}.v", sizes)
    keys = m.add("Concat", f"past_key_{number}", key, name=f"key_{number}", axis=2)
    values = m.add("Concat", f"past_value_{number}", value, name=f"value_{number}", axis=2)
    across = m.add("Transpose", keys, name=f"{at}.keys", perm=[0, 1, 3, 2])
    scores = m.add("MatMul", query, across, name=f"{at}.scores")
    scores = m.add("Mul", scores, "scale", name=f"{at}.scaled")
    weighted = m.add("MatMul", m.add("Softmax", scores, name=f"{at}.softmax", axis=-1), values, name=f"{at}.weighted")
    joined = m.add("Transpose", weighted, name=f"{at}.tokens", perm=[0, 2, 1, 3])
    joined = m.add("Reshape", joined, "join", name=f"{at}.joined")
    out = m.add("MatMul", joined, m.weight(f"{at}.o.weight", sizes.hidden, sizes.hidden), name=f"{at}.o")
    x = m.add("Add", x, out, name=f"{at}.attended")
    normed = _norm(m, x, f"{at}.ffn_norm", sizes)
    gate = m.add("MatMul", normed, m.weight(f"{at}.gate.weight", sizes.hidden, sizes.feed_forward), name=f"{at}.gate")
    silu = m.add("Mul", gate, m.add("Sigmoid", gate, name=f"{at}.sigmoid"), name=f"{at}.silu")
    up = m.add("MatMul", normed, m.weight(f"{at}.up.weight", sizes.hidden, sizes.feed_forward), name=f"{at}.up")
    both = m.add("Mul", silu, up, name=f"{at}.both")
    down = m.add("MatMul", both, m.weight(f"{at}.down.weight", sizes.feed_forward, sizes.hidden), name=f"{at}.down")
    return m.add("Add", x, down, name=f"{at}.out")


def llama(sizes: LlamaSizes, file: str = "weights.bin") -> tuple[onnx.ModelProto, int]:
    """Return one decoding step in float16, from the embedded token to the logits, and the size of the weight file."""
    m = _Model(file)
    m.const("epsilon", np.float16(1e-5).reshape(()))
    m.const("scale", np.float16(sizes.width**-0.5).reshape(()))
    for name, value in (("zero", 0), ("half", sizes.width // 2), ("end", sizes.width), ("last", 3)):
        m.const(name, np.array([value], np.int64))
    m.const("split", np.array([1, 1, sizes.heads, sizes.width], np.int64))
    m.const("join", np.array([1, 1, sizes.hidden], np.int64))
    x = "x"
    for number in range(sizes.layers):
        x = _layer(m, x, number, sizes)
    x = _norm(m, x, "norm", sizes)
    m.add("MatMul", x, m.weight("head.weight", sizes.hidden, sizes.vocabulary), name="logits")
    past = [f"past_{kind}_{number}" for number in range(sizes.layers) for kind in ("key", "value")]
    grown = [f"{kind}_{number}" for number in range(sizes.layers) for kind in ("key", "value")]
    half = TensorProto.FLOAT16
    inputs = [
        helper.make_tensor_value_info("x", half, [1, 1, sizes.hidden]),
        *(helper.make_tensor_value_info(name, half, [1, 1, 1, sizes.width]) for name in ("cos", "sin")),
        *(helper.make_tensor_value_info(name, half, [1, sizes.heads, sizes.past, sizes.width]) for name in past),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", half, [1, 1, sizes.vocabulary]),
        *(helper.make_tensor_value_info(name, half, [1, sizes.heads, sizes.past + 1, sizes.width]) for name in grown),
    ]
    graph = helper.make_graph(m.nodes, "llama", inputs, outputs, m.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8), m.offset


def write_llama(directory: Path, sizes: LlamaSizes, name: str = "llama") -> Path:
    """Write the model, and beside it a sparse weight file. Returns the path of the model."""
    model, size = llama(sizes, f"{name}.bin")
    path = directory / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    with (directory / f"{name}.bin").open("wb") as weights:
        weights.truncate(size)
    return path
