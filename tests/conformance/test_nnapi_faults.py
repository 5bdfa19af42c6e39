"""Many active clients when the device fails, is unplugged, is closed or is full: every client is notified, none waits
forever, nothing leaks, and a recovered device gives right results."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hal.nnapi import fence, open_device
from hal.nnapi.aidl import burst as aidl_burst
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.packets import deserialize_result, serialize_request
from hal.nnapi.types import BufferDesc, BufferRole, DataLocation, DeviceStatus, ErrorStatus, MemoryPool, Request
from npusim.faults import AtCommand, AtInterrupt, AtJob, Fail, Fault, Flip, Hang, MessageFault
from npusim.hw.config import load_config
from tests.support.nnapi.client import Burst, ExecutionCallback, PreparedCallback, prepare, prepared_model
from tests.support.nnapi.models import Case, add, add_case, chain, dense
from tests.support.waits_and_leaks import PATIENCE_S, resources, settled, until

NONE = ErrorStatus.NONE
UNAVAILABLE, FAILURE = ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.GENERAL_FAILURE
TRANSIENT, PERSISTENT = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT
THREADS = 6
AFTER_S = 0.05
"""Time for which clients work before and after the event."""
SUM = np.arange(64, dtype=np.float32) + 80  # eight times ten
GONE = object()
"""What a burst's client sees when the device is closed: a channel without an answer."""


@dataclass
class Client:
    """A thread that executes in every way until it is stopped or the device is gone."""

    device: Any
    prepared: Any
    stop: threading.Event
    seen: Counter[Any] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    case: Case = field(default_factory=lambda: add_case((64,)))

    def run(self) -> None:
        """Execute repeatedly."""
        try:
            ways = [self.sync, self.asynchronous, self.fenced, self.over_buffer, self.over_aidl, self.over_hidl]
            self.burst, self.aidl = Burst(self.prepared), aidl_burst.Burst(self.prepared)
            turn = 0
            while not self.stop.is_set():
                self.case.bytes[512:] = 0
                status = ways[turn % len(ways)]()
                self.seen[status] += 1
                if status is NONE and not np.array_equal(self.case.output(), SUM):
                    self.wrong.append(f"{ways[turn % len(ways)].__name__}: {self.case.output()}")
                turn += 1
            self.burst.close()
        except BaseException as error:  # noqa: BLE001 - the test's own thread must hear of it
            self.wrong.append(repr(error))

    def sync(self) -> Any:
        return self.prepared.executeSynchronously_1_3(self.case.request, 1, None, None)[0]

    def asynchronous(self) -> Any:
        callback = ExecutionCallback()
        launched = self.prepared.execute_1_3(self.case.request, 1, None, None, callback)
        status = callback.wait()[0]
        return status if launched in (NONE, status) else f"launched {launched}, told {status}"

    def fenced(self) -> Any:
        status, handle, callback = self.prepared.executeFenced(self.case.request, [], 1, None, None, None)
        if status is not NONE:
            return status
        state = fence.wait(handle, PATIENCE_S)
        os.close(handle[0])
        status = callback.getExecutionInfo()[0]
        return status if (status is NONE) == (state is fence.FenceStatus.SIGNALED) else f"{status}, {state}"

    def over_buffer(self) -> Any:
        status, buffer, token = self.device.allocate(BufferDesc(), [self.prepared], [], [BufferRole(0, 0)])
        if status is not NONE:
            return status
        request = self.case.request
        output = type(request.outputs[0])(False, DataLocation(1, 0, 0), (64,))
        bound = Request(request.inputs, [output], [*request.pools, MemoryPool(token=token)])
        status = self.prepared.executeSynchronously_1_3(bound, 1, None, None)[0]
        del buffer
        self.case.bytes[512:768] = SUM.tobytes()
        return status

    def over_aidl(self) -> Any:
        request = self.case.request
        pools: Any = [aidl_types.RequestMemoryPool(pool=self.case.memory)]
        try:
            asked = aidl_types.Request(request.inputs, request.outputs, pools)
            self.aidl.executeSynchronously(asked, [1], True, -1, -1)
        except aidl_types.ServiceSpecificException as error:
            return error.errorCode
        return NONE

    def over_hidl(self) -> Any:
        slots = self.burst.callback.slots(self.case.request.pools)
        if not self.burst.requests.write(serialize_request(self.case.request, slots)):
            return GONE
        packet = self.burst.results.readPacket(PATIENCE_S)
        if packet is None:
            return GONE if not self.burst.results.isValid() else "no answer"
        return deserialize_result(packet)[0]


