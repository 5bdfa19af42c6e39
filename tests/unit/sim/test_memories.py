"""Hand-computed times of memories beside the DRAM, each with its own port, on the tiny device.

One cycle is 1 ns; a transfer is set up for 11 ns. The DRAM then takes 100 ns and 8 bytes per ns, the memory of
constants 300 ns and 1 byte per ns, the L2 20 ns and 4 bytes per ns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import Config
from npusim.isa.base import Wait, l2, region
from npusim.program import CONSTANTS, FIRST_IO, SCRATCH, Program
from npusim.sim.machine import Machine
from npusim.timeline import Timeline
from tests.support.programs.streams import Stream, copy, fill, gather, multicast
from tests.support.programs.tiny_times import NS, TINY, run

MEMORIES = {
    "constants.bytes": "1 MiB", "constants.bandwidth": "1 GB/s", "constants.latency": "300 ns",
    "l2.bytes": "8 KiB", "l2.bytes_per_cycle": 4, "l2.latency_cycles": 20,
}  # fmt: skip
DEVICE = TINY.with_(**{**MEMORIES, "dma.channels": 3})


@pytest.fixture(params=["in one go", "event by event"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "event by event":
        monkeypatch.setattr(Machine, "_fast_forward", lambda *_: None)


def timeline(program: Program, config: Config = DEVICE) -> Timeline:
    device = run(program, config)
    assert device.last_job is not None
    return device.last_job


def taken(stream: Stream, config: Config = DEVICE) -> list[int]:
    """Return the nanoseconds of each transfer, in the order of their ends."""
    job = timeline(stream.program(scratch=1 << 16, constants=bytes(4096)), config)
    return [(span.end_ps - span.start_ps) // NS for span in job.spans]


def alone(source: int, target: int, size: int = 1024) -> int:
    stream = Stream()
    stream.dma(copy(target, source, size))
    (found,) = taken(stream)
    return found


def test_each_memory_has_its_latency_and_its_bandwidth() -> None:
    assert alone(region(SCRATCH), 0) == 11 + 100 + 128
    assert alone(region(CONSTANTS), 0) == 11 + 300 + 1024
    assert alone(l2(0), 0) == 11 + 20 + 256
    assert alone(0, l2(0)) == 11 + 20 + 256


def test_a_short_run_takes_a_whole_line() -> None:
    assert alone(l2(0), 0, 1) == 11 + 20 + 16
    fine = DEVICE.with_(**{"l2.line_bytes": 4})
    stream = Stream()
    stream.dma(copy(0, l2(0), 1))
    assert taken(stream, fine) == [11 + 20 + 1]


def test_memories_that_are_busy_at_once_take_nothing_from_each_other() -> None:
    stream = Stream()
    for channel, source in enumerate((region(SCRATCH), region(CONSTANTS), l2(0))):
        stream.dma(copy(channel * 1024, source, 1024), channel=channel)
    assert sorted(taken(stream)) == sorted([11 + 100 + 128, 11 + 300 + 1024, 11 + 20 + 256])


@pytest.mark.parametrize(("arbitration", "ends"), [("fair", [31 + 511, 31 + 511]), ("need", [31 + 256, 31 + 511])])
def test_who_meets_at_the_l2_shares_it(arbitration: str, ends: list[int]) -> None:
    """Two transfers of 1024 bytes, the second one dispatched a ns after the first; one is waited for."""
    stream = Stream()
    first = stream.dma(copy(0, l2(0), 1024))
    stream.dma(copy(1024, l2(1024), 1024), channel=1)
    stream.dma(fill(4096, 1, 1), first, channel=2)
    config = DEVICE.with_(**{"interconnect.arbitration": arbitration})
    job = timeline(stream.program(), config)
    found = {span.unit: span for span in job.spans if span.kind == "dma.copy"}
    lasted = sorted((span.end_ps - span.start_ps) // NS for span in found.values())
    assert lasted == ends
    waited = sum(job.counters.units[unit].stalls.get("l2", 0) for unit in found)
    assert waited == sum(ends) * NS - 2 * (31 + 256) * NS
    assert not any("dram" in unit.stalls for name, unit in job.counters.units.items() if name != "sequencer")


def test_a_copy_between_l2_and_dram_passes_the_port_of_the_dram_at_the_slower_rate() -> None:
    assert alone(region(SCRATCH), l2(0)) == 11 + 100 + 256
    assert alone(l2(0), region(SCRATCH)) == 11 + 100 + 20 + 256
    assert alone(region(CONSTANTS), l2(0)) == 11 + 300 + 1024
    assert alone(l2(0), l2(1024)) == 11 + 20 + 512  # there and back


def test_traffic_of_the_l2_is_not_that_of_the_dram() -> None:
    stream = Stream()
    stream.dma(copy(l2(0), 0, 1024))
    job = timeline(stream.program())
    assert job.counters.dram_write_bytes == 0
    assert job.counters.dram_read_bytes == len(stream.code())
    assert [span.dram_bytes for span in job.spans] == [0]


def test_all_cores_see_one_l2() -> None:
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO), 64))
    there = stream.dma(copy(l2(128), 0, 64), loaded)
    back = stream.dma(multicast(256, l2(128), 64, 0b11), there, core=1)
    stream.dma(copy(region(FIRST_IO + 1), 256, 64), back, core=1)
    config = TINY.with_(**{**MEMORIES, "cores": 2, "interconnect.multicast": True})
    driver = Driver(NpuDevice(config).bus)
    values = np.arange(64, dtype=np.uint8)
    result = driver.run(driver.load(stream.program([64], [64])), {"x0": values})
    assert np.array_equal(result.outputs["y0"], values)


def test_fills_and_gathers_reach_the_l2() -> None:
    stream = Stream()
    filled = stream.dma(fill(l2(0), 64, 7))
    stream.dma(fill(64, 64, 0), filled)
    picked = stream.dma(gather(128, l2(0), 64, 4, 64), Wait(0, filled.unit, 2))
    stream.dma(copy(region(FIRST_IO), 128, 4), picked)
    driver = Driver(NpuDevice(DEVICE).bus)
    assert driver.run(driver.load(stream.program([], [4]))).outputs["y0"].tolist() == [7] * 4


def _rates() -> Iterator[dict[str, int]]:
    for rate in (1, 2, 4, 8, 16):
        yield {"l2.bytes_per_cycle": rate}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2000)), min_size=1, max_size=8))
def test_a_faster_l2_never_makes_one_channel_slower(moves: list[tuple[bool, int]]) -> None:
    times = []
    for rate in _rates():
        stream = Stream()
        for inwards, size in moves:
            stream.dma(copy(0, l2(0), size) if inwards else copy(l2(0), 0, size))
        times.append(timeline(stream.program(), DEVICE.with_(**rate)).time_ps)
    assert times == sorted(times, reverse=True)
