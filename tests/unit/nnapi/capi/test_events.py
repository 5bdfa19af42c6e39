"""Asynchronous executions, their events and sync fences."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import threading
from typing import Any

import numpy as np
import pytest

from hal.nnapi import fence
from hal.nnapi.aidl.types import OMITTED
from hal.nnapi.capi import event as events
from hal.nnapi.capi import running
from hal.nnapi.capi.codes import ApiError, ResultCode
from hal.nnapi.capi.diagnostics import Mode
from hal.nnapi.capi.running import Outcome
from hal.nnapi.errors import StatusError
from hal.nnapi.types import ErrorStatus
from tests.support.nnapi.c_api import Api, add_model, address, code, compiled, filled, handles, operand_type, set_inputs
from tests.support.waits_and_leaks import descriptors, until

NULL, BAD_DATA, BAD_STATE, FAILED = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE"), code("OP_FAILED")
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
SUM = [10, 11, 12, 13]


@pytest.fixture
def result(api: Api, execution: int) -> np.ndarray[Any, Any]:
    """Set all arguments of the execution and return its output."""
    return filled(api, execution)


def start(api: Api, execution: int, *events: int, duration: int = 0) -> tuple[int, int | None]:
    event = ctypes.c_void_p(9)
    array = handles(events) if events else None
    answer = api.Execution_startComputeWithDependencies(execution, array, len(events), duration, ctypes.byref(event))
    return answer, event.value


def test_start_and_wait(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    event = api.make("Execution_startCompute", execution)
    waiting = [threading.Thread(target=api.ok, args=("Event_wait", event)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert result.tolist() == SUM
    descriptor = ctypes.c_int(5)
    assert api.Event_getSyncFenceFd(event, ctypes.byref(descriptor)) == BAD_DATA
    assert descriptor.value == -1
    assert api.Event_getSyncFenceFd(event, None) == NULL
    api.Event_free(event)
    assert api.Event_wait(event) == BAD_DATA


def test_freeing_waits(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    api.Event_free(api.make("Execution_startCompute", execution))
    assert result.tolist() == SUM


def test_without_dependencies(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    answer, event = start(api, execution)
    assert answer == 0
    descriptor = ctypes.c_int()
    api.ok("Event_getSyncFenceFd", event, ctypes.byref(descriptor))
    assert fence.wait([descriptor.value], 10) is fence.FenceStatus.SIGNALED
    assert result.tolist() == SUM
    api.ok("Event_wait", event)
    os.close(descriptor.value)
    api.ok("Event_wait", event)


def test_dependencies(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    gate = fence.create()
    before = api.make("Event_createFromSyncFenceFd", gate.handle[0])
    answer, event = start(api, execution, before)
    assert answer == 0
    descriptor = ctypes.c_int()
    api.ok("Event_getSyncFenceFd", event, ctypes.byref(descriptor))
    assert fence.status(descriptor.value) is fence.FenceStatus.ACTIVE
    assert api.Execution_compute(execution) == BAD_STATE
    assert not result.any()
    gate.signal()
    api.ok("Event_wait", event)
    api.ok("Event_wait", before)
    assert result.tolist() == SUM


def test_a_chain_of_executions(api: Api, add: int) -> None:
    """a + b, then that + b, twice: each waits for the one before."""
    gate = fence.create()
    events = [api.make("Event_createFromSyncFenceFd", gate.handle[0])]
    values = [A, *(np.zeros(4, np.float32) for _ in range(3))]
    for number in range(3):
        execution = api.make("Execution_create", add)
        set_inputs(api, execution, values[number], B)
        api.ok("Execution_setOutput", execution, 0, None, address(values[number + 1]), 16)
        answer, event = start(api, execution, *events[-1:])
        assert answer == 0
        assert event is not None
        events.append(event)
    gate.signal()
    api.ok("Event_wait", events[-1])
    assert values[-1].tolist() == [30, 31, 32, 33]


def test_an_event_without_a_fence_is_waited_for(api: Api, add: int, execution: int, result: Any) -> None:
    before = api.make("Execution_startCompute", execution)
    other, total = api.make("Execution_create", add), np.zeros(4, np.float32)
    set_inputs(api, other, result, B)
    api.ok("Execution_setOutput", other, 0, None, address(total), 16)
    answer, event = start(api, other, before)
    assert answer == 0
    api.ok("Event_wait", event)
    assert total.tolist() == [20, 21, 22, 23]


@pytest.mark.usefixtures("result")
def test_a_wait_that_cannot_begin_ends_the_computation(
    api: Api, execution: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    gate = fence.create()
    before = api.make("Event_createFromSyncFenceFd", gate.handle[0])
    with monkeypatch.context() as patched:
        patched.setattr(events.fence, "create", refuse)
        assert start(api, execution, before) == (FAILED, None)  # nothing has begun
    with monkeypatch.context() as patched:
        patched.setattr(events, "wait_all", refuse)
        answer, event = start(api, execution, before)
    assert answer == 0
    assert api.Event_wait(event) == code("RESOURCE_EXHAUSTED_TRANSIENT")
    assert api.Execution_setLoopTimeout(execution, 1) == BAD_STATE
    rank = ctypes.c_uint32()
    assert api.Execution_getOutputOperandRank(execution, 0, ctypes.byref(rank)) == BAD_STATE
    api.Event_free(event)


def test_a_dependency_that_fails(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    gate = fence.create()
    before = api.make("Event_createFromSyncFenceFd", gate.handle[0])
    answer, event = start(api, execution, before)
    assert answer == 0
    descriptor = ctypes.c_int()
    api.ok("Event_getSyncFenceFd", event, ctypes.byref(descriptor))
    gate.signal_error()
    assert api.Event_wait(event) == FAILED
    assert fence.status(descriptor.value) is fence.FenceStatus.ERROR
    assert api.Event_wait(before) == FAILED
    assert not result.any()


def test_a_dependency_that_has_failed(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    gate = fence.create()
    before = api.make("Event_createFromSyncFenceFd", gate.handle[0])
    gate.signal_error()
    assert start(api, execution, before) == (BAD_DATA, None)
    assert api.Execution_compute(execution) == 0
    assert result.any()


def test_bad_dependencies(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    assert start(api, execution, 0) == (NULL, None)
    assert start(api, execution, 12345) == (BAD_DATA, None)
    event = ctypes.c_void_p(1)
    assert api.Execution_startComputeWithDependencies(execution, None, 2, 0, ctypes.byref(event)) == NULL
    assert event.value is None
    assert not result.any()


def test_outputs_must_be_specified(api: Api) -> None:
    compilation = compiled(api, add_model(api, [0], []))
    execution = api.make("Execution_create", compilation)
    given, found = operand_type("TENSOR_FLOAT32", [4]), np.zeros(4, np.float32)
    for index, array in enumerate((A, B)):
        api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(array), 16)
    api.ok("Execution_setOutput", execution, 0, None, address(found), 16)
    assert start(api, execution) == (BAD_DATA, None)
    assert start(api, execution) == (BAD_STATE, None)  # that was its computation
    execution = api.make("Execution_create", compilation)
    for index, array in enumerate((A, B)):
        api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(array), 16)
    api.ok("Execution_setOutput", execution, 0, ctypes.byref(given), address(found), 16)
    answer, event = start(api, execution)
    assert answer == 0
    api.ok("Event_wait", event)
    assert found.tolist() == SUM


def test_a_duration_that_cannot_be_met(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    answer, event = start(api, execution, duration=1)
    assert answer == 0
    assert api.Event_wait(event) in {code("MISSED_DEADLINE_TRANSIENT"), code("MISSED_DEADLINE_PERSISTENT")}
    assert not result.any()


def test_times_with_dependencies(api: Api, execution: int, result: np.ndarray[Any, Any]) -> None:
    """The time in the driver starts at the launch and includes the wait for the fence."""
    api.ok("Execution_setMeasureTiming", execution, True)
    gate = fence.create()
    before = api.make("Event_createFromSyncFenceFd", gate.handle[0])
    _, event = start(api, execution, before)
    select.select([], [], [], 0.002)
    gate.signal()
    api.ok("Event_wait", event)
    times = []
    for number in range(4):
        taken = ctypes.c_uint64()
        api.ok("Execution_getDuration", execution, number, ctypes.byref(taken))
        times.append(taken.value)
    assert times[0] == times[2] > 0
    assert times[1] >= times[3] + 2_000_000
    assert result.tolist() == SUM


def test_foreign_fences(api: Api) -> None:
    handle = ctypes.c_void_p()
    make = api.Event_createFromSyncFenceFd
    for wrong in (-1, 0, 9999):
        assert make(wrong, ctypes.byref(handle)) == BAD_DATA
    file = os.memfd_create("no fence")
    assert make(file, ctypes.byref(handle)) == BAD_DATA
    os.close(file)
    readable, writable = os.pipe()
    event = api.make("Event_createFromSyncFenceFd", readable)
    descriptor = ctypes.c_int()
    api.ok("Event_getSyncFenceFd", event, ctypes.byref(descriptor))
    assert descriptor.value not in {readable, writable}
    os.close(readable)
    os.write(writable, b"x")
    api.ok("Event_wait", event)
    for each in (writable, descriptor.value):
        os.close(each)
    api.Event_free(event)


def test_events_leave_no_descriptors(api: Api, add: int) -> None:
    for turn in range(4):
        if turn == 2:  # one-time allocations are done
            open_before = descriptors()
        gate = fence.create()
        before = api.make("Event_createFromSyncFenceFd", gate.handle[0])
        execution, found = api.make("Execution_create", add), np.zeros(4, np.float32)
        set_inputs(api, execution, A, B)
        api.ok("Execution_setOutput", execution, 0, None, address(found), 16)
        _, event = start(api, execution, before)
        assert event is not None
        gate.signal()
        api.ok("Event_wait", event)
        for each in (event, before):
            api.Event_free(each)
        api.Execution_free(execution)
        gate.close()
        until(lambda: all(thread.name != "nnapi-fences" for thread in threading.enumerate()))
    until(lambda: descriptors() <= open_before)


class Launched:
    """An execution and its computation that record the calls of an event."""

    def __init__(self, timeout_ns: int = 0) -> None:
        self.timeout_ns = timeout_ns
        self.deadlines: list[int] = []
        self.ended: list[tuple[Outcome, int]] = []

    def begin(self, mode: Mode) -> Launched:
        assert mode is Mode.ASYNC_WITH_DEPS
        return self

    def run(self, deadline_ns: int) -> Outcome:
        self.deadlines.append(deadline_ns)
        return Outcome(ResultCode.NO_ERROR)

    def end(self, outcome: Outcome, waited_ns: int) -> None:
        self.ended.append((outcome, waited_ns))


@pytest.mark.parametrize(
    ("timeout", "duration", "deadline"),
    [(0, 0, OMITTED), (50, 0, 1050), (0, 70, 1070), (50, 70, 1050), (70, 50, 1050)],
)
def test_the_sooner_of_timeout_and_duration_is_the_deadline(
    monkeypatch: pytest.MonkeyPatch, timeout: int, duration: int, deadline: int
) -> None:
    monkeypatch.setattr(running.time, "monotonic_ns", lambda: 1000)
    launched = Launched(timeout)
    events.FencedCompletion(launched, [], duration).wait()  # type: ignore[arg-type]
    assert launched.deadlines == [deadline]


def test_a_deadline_counts_from_now_and_is_never_beyond_what_an_interface_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = (1 << 63) - 1
    monkeypatch.setattr(running.time, "monotonic_ns", lambda: 1000)
    assert running.deadline_after(0) == OMITTED == -1
    assert running.deadline_after(1) == 1001
    assert running.deadline_after(most - 1001) == most - 1
    for late in (most - 1000, most - 999, (1 << 64) - 1):
        assert running.deadline_after(late) == most


def test_a_computation_that_never_ran_has_waited_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, gate = Launched(), fence.create()
    before = events.ForeignFence(gate.handle[0])
    event = events.FencedCompletion(launched, [before], 0)  # type: ignore[arg-type]
    gate.signal_error()
    event.settle()
    gate.close()

    def refuse(*arguments: Any) -> None:
        raise StatusError(ErrorStatus.INVALID_ARGUMENT, "no fence any more")

    monkeypatch.setattr(events, "wait_all", refuse)
    with pytest.raises(ApiError, match="no fence any more") as caught:
        events.FencedCompletion(launched, [], 0).wait()  # type: ignore[arg-type]
    assert caught.value.code is ResultCode.BAD_DATA
    assert [(outcome.code, waited) for outcome, waited in launched.ended] == [
        (ResultCode.OP_FAILED, 0), (ResultCode.BAD_DATA, 0),
    ]  # fmt: skip
    assert launched.deadlines == []


def test_what_waits_for_fences_tells_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, gate, now = Launched(), fence.create(), [1000]
    monkeypatch.setattr(running.time, "monotonic_ns", lambda: now[0])
    event = events.FencedCompletion(launched, [events.ForeignFence(gate.handle[0])], 5)  # type: ignore[arg-type]
    now[0] = 1700
    gate.signal()
    event.wait()
    gate.close()
    assert [waited for _, waited in launched.ended] == [700]
    assert launched.deadlines == [1705]  # a duration counts from the end of the wait
