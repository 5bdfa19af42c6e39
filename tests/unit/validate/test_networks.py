"""The networks have the sizes given in their papers, and their layers have the padding of frameworks."""

import math

import pytest

from npusim.validate.networks import NETWORKS
from npusim.validate.networks.build import Net
from npusim.validate.networks.classify import rounded

PUBLISHED = {  # input, millions of multiply-accumulates, millions of weights: papers and model cards, to their digits
    "mobilenet_v1": (224, 569, 4.2),
    "mobilenet_v2": (224, 300, 3.5),
    "resnet50_v1": (224, 4089, 25.5),
    "resnet152_v1": (224, 11514, 60.0),
    "vgg16": (224, 15470, 138.3),
    "vgg19": (224, 19632, 143.6),
    "densenet": (224, 3047, 10.8),
    "densenet121": (224, 2834, 7.9),
    "squeezenet": (224, 349, 1.2),
    "inception_v1": (224, 1498, 6.6),
    "inception_v3": (299, 5713, 23.8),
    "inception_v4": (299, 12254, 42.6),
    "inception_resnet_v2": (299, 13156, 55.7),
    "yolov5n": (640, 2234, 1.9),
    "yolov5s": (640, 8217, 7.2),
    "yolov5m": (640, 24436, 21.1),
    "yolov6n": (640, 5658, 4.6),
    "yolov6s": (640, 22483, 18.5),
    "yolov7_tiny": (640, 6850, 6.2),
    "yolov8n": (640, 4371, 3.1),
    "yolov8s": (640, 14301, 11.1),
    "yolov8m": (640, 39468, 25.9),
    "yolov5s_seg": (640, 13200, 7.6),
    "yolov8s_pose": (640, 15100, 11.6),
    "yolox_s": (640, 13400, 9.0),
    "yolox_m": (640, 36900, 25.3),
}


ROUNDED = {  # input, thousands of millions of multiply-accumulates, millions of weights: as far as they are published
    "ssd_mobilenet_v1": (300, 1.2, 6.8),  # arXiv 1704.04861, table 13
    "yolov5n_seg": (640, 7.1 / 2, 2.0),  # from here on: Ultralytics' tables, which count two operations per MAC
    "yolov5m_seg": (640, 70.8 / 2, 22.0),
    "yolov8m_pose": (640, 81.0 / 2, 26.4),
    "yolov8n_obb": (1024, None, 3.1),
    "yolov8s_obb": (1024, None, 11.4),
    "yolov8m_obb": (1024, None, 26.4),
}

PARAMETERS = {  # input, parameters as torchvision, Keras, timm and Ultralytics count them, outputs without a norm
    "mobilenet_v1": (224, 4_231_976, 0),
    "mobilenet_v2": (224, 3_504_872, 0),
    "resnet50_v1": (224, 25_557_032, 0),
    "resnet101_v1": (224, 44_549_160, 0),
    "resnet152_v1": (224, 60_192_808, 0),
    "vgg16": (224, 138_357_544, 4224),
    "vgg19": (224, 143_667_240, 5504),
    "squeezenet": (224, 1_235_496, 3944),  # version 1.1
    "inception_v1": (224, 6_624_904, 0),
    "inception_v3": (299, 23_834_568, 0),
    "inception_v4": (299, 42_679_816, 0),
    "inception_resnet_v2": (299, 55_843_464, 10 * 320 + 20 * 1088 + 10 * 2080),
    "yolov5n": (640, 1_872_157, 3 * 255),
    "yolov5s": (640, 7_235_389, 3 * 255),
    "yolov5m": (640, 21_190_557, 3 * 255),
    "yolov5s_seg": (640, 7_621_277, 3 * 351),
    "yolov8n": (640, 3_157_200 - 16, 3 * 144),  # 16: weights of distances, which are not a layer
    "yolov8s": (640, 11_166_560 - 16, 3 * 144),
    "yolov8m": (640, 25_902_640 - 16, 3 * 144),
    "yolov8n_seg": (640, 3_409_968 - 16, 3 * 176 + 64),
    "yolov8s_seg": (640, 11_821_056 - 16, 3 * 176 + 128),
    "yolov8m_seg": (640, 27_285_968 - 16, 3 * 176 + 192),
    "yolov8n_pose": (640, 3_295_470 - 16, 3 * 116),
    "yolox_s": (640, 8_968_255, 3 * 85),
    "yolox_m": (640, 25_326_495, 3 * 85),
}

