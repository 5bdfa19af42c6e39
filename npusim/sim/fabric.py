"""What lies between the cores and the DRAM, as the numbers that the simulation needs; the config gives them all."""

from __future__ import annotations

from npusim.hw.config import Config
from npusim.hw.units import dma
from npusim.units import bytes_to_ps
from npusim.work import DmaWork, Port


class Fabric:
    """``capacities``: bytes/s by port, of a memory or of the interconnect before it, the narrower, and of the way from
    core to core; those of the DRAM for a port that there is not. ``latency_ps``: from request to first datum of the
    DRAM; ``front_ps``: what a channel does for a transfer before it asks for anything."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.capacities = dma.capacities(config)
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

    def link(self, work: DmaWork) -> Port:
        """Over what its bytes flow."""
        return dma.port(self._config, work)

    def flow_ps(self, size: int, rate: int | None = None, link: Port = Port.DRAM) -> int:
        """The time that ``size`` bytes of one DMA channel flow when nobody else is on a link."""
        return bytes_to_ps(size, min(self.capacities[link], self.channel_rate if rate is None else rate))
