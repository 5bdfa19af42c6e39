"""Networks for microcontrollers, and those of Google's first TPU as far as they are known."""

from __future__ import annotations

from npusim.graph import Graph, Tensor
from npusim.validate.networks.build import Net
from npusim.validate.networks.classify import Shape


def wav2letter(shape: Shape) -> Graph:
    """R. Collobert et al., arXiv 1609.03193, as Arm's model zoo builds it; input: batch, time steps, features."""
    net = Net("wav2letter")
    batch, steps, features = shape
    x = net.reshape(net.input(*shape), (batch, 1, steps, features))
    x = net.conv(x, 250, (1, 48), (1, 2), act="leaky")
    for _ in range(7):
        x = net.conv(x, 250, (1, 7), act="leaky")
    x = net.conv(net.conv(x, 2000, (1, 32), act="leaky"), 2000, act="leaky")
    return net.finish(net.conv(x, 29, act=""))


def perceptron(batch: int, sides: tuple[int, int], layers: int) -> Graph:
    """Equal fully connected layers, there and back between two widths."""
    net = Net("perceptron")
    x: Tensor = net.input(batch, sides[0])
    for layer in range(layers):
        x = net.dense(x, sides[1 - layer % 2], act="relu")
    return net.finish(x)
