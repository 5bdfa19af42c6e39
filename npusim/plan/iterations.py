"""Iterations of a loop: their device memory, and the repetition of equal iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np

from npusim.plan.backend import Array, Backend, DeviceValue, PlanBuffer, Shape, Value, bytes_of
from npusim.program import Program


class Iterations:
    """The device memory of a loop; a context manager that frees it.

    Results of the body alternate between two sets of buffers: one is read while the other is written.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._spare: list[PlanBuffer] = []
        self._old: list[PlanBuffer] = []
        self._new: list[PlanBuffer] = []
        self._runs = self._others = 0  # what this iteration has called on the backend
        self._alike = 0  # consecutive iterations so far with one run for the condition and one for the body
        self._before: list[Sequence[Value]] = []  # the inputs of the last two iterations

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for buffer in (*self._spare, *self._old, *self._new):
            buffer.release()

    # Iterations

    def target(self, shape: Shape, dtype: np.dtype[Any]) -> PlanBuffer | None:
        """The target of a result of the body."""
        nbytes = bytes_of(shape, dtype)
        if not nbytes:
            return None
        fitting = next((buffer for buffer in self._spare if buffer.nbytes == nbytes), None)
        if fitting is None:
            self._release_spare()  # shapes change, and the memory may be needed
            fitting = self._backend.allocate(nbytes)
        else:
            self._spare.remove(fitting)
        self._new.append(fitting)
        return fitting

    def _release_spare(self) -> None:
        while self._spare:
            self._spare.pop().release()

    def next(self) -> None:
        """Start the next iteration, which reads the results of the body."""
        self._release_spare()
        self._spare, self._old, self._new = self._old, self._new, []
        self._alike = self._alike + 1 if (self._runs, self._others) == (2, 0) else 0
        self._runs = self._others = 0

    def take(self) -> list[PlanBuffer]:
        """Transfer the memory of the last results to the caller."""
        taken, self._old = self._old, []
        return taken

    def repeat(self, values: Sequence[Value], limit_ps: int) -> list[Value]:
        """The inputs of the next iteration, after as many iterations as the backend can repeat.

        If two iterations were alike and this one starts with the memory of the first of them, the following ones can
        differ only in the condition.
        """
        if self._alike >= 2 and all(map(_same, values, self._before[0])) and self._backend.again(limit_ps) % 2:
            self._before.reverse()
            values = self._before[0]
            self._spare, self._old = self._old, self._spare
        self._before = [*self._before[-1:], values]
        return list(values)

    # The backend

    def run(
        self, program: Program, inputs: Mapping[str, Array | PlanBuffer], outputs: Mapping[str, PlanBuffer]
    ) -> Mapping[str, Array]:
        """See Backend."""
        self._runs += 1
        return self._backend.run(program, inputs, outputs)

    def allocate(self, nbytes: int) -> PlanBuffer:
        """See Backend."""
        self._others += 1
        return self._backend.allocate(nbytes)

    def read(self, buffer: PlanBuffer, nbytes: int) -> bytes | bytearray:
        """See Backend."""
        self._others += 1
        return self._backend.read(buffer, nbytes)

    def write(self, buffer: PlanBuffer, data: Array) -> None:
        """See Backend."""
        self._others += 1
        self._backend.write(buffer, data)

    def again(self, limit_ps: int) -> int:
        """See Backend; for a loop in the body."""
        self._others += 1
        return self._backend.again(limit_ps)

    def limited(self) -> AbstractContextManager[None]:
        """See Backend."""
        return self._backend.limited()

    def decide(self, name: str, kind: str, elements: int) -> None:
        """See Backend."""
        self._backend.decide(name, kind, elements)

    def elapsed_ps(self) -> int:
        """See Backend."""
        return self._backend.elapsed_ps()


def _same(value: Value, other: Value) -> bool:
    """Whether two values are at the same address, whatever their contents."""
    return value == other if isinstance(value, DeviceValue) and isinstance(other, DeviceValue) else value is other
