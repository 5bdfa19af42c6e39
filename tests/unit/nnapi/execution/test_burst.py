"""Both kinds of bursts with stand-ins for prepared models: slots and tokens, what is kept, what is refused, how they
end."""

from __future__ import annotations

import contextlib
import gc
import mmap
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from hal.nnapi import memory
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.aidl.burst import Burst
from hal.nnapi.aidl.memory import from_memory
from hal.nnapi.aidl.types import RequestMemoryPool, ServiceSpecificException
from hal.nnapi.errors import StatusError
from hal.nnapi.execution import burst
from hal.nnapi.execution.outcome import Outcome
from hal.nnapi.fmq import FmqRequestDatum, FmqResultDatum, MessageQueue
from hal.nnapi.memory import Memory
from hal.nnapi.memory.pools import PoolMappings
from hal.nnapi.packets import deserialize_result, serialize_request
from hal.nnapi.types import (
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    MemoryPool,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from tests.support.nnapi.stand_ins import Prepared, model
from tests.support.waits_and_leaks import PATIENCE_S, descriptors, until

NONE, INVALID, FAILURE = ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
REQUEST = Request([RequestArgument(False, DataLocation(0, 0, 4))], [RequestArgument(False, DataLocation(1, 0, 4))])
Answer = tuple[ErrorStatus, list[OutputShape], Timing]


def _served() -> int:
    return sum(thread.name == "nnapi-burst" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before, served = descriptors(), _served()
    yield
    until(lambda: descriptors() <= before and _served() <= served)


class Client:
    """The client's side of a HIDL burst; it is the callback and holds the context, as clients may."""

    def __init__(self, prepared: Prepared, results: int = 64) -> None:
        self.memories: dict[int, Memory] = {}
        self.fetched: list[list[int]] = []
        self.requests: MessageQueue[FmqRequestDatum] = MessageQueue(64)
        self.results: MessageQueue[FmqResultDatum] = MessageQueue(results)
        status, self.context = burst.configure(prepared, self, self.requests, self.results)  # type: ignore[arg-type]
        assert status is NONE

    def getMemories(self, slots: list[int]) -> tuple[ErrorStatus, list[Memory]]:  # noqa: N802 - the interface's name
        self.fetched.append(slots)
        if any(slot not in self.memories for slot in slots):
            return INVALID, []
        return NONE, [self.memories[slot] for slot in slots]

    def send(self, packet: Sequence[FmqRequestDatum]) -> Answer:
        assert self.requests.writeBlocking(packet, 5)
        result = self.results.readPacket(5)
        assert result is not None
        return deserialize_result(result)

    def execute(self, slots: Sequence[int], request: Request = REQUEST, measure: int = 0) -> Answer:
        return self.send(serialize_request(request, slots, MeasureTiming(measure)))

    def free(self, *slots: int) -> None:
        for slot in slots:
            self.memories.pop(slot).close()


@pytest.fixture
def prepared() -> Iterator[Prepared]:
    prepared = Prepared(model([], []))
    yield prepared
    prepared.runs.clear()


@pytest.fixture
def client(prepared: Prepared) -> Iterator[Client]:
    client = Client(prepared)
    for slot in (3, 7, 8):
        client.memories[slot] = memory.allocate_ashmem(16)
    yield client
    client.context.close()
    client.free(*client.memories)


# HAL 1.2


def test_memory_is_asked_for_once_and_mapped_once(prepared: Prepared, client: Client) -> None:
    fresh = []

    def run(request: Request, mappings: PoolMappings) -> Outcome:
        for index, pool in enumerate(request.pools):
            assert isinstance(pool, MemoryPool)
            assert pool.hidlMemory is not None
            mappings.get(index, pool.hidlMemory)[0] += 1
        fresh.append(mappings.fresh)
        return Outcome(NONE, [OutputShape([4], True)], 1_500_000, 2_000_001)

    prepared._function = run
    for slots in ([3, 7], [3, 7], [7, 3], [8, 3], [3, 3]):
        assert client.execute(slots) == (NONE, [OutputShape([4], True)], Timing(2, 3))
    assert client.fetched == [[3, 7], [8]]
    assert fresh == [2, 0, 0, 1, 0]
    assert [int(client.memories[slot].map()[0]) for slot in (3, 7, 8)] == [6, 3, 1]


def test_a_request_is_passed_on_as_it_was_sent(prepared: Prepared, client: Client) -> None:
    client.execute([3, 7], measure=1)
    request, measure, deadline, loop_timeout = prepared.runs[0]
    assert [argument.location for argument in request.inputs] == [DataLocation(0, 0, 4)]
    assert [argument.location for argument in request.outputs] == [DataLocation(1, 0, 4)]
    assert [pool.hidlMemory.identity for pool in request.pools] == [client.memories[s].identity for s in (3, 7)]  # type: ignore[union-attr]
    assert (measure, deadline, loop_timeout) == (MeasureTiming.YES, None, None)


def test_freed_slots_are_asked_for_again(client: Client) -> None:
    client.execute([3, 7])
    for slot in (3, 3, 12345, -1):
        client.context.freeMemory(slot)
    client.free(3)
    client.memories[3] = memory.allocate_ashmem(16)
    assert client.execute([7, 3])[0] is NONE
    assert client.fetched == [[3, 7], [3]]


def test_the_client_may_close_what_it_has_handed_over(client: Client) -> None:
    client.execute([3, 7])
    client.memories[3].close()
    assert client.execute([3, 7])[0] is NONE


def test_freeing_during_an_execution_keeps_nothing(prepared: Prepared, client: Client) -> None:
    def run(request: Request, mappings: PoolMappings) -> Outcome:
        client.context.freeMemory(3)
        pool = request.pools[0]
        assert isinstance(pool, MemoryPool)
        assert pool.hidlMemory is not None
        mappings.get(0, pool.hidlMemory)
        return Outcome(NONE)

    prepared._function = run
    before = descriptors()
    assert client.execute([3])[0] is NONE
    prepared.runs.clear()
    until(lambda: descriptors() <= before)


def test_slots_that_the_client_does_not_know(client: Client) -> None:
    assert client.execute([3, 2**31 - 1]) == (INVALID, [], Timing())
    assert client.execute([3, 7])[0] is NONE


@pytest.mark.parametrize("given", [None, 5, (NONE, None), (NONE, []), (NONE, [None]), (NONE, [1, 2])])
def test_a_callback_that_talks_nonsense(client: Client, given: Any) -> None:
    client.getMemories = lambda slots: given  # type: ignore[method-assign]
    assert client.execute([3])[0] is not NONE
    del client.getMemories  # type: ignore[method-assign]
    assert client.execute([3])[0] is NONE


def _vast() -> Memory:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(1 << 60)
        return memory.from_fd(1 << 60, mmap.PROT_READ, file.fileno())


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda good: Memory(good.name, good.handle, 0), INVALID),  # of no size
        (lambda good: Memory(good.name, good.handle, 17), INVALID),  # longer than its file
        (lambda good: Memory(good.name, (), 16), INVALID),  # without a descriptor
        (lambda good: Memory(memory.MMAP_FD, good.handle, 16, (4, 0, 0)), INVALID),  # of no protection that there is
        (lambda good: Memory("unknown", good.handle, 16), FAILURE),
        (lambda good: _vast(), FAILURE),  # of more bytes than an address space has
        (lambda good: memory.hardware_buffer(2, 2), FAILURE),
    ],
)
def test_memory_that_cannot_be_mapped_is_asked_for_again(
    client: Client, spoil: Callable[[Memory], Memory], status: ErrorStatus
) -> None:
    good = client.memories[3]
    with contextlib.closing(spoil(good)) as bad:
        client.memories[3] = bad
        assert [client.execute([7, 3])[0] for _ in range(2)] == [status] * 2
    client.memories[3] = good
    assert [client.execute([7, 3])[0] for _ in range(2)] == [NONE] * 2
    assert client.fetched == [[7, 3], [3], [3]]


