"""Lines 72 to 135 of the contract: graphs, the location of their tensors, runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hal.onnxifi.constants import MemoryType, Synchronization
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1
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
    unavailable,
)
from tests.support.onnxifi.contract_objects import MISMATCHES, MODEL_FAULTS

S = Status

# 3.12 onnxInitGraph

Weights = Callable[[Client], Sequence[TensorDescriptorV1] | None]


def _init_graph(
    model: bytes | None = None, weights: Weights = lambda c: None, properties: Sequence[int] = (), **other: Any
) -> Call:
    """Make the call, by default with a relu model, and release the graph at once."""
    chosen = models.unary() if model is None else model

    def call(client: Client) -> tuple[int, int]:
        answer = client.door.onnxInitGraph(client.backend, list(properties) or None, chosen, weights(client), **other)
        if answer[1]:
            client.door.onnxReleaseGraph(answer[1])
        return int(answer[0]), int(answer[1])

    return call


def _weight(shape: Sequence[int] | None = models.SHAPE, **changes: Any) -> Weights:
    return lambda c: [c.descriptor("w", shape, **changes)]


def _wrong_weight(**changes: Any) -> Call:
    return _init_graph(models.add(), _weight(**changes))


gives(
    72, "onnxInitGraph", S.SUCCESS, _init_graph(), _init_graph(models.add(initializer=True)), _wrong_weight(),
    _init_graph(properties=(0,)), _init_graph(properties=(4, 0)), _init_graph(properties=(1 << 32, 3, 0)),
    _init_graph(models.symbolic()),
)  # fmt: skip
gives(73, "onnxInitGraph", S.FALLBACK, _init_graph(models.lstm()))
gives(
    74, "onnxInitGraph", S.INVALID_BACKEND, lambda c: c.door.onnxInitGraph(c.id, None, models.unary()),
    *(lambda c, h=h: c.door.onnxInitGraph(h, None, models.unary()) for h in GARBAGE),
)  # fmt: skip
gives(75, "onnxInitGraph", S.INVALID_PROPERTY, _init_graph(properties=(1 << 32, 9, 0)))
gives(
    76, "onnxInitGraph", S.INVALID_POINTER, lambda c: c.door.onnxInitGraph(c.backend, None, None, size=9),
    lambda c: c.door.onnxInitGraph(c.backend, None, models.unary(), out=False)[0], _init_graph(count=1),
)  # fmt: skip
gives(77, "onnxInitGraph", S.INVALID_SIZE, _init_graph(size=0))
gives(78, "onnxInitGraph", S.INVALID_PROTOBUF, *map(_init_graph, MODEL_FAULTS[0][1]))
gives(
    79, "onnxInitGraph", S.INVALID_MODEL, *map(_init_graph, MODEL_FAULTS[1][1]),
    _init_graph(models.add(initializer=True), _weight()),
)  # fmt: skip
gives(80, "onnxInitGraph", S.INVALID_SHAPE, _wrong_weight(shape=(2, 0)), _wrong_weight(shape=None))
gives(81, "onnxInitGraph", S.INVALID_DATATYPE, *(_wrong_weight(dataType=kind) for kind in (0, 17, 1 << 32 | 1)))
gives(82, "onnxInitGraph", S.INVALID_MEMORY_TYPE, *(_wrong_weight(memoryType=kind) for kind in (3, 16, 1 << 32)))
gives(83, "onnxInitGraph", S.INVALID_MEMORY_LOCATION, _wrong_weight(buffer=0), _wrong_weight(buffer=0, isOffline=True))
gives(84, "onnxInitGraph", S.UNSUPPORTED_PROPERTY, *(_init_graph(properties=p) for p in ((1, 0), (3, 0), (5, 1, 0))))
for _offset, (_fault, _models) in enumerate(MODEL_FAULTS[2:]):
    gives(85 + _offset, "onnxInitGraph", _fault, *map(_init_graph, _models))
gives(
    90, "onnxInitGraph", S.UNSUPPORTED_MEMORY_TYPE, *(_wrong_weight(memoryType=m) for m in MemoryType if m)
)  # fmt: skip
gives(91, "onnxInitGraph", S.MISMATCHING_SHAPE, _init_graph(MISMATCHES[0][1]), _wrong_weight(shape=(3, 2)))
gives(92, "onnxInitGraph", S.MISMATCHING_DATATYPE, _init_graph(MISMATCHES[1][1]), _wrong_weight(dataType=6))
failures(93, "onnxInitGraph", RESOURCES, _init_graph())
unavailable(
    97, "onnxInitGraph", lambda c: c.backend, lambda c, backend: c.door.onnxInitGraph(backend, None, models.unary())
)
injected(98, "onnxInitGraph", S.INTERNAL_ERROR, _init_graph())

# 3.13 onnxSetGraphIO

Change = Callable[[Client, TensorDescriptorV1, TensorDescriptorV1], tuple[Any, Any]]


def _set_io(change: Change = lambda c, x, y: ([x], [y]), model: bytes | None = None, **counts: int) -> Call:
    """Make the call on a new graph with descriptors modified by ``change``."""

    def call(client: Client) -> int:
        graph = client.graph(model)
        inputs, outputs = change(client, client.descriptor("x"), client.descriptor("y"))
        return int(client.door.onnxSetGraphIO(graph, inputs, outputs, **counts))

    return call


def _both(**changes: Any) -> tuple[Call, Call]:
    """Return calls with changes to the input's descriptor, and to the output's."""
    return (
        _set_io(lambda c, x, y: ([c.descriptor("x", **changes)], [y])),
        _set_io(lambda c, x, y: ([x], [c.descriptor("y", **changes)])),
    )


def _large(client: Client, x: TensorDescriptorV1, y: TensorDescriptorV1) -> tuple[Any, Any]:
    x.shape = y.shape = (1 << 50, 3)
    return [x], [y]


gives(99, "onnxSetGraphIO", S.SUCCESS, _set_io(), _set_io(model=models.symbolic()))
gives(
    100, "onnxSetGraphIO", S.INVALID_GRAPH,
    *(lambda c, h=h: c.door.onnxSetGraphIO(h, [c.descriptor("x")], [c.descriptor("y")]) for h in GARBAGE),
)  # fmt: skip
gives(
    101, "onnxSetGraphIO", S.INVALID_POINTER, _set_io(lambda c, x, y: ([x], None)),
    _set_io(lambda c, x, y: (None, [y]), inputsCount=1), _set_io(lambda c, x, y: ([x], None), outputsCount=1),
)  # fmt: skip
gives(
    102, "onnxSetGraphIO", S.INVALID_NAME, *_both(name="nobody"), *_both(name=None), *_both(name=b"\xff"),
    _set_io(lambda c, x, y: ([x, x], [y])), _set_io(lambda c, x, y: ([x], [y, y])),
)  # fmt: skip
gives(103, "onnxSetGraphIO", S.INVALID_SHAPE, *_both(shape=(2, 0)))
gives(104, "onnxSetGraphIO", S.INVALID_DATATYPE, *_both(dataType=0), *_both(dataType=8), *_both(dataType=99))
gives(105, "onnxSetGraphIO", S.INVALID_MEMORY_TYPE, *_both(memoryType=3), *_both(memoryType=1 << 40))
gives(106, "onnxSetGraphIO", S.INVALID_MEMORY_LOCATION, *_both(buffer=0))
gives(107, "onnxSetGraphIO", S.UNSUPPORTED_TAG, *_both(tag=0), *_both(tag=0x43DFBF68))
gives(108, "onnxSetGraphIO", S.UNSUPPORTED_SHAPE, _set_io(_large, model=models.symbolic()))
gives(
    109, "onnxSetGraphIO", S.UNSUPPORTED_MEMORY_TYPE,
    *(call for memory in MemoryType if memory for call in _both(memoryType=memory)),
)  # fmt: skip
gives(
    110, "onnxSetGraphIO", S.UNIDENTIFIED_NAME, _set_io(lambda c, x, y: ([], [y])), _set_io(lambda c, x, y: ([x], [])),
)  # fmt: skip
gives(
    111, "onnxSetGraphIO", S.MISMATCHING_SHAPE, *_both(shape=(3, 2)), *_both(shape=(2, 3, 1)),
    _set_io(lambda c, x, y: ([c.descriptor("x", (4, 3))], [y]), model=models.symbolic()),
)  # fmt: skip
gives(112, "onnxSetGraphIO", S.MISMATCHING_DATATYPE, *_both(dataType=6), *_both(dataType=14), *_both(dataType=9))
failures(113, "onnxSetGraphIO", RESOURCES, _set_io())


def _set_io_again(client: Client, graph: int) -> int:
    return int(client.door.onnxSetGraphIO(graph, [client.descriptor("x")], [client.descriptor("y")]))


unavailable(117, "onnxSetGraphIO", Client.graph, _set_io_again)
injected(118, "onnxSetGraphIO", S.INTERNAL_ERROR, _set_io())

# 3.14 onnxRunGraph

Fences = tuple[MemoryFenceV1 | None, MemoryFenceV1 | None]


def _run(change: Callable[[MemoryFenceV1, MemoryFenceV1], Fences] = lambda a, b: (a, b)) -> Call:
    """Run a valid graph with fences modified by ``change``."""

    def call(client: Client) -> int:
        graph, *_ = client.bound()
        start, end = change(MemoryFenceV1(client.event()), MemoryFenceV1())
        status = client.door.onnxRunGraph(graph, start, end)
        if status == S.SUCCESS and start is not None and end is not None:
            client.keep_event(end.event)
            client.door.onnxSignalEvent(start.event)
        return int(status)

    return call


def _changed(**changes: Any) -> tuple[Call, Call]:
    """Return runs with changes to the input's fence, and to the output's."""

    def apply(fence: MemoryFenceV1) -> MemoryFenceV1:
        for field, value in changes.items():
            setattr(fence, field, value)
        return fence

    return _run(lambda a, b: (apply(a), b)), _run(lambda a, b: (a, apply(b)))


@line(119, "onnxRunGraph", S.SUCCESS)
def a_run_computes(client: Client) -> None:
    graph, x, y = client.bound()
    x.owner[:] = np.arange(-3, 3, dtype=np.float32).reshape(models.SHAPE)
    start, end = client.run(graph, signal=False)
    assert end not in (0, start)
    assert client.door.onnxGetEventState(end)[0] == S.SUCCESS
    client.door.onnxSignalEvent(start)
    assert client.door.onnxWaitEvent(end) == S.SUCCESS
    np.testing.assert_array_equal(y.owner, np.maximum(x.owner, 0))


def _run_unbound(client: Client) -> int:
    start = MemoryFenceV1(client.event())
    return int(client.door.onnxRunGraph(client.graph(), start, MemoryFenceV1()))


def _run_after_failure(client: Client) -> int:
    graph, x, _ = client.bound()
    assert client.door.onnxSetGraphIO(graph, [x], [client.descriptor("nobody")]) == S.INVALID_NAME
    return int(client.door.onnxRunGraph(graph, MemoryFenceV1(client.event()), MemoryFenceV1()))


gives(120, "onnxRunGraph", S.INVALID_POINTER, _run(lambda a, b: (None, b)), _run(lambda a, b: (a, None)))
gives(
    121, "onnxRunGraph", S.INVALID_GRAPH,
    *(lambda c, h=h: c.door.onnxRunGraph(h, MemoryFenceV1(c.event()), MemoryFenceV1()) for h in GARBAGE),
)  # fmt: skip
gives(122, "onnxRunGraph", S.INVALID_FENCE_TYPE, *_changed(type=1), *_changed(type=99), *_changed(type=1 << 32))
gives(
    123, "onnxRunGraph", S.INVALID_EVENT, *(_run(lambda a, b, h=h: (MemoryFenceV1(h), b)) for h in GARBAGE)
)  # fmt: skip
gives(124, "onnxRunGraph", S.UNSUPPORTED_TAG, *_changed(tag=0), *_changed(tag=0x23E08AAA))
gives(125, "onnxRunGraph", S.UNSUPPORTED_FENCE_TYPE, *_changed(type=int(Synchronization.IMPLICIT)))
gives(126, "onnxRunGraph", S.UNIDENTIFIED_NAME, _run_unbound, _run_after_failure)
failures(127, "onnxRunGraph", RESOURCES, _run())


def _bound_with_event(client: Client) -> tuple[int, int]:
    return client.bound()[0], client.event()


def _run_again(client: Client, made: tuple[int, int]) -> int:
    graph, event = made
    return int(client.door.onnxRunGraph(graph, MemoryFenceV1(event), MemoryFenceV1()))


unavailable(131, "onnxRunGraph", _bound_with_event, _run_again)
injected(132, "onnxRunGraph", S.INTERNAL_ERROR, _run())

# 3.15 onnxReleaseGraph


@line(133, "onnxReleaseGraph", S.SUCCESS)
def release_waits_for_runs(client: Client) -> None:
    graph, *_ = client.bound()
    start, end = client.run(graph, signal=False)
    client.forget_graph(graph)
    thread, answers = in_thread(lambda: client.door.onnxReleaseGraph(graph))
    thread.join(0.02)
    assert not answers, "released while a run is under way"
    assert client.door.onnxSignalEvent(start) == S.SUCCESS
    thread.join(SOON)
    assert answers == [S.SUCCESS]
    assert client.door.onnxWaitEvent(end) == S.SUCCESS


def _released_graph(client: Client) -> Any:
    graph = client.graph()
    client.forget_graph(graph)
    assert client.door.onnxReleaseGraph(graph) == S.SUCCESS
    return client.door.onnxReleaseGraph(graph)


def _release_graph(client: Client) -> Any:
    return client.door.onnxReleaseGraph(client.door.onnxInitGraph(client.backend, None, models.unary())[1])


gives(
    134, "onnxReleaseGraph", S.INVALID_GRAPH, _released_graph,
    *(lambda c, h=h: c.door.onnxReleaseGraph(h) for h in GARBAGE),
)  # fmt: skip
injected(135, "onnxReleaseGraph", S.INTERNAL_ERROR, _release_graph)
