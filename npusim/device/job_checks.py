"""The driver sanitizer's jobs in flight, and its checks of each job at its doorbell."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from npusim.device.findings import ConflictSide, Finding
from npusim.device.flights import COUNT_MASK, RESIDENT_CONSTANTS, Flight, JobSpan, Load, digest, take_off
from npusim.device.registers import RINGS
from npusim.device.ring import COMPLETION, ENTRY, ENTRY_MAGIC
from npusim.device.spans import ByteRanges
from npusim.sim.memory import AddressError
from npusim.sim.parts import Parts

_log = logging.getLogger("npusim.device")

MOST_FINDINGS = 1000
"""Limit of the list of findings."""


class Held(NamedTuple):
    """Pinned weights in SRAM that jobs expect: the bytes they were copied from, and who has changed these since."""

    low: int
    high: int
    changed: ConflictSide | None = None


class Boarding:
    """Jobs in flight and the bytes they use. ``findings``: mistakes in order; each mistake is reported once per job."""

    def __init__(self, machine: Parts, registers: Mapping[str, int], load: Load) -> None:
        self.findings: list[Finding] = []
        self._mapped = self._remote = False
        self._in_step = True
        self._clock, self._memory = machine.clock, machine.memory
        self._load = load  # reads control structures, as the device does
        self._registers = registers
        self._told: set[tuple[str, int | None, str]] = set()
        self._flights: list[Flight] = []
        self._fresh = ByteRanges()  # written since their entry was last announced
        self._written = ByteRanges()  # written at any time
        self._freed = ByteRanges()
        self._was_reset = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._flights.clear()
        self._gone = False
        # Jobs that were dropped by a RESET before the driver read their record.
        self._blind: list[tuple[Flight, str, ConflictSide]] = []
        self._seen = [0] * len(RINGS)  # TAIL at the last doorbell
        self._moved: dict[int, int] = {}  # time of a write to TAIL without a doorbell since
        self._fault: ConflictSide | None = None
        self._context: tuple[JobSpan, ConflictSide] | None = None
        self._residents: dict[int, Held] = {}
        self._sent = 0  # messages since INT_STATUS was written
        self._acknowledged = False  # INT_STATUS was written since the reset
        self._taken: ConflictSide | None = None  # the message that software has taken since then

    def _doorbell(self, ring: int) -> None:
        name, registers = RINGS[ring], self._registers
        size, tail, base = registers[f"{name}_SIZE"], registers[f"{name}_TAIL"], self._pair(f"{name}_BASE")
        what, seen = f"doorbell of {name}", self._seen[ring]
        self._moved.pop(ring, None)
        if not self._was_reset or not size or size & (size - 1):
            self._say("ring-not-set-up", None, f"SIZE is {size}" if self._was_reset else "there was no RESET", what)
        # A driver may end with a RESET, but one that continues has lost results.
        for flight, text, reset in self._blind:
            self._say("reset-in-flight", flight, text, what, reset)
        self._blind.clear()
        if tail == seen:
            self._say("doorbell-without-tail", None, f"TAIL is {tail}, as at the previous doorbell", what)
        self._seen[ring] = tail
        # The driver was notified of these by interrupts, so it need not read their records any more.
        self._flights = [flight for flight in self._flights if not flight.excused]
        if not size or size & (size - 1):
            return
        announced, waiting = tail - seen & COUNT_MASK, tail - registers[f"{name}_HEAD"] & COUNT_MASK
        if announced > min(waiting, COUNT_MASK >> 1):  # HEAD, previously announced TAIL and new TAIL are out of order
            self._say("tail-back", None, f"TAIL is {tail}, at the previous doorbell it was {seen}", what)
            self._flights = [
                flight for flight in self._flights if flight.ring != ring or flight.ended_ps or flight.before(tail)
            ]
            return
        if waiting > size:
            self._say("ring-overrun", None, f"{waiting} entries are pending in a ring of {size}", what)
            oldest = tail - size & COUNT_MASK  # older entries are overwritten
            self._flights = [flight for flight in self._flights if flight.ring != ring or not flight.before(oldest)]
            seen = tail - min(size, announced) & COUNT_MASK
        while seen != tail:
            self._board(
                take_off(
                    self._load, self._memory.dram_bytes, ring, seen, base + seen % size * ENTRY.size, self._clock.now
                ),
                what,
            )
            seen = seen + 1 & COUNT_MASK

    def _board(self, flight: Flight, what: str) -> None:
        low, high = flight.address, flight.address + ENTRY.size
        if flight.entry is None and flight.raw and flight.raw[:4] != ENTRY_MAGIC.to_bytes(4, "little"):
            self._say("entry-late", flight, f"the entry at {low:#x} begins with {flight.raw[:4].hex()}", what)
        elif not self._mapped and high <= self._memory.dram_bytes and not self._fresh.meets(low, high):
            self._say("entry-late", flight, f"the entry at {low:#x} is that of the previous job", what)
        self._fresh.remove(low, high)
        if flight.entry is not None:
            self._check_new(flight, what)
        if self._mapped:
            for span in flight.spans:
                if not span.written:
                    flight.digests[span] = digest(self._memory.dram[span.low : span.high])
        self._flights.append(flight)

    def _check_new(self, flight: Flight, what: str) -> None:
        entry = flight.entry
        assert entry is not None
        record = JobSpan(entry.completion, entry.completion + COMPLETION.size, True, "completion record")
        with contextlib.suppress(AddressError):
            status = COMPLETION.unpack(self._load(record.low, COMPLETION.size))[1]
            if status:
                self._say("record-not-cleared", flight, f"status in the record at {record.low:#x} is {status}", what)
        for other in self._flights:
            if other.seqno == entry.seqno:
                text = f"{other.name} has it, and is in flight"
                self._say("seqno-reused", flight, text, what, ConflictSide(other.rung_ps, "doorbell"))
            self._check_apart(flight, other, what)
        for span in flight.spans:
            if self._freed.meets(span.low, span.high):
                self._say("used-after-free", flight, f"{at_span(span)} lies in memory that was freed", what)
            missing = self._written.missing(span.low, span.high) if span.filled and not self._mapped else None
            if missing is not None and not any(
                other.written and other.meets(missing, missing + 1) for ahead in self._flights for other in ahead.spans
            ):
                self._say("uninitialised", flight, f"{at_span(span)}: byte {missing:#x} was never written", what)
            for fixed, since in self._fixed():
                if span.written and span.meets(fixed.low, fixed.high):
                    self._say(
                        "shared-in-flight", flight, f"{at_span(span)} lies over the {at_span(fixed)}", what, since
                    )
        if entry.residents and flight.computes:
            self._check_residents(flight, entry.residents, what)

    def _check_apart(self, flight: Flight, other: Flight, what: str) -> None:
        for mine in flight.spans:
            for theirs in other.spans:
                # Jobs of one ring run in order, so they may pass memory on. Records are read by software, so they may
                # not.
                ordered = flight.ring == other.ring and not (mine.alone or theirs.alone)
                if (mine.written or theirs.written) and not ordered and mine.meets(theirs.low, theirs.high):
                    if other.excused:
                        continue
                    text = f"{at_span(mine)} shares bytes with {at_span(theirs)} of {other.name}"
                    self._say("shared-in-flight", flight, text, what, ConflictSide(other.rung_ps, "doorbell"))
                    return

    def _check_residents(self, flight: Flight, number: int, what: str) -> None:
        constants = next((span for span in flight.spans if span.what == RESIDENT_CONSTANTS), None)
        if constants is None:
            return
        held = self._residents.get(number)
        if held is not None and held.changed is not None and (held.low, held.high) == (constants.low, constants.high):
            text = f"{at_span(constants)} were written since a job of the same number, {number}"
            self._say("stale-residents", flight, text, what, held.changed)
        self._residents[number] = Held(constants.low, constants.high)

    def _fixed(self) -> Iterator[tuple[JobSpan, ConflictSide]]:
        """Memory that the device owns while it is configured: rings and context area."""
        for name in RINGS:
            base, size = self._pair(f"{name}_BASE"), self._registers[f"{name}_SIZE"]
            if size and not self._gone:
                yield JobSpan(base, base + size * ENTRY.size, False, f"ring {name}"), ConflictSide(0, "ring set up")
        if self._context is not None:
            yield self._context

    def _say(self, kind: str, flight: Flight | None, text: str, what: str, first: ConflictSide | None = None) -> None:
        seqno = flight.seqno if flight is not None else None
        key = kind, seqno, text if flight is None else text.partition(" at ")[0]
        if key in self._told or len(self.findings) >= MOST_FINDINGS:
            return
        self._told.add(key)
        finding = Finding(kind, self._clock.now, seqno, first, ConflictSide(self._clock.now, what), text)
        self.findings.append(finding)
        _log.error("driver: %s", finding)

    def _pair(self, name: str) -> int:
        return self._registers[name + "_HI"] << 32 | self._registers[name + "_LO"]


def at_span(span: JobSpan) -> str:
    """A span as text for messages."""
    return f"{span.what} at {span.low:#x}..{span.high:#x}"
