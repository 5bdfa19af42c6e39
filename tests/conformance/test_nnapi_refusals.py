"""What the driver must refuse, through every method: mutated models, requests without an argument, null fences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.types import (
    NOT_MEASURED,
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Model,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from tests.support.nnapi.client import Burst, ExecutionCallback, Frame, prepare, prepared_model
from tests.support.nnapi.valid_models import ALL, chain, circle
from tests.support.nnapi_examples.mutants import KINDS, PREFERENCE, PRIORITY, Mutant, mutants

REFUSED = ErrorStatus.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with open_device("tiny") as opened:
        yield opened


def check_refused(device: Any, mutant: Mutant) -> None:
    """Check getSupportedOperations, and prepareModel twice: its launch and its callback give no model."""
    if mutant.kind not in (PREFERENCE, PRIORITY):  # only passed to prepareModel
        assert device.getSupportedOperations_1_3(mutant.model) == (REFUSED, [])
    found = prepare(device, mutant.model, priority=mutant.priority, preference=mutant.preference)
    assert found == (REFUSED, REFUSED, None)


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_models(device: Any, kind: str) -> None:
    count = 0
    for name, make in ALL.items():
        for mutant in mutants(make(), [kind]):
            try:
                check_refused(device, mutant)
            except AssertionError as error:
                raise AssertionError(f"{name}: {mutant.what}: {error}") from error
            count += 1
    assert count


def test_a_circle_of_operations(device: Any) -> None:
    check_refused(device, Mutant("circle", "three additions", circle()))


@pytest.mark.parametrize("model", [None, 3, "model", ALL["chain"]().main, Model(None)])  # type: ignore[arg-type]
def test_what_is_no_model(device: Any, model: Any) -> None:
    check_refused(device, Mutant("none", "no model", model))


# Requests

Answer = tuple[ErrorStatus, Sequence[OutputShape], Timing]
LIMITS = (OptionalTimePoint(), OptionalTimeoutDuration())


def _sync(prepared: Any, request: Request) -> Answer:
    status, shapes, timing = prepared.executeSynchronously_1_3(request, MeasureTiming.YES, *LIMITS)
    return status, shapes, timing


def _async(prepared: Any, request: Request) -> Answer:
    callback = ExecutionCallback()
    launched = prepared.execute_1_3(request, MeasureTiming.YES, *LIMITS, callback)
    status, shapes, timing = callback.wait()
    assert launched == status
    return status, shapes, timing


def _fenced(prepared: Any, request: Request) -> Answer:
    limits = (*LIMITS, OptionalTimeoutDuration())
    status, handle, callback = prepared.executeFenced(request, [], MeasureTiming.YES, *limits)
    assert (handle or None, callback) == (None, None)
    return status, [], Timing()


def _burst(prepared: Any, request: Request) -> Answer:
    burst = Burst(prepared)
    try:
        return burst.execute(request, MeasureTiming.YES)
    finally:
        burst.close()


WAYS: dict[str, Callable[[Any, Request], Answer]] = {
    "sync": _sync, "async": _async, "fenced": _fenced, "burst": _burst,
}  # fmt: skip


@dataclass
class Prepared:
    """A prepared ``chain`` and a frame for it."""

    model: Any
    frame: Frame

    def works(self) -> bool:
        """Return whether a valid request still succeeds."""
        status, _, _ = _sync(self.model, self.frame.request)
        result = np.frombuffer(self.frame.raw()[0], np.float32)
        return status == ErrorStatus.NONE and result.tolist() == [0.0, 0.0, 1.0, 3.0, 5.0, 7.0]


@pytest.fixture(scope="module")
def prepared(device: Any) -> Iterator[Prepared]:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    frame = Frame([numbers, numbers - 3], [24], [[2, 3]])
    yield Prepared(prepared_model(device, chain()), frame)
    frame.close()


def _place(**fields: int) -> Callable[[RequestArgument], RequestArgument]:
    return lambda argument: replace(argument, location=replace(argument.location, **fields))


def _dims(*dims: int) -> Callable[[RequestArgument], RequestArgument]:
    return lambda argument: replace(argument, dimensions=dims)


CHANGES: dict[str, Callable[[RequestArgument], RequestArgument]] = {
    "no such pool": _place(poolIndex=2),
    "beyond the pool": _place(offset=1 << 20),
    "beyond 64 bits": _place(offset=(1 << 64) - 8),
    "no length": _place(length=0),
    "too short": _place(length=20),
    "too long": _place(length=28),
    "other dimensions": _dims(3, 2),
    "other rank": _dims(6),
    "a place without a value": lambda argument: replace(argument, hasNoValue=True),
    "dimensions without a value": lambda argument: RequestArgument(True, DataLocation(), (2, 3)),
}


def _changed(request: Request, which: str, index: int, change: Callable[[RequestArgument], RequestArgument]) -> Request:
    changed = copy.copy(request)
    arguments = list(getattr(request, which))
    arguments[index] = change(arguments[index])
    setattr(changed, which, arguments)
    return changed


def _without(request: Request, which: str, index: int) -> Request:
    changed = copy.copy(request)
    setattr(changed, which, [each for number, each in enumerate(getattr(request, which)) if number != index])
    return changed


PLACES = [("inputs", 0), ("inputs", 1), ("outputs", 0)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("which", "index"), PLACES)
def test_requests_without_an_argument(prepared: Prepared, way: str, which: str, index: int) -> None:
    request = _without(prepared.frame.request, which, index)
    status, shapes, timing = WAYS[way](prepared.model, request)
    assert (status, list(shapes), timing) == (REFUSED, [], Timing(NOT_MEASURED, NOT_MEASURED))
    assert prepared.works()


@pytest.mark.parametrize(("which", "index"), PLACES)
@pytest.mark.parametrize(
    ("way", "change"),
    [
        (way, change)
        for way in WAYS
        for change in CHANGES
        if (way, change) != ("burst", "dimensions without a value")  # which a packet cannot hold
    ],
)
def test_requests_with_a_wrong_argument(prepared: Prepared, way: str, which: str, index: int, change: str) -> None:
    request = _changed(prepared.frame.request, which, index, CHANGES[change])
    status, shapes, timing = WAYS[way](prepared.model, request)
    assert (status, list(shapes), timing) == (REFUSED, [], Timing(NOT_MEASURED, NOT_MEASURED))


@pytest.mark.parametrize("way", ["sync", "async", "fenced"])
@pytest.mark.parametrize("request_", [None, 3, Request(None, [], []), Request([], [], [])])  # type: ignore[arg-type]
def test_what_is_no_request(prepared: Prepared, way: str, request_: Any) -> None:
    status, shapes, _ = WAYS[way](prepared.model, request_)
    assert (status, list(shapes)) == (REFUSED, [])


def test_a_fence_that_is_none(prepared: Prepared) -> None:
    limits = (*LIMITS, OptionalTimeoutDuration())
    for handle in (None, [], [-1], [1 << 20]):
        found = prepared.model.executeFenced(prepared.frame.request, [handle], MeasureTiming.NO, *limits)
        assert found[0] == REFUSED
        assert not found[1]
        assert found[2] is None
    assert prepared.works()


def test_outputs_of_a_fenced_execution_are_fully_specified(device: Any) -> None:
    model = chain()
    model.main.operands[4].dimensions = [0, 3]
    prepared = prepared_model(device, model)
    numbers = np.ones((2, 3), np.float32)
    frame = Frame([numbers, numbers], [24])
    assert _fenced(prepared, frame.request)[0] == REFUSED
    status, shapes, _ = _sync(prepared, frame.request)
    assert (status, [tuple(each.dimensions) for each in shapes]) == (ErrorStatus.NONE, [(2, 3)])
    frame.close()


def test_slots_of_a_burst_may_be_freed_at_any_time(prepared: Prepared) -> None:
    burst = Burst(prepared.model)
    try:
        for _ in range(2):
            status, shapes, _ = burst.execute(prepared.frame.request)
            assert (status, len(shapes)) == (ErrorStatus.NONE, 1)
            for slot in (0, 0, 1, 12345, -1):  # held, freed already, held, unknown
                burst.context.freeMemory(slot)
    finally:
        burst.close()
