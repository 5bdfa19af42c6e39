"""Networks with narrow types: 16-bit activations and dynamic scales from onnxruntime's tools, and 4-bit weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.support.onnx_models.oracle import Array
from tests.support.onnx_models.qdq import Samples

INT4_OPSET = 21
"""First opset with 4-bit tensors."""


def activations_of_16_bits(
    model: onnx.ModelProto, inputs: dict[str, Array], cache: Path, *, activation: QuantType = QuantType.QUInt16
) -> onnx.ModelProto:
    """Quantise to QDQ with per-channel int8 weights, calibrated on one input."""
    with _tool(model, cache) as (source, target):
        prepared = cache / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(target), Samples([inputs]), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=activation, weight_type=QuantType.QInt8,
        )  # fmt: skip
        return onnx.load(target)


def dynamic(model: onnx.ModelProto, cache: Path) -> onnx.ModelProto:
    """Quantise with a DynamicQuantizeLinear before every integer product."""
    with _tool(model, cache) as (source, target):
        quantize_dynamic(str(source), str(target))
        return onnx.load(target)


def weights_of_4_bits(model: onnx.ModelProto, *, block: int) -> onnx.ModelProto:
    """Convert every weight to INT4 followed by a DequantizeLinear.

    Convolutions and transposed Gemm weights get a scale per output channel, other products one per ``block`` rows.
    """
    model = version_converter.convert_version(model, INT4_OPSET)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in stored:
            name = node.input[1]
            weights = numpy_helper.to_array(stored[name])
            channels_first = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
            if channels_first:
                rows = weights.reshape(len(weights), -1)
                scale, attributes = np.abs(rows).max(axis=1) / 7, {"axis": 0}
                spread = scale.reshape(-1, *[1] * (weights.ndim - 1))
            else:
                padded = np.pad(weights, ((0, -len(weights) % block), (0, 0)))
                scale = np.abs(padded.reshape(-1, block, weights.shape[1])).max(axis=1) / 7
                attributes = {"axis": 0, "block_size": block}
                spread = np.repeat(scale, block, axis=0)[: len(weights)]
            values = np.clip(np.rint(weights / spread), -8, 7).astype(np.int8)
            quantised = helper.make_tensor(f"{name}_q", TensorProto.INT4, values.shape, values.reshape(-1).tolist())
            model.graph.initializer.extend([quantised, numpy_helper.from_array(scale.astype(np.float32), f"{name}_s")])
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s"], [f"{name}_d"], **attributes))
            node.input[1] = f"{name}_d"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.ir_version = max(model.ir_version, 10)
    return model


@contextmanager
def _tool(model: onnx.ModelProto, cache: Path) -> Iterator[tuple[Path, Path]]:
    """Provide files for a tool and suppress its output."""
    cache.mkdir(parents=True, exist_ok=True)
    source, target = cache / "source.onnx", cache / "target.onnx"
    onnx.save(model, source)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield source, target
    finally:
        root.setLevel(level)
