"""The differences between two records of a run in a few lines: layer, unit, amount, and the probable cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from npusim.report.format import counted, duration, grouped
from npusim.testing.record import GoldenRecord, UnitWork

MOST_LINES = 15
_NOTHING = UnitWork(0, 0, 0, 0)
_MOST_ROWS = 3


class UnitChange(NamedTuple):
    """One operator on one unit, before and now."""

    layer: tuple[int, str]
    unit: str
    before: UnitWork
    now: UnitWork

    @property
    def grown_ps(self) -> int:
        """Additional picoseconds that the unit works for the operator."""
        return self.now.taken_ps - self.before.taken_ps


def changes(before: GoldenRecord, now: GoldenRecord, label: str) -> list[str]:
    """At most MOST_LINES lines with the differences of ``now`` from ``before``, which is called ``label``. Empty
    without differences."""
    if before == now:
        return []
    lines = [_headline(before, now, label)]
    for name, was in (("model", before.model), ("device", before.device)):
        if getattr(now, name) != was:
            lines.append(f"other {name}: {was} in {label}, {getattr(now, name)} now")
    rows = list(_rows(before, now))
    if rows:
        lines += ["first: " + _row(rows[0])]
        most = sorted(rows[1:], key=lambda row: -abs(row.grown_ps))[:_MOST_ROWS]
        lines += ["then:  " + _row(row) for row in most if row.grown_ps]
        if len(rows) > 1 + len(most):
            lines.append(f"       in all {counted(len(rows), 'line')} of an operator on a unit differ")
    waits = sorted(_waits(before, now), key=lambda wait: -abs(wait[2]))[:_MOST_ROWS]
    lines += [f"waits: {unit} for {cause} {_signed(grown)}" for unit, cause, grown in waits]
    for name, what in (("dram_read_bytes", "read from"), ("dram_write_bytes", "written to")):
        if grown := now.totals[name] - before.totals[name]:
            lines.append(f"bytes {what} DRAM: {grown:+,}".replace(",", " "))
    return [*lines, "likely cause: " + _cause(before, now, rows, waits)]


def _headline(before: GoldenRecord, now: GoldenRecord, label: str) -> str:
    was, takes = before.totals["time_ps"], now.totals["time_ps"]
    if was == takes:
        return f"{now.model} on {now.device}: as long as in {label}, {duration(takes)}, but not the same timeline"
    part = f" ({100 * (takes - was) / was:+.2f} %)" if was else ""
    return (
        f"{now.model} on {now.device}: {_signed(takes - was)}{part} against {label}: "
        f"{grouped(before.totals['cycles'])} -> {grouped(now.totals['cycles'])} cycles"
    )


def _rows(before: GoldenRecord, now: GoldenRecord) -> Iterator[UnitChange]:
    """The differences in program order."""
    for layer in sorted(before.layers.keys() | now.layers.keys()):
        was, done = before.layers.get(layer, {}), now.layers.get(layer, {})
        for unit in sorted(was.keys() | done.keys()):
            row = UnitChange(layer, unit, was.get(unit, _NOTHING), done.get(unit, _NOTHING))
            if row.before != row.now:
                yield row


def _row(row: UnitChange) -> str:
    (op, name), before, now = row.layer, row.before, row.now
    told = f"layer {name} (operator {op}), {row.unit}: {_signed(row.grown_ps)}"
    if row.grown_ps == 0:
        told = f"layer {name} (operator {op}), {row.unit}: as long"
    if before.instructions != now.instructions:
        told += f", {grouped(before.instructions)} -> {counted(now.instructions, 'instruction')}"
    if before.bytes != now.bytes:
        told += f", {grouped(before.bytes)} -> {counted(now.bytes, 'byte')}"
    if before.macs != now.macs:
        told += f", {grouped(before.macs)} -> {counted(now.macs, 'MAC')}"
    return told


def _waits(before: GoldenRecord, now: GoldenRecord) -> Iterator[tuple[str, str, int]]:
    for name in sorted(before.units.keys() | now.units.keys()):
        was = before.units[name].stalls if name in before.units else {}
        done = now.units[name].stalls if name in now.units else {}
        for cause in sorted(was.keys() | done.keys()):
            if grown := done.get(cause, 0) - was.get(cause, 0):
                yield name, cause, grown


def _cause(before: GoldenRecord, now: GoldenRecord, rows: list[UnitChange], waits: list[tuple[str, str, int]]) -> str:
    """The probable cause of the differences."""
    if before.device != now.device or before.model != now.model:
        return "another device or model"
    if before.layers.keys() != now.layers.keys():
        missing, new = len(before.layers.keys() - now.layers), len(now.layers.keys() - before.layers)
        return f"the program has other layers: {missing} are gone, {new} are new (the model, or fusion)"
    split = [row for row in rows if row.before.instructions != row.now.instructions]
    if split:
        units = ", ".join(dict.fromkeys(row.unit for row in split[:_MOST_ROWS]))
        return f"the program differs: other tiles, order or placement (other numbers of instructions on {units})"
    moved = [row for row in rows if (row.before.bytes, row.before.macs) != (row.now.bytes, row.now.macs)]
    if moved:
        return f"the same instructions do other work: {moved[0].unit} moves or multiplies another amount"
    slower: dict[str, int] = {}
    for row in rows:
        slower[row.unit] = slower.get(row.unit, 0) + row.grown_ps
    if any(slower.values()):
        unit = max(slower, key=lambda name: abs(slower[name]))
        how = "longer" if slower[unit] > 0 else "shorter"
        return f"the same instructions take {how} on {unit} ({_signed(slower[unit])} in all): its cost, rate or memory"
    if waits:
        unit, cause, grown = waits[0]
        how = "an overlap was lost" if grown > 0 else "more overlaps"
        return f"the same work in the same time, in another order: {unit} waits {_signed(grown)} for {cause}: {how}"
    if before.totals["time_ps"] != now.totals["time_ps"]:
        return "the same work on every unit: start, end or completion take another time"
    return "the same work in the same time: only start times differ"


def _signed(ps: int) -> str:
    return ("+" if ps > 0 else "-" if ps < 0 else "") + duration(abs(ps))
