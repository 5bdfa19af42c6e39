"""Errors inside the NNAPI driver. None leaves it: the border converts each to an ErrorStatus."""

from __future__ import annotations

import enum


class ErrorStatus(enum.IntEnum):
    """Result of a call."""

    NONE = 0
    DEVICE_UNAVAILABLE = 1
    GENERAL_FAILURE = 2
    OUTPUT_INSUFFICIENT_SIZE = 3
    INVALID_ARGUMENT = 4
    MISSED_DEADLINE_TRANSIENT = 5
    MISSED_DEADLINE_PERSISTENT = 6
    RESOURCE_EXHAUSTED_TRANSIENT = 7
    RESOURCE_EXHAUSTED_PERSISTENT = 8


class StatusError(Exception):
    """The call fails with exactly this status."""

    def __init__(self, status: ErrorStatus, message: str, /) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}"


def invalid_argument(message: str) -> StatusError:
    """The error of a call whose arguments cannot be right."""
    return StatusError(ErrorStatus.INVALID_ARGUMENT, message)


class InvalidArgumentError(Exception):
    """An argument violates a rule of the interface: INVALID_ARGUMENT. ``where``: its location. The message states the
    rule."""

    def __init__(self, where: str, message: str, /) -> None:
        super().__init__(where, message)
        self.where = where
        self.message = message

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class InvalidModelError(InvalidArgumentError):
    """A model, or the arguments of its preparation, violates a rule."""


class InvalidRequestError(InvalidArgumentError):
    """A request violates a rule."""
