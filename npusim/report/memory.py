"""The memory area of every value of a network, the reason for it, and the contents of the memories over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npusim.compiler.schedule.explain import INPUT, L2, OUTPUT, SRAM, TILE, WINDOW, Decision
from npusim.compiler.schedule.schedule import Schedule
from npusim.isa.base import Space, decode, offset_of, space_of
from npusim.isa.repeat import expanded
from npusim.program import CONSTANTS, EVERY, Program
from npusim.report.format import counted, duration, facts, quantity, table
from npusim.report.result import ReportedRun
from npusim.report.run import memories
from npusim.work import DmaWork

if TYPE_CHECKING:
    from npusim.compiler.pipeline import Explained

NAMED = 3
"""Limit of the named layers of a value."""


@dataclass(slots=True)
class MemoryStage:
    """Operators ``first`` to ``last``, which run as one step, and their bytes of SRAM by kind.

    ``constants``: bytes of constants that the operators read. ``read``: bytes that they load, which is more if some are
    loaded repeatedly.
    """

    first: int
    last: int
    held: dict[str, int] = field(default_factory=dict)
    constants: int = 0
    read: int = 0


def stages(program: Program) -> list[MemoryStage]:
    """The stages of a program in order of execution. Stages without slots in SRAM are omitted."""
    slots = [place for place in program.places if place.core == EVERY]
    found = {(place.first, place.last): MemoryStage(place.first, place.last) for place in slots}
    ordered = sorted(found.values(), key=lambda stage: stage.first)
    begins = [stage.first for stage in ordered]
    for place in program.places:
        if place.memory != "sram":
            continue
        if place.core == EVERY:
            there = [found[place.first, place.last]]
        else:  # those that run from its first operator to its last
            there = ordered[max(bisect_right(begins, place.first) - 1, 0) : bisect_right(begins, place.last)]
        for stage in there:
            if place.first <= stage.last:
                stage.held[place.kind] = stage.held.get(place.kind, 0) + place.nbytes
    _count_constants(program, ordered)
    return ordered


def _count_constants(program: Program, ordered: Sequence[MemoryStage]) -> None:
    stage_of = {op: stage for stage in ordered for op in range(stage.first, stage.last + 1)}
    runs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for command in expanded(decode(program.code)):
        work = command.instruction.work()
        stage = stage_of.get(command.op)
        if stage is None or not isinstance(work, DmaWork):
            continue
        for access in command.instruction.accesses():
            if access is not None and space_of(access.address) == Space.REGION + CONSTANTS:
                low = offset_of(access.address) + access.low
                runs[stage.first].append((low, low + access.high - access.low))
                stage.read += work.reads
    for stage in ordered:
        end = 0
        for low, high in sorted(runs[stage.first]):
            stage.constants += max(0, high - max(low, end))
            end = max(end, high)


def text(found: Explained, result: ReportedRun) -> str:
    """Forecasts, peaks, the stages of the program, and every value with its reason."""
    program = found.program
    (chosen, time), *others = found.orders
    compared = [f"{label} {duration(ps)}" for label, ps in others]
    rows = [
        ("chosen", f"{chosen}, forecast {duration(time)}" + (f"; {', '.join(compared)}" if compared else "")),
        ("time", duration(result.time_ps)),
        *memories(result),
    ]
    times = {row.name: (row.start_ps, row.end_ps) for row in result.ops}
    blocks = [
        [f"memory areas of the values of {result.model} on {result.config}"],
        facts(rows),
        ["SRAM contents by layer", *_map(program, times)],
        ["schedule", *_schedule(found.schedule)],
        [
            "values, and the estimated time that the next best memory area would add",
            *_values(program, found.decisions, times),
        ],
    ]
    tiles = sum(each.home == TILE for each in found.decisions)
    if tiles:
        blocks.append([f"{counted(tiles, 'more value')} of fused operators: on tiles only"])
    return "\n\n".join("\n".join(block) for block in blocks)


def _schedule(schedule: Schedule) -> list[str]:
    """The choices of a schedule that are not about the memory area of a single value."""
    rows = [
        ("cores", str(schedule.cores)),
        ("DMA channels", str(schedule.channels)),
        ("memory behind the scratchpad", str(schedule.backing)),
        ("core transfers", "yes" if schedule.exchange else "no"),
        ("fused attention", ", ".join(schedule.fused_attention) or "none"),
        ("pinned weights", ", ".join(each.layer for each in schedule.pinned) or "none"),
    ]
    for each in schedule.shards:
        along = "shared out" if each.axis is None else f"along axis {each.axis}"
        rows.append(("shards", f"{each.layer} {along} on {each.cores or schedule.cores} cores"))
    for cascade in schedule.cascades:
        rows.append(("cascade", f"{', '.join(cascade.layers)}: {counted(cascade.rows, 'row')} for each stripe"))
    return table(("choice", "value"), rows, right="<<")


_Times = dict[str, tuple[int, int]]
"""Start and end of operators that had instructions, by name."""


def _map(program: Program, times: _Times) -> list[str]:
    rows = []
    for stage in stages(program):
        names = [program.ops[stage.first].name, program.ops[stage.last].name]
        count = stage.last - stage.first + 1
        layers = names[0] if count == 1 else f"{names[0]} to {names[1]} ({count})"
        held = [quantity(stage.held.get(kind, 0), "B") for kind in ("value", "window", "weights", "tile", "sums")]
        again = f"{stage.read / stage.constants:.3g} x {quantity(stage.constants, 'B')}" if stage.constants else ""
        rows.append((layers, _span(program, times, stage.first, stage.last), *held, again))
    header = ("layers", "time", "values", "rolling buffers", "weights", "tiles", "sums", "constants loaded")
    return table(header, rows, right="<>>>>>>>")


def _span(program: Program, times: _Times, first: int, last: int) -> str:
    known = [times[program.ops[op].name] for op in (first, last) if program.ops[op].name in times]
    return f"{duration(known[0][0])} - {duration(known[-1][1])}" if known else ""


def _values(program: Program, decisions: Sequence[Decision], times: _Times) -> list[str]:
    rows = []
    for each in decisions:
        if each.home == TILE:
            continue
        other = "" if each.other_ps is None else f"{each.other} {_signed(each.other_ps)}"
        rows.append(
            (
                each.value,
                quantity(each.nbytes, "B"),
                "" if each.made < 0 else program.ops[each.made].name,
                _users(program, each),
                _span(program, times, each.first, each.last),
                _home(each),
                other,
                each.why,
            )
        )
    header = ("value", "bytes", "made by", "used by", "from - to", "memory area", "next best", "why")
    return table(header, rows, right="<><<>")


def _users(program: Program, each: Decision) -> str:
    names = [program.ops[op].name for op in each.used]
    more = [f"{len(names) - NAMED + 1} more"] if len(names) > NAMED else []
    return ", ".join([*(names[: NAMED - 1] if more else names), *more])


def _home(each: Decision) -> str:
    match each.home:
        case "SRAM" | "L2":
            return f"{each.home} at {each.offset}"
        case "window":
            return (
                f"rolling buffer of {counted(each.rows, 'row')}, {quantity(each.taken, 'B')} of SRAM at {each.offset}"
            )
        case "input" | "output":
            return f"DRAM, {each.home}"
        case _:
            return each.home


def _signed(ps: int) -> str:
    return f"{'-' if ps < 0 else '+'}{duration(abs(ps))}"


def as_json(found: Explained, result: ReportedRun) -> dict[str, Any]:
    """The same as JSON values. Operators are given by name, times in ps; ``next_best.added_ps`` is an estimate."""
    program = found.program
    names = [entry.name for entry in program.ops]
    times = {row.name: (row.start_ps, row.end_ps) for row in result.ops}
    return {
        "model": result.model,
        "config": result.config,
        "time_ps": result.time_ps,
        "orders": [{"order": label, "forecast_ps": ps} for label, ps in found.orders],
        "stages": [
            {
                "operators": names[stage.first : stage.last + 1],
                "sram_bytes": stage.held,
                "constant_bytes": stage.constants,
                "constant_bytes_read": stage.read,
            }
            for stage in stages(program)
        ],
        "values": [dict(_value(each, names, times)) for each in found.decisions],
        "memory": [each.to_json_dict() for each in result.memory],
    }


def _value(each: Decision, names: Sequence[str], times: _Times) -> Iterator[tuple[str, Any]]:
    yield "name", each.value
    yield "bytes", each.nbytes
    yield "made_by", None if each.made < 0 else names[each.made]
    yield "used_by", [names[op] for op in each.used]
    yield "home", each.home
    if each.home in (SRAM, WINDOW):
        yield "sram", {"offset": each.offset, "bytes": each.taken, "rows": each.rows or None}
    if each.home == L2:
        yield "l2", {"offset": each.offset, "bytes": each.taken}
    if each.home not in (INPUT, OUTPUT):
        yield "from_ps", times.get(names[each.first], (None, None))[0]
        yield "to_ps", times.get(names[each.last], (None, None))[1]
    yield "why", each.why
    yield "next_best", {"home": each.other, "added_ps": each.other_ps} if each.other_ps is not None else None
