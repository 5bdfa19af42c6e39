"""The free keys of a fit: their values as coordinates of a search, and whether the description gives them a source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any

from npusim.errors import UsageError
from npusim.hw.build import walk
from npusim.hw.config import Config
from npusim.hw.files import DESCRIPTION, description_file
from npusim.hw.keys import Count, MapOf, Quantity, Ratio
from npusim.units import Dimension

UNSOURCED = ("chosen", "fitted")
"""How the comment of a key begins whose value has no source."""
_NO_FILE = "default", "override"
"""Origins of values that no description sets."""
_REACH = 64
"""The search looks at values from the given one divided by this to the given one times this."""
_DENOMINATOR = 10_000
_DIGITS = 4
_LARGEST = 50.0
"""Coordinate beyond every legal value: the end of an interval may be anywhere."""
_ONE_NS = 1000


@dataclass(frozen=True)
class FreeKey:
    """A number of a device that is fitted.

    The coordinate of a value is ln(value + offset), so that equal steps are equal factors; the offset, one unit, is for
    keys that may be 0.
    """

    key: str
    kind: Count | Quantity | Ratio
    given: Any

    @property
    def offset(self) -> int:
        """In the unit of the key: one, or a nanosecond."""
        if isinstance(self.kind, Ratio) or self.kind.minimum > 0:
            return 0
        return _ONE_NS if isinstance(self.kind, Quantity) and self.kind.dimension is Dimension.TIME else 1

    def coordinate(self, value: Any) -> float:
        """The coordinate of a value."""
        return math.log(float(value) + self.offset)

    def value(self, coordinate: float) -> Any:
        """The legal value that is nearest to a coordinate."""
        number = math.exp(min(coordinate, _LARGEST)) - self.offset
        if isinstance(self.kind, Ratio):
            most = Fraction(self.kind.maximum)
            return max(Fraction(1, _DENOMINATOR), min(Fraction(number).limit_denominator(_DENOMINATOR), most))
        whole = 2 ** max(0, round(math.log2(max(number, 1)))) if self.kind.power_of_two else round(number)
        return max(self.kind.minimum, min(whole, self.kind.maximum))

    def rounded(self, coordinate: float) -> float:
        """The coordinate of the value with four significant digits: more are not measured, and make text unreadable."""
        value = self.value(coordinate)
        if not isinstance(self.kind, Quantity) or self.kind.power_of_two or value == self.given:
            return self.coordinate(value)
        unit = 10 ** max(0, len(str(value)) - _DIGITS)
        return self.coordinate(max(self.kind.minimum, min((value + unit // 2) // unit * unit, self.kind.maximum)))

    @property
    def bounds(self) -> tuple[float, float]:
        """The coordinates between which the search looks."""
        start = self.coordinate(self.given)
        ends = [self.coordinate(self.value(start + sign * math.log(_REACH))) for sign in (-1, 1)]
        return ends[0], ends[1]

    def raw(self, coordinate: float) -> Any:
        """The value of a coordinate as :meth:`Config.with_` takes it."""
        return self.kind.raw(self.value(coordinate))

    def text(self, coordinate: float) -> str:
        """The value of a coordinate as TOML."""
        return self.kind.text(self.value(coordinate))


def free_keys(config: Config, names: Sequence[str], *, allow_sourced: bool = False) -> list[FreeKey]:
    """The named keys. Raises UsageError for one that is no positive number, is named twice or has a source."""
    numbers = {key.key: key for key in numeric_keys(config)}
    comments: dict[str, dict[str, str]] = {}
    found = []
    for name in names:
        if name not in numbers:
            close = ", ".join(get_close_matches(name, list(numbers), 3)) or ", ".join(list(numbers)[:5])
            raise UsageError(f"--free {name}: must be a numeric key of {config.name}; did you mean {close}?")
        label = config.origins.get(name) or config.origins.get(name.rpartition(".")[0], _NO_FILE[0])
        if label not in comments:
            comments[label] = {} if label in _NO_FILE else comments_of(label)
        source = comments[label].get(name, "")
        if source and not source.lower().startswith(UNSOURCED) and not allow_sourced:
            raise UsageError(f"--free {name}: has a source ({label}: {source}); --allow-sourced fits it nevertheless")
        if not numbers[name].given and not numbers[name].offset:
            raise UsageError(f"--free {name}: is 0; a fit starts from a positive value")
        found.append(numbers[name])
    if len(set(names)) < len(names):
        raise UsageError("--free: a key is named twice")
    return found


def numeric_keys(config: Config) -> Iterator[FreeKey]:
    """Every number of a device; those of tables of numbers by themselves."""
    for path, entry, given in walk(config):
        value = config.clock_hz if given is None and _is_frequency(entry.kind) else given
        if isinstance(entry.kind, MapOf) and isinstance(value, Mapping):
            for name, element in value.items():
                if isinstance(entry.kind.element, Count | Quantity | Ratio) and element is not None:
                    yield FreeKey(f"{path}.{name}", entry.kind.element, element)
        elif isinstance(entry.kind, Count | Quantity | Ratio) and value is not None:
            yield FreeKey(path, entry.kind, value)


def _is_frequency(kind: object) -> bool:
    return isinstance(kind, Quantity) and kind.dimension is Dimension.FREQUENCY


def comments_of(label: str) -> dict[str, str]:
    """The comments of a description by dotted key: at the end of the key's line, else right above it, else behind the
    header of its table."""
    return dict(_comments(parse_toml(description_file(label)), "", ""))


def parse_toml(file: Path) -> Any:
    """A description as a TOML document that keeps its comments. Raises UsageError if tomlkit is missing."""
    try:
        import tomlkit
    except ImportError:
        raise UsageError("fit needs tomlkit: pip install 'npusim[fit]'") from None
    return tomlkit.parse(DESCRIPTION.text(file))


def _comments(table: Any, path: str, inherited: str) -> Iterator[tuple[str, str]]:
    from tomlkit.items import Comment, InlineTable, Table, Whitespace

    above = ""
    for name, item in table.body if hasattr(table, "body") else table.value.body:
        if isinstance(item, Comment):
            above = above or _text(item)
        elif name is None or isinstance(item, Whitespace):
            above = ""
        else:
            key = f"{path}{name.key}"
            comment = _text(item) or above or inherited
            if isinstance(item, Table):
                yield from _comments(item, f"{key}.", _text(item))
            else:
                yield key, comment
                if isinstance(item, InlineTable):
                    yield from ((f"{key}.{element}", comment) for element in item)
            above = ""


def _text(item: Any) -> str:
    comment: str = item.trivia.comment
    return comment.lstrip("# ").strip()
