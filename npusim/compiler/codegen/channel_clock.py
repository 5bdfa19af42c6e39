"""When units will be free, as far as a command stream has come: for whoever has to choose one of them.

Units take their commands in order and wait for counts, as on the device. DRAM serves one transfer after the other at
its bandwidth, in the order of the stream; the stream itself comes before all of them. What a whole stream takes, the
forecast knows better, which can look ahead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from npusim.compiler.codegen._issue import Course
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.hw.units import dma
from npusim.work import DmaWork, Work


def course(config: Config) -> Course:
    """Nothing has been told yet."""
    clock_ps = 10**12 // config.clock_hz
    return Course(_prices(config), dram_model(config).bandwidth, config.queue_depth, clock_ps, config.dma.in_flight)


@functools.lru_cache(maxsize=4)
def _prices(config: Config) -> Callable[[Work], tuple[int, int, int]]:
    """What :func:`_price` answers, remembered: orders of one graph ask for the same."""
    return functools.lru_cache(maxsize=1 << 12)(functools.partial(_price, config))


def _price(config: Config, work: Work) -> tuple[int, int, int]:
    """How long a command takes; how long the DRAM serves it, -1 if it has nothing to do with it; and what of the first
    may pass while its channel is busy with older ones."""
    served, ahead = -1, 0
    if isinstance(work, DmaWork) and not work.is_local:
        ahead = dma.transfer(config, work).ahead_ps
    if isinstance(work, DmaWork) and (work.reads or work.writes):
        served = dma.pins_bytes(config, work) * 10**12 // dram_model(config).bandwidth
    return cost_model(config).cost(work).ps, served, ahead
