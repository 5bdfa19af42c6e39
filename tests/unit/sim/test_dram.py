"""Transfers to DRAM of kind jedec in the simulation: their times alone, together, and in any program."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost
from npusim.hw.memory import dram_model
from npusim.isa.base import region
from npusim.isa.dma import Copy
from npusim.program import SCRATCH, Program
from npusim.timeline import Timeline
from tests.support.programs.random_streams import SCRATCH as SCRATCH_BYTES
from tests.support.programs.random_streams import Action, actions, build
from tests.support.programs.streams import ZERO4, Stream, copy, fill

JEDEC = load_config("tiny").with_(**{
    "dma.channels": 2,
    "dma.bytes_per_cycle": 32,
    "dma.max_outstanding": 64,
    "dram.kind": "jedec",
    "dram.part": "DDR4_3200AA",
    "dram.bandwidth": "25.6 GB/s",
    "dram.efficiency": 1,
    "dram.latency": "30 ns",
    "interconnect.bytes_per_cycle": 64,
})  # fmt: skip
FAR = 1 << 17  # bytes: the next row of the same bank


def run(program: Program, config: Config = JEDEC, timing_only: bool = True) -> tuple[Timeline, bytes]:
    device = NpuDevice(config)
    driver = Driver(device.bus)
    loaded = driver.load(program)
    driver.run(loaded, timing_only=timing_only)
    assert device.last_job is not None
    return device.last_job, bytes(device.bus.read_memory(loaded.regions[SCRATCH], 64))


def durations(stream: Stream, scratch: int) -> list[int]:
    record, _ = run(stream.program(scratch=scratch))
    return [span.end_ps - span.start_ps for span in record.spans]


def column(rows: int, stride: int) -> Copy:
    """Return ``rows`` lines of 64 bytes from DRAM, gathered in SRAM."""
    return Copy(0, (0, 0, 64, 1), region(SCRATCH), (0, 0, stride, 1), (1, 1, rows, 64), 1, ZERO4, ZERO4, 0)


@pytest.mark.parametrize("move", [copy(0, region(SCRATCH), 4096), copy(region(SCRATCH), 0, 4096), column(32, FAR)])
def test_a_transfer_alone_takes_what_the_cost_model_says(move: Copy) -> None:
    stream = Stream()
    stream.dma(move)
    assert durations(stream, 32 * FAR) == [cost(JEDEC, move.work()).ps]


def test_rows_of_one_bank_cost_what_they_cost() -> None:
    stream = Stream()
    stream.dma(column(32, FAR))
    [slow] = durations(stream, 32 * FAR)
    part = dram_model(JEDEC).memory.part  # type: ignore[attr-defined]
    assert slow > 31 * part.rc * part.tck_ps


def test_streams_share_what_the_pins_give() -> None:
    one, two = Stream(), Stream()
    one.dma(copy(0, region(SCRATCH), 2048))
    for channel in (0, 1):
        two.dma(copy(2048 * channel, region(SCRATCH, 2048 * channel), 2048), channel=channel)
    [alone] = durations(one, 4096)
    together = durations(two, 4096)
    waiting = cost(JEDEC, one.commands[0].instruction.work()).terms[1][1] * 1000
    assert alone < max(together) <= 2 * alone - waiting + 2000


def test_a_transfer_that_waits_leaves_the_pins_to_others() -> None:
    slow = JEDEC.with_(**{"dma.max_outstanding": 1})
    stream = Stream()
    for channel in (0, 1):
        stream.dma(copy(2048 * channel, region(SCRATCH, 2048 * channel), 2048), channel=channel)
    record, _ = run(stream.program(scratch=4096), slow)
    work = stream.commands[0].instruction.work()
    assert all(span.end_ps - span.start_ps < 1.1 * cost(slow, work).ps for span in record.spans)


def test_the_data_arrive_too() -> None:
    stream = Stream()
    first = stream.dma(fill(0, 64, 7))
    stream.dma(copy(region(SCRATCH), 0, 64), first)
    _, data = run(stream.program(scratch=64), timing_only=False)
    assert data == np.full(64, 7, np.uint8).tobytes()


@given(st.lists(actions(), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_any_program_keeps_its_books(plan: list[Action]) -> None:
    program = build(plan, JEDEC).program(scratch=SCRATCH_BYTES)
    record, _ = run(program)
    for unit in record.counters.units.values():
        parts = [unit.busy_ps, unit.idle_ps, *unit.stalls.values()]
        assert sum(parts) == record.counters.duration_ps
        assert min(parts) >= 0
    again, _ = run(program)
    assert again.digest() == record.digest()


def test_more_channels_are_never_slower() -> None:
    plan = Stream()
    for number in range(8):
        plan.dma(copy(0, region(SCRATCH, 2048 * number), 2048))
    program = plan.program(scratch=1 << 14)
    times = [
        run(program, JEDEC.with_(**{"dram.channels": count, "dram.bandwidth": 25_600_000_000 * count}))[0].time_ps
        for count in (1, 2, 4)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
