"""Memory domains and bursts on a simulated device: what the interface promises, and what the counters show of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hal.nnapi import aidl_burst, aidl_types, fence, memory, open_device
from hal.nnapi.fmq import FmqRequestDatum
from hal.nnapi.memory import Memory
from hal.nnapi.packets import serialize_request
from hal.nnapi.types import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ErrorStatus,
    MemoryPool,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    OptionalTimeoutDuration,
    OptionalTimePoint,
    OutputShape,
    Request,
    RequestArgument,
    Subgraph,
    Timing,
)
from npusim.driver import HostCounters
from tests.conformance.nnapi_client import Burst, ExecutionCallback, prepare, prepared_model
from tests.property.patience import descriptors, until

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
SHAPE = (1, 32, 32, 8)
NBYTES = 32 * 32 * 8 * 4
FLOATS = OperandType.TENSOR_FLOAT32

Array = npt.NDArray[np.float32]
Result = tuple[ErrorStatus, Sequence[OutputShape], Timing]


def _operand(dimensions: Sequence[int], lifetime: OperandLifeTime, consumers: int = 0) -> Operand:
    return Operand(FLOATS, dimensions, consumers, lifetime=lifetime)


def _model(*dimensions: int) -> Model:
    """Two inputs; their sum and their product."""
    given = [_operand(dimensions, OperandLifeTime.SUBGRAPH_INPUT, 2) for _ in range(2)]
    results = [_operand(dimensions, OperandLifeTime.SUBGRAPH_OUTPUT) for _ in range(2)]
    none = Operand(OperandType.INT32, (), 2, lifetime=OperandLifeTime.CONSTANT_COPY, location=DataLocation(0, 0, 4))
    operations = [
        Operation(OperationType.ADD, [0, 1, 4], [2]),
        Operation(OperationType.MUL, [0, 1, 4], [3]),
    ]
    return Model(Subgraph([*given, *results, none], operations, [0, 1], [2, 3]), operandValues=bytes(4))


class Bench:
    """A device with its driver."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def counters(self) -> HostCounters:
        counters: HostCounters = self.device._executor.counters
        return counters

    def allocate(
        self, prepared: Any, inputs: Sequence[int] = (), outputs: Sequence[int] = (), dimensions: Sequence[int] = ()
    ) -> Any:
        """A buffer for these inputs and outputs."""
        roles = [BufferRole(0, index, 1.0) for index in inputs], [BufferRole(0, index, 0.5) for index in outputs]
        status, buffer, token = self.device.allocate(BufferDesc(dimensions), [prepared], *roles)
        assert status is NONE
        assert buffer.token == token
        return buffer


@pytest.fixture
def bench() -> Iterator[Bench]:
    before = descriptors()
    with open_device("edge") as device:
        yield Bench(device)
    until(lambda: descriptors() <= before)


@pytest.fixture
def prepared(bench: Bench) -> Any:
    return prepared_model(bench.device, _model(*SHAPE))


@pytest.fixture
def open_shape(bench: Bench) -> Any:
    return prepared_model(bench.device, _model(0, 32, 32, 8))


def _numbers(seed: int, shape: Sequence[int] = SHAPE) -> Array:
    return np.random.default_rng(seed).random(tuple(shape), np.float32)


def _pool(data: Array) -> Memory:
    pool = memory.allocate_ashmem(data.nbytes)
    pool.map()[:] = data.tobytes()
    return pool


def _fill(buffer: Any, data: Array, dimensions: Sequence[int] = ()) -> None:
    with _pool(data) as pool:
        assert buffer.copyFrom(pool, dimensions) is NONE


def _contents(buffer: Any, shape: Sequence[int] = SHAPE) -> Array:
    with memory.allocate_blob(int(np.prod(shape)) * 4) as pool:
        assert buffer.copyTo(pool) is NONE
        return np.frombuffer(bytes(pool.map()), np.float32).reshape(shape)


def _argument(index: int, place: Any, dimensions: Sequence[int]) -> tuple[RequestArgument, MemoryPool]:
    if isinstance(place, Memory):
        return RequestArgument(False, DataLocation(index, 0, place.size), dimensions), MemoryPool(place)
    token = place if isinstance(place, int) else place.token
    return RequestArgument(False, DataLocation(index), dimensions), MemoryPool(token=token)


