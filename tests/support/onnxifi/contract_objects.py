"""Lines 1 to 71 of the contract: backends and their properties, model compatibility, events."""

from __future__ import annotations

from typing import Any

from hal.onnxifi.constants import BackendInfo, EventState
from hal.onnxifi.status import Status
from tests.support.onnxifi import models
from tests.support.onnxifi.client import (
    GARBAGE,
    RESOURCES,
    SOON,
    Call,
    Client,
    failures,
    gives,
    in_thread,
    injected,
    line,
    status_of,
    unavailable,
)

S = Status

# 3.1 onnxGetBackendIDs


@line(1, "onnxGetBackendIDs", S.SUCCESS)
def ids_are_stored(client: Client) -> None:
    count = len(client.ids)
    for capacity in (count, count + 5):
        status, ids, stored = client.door.onnxGetBackendIDs(capacity)
        assert (status, stored, len(ids)) == (S.SUCCESS, count, count)
        assert len(set(ids)) == count
        assert all(ids)
        for identifier in ids:
            assert client.door.onnxReleaseBackendID(identifier) == S.SUCCESS
    assert status_of(client.door.onnxInitBackend(client.id)) == S.SUCCESS  # releasing one ID leaves the others valid


@line(2, "onnxGetBackendIDs", S.FALLBACK)
def ids_do_not_fit(client: Client) -> None:
    assert client.door.onnxGetBackendIDs() == (S.FALLBACK, [], len(client.ids))
    assert client.door.onnxGetBackendIDs(len(client.ids) - 1) == (S.FALLBACK, [], len(client.ids))
    assert len(client.ids) >= 2


gives(3, "onnxGetBackendIDs", S.INVALID_POINTER, lambda c: c.door.onnxGetBackendIDs(9, out=False)[0])


def _ids(client: Client) -> int:
    status, ids, _ = client.door.onnxGetBackendIDs(len(client.ids))
    for identifier in ids:
        client.door.onnxReleaseBackendID(identifier)
    return int(status)


failures(4, "onnxGetBackendIDs", (S.NO_SYSTEM_MEMORY, S.INTERNAL_ERROR), _ids)

# 3.2 onnxReleaseBackendID


def _release_id(client: Client) -> Any:
    _, ids, _ = client.door.onnxGetBackendIDs(len(client.ids))
    first, *others = (client.door.onnxReleaseBackendID(identifier) for identifier in ids)
    assert others == [S.SUCCESS] * (len(ids) - 1)
    return first


def _released_id(client: Client) -> Any:
    released = client.ids.pop()
    assert client.door.onnxReleaseBackendID(released) == S.SUCCESS
    return client.door.onnxReleaseBackendID(released)


gives(6, "onnxReleaseBackendID", S.SUCCESS, _release_id)
gives(
    7, "onnxReleaseBackendID", S.INVALID_ID, _released_id,
    *(lambda c, h=handle: c.door.onnxReleaseBackendID(h) for handle in GARBAGE),
    lambda c: c.door.onnxReleaseBackendID(c.backend),
)  # fmt: skip
injected(8, "onnxReleaseBackendID", S.INTERNAL_ERROR, _release_id)

# 3.3 onnxGetBackendInfo


@line(9, "onnxGetBackendInfo", S.SUCCESS)
def info_is_stored(client: Client) -> None:
    for kind in BackendInfo:
        status, _, size = client.door.onnxGetBackendInfo(client.id, kind)
        if status == S.UNSUPPORTED_ATTRIBUTE:
            assert kind >= BackendInfo.PCI_BUS_ID
            continue
        exact = client.door.onnxGetBackendInfo(client.id, kind, size)
        roomy = client.door.onnxGetBackendInfo(client.id, kind, size + 17)
        assert exact == roomy
        assert exact[0] == S.SUCCESS
        assert exact[2] == len(exact[1]) == size


