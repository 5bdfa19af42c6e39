"""Validation of the options for preparing a model."""

from __future__ import annotations

from enum import IntEnum

from ..errors import InvalidModelError
from ..types import ExecutionPreference, Priority
from .fields import I32, MalformedError, integer


def validate_preference(value: object) -> ExecutionPreference:
    """Return the preference with a number. Raises InvalidModelError."""
    return ExecutionPreference(_member(value, ExecutionPreference, "executionPreference"))


def validate_priority(value: object) -> Priority:
    """Return the priority with a number. Raises InvalidModelError."""
    return Priority(_member(value, Priority, "priority"))


def _member(value: object, kind: type[IntEnum], field: str) -> int:
    try:
        number = integer(value, *I32, field)
    except MalformedError as error:
        raise InvalidModelError(field, str(error)) from None
    if number not in set(kind):
        allowed = ", ".join(f"{each.name} {each.value}" for each in kind)
        raise InvalidModelError(field, f"must be one of {allowed}, got {number}")
    return number
