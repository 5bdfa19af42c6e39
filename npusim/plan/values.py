"""Values: those of one execution of a plan, between its segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from npusim.errors import InputError
from npusim.plan.backend import (
    Array,
    Backend,
    DeviceValue,
    Held,
    Items,
    PlanBuffer,
    Shape,
    Strings,
    Target,
    Value,
    bytes_of,
)
from npusim.plan.node import PlanNode
from npusim.plan.segment import PlanSteps, Segment


@dataclass(slots=True)
class Situation:
    """Known shapes and values when a segment is built, and the values that this execution does not have; by number."""

    shapes: dict[int, Shape]
    known: dict[int, Array]
    absent: set[int]


class Values(Situation):
    """Values by number, on the host or in device memory; a context manager that frees its memory."""

    def __init__(
        self, steps: PlanSteps, backend: Backend, inputs: Sequence[Value | None], targets: Sequence[Target]
    ) -> None:
        super().__init__({}, {}, set())
        self.values: dict[int, Value] = {}
        for number, value in zip(steps.inputs, inputs, strict=True):
            if value is None:
                self.absent.add(number)
            else:
                self.values[number] = value
                self.shapes[number] = value.shape
        self.backend = backend
        self._steps = steps
        self._targets = dict(zip(steps.outputs, targets, strict=True))
        self._bound: dict[int, PlanBuffer] = {}
        self._temporary: list[PlanBuffer] = []
        self._entries: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for buffer in self._temporary:
            buffer.release()
        self._temporary.clear()

    def set(self, number: int, value: Value) -> None:
        """Set a value."""
        self.values[number] = value
        self.shapes[number] = value.shape

    def adopt(self, buffers: Iterable[PlanBuffer]) -> None:
        """Take ownership of device memory, which is freed with this state."""
        self._temporary.extend(buffers)

    def target(self, number: int, after: int) -> Target:
        """The target of a value that another plan computes; ``after``: the next step."""
        wanted = self._steps.read_after(number, after)
        return lambda shape, dtype: self._place(number, shape, dtype, bytes_of(shape, dtype), wanted)

    def _place(
        self, number: int, shape: Shape, dtype: np.dtype[Any], nbytes: int, wanted: bool, counted: bool = False
    ) -> PlanBuffer | None:
        """Device memory for a value that is computed next; None for host memory."""
        if not nbytes:
            return None
        if number in self._targets and not counted:  # a client's buffer must have the exact shape, not the maximum
            buffer = self._targets[number](shape, dtype)
            if buffer is not None:
                self._bound[number] = buffer
                return buffer
        if not wanted:
            return None
        buffer = self.backend.allocate(nbytes)
        self._temporary.append(buffer)
        return buffer

    def run(self, node: PlanNode) -> None:
        """Run a segment's program and store its outputs."""
        self.shapes.update(node.segment.shapes)
        for number, array in node.segment.constants.items():
            self.known[number] = self.values[number] = array
        if node.program is None:
            return
        inputs: dict[str, Array | PlanBuffer] = {}
        for port in node.inputs:
            value = self.values[port.number]
            assert not isinstance(value, Held)
            inputs[port.name] = value.buffer if isinstance(value, DeviceValue) else value
        # Outputs get their memory before the run, which writes there: nothing is copied on the device afterwards.
        bound: dict[str, PlanBuffer] = {}
        for port in node.outputs:
            buffer = self._place(port.number, port.shape, port.dtype, port.nbytes, port.wanted, port.counted)
            if buffer is not None:
                bound[port.name] = buffer
        arrays = {} if node.silent else self.backend.run(node.program, inputs, bound)
        for port in node.outputs:
            if port.name in bound:
                self.values[port.number] = DeviceValue(bound[port.name], port.shape, port.dtype)
            else:
                self.values[port.number] = arrays[port.name] if port.nbytes else np.empty(port.shape, port.dtype)
            self.shapes[port.number] = port.shape
        for port in node.counts:
            self._entries[port.number] = int(arrays[port.name].reshape(-1)[0])

    def answer(self, segment: Segment) -> bytes:
        """Read the values that determine the next segment. Returns the bytes that identify it."""
        parts: list[bytes] = []
        for number in segment.ask:
            array = self.known[number] = self.host(self.values[number])
            parts.append(array.tobytes() + repr(array.shape).encode())
        for number in segment.counts:
            self.set(number, leading(self.values[number], self._entries.pop(number)))
            parts.append(repr(self.shapes[number]).encode())
        return b"".join(parts)

    def host(self, value: Value) -> Array:
        """A value as a host array."""
        if isinstance(value, Held):
            raise InputError("a sequence or a tensor of strings is not allowed here")
        if not isinstance(value, DeviceValue):
            return value
        raw = self.backend.read(value.buffer, value.nbytes) if value.nbytes else b""
        return np.frombuffer(raw, value.dtype).reshape(value.shape)

    def results(self) -> list[Value]:
        """The outputs of the plan: in the buffers of their targets, or on the host if a target gave none."""
        found: list[Value] = []
        for number in self._steps.outputs:
            value = self.values[number]
            if isinstance(value, Items):  # the memory of its values ends with this execution
                found.append(value if value.values is None else Items(tuple(map(self.host, value.values))))
                continue
            if isinstance(value, Strings):
                found.append(value)
                continue
            if not isinstance(value, DeviceValue) or value.buffer is not self._bound.get(number):
                value = array = self.host(value)
                buffer = self._targets[number](array.shape, array.dtype) if array.size else None
                if buffer is not None:  # it is the result of a loop, or its size has only been counted now
                    self.backend.write(buffer, array)
                    value = DeviceValue(buffer, array.shape, array.dtype)
            found.append(value)
        return found


def leading(value: Value, count: int) -> Value:
    """The first ``count`` entries of dimension 0, in the same memory."""
    assert not isinstance(value, Held)
    shape = (count, *value.shape[1:])
    return DeviceValue(value.buffer, shape, value.dtype) if isinstance(value, DeviceValue) else value[:count]
