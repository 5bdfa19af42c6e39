"""Convolutional networks with seeded random weights: ResNet, MobileNets, YOLO-like, U-Net-like."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tests.support.onnx_models.builder import ModelBuilder

RESNET50_BLOCKS = (3, 4, 6, 3)


def resnet(
    blocks: Sequence[int] = RESNET50_BLOCKS, *, seed: int = 0, image: int = 224, classes: int = 1000, width: int = 64
) -> onnx.ModelProto:
    """A bottleneck ResNet as exporters write it for inference: BatchNorm already folded into the convolutions.

    Input ``x`` [1, 3, image, image] float32, output: logits [1, classes]. The defaults are ResNet-50 (25.5 M weights).
    """
    build = ModelBuilder("resnet", seed=seed)
    x = build.input("x", (1, 3, image, image))
    x = build.op("Relu", build.conv(x, 3, width, 7, stride=2, gain=1.0))
    x = build.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for stage, count in enumerate(blocks):
        middle = width << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            x = _bottleneck(build, x, channels, middle, stride)
            channels = middle * 4
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.finish([build.gemm(x, channels, classes, gain=2.0)])


def _bottleneck(build: ModelBuilder, x: str, channels: int, middle: int, stride: int) -> str:
    out = middle * 4
    y = build.op("Relu", build.conv(x, channels, middle, 1))
    y = build.op("Relu", build.conv(y, middle, middle, 3, stride=stride))
    y = build.conv(y, middle, out, 1, gain=0.2)
    skip = x if channels == out and stride == 1 else build.conv(x, channels, out, 1, stride=stride, gain=1.5)
    return build.op("Relu", build.op("Add", y, skip))


MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""(expansion, channels, repeats, stride) of MobileNetV2 at width 1."""


def mobilenet(
    stages: Sequence[tuple[int, int, int, int]] = MOBILENET_STAGES,
    *,
    seed: int = 0,
    image: int = 224,
    stem: int = 32,
    head: int = 1280,
    classes: int = 1000,
) -> onnx.ModelProto:
    """Inverted residual blocks with depthwise convolutions and ReLU6 as Clip.

    Input ``x`` [1, 3, image, image] float32, output: probabilities [1, classes]. The defaults are MobileNetV2.
    """
    build = ModelBuilder("mobilenet", seed=seed)
    low, high = build.scalar(0.0), build.scalar(6.0)

    def relu6(value: str) -> str:
        return build.op("Clip", value, low, high)

    x = build.input("x", (1, 3, image, image))
    x = relu6(build.conv(x, 3, stem, 3, stride=2, gain=1.0))
    channels = stem
    for expansion, out, repeats, first_stride in stages:
        for index in range(repeats):
            stride = 1 if index else first_stride
            hidden = channels * expansion
            y = relu6(build.conv(x, channels, hidden, 1, gain=1.0)) if expansion > 1 else x
            y = relu6(build.conv(y, hidden, hidden, 3, stride=stride, groups=hidden))
            y = build.conv(y, hidden, out, 1)
            x = build.op("Add", x, y) if stride == 1 and channels == out else y
            channels = out
    x = relu6(build.conv(x, channels, head, 1, gain=1.0))
    x = build.op("ReduceMean", x, axes=[2, 3], keepdims=0)
    return build.finish([build.op("Softmax", build.gemm(x, head, classes, gain=2.0), axis=-1)])


def mobilenet_v1(*, seed: int = 0, image: int = 224, classes: int = 1000, width: int = 32) -> onnx.ModelProto:
    """MobileNetV1: pairs of depthwise and pointwise convolutions with ReLU6 as Clip.

    Input ``x`` [1, 3, image, image] float32, output: probabilities [1, classes]. The defaults are width 1.
    """
    build = ModelBuilder("mobilenet_v1", seed=seed)
    low, high = build.scalar(0.0), build.scalar(6.0)
    x = build.input("x", (1, 3, image, image))
    x = build.op("Clip", build.conv(x, 3, width, 3, stride=2, gain=1.0), low, high)
    channels = width
    for factor, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *[(16, 1)] * 5, (32, 2), (32, 1)):
        x = build.op("Clip", build.conv(x, channels, channels, 3, stride=stride, groups=channels), low, high)
        x = build.op("Clip", build.conv(x, channels, factor * width, 1), low, high)
        channels = factor * width
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.finish([build.op("Softmax", build.gemm(x, channels, classes, gain=2.0), axis=-1)])


