"""A driver client that prepares models and executes them through every way of the interface."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hal.nnapi import aidl, fence
from hal.nnapi.aidl import burst as aidl_burst
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.fmq import FmqRequestDatum, FmqResultDatum, MessageQueue
from hal.nnapi.memory import Memory, allocate_ashmem, allocate_blob
from hal.nnapi.packets import deserialize_result, serialize_request
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    ExecutionPreference,
    MeasureTiming,
    MemoryPool,
    Model,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    OutputShape,
    Priority,
    Request,
    RequestArgument,
    Subgraph,
    Timing,
)

Array = npt.NDArray[Any]
TOKEN = bytes(32)
WAIT_S = 60.0
"""Time limit for callbacks; a longer wait means that the callback never comes."""


class PreparedCallback:
    """IPreparedModelCallback that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[ErrorStatus, Any]] = []
        self._came = threading.Event()

    def notify_1_3(self, status: ErrorStatus, prepared: Any) -> None:
        """The newest version."""
        self.calls.append((status, prepared))
        self._came.set()

    def wait(self) -> tuple[ErrorStatus, Any]:
        """Wait for the only call and return its arguments."""
        assert self._came.wait(WAIT_S), "the callback was never called"
        assert len(self.calls) == 1, f"the callback was called {len(self.calls)} times"
        return self.calls[0]


