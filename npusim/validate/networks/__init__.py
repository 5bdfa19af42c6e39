"""Public networks by name, built for any input shape: layers and their sizes, without values of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npusim.frontends.onnx import check_installed
from npusim.graph import Graph
from npusim.validate.networks import classify, detect, small
from npusim.validate.networks.classify import Shape

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["NETWORKS", "Network", "Shape"]


@dataclass(frozen=True, slots=True)
class Network:
    """A graph builder, and a remark about unpublished details. ``boxes``: the host decodes boxes afterwards."""

    make: Callable[[Shape], Graph]
    remark: str = ""
    boxes: bool = False

    def file(self, shape: Shape) -> ModelProto:
        """The network as a file of a quantiser: ONNX in QDQ format. Raises UsageError without the onnx package."""
        check_installed()
        from npusim.validate.networks.files import QdqExport

        return QdqExport(self.make(shape)).model()


def _resnet(version: int, blocks: tuple[int, ...]) -> Network:
    make = classify.resnet_v1 if version == 1 else classify.resnet_v2
    return Network(lambda shape: make(shape, blocks))


_BOXES = "boxes are decoded by the host, which is not included"
_HEADS = "operators after the last convolutions run on the host"

_V5 = {"n": (1 / 3, 1 / 4), "s": (1 / 3, 1 / 2), "m": (2 / 3, 3 / 4)}
_V8 = {"n": (1 / 3, 1 / 4, 1024), "s": (1 / 3, 1 / 2, 1024), "m": (2 / 3, 3 / 4, 768)}
"""Depth, width, and maximum channels before scaling by width."""


def _yolo_v5_seg(depth: float, width: float) -> Network:
    return Network(lambda shape: detect.yolo_v5(shape, depth, width, masks=32), _HEADS)


def _yolo_v8(depth: float, width: float, most: int, **heads: int) -> Network:
    return Network(lambda shape: detect.yolo_v8(shape, depth, width, most, **heads), _HEADS)


NETWORKS: dict[str, Network] = {
    "mobilenet_v1": Network(classify.mobilenet_v1),
    "mobilenet_v2": Network(classify.mobilenet_v2),
    "resnet50_v1": _resnet(1, classify.RESNET_50),
    "resnet50_v2": _resnet(2, classify.RESNET_50),
    "resnet101_v1": _resnet(1, classify.RESNET_101),
    "resnet101_v2": _resnet(2, classify.RESNET_101),
    "resnet152_v1": _resnet(1, classify.RESNET_152),
    "resnet152_v2": _resnet(2, classify.RESNET_152),
    "vgg16": Network(lambda shape: classify.vgg(shape, classify.VGG_16)),
    "vgg19": Network(lambda shape: classify.vgg(shape, classify.VGG_19)),
    # The file of that name from TensorFlow (lite/g3doc/guide/hosted_models.md) has 43.6 MB of float32. DenseNet-121 has
    # 31.9 MB and, without bottlenecks as in the first variant of the paper, 43.5 MB.
    "densenet": Network(
        lambda shape: classify.densenet(shape, bottleneck=False),
        "without bottlenecks, according to the size of TensorFlow's file",
    ),
    "densenet121": Network(classify.densenet),
    "squeezenet": Network(classify.squeezenet, "assumed to be version 1.1"),
    "inception_v1": Network(classify.inception_v1),
    "inception_v3": Network(classify.inception_v3),
    "inception_v4": Network(classify.inception_v4),
    "inception_resnet_v2": Network(classify.inception_resnet_v2),
    "efficientnet_b0": Network(classify.efficientnet_b0),
    "efficientnet_edgetpu_s": Network(classify.efficientnet_edgetpu),
    "efficientnet_edgetpu_m": Network(lambda shape: classify.efficientnet_edgetpu(shape, 1.0, 1.1)),
    "efficientnet_edgetpu_l": Network(lambda shape: classify.efficientnet_edgetpu(shape, 1.2, 1.4)),
    "ssd_mobilenet_v1": Network(detect.ssd_mobilenet_v1, _BOXES, boxes=True),
    "ssd_mobilenet_v2": Network(detect.ssd_mobilenet_v2, _BOXES, boxes=True),
    "unet_mobilenet_v2": Network(detect.unet_mobilenet_v2),
    "wav2letter": Network(small.wav2letter, "uncompressed weights; pruned and compressed ones take less flash"),
    "micronet_kws_m": Network(
        lambda shape: small.micronet(shape, (140, (10, 4)), ((140, 2), (140, 1), (140, 1), (112, 1), (196, 1)), 12)
    ),
    "micronet_ad_m": Network(
        lambda shape: small.micronet(shape, (192, 3), ((276, 2), (276, 1), (276, 1), (276, 2), (276, 2)), 8)
    ),
    "rnnoise": Network(small.rnnoise),
    "yolov5n": Network(lambda shape: detect.yolo_v5(shape, 1 / 3, 1 / 4), _HEADS),
    "yolov5s": Network(lambda shape: detect.yolo_v5(shape, 1 / 3, 1 / 2), _HEADS),
    # Profiles by operator of Rockchip's file of this name end with plain convolutions.
    "yolov5s_relu": Network(lambda shape: detect.yolo_v5(shape, 1 / 3, 1 / 2, act="relu", last=""), _HEADS),
    "yolov5m": Network(lambda shape: detect.yolo_v5(shape, 2 / 3, 3 / 4), _HEADS),
    **{f"yolov5{size}_seg": _yolo_v5_seg(*scale) for size, scale in _V5.items()},
    **{f"yolov8{size}_seg": _yolo_v8(*scale, extra=32, masks=32) for size, scale in _V8.items()},
    **{f"yolov8{size}_pose": _yolo_v8(*scale, classes=1, extra=51) for size, scale in _V8.items()},
    **{f"yolov8{size}_obb": _yolo_v8(*scale, classes=15, extra=1) for size, scale in _V8.items()},
    "yolox_s": Network(lambda shape: detect.yolox(shape, 1 / 3, 1 / 2), _HEADS),
    "yolox_m": Network(lambda shape: detect.yolox(shape, 2 / 3, 3 / 4), _HEADS),
    "yolov6n": Network(lambda shape: detect.yolo_v6(shape, 1 / 3, 1 / 4), _HEADS),
    "yolov6s": Network(lambda shape: detect.yolo_v6(shape, 1 / 3, 1 / 2), _HEADS),
    "yolov7_tiny": Network(detect.yolo_v7_tiny, _HEADS),
    **{f"yolov8{size}": _yolo_v8(*scale) for size, scale in _V8.items()},
}
