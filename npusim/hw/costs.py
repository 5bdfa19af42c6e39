"""Energy and area as sums of named items, each with the source of its value, or unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

UNKNOWN = "no number given"
"""The source of an item without a value in the description or the technology."""


@dataclass(frozen=True, slots=True)
class CostItem:
    """One summand. ``value`` None: unknown. ``source``: origin of the value."""

    name: str
    value: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Items and their sum, in femtojoules or square micrometres: integers, so that the sum is exact."""

    parts: tuple[CostItem, ...]

    @property
    def total(self) -> int | None:
        """The sum; None if an item is unknown, because leaving it out would count it as zero."""
        return None if self.unknown else self.known

    @property
    def known(self) -> int:
        """The sum of the known items."""
        return sum(part.value for part in self.parts if part.value is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the unknown items."""
        return tuple([part.name for part in self.parts if part.value is None])

    def __getitem__(self, name: str) -> int | None:
        """The value of an item. Raises KeyError for an unknown name."""
        for part in self.parts:
            if part.name == name:
                return part.value
        raise KeyError(name)

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "unknown": list(self.unknown),
            "parts": [{"name": part.name, "value": part.value, "source": part.source} for part in self.parts],
        }


@dataclass(frozen=True, slots=True)
class ActionCost:
    """Energy of one action in femtojoules; ``fj`` None: unknown."""

    fj: int | None
    source: str


NOT_KNOWN = ActionCost(None, UNKNOWN)


class ActionCosts(Mapping[str, ActionCost]):
    """The energy of each action of a device, by name (see ``npusim.hw.actions``); unknown if not in the table."""

    __slots__ = ("_costs",)

    def __init__(self, costs: Mapping[str, ActionCost]) -> None:
        self._costs = dict(costs)

    def __getitem__(self, action: str) -> ActionCost:
        return self._costs.get(action, NOT_KNOWN)

    def __contains__(self, action: object) -> bool:
        return action in self._costs

    def __iter__(self) -> Iterator[str]:
        return iter(self._costs)

    def __len__(self) -> int:
        return len(self._costs)

    def fj(self, action: str) -> int | None:
        """Femtojoules of one action."""
        return self[action].fj

    def part(self, action: str, count: int) -> CostItem:
        """The energy of ``count`` actions; 0 actions take 0 even if the energy of one is unknown."""
        price = self[action]
        return CostItem(action, None if price.fj is None and count else (price.fj or 0) * count, price.source)