@line(10, "onnxGetBackendInfo", S.FALLBACK)
def info_does_not_fit(client: Client) -> None:
    for kind in (BackendInfo.NAME, BackendInfo.MEMORY_SIZE):
        status, value, size = client.door.onnxGetBackendInfo(client.id, kind)
        assert (status, value) == (S.FALLBACK, None)
        assert size > 0
        assert client.door.onnxGetBackendInfo(client.id, kind, size - 1) == (S.FALLBACK, None, size)


def _info(client: Client, identifier: int | None = None, kind: int = BackendInfo.NAME, **other: Any) -> int:
    return int(client.door.onnxGetBackendInfo(client.id if identifier is None else identifier, kind, 99, **other)[0])


gives(11, "onnxGetBackendInfo", S.INVALID_ID, *(lambda c, h=h: _info(c, h) for h in GARBAGE))
gives(12, "onnxGetBackendInfo", S.INVALID_POINTER, lambda c: _info(c, out=False))
gives(13, "onnxGetBackendInfo", S.UNSUPPORTED_ATTRIBUTE, *(lambda c, k=k: _info(c, kind=k) for k in (9, 40, 1000, -1)))
unavailable(14, "onnxGetBackendInfo", lambda c: None, lambda c, _: _info(c))

# 3.4 onnxGetBackendCompatibility

COMPATIBILITY = "onnxGetBackendCompatibility"


def _compatible(model: bytes | None, size: int | None = None) -> Call:
    return lambda c: c.door.onnxGetBackendCompatibility(c.id, model, size)


MODEL_FAULTS: tuple[tuple[Status, tuple[bytes, ...]], ...] = (
    (S.INVALID_PROTOBUF, (b"\xff" * 9, models.unary()[:-3])),
    (S.INVALID_MODEL, (models.reads_nothing(), models.unary(nonsense=1), models.unary("Elu", alpha="text"))),
    (S.UNSUPPORTED_VERSION, (models.versions(opset=999), models.versions(opset=0), models.versions(ir=999))),
    (S.UNSUPPORTED_OPERATOR, (models.unary("NoSuchOperator"),)),
    (S.UNSUPPORTED_ATTRIBUTE, (models.bad_attribute(),)),
    (S.UNSUPPORTED_SHAPE, (models.bad_shape(),)),
    (S.UNSUPPORTED_DATATYPE, (models.unary(kind=11), models.unary("Identity", kind=8))),
)
"""Models for which compatibility and initialisation return the same status."""
MISMATCHES = ((S.MISMATCHING_SHAPE, models.declared(shape=(3, 2))), (S.MISMATCHING_DATATYPE, models.declared(kind=6)))

gives(15, COMPATIBILITY, S.SUCCESS, *map(_compatible, (models.unary(), models.add(), models.symbolic())))
gives(16, COMPATIBILITY, S.FALLBACK, _compatible(models.lstm()))
gives(
    17, COMPATIBILITY, S.INVALID_ID,
    *(lambda c, h=h: c.door.onnxGetBackendCompatibility(h, models.unary()) for h in GARBAGE),
)  # fmt: skip
gives(18, COMPATIBILITY, S.INVALID_POINTER, _compatible(None, 9))
gives(19, COMPATIBILITY, S.INVALID_SIZE, _compatible(models.unary(), 0))
for _offset, (_fault, _models) in enumerate(MODEL_FAULTS):
    gives(20 + _offset, COMPATIBILITY, _fault, *map(_compatible, _models))
for _offset, (_fault, _model) in enumerate(MISMATCHES):
    gives(27 + _offset, COMPATIBILITY, _fault, _compatible(_model))
injected(29, COMPATIBILITY, S.NO_SYSTEM_MEMORY, _compatible(models.unary()))
unavailable(30, COMPATIBILITY, lambda c: None, lambda c, _: _compatible(models.unary())(c))
injected(31, COMPATIBILITY, S.INTERNAL_ERROR, _compatible(models.unary()))

# 3.5 onnxInitBackend


