"""Other values of every key of a description that can change a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npusim.explore.estimates.designs import MISSING, known_keys, value_at
from npusim.hw.config import Config
from npusim.hw.keys import Choice, Count, Flag, MapOf, Quantity, Ratio
from npusim.units import Dimension

_WITHOUT_TIME = ("name", "description", "host", "energy", "technology", "area")
_SET = {Dimension.TIME: (100_000, 1_000_000), Dimension.SIZE: (64, 4096), None: (2, 64)}
"""Values of a number that is 0 or absent, in base units, by the dimension."""


def timing_keys() -> list[str]:
    """Return the keys that decide device times: not names, prices, areas or the host."""
    names = dict.fromkeys(name for name, _ in known_keys().values())
    return [key for key in names if key.split(".")[0] not in _WITHOUT_TIME]


def other_values(key: str, config: Config) -> Iterator[object]:
    """Yield other values of a key, as ``Config.with_`` takes them; none if the description lacks its section.

    Numbers are halved and doubled, or set twice where they are 0 or absent; flags are toggled. Some values contradict
    other keys.
    """
    value: Any = value_at(config, key)
    if value is MISSING:
        return
    kind = known_keys()[key][1].kind
    if isinstance(kind, Flag):
        yield not value
    elif isinstance(kind, Choice):
        yield from (option for option in kind.options() if option != value)
    elif isinstance(kind, Ratio):
        yield str(value / 2)
        if 2 * value <= kind.maximum:
            yield str(2 * value)
    elif isinstance(kind, MapOf):
        for times in (1, 2):
            divided = isinstance(kind.element, Ratio)
            scaled = {name: item * times / 2 if divided else item * 2 // times for name, item in value.items()}
            if scaled != value:
                yield {name: kind.element.raw(item) for name, item in scaled.items()}
    elif isinstance(kind, Count | Quantity):
        dimension = kind.dimension if isinstance(kind, Quantity) else None
        if value is None and dimension is Dimension.FREQUENCY:
            value = config.clock_hz
        tried = (value // 2, value * 2) if value else _SET.get(dimension, ())
        yield from (each for each in tried if kind.minimum <= each <= kind.maximum and each != value)
