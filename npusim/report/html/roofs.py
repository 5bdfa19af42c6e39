"""The rooflines of a device, for the layers of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npusim.hw.capability import capabilities

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.program import Program


def roofs(config: Config, program: Program) -> dict[str, list[dict[str, Any]]]:
    """``compute``: peak MACs/s for each type that the program multiplies, over all matrix units. ``bandwidth``: bytes/s
    of DMA from and to DRAM and, if that is more, of its pins.

    Unsigned types have the peak of the signed ones. A type without a peak has no roof.
    """
    peaks = capabilities(config)
    compute: dict[str, int] = {}
    for dtype, _ in program.macs:
        name = dtype.label if dtype.label in peaks.peak_macs else dtype.label.removeprefix("u")
        if name in peaks.peak_macs:
            compute[name] = peaks.peak_macs[name]
    bandwidth = [{"name": "DMA from and to DRAM", "rate": peaks.dram_bandwidth}]
    if peaks.dram_peak > peaks.dram_bandwidth:
        bandwidth.append({"name": "pins of the DRAM", "rate": peaks.dram_peak})
    return {"compute": [{"name": name, "rate": rate} for name, rate in compute.items()], "bandwidth": bandwidth}
