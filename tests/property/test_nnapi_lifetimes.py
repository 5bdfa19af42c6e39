"""Objects of the NNAPI driver are created and dropped in any order, on any thread: nothing hangs and nothing leaks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hal.nnapi import aidl, fence, memory, open_device
from hal.nnapi.aidl import burst as aidl_burst
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.execution import tasks
from hal.nnapi.fence import FenceStatus
from hal.nnapi.packets import serialize_request
from hal.nnapi.types import BufferDesc, BufferRole, DeviceStatus, ErrorStatus, MemoryPool, Request
from tests.support.nnapi.client import Burst, ExecutionCallback, PreparedCallback, prepare, prepared_model
from tests.support.nnapi.models import add, add_case, chain, dense
from tests.support.waits_and_leaks import PATIENCE_S, resources, settled, within

NONE = ErrorStatus.NONE
UNAVAILABLE = ErrorStatus.DEVICE_UNAVAILABLE


@pytest.fixture
def device() -> Iterator[Any]:
    with open_device("tiny") as opened:
        yield opened


# Finalizers


def test_models_may_be_dropped_while_the_driver_is_counting_them(device: Any) -> None:
    """The garbage collector may run a finalizer at any allocation, also under the driver's own lock."""
    free = device._engine.executor.free_bytes

    def work() -> bool:
        models = [prepared_model(device, chain(length)) for length in (2, 3)]
        for model in models:
            assert model.executeSynchronously_1_3(add_case().request, 0, None, None)[0] is NONE
        del model
        with device._engine.executor.programs._lock:
            models.clear()
            gc.collect()
        prepared_model(device, add())  # the count is right for the next call
        return True

    assert within(work)
    gc.collect()
    assert not device._engine.executor.programs._users
    assert device._engine.executor.free_bytes == free


def test_bursts_may_be_dropped_by_the_devices_own_thread(device: Any) -> None:
    """A finalizer that runs there must not wait for that thread."""
    prepared = prepared_model(device, add())
    bursts = [aidl_burst.Burst(prepared), aidl_burst.Burst(prepared)]

    def pins() -> list[int]:
        return device._engine.executor._call(lambda: list(device._engine.executor._dispatcher.memory._pins.values()))

    assert pins() == [2]
    within(lambda: device._engine.executor._call(lambda: bursts.pop() and None))
    assert pins() == [1]
    within(lambda: device._engine.executor._call(bursts.clear))
    assert pins() == []


