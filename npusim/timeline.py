"""What happened in a job and when: spans, counters, a fault, and a digest that is the same on every machine."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

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
    DEADLOCK = 5  # no unit can go on
    DMA = 6  # a DMA transfer failed on the bus
    INTERNAL = 7  # the simulator itself failed


@dataclass(frozen=True, slots=True)
class Fault:
    """``address``: the device address of the offending access or of the command; 0 where there is none."""

    code: FaultCode
    address: int
    explanation: str


@dataclass(slots=True)
class Timeline:
    """What one job did. ``spans`` are in order of (end, unit, start).

    ``started_ps``: when the device took the job, since power-on; ``time_ps``, ``cycles`` of the device's clock and all
    times in the spans count from there, to the moment at which its completion record is written. ``suspended_ps``: the
    part of that in which the job was parked, saving and restoring included. ``residents_held``: the weights that its
    program keeps in SRAM were there, and were not loaded. ``fault`` is None if it succeeded;
    ``error``: what the simulator itself raised, for FaultCode.INTERNAL.
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
    fault: Fault | None = None
    error: BaseException | None = None

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


def digest(spans: Iterable[Span]) -> str:
    """SHA-256 of spans, independent of process, platform and hash seed."""
    state = hashlib.sha256()
    for span in spans:
        state.update("\x1f".join(map(str, span)).encode())
        state.update(b"\n")
    return state.hexdigest()
