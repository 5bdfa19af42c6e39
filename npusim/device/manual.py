"""The register map as a table for people: ``python -m npusim.device.manual`` prints what docs/device.md holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from npusim.device.registers import REGISTERS, Field


def register_table() -> str:
    """Markdown: one row for each register."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    yield "| offset | register | access | reset | fields |"
    yield "|---|---|---|---|---|"
    for register in REGISTERS:
        fields = "; ".join(f"{_bits(field)} {field.name}: {field.doc}" for field in register.fields)
        reset = "from config" if register.reset is None else f"{register.reset:#x}"
        yield f"| {register.offset:#05x} | {register.name} | {register.access.value} | {reset} | {fields} |"


def _bits(field: Field) -> str:
    last = field.low + field.width - 1
    return f"[{last}:{field.low}]" if field.width > 1 else f"[{field.low}]"


if __name__ == "__main__":
    sys.stdout.write(register_table())
