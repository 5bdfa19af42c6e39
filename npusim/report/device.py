"""The capabilities of a device as text and JSON, derived from its description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npusim.hw.area import area
from npusim.hw.capability import Capabilities, capabilities
from npusim.hw.energy import action_costs
from npusim.report.energy import area_rows
from npusim.report.format import capacity, duration, facts, quantity, table

if TYPE_CHECKING:
    from npusim.hw.config import Config


def summary(config: Config) -> str:
    """The main parameters of a device in one line."""
    units = []
    if config.matrix is not None:
        units.append(f"{config.matrix.rows}x{config.matrix.cols} MACs")
    if config.vector is not None:
        units.append(f"{config.vector.lanes} lanes")
    cores = f"{config.cores} cores of " if config.cores > 1 else ""
    memories = f"SRAM {capacity(config.sram.bytes)}, DRAM {quantity(config.dram.bandwidth, 'B/s')}"
    return f"{cores}{', '.join(units)} at {quantity(config.clock_hz, 'Hz')}, {memories}"


def changes(config: Config) -> str:
    """The overridden keys, such as `` with dram.bandwidth = "8 GB/s"``; empty if there are none."""
    changed = [f"{key} = {value}" for key, value, origin, _ in config.resolved() if origin == "override"]
    return f" with {', '.join(changed)}" if changed else ""


def text(config: Config) -> str:
    """Several paragraphs: the description in short, compute peaks by type, memories, host link."""
    peaks, link = capabilities(config), config.host
    host = [
        ("register access", duration(link.mmio_ps)),
        ("interrupt", duration(link.irq_ps)),
        ("copies", f"{quantity(link.link_bandwidth, 'B/s')} after {duration(link.link_latency_ps)}"),
    ]
    blocks = [
        [f"{config.name}{changes(config)}: {config.description}", *facts(_structure(config))],
        _compute(peaks),
        ["memory", *facts(_memory(config, peaks))],
        ["host", *facts(host)],
        ["area", *facts(area_rows(area(config)))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def as_json(config: Config) -> dict[str, Any]:
    """The capabilities as JSON values in base units: seconds, bytes, operations."""
    peaks = capabilities(config)
    return {
        "name": config.name,
        "description": config.description,
        "fingerprint": config.fingerprint(),
        "cores": config.cores,
        "clock_hz": config.clock_hz,
        "peak_macs": dict(peaks.peak_macs),
        "peak_ops": dict(peaks.peak_ops),
        "vector_ops": dict(peaks.vector_ops),
        "scalar_elements": peaks.scalar_elements,
        "dram_peak": peaks.dram_peak,
        "dram_bandwidth": peaks.dram_bandwidth,
        "dram_bytes": peaks.dram_bytes,
        "sram_bandwidth": peaks.sram_bandwidth,
        "sram_bytes": peaks.sram_bytes,
        "ridge": None if peaks.ridge is None else float(peaks.ridge),
        "area": area(config).to_json_dict(),
        "prices_fj": {name: {"value": cost.fj, "source": cost.source} for name, cost in action_costs(config).items()},
    }


def _structure(config: Config) -> list[tuple[str, str]]:
    rows = [("from", config.origin), ("cores", f"{config.cores} at {quantity(config.clock_hz, 'Hz')}")]
    if config.matrix is not None:
        matrix = config.matrix
        own = f" at {quantity(config.matrix_hz, 'Hz')}" if matrix.clock_hz else ""
        sums = f"{capacity(matrix.accumulator_bytes)} of accumulators" if matrix.accumulator_bytes else "sums in SRAM"
        rows.append(("matrix unit", f"{matrix.rows} x {matrix.cols} {matrix.dataflow.replace('_', ' ')}{own}, {sums}"))
    if config.vector is not None:
        own = f" at {quantity(config.vector_hz, 'Hz')}" if config.vector.clock_hz else ""
        rows.append(("vector unit", f"{config.vector.lanes} lanes of {config.vector.lane_bytes} bytes{own}"))
    rows.append(("scalar unit", "yes" if config.scalar is not None else "none"))
    rows.append(("DMA", f"{config.dma.channels} channels, bursts of {capacity(config.dma.burst_bytes)}"))
    return rows


def _compute(peaks: Capabilities) -> list[str]:
    lines: list[str] = []
    if peaks.peak_macs:
        ops = peaks.peak_ops
        macs = [(name, quantity(rate, "MAC/s"), quantity(ops[name], "OPS")) for name, rate in peaks.peak_macs.items()]
        lines += table(("matrix peak", "MACs", "operations"), macs, right="<>>")
    if peaks.vector_ops:
        lines += [""] if lines else []
        lanes = [(name, quantity(rate, "op/s")) for name, rate in peaks.vector_ops.items()]
        lines += table(("vector peak", "operations"), lanes, right="<>")
    return lines


def _memory(config: Config, peaks: Capabilities) -> list[tuple[str, str]]:
    per_core = f" ({capacity(config.sram.bytes)} a core)" if config.cores > 1 else ""
    reached = f"{quantity(peaks.dram_peak, 'B/s')} at the pins, DMA reaches {quantity(peaks.dram_bandwidth, 'B/s')}"
    rows = [
        ("SRAM", f"{capacity(peaks.sram_bytes)}{per_core}, {quantity(peaks.sram_bandwidth, 'B/s')}"),
        ("DRAM", f"{capacity(peaks.dram_bytes)}, {reached}, latency {duration(config.dram.latency_ps)}"),
    ]
    if config.l2 is not None:
        rate = quantity(config.l2.bytes_per_cycle * config.clock_hz, "B/s")
        rows.insert(1, ("L2", f"{capacity(config.l2.bytes)}, {rate}, latency {config.l2.latency_cycles} cycles"))
    if config.constants is not None:
        apart = config.constants
        text = f"{capacity(apart.bytes)}, {quantity(apart.bandwidth, 'B/s')}, latency {duration(apart.latency_ps)}"
        rows.append(("constants", text))
    if peaks.ridge is not None:
        rows.append(("ridge", f"{float(peaks.ridge):.0f} operations per DRAM byte keep the fastest type busy"))
    return rows
