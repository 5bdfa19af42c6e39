"""The description of one device: every key with its range, meaning and default.

Loader, validation, JSON Schema and the key table in the manual are derived from these classes. A key in TOML is the
field name without its unit suffix: ``dram.latency = "100 ns"`` is ``config.dram.latency_ps == 100_000``.
"""

# ruff: noqa: RUF009 - key(), table() and section() make dataclass fields
from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from npusim import notebook
from npusim.errors import ConfigError
from npusim.hw import dram as dram_kinds
from npusim.hw import units as unit_kinds
from npusim.hw.build import Reading, override, read_section, to_table, walk
from npusim.hw.contradictions import contradictions
from npusim.hw.dram._parts import MAPPING, PARTS
from npusim.hw.files import config_names, read_description, read_resolved
from npusim.hw.hostside import FirmwareConfig, PciConfig
from npusim.hw.keys import (
    Choice,
    Count,
    Flag,
    FrozenTable,
    Key,
    MapOf,
    Quantity,
    Ratio,
    Section,
    Text,
    ValueType,
    entries,
    key,
    section,
    table,
)
from npusim.hw.sections import DirectConfig, GridConfig, MeshConfig
from npusim.hw.technology import AreaConfig, EnergyConfig, TechnologyConfig
from npusim.units import Dimension, bytes_to_ps, show

CLOCK = Quantity(Dimension.FREQUENCY, 1_000, 100 * 10**9)
TIME = Quantity(Dimension.TIME, 0, 10**12)
BANDWIDTH = Quantity(Dimension.BANDWIDTH, 10**6, 10**15)

