"""Networks for object detection and segmentation, without host work such as decoding boxes."""

from __future__ import annotations

from npusim.graph import Graph, Tensor
from npusim.validate.networks.build import Net
from npusim.validate.networks.classify import Shape, mobilenet_v1_features, mobilenet_v2_features

COCO = 91
"""Classes of COCO plus one for the background."""


def ssd_mobilenet_v1(shape: Shape) -> Graph:
    """ssd_mobilenet_v1_coco of TensorFlow's object detection API; boxes are decoded by the host."""
    net = Net("ssd_mobilenet_v1")
    blocks = mobilenet_v1_features(net, net.input(*shape))
    maps = [blocks[10], blocks[12]]
    for squeeze, channels in ((256, 512), (128, 256), (128, 256), (64, 128)):
        maps.append(net.conv(net.conv(maps[-1], squeeze, act="relu6"), channels, 3, 2, act="relu6"))
    return _boxes(net, maps)


def ssd_mobilenet_v2(shape: Shape) -> Graph:
    """ssd_mobilenet_v2_coco of TensorFlow's object detection API; boxes are decoded by the host."""
    net = Net("ssd_mobilenet_v2")
    x, expanded = mobilenet_v2_features(net, net.input(*shape))
    maps = [expanded[13], net.conv(x, 1280, act="relu6")]
    for squeeze, channels in ((256, 512), (128, 256), (128, 256), (64, 128)):
        maps.append(net.conv(net.conv(maps[-1], squeeze, act="relu6"), channels, 3, 2, act="relu6"))
    return _boxes(net, maps)


def _boxes(net: Net, maps: list[Tensor]) -> Graph:
    """For each feature map, positions and classes of the boxes of each pixel."""
    found = []
    for index, x in enumerate(maps):
        boxes = 6 if index else 3
        found += [net.conv(x, 4 * boxes, act=""), net.conv(x, COCO * boxes, act="sigmoid")]
    return net.finish(*found)


def unet_mobilenet_v2(shape: Shape) -> Graph:
    """The segmentation tutorial of TensorFlow: MobileNetV2 up to its 16th block, and transposed convolutions."""
    net = Net("unet_mobilenet_v2")
    x, expanded = mobilenet_v2_features(net, net.input(*shape))
    for channels, skip in zip((512, 256, 128, 64), (expanded[13], expanded[6], expanded[3], expanded[1]), strict=True):
        x = net.concat(net.upconv(x, channels, 3, 2), skip)
    return net.finish(net.upconv(x, 3, 3, 2, act=""))


# YOLO. Heads end with the convolutions and the activations that quantised exports keep.

OUTPUTS = 255
"""Outputs per pixel of a head: three boxes with four coordinates, a confidence and 80 classes."""


