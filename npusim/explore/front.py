"""Pareto fronts: designs that are not dominated. All objectives are minimised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npusim.report.html.pareto import Floats, Mask, on_front

Places = npt.NDArray[np.intp]
_BLOCK = 1024


def non_dominated(points: Floats, margin: float = 0.0) -> Mask:
    """The mask of ``points`` [n, objectives] that are not dominated. Of equal points, all are kept. Points with a nan
    are never on the front.

    ``margin``: a point is only dominated by another that is better by this fraction in every objective. Use it if
    figures have errors of that size.
    """
    found: Mask = np.logical_not(np.any(np.isnan(points), axis=1))
    if not found.any():
        return found
    # Only points that dominate without a margin can dominate with one, so comparing with the small front is enough.
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
    """Indices of ``wanted`` points: the front, then the front of the rest, and so on. From the last front, points that
    are far apart, sorted by the first objective."""
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
    """Indices of ``wanted`` points of a front that are far apart, beginning with its ends."""
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
