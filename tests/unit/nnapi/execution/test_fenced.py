"""executeFenced: fences before and after, and the information from the callback."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from hal.nnapi import fence, open_device
from hal.nnapi.execution.arguments import Place
from hal.nnapi.fence import FenceStatus
from hal.nnapi.types import DataLocation, ErrorStatus, RequestArgument, Timing
from tests.support.nnapi.client import prepared_model
from tests.support.nnapi.models import Case, add, add_case
from tests.support.waits_and_leaks import PATIENCE_S as WAIT_S
from tests.support.waits_and_leaks import descriptors, until

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE


@pytest.fixture(scope="module")
def device():
    with open_device("tiny") as opened:
        yield opened


@pytest.fixture(scope="module")
def adder(device):
    return prepared_model(device, add())


@pytest.fixture
def gates():
    made = [fence.create() for _ in range(2)]
    yield made
    for each in made:
        each.close()


def handles(gates):
    return [gate.dup() for gate in gates]


def close(*handles):
    for handle in handles:
        os.close(handle[0])


def launch(adder, case, wait_for=(), duration=None, deadline=None):
    status, handle, callback = adder.executeFenced(case.request, list(wait_for), 1, deadline, None, duration)
    assert status is NONE
    close(*wait_for)  # the driver has its own
    return handle, callback


def test_it_ends_by_itself(adder):
    case = add_case()
    handle, callback = launch(adder, case)
    assert fence.wait(handle, WAIT_S) is FenceStatus.SIGNALED
    status, launched, fenced = callback.getExecutionInfo()
    assert status is NONE
    assert 0 < fenced.timeOnDevice < fenced.timeInDriver <= launched.timeInDriver
    assert fenced.timeOnDevice == launched.timeOnDevice
    assert case.output().tolist() == [10, 11, 12, 13]
    close(handle)


def test_it_waits_for_every_fence_and_returns_at_once(adder, gates):
    case = add_case()
    handle, callback = launch(adder, case, handles(gates))
    gates[0].signal()
    assert fence.wait(handle, 0.1) is FenceStatus.ACTIVE
    assert callback.getExecutionInfo() == (FAILURE, Timing(), Timing())  # it is not over
    assert case.output().tolist() == [0] * 4
    gates[1].signal()
    assert fence.wait(handle, WAIT_S) is FenceStatus.SIGNALED
    status, launched, fenced = callback.getExecutionInfo()
    assert status is NONE
    assert launched.timeInDriver >= fenced.timeInDriver + 100_000  # the 0.1 s of waiting
    close(handle)


def test_one_after_the_other(device, adder):
    """The second execution reads what the first one writes, and waits for its fence."""
    case = add_case()
    request = case.request
    again = type(request)([RequestArgument(False, request.outputs[0].location), request.inputs[1]],
                          [RequestArgument(False, DataLocation(0, 0, 16))], request.pools)  # fmt: skip
    gate = fence.create()
    first, _ = launch(adder, case, [gate.dup()])
    status, second, callback = adder.executeFenced(again, [first], 1, None, None, None)
    assert status is NONE
    gate.signal()
    gate.close()
    assert fence.wait(second, WAIT_S) is FenceStatus.SIGNALED
    assert case.bytes[:16].view(np.float32).tolist() == [20, 21, 22, 23]
    assert callback.getExecutionInfo()[0] is NONE
    close(first, second)


def test_a_fence_in_error_passes_it_on(adder, gates):
    case = add_case()
    handle, callback = launch(adder, case, handles(gates))
    gates[1].signal_error()
    assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
    assert callback.getExecutionInfo() == (FAILURE, Timing(), Timing())
    assert case.output().tolist() == [0] * 4
    close(handle)


@pytest.mark.parametrize("handle", [None, [], [-1], [1, 2], ["x"], [1 << 20]], ids=repr)
def test_a_handle_that_is_no_fence_is_invalid(adder, gates, handle):
    assert adder.executeFenced(add_case().request, [handle], 1, None, None, None) == (INVALID, None, None)
    good = gates[0].dup()
    assert adder.executeFenced(add_case().request, [good, handle], 1, None, None, None) == (INVALID, None, None)
    close(good)


@pytest.mark.parametrize("which", [0, 1])
def test_a_fence_in_error_is_invalid(adder, gates, which):
    gates[which].signal_error()
    gates[1 - which].signal()
    case, wait_for = add_case(), [gate.handle for gate in gates]
    assert adder.executeFenced(case.request, wait_for, 1, None, None, None) == (INVALID, None, None)
    assert case.output().tolist() == [0] * 4


def test_a_pipe_whose_writer_has_gone_is_invalid(adder):
    reading, writing = os.pipe()
    os.close(writing)
    assert adder.executeFenced(add_case().request, [[reading]], 1, None, None, None) == (INVALID, None, None)
    os.close(reading)


def test_outputs_must_be_specified_completely(device):
    prepared = prepared_model(device, add((0,), (0,)))
    ones = np.ones(3, np.float32)
    assert prepared.executeFenced(Case([ones, ones], [12]).request, [], 1, None, None, None) == (INVALID, None, None)
    full = Case([ones, ones], [12], [(3,)])
    handle, _ = launch(prepared, full)
    assert fence.wait(handle, WAIT_S) is FenceStatus.SIGNALED
    assert full.output().tolist() == [2, 2, 2]
    close(handle)


def test_a_failed_execution_is_a_fence_in_error(device):
    prepared = prepared_model(device, add((0,), (0,)))
    case = Case([np.ones(3, np.float32), np.ones(5, np.float32)], [20], [(5,)])
    handle, callback = launch(prepared, case)
    assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
    assert callback.getExecutionInfo()[0] is INVALID
    close(handle)


def test_a_duration_counts_from_the_last_fence():
    now = [10**12]
    with open_device("tiny", clock=lambda: now[0]) as device:
        adder = prepared_model(device, add())
        gate = fence.create()
        handle, callback = launch(adder, add_case(), [gate.dup()], duration=10**6)
        now[0] += 10**9  # a second of waiting: more than the duration
        gate.signal()
        assert fence.wait(handle, WAIT_S) is FenceStatus.SIGNALED
        assert callback.getExecutionInfo()[0] is NONE
        close(handle)
        handle, callback = launch(adder, add_case(), [gate.dup()], duration=1)
        assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
        assert callback.getExecutionInfo()[0] is ErrorStatus.MISSED_DEADLINE_PERSISTENT
        close(handle)
        gate.close()


def test_a_deadline_does_not_wait_for_fences(gates):
    """The device's clock is stopped, so that the launch itself is in time even on a busy machine."""
    case = add_case()
    with open_device("tiny", clock=lambda: 10**12) as device:
        handle, callback = launch(prepared_model(device, add()), case, handles(gates), deadline=10**12 + 30_000_000)
        assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
        assert callback.getExecutionInfo() == (ErrorStatus.MISSED_DEADLINE_TRANSIENT, Timing(), Timing())
    for gate in gates:
        gate.signal()
    assert case.output().tolist() == [0] * 4
    close(handle)


