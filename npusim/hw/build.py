"""Conversion between plain tables and section objects, driven by the fields of the section classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from npusim.errors import named, shown
from npusim.hw.keys import FrozenTable, Key, MapOf, Section, entries, unknown


@dataclasses.dataclass
class Reading:
    """Collects all problems of one description as ``label: key: problem``."""

    label: str
    bare: bool = False
    origins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)

    def refuse(self, path: str, problem: str) -> None:
        """Add a problem. ``origins`` names the file of an inherited value, so that the message refers to that file."""
        name = named(path)
        self.problems.append(f"{self.origins.get(path, self.label)}: {name}: {problem}")


def read_section(cls: type[Any], raw: object, path: str, reading: Reading) -> Any:
    """An object of ``cls`` from a table; None if there are problems, which are added to ``reading``."""
    if not isinstance(raw, Mapping):
        reading.refuse(path, f"must be a table, got {shown(raw)}")
        return None
    before = len(reading.problems)
    fields = entries(cls)
    names = [entry.name for _, entry in fields]
    for name in raw:
        if name not in names:
            reading.refuse(_join(path, name), unknown(_join(path, name), names))
    values = {}
    for field, entry in fields:
        below = _join(path, entry.name)
        if entry.name in raw or isinstance(entry, Section):
            values[field] = _read_entry(entry, raw.get(entry.name), below, reading)
        elif entry.required:  # other fields have defaults
            reading.refuse(below, f"missing; must be given: {entry.doc} ({entry.kind.allowed()})")
    return cls(**values) if len(reading.problems) == before else None


def _read_entry(entry: Key | Section, value: object, path: str, reading: Reading) -> Any:
    if isinstance(entry, Key):
        return entry.kind.read(value, lambda below, problem: reading.refuse(_join(path, below), problem), reading.bare)
    if value is None or value is False:
        if entry.optional:
            return None
        if value is False:
            reading.refuse(path, "must be a table, got False; only an optional part can be switched off")
            return None
    return read_section(entry.cls, {} if value is None else value, path, reading)


def to_table(section: Any) -> dict[str, Any]:
    """Every value of a section object as plain numbers and text in base units, defaults included."""
    plain: dict[str, Any] = {}
    for field, entry in entries(type(section)):
        value = getattr(section, field)
        if isinstance(entry, Section):
            plain[entry.name] = False if value is None else to_table(value)
        elif value is not None:
            plain[entry.name] = entry.kind.raw(value)
    return plain


def sections(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A section object and the sections below it, with their dotted names."""
    yield path, section
    for field, entry in entries(type(section)):
        value = getattr(section, field)
        if isinstance(entry, Section) and value is not None:
            yield from sections(value, _join(path, entry.name))


def walk(section: Any) -> Iterator[tuple[str, Key, Any]]:
    """Every (dotted key, key, value) of a section object and of the sections below it."""
    for path, found in sections(section):
        for field, entry in entries(type(found)):
            if isinstance(entry, Key):
                yield _join(path, entry.name), entry, getattr(found, field)


def override(plain: dict[str, Any], cls: type[Any], dotted: str, value: object, reading: Reading) -> str:
    """Set one dotted key (TOML or field names) in a plain table; an unknown key is a problem.

    Returns the dotted key with TOML names.
    """
    place: Any = plain
    path = ""
    *above, last = dotted.split(".")
    for name in above:
        entry = _entry(cls, name)
        if not (isinstance(entry, Section) or (isinstance(entry, Key) and isinstance(entry.kind, MapOf))):
            known = [each.name for _, each in entries(cls)]
            reading.refuse(_join(path, name), unknown(_join(path, name), known))
            return dotted
        path = _join(path, name)
        if not isinstance(place.get(name), dict):
            place[name] = {}
        place = place[name]
        if isinstance(entry, Key):
            place[last] = value
            return _join(path, last)
        cls = entry.cls
    entry = _entry(cls, last)
    name = last if entry is None else entry.name
    if value is None and isinstance(entry, Key) and entry.nullable:
        place.pop(name, None)
    elif value is None and isinstance(entry, Section):
        place[name] = False
    else:
        place[name] = dict(value) if isinstance(value, FrozenTable) else value
    return _join(path, name)


def _entry(cls: type[Any], name: str) -> Key | Section | None:
    """A key or section by its field name or its TOML name."""
    return next((entry for field, entry in entries(cls) if name in {field, entry.name}), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
