"""Recent: a mapping of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Recent(OrderedDict[_K, _V], Generic[_K, _V]):
    """A mapping of limited size that evicts the least recently used value."""

    def __init__(self, limit: int, dropped: Callable[[_V], object]) -> None:
        """``dropped`` is called for each evicted value."""
        super().__init__()
        self._limit = limit
        self._dropped = dropped

    def recall(self, key: _K) -> _V | None:
        """The value of a key, or None."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def find(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value of a key, made if missing."""
        value = self.recall(key)
        if value is None:
            value = self[key] = make()
            while len(self) > self._limit:
                self._dropped(self.popitem(last=False)[1])
        return value
