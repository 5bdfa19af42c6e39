"""Vectorised estimates for a search: an estimator per model and device, created on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from npusim.explore.screening import Estimate, EstimatedFigures

if TYPE_CHECKING:
    from npusim.graph import Graph
    from npusim.hw.config import Config


def estimate_of(graphs: Mapping[str, Graph]) -> Estimate:
    """A function that estimates these models, by name."""
    from npusim.explore.estimate import Estimator

    known: dict[tuple[str, Config], Estimator] = {}

    def estimate(model: str, base: Config, columns: Mapping[str, Sequence[object]]) -> EstimatedFigures:
        if (model, base) not in known:
            known[model, base] = Estimator(graphs[model], base)
        return known[model, base].estimate(columns)

    return estimate
