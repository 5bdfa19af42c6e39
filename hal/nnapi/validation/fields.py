"""Checks of single fields: values that a message of the transport could not hold are rejected.

A client here is Python code and may pass any object; after this check there are only plain integers, floats, tuples and
bytes.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

U16 = (1 << 16) - 1
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1
I32 = (-(1 << 31), (1 << 31) - 1)
LONGEST = 1 << 20
"""Most items of a message. A sequence that is not a list may claim any length."""

T = TypeVar("T")
_FLOAT = struct.Struct("<f")


class MalformedError(Exception):
    """A field that no message can hold. The argument is the expected form."""


def integer(value: object, low: int, high: int, field: str) -> int:
    """Return a plain integer in [low, high]."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise MalformedError(f"{field} must be an integer, got {_short(value)}") from None
    if not low <= number <= high:
        raise MalformedError(f"{field} must be in [{low}, {high}], got {number}")
    return int(number)


def integers(values: object, high: int, field: str) -> tuple[int, ...]:
    """Return plain integers in [0, high]."""
    found = tuple(items(values, field))  # copied first, because what is checked must be what is used
    for value in found:
        if type(value) is not int or not 0 <= value <= high:
            return tuple([integer(each, 0, high, field) for each in found])
    return found


def items(values: object, field: str) -> Sequence[Any]:
    """Return the items of a list, a tuple or another sequence."""
    if isinstance(values, (list, tuple)):
        return values
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, (Sequence, np.ndarray)):
        raise MalformedError(f"{field} must be a sequence, got {_short(values)}")
    if len(values) > LONGEST:
        raise MalformedError(f"{field} must have at most {LONGEST} items, got {_short(values)}")
    return list(values)


def real(value: object, field: str) -> float:
    """Return a finite number, rounded to the single precision of messages."""
    if not isinstance(value, (float, int, np.floating, np.integer)):
        raise MalformedError(f"{field} must be a number, got {_short(value)}")
    try:
        number: float = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except (OverflowError, struct.error):
        raise MalformedError(f"{field} must be a number of single precision, got {_short(value)}") from None
    if not math.isfinite(number):
        raise MalformedError(f"{field} must be a finite number, got {number}")
    return number


def boolean(value: object, field: str) -> bool:
    """Return True or False; 1 and 0 are accepted, too."""
    return bool(integer(bool(value) if isinstance(value, np.bool_) else value, 0, 1, field))


def code(value: object, field: str) -> int:
    """Return the 32 bits of a type as an unsigned number: a prefix of 0x8000 or more makes the signed number
    negative."""
    return integer(value, I32[0], U32, field) & U32


def blob(value: object, field: str) -> bytes | memoryview:
    """Return bytes unchanged, or a read-only view of the client's buffer."""
    if type(value) is bytes:
        return value
    try:
        return memoryview(value).cast("B").toreadonly()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise MalformedError(f"{field} must be contiguous bytes, got {_short(value)}") from None


def instance(value: object, kind: type[T], field: str) -> T:
    """Return an object of a structure's class."""
    if not isinstance(value, kind):
        raise MalformedError(f"{field} must be of type {kind.__name__}, got {_short(value)}")
    return value


def instances(values: object, kind: type[T], field: str) -> Iterable[tuple[int, T]]:
    """Yield numbered objects of a structure's class."""
    for number, value in enumerate(items(values, field)):
        yield number, instance(value, kind, f"{field}[{number}]")


def _short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
