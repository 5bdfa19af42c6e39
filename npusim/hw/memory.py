"""The model of the DRAM that a config names, and what stands in its place at the ports of other memories."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from npusim.units import cycles_to_ps
from npusim.work import Port

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.work import DmaWork


ALIGNMENT = 64
"""Every buffer starts at a multiple of this many bytes: a DRAM burst on all configs that ship."""


def align(offset: int, to: int = ALIGNMENT) -> int:
    """The next multiple of ``to`` bytes."""
    return -(-offset // to) * to


class DramModel(Protocol):
    """What the simulator and the cost models ask a DRAM."""

    @property
    def latency_ps(self) -> int:
        """From a request at the DRAM to its first datum."""

    @property
    def bandwidth(self) -> int:
        """What long sequential streams reach together, in bytes a second."""

    def transfer_bytes(self, work: DmaWork) -> int:
        """What a transfer takes of ``bandwidth``, with what its pattern wastes; 0 if it does not touch the DRAM."""

    def rate(self, work: DmaWork, channel: int) -> int:
        """The same bytes a second that one DMA channel asks for, of which ``channel`` bytes a second fit its width."""

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """What a transfer that is alone waits besides: beyond the latency and its bytes at ``rate``."""


@functools.lru_cache(maxsize=64)
def constants_side(config: Config) -> Config:
    """The device as reads of constants see it: their memory, if there is one, in the place of DRAM."""
    from npusim.hw.config import DramConfig

    memory = config.constants
    if memory is None:
        return config
    behind = DramConfig(bytes=memory.bytes, bandwidth=memory.bandwidth, latency_ps=memory.latency_ps)
    return replace(config, dram=behind, constants=None)


@functools.lru_cache(maxsize=64)
def l2_side(config: Config) -> Config:
    """The device as transfers to and from its L2 see it: that in the place of DRAM, with no interconnect between, and
    its lines for bursts. Without an L2 the device itself."""
    from npusim.hw.config import DramConfig

    memory = config.l2
    if memory is None:
        return config
    bandwidth = memory.bytes_per_cycle * config.clock_hz
    latency = cycles_to_ps(memory.latency_cycles, config.clock_hz)
    return replace(
        config,
        dram=DramConfig(bytes=memory.bytes, bandwidth=bandwidth, latency_ps=latency),
        dma=replace(config.dma, burst_bytes=memory.line_bytes, write_latency_ps=None),
        interconnect=replace(config.interconnect, bytes_per_cycle=memory.bytes_per_cycle, latency_cycles=0),
        l2=None,
    )


def side(config: Config, port: Port) -> Config:
    """The device as transfers at a port see it."""
    return l2_side(config) if port is Port.L2 else constants_side(config) if port is Port.CONSTANTS else config


@functools.lru_cache(maxsize=64)
def dram_model(config: Config) -> DramModel:
    """The model that ``dram.kind`` names."""
    module = importlib.import_module(f"npusim.hw.dram.{config.dram.kind}")
    model: DramModel = module.Dram(config)
    return model
