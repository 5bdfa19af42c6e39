"""Hand-computed times of the tiny device: one cycle is 1 ns, DRAM transfers 8 bytes per ns after 100 ns."""

from __future__ import annotations

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import Config, load_config
from npusim.program import Program

NS = 1000
TINY = load_config("tiny")
LATENCY = 100 * NS
START = 11 * NS
"""Start of a transfer: 10 cycles of set-up and 1 of SRAM latency."""


def flow(size: int) -> int:
    """Return the time for ``size`` bytes at 8 bytes per ns."""
    return size * NS // 8


def run(program: Program, config: Config = TINY) -> NpuDevice:
    """Return the device after one timing-only run."""
    device = NpuDevice(config)
    driver = Driver(device.bus)
    driver.run(driver.load(program), timing_only=True)
    return device
