"""The description of one device: every key with its range, meaning and default.

Loader, validation, JSON Schema and the key table in the manual are derived from these classes. A key in TOML is the
field name without its unit suffix: ``dram.latency = "100 ns"`` is ``config.dram.latency_ps == 100_000``.
"""

# ruff: noqa: RUF009 - key(), table() and section() make dataclass fields
from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from npusim import notebook
from npusim.errors import ConfigError
from npusim.hw.build import Reading, override, read_section, sections, to_table, walk
from npusim.hw.contradictions import bad_dma, bad_dram, bad_matrix, bad_speed, bad_sram
from npusim.hw.files import config_names, read_description, read_resolved
from npusim.hw.hostside import FirmwareConfig, PciConfig
from npusim.hw.keys import (
    MOVED,
    Count,
    FrozenTable,
    Key,
    Section,
    Text,
    ValueType,
    entries,
    key,
    section,
    unused,
)
from npusim.hw.sections import (
    CLOCK,
    CompilerConfig,
    ConstantsConfig,
    DmaConfig,
    DramConfig,
    ExchangeConfig,
    HostConfig,
    InterconnectConfig,
    L2Config,
    MatrixConfig,
    ScalarConfig,
    SramConfig,
    VectorConfig,
)
from npusim.hw.technology import AreaConfig, EnergyConfig, TechnologyConfig
from npusim.units import Dimension, show

_LATER_PARTS = ("pci", "firmware", "exchange", "l2")
"""Sections left out of the fingerprint if absent, so that fingerprints of older descriptions stay the same."""

_LATER_KEYS = {
    "host": ("operation",),
    "dram": ("bank_refresh",),
    "interconnect": ("core_bytes_per_cycle",),
    "technology": ("any_clock", "idle", "leakage", "dram_pins"),
}
_LATER_GRID = ("linear",)
_LATER_DEFAULTS = {
    "host": to_table(HostConfig()),
    "dram": {"bank_refresh": False},
    "interconnect": to_table(InterconnectConfig()),
    "technology": to_table(TechnologyConfig(node_nm=1)),
}
"""Keys left out of the fingerprint at their default, for the same reason."""


_DEFAULT_COMPILER = to_table(CompilerConfig())


def _move_back(values: dict[str, Any]) -> None:
    """Put the keys of ``compiler`` where they were before, so that fingerprints of older descriptions stay the same.

    Keys that were added later are left out at their default.
    """
    found = values.pop("compiler")
    for old, new in MOVED.items():
        part, _, name = old.rpartition(".")
        value = found.pop(new.rpartition(".")[2])
        if not part:
            values[name] = value
        elif values[part] is not False:
            values[part][name] = value
    added = {name: value for name, value in found.items() if value != _DEFAULT_COMPILER[name]}
    if added:
        values["compiler"] = added


