"""The results of a validation as text and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from npusim.errors import UsageError
from npusim.report.format import table
from npusim.units import ceil_div
from npusim.validate.base import DataSet, chosen_keys
from npusim.validate.replay import SetOutcome
from npusim.validate.stats import Summary, error, worst

_HEADER = ("data set", "points", "out", "MAPE", "median", "P90", "worst", "bias", "r")


def text(outcomes: Sequence[SetOutcome], missing: Sequence[DataSet]) -> str:
    """A table of all data sets and their kinds of rows, the worst (or all) points of each, exclusions, and missing
    files."""
    rows = []
    for outcome in outcomes:
        total = outcome.summary
        if total is not None:
            rows.append(_row(outcome.data.name, total, len(outcome.excluded)))
        groups = outcome.groups()
        if len(groups) > 1:
            rows += [_row(f"  {kind}", value, 0) for kind, value in groups.items()]
    lines = table(_HEADER, rows, right="<>>>>>>>>")
    lines += ["", "errors in percent of the measured value; bias > 0: predicted too slow; r: Pearson's correlation"]
    for outcome in outcomes:
        chips = [f"{name} ({chosen_keys(name)} keys chosen)" for name in outcome.data.configs]
        where = f"{outcome.path}, in {outcome.data.unit}, on {', '.join(chips)}"
        lines += ["", f"{outcome.data.name}: {where}"]
        for point in outcome.points if outcome.data.every else worst(outcome.points):
            figures = f"measured {point.measured:.6g}, predicted {point.predicted:.6g}"
            lines.append(f"  {error(point):+7.2f} %  {point.label}: {figures}")
        reasons = Counter(row.reason for row in outcome.excluded)
        lines += [f"  excluded {count}: {reason}" for reason, count in reasons.items()]
    lines += [f"skipped {data.name}: there is no {data.filename}" for data in missing]
    return "\n".join(lines)


def _row(name: str, value: Summary, excluded: int) -> tuple[str, ...]:
    related = "-" if value.correlation is None else f"{value.correlation:.4f}"
    figures = (value.mape, value.median, value.p90, value.worst)
    shown = [f"{figure:.2f}" for figure in figures]
    return name, str(value.points), str(excluded or "-"), *shown, f"{value.bias:+.2f}", related


def plot(path: Path, outcomes: Sequence[SetOutcome], kind_of_file: str) -> None:
    """Plot predicted over measured values of every data set on logarithmic axes. Raises UsageError without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot: needs matplotlib: pip install 'npusim[report]'") from None
    shown = [outcome for outcome in outcomes if outcome.points]
    columns = 3
    lines = max(1, ceil_div(len(shown), columns))
    figure = Figure(figsize=(5 * columns, 4.5 * lines), layout="constrained")
    for position, outcome in enumerate(shown, start=1):
        axes = figure.add_subplot(lines, columns, position)
        for kind in dict.fromkeys(point.group for point in outcome.points):
            points = [point for point in outcome.points if point.group == kind]
            axes.scatter([point.measured for point in points], [point.predicted for point in points], s=8, label=kind)
        ends = [min(point.measured for point in outcome.points), max(point.measured for point in outcome.points)]
        axes.plot(ends, ends, color="grey", linewidth=0.8)
        axes.set(xscale="log", yscale="log", xlabel=f"measured, {outcome.data.unit}", ylabel="predicted")
        total = outcome.summary
        axes.set_title(f"{outcome.data.name}: MAPE {total.mape:.2f} %" if total else outcome.data.name)
        if any(point.group for point in outcome.points):
            axes.legend(fontsize=7)
    figure.savefig(path, format=kind_of_file)
