"""The contents of the memories during a job, from the memory map of its program and the times of its operators."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from npusim.hw.config import Config
from npusim.program import CONSTANTS, EVERY, FIRST_IO, PLACE_KINDS, Place, Program
from npusim.timeline import Timeline

KINDS = (*PLACE_KINDS, "constants", "inputs and outputs")
"""What occupies memory; the last two are in DRAM during the whole job."""


class Stay(NamedTuple):
    """A memory range with its time: picoseconds since the device took the job."""

    place: Place
    start_ps: int
    end_ps: int


@dataclass(slots=True)
class Occupancy:
    """One memory over time. ``steps``: (ps, bytes by kind from then on) at each change.

    ``memory``: ``core0.sram``, ``core0.accumulators``, ``l2`` or ``dram``. ``peak_bytes`` never exceeds
    ``capacity_bytes``: bytes that are reused while their old operator is still running are counted once.
    """

    memory: str
    capacity_bytes: int
    stays: list[Stay] = field(default_factory=list)
    steps: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    peak_ps: int = 0
    at_peak: dict[str, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        """The highest total of bytes in use."""
        return sum(self.at_peak.values())

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "memory": self.memory,
            "capacity_bytes": self.capacity_bytes,
            "peak_bytes": self.peak_bytes,
            "peak_ps": self.peak_ps,
            "at_peak": self.at_peak,
            "steps": [{"start_ps": time, **held} for time, held in self.steps],
            "places": [
                {
                    "kind": place.kind,
                    "name": place.name,
                    "offset": place.offset,
                    "bytes": place.nbytes,
                    "start_ps": start,
                    "end_ps": end,
                }
                for place, start, end in self.stays
            ],
        }


def occupancy(program: Program, timeline: Timeline, config: Config) -> list[Occupancy]:
    """All memories that the program uses; none if it has no memory map (see ``Program.places``)."""
    if not program.places:
        return []
    times = _Times(timeline, len(program.ops))
    found: dict[str, Occupancy] = {}
    for place in program.places:
        for memory, capacity in _memories(place, times, config):
            if memory not in found:
                found[memory] = Occupancy(memory, capacity)
            found[memory].stays.append(Stay(place, times.starts[place.first], times.ends[place.last]))
    base = {
        "constants": program.region_bytes[CONSTANTS],
        "inputs and outputs": sum(program.region_bytes[FIRST_IO:]),
    }
    found.setdefault("dram", Occupancy("dram", config.dram.bytes))
    for memory, each in found.items():
        _sweep(each, base if memory == "dram" else {})
    return [found[memory] for memory in sorted(found)]


def _memories(place: Place, times: _Times, config: Config) -> Iterator[tuple[str, int]]:
    """The memories of a place and their sizes; none if no instruction used it."""
    ran = times.cores(place.first, place.last)
    if place.memory in ("dram", "l2"):
        if ran:
            yield place.memory, config.dram.bytes if place.memory == "dram" else config.l2.bytes if config.l2 else 0
        return
    matrix = config.matrix
    capacity = config.sram.bytes if place.memory == "sram" else matrix.accumulator_bytes if matrix else 0
    for core in sorted(ran) if place.core == EVERY else [place.core] if ran else []:
        yield f"core{core}.{place.memory}", capacity


class _Times:
    """Times of operators with instructions: ``starts[i]`` is the earliest start of operators from i on, ``ends[i]`` the
    latest end of operators up to i."""

    def __init__(self, timeline: Timeline, count: int) -> None:
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        self._cores: dict[int, set[int]] = {}
        for span in timeline.spans:
            core, dot, _ = span.unit.partition(".")
            if dot and span.op < count:
                starts[span.op] = min(starts.get(span.op, span.start_ps), span.start_ps)
                ends[span.op] = max(ends.get(span.op, 0), span.end_ps)
                self._cores.setdefault(span.op, set()).add(int(core.removeprefix("core")))
        self.starts, self.ends = [0] * count, [0] * count
        known = timeline.time_ps
        for op in reversed(range(count)):
            known = self.starts[op] = starts.get(op, known)
        known = 0
        for op in range(count):
            known = self.ends[op] = ends.get(op, known)

    def cores(self, first: int, last: int) -> set[int]:
        """Cores that executed instructions of the first or the last of these operators."""
        return self._cores.get(first, set()) | self._cores.get(last, set())


def _sweep(memory: Occupancy, base: dict[str, int]) -> None:
    """Compute steps and peak: starts and ends in order of time, ends first."""
    changes = []
    for number, (place, start, end) in enumerate(memory.stays):
        if start < end:
            changes += [(start, True, number, place), (end, False, number, place)]
    changes.sort(key=lambda change: change[:3])
    taken = _Bytes(memory.capacity_bytes)
    held = base
    memory.steps = [(0, held)] if base else []
    memory.at_peak = held
    for at, (time, begins, number, place) in enumerate(changes):
        (taken.take if begins else taken.give)(place.offset, place.offset + place.nbytes, number, place.kind)
        if at + 1 < len(changes) and changes[at + 1][0] == time:
            continue
        held = base | {kind: taken.totals[kind] for kind in KINDS if taken.totals[kind]}
        memory.steps.append((time, held))
        if sum(held.values()) > memory.peak_bytes:
            memory.at_peak, memory.peak_ps = held, time


class _Bytes:
    """Owners of bytes as sorted ranges without overlap. ``totals``: bytes by kind."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._runs: list[tuple[int, int, int, str]] = []  # (low, high, owner, kind)
        self.totals: Counter[str] = Counter()

    def take(self, low: int, high: int, owner: int, kind: str) -> None:
        """Assign bytes to an owner, replacing earlier ones."""
        high = min(high, self._capacity)
        if low < high:
            self._replace(low, high, [(low, high, owner, kind)], None)

    def give(self, low: int, high: int, owner: int, kind: str) -> None:
        """Free the bytes that the owner still has."""
        self._replace(low, min(high, self._capacity), [], owner)

    def _replace(self, low: int, high: int, new: Sequence[tuple[int, int, int, str]], only: int | None) -> None:
        first = bisect_left(self._runs, (low,))
        first -= first > 0 and self._runs[first - 1][1] > low
        last, kept = first, []
        while last < len(self._runs) and self._runs[last][0] < high:
            run = self._runs[last]
            start, end, owner, kind = run
            last += 1
            if only is not None and owner != only:
                kept.append(run)
                continue
            self.totals[kind] -= min(end, high) - max(start, low)
            kept += [(a, b, owner, kind) for a, b in ((start, min(end, low)), (max(start, high), end)) if a < b]
        for start, end, _, kind in new:
            self.totals[kind] += end - start
        self._runs[first:last] = sorted([*kept, *new])
