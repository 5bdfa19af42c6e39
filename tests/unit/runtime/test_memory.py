"""Device memory behind an executor: buffers, programs that stay or are evicted, counters of transfers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from npusim.errors import DeviceMemoryError, UsageError
from npusim.program import Program
from npusim.runtime import DeviceBuffer, Executor, Job, Priority, Request
from tests.support.programs.executor_jobs import SIZE, TINY, adder, request, run, values

SMALL = TINY.with_(**{"dram.bytes": "1 MiB"})


@pytest.fixture
def small() -> Iterator[Executor]:
    with Executor(SMALL) as executor:
        yield executor


def heavy(constant: int, slow: int = 0) -> Program:
    """Return a program that uses more than a third of the small device's free memory while it runs."""
    return adder(constant, slow=slow, config=SMALL, scratch=300_000)


# Buffers


def test_buffers_hold_what_was_written(executor: Executor) -> None:
    with executor.buffer(100) as buffer:
        executor.write(buffer, bytes(range(100)))
        executor.write(buffer, b"\xaa\xbb", 98)
        assert executor.read(buffer, 4, 96) == bytes((96, 97, 0xAA, 0xBB))
        assert executor.read(buffer, 0, 100) == b""
        executor.write(buffer, np.arange(4, dtype=np.int16).data)
        assert executor.read(buffer, 8) == np.arange(4, dtype=np.int16).tobytes()
    counters = executor.counters
    assert (counters.buffer_write_bytes, counters.buffer_read_bytes) == (110, 12)


def test_transfers_take_the_links_time(executor: Executor) -> None:
    buffer = executor.buffer(8000)
    before = executor.device.now_ps
    executor.write(buffer, bytes(8000))
    assert executor.device.now_ps - before == TINY.host.link_latency_ps + 1_000_000  # at 8 bytes a ns


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 101), (100, 1), (-1, 2), (0, -1), (101, 0)])
def test_bytes_outside_of_a_buffer(executor: Executor, offset: int, nbytes: int) -> None:
    buffer = executor.buffer(100)
    with pytest.raises(UsageError, match="of a device buffer of 100 bytes"):
        executor.read(buffer, nbytes, offset)
    if nbytes >= 0:
        with pytest.raises(UsageError, match="of a device buffer of 100 bytes"):
            executor.write(buffer, bytes(nbytes), offset)
    with pytest.raises(UsageError, match="size must be >= 0 bytes, got -1"):
        executor.buffer(-1)


def test_a_released_buffer_is_of_no_use(executor: Executor) -> None:
    free = executor.free_bytes
    buffer = executor.buffer(SIZE)
    assert executor.free_bytes < free
    buffer.release()
    buffer.release()
    assert executor.free_bytes == free
    for use in (
        lambda: executor.read(buffer, 1),
        lambda: executor.write(buffer, b"1"),
        lambda: run(executor, adder(), buffer),
        lambda: executor.submit(Request(adder(), {"x0": values()}, {"y0": buffer})),
    ):
        with pytest.raises(UsageError, match="used after its release"):
            use()


def test_a_buffer_that_nobody_holds_is_released(executor: Executor) -> None:
    free = executor.free_bytes
    executor.buffer(SIZE)
    assert executor.free_bytes == free


def test_a_job_keeps_its_buffers_until_its_end(executor: Executor) -> None:
    """Observed from within, where the order of events is certain."""
    source, target = executor.buffer(SIZE), executor.buffer(SIZE)
    executor.write(source, values().data)
    block, dispatcher = source.block, executor._dispatcher
    seen: list[bool] = []

    def while_it_runs(_: Job) -> None:
        seen.extend((block.dropped, block.users == 1, dispatcher.memory.allocate(SIZE).address != block.address))

    with executor.paused():
        executor.submit(request(adder(), values(), Priority.HIGH)).add_done_callback(while_it_runs)
        job = executor.submit(Request(adder(slow=50), {"x0": source}, {"y0": target}))
        source.release()
    job.wait(60)
    assert seen == [True, True, True]
    assert executor.read(target, SIZE) == (values() + 1).tobytes()
    assert executor.buffer(SIZE).block.address == block.address


def test_a_chain_through_device_memory_moves_less_and_is_faster(executor: Executor) -> None:
    first, second = adder(1), adder(2)
    for program in (first, second):
        run(executor, program, values())
    middle = run(executor, first, values())
    last = run(executor, second, middle.outputs["y0"])
    between = executor.buffer(SIZE)
    kept = executor.submit(Request(first, {"x0": values()}, {"y0": between})).wait(60)
    chained = run(executor, second, between)
    assert np.array_equal(chained.outputs["y0"], last.outputs["y0"])
    assert kept.outputs == {}
    assert (kept.host.output_bytes, chained.host.input_bytes) == (0, 0)
    assert (middle.host.output_bytes, last.host.input_bytes) == (SIZE, SIZE)
    assert kept.total_ps < middle.total_ps


# Programs


