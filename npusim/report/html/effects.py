"""Main effects: the mean of each metric at each value of a knob, over a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from npusim.report.html.columns import Levels
from npusim.report.html.page import label

MOST_LEVELS = 12
"""A knob with more values is shown in groups of neighbouring values, because a mean over one or two designs means
little."""
GROUPS = 8


def main_effects(
    knobs: Mapping[str, Levels],
    figures: Mapping[str, Sequence[float | None]],
    tiers: Mapping[str, Sequence[str]],
    feasible: Sequence[bool],
) -> list[dict[str, Any]]:
    """For each metric: the mean and the number of designs at each value of each knob with at least two values, and the
    swing, which is the range of the means divided by the overall mean. Knobs are sorted by swing.

    Only feasible designs of the most frequent tier count: mixed means would show the tier, not the effect of the knob.
    """
    found = []
    for metric, values in figures.items():
        usable = [n for n, value in enumerate(values) if value is not None and feasible[n]]
        counts = Counter(tiers[metric][n] for n in usable)
        tier = min(counts, key=lambda each: (-counts[each], each), default="")
        chosen = [n for n in usable if tiers[metric][n] == tier]
        overall = sum(float(values[n] or 0) for n in chosen) / len(chosen) if chosen else 0.0
        rows = [row for name, at in knobs.items() if (row := _effect(name, at, values, chosen, overall))]
        rows.sort(key=lambda row: (-row["swing"], row["knob"]))
        found.append(
            {"metric": label(metric), "tier": label(tier), "count": len(chosen), "mean": overall, "knobs": rows}
        )
    return found


def _effect(
    name: str, knob: Levels, values: Sequence[float | None], chosen: Sequence[int], overall: float
) -> dict[str, Any] | None:
    by_level: dict[int, list[float]] = {}
    for number in chosen:
        value = values[number]
        if knob.rows[number] >= 0 and value is not None:
            by_level.setdefault(knob.rows[number], []).append(float(value))
    if len(by_level) < 2:
        return None
    means: list[dict[str, Any]] = [
        {
            "value": knob.shown[group[0]] if len(group) == 1 else f"{knob.shown[group[0]]} .. {knob.shown[group[-1]]}",
            "mean": float(f"{sum(sum(by_level[at]) for at in group) / sum(len(by_level[at]) for at in group):.9g}"),
            "count": sum(len(by_level[at]) for at in group),
        }
        for group in _grouped(sorted(by_level))
    ]
    spread = max(row["mean"] for row in means) - min(row["mean"] for row in means)
    swing = float(f"{spread / abs(overall):.6g}") if overall else 0.0
    return {"knob": label(name), "swing": swing, "means": means}


def _grouped(found: Sequence[int]) -> list[list[int]]:
    if len(found) <= MOST_LEVELS:
        return [[at] for at in found]
    edges = [len(found) * number // GROUPS for number in range(GROUPS + 1)]
    return [list(found[a:b]) for a, b in pairwise(edges)]
