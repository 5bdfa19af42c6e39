"""The fenced blocks of a documentation page, and the environment to run them in."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
RUN = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": ["python", "-c"]}


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(m["language"], m["code"], m["reason"]) for m in BLOCK.finditer(page.read_text("utf-8"))]


def run(found: Iterable[Block], folder: Path, scripts: Path, **variables: str) -> None:
    """Run blocks in a folder with the files that the pages mention, with ``scripts`` first on the path."""
    onnx.save(model(), folder / "model.onnx")
    np.save(folder / "x.npy", np.ones((1, 3, 16, 16), np.float32))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
        "NPUSIM_CACHE_DIR": str(folder / "cache"),
        **variables,
    }
    for block in found:
        done = subprocess.run(
            [*RUN[block.language], block.code],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def model() -> onnx.ModelProto:
    """Build a small network: a convolution, an activation, a pool, a classifier."""
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
