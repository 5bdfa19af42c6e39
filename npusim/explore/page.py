"""A study as an HTML page with charts, see ``npusim.report.html``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError
from npusim.explore.figures import FIGURES, OF_MODELS
from npusim.explore.formula import DIMENSIONS
from npusim.explore.recommend import recommendation
from npusim.explore.report import MOST_REASONS, bound_by, estimates_text, headline, recommended, value_text
from npusim.report.html import front_page
from npusim.report.html.front import UNITS

if TYPE_CHECKING:
    from npusim.explore.figures import StudyRow
    from npusim.explore.study import Study


def page(study: Study) -> str:
    """One HTML file. Raises UsageError if no design has figures."""
    rows = [row for _, row in sorted(study.rows.items())]
    if not any(row.known for row in rows):
        raise UsageError("--html: no design has figures")
    front = {row.number for row in study.front_rows()}
    estimates = estimates_text(study)
    paragraphs = [each for each in (recommended(study), f"Estimates: {estimates}." if estimates else "") if each]
    notes = [
        ("designs", str(study.space.size)),
        ("devices", ", ".join(base.name for base in study.space.bases)),
        ("models", ", ".join(each.name for each in study.space.workloads)),
        *(("constraint", formula.text) for formula in study.space.constraints),
        *(("excluded", f"{count} by: {reason}") for reason, count in list(study.reasons().items())[:MOST_REASONS]),
        *(("note", note) for note in study.notes),
        ("seed", str(study.space.search.seed)),
        *((f"digest of {name}", digest[:16]) for name, digest in study.facts["models"].items() if digest),
        ("versions", ", ".join(f"{name} {version}" for name, version in study.facts["versions"].items())),
    ]
    objectives = [formula.text for formula in study.space.objectives]
    shown = [_row(study, row, front) for row in rows]
    found = recommendation(study)
    return front_page(
        shown,
        objectives,
        title=study.space.name,
        notes=notes,
        limits=_limits(study),
        paragraphs=paragraphs,
        tiles=headline(study),
        best=None if found is None else found.row.number,
    )


def _limits(study: Study) -> dict[str, tuple[float | None, float | None]]:
    """The lower and upper limit of each figure that a constraint limits alone and linearly, in base units."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for constraint in study.space.constraints:
        (name, *others) = constraint.uses
        if others or name.partition("(")[0] not in FIGURES:
            continue
        try:
            start, slope = (float(constraint({name: at})) for at in (0, 1))
            slope -= start
            limit = float(f"{-start / slope:.9g}")
            points = [round(at * limit) for at in (0.5, 2, 3)]
            linear = all(math.isclose(float(constraint({name: at})), start + slope * at, abs_tol=1e-6) for at in points)
        except ZeroDivisionError:
            continue
        if linear and limit > 0:
            lower, upper = found.get(name, (None, None))
            found[name] = (lower, limit) if slope > 0 else (limit, upper)
    return found


def _row(study: Study, row: StudyRow, front: set[int]) -> dict[str, Any]:
    reason = study.objectives.broken(row)
    knobs = {axis.key: value_text(study, row, axis.key) for axis in study.space.axes}
    if len(study.space.bases) > 1:
        knobs = {"base": row.base, **knobs}
    figures: dict[str, Any] = {}
    units = {}
    if row.known:
        values = study.values(row)
        figures = {name: values[name] for name in FIGURES}
        if len(row.figures) > 1:
            for each in row.figures:
                for name in OF_MODELS:
                    figures[f"{name}({each.model})"] = getattr(each, name)
                    units[f"{name}({each.model})"] = UNITS[name]
        exact = study.objectives.of(row)
        for formula, value in zip(study.space.objectives, exact, strict=True):
            if formula.text in FIGURES:
                continue
            scales = {dim: (dimension.base, float(scale)) for dimension, (dim, scale) in DIMENSIONS.items()}
            unit, scale = scales.get(formula.dim, ("", 1.0))
            figures[formula.text], units[formula.text] = value / scale, unit
    return {
        "id": row.number, "knobs": knobs, "figures": figures, "units": units, "tier": row.status if row.known else "",
        "feasible": not reason, "reason": reason, "config": study.config(row.number).to_toml(),
        "front": row.number in front, "bound": bound_by(row),
    }  # fmt: skip
