"""What hardware is priced in: a sum by named parts, each with where its number comes from, or unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

UNKNOWN = "no number given"
"""The source of a part that has none: neither the description nor a technology says what it takes."""


@dataclass(frozen=True, slots=True)
class CostItem:
    """One summand; ``value`` None: not known. ``source``: where the price comes from."""

    name: str
    value: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Parts and their sum, in femtojoules or square micrometres: integers, so that the sum is exact."""

    parts: tuple[CostItem, ...]

    @property
    def total(self) -> int | None:
        """The sum; None if a part is not known: what is left out would be taken for nothing."""
        return None if self.unknown else self.known

    @property
    def known(self) -> int:
        """The sum of what is known."""
        return sum(part.value for part in self.parts if part.value is not None)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of the parts that are not known."""
        return tuple([part.name for part in self.parts if part.value is None])

    def __getitem__(self, name: str) -> int | None:
        """The value of a part; raises KeyError if there is none of that name."""
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
    """Femtojoules of one action; ``fj`` None: not known."""

    fj: int | None
    source: str


NOT_KNOWN = ActionCost(None, UNKNOWN)


class ActionCosts(Mapping[str, ActionCost]):
    """The price of every action of a device, by its name (see ``npusim.hw.actions``); an action that is not priced is
    not known."""

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
        """What so many actions take; none of them take nothing, whatever one costs."""
        price = self[action]
        return CostItem(action, None if price.fj is None and count else (price.fj or 0) * count, price.source)
