"""The vendor test suite's checks of the device as a whole: its properties, quality of service, and coupled quantised
types."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.types import (
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    MeasureTiming,
    OperandType,
    OptionalTimePoint,
    Priority,
    Timing,
)
from tests.support.nnapi.client import ExecutionCallback, PreparedCallback, execute_sync, prepare, prepared_model
from tests.support.nnapi_examples.examples import HIDL_VERSIONS, Record, available, build_model, examples
from tests.support.nnapi_examples.variants import signed
from tests.support.nnapi_examples.vts_cases import Case, own_cases, sampled_cases

NONE = ErrorStatus.NONE
MISSED = {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT}
OWN = own_cases()
CASES = pytest.mark.parametrize("case", OWN, ids=[case.name for case in OWN])
CONFIGS = ["tiny", "edge", "mobile"]
NOW, UNLIMITED, SHORT = "now", "unlimited", "short"
DEADLINES = pytest.mark.parametrize("deadline", [NOW, UNLIMITED, SHORT])
UNCOUPLED = {"HASHTABLE_LOOKUP", "QUANTIZED_16BIT_LSTM"}
"""Operations with operands that are unsigned by definition."""
needs_examples = pytest.mark.skipif(not available(), reason="the NNAPI conformance examples are not here")


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with open_device("edge") as opened:
        yield opened


def deadline_of(kind: str) -> OptionalTimePoint:
    """Return NOW, UNLIMITED (the maximum) or SHORT (5 ms from now)."""
    if kind == UNLIMITED:
        return OptionalTimePoint((1 << 63) - 1)
    return OptionalTimePoint(time.monotonic_ns() + (5_000_000 if kind == SHORT else 0))


# Basic


@pytest.mark.parametrize("config", CONFIGS)
def test_what_a_device_says_of_itself(config: str) -> None:
    with open_device(config) as device:
        assert device.getStatus() is DeviceStatus.AVAILABLE
        assert device.getType() == (NONE, DeviceType.ACCELERATOR)
        status, version = device.getVersionString()
        assert (status, bool(version)) == (NONE, True)
        status, models, data = device.getNumberOfCacheFilesNeeded()
        assert status is NONE
        assert 0 <= models <= 32
        assert 0 <= data <= 32
        assert device.getSupportedExtensions()[0] is NONE
        status, capabilities = device.getCapabilities_1_3()
    assert status is NONE
    types = [int(each.type) for each in capabilities.operandPerformance]
    assert types == sorted(set(types))
    assert OperandType.SUBGRAPH not in types
    assert OperandType.TENSOR_FLOAT32 in types or OperandType.TENSOR_QUANT8_ASYMM in types
    infos = [each.info for each in capabilities.operandPerformance]
    infos += [capabilities.relaxedFloat32toFloat16PerformanceScalar, capabilities.ifPerformance]
    infos += [capabilities.relaxedFloat32toFloat16PerformanceTensor, capabilities.whilePerformance]
    assert all(info.execTime > 0 and info.powerUsage > 0 for info in infos)


# Quality of service


@CASES
@pytest.mark.parametrize("priority", list(Priority))
def test_every_priority_is_prepared(device: Any, case: Case, priority: Priority) -> None:
    prepared = prepared_model(device, case.model, priority=priority)
    assert case.problem(execute_sync(prepared, case.frame())) == ""


@CASES
@DEADLINES
def test_a_preparation_with_a_deadline(device: Any, case: Case, deadline: str) -> None:
    launched, status, prepared = prepare(device, case.model, deadline=deadline_of(deadline))
    assert launched in (NONE, status)
    assert (prepared is not None) == (status is NONE)
    assert status in {NOW: MISSED, UNLIMITED: {NONE}, SHORT: {NONE, *MISSED}}[deadline]
    if prepared is not None:
        assert case.problem(execute_sync(prepared, case.frame())) == ""


@CASES
@DEADLINES
@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_execution_with_a_deadline(device: Any, case: Case, deadline: str, way: str) -> None:
    _check_deadline(device, case, deadline, way)


def _check_deadline(device: Any, case: Case, deadline: str, way: str) -> None:
    prepared, frame = prepared_model(device, case.model), case.frame()
    limit = deadline_of(deadline)
    if way == "sync":
        status, shapes, timing = prepared.executeSynchronously_1_3(frame.request, MeasureTiming.NO, limit, None)
    else:
        callback = ExecutionCallback()
        launched = prepared.execute_1_3(frame.request, MeasureTiming.NO, limit, None, callback)
        status, shapes, timing = callback.wait()
        assert launched in (NONE, status)
    assert status in {NOW: MISSED, UNLIMITED: {NONE}, SHORT: {NONE, *MISSED}}[deadline]
    assert timing == Timing()
    assert len(shapes) == (len(case.sizes) if status is NONE else 0)
    frame.close()


@needs_examples
def test_examples_with_deadlines(device: Any) -> None:
    for number, case in enumerate(sampled_cases(97)):
        for deadline in (NOW, UNLIMITED, SHORT):
            _check_deadline(device, case, deadline, ("sync", "async")[number % 2])


def test_a_cached_preparation_with_a_deadline(tmp_path: Any) -> None:
    model, data = (tmp_path / "model").open("w+b"), (tmp_path / "data").open("w+b")
    with open_device("tiny", state_dir=tmp_path) as device, model, data:
        handles = [[model.fileno()]], [[data.fileno()]], bytes(32)
        saved = PreparedCallback()
        assert device.prepareModel_1_3(OWN[0].model, 1, 1, None, *handles, saved) is NONE
        assert saved.wait()[0] is NONE
        for deadline, wanted in ((NOW, MISSED), (UNLIMITED, {NONE})):
            callback = PreparedCallback()
            launched = device.prepareModelFromCache_1_3(deadline_of(deadline), *handles, callback)
            status, prepared = callback.wait()
            assert status in wanted
            assert launched in (NONE, status)
            assert (prepared is not None) == (status is NONE)


# Quantised types that come in pairs


def _outputs(device: Any, case: Case) -> tuple[ErrorStatus, list[Any]]:
    _, status, prepared = prepare(device, case.model)
    if prepared is None:
        return status, []
    outcome = execute_sync(prepared, case.frame())
    assert case.problem(outcome) == ""
    return status, outcome.raw


@pytest.mark.parametrize("config", CONFIGS)
def test_signed_and_unsigned_are_prepared_or_not_together(config: str) -> None:
    plain, shifted = (next(case for case in OWN if case.name == name) for name in ("quantised", "signed"))
    with open_device(config) as device:
        (one, raw), (other, moved) = _outputs(device, plain), _outputs(device, shifted)
    assert one is other
    for unsigned, with_sign in zip(raw, moved, strict=True):
        numbers = np.frombuffer(unsigned, np.uint8).astype(int) - 128
        np.testing.assert_array_equal(numbers, np.frombuffer(with_sign, np.int8))


@needs_examples
@pytest.mark.parametrize("config", ["tiny", "edge"])
def test_examples_are_prepared_or_not_together(config: str) -> None:
    with open_device(config) as device:
        pairs = [_statuses(device, rec, get) for rec, get in _quantised_examples(step=5)]
    assert len(pairs) > 20
    assert [name for name, one, other in pairs if one != other] == []


def _quantised_examples(step: int) -> Sequence[tuple[Record, Any]]:
    kinds = [
        (rec, get)
        for rec, get in examples(HIDL_VERSIONS)
        if any(operand["type"] == "TENSOR_QUANT8_ASYMM" for operand in rec["main"]["operands"])
        and not any(operation["type"] in UNCOUPLED for operation in rec["main"]["operations"])
    ]
    return kinds[::step]


def _statuses(device: Any, rec: Record, get: Any) -> tuple[str, Any, Any]:
    """Return the results for an example and its signed form: supported operations and preparation."""
    found = []
    variant = signed(rec, get)
    assert variant is not None
    for each in ((rec, get), variant):
        model = build_model(*each)[0]
        supported = device.getSupportedOperations_1_3(model)
        found.append((supported, prepare(device, model)[1] if all(supported[1]) else None))
    return rec["test"], found[0], found[1]
