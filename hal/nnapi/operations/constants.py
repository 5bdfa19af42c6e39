"""Values of constant operands, as views of the client's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..memory import mapping
from ..types import Model, Operand, OperandLifeTime
from .view import STORAGE, Array

Pool = mapping.Mapping | memoryview | None


class Constants:
    """Gives constant operands of one model as read-only arrays of their storage type and shape, without a copy.

    ``pools``: the bytes of each of the model's pools, None for one that is not mapped. ``storage``: the numpy type of
    an element by operand type. Methods that read a mapped pool raise FileCutError if its file was truncated.
    """

    def __init__(
        self, model: Model, pools: Sequence[Pool] = (), storage: Mapping[int, np.dtype[Any]] = STORAGE
    ) -> None:
        self._values = memoryview(model.operandValues)
        self._pools = pools
        self._storage = storage

    def __call__(self, operand: Operand) -> Array | None:
        """The value; None if the operand is not constant, or of a type without storage."""
        storage = self._storage.get(operand.type)
        raw = None if storage is None else self.raw(operand)
        if storage is None or raw is None:
            return None
        array: Array = np.frombuffer(raw, np.uint8) != 0 if storage == np.bool_ else np.frombuffer(raw, storage)
        return array.reshape(tuple(operand.dimensions))

    def raw(self, operand: Operand) -> memoryview | None:
        """The bytes of a constant operand; None if it is not constant or its pool is not mapped."""
        place = operand.location
        if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
            pool: memoryview | None = self._values
        elif operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
            pool = self.pool(place.poolIndex)
        else:
            return None
        return None if pool is None else pool[place.offset : place.offset + place.length].toreadonly()

    def check(self) -> None:
        """Raise FileCutError if the file of a pool was truncated."""
        for index in range(len(self._pools)):
            self.pool(index)

    def confirm(self) -> None:
        """Raise FileCutError if bytes were read after their file was truncated."""
        for pool in self._pools:
            if isinstance(pool, mapping.Mapping):
                pool.confirm()

    def pools(self) -> list[memoryview | None]:
        """The bytes of every pool."""
        return [self.pool(index) for index in range(len(self._pools))]

    def pool(self, index: int) -> memoryview | None:
        """The bytes of one pool; None if it is not mapped."""
        pool = self._pools[index]
        if isinstance(pool, mapping.Mapping):
            pool.check()
            return pool.data
        return pool
