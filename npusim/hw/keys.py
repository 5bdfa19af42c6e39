"""Types of values of a device description: each reads, validates, prints and documents its values.

A section is a frozen dataclass with fields made by :func:`key` or :func:`section`; the loader, the JSON Schema and the
manual are derived from these fields.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from npusim.errors import UsageError, shown
from npusim.units import Dimension, parse, show

V = TypeVar("V")
Refuse = Callable[[str, str], None]
"""Called with (name below the key or '', problem)."""


class FrozenTable(Mapping[str, V]):
    """A read-only mapping that can be hashed and pickled, so that a config can be a dictionary key."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V] | None = None, /) -> None:
        self._items: dict[str, V] = dict(items or {})

    def __getitem__(self, name: str) -> V:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        # Independent of the order, like equality of mappings.
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"Table({self._items})"


class ValueType(ABC):
    """A type of value. ``read`` returns the value, or calls ``refuse`` and returns None."""

    @abstractmethod
    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        """``bare``: numbers without a unit are in base units (overrides from Python; never from a file)."""

    def raw(self, value: Any) -> Any:
        """A plain value (of JSON) that ``read(..., bare=True)`` turns back into ``value``."""
        return value

    def text(self, value: Any) -> str:
        """The value as TOML."""
        return str(value)

    @abstractmethod
    def allowed(self) -> str:
        """The allowed values as text for the manual."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the value as written in TOML."""


@dataclasses.dataclass(frozen=True)
class Count(ValueType):
    """A whole number without a unit."""

    minimum: int = 0
    maximum: int = 1 << 20
    power_of_two: bool = False

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            names = {bool: "flag", float: "number", str: "string", dict: "table"}
            refuse("", f"must be a whole number, got {shown(value)} (a {names.get(type(value), type(value).__name__)})")
            return None
        return _within(value, self, refuse, str, shown(value))

    def allowed(self) -> str:
        return f"{'power of two' if self.power_of_two else 'whole number'}, {self.minimum} to {self.maximum}"

    def schema(self) -> dict[str, Any]:
        values = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        if not self.power_of_two:
            return values
        powers = [1 << bit for bit in range(self.maximum.bit_length()) if self.minimum <= 1 << bit <= self.maximum]
        return {"type": "integer", "enum": powers}


@dataclasses.dataclass(frozen=True)
class Quantity(ValueType):
    """A number with a unit, kept as an integer in the base unit; a size may be written as plain bytes."""

    dimension: Dimension
    minimum: int = 0
    maximum: int = 1 << 62
    power_of_two: bool = False

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        dimension = self.dimension
        if isinstance(value, str):
            try:
                number = parse(value, dimension)
            except UsageError as error:
                refuse("", str(error))
                return None
        elif isinstance(value, int) and not isinstance(value, bool) and (bare or dimension is Dimension.SIZE):
            number = value
        else:
            refuse("", f'must be {dimension.noun} with its unit, such as "{dimension.example}", got {shown(value)}')
            return None
        # A refused value is shown as written, with the unit assumed for a bare number.
        got = value if isinstance(value, str) else f"{shown(number)} {dimension.base}"
        return _within(number, self, refuse, lambda limit: show(limit, dimension), got)

    def text(self, value: Any) -> str:
        return f'"{show(value, self.dimension)}"'

    def allowed(self) -> str:
        low, high = show(self.minimum, self.dimension), show(self.maximum, self.dimension)
        power = " (power of two)" if self.power_of_two else ""
        return f"{self.dimension.noun.split(' ', 1)[1]}{power}, {low} to {high}"

    def schema(self) -> dict[str, Any]:
        units = "|".join(self.dimension.suffixes)
        text = {"type": "string", "pattern": rf"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*({units})\s*$"}
        if self.dimension is not Dimension.SIZE:
            return text
        return {"anyOf": [text, {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}]}


def _within(number: int, kind: Count | Quantity, refuse: Refuse, shown: Callable[[int], str], got: str) -> int | None:
    """The number, or None if it is refused for being out of range."""
    if number < kind.minimum:
        refuse("", f"must be >= {shown(kind.minimum)}, got {got}")
    elif number > kind.maximum:
        refuse("", f"must be <= {shown(kind.maximum)}, got {got}")
    elif kind.power_of_two and number & (number - 1):
        refuse("", f"must be a power of two, got {got}")
    else:
        return number
    return None