def test_memory_whose_file_was_cut_is_asked_for_again(prepared: Prepared, client: Client) -> None:
    def run(request: Request, mappings: PoolMappings) -> Outcome:
        [pool] = request.pools
        assert isinstance(pool, MemoryPool)
        assert pool.hidlMemory is not None
        return Outcome(NONE, [OutputShape([int(mappings.get(0, pool.hidlMemory)[0])], True)])

    prepared._function = run
    with tempfile.TemporaryFile() as short, tempfile.TemporaryFile() as long:
        for file, byte in ((short, b"\1"), (long, b"\2")):
            file.write(byte * 16)
            file.flush()
        client.memories[5] = memory.from_fd(16, mmap.PROT_READ, short.fileno())
        assert client.execute([5])[:2] == (NONE, [OutputShape([1], True)])
        short.truncate(4)
        assert client.execute([5])[0] is FAILURE  # it was mapped
        assert client.execute([5])[0] is INVALID  # the client has given the same again
        client.free(5)
        client.memories[5] = memory.from_fd(16, mmap.PROT_READ, long.fileno())
        assert client.execute([5])[:2] == (NONE, [OutputShape([2], True)])
        assert client.fetched == [[5]] * 3
        prepared.runs.clear()


def test_a_callback_that_fails(client: Client) -> None:
    def fail(slots: list[int]) -> None:
        raise ValueError("no memories today")

    client.getMemories = fail  # type: ignore[assignment, method-assign]
    assert client.execute([3]) == (FAILURE, [], Timing())


