"""Searches: generators that yield rounds of designs, as numbers, and receive their rows.

The next round depends only on the space, the seed and the rows, not on the number of workers or on stored rows. A
resumed study therefore requests the same designs again, and most of their rows are already stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from npusim.explore.figures import StudyRow

if TYPE_CHECKING:
    from npusim.explore.space import Space

Rounds = Generator[list[int], Mapping[int, StudyRow], None]
"""Yields designs and receives their rows. Excluded designs have none."""
ROUND = 256
"""Designs per round of the exhaustive search."""


class DesignScreen(Protocol):
    """Reports properties of designs that need no simulation."""

    def allowed(self, numbers: Sequence[int]) -> list[int]:
        """The designs that can be built and violate no constraint that needs no run."""


def exhaustive(space: Space, screen: DesignScreen, budget: int) -> Rounds:
    """All designs by number, at most ``budget``."""
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
    """The designs that differ on one axis: by one position if the axis is ordered, otherwise by any."""
    places = space.places(number)
    found = []
    for axis, (place, radix, ordered) in enumerate(zip(places, space.radices, space.ordered, strict=True)):
        others = (place - 1, place + 1) if ordered else range(radix)
        for other in others:
            if 0 <= other < radix and other != place:
                found.append(space.number((*places[:axis], other, *places[axis + 1 :])))
    return found
