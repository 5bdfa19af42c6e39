"""Networks for image classification, with shapes from their papers and reference implementations."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.graph import Graph, Tensor
from npusim.validate.networks.build import Net

Shape = tuple[int, ...]

CLASSES = 1001
"""Classes of ImageNet plus one for the background, as in TensorFlow's models. 54 The result of the last block, and the
expanded values of each block. Beyond ``output_stride``, strides become dilations."""


def mobilenet_v1(shape: Shape) -> Graph:
    """A. Howard et al., arXiv 1704.04861, table 1."""
    net = Net("mobilenet_v1")
    x = mobilenet_v1_features(net, net.input(*shape))[-1]
    return net.finish(net.softmax(net.dense(net.mean(x), CLASSES)))


def mobilenet_v1_features(net: Net, x: Tensor) -> list[Tensor]:
    """The values after each block."""
    x = net.conv(x, 32, 3, 2, act="relu6")
    found = []
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    for channels, stride in zip((64, 128, 128, 256, 256, *[512] * 6, 1024, 1024), strides, strict=True):
        x = net.conv(net.depthwise(x, 3, stride, act="relu6"), channels, act="relu6")
        found.append(x)
    return found


MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repeats, stride."""


def mobilenet_v2(shape: Shape) -> Graph:
    """M. Sandler et al., arXiv 1801.04381, table 2."""
    net = Net("mobilenet_v2")
    x, _ = mobilenet_v2_features(net, net.input(*shape))
    return net.finish(net.softmax(net.dense(net.mean(net.conv(x, 1280, act="relu6")), CLASSES)))


def mobilenet_v2_features(
    net: Net, x: Tensor, *, width: float = 1.0, output_stride: int = 32
) -> tuple[Tensor, list[Tensor]]:
    """The result of the last block, and the expanded values of each; beyond ``output_stride``, strides become
    dilations."""
    x = net.conv(x, rounded(32 * width), 3, 2, act="relu6")
    expanded, reached, dilation = [], 2, 1
    for factor, channels, repeats, first in MOBILENET_V2:
        for index in range(repeats):
            stride = 1 if index else first
            if stride == 2 and reached == output_stride:
                stride, rate = 1, dilation
                dilation *= 2
            else:
                rate, reached = dilation, reached * stride
            y = net.conv(x, x.shape[3] * factor, act="relu6") if factor > 1 else x
            expanded.append(y)
            y = net.depthwise(y, 3, stride, act="relu6", dilation=rate)
            y = net.conv(y, rounded(channels * width), act="")
            x = net.add(x, y) if stride == 1 and x.shape == y.shape else y
    return x, expanded


