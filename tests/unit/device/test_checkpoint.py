"""Checkpoints of devices in every state: faulted, aborted, moderated, copying, booting; and refused checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npusim.device.bus import BAR_REGISTERS
from npusim.device.checkpoint import Checkpoint
from npusim.device.firmware import FirmwareState, image
from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME
from npusim.device.ring import COPY_MAGIC, DESCRIPTOR, Descriptor
from npusim.driver import Driver, Priority
from npusim.driver.jobs import DriverJob
from npusim.errors import CheckpointError
from npusim.faults import AtCommand, Fault, Hang
from npusim.hw.config import Config, load_config
from npusim.isa.base import region
from npusim.program import FIRST_IO
from npusim.sim.pages import PAGE, memories, written
from npusim.sim.watch import Watcher
from npusim.timeline import Timeline
from tests.support.programs.planted_bugs import SIZE, faulty, planted
from tests.support.programs.stopped_jobs import seen
from tests.support.programs.streams import QUICK_HOST, Stream, copy, exchange, keeper

TINY = load_config("tiny").with_(**QUICK_HOST)
INPUTS = {"x0": np.arange(SIZE).astype(np.uint8), "x1": np.arange(SIZE).astype(np.uint8)}
END_PS = 10**9


def _write(device: NpuDevice, register: str, value: int) -> None:
    device.write(BAR_REGISTERS, BY_NAME[register].offset, 4, value)


def _goes_on_alike(device: NpuDevice, folder: Path, then: Callable[[NpuDevice], None] = lambda device: None) -> None:
    """Restore the device to a second one from a file; both behave the same from then on."""
    checkpoint = device.checkpoint()
    checkpoint.write(folder / "file.npuckpt")
    read = Checkpoint.read(folder / "file.npuckpt")
    other = NpuDevice(read.config())
    other.restore(read)
    assert other.checkpoint().state == checkpoint.state
    found = []
    for each in (device, other):
        timelines: dict[int, Timeline] = {}
        each.listener = timelines.__setitem__
        then(each)
        each.run_until(each.now_ps + END_PS)
        found.append((seen(each, timelines), each.misuse))
    assert found[0] == found[1]


def _submitted(device: NpuDevice, **options: object) -> tuple[Driver, DriverJob]:
    driver = Driver(device.bus)
    return driver, driver.submit(driver.load(planted(None)), INPUTS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("at_ps", range(0, 3_600_000, 300_000))
def test_in_each_part_of_a_job(at_ps: int, tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    _submitted(device)
    device.run_until(device.now_ps + at_ps)
    _goes_on_alike(device, tmp_path)


@pytest.mark.parametrize("at_ps", range(1_500_000, 5_500_000, 500_000))
@pytest.mark.parametrize("timing_only", [False, True])
def test_while_bytes_pass_from_core_to_core(at_ps: int, timing_only: bool, tmp_path: Path) -> None:
    device = NpuDevice(TINY.with_(**{"cores": 2, "exchange.bytes_per_cycle": 1}))
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO), 2048))
    passed = stream.dma(exchange(4096, 0, 2048, 0, 2), loaded)
    back = stream.dma(exchange(4096, 4096, 2048, 1, 1), passed, core=1)
    stream.dma(copy(region(FIRST_IO + 1), 4096, 2048), back)
    driver = Driver(device.bus)
    inputs = {"x0": np.arange(2048).astype(np.uint8)}
    driver.submit(driver.load(stream.program([2048], [2048])), inputs, timing_only=timing_only)
    device.run_until(device.now_ps + at_ps)
    if not timing_only:  # otherwise it is simulated in one go and has not started yet
        assert bool(device.machine.links["exchange"].transfers()) == (at_ps < 5_000_000)
    _goes_on_alike(device, tmp_path)


@pytest.mark.parametrize("at_ps", range(0, 6_000_000, 500_000))
def test_while_instructions_are_loaded(at_ps: int, tmp_path: Path) -> None:
    device = NpuDevice(TINY.with_(**{"compiler.layer_bytes": "16 KiB"}))
    _submitted(device)
    device.run_until(device.now_ps + at_ps)
    _goes_on_alike(device, tmp_path)


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_job_that_goes_in_one_go(timing_only: bool, tmp_path: Path) -> None:
    """Its course is replayed or computed; also between its start and its record."""
    device = NpuDevice(TINY)
    driver, job = _submitted(device, timing_only=timing_only)
    driver.wait(job)
    again = driver.submit(driver.load(planted(None)), {} if timing_only else INPUTS, timing_only=timing_only)
    assert again.seqno == 2
    end = device.now_ps + device.last_job.time_ps  # type: ignore[union-attr]
    for before in (1_000_000, 100_000, 1_000):
        device.machine.clock.run_until(lambda before=before: device.now_ps >= end - before, END_PS)
        _goes_on_alike_once(device, tmp_path)


def _goes_on_alike_once(device: NpuDevice, folder: Path) -> None:
    """As above, and the device is where it was."""
    checkpoint = device.checkpoint()
    _goes_on_alike(device, folder)
    device.restore(checkpoint)


def test_the_record_of_a_job_that_was_replayed_is_on_its_way(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    driver, job = _submitted(device)
    driver.wait(job)
    driver.submit(driver.load(planted(None)), INPUTS)
    # Nobody looks before the interrupt; a moment of the record's way is left when the clock is stopped by an event.
    stopped = []
    device.machine.clock.after(device.last_job.time_ps - 50_000, stopped.append)  # type: ignore[union-attr]
    device.machine.clock.run_until(lambda: stopped, END_PS)
    _goes_on_alike(device, tmp_path)


def test_a_fault_that_has_stopped_the_device(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    driver.submit(driver.load(faulty()), {**INPUTS, "x0": np.ones(SIZE, np.uint8)})
    driver.submit(driver.load(planted(None)), INPUTS)
    device.run_until(device.now_ps + 1_000_000)
    _goes_on_alike_once(device, tmp_path)
    device.run_until(device.now_ps + END_PS)
    assert device.registers.get("FAULT_CODE")
    _goes_on_alike(device, tmp_path, lambda each: _write(each, "CONTROL", 2))
    assert device.last_job is not None
    assert device.last_job.fault is None, "the second job has run"


def test_faults_on_a_schedule_are_not_saved() -> None:
    device = NpuDevice(TINY, [Fault(AtCommand(command=2, unit="core0.dma0"), Hang(hang="core0.dma0"))])
    with pytest.raises(CheckpointError, match="a device with scheduled faults has no checkpoints"):
        device.checkpoint()


def test_a_device_that_is_gone_stays_gone(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    device.unplug()
    checkpoint = device.checkpoint()
    other = NpuDevice(TINY)
    other.restore(checkpoint)
    assert other.bus.read(BAR_REGISTERS, 0, 4) == 0xFFFF_FFFF
    other.restore(NpuDevice(TINY).checkpoint())
    assert other.bus.read(BAR_REGISTERS, 0, 4) == 0x3155_504E


def test_a_job_that_is_aborted_and_one_that_was_reset(tmp_path: Path) -> None:
    for register, value in (("ABORT", 1), ("CONTROL", 1)):
        device = NpuDevice(TINY)
        _, job = _submitted(device)
        device.run_until(device.now_ps + 1_500_000)
        _write(device, "ABORT_SEQNO_LO", job.seqno)
        _write(device, register, value)  # the planned events are void, but still occur
        _goes_on_alike(device, tmp_path)


def test_weights_that_stay_in_sram_are_there_afterwards(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(keeper(bytes(range(200))), slots=2)
    driver.run(loaded, {})
    driver.submit(loaded, {})
    checkpoint = device.checkpoint()
    _goes_on_alike(device, tmp_path)
    device.restore(checkpoint)
    device.run_until(device.now_ps + END_PS)
    assert device.last_job is not None
    assert device.last_job.residents_held


def test_code_that_software_has_overwritten_meanwhile_is_kept(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(planted(None))
    driver.submit(loaded, INPUTS)
    device.run_until(device.now_ps + 1_500_000)
    driver.write(loaded.code, bytes(len(loaded.program.code)))
    assert device.checkpoint().state["queues"]["programs"][0]["code"]
    _goes_on_alike(device, tmp_path)


def _modern() -> Config:
    return TINY.with_(**{"pci.vectors": 4, "pci.moderation": True, "pci.address_bits": 40, "firmware.major": 1})


def test_moderated_interrupts_copies_and_firmware(tmp_path: Path) -> None:
    device = NpuDevice(_modern())
    code = image(b"x" * 5000)
    device.machine.memory.store(0x10000, code)
    _write(device, "FW_ADDR_LO", 0x10000)
    _write(device, "FW_BYTES", len(code))
    _write(device, "FW_BOOT", 1)
    _goes_on_alike_once(device, tmp_path)
    device.run_until(lambda: device.registers.get("FW_STATUS") == FirmwareState.RUNNING)
    _goes_on_alike_once(device, tmp_path)
    ring = 0x20000
    for number in range(3):
        copy = Descriptor(*[0] * len(Descriptor._fields))._replace(
            magic=COPY_MAGIC, source=0x10000, destination=0x30000 + number * 8192, size=4096
        )
        assert not copy.mistake
        device.machine.memory.store(ring + number * DESCRIPTOR.size, DESCRIPTOR.pack(*copy))
    _write(device, "COPY_BASE_LO", ring)
    _write(device, "COPY_SIZE", 4)
    _write(device, "COPY_TAIL", 3)
    _write(device, "INT_MODERATION", 0x0004_1000)
    _write(device, "INT_MASK", 7)
    _write(device, "COPY_DOORBELL", 1)
    for _ in range(6):
        device.run_until(device.now_ps + 200_000)
        _goes_on_alike_once(device, tmp_path)


# What is refused


def test_in_the_midst_of_an_event_nothing_is_saved() -> None:
    device = NpuDevice(TINY)
    checkpoint = device.checkpoint()

    class Saves(Watcher):
        def step_begins(self, unit: str, step: object) -> None:
            device.checkpoint()

    class Restores(Watcher):
        def job_ends(self, job: object, timeline: Timeline) -> None:
            device.restore(checkpoint)

    for watcher in (Saves(), Restores()):
        device.watch(watcher)
        with pytest.raises(CheckpointError, match=r"is not possible during an event: stop the clock first"):
            _submitted(device)[0].poll(END_PS)
        device.unwatch(watcher)


def test_an_event_of_somebody_elses_is_named() -> None:
    device = NpuDevice(TINY)
    device.machine.clock.after(5, print)
    with pytest.raises(CheckpointError, match="an event is to call print, which is not a part of the device"):
        device.checkpoint()


def test_another_device_refuses_it() -> None:
    checkpoint = NpuDevice(TINY).checkpoint()
    with pytest.raises(CheckpointError, match="is of another device than this 'edge'"):
        NpuDevice(load_config("edge")).restore(checkpoint)
    with pytest.raises(CheckpointError, match="a device with an adversary has no checkpoints"):
        NpuDevice(TINY, adversary=1).checkpoint()


def test_who_is_restored_forgets_what_it_was() -> None:
    device = NpuDevice(TINY)
    checkpoint = device.checkpoint()
    driver, job = _submitted(device, priority=Priority.HIGH)
    driver.wait(job)
    device.machine.memory.sram[0][5] = 1
    device.restore(checkpoint)
    assert device.last_job is None
    assert device.now_ps == checkpoint.now_ps
    assert device.machine.clock.coming is None
    assert all(not written(array) for array in memories(device.machine.memory).values())


def test_a_file_is_as_small_as_what_was_written(tmp_path: Path) -> None:
    device = NpuDevice(TINY)
    rng = np.random.default_rng(0)
    device.machine.memory.store(3 * PAGE, rng.bytes(2 * PAGE))
    device.machine.memory.store(device.config.dram.bytes - 1, b"\1")
    checkpoint = device.checkpoint()
    last = device.config.dram.bytes // PAGE - 1
    assert checkpoint.state["pages"]["dram"] == [[3, 2], [last, 1]]
    checkpoint.write(tmp_path / "file")
    assert os.path.getsize(tmp_path / "file") < 2 * PAGE + 6000
