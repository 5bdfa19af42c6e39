"""A study as an HTML page with charts, see ``npusim.report.html``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npusim.errors import UsageError
from npusim.explore.figures import FIGURES
from npusim.explore.formula import DIMENSIONS
from npusim.explore.report import value_text
from npusim.report.html import front_page

if TYPE_CHECKING:
    from npusim.explore.figures import StudyRow
    from npusim.explore.study import Study


def page(study: Study) -> str:
    """One HTML file. Raises UsageError if no design has figures."""
    rows = [row for _, row in sorted(study.rows.items())]
    if not any(row.known for row in rows):
        raise UsageError("--html: no design has figures")
    front = {row.number for row in study.front_rows()}
    notes = [
        ("designs", str(study.space.size)),
        ("devices", ", ".join(base.name for base in study.space.bases)),
        ("models", ", ".join(each.name for each in study.space.workloads)),
        *(("constraint", formula.text) for formula in study.space.constraints),
        ("seed", str(study.space.search.seed)),
        *((f"digest of {name}", digest[:16]) for name, digest in study.facts["models"].items() if digest),
        ("versions", ", ".join(f"{name} {version}" for name, version in study.facts["versions"].items())),
    ]
    objectives = [formula.text for formula in study.space.objectives]
    return front_page([_row(study, row, front) for row in rows], objectives, title=study.space.name, notes=notes)


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
        "front": row.number in front,
    }  # fmt: skip