def rounded(channels: float) -> int:
    """The nearest multiple of eight, but at least nine tenths of the value."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found if found >= 0.9 * channels else found + 8


RESNET_50, RESNET_101, RESNET_152 = (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)
"""Blocks per stage."""


def resnet_v1(shape: Shape, blocks: Sequence[int]) -> Graph:
    """K. He et al., arXiv 1512.03385, table 1. Strides are in the 3 x 3 convolutions, as in most implementations."""
    net = Net("resnet_v1")
    x = net.maxpool(net.conv(net.input(*shape), 64, 7, 2, 3), 3, 2, 1)
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            y = net.conv(net.conv(x, 64 << stage), 64 << stage, 3, stride, 1)
            y = net.conv(y, 256 << stage, act="")
            skip = x if index else net.conv(x, 256 << stage, 1, stride, act="")
            x = net.add(skip, y, act="relu")
    return net.finish(net.softmax(net.dense(net.mean(x), CLASSES)))


def resnet_v2(shape: Shape, blocks: Sequence[int]) -> Graph:
    """K. He et al., arXiv 1603.05027: normalisation and activation precede the convolutions of a block."""
    net = Net("resnet_v2")
    x = net.maxpool(net.conv(net.input(*shape), 64, 7, 2, 3, act=""), 3, 2, 1)
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            first = net.scale(x)
            y = net.conv(net.conv(first, 64 << stage), 64 << stage, 3, stride, 1)
            y = net.conv(y, 256 << stage, act="")
            x = net.add(x if index else net.conv(first, 256 << stage, 1, stride, act=""), y)
    return net.finish(net.softmax(net.dense(net.mean(net.scale(x)), CLASSES)))


VGG_16, VGG_19 = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
"""Convolutions per stage."""


def vgg(shape: Shape, stages: Sequence[int]) -> Graph:
    """K. Simonyan, A. Zisserman, arXiv 1409.1556, table 1."""
    net = Net("vgg")
    x = net.input(*shape)
    for stage, count in enumerate(stages):
        for _ in range(count):
            x = net.conv(x, min(512, 64 << stage), 3)
        x = net.maxpool(x, 2, 2)
    for channels in (4096, 4096):
        x = net.dense(x, channels, act="relu")
    return net.finish(net.softmax(net.dense(x, 1000)))


def densenet(
    shape: Shape, blocks: Sequence[int] = (6, 12, 24, 16), growth: int = 32, *, bottleneck: bool = True
) -> Graph:
    """G. Huang et al., arXiv 1608.06993, table 1: DenseNet-121 by default."""
    net = Net("densenet")
    x = net.maxpool(net.conv(net.input(*shape), 2 * growth, 7, 2, 3), 3, 2, 1)
    for stage, count in enumerate(blocks):
        if stage:
            x = net.avgpool(net.conv(net.scale(x), x.shape[3] // 2, act=""), 2, 2, "valid")
        for _ in range(count):
            y = net.scale(x)
            y = net.conv(y, 4 * growth) if bottleneck else y
            x = net.concat(x, net.conv(y, growth, 3, act=""))
    return net.finish(net.softmax(net.dense(net.mean(net.scale(x)), 1000)))


def squeezenet(shape: Shape) -> Graph:
    """F. Iandola et al., arXiv 1602.07360; version 1.1 of github.com/forresti/SqueezeNet."""
    net = Net("squeezenet")
    x = net.conv(net.input(*shape), 64, 3, 2, "valid")
    for number, (squeeze, expand) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        if number in (0, 2, 4):
            x = net.maxpool(x, 3, 2, "valid", ceil=True)
        x = net.conv(x, squeeze)
        x = net.concat(net.conv(x, expand), net.conv(x, expand, 3))
    return net.finish(net.softmax(net.mean(net.conv(x, 1000))))


EDGETPU_BLOCKS = (
    (1, 3, 1, 4, 24, True, False),
    (2, 3, 2, 8, 32, True, True),
    (4, 3, 2, 8, 48, True, True),
    (5, 5, 2, 8, 96, False, True),
    (4, 5, 1, 8, 144, False, True),
    (2, 5, 2, 8, 192, False, True),
)
"""Repeats, kernel, stride, expansion, channels, whether expansion and spatial convolution are fused, whether it has a
skip connection."""


def efficientnet_edgetpu(shape: Shape, width: float = 1.0, depth: float = 1.0) -> Graph:
    """EfficientNet-EdgeTPU of github.com/tensorflow/tpu (efficientnet/edgetpu/efficientnet_edgetpu_builder.py)."""
    net = Net("efficientnet_edgetpu")
    x = net.conv(net.input(*shape), rounded(32 * width), 3, 2)
    for repeats, kernel, first, factor, channels, fused, skips in EDGETPU_BLOCKS:
        for index in range(-int(-repeats * depth // 1)):
            stride, wide = 1 if index else first, x.shape[3] * factor
            y = net.conv(x, wide, kernel, stride) if fused else net.depthwise(net.conv(x, wide), kernel, stride)
            y = net.conv(y, rounded(channels * width), act="")
            x = net.add(x, y) if skips and x.shape == y.shape else y
    x = net.conv(x, rounded(1280 * width))
    return net.finish(net.softmax(net.dense(net.mean(x), CLASSES)))


EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""Expansion, channels, repeats, stride, kernel."""


