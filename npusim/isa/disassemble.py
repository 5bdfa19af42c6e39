"""Commands as text, one line each."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from npusim.isa.base import Command, describe_address, unit_name

_ADDRESSES = frozenset(
    {
        *("dst", "src", "a", "b", "x", "w", "acc", "out", "bias", "scale", "zero"),
        *("index", "data", "values", "indices", "updates", "weight", "condition", "table"),
    }
)
_NOTHING = 0xFFFF_FFFF_FFFF_FFFF


def disassemble(commands: Iterable[Command], op_names: Sequence[str] = ()) -> Iterator[str]:
    """``index unit mnemonic fields; waits; operator`` for each command."""
    for index, command in enumerate(commands):
        instruction = command.instruction
        names = [field.name for field in instruction.fields]
        if instruction.tail and getattr(instruction, instruction.tail.name).to_bytes():
            names.append(instruction.tail.name)
        fields = " ".join(_field(name, getattr(instruction, name)) for name in names)
        waits = " ".join(f"{unit_name(core, unit)}>={count}" for core, unit, count in command.waits)
        name = op_names[command.op] if command.op < len(op_names) else str(command.op)
        yield (
            f"{index:6} {unit_name(command.core, command.unit):14} {command.instruction.mnemonic:18} {fields}"
            + (f" ; wait {waits}" if waits else "")
            + f" ; {name}"
        )


def _field(name: str, value: Any) -> str:
    if name in _ADDRESSES and isinstance(value, int):  # bias of lrn is a number, not an address
        return f"{name}={'none' if value == _NOTHING else describe_address(value)}"
    if isinstance(value, tuple):
        return f"{name}=[{','.join(map(str, value))}]"
    return f"{name}={value.name if isinstance(value, enum.Enum) else value}"
