"""The fast tier of exploration: estimates of thousands of designs for one network, without generating programs.

The groups of the compiler, its problems and cost functions are computed once. Its searches for tiles and memory areas
then run on arrays of designs (see :mod:`npusim.explore.estimates`). Estimates select the designs to simulate. They rank
designs, and have errors of some percent.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.compiler.pipeline import uncollected
from npusim.compiler.schedule.attention import likely_fits
from npusim.compiler.schedule.search import first_of, most_traffic
from npusim.errors import CompileError, ConfigError, UsageError, shown
from npusim.explore.estimates.designs import (
    MISSING,
    Array,
    Designs,
    Index,
    config_at,
    is_left,
    known_keys,
    value_at,
)
from npusim.explore.estimates.energies import energy
from npusim.explore.estimates.joined import joined_groups
from npusim.explore.estimates.layer_times import BOUNDS, COUNTS, LayerFigures
from npusim.explore.estimates.network import PreparedNetwork
from npusim.explore.estimates.placement import PlacementPlanner, Plan
from npusim.graph import Graph
from npusim.hw.config import Config
from npusim.hw.keys import Count, Quantity, Ratio, ValueType
from npusim.timing.batch import replaced
from npusim.timing.tile_costs import array_pricing, move_pricing, vector_pricing
from npusim.units import ceil_div

Floats = npt.NDArray[np.float64]

__all__ = ["BOUNDS", "Estimates", "Estimator"]


@dataclass
class Estimates:
    """Per design, in arrays of [designs]: picoseconds on the device, bytes over the pins of the DRAM, femtojoules.

    nan: unknown, as an energy without all prices, or all three if the network does not ``fit`` the design. With
    ``layers``: their names, and arrays of [layers][designs]. ``bound``: index in ``BOUNDS`` of the resource that limits
    a layer, -1 if unknown.
    """

    time_ps: Floats
    dram_bytes: Floats
    energy_fj: Floats
    fits: npt.NDArray[np.bool_]
    _probe: Callable[[], tuple[str, ...]]
    layers: tuple[str, ...] = ()
    layer_time_ps: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    layer_dram_bytes: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    bound: npt.NDArray[np.int8] = field(default_factory=lambda: np.zeros((0, 0), np.int8))

    def __len__(self) -> int:
        return len(self.time_ps)

    @functools.cached_property
    def unseen(self) -> tuple[str, ...]:
        """Keys that influence simulations, but not estimates. See :meth:`Estimator.unseen`."""
        return self._probe()


class Estimator:
    """Estimates of one network on variants of a device.

    Raises the errors of compilation for ``base`` if no device of its kind can compute the network.
    """

    def __init__(self, graph: Graph, base: Config) -> None:
        self._graph = graph
        self._base = base
        self._networks: dict[tuple[Config, frozenset[str], Config | None, bool], PreparedNetwork] = {}
        network = self._network(base)
        if base.compiler.keeps_values and base.compiler.may_cascade:
            network.spans  # noqa: B018 - found now, so that the first estimate is as fast as others

    def estimate(self, columns: Mapping[str, Sequence[object]], *, layers: bool = False) -> Estimates:
        """Estimate one design per row of the columns: values as in TOML, or plain numbers in base units, by dotted key.

        Numbers that only costs depend on are varied within one pass over arrays. Designs that differ in other keys are
        estimated separately. Raises ConfigError for invalid or contradictory keys and values, UsageError for columns of
        different lengths.
        """
        count = _length(columns)
        arrays, others = self._read(columns, count)
        groups: dict[tuple[str, ...], list[int]] = {}
        texts = [list(map(repr, values)) for values in others.values()]
        for row in range(count):
            groups.setdefault(tuple(text[row] for text in texts), []).append(row)
        result = _Result(count, layers=layers)
        with uncollected():
            for rows in groups.values():
                changed = {key: values[rows[0]] for key, values in others.items()}
                config = self._base.with_(**changed) if changed else self._base
                self._estimate_alike(config, arrays, np.array(rows, np.intp), result)
        return result.estimates(lambda: self.unseen(columns))

    def unseen(self, columns: Mapping[str, Sequence[object]]) -> tuple[str, ...]:
        """Keys that change simulations by more than 1 %, but estimates by less than half or more than twice as much.

        They are measured: starting at the first design of the columns, one key at a time is set to the lowest and the
        highest of its other values or, if there are none, to the value of the base. These one or two variants per key
        are compiled and simulated.
        """
        first = {key: values[0] for key, values in columns.items()}
        pairs: dict[str, list[tuple[dict[str, object], dict[str, object]]]] = {}
        for key, values in columns.items():
            others = sorted({repr(value): value for value in values if value != values[0]}.values(), key=_order)
            pairs[key] = [(first, {**first, key: value}) for value in others[:: max(1, len(others) - 1)]]
            if not others:
                pairs[key] = [({name: value for name, value in first.items() if name != key}, first)]
        known: dict[str, tuple[float, float] | None] = {}

        def both(design: dict[str, object]) -> tuple[float, float] | None:
            text = repr(design)
            if text not in known:
                known[text] = self._both(design)
            return known[text]

        return tuple(
            known_keys()[key][0] if key in known_keys() else key
            for key, designs in pairs.items()
            if not all(_follows(both(one), both(other)) for one, other in designs)
        )

    def _both(self, design: Mapping[str, object]) -> tuple[float, float] | None:
        """Estimated and simulated picoseconds of a design. None if the design is invalid or cannot compute the
        network."""
        from npusim.runtime import Session

        try:
            config = self._base.with_(**design)
            with Session(config, cache_dir=False) as session:
                simulated = session.run(session.compile(self._graph), timing_only=True).time_ps
        except (ConfigError, CompileError):
            return None
        columns = {key: [value] for key, value in design.items()} or {"clock": [config.clock_hz]}
        return float(self.estimate(columns).time_ps[0]), float(simulated)

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
            if entry is None or not self._may_vary(name, entry.kind, columns):
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

    def varies(self, key: str) -> bool:
        """Whether designs with different values of a key, by its dotted name, are estimated in one pass."""
        name, entry = known_keys().get(key, (key, None))
        return entry is not None and self._may_vary(name, entry.kind, {})

    def _may_vary(self, key: str, kind: ValueType, columns: Mapping[str, Sequence[object]]) -> bool:
        """Whether a key is a number that only costs depend on, and no section that contains it is among the columns."""
        config = self._base
        if not isinstance(kind, Count | Quantity | Ratio) or key in _OF_LOWERINGS:
            return False
        if any(key.startswith(f"{section}.") for section in columns):
            return False
        if value_at(config, key) in (MISSING, None) and (key not in _CLOCKS or value_at(config, key) is MISSING):
            return False
        if key in ("matrix.rows", "matrix.cols") and ("compiler.weight_tiles" in columns or _fills_tiles(config)):
            return False
        return key.startswith(_OF_PLANS) or any(
            is_left(key, config, reduce) for reduce in (array_pricing, move_pricing, vector_pricing)
        )

    def _estimate_alike(self, config: Config, arrays: Mapping[str, Array], rows: Index, result: _Result) -> None:
        """Estimate designs of one kind."""
        designs = Designs(config, {key: values[rows] for key, values in arrays.items()}, len(rows))
        _check(designs)
        try:
            network = self._network(config)
        except CompileError:
            return  # the network fits none of them
        for fused, mine in _fused(network, designs):
            self._estimate_fused(config, fused, designs.take(mine), rows[mine], result)

    def _estimate_fused(
        self, config: Config, fused: frozenset[str], designs: Designs, rows: Index, result: _Result
    ) -> None:
        """Estimate designs on which the same attentions are fused."""
        network = self._network(config, fused)
        # Designs with equal prices are adjacent.
        sorts = [designs["sram.bytes"], designs["dma.channels"] == 1, designs["dram.bandwidth"]]
        sorts += [designs.seen_by(reduce)[1] for reduce in (vector_pricing, move_pricing, array_pricing)]
        order = np.lexsort([np.broadcast_to(each, (designs.count,)) for each in sorts])
        for chunk in np.array_split(order, ceil_div(len(rows), _AT_ONCE)):
            some = designs.take(chunk)
            time_ps = self._put_best(list(self._plans(network, some, config, fused)), some, rows[chunk], result)
            # Attentions were expected to fit, and do not.
            without = np.flatnonzero(np.isinf(time_ps))
            if fused and len(without):
                self._estimate_fused(config, frozenset(), some.take(without), rows[chunk][without], result)

    def _put_best(self, plans: Sequence[_Planned], designs: Designs, rows: Index, result: _Result) -> Array:
        """Put the figures of the best plan of each design into the result. Returns picoseconds, by design."""
        times, traffic = np.full((2, len(plans), designs.count), np.inf)
        for into, moved, (_, _, mine, plan) in zip(times, traffic, plans, strict=True):
            into[mine] = _ps(plan)
            moved[mine] = np.sum([np.zeros(len(mine)), *(_dram(figures) for figures in plan.layers)], axis=0)
        best, least = np.zeros(designs.count, np.intp), np.full(designs.count, np.inf)
        everyone = np.arange(designs.count)
        for cores in dict.fromkeys(each.cores for each in plans):
            some = np.array([number for number, each in enumerate(plans) if each.cores == cores])
            most = most_traffic(plans[0].network.graph, cores, designs.config)
            chosen = some[first_of(times[some], traffic[some], most)]
            better = times[chosen, everyone] < least
            best[better], least[better] = chosen[better], times[chosen, everyone][better]
        for number, (network, _, mine, plan) in enumerate(plans):
            # ``mine`` are all designs of the plan, in order.
            of_plan = np.flatnonzero(best[mine] == number)
            if len(of_plan):
                part, taken = mine[of_plan], plan.take(of_plan)
                of_part, time_ps = designs.take(part), times[number, part]
                result.put(rows[part], network, taken, time_ps, energy(network.layers, of_part, taken, time_ps))
        return least

    def _plans(
        self, network: PreparedNetwork, designs: Designs, config: Config, fused: frozenset[str]
    ) -> Iterator[_Planned]:
        """Yield the plans that the compiler compares: values and cascades on one core, tiles that cores share, and
        layers that are cut for all cores."""
        everyone, cores, compiler = np.arange(designs.count), config.cores, config.compiler
        cascades = compiler.keeps_values and compiler.may_cascade
        joined = joined_groups(network, designs, cores)
        sides = [designs, designs.by_l2()] if config.l2 is not None else [designs]
        alone = PlacementPlanner(network, designs, joined)
        for side in sides if cores == 1 else sides[:1]:
            planner = alone if side is designs else PlacementPlanner(network, side, joined, real=alone)
            whole = planner.whole(keeps=compiler.keeps_values)
            yield _Planned(network, 1, everyone, planner.told(whole))
            if cascades:
                yield _Planned(network, 1, everyone, planner.told(planner.striped(whole)))
        if cores == 1:
            return
        for count in sorted({cores, *(count for count in (2, 4, 8, 16, 32) if count < cores)}):
            planner = PlacementPlanner(network, designs, joined, count)
            yield _Planned(network, count, everyone, planner.told(planner.whole(keeps=False)))
            if count == cores and config.l2 is not None:
                planner = PlacementPlanner(network, sides[1], joined, count, planner)
                yield _Planned(network, count, everyone, planner.told(planner.whole(keeps=False)))
        if not compiler.keeps_values:
            return
        for device, rows in _classes(designs):
            some = designs.take(rows)
            for striped in (False, True) if cascades else (False,):
                shards = self._network(config, fused, device, cascades=striped)
                if shards.context.beside == 1:
                    continue
                nothing = [np.zeros(len(rows), np.intp) for _ in shards.layers]
                planner = PlacementPlanner(shards, some, nothing, cores)
                for side in [some] if striped or config.l2 is None else [some, some.by_l2()]:
                    placing = planner if side is some else PlacementPlanner(shards, side, nothing, cores, planner)
                    plan = placing.whole()
                    found = placing.told(placing.striped(plan) if striped else plan)
                    yield _Planned(shards, cores, rows, found)

    def _network(
        self,
        config: Config,
        fused: frozenset[str] = frozenset(),
        cut_for: Config | None = None,
        *,
        cascades: bool = True,
    ) -> PreparedNetwork:
        """The network as prepared for a kind of designs. Without ``cut_for`` it has one core, because several cores run
        the same layers."""
        alike = dataclasses.replace(
            config, name="", description="", cores=1, energy=None, technology=None, area=None, host=self._base.host
        )
        key = alike, fused, cut_for, cascades
        if key not in self._networks:
            self._networks[key] = PreparedNetwork(self._graph, alike, fused, cut_for, cascades=cascades)
        return self._networks[key]


def _fused(network: PreparedNetwork, designs: Designs) -> Iterator[tuple[frozenset[str], Index]]:
    """The attentions that the compiler expects to fit, with the designs for which they are the same."""
    fits = [
        np.broadcast_to(designs.evaluate(partial(likely_fits, parts))[0], (designs.count,))
        for parts in network.attentions.values()
    ]
    if not fits:
        yield frozenset(), np.arange(designs.count)
        return
    kinds, number = np.unique(np.array(fits), axis=1, return_inverse=True)
    for each, kind in enumerate(kinds.T):
        names = (name for name, fused in zip(network.attentions, kind, strict=True) if fused)
        yield frozenset(names), np.flatnonzero(number.ravel() == each)


_OF_LOWERINGS = {"cores", "matrix.weight_bits", "dma.reorder_bytes", "dma.decoder_weights_per_cycle"}
"""Numbers that determine the form of instructions, not only their costs."""
_OF_PLANS = ("sram.bytes", "dma.channels", "scalar.")
"""Numbers, or sections, that are not part of the cost of tiles. The estimate handles them itself."""
_CLOCKS = {"matrix.clock", "vector.clock"}
"""If they are left out, they are the clock of the device."""
_AT_ONCE = 2048
"""Designs per pass: more would exceed the caches of the host."""


class _Planned(NamedTuple):
    """A network, the number of cores that it uses, and a plan for some designs."""

    network: PreparedNetwork
    cores: int
    rows: Index
    plan: Plan


def _classes(designs: Designs) -> Iterator[tuple[Config, Index]]:
    """Devices for which the compiler cuts layers, each with the designs that are assumed to have the same cuts: those
    that differ little in SRAM and columns."""
    count, config = designs.count, designs.config
    sram = 2.0 ** np.round(np.log2(designs["sram.bytes"]))
    cols = designs["matrix.cols"] if config.matrix is not None else np.zeros(1)
    kinds, number = np.unique([np.broadcast_to(each, (count,)) for each in (sram, cols)], axis=1, return_inverse=True)
    for each, (nbytes, columns) in enumerate(kinds.T):
        values: dict[tuple[str, ...], int] = {("sram", "bytes"): int(nbytes)}
        if config.matrix is not None:
            values["matrix", "cols"] = int(columns)
        yield replaced(config, values), np.flatnonzero(number.ravel() == each)


def _ps(plan: Plan) -> Array:
    total: Array = np.sum([figures.ps for figures in plan.layers], axis=0)
    return total


class _Result:
    """Arrays for all designs, filled one kind after the other."""

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

    def estimates(self, probe: Callable[[], tuple[str, ...]]) -> Estimates:
        found = Estimates(self._time, self._dram, self._energy, np.isfinite(self._time), probe)
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
    """The common number of rows of all columns. Raises UsageError."""
    lengths = {key: len(values) for key, values in columns.items()}
    if not lengths:
        raise UsageError("no columns: there must be one for each key that differs, with a value for each design")
    count = next(iter(lengths.values()))
    for key, length in lengths.items():
        if length != count:
            raise UsageError(f"the column {shown(key)} has {length} values, {shown(next(iter(lengths)))} has {count}")
    return count


def _order(value: object) -> tuple[bool, float, str]:
    """Numbers first, by size; other values by their text."""
    number = isinstance(value, int | float)
    return not number, float(value) if isinstance(value, int | float) else 0.0, repr(value)


def _follows(plain: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Whether an estimate moves as the simulation does, given (estimated, simulated) of two designs."""
    if plain is None or other is None:
        return plain is other
    if np.isnan(plain[0]) or np.isnan(other[0]):
        return False
    guessed, true = other[0] / plain[0] - 1, other[1] / plain[1] - 1
    return abs(true) <= 0.01 or 0.5 <= guessed / true <= 2


def _check(designs: Designs) -> None:
    """Raise ConfigError for the first design whose values contradict each other."""
    (bad,) = designs.evaluate(lambda config: next(config.contradictions(), None) is not None)
    for row in np.flatnonzero(np.broadcast_to(bad, (designs.count,)))[:1]:
        found = config_at(designs, int(row)).contradictions()
        raise ConfigError([f"{designs.config.origin}: {key}: {problem}" for key, problem in found])


def _fills_tiles(config: Config) -> bool:
    """Whether weights are padded to tiles of the array, which affects instructions."""
    return config.matrix is not None and config.compiler.weight_tiles
