"""The interconnect between cores and memories, as the numbers that the simulation needs."""

from __future__ import annotations

from npusim.hw.config import Config
from npusim.hw.units import dma
from npusim.units import bytes_to_ps
from npusim.work import DmaWork, Port


class Fabric:
    """``capacities``: bytes/s by port: the minimum of memory and interconnect, and the network between cores. Ports
    that do not exist have the value of DRAM. ``ports``: bytes/s of one core at each of them; 0 = no limit.
    ``latency_ps``: from a request to the first datum of DRAM. ``front_ps``: time of a channel before its first
    request."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.capacities = dma.capacities(config)
        self.ports = dma.ports(config)
        self.channel_rate = dma.channel_bandwidth(config)
        self.core_rate = dma.core_bandwidth(config)
        self.fetch_rate = dma.fetch_rate(config)
        self.latency_ps = dma.latency_ps(config)
        self.front_ps = dma.start_ps(config)

    def transfer(self, work: DmaWork) -> tuple[int, int, int, int, int]:
        """Parameters of a transfer: ps before the first byte, bytes on the link, highest rate in bytes/s, how much of
        those ps may overlap with older transfers, and how much of that is before the first request."""
        parts = dma.transfer(self._config, work)
        fixed = parts.start_ps + parts.latency_ps + parts.writing_ps
        return fixed, parts.bus_bytes, parts.rate, parts.ahead_ps, parts.start_ps

    def link(self, work: DmaWork) -> Port:
        """The link of a transfer."""
        return dma.port(self._config, work)

    def flow_ps(self, size: int, rate: int | None = None, link: Port = Port.DRAM) -> int:
        """Picoseconds for ``size`` bytes of one DMA channel on an otherwise idle link."""
        return bytes_to_ps(size, min(self.capacities[link], self.channel_rate if rate is None else rate))
