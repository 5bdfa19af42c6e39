"""What lies between the cores and the DRAM, as the numbers that the simulation needs; the config gives them all."""

from __future__ import annotations

import enum

from npusim.hw.config import Config
from npusim.hw.memory import constants_side, dram_model
from npusim.hw.units import dma
from npusim.units import bytes_to_ps
from npusim.work import DmaWork


class Way(enum.IntEnum):
    """What bytes flow over: the links of a machine, in their order."""

    DRAM = 0
    CONSTANTS = 1
    EXCHANGE = 2
    CODE = 3


class Fabric:
    """``capacity``: bytes/s of DRAM or interconnect, the narrower; ``latency_ps``: from request to first datum.

    ``constants_capacity``: the same for reads of constants, if they have a memory of their own; ``exchange_capacity``:
    of the way from core to core, 0 if there is none. ``front_ps``: what a channel does for a transfer before it asks
    for anything.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self.capacity = min(dram_model(config).bandwidth, dma.interconnect_bandwidth(config))
        apart = constants_side(config)
        self.constants_capacity = min(dram_model(apart).bandwidth, dma.interconnect_bandwidth(config))
        self.exchange_capacity = dma.exchange_bandwidth(config)
        self.channel_rate = dma.channel_bandwidth(config)
        self.fetch_rate = dma.fetch_rate(config)
        self.latency_ps = dma.latency_ps(config)
        self.front_ps = dma.start_ps(config)

    def transfer(self, work: DmaWork) -> tuple[int, int, int, int, int]:
        """Of a transfer: ps before the first byte flows, bytes that then flow over the bus, their most a second; how
        much of those ps may pass while an older one flows, and how much of that is before it asks for anything."""
        parts = dma.transfer(self._config, work)
        fixed = parts.start_ps + parts.latency_ps + parts.writing_ps
        return fixed, parts.bus_bytes, parts.rate, parts.ahead_ps, parts.start_ps

    def link(self, work: DmaWork) -> Way:
        """Over what its bytes flow."""
        if work.exchanged:
            return Way.EXCHANGE
        return Way.CONSTANTS if work.constants and self._config.constants is not None else Way.DRAM

    def flow_ps(self, size: int, rate: int | None = None, link: Way = Way.DRAM) -> int:
        """The time that ``size`` bytes of one DMA channel flow when nobody else is on a link."""
        capacity = (self.capacity, self.constants_capacity, self.exchange_capacity)[link]
        return bytes_to_ps(size, min(capacity, self.channel_rate if rate is None else rate))
