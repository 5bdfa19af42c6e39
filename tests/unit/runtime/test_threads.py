"""Many threads on one executor: every job is settled once, and everything is released."""

from __future__ import annotations

import functools
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from npusim.errors import DeadlineError, DeviceFaultError, JobAbortedError, UsageError
from npusim.faults import AtCommand, AtInterrupt, Fail, Fault, Hang, MessageFault
from npusim.program import Program
from npusim.runtime import DeviceBuffer, Executor, Job, Priority, Request
from tests.support.programs.executor_jobs import SIZE, TINY, adder, request, run, values
from tests.support.waits_and_leaks import descriptors, in_threads, until

THREADS = 16
JOBS = 30


class Client:
    """The jobs of one thread: arrays and buffers in and out, deadlines, aborts, callbacks."""

    def __init__(self, executor: Executor, programs: list[Program], seed: int) -> None:
        self.executor = executor
        self.programs = programs
        self.random = random.Random(seed)
        self.settled: Counter[Job] = Counter()
        self.outcomes: Counter[str] = Counter()

    def __call__(self) -> None:
        for number in range(JOBS):
            self.one(number)

    def one(self, number: int) -> None:
        draw, index = self.random, self.random.randrange(len(self.programs))
        x = values(draw.randrange(100))
        source = self.filled(x) if draw.random() < 0.3 else None
        target = self.executor.buffer(SIZE) if draw.random() < 0.3 else None
        job = self.executor.submit(
            Request(
                self.programs[index], {"x0": x if source is None else source}, {} if target is None else {"y0": target},
                Priority(draw.randrange(3)), draw.choice((None, None, 10**6, 10**9)),
            )
        )  # fmt: skip
        job.add_done_callback(lambda done: self.settled.update([done]))
        if source is not None:
            source.release()
        if draw.random() < 0.1:
            job.abort()
        if draw.random() < 0.05:
            self.executor.unload(self.programs[index])
        self.outcomes[self.outcome(job, x + index, target)] += 1

    def filled(self, x: np.ndarray) -> DeviceBuffer:
        buffer = self.executor.buffer(SIZE)
        self.executor.write(buffer, x.data)
        return buffer

    def outcome(self, job: Job, wanted: np.ndarray, target: DeviceBuffer | None) -> str:
        try:
            done = job.wait(120)
        except (DeadlineError, JobAbortedError) as error:
            return type(error).__name__
        result = done.outputs["y0"] if target is None else np.frombuffer(self.executor.read(target, SIZE), np.uint8)
        return "right" if np.array_equal(result, wanted) else "wrong"


def test_sixteen_threads_with_all_kinds_of_jobs() -> None:
    gc.collect()
    files = descriptors()
    executor = Executor(TINY)
    free = executor.free_bytes
    programs = [adder(number, slow=3 * number) for number in range(4)]
    clients = [Client(executor, programs, seed) for seed in range(THREADS)]
    assert in_threads(list(clients)) == []
    total = sum((client.outcomes for client in clients), Counter[str]())
    assert set(total) <= {"right", "DeadlineError", "JobAbortedError"}
    assert total["right"] > THREADS * JOBS // 4
    executor.free_bytes  # noqa: B018 - everything that came before has been done
    settled = sum((client.settled for client in clients), Counter[Job]())
    assert len(settled) == THREADS * JOBS
    assert set(settled.values()) == {1}
    for program in programs:
        executor.unload(program)
    for client in clients:
        client.settled.clear()
    settled.clear()
    gc.collect()
    assert executor.free_bytes == free
    executor.close()
    assert not executor._worker._thread.is_alive()
    until(lambda: descriptors() <= files)


