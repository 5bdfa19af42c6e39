"""Writes the networks of this suite beside it. In a project of your own, your model files take their place."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parent


def pytest_configure() -> None:
    """Write each network that is missing."""
    for name, channels, size in (("keyword", 16, 32), ("denoise", 24, 48), ("vision", 48, 64)):
        path = FOLDER / f"{name}.onnx"
        if not path.exists():
            onnx.save(network(name, channels, size), path)


def network(name: str, channels: int, size: int, classes: int = 10) -> onnx.ModelProto:
    """Return a classifier of images [1, 3, size, size]: two blocks of depthwise and pointwise convolutions."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def layer(operator: str, x: str, shape: tuple[int, ...], **attributes: object) -> str:
        index = len(weights)
        deviation = np.float32(np.sqrt(2 / np.prod(shape[1:])))
        weights.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32) * deviation, f"weight{index}"))
        nodes.append(
            helper.make_node(operator, [x, f"weight{index}"], [f"layer{index}"], f"layer{index}", **attributes)
        )
        return f"layer{index}"

    def relu(x: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [f"{x}_relu"], f"{x}.relu"))
        return f"{x}_relu"

    x = relu(layer("Conv", "image", (channels, 3, 3, 3), pads=[1] * 4, strides=[2, 2]))
    for width in (channels, 2 * channels):
        x = relu(layer("Conv", x, (width, 1, 3, 3), pads=[1] * 4, group=width))
        x = relu(layer("Conv", x, (2 * width, width, 1, 1), strides=[2, 2]))
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"], "pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"))
    scores = layer("Gemm", "flat", (classes, 4 * channels), transB=1)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])
    result = helper.make_tensor_value_info(scores, TensorProto.FLOAT, [1, classes])
    graph = helper.make_graph(nodes, name, [image], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
