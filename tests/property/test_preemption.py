"""Jobs of any priority at any time: each computes its own result, and the machine has one owner at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, Priority
from npusim.errors import JobAbortedError
from npusim.hw.config import Config, load_config
from npusim.program import SCRATCH
from npusim.timeline import Timeline
from tests.support.arriving_jobs import Arrival, arrivals, program, storage
from tests.support.graphs.golden import GRAPHS
from tests.support.graphs.samples import product
from tests.support.programs.random_streams import CONFIGS as DEVICES
from tests.support.programs.random_streams import SCRATCH as SCRATCH_BYTES
from tests.support.programs.random_streams import Action
from tests.support.programs.streams import QUICK_HOST

CONFIGS = DEVICES.map(lambda config: config.with_(**QUICK_HOST))


ARRIVALS = st.tuples(
    arrivals(Priority.LOW), st.lists(arrivals(*reversed(Priority)), min_size=1, max_size=4)
).map(lambda parts: [parts[0], *parts[1]])  # fmt: skip


def alone(plan: list[Action], config: Config) -> tuple[bytes, Timeline]:
    device = NpuDevice(config)
    driver = Driver(device.bus)
    loaded = driver.load(program(plan, config))
    driver.run(loaded)
    assert device.last_job is not None
    return bytes(device.bus.read_memory(loaded.regions[SCRATCH], SCRATCH_BYTES)), device.last_job


def together(jobs: list[Arrival], config: Config) -> list[tuple[bytes | None, Timeline]]:
    """Return (scratch, or None for an aborted job; record) of each job."""
    device = NpuDevice(config)
    driver = Driver(device.bus)
    driver.enable_preemption()
    records: dict[int, Timeline] = {}
    device.listener = records.__setitem__
    loaded = [driver.load(program(arrival.plan, config)) for arrival in jobs]
    scratch = [item.regions[SCRATCH] for item in loaded]
    seqnos, events = [], []
    for number, arrival in enumerate(jobs):
        device.machine.clock.advance(arrival.after_ps)
        seqnos.append(driver.submit(loaded[number], priority=arrival.priority))
        if arrival.abort_ps is not None:
            events.append((device.now_ps + arrival.abort_ps, seqnos[-1]))
    for time, seqno in sorted(events):
        device.machine.clock.advance(max(0, time - device.now_ps))
        driver.abort(seqno)
    results: list[tuple[bytes | None, Timeline]] = []
    for seqno, address in zip(seqnos, scratch, strict=True):
        try:
            driver.wait(seqno)
        except JobAbortedError:
            results.append((None, records[seqno.seqno]))
        else:
            results.append((bytes(device.bus.read_memory(address, SCRATCH_BYTES)), records[seqno.seqno]))
    return results


@given(ARRIVALS, CONFIGS)
@settings(max_examples=15)
def test_every_job_computes_what_it_computes_alone(jobs: list[Arrival], config: Config) -> None:
    for arrival, (scratch, record) in zip(jobs, together(jobs, config), strict=True):
        assert record.fault is None
        assert (scratch is None) == record.aborted
        assert not record.aborted or arrival.abort_ps is not None
        wanted, lone = alone(arrival.plan, config)
        if scratch is not None:
            assert scratch == wanted
            done = [(span.unit, span.op, span.kind) for span in record.spans if span.unit != "sequencer"]
            assert sorted(done) == sorted((span.unit, span.op, span.kind) for span in lone.spans)
            if not record.preemptions:
                assert record.digest() == lone.digest()
                assert record.time_ps == lone.time_ps


@given(ARRIVALS, CONFIGS)
@settings(max_examples=15)
def test_time_is_accounted_for_and_the_machine_has_one_owner(jobs: list[Arrival], config: Config) -> None:
    results = together(jobs, config)
    owned = []
    for number, (_, record) in enumerate(results):
        for name, unit in record.counters.units.items():
            parts = [unit.busy_ps, unit.idle_ps, *unit.stalls.values()]
            assert sum(parts) == record.time_ps, name
            assert min(parts) >= 0, name
        starts = [span.start_ps for span in record.spans]
        owned += [(record.started_ps + span.start_ps, record.started_ps + span.end_ps, number) for span in record.spans]
        assert not starts or min(starts) > 0
    ordered = sorted(owned)
    latest = (0, -1)
    for start, end, number in ordered:
        assert number == latest[1] or start >= latest[0], "two jobs at work at the same time"
        latest = max(latest, (end, number)) if number == latest[1] else (end, number)


@given(ARRIVALS, CONFIGS)
@settings(max_examples=12)
def test_within_a_class_jobs_run_in_order(jobs: list[Arrival], config: Config) -> None:
    results = together(jobs, config)
    for priority in Priority:
        records = [record for arrival, (_, record) in zip(jobs, results, strict=True) if arrival.priority == priority]
        assert all(first.started_ps + first.time_ps <= second.started_ps for first, second in pairwise(records))


@given(ARRIVALS, CONFIGS)
@settings(max_examples=10)
def test_the_same_arrivals_give_the_same_picoseconds(jobs: list[Arrival], config: Config) -> None:
    first, second = together(jobs, config), together(jobs, config)
    assert [record.digest() for _, record in first] == [record.digest() for _, record in second]
    times = [[(record.started_ps, record.time_ps, record.suspended_ps) for _, record in run] for run in (first, second)]
    assert times[0] == times[1]


NETWORK_DEVICES = {
    "two cores": load_config("tiny").with_(**QUICK_HOST, cores=2),
    "accumulators": load_config("edge").with_(**QUICK_HOST, **{"sram.bytes": "128 KiB"}),
}
NETWORKS = {**GRAPHS, "long product": lambda: product(40, 6000, 40)}  # sums stay in the accumulators between commands
MOMENTS = 6


@pytest.mark.parametrize("device", NETWORK_DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_the_same_bits_whenever_they_are_parked(name: str, device: str) -> None:
    """The other job is a different network that uses the same memories for other data."""
    config = NETWORK_DEVICES[device]
    programs = [compile_graph(NETWORKS[graph](), config) for graph in (name, "classifier")]
    npu = NpuDevice(config)
    driver = Driver(npu.bus)
    driver.enable_preemption()
    loaded = [driver.load(program) for program in programs]
    inputs = [{item.name: storage(item, seed) for item in program.inputs} for seed, program in enumerate(programs)]
    wanted = [driver.run(item, given).outputs for item, given in zip(loaded, inputs, strict=True)]
    records: dict[int, Timeline] = {}
    npu.listener = records.__setitem__
    driver.run(loaded[0], inputs[0])
    length = records[max(records)].time_ps
    parked = 0
    for moment in range(1, MOMENTS + 1):
        low = driver.submit(loaded[0], inputs[0], priority=Priority.LOW)
        npu.machine.clock.advance(length * moment // (MOMENTS + 1))
        high = driver.submit(loaded[1], inputs[1], priority=Priority.HIGH)
        for seqno, outputs in ((high, wanted[1]), (low, wanted[0])):
            got = driver.wait(seqno).outputs
            assert all(got[key].tobytes() == value.tobytes() for key, value in outputs.items())
        parked += records[low.seqno].preemptions
    assert parked >= MOMENTS // 2
