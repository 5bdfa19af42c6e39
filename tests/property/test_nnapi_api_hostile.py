"""Whatever a client passes to any method: a status or a ServiceSpecificException, and the device continues."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hal.nnapi import aidl, fence, memory, open_device, v1_0, v1_1, v1_2
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.execution.execution import Executable
from hal.nnapi.fmq import FmqRequestDatum, MessageQueue
from hal.nnapi.packets import serialize_request
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    ErrorStatus,
    ExecutionPreference,
    MeasureTiming,
    Model,
    Priority,
    Timing,
)
from tests.support.examples import examples
from tests.support.nnapi.client import Burst, ExecutionCallback, PreparedCallback, prepared_model
from tests.support.nnapi.hostile_arguments import JUNK, TOKEN
from tests.support.nnapi.models import add, add_case

NONE = ErrorStatus.NONE


@dataclass
class Target:
    """A method with valid arguments."""

    name: str
    method: Callable[..., Any]
    arguments: Callable[[], list[Any]]
    results: int


class World:
    """A device in use, and every method that can be called on it."""

    def __init__(self) -> None:
        self.device = open_device("tiny")
        self.aidl = aidl.device(self.device)
        self.prepared = prepared_model(self.device, add())
        self.case = add_case()
        self.blob = memory.allocate_blob(16)
        _, self.buffer, self.token = self.device.allocate(BufferDesc(), [self.prepared], [BufferRole(0, 0)], [])
        self.hidl = {target.name: target for target in [*self._device(), *self._model(), *self._buffer()]}
        self.aidl_methods = {target.name: target for target in self._aidl()}

    def close(self) -> None:
        self.device.close()

    def check(self) -> None:
        """Check that the device still works, and that no thread or queue is blocked."""
        assert self.prepared.executeSynchronously_1_3(self.case.request, 0, None, None)[0] is NONE
        np.testing.assert_array_equal(self.case.output(), [10, 11, 12, 13])
        callback = ExecutionCallback()
        assert self.prepared.execute_1_3(self.case.request, 0, None, None, callback) is NONE
        assert callback.wait()[0] is NONE

    def _device(self) -> list[Target]:
        device, model = self.device, add()
        old = [version.Model(*_old_parts(version, model)) for version in (v1_0, v1_1, v1_2)]
        fast, medium = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
        calls: list[tuple[str, Callable[[], list[Any]], int]] = [
            ("getSupportedOperations", lambda: [old[0]], 2), ("getSupportedOperations_1_1", lambda: [old[1]], 2),
            ("getSupportedOperations_1_2", lambda: [old[2]], 2), ("getSupportedOperations_1_3", lambda: [model], 2),
            ("explain", lambda: [model], 2),
            ("prepareModel", lambda: [old[0], PreparedCallback()], 1),
            ("prepareModel_1_1", lambda: [old[1], fast, PreparedCallback()], 1),
            ("prepareModel_1_2", lambda: [old[2], fast, [], [], TOKEN, PreparedCallback()], 1),
            ("prepareModel_1_3", lambda: [model, fast, medium, None, [], [], TOKEN, PreparedCallback()], 1),
            ("prepareModelFromCache", lambda: [[], [], TOKEN, PreparedCallback()], 1),
            ("prepareModelFromCache_1_3", lambda: [None, [], [], TOKEN, PreparedCallback()], 1),
            ("allocate", lambda: [BufferDesc(), [self.prepared], [BufferRole(0, 1)], []], 3),
        ]  # fmt: skip
        return [Target(name, getattr(device, name), arguments, count) for name, arguments, count in calls]

    def _model(self) -> list[Target]:
        prepared, request = self.prepared, self.case.request
        calls: list[tuple[str, Callable[[], list[Any]], int]] = [
            ("execute", lambda: [request, ExecutionCallback()], 1),
            ("execute_1_2", lambda: [request, MeasureTiming.YES, ExecutionCallback()], 1),
            ("execute_1_3", lambda: [request, MeasureTiming.YES, None, None, ExecutionCallback()], 1),
            ("executeSynchronously", lambda: [request, MeasureTiming.YES], 3),
            ("executeSynchronously_1_3", lambda: [request, MeasureTiming.YES, None, None], 3),
            ("executeFenced", lambda: [request, [], MeasureTiming.YES, None, None, None], 3),
            ("configureExecutionBurst", lambda: [object(), MessageQueue(64), MessageQueue(64)], 2),
        ]
        return [Target(name, getattr(prepared, name), arguments, count) for name, arguments, count in calls]

    def _buffer(self) -> list[Target]:
        return [
            Target("copyTo", self.buffer.copyTo, lambda: [self.blob], 1),
            Target("copyFrom", self.buffer.copyFrom, lambda: [self.blob, [4]], 1),
        ]

    def _aidl(self) -> list[Target]:
        request = self._aidl_request()
        config = aidl_types.ExecutionConfig()
        prepared = aidl.AidlPreparedModel(self.prepared)
        burst = prepared.configureExecutionBurst()
        execution = prepared.createReusableExecution(request, config)
        buffer = self.aidl.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], []).buffer
        model = self._aidl_model()
        objects: list[tuple[Any, str, Callable[[], list[Any]]]] = [
            (self.aidl, "getSupportedOperations", lambda: [model]),
            (self.aidl, "prepareModel", lambda: [model, 1, 1, -1, [], [], TOKEN, Told()]),
            (self.aidl, "prepareModelFromCache", lambda: [-1, [], [], TOKEN, Told()]),
            (self.aidl, "prepareModelWithConfig", lambda: [model, aidl_types.PrepareModelConfig(), Told()]),
            (self.aidl, "allocate", lambda: [BufferDesc(), [prepared], [BufferRole(0, 0)], []]),
            (buffer, "copyTo", lambda: [self.blob]),
            (buffer, "copyFrom", lambda: [self.blob, [4]]),
            (prepared, "executeSynchronously", lambda: [request, True, -1, -1]),
            (prepared, "executeSynchronouslyWithConfig", lambda: [request, config, -1]),
            (prepared, "executeFenced", lambda: [request, [], True, -1, -1, -1]),
            (prepared, "executeFencedWithConfig", lambda: [request, [], config, -1, -1]),
            (prepared, "createReusableExecution", lambda: [request, config]),
            (execution, "executeSynchronously", lambda: [-1]),
            (execution, "executeFenced", lambda: [[], -1, -1]),
            (burst, "executeSynchronously", lambda: [request, [1], True, -1, -1]),
            (burst, "executeSynchronouslyWithConfig", lambda: [request, [1], config, -1]),
            (burst, "releaseMemoryResource", lambda: [1]),
        ]  # fmt: skip
        return [
            Target(f"{type(each).__name__}.{name}", getattr(each, name), arguments, 0)
            for each, name, arguments in objects
        ]

    def _aidl_request(self) -> aidl_types.Request:
        request = self.case.request
        return aidl_types.Request(
            request.inputs,
            request.outputs,
            [aidl_types.RequestMemoryPool(pool=self.case.memory)],  # type: ignore[arg-type]
        )

    def _aidl_model(self) -> aidl_types.Model:
        main = add().main
        operands = [
            aidl_types.Operand(each.type, each.dimensions, lifetime=each.lifetime, location=each.location)
            for each in main.operands
        ]
        subgraph = aidl_types.Subgraph(operands, main.operations, main.inputIndexes, main.outputIndexes)
        return aidl_types.Model(subgraph, operandValues=bytes(4))


class Told:
    """IPreparedModelCallback of the AIDL interface."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def notify(self, *result: Any) -> None:
        self.calls.append(result)


