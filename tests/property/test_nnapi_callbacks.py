"""Callbacks of clients may do anything: nothing hangs, and other clients are not affected."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hal.nnapi import fence, open_device
from hal.nnapi.execution.engine import MAX_THREADS
from hal.nnapi.fence import FenceStatus
from hal.nnapi.fmq import MessageQueue
from hal.nnapi.packets import deserialize_result, serialize_request
from hal.nnapi.types import BufferDesc, BufferRole, DeviceStatus, ErrorStatus, Request
from tests.support.nnapi.client import ExecutionCallback, prepared_model
from tests.support.nnapi.models import add, add_case, chain
from tests.support.waits_and_leaks import PATIENCE_S

NONE = ErrorStatus.NONE
UNAVAILABLE = ErrorStatus.DEVICE_UNAVAILABLE


@pytest.fixture
def device() -> Iterator[Any]:
    with open_device("tiny") as opened:
        yield opened


def test_callbacks_that_exit_take_no_thread_away(device: Any) -> None:
    class Exit:
        def notify_1_3(self, *result: Any) -> None:
            raise SystemExit(3)

    prepared, case = prepared_model(device, add()), add_case()
    for _ in range(2 * MAX_THREADS):
        assert prepared.execute_1_3(case.request, 0, None, None, Exit()) is NONE
    assert prepared.execute_1_3(Request([], [], []), 0, None, None, Exit()) is ErrorStatus.INVALID_ARGUMENT
    callback = ExecutionCallback()
    assert prepared.execute_1_3(case.request, 0, None, None, callback) is NONE
    assert callback.wait()[0] is NONE


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), MemoryError()])
def test_a_burst_survives_what_its_callback_raises(device: Any, error: BaseException) -> None:
    case, failing = add_case(), [True]

    class Failing:
        def getMemories(self, slots: Any) -> Any:  # noqa: N802 - the interface's name
            if failing:
                raise error
            return NONE, [case.memory for _ in slots]

    requests: MessageQueue[Any] = MessageQueue(64)
    results: MessageQueue[Any] = MessageQueue(64)
    status, context = prepared_model(device, add()).configureExecutionBurst(Failing(), requests, results)
    assert status is NONE
    for wanted in (False, True):
        requests.write(serialize_request(case.request, [7]))
        answer = results.readPacket(PATIENCE_S)
        assert answer is not None
        assert (deserialize_result(answer)[0] is NONE) == wanted
        failing.clear()
    context.close()


class Again:
    """Implements IPreparedModelCallback and IExecutionCallback; each notification triggers the next action
    immediately."""

    def __init__(self, device: Any, rounds: int) -> None:
        self.device = device
        self.left = rounds
        self.seen: list[ErrorStatus] = []
        self.over = threading.Event()

    def notify_1_3(self, status: ErrorStatus, *result: Any) -> None:
        self.seen.append(status)
        if not self.left:
            self.over.set()
            return
        self.left -= 1
        case = add_case()
        if len(result) == 1:
            self.prepared = result[0]
            assert self.prepared.executeSynchronously_1_3(case.request, 1, None, None)[0] is NONE
            status, handle, info = self.prepared.executeFenced(case.request, [], 1, None, None, None)
            assert fence.wait(handle, PATIENCE_S) is FenceStatus.SIGNALED
            assert info.getExecutionInfo()[0] is NONE
            os.close(handle[0])
            self.prepared.execute_1_3(case.request, 1, None, None, self)
        else:
            assert self.device.allocate(BufferDesc(), [self.prepared], [BufferRole(0, 0)], [])[0] is NONE
            self.device.prepareModel_1_3(chain(1 + self.left), 1, self.left % 3, None, [], [], bytes(32), self)


def test_callbacks_may_do_everything(device: Any) -> None:
    again = Again(device, 20)
    assert device.prepareModel_1_3(add(), 1, 1, None, [], [], bytes(32), again) is NONE
    assert again.over.wait(PATIENCE_S)
    assert again.seen == [NONE] * 21


@pytest.mark.parametrize("where", ["prepared", "executed", "refused", "memories"])
def test_a_callback_may_close_the_device(device: Any, where: str) -> None:
    closed = threading.Event()
    prepared, case = prepared_model(device, add()), add_case()

    class Closing:
        def notify_1_3(self, *result: Any) -> None:
            device.close()
            closed.set()

        def getMemories(self, slots: Any) -> Any:  # noqa: N802 - the interface's name
            self.notify_1_3()
            return NONE, [case.memory for _ in slots]

    if where == "prepared":
        device.prepareModel_1_3(chain(3), 1, 1, None, [], [], bytes(32), Closing())
    elif where == "executed":
        prepared.execute_1_3(case.request, 0, None, None, Closing())
    elif where == "refused":
        prepared.execute_1_3(Request([], [], []), 0, None, None, Closing())
    else:
        requests: MessageQueue[Any] = MessageQueue(64)
        results: MessageQueue[Any] = MessageQueue(64)
        status, context = prepared.configureExecutionBurst(Closing(), requests, results)
        assert status is NONE
        requests.write(serialize_request(case.request, [7]))
        answer = results.readPacket(PATIENCE_S)
        assert answer is None or deserialize_result(answer)[0] is UNAVAILABLE
        del context
    assert closed.wait(PATIENCE_S)
    assert device.getStatus() is DeviceStatus.OFFLINE
    assert prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is UNAVAILABLE
