"""Objectives and constraints of designs, evaluated on rows, or on columns for many designs at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from npusim.explore.figures import StudyRow, values_of

if TYPE_CHECKING:
    from npusim.explore.formula import Formula
    from npusim.explore.space import Space
    from npusim.hw.config import Config


class Objectives:
    """The objectives and constraints of a space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.weights = {each.name: each.weight for each in space.workloads}
        figures = {name for formula in (*space.objectives, *space.constraints) for name in formula.uses}
        self._figures = {name for name in figures if name.partition("(")[0] in _RUN}
        self.device_names = sorted(name for name in figures if not _is_figure(name))

    @property
    def first(self) -> list[Formula]:
        """Constraints that do not need a run of a model."""
        return [each for each in self.space.constraints if not each.uses & self._figures]

    @property
    def later(self) -> list[Formula]:
        """Constraints that need a run."""
        return [each for each in self.space.constraints if each.uses & self._figures]

    def excluded(self, number: int, config: Config, area: float | None) -> str:
        """The constraint that a design violates regardless of models; empty if there is none."""
        if area is None and any("area" in formula.uses for formula in self.space.objectives):
            return next(
                (f"{each.text}: area is not known" for each in self.first if "area" in each.uses),
                "area is not known, and is an objective",
            )
        values = {**(self.space.names(number, config) if self.device_names else {}), "area": area}
        return _broken(self.first, values)

    def values(self, row: StudyRow) -> dict[str, Any]:
        """The values of the names in formulas, for one design."""
        device = {}
        if self.device_names:
            device = self.space.names(row.number, self.space.config(row.number))
        return {**device, **values_of(row, self.weights)}

    def of(self, row: StudyRow) -> tuple[float, ...]:
        """The objectives in SI units; nan if unknown."""
        values = self.values(row)
        return tuple(_number(formula, values) for formula in self.space.objectives)

    def broken(self, row: StudyRow) -> str:
        """The reason why a design is not feasible: no figures, or a violated or unknown constraint. Empty if it is
        feasible."""
        if not row.known:
            return row.reason
        values = self.values(row)
        unknown = [formula.text for formula in self.space.objectives if math.isnan(_number(formula, values))]
        reason = f"{unknown[0]} is not known, and is an objective" if unknown else ""
        return _broken(self.space.constraints, values) or reason

    def lacks(self, row: StudyRow) -> list[float]:
        """The violation of each constraint relative to its limit; at most 0 if it is fulfilled."""
        values = self.values(row)
        return [_number(formula, values) for formula in self.space.constraints]


_RUN = ("latency", "cycles", "dram_bytes", "energy", "power")


def _is_figure(name: str) -> bool:
    return name.partition("(")[0] in (*_RUN, "area")


def _number(formula: Formula, values: Mapping[str, Any]) -> float:
    try:
        return float(formula(values))
    except ZeroDivisionError:
        return math.nan


def _broken(constraints: tuple[Formula, ...] | list[Formula], values: Mapping[str, Any]) -> str:
    for formula in constraints:
        lack = _number(formula, values)
        if math.isnan(lack):
            unknown = [name for name in sorted(formula.uses) if values.get(name) is None]
            return (
                f"{formula.text}: {', '.join(unknown)} is not known" if unknown else f"{formula.text}: divides by zero"
            )
        if lack > 0:
            return f"breaks {formula.text}"
    return ""
