"""Small networks of every kind, and random graphs on random devices, compared with onnxruntime. Seconds, in every
run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

import npusim
from tests.support.examples import examples
from tests.support.onnx_models import cnn, oracle, qdq, random_models, transformers
from tests.support.onnx_models.random_models import RandomModel
from tests.support.onnx_models.simulation import matrix_macs, simulate
from tests.support.onnx_models.unsigned import unsigned
from tests.support.random_devices import config_overrides

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet": lambda: cnn.resnet((1, 1), image=32, classes=10, width=8),
    "mobilenet": lambda: cnn.mobilenet(((1, 8, 1, 1), (6, 8, 2, 2)), image=24, stem=8, head=16, classes=10),
    "unet_transpose": cnn.unet,
    "unet_nearest": lambda: cnn.unet(upsample="nearest"),
    "unet_linear": lambda: cnn.unet(upsample="linear"),
    "gpt_where": lambda: transformers.gpt(transformers.GPT_TINY),
    "gpt_trilu": lambda: transformers.gpt(transformers.GPT_TINY, mask="trilu"),
    "gpt_step": lambda: transformers.gpt(transformers.GPT_TINY_STEP),
}
relaxed = settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.mark.parametrize("device", ["tiny", "edge"])
@pytest.mark.parametrize("name", BUILDERS)
def test_small_networks_agree_with_onnxruntime(name: str, device: str) -> None:
    model = BUILDERS[name]()
    inputs = oracle.random_inputs(model, 1)
    _, result = simulate(model, inputs, device)
    for output, expected in oracle.runtime_outputs(model, inputs).items():
        assert oracle.relative_error(result.outputs[output], expected) < 1e-4, output


@pytest.mark.parametrize("fused", [False, True], ids=["decomposed", "fused"])
def test_small_bert_agrees_with_onnxruntime(fused: bool) -> None:
    model = transformers.bert(transformers.BERT_TINY, fused_norm=fused)
    inputs = transformers.bert_inputs(transformers.BERT_TINY, 1)
    (expected,) = oracle.runtime_outputs(model, inputs).values()
    _, result = simulate(model, inputs, "edge")
    (actual,) = result.outputs.values()
    assert oracle.relative_error(actual, expected) < 1e-4


@pytest.mark.parametrize("activation", list(qdq.ACTIVATIONS))
def test_small_quantised_net_is_computed_in_integers(activation: str, tmp_path: Path) -> None:
    model = qdq.small(tmp_path, activation=activation)
    inputs = oracle.random_inputs(model, 1)
    (expected,) = oracle.runtime_outputs(model, inputs).values()
    program, result = simulate(model, inputs, "edge")
    (actual,) = result.outputs.values()
    assert oracle.share_within(actual, expected, qdq.output_scale(model)) >= 0.97
    assert matrix_macs(program).keys() <= {"int8", "uint8"}, matrix_macs(program)


@given(random_models.float_models(), config_overrides())
@relaxed
def test_random_float_graphs_on_random_devices(case: RandomModel, overrides: dict[str, Any]) -> None:
    _, result = simulate(case.model, case.inputs, "tiny", **overrides)
    for name, expected in oracle.runtime_outputs(case.model, case.inputs, optimise=False).items():
        assert oracle.relative_error(result.outputs[name], expected) < 1e-4, name


@given(random_models.int8_models() | random_models.int32_models(), config_overrides())
@relaxed
def test_random_integer_graphs_on_random_devices(case: RandomModel, overrides: dict[str, Any]) -> None:
    _, result = simulate(case.model, case.inputs, "tiny", **overrides)
    for name, expected in oracle.runtime_outputs(unsigned(case.model), case.inputs, optimise=False).items():
        np.testing.assert_array_equal(result.outputs[name], expected, err_msg=name, strict=True)


@given(
    random_models.float_models() | random_models.int8_models(power_of_two=False), config_overrides(), config_overrides()
)
@relaxed
def test_results_do_not_depend_on_the_device(case: RandomModel, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Other tiles, units and dataflow change no bit."""
    one, other = (simulate(case.model, case.inputs, "tiny", **device)[1].outputs for device in (first, second))
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name, strict=True)


@given(random_models.models(), config_overrides())
@relaxed
def test_time_does_not_depend_on_arithmetic(case: RandomModel, overrides: dict[str, Any]) -> None:
    session = npusim.Session(npusim.load_config("tiny").with_(**overrides), cache_dir=False)
    program = session.compile(case.model)
    computed = session.run(program, case.inputs)
    timed = session.run(program, timing_only=True)
    assert not timed.outputs
    assert timed.timeline.digest() == computed.timeline.digest()
    assert timed.cycles == computed.cycles > 0