@functools.lru_cache(64)
def _fingerprint(config: Config) -> str:
    import hashlib
    import json

    values = to_table(config)
    del values["name"], values["description"]
    for part, found in sections(config):
        for _, entry, default in unused(found):
            values[part][entry.name] = entry.kind.raw(default)
    _move_back(values)
    for part in _LATER_PARTS:
        if values[part] is False:
            del values[part]
    grid = values["matrix"] and values["matrix"]["grid"]
    for name in _LATER_GRID if grid else ():
        if not grid[name]:
            del grid[name]
    for part, names in _LATER_KEYS.items():
        for name in names:
            if values[part] and values[part][name] == _LATER_DEFAULTS[part][name]:
                del values[part][name]
    # Sorted and without blanks, so that one config has one digest in every version of Python.
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One device. Frozen, hashable, picklable, always valid. Made by :func:`load_config` and :meth:`with_`."""

    name: str = key(Text(), "short name; left out = the name of the file", "")
    description: str = key(Text(), "one line of text", "")
    clock_hz: int = key(CLOCK, "clock of the cores and the interconnect")
    cores: int = key(Count(1, 64), "cores, each with its own units, SRAM and DMA channels", 1)
    queue_depth: int = key(Count(1, 4096), "instructions that can wait at one unit", 16)
    matrix: MatrixConfig | None = section(MatrixConfig, "matrix unit", optional=True)
    vector: VectorConfig | None = section(VectorConfig, "vector unit", optional=True)
    scalar: ScalarConfig | None = section(ScalarConfig, "scalar unit", optional=True)
    sram: SramConfig = section(SramConfig, "on-chip memory")
    dma: DmaConfig = section(DmaConfig, "DMA engines")
    dram: DramConfig = section(DramConfig, "off-chip memory")
    constants: ConstantsConfig | None = section(ConstantsConfig, "separate memory for constants", optional=True)
    l2: L2Config | None = section(L2Config, "on-chip memory shared by all cores", optional=True)
    interconnect: InterconnectConfig = section(InterconnectConfig, "interconnect between cores and DRAM")
    exchange: ExchangeConfig | None = section(ExchangeConfig, "network between the SRAMs of the cores", optional=True)
    compiler: CompilerConfig = section(CompilerConfig, "the vendor's compiler, runtime and driver")
    host: HostConfig = section(HostConfig, "host and its link to the device")
    pci: PciConfig | None = section(PciConfig, "PCI Express function", optional=True)
    firmware: FirmwareConfig | None = section(FirmwareConfig, "firmware that must be loaded before jobs", optional=True)
    technology: TechnologyConfig | None = section(TechnologyConfig, "process technology of the chip", optional=True)
    energy: EnergyConfig | None = section(EnergyConfig, "energy per action", optional=True)
    area: AreaConfig | None = section(AreaConfig, "area per component", optional=True)
    origin: str = dataclasses.field(default="", compare=False)
    origins: FrozenTable[str] = dataclasses.field(default_factory=FrozenTable, compare=False, repr=False)

    def __hash__(self) -> int:
        """A cheap hash of few values, because cost models are looked up by config."""
        array = self.matrix and (self.matrix.rows, self.matrix.cols)
        return hash((self.name, self.clock_hz, self.cores, self.sram.bytes, self.dram.bandwidth, array))

    def __repr__(self) -> str:
        return f"<Config {self.name!r}: {', '.join(f'{name} {value}' for name, value in self._summary())}>"

    def _repr_html_(self) -> str:
        return notebook.table(f"Config {self.name!r}", [("description", self.description), *self._summary()])

    def _summary(self) -> list[tuple[str, str]]:
        """The main parameters, as (name, text)."""
        rows = [("cores", f"{self.cores} at {show(self.clock_hz, Dimension.FREQUENCY)}")]
        if self.matrix is not None:
            rows.append(("matrix", f"{self.matrix.rows}x{self.matrix.cols}"))
        if self.vector is not None:
            rows.append(("lanes", str(self.vector.lanes)))
        rows.append(("SRAM", show(self.sram.bytes, Dimension.SIZE)))
        rows.append(
            ("DRAM", f"{show(self.dram.bytes, Dimension.SIZE)} at {show(self.dram.bandwidth, Dimension.BANDWIDTH)}")
        )
        return rows

    @property
    def units(self) -> frozenset[str]:
        """The computing units that every core has: of matrix, vector and scalar."""
        return frozenset(name for name in ("matrix", "vector", "scalar") if getattr(self, name) is not None)

    @property
    def matrix_hz(self) -> int:
        """The matrix unit's clock."""
        return (self.matrix.clock_hz if self.matrix else None) or self.clock_hz

    @property
    def vector_hz(self) -> int:
        """The vector unit's clock."""
        return (self.vector.clock_hz if self.vector else None) or self.clock_hz

    def fingerprint(self) -> str:
        """A hex digest of every value that can change a result. Name, description and file path do not count."""
        return _fingerprint(self)

    def with_(self, **overrides: Any) -> Config:
        """A copy with dotted keys replaced, checked again: ``config.with_(**{"dram.bandwidth": "8 GB/s"})``.

        Keys are those of TOML or the field names; plain numbers are in base units; None switches an optional part off.
        Raises ConfigError as the loader does.
        """
        quick = _with_leaves(self, overrides)
        if quick is not None:
            return quick
        reading = Reading(self.origin, bare=True)
        plain = to_table(self)
        changed = [override(plain, Config, dotted, value, reading) for dotted, value in overrides.items()]
        reading.origins = dict.fromkeys(changed, f"{self.origin} (override)")
        return _build(plain, reading, self.name, FrozenTable({**self.origins, **dict.fromkeys(changed, "override")}))

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """(dotted key, problem) of each value that is only valid in another combination."""
        if self.matrix is None and self.vector is None and self.scalar is None:
            yield "matrix", "must be present, or vector, or scalar: a device needs a unit that computes"
        yield from bad_sram(self.sram, self.cores, self.dma, self.dram)
        if self.matrix is not None:
            yield from bad_matrix(self.matrix)
        yield from bad_dma(self.dma)
        yield from bad_dram(self.dram)
        if self.technology is not None:
            units = {"matrix.clock": self.matrix, "vector.clock": self.vector}
            own = {
                path: unit.clock_hz for path, unit in units.items() if unit is not None and unit.clock_hz is not None
            }
            yield from bad_speed(self.technology, {"clock": self.clock_hz, **own}, self.dram)

    def to_table(self) -> dict[str, Any]:
        """Every value as plain numbers and text in base units, defaults included, for JSON."""
        return to_table(self)

    def resolved(self) -> list[tuple[str, str, str, str]]:
        """Every (dotted key, value as TOML, origin, meaning), defaults included."""
        rows = []
        origins = self._origins_of_tables()
        for path, entry, value in walk(self):
            shown = _left_out(path) if value is None else entry.kind.text(value)
            rows.append((path, shown, origins.get(path, "default"), entry.doc))
        return rows

    def _origins_of_tables(self) -> dict[str, str]:
        """The file or override that sets each key; for a table those of its keys, separated by commas."""
        tables: dict[str, dict[str, None]] = {}
        for path, origin in self.origins.items():
            while path := path.rpartition(".")[0]:
                tables.setdefault(path, {})[origin] = None
        return {**self.origins, **{path: ", ".join(parts) for path, parts in tables.items()}}

    def to_toml(self) -> str:
        """A complete TOML file that loads as an equal device; comments name the origin of each value. Keys that only
        another kind of their section uses are left out."""
        origins = self._origins_of_tables()
        lines: list[str] = []
        for path, found in sections(self):
            if path:
                lines += ["", f"[{path}]"]
            for name, text in _texts(found):
                lines.append(f"{name} = {text}  # {origins.get(f'{path}.{name}' if path else name, 'default')}")
        return "\n".join(lines) + "\n"


