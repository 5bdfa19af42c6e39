"""Narrow types pay off: each gives the results of onnxruntime and is faster than the float32 network on ``edge``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import QuantType

import npusim
from tests.support.onnx_models import cnn, narrow_types, oracle, transformers
from tests.support.onnx_models.oracle import Array
from tests.support.onnx_models.simulation import matrix_macs, simulate

SMALL_BERT = transformers.BertSizes(layers=1, hidden=64, heads=2, sequence=16, intermediate=128, vocabulary=50)
LARGER_BERT = transformers.BertSizes(layers=2, hidden=128, heads=2, sequence=128, intermediate=512, vocabulary=1000)
Inputs = dict[str, Array]
Made = Callable[[onnx.ModelProto, Inputs, Path], onnx.ModelProto]
NARROW: dict[str, Made] = {
    "int4": lambda model, inputs, path: narrow_types.weights_of_4_bits(model, block=32),
    "uint16": narrow_types.activations_of_16_bits,
    "int16": lambda model, inputs, path: narrow_types.activations_of_16_bits(
        model, inputs, path, activation=QuantType.QInt16
    ),
    "dynamic": lambda model, inputs, path: narrow_types.dynamic(model, path),
}
MULTIPLIED = {"int4": "float32", "uint16": "uint16", "int16": "int16", "dynamic": "uint8"}


def network(name: str, *, small: bool) -> tuple[onnx.ModelProto, Inputs]:
    if name == "bert":
        sizes = SMALL_BERT if small else LARGER_BERT
        return transformers.bert(sizes), {str(k): v for k, v in transformers.bert_inputs(sizes, 1).items()}
    stages = ((1, 8, 1, 1), (6, 8, 2, 2))
    model = cnn.mobilenet(stages, image=24, stem=8, head=16, classes=10) if small else cnn.mobilenet()
    return model, oracle.random_inputs(model, 1)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("name", ["mobilenet", "bert"])
def test_small_networks_in_narrow_types_agree_with_onnxruntime(name: str, kind: str, tmp_path: Path) -> None:
    model, inputs = network(name, small=True)
    made = NARROW[kind](model, inputs, tmp_path)
    program, result = simulate(made, inputs, "edge")
    assert matrix_macs(program)[MULTIPLIED[kind]] > 0
    for output, expected in oracle.runtime_outputs(made, inputs, optimise=False).items():
        # Dynamic ranges depend on the last bit of a float: a value may move by one of 255 steps in each layer.
        assert oracle.relative_error(result.outputs[output], expected) < (3e-2 if kind == "dynamic" else 5e-3), output


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["mobilenet", "bert"])
def test_each_is_faster_than_float32(name: str, tmp_path: Path) -> None:
    model, inputs = network(name, small=False)
    session = npusim.Session(npusim.load_config("edge"), cache_dir=False)

    def cycles(model: onnx.ModelProto) -> int:
        return session.run(session.compile(model), inputs, timing_only=True).cycles

    plain = cycles(model)
    taken = {kind: cycles(make(model, inputs, tmp_path / kind)) for kind, make in NARROW.items()}
    assert {kind: count for kind, count in taken.items() if count >= plain} == {}, f"float32: {plain}, {taken}"
