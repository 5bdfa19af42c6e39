"""The programming interface of the device for people and drivers, generated from its declarations.

``python -m npusim.device.manual`` prints the register table of docs/device.md, ``--header`` a C header
(drivers/include/npusim.h), ``--json`` the same as data (docs/reference/device.json), similar to CMSIS-SVD.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS
from npusim.device.firmware import HEADER, HEADER_VERSION, MAGIC, FirmwareState, Header
from npusim.device.registers import REGISTERS, SPACE_BYTES, WIDTH, Field, Register
from npusim.device.ring import (
    COMPLETION,
    COPY_MAGIC,
    DESCRIPTOR,
    ENTRY,
    ENTRY_MAGIC,
    HOST,
    MAX_REGIONS,
    REGION_ROW,
    Completion,
    CopyFlag,
    Descriptor,
    JobFlag,
    JobStatus,
    RingEntry,
)
from npusim.timeline import FaultCode

_RECORDS = (
    ("ring_entry", "one job in a ring", ENTRY, RingEntry._fields),
    (
        "region_row",
        "a row of a job's region table: where a region of its program lies",
        REGION_ROW,
        ("address", "bytes"),
    ),
    ("completion", "written by the device at the end of a job or copy", COMPLETION, Completion._fields),
    ("copy_descriptor", "one copy in the ring of copies", DESCRIPTOR, Descriptor._fields),
    ("firmware_header", "the first bytes of a firmware image", HEADER, Header._fields),
)
"""Structures in memory: C name, description, layout, member names."""
_BITS = {"H": 16, "I": 32, "Q": 64}
_ENUMS = (
    ("JOB_FLAG", JobFlag, "bits of ring_entry.flags"),
    ("COPY_FLAG", CopyFlag, "bits of copy_descriptor.flags"),
    ("JOB", JobStatus, "completion.status"),
    ("FW", FirmwareState, "FW_STATUS.STATE"),
    ("FAULT_CODE", FaultCode, "completion.fault_code and register FAULT_CODE"),
)


def register_table() -> str:
    """Markdown with one row per register."""
    rows = ["| offset | register | access | reset | fields |", "|---|---|---|---|---|"]
    for register in REGISTERS:
        fields = "; ".join(f"{_bits(field)} {field.name}: {field.doc}" for field in register.fields)
        reset = "from config" if register.reset is None else f"{register.reset:#x}"
        rows.append(f"| {register.offset:#05x} | {register.name} | {register.access.value} | {reset} | {fields} |")
    return "\n".join(rows) + "\n"


def header() -> str:
    """C definitions of offsets, fields and records, for user space and for the kernel."""
    lines = [
        "/* SPDX-License-Identifier: MIT */",
        "/* Made by python -m npusim.device.manual --header; docs/device.md says what it means. All little-endian. */",
        "#ifndef NPUSIM_H",
        "#define NPUSIM_H",
        "",
        "#ifdef __KERNEL__",
        "#include <linux/types.h>",
        "#define NPU_U16 __le16",
        "#define NPU_U32 __le32",
        "#define NPU_U64 __le64",
        "#else",
        "#include <stdint.h>",
        "#define NPU_U16 uint16_t",
        "#define NPU_U32 uint32_t",
        "#define NPU_U64 uint64_t",
        "#endif",
        "",
        _define("BAR_REGISTERS", f"{BAR_REGISTERS}", ""),
        _define("BAR_MEMORY", f"{BAR_MEMORY}", "device DRAM: offset = device address"),
        _define("REGISTERS_BYTES", f"{SPACE_BYTES:#x}", ""),
    ]
    for register in REGISTERS:
        lines += ["", _define(register.name, f"{register.offset:#05x}", register.access.value)]
        if not _whole(register):
            lines += [
                _define(f"{register.name}_{each.name}", f"{each.mask:#010x}u", each.doc) for each in register.fields
            ]
            shifts = [each for each in register.fields if each.low and each.width > 1]
            lines += [_define(f"{register.name}_{each.name}_SHIFT", f"{each.low}", "") for each in shifts]
    lines += [
        "",
        _define("ENTRY_MAGIC", f"{ENTRY_MAGIC:#x}u", "ring_entry.magic"),
        _define("MOST_REGIONS", f"{MAX_REGIONS}", ""),
        _define("COPY_MAGIC", f"{COPY_MAGIC:#x}u", "copy_descriptor.magic"),
        _define("FIRMWARE_MAGIC", f"{MAGIC:#x}u", "firmware_header.magic"),
        _define("FIRMWARE_HEADER_VERSION", f"{HEADER_VERSION}", ""),
        _define("HOST_ADDRESS", f"{HOST:#x}ull", "with it an address is one of host memory"),
    ]
    for prefix, values, doc in _ENUMS:
        lines += ["", f"/* {doc} */"]
        lines += [_define(f"{prefix}_{each.name}", f"{int(each)}", "") for each in values]
    for name, doc, layout, members in _RECORDS:
        lines += ["", f"/* {doc}: {layout.size} bytes */", f"struct npu_{name} {{"]
        lines += [f"\tNPU_U{bits} {member};" for member, _, bits in _members(layout, members)]
        lines += ["};"]
    return "\n".join([*lines, "", "#endif", ""])


def description() -> str:
    """JSON values: registers with their fields, records with their members, and enumerations."""
    found: dict[str, Any] = {
        "name": "npusim",
        "width": 8 * WIDTH,
        "bars": {"registers": BAR_REGISTERS, "memory": BAR_MEMORY},
        "registers": [
            {
                "name": each.name,
                "offset": each.offset,
                "access": each.access.value,
                "reset": each.reset,
                "fields": [
                    {"name": field.name, "low": field.low, "width": field.width, "description": field.doc}
                    for field in each.fields
                ],
            }
            for each in REGISTERS
        ],
        "records": [
            {
                "name": name,
                "description": doc,
                "bytes": layout.size,
                "members": list(map(_member, _members(layout, members))),
            }
            for name, doc, layout, members in _RECORDS
        ],
        "values": {
            prefix: {"description": doc, "values": {each.name: int(each) for each in values}}
            for prefix, values, doc in _ENUMS
        },
    }
    return json.dumps(found, indent=1) + "\n"


def _whole(register: Register) -> bool:
    """Whether a single field is the whole register, so that the field needs no name."""
    return len(register.fields) == 1 and register.fields[0].width == 8 * WIDTH


def _members(layout: struct.Struct, names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size in bits of each member of a record. All are naturally aligned, so that C adds no
    padding."""
    offset = 0
    for name, code in zip(names, layout.format.removeprefix("<"), strict=True):
        yield name, offset, _BITS[code]
        offset += _BITS[code] // 8


def _member(member: tuple[str, int, int]) -> dict[str, str | int]:
    return dict(zip(("name", "offset", "bits"), member, strict=True))


def _define(name: str, value: str, doc: str) -> str:
    line = f"#define NPU_{name} {value}"
    return f"{line} /* {doc} */" if doc else line


def _bits(field: Field) -> str:
    last = field.low + field.width - 1
    return f"[{last}:{field.low}]" if field.width > 1 else f"[{field.low}]"


_PAGES = {(): register_table, ("--header",): header, ("--json",): description}

if __name__ == "__main__":
    page = _PAGES.get(tuple(sys.argv[1:]))
    if page is None:
        sys.exit("usage: python -m npusim.device.manual [--header | --json]")
    sys.stdout.write(page())
