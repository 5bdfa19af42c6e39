"""Peak rates of a device, derived from its description."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from npusim.hw.config import Config
from npusim.hw.keys import FrozenTable
from npusim.hw.memory import dram_model
from npusim.hw.units.dma import core_bandwidth, interconnect_bandwidth


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Peaks of the whole device, all cores together.

    ``peak_macs``: matrix MACs/s by type, in the order of the config; unsupported types are absent. ``vector_ops``: lane
    operations/s by class of function (32-bit types). Bandwidths in bytes/s: ``dram_peak`` of the pins,
    ``dram_bandwidth`` of DMA, ``sram_bandwidth`` of all banks. ``ridge``: arithmetic intensity (operations/byte) at
    which the fastest type changes from memory-bound to compute-bound; None without matrix.
    """

    peak_macs: FrozenTable[int]
    vector_ops: FrozenTable[int]
    scalar_elements: int
    dram_peak: int
    dram_bandwidth: int
    sram_bandwidth: int
    sram_bytes: int
    dram_bytes: int
    ridge: Fraction | None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types supported by the matrix unit; unsigned types use the signed ones."""
        return tuple(self.peak_macs)

    @property
    def peak_ops(self) -> FrozenTable[int]:
        """Operations/s by type: a MAC is two operations."""
        return FrozenTable({dtype: 2 * macs for dtype, macs in self.peak_macs.items()})


def capabilities(config: Config) -> Capabilities:
    """The peaks of a device, which no run exceeds."""
    peak_macs: dict[str, int] = {}
    if config.matrix is not None:
        elements = config.cores * config.matrix.elements * config.matrix_hz
        peak_macs = {dtype: int(elements * rate) for dtype, rate in config.matrix.throughput.items() if rate}
    vector_ops: dict[str, int] = {}
    if config.vector is not None:
        lanes = config.cores * config.vector.lanes * config.vector_hz
        vector_ops = {function: lanes // cycles for function, cycles in config.vector.cost.items()}
    reached = min(dram_model(config).bandwidth, interconnect_bandwidth(config), config.cores * core_bandwidth(config))
    return Capabilities(
        peak_macs=FrozenTable(peak_macs),
        vector_ops=FrozenTable(vector_ops),
        scalar_elements=config.cores * config.clock_hz // config.scalar.cycles_per_element if config.scalar else 0,
        dram_peak=config.dram.bandwidth,
        dram_bandwidth=reached,
        sram_bandwidth=config.cores * config.sram.total_bytes_per_cycle * config.clock_hz,
        sram_bytes=config.cores * config.sram.bytes,
        dram_bytes=config.dram.bytes,
        ridge=Fraction(2 * max(peak_macs.values()), reached) if peak_macs else None,
    )
