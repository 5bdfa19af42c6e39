"""Compatibility of devices by status, and its cost."""

from __future__ import annotations

from functools import partial

import pytest
from onnx import TensorProto, helper

from hal.onnxifi import engine
from hal.onnxifi.status import Status
from npusim.compiler import pipeline
from npusim.frontends.onnx.versions import has_converter
from npusim.isa import emitted
from tests.support.call_counts import calls_of
from tests.support.onnxifi import models
from tests.support.onnxifi.engine_client import status_of

MOST_CALLS = 20_000
"""For a model of one node, which is compiled; bench.onnxifi measures the time. Up to 8051 here, and more if other tests
have read the same description, because cached results are then compared."""


def compatible(model, device=0):
    try:
        return Status(engine.compatibility(device, model))
    except Exception as error:  # noqa: BLE001 - its status is what is looked at
        return error.status


def one_node(op, inputs, outputs, **attributes):
    names = [f"x{index}" for index in range(len(inputs))]
    results = [f"y{index}" for index in range(len(outputs))]
    node = helper.make_node(op, names, results, **attributes)
    ins = [models.tensor(name, shape) for name, shape in zip(names, inputs, strict=True)]
    outs = [models.tensor(name, shape) for name, shape in zip(results, outputs, strict=True)]
    return models.model([node], ins, outs)


NODES = {
    "relu": one_node("Relu", [(1, 64, 56, 56)], [(1, 64, 56, 56)]),
    "conv": one_node("Conv", [(1, 64, 56, 56), (64, 64, 3, 3)], [(1, 64, 56, 56)], pads=[1, 1, 1, 1]),
    "depthwise": one_node("Conv", [(1, 64, 56, 56), (64, 1, 3, 3)], [(1, 64, 54, 54)], group=64),
    "gemm": one_node("Gemm", [(8, 2048), (2048, 1000), (1000,)], [(8, 1000)]),
    "softmax": one_node("Softmax", [(8, 1000)], [(8, 1000)]),
    "pool": one_node("MaxPool", [(1, 64, 56, 56)], [(1, 64, 28, 28)], kernel_shape=[2, 2], strides=[2, 2]),
}


@pytest.mark.parametrize("name", NODES)
def test_one_node_is_answered_in_few_calls(name, monkeypatch):
    monkeypatch.setattr(pipeline, "emit", emitted.emit)  # undo the verification that all tests add to each compilation
    assert compatible(NODES[name], 1) is Status.SUCCESS
    assert calls_of(partial(engine.compatibility, 1, NODES[name])) <= MOST_CALLS


def test_no_part_of_the_device_is_switched_on_for_an_answer():
    assert compatible(NODES["conv"]) is Status.SUCCESS
    assert engine.devices()[0].live_executor() is None


def test_grouped_convolutions_are_native_and_recurrent_layers_are_decomposed():
    assert compatible(NODES["depthwise"]) is Status.SUCCESS
    assert compatible(models.lstm()) is Status.FALLBACK
    attention = one_node("MeanVarianceNormalization", [(1, 2, 4, 4)], [(1, 2, 4, 4)])
    assert compatible(attention) is Status.FALLBACK


@pytest.mark.parametrize(
    ("node", "status"),
    [
        (one_node("LpNormalization", [(2, 3)], [(2, 3)]), Status.FALLBACK),  # a norm, then a division by it
        (one_node("Hardmax", [(2, 3)], [(2, 3)]), Status.FALLBACK),
        (one_node("Split", [(4, 3)], [(2, 3), (2, 3)]), Status.FALLBACK),  # one copy for each part
        (one_node("Split", [(4, 3)], [(4, 3)]), Status.SUCCESS),
        (one_node("MaxPool", [(1, 2, 8, 8)], [(1, 2, 4, 4)], kernel_shape=[2, 2], strides=[2, 2]), Status.SUCCESS),
        (one_node("HardSwish", [(2, 3)], [(2, 3)]), Status.SUCCESS),  # steps on the same tile
        (one_node("Transpose", [(2, 3)], [(3, 2)]), Status.SUCCESS),
    ],
    ids=["norm", "hardmax", "parts", "one part", "pool", "steps", "transposed"],
)
def test_an_operator_that_becomes_several_of_the_device_is_a_fallback(node, status):
    """In both statuses, whatever else is in the model."""
    assert compatible(node, 1) is status
    made, graph = engine.init_graph(engine.init_backend(1, ()), (), node, None)
    engine.release_graph(graph)
    assert Status(made) is status


