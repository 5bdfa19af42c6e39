"""Formats numbers for reports: times, bytes, rates and aligned tables, as plain text without terminal control
sequences."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import zip_longest

_TIMES = ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"), (1, "ps"))
_DECIMAL = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))
_FORMULA = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
"""Characters that begin a formula in a spreadsheet, also in full width."""
_BINARY = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(ps: int) -> str:
    """A simulated time in the largest unit in which it is at least 1: ``12.35 ms``."""
    return scaled(ps, _TIMES) if ps else "0 s"


def quantity(value: float, unit: str) -> str:
    """A count or rate with a decimal prefix: ``4.1 GMAC``, ``25.6 GB/s``."""
    return scaled(value, [(size, prefix + unit) for size, prefix in _DECIMAL])


def scaled(value: float, units: Sequence[tuple[int, str]]) -> str:
    """A value in the largest of the units (size, name) in which it is at least 1, otherwise in the smallest."""
    # 999.5 and more would be printed as 1000.
    size, name = next((unit for unit in units if 2000 * abs(value) >= 1999 * unit[0]), units[-1])
    return f"{_significant(value / size)} {name}"


def capacity(count: int) -> str:
    """A memory size in the largest binary unit that divides it, otherwise with a decimal prefix: ``256 KiB``, ``9.4
    MB``."""
    for size, unit in _BINARY:
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return quantity(count, "B")


def grouped(value: int) -> str:
    """An exact integer with groups of three digits: ``12 345 678``."""
    return f"{value:,}".replace(",", " ")


def counted(count: int, noun: str) -> str:
    """A number with its noun: ``1 instruction``, ``2 instructions``."""
    return f"{grouped(count)} {noun}{'s' * (count != 1)}"


def percent(part: float, whole: float) -> str:
    """A share of a whole: ``92.1 %``; ``-`` if the whole is 0."""
    return f"{round(100 * part / whole, 1) + 0.0:.1f} %" if whole else "-"  # + 0.0: no "-0.0"


def signed(ps: int) -> str:
    """A difference of times in picoseconds as text: ``+1.03 ms``."""
    return f"+{duration(ps)}" if ps > 0 else duration(ps)


def change(before: float, after: float) -> str:
    """A change in relation to the first value: ``+4.0 %``; ``-`` if the first value is 0 and the second is not."""
    share = percent(after - before, before) if before or after else percent(0, 1)
    return f"+{share}" if before and after > before else share


def _significant(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if abs(value) < 0.01:
        return f"{value:.3g}"
    digits = 2 if round(abs(value), 2) < 10 else 1 if round(abs(value), 1) < 100 else 0
    return f"{value:.{digits}f}"


_WIDTH: ContextVar[int | None] = ContextVar("_WIDTH", default=None)
_GAP = 2
_LEAST_PROSE = 24
"""A last column of text with less space than this is printed below its row."""
_NAME, _SHORT_NAME = 24, 12
"""Names in columns of text are shortened to these widths where lines would be too long."""


@contextlib.contextmanager
def lines_of(width: int | None) -> Iterator[None]:
    """Within the block, tables and facts wrap their cells so that lines have at most ``width`` columns. None: no
    wrapping."""
    token = _WIDTH.set(width)
    try:
        yield
    finally:
        _WIDTH.reset(token)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """Lines of an aligned table with two spaces between columns. ``right``: one character per column, ``>`` aligns
    right."""
    sides = right.ljust(len(header), "<")
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table of {len(header)} columns got a row of {len(row)}: {row}")
    cells = [[printable(cell, lines=False) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = _WIDTH.get()
    if room is None or _total(widths) <= room:
        return [line for row in cells for line in _aligned(row, sides, widths)]
    words = [
        max(len(word) for cell in column for word in _wrapped(cell, 1)) if side == "<" else width
        for column, side, width in zip(zip(*cells, strict=True), sides, widths, strict=True)
    ]
    # Prose in the last column goes below its row before names are shortened, because users copy names.
    count, prose = len(words), sides[-1] == "<" and widths[-1] > _LEAST_PROSE
    layouts = [(max(words), count), *((longest, count - prose) for longest in (max(words), _NAME, _SHORT_NAME))]
    for longest, columns in (*layouts, (_SHORT_NAME, count - 1)):
        least = [min(word, longest) if side == "<" else word for word, side in zip(words, sides, strict=True)]
        least[-1] = max(least[-1], _LEAST_PROSE * prose)
        gap = _GAP if _total(least[:columns], _GAP) <= room else 1
        if _total(least[:columns], gap) <= room:
            break
    widths = _shrunk(widths[:columns], least[:columns], room, gap)
    if columns == count:
        return [line for row in cells for line in _aligned(row, sides, widths, gap)]
    lines = []
    for *first, last in cells:
        lines += _aligned(first, sides, widths, gap)
        lines += [f"    {line}" for line in _wrapped(last, room - 4) if line]
    return lines


def _total(widths: Sequence[int], gap: int = _GAP) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _shrunk(widths: Sequence[int], least: Sequence[int], room: int, gap: int) -> list[int]:
    """Shrink the widest columns first, none below its minimum width, until they fit or all have it."""
    found = list(widths)
    while _total(found, gap) > room and (wider := [i for i in range(len(found)) if found[i] > least[i]]):
        found[max(wider, key=lambda i: found[i])] -= 1
    return found


def _aligned(row: Sequence[str], sides: str, widths: Sequence[int], gap: int = _GAP) -> list[str]:
    """The lines of a row. Cells that are too long are wrapped between words, and words that are too long are
    shortened."""
    columns = [
        [cell] if len(cell) <= width else [shorten(line, width) for line in _wrapped(cell, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for cells in zip_longest(*columns, fillvalue=""):
        parts = [f"{cell:{side}{width}}" for cell, side, width in zip(cells, sides, widths, strict=False)]
        lines.append((" " * gap).join(parts).rstrip())
    return lines


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines wrapped between words. A number is kept with its digit groups and its percent sign."""
    whole = re.sub(r"(?<=[0-9]) (?=%|[0-9]{3}(?![0-9.]))", "\N{NO-BREAK SPACE}", text)
    lines = textwrap.wrap(
        whole, max(width, 1), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def broken(text: str, width: int) -> str:
    """The text with lines of more than ``width`` columns wrapped between words; continuation lines are indented."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")) + 4)
        lines += [line] if len(line) <= width else _wrapped(line, width, indent)
    return "\n".join(lines)


def facts(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of name and value, indented by two, with aligned values."""
    width = max((len(name) for name, _ in rows), default=0)
    room = _WIDTH.get()
    lines = []
    for name, value in rows:
        shown = printable(value, lines=False)
        parts = [shown] if room is None else _wrapped(shown, max(room - width - 4, _LEAST_PROSE))
        lines += [f"  {left:{width}}  {part}".rstrip() for left, part in zip_longest([name], parts, fillvalue="")]
    return lines


def printable(text: str, *, lines: bool = True) -> str:
    """The text with control and unprintable characters escaped, because names come from untrusted files.

    ``lines``: keep line feeds.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode()
        for char in text
    )


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Rows as CSV with a header. Missing values are empty. Cells contain no formulas for a spreadsheet and no control
    characters."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_csv_cell, columns))
    writer.writerows([_csv_cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def _csv_cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = printable(value, lines=False)
    # Spreadsheets interpret a cell with this beginning as a formula. After an apostrophe it is text.
    return f"'{text}" if value.lstrip()[:1] in _FORMULA else text


class LogFormatter(logging.Formatter):
    """Formats lines of a log for a terminal, see :func:`printable`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, with unprintable characters escaped."""
        return printable(super().format(record))


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters. The middle is omitted, because layer names differ at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}~{text[len(text) - (width - 1 - head) :]}"
