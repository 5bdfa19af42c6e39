"""What lies in device memory between software and the device: ring entries, region tables, completion records.

All little-endian. A ring has a power of two of entries; the driver writes entry ``tail % size``, then the ring's TAIL,
then rings its doorbell, at which the device looks at that TAIL and at no other; it takes entries at ``head % size`` one
after another and moves HEAD on when it is done with one. Head and tail run freely (32 bits). There is one ring for each
class of priority.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

ENTRY_MAGIC = 0x4A4F_4231
"""First word of an entry: a ring that was never written does not start jobs."""

MAX_REGIONS = 65_520

HOST = 1 << 63
"""Bit of an address of a ring, a region table, a record, a text, a copy or an image: the other bits are those of an
address of host memory, on a device that reaches it."""

COPY_MAGIC = 0x4350_5931
"""First word of a copy descriptor."""


class JobFlag(enum.IntFlag):
    """Bits of ``RingEntry.flags``; a bit that is not here makes the entry bad."""

    TIMING_ONLY = 1
    WITHDRAWN = 2  # ends as aborted when its turn comes


class CopyFlag(enum.IntFlag):
    """Bits of ``Descriptor.flags``; a bit that is not here makes the descriptor bad."""

    RECORD = 1  # write a completion record at the end, and interrupt


_COPY_FLAGS = int(CopyFlag.RECORD)
_FLAGS = int(JobFlag.TIMING_ONLY | JobFlag.WITHDRAWN)


class JobStatus(enum.IntEnum):
    """``Completion.status``; a driver writes PENDING before it submits."""

    PENDING = 0
    DONE = 1
    FAULT = 2
    ABORTED = 3


class RingEntry(NamedTuple):
    """One job. Addresses are of device DRAM; ``log``: where the text of a fault goes, ``log_bytes`` 0 for nowhere.

    ``residents``: a number of software's choice for what the program's prologue loads (:class:`Residents
    <npusim.isa.control.Residents>`): jobs of the same program, constants and number find in SRAM what one of them has
    left there. 0: each loads its own.
    """

    magic: int
    flags: int
    program_address: int
    program_bytes: int
    region_count: int
    region_table: int
    seqno: int
    completion: int
    log: int
    log_bytes: int
    residents: int = 0

    @property
    def mistake(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.magic != ENTRY_MAGIC:
            return f"ring entry: first word must be {ENTRY_MAGIC:#x}, got {self.magic:#x}"
        if self.flags & ~_FLAGS:
            return f"ring entry: reserved bits are set: flags {self.flags:#x}"
        if self.region_count > MAX_REGIONS:
            return f"ring entry: region count must be <= {MAX_REGIONS}, got {self.region_count}"
        return ""


class Descriptor(NamedTuple):
    """One copy, from address to address, at least one of which is in DRAM. Without the flag RECORD, ``seqno`` and
    ``completion`` mean nothing."""

    magic: int
    flags: int
    source: int
    destination: int
    size: int
    seqno: int
    completion: int
    reserved: int = 0
    reserved_2: int = 0

    @property
    def touches_host(self) -> bool:
        """Whether bytes pass the link."""
        return bool((self.source | self.destination) & HOST)

    @property
    def mistake(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.magic != COPY_MAGIC:
            return f"copy descriptor: first word must be {COPY_MAGIC:#x}, got {self.magic:#x}"
        if self.flags & ~_COPY_FLAGS or self.reserved or self.reserved_2:
            return f"copy descriptor: reserved bits are set: flags {self.flags:#x}"
        if self.source & self.destination & HOST:
            return "copy descriptor: source and destination are both in host memory"
        return ""


class Completion(NamedTuple):
    """Written by the device at the end of a job; ``cycles`` of its clock from taking the entry to writing this.

    The time that the entry has waited in its ring is not among them; the time for which the job was parked is.
    """

    seqno: int
    status: int
    fault_code: int
    fault_address: int
    cycles: int


ENTRY = struct.Struct("<IIQIIQQQQII")
REGION_ROW = struct.Struct("<QQ")
"""A row of a region table: DRAM address, bytes."""
DESCRIPTOR = struct.Struct("<IIQQQQQQQ")
COMPLETION = struct.Struct("<QIIQQ")
