"""What happened in a job and when: spans, counters, a fault, and a digest that is the same on every machine."""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, TypeVar

NO_OP = 0xFFFF_FFFF
"""``Span.op`` of what no operator asked for."""


class Span(NamedTuple):
    """One instruction on one unit, in simulated picoseconds since the device took the job.

    ``unit``: e.g. ``core0.matrix``, ``core0.dma1``, or ``sequencer`` while it moves a context; ``op``: index into the
    program's operator table, NO_OP if it is for none;
    ``bound``: ``compute``, ``memory`` or ``latency``, the term that decided the duration; ``bytes``: what the unit
    moved; ``dram_bytes``: what passed the pins of the DRAM for it, twice within DRAM, and not for padding.
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
"""What spans are sorted by: end, unit, start."""


@dataclass(slots=True)
class UnitCounters:
    """Where one unit's time went; ``busy_ps + idle_ps + sum(stalls.values())`` is the job's duration.

    ``stalls`` maps what the head instruction waited for (``core0.dma0``, ``dram``, ``sram``) to picoseconds; idle is
    an empty queue.
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
    """The value of the register FAULT_CODE and of a completion record."""

    NONE = 0
    RING = 1  # a ring entry or ring register makes no sense
    PROGRAM = 2  # the instruction stream cannot be decoded, or breaks a rule of isa.verify
    ADDRESS = 3  # an address outside the machine's memory
    DATA = 4  # the data makes an instruction illegal, such as an index outside its axis
    DEADLOCK = 5  # no unit can go on: each waits for another
    DMA = 6  # a DMA transfer failed on the bus
    INTERNAL = 7  # the simulator itself failed
    HOST = 8  # host memory cannot be reached
    ECC = 9  # a memory has an error that its code cannot correct


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """``address``: the device address of the offending access or of the command; 0 where there is none."""

    code: FaultCode
    address: int
    explanation: str


class Injected(NamedTuple):
    """A fault of a script has been felt: when, since power-on; which one of which script; what it was."""

    at_ps: int
    fault: str
    what: str


@dataclass(slots=True)
class Timeline:
    """What one job did. ``spans`` are in order of (end, unit, start).

    ``started_ps``: when the device took the job, since power-on; ``time_ps``, ``cycles`` of the device's clock and all
    times in the spans count from there, to the moment at which its completion record is written. ``suspended_ps``: the
    part of that in which the job was parked, saving and restoring included. ``residents_held``: the weights that its
    program keeps in SRAM were there, and were not loaded. ``fault`` is None if it succeeded;
    ``error``: what the simulator itself raised, for FaultCode.INTERNAL. ``injected``: faults on request that were felt
    meanwhile.
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
        """The same for a job that the device took at another time; nothing in it that can change is shared."""
        counters = self.counters
        units = {
            name: UnitCounters(unit.busy_ps, unit.idle_ps, unit.stalls.copy(), unit.instructions, unit.macs, unit.bytes)
            for name, unit in counters.units.items()
        }
        copied = Counters(
            counters.duration_ps, units, counters.dram_read_bytes, counters.dram_write_bytes, counters.dram_busy_ps,
            counters.instructions,
        )  # fmt: skip
        return Timeline(self.spans[:], copied, self.cycles, self.time_ps, started_ps)

    def digest(self) -> str:
        """SHA-256 over every field of every span, in hex."""
        return digest(self.spans)

    def critical_path(self) -> list[PathSegment]:
        """What the job's end waited for, moment by moment: stretches that follow each other from 0 to ``time_ps``.

        Walked from the end: what runs last, then what ended last before it began, and so on; between the two lies what
        no unit shows. Where several ended at that moment, the own unit goes first, which then has not waited; then the
        longest; then by name.
        """
        return _critical_path(self)

    def diff(self, other: Timeline) -> Difference:
        """Where ``other`` spends its time differently: what it takes more, with the sign of ``other - self``.

        By operator of the table, by unit and by cause, each by the critical path, so that each adds up to ``total_ps``.
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
}
"""What a moment of the critical path may be spent on, and what that means."""


class PathSegment(NamedTuple):
    """A part of the critical path: for operator ``op`` (NO_OP: for none) on ``unit``, because of ``cause``."""

    op: int
    unit: str
    cause: str
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What another timeline takes more than one, in ps; what does not differ is left out.

    ``first``: the first spans that differ, in the order of their ends, None where one timeline has no more; None if the
    timelines are equal. The values of ``ops``, of ``units`` and of ``causes`` each add up to ``total_ps``.
    """

    total_ps: int
    first: tuple[Span | None, Span | None] | None
    ops: dict[int, int]
    units: dict[str, int]
    causes: dict[str, int]


SEQUENCER = "sequencer"
"""The unit that stands for what no other shows: fetching, dispatch, the end of a job, contexts."""

_K = TypeVar("_K")


def _differing(sums: Counter[_K]) -> dict[_K, int]:
    return {name: value for name, value in sums.items() if value}


def _critical_path(timeline: Timeline) -> list[PathSegment]:
    # What takes no time cannot be waited for; without it the walk gets earlier with each step.
    spans = sorted((span for span in timeline.spans if span.end_ps > span.start_ps), key=lambda span: span.end_ps)
    ends = [span.end_ps for span in spans]
    path: list[PathSegment] = []
    until = timeline.time_ps
    after: Span | None = None
    while until:
        last = bisect_right(ends, until) - 1
        if last < 0:
            path.append(PathSegment(NO_OP, SEQUENCER, "fetch", 0, until))
            break
        end = ends[last]
        chosen = spans[last]
        if last and ends[last - 1] == end:
            chosen = _waited_for(spans[bisect_left(ends, end) : last + 1], after)
        if end < until:
            path.append(_between(chosen, after, end, until))
        path.append(PathSegment(chosen.op, chosen.unit, _cause(chosen), chosen.start_ps, end))
        until, after = chosen.start_ps, chosen
    return path[::-1]


def _waited_for(together: Iterable[Span], after: Span | None) -> Span:
    """Of spans that end together, the one that the next waited for."""
    own = after.unit if after is not None else ""
    return min(together, key=lambda span: (span.unit != own, span.start_ps, span.unit))


def _between(before: Span, after: Span | None, start: int, end: int) -> PathSegment:
    """What passes where nothing that the next waits for runs."""
    if after is None:
        return PathSegment(NO_OP, SEQUENCER, "completion", start, end)
    if before.unit == SEQUENCER and after.unit == SEQUENCER:
        return PathSegment(NO_OP, SEQUENCER, "parked", start, end)
    return PathSegment(after.op, SEQUENCER, "dispatch", start, end)


def _cause(span: Span) -> str:
    if span.unit == SEQUENCER:
        return "context"
    if ".dma" in span.unit:
        return "latency" if span.bound == "latency" else "dram" if span.dram_bytes else "sram"
    return {"compute": "compute", "memory": "sram"}.get(span.bound, "setup")


def digest(spans: Iterable[Span]) -> str:
    """SHA-256 of spans, independent of process, platform and hash seed."""
    state = hashlib.sha256()
    rows = iter(spans)
    # Some at once: calls for each of very many take longer than the hash.
    while some := list(islice(rows, _AT_ONCE)):
        state.update("".join([_ROW % span for span in some]).encode())
    return state.hexdigest()


_AT_ONCE = 1 << 12
_ROW = "\x1f".join(["%s"] * len(Span._fields)) + "\n"
