"""Numbers for people: times, bytes, rates and aligned tables, in plain text."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"), (1, "ps"))
_DECIMAL = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BINARY = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(ps: int) -> str:
    """A simulated time in the largest unit that leaves at least 1: ``12.35 ms``."""
    for size, unit in _TIMES:
        if abs(ps) >= size:
            return f"{ps} ps" if size == 1 else f"{_significant(ps / size)} {unit}"
    return "0 s"


def quantity(value: float, unit: str) -> str:
    """A count or rate with a decimal prefix: ``4.1 GMAC``, ``25.6 GB/s``."""
    for size, prefix in _DECIMAL:
        if abs(value) >= size:
            return f"{_significant(value / size)} {prefix}{unit}"
    return f"{_significant(value)} {unit}"


def capacity(count: int) -> str:
    """A memory size in the largest binary unit that divides it, else with a decimal prefix: ``256 KiB``, ``9.4 MB``."""
    for size, unit in _BINARY:
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return quantity(count, "B")


def grouped(value: int) -> str:
    """An exact integer with thin groups of three digits: ``12 345 678``."""
    return f"{value:,}".replace(",", " ")


def counted(count: int, noun: str) -> str:
    """A number with its noun: ``1 instruction``, ``2 instructions``."""
    return f"{grouped(count)} {noun}{'s' * (count != 1)}"


def percent(part: float, whole: float) -> str:
    """A share of a whole: ``92.1 %``; ``-`` when there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _significant(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """Lines of an aligned table, two spaces apart; ``right`` holds one character per column, ``>`` for right."""
    sides = right.ljust(len(header), "<")
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"a table of {len(header)} columns got a row of {len(row)}: {row}")
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def facts(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of name and value, values aligned, indented by two."""
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:{width}}  {value}".rstrip() for name, value in rows]


def shorten(text: str, width: int) -> str:
    """At most width characters, the middle left out: layer names differ at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}~{text[len(text) - (width - 1 - head) :]}"