SMALL = {
    "wav2letter": (1, 296, 39),
    "micronet_kws_m": (1, 49, 10, 1),
    "micronet_ad_m": (1, 32, 32, 1),
    "rnnoise": (1, 42),
}
"""Inputs of networks that do not take an RGB image."""


def macs(op):
    if op.kind == "conv":
        return op.output.size * math.prod(op.input(1).shape[1:])
    if op.kind == "conv_transpose":
        return op.input(0).size * math.prod(op.input(1).shape[1:])
    return op.output.size * op.input(0).shape[-1] if op.kind == "matmul" else 0


def size(name, shape):
    """Return millions of multiply-accumulates and of weights."""
    ops = NETWORKS[name].make(shape).ops
    weights = sum(op.input(1).size for op in ops if op.kind in ("conv", "conv_transpose", "matmul"))
    return sum(map(macs, ops)) / 1e6, weights / 1e6


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_size(name):
    image, products, weights = PUBLISHED[name]
    found = size(name, (1, image, image, 3))
    assert found == (pytest.approx(products, rel=0.005), pytest.approx(weights, abs=0.06))


@pytest.mark.parametrize("name", ROUNDED)
def test_networks_have_the_size_that_is_published_rounded(name):
    image, products, weights = ROUNDED[name]
    found, millions = size(name, (1, image, image, 3))
    assert products is None or found / 1e3 == pytest.approx(products, abs=0.05)
    assert millions == pytest.approx(weights, abs=0.051)


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_both_versions_of_a_resnet_have_the_same_layers(depth):
    """The second has strides and activations elsewhere, which have no weights."""
    first, second = (size(f"resnet{depth}_v{version}", (1, 224, 224, 3)) for version in (1, 2))
    assert first == second


def test_the_unet_has_the_parameters_of_the_tutorial():
    """With four numbers of a norm per output, except for the last layer and the end of the 16th block."""
    ops = NETWORKS["unet_mobilenet_v2"].make((1, 128, 128, 3)).ops
    layers = [op for op in ops if op.kind in ("conv", "conv_transpose")]
    outputs = sum(op.output.shape[-1] for op in layers)
    assert sum(op.input(1).size for op in layers) + 4 * (outputs - 3 - 320) + 3 == 6_504_227
    assert [op.input(1).shape[2:] for op in layers if op.kind == "conv_transpose"] == [(3, 3)] * 5


