"""Stand-ins for the transport: device memory without a device, prepared models without a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from hal.nnapi.execution.outcome import Outcome
from hal.nnapi.memory.pools import PoolMappings
from hal.nnapi.types import ErrorStatus, MemoryPool, Model, Operand, OperandLifeTime, OperandType, Request, Subgraph
from npusim.errors import DeviceMemoryError

FLOATS = OperandType.TENSOR_FLOAT32


class Bytes:
    """A DeviceBuffer on the host. Like a device's buffer it is released when it is dropped."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.data = bytearray(nbytes)


class DeviceMemory:
    """The part of an Executor used by buffers, with ``capacity`` bytes."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.live: WeakSet[Bytes] = WeakSet()
        self.status = "AVAILABLE"

    @property
    def used(self) -> int:
        return sum(buffer.nbytes for buffer in list(self.live))

    def buffer(self, nbytes: int) -> Bytes:
        if self.used + nbytes > self.capacity:
            raise DeviceMemoryError(f"{nbytes} bytes do not fit")
        buffer = Bytes(nbytes)
        self.live.add(buffer)
        return buffer

    def write(self, buffer: Bytes, data: Any, offset: int = 0) -> None:
        assert buffer in self.live
        assert offset + len(data) <= buffer.nbytes
        buffer.data[offset : offset + len(data)] = data

    def read(self, buffer: Bytes, nbytes: int, offset: int = 0) -> bytearray:
        assert buffer in self.live
        assert offset + nbytes <= buffer.nbytes
        return buffer.data[offset : offset + nbytes]


class Engine:
    """The device behind prepared models, with only the part that bursts use."""

    def __init__(self) -> None:
        self.bursts: WeakSet[Any] = WeakSet()


Run = Callable[[Request, PoolMappings], Outcome]


class Prepared:
    """A prepared model whose executions call a function."""

    def __init__(self, model: Model, buffers: Any = None, run: Run | None = None) -> None:
        self.model = model
        self.buffers = buffers
        self.engine = Engine()
        self._function = run
        self.pins = 0
        self.runs: list[tuple[Request, Any, Any, Any]] = []
        self._lock = threading.Lock()

    def pin(self) -> None:
        with self._lock:
            self.pins += 1

    def unpin(self) -> None:
        with self._lock:
            self.pins -= 1

    def run(self, request: Request, measure: Any, deadline: Any, loop_timeout: Any, mappings: Any = None) -> Outcome:
        self.runs.append((request, measure, deadline, loop_timeout))
        if self._function:
            return self._function(request, mappings)
        for index, pool in enumerate(request.pools):
            assert isinstance(pool, MemoryPool)
            if pool.hidlMemory is not None:
                mappings.get(index, pool.hidlMemory)
        return Outcome(ErrorStatus.NONE)


def operand(dimensions: Sequence[int], kind: int = FLOATS, scale: float = 0.0, zero: int = 0, **more: Any) -> Operand:
    """Return an operand of a main subgraph."""
    return Operand(kind, tuple(dimensions), scale=scale, zeroPoint=zero, **more)


def model(inputs: Sequence[Operand], outputs: Sequence[Operand]) -> Model:
    """Return a model with these inputs and outputs and no operations."""
    for each in inputs:
        each.lifetime = OperandLifeTime.SUBGRAPH_INPUT
    for each in outputs:
        each.lifetime = OperandLifeTime.SUBGRAPH_OUTPUT
    count = len(inputs)
    return Model(Subgraph([*inputs, *outputs], [], range(count), range(count, count + len(outputs))))