def _request(inputs: Sequence[Any], outputs: Sequence[Any], dimensions: Sequence[int] = SHAPE) -> Request:
    """Arguments in places of their own: memory, buffers, or bare tokens."""
    made = [_argument(index, place, dimensions) for index, place in enumerate((*inputs, *outputs))]
    arguments, pools = [argument for argument, _ in made], [pool for _, pool in made]
    return Request(arguments[: len(inputs)], arguments[len(inputs) :], pools)


def _sync(prepared: Any, request: Request) -> Result:
    result: Result = prepared.executeSynchronously_1_3(request, 0, OptionalTimePoint(), OptionalTimeoutDuration())
    return result


def _async(prepared: Any, request: Request) -> Result:
    callback = ExecutionCallback()
    status = prepared.execute_1_3(request, 0, OptionalTimePoint(), OptionalTimeoutDuration(), callback)
    result = callback.wait()
    assert status in (NONE, result[0])
    return result


def _fenced(prepared: Any, request: Request) -> Result:
    limits = OptionalTimePoint(), OptionalTimeoutDuration(), OptionalTimeoutDuration()
    status, handle, callback = prepared.executeFenced(request, [], 0, *limits)
    if status is not NONE:
        assert not handle
        assert callback is None
        return status, [], Timing()
    state = fence.wait(handle, 30)
    os.close(handle[0])
    status, launched, fenced = callback.getExecutionInfo()
    assert launched == fenced == Timing()
    assert state is (fence.FenceStatus.SIGNALED if status is NONE else fence.FenceStatus.ERROR)
    return status, [], launched


EXECUTORS = pytest.mark.parametrize("execute", [_sync, _async, _fenced])


def _check(result: Result, expected: ErrorStatus) -> None:
    """On failure there are neither shapes nor times."""
    status, shapes, timing = result
    assert status is expected
    assert timing == Timing()
    if expected is not NONE:
        assert list(shapes) == []


# Memory domains


@EXECUTORS
def test_results_are_those_of_shared_memory(bench: Bench, prepared: Any, execute: Callable[..., Result]) -> None:
    first, second = _numbers(1), _numbers(2)
    inputs = [bench.allocate(prepared, [index]) for index in range(2)]
    outputs = [bench.allocate(prepared, [], [index]) for index in range(2)]
    for buffer, data in zip(inputs, (first, second), strict=True):
        _fill(buffer, data)
    _check(execute(prepared, _request(inputs, outputs)), NONE)
    assert np.array_equal(_contents(outputs[0]), first + second)
    assert np.array_equal(_contents(outputs[1]), first * second)


@EXECUTORS
def test_a_buffer_lives_through_its_states(bench: Bench, prepared: Any, execute: Callable[..., Result]) -> None:
    one, two = _pool(_numbers(1)), _pool(_numbers(2))
    result, other = memory.allocate_ashmem(NBYTES), memory.allocate_ashmem(NBYTES)
    buffer = bench.allocate(prepared, [0], [0])
    as_input, as_output = _request([buffer, two], [result, other]), _request([one, two], [buffer, other])
    _check(execute(prepared, as_input), FAILURE)
    _check(execute(prepared, as_output), NONE)
    _check(execute(prepared, as_input), NONE)
    assert np.array_equal(result.map().view(np.float32).reshape(SHAPE), _numbers(1) + _numbers(2) + _numbers(2))
    faults = bench.device._executor.device.injection.dma_error
    faults.update({"core0.dma0": 0, "core0.dma1": 0})
    _check(execute(prepared, as_output), FAILURE)
    faults.clear()
    _check(execute(prepared, as_input), FAILURE)  # its contents are gone
    _check(execute(prepared, as_output), NONE)
    _check(execute(prepared, as_input), NONE)
    for pool in (one, two, result, other):
        pool.close()


@EXECUTORS
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("0m", "mm"),  # no token
        ("?m", "mm"),  # a token of nobody
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
    foreign = prepared_model(bench.device, _model(*SHAPE))
    pools = [_pool(_numbers(index)) for index in range(4)]
    places = {
        "0": 0,
        "?": 100,
        "f": bench.allocate(foreign, [0]),
        "i": bench.allocate(prepared, [0]),
        "o": bench.allocate(prepared, [], [0]),
        "b": bench.allocate(prepared, [0, 1], [0, 1]),
    }
    for kind in "fib":
        _fill(places[kind], _numbers(9))
    remaining = iter(pools)
    asked = [[next(remaining) if kind == "m" else places[kind] for kind in side] for side in (inputs, outputs)]
    _check(execute(prepared, _request(*asked)), INVALID)
    assert np.array_equal(_contents(places["b"]), _numbers(9))  # what was refused has changed nothing
    for pool in pools:
        pool.close()


