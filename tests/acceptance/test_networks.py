"""Real networks on simulated devices, compared with shipped outputs and onnxruntime. Minutes: ``pytest -m
acceptance``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.onnx_models import cnn, light, oracle, qdq, transformers
from tests.support.onnx_models.simulation import matrix_macs, simulate

pytestmark = pytest.mark.acceptance

DEVICES = ("edge", "server", "tiny")
LARGEST_ERROR = 1e-3  # of the largest output


@pytest.fixture(scope="session")
def qdq_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qdq")


def check(model: onnx.ModelProto, inputs: dict[str, oracle.Array], config: str) -> None:
    """Check that every output on the device is within LARGEST_ERROR of onnxruntime's."""
    expected = oracle.runtime_outputs(model, inputs)
    _, result = simulate(model, inputs, config)
    errors = {name: oracle.relative_error(result.outputs[name], array) for name, array in expected.items()}
    assert max(errors.values()) < LARGEST_ERROR, errors


@pytest.mark.parametrize("name", light.SMALLEST_FIRST)
@pytest.mark.parametrize("device", DEVICES)
def test_light_models_give_their_shipped_outputs(name: str, device: str) -> None:
    case = light.load(name)
    # Their weights repeat a few bytes, which counts as computing them: those of VGG-19 are 575 MB.
    _, result = simulate(case.model, case.inputs, device, **{"host.compile_bytes": "256 MiB"})
    assert result.outputs.keys() == case.expected.keys()
    for output, expected in case.expected.items():
        np.testing.assert_allclose(result.outputs[output], expected, rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("name", light.SMALLEST_FIRST)
@pytest.mark.parametrize("device", DEVICES)
def test_light_models_with_random_weights_agree_with_onnxruntime(name: str, device: str) -> None:
    model = light.randomised(name, 1)
    check(model, oracle.random_inputs(model, 2), device)


@pytest.mark.parametrize("activation", list(qdq.ACTIVATIONS))
def test_quantised_resnet50_is_computed_in_integers_and_agrees_within_a_step(activation: str, qdq_cache: Path) -> None:
    model = qdq.resnet50(qdq_cache, activation=activation)
    session = oracle.runtime_session(model)
    step = qdq.output_scale(model)
    shares = []
    for seed in (1, 2, 3):
        inputs = oracle.random_inputs(model, seed)
        (expected,) = session.run(None, inputs)
        program, result = simulate(model, inputs, "edge")
        (actual,) = result.outputs.values()
        shares.append(oracle.share_within(actual, expected, step))
        assert matrix_macs(program).keys() <= {"int8", "uint8"}, matrix_macs(program)
    assert np.mean(shares) >= 0.999, shares


@pytest.mark.parametrize("fused", [False, True], ids=["decomposed", "fused"])
def test_bert_base_agrees_with_onnxruntime(fused: bool) -> None:
    sizes = transformers.BERT_BASE
    check(transformers.bert(sizes, fused_norm=fused), transformers.bert_inputs(sizes, 1), "edge")


@pytest.mark.parametrize("mask", ["where", "trilu"])
@pytest.mark.parametrize("device", DEVICES)
def test_gpt_agrees_with_onnxruntime(mask: str, device: str) -> None:
    model = transformers.gpt(mask=mask)
    check(model, oracle.random_inputs(model, 1), device)


@pytest.mark.parametrize("device", DEVICES)
def test_mobilenet_agrees_with_onnxruntime(device: str) -> None:
    model = cnn.mobilenet()
    check(model, oracle.random_inputs(model, 1), device)


@pytest.mark.parametrize("upsample", ["ConvTranspose", "nearest", "linear"])
def test_unet_agrees_with_onnxruntime(upsample: str) -> None:
    model = cnn.unet(image=64, channels=16, depth=3, upsample=upsample)
    check(model, oracle.random_inputs(model, 1), "edge")