def _init_backend(*properties: int, **other: Any) -> Call:
    def call(client: Client) -> tuple[int, int]:
        status, backend = client.door.onnxInitBackend(client.id, list(properties) or None, **other)
        if backend:
            client.door.onnxReleaseBackend(backend)
        return status, backend

    return call


gives(32, "onnxInitBackend", S.SUCCESS, *(_init_backend(*p) for p in ((), (0,), (1, 0, 0), (1, 4, 2, 3, 0))))
gives(33, "onnxInitBackend", S.INVALID_ID, *(lambda c, h=h: c.door.onnxInitBackend(h) for h in GARBAGE))
gives(34, "onnxInitBackend", S.INVALID_POINTER, lambda c: c.door.onnxInitBackend(c.id, out=False)[0])
gives(35, "onnxInitBackend", S.INVALID_PROPERTY, *(_init_backend(*p) for p in ((1, 5, 0), (2, 0, 0), (2, 5, 0))))
gives(36, "onnxInitBackend", S.UNSUPPORTED_PROPERTY, *(_init_backend(*p) for p in ((4, 7, 0), (8, 7, 0), (3, 1, 0))))
failures(37, "onnxInitBackend", RESOURCES, _init_backend())
unavailable(41, "onnxInitBackend", lambda c: None, lambda c, _: _init_backend()(c))
injected(42, "onnxInitBackend", S.INTERNAL_ERROR, _init_backend())

# 3.6 onnxReleaseBackend


def _release_backend(client: Client) -> Any:
    return client.door.onnxReleaseBackend(client.door.onnxInitBackend(client.id)[1])


def _released_backend(client: Client) -> Any:
    _, backend = client.door.onnxInitBackend(client.id)
    assert client.door.onnxReleaseBackend(backend) == S.SUCCESS
    return client.door.onnxReleaseBackend(backend)


gives(43, "onnxReleaseBackend", S.SUCCESS, _release_backend)
gives(
    44, "onnxReleaseBackend", S.INVALID_BACKEND, _released_backend, lambda c: c.door.onnxReleaseBackend(c.id),
    *(lambda c, h=h: c.door.onnxReleaseBackend(h) for h in GARBAGE),
)  # fmt: skip
injected(45, "onnxReleaseBackend", S.INTERNAL_ERROR, _release_backend)

# 3.7 onnxInitEvent


def _init_event(client: Client) -> tuple[int, int]:
    status, event = client.door.onnxInitEvent(client.backend)
    if event:
        client.keep_event(event)
    return status, event


@line(46, "onnxInitEvent", S.SUCCESS)
def event_is_not_signalled(client: Client) -> None:
    assert client.door.onnxGetEventState(client.event()) == (S.SUCCESS, EventState.NONSIGNALLED)


gives(
    47, "onnxInitEvent", S.INVALID_BACKEND, lambda c: c.door.onnxInitEvent(c.id),
    *(lambda c, h=h: c.door.onnxInitEvent(h) for h in GARBAGE),
)  # fmt: skip
gives(48, "onnxInitEvent", S.INVALID_POINTER, lambda c: c.door.onnxInitEvent(c.backend, out=False)[0])
failures(49, "onnxInitEvent", RESOURCES, _init_event)
unavailable(53, "onnxInitEvent", lambda c: c.backend, lambda c, backend: c.door.onnxInitEvent(backend))
injected(54, "onnxInitEvent", S.INTERNAL_ERROR, _init_event)

# 3.8 onnxSignalEvent


@line(55, "onnxSignalEvent", S.SUCCESS)
def event_becomes_signalled(client: Client) -> None:
    event = client.event()
    assert client.door.onnxSignalEvent(event) == S.SUCCESS
    assert client.door.onnxGetEventState(event) == (S.SUCCESS, EventState.SIGNALLED)


def _signal_twice(client: Client) -> Any:
    event = client.event()
    assert client.door.onnxSignalEvent(event) == S.SUCCESS
    return client.door.onnxSignalEvent(event)


