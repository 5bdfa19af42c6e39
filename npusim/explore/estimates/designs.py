"""Many devices at once: one config, and arrays of the values that differ between the devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.compiler.schedule.dram import by_l2
from npusim.hw.config import Config
from npusim.hw.keys import Key, Section, entries
from npusim.hw.memory import dram_model, l2_side
from npusim.timing.batch import evaluate, replaced, with_values

Array = npt.NDArray[np.floating[Any]]
Index = npt.NDArray[np.intp]


@functools.cache
def known_keys() -> Mapping[str, tuple[str, Key]]:
    """Every key by its dotted name, both as in TOML and as field names: (name in TOML, the key)."""
    found: dict[str, tuple[str, Key]] = {}

    def walk(cls: type[Any], path: str, fields: str) -> None:
        for field, entry in entries(cls):
            if isinstance(entry, Section):
                walk(entry.cls, f"{path}{entry.name}.", f"{fields}{field}.")
            else:
                found[path + entry.name] = found[fields + field] = (path + entry.name, entry)

    walk(Config, "", "")
    return found


def fields_of(key: str) -> tuple[str, ...]:
    """The attributes of a Config that lead to a key's value, by its name in TOML."""
    return _fields()[key]


def value_at(config: Config, key: str) -> Any:
    """A key's value; ``MISSING`` if the device does not have the key's section."""
    value: Any = config
    for name in fields_of(key):
        if value is None:
            return MISSING
        value = getattr(value, name)
    return value


MISSING = object()


@functools.lru_cache(512)
def is_left(key: str, config: Config, reduce: Callable[[Config], Config]) -> bool:
    """Whether ``reduce``, which removes everything that some costs do not depend on, keeps a number."""
    value = value_at(config, key)
    if value is MISSING:
        return False
    # A value that the reduction sets may happen to equal the device's own.
    other = 2 * (value or 0) + 1
    return bool(_reduced(key, config, reduce, other) == other)


def _reduced(key: str, config: Config, reduce: Callable[[Config], Config], value: Any) -> Any:
    """The value of a key after the reduction; ``MISSING`` if the reduction removes the key's section."""
    return value_at(reduce(with_values(config, {fields_of(key): value})), key)


@functools.cache
def _fields() -> Mapping[str, tuple[str, ...]]:
    """The attributes that lead to a key's value, by its name in TOML."""
    found = {}

    def walk(cls: type[Any], path: str, fields: tuple[str, ...]) -> None:
        for field, entry in entries(cls):
            if isinstance(entry, Section):
                walk(entry.cls, f"{path}{entry.name}.", (*fields, field))
            else:
                found[path + entry.name] = (*fields, field)

    walk(Config, "", ())
    return found


_BEYOND_L2 = ("dram.", "interconnect.", "dma.burst_bytes", "dma.write_latency", "l2.")
"""Keys that transfers to and from the L2 do not depend on."""