def test_after_a_malformed_packet_the_channel_goes_on(client: Client) -> None:
    whole = serialize_request(REQUEST, [3, 7])
    for place in range(len(whole)):
        assert client.send(whole[:place] + whole[place + 1 :]) == (INVALID, [], Timing())
        assert client.send(whole)[0] is NONE


@pytest.mark.parametrize(
    ("status", "seen"),
    [
        (NONE, NONE),
        (ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE),
        (ErrorStatus.MISSED_DEADLINE_PERSISTENT, FAILURE),
        (ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, FAILURE),
        (ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.DEVICE_UNAVAILABLE),
    ],
)
def test_a_status_of_1_3_is_told_in_words_of_1_2(
    prepared: Prepared, client: Client, status: ErrorStatus, seen: ErrorStatus
) -> None:
    prepared._function = lambda request, mappings: Outcome(status)
    assert client.execute([3])[0] is seen


def test_a_result_that_does_not_fit(prepared: Prepared) -> None:
    prepared._function = lambda request, mappings: Outcome(NONE, [OutputShape([1] * 10, True)], 5, 6)
    client = Client(prepared, results=8)
    assert client.execute([]) == (FAILURE, [], Timing())
    assert client.execute([]) == (FAILURE, [], Timing())


def test_bursts_keep_the_model_on_the_device(prepared: Prepared) -> None:
    first, second = Client(prepared), Client(prepared)
    assert prepared.pins == 2
    first.context.close()
    first.context.close()
    assert prepared.pins == 1
    second.requests.close()
    until(lambda: prepared.pins == 0)


def test_a_burst_that_nobody_holds_ends(prepared: Prepared) -> None:
    client = Client(prepared)
    client.memories[1] = memory.allocate_ashmem(4)
    client.execute([1])
    alive = weakref.ref(client)
    client.free(1)
    del client
    gc.collect()  # callback and context refer to each other
    assert alive() is None
    until(lambda: prepared.pins == 0)


def test_a_burst_whose_results_nobody_takes_can_be_closed(prepared: Prepared) -> None:
    client = Client(prepared, results=2)
    for _ in range(3):
        assert client.requests.write(serialize_request(REQUEST, []))
    until(lambda: len(prepared.runs) >= 2)
    client.context.close()
    assert prepared.pins == 0


