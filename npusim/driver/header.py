"""The programming interface of the device as a driver sees it: a copy, like the header file of a driver for a chip.

``tests/unit/driver/test_header.py`` compares it with the declarations of the device.
"""

from __future__ import annotations

import struct

DEVICE_ID = 0x3155_504E
INTERFACE_VERSION = 2
GONE = 0xFFFF_FFFF
"""The value of every register of an unplugged device."""

ID = 0x000
VERSION = 0x004
CAP_DRAM_LO = 0x028
CAP_DRAM_HI = 0x02C
CAP_CONTEXT_LO = 0x038
CAP_CONTEXT_HI = 0x03C
CONTROL = 0x040
STATUS = 0x044
INT_STATUS = 0x048
INT_MASK = 0x04C
FAULT_CODE = 0x050
FAULT_ADDR_LO = 0x054
FAULT_ADDR_HI = 0x058
CONTEXT_BASE_LO = 0x060
CONTEXT_BASE_HI = 0x064
PREEMPT = 0x068
ABORT_SEQNO_LO = 0x070
ABORT_SEQNO_HI = 0x074
ABORT = 0x078
FW_ADDR_LO = 0x190
FW_ADDR_HI = 0x194
FW_BYTES = 0x198
FW_BOOT = 0x19C
FW_STATUS = 0x1A0

RINGS = (0x100, 0x120, 0x140)
"""Offsets of the registers of each ring: low, medium, high."""
BASE_LO = 0x00
BASE_HI = 0x04
SIZE = 0x08
HEAD = 0x0C
TAIL = 0x10
DOORBELL = 0x14

CONTROL_RESET = 1
CONTROL_CONTINUE = 2
STATUS_READY = 1
STATUS_FAULT = 4
STATUS_FIRMWARE = 8
INT_DONE = 1
INT_FAULT = 2
DOORBELL_RING = 1
PREEMPT_ENABLE = 1
ABORT_GO = 1
FW_BOOT_GO = 1
FW_BOOTING, FW_RUNNING = 1, 2
FW_STATES = (
    "NONE",
    "BOOTING",
    "RUNNING",
    "BAD_ADDRESS",
    "BAD_HEADER",
    "BAD_VERSION",
    "BAD_SIZE",
    "BAD_CHECKSUM",
)

ENTRY_MAGIC = 0x4A4F_4231
ENTRY = struct.Struct("<IIQIIQQQQII")
"""magic, flags, program address, bytes, region count, region table, seqno, completion, log, log bytes, residents."""
FLAGS = struct.Struct("<I")
FLAGS_OFFSET = 4
FLAG_TIMING_ONLY = 1
FLAG_CANCELLED = 2
MOST_RESIDENTS = 0xFFFF_FFFF
REGION_ROW = struct.Struct("<QQ")
COMPLETION = struct.Struct("<QIIQQ")
"""seqno, status, fault code, fault address, cycles."""
JOB_PENDING, JOB_DONE, JOB_FAULT, JOB_ABORTED = 0, 1, 2, 3

FAULT_NAMES = ("NONE", "RING", "PROGRAM", "ADDRESS", "DATA", "DEADLOCK", "DMA", "INTERNAL", "HOST", "ECC")
FAULT_MEANINGS = {
    "NONE": "no fault",
    "RING": "a ring entry or ring register is invalid",
    "PROGRAM": "the instruction stream cannot be decoded or breaks a rule",
    "ADDRESS": "an address outside the device's memory",
    "DATA": "the data makes an instruction illegal",
    "DEADLOCK": "no unit can continue",
    "DMA": "a DMA transfer failed on the bus",
    "INTERNAL": "the device itself failed",
    "HOST": "host memory that the device cannot access",
    "ECC": "a memory has an uncorrectable error",
}


def fault_name(code: int) -> str:
    """The name of a fault code, or ``CODE_n`` if it is unknown."""
    return FAULT_NAMES[code] if code < len(FAULT_NAMES) else f"CODE_{code}"


def fault_meaning(name: str) -> str:
    """The meaning of a fault, by name."""
    return FAULT_MEANINGS.get(name, "a code unknown to this driver")
