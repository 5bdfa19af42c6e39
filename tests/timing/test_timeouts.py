"""Timeouts and deadlines to the picosecond: a job that ends at the last moment succeeds, one that ends a picosecond
later is aborted exactly then. Without a timeout a device may be arbitrarily slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import npusim
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.errors import DeadlineError, DeviceFaultError
from npusim.faults import AtCommand, AtInterrupt, AtTime, Fault, Hang, MessageFault
from npusim.runtime import Executor, Request
from npusim.runtime.dispatcher import Dispatcher
from npusim.sim.watch import Watcher
from tests.support.graphs.samples import product
from tests.support.programs.executor_jobs import TINY, adder, values
from tests.support.programs.streams import QUICK_HOST

QUICK = TINY.with_(**QUICK_HOST)
US, MS, S = 10**6, 10**9, 10**12
SUBMITTED_PS = 4
"""Upper bound for the time of reading records on the fastest configurable host."""
HANG = Fault(AtCommand(command=1, unit="core0.vector"), Hang(hang="core0.vector"))
STORM = Fault(AtTime(time_ps=20 * US), MessageFault(interrupt="storm", count=400, delay_ps=3 * US))
LOST = Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose"))
PROGRAM = adder(slow=8, config=QUICK)
X = values()


class Moments(Watcher):
    """The times of the last doorbell and of the reset."""

    steps = False

    def __init__(self, device: NpuDevice) -> None:
        self._device = device
        self.rung_ps = self.reset_ps = 0
        device.watch(self)

    def register_written(self, register: str, value: int) -> None:
        if register == "MEDIUM_DOORBELL":
            self.rung_ps = self._device.now_ps
        if register == "CONTROL" and value & 1:
            self.reset_ps = self._device.now_ps


def by_driver(timeout_ps: int | None, faults: list[Fault]) -> tuple[Any, Moments]:
    device = NpuDevice(QUICK, faults)
    driver = Driver(device.bus)
    moments, loaded = Moments(device), driver.load(PROGRAM)
    try:
        return driver.run(loaded, {"x0": X}, timeout_ps=timeout_ps).outputs["y0"], moments
    except DeviceFaultError as error:
        return error, moments


def by_dispatcher(timeout_ps: int | None, faults: list[Fault]) -> tuple[Any, Moments]:
    dispatcher = Dispatcher(QUICK, faults, timeout_ps=timeout_ps)
    moments = Moments(dispatcher.device)
    try:
        return dispatcher.run(Request(PROGRAM, {"x0": X})).outputs["y0"], moments
    except DeviceFaultError as error:
        return error, moments


def by_session(timeout_ps: int | None, faults: list[Fault]) -> tuple[Any, Moments]:
    session = npusim.Session(QUICK, cache_dir=False, faults=faults, timeout=timeout_ps)
    moments = Moments(session.device)
    try:
        return session.run(PROGRAM, {"x0": X}).outputs["y0"], moments
    except DeviceFaultError as error:
        return error, moments


def by_executor(timeout_ps: int | None, faults: list[Fault]) -> tuple[Any, Moments]:
    executor = Executor(QUICK, faults=faults, timeout_ps=timeout_ps)
    moments = Moments(executor.device)
    try:
        return executor.submit(Request(PROGRAM, {"x0": X})).wait(60).outputs["y0"], moments
    except DeviceFaultError as error:
        return error, moments
    finally:
        executor.device.unwatch(moments)
        executor._shut()  # a fault that comes too late is none here


WAYS: dict[str, Callable[[int | None, list[Fault]], tuple[Any, Moments]]] = {
    "driver": by_driver, "dispatcher": by_dispatcher, "session": by_session, "executor": by_executor,
}  # fmt: skip


@pytest.fixture(scope="module")
def length() -> int:
    """Return the time from the doorbell to the end of the job."""
    device = NpuDevice(QUICK)
    driver = Driver(device.bus)
    moments, loaded = Moments(device), driver.load(PROGRAM)
    driver.run(loaded, {"x0": X})
    assert device.last_job is not None
    return device.last_job.started_ps + device.last_job.time_ps - moments.rung_ps


def right(found: Any) -> bool:
    return isinstance(found, np.ndarray) and np.array_equal(found, X + 1)


@pytest.mark.parametrize("way", WAYS)
def test_the_last_moment_is_in_time_and_the_next_one_is_not(way: str, length: int) -> None:
    found, _ = WAYS[way](length, [])
    assert right(found)
    # A driver sees the end when it reads the record, which takes some time.
    found, moments = WAYS[way](length - (SUBMITTED_PS if way == "driver" else 1), [])
    assert isinstance(found, DeviceFaultError)
    assert found.code == "TIMEOUT"
    assert str(length - (SUBMITTED_PS if way == "driver" else 1)) in str(found)
    if moments.reset_ps:
        assert length - SUBMITTED_PS <= moments.reset_ps - moments.rung_ps <= length + SUBMITTED_PS


@pytest.mark.parametrize("faults", [[HANG], [HANG, STORM]], ids=["hangs", "hangs in a storm"])
@pytest.mark.parametrize("way", WAYS)
@given(st.one_of(st.integers(20 * US, 200 * US), st.integers(1 * MS, 999 * MS), st.integers(1 * S, 5 * S)))
@settings(max_examples=8)
def test_a_device_that_hangs_is_reset_when_the_time_is_over(way: str, faults: list[Fault], timeout_ps: int) -> None:
    found, moments = WAYS[way](timeout_ps, faults)
    assert isinstance(found, DeviceFaultError)
    assert found.code == "TIMEOUT"
    assert str(timeout_ps) in str(found)
    late = moments.reset_ps - moments.rung_ps - timeout_ps
    assert 0 <= late <= SUBMITTED_PS + 400 * (len(faults) - 1)  # messages about nothing cost the host a moment each


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(1, 3 * MS))
@settings(max_examples=15)
def test_who_is_in_time_is_right_and_who_is_not_is_given_up(way: str, length: int, timeout_ps: int) -> None:
    found, _ = WAYS[way](timeout_ps, [])
    assert right(found) == (timeout_ps >= length) or (way == "driver" and 0 < length - timeout_ps < SUBMITTED_PS)


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_interrupt_costs_no_job_however_short_the_time(way: str, length: int) -> None:
    found, moments = WAYS[way](length + 1 * MS, [LOST])
    assert right(found)
    assert not moments.reset_ps


@pytest.mark.parametrize("way", WAYS)
def test_without_a_time_a_device_that_does_nothing_more_is_reset(way: str) -> None:
    found, moments = WAYS[way](None, [HANG])
    assert isinstance(found, DeviceFaultError)
    assert found.code == "TIMEOUT"
    assert "the device is idle" in str(found)
    assert moments.reset_ps - moments.rung_ps < 1 * S


@pytest.mark.parametrize("way", WAYS)
def test_without_a_time_a_unit_may_stop_for_days(way: str) -> None:
    days = Fault(AtCommand(command=1, unit="core0.vector"), Hang(hang="core0.vector", lasts=3 * 86400 * S))
    found, moments = WAYS[way](None, [days])
    assert right(found)
    assert not moments.reset_ps


@given(st.integers(1, 3 * MS))
@settings(max_examples=15)
def test_a_budget_is_kept_to_the_picosecond(length: int, budget_ps: int) -> None:
    """It starts at the arrival, so it includes the host's work before the doorbell."""

    def run(budget: int) -> tuple[Any, int]:
        dispatcher = Dispatcher(QUICK)
        moments, began = Moments(dispatcher.device), dispatcher.now_ps
        try:
            found: Any = dispatcher.run(Request(PROGRAM, {"x0": X}, budget_ps=budget)).outputs["y0"]
        except DeadlineError as error:
            found = error
        return found, moments.rung_ps - began

    _, before = run(10 * MS)
    for budget in (budget_ps, before + length, before + length - 1):
        found, _ = run(budget)
        assert right(found) == (budget >= before + length), budget


def test_a_slow_design_is_no_fault() -> None:
    with npusim.Session(TINY.with_(clock="1 kHz"), cache_dir=False) as session:
        result = session.run(session.compile(product(768, 768, 768)), timing_only=True)
    assert result.time_ps > 3600 * S
