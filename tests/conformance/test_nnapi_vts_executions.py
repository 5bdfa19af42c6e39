"""Executions as the vendor test suite runs them: with and without timing, in every way, with known and unknown output
shapes, with too small outputs, with two kinds of memory, and with fences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi import aidl, fence, open_device
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.fence import FenceStatus
from hal.nnapi.memory import allocate_blob
from hal.nnapi.types import (
    NOT_MEASURED,
    ErrorStatus,
    MeasureTiming,
    OptionalTimeoutDuration,
    OutputShape,
    Timing,
)
from tests.support.nnapi.client import (
    EXECUTORS,
    WAIT_S,
    Frame,
    Outcome,
    aidl_request,
    execute_async,
    execute_fenced,
    execute_sync,
    prepared_model,
)
from tests.support.nnapi.models import loop
from tests.support.nnapi_examples.examples import available
from tests.support.nnapi_examples.vts_cases import Case, own_cases, sampled_cases

NONE, INVALID = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT
MISSED = {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT}
SAMPLE = 41
"""The default run includes every SAMPLE-th example."""
OWN = own_cases()
CASES = pytest.mark.parametrize("case", OWN, ids=[case.name for case in OWN])
MEASURE = pytest.mark.parametrize("measure", list(MeasureTiming), ids=lambda measure: f"measure {measure.name}")
WAYS = ["sync", "async", "burst", "aidl burst", "fenced"]
WAY = pytest.mark.parametrize("way", WAYS)
NO_SHAPES_OF_THEIR_OWN = {"RANK", "IF", "WHILE"}
"""Operations whose outputs the suite never leaves open."""

Check = Callable[[Any, Case, str, int], str]


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with open_device("edge") as opened:
        yield opened


def wrong_times(outcome: Outcome, measure: int, way: str) -> str:
    """Times must be reported exactly if they were requested and the execution succeeded."""
    timing: Any = outcome.timing
    if way == "aidl burst":  # -1 stands for times that were not measured
        times = (timing.timeOnDeviceNs, timing.timeInDriverNs)
        timing = Timing(*(NOT_MEASURED if time == -1 else time for time in times))
    if not measure or outcome.status is not NONE:
        return "" if timing == Timing() else f"times nobody asked for: {timing}"
    right = 0 < timing.timeOnDevice <= timing.timeInDriver < NOT_MEASURED
    return "" if right else f"times cannot be right: {timing}"


def fully_specified(prepared: Any, case: Case, way: str, measure: int) -> str:
    """Shapes and locations of all outputs are known."""
    frame = case.frame()
    try:
        outcome = EXECUTORS[way](prepared, frame, measure)
        if way == "fenced" and not all(case.sizes):
            return "" if outcome.status is INVALID else f"{outcome.status.name} for an empty output"
        return case.problem(outcome) or wrong_times(outcome, measure, way)
    finally:
        frame.close()


def unspecified(prepared: Any, case: Case, way: str, measure: int) -> str:
    """The execution determines the shapes, and there is enough space."""
    frame = case.frame(specified=False)
    try:
        outcome = EXECUTORS[way](prepared, frame, measure)
        if way == "fenced":
            return "" if outcome.status is INVALID else outcome.status.name
        known = [shape for shape, array in zip(outcome.shapes, case.expected, strict=True) if array is not None]
        if known != [shape for shape, array in zip(case.shapes(), case.expected, strict=True) if array is not None]:
            return f"shapes must be {case.shapes()}, are {outcome.shapes}"
        return case.problem(outcome) or wrong_times(outcome, measure, way)
    finally:
        frame.close()


def insufficient(prepared: Any, case: Case, way: str, measure: int) -> str:
    """The first output has a byte too few."""
    if case.sizes[0] < 2:
        return ""
    frame = case.frame(specified=False, short=True)
    try:
        outcome = EXECUTORS[way](prepared, frame, measure)
    finally:
        frame.close()
    if way == "fenced":
        return "" if outcome.status is INVALID else outcome.status.name
    if outcome.status is not ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return outcome.status.name
    sufficient = [shape.isSufficient for shape in outcome.shapes]
    if sufficient != [False] + [True] * (len(case.sizes) - 1):
        return f"sufficient: {sufficient}"
    dims = [list(shape.dimensions) for shape in outcome.shapes]
    wanted = [dims[i] if array is None else list(array.shape) for i, array in enumerate(case.expected)]
    return wrong_times(outcome, measure, way) if dims == wanted else f"shapes must be {wanted}, are {dims}"


FAMILIES: dict[str, tuple[Check, bool]] = {
    "fully specified": (fully_specified, False),
    "unspecified": (unspecified, True),
    "insufficient": (insufficient, True),
}
"""(check, whether the model leaves the outputs open)"""
FAMILY = pytest.mark.parametrize("family", FAMILIES)


@CASES
@FAMILY
@WAY
@MEASURE
def test_every_way(device: Any, case: Case, family: str, way: str, measure: int) -> None:
    check, is_open = FAMILIES[family]
    case = case.opened() if is_open else case
    assert check(prepared_model(device, case.model), case, way, measure) == ""


def _sampled(device: Any, step: int) -> dict[str, str]:
    failed, cases = {}, list(sampled_cases(step))
    assert len(cases) > 1000 // step
    for case in cases:
        for family, (check, is_open) in FAMILIES.items():
            if is_open and case.operations & NO_SHAPES_OF_THEIR_OWN:
                continue
            tried = case.opened() if is_open else case
            prepared = prepared_model(device, tried.model)
            for number, way in enumerate(WAYS):
                problem = check(prepared, tried, way, number % 2)
                if problem:
                    failed[f"{case.name}: {family}: {way}"] = problem
    return failed


@pytest.mark.skipif(not available(), reason="the NNAPI conformance examples are not here")
def test_a_sample_of_the_examples(device: Any) -> None:
    assert _sampled(device, SAMPLE) == {}


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="the NNAPI conformance examples are not here")
def test_all_examples(device: Any) -> None:
    assert _sampled(device, 1) == {}


# Memory


@CASES
@pytest.mark.parametrize("execute", [execute_sync, execute_async, execute_fenced])
def test_hardware_buffers(device: Any, case: Case, execute: Callable[..., Outcome]) -> None:
    frame = Frame(case.inputs, case.sizes, case.dims, allocate_blob)
    assert case.problem(execute(prepared_model(device, case.model), frame)) == ""


# Fences


@CASES
@MEASURE
def test_one_waits_for_the_other(device: Any, case: Case, measure: int) -> None:
    """A chain of executions behind one fence: nothing runs before it is signalled, and everything runs afterwards."""
    prepared = prepared_model(device, case.model)
    gate = fence.create()
    frames, handles, callbacks = [], [gate.dup()], []
    for _ in range(4):
        frames.append(case.frame())
        status, handle, callback = prepared.executeFenced(frames[-1].request, [handles[-1]], measure, None, None, None)
        assert status is NONE
        handles.append(handle)
        callbacks.append(callback)
    assert fence.status(handles[-1][0]) is FenceStatus.ACTIVE
    assert all(each.getExecutionInfo() == (ErrorStatus.GENERAL_FAILURE, Timing(), Timing()) for each in callbacks)
    gate.signal()
    assert fence.wait(handles[-1], WAIT_S) is FenceStatus.SIGNALED
    for frame, callback in zip(frames, callbacks, strict=True):
        status, launched, fenced = callback.getExecutionInfo()
        shapes = [OutputShape(each.dimensions, True) for each in frame.request.outputs]
        outcome = Outcome(status, shapes, fenced, frame.raw())
        assert case.problem(outcome) == ""
        assert wrong_times(outcome, measure, "fenced") == ""
        if measure:
            assert launched.timeInDriver >= fenced.timeInDriver
    for handle in handles:
        os.close(handle[0])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_error_passes_along_a_chain(device: Any, which: int) -> None:
    case = OWN[0]
    prepared, gates, frame = prepared_model(device, case.model), [fence.create() for _ in range(3)], case.frame()
    last = [gate.dup() for gate in gates]
    handles: list[Sequence[int]] = [*last]
    for _ in range(3):
        status, handle, callback = prepared.executeFenced(frame.request, last, 0, None, None, None)
        assert status is NONE
        last = [handle]
        handles.append(handle)
    gates[which].signal_error()
    assert fence.wait(last[0], WAIT_S) is FenceStatus.ERROR
    assert callback.getExecutionInfo()[0] is ErrorStatus.GENERAL_FAILURE
    for handle in handles:
        os.close(handle[0])


def test_a_null_fence(device: Any) -> None:
    case = OWN[0]
    prepared, frame = prepared_model(device, case.model), case.frame()
    for handles in ([None], [[]], [[-1]], [fence.create().handle, None]):
        assert prepared.executeFenced(frame.request, handles, 0, None, None, None) == (INVALID, None, None)
    request = aidl_request(frame.request)
    with pytest.raises(aidl_types.ServiceSpecificException, match="INVALID_ARGUMENT"):
        aidl.AidlPreparedModel(prepared).executeFenced(request, [-1], False, -1, -1, -1)


# Loops without an end


LOOP_INPUTS = [np.ones(1, np.bool_), np.ones(2, np.float32)]
MILLISECOND = 1_000_000
SECOND_PS = 10**12


@pytest.mark.parametrize("way", ["sync", "async", "device memory"])
def test_an_endless_loop_is_stopped_after_a_millisecond(device: Any, way: str) -> None:
    frame = Frame(LOOP_INPUTS, [1, 8], [(1,), (2,)])
    limit = OptionalTimeoutDuration(MILLISECOND)
    outcome = EXECUTORS[way](prepared_model(device, loop()), frame, MeasureTiming.YES, loop=limit)
    assert outcome.status in MISSED


def test_an_endless_loop_behind_a_fence(device: Any) -> None:
    frame = Frame(LOOP_INPUTS, [1, 8], [(1,), (2,)])
    prepared = prepared_model(device, loop())
    status, handle, callback = prepared.executeFenced(frame.request, [], 1, None, MILLISECOND, None)
    assert status is NONE
    assert fence.wait(handle, WAIT_S) is FenceStatus.ERROR
    assert callback.getExecutionInfo()[0] in MISSED
    os.close(handle[0])


@pytest.mark.parametrize("way", ["model", "burst", "reusable"])
def test_an_endless_loop_through_the_aidl_interface(device: Any, way: str) -> None:
    prepared = aidl.AidlPreparedModel(prepared_model(device, loop()))
    request = aidl_request(Frame(LOOP_INPUTS, [1, 8], [(1,), (2,)]).request)
    reusable = prepared.createReusableExecution(request, aidl_types.ExecutionConfig(True, MILLISECOND))
    execute = {
        "model": lambda: prepared.executeSynchronously(request, True, -1, MILLISECOND),
        "burst": lambda: prepared.configureExecutionBurst().executeSynchronously(
            request, [1, 2], True, -1, MILLISECOND
        ),
        "reusable": lambda: reusable.executeSynchronously(-1),
    }[way]
    with pytest.raises(aidl_types.ServiceSpecificException, match="MISSED_DEADLINE"):
        execute()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["burst", "aidl burst"])
def test_an_endless_loop_over_a_burst_is_stopped_after_two_simulated_seconds(device: Any, way: str) -> None:
    frame = Frame(LOOP_INPUTS, [1, 8], [(1,), (2,)])
    prepared, begin = prepared_model(device, loop()), device._engine.executor.device.now_ps
    wanted = {ErrorStatus.GENERAL_FAILURE} if way == "burst" else MISSED  # which HAL 1.2 does not know
    assert EXECUTORS[way](prepared, frame).status in wanted
    assert 2 * SECOND_PS < device._engine.executor.device.now_ps - begin < 2.001 * SECOND_PS
