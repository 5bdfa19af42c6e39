"""The page of a study: its Pareto front, the effect of each knob, and the figures of every design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from npusim.errors import UsageError
from npusim.report.effects import KnobEffect, MatchedPairs
from npusim.report.format import counted
from npusim.report.html import page
from npusim.report.html.columns import Levels, coded, config_table, figure, levels
from npusim.report.html.pareto import undominated

UNITS = {"latency": "ps", "cycles": "", "dram_bytes": "B", "energy": "fJ", "area": "um2", "power": "uW"}
"""Base units of the metrics of every study. The ``units`` of a row define others."""

SCRIPTS = ("base", "axes", "table", "study", "scatter", "parallel", "effects", "design", "front")


def front_page(
    rows: Sequence[Mapping[str, Any]],
    objectives: Sequence[str] | Mapping[str, str],
    *,
    title: str = "Study",
    notes: Sequence[tuple[str, str]] = (),
    limits: Mapping[str, tuple[float | None, float | None]] | None = None,
    paragraphs: Sequence[str] = (),
    tiles: Sequence[page.Tile] = (),
    best: object = None,
) -> str:
    """A self-contained HTML file about up to ten thousand designs of a study; the same rows give the same bytes.

    ``rows``: plain mappings, one a design, in the order in which tables shall show them:

    ``id``        a text or number that tells the design from the others; required
    ``knobs``     {dotted config key: value as in TOML}: what the study varied; required, may lack keys of other rows
    ``figures``   {metric: number, or None or nan where unknown}; required, empty for a design that has none
    ``units``     {metric: base unit}, of metrics that are not in :data:`UNITS`; ``ps``, ``B``, ``fJ``, ``uW``, ``um2``,
                  ``Hz`` and ``B/s`` are shown with prefixes, others as they are
    ``tier``      ``"estimated"``, ``"simulated"``, or {metric: one of these}
    ``feasible``  bool, True if left out; ``reason``: why not, a text
    ``bound``     what each model of the design waits for, a text
    ``config``    the complete description as TOML text, or None
    ``front``     bool: whether the design is on the Pareto front. If no row has this field, the front is computed
                  here, from the feasible rows whose objectives are all known

    ``objectives``: the metrics of the Pareto front, at least one. A sequence: all are minimised; a mapping: ``"min"``
    or ``"max"`` for each. The first two are shown first. ``limits``: {metric: (lower, upper) limit, None for no limit},
    drawn as lines. ``notes``: names and values for the summary (network, device, seed), below ``paragraphs``.
    ``tiles``: the headline figures. ``best``: the ``id`` of the design that is selected at the start; if left out,
    the first of the front.

    Raises UsageError that names row and field.
    """
    goals = _goals(objectives)
    for number, row in enumerate(rows):
        _check(number, row)
    units = {**UNITS, **{name: unit for row in rows for name, unit in (row.get("units") or {}).items()}}
    names = list(dict.fromkeys([*goals, *(name for row in rows for name in row["figures"])]))
    figures = {name: [figure(row["figures"].get(name)) for row in rows] for name in names}
    for name in goals:
        if rows and not any(value is not None for value in figures[name]):
            known = [other for other in names if any(value is not None for value in figures[other])]
            raise UsageError(f"objective {name!r}: no row has this figure; there are {', '.join(known) or 'none'}")
    feasible = [bool(row.get("feasible", True)) for row in rows]
    found = _pareto_front(rows, figures, feasible, goals)
    knobs = {name: levels(row["knobs"].get(name) for row in rows) for name in _knobs(rows)}
    tiers = {name: [_tier(row, name) for row in rows] for name in names}
    data = {
        "metrics": [
            {
                "name": page.label(name),
                "unit": page.label(units.get(name, "")),
                "goal": goals.get(name, ""),
                "limits": list((limits or {}).get(name, (None, None))),
                "figures": figures[name],
                "tiers": coded(tiers[name]),
            }
            for name in names
        ],
        "knobs": [{"name": page.label(name), "levels": at.shown, "rows": at.rows} for name, at in knobs.items()],
        "ids": [page.label(row["id"]) for row in rows],
        "feasible": [int(each) for each in feasible],
        "reasons": coded([str(row.get("reason") or "") for row in rows]),
        "bound": coded([str(row.get("bound") or "") for row in rows]),
        "configs": config_table([row.get("config") for row in rows]),
        "front": found,
        "best": next((n for n, row in enumerate(rows) if row["id"] == best), found[0] if found else -1),
        "effects": _effects(knobs, figures, tiers),
    }
    return page.page(title, _body(rows, goals, tiers, feasible, found, notes, paragraphs, tiles), data, SCRIPTS)


MOST_STEPS = 12
"""Limit of the steps of a knob on the page, those with the most pairs."""


def _effects(
    knobs: Mapping[str, Levels],
    figures: Mapping[str, Sequence[float | None]],
    tiers: Mapping[str, Sequence[str]],
) -> list[dict[str, Any]]:
    """The effects of the knobs on each metric. Only designs of the most frequent tier count: pairs of two tiers would
    show the error of estimates, not the effect of the knob."""
    pairs, found = MatchedPairs({name: each.rows for name, each in knobs.items()}), []
    for metric, values in figures.items():
        known = [number for number, value in enumerate(values) if value is not None]
        counts = Counter(tiers[metric][number] for number in known)
        tier = min(counts, key=lambda each: (-counts[each], each), default="")
        chosen = [number for number in known if tiers[metric][number] == tier]
        rows = [_effect(each, knobs[each.knob].shown) for each in pairs.effects(values, chosen)]
        found.append({"metric": page.label(metric), "tier": page.label(tier), "count": len(chosen), "knobs": rows})
    return found


def _effect(found: KnobEffect, shown: Sequence[str]) -> dict[str, Any]:
    most = sorted(sorted(found.steps, key=lambda step: -step.pairs)[:MOST_STEPS], key=lambda s: (s.before, s.after))
    return {
        "knob": page.label(found.knob),
        "importance": _rounded(found.importance),
        "pairs": found.pairs,
        "depends_on": page.label(found.depends_on),
        "dependence": _rounded(found.dependence),
        "steps": [
            [shown[s.before], shown[s.after], _rounded(s.mean), _rounded(s.low), _rounded(s.high), s.pairs]
            for s in most
        ],
        "more": len(found.steps) - len(most),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _goals(objectives: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    goals = dict(objectives) if isinstance(objectives, Mapping) else dict.fromkeys(objectives, "min")
    if not goals:
        raise UsageError("objectives: at least one metric is needed")
    for name, goal in goals.items():
        if goal not in ("min", "max"):
            raise UsageError(f"objective {name!r}: must be 'min' or 'max', not {goal!r}")
    return goals


def _check(number: int, row: Mapping[str, Any]) -> None:
    for field, kind in (("id", object), ("knobs", Mapping), ("figures", Mapping)):
        if field not in row:
            raise UsageError(f"row {number}: has no {field!r}")
        if not isinstance(row[field], kind):
            raise UsageError(f"row {number}: {field!r} must be a mapping, not {type(row[field]).__name__}")
    for name, value in row["figures"].items():
        if value is not None and not isinstance(value, Real):
            raise UsageError(f"row {number}: figure {name!r} must be a number or None, not {value!r}")


def _knobs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["knobs"]))


def _tier(row: Mapping[str, Any], metric: str) -> str:
    tier = row.get("tier") or ""
    return str(tier.get(metric, "") if isinstance(tier, Mapping) else tier)


def _pareto_front(
    rows: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Sequence[float | None]],
    feasible: Sequence[bool],
    goals: Mapping[str, str],
) -> list[int]:
    """Indices of the rows on the Pareto front, best in the first objective first."""
    if any("front" in row for row in rows):
        found = [number for number, row in enumerate(rows) if row.get("front")]
    else:
        known = [
            number
            for number in range(len(rows))
            if feasible[number] and all(figures[name][number] is not None for name in goals)
        ]
        signs = {name: 1 if goal == "min" else -1 for name, goal in goals.items()}
        costs = [[signs[name] * float(figures[name][number] or 0) for name in goals] for number in known]
        found = [known[at] for at in undominated(costs)]
    first, goal = next(iter(goals.items()))
    sign = 1 if goal == "min" else -1

    def place(number: int) -> tuple[float, int]:
        value = figures[first][number]
        return (float("inf") if value is None else sign * float(value), number)

    return sorted(found, key=place)


def _body(
    rows: Sequence[Mapping[str, Any]],
    goals: Mapping[str, str],
    tiers: Mapping[str, Sequence[str]],
    feasible: Sequence[bool],
    found: Sequence[int],
    notes: Sequence[tuple[str, str]],
    paragraphs: Sequence[str],
    tiles: Sequence[page.Tile],
) -> str:
    refused = len(rows) - sum(feasible)
    kinds = sorted({tier for column in tiers.values() for tier in column if tier})
    aims = ", ".join(f"{'lower' if goal == 'min' else 'higher'} {name}" for name, goal in goals.items())
    told = [
        *notes,
        ("shown", counted(len(rows), "design") + (f", {refused} of them not feasible" if refused else "")),
        ("figures", " and ".join(kinds) or "of unknown tier"),
        ("objectives", aims),
        ("Pareto front", counted(len(found), "design")),
    ]
    if len(kinds) > 1:
        told.append(("note", "estimated and simulated figures are shown together; each figure is marked with its tier"))
    return "\n".join(
        [
            page.tiles(tiles) if tiles else "",
            "".join(f'<p class="said">{page.words(each)}</p>' for each in paragraphs),
            '<div class="pair">'
            + page.section("scatter", "Pareto front")
            + page.section("design", "Selected design")
            + "</div>",
            page.section(
                "parallel",
                "All knobs and figures",
                note="Each line is a design. Drag along an axis to filter the designs by its values.",
            ),
            page.section("effects", "What each knob does"),
            page.section("table", "Designs"),
            page.section("summary", "Details", page.facts(told)),
        ]
    )
