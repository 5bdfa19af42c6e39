"""Which of many designs are beaten by no other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_BLOCK = 1024


def undominated(costs: Sequence[Sequence[float]]) -> list[int]:
    """Indices, ascending, of the points on the front; see :func:`on_front`. ``costs``: one row a point."""
    return np.flatnonzero(on_front(np.array(costs, np.float64))).tolist() if costs else []


def on_front(points: Floats) -> Mask:
    """Which of ``points`` [n, costs] no other beats: less or equal in every cost, less in one. Equal ones are all kept;
    those with a nan never are."""
    # In lexical order nothing is dominated by what comes after it, so that the front is grown in one pass.
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
    """Which of ``points`` one of ``by`` dominates."""
    beaten = np.zeros(len(points), np.bool_)
    for start in range(0, len(by), _BLOCK):
        part = by[start : start + _BLOCK]
        no_worse = np.all(part[None] <= points[:, None], axis=2)
        better = np.any(part[None] < points[:, None], axis=2)
        beaten |= np.any(no_worse & better, axis=1)
    return beaten
