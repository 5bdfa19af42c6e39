"""The occupancy of each memory over time, downsampled to the size of a page; peaks are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npusim.occupancy import KINDS, Occupancy

MOST_STEPS = 8_000
"""Limit for a page, over all memories."""

Step = tuple[int, dict[str, int]]


def held(memories: Sequence[Occupancy], most: int = MOST_STEPS) -> list[dict[str, Any]]:
    """Per memory: name, capacity, peak, kinds; and for each step the time since the previous one and the bytes of each
    kind."""
    share = most // max(1, len(memories))
    return [_columns(each, thinned(each.steps, share)) for each in memories]


def thinned(steps: Sequence[Step], most: int) -> list[Step]:
    """At most ``most + 2`` steps: the fullest step of each interval of time, and the first and last."""
    if len(steps) <= most:
        return list(steps)
    begin, end = steps[0][0], steps[-1][0]
    fullest: dict[int, Step] = {}
    for step in steps:
        part = (step[0] - begin) * most // max(1, end - begin + 1)
        if part not in fullest or sum(step[1].values()) > sum(fullest[part][1].values()):
            fullest[part] = step
    kept = dict((*fullest.values(), steps[0], steps[-1]))
    return sorted(kept.items())


def _columns(memory: Occupancy, steps: Sequence[Step]) -> dict[str, Any]:
    kinds = [kind for kind in KINDS if any(found.get(kind) for _, found in steps)]
    times = [time for time, _ in steps]
    return {
        "memory": memory.memory,
        "capacity": memory.capacity_bytes,
        "peak": memory.peak_bytes,
        "peak_ps": memory.peak_ps,
        "kinds": [{"name": kind, "colour": KINDS.index(kind)} for kind in kinds],
        "time": [time - before for before, time in zip([0, *times], times, strict=False)],
        "bytes": [[found.get(kind, 0) for _, found in steps] for kind in kinds],
        "all": len(steps) == len(memory.steps),
    }
