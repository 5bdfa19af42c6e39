"""Fault scripts: reading from TOML or Python, and checks against a device."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from npusim.errors import ConfigError, shown
from npusim.faults.what import MEMORIES, WHAT, Ecc, Fail, Flip, Hang, LoseWrite, Slow, Stuck, Unplug, What, Wrong
from npusim.faults.when import WHEN, AtCommand, AtDoorbell, AtRead, AtWrite, When
from npusim.hw.build import Reading, read_section, to_table
from npusim.hw.keys import entries
from npusim.untrusted import TOML_BYTES, FileKind

SEQUENCER = "sequencer"
ENVIRONMENT = "NPUSIM_FAULTS"
SCRIPT = FileKind("fault script", TOML_BYTES, ConfigError, ConfigError)
LABEL = "faults"
"""Label of scripts without a file in messages."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: ``what`` happens ``when``."""

    when: When
    what: What
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Script:
    """An ordered list of faults. ``label``: the file name, or a label for messages."""

    faults: tuple[Fault, ...] = ()
    label: str = LABEL

    def where(self, number: int) -> str:
        """The label of a fault in messages; numbers begin at 1."""
        name = self.faults[number - 1].name
        return f"{self.label}: fault {number}" + f" ({name})" * bool(name)

    def to_table(self) -> list[dict[str, Any]]:
        """The faults as a TOML table, times in ps; the inverse of :func:`script_of`."""
        return [
            {"when": to_table(each.when), "what": to_table(each.what), **({"name": each.name} if each.name else {})}
            for each in self.faults
        ]


Faulty = str | os.PathLike[str] | Script | Iterable[Fault | Mapping[str, Any]]
"""Accepted forms of faults: a TOML file, a script, faults, or TOML tables."""


class Hardware(NamedTuple):
    """The parts of a device that faults can refer to."""

    units: Sequence[str]
    channels: Sequence[str]
    rings: Sequence[str]
    readable: Mapping[str, Mapping[str, int]]
    """Readable registers: their fields, with the largest value of each."""
    writable: Sequence[str]
    memories: Mapping[str, int]
    """Bytes of each of MEMORIES."""
    cores: int


def faults_asked() -> Script | None:
    """The script named by ``$NPUSIM_FAULTS``, for programs without an option for faults. Raises ConfigError."""
    asked = os.environ.get(ENVIRONMENT, "")
    return read_script(asked) if asked else None


def script_of(given: Faulty) -> Script:
    """A script from any accepted form. Raises ConfigError."""
    if isinstance(given, Script):
        return given
    if isinstance(given, str | os.PathLike):
        return read_script(given)
    if not isinstance(given, list | tuple):
        raise ConfigError(f"{LABEL}: must be a file, a script or a list of faults, got {shown(given)}")
    reading = Reading(LABEL, bare=True)
    found = [
        each if isinstance(each, Fault) else _fault(each, f"fault {number}", reading)
        for number, each in enumerate(given, 1)
    ]
    return _made(found, reading)


def read_script(source: str | os.PathLike[str]) -> Script:
    """The script in a TOML file. Raises ConfigError with all its problems."""
    label = os.fspath(source)
    plain = SCRIPT.toml(source)
    reading = Reading(label)
    for name in plain:
        if name != "fault":
            reading.refuse(name, "unknown key; allowed: tables [[fault]]")
    rows = plain.get("fault", [])
    if not isinstance(rows, list) or not rows:
        reading.refuse("fault", f"must be at least one table [[fault]], got {shown(plain.get('fault'))}")
        rows = []
    return _made([_fault(each, f"fault {number}", reading) for number, each in enumerate(rows, 1)], reading)


def _made(found: Iterable[Fault | None], reading: Reading) -> Script:
    if reading.problems:
        raise ConfigError(reading.problems)
    return Script(tuple(each for each in found if each is not None), reading.label)


