"""The device's interface as a driver sees it: its own copy, as a driver for a chip has a header file of its own.

``tests/unit/driver/test_header.py`` holds it against the device's declarations.
"""

from __future__ import annotations

import struct

DEVICE_ID = 0x3155_504E
INTERFACE_VERSION = 1
GONE = 0xFFFF_FFFF
"""What every register of an unplugged device reads as."""

ID = 0x000
VERSION = 0x004
CAP_DRAM_LO = 0x028
CAP_DRAM_HI = 0x02C
CONTROL = 0x040
STATUS = 0x044
INT_STATUS = 0x048
INT_MASK = 0x04C
FAULT_CODE = 0x050
FAULT_ADDR_LO = 0x054
FAULT_ADDR_HI = 0x058
RING_BASE_LO = 0x080
RING_BASE_HI = 0x084
RING_SIZE = 0x088
RING_HEAD = 0x08C
RING_TAIL = 0x090
DOORBELL = 0x094

CONTROL_RESET = 1
STATUS_READY = 1
STATUS_FAULT = 4
INT_DONE = 1
INT_FAULT = 2
DOORBELL_RING = 1

ENTRY_MAGIC = 0x4A4F_4231
ENTRY = struct.Struct("<IIQIIQQQQII")
"""magic, flags, program address, bytes, region count, region table, fence, completion, log, log bytes, reserved."""
FLAG_TIMING_ONLY = 1
REGION_ROW = struct.Struct("<QQ")
COMPLETION = struct.Struct("<QIIQQ")
"""fence, status, fault code, fault address, cycles."""
JOB_PENDING, JOB_DONE, JOB_FAULT = 0, 1, 2

FAULT_NAMES = ("NONE", "RING", "PROGRAM", "ADDRESS", "DATA", "DEADLOCK", "DMA", "INTERNAL")
FAULT_MEANINGS = {
    "NONE": "no fault",
    "RING": "a ring entry or ring register makes no sense",
    "PROGRAM": "the instruction stream cannot be decoded or breaks a rule",
    "ADDRESS": "an address outside the device's memory",
    "DATA": "the data makes an instruction illegal",
    "DEADLOCK": "no unit can go on",
    "DMA": "a DMA transfer failed on the bus",
    "INTERNAL": "the device itself failed",
}
