"""The row of a design: figures of each model and their tier, or the reason why there are none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from npusim.explore.formula import DIMENSIONS, NUMBER, Name
from npusim.units import Dimension

FIGURES: dict[str, Name] = {
    "latency": Name(*DIMENSIONS[Dimension.TIME]),
    "cycles": Name(NUMBER),
    "dram_bytes": Name(*DIMENSIONS[Dimension.SIZE]),
    "energy": Name(*DIMENSIONS[Dimension.ENERGY]),
    "power": Name(*DIMENSIONS[Dimension.POWER]),
    "area": Name(*DIMENSIONS[Dimension.AREA]),
}
"""All figures, in base units: ps, cycles, B, fJ, uW, um2. Area is that of the device, the others of a model on it."""
OF_MODELS = tuple(name for name in FIGURES if name != "area")

SIMULATED, ESTIMATED = "simulated", "estimated"
REFUSED, FAILED = "refused", "failed"
"""Status in addition to the tiers: a design that cannot be built or compiled for, and one whose evaluation did not
end."""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Figures of one model on one design; None: unknown. ``busy``: fraction of time in which each kind of unit is busy,
    and the bytes of DRAM as a fraction of the peak of its pins. ``resources``: ps of the total time, including the
    host, by what it waited for (``npusim.bottleneck.RESOURCES``), largest first. ``estimates``: figures that a search
    estimated before, by name; not part of equality, because they depend on the search."""

    model: str
    latency: int | float
    cycles: int | None = None
    dram_bytes: int | float | None = None
    energy: int | float | None = None
    power: int | float | None = None
    digest: str = ""
    busy: Mapping[str, float] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    estimates: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """The row of a design. ``status``: a tier, REFUSED or FAILED; the latter two have a ``reason``."""

    number: int
    base: str
    settings: Mapping[str, Any]
    fingerprint: str
    status: str
    reason: str = ""
    area: int | float | None = None
    figures: tuple[ModelFigures, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it has figures."""
        return self.status in (SIMULATED, ESTIMATED)


def values_of(row: StudyRow, weights: Mapping[str, Fraction]) -> dict[str, Any]:
    """The figures under their names in formulas. Over all models: their weighted mean.

    Power over all models is their total energy divided by their total time, as if they ran one after the other.
    """
    found: dict[str, Any] = {"area": row.area}
    of = {each.model: each for each in row.figures}
    for figure in OF_MODELS:
        for model, each in of.items():
            found[f"{figure}({model})"] = getattr(each, figure)
        found[figure] = _mean([(weights[model], getattr(each, figure)) for model, each in of.items()])
    for model in of:
        found[f"area({model})"] = row.area
    if len(of) > 1 and found["energy"] is not None:
        found["power"] = found["energy"] * 1000 / found["latency"] if found["latency"] else None
    return found


def _mean(parts: Sequence[tuple[Fraction, float | None]]) -> float | int | None:
    if not parts or any(value is None or math.isnan(value) for _, value in parts):
        return None
    if len(parts) == 1:
        return parts[0][1]
    exact = sum((weight * Fraction(value or 0) for weight, value in parts), Fraction())
    mean = exact / sum(weight for weight, _ in parts)
    return mean.numerator if mean.denominator == 1 else float(mean)
