"""The timeline of a job: spans, counters, a fault, and a digest that is the same on every machine."""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, TypeVar

NO_OP = 0xFFFF_FFFF
"""``Span.op`` of an instruction without an operator."""


class Span(NamedTuple):
    """One instruction on one unit, in simulated picoseconds since the device took the job.

    ``unit``: e.g. ``core0.matrix``, ``core0.dma1``, or ``sequencer`` while it moves a context. ``op``: index into the
    operator table of the program, NO_OP for none. ``bound``: ``compute``, ``memory`` or ``latency``, the largest part
    of the duration. ``bytes``: moved by the unit. ``dram_bytes``: transferred over the DRAM pins, twice within DRAM,
    not for padding.
    """

    unit: str
    start_ps: int
    end_ps: int
    op: int
    kind: str
    macs: int
    bytes: int
    bound: str
    dram_bytes: int = 0


ORDER = itemgetter(2, 0, 1)
"""Sort key of spans: end, unit, start."""


@dataclass(slots=True)
class UnitCounters:
    """The time of one unit; ``busy_ps + idle_ps + sum(stalls.values())`` is the duration of the job.

    ``stalls``: picoseconds by what the instruction at the head waited for (``core0.dma0``, ``dram``, ``sram``). Idle:
    the queue is empty.
    """

    busy_ps: int = 0
    idle_ps: int = 0
    stalls: dict[str, int] = field(default_factory=dict)
    instructions: int = 0
    macs: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Counters:
    """Totals of one job: per unit and per memory, in picoseconds and bytes."""

    duration_ps: int = 0
    units: dict[str, UnitCounters] = field(default_factory=dict)
    dram_read_bytes: int = 0
    dram_write_bytes: int = 0
    dram_busy_ps: int = 0
    instructions: int = 0


class FaultCode(enum.IntEnum):
    """Values of the register FAULT_CODE and of completion records."""

    NONE = 0
    RING = 1  # a ring entry or ring register is invalid
    PROGRAM = 2  # the instruction stream cannot be decoded, or violates a rule of isa.verify
    ADDRESS = 3  # an address outside the memory of the machine
    DATA = 4  # invalid values in the data, such as an index outside its axis
    DEADLOCK = 5  # deadlock: every unit waits for another
    DMA = 6  # a DMA transfer failed on the bus
    INTERNAL = 7  # the simulator itself failed
    HOST = 8  # host memory cannot be accessed
    ECC = 9  # a memory has an uncorrectable error


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """``address``: device address of the offending access or command; 0 if there is none."""

    code: FaultCode
    address: int
    explanation: str


class Injected(NamedTuple):
    """A fault of a script that had an effect: the time since power-on, its position in the script, its text."""

    at_ps: int
    fault: str
    what: str


@dataclass(slots=True)
class Timeline:
    """The history of one job. ``spans`` are in order of (end, unit, start).

    ``started_ps``: when the device took the job, since power-on; ``time_ps``, ``cycles`` of the device clock and all
    times in the spans count from there until the completion record is written. ``suspended_ps``: the part in which the
    job was preempted, including save and restore of its context. ``residents_held``: the pinned weights of its program
    were in SRAM and not loaded. ``fault``: None if it succeeded. ``error``: the exception of the simulator, for
    FaultCode.INTERNAL. ``injected``: faults of a script that had an effect meanwhile.
    """

    spans: list[Span] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    cycles: int = 0
    time_ps: int = 0
    started_ps: int = 0
    suspended_ps: int = 0
    preemptions: int = 0
    aborted: bool = False
    residents_held: bool = False
    fault: DeviceFault | None = None
    error: BaseException | None = None
    injected: tuple[Injected, ...] = ()

    def again(self, started_ps: int) -> Timeline:
        """A copy for a job that the device took at another time; mutable parts are not shared."""
        counters = self.counters
        units = {
            name: UnitCounters(unit.busy_ps, unit.idle_ps, unit.stalls.copy(), unit.instructions, unit.macs, unit.bytes)
            for name, unit in counters.units.items()
        }
        copied = Counters(
            counters.duration_ps,
            units,
            counters.dram_read_bytes,
            counters.dram_write_bytes,
            counters.dram_busy_ps,
            counters.instructions,
        )
        return Timeline(self.spans[:], copied, self.cycles, self.time_ps, started_ps)

    def digest(self) -> str:
        """SHA-256 over every field of every span, in hex."""
        return digest(self.spans)

    def critical_path(self) -> list[PathSegment]:
        """The critical path of the job: consecutive segments from 0 to ``time_ps``.

        It is found from the end: the last span to end, then the last to end before that one began, and so on; gaps
        between them are overhead that no unit shows. If several ended at that time, the same unit comes first, which
        then has not waited; then the longest span; then by name.
        """
        return _critical_path(self)

    def diff(self, other: Timeline) -> Difference:
        """The difference of two timelines: ``other - self``, by operator, by unit and by cause.

        Times are those of the critical path, so each table adds up to ``total_ps``.
        """
        pairs = zip([*self.spans, None], [*other.spans, None], strict=False)
        first = next(((mine, theirs) for mine, theirs in pairs if mine != theirs), None)
        ops: Counter[int] = Counter()
        units: Counter[str] = Counter()
        causes: Counter[str] = Counter()
        for sign, path in ((-1, self.critical_path()), (1, other.critical_path())):
            for stretch in path:
                spent = sign * (stretch.end_ps - stretch.start_ps)
                ops[stretch.op] += spent
                units[stretch.unit] += spent
                causes[stretch.cause] += spent
        total = other.time_ps - self.time_ps
        return Difference(total, first, _differing(ops), _differing(units), _differing(causes))


