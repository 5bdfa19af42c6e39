"""Each quantised node on its own inputs is within one step of onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

import npusim
from tests.support.onnx_models import cnn, narrow_types, oracle, qdq, transformers
from tests.support.onnx_models.quantised_nodes import quantised_nodes

SMALL_BERT = transformers.BertSizes(layers=1, hidden=64, heads=2, sequence=16, intermediate=128, vocabulary=50)
KINDS = ("uint8", "int8", "uint16", "int16", "operators", "dynamic")


def made(network: str, kind: str, folder: Path) -> tuple[onnx.ModelProto, dict[str, oracle.Array]]:
    """Build a network of a tool of onnxruntime, and inputs of it."""
    if network == "bert":
        model, inputs = transformers.bert(SMALL_BERT), dict(transformers.bert_inputs(SMALL_BERT, 1))
    else:
        model = cnn.mobilenet(((1, 8, 1, 1), (6, 8, 2, 2)), image=24, stem=8, head=16, classes=10)
        inputs = oracle.random_inputs(model, 1)
    if kind == "dynamic":
        return narrow_types.dynamic(model, folder), inputs
    if kind in ("uint16", "int16"):
        activation = QuantType.QUInt16 if kind == "uint16" else QuantType.QInt16
        return narrow_types.activations_of_16_bits(model, inputs, folder, activation=activation), inputs
    if kind == "operators":
        source, target = folder / "source.onnx", folder / "target.onnx"
        onnx.save(model, source)
        quantize_static(source, target, qdq.Samples([inputs]), quant_format=QuantFormat.QOperator)
        return onnx.load(target), inputs
    source, target = folder / "source.onnx", folder / "target.onnx"
    onnx.save(model, source)
    activation = QuantType.QInt8 if kind == "int8" else QuantType.QUInt8
    quantize_static(source, target, qdq.Samples([inputs]), activation_type=activation, weight_type=QuantType.QInt8)
    return onnx.load(target), inputs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", ["mobilenet", "bert"])
def test_nodes_are_within_a_step(network: str, kind: str, tmp_path: Path) -> None:
    model, inputs = made(network, kind, tmp_path)
    farthest: dict[str, int] = {}
    with npusim.Session("edge", cache_dir=False) as session:
        for node in quantised_nodes(model, inputs):
            found = session.run(node.model, node.inputs).outputs[node.name]
            assert found.dtype == node.expected.dtype
            distance = np.abs(found.astype(np.int64) - node.expected.astype(np.int64))
            farthest[node.name] = int(distance.max(initial=0))
    assert farthest
    assert {name: steps for name, steps in farthest.items() if steps > 1} == {}
