"""The activity of every unit over time as bars: one per instruction, or per part of a layer if there are too many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from npusim.timeline import PathSegment, Span

MOST_BARS = 20_000
"""Limit of the bars of a page. At about 20 bytes each, they dominate its size."""
MOST_STRETCHES = 2_000
"""Limit of the bars of the critical path."""


class LaneBar(NamedTuple):
    """Instructions of one layer on one unit. ``busy_ps``: time in execution; for one instruction, the length of the
    bar."""

    start_ps: int
    end_ps: int
    busy_ps: int
    layer: int
    instructions: int


def lanes(spans: Sequence[Span], layer_of: Mapping[int, int], most: int = MOST_BARS) -> list[dict[str, Any]]:
    """A lane per unit: its name, and its bars in columns (``start``: difference to the previous bar).

    ``layer_of``: operator -> layer, -1 for none. If there are more instructions than ``most``, each layer on each unit
    gets the same maximum number of bars, so that short layers keep their details.
    """
    groups: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in spans:
        groups[span.unit, layer_of.get(span.op, -1)].append(span)
    share = fair_share([len(group) for group in groups.values()], most)
    bars: dict[str, list[LaneBar]] = defaultdict(list)
    for (unit, layer), group in groups.items():
        bars[unit] += _bars(group, layer, share)
    return [_columns(unit, sorted(bars[unit])) for unit in sorted(bars)]


def path_lane(path: Iterable[PathSegment], layer_of: Mapping[int, int], most: int = MOST_STRETCHES) -> dict[str, Any]:
    """The critical path as a lane. Consecutive intervals of one layer are one bar."""
    turns: list[PathSegment] = []
    for stretch in path:
        if turns and turns[-1].op == stretch.op:
            turns[-1] = turns[-1]._replace(end_ps=stretch.end_ps)
        else:
            turns.append(stretch)
    groups: dict[int, list[PathSegment]] = defaultdict(list)
    for turn in turns:
        groups[layer_of.get(turn.op, -1)].append(turn)
    share = fair_share([len(group) for group in groups.values()], most)
    return _columns("waited for", sorted(bar for layer, group in groups.items() for bar in _bars(group, layer, share)))


def fair_share(sizes: Sequence[int], most: int) -> int:
    """The largest limit, at least 1, such that the sizes, each capped at it, add up to at most ``most``."""
    low, high = 1, max(sizes, default=1)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in sizes) <= most:
            low = middle
        else:
            high = middle - 1
    return low


def _bars(group: Sequence[Span] | Sequence[PathSegment], layer: int, most: int) -> list[LaneBar]:
    if len(group) <= most:
        return [LaneBar(s.start_ps, s.end_ps, s.end_ps - s.start_ps, layer, 1) for s in group]
    begin, end = min(s.start_ps for s in group), max(s.end_ps for s in group)
    parts: dict[int, list[Span | PathSegment]] = defaultdict(list)
    for span in group:
        parts[(span.start_ps - begin) * most // max(1, end - begin)].append(span)
    return [
        LaneBar(
            min(s.start_ps for s in part),
            max(s.end_ps for s in part),
            sum(s.end_ps - s.start_ps for s in part),
            layer,
            len(part),
        )
        for part in parts.values()
    ]


def _columns(unit: str, bars: Sequence[LaneBar]) -> dict[str, Any]:
    starts = [bar.start_ps for bar in bars]
    return {
        "unit": unit,
        "start": [start - before for before, start in zip([0, *starts], starts, strict=False)],
        "length": [bar.end_ps - bar.start_ps for bar in bars],
        "busy": [bar.busy_ps for bar in bars],
        "layer": [bar.layer for bar in bars],
        "count": [bar.instructions for bar in bars],
    }
