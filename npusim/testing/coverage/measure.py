"""Measured coverage as text and JSON, merged from several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npusim.testing.coverage.universe import GROUPS, CoveragePoint, universe

FORMAT = 1
_MOST = 9
"""Limit of the missing items listed per line."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The number of hits of each point. Points that this version does not know are not included."""

    counts: Mapping[CoveragePoint, int]

    @property
    def missing(self) -> list[CoveragePoint]:
        """The points that were not covered."""
        return [point for point in universe() if not self.counts.get(point)]

    @property
    def percent(self) -> float:
        """The percentage of all points that were covered."""
        return 100 * (1 - len(self.missing) / len(universe()))

    def group(self, name: str) -> tuple[int, int]:
        """(covered points, all points) of a group."""
        points = [point for point in universe() if point.group == name]
        return sum(1 for point in points if self.counts.get(point)), len(points)

    def subjects(self, name: str) -> Iterator[tuple[str, int, list[str], list[str]]]:
        """For each subject of a group: its name, the number of hits, the covered and the missing points."""
        found: dict[str, tuple[list[str], list[str]]] = {}
        times: dict[str, int] = {}
        for point in universe():
            if point.group == name:
                count = self.counts.get(point, 0)
                found.setdefault(point.subject, ([], []))[not count].append(point.item)
                times[point.subject] = max(times.get(point.subject, 0), count)
        for subject, (done, missing) in found.items():
            yield subject, times[subject], done, missing

    def to_text(self) -> list[str]:
        """Lines of text: a total per group, and the missing points of each subject."""
        lines = []
        for name in GROUPS:
            done, total = self.group(name)
            lines.append(f"{name:<14}{done:>5} of {total:<5}{100 * done / total:6.1f} %")
            for subject, _, _, missing in self.subjects(name):
                if missing:
                    lines.append(f"    {subject}: not {_listed(missing)}")
        done, total = len(universe()) - len(self.missing), len(universe())
        lines.append(f"{'all':<14}{done:>5} of {total:<5}{self.percent:6.1f} %")
        return lines

    def to_json_dict(self) -> dict[str, Any]:
        """All points with their number of hits."""
        groups: dict[str, dict[str, dict[str, int]]] = {name: {} for name in GROUPS}
        for point in universe():
            groups[point.group].setdefault(point.subject, {})[point.item] = self.counts.get(point, 0)
        return {"format": FORMAT, "percent": round(self.percent, 2), "groups": groups}


def _listed(missing: Sequence[str]) -> str:
    """The missing points in one line: ``dtype int8, uint8; log set``. A command that was never issued lacks all
    points."""
    if "issued" in missing:
        return "issued"
    of_field: dict[str, list[str]] = {}
    for item in missing[:_MOST]:
        field, _, value = item.partition(" ")
        of_field.setdefault(field, []).append(value)
    more = f"; and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
    return "; ".join(f"{field} {', '.join(values)}".rstrip() for field, values in of_field.items()) + more


def flat(counts: Mapping[CoveragePoint, int]) -> list[list[Any]]:
    """The counts as JSON values, to send to another process."""
    return [[*point, count] for point, count in counts.items()]


def added(several: Sequence[Sequence[Sequence[Any]]]) -> Measured:
    """The sum of the coverage of several processes."""
    known, total = set(universe()), dict[CoveragePoint, int]()
    for counts in several:
        for group, subject, item, count in counts:
            point = CoveragePoint(group, subject, item)
            if point in known:
                total[point] = total.get(point, 0) + int(count)
    return Measured(total)