def _old_parts(version: Any, model: Model) -> list[Any]:
    main = model.main
    operands = [
        version.Operand(each.type, each.dimensions, each.numberOfConsumers, each.scale, each.zeroPoint, each.lifetime,
                        each.location)
        for each in main.operands
    ]  # fmt: skip
    return [operands, main.operations, main.inputIndexes, main.outputIndexes, model.operandValues]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


TARGETS = [
    "getSupportedOperations", "getSupportedOperations_1_1", "getSupportedOperations_1_2", "getSupportedOperations_1_3",
    "explain", "prepareModel", "prepareModel_1_1", "prepareModel_1_2", "prepareModel_1_3", "prepareModelFromCache",
    "prepareModelFromCache_1_3", "allocate", "execute", "execute_1_2", "execute_1_3", "executeSynchronously",
    "executeSynchronously_1_3", "executeFenced", "configureExecutionBurst", "copyTo", "copyFrom",
]  # fmt: skip


def test_no_method_is_forgotten(world: World) -> None:
    assert list(world.hidl) == TARGETS
    without = {
        "close",
        "getStatus",
        "getVersionString",
        "getType",
        "getSupportedExtensions",
        "getNumberOfCacheFilesNeeded",
        "getCapabilities",
        "getCapabilities_1_1",
        "getCapabilities_1_2",
        "getCapabilities_1_3",
        "supported",
        "prepare",
    }  # fmt: skip - of the AIDL interface, which has targets of its own
    within = set(vars(Executable))  # what parts of the driver call; PreparedModel itself is the interface
    for each in (world.device, world.prepared):
        public = {name for name, _ in inspect.getmembers(type(each), inspect.isfunction) if name[0] != "_"}
        assert public - within <= without | set(TARGETS)
    assert not within & set(TARGETS)