def test_what_no_burst_can_be_made_of(prepared: Prepared) -> None:
    queue: MessageQueue[Any] = MessageQueue(4)
    closed: MessageQueue[Any] = MessageQueue(4)
    closed.close()
    client = Client(prepared)
    for callback, requests, results in [
        (None, queue, queue),
        (object(), queue, queue),
        (client, None, queue),
        (client, queue, []),
        (client, closed, queue),
        (client, queue, MessageQueue(0)),
    ]:
        with pytest.raises(StatusError) as caught:
            burst.configure(prepared, callback, requests, results)  # type: ignore[arg-type]
        assert caught.value.status is INVALID
    client.context.close()
    assert prepared.pins == 0


# AIDL


def _aidl(pools: Sequence[Memory | int]) -> aidl_types.Request:
    made = [
        RequestMemoryPool(token=pool) if isinstance(pool, int) else RequestMemoryPool(pool=from_memory(pool))
        for pool in pools
    ]
    return aidl_types.Request(REQUEST.inputs, REQUEST.outputs, made)


def _refused(status: ErrorStatus, act: Callable[..., object], *arguments: Any) -> None:
    with pytest.raises(ServiceSpecificException) as caught:
        act(*arguments)
    assert caught.value.errorCode is status


@pytest.fixture
def pools() -> Iterator[list[Memory]]:
    made = [memory.allocate_ashmem(16) for _ in range(2)]
    yield made
    for pool in made:
        pool.close()


def _counting(prepared: Prepared) -> list[int]:
    """Let executions map every pool; return how many each of them had to map newly."""
    fresh: list[int] = []

    def run(request: Request, mappings: PoolMappings) -> Outcome:
        for index, pool in enumerate(request.pools):
            assert isinstance(pool, MemoryPool)
            if pool.hidlMemory is not None:
                mappings.get(index, pool.hidlMemory)
        fresh.append(mappings.fresh)
        return Outcome(NONE, [OutputShape([4], True)], 1_500, 2_001)

    prepared._function = run
    return fresh


def test_what_a_token_names_is_mapped_once(prepared: Prepared, pools: list[Memory]) -> None:
    fresh = _counting(prepared)
    served = Burst(prepared)  # type: ignore[arg-type]
    for tokens in ([1, 2], [1, 2], [1, -1], [1, -1], [-1, -1]):
        result = served.executeSynchronously(_aidl(pools), tokens, True, -1, -1)
        assert result == aidl_types.ExecutionResult(True, [OutputShape([4], True)], aidl_types.Timing(2, 3))
    served.releaseMemoryResource(2)
    served.releaseMemoryResource(2)
    served.releaseMemoryResource(2**63 - 1)
    served.releaseMemoryResource(-1)
    served.executeSynchronously(_aidl(pools), [1, 2], True, -1, -1)
    assert fresh == [2, 0, 1, 1, 2, 1]


def test_a_token_that_is_used_for_something_else_is_not_believed(prepared: Prepared, pools: list[Memory]) -> None:
    fresh = _counting(prepared)
    served = Burst(prepared)  # type: ignore[arg-type]
    served.executeSynchronously(_aidl(pools[:1]), [1], False, -1, -1)
    served.executeSynchronously(_aidl(pools[1:]), [1], False, -1, -1)
    assert fresh == [1, 1]


def test_arguments_are_passed_on(prepared: Prepared, pools: list[Memory]) -> None:
    served = Burst(prepared)  # type: ignore[arg-type]
    served.executeSynchronously(_aidl([pools[0], 5]), [-1, -1], True, 12, 0)
    request, measure, deadline, loop_timeout = prepared.runs[0]
    assert [pool.token for pool in request.pools if isinstance(pool, MemoryPool)] == [None, 5]
    assert (measure, deadline, loop_timeout) == (True, 12, 0)
    config = aidl_types.ExecutionConfig(True, 7)
    served.executeSynchronouslyWithConfig(_aidl(pools), [-1, -1], config, 2**63 - 1)
    assert prepared.runs[1][1:] == (True, 2**63 - 1, 7)
    _refused(INVALID, served.executeSynchronouslyWithConfig, _aidl(pools), [-1, -1], None, -1)


