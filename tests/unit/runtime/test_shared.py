"""Objects used by several threads: a session, its states and a driver give right results, a bare device and its bus one
named error. Nothing waits forever, whoever closes, interrupts or calls back."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.device.bus import BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, header
from npusim.errors import NpusimError, UsageError
from npusim.faults import AtInterrupt, Fault, MessageFault
from npusim.runtime import Session
from npusim.sim.watch import Watcher
from tests.support.graphs.samples import product
from tests.support.programs.executor_jobs import TINY, adder, values
from tests.support.waits_and_leaks import PATIENCE_S, in_threads

THREADS = 4


@pytest.fixture(autouse=True)
def _threads_change_often() -> Any:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def all_right(work: Callable[[int, int], object], count: int) -> None:
    """Call ``work(thread, number)`` in each thread, ``count`` times."""
    assert in_threads([lambda k=k: [work(k, n) for n in range(count)] for k in range(THREADS)]) == []  # type: ignore[misc]


def runs(count: int) -> None:
    session = Session(TINY, cache_dir=False)
    programs = [adder(number, slow=number) for number in range(3)]

    def run(thread: int, number: int) -> None:
        x, which = values(thread * 1000 + number), (thread + number) % 3
        assert np.array_equal(session.run(programs[which], {"x0": x}).outputs["y0"], x + which)

    all_right(run, count)
    session.close()


def test_a_session_runs_from_four_threads() -> None:
    runs(60)


@pytest.mark.slow
def test_a_session_runs_a_thousand_times_from_four_threads() -> None:
    runs(1000)


def everything(count: int) -> Counter[str]:
    """Use all parts of a session concurrently; return the named refusals by class."""
    session = Session(TINY, cache_dir=False)
    programs = [adder(number) for number in range(3)]
    shared = session.state({"x0": values(0)}, feeds={"y0": "x0"})
    graph = product(8, 8, 8)
    refused: Counter[str] = Counter()

    def one(thread: int, number: int) -> None:
        what = (thread * 7 + number * 3) % 10
        x = values(number)
        try:
            if what < 3:
                assert np.array_equal(session.run(programs[what], {"x0": x}).outputs["y0"], x + what)
            elif what == 3:
                session.unload(programs[number % 3])
            elif what == 4:
                with session.state({"x0": x}, feeds={"y0": "x0"}) as state:
                    session.run(programs[1], state=state)
                    assert np.array_equal(state.read("x0"), x + 1)
            elif what == 5:
                session.run(programs[1], state=shared)
                assert shared.read("x0").shape == shared.shapes["x0"] == x.shape
            elif what == 6:
                assert session.compile(graph).name
            elif what == 7:
                assert session.driver.free_bytes > 0
                assert not session.findings
                assert session.device.now_ps >= 0
            elif what == 8:
                loaded = session.driver.load(programs[2])
                assert np.array_equal(session.driver.run(loaded, {"x0": x}).outputs["y0"], x + 2)
                session.driver.unload(loaded)
            elif number % 20 < 10:
                session.close()
        except NpusimError as error:
            refused[type(error).__name__] += 1

    all_right(one, count)
    session.close()
    gc.collect()
    assert np.array_equal(session.run(programs[1], {"x0": values(1)}).outputs["y0"], values(1) + 1)
    session.close()
    return refused


def test_all_of_a_session_from_four_threads() -> None:
    # A state, a loaded program and a driver belong to the device that was there before a close().
    assert {"UsageError"} <= set(everything(60)) <= {"UsageError", "DeviceGoneError", "DeviceFaultError"}


@pytest.mark.slow
def test_all_of_a_session_a_thousand_times_from_four_threads() -> None:
    assert {"UsageError"} <= set(everything(1000)) <= {"UsageError", "DeviceGoneError", "DeviceFaultError"}


def test_a_driver_from_four_threads() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = [driver.load(adder(number)) for number in range(THREADS)]

    def run(thread: int, number: int) -> None:
        x = values(number)
        job = driver.submit(loaded[thread], {"x0": x}, priority=number % 3)
        assert np.array_equal(driver.wait(job).outputs["y0"], x + thread)
        place = driver.allocate(64)
        driver.write(place, bytes([thread] * 64))
        assert bytes(driver.read(place, 64)) == bytes([thread] * 64)
        driver.free(place)

    free = driver.free_bytes
    all_right(run, 50)
    for each in loaded:
        driver.unload(each)
    assert driver.free_bytes >= free


def test_a_device_and_its_bus_refuse_a_second_thread_at_once() -> None:
    device = NpuDevice(TINY)
    refused: Counter[str] = Counter()

    def use(thread: int, number: int) -> None:
        accesses: list[Callable[[], object]] = [
            lambda: device.bus.read(BAR_REGISTERS, header.STATUS, 4),
            lambda: device.bus.write(BAR_REGISTERS, header.INT_MASK, 4, 3),
            lambda: device.bus.write_memory(64 * thread, bytes(64)),
            lambda: device.bus.read_memory(64 * thread, 64),
            lambda: device.bus.wait_irq(10**6),
            lambda: device.run_until(device.now_ps + 10**7),
            lambda: device.step("cycle"),
            device.reset,
            device.checkpoint,
        ]
        try:
            accesses[(thread + number) % len(accesses)]()
        except UsageError as error:
            refused[str(error).partition(":")[2]] += 1

    all_right(use, 300)
    assert set(refused) <= {" another thread is using the device; use a Session or an Executor instead"}


def test_the_second_thread_hears_of_it_while_the_first_is_in_an_access() -> None:
    device = NpuDevice(TINY)
    heard: list[str] = []

    def second() -> None:
        for use in (
            lambda: device.bus.read(BAR_REGISTERS, header.STATUS, 4), lambda: device.bus.wait_irq(1),
            lambda: device.bus.read_memory(0, 4), lambda: device.machine.clock.advance(1),
            lambda: device.run_until(lambda: True), device.step, device.checkpoint, device.reset,
            device.plug, device.close,
        ):  # fmt: skip
            with pytest.raises(UsageError, match="another thread is using the device"):
                use()
            heard.append("refused")

    def meanwhile(_: Any) -> None:
        assert in_threads([second]) == []

    device.machine.clock.after(1000, meanwhile)
    device.bus.wait_irq(2000)
    assert len(heard) == 10
    device.reset()  # and it is free again


def test_other_threads_add_faults_and_watchers_to_a_device_in_use() -> None:
    device, over, refused = NpuDevice(TINY), threading.Event(), list[UsageError]()
    never = Fault(AtInterrupt(interrupt=10**6), MessageFault(interrupt="lose", count=1))

    def drive() -> None:
        while not over.is_set():
            try:
                device.bus.read(BAR_REGISTERS, header.STATUS, 4)
                device.bus.write_memory(0, bytes(64))
                device.run_until(device.now_ps + 1000)
            except UsageError as error:
                refused.append(error)

    driving = threading.Thread(target=drive)
    driving.start()
    try:
        for _ in range(300):
            watcher = Watcher()
            device.watch(watcher)
            device.faults.add([never])
            device.faults.clear()
            device.unwatch(watcher)
    finally:
        over.set()
        driving.join(PATIENCE_S)
    assert refused == []


class Calls(Watcher):
    """Calls something during a run, once."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.caught: list[BaseException] = []
        self.called = False

    def step_begins(self, unit: str, step: Any) -> None:
        if not self.called:
            self.called = True
            try:
                self._work()
            except NpusimError as error:
                self.caught.append(error)


