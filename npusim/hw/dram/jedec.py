"""DRAM of JEDEC parts: what a transfer takes follows from its pattern, over banks, rows, buses and refresh.

The bank model (``_dram.pyx``) serves the pattern of a transfer twice, alone: with the bursts that one DMA channel may
have on the way, which gives the time that it takes; and with as many as the controller's queues hold, which gives the
time that it occupies the DRAM. The second is its share of the bandwidth that all transfers compete for; what the first
is longer by is waiting, during which the DRAM serves others.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npusim.hw.dram._memory import COPY, READS, WRITES, DramMemory
from npusim.hw.dram._parts import PARTS
from npusim.units import PS_PER_S, bytes_to_ps, ceil_div, cycles_to_ps

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.work import DmaWork

EXACT = 1 << 12
"""Bursts of strided runs that are served; a longer pattern goes on as it was in the second half of them."""
STREAM = 1 << 18
"""The same for a stream, most of whose bursts are skipped because it repeats itself."""
MANY = 1 << 20


class JedecDram:
    """``latency_ps``: of a read that finds its bank closed; ``bandwidth``: what refresh leaves of the pins' peak."""

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
        """The time that a transfer occupies the DRAM, as bytes of what all share; 0 if it does not touch it."""
        pattern = self._pattern(work)
        return self._occupancy(*pattern) if pattern else 0

    def rate(self, work: DmaWork, channel: int) -> int:
        """A channel that moves few bytes in the time that it occupies the DRAM asks for more than its width."""
        pattern = self._pattern(work)
        return channel * self._occupancy(*pattern) // self._moved(*pattern) if pattern else channel

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """What a transfer waits beyond the first latency and the time that it occupies the DRAM."""
        pattern = self._pattern(work)
        if not pattern:
            return 0
        flows = bytes_to_ps(self._occupancy(*pattern), rate)
        # What is longer than latency and flow together is spent waiting with the bus free for others.
        return max(0, self._alone(*pattern) - self.memory.ps(self._first) - flows)

    def _pattern(self, work: DmaWork) -> tuple[int, int, int, int] | None:
        """(runs, bursts of one, bursts from start to start, mode); each run fills whole bursts."""
        moved = max(work.reads, work.writes)
        if not work.run_bytes or not moved:
            return None
        run = ceil_div(work.run_bytes, self.burst_bytes) * self.burst_bytes >> self.memory.unit
        runs = ceil_div(moved, work.run_bytes)
        mode = COPY if work.reads and work.writes else READS if work.reads else WRITES
        if runs == 1:
            return 1, run, run, mode
        # A stride that is not known: a tile of a tensor that is twice as wide.
        apart = ceil_div(work.stride, self.memory.part.burst_bytes) if work.stride else 2 * run
        return runs, run, max(run, apart), mode

    def _moved(self, runs: int, run: int, _: int, mode: int) -> int:
        """Bytes on the pins."""
        return runs * run * (2 if mode == COPY else 1) << self.memory.unit

    def _occupied(self, runs: int, run: int, stride: int, mode: int) -> int:
        # The first access's latency is no occupation: the DRAM serves others meanwhile.
        clocks = self._serve(runs, run, stride, mode, MANY) - self._first
        occupied = self.memory.ps(max(1, clocks))
        # In bytes of the shared rate, because that is what transfers compete for in the simulator.
        return max(self._moved(runs, run, stride, mode), ceil_div(occupied * self._shared, PS_PER_S))

    def _serve(self, runs: int, run: int, stride: int, mode: int, outstanding: int) -> int:
        """Clocks from the first request to the last datum."""
        if runs == 1 or stride == run:  # a stream
            return self._extended(runs * run, 1, 1, mode, outstanding, STREAM)
        if run > EXACT:  # long runs are streams, whatever lies between them
            return runs * self._extended(run, 1, 1, mode, outstanding, STREAM)
        return self._extended(runs, run, stride, mode, outstanding, EXACT // run)

    def _extended(self, runs: int, run: int, stride: int, mode: int, outstanding: int, most: int) -> int:
        """Clocks of ``runs`` runs; beyond ``most`` the later half of those goes on as it was."""
        if runs <= most:
            return self.memory.transfer(runs, run, stride, mode, outstanding).cycles
        # From the second half on, because the first has the start in it: empty queues and closed rows.
        half = max(1, most // 2)
        first = self.memory.transfer(half, run, stride, mode, outstanding).cycles
        both = self.memory.transfer(2 * half, run, stride, mode, outstanding).cycles
        return both + ceil_div((both - first) * (runs - 2 * half), half)


def memory_of(config: Config) -> DramMemory:
    """The memory that a config with ``dram.kind = "jedec"`` describes."""
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
        turn=ceil_div(outside, part.tck_ps),
        shared=True,
    )


Dram = JedecDram
