"""Which designs no other is better than: better in one objective, and worse in none. All are to be small."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.report.html.pareto import Floats, Mask, on_front

Places = npt.NDArray[np.intp]
_BLOCK = 1024


def non_dominated(points: Floats, margin: float = 0.0) -> Mask:
    """Which of ``points`` [n, objectives] no other dominates; of equal ones all. Those with a nan are never.

    ``margin``: one is dominated only by another that is better by this part in every objective, as where figures may
    be wrong by so much.
    """
    found: Mask = np.logical_not(np.any(np.isnan(points), axis=1))
    if not found.any():
        return found
    # Only those that dominate by the plain rule can do so by a margin: a small front is compared with all.
    front = on_front(points)
    if margin <= 0:
        return front
    best = points[front]
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        beaten = np.any(np.all((best + margin * np.abs(best))[None] < block[:, None], axis=2), axis=1)
        found[start : start + _BLOCK] &= np.logical_not(beaten)
    return found


def layers(points: Floats, wanted: int, margin: float = 0.0) -> list[int]:
    """Places of ``wanted`` points: the front, then the front of the rest, and so on; of the last one those that lie
    far from each other, by the first objective."""
    left = np.flatnonzero(~np.isnan(points).any(axis=1))
    found: list[int] = []
    while len(found) < wanted and len(left):
        mask = non_dominated(points[left], margin)
        layer = left[mask]
        room = wanted - len(found)
        if len(layer) > room:
            layer = layer[spread(points[layer], room)]
        found += layer.tolist()
        left = left[~mask]
    return found


def spread(points: Floats, wanted: int) -> Places:
    """Places of ``wanted`` points of a front that are far from each other, its ends first among them."""
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - low) / np.where(high > low, high - low, 1)
    chosen = list(dict.fromkeys(int(place) for place in scaled.argmin(axis=0)))[:wanted]
    distance = np.full(len(points), np.inf)
    for place in chosen:
        distance = np.minimum(distance, np.abs(scaled - scaled[place]).sum(axis=1))
    while len(chosen) < min(wanted, len(points)):
        distance[chosen] = -1
        place = int(distance.argmax())
        chosen.append(place)
        distance = np.minimum(distance, np.abs(scaled - scaled[place]).sum(axis=1))
    return np.array(chosen, np.intp)
