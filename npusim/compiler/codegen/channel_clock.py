"""The clock with which the scheduler chooses a DMA channel: when each unit becomes free, given the commands so far.

Units run their commands in order and wait for counts, as on the device. The DRAM serves transfers one at a time at its
bandwidth, in stream order. The clock is an estimate; the forecast of a whole stream also knows later commands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from npusim.compiler.codegen._issue import ChannelClock
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.hw.units import dma
from npusim.work import DmaWork, Work


def channel_clock(config: Config) -> ChannelClock:
    """A clock at the start of a stream."""
    clock_ps = 10**12 // config.clock_hz
    return ChannelClock(
        _prices(config), dram_model(config).bandwidth, config.queue_depth, clock_ps, config.dma.in_flight
    )


@functools.lru_cache(maxsize=4)
def _prices(config: Config) -> Callable[[Work], tuple[int, int, int]]:
    """:func:`_price`, cached, because all schedules of a graph have similar commands."""
    return functools.lru_cache(maxsize=1 << 12)(functools.partial(_price, config))


def _price(config: Config, work: Work) -> tuple[int, int, int]:
    """(picoseconds of a command, picoseconds of the DRAM or -1 if unused, the part of the first that may overlap with
    older commands of the channel)."""
    served, ahead = -1, 0
    if isinstance(work, DmaWork) and not work.is_local:
        ahead = dma.transfer(config, work).ahead_ps
    if isinstance(work, DmaWork) and (work.reads or work.writes):
        served = dma.pins_bytes(config, work) * 10**12 // dram_model(config).bandwidth
    return cost_model(config).cost(work).ps, served, ahead
