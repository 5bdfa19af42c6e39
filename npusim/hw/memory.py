"""The DRAM model of a config, and device views for the ports of other memories."""

from __future__ import annotations

import functools
import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from npusim.hw.sections import DramConfig
from npusim.units import cycles_to_ps
from npusim.work import Port

if TYPE_CHECKING:
    from npusim.hw.config import Config
    from npusim.work import DmaWork


ALIGNMENT = 64
"""Alignment of buffers in bytes: a DRAM burst in all shipped configs."""


def align(offset: int, to: int = ALIGNMENT) -> int:
    """The next multiple of ``to`` bytes."""
    return -(-offset // to) * to


class DramModel(Protocol):
    """Interface of a DRAM model for simulator and cost models."""

    @property
    def latency_ps(self) -> int:
        """Latency in ps from a request at the DRAM to its first datum."""

    @property
    def bandwidth(self) -> int:
        """Bandwidth in bytes/s of long sequential streams together."""

    def transfer_bytes(self, work: DmaWork) -> int:
        """Bytes of ``bandwidth`` that a transfer uses, including waste by its pattern; 0 if it does not access DRAM."""

    def rate(self, work: DmaWork, channel: int) -> int:
        """Bytes/s that one DMA channel requests for a transfer. ``channel``: bytes/s of its data path."""

    def waiting_ps(self, work: DmaWork, rate: int) -> int:
        """Additional time in ps of a transfer alone, beyond the latency and its bytes at ``rate``."""


@functools.lru_cache(maxsize=64)
def constants_side(config: Config) -> Config:
    """The device as reads of constants see it: with their memory, if there is one, instead of DRAM."""
    memory = config.constants
    if memory is None:
        return config
    behind = DramConfig(bytes=memory.bytes, bandwidth=memory.bandwidth, latency_ps=memory.latency_ps)
    return replace(config, dram=behind, constants=None)


@functools.lru_cache(maxsize=64)
def l2_side(config: Config) -> Config:
    """The device as transfers of its L2 see it: with L2 instead of DRAM, no interconnect, and lines as bursts. Without
    an L2 the device itself."""
    memory = config.l2
    if memory is None:
        return config
    bandwidth = memory.bytes_per_cycle * config.clock_hz
    latency = cycles_to_ps(memory.latency_cycles, config.clock_hz)
    return replace(
        config,
        dram=DramConfig(bytes=memory.bytes, bandwidth=bandwidth, latency_ps=latency),
        dma=replace(config.dma, burst_bytes=memory.line_bytes, write_latency_ps=None),
        interconnect=replace(
            config.interconnect, bytes_per_cycle=memory.bytes_per_cycle, core_bytes_per_cycle=0, latency_cycles=0
        ),
        l2=None,
    )


def side(config: Config, port: Port) -> Config:
    """The device as transfers at a port see it."""
    return l2_side(config) if port is Port.L2 else constants_side(config) if port is Port.CONSTANTS else config


@functools.lru_cache(maxsize=64)
def dram_model(config: Config) -> DramModel:
    """The model selected by ``dram.kind``."""
    module = importlib.import_module(f"npusim.hw.dram.{config.dram.kind}")
    model: DramModel = module.Dram(config)
    return model
