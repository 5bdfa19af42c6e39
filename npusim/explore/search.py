"""Searches: generators that yield rounds of designs, as numbers, and receive their rows.

The next round depends only on the space, the seed and the rows: not on the number of workers, nor on rows that existed
before. So a resumed study asks for the same designs again and has most of their rows already.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from npusim.explore.figures import StudyRow

if TYPE_CHECKING:
    from npusim.explore.space import Space

Rounds = Generator[list[int], Mapping[int, StudyRow], None]
"""Yields designs, receives their rows; those that are excluded beforehand have none."""
ROUND = 256
"""Designs of a round of the exhaustive search."""


class DesignScreen(Protocol):
    """Reports properties of designs that need no simulation."""

    def allowed(self, numbers: Sequence[int]) -> list[int]:
        """Those that can be built and break no constraint that needs no run."""


def exhaustive(space: Space, screen: DesignScreen, budget: int) -> Rounds:
    """All designs by number, ``budget`` of them at most."""
    numbers: Iterator[int] = iter(range(space.size))
    while budget > 0:
        batch = list(itertools.islice(numbers, ROUND))
        if not batch:
            return
        wanted = screen.allowed(batch)[:budget]
        budget -= len(wanted)
        if wanted:
            yield wanted


def neighbours(space: Space, number: int) -> list[int]:
    """The designs that differ in one axis: by one place where values are near each other, else by any."""
    places = space.places(number)
    found = []
    for axis, (place, radix, ordered) in enumerate(zip(places, space.radices, space.ordered, strict=True)):
        others = (place - 1, place + 1) if ordered else range(radix)
        for other in others:
            if 0 <= other < radix and other != place:
                found.append(space.number((*places[:axis], other, *places[axis + 1 :])))
    return found
