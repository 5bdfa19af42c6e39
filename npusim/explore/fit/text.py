"""A fit as text, as JSON values, and as a description with the fitted values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npusim.explore.fit.parameters import parse_toml
from npusim.explore.fit.points import PS_PER_US
from npusim.explore.fit.solve import CONFIDENCE, Fit
from npusim.report.format import facts, table

MOST_POINTS_SHOWN = 20


def text(found: Fit) -> str:
    """Values with intervals, mean errors, and the points with the largest errors."""
    rows = [[key.key, key.given, key.value, key.problem or f"{key.low} to {key.high}"] for key in found.keys]
    keys = table(["key", "given", "fitted", f"{CONFIDENCE:.0%} interval"], rows)
    means = [
        ("points", f"{len(found.points)}; {found.devices} devices simulated"),
        ("mean error", _mean(found.given_errors, "as given") + "; " + _mean(found.errors, "fitted")),
        ("left out", _mean(found.left_out, "of points that were not fitted to")),
        ("bias", f"{_signed(sum(found.errors) / len(found.errors))} (positive: too slow)"),
    ]
    worst = sorted(range(len(found.points)), key=lambda number: -abs(found.errors[number]))[:MOST_POINTS_SHOWN]
    cells = [
        [
            found.points[number].name,
            f"{found.points[number].measured_ps / PS_PER_US:.4g}",
            _signed(found.given_errors[number]),
            _signed(found.errors[number]),
            _signed(found.left_out[number]),
        ]
        for number in worst
    ]
    points = table(["point", "measured us", "error as given", "fitted", "left out"], cells, right="<>>>>")
    return "\n\n".join("\n".join(block) for block in (keys, facts(means), points))


def as_json(found: Fit) -> dict[str, Any]:
    """Every key and every point."""
    return {
        "keys": [
            {name: getattr(key, name) for name in ("key", "given", "value", "low", "high", "problem")}
            for key in found.keys
        ],
        "confidence": CONFIDENCE,
        "alike": [list(group) for group in found.alike],
        "devices": found.devices,
        "points": [
            {
                "name": point.name,
                "measured_us": point.measured_ps / PS_PER_US,
                "error_given": given,
                "error": error,
                "error_left_out": left_out,
            }
            for point, given, error, left_out in zip(
                found.points, found.given_errors, found.errors, found.left_out, strict=True
            )
        ],
    }


def fitted_toml(found: Fit, source: Path, points: Path) -> str:
    """The description with the fitted values; comments say where they are from. Other lines are unchanged."""
    import tomlkit

    document: Any = parse_toml(source)
    for key in found.keys:
        *tables, name = key.key.split(".")
        table: Any = document
        for each in tables:
            table = table.setdefault(each, tomlkit.table())
        table[name] = tomlkit.value(key.value)
        interval = key.problem or f"{CONFIDENCE:.0%} interval {key.low} to {key.high}"
        # A table within one line has one comment, behind it.
        item = table[name] if not _is_inline(table) else table
        item.comment(f"fitted to {points.name}: {interval}".replace('"', ""))
    return tomlkit.dumps(document)


def _is_inline(table: Any) -> bool:
    from tomlkit.items import InlineTable

    return isinstance(table, InlineTable)


def _mean(errors: Sequence[float], what: str) -> str:
    return f"{sum(map(abs, errors)) / len(errors):.1%} {what}"


def _signed(error: float) -> str:
    return f"{error:+.1%}"