Saw = Callable[[Any], bool]
"""Whether a client has seen a status."""


def work(device: Any, event: Callable[[Saw], object], wanted: Any = None) -> Counter[Any]:
    """Run several clients, cause an event, and return everything the clients saw, until one of them has seen
    ``wanted``."""
    prepared = [prepared_model(device, chain(8, (64,)), priority=priority) for priority in (0, 1, 2)]
    stop = threading.Event()
    clients = [Client(device, prepared[number % 3], stop) for number in range(THREADS)]
    threads = [threading.Thread(target=client.run) for client in clients]

    def saw(status: Any) -> bool:
        return any(client.seen[status] for client in clients)

    for thread in threads:
        thread.start()
    until(lambda: saw(NONE))
    event(saw)
    if wanted is not None:
        until(lambda: saw(wanted))
    time.sleep(AFTER_S)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a client waits for ever"
    assert [line for client in clients for line in client.wrong] == []
    return sum((client.seen for client in clients), Counter[Any]())


@pytest.mark.parametrize("how", ["unplug", "close"])
def test_the_device_goes_while_everybody_works(how: str) -> None:
    before = resources()
    device = open_device("tiny")
    end = device.close if how == "close" else device._engine.executor.unplug
    seen = work(device, lambda _: end(), UNAVAILABLE)
    assert set(seen) <= {NONE, UNAVAILABLE, GONE}
    assert seen[NONE]
    assert seen[UNAVAILABLE]
    assert device.getStatus() is DeviceStatus.OFFLINE
    device.close()
    del device
    settled(before)


FAULTS = {
    "a unit hangs": Fault(AtCommand(command=3, unit="core0.vector", per="job"), Hang(hang="core0.vector")),
    "transfers fail": Fault(AtCommand(command=2, unit="core0.dma0", per="job"), Fail(fail="core0.dma0")),
    "interrupts are lost": Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose", count=5)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_device_recovers(fault: str) -> None:
    """Jobs fail with one status while the fault lasts; later jobs are right again."""

    def come_and_go(saw: Saw) -> None:
        faults = device._engine.executor.faults
        faults.add([FAULTS[fault]])
        if fault != "interrupts are lost":  # these only cause delays
            until(lambda: saw(FAILURE))
        time.sleep(AFTER_S)
        faults.clear()

    with open_device("tiny") as device:
        seen = work(device, come_and_go)
        case = add_case()
        assert prepared_model(device, add()).executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
        np.testing.assert_array_equal(case.output(), [10, 11, 12, 13])
        assert device.getStatus() is DeviceStatus.AVAILABLE
    assert set(seen) <= {NONE, FAILURE}
    assert seen[NONE]
    if fault != "interrupts are lost":
        assert seen[FAILURE]


def test_bits_flip_in_the_devices_memory() -> None:
    """Wrong results or a fault are allowed, but no wrong status and no endless wait."""
    rng = np.random.default_rng(3)
    with open_device("tiny") as device:
        prepared, case = prepared_model(device, dense(64, 32)), Case([np.ones((1, 64), np.float32)], [128], [(1, 32)])
        assert prepared.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
        expected, seen = case.output(), Counter[tuple[ErrorStatus, bool]]()
        for _ in range(100):
            [loaded] = device._engine.executor._dispatcher.memory._resident.values()
            places = [loaded.code, loaded.constants][int(rng.integers(2))] + rng.integers(0, 256, 3)
            flips = [Flip(flip="dram", address=int(place), bit=int(rng.integers(8))) for place in places]
            device._engine.executor.faults.add([Fault(AtJob(job=1), flip) for flip in flips])
            status = prepared.executeSynchronously_1_3(case.request, 0, None, None)[0]
            seen[status, np.array_equal(case.output(), expected)] += 1
        assert device.getStatus() is DeviceStatus.AVAILABLE
        fresh, again = prepared_model(device, add()), add_case()
        assert fresh.executeSynchronously_1_3(again.request, 0, None, None)[0] is NONE
        np.testing.assert_array_equal(again.output(), [10, 11, 12, 13])
    assert {status for status, _ in seen} <= {NONE, FAILURE}
    assert seen[NONE, False], "no flipped weight was ever seen"
    assert seen[FAILURE, False] or seen[FAILURE, True], "no flipped instruction was ever seen"


# Memory that runs out


def test_buffers_until_there_is_no_room() -> None:
    """The interface only has GENERAL_FAILURE for this. Freed memory can be allocated again."""
    with open_device("tiny") as device:
        prepared = prepared_model(device, add((1 << 20,)))
        free = device._engine.executor.free_bytes
        for _ in range(2):
            buffers = []
            while (result := device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], []))[0] is NONE:
                buffers.append(result[1])
            assert result == (FAILURE, None, 0)
            assert len(buffers) >= free // (4 << 20) - 1
            assert len({buffer.token for buffer in buffers}) == len(buffers)
            buffers.clear()
            del result
        assert device.getStatus() is DeviceStatus.AVAILABLE


