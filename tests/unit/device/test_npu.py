"""Registers of a live device: capabilities, counters, interrupts."""

from __future__ import annotations

import pytest

from npusim.device.bus import BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME
from npusim.driver import Driver
from npusim.hw.config import list_configs, load_config
from tests.support.programs.streams import round_trip

TINY = load_config("tiny")
DONE, FAULT = 1, 2


class Registers:
    """Registers by name, through the bus."""

    def __init__(self, device: NpuDevice) -> None:
        self.device = device

    def __getitem__(self, name: str) -> int:
        return self.device.bus.read(BAR_REGISTERS, BY_NAME[name].offset, 4)

    def __setitem__(self, name: str, value: int) -> None:
        self.device.bus.write(BAR_REGISTERS, BY_NAME[name].offset, 4, value)

    def field(self, name: str, field: str) -> int:
        value = self[name]
        return next(entry.of(value) for entry in BY_NAME[name].fields if entry.name == field)


@pytest.mark.parametrize("name", list_configs())
def test_capabilities_come_from_the_config(name: str) -> None:
    config = load_config(name)
    registers = Registers(NpuDevice(config))
    assert registers["ID"].to_bytes(4, "little") == b"NPU1"
    assert registers.field("CAP_UNITS", "CORES") == config.cores
    assert registers.field("CAP_UNITS", "DMA") == config.dma.channels
    assert registers.field("CAP_UNITS", "MATRIX") == (config.matrix is not None)
    assert registers.field("CAP_UNITS", "VECTOR") == (config.vector is not None)
    assert registers.field("CAP_UNITS", "SCALAR") == (config.scalar is not None)
    if config.matrix is not None:
        assert registers.field("CAP_MATRIX", "ROWS") == config.matrix.rows
        assert registers.field("CAP_MATRIX", "COLS") == config.matrix.cols
        assert registers["CAP_ACC"] == config.matrix.accumulator_bytes
    if config.vector is not None:
        assert registers["CAP_VECTOR"] == config.vector.lanes
    assert registers["CAP_SRAM_LO"] | registers["CAP_SRAM_HI"] << 32 == config.sram.bytes
    assert registers["CAP_DRAM_LO"] | registers["CAP_DRAM_HI"] << 32 == config.dram.bytes
    assert registers["CAP_CLOCK"] == config.clock_hz // 1000
    assert registers["CAP_QUEUE"] == config.queue_depth


def test_a_device_without_a_part_says_so() -> None:
    registers = Registers(NpuDevice(TINY.with_(scalar=None)))
    assert registers.field("CAP_UNITS", "SCALAR") == 0


def test_the_high_word_of_the_cycle_counter_is_held() -> None:
    device = NpuDevice(TINY)
    registers = Registers(device)
    device.machine.clock.advance(((5 << 32) + 7) * 1000 - device.now_ps - TINY.host.mmio_ps)
    assert registers["CYCLES_LO"] == 7
    device.machine.clock.advance((1 << 32) * 1000)
    assert registers["CYCLES_HI"] == 5
    registers["CYCLES_LO"]
    assert registers["CYCLES_HI"] == 6


def submit(device: NpuDevice, mask: int) -> Registers:
    """Run a job on a device whose interrupts are masked by ``mask``."""
    driver = Driver(device.bus)
    loaded = driver.load(round_trip(64))
    registers = Registers(device)
    registers["INT_MASK"] = mask
    driver._bus.wait_irq(0)
    driver.submit(loaded, timing_only=True)
    return registers


def test_a_masked_interrupt_waits_for_its_mask_to_open() -> None:
    device = NpuDevice(TINY)
    registers = submit(device, mask=FAULT)
    assert device.bus.wait_irq(10**9) == 0
    assert registers["INT_STATUS"] == DONE
    registers["INT_MASK"] = DONE
    assert device.bus.wait_irq(0) == 1


def test_a_cleared_interrupt_does_not_come_again() -> None:
    device = NpuDevice(TINY)
    registers = submit(device, mask=DONE | FAULT)
    assert device.bus.wait_irq(10**9) == 1
    registers["INT_STATUS"] = DONE
    assert registers["INT_STATUS"] == 0
    registers["INT_MASK"] = DONE
    assert device.bus.wait_irq(10**9) == 0


def test_status_says_busy_while_a_job_runs() -> None:
    device = NpuDevice(TINY)
    registers = submit(device, mask=DONE)
    assert registers.field("STATUS", "BUSY") == 1
    assert registers.field("STATUS", "READY") == 1
    device.bus.wait_irq(10**9)
    assert registers["STATUS"] == 1
    assert registers["MEDIUM_HEAD"] == registers["MEDIUM_TAIL"] == 1
    assert registers["SEQNO_LO"] == 1


def test_a_driver_that_behaves_leaves_no_misuse() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(round_trip(64))
    driver.run(loaded, timing_only=True)
    driver.unload(loaded)
    assert device.misuse == []
