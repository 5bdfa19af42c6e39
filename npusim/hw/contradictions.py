"""Checks between keys: values that are valid alone but contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from npusim.hw import nodes
from npusim.hw.dram_kinds import KINDS
from npusim.hw.dram_parts import PARTS, bad_mapping
from npusim.hw.sections import ACCUMULATOR_BYTES, DmaConfig, DramConfig, MatrixConfig, SramConfig
from npusim.hw.technology import TechnologyConfig
from npusim.units import Dimension, show

_SEPARATE = 3
"""DMA channels needed: one for features, one for weights, one for results."""


def bad_dma(dma: DmaConfig) -> Iterator[tuple[str, str]]:
    """(dotted key, problem) of each value of ``dma`` that is only valid in another combination."""
    if dma.separate_weight_port and dma.channels < _SEPARATE:
        yield "dma.separate_weight_port", f"must be false with less than {_SEPARATE} channels, got {dma.channels}"


def bad_sram(sram: SramConfig, cores: int, dma: DmaConfig, dram: DramConfig) -> Iterator[tuple[str, str]]:
    """The same for the SRAM of each of ``cores`` cores."""
    burst, width, all_cores = dma.burst_bytes, sram.total_bytes_per_cycle, cores * sram.bytes
    # All banks have the same size, in whole words of their ports.
    if sram.bytes % width:
        yield "sram.bytes", f"must be a multiple of banks * bytes_per_cycle = {width} B, got {sram.bytes} B"
    if sram.bytes < burst:
        yield "sram.bytes", f"must hold one burst of dma.burst_bytes = {burst} B, got {sram.bytes} B"
    if all_cores > dram.bytes:
        needed, given = show(all_cores, Dimension.SIZE), show(dram.bytes, Dimension.SIZE)
        yield "dram.bytes", f"must be >= the SRAM of all cores = {needed}, got {given}"


def bad_matrix(matrix: MatrixConfig) -> Iterator[tuple[str, str]]:
    """The same for the matrix unit."""
    if not any(matrix.throughput.values()):
        yield "matrix.throughput", "must be above 0 for at least one type"
    if matrix.preload_hidden and matrix.weight_buffers < 2:
        yield "matrix.weight_buffers", f"must be >= 2 with preload_hidden = true, got {matrix.weight_buffers}"
    # The smallest tile needs one row of partial sums.
    smallest = matrix.cols * ACCUMULATOR_BYTES
    if 0 < matrix.accumulator_bytes < smallest:
        problem = f"must be 0 B or >= cols * {ACCUMULATOR_BYTES} B = {smallest} B, got {matrix.accumulator_bytes} B"
        yield "matrix.accumulator_bytes", problem


def bad_dram(dram: DramConfig) -> Iterator[tuple[str, str]]:
    """The same for the DRAM: values that contradict ``dram.part``, or have no effect with ``dram.kind``."""
    if dram.kind != "jedec":
        if dram.part != "none":
            yield "dram.part", f'must be none with kind = "{dram.kind}", got {dram.part!r}'
        return
    if dram.part == "none":
        yield "dram.part", f'must be given with kind = "jedec": one of {", ".join(PARTS)}'
        return
    part = PARTS[dram.part]
    problem = bad_mapping(dram.mapping)
    if problem:
        yield "dram.mapping", problem
    if dram.bank_refresh and not part.rfc_set:
        sourced = ", ".join(name for name, each in PARTS.items() if each.rfc_set)
        yield "dram.bank_refresh", f"must be false for {part.name}, of which no source gives its time; known: {sourced}"
    # The channel number is a field of address bits.
    if dram.channels & (dram.channels - 1):
        yield "dram.channels", f'must be a power of two with kind = "jedec", got {dram.channels}'
    if part.pseudo > 1 and dram.ranks > 1:
        yield "dram.ranks", f"must be 1: a channel of {part.name} is {part.pseudo} pseudo channels, got {dram.ranks}"
    if dram.efficiency != 1:
        yield "dram.efficiency", f'must be 1 with kind = "jedec", which models the loss, got {dram.efficiency}'
    peak = dram.channels * part.bandwidth
    # Datasheets round the data rate, so the two bandwidths may differ slightly.
    if abs(dram.bandwidth - peak) * 100 > peak:
        wanted, given = show(peak, Dimension.BANDWIDTH), show(dram.bandwidth, Dimension.BANDWIDTH)
        parts = f"{dram.channels} x {part.name}"
        yield "dram.bandwidth", f"must be the bandwidth of {parts} = {wanted} within 1 %, got {given}"
    most = dram.channels * max(dram.ranks, part.pseudo) * part.rank_bytes
    if dram.bytes > most:
        wanted, given = show(most, Dimension.SIZE), show(dram.bytes, Dimension.SIZE)
        yield "dram.bytes", f"must be <= the capacity of the parts = {wanted}, got {given}"


def bad_speed(technology: TechnologyConfig, clocks: Mapping[str, int], dram: DramConfig) -> Iterator[tuple[str, str]]:
    """The same for clocks, by key, supply and data rate, which have limits by node and by kind of DRAM."""
    node, supply = technology.node_nm, technology.voltage_mv
    if nodes.known(node):
        low, high = nodes.supply_range_mv(node)
        if supply is not None and not low <= supply <= high:
            limits = " to ".join(show(each, Dimension.VOLTAGE) for each in (low, high))
            yield "technology.voltage", f"must be {limits} at {node} nm, got {show(supply, Dimension.VOLTAGE)}"
        elif not technology.any_clock:
            fastest = nodes.fastest_hz(node, supply)
            at = f"{node} nm" if supply is None else f"{node} nm and {show(supply, Dimension.VOLTAGE)}"
            for path, hz in clocks.items():
                if hz > fastest:
                    most = show(fastest // 10**6 * 10**6, Dimension.FREQUENCY)
                    got = show(hz, Dimension.FREQUENCY)
                    yield path, f"must be <= {most} at {at}, or technology.any_clock be true, got {got}"
    if technology.dram_pins and technology.dram in KINDS:
        limit = KINDS[technology.dram].fastest * 10**6 * technology.dram_pins // 8
        if dram.bandwidth > limit:
            pins = f"{technology.dram_pins} pins of {technology.dram}"
            most, got = (show(each, Dimension.BANDWIDTH) for each in (limit, dram.bandwidth))
            yield "dram.bandwidth", f"must be <= {most} with {pins}, got {got}"