def test_everything_is_dropped_while_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A careless client: it closes nothing and keeps only its callbacks and fences."""
    monkeypatch.setattr(tasks, "IDLE_S", 0.1)
    before = resources()

    def work() -> tuple[list[ExecutionCallback], list[int], PreparedCallback]:
        device = open_device("tiny")
        prepared, case = prepared_model(device, chain(20, (64,))), add_case((64,))
        callbacks, handles = [ExecutionCallback() for _ in range(20)], []
        for callback in callbacks:
            prepared.execute_1_3(case.request, 1, None, None, callback)
            handles += prepared.executeFenced(case.request, [], 1, None, None, None)[1]
        never = fence.create()
        handles += prepared.executeFenced(case.request, [never.handle], 1, None, None, None)[1]
        burst = Burst(prepared)
        burst.requests.write(serialize_request(case.request, burst.callback.slots(case.request.pools)))
        _, buffer, token = device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], [])
        assert (buffer is not None, token) == (True, 1)
        late = PreparedCallback()
        device.prepareModel_1_3(dense(64, 64), 1, 1, None, [], [], bytes(32), late)
        return callbacks, handles, late

    callbacks, handles, late = within(work)
    assert [callback.wait()[0] for callback in callbacks] == [NONE] * 20
    assert late.wait()[0] is NONE
    states = [fence.wait([handle], PATIENCE_S) for handle in handles]
    assert states == [FenceStatus.SIGNALED] * 20 + [FenceStatus.ERROR]
    for handle in handles:
        os.close(handle)
    late.calls.clear()
    settled(before)


def test_a_hundred_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "IDLE_S", 0.1)
    before = resources()
    case = add_case()
    held = []
    for number in range(100):
        device = open_device("tiny")
        callback = ExecutionCallback()
        assert prepared_model(device, add()).execute_1_3(case.request, 0, None, None, callback) is NONE
        assert callback.wait()[0] is NONE
        if number % 2:
            device.close()
        else:
            held.append(device)
    assert all(device.getStatus() is DeviceStatus.AVAILABLE for device in held)
    held.clear()
    del device, callback
    case.memory.close()
    del case
    settled(before)


# After the end, and elsewhere


def test_a_closed_device_refuses_everything(device: Any) -> None:
    prepared, case = prepared_model(device, add()), add_case()
    burst, aidl_one = Burst(prepared), aidl_burst.Burst(prepared)
    _, buffer, _ = device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], [])
    blob = memory.allocate_blob(16)
    device.close()
    device.close()
    assert device.getStatus() is DeviceStatus.OFFLINE
    for method in (device.getCapabilities, device.getCapabilities_1_3):
        assert method() == (UNAVAILABLE, None)
    assert device.getSupportedOperations_1_3(add()) == (UNAVAILABLE, [])
    assert prepare(device, add()) == (UNAVAILABLE, UNAVAILABLE, None)
    assert device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], []) == (UNAVAILABLE, None, 0)
    callback = ExecutionCallback()
    assert prepared.execute_1_3(case.request, 0, None, None, callback) is UNAVAILABLE
    assert callback.wait()[0] is UNAVAILABLE
    assert prepared.executeFenced(case.request, [], 0, None, None, None) == (UNAVAILABLE, None, None)
    assert prepared.configureExecutionBurst(burst.callback, burst.requests, burst.results) == (UNAVAILABLE, None)
    assert (buffer.copyFrom(blob, []), buffer.copyTo(blob)) == (UNAVAILABLE, UNAVAILABLE)
    pools = [aidl_types.RequestMemoryPool(pool=case.memory)]
    request = aidl_types.Request(case.request.inputs, case.request.outputs, pools)
    with pytest.raises(aidl_types.ServiceSpecificException, match="DEVICE_UNAVAILABLE"):
        aidl_one.executeSynchronously(request, [1], False, -1, -1)
    with pytest.raises(aidl_types.ServiceSpecificException, match="DEVICE_UNAVAILABLE"):
        aidl.device(device).getSupportedOperations(add())
    aidl_one.releaseMemoryResource(1)
    burst.context.freeMemory(0)
    burst.close()


def test_objects_of_another_device_are_refused(device: Any) -> None:
    with open_device("tiny") as other:
        theirs, ours = prepared_model(other, add()), prepared_model(device, add())
        for models, role in (([theirs], 0), ([ours, theirs], 0), ([ours, theirs], 1)):
            refused = device.allocate(BufferDesc(), models, [BufferRole(role, 0)], [])
            assert refused == (ErrorStatus.INVALID_ARGUMENT, None, 0)
        for _ in range(3):
            status, buffer, token = other.allocate(BufferDesc(), [theirs], [BufferRole(0, 0)], [])
            assert status is NONE
        case = add_case()
        inputs = list(case.request.inputs)
        inputs[0] = type(inputs[0])(False, type(inputs[0].location)(1, 0, 0), (4,))
        request = Request(inputs, case.request.outputs, [*case.request.pools, MemoryPool(token=token)])
        refused = ours.executeSynchronously_1_3(request, 0, None, None)
        assert refused[0] is ErrorStatus.INVALID_ARGUMENT
        del buffer


def test_fences_of_another_device_are_fences(device: Any) -> None:
    with open_device("tiny") as other:
        gate = fence.create()
        case, second = add_case(), add_case()
        status, handle, _ = prepared_model(other, add()).executeFenced(case.request, [gate.handle], 0, None, None, None)
        assert status is NONE
        ours = prepared_model(device, add())
        status, last, _ = ours.executeFenced(second.request, [handle], 0, None, None, None)
        assert status is NONE
        assert fence.wait(last, 0) is FenceStatus.ACTIVE
        gate.signal()
        assert fence.wait(last, PATIENCE_S) is FenceStatus.SIGNALED
        np.testing.assert_array_equal(second.output(), [10, 11, 12, 13])
        for each in (handle, last):
            os.close(each[0])


@pytest.mark.parametrize("duration", [(1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_durations_of_centuries(device: Any, duration: int) -> None:
    status, handle, info = prepared_model(device, add()).executeFenced(add_case().request, [], 0, None, None, duration)
    assert status is NONE
    assert fence.wait(handle, PATIENCE_S) is FenceStatus.SIGNALED
    assert info.getExecutionInfo()[0] is NONE
    os.close(handle[0])


@pytest.mark.parametrize("deadline", [10**16, (1 << 63) - 2])
def test_deadlines_of_months_behind_a_fence(device: Any, deadline: int) -> None:
    gate = fence.create()
    prepared, case = prepared_model(device, add()), add_case()
    status, handle, info = prepared.executeFenced(case.request, [gate.handle], 0, deadline, None, None)
    assert status is NONE
    assert fence.wait(handle, 0.05) is FenceStatus.ACTIVE
    gate.signal()
    assert fence.wait(handle, PATIENCE_S) is FenceStatus.SIGNALED
    assert info.getExecutionInfo()[0] is NONE
    os.close(handle[0])


def test_a_deadline_as_far_as_there_is() -> None:
    with open_device("tiny", clock=lambda: 0) as device:
        prepared = prepared_model(device, add(), deadline=(1 << 63) - 2)
        assert prepared.executeSynchronously_1_3(add_case().request, 0, (1 << 63) - 2, None)[0] is NONE


# Processes


def test_a_forked_child_has_no_device(device: Any) -> None:
    """Threads do not survive a fork: calls that need them fail immediately instead of waiting."""
    prepared, case = prepared_model(device, add()), add_case()
    child = os.fork()
    if not child:
        callback = ExecutionCallback()
        prepare_callback = PreparedCallback()
        right = (
            prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is UNAVAILABLE
            and prepared.execute_1_3(case.request, 0, None, None, callback) is UNAVAILABLE
            and callback.calls[0][0] is UNAVAILABLE
            and device.prepareModel_1_3(add(), 1, 1, None, [], [], bytes(32), prepare_callback) is UNAVAILABLE
            and prepared.executeFenced(case.request, [], 0, None, None, None)[0] is UNAVAILABLE
            and device.getStatus() is DeviceStatus.OFFLINE
        )
        os._exit(0 if right else 1)
    assert within(lambda: os.waitpid(child, 0))[1] == 0
    assert prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
