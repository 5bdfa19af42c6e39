"""A comparison as text of at most a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npusim.errors import named
from npusim.explore.compare import Comparison, LayerDelta
from npusim.report.energy import joules
from npusim.report.format import change, counted, duration, facts, grouped, percent, quantity, signed, table
from npusim.report.layers import kind_text, shares
from npusim.timeline import CAUSES

MOST_CHANGES = 4
MOST_UNITS = 6
MOST_STALLS = 3


def text(found: Comparison, top: int = 10) -> str:
    """The change of total time, by unit, by cause and by layer: the ``top`` layers, and all others in one row."""
    first, second = map(named, found.labels)
    blocks = [
        [f"{first}  ->  {second}", *facts(totals(found))],
        _shares("unit", found.units(), found, {}),
        _shares("cause", found.causes(), found, CAUSES),
        _layers(found, top),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def totals(found: Comparison) -> list[tuple[str, str]]:
    """Names and values of the totals that differ."""
    first, second = found.time_ps
    rows = [("changed", _changes(found.changes)), ("time", _change(first, second, duration))]
    first_bound, second_bound = (shares(each) for each in found.resources)
    if first_bound and second_bound:
        rows.append(("bound by", f"{first_bound}  ->  {second_bound}"))
    shows: dict[str, tuple[str, Callable[[int], str]]] = {
        "cycles": ("cycles", grouped),
        "instructions": ("instructions", grouped),
        "dram_read_bytes": ("DRAM read", lambda value: quantity(value, "B")),
        "dram_write_bytes": ("DRAM written", lambda value: quantity(value, "B")),
        "energy_fj": ("energy", joules),
    }
    for name, (before, after) in found.amounts.items():
        label, show = shows[name]
        if before is None or after is None:
            if before != after:
                rows.append((label, "not known for both"))
            continue
        rows.append((label, _change(before, after, show)))
    since = found.since
    if since is not None:
        rows.append(("since", f"{since.name}, on the path from {_when(since)}"))
        largest = max(found.layers, key=lambda layer: (abs(layer.delta_ps), layer.name))
        rows.append(("most", _why(largest)))
    waits = [f"{unit} for {on} {signed(ps)}" for (unit, on), ps in list(found.stalls.items())[:MOST_STALLS]]
    if waits:
        rows.append(("waits", "; ".join(waits)))
    return rows


def _changes(changes: Mapping[str, tuple[str, str]]) -> str:
    shown = [f"{key} {before} -> {after}" for key, (before, after) in list(changes.items())[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        shown.append(f"{len(changes) - MOST_CHANGES} more")
    return ", ".join(shown) or "nothing recorded"


def _change(before: int, after: int, show: Callable[[int], str]) -> str:
    if before == after:
        return f"{show(before)}, the same"
    more = f", {change(before, after)}" if before else ""
    return f"{show(before)} -> {show(after)}{more}"


def _when(layer: LayerDelta) -> str:
    before, after = (None if since is None else duration(since) for since in layer.since_ps)
    if before is None or after is None:
        return f"{before or after} (in the {layer.where} run only)"
    return before if before == after else f"{before}, now {after}"


def _why(layer: LayerDelta) -> str:
    unit, cause, delta = layer.cause
    return f"{layer.name} {signed(layer.delta_ps)}, of which {unit} {signed(delta)}: {CAUSES[cause]}" if unit else ""


def _shares(title: str, deltas: Mapping[str, int], found: Comparison, meanings: Mapping[str, str]) -> list[str]:
    """The largest differences, the others in one row, and their sum."""
    ordered = sorted(deltas.items(), key=lambda item: (-abs(item[1]), item[0]))
    rest = sum(delta for _, delta in ordered[MOST_UNITS:])
    rows = [(name, signed(delta), _share(delta, found), meanings.get(name, "")) for name, delta in ordered[:MOST_UNITS]]
    if ordered[MOST_UNITS:]:
        rows.append((counted(len(ordered) - MOST_UNITS, "other"), signed(rest), _share(rest, found), ""))
    if not rows:
        return []
    rows.append(("all", signed(found.delta_ps), _share(found.delta_ps, found), ""))
    return table((f"by {title}", "time", "of the difference", "meaning" if meanings else ""), rows, right="<>><")


def _share(delta: int, found: Comparison) -> str:
    return percent(delta, found.delta_ps)


def _layers(found: Comparison, top: int) -> list[str]:
    differing = [layer for layer in found.layers if layer.deltas()]
    if not differing or not top:
        return []
    ordered = sorted(differing, key=lambda layer: (-abs(layer.delta_ps), layer.name))
    rows = [
        (
            _name(layer),
            kind_text(layer.kind),
            duration(layer.before.time_ps),
            duration(layer.after.time_ps),
            signed(layer.delta_ps),
            _likely(layer),
        )
        for layer in ordered[:top]
    ]
    rest = found.delta_ps - sum(layer.delta_ps for layer in ordered[:top])
    if ordered[top:]:
        rows.append((counted(len(ordered) - top, "other"), "", "", "", signed(rest), ""))
    rows.append(("all", "", duration(found.time_ps[0]), duration(found.time_ps[1]), signed(found.delta_ps), ""))
    head = f"the {len(ordered[:top])} layers of {len(found.layers)} that differ most (time: on the critical path)"
    return [head, *table(("layer", "kind", "was", "is", "more", "likely cause"), rows, right="<<>>><")]


def _name(layer: LayerDelta) -> str:
    extra = max(map(len, layer.names)) - 1
    name = f"{layer.name} +{extra}" if extra > 0 else layer.name
    return name if layer.where == "both" else f"{name} ({layer.where} only)"


def _likely(layer: LayerDelta) -> str:
    unit, cause, delta = layer.cause
    return f"{unit} {signed(delta)}: {CAUSES[cause]}" if unit else ""