gives(56, "onnxSignalEvent", S.INVALID_EVENT, *(lambda c, h=h: c.door.onnxSignalEvent(h) for h in GARBAGE))
gives(57, "onnxSignalEvent", S.INVALID_STATE, _signal_twice)
unavailable(58, "onnxSignalEvent", Client.event, lambda c, event: c.door.onnxSignalEvent(event))
injected(59, "onnxSignalEvent", S.INTERNAL_ERROR, lambda c: c.door.onnxSignalEvent(c.event()))

# 3.9 onnxGetEventState


@line(60, "onnxGetEventState", S.SUCCESS)
def state_of_a_run(client: Client) -> None:
    graph, *_ = client.bound()
    start, end = client.run(graph, signal=False)
    assert client.door.onnxGetEventState(end) == (S.SUCCESS, EventState.NONSIGNALLED)
    client.door.onnxSignalEvent(start)
    assert client.door.onnxWaitEvent(end) == S.SUCCESS
    assert client.door.onnxGetEventState(end) == (S.SUCCESS, EventState.SIGNALLED)


gives(61, "onnxGetEventState", S.INVALID_EVENT, *(lambda c, h=h: c.door.onnxGetEventState(h) for h in GARBAGE))
gives(62, "onnxGetEventState", S.INVALID_POINTER, lambda c: c.door.onnxGetEventState(c.event(), out=False)[0])
unavailable(63, "onnxGetEventState", Client.event, lambda c, event: c.door.onnxGetEventState(event))
injected(64, "onnxGetEventState", S.INTERNAL_ERROR, lambda c: c.door.onnxGetEventState(c.event()))

# 3.10 onnxWaitEvent


@line(65, "onnxWaitEvent", S.SUCCESS)
def wait_ends_with_the_signal(client: Client) -> None:
    event = client.event()
    thread, answers = in_thread(lambda: client.door.onnxWaitEvent(event))
    thread.join(0.02)
    assert not answers
    assert client.door.onnxSignalEvent(event) == S.SUCCESS
    thread.join(SOON)
    assert answers == [S.SUCCESS]
    assert client.door.onnxWaitEvent(event) == S.SUCCESS


@line(67, "onnxWaitEvent", S.BACKEND_UNAVAILABLE)
def wait_ends_with_the_device(client: Client) -> None:
    event = client.event()
    thread, answers = in_thread(lambda: client.door.onnxWaitEvent(event))
    thread.join(0.02)
    client.unplug()
    thread.join(SOON)
    assert answers == [S.BACKEND_UNAVAILABLE]
    assert client.door.onnxWaitEvent(event) == S.BACKEND_UNAVAILABLE


@line(68, "onnxWaitEvent", S.INTERNAL_ERROR)
def a_run_fails(client: Client) -> None:
    graph, *_ = client.bound()
    client.door.inject("run", int(S.INTERNAL_ERROR), 1)
    _, end = client.run(graph)
    assert client.door.onnxWaitEvent(end) == S.INTERNAL_ERROR
    _, end = client.run(graph)
    assert client.door.onnxWaitEvent(end) == S.SUCCESS


gives(66, "onnxWaitEvent", S.INVALID_EVENT, *(lambda c, h=h: c.door.onnxWaitEvent(h) for h in GARBAGE))

# 3.11 onnxReleaseEvent


def _release_event(client: Client) -> Any:
    return client.door.onnxReleaseEvent(client.door.onnxInitEvent(client.backend)[1])


def _released_event(client: Client) -> Any:
    _, event = client.door.onnxInitEvent(client.backend)
    assert client.door.onnxReleaseEvent(event) == S.SUCCESS
    return client.door.onnxReleaseEvent(event)


gives(69, "onnxReleaseEvent", S.SUCCESS, _release_event)
gives(
    70, "onnxReleaseEvent", S.INVALID_EVENT, _released_event,
    *(lambda c, h=h: c.door.onnxReleaseEvent(h) for h in GARBAGE),
)  # fmt: skip
injected(71, "onnxReleaseEvent", S.INTERNAL_ERROR, _release_event)
