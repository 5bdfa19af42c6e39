"""Schedule files: each value has a type and limits; a value outside of them is refused and its path named."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from npusim.compiler.schedule.schedule import AREAS, DRAM, L2, ORDERS, SEARCHED
from npusim.compiler.schedule.schedule_file import document, parse_schedule, schedule_text
from npusim.errors import ScheduleError
from tests.support.nested import Path, changed, leaves

FULL: dict[str, Any] = {
    "cores": 2,
    "channels": 2,
    "backing": DRAM,
    "exchange": False,
    "large_tiles": False,
    "constants": ORDERS[1],
    "fused_attention": ["a"],
    "shards": [{"layer": "a", "axis": 1, "cores": 2}],
    "cascades": [{"layers": ["a"], "rows": 3, "overlap": True, "loads": ["x"], "offsets": [64]}],
    "memory": [{"tensor": "x", "area": "scratchpad", "offset": 64}],
    "pinned": [{"layer": "a", "offset": 64}],
    "search": ["memory"],
}
"""A document with every key, none with its default value."""
CHOICES = {"backing": (DRAM, L2), "constants": ORDERS, "area": AREAS, "search": SEARCHED}
COUNTED = ("cores", "channels")
"""Integers that start at 1; all others start at 0."""
OPTIONAL = ("cores", "channels", "backing", "exchange", "large_tiles", "constants", "axis", "overlap", "offset")


def place(path: Path) -> str:
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path).removeprefix(".")


def accepted(path: Path, value: Any) -> list[Any]:
    """Return valid replacements for ``value``, including the least and the largest."""
    name = next(each for each in reversed(path) if isinstance(each, str))
    empty = [None] if name in OPTIONAL and path != ("shards", 0, "cores") else []
    if name in CHOICES:
        return [*CHOICES[name], *empty]
    if isinstance(value, bool):
        return [True, False, *empty]
    if isinstance(value, int):
        return [1 if path in ((each,) for each in COUNTED) else 0, (1 << 48) - 1, *empty]
    return ["b", *empty]


@pytest.mark.parametrize(("path", "value"), leaves(FULL), ids=str)
def test_each_value_has_a_kind_and_limits(path: Path, value: Any) -> None:
    good = accepted(path, value)
    for each in good:
        parse_schedule(changed(FULL, path, each))
    for wrong in (None, True, 0, -1, 1 << 48, 0.5, "", "none of them", [], {}):
        if not any(type(wrong) is type(each) and wrong == each for each in good) and (
            wrong != "none of them" or not isinstance(value, str) or any(name in CHOICES for name in path)
        ):
            if type(wrong) is int and type(value) is int and 0 < wrong < 1 << 48:
                continue
            with pytest.raises(ScheduleError, match=f"^schedule: {re.escape(place(path))}: must be"):
                parse_schedule(changed(FULL, path, wrong))


def test_a_schedule_is_read_as_it_was_written() -> None:
    schedule = parse_schedule(FULL)
    assert document(schedule) == FULL
    assert parse_schedule(json.loads(schedule_text(schedule))) == schedule
    assert schedule_text(schedule).count("\n") == len(FULL) + 2 + 2 * 4  # each list entry is on its own line
    assert document(parse_schedule({})) == {"search": list(SEARCHED)}


@pytest.mark.parametrize("path", [("shards",), ("cascades",), ("memory",), ("pinned",)])
def test_entries_are_objects_with_their_keys(path: Path) -> None:
    (first,) = FULL[path[0]]
    for wrong, what in (({}, "must be a list"), ([3], "[0]: must be an object"), ([{**first, "y": 1}], "[0]: 'y'")):
        with pytest.raises(ScheduleError, match=re.escape(f"{path[0]}{what if what[0] == '[' else ': ' + what}")):
            parse_schedule(changed(FULL, path, wrong))
    named = next(iter(first))
    with pytest.raises(ScheduleError, match=re.escape(f"{path[0]}[0]: must have '{named}'")):
        parse_schedule(changed(FULL, path, [{name: each for name, each in first.items() if name != named}]))
    twice = changed(FULL, path, [first, first])
    if path == ("cascades",):
        assert len(parse_schedule(twice).cascades) == 2
    else:
        with pytest.raises(ScheduleError, match=re.escape(f"{path[0]}[1].{named}: ") + ".* has an entry already"):
            parse_schedule(twice)
