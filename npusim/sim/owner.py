"""Owners of pending events: named parts, so that events can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from npusim.errors import CheckpointError
from npusim.sim.saved import Saved


class EventOwner:
    """A part with methods that are called as events, listed in ``EVENTS``: by the clock with an event, by a link
    without."""

    __slots__ = ()

    EVENTS: ClassVar[tuple[str, ...]] = ()

    def is_void(self, value: Any) -> bool:
        """Whether an event with that value would have no effect any more, because events cannot be cancelled."""
        return False

    def which(self, value: Any) -> str:
        """Text that distinguishes events of the same method, by their value; begins with a space."""
        return ""

    def value_state(self, value: Any) -> Any:
        """The value of an event as plain data; None for most events."""
        return value

    def value_of(self, method: str, saved: Saved) -> Any:
        """Inverse of :meth:`value_state` for an event that calls ``method``. Raises CheckpointError."""
        if not saved.missing:
            raise saved.refuse("null")
        return None


class Owners:
    """The parts of one device that own events, by name."""

    def __init__(self) -> None:
        self._owners: dict[str, EventOwner] = {}
        self._names: dict[int, str] = {}

    def add(self, name: str, owner: EventOwner) -> None:
        """Register an owner by name."""
        self._owners[name] = owner
        self._names[id(owner)] = name

    def name(self, callback: Callable[..., Any]) -> list[str]:
        """Owner and method of a callback. Raises CheckpointError if no owner is registered for it."""
        owner = getattr(callback, "__self__", None)
        method = getattr(callback, "__name__", "")
        name = self._names.get(id(owner))
        if name is None or not isinstance(owner, EventOwner) or method not in owner.EVENTS:
            what = getattr(callback, "__qualname__", repr(callback))
            raise CheckpointError(f"an event is to call {what}, which is not a part of the device that can be saved")
        return [name, method]

    def owner(self, saved: Saved) -> EventOwner:
        """A part by its name."""
        name = saved.text()
        if name not in self._owners:
            raise saved.refuse("the name of a part that has events")
        return self._owners[name]

    def callback(self, saved: Saved) -> Callable[..., Any]:
        """Inverse of :meth:`name`."""
        name, method = saved.items(2)
        owner = self.owner(name)
        if method.text() not in owner.EVENTS:
            raise method.refuse(f"one of {', '.join(owner.EVENTS)}")
        return getattr(owner, method.text())  # type: ignore[no-any-return]
