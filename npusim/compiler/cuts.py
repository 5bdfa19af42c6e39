"""Where groups are cut into stretches: those of least time together, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from npusim.compiler.stripes import Segment


class Cuts:
    """The best cuts of what is known so far. Segments are added from the last group on, so that it can be asked
    meanwhile what groups behind take, however they are cut."""

    def __init__(self, costs: Sequence[int]) -> None:
        """``costs``: picoseconds of each group alone."""
        self._costs = costs
        self._from: dict[int, list[tuple[int, int, Segment]]] = {}
        self._known: dict[tuple[int, int], int] = {}

    def add(self, first: int, last: int, cost: int, segment: Segment) -> None:
        """Add a segment of some groups that takes so many picoseconds; none from a later group comes after it."""
        self._from.setdefault(first, []).append((last, cost, segment))
        self._known[first, last] = min(cost, self.least(first, last))

    def least(self, first: int, last: int) -> int:
        """Picoseconds of some groups, however they are cut."""
        if first > last:
            return 0
        if (first, last) not in self._known:
            options = [self._costs[first] + self.least(first + 1, last)]
            options += [cost + self.least(end + 1, last) for end, cost, _ in self._from.get(first, ()) if end <= last]
            self._known[first, last] = min(options)
        return self._known[first, last]

    def best(self) -> list[Segment]:
        """The segments of the best cuts of all groups, in order."""
        count = len(self._costs)
        behind: list[tuple[int, int, Segment | None]] = [(0, count, None)] * (count + 1)
        for first in reversed(range(count)):
            options: list[tuple[int, int, Segment | None]] = [(self._costs[first] + behind[first + 1][0], first, None)]
            options += [(cost + behind[end + 1][0], end, segment) for end, cost, segment in self._from.get(first, ())]
            behind[first] = min(options, key=itemgetter(0))
        chosen, at = [], 0
        while at < count:
            _, end, taken = behind[at]
            if taken is not None:
                chosen.append(taken)
            at = end + 1
        return chosen
