"""Spans into one row for each operator: when, where, how much, and what held it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npusim.hw.config import Config
from npusim.program import OpEntry
from npusim.timeline import Timeline
from npusim.units import ps_to_cycles


@dataclass(frozen=True, slots=True)
class OpReport:
    """One operator (fused ones are one) over its whole life on the device.

    ``unit``: the one that it kept busy longest; ``cycles``: of the device's clock, from ``start_ps`` to ``end_ps``;
    ``bytes``: what DMA wrote, ``dram_bytes``: what passed the pins of the DRAM for it; ``bound``: ``compute`` or
    ``memory`` when such units were busy for more than half of that time, else ``latency``.
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
    """The rows in the order of the operator table; operators without instructions of their own have none."""
    totals: dict[int, _Total] = {}
    for span in timeline.spans:
        if "." not in span.unit:
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
        name, kind, duration = entries[op].name, entries[op].kind, total.end - total.start
        busiest, unit = min((-spent, unit) for unit, spent in total.busy.items())
        bound = "latency"
        if 2 * -busiest > duration:
            bound = "memory" if ".dma" in unit else "compute"
        cycles = ps_to_cycles(duration, config.clock_hz)
        rows.append(
            OpReport(
                name, kind, unit, total.start, total.end, cycles, total.macs, total.bytes, bound, total.dram_bytes
            )
        )  # fmt: skip
    return rows
