"""Graphs: weights, quantised tensors, open shapes, properties; what is copied, kept and released."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hal.onnxifi import engine
from hal.onnxifi.constants import GRAPH_PROPERTY_PRIORITY
from hal.onnxifi.graph import MAX_VARIANTS
from hal.onnxifi.status import OnnxifiError, Status
from npusim.runtime import Priority
from tests.support.onnxifi import models
from tests.support.onnxifi.engine_client import backend, compute, describe, init, quantized, status_of

RNG = np.random.default_rng(7)


def floats(*shape):
    return RNG.integers(-8, 8, shape).astype(np.float32)


def matmul(rows="N", kind=TensorProto.FLOAT):
    """Build x [rows, 4] @ w [4, 6] -> y."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return models.model([node], [models.tensor("x", (rows, 4)), models.tensor("w", (4, 6), kind)],
                        [models.tensor("y", (rows, 6))])  # fmt: skip


def test_weights_are_copied_before_the_call_returns(runs):
    w, x, y = floats(4, 6), floats(3, 4), np.zeros((3, 6), np.float32)
    product = x @ w
    graph = init(matmul(3), [describe("w", w)])
    w[:] = 0
    assert list(graph.inputs) == ["x"]
    assert compute(runs, graph, {"x": x}, {"y": y})[0] == Status.SUCCESS
    np.testing.assert_array_equal(y, product)


def test_without_descriptors_every_input_is_bound_later(runs):
    w, x, y = floats(4, 6), floats(3, 4), np.zeros((3, 6), np.float32)
    graph = init(matmul(3))
    assert list(graph.inputs) == ["x", "w"]
    compute(runs, graph, {"x": x, "w": w}, {"y": y})
    np.testing.assert_array_equal(y, x @ w)


def test_initializers_and_descriptors_exclude_each_other():
    w = np.ones(models.SHAPE, np.float32)
    model = models.add(initializer=True)
    assert list(init(model).inputs) == ["x"]
    assert status_of(engine.init_graph, backend(), (), model, [describe("w", w)]) is Status.INVALID_MODEL


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"name": "nobody"}, Status.INVALID_NAME),
        ({"name": None}, Status.INVALID_NAME),
        ({"shape": (4, 0)}, Status.INVALID_SHAPE),
        ({"shape": None}, Status.INVALID_SHAPE),
        ({"shape": (6, 4)}, Status.MISMATCHING_SHAPE),
        ({"shape": (4, 6, 1)}, Status.MISMATCHING_SHAPE),
        ({"data_type": 0}, Status.INVALID_DATATYPE),
        ({"data_type": 6}, Status.MISMATCHING_DATATYPE),
        ({"memory_type": 7}, Status.INVALID_MEMORY_TYPE),
        ({"memory_type": 2}, Status.UNSUPPORTED_MEMORY_TYPE),
        ({"buffer": 0}, Status.INVALID_MEMORY_LOCATION),
        ({"buffer": 0, "is_offline": True}, Status.INVALID_MEMORY_LOCATION),
    ],
)
def test_a_wrong_weight(changes, status):
    weight = describe("w", floats(4, 6), **changes)
    assert status_of(engine.init_graph, backend(), (), matmul(), [weight]) is status


def test_a_weight_occurs_once():
    weight = describe("w", floats(4, 6))
    assert status_of(engine.init_graph, backend(), (), matmul(), [weight, weight]) is Status.INVALID_NAME


def test_an_offline_weight_with_data_is_a_weight(runs):
    w, x, y = floats(4, 6), floats(3, 4), np.zeros((3, 6), np.float32)
    graph = init(matmul(3), [describe("w", w, is_offline=True)])
    compute(runs, graph, {"x": x}, {"y": y})
    np.testing.assert_array_equal(y, x @ w)


def reshape(kind):
    """Build x [2, 3] reshaped to a shape from a weight that is declared with a type."""
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    inputs = [models.tensor("x", (2, 3)), models.tensor("s", (1,), kind)]
    return models.model([node], inputs, [models.tensor("y", (6,))])


