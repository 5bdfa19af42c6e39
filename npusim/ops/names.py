"""Unique names."""

from __future__ import annotations


class Names:
    """Makes unique names. ``mark``: separates a name from its number."""

    def __init__(self, mark: str = "_") -> None:
        self._mark = mark
        self._taken: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """``name``, or the first of ``name_1``, ``name_2``, ... that is unused."""
        candidate = name
        while candidate in self._taken:
            self._taken[name] += 1
            candidate = f"{name}{self._mark}{self._taken[name]}"
        # The new name is used, too: a model may have a tensor called "name_1".
        self._taken[candidate] = 0
        return candidate