def efficientnet_b0(shape: Shape) -> Graph:
    """M. Tan, Q. Le, arXiv 1905.11946, table 1; squeeze and excitation to a quarter of a block's input channels."""
    net = Net("efficientnet_b0")
    x = net.conv(net.input(*shape), 32, 3, 2, act="silu")
    for factor, channels, repeats, first, kernel in EFFICIENTNET_B0:
        for index in range(repeats):
            stride, wide = 1 if index else first, x.shape[3] * factor
            y = net.conv(x, wide, act="silu") if factor > 1 else x
            y = net.depthwise(y, kernel, stride, act="silu")
            share = net.conv(net.conv(net.mean(y), x.shape[3] // 4, act="silu"), wide, act="sigmoid")
            y = net.conv(net.mul(y, share), channels, act="")
            x = net.add(x, y) if x.shape == y.shape else y
    return net.finish(net.softmax(net.dense(net.mean(net.conv(x, 1280, act="silu")), 1000)))


# Inception: branches of convolutions, each a tuple of (channels, kernel), some after a pool.


def inception_v1(shape: Shape) -> Graph:
    """C. Szegedy et al., arXiv 1409.4842, table 1, with 3 x 3 for 5 x 5 as in TensorFlow's implementation."""
    net = Net("inception_v1")
    x = net.maxpool(net.conv(net.input(*shape), 64, 7, 2), 3, 2)
    x = net.maxpool(net.conv(net.conv(x, 64), 192, 3), 3, 2)
    for number, (one, three_in, three, five_in, five, pooled) in enumerate(
        (
            (64, 96, 128, 16, 32, 32),
            (128, 128, 192, 32, 96, 64),
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
            (256, 160, 320, 32, 128, 128),
            (384, 192, 384, 48, 128, 128),
        )
    ):
        if number in (2, 7):
            x = net.maxpool(x, 3 if number == 2 else 2, 2)
        x = net.concat(
            net.conv(x, one),
            net.conv(net.conv(x, three_in), three, 3),
            net.conv(net.conv(x, five_in), five, 3),
            net.conv(net.maxpool(x, 3, 1), pooled),
        )
    return net.finish(net.softmax(net.dense(net.mean(x), CLASSES)))


Chain = Sequence[tuple[int, int | tuple[int, int]]]


def _chain(net: Net, x: Tensor, layers: Chain, *, stride: int = 1) -> Tensor:
    """Consecutive convolutions. A stride applies to the last one, which then has no padding."""
    for index, (channels, kernel) in enumerate(layers):
        last = stride > 1 and index == len(layers) - 1
        x = net.conv(x, channels, kernel, stride if last else 1, "valid" if last else "same")
    return x


def _pooled(net: Net, x: Tensor, channels: int) -> Tensor:
    return net.conv(net.avgpool(x, 3, 1), channels)


def _reduced(net: Net, x: Tensor, *branches: Chain) -> Tensor:
    """Half the rows and columns: branches with stride, and a pool."""
    return net.concat(*(_chain(net, x, layers, stride=2) for layers in branches), net.maxpool(x, 3, 2, "valid"))


def inception_v3(shape: Shape) -> Graph:
    """C. Szegedy et al., arXiv 1512.00567, with the blocks of TensorFlow's implementation."""
    net = Net("inception_v3")
    x = _stem_v3(net, net.input(*shape))
    for pooled in (32, 64, 64):
        x = net.concat(
            net.conv(x, 64),
            _chain(net, x, ((48, 1), (64, 5))),
            _chain(net, x, ((64, 1), (96, 3), (96, 3))),
            _pooled(net, x, pooled),
        )
    x = _reduced(net, x, ((384, 3),), ((64, 1), (96, 3), (96, 3)))
    for wide in (128, 160, 160, 192):
        x = net.concat(
            net.conv(x, 192),
            _chain(net, x, ((wide, 1), (wide, (1, 7)), (192, (7, 1)))),
            _chain(net, x, ((wide, 1), (wide, (7, 1)), (wide, (1, 7)), (wide, (7, 1)), (192, (1, 7)))),
            _pooled(net, x, 192),
        )
    x = _reduced(net, x, ((192, 1), (320, 3)), ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)))
    for _ in range(2):
        a, b = net.conv(x, 384), _chain(net, x, ((448, 1), (384, 3)))
        x = net.concat(
            net.conv(x, 320),
            net.conv(a, 384, (1, 3)),
            net.conv(a, 384, (3, 1)),
            net.conv(b, 384, (1, 3)),
            net.conv(b, 384, (3, 1)),
            _pooled(net, x, 192),
        )
    return net.finish(net.softmax(net.dense(net.mean(x), CLASSES)))


