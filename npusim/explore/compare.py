"""Comparison of two runs: additional time of the second by layer, unit and cause; each sums to the difference.

Each picosecond of a run belongs to one operator, one unit and one cause, those of its critical path
(:meth:`npusim.timeline.Timeline.critical_path`). Groups of two programs are the same layer if they contain the same
operator of the model, because devices fuse differently; groups of equal name are matched in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from npusim import notebook
from npusim.errors import ConfigError, UsageError, shown
from npusim.hw.config import config_of
from npusim.report.layers import NO_LAYER
from npusim.timeline import CAUSES


@dataclass(slots=True)
class Spent:
    """Time on the critical path in ps: in total, and by (unit, cause)."""

    time_ps: int = 0
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of a critical path."""
        self.time_ps += row["time_ps"]
        for part in row["parts"]:
            self.parts[part["unit"], part["cause"]] += part["time_ps"]


@dataclass(slots=True)
class LayerDelta:
    """One layer in both runs. ``since_ps``: its first time on the critical path of each run; None if it is never on it.

    ``kind``: of the second run, or of the first one if the second does not have it. ``names``: of its groups in each
    run.
    """

    name: str
    kind: str
    names: tuple[list[str], list[str]]
    since_ps: tuple[int | None, int | None]
    before: Spent
    after: Spent

    @property
    def delta_ps(self) -> int:
        """Additional time of the second run in ps."""
        return self.after.time_ps - self.before.time_ps

    @property
    def where(self) -> str:
        """Which run it is in: ``both``, ``first`` or ``second``."""
        first, second = map(bool, self.names)
        return "both" if first and second else "first" if first else "second"

    def deltas(self) -> dict[tuple[str, str], int]:
        """Differences by (unit, cause), without zeros. They add up to ``delta_ps``."""
        return _difference(self.before.parts, self.after.parts)

    @property
    def cause(self) -> tuple[str, str, int]:
        """The (unit, cause, ps) with the largest change in the direction of the total."""
        return _most(self.deltas(), self.delta_ps)


@dataclass(slots=True)
class Comparison:
    """``layers``: in the order of the second run's time; their ``delta_ps`` add up to ``delta_ps``. ``amounts``: other
    totals of both runs by name, None if a run does not record it. ``stalls``: additional waiting time by unit and
    reason. ``energy``: additional femtojoules by action; empty unless both runs know the whole. ``resources``: ps
    of the total time of each run by the resource that it waited for, with the host; empty for a run of an older
    version. ``provenance``: of both runs, as in their JSON."""

    labels: tuple[str, str]
    time_ps: tuple[int, int]
    layers: list[LayerDelta]
    amounts: dict[str, tuple[int | None, int | None]]
    stalls: dict[tuple[str, str], int]
    energy: dict[str, int]
    changes: dict[str, tuple[str, str]]
    resources: tuple[Mapping[str, int], Mapping[str, int]]
    provenance: tuple[Mapping[str, Any], Mapping[str, Any]]

    @property
    def delta_ps(self) -> int:
        """Additional time of the second run in ps."""
        return self.time_ps[1] - self.time_ps[0]

    def units(self) -> dict[str, int]:
        """The difference by unit; the values add up to ``delta_ps``."""
        return self._by(0)

    def causes(self) -> dict[str, int]:
        """The difference by cause; the values add up to ``delta_ps``."""
        return self._by(1)

    def _by(self, part: int) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for layer in self.layers:
            for key, delta in layer.deltas().items():
                sums[key[part]] += delta
        return {name: delta for name, delta in sums.items() if delta}

    @property
    def since(self) -> LayerDelta | None:
        """The first layer that differs; None if none does."""
        return next((layer for layer in self.layers if layer.deltas()), None)

    def _repr_html_(self) -> str:
        from npusim.explore.compare_text import text

        return notebook.preformatted(text(self))

    def to_json_dict(self) -> dict[str, Any]:
        first, second = self.time_ps
        since = self.since
        return {
            "labels": list(self.labels),
            "time_ps": [first, second],
            "delta_ps": self.delta_ps,
            "changes": {key: list(values) for key, values in self.changes.items()},
            "amounts": {name: list(values) for name, values in self.amounts.items()},
            "energy_fj": self.energy,
            "units": self.units(),
            "causes": self.causes(),
            "resources": [dict(each) for each in self.resources],
            "bound": [next(iter(each), "") for each in self.resources],
            "stalls": [{"unit": unit, "on": on, "delta_ps": ps} for (unit, on), ps in self.stalls.items()],
            "since": None if since is None else since.name,
            "layers": [
                {
                    "name": layer.name,
                    "kind": layer.kind,
                    "in": layer.where,
                    "groups": [list(names) for names in layer.names],
                    "time_ps": [layer.before.time_ps, layer.after.time_ps],
                    "delta_ps": layer.delta_ps,
                    "since_ps": list(layer.since_ps),
                    "parts": [{"unit": u, "cause": c, "delta_ps": ps} for (u, c), ps in sorted(layer.deltas().items())],
                }
                for layer in self.layers
            ],
            "provenance": list(self.provenance),
        }


