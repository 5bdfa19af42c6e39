"""Where groups are cut into steps: those of least time together, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from npusim.compiler.schedule.cascade import Cascade


class CascadeCuts:
    """The best cuts of what is known so far. Cascades are added from the last group on, so that it can be asked
    meanwhile what groups behind take, however they are cut."""

    def __init__(self, costs: Sequence[int]) -> None:
        """``costs``: picoseconds of each group alone."""
        self._costs = costs
        self._from: dict[int, list[tuple[int, int, Cascade]]] = {}
        self._required: dict[int, tuple[int, int, Cascade]] = {}
        self._known: dict[tuple[int, int], int] = {}

    def add(self, first: int, last: int, cost: int, cascade: Cascade) -> None:
        """Add a cascade of some groups that takes so many picoseconds; none from a later group comes after it."""
        self._from.setdefault(first, []).append((last, cost, cascade))
        self._known[first, last] = min(cost, self.least(first, last))

    def require(self, first: int, last: int, cost: int, cascade: Cascade) -> None:
        """Take a cascade whatever it costs; none that is added overlaps with it."""
        self._required[first] = last, cost, cascade

    def least(self, first: int, last: int) -> int:
        """Picoseconds of some groups, however they are cut."""
        if first > last:
            return 0
        if (first, last) not in self._known:
            options = [self._costs[first] + self.least(first + 1, last)]
            options += [cost + self.least(end + 1, last) for end, cost, _ in self._from.get(first, ()) if end <= last]
            self._known[first, last] = min(options)
        return self._known[first, last]

    def best(self) -> list[Cascade]:
        """The cascades of the best cuts of all groups, in order."""
        count = len(self._costs)
        behind: list[tuple[int, int, Cascade | None]] = [(0, count, None)] * (count + 1)
        for first in reversed(range(count)):
            if first in self._required:
                end, cost, required = self._required[first]
                behind[first] = cost + behind[end + 1][0], end, required
                continue
            options: list[tuple[int, int, Cascade | None]] = [(self._costs[first] + behind[first + 1][0], first, None)]
            options += [(cost + behind[end + 1][0], end, cascade) for end, cost, cascade in self._from.get(first, ())]
            behind[first] = min(options, key=itemgetter(0))
        chosen, at = [], 0
        while at < count:
            _, end, taken = behind[at]
            if taken is not None:
                chosen.append(taken)
            at = end + 1
        return chosen
