"""Bursts: what is kept between executions, and invalid packets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi.aidl import burst as aidl_burst
from hal.nnapi.aidl import types as aidl_types
from hal.nnapi.fmq import FmqRequestDatum
from hal.nnapi.memory import Memory
from hal.nnapi.packets import serialize_request
from hal.nnapi.types import DataLocation, ErrorStatus, OperandLifeTime, Request, Timing
from npusim.driver import HostCounters
from tests.support.nnapi.client import Burst, aidl_request, prepared_model
from tests.support.nnapi.memory_requests import (
    INVALID,
    NBYTES,
    NONE,
    SHAPE,
    Bench,
    numbers,
    pool_of,
    request_for,
    two_results,
)


def _frame(prepared: Any) -> Iterator[Request]:
    pools = [pool_of(numbers(index)) for index in range(4)]
    yield request_for(pools[:2], pools[2:])
    for pool in pools:
        pool.close()


@pytest.fixture
def frame(prepared: Any) -> Iterator[Request]:
    yield from _frame(prepared)


def _weighted(device: Any) -> tuple[Any, Request]:
    """Return a model with weights, and a request for it."""
    model = two_results(*SHAPE)
    model.main.inputIndexes = [0]
    weights = model.main.operands[1]
    weights.lifetime, weights.location = OperandLifeTime.CONSTANT_REFERENCE, DataLocation(0, 0, NBYTES)
    model.pools = [pool_of(numbers(5))]
    prepared = prepared_model(device, model)
    model.pools[0].close()
    pools = [pool_of(numbers(index)) for index in range(3)]
    return prepared, request_for(pools[:1], pools[1:])


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
    asked = aidl_request(request)

    def execute() -> int:
        if hidl:
            status, _, timing = hidl.execute(request, 1)
            assert status is NONE
            return timing.timeInDriver
        assert aidl is not None
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
    assert np.array_equal(result.view(np.float32).reshape(SHAPE), numbers(0) + numbers(5))
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
    request = aidl_request(frame)
    with pytest.raises(aidl_types.ServiceSpecificException) as caught:
        burst.executeSynchronously(request, tokens, False, -1, -1)
    assert caught.value.errorCode is INVALID
    assert burst.executeSynchronously(request, [-1, 2, 3, 4], False, -1, -1).outputSufficientSize
