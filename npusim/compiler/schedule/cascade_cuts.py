"""Partition the groups into steps with the least total time, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from npusim.compiler.schedule.cascade import Cascade


class CascadeCuts:
    """The best partition with the cascades added so far.

    Cascades are added from the last group to the first, so that the best time of all later groups is known meanwhile.
    """

    def __init__(self, costs: Sequence[int]) -> None:
        """``costs``: picoseconds of each group alone."""
        self._costs = costs
        self._from: dict[int, list[tuple[int, int, Cascade]]] = {}
        self._required: dict[int, tuple[int, int, Cascade]] = {}
        self._known: dict[tuple[int, int], int] = {}

    def add(self, first: int, last: int, cost: int, cascade: Cascade) -> None:
        """Add a cascade of groups ``first`` to ``last`` that takes ``cost`` picoseconds. ``first`` must not
        increase."""
        self._from.setdefault(first, []).append((last, cost, cascade))
        self._known[first, last] = min(cost, self.least(first, last))

    def require(self, first: int, last: int, cost: int, cascade: Cascade) -> None:
        """Always use this cascade, whatever its cost. No added cascade may overlap it."""
        self._required[first] = last, cost, cascade

    def least(self, first: int, last: int) -> int:
        """The least picoseconds of groups ``first`` to ``last`` over all partitions."""
        if first > last:
            return 0
        if (first, last) not in self._known:
            options = [self._costs[first] + self.least(first + 1, last)]
            options += [cost + self.least(end + 1, last) for end, cost, _ in self._from.get(first, ()) if end <= last]
            self._known[first, last] = min(options)
        return self._known[first, last]

    def best(self) -> list[Cascade]:
        """The cascades of the best partition of all groups, in order."""
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
