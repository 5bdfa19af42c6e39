"""The test models compute what they claim, according to onnxruntime and onnx alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.onnx_models import cnn, light, oracle, qdq, transformers

TINY_BUILDERS: dict[str, Callable[[int], onnx.ModelProto]] = {
    "resnet": lambda seed: cnn.resnet((1, 1), seed=seed, image=32, classes=10, width=8),
    "mobilenet": lambda seed: cnn.mobilenet(
        ((1, 8, 1, 1), (6, 8, 2, 2)), seed=seed, image=24, stem=8, head=16, classes=10
    ),
    "unet_transpose": lambda seed: cnn.unet(seed=seed),
    "unet_nearest": lambda seed: cnn.unet(seed=seed, upsample="nearest"),
    "unet_linear": lambda seed: cnn.unet(seed=seed, upsample="linear"),
    "gpt_where": lambda seed: transformers.gpt(transformers.GPT_TINY, seed=seed),
    "gpt_trilu": lambda seed: transformers.gpt(transformers.GPT_TINY, seed=seed, mask="trilu"),
    "gpt_step": lambda seed: transformers.gpt(transformers.GPT_TINY_STEP, seed=seed),
}


@pytest.mark.parametrize("name", light.SMALLEST_FIRST[:4])
def test_shipped_light_models_give_their_shipped_outputs(name: str) -> None:
    case = light.load(name)
    outputs = oracle.runtime_outputs(case.model, case.inputs)
    assert outputs.keys() == case.expected.keys()
    for output, expected in case.expected.items():
        np.testing.assert_allclose(outputs[output], expected, rtol=case.rtol, atol=case.atol)


def test_every_light_model_is_named_and_no_other() -> None:
    shipped = {path.name for path in light.directory().glob("*.onnx")}
    assert shipped == {f"light_{name}.onnx" for name in light.NAMES}
    assert sorted(light.SMALLEST_FIRST) == sorted(light.NAMES)
    with pytest.raises(ValueError, match=r"must be one of bvlc_alexnet, .*got 'lenet'"):
        light.load("lenet")


LARGE = ("squeezenet", "inception_v2", "densenet121", "resnet50")


@pytest.mark.parametrize("name", ["shufflenet", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_randomised_outputs_tell_classes_and_inputs_apart(name: str) -> None:
    model = light.randomised(name, 1)
    assert not [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    first = oracle.runtime_outputs(model, oracle.random_inputs(model, 2))
    second = oracle.runtime_outputs(model, oracle.random_inputs(model, 3))
    for output, values in first.items():
        assert len(np.unique(values)) > 700
        assert values.max() < 0.5 or name == "densenet121", "a saturated softmax hides what came before it"
        assert oracle.relative_error(second[output], values) > 5e-3


def test_randomised_is_a_function_of_its_seed() -> None:
    first, again, other = (light.randomised("squeezenet", seed).SerializeToString() for seed in (5, 5, 6))
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", TINY_BUILDERS)
def test_builders_are_functions_of_their_seed_and_agree_with_the_onnx_reference(name: str) -> None:
    model = TINY_BUILDERS[name](3)
    assert model.SerializeToString() == TINY_BUILDERS[name](3).SerializeToString()
    assert model.SerializeToString() != TINY_BUILDERS[name](4).SerializeToString()
    inputs = oracle.random_inputs(model, 1)
    outputs = oracle.runtime_outputs(model, inputs)
    reference = ReferenceEvaluator(model).run(None, inputs)
    for (output, values), expected in zip(outputs.items(), reference, strict=True):
        assert oracle.relative_error(values, expected) < 1e-4, output
        assert np.std(values) > 1e-2


def test_resnet50_has_the_size_of_resnet50() -> None:
    model = cnn.resnet()
    weights = sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert 25.4e6 < weights < 25.6e6
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 53


@pytest.mark.parametrize("fused", [False, True], ids=["decomposed", "fused"])
def test_bert_ignores_padding(fused: bool) -> None:
    sizes = transformers.BERT_TINY
    model = transformers.bert(sizes, fused_norm=fused)
    assert any(node.op_type == "LayerNormalization" for node in model.graph.node) == fused
    inputs = transformers.bert_inputs(sizes, 0)
    (states,) = oracle.runtime_outputs(model, inputs).values()
    assert states.shape == (1, sizes.sequence, sizes.hidden)
    padded = {**inputs, "input_ids": inputs["input_ids"].copy()}
    padded["input_ids"][0, -1] += 1 if padded["input_ids"][0, -1] == 0 else -1
    (changed,) = oracle.runtime_outputs(model, padded).values()
    np.testing.assert_allclose(changed[0, :-1], states[0, :-1], atol=1e-6)
    assert oracle.relative_error(changed, states) > 0.05


@pytest.mark.parametrize("mask", ["where", "trilu"])
def test_gpt_is_causal(mask: str) -> None:
    model = transformers.gpt(transformers.GPT_TINY, seed=9, mask=mask)
    x = oracle.random_inputs(model, 0)["x"]
    (states,) = oracle.runtime_outputs(model, {"x": x}).values()
    changed = x.copy()
    changed[0, -1] = x[0, -1, ::-1]
    (other,) = oracle.runtime_outputs(model, {"x": changed}).values()
    np.testing.assert_allclose(states[0, :-1], other[0, :-1], atol=1e-6)
    assert oracle.relative_error(other, states) > 0.05


def test_a_cached_gpt_step_continues_where_a_longer_one_ended() -> None:
    long = transformers.gpt(transformers.GptSizes(layers=2, hidden=32, heads=4, sequence=8, past=4), seed=9)
    step = transformers.gpt(transformers.GptSizes(layers=2, hidden=32, heads=4, sequence=1, past=11), seed=9)
    inputs = oracle.random_inputs(long, 0)
    states, *presents = oracle.runtime_outputs(long, inputs).values()
    pasts = [name for name in oracle.graph_inputs(step) if name != "x"]
    assert pasts == ["past_key_0", "past_value_0", "past_key_1", "past_value_1"]
    cached = {name: array[:, :, :11] for name, array in zip(pasts, presents, strict=True)}
    last, *_ = oracle.runtime_outputs(step, {"x": inputs["x"][:, -1:], **cached}).values()
    assert oracle.relative_error(last, states[:, -1:]) < 1e-5


@pytest.mark.parametrize("activation", list(qdq.ACTIVATIONS))
def test_small_qdq_is_quantised_per_channel_and_runtimes_agree_within_a_step(activation: str, tmp_path: Path) -> None:
    model = qdq.small(tmp_path, activation=activation)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = [stored[node.input[0]] for node in model.graph.node if node.input[0] in stored]
    assert {tensor.data_type for tensor in weights} == {onnx.TensorProto.INT8, onnx.TensorProto.INT32}
    assert all(len(stored[node.input[1]].dims) == 1 for node in model.graph.node if node.input[0] in stored)
    zeros = {stored[node.input[2]].data_type for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert zeros == {onnx.TensorProto.INT8 if activation == "int8" else onnx.TensorProto.UINT8}
    inputs = oracle.random_inputs(model, 1)
    (fused,) = oracle.runtime_outputs(model, inputs).values()
    (plain,) = oracle.runtime_outputs(model, inputs, optimise=False).values()
    assert oracle.share_within(fused, plain, qdq.output_scale(model)) > 0.95
    assert len(np.unique(plain)) > 15
    assert not list(tmp_path.iterdir()), "the quantiser's working files must not stay"


def test_oracle_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(ValueError, match="input 'input_ids': must be float32"):
        oracle.random_inputs(transformers.bert(transformers.BERT_TINY), 0)
    with pytest.raises(AssertionError, match="shape must be"):
        oracle.relative_error(np.zeros(3, np.float32), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="must come from a DequantizeLinear"):
        qdq.output_scale(cnn.unet())
    assert oracle.share_within(np.array([0.0, 2.0]), np.array([1.0, 0.0]), 1.0) == 0.5
