"""Deadlines compared with modelled time, to the nanosecond; priorities; failing devices."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    DeviceStatus,
    ErrorStatus,
    MemoryPool,
    OptionalTimePoint,
    Priority,
    RequestArgument,
    Timing,
)
from hal.nnapi.types import Request as RawRequest
from npusim.driver import Priority as Ring
from npusim.runtime import Request
from tests.support.nnapi.client import ExecutionCallback, prepare, prepared_model
from tests.support.nnapi.models import Case, add, add_case, chain, loop

NONE, UNAVAILABLE = ErrorStatus.NONE, ErrorStatus.DEVICE_UNAVAILABLE
PERSISTENT, TRANSIENT = ErrorStatus.MISSED_DEADLINE_PERSISTENT, ErrorStatus.MISSED_DEADLINE_TRANSIENT
NOW = 10**12
INT64_MAX = (1 << 63) - 1


class Clock:
    """A steady clock that only advances in the steps that the test sets."""

    def __init__(self):
        self.now = NOW
        self.steps = []

    def __call__(self):
        if self.steps:
            self.now += self.steps.pop(0)
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def device(clock):
    with open_device("tiny", clock=clock) as opened:
        yield opened


def execute(prepared, deadline, case=None):
    case = case or add_case()
    return prepared.executeSynchronously_1_3(case.request, 1, deadline, None)[0]


def least_ns(prepared):
    """Return the time of an execution of ``add`` with its program on the device, in whole nanoseconds."""
    for _ in range(2):
        outcome = prepared.run(add_case().request, 1, None, None)
    return -(-outcome.driver_ps // 1000)


@pytest.mark.parametrize(
    "deadline", [None, OptionalTimePoint(), INT64_MAX, OptionalTimePoint(INT64_MAX), (1 << 64) - 1]
)
def test_no_deadline(device, deadline):
    launched, status, prepared = prepare(device, add(), deadline=deadline)
    assert (launched, status) == (NONE, NONE)
    assert execute(prepared, deadline) is NONE


def test_a_deadline_that_has_passed_is_missed_for_good(device):
    for passed in (0, 1, NOW - 1, NOW):
        launched, status, prepared = prepare(device, add(), deadline=OptionalTimePoint(passed))
        assert (launched, status, prepared) == (PERSISTENT, PERSISTENT, None)
    prepared = prepared_model(device, add())
    assert execute(prepared, NOW) is PERSISTENT
    callback = ExecutionCallback()
    assert prepared.execute_1_3(add_case().request, 1, NOW, None, callback) is PERSISTENT
    assert callback.wait() == (PERSISTENT, [], Timing())
    assert prepared.executeFenced(add_case().request, [], 1, NOW, None, None) == (PERSISTENT, None, None)


def test_a_deadline_passes_during_the_preparation(device, clock):
    clock.steps = [0, 100]  # the launch looks once, then the work
    launched, status, prepared = prepare(device, add(), deadline=NOW + 50)
    assert (launched, status, prepared) == (NONE, TRANSIENT, None)


@pytest.mark.parametrize("name", ["tiny", "edge"])
def test_what_can_never_fit_is_missed_for_good_to_the_nanosecond(clock, name):
    with open_device(name, clock=clock) as device:
        prepared = prepared_model(device, add())
        least = least_ns(prepared)
        jobs = device._engine.executor.counters.jobs
        assert execute(prepared, NOW + least - 1) is PERSISTENT
        assert device._engine.executor.counters.jobs == jobs  # it was not even begun
        assert execute(prepared, NOW + least) is NONE


def test_what_lies_on_the_device_already_is_not_copied(device):
    """The minimum time of an execution only includes transfers of arguments in pools."""
    size = 1 << 12
    prepared = prepared_model(device, add((size,)))
    status, buffer, token = device.allocate(BufferDesc((size,)), [prepared], [BufferRole(0, 0)], [BufferRole(0, 0)])
    assert status is NONE
    case = add_case((size,))
    place = RequestArgument(False, DataLocation(1, 0, 0), (size,))
    first, second = case.request.inputs
    pools = [case.memory, MemoryPool(token=token)]
    assert prepared.run(RawRequest([first, second], [place], pools), 0, None, None).status is NONE
    case.request.inputs[0], case.request.pools[:] = place, pools
    for _ in range(2):
        outcome = prepared.run(case.request, 1, None, None)
    least = -(-outcome.driver_ps // 1000)
    assert execute(prepared, NOW + least - 1, case) is PERSISTENT
    assert execute(prepared, NOW + least, case) is NONE
    assert case.output()[:2].tolist() == [20, 21]
    del buffer


def test_a_deadline_where_nobody_knows_yet_how_long_it_takes(device):
    """New shapes, and a first program whose results the client never sees."""
    values = np.ones((2, 3), np.float32)
    case = Case([values, values], [24])
    assert execute(prepared_model(device, add((0, 3), (0, 0))), NOW + 10**9, case) is NONE
    case = Case([np.array([0], np.uint8), np.array([3, 4], np.float32)], [1, 8], [(1,), (2,)])
    prepared = prepared_model(device, loop())
    for _ in range(2):
        assert execute(prepared, NOW + 10**9, case) is NONE
    assert case.output(1).tolist() == [3, 4]


def test_an_execution_that_takes_longer_than_it_should_is_stopped_in_simulated_time(device, monkeypatch):
    """As if its time were unknown: the budget stops the job on the device."""
    prepared = prepared_model(device, add())
    least = least_ns(prepared)
    monkeypatch.setattr("hal.nnapi.execution.execution.job_ps", lambda *args: 0)
    assert execute(prepared, NOW + least // 3) is TRANSIENT
    assert execute(prepared, NOW + least) is NONE


def test_load_is_the_reason_only_while_there_is_load(device):
    prepared = prepared_model(device, add())
    least = least_ns(prepared)
    program = next(iter(prepared.plan.programs()))
    gate = threading.Event()
    device._engine.executor._worker.post(gate.wait)  # block the device's thread, so that submitted jobs wait
    inputs = {binding.name: np.zeros(4, np.float32) for binding in program.inputs}
    tickets = [device._engine.executor.submit(Request(program, inputs, priority=Ring.MEDIUM)) for _ in range(3)]
    backlog = device._engine.executor.backlog_ps(Ring.MEDIUM)
    assert backlog == 3 * device._engine.executor.estimate(program)
    missed = execute(prepared, NOW + least + backlog // 1000 - 1)
    gate.set()
    for ticket in tickets:
        ticket.wait(30)
    assert missed is TRANSIENT
    assert execute(prepared, NOW + least + backlog // 1000 - 1) is NONE


def test_lower_priorities_are_no_load_for_higher_ones(device):
    low, high = (prepared_model(device, add(), priority=each) for each in (Priority.LOW, Priority.HIGH))
    program = next(iter(low.plan.programs()))
    gate = threading.Event()
    device._engine.executor._worker.post(gate.wait)
    inputs = {binding.name: np.zeros(4, np.float32) for binding in program.inputs}
    tickets = [device._engine.executor.submit(Request(program, inputs, priority=Ring.LOW)) for _ in range(3)]
    backlogs = [device._engine.executor.backlog_ps(ring) for ring in Ring]
    gate.set()
    for ticket in tickets:
        ticket.wait(30)
    assert backlogs == [3 * device._engine.executor.estimate(program), 0, 0]
    assert (low.queue, high.queue) == (Ring.LOW, Ring.HIGH)


def test_the_clock_stops_an_execution_under_way(device, clock):
    """The simulated time would suffice, but the client's clock does not wait for it."""
    prepared = prepared_model(device, loop())
    case = Case([np.array([1], np.uint8), np.array([3, 4], np.float32)], [1, 8], [(1,), (2,)])
    results = []
    deadline = NOW + 10**12
    client = threading.Thread(
        target=lambda: results.append(prepared.executeSynchronously_1_3(case.request, 1, deadline, 15 * 10**9)[0])
    )
    client.start()
    client.join(0.2)
    assert client.is_alive()
    clock.now = deadline
    client.join(30)
    assert results == [TRANSIENT]


