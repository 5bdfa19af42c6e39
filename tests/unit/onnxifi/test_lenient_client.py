"""A framework like real ONNXIFI clients: it sends invalid models, and releases objects in its own order."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hal import onnxifi
from hal.onnxifi import MemoryFenceV1, Optimization, Status, TensorDescriptorV1
from tests.support.onnxifi import models

RNG = np.random.default_rng(3)


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setenv("NPUSIM_ONNXIFI_LENIENT", "1")


def node(op, inputs, outputs, **attributes):
    """Every operator has an attribute that ONNX does not define."""
    return helper.make_node(op, inputs, outputs, net_pos=3, **attributes)


def network():
    """A graph without a name, of an old version, with weights listed as inputs; the type of the new shape is a
    guess."""
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("Reshape", ["r", "s"], ["y"]),
    ]
    inputs = [
        models.tensor("x", (2, 4)), models.tensor("w", (6, 4)), models.tensor("b", (6,)),
        models.tensor("s", (2,), TensorProto.FLOAT),
    ]  # fmt: skip
    return models.model(nodes, inputs, [models.tensor("y", (3, 4))], name="", opset=7, ir=7)


def partition_model():
    """One operator as queried for support: the shape is an initializer."""
    values = [numpy_helper.from_array(np.array([3, 4], np.int64), "s")]
    inputs = [models.tensor("r", (2, 6)), models.tensor("s", (2,), TensorProto.INT64)]
    nodes = [node("Reshape", ["r", "s"], ["y"])]
    return models.model(nodes, inputs, [models.tensor("y", (3, 4))], values, name="", opset=7, ir=7)


def weights():
    w, b = (RNG.integers(-4, 4, shape).astype(np.float32) for shape in ((6, 4), (6,)))
    found = [TensorDescriptorV1.of(name, array) for name, array in (("w", w), ("b", b), ("s", np.array([3, 4])))]
    for descriptor in found:  # never initialised by that client
        descriptor.quantizationAxis, descriptor.scales, descriptor.biases = 0xFFFF_FFFF, [float("nan")], [-9]
    return w, b, found


def test_strict_refuses_it():
    _, ids, _ = onnxifi.onnxGetBackendIDs(2)
    assert onnxifi.onnxGetBackendCompatibility(ids[1], partition_model()) == Status.INVALID_MODEL
    for backend_id in ids:
        onnxifi.onnxReleaseBackendID(backend_id)


def test_lenient_serves_it(lenient):
    assert onnxifi.onnxGetBackendIDs()[::2] == (Status.FALLBACK, 2)
    _, ids, _ = onnxifi.onnxGetBackendIDs(2)
    assert onnxifi.onnxGetBackendCompatibility(ids[1], partition_model()) == Status.SUCCESS
    _, again, _ = onnxifi.onnxGetBackendIDs(2)
    status, backend = onnxifi.onnxInitBackend(again[1], [0])
    assert status == Status.SUCCESS
    for backend_id in (*ids, again[0]):  # while the backend is in use
        assert onnxifi.onnxReleaseBackendID(backend_id) == Status.SUCCESS
    w, b, descriptors = weights()
    status, graph = onnxifi.onnxInitGraph(backend, [Optimization.AOT, 0], network(), descriptors, maxSeqLength=7)
    assert status == Status.SUCCESS
    for _ in range(3):
        x, y = RNG.integers(-4, 4, (2, 4)).astype(np.float32), np.zeros((3, 4), np.float32)
        assert run(backend, graph, TensorDescriptorV1.of("x", x), TensorDescriptorV1.of("y", y)) == Status.SUCCESS
        np.testing.assert_array_equal(y, np.maximum(x @ w.T + b, 0).reshape(3, 4))
    assert onnxifi.onnxReleaseGraph(graph) == Status.SUCCESS
    assert onnxifi.onnxReleaseBackend(backend) == Status.SUCCESS
    assert onnxifi.onnxReleaseBackendID(again[1]) == Status.SUCCESS


def run(backend, graph, x, y):
    """Use new addresses and new events each time."""
    assert onnxifi.onnxSetGraphIO(graph, [x], [y]) == Status.SUCCESS
    _, start = onnxifi.onnxInitEvent(backend)
    end = MemoryFenceV1(event=0xDEAD)
    assert onnxifi.onnxRunGraph(graph, MemoryFenceV1(start), end) == Status.SUCCESS
    assert onnxifi.onnxSignalEvent(start) == Status.SUCCESS
    status = onnxifi.onnxWaitEvent(end.event)
    assert onnxifi.onnxReleaseEvent(start) == onnxifi.onnxReleaseEvent(end.event) == Status.SUCCESS
    return status


def test_integers_with_one_pair_of_parameters_and_an_axis_of_one(lenient):
    """That client quantises along axis 1 for any rank."""
    _, ids, _ = onnxifi.onnxGetBackendIDs(2)
    _, backend = onnxifi.onnxInitBackend(ids[0])
    status, graph = onnxifi.onnxInitGraph(backend, None, models.unary("Neg", shape=(4,)))
    assert status == Status.SUCCESS
    x, y = np.array([1, 2, -3, 4], np.int8), np.zeros(4, np.float32)
    quantized = TensorDescriptorV1.of("x", x)
    quantized.quantizationAxis, quantized.quantizationParams = 1, 1
    quantized.scales, quantized.biases = [0.5], [1]
    assert run(backend, graph, quantized, TensorDescriptorV1.of("y", y)) == Status.SUCCESS
    assert y.tolist() == [0, -0.5, 2, -1.5]
    onnxifi.onnxReleaseGraph(graph)
    onnxifi.onnxReleaseBackend(backend)
    for backend_id in ids:
        onnxifi.onnxReleaseBackendID(backend_id)
