"""The blocks of a page of the documentation, and what they find when they are run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
RUN = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [Block(m["language"], m["code"], m["reason"]) for m in BLOCK.finditer(page.read_text("utf-8"))]


def model() -> onnx.ModelProto:
    """A small network: a convolution, an activation, a pool, a classifier."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3), np.float32) / 5,
        "b": rng.standard_normal(8, np.float32) / 5,
        "k": rng.standard_normal((8, 10), np.float32) / 3,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu1"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "k"], ["y"], "classify"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