@functools.lru_cache(maxsize=4096)
def _texts(section: Any) -> tuple[tuple[str, str], ...]:
    """The keys of a section that have a value, and their values as TOML. Designs of a study share most sections."""
    values = ((entry, getattr(section, field)) for field, entry in entries(type(section)) if isinstance(entry, Key))
    others = [entry for _, entry, _ in unused(section)]
    return tuple(
        (entry.name, entry.kind.text(value)) for entry, value in values if value is not None and entry not in others
    )


def _left_out(path: str) -> str:
    """The text for an optional key without a value."""
    return "(the device's clock)" if path.endswith("clock") else "(left out)"


def load_config(source: str | os.PathLike[str] | Config) -> Config:
    """The device of a shipped description (``"edge"``) or of a TOML file; a Config is returned unchanged.

    The JSON of a run (``.json``) gives the device of that run, also if its description has changed since.

    Raises ConfigError with every problem of the file: ``configs/edge.toml: matrix.rows: must be >= 1, got 0``.
    """
    if isinstance(source, Config):
        return source
    if os.fspath(source).endswith(".json"):
        return config_of(read_resolved(os.fspath(source)), os.fspath(source))
    labels, plain, origins = read_description(os.fspath(source))
    label = labels[0]
    stem = os.path.basename(label).removesuffix(".toml")
    if origins.get("name", label) != label:
        del plain["name"]  # not the name of the inherited device
    return _build(plain, Reading(label, origins=origins), stem, FrozenTable(origins), labels)


LARGEST_TABLE = 1 << 15
"""Most characters in the table of a device; a table with every key has about 4 000."""