def compare(
    first: Mapping[str, Any], second: Mapping[str, Any], labels: tuple[str, str] = ("first", "second")
) -> Comparison:
    """The comparison of two runs, each as JSON (``Result.to_json_dict()``, or ``npusim run --json``).

    Raises UsageError for other JSON.
    """
    for run, label in zip((first, second), labels, strict=True):
        _check(run, label)
    times = tuple(sum(row["time_ps"] for row in run["critical_path"]) for run in (first, second))
    return Comparison(
        labels,
        (times[0], times[1]),
        _layers(first["critical_path"], second["critical_path"]),
        {name: (_amount(first, name), _amount(second, name)) for name in AMOUNTS},
        _stalls(first["units"], second["units"]),
        _energy(first, second),
        _changes(first, second),
        (_resources(first), _resources(second)),
        (first["provenance"], second["provenance"]),
    )


MOST_PAIRS = 1_000_000
"""Limit of pairs of groups without a common name, because finding their best order takes quadratic time."""
AMOUNTS = ("cycles", "instructions", "dram_read_bytes", "dram_write_bytes", "energy_fj")
"""Compared totals, in addition to time."""


_ROW = {"name": str, "kind": str, "time_ps": int, "since_ps": int, "members": [str], "parts": [dict]}
_PART = {"unit": str, "cause": str, "time_ps": int}
_UNIT = {"stalls": {str: int}, "instructions": int}
_PROVENANCE = {"config": dict, "versions": dict, "model": dict}


def _check(run: Mapping[str, Any], label: str) -> None:
    """Raise UsageError if a run is invalid JSON or has nothing to compare."""
    for name in ("critical_path", "units", "provenance"):
        if name not in run:
            raise UsageError(f"{label}: has no {name}; must be the output of npusim run --json of this version")
    rows, units = run["critical_path"], run["units"]
    legal = _is(rows, [dict]) and all(
        _has(row, _ROW) and all(_has(part, _PART) for part in row["parts"]) for row in rows
    )
    legal = legal and _is(units, {str: dict}) and all(_has(unit, _UNIT) for unit in units.values())
    if not legal:
        raise UsageError(f"{label}: critical_path, units: not in the format of npusim run --json")
    if "bottleneck" in run and not _has(run["bottleneck"], {"resources": {str: int}}):
        raise UsageError(f"{label}: bottleneck: not in the format of npusim run --json")
    told = run["provenance"]
    if not _has(told, _PROVENANCE) or not all(
        isinstance(told["model"].get(name, {}), dict) for name in ("inputs", "bound")
    ):
        raise UsageError(f"{label}: provenance: not in the format of npusim run --json")
    for row in rows:
        for part in row["parts"]:
            if part["cause"] not in CAUSES:
                known = ", ".join(CAUSES)
                raise UsageError(f"{label}: critical_path: cause must be {known}, got {shown(part['cause'])}")
        if sum(part["time_ps"] for part in row["parts"]) != row["time_ps"] or not row["members"]:
            raise UsageError(f"{label}: critical_path: the parts of {shown(row['name'])} must add up to its time")
    if not rows:
        raise UsageError(f"{label}: critical_path: has no rows, so there is nothing to compare")


