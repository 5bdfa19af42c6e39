"""A study as text and files: the front, the best design of each objective, reasons of exclusion, CSV, Parquet."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.bottleneck import summed
from npusim.errors import UsageError
from npusim.explore.axes import config_key
from npusim.explore.figures import FIGURES, StudyRow
from npusim.explore.formula import DIMENSIONS, Formula
from npusim.explore.recommend import estimate_errors, recommendation
from npusim.hw.keys import Quantity
from npusim.report.effects import MatchedPairs
from npusim.report.energy import joules, watts
from npusim.report.format import counted, csv_text, duration, grouped, percent, quantity, table
from npusim.report.html.columns import levels
from npusim.report.layers import shares
from npusim.units import Dimension, show

if TYPE_CHECKING:
    from npusim.explore.study import Study

MOST_REASONS = 8
MOST_STEPS = 12
"""Limit of the rows of the table of effects."""


def text(study: Study, top: int = 20) -> str:
    """The output of ``npusim explore``: the front, the best design of each objective, and why others are excluded."""
    lines = [_headline(study), ""]
    front = study.front_rows()
    if front:
        lines += _front(study, front[:top] if top else front)
        if top and len(front) > top:
            lines.append(f"... and {len(front) - top} more; --top 0 shows all")
        lines += ["", *_best(study), "", recommended(study)]
        if effects := _effects(study):
            lines += ["", *effects]
    else:
        lines.append("No simulated design is feasible.")
    reasons = study.reasons()
    if reasons:
        rows = [(grouped(count), reason) for reason, count in list(reasons.items())[:MOST_REASONS]]
        lines += ["", *table(("designs", "reason"), rows, right=">")]
        if len(reasons) > MOST_REASONS:
            lines.append(f"... and {len(reasons) - MOST_REASONS} more reasons; --csv has all")
    if said := estimates_text(study):
        lines += ["", f"estimates: {said}"]
    return "\n".join([*lines, *(f"note: {note}" for note in study.notes)])


def _headline(study: Study) -> str:
    space = study.space
    simulated = sum(row.known for row in study.rows.values())
    models = ", ".join(f"{each.name} x {each.weight}" if each.weight != 1 else each.name for each in space.workloads)
    parts = [
        f"{space.name}: {counted(space.size, 'design')} of {', '.join(base.name for base in space.bases)}",
        f"{grouped(simulated)} simulated",
        f"{grouped(len(study.feasible()))} feasible",
        f"front of {len(study.front_rows())}",
    ]
    return f"{', '.join(parts)}\nmodels: {models}; objectives: {', '.join(f.text for f in space.objectives)}"


def headline(study: Study) -> list[tuple[str, str, str]]:
    """The main figures, each with a label and a detail: designs, the best of each objective, what binds."""
    known, feasible = sum(row.known for row in study.rows.values()), len(study.feasible())
    found = [("designs simulated", grouped(known), f"of {grouped(study.space.size)}, {grouped(feasible)} feasible")]
    if not study.front_rows():
        return [*found, ("Pareto front", "0 designs", "no simulated design is feasible")]
    found.append(("Pareto front", counted(len(study.front_rows()), "design"), "of the simulated ones"))
    for formula in study.space.objectives:
        row = study.best_row(formula.text)
        detail = f"design {row.number}: {_settings(study, row)}"
        found.append((f"least {formula.text}", _figure(study, row, formula.text), detail))
    best = recommendation(study)
    if best is not None and (parts := summed(tuple(each.resources.items()) for each in best.row.figures)):
        resource, ps = next(iter(parts.items()))
        detail = f"{percent(ps, sum(parts.values()))} of the time of design {best.row.number}, the recommended one"
        found.append(("bound by", resource, detail))
    else:
        found.append(("bound by", "not known", "the rows do not record it"))
    return found


def _front(study: Study, rows: Sequence[StudyRow]) -> list[str]:
    space = study.space
    several = len(space.bases) > 1
    keys = [axis.key for axis in space.axes]
    header = ["design", *(["base"] if several else []), *(_short(key, keys) for key in keys)]
    objectives = [formula.text for formula in space.objectives]
    figures = [*objectives, *(name for name in ("latency", "area", "energy") if name not in objectives)]
    header += [*figures, "tier", "bound by"]
    shown = [
        [
            str(row.number),
            *([row.base] if several else []),
            *(value_text(study, row, key) for key in keys),
            *(_figure(study, row, name) for name in figures),
            row.status,
            bound_by(row),
        ]
        for row in rows
    ]
    right = ">" + "<" * several + ">" * (len(keys) + len(figures))
    return table(header, shown, right=right)


def _best(study: Study) -> list[str]:
    rows = []
    for formula in study.space.objectives:
        row = study.best_row(formula.text)
        figure = _figure(study, row, formula.text)
        rows.append((f"least {formula.text}", figure, f"design {row.number}", _settings(study, row)))
    return table(("", "", "", "with"), rows, right="<>")


def recommended(study: Study) -> str:
    """The recommendation as a paragraph; empty if no design is feasible."""
    found = recommendation(study)
    if found is None:
        return ""
    goals = [formula.text for formula in study.space.objectives]
    figures = ", ".join(f"{name} {_figure(study, found.row, name)}" for name in goals)
    parts = [f"Recommended: design {found.row.number} ({_settings(study, found.row)}): {figures}."]
    if (bound := bound_by(found.row)) and found.next_best is not None:
        rule = "the product of its objectives is the smallest" if len(goals) > 1 else f"its {goals[0]} is the lowest"
        parts.append(f"Of the front, {rule}. It is bound by {bound}.")
    elif bound:
        parts.append(f"It is bound by {bound}.")
    if found.next_best is not None:
        changes = ", ".join(f"{100 * change:+.1f} % {name}" for name, change in found.changes.items())
        where = f"design {found.next_best.number} ({_settings(study, found.next_best)})"
        parts.append(f"The next best, {where}, has {changes or 'other objectives'}.")
    for limit, count in found.excluded.items():
        parts.append(f"The limit {limit} excludes {counted(count, 'design')}.")
    if found.idle:
        shown = ", ".join(f"{name} {figure_text('area', value)}" for name, value in found.idle.items())
        share = percent(sum(found.idle.values()), found.row.area) if found.row.area else ""
        parts.append(f"Area that no model uses: {shown}{f' = {share} of the device' if share else ''}.")
    return " ".join(parts)


def effects_of(study: Study) -> dict[str, list[dict[str, Any]]]:
    """For each objective the effect of each knob from matched pairs of simulated designs, most important first, as JSON
    values. Changes are relative."""
    rows = [row for _, row in sorted(study.rows.items()) if row.known]
    knobs = {axis.key: levels(value_text(study, row, axis.key) for row in rows) for axis in study.space.axes}
    if len(study.space.bases) > 1:
        knobs["base"] = levels(row.base for row in rows)
    pairs = MatchedPairs({name: each.rows for name, each in knobs.items()})
    points = [[None if math.isnan(value) else value for value in study.objectives.of(row)] for row in rows]
    found = {}
    for formula, figures in zip(study.space.objectives, zip(*points, strict=True), strict=bool(points)):
        found[formula.text] = [
            {
                "knob": each.knob,
                "importance": each.importance,
                "pairs": each.pairs,
                "depends_on": each.depends_on,
                "dependence": each.dependence,
                "steps": [
                    {
                        **dataclasses.asdict(step),
                        "before": knobs[each.knob].shown[step.before],
                        "after": knobs[each.knob].shown[step.after],
                    }
                    for step in each.steps
                ],
            }
            for each in pairs.effects(figures, range(len(rows)))
        ]
    return found


def _effects(study: Study) -> list[str]:
    """The mean change of each objective with each step of a knob, as a table; empty without matched pairs."""
    found = effects_of(study)
    by_step: dict[tuple[str, str, str], dict[str, Any]] = {}
    for name, knobs in found.items():
        for knob in knobs:
            for step in knob["steps"]:
                by_step.setdefault((knob["knob"], step["before"], step["after"]), {})[name] = step
    keys = [axis.key for axis in study.space.axes]
    rows = [
        (
            _short(knob, keys),
            f"{before} to {after}",
            *(_change(steps[name]["mean"]) if name in steps else "-" for name in found),
            grouped(max(step["pairs"] for step in steps.values())),
        )
        for (knob, before, after), steps in by_step.items()
    ]
    if not rows:
        return []
    lines = table(("knob", "from", *found, "pairs"), rows[:MOST_STEPS], right="<<" + ">" * (len(found) + 1))
    more = [f"... and {len(rows) - MOST_STEPS} more steps; --json has all"] if len(rows) > MOST_STEPS else []
    return ["Effect of each knob: mean change over pairs of designs that differ in this knob alone", *lines, *more]


def _change(fraction: float) -> str:
    return f"{round(100 * fraction, 1) + 0.0:+.1f} %"  # 0.0 is added so that no -0.0 is shown


def estimates_text(study: Study) -> str:
    """The measured errors of the estimates; empty without estimates."""
    return "; ".join(
        f"{name} {percent(middle, 1)} off at the median, {percent(most, 1)} at most, of {counted(count, 'simulation')}"
        for name, (middle, most, count) in estimate_errors(study).items()
    )


def _settings(study: Study, row: StudyRow) -> str:
    """The base, if there are several, and the settings of a design."""
    keys = [axis.key for axis in study.space.axes]
    base = [row.base] if len(study.space.bases) > 1 else []
    return ", ".join([*base, *(f"{_short(key, keys)} {value_text(study, row, key)}" for key in keys)]) or row.base


def _short(key: str, keys: Sequence[str]) -> str:
    """The last part of a key, if it is unambiguous."""
    last = key.rpartition(".")[2]
    alone = [other.rpartition(".")[2] for other in keys].count(last) == 1
    return last if alone and last not in ("bytes", "bandwidth", "clock", "kind") else key


def value_text(study: Study, row: StudyRow, key: str) -> str:
    """A setting of a design as text, as written in a file."""
    axis = next((axis for axis in study.space.axes if axis.key == key), None)
    if axis is not None:
        place = study.space.places(row.number)[1 + study.space.axes.index(axis)]
        return _plain_text(axis.toml[place])
    return setting_text(key, row.settings.get(key))


def setting_text(key: str, value: Any) -> str:
    """A plain value of a key as text, as written in a file without quotes."""
    kind = config_key(key)
    if isinstance(kind, Quantity) and isinstance(value, int):
        return show(value, kind.dimension)
    return _plain_text(value)


def _plain_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_plain_text(item)}" for name, item in value.items()) + "}"
    return str(value)


def _figure(study: Study, row: StudyRow, name: str) -> str:
    """A figure or objective of a row with its unit; '-' if it is unknown."""
    found = study.values(row).get(name)
    formula = next((each for each in study.space.objectives if each.text == name), None)
    if found is not None and (formula is None or name in FIGURES):
        return figure_text(name, found)
    if formula is None:
        return "-"
    value = study.objectives.of(row)[study.space.objectives.index(formula)]
    return "-" if math.isnan(value) else si_text(formula, value)


def figure_text(name: str, value: float) -> str:
    """A figure in base units as text with a readable unit."""
    match name.partition("(")[0]:
        case "latency":
            return duration(round(value))
        case "cycles":
            return grouped(round(value))
        case "dram_bytes":
            return quantity(value, "B")
        case "energy":
            return joules(value)
        case "power":
            return watts(value)
        case "area":
            return f"{value / 1e6:.3f} mm2"
    return f"{value:.4g}"


def si_text(formula: Formula, value: float) -> str:
    """The value of an objective in SI units as text with a readable unit."""
    by_dim = {dim: (dimension, scale) for dimension, (dim, scale) in DIMENSIONS.items()}
    known = by_dim.get(formula.dim)
    names = {
        Dimension.TIME: "latency",
        Dimension.SIZE: "dram_bytes",
        Dimension.ENERGY: "energy",
        Dimension.POWER: "power",
        Dimension.AREA: "area",
    }
    if known is not None and known[0] in names:
        return figure_text(names[known[0]], value / float(known[1]))
    return f"{value:.4g}"


def bound_by(row: StudyRow) -> str:
    """The resources that each model waits for most, with their shares of its total time."""
    found = [(each.model, shares(each.resources, 2)) for each in row.figures if each.resources]
    return "; ".join(f"{model}: {text}" if len(row.figures) > 1 else text for model, text in found)


def write_csv(study: Study, path: Path) -> None:
    """All rows as CSV, in base units. Raises OSError."""
    records = _flat(study.records())
    path.write_text(csv_text(list(records[0]) if records else ["design"], records), "utf-8")


def write_parquet(study: Study, path: Path) -> None:
    """All rows as Parquet, in base units. Raises OSError; UsageError without pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UsageError("Parquet needs pyarrow: pip install 'npusim[explore]'") from None
    parquet.write_table(pa.Table.from_pylist(_flat(study.records())), path)


