"""Many devices at once: a config, and arrays of those of its values that differ."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.hw.config import Config
from npusim.hw.keys import Key, Section, entries
from npusim.hw.memory import l2_side

Array = npt.NDArray[np.floating[Any]]
Index = npt.NDArray[np.intp]

VECTORISED = (
    "clock",
    "matrix.rows", "matrix.cols", "matrix.clock", "matrix.setup_cycles", "matrix.accumulator_bytes",
    "matrix.output_elements_per_cycle", "matrix.arrays",
    "vector.lanes", "vector.clock", "vector.setup_cycles",
    "scalar.setup_cycles", "scalar.cycles_per_element",
    "sram.bytes", "sram.banks", "sram.bytes_per_cycle", "sram.latency_cycles",
    "dma.channels", "dma.setup_cycles", "dma.bytes_per_cycle", "dma.max_outstanding", "dma.burst_bytes",
    "dram.bandwidth", "dram.latency", "dram.efficiency",
    "interconnect.bytes_per_cycle", "interconnect.latency_cycles",
)  # fmt: skip
"""Keys that may differ from design to design within one pass. Designs that differ in others are estimated apart."""


@functools.cache
def known_keys() -> Mapping[str, tuple[str, Key]]:
    """Every key by its dotted name, as TOML and as the fields have it: (name in TOML, the key)."""
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


_BEYOND_L2 = ("dram.", "interconnect.", "dma.burst_bytes")
"""Keys that transfers to and from the L2 do not depend on."""


class Designs:
    """``count`` devices: ``config``, and ``columns`` of the values that replace its own, in base units, by key.

    ``designs["dram.bandwidth"]`` is a float64 array of ``count`` elements, or of one where all designs agree, so that
    what follows from it is worked out once. A clock that is left out is the device's.
    """

    def __init__(self, config: Config, columns: Mapping[str, Array], count: int) -> None:
        self.config = config
        self.columns = dict(columns)
        self.count = count
        self._known: dict[str, Array] = {}
        self._alike: dict[tuple[str, ...], tuple[Designs, Index]] = {}
        self._l2: Designs | None = None

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
        """The same designs as transfers to and from their L2 see them: see :func:`npusim.hw.memory.l2_side`."""
        memory = self.config.l2
        if self._l2 is None and memory is not None:
            columns = {key: values for key, values in self.columns.items() if not key.startswith(_BEYOND_L2)}
            clock = self["clock"]
            if len(clock) > 1:
                columns["dram.bandwidth"] = memory.bytes_per_cycle * clock
                columns["dram.latency"] = np.ceil(memory.latency_cycles * 1e12 / clock)
            self._l2 = Designs(l2_side(self.config), columns, self.count)
        assert self._l2 is not None
        return self._l2

    def take(self, rows: Index) -> Designs:
        """Some of them."""
        columns = {key: values[rows] if len(values) > 1 else values for key, values in self.columns.items()}
        return Designs(self.config, columns, len(rows))

    def alike(self, keys: tuple[str, ...]) -> tuple[Designs, Index]:
        """The designs that differ in some keys, each once, without the other columns; for each design its number
        among them."""
        if keys not in self._alike:
            self._alike[keys] = self._new_alike(keys)
        return self._alike[keys]

    def _new_alike(self, keys: tuple[str, ...]) -> tuple[Designs, Index]:
        wanted = [key for key in keys if len(self.columns.get(key, ())) > 1]
        alone = {key: self.columns[key] for key in keys if len(self.columns.get(key, ())) == 1}
        if not wanted:
            return Designs(self.config, alone, 1), np.zeros(self.count, np.intp)
        # Each column as small numbers, and all of them as one: sorting rows of floats takes far longer.
        code, size = np.zeros(self.count, np.int64), 1
        for key in wanted:
            values, numbers = np.unique(self.columns[key], return_inverse=True)
            if size * len(values) > 1 << 62:
                code = np.unique(code, return_inverse=True)[1].astype(np.int64)
                size = int(code.max()) + 1
            code, size = code * len(values) + numbers, size * len(values)
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        return Designs(self.config, alone | {key: self.columns[key][first] for key in wanted}, len(first)), inverse
