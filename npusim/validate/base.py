"""Data sets and the reader of their files."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from npusim.errors import InputError
from npusim.hw.config import Config, load_config
from npusim.hw.files import DESCRIPTION, description_file, read_description
from npusim.untrusted import FileKind

TRUTH = FileKind("measured points of validate (CSV)", 1 << 24, InputError, InputError)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One measured row and its prediction, in the unit of the data set. ``group``: a kind of row within the set."""

    label: str
    measured: float
    predicted: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A row that is not replayed, and the reason."""

    label: str
    reason: str


class DataRow:
    """A line of a data file. A missing or invalid cell raises an InputError that names file, line and column."""

    def __init__(self, path: Path, line: int, cells: dict[str, str]) -> None:
        self._where = f"{path}: line {line}"
        self._cells = cells

    def text(self, column: str, default: str | None = None) -> str:
        """A cell without the spaces around it. ``default`` for an empty cell or a missing column."""
        value = self._cells.get(column)
        if value is None and default is None:
            raise InputError(f"{self._where}: has no column {column!r}, only {', '.join(self._cells)}")
        return (value or "").strip() or default or ""

    def integer(self, column: str, least: int = 0) -> int:
        """A cell with an integer that is at least ``least``."""
        try:
            value = int(self.text(column))
        except ValueError:
            raise self.refused(column, "a whole number") from None
        if value < least:
            raise self.refused(column, f"a whole number >= {least}")
        return value

    def size(self, column: str) -> int:
        """A cell with a positive integer."""
        return self.integer(column, 1)

    def number(self, column: str) -> float:
        """A cell with a finite number."""
        try:
            value = float(self.text(column))
        except ValueError:
            raise self.refused(column, "a number") from None
        if not math.isfinite(value):
            raise self.refused(column, "a finite number")
        return value

    def shape(self, column: str, default: str | None = None) -> list[int]:
        """A cell such as ``128x64``."""
        try:
            extents = [int(extent) for extent in self.text(column, default).split("x")]
        except ValueError:
            extents = [0]
        if min(extents) < 1:
            raise self.refused(column, "extents >= 1 such as 128x64")
        return extents

    def one_of(self, column: str, allowed: Mapping[str, V], default: str | None = None) -> V:
        """The value in ``allowed`` for the text of a cell."""
        try:
            return allowed[self.text(column, default)]
        except KeyError:
            raise self.refused(column, f"one of {', '.join(allowed)}") from None

    def refused(self, column: str, wanted: str) -> InputError:
        """The error that says what a cell must be."""
        return InputError(f"{self._where}: {column}: must be {wanted}, got {self.text(column, '')!r}")


def chosen_keys(name: str) -> int:
    """Keys of a shipped description, and of those that it inherits, whose value has no source.

    These are marked as chosen or fitted, by the comment of their line or, for a whole table, that of its header.
    """
    *_, origins = read_description(name)
    count = 0
    for label in set(origins.values()):
        table, marked = "", False
        for line in DESCRIPTION.text(description_file(label)).splitlines():
            code, _, comment = line.partition("#")
            mark = comment.strip().startswith(("chosen", "fitted"))
            if code.startswith("["):
                table, marked = code.strip()[1:-1] + ".", mark
            elif "=" in code and (mark or (marked and not comment)):
                count += origins.get(table + code.partition("=")[0].strip()) == label
    return count


_changes: dict[str, dict[str, Any]] = {}


def machine(name: str) -> Config:
    """The config of the measured machine by its shipped name, with the overrides of :func:`changed`."""
    config = load_config(name)
    return config.with_(**_changes[name]) if name in _changes else config


@contextlib.contextmanager
def changed(name: str, keys: Mapping[str, Any]) -> Iterator[None]:
    """Override keys of a machine within the block, to study their effect on the errors."""
    before = dict(_changes)
    _changes[name] = dict(keys)
    try:
        yield
    finally:
        _changes.clear()
        _changes.update(before)


Replay = Callable[[Sequence[DataRow], Path], Iterator[DataPoint | Excluded]]


@dataclass(frozen=True, slots=True)
class DataSet:
    """``replay(rows, folder)`` predicts every row of ``file``. ``carried``: the data set is only published by this
    project.

    ``every``: a report shows all rows, not only the worst ones.
    """

    name: str
    unit: str
    configs: tuple[str, ...]
    replay: Replay
    file: str = ""
    carried: bool = False
    every: bool = False

    @property
    def filename(self) -> str:
        """The name of the CSV file."""
        return self.file or f"{self.name}.csv"


def read(path: Path, kind: FileKind = TRUTH) -> list[DataRow]:
    """The lines of a CSV file with a header. Raises InputError for a file that is empty or not text."""
    try:
        lines = io.StringIO(kind.text(path), newline="")
        rows = [
            DataRow(path, number, {name: cell or "" for name, cell in cells.items() if name is not None})
            for number, cells in enumerate(csv.DictReader(lines), start=2)
        ]
    except csv.Error as error:
        raise InputError(f"{path}: is not a CSV file: {error}") from None
    if not rows:
        raise InputError(f"{path}: must hold a header and at least one row")
    return rows