def _flat(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records with values of one type per column: a column with tables becomes text."""
    tables = {key for record in records for key, value in record.items() if isinstance(value, dict)}
    return [
        {key: _plain_text(value) if key in tables and value is not None else value for key, value in record.items()}
        for record in records
    ]


def to_json_dict(study: Study) -> dict[str, Any]:
    """The study as JSON values: front, best of each objective, counts, reasons."""
    return {
        "space": study.space.name,
        "designs": study.space.size,
        "simulated": sum(row.known for row in study.rows.values()),
        "feasible": len(study.feasible()),
        "objectives": [formula.text for formula in study.space.objectives],
        "units": {"latency": "ps", "cycles": "cycles", "dram_bytes": "B", "energy": "fJ", "power": "uW", "area": "um2"},
        "front": study.front(),
        "best": {f.text: study.best(f.text)["design"] for f in study.space.objectives if study.feasible()},
        "reasons": study.reasons(),
        "effects": effects_of(study),
        "recommendation": None if (found := recommendation(study)) is None else found.to_json_dict(),
        "estimates": {
            name: {"median_error": middle, "largest_error": most, "count": count}
            for name, (middle, most, count) in estimate_errors(study).items()
        },
        "notes": study.notes,
        "provenance": {
            **study.facts,
            "bases": {base.name: base.to_table() for base in study.space.bases},
            "weights": {each.name: str(each.weight) for each in study.space.workloads},
            "constraints": [formula.text for formula in study.space.constraints],
            "search": {key: _plain_value(value) for key, value in dataclasses.asdict(study.space.search).items()},
        },
    }


def _plain_value(value: Any) -> Any:
    return str(value) if isinstance(value, Fraction) else value
