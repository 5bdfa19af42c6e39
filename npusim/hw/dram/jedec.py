"""DRAM of JEDEC parts: the time of a transfer follows from its pattern over banks, rows, buses and refresh.

The bank model (``_dram.pyx``) serves the pattern of a transfer twice without other traffic: with the outstanding bursts
of one DMA channel, which gives its time; and with as many as the queues of the controller hold, which gives the time
for which it occupies the DRAM. The latter is its share of the bandwidth. The difference is waiting, during which the
DRAM serves others.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npusim.hw.dram._memory import COPY, READS, WRITES, DramMemory
from npusim.hw.dram_parts import PARTS
from npusim.units import PS_PER_S, bytes_to_ps, ceil_div, cycles_to_ps

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.work import DmaWork

EXACT = 1 << 12
"""Bursts of strided runs that are simulated; a longer pattern is extrapolated from their second half."""
STREAM = 1 << 18
"""The same for a stream, most of whose bursts are skipped because it is periodic."""
MANY = 1 << 20


class JedecDram:
    """``latency_ps``: of a read whose bank is closed. ``bandwidth``: peak of the pins less refresh."""

    def __init__(self, config: Config) -> None:
        dram = config.dram
        self.memory = memory = memory_of(config)
        part = memory.part
        self._first = part.rcd_rd + part.cl
        self.latency_ps = dram.latency_ps + memory.ps(self._first)
        self.bandwidth = memory.sustained
        self._shared = min(self.bandwidth, config.interconnect.bytes_per_cycle * config.clock_hz)
        self.burst_bytes = max(part.burst_bytes, config.dma.burst_bytes)
        self.outstanding = max(1, config.dma.max_outstanding * config.dma.burst_bytes // part.burst_bytes)
        self._occupancy = functools.lru_cache(maxsize=1 << 14)(self._occupied)
        self._alone = functools.lru_cache(maxsize=1 << 14)(
            lambda runs, run, stride, mode: memory.ps(self._serve(runs, run, stride, mode, self.outstanding))
        )

    def transfer_bytes(self, work: DmaWork) -> int:
        """The time for which a transfer occupies the DRAM, as bytes of the shared bandwidth; 0 if it does not access
        DRAM."""
        pattern = self._pattern(work)
        return self._occupancy(*pattern) if pattern else 0

    def rate(self, work: DmaWork, channel: int) -> int:
        """Bytes/s of the shared bandwidth; more than the width of the channel if the pattern wastes bandwidth."""
        pattern = self._pattern(work)
        return channel * self._occupancy(*pattern) // self._moved(*pattern) if pattern else channel

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """Time in ps beyond the first latency and the time for which it occupies the DRAM."""
        pattern = self._pattern(work)
        if not pattern:
            return 0
        flows = bytes_to_ps(self._occupancy(*pattern), rate)
        # Time beyond latency and data is a wait with the bus free for others.
        return max(0, self._alone(*pattern) - self.memory.ps(self._first) - flows)

    def _pattern(self, work: DmaWork) -> tuple[int, int, int, int] | None:
        """(runs, bursts per run, bursts from start to start, mode); each run takes whole bursts."""
        moved = max(work.reads, work.writes)
        if not work.run_bytes or not moved:
            return None
        run = ceil_div(work.run_bytes, self.burst_bytes) * self.burst_bytes >> self.memory.unit
        runs = ceil_div(moved, work.run_bytes)
        mode = COPY if work.reads and work.writes else READS if work.reads else WRITES
        if runs == 1:
            return 1, run, run, mode
        # Unknown stride: assume a tile of a tensor that is twice as wide.
        apart = ceil_div(work.stride, self.memory.part.burst_bytes) if work.stride else 2 * run
        return runs, run, max(run, apart), mode

    def _moved(self, runs: int, run: int, _: int, mode: int) -> int:
        """Bytes on the pins."""
        return runs * run * (2 if mode == COPY else 1) << self.memory.unit

    def _occupied(self, runs: int, run: int, stride: int, mode: int) -> int:
        # The first latency does not occupy the DRAM, which serves others meanwhile.
        clocks = self._serve(runs, run, stride, mode, MANY) - self._first
        occupied = self.memory.ps(max(1, clocks))
        # As bytes of the shared bandwidth, which transfers compete for in the simulator.
        return max(self._moved(runs, run, stride, mode), ceil_div(occupied * self._shared, PS_PER_S))

    def _serve(self, runs: int, run: int, stride: int, mode: int, outstanding: int) -> int:
        """Clocks from the first request to the last datum."""
        if runs == 1 or stride == run:  # a stream
            return self._extended(runs * run, 1, 1, mode, outstanding, STREAM)
        if run > EXACT:  # long runs behave like streams, whatever their distance
            return runs * self._extended(run, 1, 1, mode, outstanding, STREAM)
        return self._extended(runs, run, stride, mode, outstanding, EXACT // run)

    def _extended(self, runs: int, run: int, stride: int, mode: int, outstanding: int, most: int) -> int:
        """Clocks of ``runs`` runs; beyond ``most`` the second half is extrapolated."""
        if runs <= most:
            return self.memory.transfer(runs, run, stride, mode, outstanding).cycles
        # From the second half, because the first includes the start: empty queues and closed rows.
        half = max(1, most // 2)
        first = self.memory.transfer(half, run, stride, mode, outstanding).cycles
        both = self.memory.transfer(2 * half, run, stride, mode, outstanding).cycles
        return both + ceil_div((both - first) * (runs - 2 * half), half)


def memory_of(config: Config) -> DramMemory:
    """The memory of a config with ``dram.kind = "jedec"``."""
    dram = config.dram
    part = PARTS[dram.part]
    outside = dram.latency_ps + cycles_to_ps(config.interconnect.latency_cycles, config.clock_hz)
    return DramMemory(
        part=part,
        channels=dram.channels,
        ranks=dram.ranks,
        mapping=dram.mapping,
        read_queue=dram.read_queue,
        write_queue=dram.write_queue,
        bank_queue=dram.bank_queue,
        refresh=dram.refresh,
        by_bank=dram.bank_refresh,
        turn=ceil_div(outside, part.tck_ps),
        shared=True,
    )


Dram = JedecDram
