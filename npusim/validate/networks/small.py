"""Networks for microcontrollers, and published networks of Google's first TPU."""

from __future__ import annotations

from npusim.graph import Graph, Tensor
from npusim.validate.networks.build import Net, Size
from npusim.validate.networks.classify import Shape


def wav2letter(shape: Shape) -> Graph:
    """R. Collobert et al., arXiv 1609.03193, as in Arm's model zoo. Input: batch, time steps, features."""
    net = Net("wav2letter")
    batch, steps, features = shape
    x = net.reshape(net.input(*shape), (batch, 1, steps, features))
    x = net.conv(x, 250, (1, 48), (1, 2), act="leaky")
    for _ in range(7):
        x = net.conv(x, 250, (1, 7), act="leaky")
    x = net.conv(net.conv(x, 2000, (1, 32), act="leaky"), 2000, act="leaky")
    return net.finish(net.conv(x, 29, act=""))


def micronet(shape: Shape, first: tuple[int, Size], blocks: tuple[tuple[int, int], ...], classes: int) -> Graph:
    """C. Banbury et al., arXiv 2010.11267: a convolution (channels, kernel), then separable ones (channels, stride)."""
    net = Net("micronet")
    x = net.conv(net.input(*shape), *first)
    for channels, stride in blocks:
        x = net.conv(net.depthwise(x, 3, stride), channels)
    return net.finish(net.softmax(net.dense(net.mean(x), classes)))


def rnnoise(shape: Shape) -> Graph:
    """github.com/xiph/rnnoise (training/rnn_train.py), one step. The previous states of the gated units are inputs."""
    net = Net("rnnoise")
    x = net.input(*shape)
    before = [net.input(shape[0], units, name=name) for name, units in (("voice", 24), ("noise", 48), ("sound", 96))]
    dense = net.dense(x, 24, act="tanh")
    voice = _gated(net, dense, before[0], "tanh")
    noise = _gated(net, net.concat(dense, voice, x), before[1], "relu")
    sound = _gated(net, net.concat(voice, noise, x), before[2], "relu")
    return net.finish(net.dense(sound, 22, act="sigmoid"), net.dense(voice, 1, act="sigmoid"), voice, noise, sound)


def _gated(net: Net, x: Tensor, before: Tensor, act: str) -> Tensor:
    """A gated recurrent unit, with one product for the input and one for the state."""
    units = before.shape[1]
    both = net.dense(x, 3 * units), net.dense(before, 2 * units)
    update, reset = (
        net.add(net.channels(both[0], at, units), net.channels(both[1], at, units), act="sigmoid") for at in (0, units)
    )
    new = net.add(net.channels(both[0], 2 * units, units), net.dense(net.mul(reset, before), units), act=act)
    # update * before + (1 - update) * new
    return net.add(new, net.mul(update, net.sub(before, new)))


def perceptron(batch: int, sides: tuple[int, int], layers: int) -> Graph:
    """Equal fully connected layers that alternate between two widths."""
    net = Net("perceptron")
    x: Tensor = net.input(batch, sides[0])
    for layer in range(layers):
        x = net.dense(x, sides[1 - layer % 2], act="relu")
    return net.finish(x)
