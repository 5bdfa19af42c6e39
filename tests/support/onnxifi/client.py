"""An ONNXIFI client for tests, for any implementation, and the registration of the contract's lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
from hal.onnxifi.status import Status
from tests.support.onnxifi import models

GARBAGE = (0, 1, 0xDEADBEEF, 0x7FFF_FFFF_FFFF_FFF0, 2**64 - 1)
"""Invalid handles of any kind; 0 is NULL."""
SOON = 60.0
"""Time limit in seconds for a thread that should return."""
S = Status


class Door(Protocol):
    """The 15 functions with Python signatures; see hal/onnxifi/__init__.py. Out-values follow the status."""

    def __getattr__(self, name: str) -> Callable[..., Any]: ...


class Client:
    """A program that uses an implementation and releases what it has created."""

    def __init__(self, door: Door) -> None:
        self.door = door
        _, _, count = door.onnxGetBackendIDs()
        status, self.ids, _ = door.onnxGetBackendIDs(count)
        assert status == S.SUCCESS
        self.id = self.ids[0]
        self._backend = 0
        self._graphs: list[int] = []
        self._events: list[int] = []
        self._kept: list[Any] = []
        self._unplugged = False

    def close(self) -> None:
        if self._unplugged:
            self.door.plug(0)
        for event in self._events:
            self.door.onnxReleaseEvent(event)
        for graph in self._graphs:
            self.door.onnxReleaseGraph(graph)
        if self._backend:
            self.door.onnxReleaseBackend(self._backend)
        for identifier in self.ids:
            self.door.onnxReleaseBackendID(identifier)

    @property
    def backend(self) -> int:
        if not self._backend:
            status, self._backend = self.door.onnxInitBackend(self.id)
            assert status == S.SUCCESS
        return self._backend

    def event(self) -> int:
        status, event = self.door.onnxInitEvent(self.backend)
        assert status == S.SUCCESS
        self._events.append(event)
        return int(event)

    def keep_event(self, event: int) -> None:
        self._events.append(event)

    def graph(self, model: bytes | None = None, weights: Sequence[TensorDescriptorV1] | None = None) -> int:
        status, graph = self.door.onnxInitGraph(self.backend, None, model or models.unary(), weights)
        assert status == S.SUCCESS
        self._graphs.append(graph)
        return int(graph)

    def forget_graph(self, graph: int) -> None:
        self._graphs.remove(graph)

    def descriptor(
        self, name: str, /, shape: Sequence[int] | None = models.SHAPE, **changes: Any
    ) -> TensorDescriptorV1:
        """Return a valid descriptor with its own memory, with the given changes; shape None is NULL."""
        array = np.zeros(models.SHAPE if shape is None else tuple(shape), np.float32)
        self._kept.append(array)
        found = TensorDescriptorV1.of(name, array)
        if shape is None:
            found.shape, found.dimensions = None, array.ndim
        for field, value in changes.items():
            setattr(found, field, value)
        return found

    def bound(self, model: bytes | None = None) -> tuple[int, TensorDescriptorV1, TensorDescriptorV1]:
        """Return (graph with its IO set, x, y)."""
        graph = self.graph(model)
        x, y = self.descriptor("x"), self.descriptor("y")
        assert self.door.onnxSetGraphIO(graph, [x], [y]) == S.SUCCESS
        return graph, x, y

    def run(self, graph: int, signal: bool = True) -> tuple[int, int]:
        """Start a run and return (input event, output event)."""
        start, end = MemoryFenceV1(self.event()), MemoryFenceV1()
        if signal:
            assert self.door.onnxSignalEvent(start.event) == S.SUCCESS
        assert self.door.onnxRunGraph(graph, start, end) == S.SUCCESS
        self._events.append(end.event)
        return start.event, end.event

    def unplug(self) -> None:
        self._unplugged = True
        self.door.unplug(0)


@dataclass(frozen=True)
class Line:
    """One ``@retval`` of the header."""

    number: int
    function: str
    status: Status
    check: Callable[[Client], None]

    @property
    def label(self) -> str:
        return f"{self.number:03}-{self.function}-{self.status.name}"


CONTRACT: dict[int, Line] = {}
Check = Callable[[Client], None]


def line(number: int, function: str, status: Status) -> Callable[[Check], Check]:
    """Register a check as a line."""

    def decorate(check: Check) -> Check:
        assert number not in CONTRACT, number
        CONTRACT[number] = Line(number, function, status, check)
        return check

    return decorate


Call = Callable[[Client], Any]
"""A call with valid arguments (or the invalid ones of a line); its first value is the status."""


def status_of(answer: Any) -> int:
    return int(answer[0] if isinstance(answer, tuple) else answer)


def gives(number: int, function: str, status: Status, *calls: Call) -> None:
    """Register a line that each of these calls shows. A handle that a failing call returns must be NULL."""

    def check(client: Client) -> None:
        for call in calls:
            answer = call(client)
            assert status_of(answer) == status, f"{function}: {status_of(answer):#x}, not {status.name}"
            if isinstance(answer, tuple) and len(answer) == 2 and status not in (S.SUCCESS, S.FALLBACK):
                assert answer[1] == 0

    line(number, function, status)(check)


def injected(number: int, function: str, status: Status, call: Call) -> None:
    """Register a line shown only by an injected failure; without it, before and after, the same call succeeds."""

    def check(client: Client) -> None:
        client.door.inject(function, int(status), 1)
        answer = call(client)
        assert status_of(answer) == status
        if isinstance(answer, tuple) and len(answer) == 2:
            assert answer[1] == 0
        assert status_of(call(client)) in (S.SUCCESS, S.FALLBACK)

    line(number, function, status)(check)


def failures(first: int, function: str, statuses: Sequence[Status], call: Call) -> None:
    for offset, status in enumerate(statuses):
        injected(first + offset, function, status, call)


def unavailable(
    number: int, function: str, prepare: Callable[[Client], Any], call: Callable[[Client, Any], Any]
) -> None:
    """Register a line about a device that is unplugged between ``prepare`` and ``call``."""

    def check(client: Client) -> None:
        made = prepare(client)
        client.unplug()
        answer = call(client, made)
        assert status_of(answer) == S.BACKEND_UNAVAILABLE
        if isinstance(answer, tuple) and len(answer) == 2:
            assert answer[1] == 0

    line(number, function, S.BACKEND_UNAVAILABLE)(check)


RESOURCES = (S.NO_SYSTEM_MEMORY, S.NO_SYSTEM_RESOURCES, S.NO_DEVICE_MEMORY, S.NO_DEVICE_RESOURCES)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start a call that may block; its result is appended to the list."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    return thread, answers
