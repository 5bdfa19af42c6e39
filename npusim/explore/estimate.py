"""The fast tier of exploration: what thousands of designs would take for one network, without making a program.

The compiler's own groups, problems and cost functions are worked out once; then its search for tiles and for the homes
of values runs over arrays of designs (see :mod:`npusim.explore.estimates`). An estimate is for choosing what to
simulate: it ranks designs, and is off by some percent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import CompileError, ConfigError, UsageError, shown
from npusim.explore.estimates.designs import VECTORISED, Array, Designs, Index, fields_of, known_keys
from npusim.explore.estimates.energies import config_at, energy
from npusim.explore.estimates.homes import BOUNDS, LayerFigures, PlacementPlanner, Plan
from npusim.explore.estimates.network import PreparedNetwork
from npusim.explore.estimates.tables import COUNTS
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.sections import ACCUMULATOR_BYTES

Floats = npt.NDArray[np.float64]

__all__ = ["BOUNDS", "UNSEEN", "VECTORISED", "Estimates", "Estimator"]

UNSEEN = (
    "queue_depth", "layer_cycles", "layer_bytes", "sram.resident_weights", "sram.resident_bytes",
    "exchange.bytes_per_cycle", "exchange.latency_cycles",
    "vector.setup_hidden", "interconnect.arbitration", "interconnect.separate_code_port",
    "interconnect.separate_write_port",
    "dma.separate_weight_port",
    "dma.duplex", "dma.decoder_weights_per_cycle", "dram.channels",
    "dram.ranks", "dram.mapping", "dram.read_queue", "dram.write_queue", "dram.bank_queue", "dram.refresh",
)  # fmt: skip
"""Keys that move a simulation and no estimate: what they do shows between instructions only; those of a way between
cores, as if all values passed by DRAM; and the rate of a decoder, as if all weights lay as they are: how short they
become only their values say."""


@dataclass(slots=True)
class Estimates:
    """Of each design, in arrays of [designs]: picoseconds on the device, bytes over the pins of the DRAM, femtojoules.

    nan: not known, as an energy without all prices, or all three of a design on which the network does not ``fit``.
    ``unseen``: keys that were asked for and that no estimate depends on. With ``layers``: their names, and arrays of
    [layers][designs]; ``bound``: which of ``BOUNDS`` a layer waits for most, -1 where it is not known.
    """

    time_ps: Floats
    dram_bytes: Floats
    energy_fj: Floats
    fits: npt.NDArray[np.bool_]
    unseen: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    layer_time_ps: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    layer_dram_bytes: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    bound: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0), np.int8))

    def __len__(self) -> int:
        return len(self.time_ps)


class Estimator:
    """Estimates of one network on variants of a device.

    Raises what compiling for ``base`` raises, where no device of its kind can compute the network.
    """

    def __init__(self, graph: Graph, base: Config) -> None:
        self._graph = graph
        self._base = base
        self._networks: dict[Config, PreparedNetwork] = {}
        network = self._network(base)
        if base.sram.keeps_values:
            network.spans  # noqa: B018 - found now, so that the first estimate is as fast as others

    def estimate(self, columns: Mapping[str, Sequence[object]], *, layers: bool = False) -> Estimates:
        """One design for each row of the columns: values as in TOML, or plain numbers in base units, by dotted key.

        Raises ConfigError where a key or a value is none, or where they contradict each other; UsageError for columns
        of different lengths. Designs that differ in keys that are not ``VECTORISED`` are estimated apart.
        """
        count = _length(columns)
        arrays, others = self._read(columns, count)
        groups: dict[tuple[str, ...], list[int]] = {}
        texts = [list(map(repr, values)) for values in others.values()]
        for row in range(count):
            groups.setdefault(tuple(text[row] for text in texts), []).append(row)
        result = _Result(count, layers=layers)
        for rows in groups.values():
            config = (
                self._base.with_(**{key: values[rows[0]] for key, values in others.items()}) if others else self._base
            )
            self._estimate_alike(config, arrays, np.array(rows, np.intp), result)
        # A table that is there or not, as "l2", asks for all of its keys.
        names = {known_keys()[key][0] if key in known_keys() else key for key in columns}
        return result.estimates(tuple(key for key in UNSEEN if names & {key, key.rpartition(".")[0]}))

    def _read(
        self, columns: Mapping[str, Sequence[object]], count: int
    ) -> tuple[dict[str, Array], dict[str, list[object]]]:
        """Numbers of the keys that may differ within a pass, and the values of all others."""
        arrays: dict[str, Array] = {}
        others: dict[str, list[object]] = {}
        problems: list[str] = []
        for dotted, values in columns.items():
            plain: list[object] = [value.item() if isinstance(value, np.generic) else value for value in values]
            name, entry = known_keys().get(dotted, (dotted, None))
            if entry is None or name not in VECTORISED or not self._may_vary(name, columns):
                others[dotted] = plain
                continue
            known: dict[tuple[type, object], float] = {}

            def refuse(_: str, problem: str, name: str = name) -> None:
                problems.append(f"{self._base.origin}: {name}: {problem}")

            array = np.empty(count)
            for row, value in enumerate(plain):
                key = (type(value), value if isinstance(value, int | float | str) else repr(value))
                if key not in known:
                    optional = entry.nullable and value is None
                    read = None if optional else entry.kind.read(value, refuse, True)
                    known[key] = np.nan if read is None else float(read)
                array[row] = known[key]
            arrays[name] = array
        if problems:
            raise ConfigError(problems)
        return arrays, others

    def _may_vary(self, key: str, columns: Mapping[str, Sequence[object]]) -> bool:
        """Whether a key's values are numbers of a formula here; of models without a twin they are the model's."""
        config, section = self._base, key.partition(".")[0]
        # A part of the device that is switched on or off, or whose model varies.
        if getattr(config, fields_of(key)[0]) is None or (section in columns and section != key):
            return False
        if section == "dram" and ("dram.kind" in columns or config.dram.kind != "fixed"):
            return False
        twin = "matrix.model" not in columns and (config.matrix is None or config.matrix.model == "systolic")
        return twin or not key.startswith(("matrix.", "sram.b", "sram.l", "clock"))

    def _estimate_alike(self, config: Config, arrays: Mapping[str, Array], rows: Index, result: _Result) -> None:
        """Designs of one kind."""
        designs = Designs(config, {key: values[rows] for key, values in arrays.items()}, len(rows))
        _check(designs)
        try:
            network = self._network(config)
        except CompileError:
            return  # on none of them
        for chunk in np.array_split(np.arange(len(rows)), -(-len(rows) // _AT_ONCE)):
            some = designs.take(chunk)
            best = _plan(network, some, config.cores)
            time_ps: Array = np.sum([figures.ps for figures in best.layers], axis=0)
            result.put(rows[chunk], network, best, time_ps, energy(network.layers, some, best, time_ps))

    def _network(self, config: Config) -> PreparedNetwork:
        """What designs of a kind share: one core's, since several run the same layers."""
        alike = dataclasses.replace(
            config, name="", description="", cores=1, energy=None, technology=None, area=None, host=self._base.host
        )
        if alike not in self._networks:
            self._networks[alike] = PreparedNetwork(self._graph, alike)
        return self._networks[alike]