@EXECUTORS
def test_one_buffer_may_be_two_inputs(bench: Bench, prepared: Any, execute: Callable[..., Result]) -> None:
    buffer = bench.allocate(prepared, [0, 1])
    _fill(buffer, _numbers(3))
    with memory.allocate_ashmem(NBYTES) as sums, memory.allocate_ashmem(NBYTES) as squares:
        _check(execute(prepared, _request([buffer, buffer], [sums, squares])), NONE)
        assert np.array_equal(squares.map().view(np.float32).reshape(SHAPE), _numbers(3) ** 2)


@EXECUTORS
def test_dimensions_that_are_not_those_of_the_buffer(
    bench: Bench, open_shape: Any, execute: Callable[..., Result]
) -> None:
    buffer = bench.allocate(open_shape, [0], [0])
    _fill(buffer, _numbers(1), SHAPE)
    twice = (2, *SHAPE[1:])
    pools = [memory.allocate_ashmem(2 * NBYTES) for _ in range(3)]
    _check(execute(open_shape, _request([buffer, pools[0]], pools[1:], twice)), INVALID)
    fixed = bench.allocate(open_shape, [], [0], SHAPE)
    _check(execute(open_shape, _request(pools[:2], [fixed, pools[2]], twice)), INVALID)
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("execute", [_sync, _async])
def test_a_result_that_does_not_fit(bench: Bench, open_shape: Any, execute: Callable[..., Result]) -> None:
    fixed = bench.allocate(open_shape, [], [0], SHAPE)
    other = bench.allocate(open_shape, [], [1])
    pools = [memory.allocate_ashmem(2 * NBYTES) for _ in range(2)]
    request = _request(pools, [fixed, other], (2, *SHAPE[1:]))
    for argument in request.outputs:
        argument.dimensions = ()
    _check(execute(open_shape, request), FAILURE)
    with memory.allocate_ashmem(NBYTES) as pool:
        assert fixed.copyTo(pool) is FAILURE
    for pool in pools:
        pool.close()


@EXECUTORS
def test_one_buffer_for_results_of_any_size(bench: Bench, open_shape: Any, execute: Callable[..., Result]) -> None:
    buffer, other = bench.allocate(open_shape, [0], [0]), bench.allocate(open_shape, [1], [1])
    for batch in (3, 1, 2):
        shape = (batch, *SHAPE[1:])
        first, second = _numbers(batch, shape), _numbers(batch + 9, shape)
        with _pool(first) as one, _pool(second) as two:
            _check(execute(open_shape, _request([one, two], [buffer, other], shape)), NONE)
        with memory.allocate_ashmem(first.nbytes) as sums, memory.allocate_ashmem(first.nbytes) as products:
            _check(execute(open_shape, _request([buffer, other], [sums, products], shape)), NONE)
            total = sums.map().view(np.float32).reshape(shape)
            assert np.array_equal(total, (first + second) + first * second)


def test_a_chain_through_buffers_moves_less_and_takes_less_time(bench: Bench, prepared: Any) -> None:
    steps, state, step = 5, _numbers(1), _numbers(2)

    def run(places: Sequence[Any], other: Any) -> tuple[HostCounters, int]:
        before, driver = bench.counters(), 0
        for index in range(steps):
            request = _request([places[index % 2], fixed], [places[(index + 1) % 2], other])
            status, _, timing = prepared.executeSynchronously_1_3(request, 1, None, None)
            assert status is NONE
            driver += timing.timeInDriver
        return bench.counters().since(before), driver

    fixed = bench.allocate(prepared, [1])
    _fill(fixed, step)
    unused = bench.allocate(prepared, [], [1])
    buffers = [bench.allocate(prepared, [0], [0]) for _ in range(2)]
    _fill(buffers[0], state)
    run(buffers, unused)  # the first one loads the program
    _fill(buffers[0], state)
    here, quick = run(buffers, unused)
    pools = [_pool(state), memory.allocate_ashmem(NBYTES)]
    there, slow = run(pools, unused)
    expected = state
    for _ in range(steps):
        expected = expected + step
    assert np.array_equal(_contents(buffers[1]), expected)
    assert np.array_equal(pools[1].map().view(np.float32).reshape(SHAPE), expected)
    assert (here.written_bytes, here.read_bytes, here.mappings) == (0, 0, 0)
    assert (there.input_bytes, there.output_bytes, there.mappings) == (steps * NBYTES, steps * NBYTES, 2 * steps)
    assert quick < slow
    for pool in pools:
        pool.close()