def test_the_declared_type_of_a_weight_counts_only_when_strict(monkeypatch):
    shape = describe("s", np.array([6], np.int64))
    assert status_of(engine.init_graph, backend(), (), reshape(TensorProto.INT64), [shape]) is Status.SUCCESS
    model = reshape(TensorProto.FLOAT)
    assert status_of(engine.init_graph, backend(), (), model, [shape]) is Status.MISMATCHING_DATATYPE
    monkeypatch.setenv("NPUSIM_ONNXIFI_LENIENT", "1")
    engine._State.settings = None
    assert status_of(engine.init_graph, backend(), (), model, [shape]) is Status.SUCCESS


# Quantised tensors


def dequantised(array, scales, biases, axis=0):
    group = array.shape[axis] // len(scales)
    form = [1] * array.ndim
    form[axis] = array.shape[axis]
    scale = np.repeat(np.asarray(scales, np.float32), group).reshape(form)
    bias = np.repeat(np.asarray(biases, np.int32), group).reshape(form)
    return (array.astype(np.int32) - bias).astype(np.float32) * scale


@pytest.mark.parametrize(
    ("kind", "scales", "biases", "axis"),
    [
        (np.int8, (0.5,), (3,), 1),
        (np.uint8, (0.5, 0.25), (128, 100), 0),
        (np.int8, (0.5, 0.25, 2.0), (1, -2, 3), 1),
        (np.int8, (0.5, 0.25, 2.0, 1.0, 4.0, 0.125), (0,) * 6, 1),
        (np.int32, (2.0,), (7,), 0),
    ],
)
def test_a_quantised_weight_stands_for_floats(runs, kind, scales, biases, axis):
    w = RNG.integers(0, 100, (4, 6)).astype(kind)
    x, y = floats(3, 4), np.zeros((3, 6), np.float32)
    graph = init(matmul(3), [quantized("w", w, scales, biases, axis)])
    compute(runs, graph, {"x": x}, {"y": y})
    np.testing.assert_allclose(y, x @ dequantised(w, scales, biases, axis), rtol=1e-5)


def test_inputs_and_outputs_may_be_quantised_outside(runs):
    x = RNG.integers(-100, 100, (2, 3)).astype(np.int8)
    y = np.zeros((2, 3), np.uint8)
    graph = init(models.unary())
    io = engine.set_io(graph, [quantized("x", x, (0.5,), (2,))], [quantized("y", y, (0.25,), (10,))])
    engine.start(graph, io, 5)
    assert runs.wait(5)[0] == Status.SUCCESS
    expected = np.clip(np.rint(np.maximum(dequantised(x, (0.5,), (2,)), 0) / 0.25) + 10, 0, 255)
    np.testing.assert_array_equal(y, expected.astype(np.uint8))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"scales": None}, Status.INVALID_MEMORY_LOCATION),
        ({"biases": None}, Status.INVALID_MEMORY_LOCATION),
        ({"quantization_axis": 2}, Status.INVALID_SHAPE),
        ({"quantization_axis": 1, "quantization_params": 4, "scales": (1.0,) * 4, "biases": (0,) * 4},
         Status.INVALID_SHAPE),
        ({"quantization_params": 5, "scales": (1.0,) * 5, "biases": (0,) * 5}, Status.INVALID_SHAPE),
        ({"scales": (0.0, 1.0)}, Status.INVALID_DATATYPE),
        ({"scales": (float("nan"), 1.0)}, Status.INVALID_DATATYPE),
        ({"biases": (0, 128)}, Status.INVALID_DATATYPE),
        ({"data_type": 1}, Status.INVALID_DATATYPE),
    ],
)  # fmt: skip
def test_wrong_quantisation(changes, status):
    weight = quantized("w", np.ones((4, 6), np.int8), (1.0, 2.0), (0, 0))._replace(**changes)
    assert status_of(engine.init_graph, backend(), (), matmul(), [weight]) is status


def test_parameters_that_are_not_counted_are_not_read(runs):
    weight = describe("w", floats(4, 6), quantization_axis=99, scales=(0.0,), biases=None)
    assert status_of(engine.init_graph, backend(), (), matmul(), [weight]) is Status.SUCCESS


def test_the_axis_does_not_matter_for_one_pair():
    weight = quantized("w", np.ones((4, 6), np.int8), (1.0,), (0,), axis=77)
    assert status_of(engine.init_graph, backend(), (), matmul(), [weight]) is Status.SUCCESS


