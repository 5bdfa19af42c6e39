"""A small network, made in memory, computed on a device and compared with the reference: needs no file and no onnx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.runtime import Result, Session

if TYPE_CHECKING:
    from npusim.hw.config import Config

TOLERANCE = 1e-5
"""Largest difference allowed, as a part of the largest output: float32 sums in another order, nothing else."""


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo did: the run, and how far its outputs are from the reference (a part of the largest output)."""

    result: Result
    difference: float

    @property
    def correct(self) -> bool:
        return self.difference <= TOLERANCE


def run(config: Config) -> Demo:
    """Compile and run the network on a device, uncached; compare with the reference of the graph language."""
    graph = network()
    inputs = {"image": np.random.default_rng(1).standard_normal((1, 3, 32, 32), np.float32)}
    session = Session(config, cache_dir=False)
    result = session.run(session.compile(graph), inputs)
    worst = 0.0
    for name, wanted in reference.run(graph, inputs).items():
        scale = float(np.abs(wanted).max()) or 1.0
        worst = max(worst, float(np.abs(result.outputs[name] - wanted).max()) / scale)
    return Demo(result, worst)


def network() -> Graph:
    """A classifier of 32x32 images as phones run them: convolution, residual block, head."""
    net = _Layers(GraphBuilder("demo"), np.random.default_rng(0))
    image = net.graph.input("image", (1, 3, 32, 32), DType.FLOAT32)
    stem = net.relu(net.conv("stem", image, 16, 3, stride=2), "stem.relu")
    wide = net.relu(net.conv("block.expand", stem, 64, 1), "block.expand.relu")
    deep = net.relu(net.conv("block.depthwise", wide, 64, 3, groups=64), "block.depthwise.relu")
    narrow = net.conv("block.project", deep, 16, 1)
    block = net.graph.add("binary", (stem, narrow), {"fn": Binary.ADD}, "block.add")
    head = net.relu(net.conv("head", block, 128, 3, stride=2), "head.relu")
    return net.graph.finish([net.classify(head, 10)])


class _Layers:
    """The layers of the network, with weights drawn so that activations keep their size."""

    def __init__(self, graph: GraphBuilder, generator: np.random.Generator) -> None:
        self.graph = graph
        self._generator = generator

    def conv(self, name: str, x: Tensor, channels: int, size: int, *, stride: int = 1, groups: int = 1) -> Tensor:
        inputs = x.shape[1] // groups
        weight = self._weight((channels, inputs, size, size), inputs * size * size, f"{name}.weight")
        bias = self._weight((channels,), channels, f"{name}.bias")
        attributes = {
            "layout": "NCHW",
            "stride": (stride, stride),
            "dilation": (1, 1),
            "pads": (size // 2,) * 4,
            "groups": groups,
        }
        return self.graph.add("conv", (x, weight, bias), attributes, name)

    def relu(self, x: Tensor, name: str) -> Tensor:
        return self.graph.add("unary", (x,), {"fn": Unary.RELU}, name)

    def classify(self, x: Tensor, classes: int) -> Tensor:
        pooled = self.graph.add("reduce", (x,), {"fn": Reduce.MEAN, "axes": (2, 3), "keepdims": False}, "pool")
        weight = self._weight((x.shape[1], classes), x.shape[1], "classify.weight")
        bias = self._weight((classes,), classes, "classify.bias")
        scores = self.graph.add("matmul", (pooled, weight, bias), {}, "classify")
        return self.graph.add("softmax", (scores,), {"axis": 1, "log": False}, "probabilities")

    def _weight(self, shape: tuple[int, ...], fan_in: int, name: str) -> Tensor:
        values = self._generator.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
        return self.graph.const(values, name)