def _wide(channels: int, width: float) -> int:
    return -int(-channels * width // 8) * 8


def _deep(repeats: int, depth: float) -> int:
    return max(1, round(repeats * depth))


def yolo_v5(
    shape: Shape, depth: float, width: float, *, act: str = "silu", last: str = "sigmoid", masks: int = 0
) -> Graph:
    """Release 6 of github.com/ultralytics/yolov5 (models/yolov5s.yaml). ``masks``: prototypes of models/segment.
    ``last``: the function after the heads."""
    net = Net("yolo_v5")

    def conv(x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, _wide(channels, width), kernel, stride, kernel // 2, act=act)

    def c3(x: Tensor, channels: int, repeats: int, *, skips: bool = True) -> Tensor:
        half = _wide(channels, width) // 2
        y, other = net.conv(x, half, act=act), net.conv(x, half, act=act)
        for _ in range(_deep(repeats, depth)):
            z = net.conv(net.conv(y, half, act=act), half, 3, 1, 1, act=act)
            y = net.add(y, z) if skips else z
        return net.conv(net.concat(y, other), 2 * half, act=act)

    x = conv(net.conv(net.input(*shape), _wide(64, width), 6, 2, 2, act=act), 128, 3, 2)
    p3 = c3(conv(c3(x, 128, 3), 256, 3, 2), 256, 6)
    p4 = c3(conv(p3, 512, 3, 2), 512, 9)
    x = spp(net, c3(conv(p4, 1024, 3, 2), 1024, 3), act)
    top = conv(x, 512)
    x = c3(net.concat(net.upsample(top), p4), 512, 3, skips=False)
    middle = conv(x, 256)
    small = c3(net.concat(net.upsample(middle), p3), 256, 3, skips=False)
    medium = c3(net.concat(conv(small, 256, 3, 2), middle), 512, 3, skips=False)
    large = c3(net.concat(conv(medium, 512, 3, 2), top), 1024, 3, skips=False)
    found = [net.conv(x, OUTPUTS, act=last) for x in (small, medium, large)]
    if masks:
        found += [net.conv(x, 3 * masks, act="") for x in (small, medium, large)]
        y = conv(net.upsample(conv(small, 256, 3)), 256, 3)
        found.append(net.conv(y, masks, act=act))
    return net.finish(*found)


def spp(net: Net, x: Tensor, act: str) -> Tensor:
    """Three consecutive pools, whose results are concatenated."""
    channels = x.shape[3]
    parts = [net.conv(x, channels // 2, act=act)]
    for _ in range(3):
        parts.append(net.maxpool(parts[-1], 5, 1, 2))
    return net.conv(net.concat(*parts), channels, act=act)


def yolo_v8(
    shape: Shape, depth: float, width: float, most: int, *, classes: int = 80, extra: int = 0, masks: int = 0
) -> Graph:
    """github.com/ultralytics/ultralytics (cfg/models/v8/yolov8.yaml). Distributions of box positions are decoded by the
    host.

    ``extra``: outputs of a third branch of each head, as in the variants for masks, poses and oriented boxes.
    ``masks``: prototypes.
    """
    net = Net("yolo_v8")

    def size(channels: int) -> int:
        return _wide(min(channels, most), width)

    def conv(x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
        return net.conv(x, size(channels), kernel, stride, kernel // 2, act="silu")

    def c2f(x: Tensor, channels: int, repeats: int, *, skips: bool = True) -> Tensor:
        half = size(channels) // 2
        both = net.conv(x, 2 * half, act="silu")
        parts = [both, net.channels(both, half, half)]
        for _ in range(_deep(repeats, depth)):
            y = parts[-1]
            z = net.conv(net.conv(y, half, 3, 1, 1, act="silu"), half, 3, 1, 1, act="silu")
            parts.append(net.add(y, z) if skips else z)
        return net.conv(net.concat(parts[0], *parts[2:]), 2 * half, act="silu")

    x = conv(conv(net.input(*shape), 64, 3, 2), 128, 3, 2)
    p3 = c2f(conv(c2f(x, 128, 3), 256, 3, 2), 256, 6)
    p4 = c2f(conv(p3, 512, 3, 2), 512, 6)
    p5 = spp(net, c2f(conv(p4, 1024, 3, 2), 1024, 3), "silu")
    middle = c2f(net.concat(net.upsample(p5), p4), 512, 3, skips=False)
    small = c2f(net.concat(net.upsample(middle), p3), 256, 3, skips=False)
    medium = c2f(net.concat(conv(small, 256, 3, 2), middle), 512, 3, skips=False)
    large = c2f(net.concat(conv(medium, 512, 3, 2), p5), 1024, 3, skips=False)
    branches = [
        (max(16, small.shape[3] // 4, 64), 64, ""),
        (max(small.shape[3], min(classes, 100)), classes, "sigmoid"),
    ]
    if extra:
        branches.append((max(small.shape[3] // 4, extra), extra, ""))
    found = []
    for x in (small, medium, large):
        for channels, results, last in branches:
            y = net.conv(net.conv(x, channels, 3, 1, 1, act="silu"), channels, 3, 1, 1, act="silu")
            found.append(net.conv(y, results, act=last))
    if masks:
        y = conv(small, 256, 3)
        y = conv(net.upconv(y, y.shape[3], 2, 2, act=""), 256, 3)
        found.append(net.conv(y, masks, act="silu"))
    return net.finish(*found)


def yolox(shape: Shape, depth: float, width: float) -> Graph:
    """github.com/Megvii-BaseDetection/YOLOX (yolox/models). Four pixels as channels are a kernel of twice the size."""
    net = Net("yolox")

    def conv(x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, _wide(channels, width), kernel, stride, kernel // 2, act="silu")

    def csp(x: Tensor, channels: int, repeats: int, *, skips: bool = True) -> Tensor:
        y, other = conv(x, channels // 2), conv(x, channels // 2)
        for _ in range(_deep(repeats, depth)):
            z = conv(conv(y, channels // 2), channels // 2, 3)
            y = net.add(y, z) if skips else z
        return conv(net.concat(y, other), channels)

    x = net.conv(net.input(*shape), _wide(64, width), 6, 2, 2, act="silu")
    p3 = csp(conv(csp(conv(x, 128, 3, 2), 128, 3), 256, 3, 2), 256, 9)
    p4 = csp(conv(p3, 512, 3, 2), 512, 9)
    x = conv(conv(p4, 1024, 3, 2), 512)
    pools = [net.maxpool(x, size, 1, size // 2) for size in (5, 9, 13)]
    top = conv(csp(conv(net.concat(x, *pools), 1024), 1024, 3, skips=False), 512)
    middle = conv(csp(net.concat(net.upsample(top), p4), 512, 3, skips=False), 256)
    small = csp(net.concat(net.upsample(middle), p3), 256, 3, skips=False)
    medium = csp(net.concat(conv(small, 256, 3, 2), middle), 512, 3, skips=False)
    large = csp(net.concat(conv(medium, 512, 3, 2), top), 1024, 3, skips=False)
    found = []
    for x in (small, medium, large):
        stem = conv(x, 256)
        classes, places = (conv(conv(stem, 256, 3), 256, 3) for _ in range(2))
        found += [
            net.conv(classes, 80, act="sigmoid"),
            net.conv(places, 4, act=""),
            net.conv(places, 1, act="sigmoid"),
        ]
    return net.finish(*found)


def yolo_v6(shape: Shape, depth: float, width: float) -> Graph:
    """Release 0.4 of github.com/meituan/YOLOv6 (configs/yolov6s.py), with the branches of blocks merged as for
    deployment."""
    net = Net("yolo_v6")

    def conv(x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, _wide(channels, width), kernel, stride, kernel // 2)

    def block(x: Tensor, channels: int, repeats: int) -> Tensor:
        for _ in range(_deep(repeats, depth)):
            x = conv(x, channels, 3)
        return x

    x = conv(net.input(*shape), 64, 3, 2)
    levels = []
    for channels, repeats in ((128, 6), (256, 12), (512, 18), (1024, 6)):
        x = block(conv(x, channels, 3, 2), channels, repeats)
        levels.append(x)
    p2, p3, p4, p5 = levels
    # The simplified pyramid of pools: two paths, one of which skips the pools.
    half = _wide(512, width)
    y = net.conv(net.conv(net.conv(p5, half), half, 3), half)
    pooled = [y]
    for _ in range(3):
        pooled.append(net.maxpool(pooled[-1], 5, 1, 2))
    y = net.conv(net.conv(net.concat(*pooled), half), half, 3)
    p5 = net.conv(net.concat(net.conv(p5, half), y), _wide(1024, width))

    def joined(upper: Tensor, middle: Tensor, lower: Tensor, channels: int) -> Tensor:
        wide = _wide(channels, width)
        down = net.conv(net.conv(lower, wide), wide, 3, 2, 1)
        return net.conv(net.concat(net.upconv(upper, wide, 2, 2, act=""), net.conv(middle, wide), down), wide)

    top = conv(p5, 256)
    x = block(joined(top, p4, p3, 256), 256, 12)
    middle = conv(x, 128)
    small = block(joined(middle, p3, p2, 128), 128, 12)
    medium = block(net.concat(conv(small, 128, 3, 2), middle), 256, 12)
    large = block(net.concat(conv(medium, 256, 3, 2), top), 512, 12)
    found = []
    for x in (small, medium, large):
        stem = net.conv(x, x.shape[3])
        found.append(net.conv(net.conv(stem, x.shape[3], 3), 80, act="sigmoid"))
        found.append(net.conv(net.conv(stem, x.shape[3], 3), 4, act=""))
    return net.finish(*found)


def yolo_v7_tiny(shape: Shape) -> Graph:
    """github.com/WongKinYiu/yolov7 (cfg/deploy/yolov7-tiny.yaml), with leaky activations."""
    net = Net("yolo_v7_tiny")

    def conv(x: Tensor, channels: int, kernel: int = 1, stride: int = 1) -> Tensor:
        return net.conv(x, channels, kernel, stride, kernel // 2, act="leaky")

    def elan(x: Tensor, channels: int, out: int) -> Tensor:
        a, b = conv(x, channels), conv(x, channels)
        c = conv(b, channels, 3)
        return conv(net.concat(conv(c, channels, 3), c, b, a), out)

    x = elan(conv(conv(net.input(*shape), 32, 3, 2), 64, 3, 2), 32, 64)
    p3 = elan(net.maxpool(x, 2, 2), 64, 128)
    p4 = elan(net.maxpool(p3, 2, 2), 128, 256)
    x = elan(net.maxpool(p4, 2, 2), 256, 512)
    beside, y = conv(x, 256), conv(x, 256)
    pools = [net.maxpool(y, size, 1, size // 2) for size in (13, 9, 5)]
    top = conv(net.concat(conv(net.concat(*pools, y), 256), beside), 256)
    middle = elan(net.concat(conv(p4, 128), net.upsample(conv(top, 128))), 64, 128)
    small = elan(net.concat(conv(p3, 64), net.upsample(conv(middle, 64))), 32, 64)
    medium = elan(net.concat(conv(small, 128, 3, 2), middle), 64, 128)
    large = elan(net.concat(conv(medium, 256, 3, 2), top), 128, 256)
    heads = ((small, 128), (medium, 256), (large, 512))
    return net.finish(*(net.conv(conv(x, channels, 3), OUTPUTS, act="sigmoid") for x, channels in heads))
