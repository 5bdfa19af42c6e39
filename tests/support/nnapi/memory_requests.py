"""A device, a model with two results, and requests with arguments in pools or driver buffers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hal.nnapi import fence, memory
from hal.nnapi.memory import Memory
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    MemoryPool,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    OutputShape,
    Request,
    RequestArgument,
    Subgraph,
    Timing,
)
from npusim.driver import HostCounters
from tests.support.nnapi.client import ExecutionCallback

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
SHAPE = (1, 32, 32, 8)
NBYTES = 32 * 32 * 8 * 4
FLOATS = OperandType.TENSOR_FLOAT32

Array = npt.NDArray[np.float32]
Result = tuple[ErrorStatus, Sequence[OutputShape], Timing]


def _operand(dimensions: Sequence[int], lifetime: OperandLifeTime, consumers: int = 0) -> Operand:
    return Operand(FLOATS, dimensions, consumers, lifetime=lifetime)


def two_results(*dimensions: int) -> Model:
    """Build a model with two inputs that returns their sum and their product."""
    given = [_operand(dimensions, OperandLifeTime.SUBGRAPH_INPUT, 2) for _ in range(2)]
    results = [_operand(dimensions, OperandLifeTime.SUBGRAPH_OUTPUT) for _ in range(2)]
    none = Operand(OperandType.INT32, (), 2, lifetime=OperandLifeTime.CONSTANT_COPY, location=DataLocation(0, 0, 4))
    operations = [
        Operation(OperationType.ADD, [0, 1, 4], [2]),
        Operation(OperationType.MUL, [0, 1, 4], [3]),
    ]
    return Model(Subgraph([*given, *results, none], operations, [0, 1], [2, 3]), operandValues=bytes(4))


class Bench:
    """A device with its driver."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def counters(self) -> HostCounters:
        """Return the host transfer counters."""
        counters: HostCounters = self.device._engine.executor.counters
        return counters

    def allocate(
        self, prepared: Any, inputs: Sequence[int] = (), outputs: Sequence[int] = (), dimensions: Sequence[int] = ()
    ) -> Any:
        """Allocate a buffer for these inputs and outputs."""
        roles = [BufferRole(0, index, 1.0) for index in inputs], [BufferRole(0, index, 0.5) for index in outputs]
        status, buffer, token = self.device.allocate(BufferDesc(dimensions), [prepared], *roles)
        assert status is NONE
        assert buffer.token == token
        return buffer


def numbers(seed: int, shape: Sequence[int] = SHAPE) -> Array:
    """Return random floats from 0 to 1."""
    return np.random.default_rng(seed).random(tuple(shape), np.float32)


def pool_of(data: Array) -> Memory:
    """Return shared memory that contains an array."""
    pool = memory.allocate_ashmem(data.nbytes)
    pool.map()[:] = data.tobytes()
    return pool


def fill(buffer: Any, data: Array, dimensions: Sequence[int] = ()) -> None:
    """Copy an array to a driver buffer."""
    with pool_of(data) as pool:
        assert buffer.copyFrom(pool, dimensions) is NONE


def contents_of(buffer: Any, shape: Sequence[int] = SHAPE) -> Array:
    """Return the content of a driver buffer."""
    with memory.allocate_blob(int(np.prod(shape)) * 4) as pool:
        assert buffer.copyTo(pool) is NONE
        return np.frombuffer(bytes(pool.map()), np.float32).reshape(shape)


def _argument(index: int, place: Any, dimensions: Sequence[int]) -> tuple[RequestArgument, MemoryPool]:
    if isinstance(place, Memory):
        return RequestArgument(False, DataLocation(index, 0, place.size), dimensions), MemoryPool(place)
    token = place if isinstance(place, int) else place.token
    return RequestArgument(False, DataLocation(index), dimensions), MemoryPool(token=token)


def request_for(inputs: Sequence[Any], outputs: Sequence[Any], dimensions: Sequence[int] = SHAPE) -> Request:
    """Return a request with each argument in a separate memory: shared memory, a buffer, or a bare token."""
    made = [_argument(index, place, dimensions) for index, place in enumerate((*inputs, *outputs))]
    arguments, pools = [argument for argument, _ in made], [pool for _, pool in made]
    return Request(arguments[: len(inputs)], arguments[len(inputs) :], pools)


def run_sync(prepared: Any, request: Request) -> Result:
    """Execute synchronously."""
    result: Result = prepared.executeSynchronously_1_3(request, 0, OptionalTimePoint(), OptionalTimeoutDuration())
    return result


def run_async(prepared: Any, request: Request) -> Result:
    """Execute with a callback."""
    callback = ExecutionCallback()
    status = prepared.execute_1_3(request, 0, OptionalTimePoint(), OptionalTimeoutDuration(), callback)
    result = callback.wait()
    assert status in (NONE, result[0])
    return result


def run_fenced(prepared: Any, request: Request) -> Result:
    """Execute with a fence and wait for it."""
    limits = OptionalTimePoint(), OptionalTimeoutDuration(), OptionalTimeoutDuration()
    status, handle, callback = prepared.executeFenced(request, [], 0, *limits)
    if status is not NONE:
        assert not handle
        assert callback is None
        return status, [], Timing()
    state = fence.wait(handle, 30)
    os.close(handle[0])
    status, launched, fenced = callback.getExecutionInfo()
    assert launched == fenced == Timing()
    assert state is (fence.FenceStatus.SIGNALED if status is NONE else fence.FenceStatus.ERROR)
    return status, [], launched


EXECUTORS = pytest.mark.parametrize("execute", [run_sync, run_async, run_fenced])


def check(result: Result, expected: ErrorStatus) -> None:
    """Check the status; a failure must report neither shapes nor times."""
    status, shapes, timing = result
    assert status is expected
    assert timing == Timing()
    if expected is not NONE:
        assert list(shapes) == []
