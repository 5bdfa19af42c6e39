"""Properties of every program on every device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.hw.config import Config
from npusim.hw.units.dma import FETCH_BYTES
from npusim.isa.base import decode
from npusim.isa.interpret import interpret
from npusim.program import FIRST_IO, SCRATCH
from npusim.sim.memory import DeviceMemory, JobMemory
from npusim.timeline import Timeline
from tests.support.programs.random_streams import CONFIGS, TINY, Action, actions, build
from tests.support.programs.random_streams import SCRATCH as SCRATCH_BYTES

PLANS = st.lists(actions(), min_size=1, max_size=20)


def simulate(plan: list[Action], config: Config, timing_only: bool = False) -> tuple[bytes, list[bytes], Timeline]:
    """Return (scratch, SRAM of each core, record) after one run from zeroed memories."""
    device = NpuDevice(config)
    driver = Driver(device.bus)
    loaded = driver.load(build(plan, config).program(scratch=SCRATCH_BYTES))
    driver.run(loaded, timing_only=timing_only)
    assert device.last_job is not None
    scratch = bytes(device.bus.read_memory(loaded.regions[SCRATCH], SCRATCH_BYTES))
    return scratch, [sram.tobytes() for sram in device.machine.memory.sram], device.last_job


@given(PLANS, CONFIGS)
@settings(max_examples=60)
def test_the_simulation_computes_what_the_interpreter_defines(plan: list[Action], config: Config) -> None:
    memory = DeviceMemory(config)
    stream = build(plan, config)
    interpret(decode(stream.code()), JobMemory(memory, [(0, 0), (0, SCRATCH_BYTES)]))
    scratch, srams, _ = simulate(plan, config)
    assert scratch == memory.dram[:SCRATCH_BYTES].tobytes()
    assert srams == [sram.tobytes() for sram in memory.sram]


@given(PLANS, CONFIGS)
@settings(max_examples=60)
def test_every_picosecond_of_every_unit_is_accounted_for(plan: list[Action], config: Config) -> None:
    _, _, record = simulate(plan, config, timing_only=True)
    counters = record.counters
    assert counters.duration_ps == record.time_ps
    for name, unit in counters.units.items():
        parts = [unit.busy_ps, unit.idle_ps, *unit.stalls.values()]
        assert sum(parts) == counters.duration_ps, name
        assert min(parts) >= 0, name
    assert counters.instructions == len(plan) + 1
    assert sum(unit.instructions for unit in counters.units.values()) == counters.instructions


@given(PLANS, CONFIGS)
@settings(max_examples=40)
def test_spans_and_counters_tell_the_same_story(plan: list[Action], config: Config) -> None:
    _, _, record = simulate(plan, config, timing_only=True)
    spans = record.spans
    assert sorted(span.op for span in spans) == list(range(len(plan)))
    assert spans == sorted(spans, key=lambda span: (span.end_ps, span.unit, span.start_ps))
    for name, unit in record.counters.units.items():
        mine = sorted((span for span in spans if span.unit == name), key=lambda span: span.start_ps)
        assert all(one.end_ps <= two.start_ps for one, two in pairwise(mine))  # one at a time
        if name != "sequencer":
            waited = unit.stalls.get("dram", 0) + unit.stalls.get("l2", 0)
            assert unit.busy_ps + waited == sum(span.end_ps - span.start_ps for span in mine)
            assert unit.bytes == sum(span.bytes for span in mine)
            assert unit.instructions == len(mine)


@given(PLANS, CONFIGS)
@settings(max_examples=40)
def test_arithmetic_and_memory_contents_do_not_touch_the_time(plan: list[Action], config: Config) -> None:
    _, _, with_it = simulate(plan, config)
    _, _, without = simulate(plan, config, timing_only=True)
    assert with_it.digest() == without.digest()
    assert with_it.counters == without.counters
    assert with_it.cycles == without.cycles


@given(PLANS, CONFIGS, st.integers(1, 5))
@settings(max_examples=60)
def test_more_bandwidth_never_makes_a_program_slower_where_nobody_competes(
    plan: list[Action], config: Config, more: int
) -> None:
    """With one channel and code fetched in one piece, transfers are sequential."""
    slow = config.with_(**{"dma.channels": 1, "cores": 1})
    fast = slow.with_(**{"dram.bandwidth": slow.dram.bandwidth + more * 10**9})
    assert len(build(plan, slow).code()) <= FETCH_BYTES
    assert simulate(plan, fast, timing_only=True)[2].time_ps <= simulate(plan, slow, timing_only=True)[2].time_ps


@given(PLANS, CONFIGS)
@settings(max_examples=40)
def test_a_deeper_queue_never_makes_a_program_slower_where_nobody_competes(plan: list[Action], config: Config) -> None:
    shallow = config.with_(**{"dma.channels": 1, "cores": 1})
    deep = shallow.with_(queue_depth=shallow.queue_depth + 3)
    assert simulate(plan, deep, timing_only=True)[2].time_ps <= simulate(plan, shallow, timing_only=True)[2].time_ps


@given(PLANS)
@settings(max_examples=20)
def test_a_second_run_on_the_same_device_takes_the_same_time(plan: list[Action]) -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(build(plan, TINY).program(scratch=SCRATCH_BYTES))
    records = []
    for _ in range(2):
        driver.run(loaded, timing_only=True)
        records.append(device.last_job)
    assert records[0] is not None
    assert records[1] is not None
    assert records[0].digest() == records[1].digest()
    assert records[0].counters == records[1].counters


def test_timing_only_leaves_the_data_alone() -> None:
    from tests.support.programs.streams import round_trip

    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(round_trip(64))
    values = np.arange(64, dtype=np.uint8)
    assert driver.run(loaded, timing_only=True).outputs == {}
    assert not any(device.bus.read_memory(loaded.regions[FIRST_IO + 1], 64))
    assert np.array_equal(driver.run(loaded, {"x0": values}).outputs["y0"], values)
