"""The Pareto front of many designs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_BLOCK = 1024


def undominated(costs: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points on the Pareto front, ascending. ``costs``: [points, objectives], all to be minimised."""
    return np.flatnonzero(on_front(np.array(costs, np.float64))).tolist() if costs else []


def on_front(points: Floats) -> Mask:
    """Mask of the points on the Pareto front. ``points``: [n, objectives], all to be minimised.

    Equal points are all on the front; points with a nan are not.
    """
    # In lexical order no point is dominated by a later one, so one pass finds the front.
    places = np.flatnonzero(~np.any(np.isnan(points), axis=1))
    order = places[np.lexsort(points[places].T[::-1])]
    kept = np.empty((0, points.shape[1]))
    found = np.zeros(len(points), np.bool_)
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        rest = block[~_dominated(points[block], kept)]
        inside = rest[~_dominated(points[rest], points[rest])]
        found[inside] = True
        kept = np.concatenate([kept, points[inside]])
    return found


def _dominated(points: Floats, by: Floats) -> Mask:
    """Mask of ``points`` dominated by a point of ``by``: not larger anywhere, smaller somewhere."""
    dominated = np.zeros(len(points), np.bool_)
    for start in range(0, len(by), _BLOCK):
        part = by[start : start + _BLOCK]
        no_worse = np.all(part[None] <= points[:, None], axis=2)
        better = np.any(part[None] < points[:, None], axis=2)
        dominated |= np.any(no_worse & better, axis=1)
    return dominated