class ExecutionCallback:
    """IExecutionCallback that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[ErrorStatus, Sequence[OutputShape], Timing]] = []
        self._came = threading.Event()

    def notify_1_3(self, status: ErrorStatus, shapes: Sequence[OutputShape], timing: Timing) -> None:
        """The newest version."""
        self.calls.append((status, shapes, timing))
        self._came.set()

    def wait(self) -> tuple[ErrorStatus, Sequence[OutputShape], Timing]:
        """Wait for the only call and return its arguments."""
        assert self._came.wait(WAIT_S), "the callback was never called"
        assert len(self.calls) == 1, f"the callback was called {len(self.calls)} times"
        return self.calls[0]


def prepare(
    device: Any,
    model: Model,
    priority: int = Priority.MEDIUM,
    deadline: OptionalTimePoint | None = None,
    preference: int = ExecutionPreference.FAST_SINGLE_ANSWER,
) -> tuple[ErrorStatus, ErrorStatus, Any]:
    """Return the launch status, and the status and prepared model from the callback."""
    callback = PreparedCallback()
    launched = device.prepareModel_1_3(
        model, preference, priority, deadline or OptionalTimePoint(), [], [], TOKEN, callback
    )
    return (launched, *callback.wait())


def prepared_model(device: Any, model: Model, **options: Any) -> Any:
    """Return the prepared model. Fails if there is none."""
    launched, status, prepared = prepare(device, model, **options)
    assert launched == ErrorStatus.NONE, launched
    assert status == ErrorStatus.NONE, status
    return prepared


def aidl_model(model: Model) -> aidl_types.Model:
    """Convert a model to the AIDL interface."""

    def subgraph(given: Subgraph) -> aidl_types.Subgraph:
        operands = [
            aidl_types.Operand(o.type, o.dimensions, o.scale, o.zeroPoint, o.lifetime, o.location, o.extraParams)
            for o in given.operands
        ]
        return aidl_types.Subgraph(operands, given.operations, given.inputIndexes, given.outputIndexes)

    pools: list[Any] = list(model.pools)
    return aidl_types.Model(
        subgraph(model.main),
        [subgraph(each) for each in model.referenced],
        model.operandValues,
        pools,
        model.relaxComputationFloat32toFloat16,
        model.extensionNameToPrefix,
    )


class AidlCallback:
    """IPreparedModelCallback of the AIDL interface."""

    def __init__(self) -> None:
        self._inner = PreparedCallback()

    def notify(self, status: ErrorStatus, prepared: Any) -> None:
        """Called once."""
        self._inner.notify_1_3(status, prepared)

    def wait(self) -> tuple[ErrorStatus, Any]:
        """Wait for the only call and return its arguments."""
        return self._inner.wait()


def aidl_prepare(device: Any, model: Model, config: Any = None) -> tuple[ErrorStatus, ErrorStatus, Any]:
    """Prepare a model of a HAL device by the AIDL interface. Return the status of the launch, and the status and
    prepared model from the callback."""
    callback, launched = AidlCallback(), ErrorStatus.NONE
    try:
        aidl.device(device).prepareModelWithConfig(
            aidl_model(model), config or aidl_types.PrepareModelConfig(), callback
        )
    except aidl_types.ServiceSpecificException as error:
        launched = error.errorCode
    return (launched, *callback.wait())


@dataclass
class Outcome:
    """The result of an execution, and the bytes of its outputs."""

    status: ErrorStatus
    shapes: Sequence[OutputShape]
    timing: Timing
    raw: list[bytes]

    def array(self, index: int, dtype: np.dtype[Any]) -> Array:
        """Return output ``index`` with the shape that the driver reported."""
        dims = tuple(self.shapes[index].dimensions)
        count = int(np.prod(dims, dtype=np.int64))
        return np.frombuffer(self.raw[index], dtype, count).reshape(dims)


class Frame:
    """The memory of one execution: inputs in one pool, outputs in another, and the request that describes them."""

    def __init__(
        self,
        inputs: Sequence[Array | None],
        output_bytes: Sequence[int],
        output_dims: Sequence[Sequence[int]] | None = None,
        allocate: Callable[[int], Memory] = allocate_ashmem,
    ) -> None:
        sizes = [0 if array is None else array.nbytes for array in inputs]
        self._in, in_places = _pool(sizes, allocate)
        self._out, out_places = _pool(output_bytes, allocate)
        mapped = self._in.map()
        arguments = []
        for array, place in zip(inputs, in_places, strict=True):
            if array is None:
                arguments.append(RequestArgument(hasNoValue=True))
                continue
            mapped[place.offset : place.offset + place.length] = array.tobytes()
            arguments.append(RequestArgument(False, replace(place, poolIndex=0), array.shape))
        dims = output_dims or [()] * len(output_bytes)
        results = [RequestArgument(False, replace(p, poolIndex=1), d) for p, d in zip(out_places, dims, strict=True)]
        self.request = Request(arguments, results, [MemoryPool(self._in), MemoryPool(self._out)])

    def raw(self) -> list[bytes]:
        """Return the bytes of each output."""
        mapped = self._out.map()
        places = [argument.location for argument in self.request.outputs]
        return [bytes(memoryview(mapped)[place.offset : place.offset + place.length]) for place in places]

    def close(self) -> None:
        """Free the memory."""
        self._in.close()
        self._out.close()


def _pool(sizes: Sequence[int], allocate: Callable[[int], Memory]) -> tuple[Memory, list[DataLocation]]:
    places, offset = [], 0
    for size in sizes:
        places.append(DataLocation(0, offset, max(size, 1)))
        offset += -(-max(size, 1) // 64) * 64
    return allocate(max(offset, 64)), places


# Ways to execute: (prepared, frame, measure) -> Outcome


def execute_sync(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO, **options: Any) -> Outcome:
    """Call executeSynchronously_1_3."""
    result = prepared.executeSynchronously_1_3(frame.request, measure, *_limits(**options))
    return Outcome(*result, frame.raw())


def execute_async(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO, **options: Any) -> Outcome:
    """Call execute_1_3 and wait for the callback."""
    callback = ExecutionCallback()
    launched = prepared.execute_1_3(frame.request, measure, *_limits(**options), callback)
    result = callback.wait()
    assert launched in (ErrorStatus.NONE, result[0])
    return Outcome(*result, frame.raw())


def execute_fenced(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO, **options: Any) -> Outcome:
    """Call executeFenced without fences to wait for, then a second time with the fence of the first call."""
    limits = (*_limits(**options), OptionalTimeoutDuration())
    status, handle, callback = prepared.executeFenced(frame.request, [], measure, *limits)
    if status != ErrorStatus.NONE:
        assert not handle
        assert callback is None
        return Outcome(status, [], Timing(), frame.raw())
    if handle:
        again, second, following = prepared.executeFenced(frame.request, [handle], measure, *limits)
        failed = fence.wait(handle, WAIT_S) is fence.FenceStatus.ERROR
        # A failing first execution sets its fence to error. If it has already failed, the second call is invalid.
        assert again == ErrorStatus.NONE or (failed and again == ErrorStatus.INVALID_ARGUMENT)
        if second:
            fence.wait(second, WAIT_S)
            os.close(second[0])
        os.close(handle[0])
        callback = callback if failed else following
    status, launched, fenced = callback.getExecutionInfo()
    assert fenced.timeOnDevice == launched.timeOnDevice
    return Outcome(status, _request_shapes(frame.request), launched, frame.raw())


class MemoryCallback:
    """IBurstCallback of a client that uses list indices of its pools as slots."""

    def __init__(self) -> None:
        self.memories: list[Memory] = []
        self.asked: list[list[int]] = []

    def slots(self, pools: Sequence[MemoryPool | Memory | int]) -> list[int]:
        """Return a slot for each pool; known pools keep theirs."""
        memories = [pool.hidlMemory if isinstance(pool, MemoryPool) else pool for pool in pools]
        for memory in memories:
            assert isinstance(memory, Memory)
            if not any(memory is known for known in self.memories):
                self.memories.append(memory)
        return [next(i for i, known in enumerate(self.memories) if known is memory) for memory in memories]

    def getMemories(  # noqa: N802 - the interface's name
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, list[Memory]]:
        """Return the memory in each slot."""
        self.asked.append(list(slots))
        return ErrorStatus.NONE, [self.memories[slot] for slot in slots]


class BurstRefusedError(Exception):
    """A burst could not be configured. The argument is the status."""


class Burst:
    """The client side of a HIDL burst."""

    def __init__(self, prepared: Any, capacity: int = 4096) -> None:
        self.requests: MessageQueue[FmqRequestDatum] = MessageQueue(capacity)
        self.results: MessageQueue[FmqResultDatum] = MessageQueue(capacity)
        self.callback = MemoryCallback()
        status, self.context = prepared.configureExecutionBurst(self.callback, self.requests, self.results)
        if status != ErrorStatus.NONE:
            raise BurstRefusedError(status)

    def execute(
        self, request: Request, measure: int = MeasureTiming.NO
    ) -> tuple[ErrorStatus, Sequence[OutputShape], Timing]:
        """Send a request and wait for its result."""
        slots = self.callback.slots(request.pools)
        return self.send(serialize_request(request, slots, MeasureTiming(measure)))

    def send(self, packet: Sequence[FmqRequestDatum]) -> tuple[ErrorStatus, Sequence[OutputShape], Timing]:
        """Send a packet and wait for its result."""
        assert self.requests.write(packet)
        result = self.results.readPacket(WAIT_S)
        assert result is not None, "the burst gave no result"
        return deserialize_result(result)

    def close(self) -> None:
        """End the burst."""
        self.context.close()


def execute_burst(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO) -> Outcome:
    """Execute once over a HIDL burst."""
    burst = Burst(prepared)
    try:
        return Outcome(*burst.execute(frame.request, measure), frame.raw())
    finally:
        burst.close()


def aidl_request(request: Request) -> aidl_types.Request:
    """Convert a request to the AIDL interface."""
    pools: list[Any] = [aidl_types.RequestMemoryPool(pool.hidlMemory, pool.token) for pool in request.pools]
    return aidl_types.Request(request.inputs, request.outputs, pools)


def execute_aidl_burst(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO) -> Outcome:
    """Execute once over an AIDL burst."""
    request = aidl_request(frame.request)
    try:
        result = aidl_burst.Burst(prepared).executeSynchronously(
            request, list(range(len(request.pools))), bool(measure)
        )
    except aidl_types.ServiceSpecificException as error:
        return Outcome(error.errorCode, [], Timing(), frame.raw())
    status = ErrorStatus.NONE if result.outputSufficientSize else ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    return Outcome(status, result.outputShapes, result.timing, frame.raw())


def execute_aidl_reusable(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO) -> Outcome:
    """Execute a reusable AIDL execution twice."""
    request = aidl_request(frame.request)
    config = aidl_types.ExecutionConfig(bool(measure))
    try:
        execution = aidl.AidlPreparedModel(prepared).createReusableExecution(request, config)
        execution.executeSynchronously(-1)
        result = execution.executeSynchronously(-1)
    except aidl_types.ServiceSpecificException as error:
        return Outcome(error.errorCode, [], Timing(), frame.raw())
    status = ErrorStatus.NONE if result.outputSufficientSize else ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    return Outcome(status, result.outputShapes, result.timing, frame.raw())


def execute_device_memory(prepared: Any, frame: Frame, measure: int = MeasureTiming.NO, **options: Any) -> Outcome:
    """Call executeSynchronously_1_3 with inputs and outputs in driver buffers, filled and read by copies."""
    request, device = frame.request, prepared.buffers
    inputs, outputs, buffers = list(request.inputs), list(request.outputs), []
    pools: list[MemoryPool] = [pool if isinstance(pool, MemoryPool) else MemoryPool(pool) for pool in request.pools]
    for arguments, is_input in ((inputs, True), (outputs, False)):
        for index, argument in enumerate(arguments):
            if argument.hasNoValue:
                continue
            roles = ([BufferRole(0, index)], []) if is_input else ([], [BufferRole(0, index)])
            status, buffer, token = device.allocate(BufferDesc(argument.dimensions), [prepared], *roles)
            assert status == ErrorStatus.NONE, status
            if is_input:
                assert buffer.copyFrom(_blob(frame, argument), argument.dimensions) == ErrorStatus.NONE
            buffers.append((buffer, None if is_input else index))
            arguments[index] = RequestArgument(False, DataLocation(len(pools), 0, 0), argument.dimensions)
            pools.append(MemoryPool(token=token))
    bound = Request(inputs, outputs, pools)
    status, shapes, timing = prepared.executeSynchronously_1_3(bound, measure, *_limits(**options))
    raw = frame.raw()
    if status == ErrorStatus.NONE:
        for buffer, output in buffers:
            if output is not None and all(shapes[output].dimensions):
                count = len(raw[output])
                blob = allocate_blob(count)
                copied = buffer.copyTo(blob)
                assert copied == ErrorStatus.NONE, f"copyTo gave {copied.name} for {count} bytes"
                raw[output] = bytes(memoryview(blob.map()))
                blob.close()
    return Outcome(status, shapes or _request_shapes(request), timing, raw)


def _blob(frame: Frame, argument: RequestArgument) -> Memory:
    place = argument.location
    memory = allocate_blob(place.length)
    pool = frame.request.pools[place.poolIndex]
    assert isinstance(pool, MemoryPool)
    assert pool.hidlMemory is not None
    memory.map()[:] = pool.hidlMemory.map()[place.offset : place.offset + place.length]
    return memory


def _limits(
    deadline: OptionalTimePoint | None = None, loop: OptionalTimeoutDuration | None = None
) -> tuple[OptionalTimePoint, OptionalTimeoutDuration]:
    return deadline or OptionalTimePoint(), loop or OptionalTimeoutDuration()


def _request_shapes(request: Request) -> list[OutputShape]:
    return [OutputShape(argument.dimensions, True) for argument in request.outputs]


EXECUTORS: dict[str, Callable[..., Outcome]] = {
    "sync": execute_sync,
    "async": execute_async,
    "burst": execute_burst,
    "aidl burst": execute_aidl_burst,
    "aidl reusable": execute_aidl_reusable,
    "fenced": execute_fenced,
    "device memory": execute_device_memory,
}
