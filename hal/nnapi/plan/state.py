"""State: the values of one execution of a subgraph, between its segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ..operations.view import Array, Shape
from ..types import Subgraph
from .backend import Backend, Buffer, Held, Target, Value, bytes_of
from .node import Node
from .segment import Segment


@dataclass(slots=True)
class Situation:
    """Known shapes and values by operand when a segment is built, and the operands without a value."""

    shapes: dict[int, Shape]
    known: dict[int, Array]
    absent: set[int]


class State(Situation):
    """Values by operand, on the host or in device memory; a context manager that frees its memory."""

    def __init__(
        self, subgraph: Subgraph, backend: Backend, inputs: Sequence[Value | None], targets: Sequence[Target]
    ) -> None:
        super().__init__({}, {}, set())
        self.values: dict[int, Value] = {}
        for number, value in zip(subgraph.inputIndexes, inputs, strict=True):
            if value is None:
                self.absent.add(number)
            else:
                self.values[number] = value
                self.shapes[number] = value.shape
        self.backend = backend
        self._subgraph = subgraph
        self._targets = dict(zip(subgraph.outputIndexes, targets, strict=True))
        self._bound: dict[int, Buffer] = {}
        self._temporary: list[Buffer] = []
        self._entries: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for buffer in self._temporary:
            buffer.release()
        self._temporary.clear()

    def set(self, number: int, value: Value) -> None:
        """Set the value of an operand."""
        self.values[number] = value
        self.shapes[number] = value.shape

    def adopt(self, buffers: Iterable[Buffer]) -> None:
        """Take ownership of device memory, which is freed with this state."""
        self._temporary.extend(buffers)

    def target(self, number: int, after: int) -> Target:
        """The target of an operand that a subgraph computes; ``after``: the next operation."""
        wanted = any(number in operation.inputs for operation in self._subgraph.operations[after:])
        return lambda shape, dtype: self._place(number, shape, dtype, bytes_of(shape, dtype), wanted)

    def _place(
        self, number: int, shape: Shape, dtype: np.dtype[Any], nbytes: int, wanted: bool, counted: bool = False
    ) -> Buffer | None:
        """Device memory for an operand that is computed next; None for host memory."""
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

    def run(self, node: Node) -> None:
        """Run a segment's program and store its outputs."""
        self.shapes.update(node.segment.shapes)
        if node.program is None:
            return
        inputs: dict[str, Array | Buffer] = {}
        for port in node.inputs:
            value = self.values[port.operand]
            inputs[port.name] = value.buffer if isinstance(value, Held) else value
        # Outputs get their memory before the run, which writes there: nothing is copied on the device afterwards.
        bound: dict[str, Buffer] = {}
        for port in node.outputs:
            buffer = self._place(port.operand, port.shape, port.dtype, port.nbytes, port.wanted, port.counted)
            if buffer is not None:
                bound[port.name] = buffer
        arrays = {} if node.silent else self.backend.run(node.program, inputs, bound)
        for port in node.outputs:
            if port.name in bound:
                self.values[port.operand] = Held(bound[port.name], port.shape, port.dtype)
            else:
                self.values[port.operand] = arrays[port.name] if port.nbytes else np.empty(port.shape, port.dtype)
            self.shapes[port.operand] = port.shape
        for port in node.counts:
            self._entries[port.operand] = int(arrays[port.name].reshape(-1)[0])

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
        if not isinstance(value, Held):
            return value
        raw = self.backend.read(value.buffer, value.nbytes) if value.nbytes else b""
        return np.frombuffer(raw, value.dtype).reshape(value.shape)

    def results(self) -> list[Value]:
        """The outputs of the subgraph: in the buffers of their targets, or on the host if a target gave none."""
        found: list[Value] = []
        for number in self._subgraph.outputIndexes:
            value = self.values[number]
            if not isinstance(value, Held) or value.buffer is not self._bound.get(number):
                value = array = self.host(value)
                buffer = self._targets[number](array.shape, array.dtype) if array.size else None
                if buffer is not None:  # it is the result of a loop, or its size has only been counted now
                    self.backend.write(buffer, array)
                    value = Held(buffer, array.shape, array.dtype)
            found.append(value)
        return found


def leading(value: Value, count: int) -> Value:
    """The first ``count`` entries of dimension 0, in the same memory."""
    shape = (count, *value.shape[1:])
    return Held(value.buffer, shape, value.dtype) if isinstance(value, Held) else value[:count]
