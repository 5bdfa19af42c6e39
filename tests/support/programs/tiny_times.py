"""Times of the tiny device, worked out by hand: one cycle is 1 ns, DRAM gives 8 bytes a ns after 100 ns."""

from __future__ import annotations

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import Config, load_config
from npusim.program import Program

NS = 1000
TINY = load_config("tiny")
LATENCY = 100 * NS
START = 11 * NS
"""Of a transfer: 10 cycles of set-up, 1 of SRAM latency."""


def flow(size: int) -> int:
    """``size`` bytes at 8 bytes a ns."""
    return size * NS // 8


def run(program: Program, config: Config = TINY) -> NpuDevice:
    """The device after one timing-only run."""
    device = NpuDevice(config)
    driver = Driver(device.bus)
    driver.run(driver.load(program), timing_only=True)
    return device
