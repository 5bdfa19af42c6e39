"""The report of one run, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from npusim.report.device import changes, summary
from npusim.report.energy import energy_rows
from npusim.report.format import capacity, counted, duration, facts, grouped, percent, quantity, table
from npusim.report.layers import NO_LAYER, beside, kind_text, layers, shares, slowest, why
from npusim.report.program import host_work
from npusim.report.result import ReportedRun, flattened
from npusim.timeline import CAUSES, UnitCounters

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.occupancy import Occupancy


def text(result: ReportedRun, config: Config, inputs: str, *, top: int = 10, first: ReportedRun | None = None) -> str:
    """The report as text: totals, outputs, units, and the ``top`` slowest layers with reasons.

    ``first``: the previous run, which loaded the pinned weights of this one.
    """
    blocks = [
        [f"{result.model} on {result.config}{changes(config)}: {summary(config)}"],
        facts(
            [
                ("inputs", inputs),
                *totals(result, config),
                *first_run(first, config),
                *memories(result),
                *energy_rows(result.energy, result.time_ps),
            ]
        ),
        _outputs(flattened(result.outputs)),
        _units(result.counters.units, result.counters.duration_ps),
        _slowest(result, config, top),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def totals(result: ReportedRun, config: Config) -> list[tuple[str, str]]:
    """Names and values of the totals of a run."""
    counters = result.counters
    rate = f", {throughput(result)}" if result.time_ps else ""
    clock = quantity(config.clock_hz, "Hz")
    rows = [
        ("program", f"{counted(counters.instructions, 'instruction')}{', from the cache' * result.compile_from_cache}"),
        ("time", f"{duration(result.time_ps)} = {grouped(result.cycles)} cycles of {clock}{rate}"),
    ]
    found = result.bottleneck
    rows.append(("bound by", f"{shares(found.resources)} of {duration(found.total_ps)} with the host"))
    if result.made_for is not None:
        differs = [f"{key} was {was}, is {here}" for key, (was, here) in result.made_elsewhere.items()]
        changed = "; ".join(differs) or "equal"
        rows.append(("mapping", f"made for {result.made_for.name}, not for this device: {changed}"))
    part = result.host_part
    if part.work:
        work = f"{host_work(part)}, before the device begins"
        rows.append(("host work", f"{duration(result.host_work_ps)}: {work}"))
    rows += [("decided", f"{what} is {value}") for what, value in part.decided[:MOST_DECIDED]]
    if len(part.decided) > MOST_DECIDED:
        rows.append(("decided", f"and {len(part.decided) - MOST_DECIDED} more"))
    if (host := result.decisions) is not None:
        share = percent(host.time_ps + host.transfer_ps, result.time_ps)
        kinds = list(dict.fromkeys(kind.removeprefix("host ") for _, kind, _, _ in host.steps))
        named = ", ".join(kinds[:MOST_DECIDED]) + ", ..." * (len(kinds) > MOST_DECIDED)
        count = f"{counted(host.count, 'decision')} ({named})"
        spent = f"{count} {duration(host.time_ps)}, transfers {duration(host.transfer_ps)}"
        rows.append(("host", f"{spent} = {share} of the time; {counted(host.runs, 'program')} run"))
    if config.matrix is not None:
        used = percent(result.matrix_utilization, 1)
        rows.append(("matrix", f"{used} of its peak used, {quantity(result.macs, 'MAC')}"))
    read, written = counters.dram_read_bytes, counters.dram_write_bytes
    traffic = f"{quantity(read, 'B')} read, {quantity(written, 'B')} written"
    if counters.duration_ps:  # and not time_ps: a job that is parked moves its context
        reached = (read + written) * 10**12 / counters.duration_ps
        traffic += f", {quantity(reached, 'B/s')} = {percent(reached, config.dram.bandwidth)} of the pins"
    rows.append(("DRAM", traffic))
    for at_ps, fault, what in result.timeline.injected:
        rows.append(("fault", f"{fault}: {what}, {duration(at_ps)} after power-on"))
    return rows


def throughput(result: ReportedRun) -> str:
    """Runs per second, one after the other; ``-`` for a run without time."""
    if not result.time_ps:
        return "-"
    runs = 10**12 / result.time_ps
    return f"{f'{runs:.1f}' if runs < 100 else grouped(round(runs))} runs/s"


def first_run(first: ReportedRun | None, config: Config) -> list[tuple[str, str]]:
    """The time of the run that loaded the pinned weights; empty without one."""
    if first is None:
        return []
    time = f"{duration(first.time_ps)} = {grouped(first.cycles)} cycles of {quantity(config.clock_hz, 'Hz')}"
    kept = f"loads {capacity(first.resident_bytes)} of weights, which stay in SRAM"
    return [("first run", f"{time}: {kept}")]


def memories(result: ReportedRun) -> list[tuple[str, str]]:
    """The peak occupancy of each kind of memory and its contents. For several cores, the one with the highest peak."""
    rows = []
    for label, suffix in (("SRAM", ".sram"), ("accumulators", ".accumulators"), ("L2", "l2"), ("DRAM", "dram")):
        same = [each for each in result.memory if each.memory.endswith(suffix)]
        full = fullest(same)
        if full is None:
            continue
        parts = sorted(full.at_peak.items(), key=lambda item: (-item[1], item[0]))
        held = ", ".join(f"{PLURALS[kind]} {quantity(count, 'B')}" for kind, count in parts if count)
        where = f", {full.memory.partition('.')[0]}" if len(same) > 1 else ""
        share = f"{quantity(full.peak_bytes, 'B')} = {percent(full.peak_bytes, full.capacity_bytes)}"
        rows.append((f"{label} peak", f"{share}{where}, at {duration(full.peak_ps)}: {held}"))
    return rows


def fullest(same: Sequence[Occupancy]) -> Occupancy | None:
    """The memory with the highest peak; None if nothing is in any."""
    return max((each for each in same if each.peak_bytes), key=lambda each: each.peak_bytes, default=None)


MOST_DECIDED = 8
"""Limit of the listed decisions."""
PLURALS = {
    "value": "values",
    "window": "rolling buffers",
    "weights": "weights",
    "tile": "tiles",
    "sums": "sums",
    "constants": "constants",
    "inputs and outputs": "inputs and outputs",
}
"""The contents of memories as text."""


def _outputs(outputs: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    if not outputs:
        return ["outputs: not computed (timing only)"]
    rows = [(name, f"{x.dtype.name}{list(x.shape)}", *_range(x)) for name, x in outputs.items()]
    return table(("output", "type", "min", "max", "mean", "not finite"), rows, right="<<>>>>")


def _range(array: npt.NDArray[Any]) -> tuple[str, str, str, str]:
    """Lowest, highest and mean finite value, and the number of non-finite values."""
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    odd = values.size - finite.size
    if not finite.size:
        return "-", "-", "-", str(odd)
    return f"{finite.min():.5g}", f"{finite.max():.5g}", f"{finite.mean():.5g}", str(odd)


def _units(units: Mapping[str, UnitCounters], total: int) -> list[str]:
    header, rows = unit_rows(units, total)
    return table(header, rows, right="<>>>>>><") if rows else []


def unit_rows(units: Mapping[str, UnitCounters], total: int) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Header and cells: the time of each unit by state, out of ``total`` picoseconds."""
    rows: list[tuple[str, ...]] = []
    for name, unit in sorted(units.items()):
        stalled = sum(unit.stalls.values())
        on = max(unit.stalls, key=lambda cause: (unit.stalls[cause], cause), default="")
        shares = [percent(part, total) for part in (unit.busy_ps, stalled, unit.idle_ps)]
        waits = f"{on} {percent(unit.stalls[on], total)}" if stalled else ""
        amounts = (grouped(unit.instructions), quantity(unit.macs, "").strip(), quantity(unit.bytes, "B"))
        rows.append((name, *shares, *amounts, waits))
    return ("unit", "busy", "stalled", "idle", "instructions", "MACs", "bytes", "waits most for"), rows


def _slowest(result: ReportedRun, config: Config, top: int) -> list[str]:
    found = layers(result)
    if not found or not top:
        return []
    total, shown = result.timeline.time_ps, slowest(found, top)
    rows = [
        (
            layer.timing.name,
            kind_text(layer.timing.kind, layer.timing.result),
            duration(layer.added_ps),
            percent(layer.added_ps, total),
            layer.resource or "hidden",
            why(layer, config),
        )
        for layer in shown
    ]
    if rest := beside(result):
        spent = sum(rest.values())
        reasons = ", ".join(f"{CAUSES[cause]} {duration(part)}" for cause, part in rest.items())
        rows.append((NO_LAYER, "", duration(spent), percent(spent, total), "", reasons))
    head = f"the {len(shown)} slowest of {len(found)} layers (time: how long the end waits for it)"
    return [head, *table(("layer", "kind", "time", "share", "bound by", "why"), rows, right="<<>><<")]
