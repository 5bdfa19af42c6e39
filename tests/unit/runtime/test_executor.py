"""The executor as seen by one client."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

from npusim.driver import HostCounters
from npusim.errors import (
    DeviceGoneError,
    DeviceMemoryError,
    InputError,
    JobAbortedError,
    QueueFullError,
    UsageError,
)
from npusim.runtime import Executor, Job, Request
from npusim.units import bytes_to_ps
from tests.support.programs.executor_jobs import SIZE, TINY, adder, request, run, values
from tests.support.programs.streams import round_trip

HOST = TINY.host
LONG = 400


# Results and times


def test_a_job_gives_what_the_program_computes(executor: Executor) -> None:
    done = run(executor, adder(3), values())
    assert list(done.outputs) == ["y0"]
    assert np.array_equal(done.outputs["y0"], values() + 3)
    assert done.host == HostCounters(
        input_bytes=SIZE, constant_bytes=SIZE, code_bytes=len(adder().code), output_bytes=SIZE, jobs=1
    )


def test_the_parts_of_the_time_add_up(executor: Executor) -> None:
    program = adder()
    run(executor, program, values())
    done = run(executor, program, values())
    assert done.time_ps == executor.estimate(program) == executor.device.last_job.time_ps  # type: ignore[union-attr]
    assert done.cycles == -(-done.time_ps // 1000)
    assert done.queued_ps == done.suspended_ps == 0
    assert done.total_ps == done.time_ps + done.queued_ps + done.suspended_ps + done.host_ps
    copies = [SIZE, 32, 64]  # input, completion record, ring entry
    to_device = sum(HOST.link_latency_ps + bytes_to_ps(size, HOST.link_bandwidth) for size in copies)
    from_device = sum(HOST.link_latency_ps + bytes_to_ps(size, HOST.link_bandwidth) for size in (32, SIZE))
    registers = 3 * HOST.mmio_ps  # tail, doorbell, the interrupt's bit
    assert done.host_ps == HOST.submit_ps + to_device + registers + HOST.irq_ps + from_device
    assert done.host.written_bytes == done.host.read_bytes == SIZE


def test_the_same_requests_take_the_same_picoseconds() -> None:
    def times() -> list[tuple[int, ...]]:
        with Executor(TINY) as executor:
            program = adder(slow=3)
            buffer = executor.buffer(SIZE)
            executor.write(buffer, values().data)
            jobs = [run(executor, program, x) for x in (values(1), values(2), buffer)]
            return [(job.cycles, job.time_ps, job.queued_ps, job.host_ps, job.total_ps) for job in jobs]

    assert times() == times()


def test_mappings_take_the_hosts_time(executor: Executor) -> None:
    program = adder()
    run(executor, program, values())
    without, mapped = run(executor, program, values()), run(executor, program, values(), host_mappings=3)
    assert mapped.host_ps == without.host_ps + 3 * HOST.map_ps
    assert (without.host.mappings, mapped.host.mappings) == (0, 3)
    assert executor.counters.mappings == 3


def test_timing_only_needs_no_inputs_and_moves_nothing(executor: Executor) -> None:
    program = adder()
    done = executor.submit(Request(program, timing_only=True)).wait(60)
    assert done.outputs == {}
    assert done.host.input_bytes == done.host.output_bytes == done.host.constant_bytes == 0
    assert done.time_ps == run(executor, program, values()).time_ps


def test_an_estimate_is_what_a_run_takes(executor: Executor) -> None:
    program = adder(slow=5)
    estimate = executor.estimate(program)
    assert executor.counters.jobs == 0  # tried on another device
    assert run(executor, program, values()).time_ps == estimate


# Refusals


def test_wrong_requests_are_refused_at_once(executor: Executor) -> None:
    program, small = adder(), executor.buffer(SIZE - 1)
    with pytest.raises(InputError, match="'x0' is missing"):
        executor.submit(Request(program))
    with pytest.raises(InputError, match="dtype must be uint8, got int64"):
        run(executor, program, np.zeros(SIZE, np.int64))
    with pytest.raises(UsageError, match="output 'z' is unknown; the program has y0"):
        executor.submit(Request(program, {"x0": values()}, {"z": small}))
    with pytest.raises(UsageError, match="input 'x0': needs a buffer of 256 bytes, got one of 255"):
        run(executor, program, small)
    with pytest.raises(UsageError, match="output 'y0': needs a buffer of 256 bytes, got one of 255"):
        executor.submit(Request(program, {"x0": values()}, {"y0": small}))
    with pytest.raises(UsageError, match="was compiled for another device"):
        run(executor, round_trip(SIZE), values())
    with Executor(TINY) as other, pytest.raises(UsageError, match="belongs to another executor"):
        run(executor, program, other.buffer(SIZE))
    assert executor.counters.jobs == 0
    assert executor.status == "AVAILABLE"


def test_the_queue_has_an_end() -> None:
    with Executor(TINY, queue_limit=2) as executor:
        program = adder()
        with executor.paused():
            jobs = [executor.submit(request(program, values())) for _ in range(2)]
            assert executor.status == "BUSY"
            with pytest.raises(QueueFullError, match="2 jobs wait or run; the limit is 2"):
                executor.submit(request(program, values()))
        for job in jobs:
            job.wait(60)
        assert executor.status == "AVAILABLE"
        run(executor, program, values())


def test_a_closed_executor_says_so() -> None:
    executor = Executor(TINY)
    program = adder(slow=LONG)
    with executor.paused():
        job = executor.submit(request(program, values()))
    executor.close()
    with pytest.raises(JobAbortedError, match="the executor was closed"):
        job.wait(60)
    with pytest.raises(UsageError, match="the executor is closed"):
        executor.submit(request(program, values()))
    with pytest.raises(UsageError, match="the executor is closed"):
        executor.buffer(1)
    assert executor.status == "OFFLINE"
    executor.close()


@pytest.mark.parametrize("back", [False, True])
def test_a_read_that_finds_the_device_gone_is_its_end(back: bool) -> None:
    with Executor(TINY) as executor:
        buffer = executor.buffer(SIZE)
        executor.write(buffer, bytes([7]) * SIZE)
        executor.between(executor.device.unplug)
        if back:
            executor.between(executor.device.plug)
        with pytest.raises(DeviceGoneError):
            executor.read(buffer, SIZE)
        assert executor.status == "OFFLINE"
        with pytest.raises(DeviceGoneError):
            executor.submit(request(adder(), values())).wait(60)
        with pytest.raises(DeviceGoneError):
            executor.buffer(1)


# Tickets


def _error_of(job: Job) -> BaseException:
    with pytest.raises(TimeoutError, match="not done within") as caught:
        job.wait(0.01)
    return caught.value


def test_a_ticket_is_waited_for_with_patience_or_without(executor: Executor) -> None:
    with executor.paused():
        job = executor.submit(request(adder(), values()))
        caught: list[BaseException] = []
        other = threading.Thread(target=lambda: caught.append(_error_of(job)))
        other.start()
        other.join()
        assert isinstance(caught[0], TimeoutError)
        with pytest.raises(UsageError, match="would never end"):
            job.wait()
        assert not job.done()
    assert job.wait(60) is job.wait()
    assert job.done()


def test_callbacks_are_called_once_and_may_use_the_executor(executor: Executor) -> None:
    called: list[tuple[Job, bytes]] = []
    ready = threading.Event()
    buffer = executor.buffer(SIZE)

    def callback(job: Job) -> None:
        executor.write(buffer, values(5).data)
        called.append((job, bytes(executor.read(buffer, SIZE))))
        next_one = executor.submit(request(adder(), buffer))
        with pytest.raises(UsageError, match="would never end"):
            next_one.wait()
        next_one.add_done_callback(lambda _: ready.set())

    with executor.paused():
        job = executor.submit(request(adder(), values()))
        job.add_done_callback(callback)
    assert ready.wait(60)
    assert called == [(job, values(5).tobytes())]
    late: list[Job] = []
    job.add_done_callback(late.append)
    assert late == [job]


def test_a_callback_that_fails_hurts_nobody(executor: Executor) -> None:
    called: list[Job] = []
    with executor.paused():
        job = executor.submit(request(adder(), values()))
        job.add_done_callback(lambda _: 1 // 0)
        job.add_done_callback(lambda _: sys.exit())
        job.add_done_callback(called.append)
    job.wait(60)
    run(executor, adder(), values())
    assert called == [job]
    job.add_done_callback(lambda _: 1 // 0)
    with pytest.raises(SystemExit):
        job.add_done_callback(lambda _: sys.exit())


# The thread


def test_nobody_has_to_close_an_executor() -> None:
    executor = Executor(TINY)
    buffer = executor.buffer(10)
    run(executor, adder(), values())
    gone = weakref.ref(executor)
    thread = executor._worker._thread
    del executor
    buffer.release()
    del buffer
    gc.collect()
    assert gone() is None
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("step", ["start", "finish"])
def test_the_host_has_no_memory_for_a_job(executor: Executor, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The job reports it, and the device continues."""

    def fail(*arguments: object) -> None:
        monkeypatch.undo()
        raise MemoryError

    run(executor, adder(3), values())
    monkeypatch.setattr(executor._dispatcher.driver, step, fail)
    job = executor.submit(request(adder(3), values()))
    with pytest.raises(MemoryError):
        job.wait()
    assert np.array_equal(run(executor, adder(3), values()).outputs["y0"], values() + 3)


def test_memory_runs_out_and_comes_back(executor: Executor) -> None:
    free = executor.free_bytes
    with pytest.raises(DeviceMemoryError, match="bytes of device memory required"):
        executor.buffer(free + 1)
    whole = executor.buffer(free)
    with pytest.raises(DeviceMemoryError):
        run(executor, adder(), values())
    whole.release()
    assert np.array_equal(run(executor, adder(), values()).outputs["y0"], values() + 1)