def _fault(raw: object, path: str, reading: Reading) -> Fault | None:
    if not isinstance(raw, Mapping):
        reading.refuse(path, f"must be a table with when and what, got {shown(raw)}")
        return None
    for name in raw:
        if name not in ("when", "what", "name"):
            reading.refuse(f"{path}.{name}", "unknown key; allowed: when, what, name")
    name = raw.get("name", "")
    if not isinstance(name, str) or not name.isprintable():
        reading.refuse(f"{path}.name", f"must be one line of text, got {shown(name)}")
    when = _one_of(WHEN, raw.get("when"), f"{path}.when", reading)
    what = _one_of(WHAT, raw.get("what"), f"{path}.what", reading)
    if isinstance(what, Unplug) and not what.unplug:
        reading.refuse(f"{path}.what.unplug", "must be true, got False")
    return None if when is None or what is None else Fault(when, what, str(name))


def lead(cls: type[Any]) -> str:
    """The first key of a class, which identifies it."""
    return entries(cls)[0][1].name


def _one_of(classes: Sequence[type[Any]], raw: object, path: str, reading: Reading) -> Any:
    """An object of the class whose first key is in the table."""
    leads = {lead(cls): cls for cls in classes}
    if not isinstance(raw, Mapping):
        got = "nothing" if raw is None else shown(raw)
        reading.refuse(path, f"must be a table with one of {', '.join(leads)}, got {got}")
        return None
    found = [name for name in leads if name in raw]
    if len(found) != 1:
        reading.refuse(path, f"must have one of {', '.join(leads)}, got {', '.join(map(str, raw)) or 'nothing'}")
        return None
    return read_section(leads[found[0]], raw, path, reading)


def check_script(script: Script, hardware: Hardware) -> None:
    """Raise ConfigError, with all problems, for faults that the device does not support."""
    problems: list[str] = []
    for number, fault in enumerate(script.faults, 1):
        where = script.where(number)
        problems += [f"{where}: when.{problem}" for problem in _check_when(fault.when, hardware)]
        problems += [f"{where}: what.{problem}" for problem in _check_what(fault.what, hardware)]
    if problems:
        raise ConfigError(problems)


def _check_when(when: When, hardware: Hardware) -> Iterable[str]:
    match when:
        case AtDoorbell(ring=ring) if ring:
            yield from _known("ring", ring, hardware.rings)
        case AtRead(read=register):
            yield from _known("read", register, hardware.readable)
        case AtWrite(write=register):
            yield from _known("write", register, hardware.writable)
        case AtCommand(unit=unit):
            yield from _known("unit", unit, hardware.units)


def _check_what(what: What, hardware: Hardware) -> Iterable[str]:
    match what:
        case Hang(hang=unit):
            yield from _known("hang", unit, [*hardware.units, SEQUENCER])
        case Slow(slow=unit):
            yield from _known("slow", unit, hardware.units)
        case Fail(fail=unit):
            yield from _known("fail", unit, hardware.channels)
        case Stuck():
            yield from _check_stuck(what, hardware)
        case Wrong(wrong=register):
            yield from _known("wrong", register, hardware.readable)
        case LoseWrite(lose_write=register):
            yield from _known("lose_write", register, hardware.writable)
        case Flip(flip=memory) | Ecc(memory=memory):
            yield from _check_place(memory, what.address, what.core, hardware)


def _check_stuck(what: Stuck, hardware: Hardware) -> Iterable[str]:
    yield from _known("stuck", what.stuck, hardware.readable)
    fields = hardware.readable.get(what.stuck)
    if what.field and fields is not None:
        yield from _known("field", what.field, fields)
        if what.value > fields.get(what.field, what.value):
            yield f"value: must be <= {fields[what.field]:#x}, got {what.value:#x}"


def _check_place(memory: str, address: int, core: int, hardware: Hardware) -> Iterable[str]:
    size = hardware.memories[memory]
    if address >= size:
        yield f"address: must be below {size:#x}, the bytes of the {_called(memory)}, got {address:#x}"
    if memory != MEMORIES[0] and core >= hardware.cores:
        yield f"core: must be below {hardware.cores}, the number of cores, got {core}"


def _called(memory: str) -> str:
    return memory if memory == "accumulators" else memory.upper()


def _known(key: str, name: str, names: Iterable[str]) -> Iterable[str]:
    if name not in names:
        from difflib import get_close_matches

        names = list(names)
        close = get_close_matches(name, names, 1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        yield f"{key}: must be one of {', '.join(names)}, got {name!r}{hint}"
