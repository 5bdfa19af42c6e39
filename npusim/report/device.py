"""What a device can do, as text and JSON: everything derived from its description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.report.format import capacity, quantity

if TYPE_CHECKING:
    from npusim.hw.config import Config


def summary(config: Config) -> str:
    """The numbers that tell devices apart, in one line."""
    units = []
    if config.matrix is not None:
        units.append(f"{config.matrix.rows}x{config.matrix.cols} MACs")
    if config.vector is not None:
        units.append(f"{config.vector.lanes} lanes")
    cores = f"{config.cores} cores of " if config.cores > 1 else ""
    memories = f"SRAM {capacity(config.sram.bytes)}, DRAM {quantity(config.dram.bandwidth, 'B/s')}"
    return f"{cores}{', '.join(units)} at {quantity(config.clock_hz, 'Hz')}, {memories}"