def test_the_device_does_not_quantise_to_32_bits():
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.int32)
    call = engine.set_io, init(models.unary()), [describe("x", x)], [quantized("y", y, (0.5,), (0,))]
    assert status_of(*call) is Status.MISMATCHING_DATATYPE


def test_integers_that_the_model_declares_stay_what_they_are(runs):
    x, y = np.array([[-3, 0, 5]], np.int8), np.zeros((1, 3), np.int8)
    graph = init(models.unary("Abs", TensorProto.INT8, (1, 3)))
    io = engine.set_io(graph, [quantized("x", x, (0.5,), (1,))], [quantized("y", y, (0.5,), (1,))])
    engine.start(graph, io, 5)
    assert runs.wait(5)[0] == Status.SUCCESS
    assert y.tolist() == [[3, 0, 5]]


def test_data_in_another_file_has_no_meaning_here():
    model = onnx.ModelProto.FromString(models.add(initializer=True))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    data = model.SerializeToString()
    assert status_of(engine.compatibility, 0, data) is Status.INVALID_MODEL
    assert status_of(engine.init_graph, backend(), (), data, None) is Status.INVALID_MODEL


# Open shapes


def test_a_symbol_takes_any_size_and_each_size_is_compiled_once(runs):
    w = floats(4, 6)
    graph = init(matmul(), [describe("w", w)])
    programs = []
    for number, rows in enumerate((1, 5, 1, 17, 5)):
        x, y = floats(rows, 4), np.zeros((rows, 6), np.float32)
        io = engine.set_io(graph, [describe("x", x)], [describe("y", y)])
        engine.start(graph, io, number)
        assert runs.wait(number)[0] == Status.SUCCESS
        np.testing.assert_array_equal(y, x @ w)
        programs.append(io.request.program)
    assert programs[0] is programs[2]
    assert programs[1] is programs[4]
    assert len(set(map(id, programs))) == 3


def test_a_graph_keeps_so_many_programs_and_no_more(runs):
    graph = init(models.symbolic())
    for rows in range(1, MAX_VARIANTS + 4):
        x = floats(rows, 3)
        assert status_of(engine.set_io, graph, [describe("x", x)], [describe("y", np.zeros_like(x))]) is Status.SUCCESS
    assert len(graph._programs) == MAX_VARIANTS


def test_a_symbol_is_one_size_everywhere():
    node = helper.make_node("Add", ["a", "b"], ["y"])
    inputs = [models.tensor("a", ("N", 3)), models.tensor("b", ("N", 3))]
    graph = init(models.model([node], inputs, [models.tensor("y", ("N", 3))]))
    two, one = floats(2, 3), floats(1, 3)
    y = describe("y", np.zeros((2, 3), np.float32))
    assert status_of(engine.set_io, graph, [describe("a", two), describe("b", two)], [y]) is Status.SUCCESS
    mixed = [describe("a", two), describe("b", one)]
    assert status_of(engine.set_io, graph, mixed, [y]) is Status.MISMATCHING_SHAPE


def test_shapes_that_make_no_sense_for_the_model_are_refused_when_they_are_known():
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    inputs = [models.tensor("a", ("N", "K")), models.tensor("b", ("M", "L"))]
    graph = init(models.model([node], inputs, [models.tensor("y", ("P", "K"))]))
    a, b = describe("a", floats(2, 3)), describe("b", floats(4, 2))
    y = describe("y", np.zeros((6, 3), np.float32))
    assert status_of(engine.set_io, graph, [a, b], [y]) is Status.UNSUPPORTED_SHAPE
    b = describe("b", floats(4, 3))
    assert status_of(engine.set_io, graph, [a, b], [y]) is Status.SUCCESS
    short = describe("y", np.zeros((5, 3), np.float32))
    assert status_of(engine.set_io, graph, [a, b], [short]) is Status.MISMATCHING_SHAPE


# Properties and resources


