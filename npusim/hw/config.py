"""The description of one device: every key with its range, meaning and default; the only definition of them.

Loader, validation, JSON Schema and the key table in the manual all come from these classes. A key in TOML is the name
of its field without the unit suffix: ``dram.latency = "100 ns"`` is ``config.dram.latency_ps == 100_000``.
"""

# ruff: noqa: RUF009 - key() and its kin make dataclass fields
from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from npusim import notebook
from npusim.errors import ConfigError
from npusim.hw import dram as dram_kinds
from npusim.hw import units as unit_kinds
from npusim.hw.build import Reading, override, read_section, to_table, walk
from npusim.hw.dram._parts import MAPPING, PARTS, bad_mapping
from npusim.hw.files import config_names, read_description, read_resolved
from npusim.hw.hostside import FirmwareConfig, PciConfig
from npusim.hw.keys import (
    Choice,
    Count,
    Flag,
    Key,
    Kind,
    MapOf,
    Quantity,
    Ratio,
    Section,
    Table,
    Text,
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
ACCUMULATOR_BYTES = 4
"""A partial sum is 32 bits wide (int32 or float32) in every mode."""

STORED_AS = {"uint8": "int8", "bool": "int8", "uint16": "int16", "uint32": "int32"}
_NOT_COMPUTED = Fraction(0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MatrixConfig:
    """An array of multiply-accumulate elements (PEs); absent = the device has no matrix unit."""

    rows: int = key(Count(1, 4096), "PEs in a column of the array")
    cols: int = key(Count(1, 4096), "PEs in a row of the array")
    dataflow: str = key(
        Choice(("weight_stationary", "output_stationary", "input_stationary")), "operand that stays in the PEs"
    )
    model: str = key(Choice(lambda: unit_kinds.kinds("matrix")), "cost model", "systolic")
    throughput: Table[Fraction] = key(
        MapOf(MATRIX_DTYPES, Ratio(64)),
        "MACs per PE and cycle by type; a type that is 0 or not named is not computed; unsigned types count as signed",
    )
    preload_hidden: bool = key(Flag(), "the next stationary operand loads while the current one is used", True)
    weight_buffers: int = key(Count(1, 16), "stationary operands that the PEs hold, 2 = double-buffered", 2)
    fill_drain: str = key(
        Choice(("per_fold", "per_tile")), "whether the pipeline fills and drains once a fold or once a tile", "per_tile"
    )
    setup_cycles: int = key(Count(0), "cycles before an instruction's first operand", 8)
    accumulator_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 30), "dedicated partial-sum memory, 0 = partial sums live in SRAM", 0
    )
    output_elements_per_cycle: int = key(
        Count(1, 4096), "results that post-processing takes from the accumulators in a cycle", 16
    )
    clock_hz: int | None = key(CLOCK, "clock of its own; left out = the device's clock", None)
    sums_shift_out: bool = key(
        Flag(), "output stationary: finished sums pass through the array, a cycle a row; false: leave at its edge", True
    )
    arrays: int = key(Count(1, 64), "arrays of rows x cols that share the folds of an instruction", 1)
    port_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "operands and results pass the SRAM port before and after the array's work; 0 = beside it", 0
    )
    weight_bits: int = key(
        Count(2, 8, power_of_two=True),
        "narrowest constant weights that stay packed until the unit reads them; 8 = none are packed",
        8,
    )
    weight_tiles: bool = key(
        Flag(),
        "constant weights lie in DRAM filled up to whole tiles of the array, and are read as such",
        False,
    )
    weight_scales: bool = key(
        Flag(), "8-bit and narrower weights by their scales become numbers on their way into the array", False
    )
    mesh: MeshConfig | None = section(MeshConfig, "model mesh", optional=True)
    direct: DirectConfig | None = section(DirectConfig, "model direct", optional=True)
    grid: GridConfig | None = section(GridConfig, "model grid", optional=True)

    @property
    def elements(self) -> int:
        """PEs of all arrays."""
        return self.rows * self.cols * self.arrays

    def rate(self, dtype: str) -> Fraction:
        """MACs per PE and cycle for an element type's label; 0 = the unit does not compute with it."""
        return self.throughput.get(STORED_AS.get(dtype, dtype), _NOT_COMPUTED)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VectorConfig:
    """A unit of lanes for elementwise work, reductions and conversions; absent = the device has none."""

    lanes: int = key(Count(1, 65536), "operations side by side")
    lane_bytes: int = key(Count(1, 8, power_of_two=True), "width of a lane; a wider element takes several passes", 4)
    packed: bool = key(Flag(), "elements narrower than a lane share it", False)
    setup_cycles: int = key(Count(0), "cycles before an instruction's first operand", 8)
    setup_hidden: bool = key(Flag(), "the next instruction is set up while the unit works on the one before", False)
    cost: Table[int] = table(
        MapOf(
            FUNCTIONS,
            Count(1, 4096),
            (("simple", 1), ("divide", 4), ("sqrt", 4), ("transcendental", 8), ("convert", 1), ("reduce", 1)),
        ),
        "cycles for one operation in every lane, by class of function",
    )
    clock_hz: int | None = key(CLOCK, "clock of its own; left out = the device's clock", None)
    port_bytes_per_cycle: int = key(
        Count(0, 1 << 16), "SRAM bytes that its load and store ports pass in a cycle; 0 = all that the SRAM gives", 0
    )
    pools_outputs: bool = key(
        Flag(), "pooling takes a convolution's rows as they leave it, also where sram.keeps_values is false", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalarConfig:
    """A small processor for data-dependent work, one element at a time; absent = the device has none."""

    setup_cycles: int = key(Count(0), "cycles before the first element", 16)
    cycles_per_element: int = key(Count(1, 65536), "cycles for one element", 4)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SramConfig:
    """On-chip memory of one core."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 10, 1 << 34), "capacity of one core")
    banks: int = key(Count(1, 4096), "banks that are reached side by side", 16)
    bytes_per_cycle: int = key(Count(1, 4096), "width of one bank's port", 16)
    latency_cycles: int = key(Count(0, 1024), "cycles from an address to its data", 2)
    keeps_values: bool = key(
        Flag(), "values stay here from one layer to others; false: it holds operands, and results leave for DRAM", True
    )
    resident_weights: bool = key(
        Flag(), "weights may stay from one inference to the next of the same program, which the first one loads", False
    )
    resident_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 34), "what weights that stay may take at the most; 0 = what pays", 0
    )

    @property
    def total_bytes_per_cycle(self) -> int:
        """All banks together."""
        return self.banks * self.bytes_per_cycle


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DmaConfig:
    """The engines that copy between DRAM and SRAM; per core."""

    channels: int = key(Count(1, 16), "transfers of one core that run side by side", 2)
    setup_cycles: int = key(Count(0), "cycles from a descriptor to its first request", 16)
    bytes_per_cycle: int = key(Count(1, 4096), "width of one channel's data path", 32)
    max_outstanding: int = key(Count(1, 4096), "bursts that one channel has on the way", 32)
    burst_bytes: int = key(
        Quantity(Dimension.SIZE, 1, 1 << 16, power_of_two=True), "unit of DRAM traffic; a short run wastes the rest", 64
    )
    local_bytes_per_cycle: int = key(Count(0, 4096), "what a copy within SRAM moves in a cycle; 0 = bytes_per_cycle", 0)
    local_least_cycles: int = key(Count(0), "what a copy within SRAM takes at the least, its set-up included", 0)
    gather_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 20), "data that is collected before the first of it is passed on", 0
    )
    reorder_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 24),
        "reorder buffer of a channel: a block of so many bytes is read in the order of its source and written in that "
        "of its destination; 0 = one order for both",
        0,
    )
    write_latency_ps: int | None = key(TIME, "from a write to its acknowledgement; left out = that of a read", None)
    duplex: bool = key(Flag(), "a copy within DRAM reads and writes at the same time", False)
    in_flight: int = key(
        Count(1, 64), "transfers that a channel has asked for at once: latency passes while older ones stream", 1
    )
    parts_in_place: bool = key(
        Flag(),
        "results are written into the concatenation that they are parts of, and slices read where they lie; false: "
        "both are copied",
        True,
    )
    weights_apart: bool = key(
        Flag(), "constants come by the second channel, the matrix unit's features by the first; needs three", False
    )
    inputs_ahead: bool = key(
        Flag(),
        "the matrix unit's next input tile is loaded while it computes; false: behind that, into the same bytes",
        True,
    )
    decoder_weights_per_cycle: int = key(
        Count(0, 4096), "constant weights that a channel expands on their way into SRAM; 0 = they lie as they are", 0
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DramConfig:
    """The memory outside the chip, shared by all cores."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 20, 1 << 48), "capacity")
    bandwidth: int = key(BANDWIDTH, "peak of the pins, all channels together")
    kind: str = key(Choice(dram_kinds.kinds), "DRAM model", "fixed")
    latency_ps: int = key(TIME, "from a request to its first data", 100_000)
    channels: int = key(Count(1, 1024), "channels that make up the bandwidth; kind fixed sees their sum only", 1)
    efficiency: Fraction = key(Ratio(1, positive=True), "part of the peak that sequential streams reach", Fraction(1))
    part: str = key(Choice(("none", *PARTS)), "kind jedec: the chips, a row of JEDEC timings", "none")
    ranks: int = key(Count(1, 8, power_of_two=True), "kind jedec: ranks of chips that share the pins of a channel", 1)
    mapping: str = key(Text(), "kind jedec: fields of an address, highest first: ro, ra, bg, ba, co, ch", MAPPING)
    read_queue: int = key(Count(1, 256), "kind jedec: reads that a channel's controller chooses among", 32)
    write_queue: int = key(Count(1, 256), "kind jedec: writes that a channel's controller gathers", 32)
    bank_queue: int = key(Count(0, 64), "kind jedec: entries of a queue per bank; 0 chooses among all reads", 8)
    refresh: bool = key(Flag(), "kind jedec: refresh takes its time", True)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConstantsConfig:
    """A memory of its own for weights and other constants, on a port of its own: flash, a ROM, a second DRAM."""

    bytes: int = key(
        Quantity(Dimension.SIZE, 1 << 10, 1 << 48), "capacity; a network whose constants are more is refused"
    )
    bandwidth: int = key(BANDWIDTH, "what reads of constants share; instructions come from DRAM")
    latency_ps: int = key(TIME, "from a request to its first data, the interconnect's latency aside")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class L2Config:
    """A memory on the chip that all cores share, on the cores' side of the interconnect: values live there that no SRAM
    has room for."""

    bytes: int = key(Quantity(Dimension.SIZE, 1 << 10, 1 << 34), "capacity")
    bytes_per_cycle: int = key(Count(1, 1 << 16), "what all cores together read and write in a cycle", 64)
    latency_cycles: int = key(Count(0, 65536), "cycles from a request to its first data", 20)
    line_bytes: int = key(
        Quantity(Dimension.SIZE, 1, 1 << 16, power_of_two=True), "unit of its traffic; a short run wastes the rest", 64
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InterconnectConfig:
    """What lies between the cores' DMA engines and the DRAM."""

    bytes_per_cycle: int = key(Count(1, 1 << 16), "width, shared by all cores", 64)
    latency_cycles: int = key(Count(0, 65536), "cycles that a request spends in it", 8)
    arbitration: str = key(
        Choice(("need", "fair")),
        "which transfer in flight has the bandwidth: that which is waited for first, or all the same share of it",
        "need",
    )
    multicast: bool = key(Flag(), "what is read from DRAM once can be written to the SRAM of several cores", False)
    code_apart: bool = key(
        Flag(), "commands come by a way of their own, at once, as what is written to registers before a job", False
    )
    writes_apart: bool = key(
        Flag(), "what is only written to DRAM has as much bandwidth again, and takes nothing of what reads have", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeConfig:
    """A way from each core's SRAM to that of the others, beside the one to the DRAM."""

    bytes_per_cycle: int = key(Count(1, 1 << 16), "width, shared by all cores")
    latency_cycles: int = key(Count(0, 65536), "cycles from a request to the first byte of another core's SRAM", 8)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostConfig:
    """The host's side: what reaching the device costs a driver."""

    mmio_ps: int = key(TIME, "one register access", 200_000)
    irq_ps: int = key(TIME, "from the interrupt line to the driver's handler", 2_000_000)
    link_bandwidth: int = key(BANDWIDTH, "bulk copies between host and device memory", 8 * 10**9)
    link_latency_ps: int = key(TIME, "start of one bulk copy", 500_000)
    submit_ps: int = key(TIME, "host work for one submission", 1_000_000)
    map_ps: int = key(TIME, "host work to map a pool of its memory for the device", 5_000_000)
    operation_ps: int = key(
        TIME,
        "what the host takes for one operation that it does itself: a multiply-accumulate, or an element that an "
        "operator without any reads or writes",
        250,
    )
    compile_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 48),
        "memory that values and steps may take while a model is compiled, beside what it brings itself; 0 = an eighth "
        "of dram.bytes, 256 MiB at most",
        0,
    )

    def copy_ps(self, nbytes: int) -> int:
        """What one bulk copy of so many bytes takes, in either direction."""
        return self.link_latency_ps + bytes_to_ps(nbytes, self.link_bandwidth)


_LATER_PARTS = ("pci", "firmware", "exchange", "l2")
"""Parts that a device without them need not mention, so that its fingerprint is the one of before there were any."""


@functools.lru_cache(64)
def _fingerprint(config: Config) -> str:
    import hashlib
    import json

    values = to_table(config)
    del values["name"], values["description"]
    for part in _LATER_PARTS:
        if values[part] is False:
            del values[part]
    if config.host.operation_ps == HostConfig().operation_ps:  # a later key, likewise
        del values["host"]["operation"]
    # Sorted and without blanks, so that one config has one digest in every version of Python.
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One device. Frozen, hashable, picklable; made by :func:`load_config` and :meth:`with_`, always valid."""

    name: str = key(Text(), "short name; the file's name unless given", "")
    description: str = key(Text(), "one line for people", "")
    clock_hz: int = key(CLOCK, "clock of the cores and the interconnect")
    cores: int = key(Count(1, 64), "cores, each with the units, the SRAM and the DMA channels below", 1)
    queue_depth: int = key(Count(1, 4096), "instructions that wait at one unit", 16)
    layer_cycles: int = key(
        Count(0), "cycles that the sequencer takes to turn to another layer's commands; units go on meanwhile", 0
    )
    layer_bytes: int = key(
        Quantity(Dimension.SIZE, 0, 1 << 24),
        "instructions of a layer beside those of the stream, all of which are loaded from DRAM before a job begins",
        0,
    )
    matrix: MatrixConfig | None = section(MatrixConfig, "matrix unit", optional=True)
    vector: VectorConfig | None = section(VectorConfig, "vector unit", optional=True)
    scalar: ScalarConfig | None = section(ScalarConfig, "scalar unit", optional=True)
    sram: SramConfig = section(SramConfig, "on-chip memory")
    dma: DmaConfig = section(DmaConfig, "DMA engines")
    dram: DramConfig = section(DramConfig, "memory outside the chip")
    constants: ConstantsConfig | None = section(ConstantsConfig, "memory for constants beside the DRAM", optional=True)
    l2: L2Config | None = section(L2Config, "memory of all cores, between their SRAM and the DRAM", optional=True)
    interconnect: InterconnectConfig = section(InterconnectConfig, "between cores and DRAM")
    exchange: ExchangeConfig | None = section(ExchangeConfig, "from core to core", optional=True)
    host: HostConfig = section(HostConfig, "the host's link to the device")
    pci: PciConfig | None = section(PciConfig, "what the device has as a PCI Express function", optional=True)
    firmware: FirmwareConfig | None = section(FirmwareConfig, "what must be loaded before jobs", optional=True)
    technology: TechnologyConfig | None = section(TechnologyConfig, "process of the chip", optional=True)
    energy: EnergyConfig | None = section(EnergyConfig, "energy of one action each", optional=True)
    area: AreaConfig | None = section(AreaConfig, "area of one part each", optional=True)
    origin: str = dataclasses.field(default="", compare=False)
    origins: Table[str] = dataclasses.field(default_factory=Table, compare=False, repr=False)

    def __hash__(self) -> int:
        """Quick, because cost models are looked up by config; equality decides between the few that collide."""
        array = self.matrix and (self.matrix.rows, self.matrix.cols)
        return hash((self.name, self.clock_hz, self.cores, self.sram.bytes, self.dram.bandwidth, array))

    def __repr__(self) -> str:
        return f"<Config {self.name!r}: {', '.join(f'{name} {value}' for name, value in self._telling())}>"

    def _repr_html_(self) -> str:
        return notebook.table(f"Config {self.name!r}", [("description", self.description), *self._telling()])

    def _telling(self) -> list[tuple[str, str]]:
        """The values that tell devices apart."""
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
        """A hex digest of every value that can change a result; not of names, comments or the file's place."""
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
        return _build(plain, reading, self.name, Table({**self.origins, **dict.fromkeys(changed, "override")}))

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
        """Who says the value of a key; of a table, everyone who says a part of it."""
        parts = [origin for key, origin in self.origins.items() if key.startswith(f"{path}.")]
        return ", ".join(dict.fromkeys(parts)) or self.origins.get(path, "default")

    def to_toml(self) -> str:
        """A complete file that loads as an equal config; each line says where its value comes from."""
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
    """What holds where a key that may be left out is."""
    return "(the device's clock)" if path.endswith("clock") else "(left out)"


def load_config(source: str | os.PathLike[str] | Config) -> Config:
    """The device that a shipped name (``"edge"``) or a path to a TOML file describes; a Config is returned as it is.

    The JSON of a run (``.json``) describes the device that it was on, whatever has become of its file since.

    Raises ConfigError with every problem of the file: ``configs/edge.toml: matrix.rows: must be >= 1, got 0``.
    """
    if isinstance(source, Config):
        return source
    if os.fspath(source).endswith(".json"):
        return config_of(read_resolved(os.fspath(source)), os.fspath(source))
    label, plain, origins = read_description(os.fspath(source))
    stem = os.path.basename(label).removesuffix(".toml")
    if origins.get("name", label) != label:
        del plain["name"]  # an inherited name would be another device's
    return _build(plain, Reading(label, origins=origins), stem, Table(origins))


LARGEST_TABLE = 1 << 15
"""Characters of the table of a device: one with every value has some 4 000."""


def config_of(plain: Mapping[str, Any], label: str) -> Config:
    """The device of a table as :meth:`Config.to_table` makes it; ``label`` says in errors where it is from.

    Raises ConfigError as :func:`load_config` does.
    """
    # Each wrong key has a line in the error, with the nearest right ones.
    if len(repr(plain)) > LARGEST_TABLE:
        raise ConfigError(f"{label}: the table of a device must have at most {LARGEST_TABLE} characters")
    return _build(dict(plain), Reading(label, bare=True), os.path.basename(label), Table())


def list_configs() -> tuple[str, ...]:
    """The names that :func:`load_config` knows, sorted."""
    return config_names()


def _build(plain: dict[str, Any], reading: Reading, name: str, origins: Table[str]) -> Config:
    config: Config | None = read_section(Config, plain, "", reading)
    if config is not None:
        config = dataclasses.replace(config, name=config.name or name, origin=reading.label, origins=origins)
        for path, problem in _bad_combinations(config):
            reading.refuse(path, problem)
    if reading.problems or config is None:
        raise ConfigError(reading.problems)
    return config


def _with_leaves(config: Config, overrides: dict[str, Any]) -> Config | None:
    """A copy with single values replaced, without reading all the others again, which a search over many devices has
    no time for. None where anything else is asked for, or is wrong: the long way says what."""
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
    # The deepest first: a section takes the new ones below it.
    for above, values in sorted(changes.items(), key=lambda item: -len(item[0])):
        if above:
            section: Any = config
            for field in above:
                section = getattr(section, field)
                if section is None:
                    return None
            changes[above[:-1]][above[-1]] = dataclasses.replace(section, **values)
    own = changes.get((), {})
    origins = Table({**config.origins, **dict.fromkeys(names, "override")})
    made = dataclasses.replace(config, **{**own, "name": own.get("name") or config.name}, origins=origins)
    return None if any(True for _ in _bad_combinations(made)) else made


@functools.lru_cache(1024)
def _leaf(dotted: str) -> tuple[tuple[str, ...], str, str, Kind] | None:
    """The sections above a key with one value, its field, its name in TOML, and what it holds; None for others."""
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


def _bad_combinations(config: Config) -> Iterator[tuple[str, str]]:
    """What single values cannot show: (key, problem) of values that contradict each other."""
    if config.matrix is None and config.vector is None and config.scalar is None:
        yield "matrix", "must be present, or vector, or scalar: a device needs a unit that computes"
    yield from _bad_sram(config)
    if config.matrix is not None:
        yield from _bad_matrix(config.matrix)
    if config.dma.weights_apart and config.dma.channels < _APART:
        yield "dma.weights_apart", f"must be false with less than {_APART} channels, got {config.dma.channels}"
    yield from _bad_dram(config.dram)


_APART = 3
"""Channels of which one is for features, one for weights and one for results."""


def _bad_sram(config: Config) -> Iterator[tuple[str, str]]:
    sram, burst = config.sram, config.dma.burst_bytes
    width, all_cores = sram.total_bytes_per_cycle, config.cores * sram.bytes
    # All banks are of one size, in whole words of their ports.
    if sram.bytes % width:
        yield "sram.bytes", f"must be a multiple of banks * bytes_per_cycle = {width} B, got {sram.bytes} B"
    if sram.bytes < burst:
        yield "sram.bytes", f"must hold one burst of dma.burst_bytes = {burst} B, got {sram.bytes} B"
    if all_cores > config.dram.bytes:
        needed, given = show(all_cores, Dimension.SIZE), show(config.dram.bytes, Dimension.SIZE)
        yield "dram.bytes", f"must be >= the SRAM of all cores = {needed}, got {given}"


def _bad_matrix(matrix: MatrixConfig) -> Iterator[tuple[str, str]]:
    if not any(matrix.throughput.values()):
        yield "matrix.throughput", "must be above 0 for at least one type"
    if matrix.preload_hidden and matrix.weight_buffers < 2:
        yield "matrix.weight_buffers", f"must be >= 2 with preload_hidden = true, got {matrix.weight_buffers}"
    # One row of sums: an array that could not keep that could compute no tile at all.
    smallest = matrix.cols * ACCUMULATOR_BYTES
    if 0 < matrix.accumulator_bytes < smallest:
        problem = f"must be 0 B or >= cols * {ACCUMULATOR_BYTES} B = {smallest} B, got {matrix.accumulator_bytes} B"
        yield "matrix.accumulator_bytes", problem


def _bad_dram(dram: DramConfig) -> Iterator[tuple[str, str]]:
    """What contradicts the part, or would have no effect."""
    if dram.kind != "jedec":
        if dram.part != "none":
            yield "dram.part", f'must be none with kind = "{dram.kind}", got {dram.part!r}'
        return
    if dram.part == "none":
        yield "dram.part", f'must be given with kind = "jedec": one of {", ".join(PARTS)}'
        return
    part = PARTS[dram.part]
    problem = bad_mapping(dram.mapping)
    if problem:
        yield "dram.mapping", problem
    # The channel is a field of address bits.
    if dram.channels & (dram.channels - 1):
        yield "dram.channels", f'must be a power of two with kind = "jedec", got {dram.channels}'
    if part.pseudo > 1 and dram.ranks > 1:
        yield "dram.ranks", f"must be 1: a channel of {part.name} is {part.pseudo} pseudo channels, got {dram.ranks}"
    if dram.efficiency != 1:
        yield "dram.efficiency", f'must be 1 with kind = "jedec", whose banks decide that, got {dram.efficiency}'
    peak = dram.channels * part.bandwidth
    # Datasheets round the rate of a part, so its bandwidth and that of its timings may differ a little.
    if abs(dram.bandwidth - peak) * 100 > peak:
        wanted, given = show(peak, Dimension.BANDWIDTH), show(dram.bandwidth, Dimension.BANDWIDTH)
        yield "dram.bandwidth", f"must be that of {dram.channels} x {part.name} = {wanted} within 1 %, got {given}"
    most = dram.channels * max(dram.ranks, part.pseudo) * part.rank_bytes
    if dram.bytes > most:
        wanted, given = show(most, Dimension.SIZE), show(dram.bytes, Dimension.SIZE)
        yield "dram.bytes", f"must be <= what the parts hold = {wanted}, got {given}"