def test_faults_that_come_and_go_hurt_only_the_jobs_that_they_meet() -> None:
    """Units hang, transfers fail, interrupts get lost, memory is short: results are right or named errors."""
    small = TINY.with_(**{"dram.bytes": "1 MiB"})
    executor = Executor(small, timeout_ps=10**12)
    free, over = executor.free_bytes, threading.Event()
    programs = [adder(number, slow=40 * number, config=small, scratch=120_000 * number) for number in range(3)]
    outcomes: Counter[str] = Counter()

    def client(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(25):
            index, x = draw.randrange(3), values(draw.randrange(100))
            try:
                done = run(executor, programs[index], x, priority=Priority(draw.randrange(3)))
            except DeviceFaultError as error:
                outcomes[error.code] += 1
            else:
                outcomes["right" if np.array_equal(done.outputs["y0"], x + index) else "wrong"] += 1

    def trouble() -> None:
        draw = random.Random(1)
        while not over.is_set():
            executor.faults.clear()
            faults = [
                Fault(AtCommand(command=1, unit="core0.vector"), Hang(hang="core0.vector")),
                Fault(AtCommand(command=1 + draw.randrange(6), unit="core0.dma0"), Fail(fail="core0.dma0")),
                Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose")),
            ]
            executor.faults.add([fault for fault in faults if draw.random() < 0.3])
            over.wait(0.001)

    troubled = threading.Thread(target=trouble)
    troubled.start()
    assert in_threads([functools.partial(client, seed) for seed in range(6)]) == []
    over.set()
    troubled.join()
    assert set(outcomes) <= {"right", "TIMEOUT", "DMA"}
    assert sum(outcomes.values()) == 6 * 25
    executor.faults.clear()
    for number, program in enumerate(programs):
        assert np.array_equal(run(executor, program, values()).outputs["y0"], values() + number)
        executor.unload(program)
    assert executor.free_bytes == free
    executor.close()


def test_an_executor_is_closed_under_its_clients() -> None:
    executor = Executor(TINY)
    program = adder(slow=100)
    outcomes: Counter[str] = Counter()
    begun = threading.Event()

    def client() -> None:
        try:
            while True:
                run(executor, program, values())
                begun.set()
                outcomes["done"] += 1
        except (JobAbortedError, UsageError) as error:
            outcomes[type(error).__name__] += 1

    def closer() -> None:
        begun.wait(60)
        executor.close()

    assert in_threads([*[client] * 8, closer]) == []
    assert outcomes["JobAbortedError"] + outcomes["UsageError"] == 8
    assert outcomes["done"] > 0


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="threads have no clocks of their own here")
def test_an_idle_executor_takes_no_time() -> None:
    with Executor(TINY) as executor:
        run(executor, adder(), values())
        identity = executor._worker._thread.ident
        assert identity is not None
        clock = time.pthread_getcpuclockid(identity)

        def busy_s() -> float:
            before = time.clock_gettime(clock)
            time.sleep(0.2)
            return time.clock_gettime(clock) - before

        until(lambda: busy_s() < 0.01)  # not at once: some work follows the last job
        device = executor.device.now_ps
        assert busy_s() < 0.01
        assert executor.device.now_ps == device


def _end_without_closing(text: str) -> subprocess.CompletedProcess[str]:
    script = f"""
import os
from npusim.errors import UsageError
from npusim.runtime import Executor
from tests.support.programs.executor_jobs import TINY, adder, request, run, values
executor = Executor(TINY)
run(executor, adder(), values())
{text}
"""
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("text", ["", "executor.submit(request(adder(slow=3000), values()))"])
def test_it_does_not_keep_the_process_alive(text: str) -> None:
    ended = _end_without_closing(text)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_is_told() -> None:
    ended = _end_without_closing(
        """
child = os.fork()
if child == 0:
    try:
        executor.submit(request(adder(), values()))
    except UsageError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
run(executor, adder(), values())
"""
    )
    assert ended.returncode == 0, ended.stderr


def test_a_higher_job_that_comes_later_does_not_wait_for_a_long_one() -> None:
    """It is submitted from a callback after the long job has started, independent of the speed of threads."""
    ended: list[str] = []
    with Executor(TINY) as executor:
        later: list[Job] = []

        def submit_another(_: Job) -> None:
            later.append(executor.submit(request(adder(2), values(), Priority.HIGH)))
            later[0].add_done_callback(lambda _: ended.append("high"))

        with executor.paused():
            slow = executor.submit(request(adder(slow=500), values(), Priority.LOW))
            slow.add_done_callback(lambda _: ended.append("low"))
            executor.submit(request(adder(1), values(), Priority.HIGH)).add_done_callback(submit_another)
        assert slow.wait(60).host.preemptions == 1
        assert np.array_equal(later[0].wait(60).outputs["y0"], values() + 2)
        until(lambda: len(ended) == 2)  # waiting threads may be notified before callbacks
        assert ended == ["high", "low"]
