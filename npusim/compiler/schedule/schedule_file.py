"""Schedules as JSON documents, as ``--schedule`` reads and ``--schedule-out`` writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from npusim.compiler.schedule.schedule import (
    AREAS,
    DRAM,
    L2,
    ORDERS,
    SEARCHED,
    LayerCascade,
    LayerShard,
    PinnedLayer,
    Schedule,
    TensorMemory,
)
from npusim.errors import ScheduleError, shown
from npusim.untrusted import FileKind

SCHEDULE = FileKind("schedule (JSON)", most=1 << 24, error=ScheduleError)

_T = TypeVar("_T")


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule file. Raises UsageError if it cannot be read, ScheduleError if its content is invalid."""
    return parse_schedule(SCHEDULE.json(path), os.fspath(path))


def parse_schedule(document: Any, label: str = "schedule") -> Schedule:
    """Convert a JSON document to a schedule. Raises ScheduleError; its message starts with ``label``."""
    try:
        return _record(Schedule, document, _SCHEDULE)
    except ScheduleError as error:
        raise ScheduleError(f"{label}: {error}") from None


def document(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON values. Default values are left out, except for ``search``."""
    found = {name: value for name, value in _document(schedule).items() if name != "search"}
    return {**found, "search": [kind for kind in SEARCHED if schedule.searches(kind)]}


def schedule_text(schedule: Schedule) -> str:
    """A schedule as the text of a file, one entry per line. Equal schedules give equal texts."""
    lines = []
    for name, value in document(schedule).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n".join(f"  {json.dumps(each)}" for each in value)
            lines.append(f"{json.dumps(name)}: [\n{entries}\n ]")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def _document(record: Any) -> dict[str, Any]:
    return {
        each.name: _value(getattr(record, each.name))
        for each in fields(record)
        if each.default is MISSING or getattr(record, each.name) != each.default
    }


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_value(each) for each in value]
    return _document(value) if hasattr(value, "__dataclass_fields__") else value


# reading

_Check = Callable[[str, Any], Any]


def _record(kind: type[_T], value: Any, checks: Mapping[str, _Check], where: str = "") -> _T:
    if not isinstance(value, dict):
        raise ScheduleError(f"{where or 'it'}: must be an object with the keys {', '.join(checks)}, got {shown(value)}")
    for key in value:
        if key not in checks:
            place = f"{where}: {shown(key)}" if where else shown(key)
            raise ScheduleError(f"{place}: must be one of the keys {', '.join(checks)}")
    needed = [each.name for each in fields(kind) if each.default is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in value]:
        raise ScheduleError(f"{where}: must have {missing[0]!r}")
    found = {
        key: check(f"{where}.{key}" if where else key, value[key]) for key, check in checks.items() if key in value
    }
    return kind(**found)


def _integer(least: int, what: str = "") -> _Check:
    def check(where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 48:
            raise ScheduleError(f"{where}: must be an integer of at least {least}{what}, got {shown(value)}")
        return value

    return check


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ScheduleError(f"{where}: must be a name, got {shown(value)}")
    return value


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ScheduleError(f"{where}: must be true or false, got {shown(value)}")
    return value


def _one_of(*allowed: str) -> _Check:
    def check(where: str, value: Any) -> Any:
        if value not in allowed:
            raise ScheduleError(f"{where}: must be one of {', '.join(map(repr, allowed))}, got {shown(value)}")
        return value

    return check


def _or_null(inner: _Check) -> _Check:
    return lambda where, value: None if value is None else inner(where, value)


def _list(inner: _Check, *, least: int = 0) -> _Check:
    def check(where: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < least:
            raise ScheduleError(f"{where}: must be a list{' with an entry' * bool(least)}, got {shown(value)}")
        return tuple([inner(f"{where}[{index}]", each) for index, each in enumerate(value)])

    return check


def _entries(kind: type[Any], name: str, checks: Mapping[str, _Check]) -> _Check:
    def check(where: str, value: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = _list(lambda place, each: _record(kind, each, checks, place))(where, value)
        if name:
            seen: set[str] = set()
            for index, entry in enumerate(found):
                if getattr(entry, name) in seen:
                    raise ScheduleError(f"{where}[{index}].{name}: {shown(getattr(entry, name))} has an entry already")
                seen.add(getattr(entry, name))
        return found

    return check


_OFFSET = _or_null(_integer(0))
_SCHEDULE: dict[str, _Check] = {
    "cores": _or_null(_integer(1)),
    "channels": _or_null(_integer(1)),
    "backing": _or_null(_one_of(DRAM, L2)),
    "exchange": _or_null(_flag),
    "large_tiles": _or_null(_flag),
    "constants": _or_null(_one_of(*ORDERS)),
    "fused_attention": _list(_text),
    "shards": _entries(
        LayerShard,
        "layer",
        {"layer": _text, "axis": _or_null(_integer(0)), "cores": _integer(0), "halo": _flag},
    ),
    "cascades": _entries(
        LayerCascade,
        "",
        {
            "layers": _list(_text, least=1),
            "rows": _integer(0),
            "overlap": _or_null(_flag),
            "loads": _or_null(_list(_text)),
            "offsets": _or_null(_list(_integer(0))),
        },
    ),
    "memory": _entries(TensorMemory, "tensor", {"tensor": _text, "area": _one_of(*AREAS), "offset": _OFFSET}),
    "pinned": _entries(PinnedLayer, "layer", {"layer": _text, "offset": _OFFSET}),
    "search": lambda where, value: frozenset(_list(_one_of(*SEARCHED))(where, value)),
}