def test_dropped_buffers_give_their_memory_back(bench: Bench, prepared: Any) -> None:
    free = bench.device._executor.free_bytes
    buffers = [bench.allocate(prepared, [0], [0]) for _ in range(8)]
    assert bench.device._executor.free_bytes <= free - 8 * NBYTES
    del buffers
    assert bench.device._executor.free_bytes == free


def test_a_device_without_room(bench: Bench) -> None:
    rows = bench.device._executor.free_bytes // 4 // 1024 + 1
    prepared = prepared_model(bench.device, _model(0, 1024))
    roles = [BufferRole(0, 0)], []
    assert bench.device.allocate(BufferDesc([rows, 0]), [prepared], *roles) == (FAILURE, None, 0)
    assert bench.device.allocate(BufferDesc([2, 0]), [prepared], *roles)[0] is NONE


def test_without_a_device(bench: Bench, prepared: Any) -> None:
    gone = ErrorStatus.DEVICE_UNAVAILABLE
    buffer = bench.allocate(prepared, [0])
    _fill(buffer, _numbers(1))
    bench.device._executor.unplug()
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
                seen.add(_sync(open_shape, _request(places[:2], places[2:], shape))[0])
                seen.add(chosen.copyFrom(small, SHAPE))
                seen.add(chosen.copyTo(small))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert seen <= {NONE, INVALID, FAILURE}
    _fill(buffers[0], _numbers(4), SHAPE)
    assert np.array_equal(_contents(buffers[0]), _numbers(4))


# Pools


def test_pictures_are_refused(bench: Bench, prepared: Any) -> None:
    with memory.hardware_buffer(64, 32) as picture:
        request = _request([picture, picture], [picture, picture])
        for argument in (*request.inputs, *request.outputs):
            argument.location.length = NBYTES
        _check(_sync(prepared, request), FAILURE)
        model = _model(*SHAPE)
        constant = model.main.operands[4]
        constant.lifetime, model.pools = OperandLifeTime.CONSTANT_REFERENCE, [picture]
        launched, status, made = prepare(bench.device, model)
        assert (launched, status, made) == (FAILURE, FAILURE, None)


@pytest.mark.parametrize("offset", [0, 3, 4096, 5000])
def test_constants_and_arguments_in_a_file(bench: Bench, tmp_path: Path, offset: int) -> None:
    path = tmp_path / "weights"
    data = _numbers(1)
    path.write_bytes(bytes(offset) + data.tobytes() + bytes(4))
    model = _model(*SHAPE)
    model.main.inputIndexes = [1]
    first = model.main.operands[0]
    first.lifetime, first.location = OperandLifeTime.CONSTANT_REFERENCE, DataLocation(0, 0, NBYTES)
    with path.open("rb") as file:
        model.pools = [memory.from_fd(NBYTES, 1, file.fileno(), offset)]
        argument = memory.from_fd(NBYTES + 4, 1, file.fileno(), offset)
    prepared = prepared_model(bench.device, model)
    model.pools[0].close()  # the driver has its own
    with memory.allocate_ashmem(NBYTES) as sums, memory.allocate_ashmem(NBYTES) as squares:
        request = _request([argument], [sums, squares])
        request.inputs[0].location = DataLocation(0, 0, NBYTES)
        _check(_sync(prepared, request), NONE)
        assert np.array_equal(sums.map().view(np.float32).reshape(SHAPE), data + data)
        assert np.array_equal(squares.map().view(np.float32).reshape(SHAPE), data * data)
        with_output_in_file = _request([sums], [argument, squares])
        with_output_in_file.outputs[0].location = DataLocation(1, 0, NBYTES)
        _check(_sync(prepared, with_output_in_file), INVALID)  # it is read-only
    assert path.read_bytes()[offset : offset + NBYTES] == data.tobytes()
    argument.close()


