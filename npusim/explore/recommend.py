"""A recommendation for a study: a design of the front, what binds it, what the next best costs, what limits exclude."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from npusim.explore.figures import StudyRow

if TYPE_CHECKING:
    from npusim.explore.study import Study
    from npusim.hw.config import Config


@dataclass(frozen=True, slots=True)
class Recommendation:
    """``row``: the design of the front with the smallest product of its objectives, or, if one of them is not positive,
    with the lowest first objective. ``changes``: what ``next_best``, the second by the same rule, adds to each
    objective, as a fraction. ``excluded``: number of designs by constraint. ``idle``: um2 of the parts that no model
    uses."""

    row: StudyRow
    next_best: StudyRow | None
    changes: Mapping[str, float]
    excluded: Mapping[str, int]
    idle: Mapping[str, int]

    def to_json_dict(self) -> dict[str, Any]:
        return {
            "design": self.row.number,
            "next": None if self.next_best is None else self.next_best.number,
            "changes": dict(self.changes),
            "excluded": dict(self.excluded),
            "idle_area_um2": dict(self.idle),
            "bound": {each.model: next(iter(each.resources), "") for each in self.row.figures},
        }


def recommendation(study: Study) -> Recommendation | None:
    """The recommendation; None if no simulated design is feasible."""
    rows = study.front_rows()
    if not rows:
        return None
    values = {row.number: study.objectives.of(row) for row in rows}
    products = all(value > 0 for each in values.values() for value in each)

    def rank(row: StudyRow) -> tuple[float, int]:
        own = values[row.number]
        return (sum(map(math.log, own)) if products else own[0], row.number)

    best, *others = sorted(rows, key=rank)
    changes = {}
    if others:
        pairs = zip(study.space.objectives, values[best.number], values[others[0].number], strict=True)
        changes = {formula.text: after / before - 1 for formula, before, after in pairs if before > 0}
    reasons = study.reasons()
    excluded = {formula.text: reasons.get(f"breaks {formula.text}", 0) for formula in study.space.constraints}
    return Recommendation(
        best, others[0] if others else None, changes, excluded, idle_area(study.config(best.number), best)
    )


def idle_area(config: Config, row: StudyRow) -> dict[str, int]:
    """The area in um2 of each kind of unit that no model of a design uses, and of the accumulators with the matrix
    unit; without parts of unknown area."""
    from npusim.hw.area import area

    used = {kind for each in row.figures for kind, share in each.busy.items() if share}
    counted = {kind for each in row.figures for kind in each.busy}
    unit_of = {"matrix": "matrix", "accumulators": "matrix", "vector": "vector", "scalar": "scalar", "dma": "dma"}
    return {
        part.name: part.value
        for part in area(config).parts
        if unit_of.get(part.name, "") in counted - used and part.value
    }


def estimate_errors(study: Study) -> dict[str, tuple[float, float, int]]:
    """For each figure with estimates: median and largest error of the estimates relative to the simulations, and the
    number of comparisons."""
    errors: dict[str, list[float]] = {}
    for row in study.rows.values():
        for each in row.figures:
            for name, estimated in each.estimates.items():
                exact = getattr(each, name)
                if exact:
                    errors.setdefault(name, []).append(abs(estimated / exact - 1))
    return {name: (median(found), max(found), len(found)) for name, found in errors.items()}