def test_the_most_urgent_client_comes_first(device):
    """Three asynchronous executions arrive, the least urgent one first, while the device is stopped."""
    prepared = {each: prepared_model(device, chain(2), priority=each) for each in (0, 1, 2)}
    gate = threading.Event()
    device._engine.executor._worker.post(gate.wait)
    callbacks = {each: ExecutionCallback() for each in (0, 1, 2)}
    for each, callback in callbacks.items():
        assert prepared[each].execute_1_3(add_case().request, 1, None, None, callback) is NONE
    while len(device._engine.executor._open) < 3:
        threading.Event().wait(0.005)
    gate.set()
    low, medium, high = (timing_of(callbacks[each]).timeInDriver for each in (0, 1, 2))
    assert high < medium < low


def timing_of(callback):
    status, _, timing = callback.wait()
    assert status is NONE
    return timing


def test_an_unplugged_device_says_so(device):
    prepared = prepared_model(device, add())
    device._engine.executor.unplug()
    assert device.getStatus() is DeviceStatus.OFFLINE
    assert execute(prepared, None) is UNAVAILABLE
    assert prepare(device, add()) == (UNAVAILABLE, UNAVAILABLE, None)
    assert device.getSupportedOperations_1_3(add()) == (UNAVAILABLE, [])
    assert device.getCapabilities_1_3() == (UNAVAILABLE, None)
    assert device.allocate(None, [], [], []) == (UNAVAILABLE, None, 0)


