"""Which of many designs are beaten by no other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def undominated(costs: Sequence[Sequence[float]]) -> list[int]:
    """Indices, ascending, of the points that no other point beats: less or equal in every cost, less in one.

    ``costs``: finite numbers, one row a point. Equal points are all kept.
    """
    if not costs:
        return []
    points = np.array(costs, np.float64)
    # In this order only an earlier point can beat a later one, so one pass over those kept so far suffices.
    order = np.lexsort(points.T[::-1])
    kept: list[int] = []
    front = np.empty_like(points)
    for number in order:
        point = points[number]
        rivals = front[: len(kept)]
        beaten = np.all(rivals <= point, axis=1) & np.any(rivals < point, axis=1)
        if not beaten.any():
            front[len(kept)] = point
            kept.append(int(number))
    return sorted(kept)
