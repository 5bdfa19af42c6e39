"""Parts of a study that machines without a common scheduler simulate, each into a store of its own, and their merge."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npusim.errors import UsageError, shown
from npusim.explore.figures import ModelFigures, StudyRow
from npusim.explore.search import Rounds
from npusim.explore.store import StudyStore

MOST_SHARDS = 1 << 16


@dataclass(frozen=True, slots=True)
class StudyShard:
    """The part ``index`` of ``count`` parts, from 1 on: every ``count``-th of the designs that a search requests."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> StudyShard:
        """A shard from text such as ``3/10``. Raises UsageError."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text, re.ASCII)
        if found is None or not 1 <= int(found[1]) <= int(found[2]) <= MOST_SHARDS:
            raise UsageError(f"--shard: must be I/N with 1 <= I <= N <= {MOST_SHARDS}, such as 3/10, got {shown(text)}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}-of-{self.count}"

    def part(self, rounds: Iterable[list[int]]) -> Rounds:
        """This part of rounds that do not depend on rows. The parts are disjoint, and their union is all rounds."""
        start = 0
        for wanted in rounds:
            yield [number for place, number in enumerate(wanted, start) if place % self.count == self.index - 1]
            start += len(wanted)

    def first(self, rounds: Rounds) -> Rounds:
        """This part of the first round only, because later rounds depend on its rows."""
        return self.part(itertools.islice(rounds, 1))


def read_store(path: Path, trust: bool) -> tuple[dict[str, Any], list[StudyRow]]:
    """The description and the rows of a store, without a change to it. Raises UsageError."""
    with StudyStore(path, reading=True, trust=trust) as store:
        return store.facts(), store.rows()


def merged(sources: Mapping[str, Sequence[StudyRow]]) -> list[StudyRow]:
    """The rows of all sources by number. Raises UsageError for a design with different rows in two of them."""
    found: dict[int, tuple[str, StudyRow]] = {}
    for label, rows in sources.items():
        for row in rows:
            other, known = found.setdefault(row.number, (label, row))
            if known != row:
                fields = ", ".join(_differences(known, row))
                raise UsageError(f"{label}: design {row.number}: differs from that in {other} in {fields}")
    return [row for _, (_, row) in sorted(found.items())]


def _differences(one: StudyRow, two: StudyRow) -> list[str]:
    """The names of the fields that differ."""
    names = [name for name in StudyRow.__slots__ if name != "figures" and getattr(one, name) != getattr(two, name)]
    if [each.model for each in one.figures] != [each.model for each in two.figures]:
        return [*names, "figures"]
    return names + [
        f"{name}({a.model})"
        for a, b in zip(one.figures, two.figures, strict=True)
        for name in ModelFigures.__slots__
        if name != "estimates" and getattr(a, name) != getattr(b, name)
    ]
