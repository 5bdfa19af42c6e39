"""Events, order and lifetimes through hal.onnxifi: rules beyond the lines of the contract."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from hal import onnxifi
from hal.onnxifi import EventState, MemoryFenceV1, Status, TensorDescriptorV1
from npusim.faults import AtCommand, Fail, Fault
from tests.support.onnxifi import models
from tests.support.onnxifi.client import SOON, Client, in_thread
from tests.support.waits_and_leaks import asleep


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client(onnxifi)
    yield made
    made.close()


def arrays(value: float) -> tuple[np.ndarray, np.ndarray]:
    return np.full(models.SHAPE, value, np.float32), np.zeros(models.SHAPE, np.float32)


def bind(graph: int, x: np.ndarray, y: np.ndarray) -> None:
    assert onnxifi.onnxSetGraphIO(graph, [TensorDescriptorV1.of("x", x)], [TensorDescriptorV1.of("y", y)]) == 0


def run_after(client: Client, graph: int, event: int) -> int:
    end = MemoryFenceV1()
    assert onnxifi.onnxRunGraph(graph, MemoryFenceV1(event), end) == Status.SUCCESS
    client.keep_event(end.event)
    return end.event


def test_inputs_count_when_their_event_is_signalled(client: Client) -> None:
    graph = client.graph(models.unary("Neg"))
    x, y = arrays(1)
    bind(graph, x, y)
    start, end = client.run(graph, signal=False)
    x[:] = 5
    assert onnxifi.onnxGetEventState(end) == (Status.SUCCESS, EventState.NONSIGNALLED)
    onnxifi.onnxSignalEvent(start)
    assert onnxifi.onnxWaitEvent(end) == Status.SUCCESS
    assert (y == -5).all()


def test_an_event_feeds_several_runs_and_runs_feed_each_other(client: Client) -> None:
    first, second, third = (client.graph(models.unary(op)) for op in ("Neg", "Abs", "Relu"))
    x, a = arrays(3)
    b, c = arrays(0)[1], arrays(0)[1]
    bind(first, x, a)
    bind(second, a, b)
    bind(third, a, c)
    start = client.event()
    negated = run_after(client, first, start)
    ends = [run_after(client, second, negated), run_after(client, third, negated), run_after(client, first, start)]
    onnxifi.onnxSignalEvent(start)
    for event in (negated, *ends):
        assert onnxifi.onnxWaitEvent(event) == Status.SUCCESS
    assert (a == -3).all()
    assert (b == 3).all()
    assert (c == 0).all()


def test_a_run_keeps_the_binding_that_it_began_with(client: Client) -> None:
    graph = client.graph(models.unary("Neg"))
    (x1, y1), (x2, y2) = arrays(1), arrays(2)
    bind(graph, x1, y1)
    start1, end1 = client.run(graph, signal=False)
    bind(graph, x2, y2)
    _, end2 = client.run(graph)
    assert onnxifi.onnxSetGraphIO(graph, [], [client.descriptor("y")]) == Status.UNIDENTIFIED_NAME
    assert onnxifi.onnxWaitEvent(end2) == Status.SUCCESS
    onnxifi.onnxSignalEvent(start1)
    assert onnxifi.onnxWaitEvent(end1) == Status.SUCCESS
    assert (y1 == -1).all()
    assert (y2 == -2).all()
    assert onnxifi.onnxRunGraph(graph, MemoryFenceV1(client.event()), MemoryFenceV1()) == Status.UNIDENTIFIED_NAME


def test_an_event_may_be_released_while_its_run_is_under_way(client: Client) -> None:
    graph = client.graph(models.unary("Neg"))
    x, y = arrays(4)
    bind(graph, x, y)
    _, start = onnxifi.onnxInitEvent(client.backend)
    end = MemoryFenceV1()
    assert onnxifi.onnxRunGraph(graph, MemoryFenceV1(start), end) == Status.SUCCESS
    thread, answers = in_thread(lambda: onnxifi.onnxWaitEvent(end.event))
    asleep(thread)
    assert onnxifi.onnxReleaseEvent(end.event) == Status.SUCCESS
    time.sleep(0.12)  # the wait checks for signals from time to time
    onnxifi.onnxSignalEvent(start)
    onnxifi.onnxReleaseEvent(start)
    thread.join(SOON)
    assert answers == [Status.SUCCESS]
    client.forget_graph(graph)
    assert onnxifi.onnxReleaseGraph(graph) == Status.SUCCESS
    assert (y == -4).all()


def test_unplugging_ends_everything_that_waits(client: Client) -> None:
    graph = client.graph()
    bind(graph, *arrays(1))
    start, end = client.run(graph, signal=False)
    waits = [in_thread(lambda event=event: onnxifi.onnxWaitEvent(event)) for event in (start, end)]
    client.unplug()
    for thread, answers in waits:
        thread.join(SOON)
        assert answers == [Status.BACKEND_UNAVAILABLE]
    client.forget_graph(graph)
    assert onnxifi.onnxReleaseGraph(graph) == Status.SUCCESS


def test_the_other_device_goes_on_and_a_new_backend_works_after_plugging_in(client: Client) -> None:
    old = client.backend
    client.unplug()
    status, other = onnxifi.onnxInitBackend(client.ids[1])
    assert status == Status.SUCCESS
    assert onnxifi.onnxReleaseBackend(other) == Status.SUCCESS
    onnxifi.plug(0)
    assert onnxifi.onnxInitEvent(old) == (Status.BACKEND_UNAVAILABLE, 0)
    status, fresh = onnxifi.onnxInitBackend(client.id)
    assert status == Status.SUCCESS
    status, graph = onnxifi.onnxInitGraph(fresh, None, models.unary())
    assert status == Status.SUCCESS
    assert onnxifi.onnxReleaseGraph(graph) == onnxifi.onnxReleaseBackend(fresh) == Status.SUCCESS


class InterruptedWaitError(Exception):
    """Raised by a signal handler."""


def test_a_signal_ends_a_wait_of_python(client: Client) -> None:
    def handler(number: int, frame: object) -> None:
        raise InterruptedWaitError

    event = client.event()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(InterruptedWaitError):
            onnxifi.onnxWaitEvent(event)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert onnxifi.onnxSignalEvent(event) == Status.SUCCESS
    assert onnxifi.onnxWaitEvent(event) == Status.SUCCESS


def test_a_fault_of_the_device_comes_out_of_the_wait(client: Client) -> None:
    graph = client.graph()
    bind(graph, *arrays(1))
    faults = onnxifi.device_faults(0)
    faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Fail(fail="core0.dma0"))])
    _, end = client.run(graph)
    assert onnxifi.onnxWaitEvent(end) == Status.INTERNAL_ERROR
    faults.check()
    _, end = client.run(graph)
    assert onnxifi.onnxWaitEvent(end) == Status.SUCCESS


def test_faults_need_a_device_that_is_on(client: Client) -> None:
    with pytest.raises(ValueError, match="device 1 is not on"):
        onnxifi.device_faults(1)


def test_the_time_of_a_run_can_be_read_and_is_always_the_same(client: Client) -> None:
    graph = client.graph()
    bind(graph, *arrays(1))
    times = []
    for _ in range(3):
        start, end = client.run(graph)
        assert onnxifi.onnxWaitEvent(end) == Status.SUCCESS
        status, timing = onnxifi.run_timing(end)
        assert status == Status.SUCCESS
        times.append(timing)
        assert onnxifi.run_timing(start)[0] != Status.SUCCESS
    cycles, run_ps, queued_ps, host_ps, total_ps = times[1]
    assert times[1] == times[2]
    assert cycles > 0
    assert run_ps + queued_ps + host_ps == total_ps


def test_objects_may_be_leaked_in_any_order(client: Client) -> None:
    """Real clients release the ID, then the backend, then the rest."""
    _, ids, _ = onnxifi.onnxGetBackendIDs(len(client.ids))
    _, backend = onnxifi.onnxInitBackend(ids[0])
    _, graph = onnxifi.onnxInitGraph(backend, None, models.unary())
    _, event = onnxifi.onnxInitEvent(backend)
    for identifier in ids:
        assert onnxifi.onnxReleaseBackendID(identifier) == Status.SUCCESS
    assert onnxifi.onnxReleaseBackend(backend) == Status.SUCCESS
    assert onnxifi.onnxReleaseGraph(graph) == Status.SUCCESS
    assert onnxifi.onnxReleaseEvent(event) == Status.SUCCESS