def test_what_is_done_with_the_operator_in_front_is_not_several():
    nodes = [helper.make_node("Gemm", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    inputs = [models.tensor("x", (4, 8)), models.tensor("w", (8, 2))]
    assert compatible(models.model(nodes, inputs, [models.tensor("y", (4, 2))]), 1) is Status.SUCCESS


def test_inputs_that_cannot_come_as_weights_any_more_are_not_waited_for():
    """Weights are initializers or descriptors; if all inputs were weights, nothing would remain to run."""
    node = helper.make_node("Range", ["start", "limit", "delta"], ["y"])
    numbers = [models.tensor(name, (), TensorProto.INT32) for name in node.input]
    result = [models.tensor("y", ("n",), TensorProto.INT32)]
    assert compatible(models.model([node], numbers, result)) is Status.UNSUPPORTED_SHAPE
    reshape = helper.make_node("Reshape", ["x", "shape"], ["t"])
    add = helper.make_node("Add", ["t", "b"], ["y"])
    inputs = [models.tensor("x", (2, 3)), models.tensor("shape", (1,), TensorProto.INT64)]
    ends = [*inputs, models.tensor("b", (6,))], [models.tensor("y", (6,))]
    assert compatible(models.model([reshape, add], *ends)) is Status.SUCCESS
    weight = helper.make_tensor("b", TensorProto.FLOAT, (6,), [0.0] * 6)
    assert compatible(models.model([reshape, add], *ends, initializers=[weight])) is Status.UNSUPPORTED_SHAPE


def test_what_does_not_fit_the_device_is_not_compatible(tmp_path, monkeypatch):
    (tmp_path / "little.toml").write_text('inherit = "tiny"\n[host]\ncompile_bytes = 65536\n')
    monkeypatch.setenv("NPUSIM_ONNXIFI_BACKENDS", f"{tmp_path}/little.toml")
    many = one_node("Gemm", [(512, 512), (512, 512)], [(512, 512)])
    assert compatible(many) is Status.UNSUPPORTED_SHAPE
    assert status_of(engine.init_graph, engine.init_backend(0, ()), (), many, None) is Status.UNSUPPORTED_SHAPE


def test_values_that_may_come_as_weights_are_not_asked_for():
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs = [models.tensor("x", (2, 3)), models.tensor("shape", (1,), TensorProto.INT64)]
    model = models.model([node], inputs, [models.tensor("y", (6,))])
    assert compatible(model) is Status.SUCCESS
    assert status_of(engine.init_graph, engine.init_backend(0, ()), (), model, None) is Status.UNSUPPORTED_SHAPE


@pytest.mark.parametrize("shape", [("N", 3), ("N", "M"), (None, 3), None])
def test_open_dimensions_wait_for_their_sizes(shape):
    assert compatible(models.unary(shape=shape)) is Status.SUCCESS
    if shape is not None:
        assert compatible(models.unary("NoSuchOperator", shape=shape)) is Status.UNSUPPORTED_OPERATOR
        assert compatible(models.unary("Cast", shape=shape, to=11)) is Status.UNSUPPORTED_DATATYPE


def test_a_device_without_the_unit_or_the_type_refuses(tmp_path, monkeypatch):
    (tmp_path / "narrow.toml").write_text('inherit = "tiny"\n[matrix]\nthroughput = { int8 = 1, float32 = 0 }\n')
    monkeypatch.setenv("NPUSIM_ONNXIFI_BACKENDS", f"{tmp_path}/narrow.toml")
    assert compatible(models.unary()) is Status.SUCCESS
    assert compatible(NODES["gemm"]) is Status.UNSUPPORTED_DATATYPE


def test_more_than_the_devices_memory_is_an_unsupported_shape():
    nbytes = engine.devices()[0].config.dram.bytes
    assert compatible(models.too_large(nbytes)) is Status.UNSUPPORTED_SHAPE
    assert compatible(models.too_large(nbytes // 4)) is Status.SUCCESS


def test_intermediate_declarations_are_compared_too():
    nodes = [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    ends = [models.tensor("x", (2, 3))], [models.tensor("y", (2, 3))]
    for declared, status in (
        (models.tensor("t", (2, 3)), Status.SUCCESS),
        (models.tensor("t", (3, 2)), Status.MISMATCHING_SHAPE),
        (models.tensor("t", (2, 3), TensorProto.INT8), Status.MISMATCHING_DATATYPE),
    ):
        assert compatible(models.model(nodes, *ends, value_info=[declared])) is status


@pytest.mark.parametrize("elements", [(1 << 40) + 1, 1 << 62])
def test_more_elements_than_there_can_be_are_an_unsupported_shape(elements):
    assert compatible(models.unary(shape=(elements,))) is Status.UNSUPPORTED_SHAPE
    grown = helper.make_node("Expand", ["x", "shape"], ["t"])
    made = helper.make_node("Constant", [], ["shape"], value_ints=[elements])
    rest = helper.make_node("ReduceSum", ["t"], ["y"], keepdims=0)
    model = models.model([made, grown, rest], [models.tensor("x", (1,))], [models.tensor("y", ())])
    assert compatible(model) is Status.UNSUPPORTED_SHAPE


@pytest.mark.parametrize(("op", "kind"), [("Relu", TensorProto.INT32), ("Mean", TensorProto.BOOL)])
def test_a_type_that_the_operator_is_not_defined_for_is_an_invalid_model(op, kind):
    node = helper.make_node(op, ["x"], ["y"])
    ends = [models.tensor("x", (2, 3), kind)], [models.tensor("y", (2, 3), kind)]
    assert compatible(models.model([node], *ends, opset=13)) is Status.INVALID_MODEL


@pytest.mark.skipif(not has_converter(), reason="this onnx converts nothing that may be damaged")
def test_old_operator_sets_are_converted():
    node = helper.make_node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    ends = [models.tensor("x", (2, 3, 4)), models.tensor("b", (3,))], [models.tensor("y", (2, 3, 4))]
    assert compatible(models.model([node], *ends, opset=6)) is Status.SUCCESS
    assert compatible(models.model([node], *ends, opset=7)) is Status.INVALID_MODEL
    node = helper.make_node("Greater", ["x", "b"], ["y"], broadcast=1)
    ends = [models.tensor("x", (2, 3)), models.tensor("b", (3,))], [models.tensor("y", (2, 3), TensorProto.BOOL)]
    assert compatible(models.model([node], *ends, opset=6)) is Status.UNSUPPORTED_VERSION