@dataclasses.dataclass(frozen=True)
class Flag(ValueType):
    """true or false."""

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, bool):
            return value
        refuse("", f"must be true or false, got {shown(value)}")
        return None

    def text(self, value: Any) -> str:
        return "true" if value else "false"

    def allowed(self) -> str:
        return "true, false"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclasses.dataclass(frozen=True)
class Choice(ValueType):
    """One of several names. ``names``: a function if they are found at run time (kinds of units)."""

    names: tuple[str, ...] | Callable[[], tuple[str, ...]]

    def options(self) -> tuple[str, ...]:
        """The allowed names."""
        return self.names() if callable(self.names) else self.names

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, str) and value in self.options():
            return value
        refuse("", f"must be one of {', '.join(self.options())}, got {shown(value)}")
        return None

    def text(self, value: Any) -> str:
        return f'"{value}"'

    def allowed(self) -> str:
        return ", ".join(self.options())

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.options())}


@dataclasses.dataclass(frozen=True)
class Text(ValueType):
    """Free text of one line."""

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if isinstance(value, str) and value.isprintable():
            return value
        refuse("", f"must be one line of text, got {shown(value)}")
        return None

    def text(self, value: Any) -> str:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    def allowed(self) -> str:
        return "text"

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


_RATIO = re.compile(r"[0-9]{1,9}(/0*[1-9][0-9]{0,8}|\.[0-9]{1,9})?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Ratio(ValueType):
    """An exact fraction: a whole number, a decimal, or text such as "1/2"; never rounded."""

    maximum: int = 1024
    positive: bool = False
    limit = 1 << 20  # limit of the denominator, which keeps the cost arithmetic small

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        problem = f'must be a number or a fraction such as "1/2", got {shown(value)}'
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            if isinstance(value, str) and not _RATIO.fullmatch(value):
                raise ValueError
            ratio = Fraction(str(value))
        except (ValueError, ZeroDivisionError):
            refuse("", problem)
            return None
        got = value if isinstance(value, str) else shown(value)
        if ratio < 0 or (self.positive and not ratio):
            refuse("", f"must be {'> 0' if self.positive else '>= 0'}, got {got}")
        elif ratio > self.maximum:
            refuse("", f"must be <= {self.maximum}, got {got}")
        elif ratio.denominator > self.limit:
            refuse("", f"must have a denominator <= {self.limit}, got {got}")
        else:
            return ratio
        return None

    def raw(self, value: Any) -> Any:
        return value.numerator if value.denominator == 1 else str(value)

    def text(self, value: Any) -> str:
        return str(value) if value.denominator == 1 else f'"{value}"'

    def allowed(self) -> str:
        return f'number or fraction such as "1/2", {"above 0" if self.positive else "0"} to {self.maximum}'

    def schema(self) -> dict[str, Any]:
        number: dict[str, Any] = {"type": "number", "maximum": self.maximum}
        number["exclusiveMinimum" if self.positive else "minimum"] = 0
        return {"anyOf": [number, {"type": "string", "pattern": f"^{_RATIO.pattern}$"}]}


@dataclasses.dataclass(frozen=True)
class MapOf(ValueType):
    """A table with a fixed set of names and one type of value; missing names have their default, if any."""

    names: tuple[str, ...]
    element: ValueType
    defaults: tuple[tuple[str, Any], ...] = ()

    def read(self, value: object, refuse: Refuse, bare: bool) -> Any:
        if not isinstance(value, Mapping):
            refuse("", f"must be a table of {', '.join(self.names)}, got {shown(value)}")
            return None
        found = dict(self.defaults)
        for name, item in value.items():
            if name not in self.names:
                refuse(name, unknown(name, self.names))
                continue
            inner = self.element.read(item, lambda _, problem, name=name: refuse(name, problem), bare)  # type: ignore[misc]
            if inner is not None:
                found[name] = inner
        return FrozenTable({name: found[name] for name in self.names if name in found})

    def raw(self, value: Any) -> Any:
        return {name: self.element.raw(item) for name, item in value.items()}

    def text(self, value: Any) -> str:
        return "{ " + ", ".join(f"{name} = {self.element.text(item)}" for name, item in value.items()) + " }"

    def allowed(self) -> str:
        return f"table of {', '.join(self.names)}: {self.element.allowed()}"

    def schema(self) -> dict[str, Any]:
        properties = {name: self.element.schema() for name in self.names}
        return {"type": "object", "additionalProperties": False, "properties": properties}


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of a section: its TOML name, type and description."""

    name: str
    kind: ValueType
    doc: str
    required: bool
    nullable: bool


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of keys. If an optional one is absent (or ``= false``), the device does not have that part."""

    name: str
    cls: type[Any]
    doc: str
    optional: bool


_UNIT_SUFFIXES = ("_hz", "_ps", "_fj", "_uw", "_um2", "_nm", "_mv")


def key(kind: ValueType, doc: str, default: Any = dataclasses.MISSING) -> Any:
    """A dataclass field for one value. Without ``default`` the key is required; with default None it may be left
    out."""
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"kind": kind, "doc": doc, "required": True})
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc, "required": False})


