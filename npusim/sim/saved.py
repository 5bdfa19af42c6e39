"""The state of parts as plain values, and validated access to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npusim.errors import CheckpointError, shown

LONGEST_PS = 1 << 60
"""Limit for times in a state: 13 days, so that sums of several times fit into 64 bits."""
WIDEST = (1 << 62) - 1
"""Default limit for integers in a state."""


class Saved:
    """One value of a state that was read, and its path. All methods raise CheckpointError for a value of another
    kind."""

    __slots__ = ("path", "value")

    def __init__(self, value: object, path: str = "state") -> None:
        self.value: Any = value
        self.path = path

    def refuse(self, allowed: str) -> CheckpointError:
        """The error for this value. ``allowed``: text after "must be"."""
        return CheckpointError(f"{self.path}: must be {allowed}, got {shown(self.value)}")

    def __getitem__(self, name: str) -> Saved:
        """A member of a mapping."""
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        if name not in self.value:
            raise CheckpointError(f"{self.path}: has no {name!r}")
        return Saved(self.value[name], f"{self.path}.{name}")

    def names(self) -> list[str]:
        """The names of the members of a mapping."""
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        return list(self.value)

    def items(self, count: int | None = None) -> list[Saved]:
        """The items of a list, of length ``count`` if given."""
        if not isinstance(self.value, list) or (count is not None and len(self.value) != count):
            raise self.refuse("a list" if count is None else f"a list of {count}")
        return [Saved(item, f"{self.path}[{number}]") for number, item in enumerate(self.value)]

    def __iter__(self) -> Iterator[Saved]:
        return iter(self.items())

    @property
    def missing(self) -> bool:
        """Whether the value is null."""
        return self.value is None

    def integer(self, low: int = 0, high: int = WIDEST) -> int:
        """An integer from ``low`` to ``high``, both included."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.refuse(f"an integer >= {low}" if high == WIDEST else f"an integer from {low} to {high}")
        return self.value

    def index(self, count: int) -> int:
        """An index of one of ``count`` items."""
        return self.integer(0, count - 1)

    def integers(self, count: int, low: int = 0, high: int = WIDEST) -> list[int]:
        """A list of ``count`` integers."""
        if not isinstance(self.value, list) or len(self.value) != count:
            raise self.refuse(f"a list of {count} integers")
        return [Saved(item, f"{self.path}[{number}]").integer(low, high) for number, item in enumerate(self.value)]

    def flag(self) -> bool:
        """True or false."""
        if type(self.value) is not bool:
            raise self.refuse("true or false")
        return self.value

    def text(self) -> str:
        """Text."""
        if not isinstance(self.value, str):
            raise self.refuse("text")
        return self.value
