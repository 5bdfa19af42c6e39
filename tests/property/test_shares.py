"""Every reported share is valid: between zero and the whole, and the parts of a whole add up to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.errors import UnsupportedError
from npusim.graph import Graph
from npusim.hw.capability import capabilities
from npusim.hw.config import Config, list_configs, load_config
from npusim.isa.base import Space, Unit, decode, offset_of, space_of
from npusim.isa.repeat import expanded
from npusim.program import SCRATCH, Program
from npusim.report import explain, run
from npusim.report.layers import layers
from npusim.runtime import Executor, Priority, Result
from npusim.timeline import NO_OP
from npusim.work import DmaWork
from tests.support.devices import EACH_MODEL
from tests.support.graphs.every_kind import CASES
from tests.support.graphs.execution import compiled, simulated
from tests.support.graphs.golden import GRAPHS
from tests.support.graphs.random_graphs import QUIET, graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.programs.executor_jobs import TINY, adder, request, values
from tests.support.random_devices import Device, devices

PERCENT = re.compile(r"(\S+) %")
JEDEC = {"dram.kind": "jedec", "dram.part": "LPDDR4_4266", "dram.channels": 2, "dram.efficiency": 1}
DEVICES = [*map(load_config, list_configs()), load_config("edge").with_(**JEDEC)]
SCHEMA = json.loads((Path(run.__file__).parent / "run.schema.json").read_text("utf-8"))


def check(program: Program, result: Result, config: Config) -> None:
    """Check everything reported about a run, as text, as JSON and in counters."""
    of_op = {command.op for command in decode(program.code) if command.unit != Unit.CONTROL}
    texts = [run.text(result, config, "none", top=len(program.ops))]
    texts += [explain.text(explain.explain(program, result, config, op), config) for op in sorted(of_op)]
    check_text("\n".join(texts))
    jsonschema.validate(result.to_json_dict(), SCHEMA)
    check_counters(result)
    check_channels(program, result, config)
    check_memory(program, result)
    path = result.timeline.critical_path()
    alone = sum(stretch.end_ps - stretch.start_ps for stretch in path if stretch.op == NO_OP)
    assert sum(layer.added_ps for layer in layers(result)) + alone == result.timeline.time_ps


def check_text(said: str) -> None:
    for line in said.splitlines():
        for share in PERCENT.findall(line):
            assert 0 <= float(share) <= 100, line


def check_counters(result: Result) -> None:
    counters = result.counters
    for name, unit in counters.units.items():
        parts = (unit.busy_ps, unit.idle_ps, *unit.stalls.values())
        assert min(parts) >= 0, name
        assert sum(parts) == counters.duration_ps, name
    assert counters.dram_busy_ps <= counters.duration_ps
    fetched = counters.units["sequencer"].bytes
    assert sum(row.dram_bytes for row in result.ops) + fetched == counters.dram_read_bytes + counters.dram_write_bytes
    assert sum(row.macs for row in result.ops) == sum(unit.macs for unit in counters.units.values())


def check_channels(program: Program, result: Result, config: Config) -> None:
    """Check that no operator uses more of a memory or unit in its time than exists."""
    peaks = capabilities(config)
    for row in result.ops:
        window = row.end_ps - row.start_ps
        assert row.dram_bytes * 10**12 <= peaks.dram_peak * window, row
        assert row.macs * 10**12 <= max(peaks.peak_macs.values(), default=0) * window, row
    widest = max(config.dma.bytes_per_cycle, config.dma.local_bytes_per_cycle) * config.clock_hz
    for span in result.timeline.spans:
        if ".dma" in span.unit:
            assert span.bytes * 10**12 <= widest * (span.end_ps - span.start_ps), span
    works = (command.instruction.work() for command in expanded(decode(program.code)))
    moved = sum(work.bytes for work in works if isinstance(work, DmaWork))
    assert sum(row.bytes for row in result.ops) == moved


def check_memory(program: Program, result: Result) -> None:
    """Check that no memory contains more than it has, and that no instruction accesses memory outside of the map."""
    for memory in result.memory:
        assert 0 < memory.peak_bytes <= memory.capacity_bytes
        assert all(sum(held.values()) <= memory.peak_bytes for _, held in memory.steps)
        assert [time for time, _ in memory.steps] == sorted({time for time, _ in memory.steps})
    names = {Space.SRAM: "sram", Space.ACC: "accumulators", Space.REGION + SCRATCH: "dram"}
    taken: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for place in program.places:
        for op in range(place.first, place.last + 1):
            taken.setdefault((place.memory, op), []).append((place.offset, place.offset + place.nbytes))
    # What loads kept weights, under the last number, comes before the first operator.
    numbers = {number: 0 for number, entry in enumerate(program.ops) if entry.name == "resident weights"}
    for command in decode(program.code):
        for access in command.instruction.accesses():
            if access is not None and space_of(access.address) in names:
                low, high = offset_of(access.address) + access.low, offset_of(access.address) + access.high
                spans = sorted(taken.get((names[space_of(access.address)], numbers.get(command.op, command.op)), []))
                for start, end in spans:
                    low = max(low, end) if start <= low else low
                assert low >= high, (command, access, spans)


def check_graph(graph: Graph, config: Config) -> None:
    try:
        program = compiled(graph, config)
    except UnsupportedError:  # the unit of a shipped device may have no floats
        assert "float32" not in capabilities(config).dtypes
        return
    if program is not None:
        check(program, simulated(program, config, {}, timing_only=True), config)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            config,
            id=f"{config.name} {config.dram.kind}",
            marks=[] if config.name in EACH_MODEL else [pytest.mark.slow],
        )
        for config in DEVICES
    ],
)
@pytest.mark.parametrize("graph", GRAPHS)
def test_of_every_graph_on_record_on_every_device(graph: str, config: Config) -> None:
    check_graph(GRAPHS[graph](), config)


@pytest.mark.parametrize("name", CASES)
def test_of_every_kind(name: str) -> None:
    check_graph(CASES[name].graph()[0], CASES[name].config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config"),
    [
        pytest.param(name, config, id=f"{name} {config.name} {config.dram.kind}")
        for number, name in enumerate(CASES)
        for config in DEVICES[number % 3 :: 3]
    ],
)
def test_of_every_kind_on_every_third_device(name: str, config: Config) -> None:
    check_graph(CASES[name].graph()[0], config)


FACTORS = st.sampled_from((1, 4, 64))


@settings(max_examples=25, suppress_health_check=QUIET)
@given(graphs(), devices(), FACTORS, FACTORS, st.booleans())
def test_of_any_graph_on_any_device(case: RandomGraph, device: Device, wide: int, fast: int, duplex: bool) -> None:
    """With any bottleneck: channels and DRAM of any widths."""
    base = device.config
    config = base.with_(
        **{
            "dma.bytes_per_cycle": base.dma.bytes_per_cycle * wide,
            "dram.bandwidth": base.dram.bandwidth * fast,
            "dma.duplex": duplex,
        }
    )
    check_graph(case.graph, config)


def test_of_a_job_that_was_parked() -> None:
    """The transfer of its context takes time that does not belong to the job."""
    with Executor(TINY) as executor:
        with executor.paused():  # one high job first, then the low one runs when the other comes
            high = [executor.submit(request(adder(9), values(), Priority.HIGH)) for _ in range(2)]
            low = executor.submit(request(adder(slow=40), values(), Priority.LOW))
        assert all(job.wait(60).timeline.preemptions == 0 for job in high)
        result = low.wait(60)
    assert result.timeline.preemptions == 1
    moved = result.dram_read_bytes + result.dram_write_bytes
    assert moved * 10**12 > TINY.dram.bandwidth * result.time_ps
    check_text(run.text(result, TINY, "none"))
