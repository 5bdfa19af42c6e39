"""Jobs in flight as the driver sanitizer sees them: the bytes that each uses from its doorbell on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from npusim.device.registers import RINGS
from npusim.device.ring import COMPLETION, ENTRY, ENTRY_MAGIC, REGION_ROW, JobFlag, RingEntry
from npusim.device.spans import AccessExtent, touched
from npusim.isa.base import ByteArray
from npusim.program import CONSTANTS, SCRATCH
from npusim.sim.memory import AddressError

Load = Callable[[int, int], bytes]
"""Reads bytes at an address in DRAM or host memory, as the device does. Raises AddressError."""
_NOTHING = AccessExtent()
_CANCELLED = int(JobFlag.CANCELLED)
_FLAGS = slice(4, 8)
ENTRY_SPAN = "ring entry"
COUNT_MASK = 0xFFFF_FFFF
"""HEAD and TAIL count modulo this value plus one."""
RESIDENT_CONSTANTS = "constants of which some stay in SRAM"


class JobSpan(NamedTuple):
    """Bytes [low, high) that a job uses. ``filled``: the job reads them and software must have written them. ``alone``:
    no other job may use them, not even of the same ring."""

    low: int
    high: int
    written: bool
    what: str
    filled: bool = False
    alone: bool = False

    def meets(self, low: int, high: int) -> bool:
        return low < self.high and self.low < high


@dataclass(slots=True, eq=False)
class Flight:
    """A job from its doorbell until the driver can know that it has ended.

    ``number``: of its entry, counted as TAIL. ``raw``: the entry at the doorbell. ``looked_ps``: when the driver last
    read its record as pending. ``masked``: its interrupt was masked when it ended. ``excused``: an interrupt that can
    only refer to this job was sent.
    """

    ring: int
    number: int
    address: int
    raw: bytes
    entry: RingEntry | None
    rung_ps: int
    spans: tuple[JobSpan, ...] = ()
    ended_ps: int | None = None
    looked_ps: int | None = None
    masked: bool = False
    excused: bool = False
    aborted: bool = False
    digests: dict[JobSpan, bytes] = field(default_factory=dict)

    @property
    def seqno(self) -> int | None:
        """The seqno of its ring entry; None without an entry."""
        return self.entry.seqno if self.entry is not None else None

    @property
    def computes(self) -> bool:
        """Whether the job does arithmetic, not only timing."""
        return self.entry is not None and not self.entry.flags & JobFlag.TIMING_ONLY

    @property
    def name(self) -> str:
        ring = RINGS[self.ring]
        return f"job {self.seqno} of ring {ring}" if self.entry is not None else f"entry {self.number} of ring {ring}"

    def before(self, count: int) -> bool:
        """Whether the entry is before a HEAD or TAIL count."""
        return count - self.number - 1 & COUNT_MASK <= COUNT_MASK >> 1

    def changed(self, span: JobSpan, now: ByteArray) -> bool:
        """Whether bytes have changed that must not change."""
        if span.low == self.address and span.what == ENTRY_SPAN:
            return not self.cancelled_only(now.tobytes())
        return self.digests[span] != digest(now)

    def cancelled_only(self, now: bytes) -> bool:
        """Whether the entry in memory differs from the one at the doorbell only in the flag CANCELLED."""
        marked = int.from_bytes(self.raw[_FLAGS], "little") | _CANCELLED
        return now == self.raw[:4] + marked.to_bytes(4, "little") + self.raw[8:] or now == self.raw


def take_off(load: Load, dram_bytes: int, ring: int, number: int, address: int, now: int) -> Flight:
    """The job whose entry is at an address, as it is at its doorbell."""
    try:
        raw = load(address, ENTRY.size)
    except AddressError:
        return Flight(ring, number, address, b"", None, now)
    entry = RingEntry(*ENTRY.unpack(raw))
    if entry.magic != ENTRY_MAGIC or entry.mistake:
        return Flight(
            ring, number, address, raw, None, now, (JobSpan(address, address + ENTRY.size, False, ENTRY_SPAN),)
        )
    inside = (span for span in _spans(load, address, entry) if span.low < span.high <= dram_bytes)
    return Flight(ring, number, address, raw, entry, now, tuple(inside))


def _spans(load: Load, address: int, entry: RingEntry) -> Iterator[JobSpan]:
    table_bytes = entry.region_count * REGION_ROW.size
    code_end, table_end = entry.program_address + entry.program_bytes, entry.region_table + table_bytes
    yield JobSpan(address, address + ENTRY.size, False, ENTRY_SPAN)
    yield JobSpan(entry.program_address, code_end, False, "code", filled=True)
    yield JobSpan(entry.region_table, table_end, False, "region table", filled=True)
    yield JobSpan(entry.completion, entry.completion + COMPLETION.size, True, "completion record", alone=True)
    yield JobSpan(entry.log, entry.log + entry.log_bytes, True, "text of a fault", alone=True)
    try:
        code = load(entry.program_address, entry.program_bytes)
        rows = list(REGION_ROW.iter_unpack(load(entry.region_table, table_bytes)))
    except AddressError:
        return  # the device reports a fault for it
    stream = touched(code)
    if stream is None or entry.flags & JobFlag.TIMING_ONLY:  # the job accesses no data
        return
    for number, (base, size) in enumerate(rows):
        (low, high), (first, last) = stream.regions.get(number, _NOTHING)
        if max(high, last) > size:
            return  # the device reports a fault for it
        if first < last:
            kind = "scratch" if number == SCRATCH else "output"
            hull = (min(low, first), max(high, last)) if low < high else (first, last)
            yield JobSpan(base + hull[0], base + hull[1], True, f"{kind}, region {number}")
        elif low < high:
            what, filled = f"input, region {number}", True
            if number == CONSTANTS:
                what = RESIDENT_CONSTANTS if stream.keeps and entry.residents else "constants"
            elif number == SCRATCH:
                what, filled = "scratch", False  # a program may use scratch memory as it likes
            yield JobSpan(base + low, base + high, False, what, filled)


def digest(bytes_: ByteArray) -> bytes:
    """A digest of bytes that must not change."""
    return hashlib.blake2b(bytes_.tobytes(), digest_size=16).digest()
