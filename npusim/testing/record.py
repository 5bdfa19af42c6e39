"""A timeline as a small text: one line for each operator and unit, in the order of the program.

Start times are excluded, so that a changed cost changes only the lines that it affects. Every number is an integer:
picoseconds, bytes, instructions.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from npusim.errors import InputError, UsageError, shown
from npusim.runtime.result import Result
from npusim.untrusted import FileKind

FIRST_LINE = "npusim timeline 1"
"""Name and version of the format. A reader refuses other versions."""
_TOTALS = ("cycles", "time_ps", "dram_read_bytes", "dram_write_bytes")
_FIELDS = ("instructions", "taken_ps", "macs", "bytes")
_MOST_LINES = 10**6
GOLDEN = FileKind("golden timeline", 1 << 26, InputError, UsageError)


class UnitWork(NamedTuple):
    """The work of one unit for one operator, or in total.

    ``taken_ps``: the time of its instructions, including waits for DRAM or SRAM.
    """

    instructions: int
    taken_ps: int
    macs: int
    bytes: int


@dataclass(slots=True)
class Unit:
    """The line of a unit: its total work, and its busy, idle and stalled times."""

    work: UnitWork
    busy_ps: int
    idle_ps: int
    stalls: dict[str, int]


@dataclass(slots=True)
class GoldenRecord:
    """``layers``: (number, name) of an operator -> unit -> work. ``digest``: over all spans."""

    model: str
    device: str
    totals: dict[str, int]
    digest: str
    units: dict[str, Unit] = field(default_factory=dict)
    layers: dict[tuple[int, str], dict[str, UnitWork]] = field(default_factory=dict)


def record(result: Result) -> GoldenRecord:
    """The record of a run."""
    timeline, entries = result.timeline, result.program.ops
    sums: dict[tuple[int, str], list[int]] = {}
    alone: dict[str, list[int]] = {}
    for span in timeline.spans:
        whose = [alone.setdefault(span.unit, [0, 0, 0, 0])]
        if span.op < len(entries):
            whose.append(sums.setdefault((span.op, span.unit), [0, 0, 0, 0]))
        for amounts in whose:
            for place, amount in enumerate((1, span.end_ps - span.start_ps, span.macs, span.bytes)):
                amounts[place] += amount
    found = GoldenRecord(
        _word(result.model),
        _word(result.config),
        {name: int(getattr(result, name)) for name in _TOTALS},
        timeline.digest(),
    )
    for name, unit in sorted(timeline.counters.units.items()):
        if unit.instructions:
            work = UnitWork(*alone.get(name, (0, 0, 0, 0)))
            found.units[name] = Unit(work, unit.busy_ps, unit.idle_ps, dict(sorted(unit.stalls.items())))
    for (op, unit_name), amounts in sorted(sums.items()):
        found.layers.setdefault((op, _word(entries[op].name)), {})[unit_name] = UnitWork(*amounts)
    return found


def dump(found: GoldenRecord) -> str:
    """The text of a record, as read by :func:`load`."""
    lines = [FIRST_LINE, f"model {found.model}", f"device {found.device}"]
    lines += [f"{name} {value}" for name, value in found.totals.items()]
    lines.append(f"digest {found.digest}")
    for name, unit in found.units.items():
        stalls = "".join(f" {cause}={waited}" for cause, waited in unit.stalls.items())
        own = f"{_fields(unit.work)} | busy_ps={unit.busy_ps} idle_ps={unit.idle_ps}"
        lines.append(f"unit {name} {own}{' | waits' + stalls if stalls else ''}")
    for (op, name), units in found.layers.items():
        lines.append(f"layer {op} {name}")
        lines += [f"  {unit} {_fields(work)}" for unit, work in units.items()]
    return "\n".join(lines) + "\n"


def read(path: str | os.PathLike[str]) -> GoldenRecord:
    """The record in a file. Raises InputError, UsageError if it cannot be read."""
    return load(GOLDEN.text(path), os.fspath(path))


def load(text: str, where: str) -> GoldenRecord:
    """Parse a record. Raises InputError with file and line."""
    lines = text.split("\n")
    if lines[0] != FIRST_LINE:
        raise InputError(f"{where}: line 1: must be {FIRST_LINE!r}, got {shown(lines[0])}; --npu-update rewrites it")
    if lines[-1] or len(lines) > _MOST_LINES:
        raise InputError(f"{where}: is truncated: a timeline ends with a line feed; --npu-update rewrites it")
    found = GoldenRecord("", "", {}, "")
    for number, line in enumerate(lines[1:-1], 2):
        try:
            _read(line, found)
        except (ValueError, KeyError, IndexError):
            raise InputError(f"{where}: line {number}: is not a line of a timeline: {shown(line)}") from None
    missing = [name for name in _TOTALS if name not in found.totals]
    missing += [name for name in ("model", "device", "digest") if not getattr(found, name)]
    if missing:
        raise InputError(f"{where}: has no {missing[0]}; --npu-update rewrites it")
    return found


def _read(line: str, found: GoldenRecord) -> None:
    match line.split(" "):
        case ["", "", unit, *fields]:
            list(found.layers.values())[-1][unit] = _work(fields)
        case ["layer", op, name]:
            found.layers[int(op), name] = {}
        case ["unit", name, *fields]:
            work, times, *waits = " ".join(fields).split(" | ")
            busy, idle = (int(each.split("=")[1]) for each in times.split(" "))
            stalls = dict(each.rsplit("=", 1) for each in waits[0].split(" ")[1:]) if waits else {}
            own = _work(work.split(" ") if work else [])
            found.units[name] = Unit(own, busy, idle, {cause: int(waited) for cause, waited in stalls.items()})
        case ["model" | "device" | "digest" as name, value]:
            setattr(found, name, value)
        case [name, value] if name in _TOTALS:
            found.totals[name] = int(value)
        case _:
            raise ValueError(line)


def _work(fields: list[str]) -> UnitWork:
    pairs = dict(each.split("=") for each in fields)
    if not pairs.keys() <= set(_FIELDS):
        raise KeyError
    return UnitWork(*(int(pairs.get(name, "0")) for name in _FIELDS))


def _fields(work: UnitWork) -> str:
    # Zeros are left out: a DMA channel has no MACs.
    return " ".join(f"{name}={value}" for name, value in zip(_FIELDS, work, strict=True) if value)


def _word(name: str) -> str:
    """A name as one word: white space is replaced."""
    return re.sub(r"[^\x21-\x7e]", "_", name) or "_"