def test_a_file_that_is_cut_under_an_execution(bench: Bench, prepared: Any, tmp_path: Path) -> None:
    path = tmp_path / "frame"
    path.write_bytes(bytes(4 * NBYTES))
    with path.open("r+b") as file, memory.from_fd(4 * NBYTES, 3, file.fileno()) as pool:
        places = [RequestArgument(False, DataLocation(0, index * NBYTES, NBYTES)) for index in range(4)]
        request = Request(places[:2], places[2:], [pool])
        _check(_sync(prepared, request), NONE)
        burst = Burst(prepared)
        assert burst.execute(request)[0] is NONE
        os.truncate(path, NBYTES)
        assert _sync(prepared, request)[0] in (INVALID, FAILURE)
        assert burst.execute(request) == (FAILURE, [], Timing())
        burst.close()


# Bursts


def _frame(prepared: Any) -> Iterator[Request]:
    pools = [_pool(_numbers(index)) for index in range(4)]
    yield _request(pools[:2], pools[2:])
    for pool in pools:
        pool.close()


@pytest.fixture
def frame(prepared: Any) -> Iterator[Request]:
    yield from _frame(prepared)


def _weighted(device: Any) -> tuple[Any, Request]:
    """A model with weights, and a request for it."""
    model = _model(*SHAPE)
    model.main.inputIndexes = [0]
    weights = model.main.operands[1]
    weights.lifetime, weights.location = OperandLifeTime.CONSTANT_REFERENCE, DataLocation(0, 0, NBYTES)
    model.pools = [_pool(_numbers(5))]
    prepared = prepared_model(device, model)
    model.pools[0].close()
    pools = [_pool(_numbers(index)) for index in range(3)]
    return prepared, _request(pools[:1], pools[1:])


def _driver_times(bench: Bench, execute: Callable[[], int]) -> tuple[list[int], list[HostCounters]]:
    times, counts = [], []
    for _ in range(3):
        before = bench.counters()
        times.append(execute())
        counts.append(bench.counters().since(before))
    return times, counts


@pytest.mark.parametrize("interface", ["hidl", "aidl"])
def test_a_second_frame_is_faster_because_everything_is_there(bench: Bench, interface: str) -> None:
    prepared, request = _weighted(bench.device)
    before = bench.counters()
    hidl = Burst(prepared) if interface == "hidl" else None
    aidl = aidl_burst.Burst(prepared) if interface == "aidl" else None
    pinned = bench.counters().since(before)
    pools = [aidl_types.RequestMemoryPool(pool=pool.hidlMemory) for pool in request.pools]  # type: ignore[union-attr]

    def execute() -> int:
        if hidl:
            status, _, timing = hidl.execute(request, 1)
            assert status is NONE
            return timing.timeInDriver
        assert aidl is not None
        asked = aidl_types.Request(request.inputs, request.outputs, pools)
        return aidl.executeSynchronously(asked, [1, 2, 3], True, -1, -1).timing.timeInDriverNs

    times, counts = _driver_times(bench, execute)
    assert counts[0].mappings == 3
    assert pinned.constant_bytes == 0
    assert counts[0].constant_bytes >= NBYTES
    assert counts[0].code_bytes > 0
    for later in counts[1:]:
        assert (later.mappings, later.constant_bytes, later.code_bytes) == (0, 0, 0)
        assert (later.input_bytes, later.output_bytes) == (NBYTES, 2 * NBYTES)
    assert times[1] == times[2] < times[0]
    unit = 10**6 if hidl else 10**3
    host = bench.device.config.host
    brought = counts[0].constant_bytes * 10**12 // host.link_bandwidth + counts[0].mappings * host.map_ps
    assert (times[0] - times[1] + 1) * unit >= brought
    result = request.pools[1].hidlMemory.map()  # type: ignore[union-attr]
    assert np.array_equal(result.view(np.float32).reshape(SHAPE), _numbers(0) + _numbers(5))
    if hidl:
        hidl.close()
    for pool in request.pools:
        pool.hidlMemory.close()  # type: ignore[union-attr]


