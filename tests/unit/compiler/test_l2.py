"""Values too large for SRAM live in the L2 if that is no slower; a larger L2 is never slower."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.buffers import Buffer
from npusim.compiler.pipeline import compile_graph, explain_graph
from npusim.compiler.schedule.dram import by_l2, lay_out
from npusim.compiler.schedule.explain import L2
from npusim.dtypes import DType
from npusim.energy import counts
from npusim.graph import Graph
from npusim.hw.area import area
from npusim.hw.config import Config, load_config
from npusim.hw.energy import action_costs
from npusim.isa.base import decode, is_l2
from npusim.ops.build import GraphBuilder
from npusim.program import SCRATCH, Program
from npusim.report.device import text as info
from npusim.report.memory import as_json, text
from npusim.runtime import Session
from npusim.timing.forecast import forecast
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.programs.race_detector import find_races, limits_of

TINY = load_config("tiny").with_(**{"sram.bytes": 8192})
KIB = 1024
SIZES = (None, 8 * KIB, 32 * KIB, 128 * KIB, 1024 * KIB)


def device(l2_bytes: int | None, config: Config = TINY, **more: object) -> Config:
    return config if l2_bytes is None else config.with_(**{"l2.bytes": l2_bytes, "l2.bytes_per_cycle": 32, **more})


def chain(layers: int = 5, rows: int = 40, features: int = 96) -> Graph:
    """Build a chain of 15 KiB values, too large for an SRAM of 8 KiB."""
    weights = np.random.default_rng(1)
    build = GraphBuilder("chain")
    value = build.input("x", (rows, features), DType.FLOAT32)
    for layer in range(layers):
        w = build.const((weights.integers(-3, 4, (features, features)) / 8).astype(np.float32))
        value = build.add("matmul", [value, w], {})
        if layer % 2:
            value = build.add("softmax", [value], {"axis": 1, "log": False})
    return build.finish([build.add("softmax", [value], {"axis": 0, "log": False})])


def homes(program: Program) -> list[str]:
    return [place.memory for place in program.places if place.kind == "value"]


def time_of(program: Program, config: Config) -> int:
    with Session(config, cache_dir=False) as session:
        return session.run(program, timing_only=True).time_ps


@pytest.mark.parametrize("cores", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_more_l2_is_never_slower_and_computes_the_same(cores: int) -> None:
    graph = chain()
    x = np.random.default_rng(2).integers(-4, 5, (40, 96)).astype(np.float32)
    times, first = [], None
    for size in SIZES:
        config = device(size, TINY.with_(cores=cores))
        program = compile_graph(graph, config)
        races = find_races(list(decode(program.code)), limits_of(program, config))
        assert not races
        with Session(config, cache_dir=False) as session:
            result = session.run(program, {"x": x})
        found = {name: np.asarray(value) for name, value in result.outputs.items()}
        same_bytes(found, interpreted(program, config, {"x": x}), "simulated against interpreted")
        same_bytes(found, first or found, f"{size} bytes of L2 against none")
        first = first or found
        times.append(result.time_ps)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0] * 0.9


def test_what_has_no_room_stays_in_dram() -> None:
    none, some, all_ = (compile_graph(chain(), device(size)) for size in (None, 16 * KIB, 1024 * KIB))
    assert "l2" not in homes(none)
    assert {"l2", "dram"} <= set(homes(some))
    assert "dram" not in homes(all_)
    assert none.region_bytes[SCRATCH] > some.region_bytes[SCRATCH] > all_.region_bytes[SCRATCH] == 0
    accesses = [a for command in decode(all_.code) for a in command.instruction.accesses() if a is not None]
    assert max(a.address + a.high for a in accesses if is_l2(a.address)) - (2 << 48) <= 1024 * KIB


def test_a_slow_l2_is_left_alone() -> None:
    plain = compile_graph(chain(), TINY)
    slow = compile_graph(chain(), device(1024 * KIB, **{"l2.bytes_per_cycle": 1, "l2.latency_cycles": 5000}))
    assert "l2" not in homes(slow)
    assert slow.code == plain.code


def test_a_device_without_an_l2_has_no_other_plan() -> None:
    assert by_l2(TINY) is None
    assert device(4096).fingerprint() != TINY.fingerprint()


def test_the_forecast_knows_that_l2_and_dram_are_busy_at_once() -> None:
    """On one core the forecast leaves out little."""
    config = device(128 * KIB)
    program = compile_graph(chain(), config)
    commands = list(decode(program.code))
    assert forecast(commands, config) == pytest.approx(time_of(program, config), rel=0.02)


def test_reports_say_what_is_in_the_l2() -> None:
    config = device(1024 * KIB)
    found = explain_graph(chain(), config)
    with Session(config, cache_dir=False) as session:
        result = session.run(found.program, timing_only=True)
    assert any(each.home == L2 and each.taken for each in found.decisions)
    assert "L2 at " in text(found, result)
    values = json.loads(json.dumps(as_json(found, result)))["values"]
    assert any(value["home"] == "L2" and value["l2"]["bytes"] for value in values)
    (held,) = [each for each in result.memory if each.memory == "l2"]
    assert 0 < held.peak_bytes <= held.capacity_bytes == 1024 * KIB


LIVES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 20), st.integers(0, 8)), max_size=30)


@settings(max_examples=100, deadline=None)
@given(LIVES, st.sampled_from([1 * KIB, 4 * KIB, 1024 * KIB]))
def test_values_that_meet_never_overlap(lives: list[tuple[int, int, int]], capacity: int) -> None:
    values = [
        Buffer(f"v{number}", SCRATCH, nbytes, born=born, dies=born + life)
        for number, (nbytes, born, life) in enumerate(lives)
    ]
    scratch = lay_out(values, device(capacity))
    for at, one in enumerate(values):
        assert one.offset + one.nbytes <= (capacity if one.in_l2 else scratch)
        for other in values[:at]:
            meet = one.in_l2 == other.in_l2 and one.born <= other.dies and other.born <= one.dies
            apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            assert apart or not meet


def test_info_shows_memories_beside_the_dram() -> None:
    flash = {"constants.bytes": "1 MiB", "constants.bandwidth": "1 GB/s", "constants.latency": "300 ns"}
    rows = [line.split(None, 1) for line in info(device(64 * KIB, **flash)).splitlines() if line.startswith("  ")]
    assert ["L2", "64 KiB, 32 GB/s, latency 20 cycles"] in rows
    assert ["constants", "1 MiB, 1 GB/s, latency 300 ns"] in rows
    assert "L2" not in info(TINY)


def test_energy_and_area_of_the_l2() -> None:
    """They follow from a given price or from the technology, or are unknown, but are never zero."""
    graph, priced = chain(), TINY.with_(**{"technology.node": "7 nm"})
    plain, near = (device(size, priced) for size in (None, 1024 * KIB))
    assert (area(near).total or 0) > (area(plain).total or 0)
    with Session(near, cache_dir=False) as session:
        result = session.run(graph, timing_only=True)
    (part,) = [part for part in result.energy.parts if part.name == "l2"]
    assert part.value
    with Session(device(1024 * KIB), cache_dir=False) as session:
        unknown = session.run(graph, timing_only=True)
    assert "l2" in unknown.energy.unknown
    given = near.with_(**{"energy.l2_byte": "1 pJ", "area.l2_kib": "100 um2"})
    counted = counts(given, result.program, result.timeline)
    moved = sum(found.get("l2", 0) for found in counted.values())
    assert moved
    assert action_costs(given).fj("l2") == 1000
    (silicon,) = [part for part in area(given).parts if part.name == "l2"]
    assert silicon.value == 100 * 1024
