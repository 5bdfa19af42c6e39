"""All data sets, the search for their files, and the results of their replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npusim.errors import InputError
from npusim.validate import arrays, compiled, dram, end_to_end, energy, intel, layers_and_tokens, tpu
from npusim.validate.base import DataPoint, DataSet, Excluded, read
from npusim.validate.stats import Summary, error, summary

_DIRECT = (*arrays.SETS, *dram.SETS, *intel.SETS, *tpu.SETS)

SETS: tuple[DataSet, ...] = (
    # The direct and the compiled replay of a data set are adjacent.
    *(each for direct in _DIRECT for each in (direct, *(c for c in compiled.SETS if c.filename == direct.filename))),
    *end_to_end.SETS,
    *layers_and_tokens.SETS,
    *energy.SETS,
)


@dataclass(frozen=True, slots=True)
class SetOutcome:
    """The result of a data set."""

    data: DataSet
    path: Path
    points: list[DataPoint] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)

    @property
    def summary(self) -> Summary | None:
        """Statistics of all points; None if every row is excluded."""
        return summary(self.points)

    def groups(self) -> dict[str, Summary]:
        """Statistics by kind of row, in the order of the file."""
        kinds = dict.fromkeys(point.group for point in self.points)
        found = {kind: summary([point for point in self.points if point.group == kind]) for kind in kinds}
        return {kind: value for kind, value in found.items() if value is not None}

    def to_json_dict(self) -> dict[str, Any]:
        """All results as JSON values; errors in percent."""
        total = self.summary
        return {
            "name": self.data.name,
            "file": str(self.path),
            "configs": list(self.data.configs),
            "unit": self.data.unit,
            "points": len(self.points),
            "excluded": len(self.excluded),
            "exclusions": [{"row": row.label, "reason": row.reason} for row in self.excluded],
            **_fields(total),
            "groups": {kind: {"points": value.points, **_fields(value)} for kind, value in self.groups().items()},
            "rows": [
                {
                    "row": point.label,
                    "group": point.group,
                    "measured": point.measured,
                    "predicted": point.predicted,
                    "error": error(point),
                }
                for point in self.points
            ],
        }


def _fields(value: Summary | None) -> dict[str, float | None]:
    names = ("mape", "median", "p90", "worst", "bias", "correlation")
    return {name: None if value is None else getattr(value, name) for name in names}


def carried_folder() -> Path:
    """The folder of redistributable points, in an installed package or a source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "validation"
    return installed if installed.is_dir() else package.parent / "validation"


def find(folder: Path) -> tuple[list[tuple[DataSet, Path]], list[DataSet]]:
    """(data set, file) pairs found in the folder, and the missing data sets.

    A set that only this project publishes (``carried``) is always read from the project.
    """
    found, missing = [], []
    for data in SETS:
        path = (carried_folder() if data.carried else folder) / data.filename
        if path.is_file():
            found.append((data, path))
        else:
            missing.append(data)
    return found, missing


def replay(found: Sequence[tuple[DataSet, Path]]) -> Iterator[SetOutcome]:
    """The result of each data set. Raises InputError for a file that cannot be read."""
    for data, path in found:
        outcome = SetOutcome(data, path)
        for row in data.replay(read(path), path.parent):
            if isinstance(row, DataPoint):
                if row.measured <= 0:
                    raise InputError(f"{path}: {row.label}: the measured value must be above 0, got {row.measured}")
                outcome.points.append(row)
            else:
                outcome.excluded.append(row)
        yield outcome