MATRIX_DTYPES = ("int8", "int16", "int32", "float16", "bfloat16", "float32")
FUNCTIONS = ("simple", "divide", "sqrt", "transcendental", "convert", "reduce")
STORED_AS = {"uint8": "int8", "bool": "int8", "uint16": "int16", "uint32": "int32"}
_NOT_COMPUTED = Fraction(0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MatrixConfig:
    """An array of multiply-accumulate elements (PEs). Absent: the device has no matrix unit."""

    rows: int = key(Count(1, 4096), "PEs in a column of the array")
    cols: int = key(Count(1, 4096), "PEs in a row of the array")
    dataflow: str = key(
        Choice(("weight_stationary", "output_stationary", "input_stationary")),
        "stationary operand, which stays in the PEs",
    )
    model: str = key(Choice(lambda: unit_kinds.kinds("matrix")), "cost model", "systolic")
    throughput: FrozenTable[Fraction] = key(
        MapOf(MATRIX_DTYPES, Ratio(64)),
        "MACs per PE and cycle, by type; 0 or missing = not supported; unsigned types use the signed rate",
    )
    preload_hidden: bool = key(Flag(), "the next stationary operand loads while the current one computes", True)
    weight_buffers: int = key(Count(1, 16), "stationary operands held in the PEs; 2 = double-buffered", 2)
    fill_drain: str = key(
        Choice(("per_fold", "per_tile")),
        "whether the pipeline fills and drains once per fold or once per tile",
        "per_tile",
    )
    setup_cycles: int = key(Count(0), "cycles before the first operand of an instruction", 8)
    accumulator_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 30), "dedicated partial-sum memory; 0 = partial sums are in SRAM", 0
    )
    output_elements_per_cycle: int = key(
        Count(1, 4096), "results per cycle that post-processing reads from the accumulators", 16
    )
    clock_hz: int | None = key(CLOCK, "clock of this unit; left out = the device's clock", None)
    sums_shift_out: bool = key(
        Flag(),
        "output stationary: finished sums shift out through the array, one row per cycle; false: they leave at once",
        True,
    )
    arrays: int = key(Count(1, 64), "number of rows x cols arrays that share the folds of an instruction", 1)
    port_bytes_per_cycle: int = key(
        Count(0, 1 << 16),
        "SRAM port width; operands are read before the array computes and results written after; 0 = overlapped",
        0,
    )
    weight_bits: int = key(
        Count(2, 8, power_of_two=True),
        "narrowest constant weights that stay packed in memory until the unit reads them; 8 = no packing",
        8,
    )
    weight_tiles: bool = key(
        Flag(),
        "constant weights are padded to whole tiles of the array in DRAM, and read with the padding",
        False,
    )
    weight_scales: bool = key(Flag(), "weights of 8 bits and fewer are dequantized on their way into the array", False)
    mesh: MeshConfig | None = section(MeshConfig, "keys of matrix.model mesh", optional=True)
    direct: DirectConfig | None = section(DirectConfig, "keys of matrix.model direct", optional=True)
    grid: GridConfig | None = section(GridConfig, "keys of matrix.model grid", optional=True)

    @property
    def elements(self) -> int:
        """PEs of all arrays."""
        return self.rows * self.cols * self.arrays

    def rate(self, dtype: str) -> Fraction:
        """MACs per PE and cycle for the label of an element type; 0 = not supported."""
        return self.throughput.get(STORED_AS.get(dtype, dtype), _NOT_COMPUTED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VectorConfig:
    """A SIMD unit for elementwise work, reductions and conversions. Absent: the device has none."""

    lanes: int = key(Count(1, 65536), "parallel operations")
    lane_bytes: int = key(Count(1, 8, power_of_two=True), "width of a lane; a wider element takes several passes", 4)
    packed: bool = key(Flag(), "several narrow elements share a lane", False)
    setup_cycles: int = key(Count(0), "cycles before the first operand of an instruction", 8)
    setup_hidden: bool = key(Flag(), "the set-up of an instruction overlaps the previous instruction", False)
    cost: FrozenTable[int] = table(
        MapOf(
            FUNCTIONS,
            Count(1, 4096),
            (("simple", 1), ("divide", 4), ("sqrt", 4), ("transcendental", 8), ("convert", 1), ("reduce", 1)),
        ),
        "cycles per operation in a lane, by class of function",
    )
    clock_hz: int | None = key(CLOCK, "clock of this unit; left out = the device's clock", None)
    port_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "width of the load and store ports to SRAM; 0 = the full SRAM bandwidth", 0
    )
    pools_outputs: bool = key(
        Flag(), "pooling reads the rows of a convolution from SRAM even if sram.keeps_values is false", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalarConfig:
    """A small processor for data-dependent work, one element at a time. Absent: the device has none."""

    setup_cycles: int = key(Count(0), "cycles before the first element", 16)
    cycles_per_element: int = key(Count(1, 65536), "cycles per element", 4)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SramConfig:
    """On-chip memory of one core."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 10, 1 << 34), "capacity of one core")
    banks: int = key(Count(1, 4096), "banks that can be accessed in parallel", 16)
    bytes_per_cycle: int = key(Count(1, 4096), "width of the port of one bank", 16)
    latency_cycles: int = key(Count(0, 1024), "cycles from address to data", 2)
    keeps_values: bool = key(
        Flag(), "values stay in SRAM between layers; false: every layer writes its results to DRAM", True
    )
    resident_weights: bool = key(
        Flag(), "weights may stay in SRAM between inferences of the same program; the first inference loads them", False
    )
    resident_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 34),
        "largest size of the pinned weights; 0 = as much as reduces the latency",
        0,
    )

    @property
    def total_bytes_per_cycle(self) -> int:
        """Bytes per cycle of all banks together."""
        return self.banks * self.bytes_per_cycle


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DmaConfig:
    """The DMA engines of one core, between DRAM and SRAM."""

    channels: int = key(Count(1, 16), "parallel transfers of one core", 2)
    setup_cycles: int = key(Count(0), "cycles from a descriptor to its first request", 16)
    bytes_per_cycle: int = key(Count(1, 4096), "width of one channel's data path", 32)
    max_outstanding: int = key(Count(1, 4096), "outstanding bursts of one channel", 32)
    burst_bytes: int = key(
        Quantity(Dimension.SIZE, 1, 1 << 16, power_of_two=True),
        "unit of DRAM traffic; a shorter run wastes the rest of the burst",
        64,
    )
    local_bytes_per_cycle: int = key(Count(0, 4096), "bytes per cycle of a copy within SRAM; 0 = bytes_per_cycle", 0)
    local_least_cycles: int = key(Count(0), "shortest time of a copy within SRAM, including its set-up", 0)
    gather_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 20),
        "size of the store-and-forward buffer: so much is read before the first byte is written",
        0,
    )
    reorder_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 24),
        "reorder buffer of a channel: a block of this size is read in source order and written in destination order; "
        "0 = both in the same order",
        0,
    )
    write_latency_ps: int | None = key(
        TIME, "from a write to its acknowledgement; left out = the latency of a read", None
    )
    duplex: bool = key(Flag(), "a copy within DRAM reads and writes at the same time", False)
    in_flight: int = key(
        Count(1, 64), "pipelined transfers of one channel: the latency of one overlaps the data of earlier ones", 1
    )
    parts_in_place: bool = key(
        Flag(),
        "operands of a concatenation are written in place, and slices are read in place; false: both are copied",
        True,
    )
    separate_weight_port: bool = key(
        Flag(),
        "constants use the second channel and features of the matrix unit the first; needs three channels",
        False,
    )
    inputs_ahead: bool = key(
        Flag(),
        "the next input tile loads while the matrix unit computes; false: it loads afterwards, into the same buffer",
        True,
    )
    decoder_weights_per_cycle: int = key(
        Count(0, 4096),
        "constant weights that a channel decompresses per cycle on their way into SRAM; 0 = no decoder",
        0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DramConfig:
    """The off-chip memory, shared by all cores."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 20, 1 << 48), "capacity")
    bandwidth: int = key(BANDWIDTH, "peak bandwidth of all channels together")
    kind: str = key(Choice(dram_kinds.kinds), "DRAM model", "fixed")
    latency_ps: int = key(TIME, "from a request to its first data", 100_000)
    channels: int = key(Count(1, 1024), "channels, which share the bandwidth equally; no effect with kind fixed", 1)
    efficiency: Fraction = key(
        Ratio(1, positive=True), "fraction of the peak that sequential streams reach", Fraction(1)
    )
    part: str = key(Choice(("none", *PARTS)), "kind jedec: the DRAM part, which selects its JEDEC timings", "none")
    ranks: int = key(Count(1, 8, power_of_two=True), "kind jedec: ranks per channel", 1)
    mapping: str = key(
        Text(), "kind jedec: fields of an address, most significant first: ro, ra, bg, ba, co, ch", MAPPING
    )
    read_queue: int = key(Count(1, 256), "kind jedec: entries of the read queue of a channel", 32)
    write_queue: int = key(Count(1, 256), "kind jedec: entries of the write queue of a channel", 32)
    bank_queue: int = key(Count(0, 64), "kind jedec: entries of the queue of each bank; 0 = one queue for all reads", 8)
    refresh: bool = key(Flag(), "kind jedec: model refresh", True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConstantsConfig:
    """A separate memory for weights and other constants with its own port: flash, a ROM, a second DRAM."""

    bytes: int = key(
        Quantity(Dimension.SIZE, 1 << 10, 1 << 48), "capacity; a network with larger constants is rejected"
    )
    bandwidth: int = key(BANDWIDTH, "bandwidth of reads of constants; instructions come from DRAM")
    latency_ps: int = key(TIME, "from a request to its first data, without the latency of the interconnect")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class L2Config:
    """An on-chip memory shared by all cores, between SRAM and interconnect, for values that do not fit SRAM."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 10, 1 << 34), "capacity")
    bytes_per_cycle: int = key(Count(1, 1 << 16), "bytes per cycle that all cores together read and write", 64)
    latency_cycles: int = key(Count(0, 65536), "cycles from a request to its first data", 20)
    line_bytes: int = key(
        Quantity(Dimension.SIZE, 1, 1 << 16, power_of_two=True),
        "unit of its traffic; a shorter run wastes the rest of the line",
        64,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InterconnectConfig:
    """The interconnect between the DMA engines of the cores and the DRAM."""

    bytes_per_cycle: int = key(Count(1, 1 << 16), "width, shared by all cores", 64)
    latency_cycles: int = key(Count(0, 65536), "latency of a request", 8)
    arbitration: str = key(
        Choice(("need", "fair")),
        "how transfers share the bandwidth: need = the one that is needed first has all of it, fair = equal shares",
        "need",
    )
    multicast: bool = key(Flag(), "one read from DRAM can be written to the SRAM of several cores", False)
    separate_code_port: bool = key(
        Flag(),
        "instructions do not use the DRAM port: they are there at once, as if written to registers before a job",
        False,
    )
    separate_write_port: bool = key(
        Flag(), "writes to DRAM have a port of the same bandwidth, and do not reduce the bandwidth of reads", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """A network between the SRAMs of the cores, separate from the interconnect to the DRAM."""

    bytes_per_cycle: int = key(Count(1, 1 << 16), "width, shared by all cores")
    latency_cycles: int = key(Count(0, 65536), "cycles from a request to the first byte from another core", 8)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig:
    """The host: times of its accesses to the device."""

    mmio_ps: int = key(TIME, "one register access", 200_000)
    irq_ps: int = key(TIME, "from the interrupt line to the handler of the driver", 2_000_000)
    link_bandwidth: int = key(BANDWIDTH, "bandwidth of bulk copies between host and device memory", 8 * 10**9)
    link_latency_ps: int = key(TIME, "start-up time of one bulk copy", 500_000)
    submit_ps: int = key(TIME, "host time for one job submission", 1_000_000)
    map_ps: int = key(TIME, "host time to map one memory pool for the device", 5_000_000)
    operation_ps: int = key(
        TIME,
        "host time for one multiply-accumulate, or for one element read or written by other operators, in operators "
        "that run on the host",
        250,
    )
    compile_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 48),
        "host memory for the values and steps of one compilation, excluding the model itself; 0 = an eighth of "
        "dram.bytes, at most 256 MiB",
        0,
    )

    def copy_ps(self, nbytes: int) -> int:
        """Picoseconds of one bulk copy of ``nbytes`` bytes, in either direction."""
        return self.link_latency_ps + bytes_to_ps(nbytes, self.link_bandwidth)


_LATER_PARTS = ("pci", "firmware", "exchange", "l2")
"""Sections left out of the fingerprint if absent, so that fingerprints of older descriptions stay the same."""


@functools.lru_cache(64)
def _fingerprint(config: Config) -> str:
    import hashlib
    import json

    values = to_table(config)
    del values["name"], values["description"]
    for part in _LATER_PARTS:
        if values[part] is False:
            del values[part]
    if config.host.operation_ps == HostConfig().operation_ps:  # a later key, as above
        del values["host"]["operation"]
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
    layer_cycles: int = key(
        Count(0), "sequencer cycles to switch to the commands of another layer; units continue meanwhile", 0
    )
    layer_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 24),
        "extra instruction bytes per layer, all loaded from DRAM before a job begins",
        0,
    )
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

    def to_table(self) -> dict[str, Any]:
        """Every value as plain numbers and text in base units, defaults included, for JSON."""
        return to_table(self)

    def resolved(self) -> list[tuple[str, str, str, str]]:
        """Every (dotted key, value as TOML, where it comes from, what it means), defaults included."""
        rows = []
        for path, entry, value in walk(self):
            shown = _left_out(path) if value is None else entry.kind.text(value)
            rows.append((path, shown, self._origin_of(path), entry.doc))
        return rows

    def _origin_of(self, path: str) -> str:
        """The file or override that sets a key; for a table all of them, separated by commas."""
        parts = [origin for key, origin in self.origins.items() if key.startswith(f"{path}.")]
        return ", ".join(dict.fromkeys(parts)) or self.origins.get(path, "default")

    def to_toml(self) -> str:
        """A complete TOML file that loads as an equal config; comments name the origin of each value."""
        lines: list[str] = []
        table_name = ""
        for path, entry, value in walk(self):
            above = path.rpartition(".")[0]
            if above != table_name:
                lines += ["", f"[{above}]"]
                table_name = above
            if value is not None:
                lines.append(f"{entry.name} = {entry.kind.text(value)}  # {self._origin_of(path)}")
        return "\n".join(lines) + "\n"


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
    label, plain, origins = read_description(os.fspath(source))
    stem = os.path.basename(label).removesuffix(".toml")
    if origins.get("name", label) != label:
        del plain["name"]  # not the name of the inherited device
    return _build(plain, Reading(label, origins=origins), stem, FrozenTable(origins))


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


def _build(plain: dict[str, Any], reading: Reading, name: str, origins: FrozenTable[str]) -> Config:
    config: Config | None = read_section(Config, plain, "", reading)
    if config is not None:
        config = dataclasses.replace(config, name=config.name or name, origin=reading.label, origins=origins)
        for path, problem in contradictions(config):
            reading.refuse(path, problem)
    if reading.problems or config is None:
        raise ConfigError(reading.problems)
    return config


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
    return None if any(True for _ in contradictions(made)) else made


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
