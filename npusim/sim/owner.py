"""Who has events to come: parts with names, so that an event can be written down and found again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from npusim.errors import CheckpointError
from npusim.sim.saved import Saved


class EventOwner:
    """A part whose methods are called at a time, those that ``EVENTS`` names; by the clock with an event, by a link
    with nothing."""

    __slots__ = ()

    EVENTS: ClassVar[tuple[str, ...]] = ()

    def is_void(self, value: Any) -> bool:
        """Whether an event with that value would do nothing any more: events cannot be taken back."""
        return False

    def which(self, value: Any) -> str:
        """What tells an event from others that call the same method, by its value; with a space in front."""
        return ""

    def value_state(self, value: Any) -> Any:
        """The value of an event as plain data; most have none."""
        return value

    def value_of(self, method: str, saved: Saved) -> Any:
        """The value again, of an event that is to call a method. Raises CheckpointError."""
        if not saved.missing:
            raise saved.refuse("null")
        return None


class Owners:
    """The parts of one device that have events, by name."""

    def __init__(self) -> None:
        self._owners: dict[str, EventOwner] = {}
        self._names: dict[int, str] = {}

    def add(self, name: str, owner: EventOwner) -> None:
        """From here on it is known by that name."""
        self._owners[name] = owner
        self._names[id(owner)] = name

    def name(self, callback: Callable[..., Any]) -> list[str]:
        """Owner and method. Raises CheckpointError for what nobody here owns."""
        owner = getattr(callback, "__self__", None)
        method = getattr(callback, "__name__", "")
        name = self._names.get(id(owner))
        if name is None or not isinstance(owner, EventOwner) or method not in owner.EVENTS:
            what = getattr(callback, "__qualname__", repr(callback))
            raise CheckpointError(f"an event is to call {what}, which is no part of the device that can be saved")
        return [name, method]

    def owner(self, saved: Saved) -> EventOwner:
        """A part by its name."""
        name = saved.text()
        if name not in self._owners:
            raise saved.refuse("the name of a part that has events")
        return self._owners[name]

    def callback(self, saved: Saved) -> Callable[..., Any]:
        """What :meth:`name` named."""
        name, method = saved.items(2)
        owner = self.owner(name)
        if method.text() not in owner.EVENTS:
            raise method.refuse(f"one of {', '.join(owner.EVENTS)}")
        return getattr(owner, method.text())  # type: ignore[no-any-return]