def test_a_device_that_is_unplugged_during_an_execution(device):
    prepared = prepared_model(device, loop())
    case = Case([np.array([1], np.uint8), np.array([3, 4], np.float32)], [1, 8], [(1,), (2,)])
    callback = ExecutionCallback()
    assert prepared.execute_1_3(case.request, 1, None, 15 * 10**9, callback) is NONE
    threading.Event().wait(0.1)
    device._engine.executor.unplug()
    assert callback.wait() == (UNAVAILABLE, [], Timing())


def test_a_full_queue_is_a_busy_device(device):
    prepared = prepared_model(device, add())
    device._engine.executor.queue_limit = 0
    assert device.getStatus() is DeviceStatus.BUSY
    assert execute(prepared, None) is UNAVAILABLE
    device._engine.executor.queue_limit = 1
    assert device.getStatus() is DeviceStatus.AVAILABLE
    assert execute(prepared, None) is NONE


def test_memory_that_runs_out_is_a_matter_of_time(device):
    prepared = prepared_model(device, add())
    everything = device._engine.executor.buffer(device._engine.executor.free_bytes - (1 << 20))
    rest = device._engine.executor.buffer(device._engine.executor.free_bytes - 64)
    assert execute(prepared_model(device, add((7,))), None, add_case((7,))) is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    rest.release()
    everything.release()
    assert execute(prepared, None) is NONE


def test_a_closed_device_is_offline_and_ends_what_is_under_way(clock):
    device = open_device("tiny", clock=clock)
    prepared = prepared_model(device, loop())
    case = Case([np.array([1], np.uint8), np.array([3, 4], np.float32)], [1, 8], [(1,), (2,)])
    callbacks = [ExecutionCallback() for _ in range(3)]
    for callback in callbacks:
        assert prepared.execute_1_3(case.request, 1, None, 15 * 10**9, callback) is NONE
    before = threading.active_count()
    device.close()
    device.close()
    assert [callback.calls for callback in callbacks] == [[(UNAVAILABLE, [], Timing())]] * 3
    assert device.getStatus() is DeviceStatus.OFFLINE
    assert execute(prepared, None) is UNAVAILABLE
    assert prepare(device, add()) == (UNAVAILABLE, UNAVAILABLE, None)
    assert threading.active_count() < before


def test_an_urgent_execution_preempts_one_that_runs(device):
    """A long execution of low priority is preempted by one of high priority, and both are right."""
    size = 1 << 16
    low = prepared_model(device, chain(12, (size,)), priority=Priority.LOW)
    high = prepared_model(device, add(), priority=Priority.HIGH)
    for _ in range(200):  # until the urgent one arrives in the midst of the other
        case, callback = add_case((size,)), ExecutionCallback()
        assert low.execute_1_3(case.request, 1, None, None, callback) is NONE
        while not device._engine.executor._open and not callback.calls:
            threading.Event().wait(0.0005)
        assert execute(high, None) is NONE
        assert callback.wait()[0] is NONE
        assert case.output()[:3].tolist() == [120, 121, 122]
        if device._engine.executor.counters.preemptions:
            break
    assert device._engine.executor.counters.preemptions >= 1