def test_the_priority_is_a_property_of_the_graph():
    for value, priority in ((1, Priority.LOW), (2, Priority.MEDIUM), (3, Priority.HIGH)):
        assert init(models.unary(), properties=(GRAPH_PROPERTY_PRIORITY, value)).priority is priority
    assert init(models.unary(), properties=(4, GRAPH_PROPERTY_PRIORITY, 3)).priority is Priority.HIGH
    for wrong in (0, 4):
        call = engine.init_graph, backend(), (GRAPH_PROPERTY_PRIORITY, wrong), models.unary(), None
        assert status_of(*call) is Status.INVALID_PROPERTY


def test_a_graph_larger_than_the_device_has_no_device_memory():
    nbytes = engine.devices()[0].config.dram.bytes
    call = engine.init_graph, backend(), (), models.too_large(nbytes), None
    assert status_of(*call) is Status.NO_DEVICE_MEMORY


def test_graphs_give_their_memory_back():
    owner = backend()
    before = owner.power.executor.free_bytes
    array = np.ones((512, 512), np.float32)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ends = [models.tensor("x", (512, 512))], [models.tensor("y", (512, 512))]
    model = models.model([node], *ends, [numpy_helper.from_array(array, "w")])
    _, graph = engine.init_graph(owner, (), model, None)
    assert owner.power.executor.free_bytes <= before - array.nbytes
    engine.release_graph(graph)
    engine.release_graph(graph)
    assert owner.power.executor.free_bytes == before


def weighted(mebibytes):
    """Build a graph with this size of weights."""
    values = np.full((mebibytes << 18,), 2, np.float32)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    ends = [models.tensor("x", values.shape)], [models.tensor("y", values.shape)]
    return models.model([node], *ends, [numpy_helper.from_array(values, "w")])


def test_what_is_accepted_can_run_and_what_cannot_is_refused(runs, tmp_path, monkeypatch):
    (tmp_path / "small.toml").write_text('inherit = "tiny"\n[dram]\nbytes = "32 MiB"\n')
    monkeypatch.setenv("NPUSIM_ONNXIFI_BACKENDS", f"{tmp_path}/small.toml")
    owner, model = backend(), weighted(2)
    graphs = [engine.init_graph(owner, (), model, None)[1] for _ in range(13)]
    with pytest.raises(
        OnnxifiError, match=r"NO_DEVICE_MEMORY: program 'graph': 14 programs and a run of one of them need \d+ bytes"
    ):
        engine.init_graph(owner, (), model, None)
    x, y = np.full(2 << 18, 3, np.float32), np.zeros(2 << 18, np.float32)
    for number, graph in enumerate(graphs):  # there is room for a run beside all of them
        assert compute(runs, graph, {"x": x}, {"y": y}, number)[0] == Status.SUCCESS
        assert (y == 6).all()
    assert status_of(engine.init_graph, owner, (), model, None) is Status.NO_DEVICE_MEMORY
    engine.release_graph(graphs[0])
    assert status_of(engine.init_graph, owner, (), model, None) is Status.SUCCESS


def test_a_device_has_so_many_graphs(monkeypatch):
    monkeypatch.setattr("hal.onnxifi.power.MAX_GRAPHS", 2)
    graphs = [init(models.unary()) for _ in range(2)]
    call = engine.init_graph, graphs[0].backend, (), models.unary(), None
    assert status_of(*call) is Status.NO_DEVICE_RESOURCES
    engine.release_graph(graphs[0])
    assert status_of(*call) is Status.SUCCESS


def test_a_graph_that_fails_takes_no_place(monkeypatch):
    monkeypatch.setattr("hal.onnxifi.power.MAX_GRAPHS", 1)
    owner = backend()
    for _ in range(3):
        assert status_of(engine.init_graph, owner, (), models.bad_shape(), None) is Status.UNSUPPORTED_SHAPE
    assert status_of(engine.init_graph, owner, (), models.unary(), None) is Status.SUCCESS


def test_the_device_is_off_when_nothing_holds_it():
    graph = init(models.unary())
    device = engine.devices()[0]
    assert device.live_executor() is graph.power.executor
    del graph
    gc.collect()
    assert device.live_executor() is None


def test_an_error_says_what_and_where():
    with pytest.raises(OnnxifiError, match=r"MISMATCHING_SHAPE: 'w' is \[4, 6\] in the model, \(6, 4\) here"):
        engine.init_graph(backend(), (), matmul(), [describe("w", floats(6, 4))])
