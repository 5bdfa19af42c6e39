"""Executions: outputs, shapes, times, and invalid requests."""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from hal.nnapi import open_device
from hal.nnapi.memory import from_fd, hardware_buffer
from hal.nnapi.types import (
    NOT_MEASURED,
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    MemoryPool,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from npusim import load_config
from tests.support.nnapi.client import ExecutionCallback, prepared_model
from tests.support.nnapi.models import Case, add, add_case, chain, dense, loop

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
TOO_SMALL = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


@pytest.fixture(scope="module")
def device():
    with open_device("tiny") as opened:
        yield opened


@pytest.fixture(scope="module")
def adder(device):
    return prepared_model(device, add())


def synchronously(prepared, request, measure=1):
    return prepared.executeSynchronously_1_3(request, measure, None, None)


def asynchronously(prepared, request, measure=1):
    callback = ExecutionCallback()
    launched = prepared.execute_1_3(request, measure, None, None, callback)
    result = callback.wait()
    assert launched in (NONE, result[0])
    return result


WAYS = pytest.mark.parametrize("execute", [synchronously, asynchronously])


@WAYS
def test_a_sum(adder, execute):
    case = add_case()
    status, shapes, timing = execute(adder, case.request)
    assert (status, shapes) == (NONE, [OutputShape([4], True)])
    assert 0 < timing.timeOnDevice < timing.timeInDriver < 100
    assert case.output().tolist() == [10, 11, 12, 13]


def test_times_are_those_of_the_simulated_device(device, adder):
    synchronously(adder, add_case().request)  # constants and code are on the device from here on
    first, second = (synchronously(adder, add_case().request)[2] for _ in range(2))
    assert first == second
    record = device._engine.executor.device.last_job
    assert first.timeOnDevice == -(-record.time_ps // 10**6)


def test_a_slower_clock_and_a_slower_host_show_in_their_own_times():
    base = load_config("tiny")
    times = []
    for change in ({}, {"host.submit": "1 ms"}, {"dram.latency": "50 us"}):
        with open_device(base.with_(**change)) as opened:
            times.append(synchronously(prepared_model(opened, add()), add_case().request)[2])
    plain, busy_host, far_memory = times
    assert busy_host.timeOnDevice == plain.timeOnDevice
    assert 999 <= busy_host.timeInDriver - plain.timeInDriver <= 1000
    assert far_memory.timeOnDevice >= plain.timeOnDevice + 100  # a load and a store


@WAYS
def test_times_are_there_only_if_they_were_asked_for(adder, execute):
    assert execute(adder, add_case().request, 0) == (NONE, [OutputShape([4], True)], Timing())
    assert Timing().timeOnDevice == NOT_MEASURED


def test_nobody_but_the_client_maps_for_nothing(device, adder):
    """A pool costs ``host.map`` per execution, for any number of arguments in it."""
    before = device._engine.executor.counters.mappings
    synchronously(adder, add_case().request)
    assert device._engine.executor.counters.mappings == before + 1


@WAYS
@pytest.mark.parametrize("measure", [2, -1, None, "yes"])
def test_measure_is_checked(adder, execute, measure):
    assert execute(adder, add_case().request, measure) == (INVALID, [], Timing())


@WAYS
def test_a_request_without_an_argument_is_invalid(adder, execute):
    request = add_case().request
    for broken in (replace(request, inputs=request.inputs[:1]), replace(request, outputs=[])):
        assert execute(adder, broken) == (INVALID, [], Timing())


@WAYS
def test_outputs_of_unknown_shape(device, execute):
    prepared = prepared_model(device, add((0, 3), (0, 0)))
    for rows in (2, 5, 2):
        values = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        case = Case([values, values], [12 * rows])
        status, shapes, _ = execute(prepared, case.request)
        assert (status, shapes) == (NONE, [OutputShape([rows, 3], True)])
        assert case.output().tolist() == (2 * values).reshape(-1).tolist()


@WAYS
def test_room_that_is_too_small_by_a_byte(device, execute):
    prepared = prepared_model(device, add((0,), (0,)))
    values = np.ones(8, np.float32)
    case = Case([values, values], [31])
    assert execute(prepared, case.request) == (TOO_SMALL, [OutputShape([8], False)], Timing())
    roomy = Case([values, values], [64])
    assert execute(prepared, roomy.request)[:2] == (NONE, [OutputShape([8], True)])
    assert roomy.output()[:8].tolist() == [2] * 8
    assert roomy.output()[8:].tolist() == [0] * 8


def test_a_shape_that_the_model_excludes_is_invalid(adder):
    case = Case([np.zeros(5, np.float32), np.zeros(5, np.float32)], [20])
    assert synchronously(adder, case.request) == (INVALID, [], Timing())


def test_shapes_that_only_an_execution_can_find_wrong(device):
    prepared = prepared_model(device, add((0,), (0,)))
    case = Case([np.zeros(5, np.float32), np.zeros(7, np.float32)], [28])
    assert synchronously(prepared, case.request) == (INVALID, [], Timing())


def test_memory_is_where_the_client_put_it(device, adder, tmp_path):
    """Inputs in a read-only file at an offset that is not a multiple of a page; the output in another pool."""
    path = tmp_path / "inputs"
    path.write_bytes(b"\x01" * 37 + np.arange(8, dtype=np.float32).tobytes())
    with path.open("rb") as file:
        inputs = from_fd(32, mmap.PROT_READ, file.fileno(), 37)
    case = add_case()
    ins = [RequestArgument(False, DataLocation(1, offset, 16)) for offset in (0, 16)]
    request = Request(ins, case.request.outputs, [case.memory, inputs])
    assert synchronously(adder, request)[0] is NONE
    assert case.output().tolist() == [4, 6, 8, 10]
    swapped = Request(case.request.inputs, ins[:1], [case.memory, inputs])
    assert synchronously(adder, swapped) == (INVALID, [], Timing())
    assert path.read_bytes()[37:] == np.arange(8, dtype=np.float32).tobytes()


def test_pictures_are_not_memory_for_tensors(adder):
    case = add_case()
    picture = RequestArgument(False, DataLocation(1, 0, 0), (4,))  # it has no bytes that could be counted
    pools = [case.memory, MemoryPool(hardware_buffer(8, 8))]
    request = Request([picture, case.request.inputs[1]], case.request.outputs, pools)
    assert synchronously(adder, request) == (FAILURE, [], Timing())
    assert asynchronously(adder, request) == (FAILURE, [], Timing())


def test_a_file_that_was_cut_ends_an_execution_not_the_process(adder, tmp_path):
    path = tmp_path / "pool"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with path.open("r+b") as file:
        pool = from_fd(3 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, file.fileno(), 0)
        os.truncate(file.fileno(), 0)
    places = [DataLocation(0, 2 * mmap.PAGESIZE + offset, 16) for offset in (0, 16, 32)]
    arguments = [RequestArgument(False, place) for place in places]
    status, shapes, _ = synchronously(adder, Request(arguments[:2], arguments[2:], [pool]))
    assert status in (INVALID, FAILURE)
    assert shapes == []


def test_the_request_is_the_drivers_own_when_the_call_has_returned(device, adder):
    case, callback = add_case(), ExecutionCallback()
    assert adder.execute_1_3(case.request, 0, None, None, callback) is NONE
    case.request.outputs[0].location.offset = 0
    case.memory.close()
    assert callback.wait()[0] is NONE
    assert case.bytes[128:144].view(np.float32).tolist() == [10, 11, 12, 13]


def test_bools_that_are_neither_zero_nor_one(device):
    prepared = prepared_model(device, loop())
    case = Case([np.array([0], np.uint8), np.array([3, 4], np.float32)], [1, 8], [(1,), (2,)])
    assert synchronously(prepared, case.request)[0] is NONE  # never entered
    assert case.output(1).tolist() == [3, 4]


def test_a_loop_without_an_end_is_stopped_in_simulated_time(device):
    prepared = prepared_model(device, loop())
    case = Case([np.array([2], np.uint8), np.array([3, 4], np.float32)], [1, 8], [(1,), (2,)])
    status, shapes, timing = prepared.executeSynchronously_1_3(case.request, 1, None, 200_000)
    assert status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
    assert (shapes, timing) == ([], Timing())
    too_long = 15_000_000_001
    assert prepared.executeSynchronously_1_3(case.request, 1, None, too_long) == (INVALID, [], Timing())


def test_weights_go_to_the_device_once(device):
    prepared = prepared_model(device, dense(256, 64))
    case = Case([np.ones((1, 256), np.float32)], [256], [(1, 64)])
    counted = []
    for _ in range(3):
        before = device._engine.executor.counters
        assert synchronously(prepared, case.request)[0] is NONE
        after = device._engine.executor.counters
        counted.append(after.constant_bytes - before.constant_bytes)
    assert counted[0] >= 256 * 64 * 4
    assert counted[1:] == [0, 0]


def test_a_dropped_model_gives_its_memory_back(device):
    import gc

    gc.collect()
    before = device._engine.executor.free_bytes
    for size in range(100, 140):  # more than the driver remembers
        prepared = prepared_model(device, dense(size, 8))
        case = Case([np.ones((1, size), np.float32)], [32], [(1, 8)])
        assert synchronously(prepared, case.request)[0] is NONE
    del prepared
    gc.collect()
    with device._engine.executor.programs._lock:
        remembered = list(device._engine.executor.programs._recent.values())
        device._engine.executor.programs._recent.clear()
    device._engine.executor.programs._unload(remembered)
    assert device._engine.executor.programs._users.total() <= 20
    assert device._engine.executor.free_bytes >= before - (1 << 16)


def test_chains_through_device_memory_move_less(device, adder):
    """Two sums in sequence: with the intermediate value in a driver buffer, it does not cross the link."""
    size = 4096
    adder = prepared_model(device, add((size,)))
    host = _host_bytes(device, adder, size, None)
    _, buffer, token = device.allocate(BufferDesc((size,)), [adder], [BufferRole(0, 0)], [BufferRole(0, 0)])
    kept = _host_bytes(device, adder, size, token)
    assert host - kept == 2 * 4 * size
    del buffer


def _host_bytes(device, adder, size, token):
    """Return the bytes that cross the link for (a + b) + b, with the intermediate sum in the token's buffer, if any."""
    case = add_case((size,))
    first, second = case.request, add_case((size,)).request
    if token is not None:
        place = RequestArgument(False, DataLocation(1, 0, 0), (size,))
        pools = [case.memory, MemoryPool(token=token)]
        second = Request([place, first.inputs[1]], first.outputs, pools)
        first = Request(first.inputs, [place], pools)
    before = device._engine.executor.counters
    assert synchronously(adder, first)[0] is NONE
    assert synchronously(adder, second)[0] is NONE
    after = device._engine.executor.counters
    if token is not None:
        assert case.output()[:3].tolist() == [20, 21, 22]
    return sum(getattr(after, name) - getattr(before, name) for name in ("input_bytes", "read_bytes"))


def test_executions_from_many_threads_each_get_their_own_result(device):
    prepared, failures = [prepared_model(device, chain(n)) for n in (1, 2, 3, 4)], []

    def client(seed):
        for turn in range(12):
            which = (seed + turn) % 4
            case = add_case()
            execute = asynchronously if turn % 2 else synchronously
            status, _, _ = execute(prepared[which], case.request)
            if status is not NONE or case.output()[0] != 10 * (which + 1):
                failures.append((seed, turn, status, case.output()))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert failures == []
