"""A DRAM of fixed latency and bandwidth: the roof that a sequential stream sees, and whole bursts for short runs.

Banks, rows and refresh are in ``dram.efficiency``: the part of the peak that is left for data.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from npusim.units import ceil_div
from npusim.work import PLACE_BYTES

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
        """Every run takes whole bursts, and one more where it crosses a border; reads and writes share the pins."""
        if not work.run_bytes:
            return 0
        ways = (work.reads, work.writes)
        return sum(self._bursts(work, moved) for moved in ways) * self.burst_bytes

    def _bursts(self, work: DmaWork, moved: int) -> int:
        """Bursts that the runs of one way touch, of which none is longer than all that goes this way; of a
        burst longer than PLACE_BYTES runs are taken to start at its border."""
        if not moved:
            return 0
        size, run = self.burst_bytes, min(work.run_bytes, moved)
        runs = ceil_div(moved, work.run_bytes)
        if size > PLACE_BYTES:
            return runs * ceil_div(run, size)
        if not work.stride % size:  # all begin at the same place of a burst
            return runs * ceil_div(work.offset % size + run, size)
        # Runs a constant stride apart begin at few different places of a burst, over and over.
        period = size // gcd(work.stride, size)
        touched = [ceil_div((work.offset + k * work.stride) % size + run, size) for k in range(min(period, runs))]
        whole, rest = divmod(runs, period)
        return whole * sum(touched) + sum(touched[:rest])

    def rate(self, work: DmaWork, channel: int) -> int:
        """What fits the channel: its bytes are the DRAM's bytes."""
        return channel

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """Nothing: the latency is for the first burst, and the others follow it."""
        return 0


Dram = FixedDram