CAUSES = {
    "compute": "computing",
    "sram": "passing SRAM",
    "setup": "set-up of computing units",
    "dram": "transfers to and from DRAM",
    "latency": "set-up and latency of transfers",
    "fetch": "fetching the first instructions",
    "dispatch": "waiting for the sequencer or for a queue",
    "completion": "the completion record and the interrupt",
    "context": "saving and restoring for other jobs",
    "parked": "parked for other jobs",
    "host": "decisions of the host, and its transfers between programs",
}
"""Causes of time on the critical path, with their meaning."""


class PathSegment(NamedTuple):
    """A segment of the critical path: operator ``op`` (NO_OP: none) on ``unit``, because of ``cause``. ``span``: its
    index in ``Timeline.spans``; -1 between spans."""

    op: int
    unit: str
    cause: str
    start_ps: int
    end_ps: int
    span: int = -1


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two timelines in ps, without equal parts.

    ``first``: the first spans that differ, in the order of their ends, None for a timeline that has ended; None if the
    timelines are equal. The values of ``ops``, ``units`` and ``causes`` each add up to ``total_ps``.
    """

    total_ps: int
    first: tuple[Span | None, Span | None] | None
    ops: dict[int, int]
    units: dict[str, int]
    causes: dict[str, int]


HOST = "host"
"""The unit of decisions between the programs of a plan, and of transfers and submissions for them."""
SEQUENCER = "sequencer"
"""The unit of time that no other unit shows: fetch, dispatch, end of a job, contexts."""

_K = TypeVar("_K")


def _differing(sums: Counter[_K]) -> dict[_K, int]:
    return {name: value for name, value in sums.items() if value}


def _critical_path(timeline: Timeline) -> list[PathSegment]:
    # Spans without duration are never waited for; without them each step of the search is earlier.
    spans = timeline.spans
    numbers = [number for number, span in enumerate(spans) if span.end_ps > span.start_ps]
    numbers.sort(key=lambda number: spans[number].end_ps)
    ends = [spans[number].end_ps for number in numbers]
    path: list[PathSegment] = []
    until = timeline.time_ps
    after: Span | None = None
    while until:
        last = bisect_right(ends, until) - 1
        if last < 0:
            path.append(PathSegment(NO_OP, SEQUENCER, "fetch", 0, until))
            break
        end = ends[last]
        number = numbers[last]
        if last and ends[last - 1] == end:
            number = _waited_for(spans, numbers[bisect_left(ends, end) : last + 1], after)
        chosen = spans[number]
        if end < until:
            path.append(_between(chosen, after, end, until))
        path.append(PathSegment(chosen.op, chosen.unit, _cause(chosen), chosen.start_ps, end, number))
        until, after = chosen.start_ps, chosen
    return path[::-1]


def _waited_for(spans: Sequence[Span], together: Iterable[int], after: Span | None) -> int:
    """Among spans that end together, the number of the one that the next one waited for."""
    own = after.unit if after is not None else ""
    return min(together, key=lambda number: (spans[number][0] != own, spans[number][1], spans[number][0]))


def _between(before: Span, after: Span | None, start: int, end: int) -> PathSegment:
    """The cause of time in which nothing runs that the next span waits for."""
    if after is None:
        return PathSegment(NO_OP, SEQUENCER, "completion", start, end)
    if before.unit == SEQUENCER and after.unit == SEQUENCER:
        return PathSegment(NO_OP, SEQUENCER, "parked", start, end)
    return PathSegment(after.op, SEQUENCER, "dispatch", start, end)


def _cause(span: Span) -> str:
    if span.unit == SEQUENCER:
        return "context"
    if span.unit == HOST:
        return "host"
    if ".dma" in span.unit:
        return "latency" if span.bound == "latency" else "dram" if span.dram_bytes else "sram"
    return {"compute": "compute", "memory": "sram"}.get(span.bound, "setup")


def digest(spans: Iterable[Span]) -> str:
    """SHA-256 of spans, independent of process, platform and hash seed."""
    state = hashlib.sha256()
    rows = iter(spans)
    # In batches, because single calls would take longer than the hash.
    while some := list(islice(rows, _AT_ONCE)):
        state.update("".join([_ROW % span for span in some]).encode())
    return state.hexdigest()


_AT_ONCE = 1 << 12
_ROW = "\x1f".join(["%s"] * len(Span._fields)) + "\n"