@pytest.mark.parametrize("tokens", [[-2, 1], [1, -2], [1], [1, 2, 3], [], None, 5, ["a", 1], [1.0, 2], [2**63, 1]])
def test_wrong_tokens(prepared: Prepared, pools: list[Memory], tokens: Any) -> None:
    served = Burst(prepared)  # type: ignore[arg-type]
    _refused(INVALID, served.executeSynchronously, _aidl(pools), tokens, False, -1, -1)
    assert prepared.runs == []


@pytest.mark.parametrize("token", [-2, None, "a", 1.5, 2**63])
def test_tokens_that_cannot_be_released(prepared: Prepared, token: Any) -> None:
    _refused(INVALID, Burst(prepared).releaseMemoryResource, token)  # type: ignore[arg-type]


@pytest.mark.parametrize(("deadline", "timeout"), [(-2, -1), (-1, -2), (None, -1), (-1, "soon"), (2**63, -1)])
def test_wrong_times(prepared: Prepared, pools: list[Memory], deadline: Any, timeout: Any) -> None:
    served = Burst(prepared)  # type: ignore[arg-type]
    _refused(INVALID, served.executeSynchronously, _aidl(pools), [-1, -1], False, deadline, timeout)


@pytest.mark.parametrize(
    "pool", [None, 7, RequestMemoryPool(), RequestMemoryPool(token=1, pool=from_memory(Memory("ashmem", [0], 4)))]
)
def test_wrong_pools(prepared: Prepared, pool: Any) -> None:
    served = Burst(prepared)  # type: ignore[arg-type]
    _refused(INVALID, served.executeSynchronously, aidl_types.Request([], [], [pool]), [-1], False, -1, -1)
    _refused(INVALID, served.executeSynchronously, None, [], False, -1, -1)


def test_outputs_without_room_are_a_result(prepared: Prepared) -> None:
    shapes = [OutputShape([9], False)]
    prepared._function = lambda request, mappings: Outcome(ErrorStatus.OUTPUT_INSUFFICIENT_SIZE, shapes)
    result = Burst(prepared).executeSynchronously(_aidl([]), [], True, -1, -1)  # type: ignore[arg-type]
    assert result == aidl_types.ExecutionResult(False, shapes, aidl_types.Timing(-1, -1))


@pytest.mark.parametrize("status", [s for s in ErrorStatus if s not in {NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE}])
def test_every_other_status_is_raised(prepared: Prepared, status: ErrorStatus) -> None:
    prepared._function = lambda request, mappings: Outcome(status)
    _refused(status, Burst(prepared).executeSynchronously, _aidl([]), [], False, -1, -1)  # type: ignore[arg-type]


def test_one_execution_at_a_time(prepared: Prepared) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def run(request: Request, mappings: PoolMappings) -> Outcome:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return Outcome(NONE)

    prepared._function = run
    served, other = Burst(prepared), Burst(prepared)  # type: ignore[arg-type]
    thread = threading.Thread(target=served.executeSynchronously, args=(_aidl([]), [], False, -1, -1))
    thread.start()
    assert inside.wait(PATIENCE_S)
    _refused(FAILURE, served.executeSynchronously, _aidl([]), [], False, -1, -1)
    served.releaseMemoryResource(1)
    prepared._function = lambda request, mappings: Outcome(NONE)
    other.executeSynchronously(_aidl([]), [], False, -1, -1)  # another burst is another matter
    go_on.set()
    thread.join()
    served.executeSynchronously(_aidl([]), [], False, -1, -1)


def test_a_burst_keeps_the_model_on_the_device_while_it_lives(prepared: Prepared) -> None:
    first, second = Burst(prepared), Burst(prepared)  # type: ignore[arg-type]
    assert prepared.pins == 2
    del first
    assert prepared.pins == 1
    del second
    assert prepared.pins == 0
