"""What happened and when: spans, counters, and a digest that is the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

NO_OP = 0xFFFF_FFFF
"""``Span.op`` of what no operator asked for."""


class Span(NamedTuple):
    """One instruction on one unit, in simulated picoseconds since the job's doorbell.

    ``unit``: e.g. ``core0.matrix``, ``core0.dma1``, or ``sequencer`` while it moves a context; ``op``: index into the
    program's operator table, NO_OP if it is for none;
    ``bound``: ``compute``, ``memory`` or ``latency``, the term that decided the duration.
    """

    unit: str
    start_ps: int
    end_ps: int
    op: int
    kind: str
    macs: int
    bytes: int
    bound: str


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


@dataclass(slots=True)
class Timeline:
    """The spans of one job in order of (end, unit, start) and how to compare two of them."""

    spans: list[Span] = field(default_factory=list)

    def digest(self) -> str:
        """SHA-256 over every field of every span, in hex."""
        return digest(self.spans)


def digest(spans: Iterable[Span]) -> str:
    """SHA-256 of spans, independent of process, platform and hash seed."""
    state = hashlib.sha256()
    for span in spans:
        state.update("\x1f".join(map(str, span)).encode())
        state.update(b"\n")
    return state.hexdigest()