def _stem_v3(net: Net, x: Tensor) -> Tensor:
    x = net.conv(net.conv(net.conv(x, 32, 3, 2, "valid"), 32, 3, 1, "valid"), 64, 3)
    x = net.conv(net.conv(net.maxpool(x, 3, 2, "valid"), 80), 192, 3, 1, "valid")
    return net.maxpool(x, 3, 2, "valid")


def inception_v4(shape: Shape) -> Graph:
    """C. Szegedy et al., arXiv 1602.07261, figures 3 to 9."""
    net = Net("inception_v4")
    x = net.conv(net.conv(net.conv(net.input(*shape), 32, 3, 2, "valid"), 32, 3, 1, "valid"), 64, 3)
    x = _reduced(net, x, ((96, 3),))
    x = net.concat(
        net.conv(net.conv(x, 64), 96, 3, 1, "valid"),
        net.conv(_chain(net, x, ((64, 1), (64, (7, 1)), (64, (1, 7)))), 96, 3, 1, "valid"),
    )
    x = _reduced(net, x, ((192, 3),))
    for _ in range(4):
        x = net.concat(
            _pooled(net, x, 96),
            net.conv(x, 96),
            _chain(net, x, ((64, 1), (96, 3))),
            _chain(net, x, ((64, 1), (96, 3), (96, 3))),
        )
    x = _reduced(net, x, ((384, 3),), ((192, 1), (224, 3), (256, 3)))
    for _ in range(7):
        x = net.concat(
            _pooled(net, x, 128),
            net.conv(x, 384),
            _chain(net, x, ((192, 1), (224, (1, 7)), (256, (7, 1)))),
            _chain(net, x, ((192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1)))),
        )
    x = _reduced(net, x, ((192, 1), (192, 3)), ((256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3)))
    for _ in range(3):
        a, b = net.conv(x, 384), _chain(net, x, ((384, 1), (448, (1, 3)), (512, (3, 1))))
        x = net.concat(
            _pooled(net, x, 256),
            net.conv(x, 256),
            net.conv(a, 256, (1, 3)),
            net.conv(a, 256, (3, 1)),
            net.conv(b, 256, (3, 1)),
            net.conv(b, 256, (1, 3)),
        )
    return net.finish(net.softmax(net.dense(net.mean(x), CLASSES)))


def inception_resnet_v2(shape: Shape) -> Graph:
    """C. Szegedy et al., arXiv 1602.07261, with the sizes of TensorFlow's implementation."""
    net = Net("inception_resnet_v2")
    x = _stem_v3(net, net.input(*shape))
    x = net.concat(
        net.conv(x, 96),
        _chain(net, x, ((48, 1), (64, 5))),
        _chain(net, x, ((64, 1), (96, 3), (96, 3))),
        _pooled(net, x, 64),
    )

    def block(x: Tensor, *branches: Chain) -> Tensor:
        joined = net.concat(*(_chain(net, x, layers) for layers in branches))
        return net.add(x, net.conv(joined, x.shape[3], act=""), act="relu")

    for _ in range(10):
        x = block(x, ((32, 1),), ((32, 1), (32, 3)), ((32, 1), (48, 3), (64, 3)))
    x = _reduced(net, x, ((384, 3),), ((256, 1), (256, 3), (384, 3)))
    for _ in range(20):
        x = block(x, ((192, 1),), ((128, 1), (160, (1, 7)), (192, (7, 1))))
    x = _reduced(net, x, ((256, 1), (384, 3)), ((256, 1), (288, 3)), ((256, 1), (288, 3), (320, 3)))
    for _ in range(10):
        x = block(x, ((192, 1),), ((192, 1), (224, (1, 3)), (256, (3, 1))))
    return net.finish(net.softmax(net.dense(net.mean(net.conv(x, 1536)), CLASSES)))
