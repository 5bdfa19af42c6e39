"""The nine "light" models that the onnx package ships, as they are and with seeded random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
SMALLEST_FIRST = (
    "shufflenet",
    "squeezenet",
    "bvlc_alexnet",
    "inception_v1",
    "zfnet512",
    "inception_v2",
    "densenet121",
    "resnet50",
    "vgg19",
)
"""Names ordered by number of multiplications; a test that takes only a few takes the first ones."""


@dataclass(frozen=True)
class LightCase:
    """A shipped model with the inputs of onnx's own runner and the outputs expected within rtol and atol."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    expected: dict[str, Array]
    rtol: float
    atol: float = 1e-7


def directory() -> Path:
    """Return the directory of the light models in the installed onnx package."""
    package = onnx.__file__
    assert package is not None
    return Path(package).parent / "backend" / "test" / "data" / "light"


def model_path(name: str) -> Path:
    """Return the shipped file; name is one of NAMES."""
    if name not in NAMES:
        raise ValueError(f"light model: must be one of {', '.join(NAMES)}, got {name!r}")
    return directory() / f"light_{name}.onnx"


def ramp(shape: tuple[int, ...]) -> Array:
    """onnx's dummy input: arange(n) / n in float32."""
    count = math.prod(shape)
    return (np.arange(count).reshape(shape) / count).astype(np.float32)


def load(name: str) -> LightCase:
    """Return the shipped model with its expected output."""
    model = onnx.load(model_path(name))
    given = {tensor.name for tensor in model.graph.initializer}
    inputs = {
        info.name: ramp(tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim))
        for info in model.graph.input
        if info.name not in given
    }
    stored = onnx.TensorProto.FromString((directory() / f"light_{name}_output_0.pb").read_bytes())
    expected = {model.graph.output[0].name: numpy_helper.to_array(stored)}
    return LightCase(name, model, inputs, expected, rtol=2e-3 if name == "densenet121" else 1e-3)


def randomised(name: str, seed: int) -> onnx.ModelProto:
    """Return the model with seeded random weights instead of its constants, scaled so that activations stay of order 1.

    Weights become initializers, which are also listed as graph inputs because IR version 3 requires it.
    """
    model = onnx.load(model_path(name))
    graph = model.graph
    shapes = _weight_shapes(graph)
    roles = _roles(graph)
    rng = np.random.default_rng([seed, NAMES.index(name)])
    weights = {weight: _draw(rng, roles[weight], shape) for weight, shape in shapes.items()}
    classifier = [node for node in graph.node if node.op_type in ("Conv", "Gemm")][-1]
    weights[_origin(classifier.input[1], graph)] *= np.float32(_LOGIT_SCALE.get(name, 1.0))
    _replace_weights(graph, weights)
    onnx.checker.check_model(model)
    return model


def _weight_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Return every float weight that is read, in file order: made by ConstantOfShape or stored as an initializer."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    read = {operand for node in graph.node for operand in node.input}
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name in read
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(int(dim) for dim in numpy_helper.to_array(stored[node.input[0]]))
    return shapes


@dataclass(frozen=True)
class _Role:
    """How to draw a weight: uniform(low, high); normal with the deviation; or normal with variance gain / fan-in."""

    deviation: float = 0.0
    gain: float = 0.0
    uniform: tuple[float, float] | None = None


_OPERAND_ROLES = {
    ("Conv", 2): _Role(deviation=0.05),
    ("Gemm", 2): _Role(deviation=0.05),
    ("BatchNormalization", 1): _Role(uniform=(0.8, 1.2)),
    ("BatchNormalization", 2): _Role(deviation=0.05),
    ("BatchNormalization", 3): _Role(deviation=0.05),
    ("BatchNormalization", 4): _Role(uniform=(0.5, 1.5)),
    ("Mul", 1): _Role(uniform=(0.8, 1.2)),
    ("Add", 1): _Role(deviation=0.05),
}
_BRANCH_SCALE = _Role(uniform=(0.25, 0.4))
"""Last scale of a residual branch: small, because each sum would otherwise double the power."""
_GAINS = {"Relu": 2.0, "MaxPool": 1.0, "AveragePool": 2.0, "GlobalAveragePool": 2.0}
"""Output variance per input power that keeps variance near one after each source; one after any other source."""
_LOGIT_SCALE = {
    "bvlc_alexnet": 0.7,
    "inception_v1": 25.0,
    "inception_v2": 0.3,
    "resnet50": 2.0,
    "shufflenet": 0.12,
    "squeezenet": 3.0,
    "vgg19": 1.5,
    "zfnet512": 1.5,
}
"""Factor on the last layer's weights that spreads the softmax over about two decades (found by experiment)."""
_TRANSPARENT = ("Reshape", "Unsqueeze", "Transpose", "Dropout", "LRN", "Concat")


def _roles(graph: onnx.GraphProto) -> dict[str, _Role]:
    """Return the role of each operand that is read as a weight, also through a Reshape or Unsqueeze."""
    makers = {result: node for node in graph.node for result in node.output}
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for index, operand in enumerate(node.input):
            readers.setdefault(operand, []).append((node, index))
    roles = {}
    for weight, uses in readers.items():
        node, index = uses[0]
        while node.op_type in ("Reshape", "Unsqueeze") and node.output[0] in readers:
            node, index = readers[node.output[0]][0]
        if node.op_type in ("Conv", "Gemm") and index == 1:
            roles[weight] = _Role(gain=_gain(node.input[0], makers))
        elif (node.op_type, index) in _OPERAND_ROLES:
            roles[weight] = _OPERAND_ROLES[node.op_type, index]
        if (node.op_type, index) == ("BatchNormalization", 1):
            follower = readers[node.output[0]][0][0]
            roles[weight] = _BRANCH_SCALE if follower.op_type == "Sum" else roles[weight]
    return roles


def _origin(operand: str, graph: onnx.GraphProto) -> str:
    """Return the weight behind an operand, through Reshape."""
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Reshape"}
    while operand in makers:
        operand = makers[operand].input[0]
    return operand


def _gain(source: str, makers: dict[str, onnx.NodeProto]) -> float:
    """Return the gain of a convolution or matrix product that reads the source."""
    while source in makers and makers[source].op_type in _TRANSPARENT:
        source = makers[source].input[0]
    return _GAINS.get(makers[source].op_type, 1.0) if source in makers else 1.0


def _draw(rng: np.random.Generator, role: _Role, shape: tuple[int, ...]) -> Array:
    if role.uniform is not None:
        return rng.uniform(*role.uniform, shape).astype(np.float32)
    deviation = math.sqrt(role.gain / math.prod(shape[1:])) if role.gain else role.deviation
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(deviation)
    return values


def _replace_weights(graph: onnx.GraphProto, weights: dict[str, Array]) -> None:
    makers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    gone = {node.input[0] for node in makers} | set(weights)
    kept_nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    kept_initializers = [tensor for tensor in graph.initializer if tensor.name not in gone]
    kept_inputs = [info for info in graph.input if info.name not in gone]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(kept_nodes)
    graph.initializer.extend(kept_initializers)
    graph.input.extend(kept_inputs)
    for name, values in weights.items():
        graph.initializer.append(numpy_helper.from_array(values, name))
        graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, values.shape))