_AT_ONCE = 2048
"""Designs in one pass: more would leave the caches of the host."""


def _plan(network: PreparedNetwork, designs: Designs, cores: int) -> Plan:
    """The order of least time: values and segments on one core, or tiles shared out among several."""
    planner = PlacementPlanner(network, designs)
    keeps = designs.config.sram.keeps_values
    best = planner.whole(keeps=keeps)
    if keeps:
        striped = planner.striped(best)
        best = _less(best, striped)
    counts = sorted({cores, *(count for count in (2, 4, 8, 16, 32) if count < cores)}) if cores > 1 else []
    for count in counts:
        best = _less(best, PlacementPlanner(network, designs, count).whole(keeps=False))
    return best


def _less(one: Plan, other: Plan) -> Plan:
    """For each design the plan that takes less, as the compiler compares them: by what will be told."""
    rows = np.flatnonzero(_ps(other) < _ps(one))
    for into, source, chosen, theirs in zip(one.layers, other.layers, one.chosen, other.chosen, strict=True):
        into.put(rows, source, rows)
        chosen[rows] = theirs[rows]
    return one


def _ps(plan: Plan) -> Array:
    total: Array = np.sum([figures.ps for figures in plan.layers], axis=0)
    return total


class _Result:
    """Arrays for all designs, filled group by group."""

    def __init__(self, count: int, *, layers: bool) -> None:
        self._time, self._dram, self._energy = (np.full(count, np.nan) for _ in range(3))
        self._wanted, self._count = layers, count
        self._rows: dict[str, LayerFigures] = {}

    def put(self, rows: Index, network: PreparedNetwork, plan: Plan, time_ps: Array, energy_fj: Array) -> None:
        fits = np.isfinite(time_ps)
        traffic = np.sum([_dram(figures) for figures in plan.layers], axis=0)
        for into, values in ((self._time, time_ps), (self._dram, traffic), (self._energy, energy_fj)):
            into[rows] = np.where(fits, values, np.nan)
        if not self._wanted:
            return
        for layer, figures in zip(network.layers, plan.layers, strict=True):
            if layer.group.name not in self._rows:
                empty = LayerFigures.empty(self._count)
                empty.ps[:], empty.counts[:], empty.bound[:] = np.nan, np.nan, -1
                self._rows[layer.group.name] = empty
            self._rows[layer.group.name].put(rows[fits], figures, fits)

    def estimates(self, unseen: tuple[str, ...]) -> Estimates:
        found = Estimates(self._time, self._dram, self._energy, np.isfinite(self._time), unseen)
        if self._rows:
            found.layers = tuple(self._rows)
            found.layer_time_ps = np.stack([figures.ps for figures in self._rows.values()]).astype(np.float64)
            found.layer_dram_bytes = np.stack([_dram(figures) for figures in self._rows.values()]).astype(np.float64)
            found.bound = np.stack([figures.bound for figures in self._rows.values()])
        return found


