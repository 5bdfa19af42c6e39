"""The data structures in device memory that software and the device share: ring entries, region tables, completion
records.

All fields are little-endian. The number of entries of a ring is a power of two. The driver writes entry ``tail %
size``, then TAIL of the ring, then rings its doorbell. The device latches TAIL only at the doorbell. It takes the
entries at ``head % size`` in order, and increments HEAD when an entry is done. Head and tail are free-running 32-bit
counters. There is one ring per priority.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

ENTRY_MAGIC = 0x4A4F_4231
"""First word of an entry. An unwritten ring therefore starts no jobs."""

MAX_REGIONS = 65_520

HOST = 1 << 63
"""Bit of the address of a ring, region table, record, fault log, copy or image. If it is set, the other bits are an
address in host memory, on a device that can access host memory."""

COPY_MAGIC = 0x4350_5931
"""First word of a copy descriptor."""


class JobFlag(enum.IntFlag):
    """Bits of ``RingEntry.flags``. An entry with another bit set is invalid."""

    TIMING_ONLY = 1
    CANCELLED = 2  # the job ends as aborted when it is taken


class CopyFlag(enum.IntFlag):
    """Bits of ``Descriptor.flags``. A descriptor with another bit set is invalid."""

    RECORD = 1  # write a completion record at the end, and raise an interrupt


_COPY_FLAGS = int(CopyFlag.RECORD)
_FLAGS = int(JobFlag.TIMING_ONLY | JobFlag.CANCELLED)


class JobStatus(enum.IntEnum):
    """Values of ``Completion.status``. A driver writes PENDING before it submits a job."""

    PENDING = 0
    DONE = 1
    FAULT = 2
    ABORTED = 3


class RingEntry(NamedTuple):
    """One job. Addresses are in device DRAM. ``log``: address of the fault log, of ``log_bytes`` bytes; 0 bytes: none.

    ``residents``: a number chosen by software for the weights that the prologue of the program pins in SRAM (see
    :class:`Residents <npusim.isa.control.Residents>`). A job reuses the pinned weights of an earlier job with the same
    program, constants and number. 0: each job loads its own weights.
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
        """The reason why the entry is invalid; an empty string if it is valid."""
        if self.magic != ENTRY_MAGIC:
            return f"ring entry: first word must be {ENTRY_MAGIC:#x}, got {self.magic:#x}"
        if self.flags & ~_FLAGS:
            return f"ring entry: reserved bits are set: flags {self.flags:#x}"
        if self.region_count > MAX_REGIONS:
            return f"ring entry: region count must be <= {MAX_REGIONS}, got {self.region_count}"
        return ""


class Descriptor(NamedTuple):
    """One copy between two addresses, at least one of them in DRAM. ``seqno`` and ``completion`` are only used with the
    flag RECORD."""

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
        """Whether the copy uses the link to the host."""
        return bool((self.source | self.destination) & HOST)

    @property
    def mistake(self) -> str:
        """The reason why the descriptor is invalid; an empty string if it is valid."""
        if self.magic != COPY_MAGIC:
            return f"copy descriptor: first word must be {COPY_MAGIC:#x}, got {self.magic:#x}"
        if self.flags & ~_COPY_FLAGS or self.reserved or self.reserved_2:
            return f"copy descriptor: reserved bits are set: flags {self.flags:#x}"
        if self.source & self.destination & HOST:
            return "copy descriptor: source and destination are both in host memory"
        return ""


class Completion(NamedTuple):
    """Written by the device at the end of a job. ``cycles``: device clock cycles from taking the entry to writing this
    record.

    They include the time during which the job was parked, but not the time in which its entry waited in the ring.
    """

    seqno: int
    status: int
    fault_code: int
    fault_address: int
    cycles: int


ENTRY = struct.Struct("<IIQIIQQQQII")
REGION_ROW = struct.Struct("<QQ")
"""A row of a region table: DRAM address, size in bytes."""
DESCRIPTOR = struct.Struct("<IIQQQQQQQ")
COMPLETION = struct.Struct("<QIIQQ")
