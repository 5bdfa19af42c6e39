"""The adversary finds races that one run does not show, and none in correct drivers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.driver.null import NullDriver
from npusim.errors import UsageError
from npusim.hw.config import load_config
from tests.support.drivers.written_from_the_document import DocumentDriver, Job
from tests.support.programs.streams import round_trip

TINY = load_config("tiny")
VALUES = np.arange(64, dtype=np.uint8)


class WritesTheNextInputTooSoon(DocumentDriver):
    """All jobs share one input: the next one is written as soon as the device should have taken the previous job."""

    shared = 0

    def write_job(self, job: Job, inputs: Any) -> None:
        self.shared = self.shared or job.regions[2]
        job.regions[2] = self.shared
        super().write_job(job, inputs)


class OneByOne(DocumentDriver):
    """The correct way with one shared input: the job is waited for before the next input is written."""

    last: Job | None = None

    def write_job(self, job: Job, inputs: Any) -> None:
        if self.last is not None and not self.last.ended:
            while not self.last.ended:
                if self.bus.wait_irq(10**9):
                    self.acknowledge()
                self.look()
        self.last = job
        super().write_job(job, inputs)


def rounds(driver: Any, priorities: tuple[int, ...] = (1, 1, 1, 1)) -> bool:
    """Run several concurrent jobs; return whether each computed the right result."""
    loaded = driver.load(round_trip(64))
    jobs = [driver.submit(loaded, {"x0": VALUES + number}, priority=ring) for number, ring in enumerate(priorities)]
    return all(np.array_equal(driver.wait(job).outputs["y0"], VALUES + number) for number, job in enumerate(jobs))


def test_the_race_does_not_show_without_it() -> None:
    assert rounds(WritesTheNextInputTooSoon(NpuDevice(TINY).bus))


def test_a_planted_input_race_is_found_within_200_seeds() -> None:
    wrong = [seed for seed in range(200) if not rounds(WritesTheNextInputTooSoon(NpuDevice(TINY, adversary=seed).bus))]
    assert wrong
    assert wrong[0] < 20


@pytest.mark.parametrize("make", [DocumentDriver, OneByOne, Driver])
def test_good_drivers_pass(make: Any) -> None:
    for seed in range(60):
        assert rounds(make(NpuDevice(TINY, adversary=seed).bus), (0, 1, 2, 1, 0)), seed


@pytest.mark.slow
@pytest.mark.parametrize("make", [DocumentDriver, Driver])
def test_good_drivers_pass_1000_seeds(make: Any) -> None:
    for seed in range(1000):
        device = NpuDevice(TINY, adversary=seed, check=True)
        driver = make(device.bus)
        driver.enable_preemption()
        assert rounds(driver, (0, 1, 2, 1, 0)), seed
        assert device.checker is not None
        assert [str(finding) for finding in device.checker.findings] == [], seed


def test_the_null_driver_does_not_care() -> None:
    for seed in range(1000):
        driver = NullDriver(NpuDevice(TINY, adversary=seed).bus)
        assert driver.run(driver.load(round_trip(64)), {"x0": VALUES}).ended


def moments(seed: int | None) -> list[tuple[int, int]]:
    device = NpuDevice(TINY, adversary=seed)
    ends: list[tuple[int, int]] = []
    device.listener = lambda seqno, timeline: ends.append((seqno, device.now_ps))
    driver = Driver(device.bus)
    rounds(driver, (Priority.LOW, Priority.HIGH, Priority.MEDIUM))
    return [*ends, (0, device.now_ps)]


def test_a_seed_gives_the_same_picoseconds_each_time() -> None:
    assert all(moments(seed) == moments(seed) for seed in range(20))
    assert len({tuple(moments(seed)) for seed in range(20)}) > 10


def test_jobs_of_different_rings_end_in_different_orders() -> None:
    orders = {tuple(seqno for seqno, _ in moments(seed)) for seed in range(100)}
    assert len(orders) >= 3


def test_interrupts_are_late_and_become_one() -> None:
    counts = set()
    for seed in range(60):
        device = NpuDevice(TINY, adversary=seed)
        driver = DocumentDriver(device.bus)
        loaded = driver.load(round_trip(64))
        jobs = [driver.submit(loaded, {"x0": VALUES}) for _ in range(4)]
        taken = 0
        while any(driver.inside):
            taken += device.bus.wait_irq(10**12)
            driver.acknowledge()
            driver.look()
        assert all(job.ended for job in jobs)
        counts.add(taken)
    assert {1, 4} <= counts


def test_a_reset_takes_messages_back_that_are_under_way() -> None:
    for seed in range(60):
        device = NpuDevice(TINY, adversary=seed)
        driver = DocumentDriver(device.bus)
        job = driver.submit(driver.load(round_trip(64)), {"x0": VALUES})
        while device.bus.read(0, 0x10C + 0x20, 4) == 0:  # MEDIUM_HEAD
            pass
        driver.reset()
        assert job.ended
        assert device.bus.wait_irq(10**12) == 0


def test_the_environment_has_a_seed_for_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_ADVERSARY", "7")
    by_environment = moments(None)
    monkeypatch.delenv("NPUSIM_ADVERSARY")
    assert by_environment == moments(7) != moments(None)
    monkeypatch.setenv("NPUSIM_ADVERSARY", "-1")
    with pytest.raises(UsageError, match="NPUSIM_ADVERSARY: must be a whole number >= 0, got '-1'"):
        NpuDevice(TINY)
    with pytest.raises(UsageError, match="adversary: the seed must be a whole number >= 0, got -1"):
        NpuDevice(TINY, adversary=-1)
