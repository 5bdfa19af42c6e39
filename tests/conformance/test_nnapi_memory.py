"""Memory domains: driver buffers as arguments, and their effect on the counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi import memory
from hal.nnapi.types import BufferDesc, BufferRole, ErrorStatus
from npusim.driver import HostCounters
from npusim.faults import AtJob, Fail, Fault
from tests.support.nnapi.client import prepared_model
from tests.support.nnapi.memory_requests import (
    EXECUTORS,
    FAILURE,
    INVALID,
    NBYTES,
    NONE,
    SHAPE,
    Bench,
    Result,
    check,
    contents_of,
    fill,
    numbers,
    pool_of,
    request_for,
    run_async,
    run_sync,
    two_results,
)


@EXECUTORS
def test_results_are_those_of_shared_memory(bench: Bench, prepared: Any, execute: Callable[..., Result]) -> None:
    first, second = numbers(1), numbers(2)
    inputs = [bench.allocate(prepared, [index]) for index in range(2)]
    outputs = [bench.allocate(prepared, [], [index]) for index in range(2)]
    for buffer, data in zip(inputs, (first, second), strict=True):
        fill(buffer, data)
    check(execute(prepared, request_for(inputs, outputs)), NONE)
    assert np.array_equal(contents_of(outputs[0]), first + second)
    assert np.array_equal(contents_of(outputs[1]), first * second)


@EXECUTORS
def test_a_buffer_lives_through_its_states(bench: Bench, prepared: Any, execute: Callable[..., Result]) -> None:
    one, two = pool_of(numbers(1)), pool_of(numbers(2))
    result, other = memory.allocate_ashmem(NBYTES), memory.allocate_ashmem(NBYTES)
    buffer = bench.allocate(prepared, [0], [0])
    as_input, as_output = request_for([buffer, two], [result, other]), request_for([one, two], [buffer, other])
    check(execute(prepared, as_input), FAILURE)
    check(execute(prepared, as_output), NONE)
    check(execute(prepared, as_input), NONE)
    assert np.array_equal(result.map().view(np.float32).reshape(SHAPE), numbers(1) + numbers(2) + numbers(2))
    executor = bench.device._engine.executor
    faults, channels = executor.faults, [unit for unit in executor.device.machine.layout.names if ".dma" in unit]
    faults.add([Fault(AtJob(job=1), Fail(fail=channel)) for channel in channels])
    check(execute(prepared, as_output), FAILURE)
    faults.clear()
    check(execute(prepared, as_input), FAILURE)  # its contents are gone
    check(execute(prepared, as_output), NONE)
    check(execute(prepared, as_input), NONE)
    for pool in (one, two, result, other):
        pool.close()


@EXECUTORS
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("0m", "mm"),  # no token
        ("?m", "mm"),  # an unknown token
        ("fm", "mm"),  # of another prepared model
        ("mi", "mm"),  # for input 0, used as input 1
        ("mm", "mi"),  # as output 1
        ("mm", "im"),  # as output 0
        ("om", "mm"),  # for output 0, used as input 0
        ("mm", "mo"),  # as output 1
        ("bm", "bm"),  # at once as input and output
        ("mm", "bb"),  # as two outputs
    ],
)
def test_wrong_uses(bench: Bench, prepared: Any, execute: Callable[..., Result], inputs: str, outputs: str) -> None:
    foreign = prepared_model(bench.device, two_results(*SHAPE))
    pools = [pool_of(numbers(index)) for index in range(4)]
    places = {
        "0": 0,
        "?": 100,
        "f": bench.allocate(foreign, [0]),
        "i": bench.allocate(prepared, [0]),
        "o": bench.allocate(prepared, [], [0]),
        "b": bench.allocate(prepared, [0, 1], [0, 1]),
    }
    for kind in "fib":
        fill(places[kind], numbers(9))
    remaining = iter(pools)
    asked = [[next(remaining) if kind == "m" else places[kind] for kind in side] for side in (inputs, outputs)]
    check(execute(prepared, request_for(*asked)), INVALID)
    assert np.array_equal(contents_of(places["b"]), numbers(9))  # refused calls changed nothing
    for pool in pools:
        pool.close()


@EXECUTORS
def test_one_buffer_may_be_two_inputs(bench: Bench, prepared: Any, execute: Callable[..., Result]) -> None:
    buffer = bench.allocate(prepared, [0, 1])
    fill(buffer, numbers(3))
    with memory.allocate_ashmem(NBYTES) as sums, memory.allocate_ashmem(NBYTES) as squares:
        check(execute(prepared, request_for([buffer, buffer], [sums, squares])), NONE)
        assert np.array_equal(squares.map().view(np.float32).reshape(SHAPE), numbers(3) ** 2)


@EXECUTORS
def test_dimensions_that_are_not_those_of_the_buffer(
    bench: Bench, open_shape: Any, execute: Callable[..., Result]
) -> None:
    buffer = bench.allocate(open_shape, [0], [0])
    fill(buffer, numbers(1), SHAPE)
    twice = (2, *SHAPE[1:])
    pools = [memory.allocate_ashmem(2 * NBYTES) for _ in range(3)]
    check(execute(open_shape, request_for([buffer, pools[0]], pools[1:], twice)), INVALID)
    fixed = bench.allocate(open_shape, [], [0], SHAPE)
    check(execute(open_shape, request_for(pools[:2], [fixed, pools[2]], twice)), INVALID)
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("execute", [run_sync, run_async])
def test_a_result_that_does_not_fit(bench: Bench, open_shape: Any, execute: Callable[..., Result]) -> None:
    fixed = bench.allocate(open_shape, [], [0], SHAPE)
    other = bench.allocate(open_shape, [], [1])
    pools = [memory.allocate_ashmem(2 * NBYTES) for _ in range(2)]
    request = request_for(pools, [fixed, other], (2, *SHAPE[1:]))
    for argument in request.outputs:
        argument.dimensions = ()
    check(execute(open_shape, request), FAILURE)
    with memory.allocate_ashmem(NBYTES) as pool:
        assert fixed.copyTo(pool) is FAILURE
    for pool in pools:
        pool.close()


@EXECUTORS
def test_one_buffer_for_results_of_any_size(bench: Bench, open_shape: Any, execute: Callable[..., Result]) -> None:
    buffer, other = bench.allocate(open_shape, [0], [0]), bench.allocate(open_shape, [1], [1])
    for batch in (3, 1, 2):
        shape = (batch, *SHAPE[1:])
        first, second = numbers(batch, shape), numbers(batch + 9, shape)
        with pool_of(first) as one, pool_of(second) as two:
            check(execute(open_shape, request_for([one, two], [buffer, other], shape)), NONE)
        with memory.allocate_ashmem(first.nbytes) as sums, memory.allocate_ashmem(first.nbytes) as products:
            check(execute(open_shape, request_for([buffer, other], [sums, products], shape)), NONE)
            total = sums.map().view(np.float32).reshape(shape)
            assert np.array_equal(total, (first + second) + first * second)


def test_a_chain_through_buffers_moves_less_and_takes_less_time(bench: Bench, prepared: Any) -> None:
    steps, state, step = 5, numbers(1), numbers(2)

    def run(places: Sequence[Any], other: Any) -> tuple[HostCounters, int]:
        before, driver = bench.counters(), 0
        for index in range(steps):
            request = request_for([places[index % 2], fixed], [places[(index + 1) % 2], other])
            status, _, timing = prepared.executeSynchronously_1_3(request, 1, None, None)
            assert status is NONE
            driver += timing.timeInDriver
        return bench.counters().since(before), driver

    fixed = bench.allocate(prepared, [1])
    fill(fixed, step)
    unused = bench.allocate(prepared, [], [1])
    buffers = [bench.allocate(prepared, [0], [0]) for _ in range(2)]
    fill(buffers[0], state)
    run(buffers, unused)  # the first one loads the program
    fill(buffers[0], state)
    here, quick = run(buffers, unused)
    pools = [pool_of(state), memory.allocate_ashmem(NBYTES)]
    there, slow = run(pools, unused)
    expected = state
    for _ in range(steps):
        expected = expected + step
    assert np.array_equal(contents_of(buffers[1]), expected)
    assert np.array_equal(pools[1].map().view(np.float32).reshape(SHAPE), expected)
    assert (here.written_bytes, here.read_bytes, here.mappings) == (0, 0, 0)
    assert (there.input_bytes, there.output_bytes, there.mappings) == (steps * NBYTES, steps * NBYTES, 2 * steps)
    assert quick < slow
    for pool in pools:
        pool.close()


def test_dropped_buffers_give_their_memory_back(bench: Bench, prepared: Any) -> None:
    free = bench.device._engine.executor.free_bytes
    buffers = [bench.allocate(prepared, [0], [0]) for _ in range(8)]
    assert bench.device._engine.executor.free_bytes <= free - 8 * NBYTES
    del buffers
    assert bench.device._engine.executor.free_bytes == free


def test_a_device_without_room(bench: Bench) -> None:
    rows = bench.device._engine.executor.free_bytes // 4 // 1024 + 1
    prepared = prepared_model(bench.device, two_results(0, 1024))
    roles = [BufferRole(0, 0)], []
    assert bench.device.allocate(BufferDesc([rows, 0]), [prepared], *roles) == (FAILURE, None, 0)
    assert bench.device.allocate(BufferDesc([2, 0]), [prepared], *roles)[0] is NONE


def test_without_a_device(bench: Bench, prepared: Any) -> None:
    gone = ErrorStatus.DEVICE_UNAVAILABLE
    buffer = bench.allocate(prepared, [0])
    fill(buffer, numbers(1))
    bench.device._engine.executor.unplug()
    assert bench.device.allocate(BufferDesc(), [prepared], [BufferRole(0, 0)], []) == (gone, None, 0)
    with memory.allocate_ashmem(NBYTES) as pool:
        assert buffer.copyTo(pool) is gone
        assert buffer.copyFrom(pool, ()) is gone


def test_misuse_from_many_threads_ends(bench: Bench, open_shape: Any) -> None:
    buffers = [bench.allocate(open_shape, [0, 1], [0, 1]) for _ in range(2)]
    seen: set[ErrorStatus] = set()

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        with memory.allocate_ashmem(2 * NBYTES) as pool, memory.allocate_ashmem(NBYTES) as small:
            for _ in range(12):
                chosen = buffers[int(generator.integers(2))]
                shape = (int(generator.integers(1, 3)), *SHAPE[1:])
                places = [[pool, chosen][int(generator.integers(2))] for _ in range(4)]
                seen.add(run_sync(open_shape, request_for(places[:2], places[2:], shape))[0])
                seen.add(chosen.copyFrom(small, SHAPE))
                seen.add(chosen.copyTo(small))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert seen <= {NONE, INVALID, FAILURE}
    fill(buffers[0], numbers(4), SHAPE)
    assert np.array_equal(contents_of(buffers[0]), numbers(4))
