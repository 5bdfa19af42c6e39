"""Explains the time of an operator: the equations of the cost models with its numbers."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npusim.errors import UsageError
from npusim.hw.config import Config
from npusim.hw.cost import Cost, cost_model
from npusim.isa.base import Unit, decode
from npusim.isa.repeat import expanded
from npusim.program import Program
from npusim.report.format import counted, duration, grouped, percent, table
from npusim.report.layers import covered, unit_kind
from npusim.report.result import ReportedRun
from npusim.summary import OpReport
from npusim.timeline import Span
from npusim.work import DmaWork, MatrixWork, Port, ScalarWork, VectorWork, Work


@dataclass(frozen=True, slots=True)
class InstructionPrice:
    """Equal instructions of an operator: their number, work, and the cost of one."""

    mnemonic: str
    count: int
    work: Work
    cost: Cost


@dataclass(frozen=True, slots=True)
class Explanation:
    """The costs of an operator by unit (``matrix``, ``vector``, ``scalar``, ``dma``), highest first.

    ``busy_ps``: time in which at least one unit of that kind, on any core, works for it.
    """

    timing: OpReport
    charges: dict[str, list[InstructionPrice]]
    busy_ps: dict[str, int]


def find_operators(program: Program, text: str) -> list[int]:
    """The index of the operator with this name. Otherwise all operators whose names contain the text (ignoring case),
    otherwise all of this kind. Raises UsageError if there are none."""
    names = [entry.name for entry in program.ops]
    if text in names:
        return [names.index(text)]
    part = text.lower()
    found = [index for index, name in enumerate(names) if part in name.lower()]
    found = found or [index for index, entry in enumerate(program.ops) if part in entry.kind]
    if not found:
        near = difflib.get_close_matches(text, names, 5, 0.0)
        raise UsageError(f"operator {text!r} is not an operator of this program: {', '.join(near)}")
    return found


def slowest_first(program: Program, result: ReportedRun, ops: Sequence[int]) -> list[int]:
    """Operators sorted by the time from their first instruction to their last, longest first. Those without
    instructions are last."""
    times = {row.name: row.end_ps - row.start_ps for row in result.ops}
    return sorted(ops, key=lambda op: -times.get(program.ops[op].name, -1))


_MOST_NAMES = 12


def explain(program: Program, result: ReportedRun, config: Config, op: int) -> Explanation:
    """The work and costs of the instructions of one operator. ``result``: a run of the program on the device.

    Raises UsageError for an operator without instructions, such as one whose output is empty.
    """
    price = cost_model(config).cost
    counts: Counter[tuple[str, str, Work]] = Counter()
    for command in expanded(decode(program.code)):
        if command.op == op and command.unit != Unit.CONTROL:
            unit = "dma" if command.unit >= Unit.DMA else Unit(command.unit).name.lower()
            counts[unit, command.instruction.mnemonic, _seen(command.instruction.work(), config)] += 1
    entry = program.ops[op]
    timing = next((row for row in result.ops if row.name == entry.name), None)
    if timing is None or not counts:
        raise UsageError(f"operator {entry.name!r} has no instructions: it computes and moves nothing")
    charges: dict[str, list[InstructionPrice]] = {}
    for (unit, mnemonic, work), count in counts.items():
        charges.setdefault(unit, []).append(InstructionPrice(mnemonic, count, work, price(work)))
    for rows in charges.values():
        rows.sort(key=lambda row: (-row.count * row.cost.ps, row.mnemonic, repr(row.work)))
    # Channels of all cores are merged, because the kind of work matters here.
    intervals: dict[str, list[tuple[int, int]]] = {unit: [] for unit in charges}
    for span in result.timeline.spans:
        if span.op == op and "." in span.unit:
            intervals[unit_kind(span.unit)].append((span.start_ps, span.end_ps))
    return Explanation(timing, charges, {unit: covered(pairs) for unit, pairs in intervals.items()})


def text(found: Explanation, config: Config, others: Sequence[str] = ()) -> str:
    """The explanation as text. ``others``: faster operators that also match."""
    row = found.timing
    window = row.end_ps - row.start_ps
    units = [
        (unit, duration(busy), percent(busy, window), counted(sum(charge.count for charge in charges), "instruction"))
        for (unit, charges), busy in zip(found.charges.items(), found.busy_ps.values(), strict=True)
    ]
    lines = [
        *_others(others),
        f"{row.name} ({row.kind}) on {config.name}: {duration(window)} from its first load to its "
        f"last store, {row.bound}-bound on {row.unit}",
        "",
    ]
    lines += table(("unit", "busy", "of its time", "instructions"), units, right="<>>>")
    for unit, charges in found.charges.items():
        lines += ["", f"{unit}: what one instruction takes", *_equations(unit, config), ""]
        lines += table(("count", "instruction", "work", "cycles", "binds"), list(_rows(charges)), right="><<<<")
    return "\n".join(lines)


def host_text(row: OpReport, spans: Sequence[Span], config: Config, others: Sequence[str] = ()) -> str:
    """The time of the host for one layer of a model that decides at run time, as text."""
    host, spent = config.host, sum(span.end_ps - span.start_ps for span in spans)
    lines = [*_others(others), f"{row.name} ({row.kind}) on {config.name}: {duration(spent)} of the host", ""]
    keys = [
        ("host.decision", host.decision_ps, "each decision"),
        ("host.operation", host.operation_ps, "each element that the host reads or writes for it"),
        ("host.link_latency", host.link_latency_ps, "each transfer, and its bytes at host.link_bandwidth"),
        ("host.submit", host.submit_ps, "each submission of a program"),
        ("host.irq", host.irq_ps, "each interrupt"),
    ]
    shown = keys[2:] if any(span.kind == "transfer" for span in spans) else keys[:2]
    lines += table(("key", "time", "for"), [(key, duration(ps), what) for key, ps, what in shown], right="<><")
    times = sorted(span.end_ps - span.start_ps for span in spans)
    lines += ["", f"{counted(len(times), 'time')}, from {duration(times[0])} to {duration(times[-1])}"]
    return "\n".join(lines)


def host_json(row: OpReport, spans: Sequence[Span]) -> dict[str, Any]:
    """The same as JSON values."""
    spent = [span.end_ps - span.start_ps for span in spans]
    return {"name": row.name, "kind": row.kind, "unit": row.unit, "time_ps": sum(spent), "count": len(spent)}


def _others(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return [f"the slowest of {len(names) + 1} such operators; the others: {shown}", ""]


def as_json(found: Explanation) -> dict[str, Any]:
    """The explanation as JSON values; times in ps, terms in cycles of the clock of the unit."""
    row = found.timing
    return {
        "name": row.name,
        "kind": row.kind,
        "bound": row.bound,
        "unit": row.unit,
        "time_ps": row.end_ps - row.start_ps,
        "units": {
            unit: {
                "busy_ps": found.busy_ps[unit],
                "instructions": [
                    {
                        "mnemonic": charge.mnemonic,
                        "count": charge.count,
                        "work": _work(charge.work),
                        "cycles": charge.cost.cycles,
                        "terms": dict(charge.cost.terms),
                        "bound": charge.cost.bound,
                    }
                    for charge in charges
                ],
            }
            for unit, charges in found.charges.items()
        },
    }


def _rows(charges: list[InstructionPrice]) -> Iterator[tuple[str, str, str, str, str]]:
    for charge in charges[:_MOST_ROWS]:
        terms = " + ".join(f"{name} {grouped(cycles)}" for name, cycles in charge.cost.terms)
        total = f"{grouped(charge.cost.cycles)} = {terms}"
        yield str(charge.count), charge.mnemonic, _work(charge.work), total, charge.cost.bound
    if len(charges) > _MOST_ROWS:
        rest = sum(charge.count for charge in charges[_MOST_ROWS:])
        yield str(rest), "others", f"{len(charges) - _MOST_ROWS} more kinds", "", ""


_MOST_ROWS = 8
_OF = {False: "B", True: "B of constants"}


def _equations(unit: str, config: Config) -> list[str]:
    """The equations of the cost model of a unit: the indented lines with ``=`` in its module docstring, and their
    continuation lines. Remarks, which are behind two spaces there, are on lines of their own."""
    name = unit if unit != "matrix" or config.matrix is None else f"matrix_{config.matrix.model}"
    module = importlib.import_module(f"npusim.hw.units.{name}")
    manual = inspect.cleandoc(module.__doc__ or "")
    found: list[str] = []
    remark = 0  # the column of the remark that continuation lines continue
    for line in manual.splitlines():
        name, equals, value = line.partition(" = ")
        if not line.startswith("    ") or not (equals or found):
            remark = 0
        elif not equals:
            if remark and line[:remark].isspace():
                found[-1] += f" {line.strip()}"
            else:
                found.append(line)
        else:
            value, *remarks = re.split(" {2,}", value, maxsplit=1)
            found.append(f"{name} = {value}")
            found += [" " * len(f"{name} = ") + each for each in remarks]
            remark = len(line) - len(remarks[0]) if remarks else 0
    return found


def _seen(work: Work, config: Config) -> Work:
    """The work as the device executes it: without a separate memory for constants, they are ordinary reads."""
    if isinstance(work, DmaWork) and config.constants is None:
        return replace(work, constants=False)
    return work


def _work(work: Work) -> str:
    """The quantities of a piece of work, named as in the equations."""
    match work:
        case MatrixWork():
            batch = f"{work.batch} x " if work.batch > 1 else ""
            depth = work.kh * work.kw * (1 if work.depthwise else work.ic)
            kind = "depthwise " if work.depthwise else ""
            return f"{kind}{work.dtype.label} {batch}M {work.oh * work.ow} ({work.oh}x{work.ow}) K {depth} N {work.oc}"
        case VectorWork():
            amount = f"{grouped(work.elements)} elements x {work.passes}, {grouped(work.bytes)} B"
            return f"{work.function} {work.dtype.label}, {amount}"
        case DmaWork():
            read, wrote = work.reads or work.l2_reads, work.writes or work.l2_writes
            way = "reads" if read and not wrote else "writes" if wrote and not read else "moves"
            moved = read if way == "reads" else work.bytes
            if work.decoded:
                ratio = f"ratio {work.reads / work.bytes:.3f}"
                return f"reads {grouped(work.reads)} {_OF[work.constants]} that become {grouped(work.bytes)} B, {ratio}"
            written = f", writes {grouped(work.bytes)} B" if moved < work.bytes else ""
            what = "B of L2" if work.port is Port.L2 else _OF[work.constants]
            runs = f"{counted(work.runs, 'run')} of {grouped(work.run_bytes)} B"
            words = (
                f", in SRAM {counted(work.pieces, 'run')} of {grouped(work.piece_bytes)} B" if work.pieces > 1 else ""
            )
            return f"{way} {grouped(moved)} {what} in {runs}{words}{written}"
        case ScalarWork():
            return f"{grouped(work.elements)} elements, {grouped(work.bytes)} B"
        case _:
            return ""
