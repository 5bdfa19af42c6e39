"""The values of a key of ``[vary]``: a list, or a range with a step or a factor. Each value is checked."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from npusim.errors import UsageError, shown
from npusim.explore.formula import DIMENSIONS, FLAG, NUMBER, TEXT, Name
from npusim.hw.config import Config
from npusim.hw.keys import Choice, Count, Flag, Key, MapOf, Quantity, Ratio, Section, Text, ValueType, entries, unknown
from npusim.units import Dimension, parse, show

Refuse = Callable[[str], None]
RANGE = ("from", "to", "step", "times")
MOST_VALUES = 4096
"""Limit of the values of one key; a longer range is most likely a mistake."""
MOST = 1 << 62
"""Limit of a number in a range; keys have their own limits."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{1,20}|/[0-9]{1,20})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class SpaceAxis:
    """One key and its values.

    ``plain``: values as ``Config.with_`` takes them, with numbers in base units. ``toml``: values as written in a file.
    ``ordered``: neighbouring values are similar, as for numbers, but not for names.
    """

    key: str
    plain: tuple[Any, ...]
    toml: tuple[Any, ...]
    ordered: bool
    name: Name

    def __len__(self) -> int:
        return len(self.plain)

    def chosen(self, place: int) -> Any:
        """The value at a position. The value of a variable that is no key of a device is stored as text if it is a
        fraction, and returned as a number."""
        plain = self.plain[place]
        return Fraction(plain) if self.name.dim == NUMBER and isinstance(config_key(self.key), str) else plain


@functools.lru_cache(4096)
def config_key(key: str) -> ValueType | Section | str:
    """The kind of a dotted key of a description, or its section. For an invalid key: the problem as text."""
    cls: type[Any] = Config
    *above, last = key.split(".")
    for place, name in enumerate(above):
        known = {entry.name: entry for _, entry in entries(cls)}
        entry = known.get(name)
        if isinstance(entry, Key) and isinstance(entry.kind, MapOf) and place == len(above) - 1:
            return entry.kind.element if last in entry.kind.names else unknown(last, entry.kind.names)
        if not isinstance(entry, Section):
            return unknown(name, list(known))
        cls = entry.cls
    known = {entry.name: entry for _, entry in entries(cls)}
    found = known.get(last)
    if found is None:
        return unknown(last, list(known))
    return found.kind if isinstance(found, Key) else found


def config_keys(cls: type[Any] = Config, path: str = "") -> Iterator[tuple[str, ValueType]]:
    """Every dotted key with a single value, and its kind."""
    for _, entry in entries(cls):
        if isinstance(entry, Section):
            yield from config_keys(entry.cls, f"{path}{entry.name}.")
        else:
            yield path + entry.name, entry.kind


def name_of(kind: ValueType | Section | None) -> Name | None:
    """The operations of a formula on values of a kind; None for a kind without single values."""
    match kind:
        case Quantity():
            return Name(*DIMENSIONS[kind.dimension])
        case Count() | Ratio():
            return Name(NUMBER)
        case Choice() | Text():
            return Name(TEXT)
        case Flag():
            return Name(FLAG)
    return None


def read_axis(key: str, raw: object, kind: ValueType | Section | None, refuse: Refuse) -> SpaceAxis | None:
    """The axis of an entry of ``[vary]``. None if it is invalid; all problems are passed to ``refuse``.

    ``kind``: None for a variable defined by the space, whose values are numbers, quantities of one unit, or names.
    """
    if isinstance(raw, Mapping):
        values = _range(raw, kind, refuse)
    elif isinstance(raw, Sequence) and not isinstance(raw, str):
        values = list(raw) if raw else None
        if values is None:
            refuse("must have at least one value, got []")
    else:
        refuse(f"must be a list of values or a range {{ from, to, step or times }}, got {shown(raw)}")
        return None
    if values is None:
        return None
    kind = _kind_of(values) if kind is None else kind
    name, reader = _reader(kind)
    problems: list[str] = []
    plain = [reader(value, problems.append) for value in values]
    for problem in dict.fromkeys(problems):
        refuse(problem)
    if problems:
        return None
    keyed = [repr(value) for value in plain]
    if len(set(keyed)) < len(keyed):
        again = next(value for place, value in enumerate(values) if keyed[place] in keyed[:place])
        refuse(f"must have each value once, got {shown(again)} again")
        return None
    ordered = not isinstance(name.dim, str) and len(plain) > 1 and all(_less(a, b) for a, b in pairwise(plain))
    return SpaceAxis(key, tuple(plain), tuple(_toml(value, kind) for value in plain), ordered, name)


def _less(a: Any, b: Any) -> bool:
    return bool(Fraction(a) < Fraction(b))


def _toml(plain: Any, kind: ValueType | Section) -> Any:
    return show(plain, kind.dimension) if isinstance(kind, Quantity) and plain is not None else plain