def spoil(arguments: list[Any], spots: list[tuple[int, int]]) -> list[Any]:
    """Replace arguments at the given positions by junk."""
    for place, number in spots:
        arguments[place % len(arguments)] = JUNK[number]
    return arguments


def check_hidl(target: Target, arguments: list[Any]) -> None:
    """Make one call: it returns a result of the usual form and calls a callback exactly once."""
    callback = next((each for each in arguments if type(each) in (PreparedCallback, ExecutionCallback)), None)
    result = target.method(*arguments)
    status = result[0] if target.results > 1 else result
    assert isinstance(status, ErrorStatus)
    if target.results > 1:
        assert isinstance(result, tuple)
        assert len(result) == target.results
    if callback is not None:
        told, *_ = callback.wait()
        assert status in (NONE, told)
    if target.name == "executeFenced" and status is NONE:
        fence.wait(result[1], 30)
        os.close(result[1][0])
    if target.name == "allocate":
        assert (status is NONE) == (result[1] is not None) == (result[2] > 0)


def check_aidl(target: Target, arguments: list[Any]) -> None:
    """Make one call: it returns a result or raises the interface's exception."""
    with contextlib.suppress(aidl_types.ServiceSpecificException):
        result = target.method(*arguments)
        if isinstance(result, aidl_types.FencedExecutionResult):
            assert result.syncFence is not None
            fence.wait([result.syncFence], 30)
            os.close(result.syncFence)


@pytest.mark.parametrize("name", TARGETS)
def test_every_junk_in_every_place(world: World, name: str) -> None:
    target = world.hidl[name]
    for place in range(len(target.arguments())):
        for number in range(len(JUNK)):
            check_hidl(target, spoil(target.arguments(), [(place, number)]))
    world.check()


def test_every_junk_in_every_place_of_the_aidl_interface(world: World) -> None:
    for target in world.aidl_methods.values():
        for place in range(len(target.arguments())):
            for number in range(len(JUNK)):
                check_aidl(target, spoil(target.arguments(), [(place, number)]))
    world.check()


def test_junk_over_a_burst(world: World) -> None:
    """As an entry of a packet, within an entry, and as a slot to free; the channel continues."""
    burst = Burst(world.prepared)
    packet = serialize_request(world.case.request, burst.callback.slots(world.case.request.pools))
    for junk in JUNK:
        burst.context.freeMemory(junk)
        for place in range(len(packet)):
            member = packet[place].member
            assert member is not None
            spoiled = FmqRequestDatum(**{member: junk})
            for entry in (junk, spoiled):
                status, shapes, timing = burst.send([*packet[:place], entry, *packet[place + 1 :]])
                right = entry is spoiled and _is_same(junk, packet[place])
                assert right or (status is not NONE and (shapes, timing) == ([], Timing()))
    assert burst.execute(world.case.request)[0] is NONE
    burst.close()
    world.check()


def _is_same(junk: Any, entry: FmqRequestDatum) -> bool:
    """Return whether a number happens to be the right one, or another valid one."""
    return (entry.member == "measureTiming" and type(junk) in (bool, int, np.int64) and junk in (0, 1)) or (
        type(junk) in (bool, int, np.int64) and junk == getattr(entry, str(entry.member))
    )


SPOTS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, len(JUNK) - 1)), min_size=2, max_size=6)


@given(data=st.data())
@settings(
    max_examples=examples(120),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_junk_in_several_places(world: World, data: st.DataObject) -> None:
    spots = data.draw(SPOTS)
    if data.draw(st.booleans()):
        target = world.hidl[data.draw(st.sampled_from(TARGETS))]
        check_hidl(target, spoil(target.arguments(), spots))
    else:
        target = world.aidl_methods[data.draw(st.sampled_from(sorted(world.aidl_methods)))]
        check_aidl(target, spoil(target.arguments(), spots))