def yolo(*, seed: int = 0, image: int = 256, width: int = 16, classes: int = 80) -> onnx.ModelProto:
    """A detector as exporters write it: SiLU, blocks that split and concatenate, parallel pooling, an upward path with
    skips, and a head at each of three sizes.

    Input ``x`` [1, 3, image, image] float32, output [1, classes + 4, cells]. image must be a multiple of 32.
    """
    if image % 32:
        raise ValueError(f"image: must be a multiple of 32, got {image}")
    build = ModelBuilder("yolo", seed=seed)

    def conv(x: str, channels: int, out: int, kernel: int = 3, stride: int = 1) -> str:
        y = build.conv(x, channels, out, kernel, stride=stride)
        return build.op("Mul", y, build.op("Sigmoid", y))

    def block(x: str, channels: int, out: int, *, residual: bool) -> str:
        left, right = build.multi("Split", 2, conv(x, channels, out, 1), axis=1)
        y = conv(conv(right, out // 2, out // 2), out // 2, out // 2)
        y = build.op("Add", right, y) if residual else y
        return conv(build.op("Concat", left, right, y, axis=1), out // 2 * 3, out, 1)

    x = conv(build.input("x", (1, 3, image, image)), 3, width, stride=2)
    levels: list[tuple[str, int]] = []
    for stage in range(4):
        channels = width << stage
        x = block(conv(x, channels, channels * 2, stride=2), channels * 2, channels * 2, residual=True)
        levels.append((x, channels * 2))
    x, channels = levels.pop()
    pools = [conv(x, channels, channels // 2, 1)]
    for _ in range(3):
        pools.append(build.op("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4))
    x = conv(build.op("Concat", *pools, axis=1), channels * 2, channels, 1)
    heads = [(x, channels)]
    scales = build.const(np.array([1, 1, 2, 2], np.float32), "scales")
    for skip, narrower in reversed(levels[1:]):
        x = build.op("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
                     nearest_mode="floor")  # fmt: skip
        x = block(build.op("Concat", x, skip, axis=1), channels + narrower, narrower, residual=False)
        channels = narrower
        heads.append((x, channels))
    outputs = []
    for x, channels in heads:
        y = build.conv(conv(x, channels, channels), channels, classes + 4, 1)
        outputs.append(build.op("Reshape", y, build.ints(1, classes + 4, -1)))
    return build.finish([build.op("Concat", *outputs, axis=2)])


def unet(
    *,
    seed: int = 0,
    image: int = 32,
    channels: int = 8,
    depth: int = 2,
    classes: int = 3,
    upsample: str = "ConvTranspose",
) -> onnx.ModelProto:
    """An encoder and a decoder with skip connections; ``upsample``: "ConvTranspose", "nearest" or "linear" (Resize).

    Input ``x`` [1, 3, image, image] float32, output [1, classes, image, image], a softmax over the classes.
    image must be a multiple of 2 ** depth.
    """
    if image % (1 << depth):
        raise ValueError(f"image: must be a multiple of {1 << depth} for depth {depth}, got {image}")
    build = ModelBuilder("unet", seed=seed)
    x = build.input("x", (1, 3, image, image))
    skips: list[tuple[str, int]] = []
    width, before = channels, 3
    for _ in range(depth):
        x = _double_conv(build, x, before, width)
        skips.append((x, width))
        x = build.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        before, width = width, width * 2
    x = _double_conv(build, x, before, width)
    for skip, narrower in reversed(skips):
        x = _upsample(build, x, width, narrower, upsample)
        x = build.op("Concat", skip, x, axis=1)
        x = _double_conv(build, x, narrower * 2, narrower)
        width = narrower
    return build.finish([build.op("Softmax", build.conv(x, width, classes, 1), axis=1)])


def _double_conv(build: ModelBuilder, x: str, channels: int, out: int) -> str:
    x = build.op("LeakyRelu", build.conv(x, channels, out, 3, gain=1.0), alpha=0.1)
    return build.op("Relu", build.conv(x, out, out, 3))


def _upsample(build: ModelBuilder, x: str, channels: int, out: int, kind: str) -> str:
    if kind == "ConvTranspose":
        weight = build.normal((channels, out, 2, 2), (2.0 / channels) ** 0.5)
        return build.op("ConvTranspose", x, weight, build.normal((out,), 0.1), kernel_shape=[2, 2], strides=[2, 2])
    if kind not in ("nearest", "linear"):
        raise ValueError(f"upsample: must be ConvTranspose, nearest or linear, got {kind!r}")
    scales = build.const(np.array([1, 1, 2, 2], np.float32), "scales")
    modes = {"nearest": ("asymmetric", "floor"), "linear": ("half_pixel", "round_prefer_floor")}
    coordinates, rounding = modes[kind]
    x = build.op("Resize", x, "", scales, mode=kind, coordinate_transformation_mode=coordinates, nearest_mode=rounding)
    return build.conv(x, channels, out, 1)
