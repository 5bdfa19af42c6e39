"""The benefit of each resource of a device: the model is compiled and run again with it infinite, doubled and halved.

Resources are the numbers in the sections of the description, so keys of a new unit are included automatically. A key is
a cost (less is better) if it is a time or counts cycles. Any other number is a capacity or a rate. Infinite is the best
legal value: no cost, or MOST times as much.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from npusim.errors import ConfigError, NpusimError
from npusim.hw.build import walk
from npusim.hw.config import Config
from npusim.hw.keys import Count, Key, MapOf, Quantity, Ratio, ValueType, unused
from npusim.report.layers import unit_kind
from npusim.units import Dimension

INFINITE, DOUBLED, HALVED = "infinite", "doubled", "halved"
CHANGES = (INFINITE, DOUBLED, HALVED)
MOST = 1 << 10
"""The factor that counts as infinite; if the result is not legal, half of it, and so on."""

_OF_TIME = (Dimension.TIME, Dimension.SIZE, Dimension.FREQUENCY, Dimension.BANDWIDTH)
"""Dimensions of keys that determine times. Energy and area of actions and parts do not."""
_PRICES = ("technology.", "energy.", "area.")
"""Sections that do not affect times."""
_COUNTS_CYCLES = re.compile(r"(^|_)(cycles|latencies|cost)(_|$)")


@dataclass(frozen=True, slots=True)
class Resource:
    """A number of a device. ``cost``: whether less is better. ``value``: as TOML."""

    key: str
    doc: str
    value: str
    cost: bool
    host: bool
    _kind: ValueType
    _number: Any

    def variants(self, config: Config) -> Iterator[tuple[str, Config | str]]:
        """(change, device) for each of CHANGES; the reason as text if there is no such device."""
        for change in CHANGES:
            yield change, self._variant(config, change)

    def _variant(self, config: Config, change: str) -> Config | str:
        problem = "no other value is legal"
        for factor in self._factors(change):
            value = _scaled(self._kind, self._number, factor, change == INFINITE)
            if value is None or value == self._number:
                continue
            try:
                return config.with_(**{self.key: self._kind.raw(value)})
            except ConfigError as error:
                problem = error.problems[0].split(": ", 2)[-1]
        return problem

    def _factors(self, change: str) -> list[Fraction]:
        if change == DOUBLED:
            return [Fraction(2)]
        if change == HALVED:
            return [Fraction(1, 2)]
        best = [Fraction(2) ** power for power in range(MOST.bit_length() - 1, 0, -1)]
        return [Fraction(0), *(1 / factor for factor in best)] if self.cost else best


@dataclass(frozen=True, slots=True)
class WhatIfPoint:
    """The run of one device. ``total_ps``: including the host. ``binds``: ps of the critical path by (unit, cause),
    with units of a kind merged. ``resources``: ps of the total time by resource, largest first. ``energy_fj``: None if
    the description does not define its price."""

    time_ps: int
    total_ps: int
    dram_bytes: int
    energy_fj: int | None
    binds: tuple[tuple[tuple[str, str], int], ...]
    resources: tuple[tuple[str, int], ...] = ()

    def latency_ps(self, resource: Resource) -> int:
        """The latency that a resource affects: including the host for host resources, otherwise on the device."""
        return self.total_ps if resource.host else self.time_ps


@dataclass(frozen=True, slots=True)
class WhatIfRow:
    """A resource and its variants by change: a point, or the reason why there is none."""

    resource: Resource
    base: WhatIfPoint
    points: Mapping[str, WhatIfPoint | str]
    values: Mapping[str, str]

    def gain_ps(self, change: str) -> int | None:
        """Time in ps that the change saves. Negative if it takes more time; None if the change is impossible."""
        point = self.points[change]
        return None if isinstance(point, str) else self._base_ps - point.latency_ps(self.resource)

    @property
    def _base_ps(self) -> int:
        return self.base.latency_ps(self.resource)

    @property
    def best_ps(self) -> int:
        """The largest gain of all changes, at least 0."""
        return max((gain for change in CHANGES if (gain := self.gain_ps(change)) is not None), default=0)

    @property
    def moves(self) -> bool:
        """Whether any change has an effect."""
        return any(not isinstance(point, str) and _told(point) != _told(self.base) for point in self.points.values())

    def share(self, change: str) -> float | None:
        """``gain_ps`` relative to the current time."""
        gain = self.gain_ps(change)
        return None if gain is None or not self._base_ps else gain / self._base_ps


@dataclass(frozen=True, slots=True)
class WhatIf:
    """``rows``: sorted by benefit, largest first."""

    model: str
    device: str
    base: WhatIfPoint
    rows: tuple[WhatIfRow, ...] = field(default_factory=tuple)

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "config": self.device,
            "base": _json(self.base),
            "resources": [
                {
                    "key": row.resource.key,
                    "meaning": row.resource.doc,
                    "value": row.resource.value,
                    "cost": row.resource.cost,
                    "changes": {
                        change: {"error": point}
                        if isinstance(point, str)
                        else {"value": row.values[change], "gain_ps": row.gain_ps(change), **_json(point)}
                        for change, point in row.points.items()
                    },
                }
                for row in self.rows
            ],
        }


def resources(config: Config) -> list[Resource]:
    """All numbers of a device that could have another value, in the order of its sections."""
    found = []
    for path, entry, value in walk(config):
        number = config.clock_hz if value is None and _dimension(entry) is Dimension.FREQUENCY else value
        if _is_resource(path, entry, number, config):
            cost = _dimension(entry) is Dimension.TIME or bool(_COUNTS_CYCLES.search(entry.name))
            text = entry.kind.text(number)
            found.append(Resource(path, entry.doc, text, cost, path.startswith("host."), entry.kind, number))
    return found


def _is_resource(path: str, entry: Key, number: Any, config: Config) -> bool:
    element = entry.kind.element if isinstance(entry.kind, MapOf) else entry.kind
    if not isinstance(element, Count | Quantity | Ratio) or _dimension(entry) not in (None, *_OF_TIME):
        return False
    if path.startswith(_PRICES):
        return False
    # 0 means no cost, or that a part does not exist, so factors have no effect.
    if not number or (isinstance(number, Mapping) and not any(number.values())):
        return False
    section = getattr(config, path.partition(".")[0], None)
    return all(entry != other for _, other, _ in unused(section))


def _dimension(entry: Key) -> Dimension | None:
    kind = entry.kind.element if isinstance(entry.kind, MapOf) else entry.kind
    return kind.dimension if isinstance(kind, Quantity) else None


def _scaled(kind: ValueType, number: Any, factor: Fraction, clamped: bool) -> Any:
    """The number times a factor; None if that is out of range. ``clamped``: use the limit of the range instead."""
    if isinstance(kind, MapOf):
        # A key at its limit keeps its value while others change. 0 means none.
        return {name: _scaled(kind.element, each, factor, True) if each else each for name, each in number.items()}
    if isinstance(kind, Ratio):
        ratio = Fraction(number) * factor
        if ratio > kind.maximum:
            return Fraction(kind.maximum) if clamped else None
        return None if kind.positive and not ratio else ratio
    assert isinstance(kind, Count | Quantity)
    whole = int(number * factor)
    nearest = max(kind.minimum, min(whole, kind.maximum))
    return nearest if clamped or nearest == whole else None


Measure = Callable[[Sequence[Config]], list["WhatIfPoint | str"]]
"""Points of devices, or the reasons why there are none."""


def what_if(config: Config, measure: Measure, model: str = "", only: Sequence[str] = ()) -> WhatIf:
    """Change each resource of a device in turn. ``only``: keys, or prefixes of keys; others are not changed.

    ``measure`` returns the points. Raises errors of measuring ``config`` itself.
    """
    known = resources(config)
    none = [name for name in only if not any(_below(each.key, name) for each in known)]
    if none:
        keys = ", ".join(each.key for each in known)
        raise ConfigError(f"no number of {config.name} is called {', '.join(none)}; there are {keys}")
    chosen = [each for each in known if not only or any(_below(each.key, name) for name in only)]
    tried = [(each, dict(each.variants(config))) for each in chosen]
    # Several changes may lead to the same device, which is measured once.
    devices = {config.fingerprint(): config}
    for _, variants in tried:
        devices.update({v.fingerprint(): v for v in variants.values() if isinstance(v, Config)})
    points = dict(zip(devices, measure(list(devices.values())), strict=True))
    base = points[config.fingerprint()]
    if isinstance(base, str):
        raise NpusimError(base)
    rows = []
    for resource, variants in tried:
        found = {change: points[v.fingerprint()] if isinstance(v, Config) else v for change, v in variants.items()}
        values = {
            change: next(value for key, value, *_ in v.resolved() if key == resource.key)
            for change, v in variants.items()
            if isinstance(v, Config)
        }
        rows.append(WhatIfRow(resource, base, found, values))
    rows.sort(key=lambda row: (-row.best_ps, row.resource.key))
    return WhatIf(model, config.name, base, tuple(rows))


def _below(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def point(session: Any, program: Any) -> WhatIfPoint:
    """A run of a loaded program without arithmetic. Pinned weights are in SRAM."""
    session.run(program, timing_only=True)
    result = session.run(program, timing_only=True)
    binds: Counter[tuple[str, str]] = Counter()
    for stretch in result.timeline.critical_path():
        binds[unit_kind(stretch.unit), stretch.cause] += stretch.end_ps - stretch.start_ps
    ordered = sorted(binds.items(), key=lambda item: (-item[1], item[0]))
    traffic = result.dram_read_bytes + result.dram_write_bytes
    waited = tuple(result.bottleneck.resources.items())
    return WhatIfPoint(result.time_ps, result.total_ps, traffic, result.energy.total, tuple(ordered), waited)


def _told(found: WhatIfPoint) -> tuple[int, int, int, int | None]:
    return found.time_ps, found.total_ps, found.dram_bytes, found.energy_fj


def _json(found: WhatIfPoint) -> dict[str, Any]:
    return {
        "time_ps": found.time_ps,
        "total_ps": found.total_ps,
        "dram_bytes": found.dram_bytes,
        "energy_fj": found.energy_fj,
        "binds": [{"unit": unit, "cause": cause, "time_ps": ps} for (unit, cause), ps in found.binds],
        "resources": dict(found.resources),
    }
