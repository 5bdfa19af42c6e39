"""Arguments of a request: their places, and whether to measure times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import invalid_argument
from ..memory.mapping import Mapping
from ..memory.pools import PoolMappings
from ..operations.view import Array, Shape
from ..types import MeasureTiming, MemoryPool, RequestArgument
from ..validation import ResolvedRequest


class Place:
    """The place of an argument: ``length`` bytes of a mapped pool from ``offset`` on, a buffer of the driver, or none
    (``pool`` is None)."""

    __slots__ = ("length", "offset", "omitted", "pool")

    def __init__(self, pool: Mapping | None, offset: int = 0, length: int = 0, omitted: bool = False) -> None:
        self.pool = pool
        self.offset = offset
        self.length = length
        self.omitted = omitted

    def load(self, shape: Shape, storage: np.dtype[Any]) -> Array:
        """The value of an input: a view of the pool, which the device reads when the job runs; a copy if the element
        types of the interface and numpy differ."""
        assert self.pool is not None
        if storage == np.bool_:  # any non-zero byte is true
            truth: Array = np.frombuffer(self.pool, np.uint8, self.length, self.offset) != 0
            return truth.reshape(shape)
        return np.frombuffer(self.pool, storage, self.length // storage.itemsize, self.offset).reshape(shape)

    def store(self, value: Array) -> bool:
        """Write an output; returns False if its place is too small. Raises FileCutError."""
        assert self.pool is not None
        if value.nbytes > self.length:
            return False
        self.pool.check()
        self.pool[self.offset : self.offset + value.nbytes] = value.reshape(-1).view(np.uint8)
        self.pool.confirm()
        return True


def checked_measure(measure: object) -> bool:
    """Whether to measure times. Raises StatusError (INVALID_ARGUMENT) unless it is a MeasureTiming."""
    if not isinstance(measure, int) or measure not in (MeasureTiming.NO, MeasureTiming.YES):
        raise invalid_argument(f"measure must be a MeasureTiming, 0 or 1, got {measure!r}")
    return bool(measure)


class Places:
    """The places of the arguments of an execution. ``pools``: their distinct pools; ``read``: those of inputs."""

    def __init__(self, resolved: ResolvedRequest, mappings: PoolMappings) -> None:
        """Raises StatusError for a pool that cannot be mapped or written."""
        self._mappings = mappings
        self._mapped: dict[int, Mapping | None] = {}
        request = resolved.request
        self.inputs = [self._place(argument, resolved.pools) for argument in request.inputs]
        self.read = [pool for pool in self._mapped.values() if pool is not None]
        self.outputs = [self._place(argument, resolved.pools) for argument in request.outputs]
        self.pools = [pool for pool in self._mapped.values() if pool is not None]
        for argument, place in zip(request.outputs, self.outputs, strict=True):
            if place.pool is not None and not place.pool.flags.writeable:
                index = argument.location.poolIndex
                raise invalid_argument(f"an output lies in pool {index}, which is read-only")

    def _place(self, argument: RequestArgument, pools: Sequence[MemoryPool]) -> Place:
        if argument.hasNoValue:
            return Place(None, omitted=True)
        where = argument.location
        index = where.poolIndex
        if index not in self._mapped:
            memory = pools[index].hidlMemory
            self._mapped[index] = None if memory is None else self._mappings.get(index, memory)
        return Place(self._mapped[index], where.offset, where.length)
