"""The parts of a machine: clock, memories, units, links to memories and between cores."""

from __future__ import annotations

from npusim.hw.config import Config
from npusim.sim.adversary import Adversary
from npusim.sim.bandwidth import SharedLink
from npusim.sim.breaks import UnitFaults
from npusim.sim.clock import Clock
from npusim.sim.fabric import Fabric
from npusim.sim.memory import DeviceMemory
from npusim.sim.steps import UnitLayout
from npusim.sim.watch import Watcher
from npusim.units import cycles_to_ps
from npusim.work import Port


class Parts:
    """The parts of one device. ``cycle_ps``: clock cycle. ``layer_ps``: time to switch to another layer."""

    def __init__(self, config: Config, adversary: Adversary | None = None, *, shared_memory: bool = False) -> None:
        self.config = config
        self.adversary = adversary
        self.clock = Clock()
        self.watchers: list[Watcher] = []
        self.step_watchers: list[Watcher] = []
        """Watchers of single commands."""
        self.memory = DeviceMemory(config, shared=shared_memory)
        self.fabric = Fabric(config)
        between = config.interconnect
        there = (
            config.dram,
            config.constants,
            config.exchange,
            config.l2,
            between.separate_code_port or None,
            between.separate_write_port or None,
        )
        self.links = {
            port.name.lower(): SharedLink(self.clock, self.fabric.capacities[port], self.fabric.ports[port])
            for port, part in zip(Port, there, strict=True)
            if part is not None
        }
        """The independent links, by name."""
        self.link = self.links["dram"]
        self.ways = tuple(self.links.get(port.name.lower(), self.link) for port in Port)
        """Links by port. Ports that the device does not have refer to DRAM and are not used."""
        self.layout = UnitLayout(config)
        self.breaks = UnitFaults()
        self.cycle_ps = cycles_to_ps(1, config.clock_hz)
        compiler = config.compiler
        self.layer_ps = cycles_to_ps(compiler.layer_cycles, config.clock_hz) + compiler.layer_time_ps