def config_of(plain: Mapping[str, Any], label: str) -> Config:
    """The device of a table made by :meth:`Config.to_table`. ``label``: the source, for error messages.

    Raises ConfigError as :func:`load_config` does.
    """
    # A limit, because the error has a line with suggestions for each wrong key.
    if len(repr(plain)) > LARGEST_TABLE:
        raise ConfigError(f"{label}: the table of a device must have at most {LARGEST_TABLE} characters")
    return _build(dict(plain), Reading(label, bare=True), os.path.basename(label), FrozenTable())


def list_configs() -> tuple[str, ...]:
    """The names that :func:`load_config` knows, sorted."""
    return config_names()


def _build(
    plain: dict[str, Any], reading: Reading, name: str, origins: FrozenTable[str], labels: Sequence[str] = ()
) -> Config:
    """``labels``: the files of a description, from the heir on, if the table was read from files."""
    config: Config | None = read_section(Config, plain, "", reading)
    if config is not None:
        config = dataclasses.replace(config, name=config.name or name, origin=reading.label, origins=origins)
        contradictions = list(config.contradictions())
        known = {path for path, _ in contradictions}
        others = _set_for_another_kind(config, reading.origins, labels)
        for path, problem in [*contradictions, *(each for each in others if each[0] not in known)]:
            reading.refuse(path, problem)
    if reading.problems or config is None:
        raise ConfigError(reading.problems)
    return config


def _set_for_another_kind(
    config: Config, origins: Mapping[str, str], labels: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """(dotted key, problem) of each key that only another kind of its section uses, if a file sets it that chooses the
    kind, or that inherits this choice. A file that chooses another kind inherits the keys of the former kind, which
    then have no effect."""
    for part, found in sections(config) if labels else ():
        chosen = labels.index(origins.get(f"{part}.kind", labels[-1]))
        for field, entry, default in unused(found):
            path, value = f"{part}.{entry.name}", getattr(found, field)
            if value != default and labels.index(origins[path]) <= chosen:
                wanted, got = entry.kind.text(default), entry.kind.text(value)
                yield path, f'must be {wanted} with kind = "{found.kind}", got {got}'


def _with_leaves(config: Config, overrides: dict[str, Any]) -> Config | None:
    """A copy with single values replaced; the other values are not validated again, which makes searches over many
    devices fast. None if an override is no single value, or is wrong: the caller then validates everything."""
    changes: dict[tuple[str, ...], dict[str, Any]] = {}
    names = []
    problems: list[str] = []
    for dotted, value in overrides.items():
        leaf = None if value is None else _leaf(dotted)
        if leaf is None:
            return None
        above, field, name, kind = leaf
        read = kind.read(value, lambda _, problem: problems.append(problem), True)
        changes.setdefault(above, {})[field] = read
        names.append(name)
    if problems:
        return None
    for above in list(changes):
        for depth in range(len(above)):
            changes.setdefault(above[:depth], {})
    # Deepest sections first, because a section contains the new sections below it.
    for above, values in sorted(changes.items(), key=lambda item: -len(item[0])):
        if above:
            section: Any = config
            for field in above:
                section = getattr(section, field)
                if section is None:
                    return None
            changes[above[:-1]][above[-1]] = dataclasses.replace(section, **values)
    own = changes.get((), {})
    origins = FrozenTable({**config.origins, **dict.fromkeys(names, "override")})
    made = dataclasses.replace(config, **{**own, "name": own.get("name") or config.name}, origins=origins)
    return None if any(True for _ in made.contradictions()) else made


@functools.lru_cache(1024)
def _leaf(dotted: str) -> tuple[tuple[str, ...], str, str, ValueType] | None:
    """(sections above, field, dotted TOML key, kind) of a key with one value; None for sections and tables."""
    cls: Any = Config
    above: list[str] = []
    path: list[str] = []
    *sections, last = dotted.split(".")
    for name in sections:
        entry = next((e for field, e in entries(cls) if isinstance(e, Section) and name == e.name), None)
        if entry is None:
            return None
        above.append(name)
        path.append(name)
        cls = entry.cls
    for field, key_or_section in entries(cls):
        if isinstance(key_or_section, Key) and last in {field, key_or_section.name}:
            return tuple(above), field, ".".join([*path, key_or_section.name]), key_or_section.kind
    return None
