"""Rows of a study as compact columns: each text once, descriptions as differences from the first one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from npusim.errors import UsageError
from npusim.report.html.page import label
from npusim.units import Dimension, parse


class Levels(NamedTuple):
    """A knob: its values as text in ascending order, and the index of the value of each row, -1 if it has none."""

    shown: list[str]
    rows: list[int]


def figure(value: object) -> float | int | None:
    """A number as stored in the page: integers exactly, others with nine digits. None if unknown."""
    if value is None:
        return None
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 2**53 else float(f"{number:.9g}")


def levels(values: Iterable[object]) -> Levels:
    """The values in order: numbers and quantities by size, texts alphabetically."""
    given = [(None if value is None else _shown(value), value) for value in values]
    distinct = {shown: value for shown, value in given if shown is not None}
    order = sorted(distinct, key=lambda shown: (*_rank(distinct[shown]), shown))
    place = {shown: number for number, shown in enumerate(order)}
    return Levels([label(shown) for shown in order], [-1 if shown is None else place[shown] for shown, _ in given])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as TOML has it
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _rank(value: object) -> tuple[int, float]:
    if isinstance(value, bool | int | float):
        return (0, float(value))
    with contextlib.suppress(ValueError):
        return (0, float(str(value)))  # a number that comes as text
    for dimension in Dimension:
        try:
            return (1, float(parse(str(value), dimension)))
        except UsageError:
            continue
    return (2, 0.0)


def coded(texts: Sequence[str]) -> dict[str, Any]:
    """``texts``: each distinct text once. ``rows``: the index for each row, or one index if all are equal."""
    place: dict[str, int] = {}
    rows = [place.setdefault(each, len(place)) for each in texts]
    return {"texts": [label(each) for each in place], "rows": rows if len(place) > 1 else 0}


def config_table(configs: Sequence[str | None]) -> dict[str, Any]:
    """Descriptions by lines. ``lines``: each distinct line once. ``base``: the lines of the first description.
    ``rows``: None, {"n": lines}, or {"d": [position, line, ...]} with differences from a base of equal length.

    Ten thousand descriptions of two kilobytes that differ in a few keys would otherwise take twenty megabytes.
    """
    place: dict[str, int] = {}
    base: list[int] | None = None
    rows: list[dict[str, list[int]] | None] = []
    for config in configs:
        if config is None:
            rows.append(None)
            continue
        own = [place.setdefault(line, len(place)) for line in config.split("\n")]
        if base is None:
            base = own
        if len(own) == len(base):
            rows.append({"d": [n for at, (a, b) in enumerate(zip(base, own, strict=True)) if a != b for n in (at, b)]})
        else:
            rows.append({"n": own})
    return {"lines": [label(line) for line in place], "base": base or [], "rows": rows}