def table(kind: MapOf, doc: str) -> Any:
    """A dataclass field for a table of values, by default the table's own defaults."""
    return dataclasses.field(
        default=FrozenTable(dict(kind.defaults)), metadata={"kind": kind, "doc": doc, "required": False}
    )


def section(cls: type[Any], doc: str, optional: bool = False) -> Any:
    """A dataclass field for a section of keys."""
    metadata = {"section": cls, "doc": doc, "optional": optional}
    return dataclasses.field(default=None, metadata=metadata) if optional else dataclasses.field(metadata=metadata)


def entries(cls: type[Any]) -> tuple[tuple[str, Key | Section], ...]:
    """The (field name, key or section) pairs of a section class, in the order in which they are documented."""
    return _entries(cls)  # type: ignore[arg-type]  # mypy does not know that classes are hashable


@functools.cache
def _entries(cls: type[Any]) -> tuple[tuple[str, Key | Section], ...]:
    found: list[tuple[str, Key | Section]] = []
    for field in dataclasses.fields(cls):
        data = field.metadata
        if "section" in data:
            found.append((field.name, Section(field.name, data["section"], data["doc"], data["optional"])))
        elif "kind" in data:
            suffix = next((end for end in _UNIT_SUFFIXES if field.name.endswith(end)), "")
            name = field.name.removesuffix(suffix)
            found.append((field.name, Key(name, data["kind"], data["doc"], data["required"], field.default is None)))
    return tuple(found)


_ONE_KIND = re.compile(r"kind (\w+):")
"""Beginning of the description of a key that only one kind of its section uses."""


def unused(section: Any) -> tuple[tuple[str, Key, Any], ...]:
    """(field name, key, default) of the keys of a section object that only another kind of it uses."""
    kind = getattr(section, "kind", None)
    if not isinstance(kind, str):
        return ()
    return _unused(type(section), kind)  # type: ignore[arg-type]  # as above


@functools.cache
def _unused(cls: type[Any], kind: str) -> tuple[tuple[str, Key, Any], ...]:
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    return tuple(
        (field, entry, defaults[field])
        for field, entry in entries(cls)
        if isinstance(entry, Key) and (only := _ONE_KIND.match(entry.doc)) and only[1] != kind
    )


RENAMED = {
    "code_apart": "separate_code_port",
    "writes_apart": "separate_write_port",
    "weights_apart": "separate_weight_port",
}
"""Former names of keys, for the error message."""

MOVED = {
    **{key: f"compiler.{key}" for key in ("layer_cycles", "layer_bytes")},
    "matrix.weight_tiles": "compiler.weight_tiles",
    "vector.pools_outputs": "compiler.pools_outputs",
    **{f"sram.{key}": f"compiler.{key}" for key in ("keeps_values", "resident_weights", "resident_bytes")},
    **{f"dma.{key}": f"compiler.{key}" for key in ("parts_in_place", "inputs_ahead")},
}
"""Former places of keys: dotted key by the former dotted key."""


def unknown(path: str, allowed: Sequence[str]) -> str:
    """The message for a key that does not exist. ``path``: dotted. ``allowed``: the keys of the same table."""
    from difflib import get_close_matches

    name = path.rpartition(".")[2]
    if path in MOVED:
        return f"moved to '{MOVED[path]}'"
    if RENAMED.get(name) in allowed:
        return f"renamed to '{RENAMED[name]}'"
    close = get_close_matches(name, allowed, 1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"unknown key{hint}; allowed: {', '.join(allowed)}"