def _dram(figures: LayerFigures) -> Array:
    total: Array = figures.counts[COUNTS.index("dram")] + figures.counts[COUNTS.index("code")]
    return total


def _length(columns: Mapping[str, Sequence[object]]) -> int:
    """Rows of all columns."""
    lengths = {key: len(values) for key, values in columns.items()}
    if not lengths:
        raise UsageError("no columns: there must be one for each key that differs, with a value for each design")
    count = next(iter(lengths.values()))
    for key, length in lengths.items():
        if length != count:
            raise UsageError(f"the column {shown(key)} has {length} values, {shown(next(iter(lengths)))} has {count}")
    return count


def _check(designs: Designs) -> None:
    """Raises ConfigError for the first design whose values contradict each other."""
    sram, width = designs["sram.bytes"], designs["sram.banks"] * designs["sram.bytes_per_cycle"]
    bad = (sram % width != 0) | (sram < designs["dma.burst_bytes"])
    bad = bad | (designs.config.cores * sram > designs.config.dram.bytes)
    if designs.config.matrix is not None:
        sums = designs["matrix.accumulator_bytes"]
        bad = bad | ((sums > 0) & (sums < designs["matrix.cols"] * ACCUMULATOR_BYTES))
    for row in np.flatnonzero(np.broadcast_to(bad, (designs.count,)))[:1]:
        overrides: dict[str, Any] = {}
        found = config_at(designs, int(row))
        for key in designs.columns:
            value: Any = found
            for name in fields_of(key):
                value = getattr(value, name)
            overrides[key] = value if isinstance(value, int | type(None)) else str(value)
        designs.config.with_(**overrides)
