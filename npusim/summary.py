"""Reports per operator from the spans of a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npusim.bottleneck import Bottleneck, Parts, summed
from npusim.hw.config import Config
from npusim.program import OpEntry
from npusim.timeline import HOST, Timeline
from npusim.units import ps_to_cycles


@dataclass(frozen=True, slots=True)
class OpReport:
    """One operator (possibly fused) over its time on the device.

    ``unit``: the unit with the most busy time. ``cycles``: of the device clock, from ``start_ps`` to ``end_ps``.
    ``bytes``: written by DMA. ``dram_bytes``: transferred over the DRAM pins. ``bound``: ``compute`` or ``memory`` if
    such units were busy for more than half of that time, else ``latency``. ``result``: the type of its result, see
    :class:`npusim.program.OpEntry`.
    """

    name: str
    kind: str
    unit: str
    start_ps: int
    end_ps: int
    cycles: int
    macs: int
    bytes: int
    bound: str
    dram_bytes: int = 0
    result: str = ""

    def to_json_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Total:
    start: int
    end: int
    macs: int
    bytes: int
    dram_bytes: int
    busy: dict[str, int]


def summarize(timeline: Timeline, entries: Sequence[OpEntry], config: Config) -> list[OpReport]:
    """The rows in the order of the operator table, without operators that have no instructions."""
    totals: dict[int, _Total] = {}
    for span in timeline.spans:
        if "." not in span.unit and span.unit != HOST:
            continue
        total = totals.get(span.op)
        if total is None:
            total = totals[span.op] = _Total(span.start_ps, span.end_ps, 0, 0, 0, {})
        total.start, total.end = min(total.start, span.start_ps), max(total.end, span.end_ps)
        total.macs += span.macs
        if ".dma" in span.unit:
            total.bytes += span.bytes
            total.dram_bytes += span.dram_bytes
        total.busy[span.unit] = total.busy.get(span.unit, 0) + span.end_ps - span.start_ps
    rows = []
    for op, total in sorted(totals.items()):
        if op >= len(entries):
            continue
        entry, duration = entries[op], total.end - total.start
        busiest, unit = min((-spent, unit) for unit, spent in total.busy.items())
        bound = "latency"
        if 2 * -busiest > duration:
            bound = "memory" if ".dma" in unit else "compute"
        cycles = ps_to_cycles(duration, config.clock_hz)
        row = OpReport(
            entry.name,
            entry.kind,
            unit,
            total.start,
            total.end,
            cycles,
            total.macs,
            total.bytes,
            bound,
            total.dram_bytes,
            entry.result,
            )  # fmt: skip
        rows.append(row)
    return rows


def critical_path(found: Bottleneck, entries: Sequence[OpEntry]) -> list[dict[str, Any]]:
    """The critical path by operator, as JSON values, in the order of their first appearance.

    ``members``: model operators in it. ``parts``: time of each unit on the path, with its cause. ``resources``: the
    same time by what it waited for. The times add up to the duration of the timeline. Time of no operator has an empty
    name.
    """
    rows: dict[int, dict[str, Any]] = {}
    parts: dict[int, dict[tuple[str, str], int]] = {}
    waited: dict[int, list[Parts]] = {}
    for stretch, by_resource in found.path:
        waited.setdefault(stretch.op, []).append(by_resource)
        if stretch.op not in rows:
            entry = entries[stretch.op] if stretch.op < len(entries) else OpEntry("", "")
            members = list(entry.members) or [entry.name]
            rows[stretch.op] = {
                "name": entry.name,
                "kind": entry.kind,
                "members": members,
                "since_ps": stretch.start_ps,
                "time_ps": 0,
            }
            parts[stretch.op] = {}
        spent, key = stretch.end_ps - stretch.start_ps, (stretch.unit, stretch.cause)
        rows[stretch.op]["time_ps"] += spent
        parts[stretch.op][key] = parts[stretch.op].get(key, 0) + spent
    for op, row in rows.items():
        row["parts"] = [
            {"unit": unit, "cause": cause, "time_ps": spent} for (unit, cause), spent in sorted(parts[op].items())
        ]
        row["resources"] = summed(waited[op])
    return list(rows.values())