@pytest.mark.parametrize("version", [1, 2])
def test_detectors_have_boxes_on_six_maps(version):
    """Three boxes per pixel of the first map, six on the others: 1917, as in TensorFlow's models."""
    outputs = NETWORKS[f"ssd_mobilenet_v{version}"].make((1, 300, 300, 3)).outputs
    assert [x.shape[1] for x in outputs[::2]] == [19, 10, 5, 3, 2, 1]
    assert [math.prod(x.shape[1:]) // 4 for x in outputs[::2]] == [1083, 600, 150, 54, 24, 6]
    assert [x.shape[-1] // 91 for x in outputs[1::2]] == [3, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_published_parameters(name):
    """Exactly: every output of a convolution has a scale and a shift, or a bias; ours are folded."""
    image, published, plain = PARAMETERS[name]
    ops = NETWORKS[name].make((1, image, image, 3)).ops
    convolutions = [op.input(1) for op in ops if op.kind in ("conv", "conv_transpose")]
    dense = [op.input(1) for op in ops if op.kind == "matmul"]
    found = sum(weights.size for weights in (*convolutions, *dense))
    found += 2 * sum(weights.shape[0] for weights in convolutions) - plain
    found += sum(weights.shape[1] for weights in dense)
    # TensorFlow's networks tell 1001 classes apart, torchvision's 1000.
    found -= sum(weights.shape[0] + 1 for weights in dense if weights.shape[1] == 1001)
    assert found == published


def layers(name, shape):
    """Weights of convolutions and of products."""
    ops = NETWORKS[name].make(shape).ops
    return [[op.input(1) for op in ops if op.kind in kinds] for kinds in (("conv", "conv_transpose"), ("matmul",))]


@pytest.mark.parametrize(("size", "image", "millions"), [("s", 224, 5.44), ("m", 240, 6.90), ("l", 300, 10.59)])
def test_efficientnets_for_edge_have_the_parameters_of_timm(size, image, millions):
    convolutions, dense = layers(f"efficientnet_edgetpu_{size}", (1, image, image, 3))
    found = sum(weights.size for weights in (*convolutions, *dense))
    found += 2 * sum(weights.shape[0] for weights in convolutions)
    assert found / 1e6 == pytest.approx(millions, rel=0.003)


@pytest.mark.parametrize("name", ["micronet_kws_m", "micronet_ad_m"])
def test_layers_of_micronets_have_four_channels_at_a_time(name):
    """The search that found them had no others, because CMSIS-NN is slower on them (arXiv 2010.11267)."""
    convolutions, _ = layers(name, SMALL[name])
    assert {weights.shape[0] % 4 for weights in convolutions} == {0}


def test_widths_are_the_nearest_multiple_of_eight_of_nine_tenths_at_least():
    for tenths in range(1, 8000):
        channels = tenths / 10
        multiples = [width for width in range(8, int(channels) + 17, 8) if width >= 0.9 * channels]
        assert rounded(channels) == min(multiples, key=lambda width: (abs(width - channels), -width))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_can_be_made(name):
    assert NETWORKS[name].make(SMALL.get(name, (1, 320, 320, 3))).ops


@pytest.mark.parametrize(("name", "operations"), [("micronet_kws_m", 30.6), ("micronet_ad_m", 124.7)])
def test_micronets_have_the_published_operations(name, operations):
    assert 2 * sum(macs(op) for op in NETWORKS[name].make(SMALL[name]).ops) / 1e6 == pytest.approx(operations, rel=0.02)


def test_the_units_of_rnnoise_have_the_published_weights():
    gates = 3 * (24 * (24 + 24) + 48 * (90 + 48) + 96 * (114 + 96))
    assert size("rnnoise", SMALL["rnnoise"])[1] == (42 * 24 + gates + 96 * 22 + 24) / 1e6


def hw(x):
    return x.shape[1:3]


def test_padding_is_that_of_the_frameworks():
    net = Net("net")
    x = net.input(1, 7, 8, 3)
    assert hw(net.conv(x, 4, 3, 2)) == (4, 4)
    assert hw(net.conv(x, 4, 3, 2, "valid")) == (3, 3)
    assert hw(net.conv(x, 4, 3, 2, 1)) == (4, 4)
    assert hw(net.conv(x, 4, 3, dilation=2)) == (7, 8)
    assert hw(net.maxpool(x, 2, 2, "valid", ceil=True)) == (4, 4)
    assert hw(net.upconv(x, 4, 3, 2)) == (14, 16)
    assert hw(net.upsample(x)) == (14, 16)
    assert net.mean(x).shape == (1, 1, 1, 3)


def test_channels_are_joined_and_parted():
    net = Net("net")
    x = net.input(1, 4, 4, 6)
    assert net.concat(x, net.channels(x, 2, 3)).shape == (1, 4, 4, 9)
    assert net.dense(x, 5).shape == (1, 5)
