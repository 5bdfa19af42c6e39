"""Notify a client of a result exactly once, with the newest method that its callback object has."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..border import older_status
from ..errors import invalid_argument
from ..types import ErrorStatus, OutputShape, Timing

_log = logging.getLogger("hal.nnapi")
_METHODS = ("notify_1_3", "notify_1_2", "notify")


def check_callback(callback: Any) -> None:
    """Raise StatusError (INVALID_ARGUMENT) unless the object has a method that can be notified."""
    if not any(callable(getattr(callback, name, None)) for name in _METHODS):
        wanted = ", ".join(_METHODS)
        raise invalid_argument(f"the callback must have one of {wanted}, got {callback!r}")


def notify_prepared(callback: Any, status: ErrorStatus, prepared: Any) -> None:
    """Call an IPreparedModelCallback; its exceptions are logged."""
    _notify(callback, status, (prepared,), (prepared,))


def notify_executed(callback: Any, status: ErrorStatus, shapes: Sequence[OutputShape], timing: Timing) -> None:
    """Notify an IExecutionCallback. That of HAL 1.0 and 1.1 only gets the status."""
    _notify(callback, status, (list(shapes), timing), ())


def _notify(callback: Any, status: ErrorStatus, results: tuple[Any, ...], oldest: tuple[Any, ...]) -> None:
    name = next((name for name in _METHODS if callable(getattr(callback, name, None))), None)
    if name is None:
        return  # an object without a method to notify; check_callback has refused it
    try:
        method = getattr(callback, name)
        if name == "notify_1_3":
            method(status, *results)
        else:
            method(older_status(status), *(results if name == "notify_1_2" else oldest))
    except (Exception, SystemExit):  # noqa: BLE001 - it is the client's, and may raise anything
        _log.exception("a client's callback failed")
