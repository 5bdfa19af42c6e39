"""The networks for comparing designs, as graphs with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.validate import networks as public
from tests.support.onnx_models import cnn, qdq
from tests.support.onnx_models.transformers import BertSizes, bert

SMALL_BERT = BertSizes(layers=2, hidden=256, heads=4, sequence=128, intermediate=1024, vocabulary=1000)
PREFILL = BertSizes(layers=2, hidden=1024, heads=16, sequence=512, intermediate=4096, vocabulary=1000)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all float32 values as float16, except the scales of Resize, which must be float32."""
    scales = {name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]}
    for index, tensor in enumerate(model.graph.initializer):
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in scales:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            model.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    return model


def _int8(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    return qdq.quantised(model, folder, activation="int8", seed=0)


NETWORKS: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "mobilenet_v1-int8": lambda folder: _int8(cnn.mobilenet_v1(), folder),
    "mobilenet_v2-int8": lambda folder: _int8(cnn.mobilenet(), folder),
    "mobilenet_v2-fp32": lambda folder: cnn.mobilenet(),
    "resnet50-int8": lambda folder: qdq.resnet50(folder, activation="int8"),
    "resnet50-fp16": lambda folder: half(cnn.resnet()),
    "yolo-int8": lambda folder: _int8(cnn.yolo(), folder),
    "yolo-fp16": lambda folder: half(cnn.yolo()),
    "unet-fp16": lambda folder: half(cnn.unet(image=128, channels=16, depth=3)),
    "bert-fp16": lambda folder: half(bert(SMALL_BERT, fused_norm=True)),
    "bert-fp32": lambda folder: bert(SMALL_BERT),
    "prefill-fp16": lambda folder: half(bert(PREFILL, fused_norm=True)),
}
"""Functions that build a model; the argument is a folder for files of the quantiser."""


PUBLIC = {
    "mobilenet_v1": (1, 224, 224, 3), "mobilenet_v2": (1, 224, 224, 3), "densenet": (1, 224, 224, 3),
    "squeezenet": (1, 224, 224, 3), "inception_v1": (1, 224, 224, 3), "efficientnet_edgetpu_s": (1, 224, 224, 3),
    "unet_mobilenet_v2": (1, 224, 224, 3), "yolov5s": (1, 320, 320, 3), "yolov8n": (1, 320, 320, 3),
}  # fmt: skip
"""Networks of ``npusim.validate.networks``, with the shape of an image."""


def network(name: str, folder: Path) -> Graph:
    """A network as a graph, public or built. A built model is stored in ``folder``, which is created, and read from
    there later."""
    if name in PUBLIC:
        graph = public.NETWORKS[name].make(PUBLIC[name])
        graph.name = name
        return graph
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    if not path.exists():
        partial = path.with_suffix(".partial")
        onnx.save(NETWORKS[name](folder), partial)
        partial.replace(path)
    graph = load(path)
    graph.name = name
    return graph
