"""The register map as a table for people: ``python -m npusim.device.manual`` prints what docs/device.md holds."""

from __future__ import annotations

import sys

from npusim.device.registers import REGISTERS, Field


def register_table() -> str:
    """Markdown: one row for each register."""
    rows = ["| offset | register | access | reset | fields |", "|---|---|---|---|---|"]
    for register in REGISTERS:
        fields = "; ".join(f"{_bits(field)} {field.name}: {field.doc}" for field in register.fields)
        reset = "from config" if register.reset is None else f"{register.reset:#x}"
        rows.append(f"| {register.offset:#05x} | {register.name} | {register.access.value} | {reset} | {fields} |")
    return "\n".join(rows) + "\n"


def _bits(field: Field) -> str:
    last = field.low + field.width - 1
    return f"[{last}:{field.low}]" if field.width > 1 else f"[{field.low}]"


if __name__ == "__main__":
    sys.stdout.write(register_table())
