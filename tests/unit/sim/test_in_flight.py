"""Hand-computed times of transfers requested while a channel still moves older ones, on the tiny device.

One cycle is 1 ns; a transfer is set up for 11 ns, waits 100 ns for the DRAM, and then flows at 8 bytes per ns.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.faults import AtCommand, Fault, Hang, Slow, Throttle
from npusim.hw.config import Config
from npusim.isa.base import Unit, Wait, region
from npusim.program import SCRATCH, Program
from npusim.sim.machine import Machine
from npusim.timeline import Timeline
from tests.support.programs.streams import Stream, add, copy, fill
from tests.support.programs.tiny_times import LATENCY, NS, START, TINY, flow, run


def channel(in_flight: int, **knobs: object) -> Config:
    return TINY.with_(**{"dma.in_flight": in_flight, **knobs})


def stream_of(*sizes: int) -> Program:
    stream = Stream()
    for size in sizes:
        stream.dma(copy(0, region(SCRATCH), size))
    return stream.program(scratch=1 << 16)


def timeline(program: Program, config: Config) -> Timeline:
    device = run(program, config)
    assert device.last_job is not None
    return device.last_job


def spans(program: Program, config: Config, unit: str = "core0.dma0") -> list[tuple[int, int]]:
    """Return the spans of one unit, relative to its first start."""
    found = [span for span in timeline(program, config).spans if span.unit == unit]
    return [(span.start_ps - found[0].start_ps, span.end_ps - found[0].start_ps) for span in found]


@pytest.fixture(params=["in one go", "event by event"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "event by event":
        monkeypatch.setattr(Machine, "_fast_forward", lambda *_: None)


@pytest.mark.parametrize(
    ("in_flight", "size", "ends"),
    [
        # One after the other: 11 + 100 + 8 ns each.
        (1, 64, [119, 238, 357, 476, 595]),
        # The second is requested after the first one's set-up, the third at the end of the first: a latency later.
        (2, 64, [119, 130, 238, 249, 357]),
        # Four set-ups, 11 ns apart; the fifth when the first is over.
        (4, 64, [119, 130, 141, 152, 238]),
        # Only the set-ups are left.
        (8, 64, [119, 130, 141, 152, 163]),
        # With 256 ns of data the latency is hidden for any number in flight.
        (2, 2048, [367, 623, 879, 1135, 1391]),
    ],
)
def test_latency_passes_while_older_ones_stream(in_flight: int, size: int, ends: list[int]) -> None:
    found = spans(stream_of(*[size] * 5), channel(in_flight))
    assert [end for _, end in found] == [end * NS for end in ends]
    # A span starts at the end of the previous one; overlapped time belongs to no span.
    assert all(start == end for (_, end), (start, _) in pairwise(found))


def test_what_is_left_of_a_latency_shows() -> None:
    # The first flows for one ns less than the second one's set-up and latency need from its own set-up's end.
    (_, first), (start, second) = spans(stream_of(80, 64), channel(2))
    assert (first, start) == (START + LATENCY + flow(128), first)  # whole bursts
    assert second == max(first, 2 * START + LATENCY) + flow(64)
    (_, first), (_, second) = spans(stream_of(64, 64), channel(2))
    assert second == 2 * START + LATENCY + flow(64) == first + START


def test_a_wait_holds_before_a_transfer_is_asked_for() -> None:
    stream = Stream()
    stream.dma(copy(0, region(SCRATCH), 64))
    done = stream.vector(add(0x4000, 0x4000, 0x4000, 4096))
    stream.dma(copy(0, region(SCRATCH), 64), done)
    stream.dma(copy(0, region(SCRATCH), 64))  # commands start in order, after the waiting one
    job = timeline(stream.program(scratch=1 << 16), channel(4))
    transfers = [span for span in job.spans if span.unit == "core0.dma0"]
    (vector,) = [span for span in job.spans if span.unit == "core0.vector"]
    assert vector.end_ps > transfers[0].end_ps + LATENCY
    asked = vector.end_ps
    assert transfers[1].start_ps == asked
    assert transfers[1].end_ps == asked + START + LATENCY + flow(64)
    assert transfers[2].end_ps == asked + 2 * START + LATENCY + flow(64)


def test_counts_are_of_what_is_over() -> None:
    """A command that waits for the second of three transfers in flight starts exactly at its end."""
    stream = Stream()
    for _ in range(3):
        stream.dma(copy(0, region(SCRATCH), 64))
    stream.vector(add(0x4000, 0x4000, 0x4000, 8), Wait(0, Unit.DMA, 2))
    job = timeline(stream.program(scratch=1 << 16), channel(4))
    second = [span for span in job.spans if span.unit == "core0.dma0"][1]
    (vector,) = [span for span in job.spans if span.unit == "core0.vector"]
    assert vector.start_ps == second.end_ps


def test_writes_without_a_latency_end_behind_older_reads() -> None:
    stream = Stream()
    stream.dma(copy(0, region(SCRATCH), 64))
    stream.dma(copy(region(SCRATCH), 0, 64))
    found = spans(stream.program(scratch=1 << 16), channel(2, **{"dma.write_latency": "0 ns"}))
    read = START + LATENCY + flow(64)
    assert [end for _, end in found] == [read, read + flow(64)]


def test_what_touches_no_dram_takes_turns() -> None:
    stream = Stream()
    for _ in range(3):
        stream.dma(fill(0, 800, 1))  # 100 ns at 8 bytes a cycle
    found = spans(stream.program(scratch=1 << 16), channel(4))
    first = found[0][1]
    assert [end for _, end in found] == [first, 2 * first - START, 3 * first - 2 * START]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4096), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 9))
def test_more_in_flight_is_never_slower_for_a_stream(sizes: list[int], channels: int, rate: int) -> None:
    stream = Stream()
    for number, size in enumerate(sizes):
        stream.dma(copy(0x1000 * number, region(SCRATCH), size), channel=number % channels)
    program = stream.program(scratch=1 << 16)
    knobs = {"dma.channels": channels, "dram.bandwidth": rate * 10**9}
    times = []
    for in_flight in (1, 2, 3, 4, 8):
        job = timeline(program, channel(in_flight, **knobs))
        times.append(job.time_ps)
        for counters in job.counters.units.values():
            assert counters.busy_ps + counters.idle_ps + sum(counters.stalls.values()) == job.time_ps
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("command", [1, 3, 8])
@pytest.mark.parametrize(
    "what",
    [
        Hang(hang="core0.dma0", lasts=2 * 10**6),
        Slow(slow="core0.dma0", factor=Fraction(3)),
        Throttle(throttle=Fraction(2), lasts=10**6),
    ],
)
def test_what_breaks_costs_time_and_no_transfer(what: Hang | Slow | Throttle, command: int) -> None:
    program = stream_of(*[640] * 8)
    device = NpuDevice(channel(4), [Fault(AtCommand(command=command, unit="core0.dma0"), what)])
    driver = Driver(device.bus)
    driver.run(driver.load(program), timing_only=True)
    job = device.last_job
    assert job is not None
    found = [span for span in job.spans if span.unit == "core0.dma0"]
    assert len(found) == 8
    assert all(one.end_ps <= other.start_ps for one, other in pairwise(found))
    counters = job.counters.units["core0.dma0"]
    assert counters.busy_ps + counters.idle_ps + sum(counters.stalls.values()) == job.time_ps
    assert job.time_ps > timeline(program, channel(4)).time_ps


# units that look ahead


def test_a_set_up_passes_while_the_unit_works() -> None:
    stream = Stream()
    for _ in range(3):
        stream.vector(add(0x4000, 0x4000, 0x4000, 4096))
    program = stream.program()
    plain, hidden = (spans(program, channel(1, **{"vector.setup_hidden": on}), "core0.vector") for on in (False, True))
    alone = plain[0][1]
    setup = TINY.vector.setup_cycles * NS if TINY.vector else 0
    assert [end for _, end in plain] == [alone, 2 * alone, 3 * alone]
    assert [end for _, end in hidden] == [alone, 2 * alone - setup, 3 * alone - 2 * setup]


def test_commands_by_a_way_of_their_own_take_nothing_of_the_bus() -> None:
    stream = Stream()
    stream.dma(copy(0, region(SCRATCH), 4096))
    for _ in range(50):  # more than half of the sequencer's buffer: the rest comes while the copy flows
        stream.vector(add(0x4000, 0x4000, 0x4000, 8))
    program = stream.program(scratch=1 << 16)
    devices = [TINY.with_(**{"interconnect.separate_code_port": on}) for on in (False, True)]
    (_, shared), (_, apart) = (spans(program, device)[0] for device in devices)
    assert 4096 < len(program.code) < 8192
    assert apart == START + LATENCY + flow(4096)
    # Both wait for the DRAM from the same time on; until the copy is set up the code has the bus alone.
    assert shared == apart + flow(len(program.code) - 4096) - START


def test_writes_apart_take_nothing_of_what_is_read() -> None:
    stream = Stream()
    stream.dma(copy(0, region(SCRATCH), 4096), channel=0)
    stream.dma(copy(region(SCRATCH, 1 << 15), 0x4000, 4096), channel=1)
    program = stream.program(scratch=1 << 16)
    shared, apart = (TINY.with_(**{"dma.channels": 2, "interconnect.separate_write_port": on}) for on in (False, True))
    units, alone = ("core0.dma0", "core0.dma1"), START + LATENCY + flow(4096)
    assert [spans(program, apart, unit) for unit in units] == [[(0, alone)]] * 2
    # One of them flows when the other is over.
    assert max(spans(program, shared, unit)[0][1] for unit in units) > alone + flow(4000)
