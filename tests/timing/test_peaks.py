"""Long streams of work come close to the configured peaks and never exceed them."""

from __future__ import annotations

from itertools import product

import pytest

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import list_configs, load_config
from npusim.hw.memory import dram_model
from npusim.isa.base import region
from npusim.sim.fabric import Fabric
from tests.support.programs.streams import Stream, copy


@pytest.mark.parametrize("name", list_configs())
@pytest.mark.parametrize("write", [False, True])
def test_large_copies_reach_the_bandwidth_of_the_device(name: str, write: bool) -> None:
    config = load_config(name)
    fabric = Fabric(config)
    channels = config.cores * config.dma.channels
    promised = min(fabric.capacities[0], channels * fabric.channel_rate)
    size = config.sram.bytes // 2
    stream = Stream()
    for _ in range(8):
        for channel in range(config.dma.channels):
            for core in range(config.cores):
                move = copy(region(1), 0, size) if write else copy(0, region(1), size)
                stream.dma(move, channel=channel, core=core)
    device = NpuDevice(config)
    driver = Driver(device.bus)
    driver.run(driver.load(stream.program(scratch=size)), timing_only=True)
    record = device.last_job
    assert record is not None
    moved = len(stream.commands) * size
    reached = moved * 10**12 // record.time_ps
    assert 0.9 * promised <= reached <= promised
    counted = record.counters.dram_write_bytes if write else record.counters.dram_read_bytes - len(stream.code())
    assert counted == moved
    assert record.counters.dram_busy_ps <= record.time_ps


@pytest.mark.parametrize("name", list_configs())
def test_copies_within_dram_share_what_it_gives_both_ways(name: str) -> None:
    """On channels of any width, also duplex ones: together they never exceed the bandwidth."""
    base = load_config(name)
    for duplex, narrow in product((False, True), (1, 4)):
        config = base.with_(**{"dma.duplex": duplex, "dma.bytes_per_cycle": base.dma.bytes_per_cycle // narrow})
        promised, size = dram_model(config).bandwidth, 1 << 20
        stream = Stream()
        for channel in range(config.dma.channels):
            for core in range(config.cores):
                stream.dma(copy(region(1, size), region(1), size), channel=channel, core=core)
        device = NpuDevice(config)
        driver = Driver(device.bus)
        driver.run(driver.load(stream.program(scratch=2 * size)), timing_only=True)
        record = device.last_job
        assert record is not None
        counters = record.counters
        assert counters.dram_write_bytes == len(stream.commands) * size
        assert (counters.dram_read_bytes + counters.dram_write_bytes) * 10**12 <= promised * record.time_ps
