"""Errors of predictions, in percent of the measured value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from npusim.validate.base import DataPoint

WORST = 5
PERCENTILE = 90


@dataclass(frozen=True, slots=True)
class Summary:
    """``mape``: mean of the absolute errors. ``bias``: mean of the signed errors, positive: predicted too slow.

    ``p90``: by nearest rank. ``correlation``: Pearson's, None if one side does not vary. All but the correlation are in
    percent.
    """

    points: int
    mape: float
    median: float
    p90: float
    worst: float
    bias: float
    correlation: float | None


def error(point: DataPoint) -> float:
    """Signed error of the prediction in percent."""
    return 100 * (point.predicted - point.measured) / point.measured


def summary(points: Sequence[DataPoint]) -> Summary | None:
    """Statistics of points; None if there are none."""
    if not points:
        return None
    signed = [error(point) for point in points]
    absolute = sorted(abs(value) for value in signed)
    rank = math.ceil(len(absolute) * PERCENTILE / 100) - 1
    return Summary(
        len(points),
        fmean(absolute),
        median(absolute),
        absolute[rank],
        absolute[-1],
        fmean(signed),
        _correlation(points),
    )


def worst(points: Sequence[DataPoint], count: int = WORST) -> list[DataPoint]:
    """The points with the largest absolute errors, largest first; equal ones in the order of the file."""
    return sorted(points, key=lambda point: -abs(error(point)))[:count]


def _correlation(points: Sequence[DataPoint]) -> float | None:
    measured, predicted = [point.measured for point in points], [point.predicted for point in points]
    mean_m, mean_p = fmean(measured), fmean(predicted)
    spread = sum((m - mean_m) ** 2 for m in measured) * sum((p - mean_p) ** 2 for p in predicted)
    if spread <= 0:
        return None
    shared = sum((m - mean_m) * (p - mean_p) for m, p in zip(measured, predicted, strict=True))
    return float(shared / math.sqrt(spread))