class Designs:
    """``count`` devices: ``config``, and ``columns`` of the values that replace its own, in base units, by key.

    ``designs["dram.bandwidth"]`` is a float64 array of ``count`` elements, or of one element if all designs agree, so
    that derived values are computed once. A clock that is left out is the device's clock.
    """

    def __init__(self, config: Config, columns: Mapping[str, Array], count: int) -> None:
        self.config = config
        self.columns = dict(columns)
        self.count = count
        self._known: dict[str, Array] = {}
        self._alike: dict[tuple[str, ...], tuple[Designs, Index]] = {}
        self._l2: Designs | None = None
        self.known: dict[Any, Any] = {}
        """Cached results for these designs, by name."""
        self._seen: dict[tuple[Callable[[Config], Config], tuple[str, ...]], tuple[Designs, Index]] = {}

    def __getitem__(self, key: str) -> Array:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(key)
        return found

    def _read(self, key: str) -> Array:
        found = self.columns.get(key)
        if found is None:
            value: Any = self.config
            for name in _fields()[key]:
                value = getattr(value, name)
            found = np.array([np.nan if value is None else float(value)])
        missing = np.isnan(found)
        if missing.any():  # only clocks may be
            found = np.where(missing, self["clock"], found)
        return found

    def l2_side(self) -> Designs:
        """The same designs for transfers to and from their L2: see :func:`npusim.hw.memory.l2_side`."""
        if self._l2 is None:
            columns = {key: values for key, values in self.columns.items() if not key.startswith(_BEYOND_L2)}
            columns["dram.bandwidth"] = self["l2.bytes_per_cycle"] * self["clock"]
            columns["dram.latency"] = np.ceil(self["l2.latency_cycles"] * 1e12 / self["clock"])
            columns["interconnect.bytes_per_cycle"] = self["l2.bytes_per_cycle"]
            columns["dma.burst_bytes"] = self["l2.line_bytes"]
            self._l2 = Designs(l2_side(self.config), columns, self.count)
        return self._l2

    def by_l2(self) -> Designs:
        """The same designs with the L2 in place of the DRAM: see :func:`npusim.compiler.schedule.dram.by_l2`."""
        near, side = by_l2(self.config), self.l2_side()
        assert near is not None
        columns = {key: values for key, values in self.columns.items() if not key.startswith("dram.")}
        columns |= {"dram.bandwidth": side["dram.bandwidth"], "dram.latency": side["dram.latency"]}
        if self.config.constants is None:
            columns["constants.bandwidth"] = self.figure(
                "bandwidth of the part", lambda config: dram_model(config).bandwidth
            )
            columns["constants.latency"] = self["dram.latency"]
        return Designs(near, columns, self.count)

    def evaluate(self, ask: Callable[..., Any], *fields: Any) -> tuple[Array, ...]:
        """See :func:`npusim.timing.batch.evaluate`; arrays are of [works][designs]."""
        columns = {_fields()[key]: np.asarray(self[key], np.float64) for key in self.columns}
        return evaluate(ask, self.config, columns, fields)

    def figure(self, name: Hashable, ask: Callable[[Config], Any]) -> Array:
        """The result of ``ask`` for each device, cached by ``name``."""
        if name not in self.known:
            (self.known[name],) = self.evaluate(ask)
        found: Array = self.known[name]
        return found

    def seen_by(self, reduce: Callable[[Config], Config], keys: tuple[str, ...] = ()) -> tuple[Designs, Index]:
        """The distinct designs after ``reduce``, or by ``keys``, and the index of each design among them.

        Costs that depend on nothing else are equal for designs with the same index.
        """
        if (reduce, keys) not in self._seen:
            columns = {key: found for key in self.columns if (found := self._left(key, reduce)) is not None}
            columns |= {key: self.columns[key] for key in keys if key in self.columns}
            names = tuple(key for key, values in columns.items() if (values != value_at(self.config, key)).any())
            self._seen[reduce, keys] = Designs(self.config, columns, self.count).alike(names)
        return self._seen[reduce, keys]

    def _left(self, key: str, reduce: Callable[[Config], Config]) -> Array | None:
        """A column after the reduction; None if the reduction removes it. A reduction bounds a number, sets it, or
        keeps it: its effect on the extremes shows which."""
        values = self[key]
        ends = [values.min(), values.max()]
        left = [_reduced(key, self.config, reduce, each) for each in ends]
        if MISSING in left:
            return None
        if left == ends:
            return values
        if left[0] == left[1]:
            return np.array(left[:1], np.float64)
        some, numbers = np.unique(values, return_inverse=True)
        return np.array([_reduced(key, self.config, reduce, each) for each in some], np.float64)[numbers]

    def take(self, rows: Index) -> Designs:
        """The designs with the indices ``rows``."""
        columns = {key: values[rows] if len(values) > 1 else values for key, values in self.columns.items()}
        return Designs(self.config, columns, len(rows))

    def alike(self, keys: tuple[str, ...]) -> tuple[Designs, Index]:
        """The distinct designs by some keys, without the other columns, and the index of each design among them."""
        if keys not in self._alike:
            self._alike[keys] = self._new_alike(keys)
        return self._alike[keys]

    def _new_alike(self, keys: tuple[str, ...]) -> tuple[Designs, Index]:
        wanted = [key for key in keys if len(self.columns.get(key, ())) > 1]
        alone = {key: self.columns[key] for key in keys if len(self.columns.get(key, ())) == 1}
        if not wanted:
            return Designs(self.config, alone, 1), np.zeros(self.count, np.intp)
        # Columns are encoded as small numbers and combined into one: sorting rows of floats is far slower.
        code, size = np.zeros(self.count, np.int64), 1
        for key in wanted:
            values, numbers = np.unique(self.columns[key], return_inverse=True)
            if size * len(values) > 1 << 62:
                code = np.unique(code, return_inverse=True)[1].astype(np.int64)
                size = int(code.max()) + 1
            code, size = code * len(values) + numbers, size * len(values)
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return Designs(self.config, alone | {key: self.columns[key][first] for key in wanted}, len(first)), inverse


def config_at(designs: Designs, number: int) -> Config:
    """The device of one design."""
    exact: dict[tuple[str, ...], Any] = {}
    for key, values in designs.columns.items():
        value = values[number] if len(values) > 1 else values[0]
        kept = value_at(designs.config, key)
        exact[fields_of(key)] = None if np.isnan(value) else type(kept)(value) if kept is not None else int(value)
    config: Config = replaced(designs.config, exact)
    return config