def test_executions_when_there_is_no_room() -> None:
    """An execution without memory fails, and succeeds when memory is free again."""
    with open_device("tiny") as device:
        small = prepared_model(device, add((1 << 18,)))
        large = prepared_model(device, add((1 << 20,)))
        case = add_case((1 << 20,))
        assert large.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
        buffers = []
        while (result := device.allocate(BufferDesc(), [small], [BufferRole(0, 0)], []))[0] is NONE:
            buffers.append(result[1])
        status = large.executeSynchronously_1_3(case.request, 0, None, None)
        assert status[0] in (TRANSIENT, PERSISTENT)
        assert status[1] == []
        callback = ExecutionCallback()
        large.execute_1_3(case.request, 0, None, None, callback)
        assert callback.wait()[0] is status[0]
        buffers.clear()
        del result
        assert large.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE


def test_models_that_fit_one_by_one() -> None:
    """The weights exceed the device memory: programs evict each other, and each still computes the same."""
    with open_device(load_config("tiny").with_(**{"dram.bytes": 1 << 20})) as device:
        models = [prepared_model(device, dense(256, 256 + number)) for number in range(10)]
        assert sum(256 * 256 * 4 for _ in models) > device._engine.executor.free_bytes
        sums = []
        for _ in range(2):
            for number, model in enumerate(models):
                case = Case([np.ones((1, 256), np.float32)], [4 * (256 + number)], [(1, 256 + number)])
                assert model.executeSynchronously_1_3(case.request, 0, None, None)[0] is NONE
                sums.append(case.output())
        for first, second in zip(sums[:10], sums[10:], strict=True):
            assert first.any()
            np.testing.assert_array_equal(first, second)


def test_a_preparation_under_way_when_the_device_is_closed() -> None:
    before = resources()
    device = open_device("tiny")
    callbacks = [PreparedCallback() for _ in range(8)]
    for number, callback in enumerate(callbacks):
        device.prepareModel_1_3(chain(100 + number), 1, 1, None, [], [], bytes(32), callback)
    device.close()
    for callback in callbacks:
        status, prepared = callback.wait()
        assert (prepared is not None) == (status is NONE)
    assert prepare(device, add()) == (UNAVAILABLE, UNAVAILABLE, None)
    callbacks.clear()
    del device, callback, prepared
    settled(before)
