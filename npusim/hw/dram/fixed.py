"""A DRAM of fixed latency and bandwidth: the roof that a sequential stream sees, and whole bursts for short runs.

Banks, rows and refresh are in ``dram.efficiency``: the part of the peak that is left for data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.units import ceil_div

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.work import DmaWork


class FixedDram:
    """``latency_ps`` to the first datum, then ``bandwidth`` = peak * efficiency bytes a second for all together."""

    def __init__(self, config: Config) -> None:
        dram = config.dram
        self.latency_ps = dram.latency_ps
        self.bandwidth = dram.bandwidth * dram.efficiency.numerator // dram.efficiency.denominator
        self.burst_bytes = config.dma.burst_bytes

    def transfer_bytes(self, work: DmaWork) -> int:
        """Every run starts on a burst's border and fills whole bursts; reads and writes share the pins."""
        if not work.run_bytes:
            return 0
        padded = ceil_div(work.run_bytes, self.burst_bytes) * self.burst_bytes
        return (ceil_div(work.reads, work.run_bytes) + ceil_div(work.writes, work.run_bytes)) * padded

    def rate(self, work: DmaWork, channel: int) -> int:
        """What fits the channel: its bytes are the DRAM's bytes."""
        return channel

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """Nothing: the latency is for the first burst, and the others follow it."""
        return 0


Dram = FixedDram
