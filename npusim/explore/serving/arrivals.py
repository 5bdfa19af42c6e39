"""Arrival times of requests in whole picoseconds: random from a seed, at intervals, or from a file."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

from npusim.errors import UsageError, shown
from npusim.explore.serving.scenario import DecoderSource, RequestSource
from npusim.units import PS_PER_S, Dimension, parse
from npusim.untrusted import FileKind

ARRIVALS = FileKind("arrivals of a load test (CSV)", 1 << 24)
_DIGITS = 30
"""Limit of the digits of a number."""
MOST = 1_000_000
"""Limit of the requests of one source."""


def generator(seed: int, name: str) -> random.Random:
    """An independent random number generator per name, the same in every version of Python."""
    return random.Random(f"{seed}/{name}")  # texts are hashed by SHA-512, other seeds are not


def times(source: RequestSource, until_ps: int, seed: int, name: str, folder: Path) -> list[int]:
    """The arrival times of the requests of a source, from 0 to before ``until_ps``. Raises UsageError."""
    if source.trace:
        return [time for time, _ in rows(folder / source.trace, ()) if time < until_ps]
    numbers = generator(seed, name)
    found: list[int] = []
    at = 0
    while True:
        if source.rate is not None:
            # The inverse of the distribution of gaps. 1 - x is never 0.
            gap = -math.log(1 - numbers.random()) * PS_PER_S * source.rate.denominator / source.rate.numerator
            at += round(gap)
        if at >= until_ps:
            return found
        if len(found) == MOST:
            raise UsageError(f"{name}: more than {MOST} requests come; say a shorter until, or fewer a second")
        found.append(at)
        at += source.every_ps or 0


def prompts(source: DecoderSource, until_ps: int, seed: int, folder: Path) -> list[tuple[int, int, int]]:
    """(time, tokens of the prompt, tokens to generate) of each request to a decoder."""
    if source.trace:
        told = rows(folder / source.trace, ("prompt", "output"))
        return [(time, more[0], more[1]) for time, more in told if time < until_ps]
    numbers = generator(seed, "tokens")
    return [
        (time, numbers.randint(*source.prompt), numbers.randint(*source.output))
        for time in times(source, until_ps, seed, "decoder", folder)
    ]


def _count(text: str | None, where: str) -> int:
    if text is None or not text.strip().isdecimal() or len(text.strip()) > _DIGITS or not int(text):
        raise UsageError(f"{where}: must be a whole number of 1 or more, got {shown(text)}")
    return int(text)


def rows(path: Path, columns: tuple[str, ...]) -> list[tuple[int, list[int]]]:
    """The rows of a CSV file with a header: column ``time``, in ps or with a unit, and ``columns`` of integers. Raises
    UsageError."""
    table = csv.DictReader(ARRIVALS.text(path).splitlines())
    try:
        return _rows(path, table, columns)
    except csv.Error as error:
        raise UsageError(f"{path}: line {table.line_num}: {error}") from None


def _rows(path: Path, table: csv.DictReader[str], columns: tuple[str, ...]) -> list[tuple[int, list[int]]]:
    for name in ("time", *columns):
        if name not in (table.fieldnames or ()):
            raise UsageError(
                f"{path}: must have a column {name}; there are {', '.join(table.fieldnames or ()) or 'none'}"
            )
    found = []
    for number, row in enumerate(table, 2):
        try:
            text = (row["time"] or "").strip()
            time = int(text) if text.isdecimal() and len(text) <= _DIGITS else parse(text, Dimension.TIME)
        except UsageError as error:
            raise UsageError(f"{path}: line {number}: time: {error}") from None
        more = [_count(row[name], f"{path}: line {number}: {name}") for name in columns]
        found.append((time, more))
    if len(found) > MOST:
        raise UsageError(f"{path}: must have at most {MOST} rows, got {len(found)}")
    return sorted(found, key=lambda row: row[0])
