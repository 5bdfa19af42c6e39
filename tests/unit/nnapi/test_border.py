"""The table from exceptions to status codes."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil

import pytest

import hal.nnapi
from hal.nnapi.aidl.border import raises_status
from hal.nnapi.border import STATUS, status_of
from hal.nnapi.capi.entry import ENTRIES, Entry, call
from hal.nnapi.errors import InvalidModelError, InvalidRequestError, StatusError
from hal.nnapi.plan import control
from hal.nnapi.types import ErrorStatus
from npusim import errors


def exceptions_of(module):
    """Return the exception classes that a module defines."""
    found = [item for _, item in inspect.getmembers(module, inspect.isclass) if item.__module__ == module.__name__]
    return [item for item in found if issubclass(item, Exception)]


def test_every_error_of_npusim_has_a_row():
    missing = [kind.__name__ for kind in exceptions_of(errors) if kind not in STATUS]
    assert missing == []


def test_every_error_of_the_driver_has_a_row_or_carries_its_status():
    names = [module.name for module in pkgutil.walk_packages(hal.nnapi.__path__, "hal.nnapi.")]
    rooms = [name for name in names if name.split(".")[2] not in {"aidl", "capi"}]  # they have separate error codes
    kinds = {kind for name in rooms for kind in exceptions_of(importlib.import_module(name))}
    assert {InvalidModelError, StatusError, control.LoopTimeoutError} <= kinds
    leaving = [kind for kind in kinds if not kind.__name__.startswith("_")]  # private ones stay in their modules
    assert [kind for kind in leaving if not issubclass(kind, (StatusError, *STATUS))] == []


def test_the_table_names_only_errors_that_exist():
    for kind in STATUS:
        assert inspect.isclass(kind)
        assert issubclass(kind, BaseException)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StatusError(ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, "x"), ErrorStatus.OUTPUT_INSUFFICIENT_SIZE),
        (InvalidModelError("main", "x"), ErrorStatus.INVALID_ARGUMENT),
        (InvalidRequestError("input 0", "x"), ErrorStatus.INVALID_ARGUMENT),
        (errors.UnsupportedError([("a", "b", "c")]), ErrorStatus.GENERAL_FAILURE),
        (errors.CompileError("too large"), ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT),
        (errors.DeviceMemoryError("full"), ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT),
        (errors.DeadlineError("late"), ErrorStatus.MISSED_DEADLINE_TRANSIENT),
        (errors.DeviceGoneError("UNPLUGGED", 0, "gone"), ErrorStatus.DEVICE_UNAVAILABLE),
        (errors.DeviceFaultError("DMA", 0, "broken"), ErrorStatus.GENERAL_FAILURE),
        (errors.QueueFullError("64"), ErrorStatus.DEVICE_UNAVAILABLE),
        (control.LoopTimeoutError(1), ErrorStatus.MISSED_DEADLINE_PERSISTENT),
        (MemoryError(), ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT),
        (ZeroDivisionError(), ErrorStatus.GENERAL_FAILURE),
        (FileNotFoundError(), ErrorStatus.GENERAL_FAILURE),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Exception) else item.name,
)
def test_an_exception_becomes_its_status(error, status):
    assert status_of(error, "test") is status


def test_a_line_of_the_log_says_a_status_once(caplog, monkeypatch):
    def method():
        raise StatusError(ErrorStatus.MISSED_DEADLINE_PERSISTENT, "late")

    for name, run in (("direct", method), ("through", raises_status(method))):
        monkeypatch.setitem(ENTRIES, name, Entry(name, (), (), run))
        with caplog.at_level(logging.INFO, "hal.nnapi"):
            call(name, ())
    lines = [record.getMessage() for record in caplog.records]
    what = "MISSED_DEADLINE_PERSISTENT: late"
    assert lines == [f"direct: {what}", f"method: {what}", f"through: {what}"]