BAD_OPERAND = FmqRequestDatum.OperandInformation(False, DataLocation(), 10)
BAD = [
    FmqRequestDatum(packetInformation=FmqRequestDatum.PacketInformation(10, 10, 10, 10)),
    FmqRequestDatum(inputOperandInformation=BAD_OPERAND),
    FmqRequestDatum(inputOperandDimensionValue=0),
    FmqRequestDatum(outputOperandInformation=BAD_OPERAND),
    FmqRequestDatum(outputOperandDimensionValue=0),
    FmqRequestDatum(poolIdentifier=2**31 - 1),
    FmqRequestDatum(measureTiming=1),
]


def test_bad_packets_over_a_burst(prepared: Any, frame: Request) -> None:
    burst = Burst(prepared)
    whole = serialize_request(frame, burst.callback.slots(frame.pools))
    assert burst.send(whole)[0] is NONE
    packets = [whole[:place] + whole[place + 1 :] for place in range(len(whole))]
    packets += [[*whole[:place], bad, *whole[place:]] for place in range(len(whole) + 1) for bad in BAD]
    packets += [
        [*whole[:place], bad, *whole[place + 1 :]]
        for place, entry in enumerate(whole)
        for bad in BAD
        if (entry.member, bad.member) != ("measureTiming", "measureTiming")
    ]
    original = burst.callback.getMemories

    def get_memories(slots: Sequence[int]) -> tuple[ErrorStatus, list[Memory]]:
        return (INVALID, []) if max(slots) > 100 else original(slots)

    burst.callback.getMemories = get_memories  # type: ignore[method-assign]
    for packet in packets:
        status, shapes, timing = burst.send(packet)
        assert status is not NONE
        assert (list(shapes), timing) == ([], Timing())
    assert burst.send(whole)[0] is NONE
    burst.close()


def test_slots_may_be_freed_as_one_likes(prepared: Any, frame: Request) -> None:
    burst = Burst(prepared)
    for slots in ((0,), (0, 0), (99,), (0, 1, 2, 3)):
        assert burst.execute(frame)[0] is NONE
        for slot in slots:
            burst.context.freeMemory(slot)
    assert burst.execute(frame)[0] is NONE
    assert burst.callback.asked == [[0, 1, 2, 3], [0], [0], [0, 1, 2, 3]]
    burst.close()


def test_closing_the_device_ends_its_bursts(bench: Bench, prepared: Any, frame: Request) -> None:
    before = set(threading.enumerate())
    burst = Burst(prepared)
    assert burst.execute(frame)[0] is NONE
    assert {thread.name for thread in set(threading.enumerate()) - before} >= {"nnapi-burst"}
    bench.device.close()
    assert "nnapi-burst" not in {thread.name for thread in set(threading.enumerate()) - before}
    burst.close()


@pytest.mark.parametrize("tokens", [[-2, -1, -1, -1], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_wrong_tokens_of_an_aidl_burst(prepared: Any, frame: Request, tokens: list[int]) -> None:
    burst = aidl_burst.Burst(prepared)
    pools = [aidl_types.RequestMemoryPool(pool=pool.hidlMemory) for pool in frame.pools]  # type: ignore[union-attr]
    request = aidl_types.Request(frame.inputs, frame.outputs, pools)
    with pytest.raises(aidl_types.ServiceSpecificException) as caught:
        burst.executeSynchronously(request, tokens, False, -1, -1)
    assert caught.value.errorCode is INVALID
    assert burst.executeSynchronously(request, [-1, 2, 3, 4], False, -1, -1).outputSufficientSize


@pytest.mark.parametrize("batch", [0, 1])
def test_weights_that_are_cut_after_the_preparation(bench: Bench, tmp_path: Path, batch: int) -> None:
    """Weights go to the device with the first execution; with open dimensions a new shape looks at them again."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(2 * NBYTES))
    model = _model(batch, 32, 32, 8)
    model.main.inputIndexes = [1]
    first = model.main.operands[0]
    first.dimensions, first.lifetime = SHAPE, OperandLifeTime.CONSTANT_REFERENCE
    first.location = DataLocation(0, NBYTES, NBYTES)
    with path.open("rb") as file:
        model.pools = [memory.from_fd(2 * NBYTES, 1, file.fileno())]
    prepared = prepared_model(bench.device, model)
    model.pools[0].close()
    os.truncate(path, 100)
    pools = [memory.allocate_ashmem(NBYTES) for _ in range(3)]
    _check(_sync(prepared, _request(pools[:1], pools[1:])), FAILURE)
    for pool in pools:
        pool.close()
