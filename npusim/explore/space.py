"""A space of designs: devices, varied keys, models, objectives; read from one TOML file.

A design is a number: its digits are the indices of its values on the axes, the last axis least significant. A space of
any size therefore needs no list of designs, and a number has the same meaning in every process.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from npusim.errors import ConfigError, UsageError
from npusim.explore.axes import SpaceAxis, config_key, config_keys, name_of
from npusim.explore.formula import Formula
from npusim.explore.kinds import SearchConfig
from npusim.explore.workloads import Workload
from npusim.hw.build import walk
from npusim.hw.config import Config
from npusim.hw.keys import Choice, Flag, Ratio, Text, ValueType

MOST_DESIGNS = (1 << 63) - 1
"""The number of a design is a signed 64-bit integer in the store."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A key derived by a formula, or a name for formulas."""

    key: str
    kind: ValueType | None
    formula: Formula


@dataclass(frozen=True, slots=True)
class Design:
    """One point of a space. ``settings``: overrides of its base, plain values by dotted key."""

    number: int
    base: str
    config: Config
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Space:
    """Made by :func:`npusim.explore.reading.read_space`. A space is always valid, but single designs may not be.

    ``definition``: all data that determines the meaning of design numbers, as JSON values: bases, axes, formulas.
    """

    name: str
    bases: tuple[Config, ...]
    axes: tuple[SpaceAxis, ...]
    derived: tuple[Derived, ...]
    workloads: tuple[Workload, ...]
    objectives: tuple[Formula, ...]
    constraints: tuple[Formula, ...]
    search: SearchConfig
    definition: dict[str, Any]
    origin: str = ""
    _fixed: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.size

    @property
    def size(self) -> int:
        """Number of designs, including invalid ones."""
        return math.prod(self.radices)

    @property
    def radices(self) -> tuple[int, ...]:
        """Number of positions on each axis. The first axis is the base."""
        return (len(self.bases), *map(len, self.axes))

    @property
    def ordered(self) -> tuple[bool, ...]:
        """Which axes are ordered."""
        return (False, *(axis.ordered for axis in self.axes))

    def places(self, number: int) -> tuple[int, ...]:
        """The position of a design on every axis. Raises UsageError for an invalid number."""
        if not 0 <= number < self.size:
            raise UsageError(f"there is no design {number}; the space has 0 to {self.size - 1}")
        found = []
        for radix in reversed(self.radices):
            number, place = divmod(number, radix)
            found.append(place)
        return tuple(reversed(found))

    def number(self, places: Iterable[int]) -> int:
        """The number of the design at these positions."""
        number = 0
        for place, radix in zip(places, self.radices, strict=True):
            number = number * radix + place
        return number

    def settings(self, number: int) -> tuple[Config, dict[str, Any]]:
        """The base of a design and its overrides. Raises ConfigError if a formula does not give a valid value for its
        key."""
        base, values = self._chosen(number)
        return base, {key: value for key, value in values.items() if not _is_own(key)}

    def _chosen(self, number: int) -> tuple[Config, dict[str, Any]]:
        """The base of a design, and the values of all varied and derived keys, including names for formulas."""
        first, *rest = self.places(number)
        base = self.bases[first]
        values: dict[str, Any] = {axis.key: axis.chosen(place) for axis, place in zip(self.axes, rest, strict=True)}
        for each in self.derived:
            values[each.key] = self._derive(each, {**self._of_base(base), **_exact(values)}, number)
        return base, values

    def config(self, number: int) -> Config:
        """The complete description of a design. Raises ConfigError if its values contradict each other."""
        base, settings = self.settings(number)
        changes = {key: None if value is False and key not in _KEYS else value for key, value in settings.items()}
        return base.with_(**changes) if changes else base

    def design(self, number: int) -> Design:
        """A design with its description. Raises ConfigError."""
        base, settings = self.settings(number)
        return Design(number, base.name, self.config(number), settings)

    def names(self, number: int, config: Config) -> dict[str, Any]:
        """The values of the names in constraints and objectives, except figures."""
        _, chosen = self._chosen(number)
        values = {**_plain(config), **{key: value for key, value in chosen.items() if _is_own(key)}}
        return {**_exact({key: values[key] for key in chosen if key in values}), **values}

    def _of_base(self, base: Config) -> dict[str, Any]:
        if base.origin not in self._fixed:
            self._fixed[base.origin] = _plain(base)
        return self._fixed[base.origin]

    def _derive(self, each: Derived, values: Mapping[str, Any], number: int) -> Any:
        try:
            found = each.formula(values)
        except ZeroDivisionError:
            raise ConfigError(f"design {number}: {each.key}: {each.formula.text!r} divides by zero") from None
        if each.kind is None:
            return found
        if isinstance(each.kind, Choice | Flag | Text):
            return found
        name = name_of(each.kind)
        assert name is not None
        if not isinstance(found, int | Fraction):
            raise ConfigError(f"design {number}: {each.key}: {each.formula.text!r} is not known")
        exact = Fraction(found) / name.scale
        return exact.numerator if exact.denominator == 1 else str(exact)


def _is_own(key: str) -> bool:
    """Whether it is a name for formulas instead of a key of a device."""
    return isinstance(config_key(key), str)


_KEYS = dict(config_keys())
_RATIOS = {**{key.rpartition(".")[2]: kind for key, kind in _KEYS.items()}, **_KEYS}


def _plain(config: Config) -> dict[str, Any]:
    """Numbers in base units, texts and flags of a device, by dotted key; None for keys that it does not have."""
    found: dict[str, Any] = dict.fromkeys(_KEYS)
    found.update({key: value for key, entry, value in walk(config) if name_of(entry.kind) is not None})
    return found


def _exact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as formulas use them, with fractions as numbers. Also by the last part of a key if it is unambiguous:
    ``rows`` for ``matrix.rows``."""
    lasts = [key.rpartition(".")[2] for key in values]
    often = Counter(lasts)
    short = {last: values[key] for key, last in zip(values, lasts, strict=True) if often[last] == 1}
    return {key: _number(key, value) for key, value in {**short, **values}.items()}


def _number(key: str, value: Any) -> Any:
    return Fraction(value) if isinstance(value, str) and isinstance(_RATIOS.get(key), Ratio) else value
