"""Bindings and runs: views of client memory, snapshots, order, time, faults, removed devices."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

from hal.onnxifi import engine
from hal.onnxifi.constants import LogLevel
from hal.onnxifi.descriptor import array_at
from hal.onnxifi.status import OnnxifiError, Status
from npusim.faults import AtCommand, Fail, Fault
from tests.support.onnxifi import models
from tests.support.onnxifi.engine_client import backend, compute, describe, init, status_of


def bound(graph, x, y):
    return engine.set_io(graph, [describe("x", x)], [describe("y", y)])


def arrays(value=1.0):
    return np.full(models.SHAPE, value, np.float32), np.zeros(models.SHAPE, np.float32)


def test_memory_of_any_alignment_is_used_where_it_lies(runs):
    raw = np.zeros(2 * 24 + 3, np.uint8)
    x = array_at(raw.ctypes.data + 1, np.dtype(np.float32), models.SHAPE)
    y = array_at(raw.ctypes.data + 26, np.dtype(np.float32), models.SHAPE)
    graph = init(models.unary("Neg"))
    io = bound(graph, x, y)
    x[:] = np.arange(6, dtype=np.float32).reshape(models.SHAPE)  # after binding: it is the memory that is bound
    engine.start(graph, io, 0)
    assert runs.wait(0)[0] == Status.SUCCESS
    np.testing.assert_array_equal(y, -x)
    assert raw[0] == raw[25] == raw[-1] == 0


def test_a_binding_does_not_change_with_the_next_one(runs):
    graph = init(models.unary("Neg"))
    x1, y1 = arrays(1.0)
    x2, y2 = arrays(2.0)
    first, second = bound(graph, x1, y1), bound(graph, x2, y2)
    engine.start(graph, second, 2)
    engine.start(graph, first, 1)
    runs.wait(1)
    runs.wait(2)
    assert (y1 == -1).all()
    assert (y2 == -2).all()


@pytest.mark.parametrize("kind", [TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT8, TensorProto.FLOAT16])
def test_types_beside_float(runs, kind):
    dtype = {9: np.bool_, 7: np.int64, 2: np.uint8, 10: np.float16}[kind]
    x = np.array([[1, 0, 1], [0, 1, 1]], dtype)
    y = np.zeros_like(x)
    compute(runs, init(models.unary("Identity", kind)), {"x": x}, {"y": y})
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"name": "z"}, Status.INVALID_NAME),
        ({"shape": (0, 3)}, Status.INVALID_SHAPE),
        ({"shape": (1,) * 65}, Status.INVALID_SHAPE),
        ({"shape": (1 << 63, 1 << 63)}, Status.UNSUPPORTED_SHAPE),
        ({"shape": (3, 2)}, Status.MISMATCHING_SHAPE),
        ({"shape": (6,)}, Status.MISMATCHING_SHAPE),
        ({"data_type": 0}, Status.INVALID_DATATYPE),
        ({"data_type": 8}, Status.INVALID_DATATYPE),
        ({"data_type": 1 << 32 | 1}, Status.INVALID_DATATYPE),
        ({"data_type": 15}, Status.MISMATCHING_DATATYPE),
        ({"memory_type": 3}, Status.INVALID_MEMORY_TYPE),
        ({"memory_type": 8}, Status.UNSUPPORTED_MEMORY_TYPE),
        ({"buffer": 0}, Status.INVALID_MEMORY_LOCATION),
    ],
)
@pytest.mark.parametrize("side", ["x", "y"])
def test_a_wrong_descriptor(side, changes, status):
    graph = init(models.unary())
    x, y = arrays()
    descriptors = {"x": describe("x", x), "y": describe("y", y)}
    descriptors[side] = descriptors[side]._replace(**changes)
    assert status_of(engine.set_io, graph, [descriptors["x"]], [descriptors["y"]]) is status


def test_every_name_is_bound_once():
    graph = init(models.unary())
    x, y = (describe(name, array) for name, array in zip("xy", arrays(), strict=True))
    assert status_of(engine.set_io, graph, [], [y]) is Status.UNIDENTIFIED_NAME
    assert status_of(engine.set_io, graph, [x], []) is Status.UNIDENTIFIED_NAME
    assert status_of(engine.set_io, graph, [x, x], [y]) is Status.INVALID_NAME
    assert status_of(engine.set_io, graph, [x, y], [y]) is Status.INVALID_NAME


def test_time_is_modelled_and_adds_up(runs):
    graph = init(models.unary())
    io = bound(graph, *arrays())
    engine.start(graph, io, 0)
    runs.wait(0)
    times = []
    for number in (1, 2):  # the first run loads; later ones take the same time each
        engine.start(graph, io, number, True)
        status, timing, trace = runs.wait(number)
        cycles, run_ps, queued_ps, host_ps, total_ps = timing
        assert status == Status.SUCCESS
        assert run_ps + queued_ps + host_ps == total_ps
        assert cycles > 0
        assert trace
        assert all(0 <= start <= end <= run_ps for _, start, end in trace)
        times.append((timing, trace))
    assert times[0] == times[1]
    assert any("Relu" in name and "core0.vector" in name for name, _, _ in times[0][1])


def test_runs_of_a_device_end_in_their_order(runs):
    graphs = [init(models.unary(op)) for op in ("Relu", "Neg", "Abs")]
    ios = [bound(graph, *arrays()) for graph in graphs]
    for number in range(30):
        engine.start(graphs[number % 3], ios[number % 3], number)
    for number in range(30):
        assert runs.wait(number)[0] == Status.SUCCESS
    assert runs.order == list(range(30))


def test_threads_with_graphs_of_their_own(runs):
    failures = []

    def client(thread):
        graph = init(models.unary("Neg"))
        for turn in range(10):
            x, y = arrays(float(100 * thread + turn))
            status, *_ = compute(runs, graph, {"x": x}, {"y": y}, 1000 * thread + turn)
            if status != Status.SUCCESS or not np.array_equal(y, -x):
                failures.append((thread, turn, status))
        engine.release_graph(graph)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(runs.outcomes) == 60


def test_a_fault_of_the_device_is_the_runs_internal_error(runs):
    graph = init(models.unary())
    io = bound(graph, *arrays())
    graph.power.executor.faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Fail(fail="core0.dma0"))])
    engine.start(graph, io, 0)
    assert runs.wait(0)[0] == Status.INTERNAL_ERROR
    assert runs.unplugged == []
    engine.start(graph, io, 1)
    assert runs.wait(1)[0] == Status.SUCCESS


def test_a_device_that_goes_by_itself_is_reported(runs):
    graph = init(models.unary())
    io = bound(graph, *arrays())
    graph.power.executor.unplug()
    engine.start(graph, io, 0)
    assert runs.wait(0)[0] == Status.BACKEND_UNAVAILABLE
    assert runs.unplugged == [0]


def test_an_unplugged_device_comes_back_empty(runs):
    graph = init(models.unary())
    io = bound(graph, *arrays())
    engine.unplug(0)
    engine.start(graph, io, 0)
    assert runs.wait(0)[0] == Status.BACKEND_UNAVAILABLE
    assert status_of(engine.init_backend, 0, ()) is Status.BACKEND_UNAVAILABLE
    assert status_of(engine.init_backend, 1, ()) is Status.SUCCESS
    engine.plug(0)
    x, y = arrays(-2.0)
    assert compute(runs, init(models.unary("Abs")), {"x": x}, {"y": y}, 1)[0] == Status.SUCCESS
    assert (y == 2).all()
    engine.release_graph(graph)


def test_wrong_properties_of_backends():
    assert backend().optimization == 0
    assert engine.init_backend(0, ((1, 4), (2, 3))).optimization == 4
    with pytest.raises(OnnxifiError, match="LOG_LEVEL: must be 1 to 4, got 9"):
        engine.init_backend(0, ((2, 9),))
    assert status_of(engine.init_backend, 0, ((4, 1),)) is Status.UNSUPPORTED_PROPERTY


@pytest.fixture
def logger():
    found = logging.getLogger("npusim.onnxifi")
    level = found.level
    yield found
    found.setLevel(level)


def test_a_client_that_asks_for_more_log_gets_the_reason_of_every_failure(logger, caplog):
    engine.init_backend(0, ((2, LogLevel.INFO),))
    assert logger.getEffectiveLevel() == logging.INFO
    status_of(engine.info, 0, 9)
    assert "onnxGetBackendInfo: UNSUPPORTED_ATTRIBUTE: " in caplog.text
    assert caplog.text.count("UNSUPPORTED_ATTRIBUTE") == 1
    caplog.clear()
    engine.init_backend(0, ((2, LogLevel.ERROR),))
    status_of(engine.info, 0, 9)
    assert caplog.text == ""


def test_what_the_system_lacks_has_a_status_and_no_traceback(monkeypatch, caplog):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert status_of(engine.init_backend, 0, ()) is Status.NO_SYSTEM_RESOURCES
    monkeypatch.setattr("hal.onnxifi.device.Power", lambda config: bytes(1 << 62))
    assert status_of(engine.init_backend, 0, ()) is Status.NO_SYSTEM_MEMORY
    assert "Traceback" not in caplog.text


def test_an_output_may_be_an_input_as_it_is(runs):
    node = helper.make_node("Neg", ["x"], ["y"])
    ends = [models.tensor("x", models.SHAPE)], [models.tensor("y", models.SHAPE), models.tensor("x", models.SHAPE)]
    x = np.arange(6, dtype=np.float32).reshape(models.SHAPE)
    y, same = arrays(0)[1], np.ones(models.SHAPE, np.float32)
    assert compute(runs, init(models.model([node], *ends)), {"x": x}, {"y": y, "x": same})[0] == Status.SUCCESS
    np.testing.assert_array_equal(y, -x)
    np.testing.assert_array_equal(same, x)
    same[:] = 0
    bare = init(models.model([], [models.tensor("x", models.SHAPE)], [models.tensor("x", models.SHAPE)]))
    assert compute(runs, bare, {"x": x}, {"x": same}, 1)[0] == Status.SUCCESS
    np.testing.assert_array_equal(same, x)
