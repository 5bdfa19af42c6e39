"""The page of a run: roofline, units and memories over time, traffic and energy by layer, a table of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from npusim.energy import power_uw
from npusim.hw.area import area
from npusim.report.device import changes, summary
from npusim.report.energy import energy_rows, joules, largest, square, unpriced, watts
from npusim.report.format import duration, grouped, percent, quantity
from npusim.report.html import page
from npusim.report.html.columns import coded
from npusim.report.html.energies import energies
from npusim.report.html.held import held
from npusim.report.html.lanes import lanes, path_lane
from npusim.report.html.roofs import roofs
from npusim.report.layers import LayerReport, kind_text, layers, why
from npusim.report.result import ReportedRun
from npusim.report.run import fullest, memories, throughput, totals, unit_rows

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program

SCRIPTS = ("base", "axes", "table", "layers", "roofline", "lanes", "bars", "run")


class ReportedTrace(ReportedRun, Protocol):
    """A reported run with its device and program."""

    @property
    def device(self) -> Config:
        """The device of the run."""

    @property
    def program(self) -> Program:
        """The program of the run."""


def run_page(result: ReportedTrace, *, notes: Sequence[tuple[str, str]] = ()) -> str:
    """A self-contained HTML file about a run. The same run gives the same bytes.

    ``notes``: further names and values of the summary, such as the inputs. Times are simulated. Energy is unknown
    without prices. The file has at most about a megabyte for a network of a hundred layers.
    """
    config, found = result.device, layers(result)
    layer_of = {layer.op: number for number, layer in enumerate(found)}
    data = {
        "time": result.timeline.time_ps,
        "layers": _layers(found, config),
        "energy": energies(result, found),
        "roofs": roofs(config, result.program),
        "path": path_lane(result.timeline.critical_path(), layer_of),
        "lanes": lanes(result.timeline.spans, layer_of),
        "memory": held(result.memory),
    }
    return page.page(f"{result.model} on {result.config}", _body(result, config, notes), data, SCRIPTS)


def _layers(found: Sequence[LayerReport], config: Config) -> dict[str, Any]:
    """Columns of the layers, in order of completion."""
    timings = [layer.timing for layer in found]
    return {
        "name": [page.label(timing.name) for timing in timings],
        "kind": coded([kind_text(timing.kind, timing.result) for timing in timings]),
        "shape": coded([_shape(timing.result) for timing in timings]),
        "bound": coded([layer.bound for layer in found]),
        "unit": coded([timing.unit for timing in timings]),
        "start": [timing.start_ps for timing in timings],
        "end": [timing.end_ps for timing in timings],
        "added": [layer.added_ps for layer in found],
        "instructions": [layer.instructions for layer in found],
        "macs": [timing.macs for timing in timings],
        "moved": [timing.bytes for timing in timings],
        "dram": [timing.dram_bytes for timing in timings],
        "why": [page.label(why(layer, config)) for layer in found],
    }


def _headline(result: ReportedTrace, config: Config) -> list[page.Tile]:
    """Latency, throughput, energy, power, area, use of the matrix unit, peak of SRAM, bound by."""
    energy, silicon, found = result.energy, area(config), result.bottleneck
    whole = energy.total if energy.known else None
    power = power_uw(whole, result.time_ps)
    full = fullest([each for each in result.memory if each.memory.endswith(".sram")])
    used = ("matrix unit used", page.NOT_KNOWN, "the device has no matrix unit")
    if config.matrix is not None:
        used = (
            "matrix unit used",
            percent(result.matrix_utilization, 1),
            f"of its peak, {quantity(result.macs, 'MAC')}",
        )
    peak = ("peak of SRAM", quantity(0, "B"), "nothing is stored in SRAM")
    if full is not None:
        share = percent(full.peak_bytes, full.capacity_bytes)
        peak = ("peak of SRAM", quantity(full.peak_bytes, "B"), f"{share} of {quantity(full.capacity_bytes, 'B')}")
    bound = ("bound by", page.NOT_KNOWN, "the run takes no time")
    if found.bound:
        share = percent(found.resources[found.bound], found.total_ps)
        bound = ("bound by", found.bound, f"{share} of {duration(found.total_ps)} with the host")
    return [
        ("latency", duration(result.time_ps), f"{grouped(result.cycles)} cycles of {quantity(config.clock_hz, 'Hz')}"),
        ("throughput", throughput(result), "one after the other"),
        ("energy", _known(whole, joules), unpriced(energy) or f"most: {largest(energy)}"),
        ("power", _known(power, watts), unpriced(energy) or "mean over the run"),
        ("area", _known(silicon.total, square), unpriced(silicon) or f"most: {largest(silicon)}"),
        used,
        peak,
        bound,
    ]


def _shape(result: str) -> str:
    """The dimensions of a result: ``1x28x28x16``."""
    return "x".join(result.partition("[")[2].rstrip("]").split(", "))


def _known(value: int | None, shown: Callable[[int], str]) -> str:
    return page.NOT_KNOWN if value is None else shown(value)


def _body(result: ReportedTrace, config: Config, notes: Sequence[tuple[str, str]]) -> str:
    told = [
        ("device", f"{config.name}{changes(config)}: {summary(config)}"),
        *notes,
        *totals(result, config),
        *memories(result),
        *energy_rows(result.energy, result.time_ps),
        ("digest", f"{result.timeline.digest()[:16]} of the timeline; equal digests mean equal timelines"),
    ]
    description = f"<details><summary>Complete device description</summary><pre>{_toml(config)}</pre></details>"
    return "\n".join(
        [
            page.tiles(_headline(result, config)),
            '<div class="pair">'
            + page.section("roofline", "Roofline")
            + page.section("layer", "Selected layer")
            + "</div>",
            page.section("lanes", "Units and memories over time"),
            page.section("bars", "Layer by layer"),
            page.section("layers", "Layers"),
            page.section("units", "Units", _units(result)),
            page.section("summary", "Details", page.facts(told) + description),
        ]
    )


def _toml(config: Config) -> str:
    return "\n".join(page.text(line) for line in config.to_toml().splitlines())


def _units(result: ReportedTrace) -> str:
    """The same rows as in the text report."""
    header, rows = unit_rows(result.counters.units, result.counters.duration_ps)
    heads = "".join(f'<th scope="col">{page.text(name)}</th>' for name in header)
    lines = "".join(
        f'<tr><th scope="row">{page.text(first)}</th>{"".join(f"<td>{page.text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