def _reader(kind: ValueType | Section) -> tuple[Name, Callable[[object, Refuse], Any]]:
    if isinstance(kind, Section):
        return Name(FLAG), lambda value, refuse: _switched(value, kind, refuse)
    return name_of(kind) or Name(TEXT), lambda value, refuse: _read(value, kind, refuse)


def _kind_of(values: Sequence[object]) -> ValueType:
    """The kind of a variable defined by the space, from its first value."""
    dimension = next((d for d in Dimension if isinstance(values[0], str) and _parses(values[0], d)), None)
    if dimension is not None:
        return Quantity(dimension)
    if isinstance(values[0], str):
        return Text()
    if isinstance(values[0], bool):
        return Flag()
    return Ratio(1 << 40)


def _parses(text: str, dimension: Dimension) -> bool:
    try:
        parse(text, dimension)
    except UsageError:
        return False
    return True


def _switched(value: object, kind: Section, refuse: Refuse) -> Any:
    if value is False and kind.optional:
        return False
    if not isinstance(value, Mapping):
        refuse(f"must be a table{' or false' if kind.optional else ''}, got {shown(value)}")
        return None
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # dates and non-finite numbers: no key has them, and no store can hold them
        refuse(f"must be a table of finite numbers, texts and flags, got {shown(value)}")
        return None
    return dict(value)


def _read(value: object, kind: ValueType, refuse: Refuse) -> Any:
    """The value as plain data in base units."""
    found = kind.read(value, lambda below, problem: refuse(f"{below}: {problem}" if below else problem), False)
    return None if found is None else kind.raw(found)


def _is_range(raw: Mapping[str, object], refuse: Refuse) -> bool:
    """Whether a table has the keys of a range."""
    wrong = [name for name in raw if name not in RANGE]
    for name in wrong:
        refuse(f"{name}: {unknown(name, RANGE)}")
    lacking = [name for name in ("from", "to") if name not in raw]
    for name in lacking:
        refuse(f"{name}: missing; must be given: the {'first' if name == 'from' else 'last'} value of the range")
    if ("step" in raw) == ("times" in raw):
        refuse("must have either step, which is added to a value for the next one, or times, its factor")
        return False
    return not wrong and not lacking


def _range(raw: Mapping[str, object], kind: ValueType | Section | None, refuse: Refuse) -> list[Any] | None:
    """The values from ``from`` up to and, if it is reached, including ``to``."""
    if not _is_range(raw, refuse):
        return None
    if not isinstance(kind, Quantity | Count | Ratio | None):
        refuse("must be a list: a range needs a key with numbers")
        return None
    dimension = kind.dimension if isinstance(kind, Quantity) else None
    if kind is None and isinstance(raw["from"], str):
        dimension = next((d for d in Dimension if _parses(str(raw["from"]), d)), None)
    numbers = {name: _number(value, dimension if name != "times" else None) for name, value in raw.items()}
    for name, number in numbers.items():
        if number is None:
            wanted = dimension.noun + f" such as '{dimension.example}'" if dimension and name != "times" else "a number"
            refuse(f"{name}: must be {wanted}, got {shown(raw[name])}")
    first, last, step, times = (numbers.get(name) for name in RANGE)
    if first is None or last is None or (step is None and times is None):
        return None
    if last < first:
        refuse(f"to: must be >= from, got {shown(raw['to'])}")
    elif step is not None and step <= 0:
        refuse(f"step: must be > 0, got {shown(raw['step'])}")
    elif times is not None and (times <= 1 or first <= 0):
        refuse(f"times: must be > 1, from a value > 0; got {shown(raw['times'])} from {shown(raw['from'])}")
    else:
        return _steps(first, last, step, times, dimension, refuse)
    return None


def _steps(
    first: Fraction,
    last: Fraction,
    step: Fraction | None,
    times: Fraction | None,
    dimension: Dimension | None,
    refuse: Refuse,
) -> list[Any] | None:
    found: list[Any] = []
    value = first
    while value <= last:
        if value > MOST or value.denominator > Ratio.limit:
            refuse(f"must meet numbers up to {MOST} with denominators up to {Ratio.limit} only, got {float(value):g}")
            return None
        if len(found) == MOST_VALUES:
            refuse(f"must have at most {MOST_VALUES} values")
            return None
        if dimension is not None:
            if value.denominator != 1:
                refuse(f"must meet whole numbers of {dimension.base} only, got {float(value):g}")
                return None
            found.append(show(value.numerator, dimension))
        else:
            found.append(value.numerator if value.denominator == 1 else str(value))
        value = value + step if step is not None else value * (times or 1)
    return found


def _number(value: object, dimension: Dimension | None) -> Fraction | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and dimension is not None:
        try:
            return Fraction(parse(value, dimension))
        except UsageError:
            return None
    if dimension not in (None, Dimension.SIZE) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
        return None
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        return None
