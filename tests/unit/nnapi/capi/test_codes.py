"""Driver statuses and errors of the runtime itself, as result codes of the library."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from hal.nnapi.aidl.types import ServiceSpecificException
from hal.nnapi.capi import compilation as compilations
from hal.nnapi.capi import devices
from hal.nnapi.capi import model as models
from hal.nnapi.capi.codes import ResultCode, code_of
from hal.nnapi.capi.compilation import Compilation, PreparedPart
from hal.nnapi.capi.handles import TABLE, Kind
from hal.nnapi.types import ErrorStatus
from tests.support.nnapi.c_api import Api, add_model, address, code, compiled, device, handles, set_inputs

FAILURES = {
    ErrorStatus.DEVICE_UNAVAILABLE: "UNAVAILABLE_DEVICE",
    ErrorStatus.GENERAL_FAILURE: "OP_FAILED",
    ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: "OUTPUT_INSUFFICIENT_SIZE",
    ErrorStatus.INVALID_ARGUMENT: "BAD_DATA",
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: "MISSED_DEADLINE_TRANSIENT",
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: "MISSED_DEADLINE_PERSISTENT",
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: "RESOURCE_EXHAUSTED_TRANSIENT",
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: "RESOURCE_EXHAUSTED_PERSISTENT",
}


class Failing:
    """A prepared model, or a burst, that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def executeSynchronouslyWithConfig(self, *arguments: Any) -> None:  # noqa: N802 - the interface's name
        raise self._error

    def configureExecutionBurst(self) -> Failing:  # noqa: N802
        return self

    def releaseMemoryResource(self, token: int) -> None:  # noqa: N802
        """It keeps nothing."""


def failing(api: Api, error: Exception) -> tuple[int, int]:
    """Return a compilation whose device fails, and an execution with all arguments."""
    handle = compiled(api, add_model(api))
    found: Compilation = TABLE.get(Kind.Compilation, handle, "compilation")
    found.steps = [PreparedPart(step.part, Failing(error)) for step in found.steps]
    execution, values = api.make("Execution_create", handle), np.zeros(4, np.float32)
    set_inputs(api, execution, values, values)
    api.ok("Execution_setOutput", execution, 0, None, address(values), 16)
    TABLE.get(Kind.Execution, execution, "execution").kept = values
    return handle, execution


def test_every_status_has_a_code() -> None:
    assert {status: code_of(status).name for status in ErrorStatus} == {ErrorStatus.NONE: "NO_ERROR", **FAILURES}


@pytest.mark.parametrize("status", FAILURES, ids=lambda status: status.name)
@pytest.mark.parametrize("way", ["compute", "event", "fence", "burst"])
def test_failures_of_executions(api: Api, status: ErrorStatus, way: str) -> None:
    compilation, execution = failing(api, ServiceSpecificException(status, "on purpose"))
    if way == "compute":
        result = api.Execution_compute(execution)
    elif way == "burst":
        result = api.Execution_burstCompute(execution, api.make("Burst_create", compilation))
    elif way == "event":
        result = api.Event_wait(api.make("Execution_startCompute", execution))
    else:
        result = api.Event_wait(api.make("Execution_startComputeWithDependencies", execution, None, 0, 0))
    assert result == code(FAILURES[status])


@pytest.mark.parametrize("status", FAILURES, ids=lambda status: status.name)
def test_failures_of_compilations(api: Api, status: ErrorStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(model: Any, config: Any, callback: Any) -> None:
        callback.notify(status, None)

    monkeypatch.setattr(devices.devices()[0].aidl, "prepareModelWithConfig", prepare)
    compilation = api.make("Compilation_createForDevices", add_model(api), handles([device(api)]), 1)
    assert api.Compilation_finish(compilation) == code(FAILURES[status])
    assert api.Execution_create(compilation, ctypes.byref(ctypes.c_void_p())) == code("BAD_STATE")


def test_the_host_has_no_memory(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    _, execution = failing(api, MemoryError())
    assert api.Execution_compute(execution) == code("OUT_OF_MEMORY")

    def no_memory(*arguments: Any) -> None:
        raise MemoryError

    model = api.make("Model_create")
    monkeypatch.setattr(models, "sort_operations", no_memory)
    assert api.Model_finish(model) == code("OUT_OF_MEMORY")


def test_an_error_of_the_runtime_is_no_crash(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*arguments: Any) -> None:
        raise ZeroDivisionError("on purpose")

    _, execution = failing(api, ZeroDivisionError("on purpose"))
    event = api.make("Execution_startCompute", execution)
    assert api.Event_wait(event) == code("OP_FAILED")
    monkeypatch.setattr(compilations, "spread", raising)
    compilation = api.make("Compilation_create", add_model(api))
    assert api.Compilation_finish(compilation) == code("OP_FAILED")


def test_an_unplugged_device(api: Api, add: int, execution: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.zeros(4, np.float32)
    set_inputs(api, execution, values, values)
    api.ok("Execution_setOutput", execution, 0, None, address(values), 16)
    monkeypatch.setattr(devices.devices()[0].hal._engine, "closed", True)
    assert api.Execution_compute(execution) == code("UNAVAILABLE_DEVICE")
    assert api.Burst_create(add, ctypes.byref(ctypes.c_void_p())) == code("UNAVAILABLE_DEVICE")


def test_which_codes_are_never_given() -> None:
    """INCOMPLETE is not used on Android either; DEAD_OBJECT, UNMAPPABLE and the others are tested elsewhere."""
    assert set(ResultCode) - {code_of(status) for status in ErrorStatus} == {
        ResultCode.OUT_OF_MEMORY, ResultCode.INCOMPLETE, ResultCode.UNEXPECTED_NULL, ResultCode.BAD_STATE,
        ResultCode.UNMAPPABLE, ResultCode.DEAD_OBJECT,
    }  # fmt: skip
