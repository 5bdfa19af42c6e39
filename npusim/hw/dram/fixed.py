"""A DRAM of fixed latency and bandwidth: the peak for sequential streams, and whole bursts for short runs.

Banks, rows and refresh are represented by ``dram.efficiency``, the usable part of the peak.
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
    """``latency_ps`` to the first datum, then ``bandwidth`` = peak * efficiency bytes/s, shared by all transfers."""

    def __init__(self, config: Config) -> None:
        dram = config.dram
        self.latency_ps = dram.latency_ps
        self.bandwidth = dram.bandwidth * dram.efficiency.numerator // dram.efficiency.denominator
        self.burst_bytes = config.dma.burst_bytes

    def transfer_bytes(self, work: DmaWork) -> int:
        """Every run takes whole bursts, plus one if it crosses a burst boundary. Reads and writes share the pins."""
        if not work.run_bytes:
            return 0
        ways = (work.reads, work.writes)
        return sum(self._bursts(work, moved) for moved in ways) * self.burst_bytes

    def _bursts(self, work: DmaWork, moved: int) -> int:
        """Bursts touched by the runs of one direction, at most those of all its bytes. Bursts longer than PLACE_BYTES
        are assumed to be aligned with runs."""
        if not moved:
            return 0
        size, run = self.burst_bytes, min(work.run_bytes, moved)
        runs = ceil_div(moved, work.run_bytes)
        if size > PLACE_BYTES:
            return runs * ceil_div(run, size)
        if not work.stride % size:  # all begin at the same offset in a burst
            return runs * ceil_div(work.offset % size + run, size)
        # Runs at a constant stride begin at few different offsets in a burst, periodically.
        period = size // gcd(work.stride, size)
        touched = [ceil_div((work.offset + k * work.stride) % size + run, size) for k in range(min(period, runs))]
        whole, rest = divmod(runs, period)
        return whole * sum(touched) + sum(touched[:rest])

    def rate(self, work: DmaWork, channel: int) -> int:
        """The width of the channel, because its bytes are the bytes of DRAM."""
        return channel

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """0: only the first burst has a latency."""
        return 0


Dram = FixedDram
