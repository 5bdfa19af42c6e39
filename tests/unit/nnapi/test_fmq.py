"""Message queues and their packets: round trips, and every way to damage one."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hal.nnapi.errors import StatusError
from hal.nnapi.fmq import FmqRequestDatum, FmqResultDatum, MessageQueue
from hal.nnapi.packets import deserialize_request, deserialize_result, serialize_request, serialize_result
from hal.nnapi.types import DataLocation, ErrorStatus, MeasureTiming, OutputShape, Request, RequestArgument, Timing
from tests.support.waits_and_leaks import PATIENCE_S

# The queue


def test_a_packet_goes_in_whole_or_not_at_all() -> None:
    queue: MessageQueue[int] = MessageQueue(4)
    assert queue.isValid()
    assert queue.getQuantumCount() == 4
    assert queue.write([1, 2, 3])
    assert not queue.write([4, 5])
    assert (queue.availableToRead(), queue.availableToWrite()) == (3, 1)
    assert queue.write([4])
    assert queue.readPacket(0) == [1, 2, 3]
    assert queue.readPacket(0) == [4]
    assert queue.readPacket(0) is None


@pytest.mark.parametrize("packet", [[], [1, 2, 3]])
def test_what_can_never_go_in_is_not_waited_for(packet: list[int]) -> None:
    queue: MessageQueue[int] = MessageQueue(2)
    assert not queue.writeBlocking(packet)


def test_entries_may_be_read_across_packets() -> None:
    queue: MessageQueue[int] = MessageQueue(10)
    for packet in ([1, 2, 3], [4], [5, 6]):
        queue.write(packet)
    assert queue.read(7) is None
    assert queue.read(1) == [1]
    assert queue.read(4) == [2, 3, 4, 5]
    assert queue.readPacket(0) == [6]
    assert queue.read(0) == []


def test_timeouts() -> None:
    queue: MessageQueue[int] = MessageQueue(1)
    queue.write([1])
    for wait in (lambda: queue.writeBlocking([2], 0.01), lambda: queue.readBlocking(2, 0.01)):
        began = time.monotonic()
        assert not wait()
        assert 0.01 <= time.monotonic() - began < PATIENCE_S
    queue.read(1)
    assert queue.readPacket(0.01) is None


def _later(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.01, act)
    timer.start()
    return timer


def test_those_who_wait_are_woken() -> None:
    queue: MessageQueue[int] = MessageQueue(1)
    _later(lambda: queue.write([1]))
    assert queue.readPacket(5) == [1]
    queue.write([2])
    _later(lambda: queue.read(1))
    assert queue.writeBlocking([3], 5)
    queue.read(1)
    _later(queue.close)
    assert queue.readPacket() is None
    assert not queue.isValid()
    assert not queue.write([4])


def test_what_is_there_can_be_read_from_a_closed_queue() -> None:
    queue: MessageQueue[int] = MessageQueue(2)
    queue.write([1, 2])
    queue.close()
    assert queue.readBlocking(2) == [1, 2]
    assert queue.readBlocking(1) is None


def test_a_wait_that_is_called_off() -> None:
    queue: MessageQueue[int] = MessageQueue(2)
    stop = threading.Event()
    _later(lambda: (stop.set(), queue.wake()))
    assert queue.readPacket(cancelled=stop.is_set) is None
    queue.write([1, 2])
    assert not queue.writeBlocking([3], cancelled=stop.is_set)
    assert queue.readPacket(cancelled=stop.is_set) is None
    assert queue.availableToRead() == 2


def test_packets_of_many_writers_stay_whole() -> None:
    queue: MessageQueue[tuple[int, int]] = MessageQueue(16)
    count = 100

    def write(number: int) -> None:
        for _ in range(count):
            assert queue.writeBlocking([(number, part) for part in range(number + 1)], 10)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    seen = [0] * 4
    for _ in range(4 * count):
        packet = queue.readPacket(10)
        assert packet is not None
        number = packet[0][0]
        assert packet == [(number, part) for part in range(number + 1)]
        seen[number] += 1
    for writer in writers:
        writer.join()
    assert seen == [count] * 4


# Packets

REQUEST = Request(
    [RequestArgument(False, DataLocation(0, 0, 8), [2]), RequestArgument(True)],
    [RequestArgument(False, DataLocation(1, 4, 12), [1, 3])],
)
SLOTS = [5, 9]


def _packet() -> list[FmqRequestDatum]:
    return serialize_request(REQUEST, SLOTS, MeasureTiming.YES)


_SIZES = st.lists(st.integers(0, 2**32 - 1), max_size=4)
_PLACES = st.builds(DataLocation, st.integers(0, 9), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
_ARGUMENTS = st.lists(st.builds(RequestArgument, st.booleans(), _PLACES, _SIZES), max_size=4)


@given(_ARGUMENTS, _ARGUMENTS, st.lists(st.integers(0, 2**31 - 1), max_size=3), st.sampled_from(MeasureTiming))
def test_a_request_comes_back_as_it_was(
    inputs: list[RequestArgument], outputs: list[RequestArgument], slots: list[int], measure: MeasureTiming
) -> None:
    found = deserialize_request(serialize_request(Request(inputs, outputs), slots, measure))
    assert (found.inputs, found.outputs, found.slots, found.measure) == (inputs, outputs, slots, measure)


@given(
    st.sampled_from(ErrorStatus),
    st.lists(st.builds(OutputShape, _SIZES, st.booleans()), max_size=4),
    st.builds(Timing, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
)
def test_a_result_comes_back_as_it_was(status: ErrorStatus, shapes: list[OutputShape], timing: Timing) -> None:
    assert deserialize_result(serialize_result(status, shapes, timing)) == (status, shapes, timing)


def test_the_layout_of_a_request() -> None:
    packet = _packet()
    assert [entry.member for entry in packet] == [
        "packetInformation", "inputOperandInformation", "inputOperandDimensionValue", "inputOperandInformation",
        "outputOperandInformation", "outputOperandDimensionValue", "outputOperandDimensionValue",
        "poolIdentifier", "poolIdentifier", "measureTiming",
    ]  # fmt: skip
    assert packet[0].packetInformation == FmqRequestDatum.PacketInformation(10, 2, 1, 2)


_OPERAND = FmqRequestDatum.OperandInformation(False, DataLocation(), 10)
BAD = [
    FmqRequestDatum(packetInformation=FmqRequestDatum.PacketInformation(10, 10, 10, 10)),
    FmqRequestDatum(inputOperandInformation=_OPERAND),
    FmqRequestDatum(inputOperandDimensionValue=0),
    FmqRequestDatum(outputOperandInformation=_OPERAND),
    FmqRequestDatum(outputOperandDimensionValue=0),
    FmqRequestDatum(poolIdentifier=2**31 - 1),
    FmqRequestDatum(measureTiming=MeasureTiming.YES),
    FmqRequestDatum(),
    FmqRequestDatum(poolIdentifier=1, measureTiming=0),
]


def _refused(packet: Sequence[Any]) -> None:
    with pytest.raises(StatusError) as caught:
        deserialize_request(packet)
    assert caught.value.status is ErrorStatus.INVALID_ARGUMENT


@pytest.mark.parametrize("place", range(10))
def test_no_entry_may_be_missing(place: int) -> None:
    packet = _packet()
    del packet[place]
    _refused(packet)
    packet[0].packetInformation = FmqRequestDatum.PacketInformation(9, 2, 1, 2)
    _refused(packet)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad.member))
@pytest.mark.parametrize("place", range(11))
def test_no_entry_may_be_added(place: int, bad: FmqRequestDatum) -> None:
    packet = _packet()
    packet.insert(place, copy.deepcopy(bad))
    _refused(packet)
    if packet[0].packetInformation is not None:
        packet[0].packetInformation.packetSize = 11
    if bad.member not in {"inputOperandDimensionValue", "outputOperandDimensionValue", "poolIdentifier"}:
        _refused(packet)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad.member))
@pytest.mark.parametrize("place", range(10))
def test_no_entry_may_be_another(place: int, bad: FmqRequestDatum) -> None:
    packet = _packet()
    same = packet[place].member == bad.member and isinstance(getattr(bad, bad.member or ""), int)
    packet[place] = bad
    if same:  # another value in the right place is for the rules of requests
        deserialize_request(packet)
    else:
        _refused(packet)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.clear(),
        lambda p: p.append(None),
        lambda p: p.__setitem__(3, "entry"),
        lambda p: p.__setitem__(0, FmqResultDatum()),
        lambda p: setattr(p[0].packetInformation, "packetSize", None),
        lambda p: setattr(p[0].packetInformation, "packetSize", -10),
        lambda p: setattr(p[0].packetInformation, "numberOfInputOperands", 2**32),
        lambda p: setattr(p[0].packetInformation, "numberOfPools", -1),
        lambda p: setattr(p[0], "packetInformation", 10),
        lambda p: setattr(p[1].inputOperandInformation, "location", None),
        lambda p: setattr(p[1].inputOperandInformation, "numberOfDimensions", 2**40),
        lambda p: setattr(p[1].inputOperandInformation, "hasNoValue", "no"),
        lambda p: setattr(p[1].inputOperandInformation.location, "offset", -1),
        lambda p: setattr(p[2], "inputOperandDimensionValue", -1),
        lambda p: setattr(p[2], "inputOperandDimensionValue", 2**32),
        lambda p: setattr(p[7], "poolIdentifier", -1),
        lambda p: setattr(p[9], "measureTiming", 2),
        lambda p: setattr(p[9], "measureTiming", "yes"),
    ],
)
def test_no_field_may_be_impossible(change: Callable[[Any], None]) -> None:
    packet: list[Any] = copy.deepcopy(_packet())
    change(packet)
    _refused(packet)


@pytest.mark.parametrize("place", range(5))
def test_a_broken_result_is_a_general_failure(place: int) -> None:
    packet = serialize_result(ErrorStatus.NONE, [OutputShape([2, 3], True)], Timing())
    del packet[place]
    with pytest.raises(StatusError) as caught:
        deserialize_result(packet)
    assert caught.value.status is ErrorStatus.GENERAL_FAILURE
