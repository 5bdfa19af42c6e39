"""Small jobs on the thread that submits them."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from npusim.errors import DeviceFaultError
from npusim.isa.base import region
from npusim.program import FIRST_IO, Program
from npusim.runtime import Executor, Job, Request
from tests.support.programs.streams import Stream, copy, gather, round_trip
from tests.support.programs.timed_jobs import TINY

X = np.arange(1000, dtype=np.uint8) % 251


@pytest.fixture
def executor() -> Iterator[Executor]:
    with Executor(TINY) as executor:
        yield executor


def made_for(executor: Executor, program: Program) -> Program:
    return dataclasses.replace(program, config_fingerprint=executor.config.fingerprint())


def elsewhere(work: Callable[[], Any]) -> Any:
    """Run ``work()`` on a thread that is not the main one, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return results[0]


def test_a_small_job_is_done_when_submit_returns(executor: Executor) -> None:
    program = made_for(executor, round_trip())
    where: list[int] = []

    def work() -> tuple[bool, int]:
        job = executor.submit(Request(program, {"x0": X}), here=True)
        done = job.done()
        job.add_done_callback(lambda _: where.append(threading.get_ident()))
        assert (job.wait().outputs["y0"] == X).all()
        return done, threading.get_ident()

    assert executor.submit(Request(program, {"x0": X})).wait().outputs["y0"][5] == 5
    done, caller = elsewhere(work)
    assert done
    assert where == [caller]


def test_times_are_the_same(executor: Executor) -> None:
    program = made_for(executor, round_trip())

    def course(here: bool) -> list[tuple[int, ...]]:
        with Executor(TINY) as fresh:
            done = [elsewhere(lambda: fresh.submit(Request(program, {"x0": X}), here=here).wait()) for _ in range(3)]
        return [(job.time_ps, job.queued_ps, job.host_ps, job.total_ps) for job in done]

    assert course(True) == course(False)


def test_the_main_thread_hands_its_jobs_over(executor: Executor) -> None:
    assert not executor._worker.lend(lambda: None)
    assert elsewhere(lambda: executor._worker.lend(lambda: None))


def long_program(executor: Executor) -> Program:
    """Return copies that take longer than the steps a submitting thread executes."""
    stream = Stream()
    for _ in range(300):
        stream.dma(copy(0, region(FIRST_IO), 4096))
    stream.dma(copy(region(FIRST_IO + 1), 0, 4096))
    return made_for(executor, stream.program([4096], [4096]))


def test_a_job_that_takes_long_is_left_to_the_executor(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.runtime.executor.SHORT_PS", 10**12)
    program = long_program(executor)
    x = np.ones(4096, np.uint8)
    executor.submit(Request(program, {"x0": x})).wait(30)

    def work() -> tuple[bool, bytes]:
        job = executor.submit(Request(program, {"x0": x}), here=True)
        done = job.done()
        return done, job.wait(30).outputs["y0"].tobytes()

    assert elsewhere(work) == (False, x.tobytes())


def test_a_job_that_is_not_known_to_be_short_is_handed_over(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[object] = []
    monkeypatch.setattr(executor._worker, "lend", lambda message: bool(lent.append(message)))
    x = np.ones(4096, np.uint8)
    short, long = made_for(executor, round_trip()), long_program(executor)
    for count in (0, 1):
        elsewhere(lambda: executor.submit(Request(short, {"x0": X}), here=True).wait(30))
        elsewhere(lambda: executor.submit(Request(long, {"x0": x}), here=True).wait(30))
        assert len(lent) == count


def test_jobs_of_one_thread_keep_their_order(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternating jobs that are handed over and jobs executed on this thread."""
    program = made_for(executor, round_trip())
    admit, admitted = executor._dispatcher.admit, list[Job]()

    def noted(job: Job) -> None:
        admitted.append(job)
        admit(job)

    monkeypatch.setattr(executor._dispatcher, "admit", noted)

    def work() -> list[Job]:
        jobs = []
        for number in range(200):
            jobs.append(executor.submit(Request(program, {"x0": X}), here=number % 3 != 0))
            if number % 20 == 0:
                jobs[-1].wait(30)
        return jobs

    jobs = elsewhere(work)
    for job in jobs:
        job.wait(30)
    assert admitted == jobs


def test_many_threads(executor: Executor) -> None:
    program, wrong = made_for(executor, round_trip()), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x = rng.integers(0, 256, 1000, np.uint8)
            done = executor.submit(Request(program, {"x0": x}), here=bool(rng.integers(2))).wait(30)
            if not (done.outputs["y0"] == x).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


class Local:
    """An object referenced only by a frame of the caller."""


@pytest.mark.parametrize("way", ["unplugged", "fault"])
def test_what_went_wrong_holds_nothing_of_the_caller(executor: Executor, way: str) -> None:
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO), 4))
    stream.dma(gather(8, region(FIRST_IO), 0, 1, 4), loaded)  # the byte with the index in the input
    program = made_for(executor, stream.program([4], [4]))
    executor.submit(Request(program, {"x0": np.zeros(4, np.uint8)})).wait()

    def work() -> tuple[Job, weakref.ref[Local]]:
        local = Local()
        if way == "unplugged":
            executor.device.unplug()
        job = executor.submit(Request(program, {"x0": np.full(4, 100, np.uint8)}), here=True)
        with pytest.raises(DeviceFaultError):
            job.wait(30)
        return job, weakref.ref(local)

    job, kept = elsewhere(work)
    gc.collect()
    assert kept() is None
    assert job.done()