def test_constants_and_code_are_written_once(executor: Executor) -> None:
    program = adder()
    first, second = (run(executor, program, values()).host for _ in range(2))
    assert (first.constant_bytes, first.code_bytes) == (SIZE, len(program.code))
    assert (second.constant_bytes, second.code_bytes) == (0, 0)
    executor.unload(program)
    assert run(executor, program, values()).host == first


def test_a_program_leaves_when_the_last_job_that_was_submitted_with_it_has_ended(executor: Executor) -> None:
    free, program = executor.free_bytes, adder(slow=20)
    with executor.paused():
        jobs = [executor.submit(request(program, values(number))) for number in range(3)]
        executor.unload(program)
    for number, job in enumerate(jobs):
        assert np.array_equal(job.wait(60).outputs["y0"], values(number) + 1)
    assert jobs[2].wait().host.code_bytes == 0  # it did not leave in between
    assert executor.free_bytes == free


def test_a_pinned_program_has_its_constants_before_its_first_run(executor: Executor) -> None:
    program = adder()
    executor.pin(program)
    assert executor.counters.constant_bytes == SIZE
    assert run(executor, program, values()).host.constant_bytes == 0
    with executor.paused():
        job = executor.submit(request(program, values()))
        executor.unload(program)
    executor.pin(program)  # wanted again before the job has ended, or just after
    job.wait(60)
    assert run(executor, program, values()).host.constant_bytes == 0
    executor.unpin(program)
    executor.unpin(program)  # one too many is harmless


def test_idle_programs_make_room(small: Executor) -> None:
    programs = [heavy(number) for number in range(4)]
    for _ in range(2):
        for number, program in enumerate(programs):
            assert np.array_equal(run(small, program, values()).outputs["y0"], values() + number)
    buffer = small.buffer(700_000)  # more than is left beside any of them
    buffer.release()
    assert np.array_equal(run(small, programs[0], values()).outputs["y0"], values())


def test_pinned_programs_stay(small: Executor) -> None:
    pinned, other = heavy(1), heavy(2)
    small.pin(pinned)
    run(small, pinned, values())
    run(small, other, values())
    with pytest.raises(DeviceMemoryError):
        small.buffer(1 << 20)
    assert run(small, pinned, values()).host.constant_bytes == 0
    small.unpin(pinned)
    with pytest.raises(DeviceMemoryError):
        small.buffer(1 << 20)  # evicts whatever it may before it gives up
    assert run(small, pinned, values()).host.constant_bytes == SIZE


def test_kept_programs_come_with_their_first_job_and_stay(small: Executor) -> None:
    kept, other = heavy(1), heavy(2)
    small.keep(kept)
    assert run(small, kept, values()).host.constant_bytes == SIZE
    run(small, other, values())
    with pytest.raises(DeviceMemoryError):
        small.buffer(1 << 20)
    assert run(small, kept, values()).host.constant_bytes == 0
    small.unpin(kept)
    with pytest.raises(DeviceMemoryError):
        small.buffer(1 << 20)
    assert run(small, kept, values()).host.constant_bytes == SIZE


def test_a_job_waits_for_memory_that_a_running_one_has(small: Executor) -> None:
    """Contexts take 2 x 128 KiB of the 1 MiB: two of these jobs fit, a third does not."""
    with small.paused():
        jobs = [
            small.submit(request(heavy(number, slow=100), values(number), Priority(number))) for number in (2, 1, 0)
        ]
    for number, job in zip((2, 1, 0), jobs, strict=True):
        done = job.wait(60)
        assert np.array_equal(done.outputs["y0"], values(number) + number)
        assert not done.host.preemptions
    assert jobs[2].wait().queued_ps > jobs[0].wait().time_ps  # it could not even be prepared before


def test_a_program_that_never_fits(small: Executor) -> None:
    free = small.free_bytes
    with pytest.raises(DeviceMemoryError, match="scratch: 2097152 bytes of device memory required"):
        run(small, adder(config=SMALL, scratch=2 << 20), values())
    assert np.array_equal(run(small, heavy(3), values()).outputs["y0"], values() + 3)
    small.unload(heavy(3))
    assert free - small.free_bytes < 400_000


def test_without_room_for_contexts_jobs_run_one_after_another(caplog: pytest.LogCaptureFixture) -> None:
    config = TINY.with_(**{"dram.bytes": "1 MiB", "sram.bytes": "512 KiB"})
    with Executor(config) as executor:
        assert not executor.preemption
        assert "jobs do not preempt each other: context area" in caplog.text
        slow = adder(slow=100, config=config)
        with executor.paused():
            jobs = [executor.submit(request(slow, values(), priority)) for priority in Priority]
        assert [job.wait(60).suspended_ps for job in jobs] == [0, 0, 0]


def test_a_buffer_belongs_to_its_executor(executor: Executor) -> None:
    buffer: DeviceBuffer = executor.buffer(10)
    assert buffer.executor is executor
    assert buffer.nbytes == 10
    with Executor(TINY) as other, pytest.raises(UsageError, match="belongs to another executor"):
        other.read(buffer, 1)
