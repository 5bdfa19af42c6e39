"""Values of single fields, as a message over the transport could hold them; others are refused.

A client here is Python code and may put any object anywhere; behind this check there are only plain integers, floats,
tuples and bytes.
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
"""No message holds more items; a sequence that is no list may say that it has any number."""

T = TypeVar("T")
_FLOAT = struct.Struct("<f")


class MalformedError(Exception):
    """A field that no message can hold; argument: the expected form."""


def integer(value: object, low: int, high: int, field: str) -> int:
    """A plain integer in [low, high]."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise MalformedError(f"{field} must be an integer, got {_short(value)}") from None
    if not low <= number <= high:
        raise MalformedError(f"{field} must be in [{low}, {high}], got {number}")
    return int(number)


def integers(values: object, high: int, field: str) -> tuple[int, ...]:
    """Plain integers in [0, high]."""
    found = tuple(items(values, field))  # a copy first: what is checked must be what is used
    for value in found:
        if type(value) is not int or not 0 <= value <= high:
            return tuple([integer(each, 0, high, field) for each in found])
    return found


def items(values: object, field: str) -> Sequence[Any]:
    """The items of a list, a tuple or another sequence."""
    if isinstance(values, (list, tuple)):
        return values
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, (Sequence, np.ndarray)):
        raise MalformedError(f"{field} must be a sequence, got {_short(values)}")
    if len(values) > LONGEST:
        raise MalformedError(f"{field} must have at most {LONGEST} items, got {_short(values)}")
    return list(values)


def real(value: object, field: str) -> float:
    """A finite number, rounded to single precision, which is all that a message holds."""
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
    """True or False, also as 1 or 0."""
    return bool(integer(bool(value) if isinstance(value, np.bool_) else value, 0, 1, field))


def code(value: object, field: str) -> int:
    """A type's 32 bits, unsigned: a prefix of 0x8000 or more makes the signed number negative."""
    return integer(value, I32[0], U32, field) & U32


def blob(value: object, field: str) -> bytes | memoryview:
    """Bytes: unchanged, or a read-only view of the client's."""
    if type(value) is bytes:
        return value
    try:
        return memoryview(value).cast("B").toreadonly()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise MalformedError(f"{field} must be contiguous bytes, got {_short(value)}") from None


def instance(value: object, kind: type[T], field: str) -> T:
    """An object of a structure's class."""
    if not isinstance(value, kind):
        raise MalformedError(f"{field} must be of type {kind.__name__}, got {_short(value)}")
    return value


def instances(values: object, kind: type[T], field: str) -> Iterable[tuple[int, T]]:
    """Numbered objects of a structure's class."""
    for number, value in enumerate(items(values, field)):
        yield number, instance(value, kind, f"{field}[{number}]")


def _short(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"