def _has(value: object, wanted: Mapping[str, Any]) -> bool:
    """Whether a table has these members with values of these types."""
    return isinstance(value, dict) and all(name in value and _is(value[name], kind) for name, kind in wanted.items())


def _is(value: object, kind: Any) -> bool:
    """Whether a value is of a type, and the items of a list or table are. Integers are amounts and must not be
    negative."""
    if isinstance(kind, list):
        return isinstance(value, list) and all(_is(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(_is(item, of) for of in kind.values() for item in value.values())
    return type(value) is kind and not (isinstance(value, int) and value < 0)


def _amount(run: Mapping[str, Any], name: str) -> int | None:
    found: object = run.get(name)
    if name == "instructions":
        found = sum(unit["instructions"] for unit in run["units"].values())
    elif name == "energy_fj":
        energy = run.get("energy")
        found = energy.get("total") if isinstance(energy, Mapping) else None
    return found if type(found) is int else None


def _energy(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, int]:
    """Additional energy of the second run by action, largest change first; empty unless both know all of their parts,
    which add up to the amounts."""
    sums = []
    for run in (first, second):
        energy = run.get("energy")
        parts = energy.get("parts") if isinstance(energy, Mapping) else None
        if not _is(parts, [dict]) or not all(_has(part, {"name": str, "value": int}) for part in parts or ()):
            return {}
        sums.append(Counter({part["name"]: part["value"] for part in parts or ()}))
        if sums[-1].total() != _amount(run, "energy_fj"):
            return {}
    found = {name: sums[1][name] - sums[0][name] for name in dict.fromkeys([*sums[0], *sums[1]])}
    return dict(sorted(((name, fj) for name, fj in found.items() if fj), key=lambda item: (-abs(item[1]), item[0])))


def _resources(run: Mapping[str, Any]) -> Mapping[str, int]:
    found: Mapping[str, int] = run.get("bottleneck", {}).get("resources", {})
    return found


def _stalls(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    sums = [
        Counter({(unit, on): ps for unit, counters in units.items() for on, ps in counters["stalls"].items()})
        for units in (before, after)
    ]
    found = _difference(*sums)
    return dict(sorted(found.items(), key=lambda item: (-abs(item[1]), item[0])))


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Differences of model, device and versions by key. A value that only one run has is ``none`` in the other."""
    flats = []
    for run in (first, second):
        told = run["provenance"]
        model = told.get("model", {})
        flat = {"model": str(model.get("digest"))[:16], **_values(told.get("config", {}))}
        flat.update({f"versions.{name}": str(value) for name, value in told.get("versions", {}).items()})
        flat.update({f"input {name}": str(shape) for name, shape in model.get("inputs", {}).items()})
        flat.update({f"bound {name}": str(value) for name, value in model.get("bound", {}).items()})
        flats.append(flat)
    keys = dict.fromkeys([*flats[0], *flats[1]])
    values = {key: (flats[0].get(key, "none"), flats[1].get(key, "none")) for key in keys}
    return {key: pair for key, pair in values.items() if pair[0] != pair[1] and key not in {"name", "description"}}


def _values(table: Mapping[str, Any]) -> dict[str, str]:
    """The values of a device as in TOML; if the description is not valid any more, the values as recorded."""
    try:
        return {key: value for key, value, _, _ in config_of(table, "").resolved()}
    except ConfigError:
        return {key: str(value) for key, value in table.items()}


def _layers(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[LayerDelta]:
    """The groups of both runs with the same operators, each set as one layer, in order of time."""
    sides = (before, after)
    owner = _joined(sides)
    _pair_leftovers(sides, owner)
    found: dict[int, LayerDelta] = {}
    rows = [(side, number, row) for side in (1, 0) for number, row in enumerate(sides[side])]
    for side, number, row in rows:
        label = owner.find((side, number))
        layer = found.get(label)
        if layer is None:
            name = row["name"] or NO_LAYER
            layer = found[label] = LayerDelta(name, row["kind"], ([], []), (None, None), Spent(), Spent())
        layer.names[side].append(row["name"] or NO_LAYER)
        (layer.before, layer.after)[side].add(row)
        since = list(layer.since_ps)
        known = since[side]
        since[side] = row["since_ps"] if known is None else min(known, row["since_ps"])
        layer.since_ps = (since[0], since[1])
    return sorted(found.values(), key=_order)


def _order(layer: LayerDelta) -> tuple[int, int]:
    first, second = layer.since_ps
    return (second if second is not None else first or 0, first if first is not None else second or 0)


_Group = tuple[int, int]
"""(which run, number of the row in its critical path)."""


class _Owners:
    """Union-find over groups that belong to the same layer. Layers are numbered in order of first mention."""

    def __init__(self, groups: Iterable[_Group]) -> None:
        self._above = {group: group for group in groups}
        self._labels: dict[_Group, int] = {}

    def root(self, group: _Group) -> _Group:
        while self._above[group] != group:
            self._above[group] = self._above[self._above[group]]
            group = self._above[group]
        return group

    def join(self, first: _Group, second: _Group) -> None:
        self._above[self.root(second)] = self.root(first)

    def find(self, group: _Group) -> int:
        return self._labels.setdefault(self.root(group), len(self._labels))


def _joined(sides: Sequence[Sequence[Mapping[str, Any]]]) -> _Owners:
    owners = _Owners((side, number) for side, rows in enumerate(sides) for number in range(len(rows)))
    holder: dict[tuple[str, int], _Group] = {}
    for side, rows in enumerate(sides):
        seen: Counter[str] = Counter()
        for number, row in enumerate(rows):
            for member in row["members"]:
                # Operators of the same name within a run are distinguished by their occurrence, and matched in order.
                key = member, seen[member]
                seen[member] += 1
                owners.join(holder.setdefault(key, (side, number)), (side, number))
    return owners


def _pair_leftovers(sides: Sequence[Sequence[Mapping[str, Any]]], owners: _Owners) -> None:
    """Pair groups without a common name with those of the other run, in order, if their kinds agree: another export of
    the same network may have other names. Of more than MOST_PAIRS pairs only those at equal positions are compared."""
    roots = [{owners.root((side, number)) for number in range(len(rows))} for side, rows in enumerate(sides)]
    alone = [
        [number for number in range(len(rows)) if owners.root((side, number)) not in roots[1 - side]]
        for side, rows in enumerate(sides)
    ]
    kinds = [[rows[number]["kind"] for number in alone[side]] for side, rows in enumerate(sides)]
    blocks: list[tuple[int, int, int]]
    if len(kinds[0]) * len(kinds[1]) > MOST_PAIRS:
        blocks = [(place, place, 1) for place, pair in enumerate(zip(*kinds, strict=False)) if pair[0] == pair[1]]
    else:
        matcher = SequenceMatcher(None, kinds[0], kinds[1], autojunk=False)
        blocks = [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]
    for first, second, size in blocks:
        for step in range(size):
            owners.join((0, alone[0][first + step]), (1, alone[1][second + step]))


def _difference(before: Counter[tuple[str, str]], after: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    keys = dict.fromkeys([*before, *after])
    return {key: after[key] - before[key] for key in keys if after[key] != before[key]}


def _most(deltas: Mapping[tuple[str, str], int], whole: int) -> tuple[str, str, int]:
    sign = -1 if whole < 0 else 1
    (unit, cause), delta = max(deltas.items(), key=lambda item: (sign * item[1], item[0]), default=(("", ""), 0))
    return unit, cause, delta
