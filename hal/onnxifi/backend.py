"""A backend: a device that a client has switched on, with its properties."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from npusim.report.format import LogFormatter
from npusim.runtime import Priority

from .constants import GRAPH_PROPERTY_PRIORITY, BackendProperty, LogLevel, Optimization
from .device import Device
from .power import Power
from .status import OnnxifiError, Status

_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
}
_PRIORITIES = {1: Priority.LOW, 2: Priority.MEDIUM, 3: Priority.HIGH}
_ALLOWED: dict[int, range] = {
    BackendProperty.OPTIMIZATION: range(min(Optimization), max(Optimization) + 1),
    BackendProperty.LOG_LEVEL: range(min(LogLevel), max(LogLevel) + 1),
}


@dataclass(slots=True, eq=False)
class Backend:
    """A backend. Its reference to ``power`` keeps the device on."""

    device: Device
    power: Power
    optimization: Optimization


def init_backend(device: Device, properties: Sequence[tuple[int, int]]) -> Backend:
    """Power a device on.

    Raises OnnxifiError: UNSUPPORTED_PROPERTY, INVALID_PROPERTY, BACKEND_UNAVAILABLE, or that of a missing resource.
    """
    values: dict[int, int] = {BackendProperty.OPTIMIZATION: 0}
    for identifier, value in properties:
        if identifier not in _ALLOWED:
            raise OnnxifiError(Status.UNSUPPORTED_PROPERTY, f"backend property {identifier} is not supported")
        allowed = _ALLOWED[identifier]
        if value not in allowed:
            raise OnnxifiError(
                Status.INVALID_PROPERTY,
                f"{BackendProperty(identifier).name}: must be {allowed[0]} to {allowed[-1]}, got {value}",
            )
        values[identifier] = value
    if BackendProperty.LOG_LEVEL in values:
        _set_log_level(LogLevel(values[BackendProperty.LOG_LEVEL]))
    return Backend(device, device.power(), Optimization(values[BackendProperty.OPTIMIZATION]))


def _set_log_level(level: LogLevel) -> None:
    """Set the log level; the log goes to standard error unless the program has its own handlers."""
    logger = logging.getLogger("npusim.onnxifi")
    logger.setLevel(_LEVELS[level])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(LogFormatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


def graph_priority(properties: Sequence[int]) -> Priority:
    """Return the priority of a graph's runs from its property list (ids and values, without the final 0).

    AOT is accepted as an id without a value, as clients pass it; graphs are compiled ahead of time anyway.
    """
    priority = Priority.MEDIUM
    items = iter(properties)
    for identifier in items:
        if identifier == GRAPH_PROPERTY_PRIORITY:
            value = next(items, 0)
            if value not in _PRIORITIES:
                raise OnnxifiError(Status.INVALID_PROPERTY, f"the priority must be 1, 2 or 3, got {value}")
            priority = _PRIORITIES[value]
        elif identifier != Optimization.AOT:
            raise OnnxifiError(Status.UNSUPPORTED_PROPERTY, f"graph property {identifier:#x} is not supported")
    return priority
