"""The parts of a machine: clock, memories, units, the link to DRAM."""

from __future__ import annotations

from npusim.hw.config import Config
from npusim.sim.adversary import Adversary
from npusim.sim.bandwidth import SharedLink
from npusim.sim.breaks import Breaks
from npusim.sim.clock import Clock
from npusim.sim.fabric import Fabric, Way
from npusim.sim.memory import DeviceMemory
from npusim.sim.steps import Layout
from npusim.sim.watch import Watcher
from npusim.units import cycles_to_ps


class Parts:
    """What there is of one device; ``cycle_ps``: of its clock, ``layer_ps``: what turning to another layer takes."""

    def __init__(self, config: Config, adversary: Adversary | None = None, *, shared_memory: bool = False) -> None:
        self.config = config
        self.adversary = adversary
        self.clock = Clock()
        self.watchers: list[Watcher] = []
        self.step_watchers: list[Watcher] = []
        """Those that are told of single commands."""
        self.memory = DeviceMemory(config, shared=shared_memory)
        self.fabric = Fabric(config)
        self.link = SharedLink(self.clock, self.fabric.capacity)
        # Reads of constants share nothing with the rest where they have a memory of their own.
        self.constants_link = SharedLink(self.clock, self.fabric.constants_capacity) if config.constants else self.link
        self.exchange_link = SharedLink(self.clock, self.fabric.exchange_capacity) if config.exchange else self.link
        apart = config.interconnect.code_apart
        self.code_link = SharedLink(self.clock, self.fabric.fetch_rate) if apart else self.link
        self.ways = (self.link, self.constants_link, self.exchange_link, self.code_link)
        """By :class:`npusim.sim.fabric.Way`; one that the device has not is that to DRAM, and nobody is sent there."""
        self.layout = Layout(config)
        self.breaks = Breaks()
        self.cycle_ps = cycles_to_ps(1, config.clock_hz)
        self.layer_ps = cycles_to_ps(config.layer_cycles, config.clock_hz)

    @property
    def links(self) -> dict[str, SharedLink]:
        """The links that there are, by name."""
        return {
            way.name.lower(): link for way, link in zip(Way, self.ways, strict=True) if not way or link is not self.link
        }