@pytest.mark.parametrize("what", ["run", "close"])
def test_a_run_within_a_run_is_refused(what: str) -> None:
    session, program = Session(TINY, cache_dir=False), adder()
    calls = Calls(lambda: session.run(program, {"x0": values()}) if what == "run" else session.close())
    session.device.watch(calls)
    assert np.array_equal(session.run(program, {"x0": values()}).outputs["y0"], values() + 1)
    (error,) = calls.caught
    assert isinstance(error, UsageError)
    assert str(error) == f"{what}: not allowed during a run on the same thread"
    session.close()


def test_a_close_from_another_thread_waits_for_the_run() -> None:
    session, program = Session(TINY, cache_dir=False), adder()
    closing = threading.Thread(target=session.close)

    def begin() -> None:
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()

    session.device.watch(Calls(begin))
    assert np.array_equal(session.run(program, {"x0": values()}).outputs["y0"], values() + 1)
    closing.join(30)
    assert not closing.is_alive()
    assert np.array_equal(session.run(program, {"x0": values()}).outputs["y0"], values() + 1)


def calls_in(work: Callable[[], object], stop_at: int = 0) -> int:
    """Return the number of npusim functions called; a keyboard interrupt is raised in number ``stop_at``."""
    count = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        if event == "call" and "/npusim/" in frame.f_code.co_filename:
            count += 1
            if count == stop_at:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("other", [False, True], ids=["alone", "with another thread"])
def test_an_interrupt_anywhere_in_a_run_leaves_a_session_that_works(other: bool) -> None:
    program, x = adder(), values()

    def run(session: Session) -> None:
        assert np.array_equal(session.run(program, {"x0": x}).outputs["y0"], x + 1)

    fresh = Session(TINY, cache_dir=False)
    total = calls_in(lambda: run(fresh))
    for stop_at in range(1, total, 37 if other else 11):
        session = Session(TINY, cache_dir=False)
        threads = [threading.Thread(target=run, args=(session,)) for _ in range(other)]
        for thread in threads:
            thread.start()
        # The other thread may have left this one less to do than it takes alone.
        with contextlib.suppress(KeyboardInterrupt) if other else pytest.raises(KeyboardInterrupt):
            calls_in(lambda: run(session), stop_at)  # noqa: B023
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        run(session)
        session.close()


def test_what_is_for_any_thread_says_so() -> None:
    assert all("Thread-safe" in (kind.__doc__ or "") for kind in (Session, npusim.runtime.State, Driver))
    assert "calls from other threads raise UsageError" in " ".join((NpuDevice.__doc__ or "").split())
