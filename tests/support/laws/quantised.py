"""Random quantised networks, and the files that a quantiser makes of their float models."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from npusim.frontends.onnx import load
from npusim.graph import Graph, Tensor
from npusim.validate.networks.build import Net
from npusim.validate.networks.files import FloatExport
from tests.support.onnx_models.float_networks import Rescaled
from tests.support.onnx_models.qdq import quantised

_LAYERS = ("conv", "conv", "depthwise", "add", "concat", "avgpool", "maxpool", "upsample", "channels", "gate", "act")
# Functions that the quantiser supports; others stay float. LeakyRelu is left out because files also round its operand,
# a step that the network does not have.
_ACTS = ("relu", "relu", "silu", "sigmoid", "")


def network(rng: Random) -> Graph:
    """Build convolutions with the operators that networks have between them."""
    net = Net("random")
    side, channels = rng.choice((28, 40, 56)), rng.choice((32, 64, 128))
    x = net.conv(net.input(1, side, side, channels), channels, 3, act=rng.choice(_ACTS))
    found = [x]
    for _ in range(rng.randint(2, 5)):
        x = _layer(rng, net, x, found)
        found.append(x)
    return net.finish(net.conv(x, rng.choice((16, 32)), 1, act=rng.choice(_ACTS)))


def _layer(rng: Random, net: Net, x: Tensor, found: list[Tensor]) -> Tensor:
    kind, (_, height, width, channels) = rng.choice(_LAYERS), x.shape
    beside = [value for value in found if value.shape[:3] == x.shape[:3]]
    match kind:
        case "depthwise":
            return net.depthwise(x, 3, act=rng.choice(_ACTS))
        case "add":
            return net.add(x, net.conv(x, channels, rng.choice((1, 3)), act=""))
        case "concat" if channels < 256:
            return net.concat(x, net.conv(rng.choice(beside), rng.choice((16, 32)), 1, act=rng.choice(_ACTS)))
        case "avgpool" if min(height, width) > 4:
            return net.avgpool(x, 2, 2, "valid") if rng.random() < 0.5 else net.avgpool(x, 3, 1)
        case "maxpool" if min(height, width) > 4:
            return net.maxpool(x, 2, 2, "valid")
        case "upsample" if max(height, width) < 40:
            return net.upsample(x)
        case "channels":
            return net.channels(x, 0, channels // 2) if channels >= 32 else x
        case "gate":
            return net.mul(x, net.conv(net.mean(x), channels, 1, act="sigmoid"))
        case "act":
            return net.act(x, "silu")
    return net.conv(x, rng.choice((32, 64)), rng.choice((1, 3)), act=rng.choice(_ACTS))


def file_and_network(rng: Random) -> tuple[Graph, Graph]:
    """Return a network as a quantiser's file, and the network itself with the scales of the file."""
    graph = network(rng)
    export = FloatExport(graph)
    with tempfile.TemporaryDirectory() as folder:
        file = quantised(export.model(), Path(folder), activation=rng.choice(("int8", "uint8")), seed=0)
    return load(file), Rescaled(graph, export, file).graph()
