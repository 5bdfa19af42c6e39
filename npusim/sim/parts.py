"""The parts of a machine: clock, memories, units, the links to memories and between cores."""

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
        between = config.interconnect
        there = (
            config.dram, config.constants, config.exchange, config.l2, between.separate_code_port or None,
            between.separate_write_port or None,
        )  # fmt: skip
        self.links = {
            port.name.lower(): SharedLink(self.clock, self.fabric.capacities[port])
            for port, part in zip(Port, there, strict=True)
            if part is not None
        }
        """The links that there are, by name: what passes one shares nothing with the rest."""
        self.link = self.links["dram"]
        self.ways = tuple(self.links.get(port.name.lower(), self.link) for port in Port)
        """By port; one that the device has not is that to DRAM, and nobody is sent there."""
        self.layout = UnitLayout(config)
        self.breaks = UnitFaults()
        self.cycle_ps = cycles_to_ps(1, config.clock_hz)
        self.layer_ps = cycles_to_ps(config.layer_cycles, config.clock_hz)