def test_closing_the_device_ends_the_wait():
    gate = fence.create()
    device = open_device("tiny")
    handle, callback = launch(prepared_model(device, add()), add_case(), [gate.dup()])
    device.close()
    assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
    assert callback.getExecutionInfo()[0] is ErrorStatus.DEVICE_UNAVAILABLE
    gate.signal()
    gate.close()
    close(handle)


def test_no_descriptor_is_left(adder):
    def round_trip(error):
        gate = fence.create()
        case = add_case()
        handle, _ = launch(adder, case, [gate.dup()])
        (gate.signal_error if error else gate.signal)()
        gate.close()
        fence.wait(handle, WAIT_S)
        close(handle)

    round_trip(False)
    before, threads = descriptors(), threading.active_count()
    for turn in range(20):
        round_trip(turn % 2 == 0)
    until(lambda: descriptors() <= before)
    until(lambda: threading.active_count() <= threads + 1)


def test_an_output_without_enough_room_is_a_failure(adder, monkeypatch):
    """The client of a fenced execution could not be told the required size."""
    monkeypatch.setattr(Place, "store", lambda self, value: False)
    case = add_case()
    handle, callback = launch(adder, case)
    assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
    assert callback.getExecutionInfo() == (FAILURE, Timing(), Timing())
    close(handle)
