"""Many threads that execute in every way: right results, each callback called once, and no leaks."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hal.nnapi import fence, memory, open_device
from hal.nnapi.aidl import burst as aidl_burst
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.fence import FenceStatus
from hal.nnapi.memory import Memory
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    MemoryPool,
    OperationType,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    Priority,
    Request,
    RequestArgument,
)
from tests.support.nnapi.client import Burst, ExecutionCallback, aidl_request, prepared_model
from tests.support.nnapi.models import chain
from tests.support.waits_and_leaks import PATIENCE_S, descriptors, until

NONE = ErrorStatus.NONE
MISSED = {ErrorStatus.MISSED_DEADLINE_PERSISTENT, ErrorStatus.MISSED_DEADLINE_TRANSIENT}
THREADS, EXECUTIONS, ROWS, COLUMNS = 16, 1000, 4, 96
NBYTES = ROWS * COLUMNS * 4

Array = npt.NDArray[np.float32]
EXPECTED: list[Callable[[Array, Array], Array]] = [np.add, np.multiply, np.subtract, np.add]
KINDS = [OperationType.ADD, OperationType.MUL, OperationType.SUB, OperationType.ADD]
PRIORITIES = [Priority.LOW, Priority.MEDIUM, Priority.HIGH, Priority.MEDIUM]


@dataclass
class Client:
    """The objects of one thread: memory, a buffer, and a burst of each kind per model."""

    device: Any
    models: list[Any]
    seed: int
    seen: Counter[ErrorStatus] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.data = [self.random.random((ROWS, COLUMNS), np.float32) for _ in range(2)]
        self.inputs = memory.allocate_ashmem(2 * NBYTES)
        self.inputs.map()[:] = b"".join(array.tobytes() for array in self.data)
        self.output = memory.allocate_blob(NBYTES)
        self.hidl = [Burst(model) for model in self.models[:1]]
        self.aidl = [aidl_burst.Burst(model) for model in self.models]
        self.ways = [self.sync, self.asynchronous, self.fenced, self.buffered, self.over_hidl, self.over_aidl]

    def close(self) -> None:
        for burst in self.hidl:
            burst.close()
        self.inputs.close()
        self.output.close()
        self.aidl.clear()

    def run(self, count: int) -> None:
        """Execute ``count`` times in randomly chosen ways."""
        try:
            for _ in range(count):
                way, which = self.ways[int(self.random.integers(len(self.ways)))], int(self.random.integers(4))
                self.output.map()[:] = 0
                status = way(which)
                self.seen[status] += 1
                if status is NONE and not np.array_equal(self.result(), EXPECTED[which](*self.data)):
                    self.wrong.append(f"{way.__name__} of model {which}")
        except BaseException as error:  # noqa: BLE001 - the test's own thread must hear of it
            self.wrong.append(repr(error))

    def result(self) -> Array:
        return np.frombuffer(bytes(self.output.map()), np.float32).reshape(ROWS, COLUMNS)

    def request(self, target: Memory | int) -> Request:
        """Return a request with both inputs, and an output in memory or in a buffer."""
        dims = (ROWS, COLUMNS)
        inputs = [RequestArgument(False, DataLocation(0, index * NBYTES, NBYTES), dims) for index in range(2)]
        token = isinstance(target, int)
        pool = MemoryPool(token=target) if isinstance(target, int) else MemoryPool(target)
        output = RequestArgument(False, DataLocation(1, 0, 0 if token else NBYTES), dims)
        return Request(inputs, [output], [MemoryPool(self.inputs), pool])

    def limits(self) -> tuple[OptionalTimePoint, OptionalTimeoutDuration]:
        """Return no deadline, an expired one, a short one or a long one."""
        chosen = [None, -1_000_000, 3_000_000, 60 * 10**9][int(self.random.integers(4))]
        now = time.monotonic_ns()
        return OptionalTimePoint(None if chosen is None else now + chosen), OptionalTimeoutDuration()

    # Ways to execute

    def sync(self, which: int) -> ErrorStatus:
        status: ErrorStatus = self.models[which].executeSynchronously_1_3(self.request(self.output), 1, *self.limits())[
            0
        ]
        return status

    def asynchronous(self, which: int) -> ErrorStatus:
        callbacks = [ExecutionCallback() for _ in range(2)]
        for callback in callbacks:  # both write the same
            self.models[which].execute_1_3(self.request(self.output), 1, *self.limits(), callback)
        return [callback.wait()[0] for callback in callbacks][-1]

    def fenced(self, which: int) -> ErrorStatus:
        first = fence.create()
        limits = (*self.limits(), OptionalTimeoutDuration())
        status, handle, callback = self.models[which].executeFenced(
            self.request(self.output), [first.handle], 1, *limits
        )
        cancelled = self.random.random() < 0.3
        if cancelled:
            first.close()
        else:
            first.signal()
        if status is not NONE:
            return ErrorStatus(status)
        state = fence.wait(handle, PATIENCE_S)
        os.close(handle[0])
        status = callback.getExecutionInfo()[0]
        if (state is FenceStatus.SIGNALED) != (status is NONE) or (cancelled and status is NONE):
            self.wrong.append(f"fenced: {state}, {status}, cancelled: {cancelled}")
        return ErrorStatus(status)

    def buffered(self, which: int) -> ErrorStatus:
        model = self.models[which]
        status, buffer, token = self.device.allocate(BufferDesc([ROWS, COLUMNS]), [model], [], [BufferRole(0, 0)])
        if status is NONE:
            status = model.executeSynchronously_1_3(self.request(token), 0, *self.limits())[0]
        copied = buffer.copyTo(self.output)
        if (copied is NONE) != (status is NONE):
            self.wrong.append(f"buffer: execution {status}, copy {copied}")
        return ErrorStatus(status)

    def over_hidl(self, which: int) -> ErrorStatus:
        status = self.hidl[0].execute(self.request(self.output))[0]
        if status is NONE and not np.array_equal(self.result(), EXPECTED[0](*self.data)):
            self.wrong.append("burst")
        self.output.map()[:] = EXPECTED[which](*self.data).view(np.uint8).reshape(-1)
        return status

    def over_aidl(self, which: int) -> ErrorStatus:
        asked = aidl_request(self.request(self.output))
        deadline = self.limits()[0].nanosecondsSinceEpoch
        try:
            self.aidl[which].executeSynchronously(asked, [1, -1], True, -1 if deadline is None else deadline, -1)
        except aidl_types.ServiceSpecificException as error:
            return error.errorCode
        finally:
            self.aidl[which].releaseMemoryResource(int(self.random.integers(3)))
        return NONE


def test_many_threads() -> None:
    before, others = descriptors(), set(threading.enumerate())
    with open_device("edge") as device:
        free = device._engine.executor.free_bytes
        models = [
            prepared_model(device, chain(1, (0 if index == 3 else ROWS, COLUMNS), kind), priority=priority)
            for index, (kind, priority) in enumerate(zip(KINDS, PRIORITIES, strict=True))
        ]
        clients = [Client(device, models, seed) for seed in range(THREADS)]
        threads = [threading.Thread(target=c.run, args=(-(-EXECUTIONS // THREADS),)) for c in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "an execution never ended"
        assert [line for client in clients for line in client.wrong] == []
        seen = sum((client.seen for client in clients), Counter[ErrorStatus]())
        for client in clients:
            client.close()
        del client, thread
        threads.clear()
        clients.clear()
        models.clear()
        gc.collect()
        assert device._engine.executor.free_bytes == free
    assert sum(seen.values()) >= EXECUTIONS
    assert set(seen) <= {NONE, *MISSED, ErrorStatus.GENERAL_FAILURE}
    assert seen[NONE] > EXECUTIONS // 3
    assert any(seen[status] for status in MISSED)
    until(lambda: set(threading.enumerate()) <= others and descriptors() <= before, threading.enumerate)
