"""The explanation of where each value lives, and that asking for it does not change the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import Explained, compile_graph, explain_graph
from npusim.compiler.schedule import residency
from npusim.compiler.schedule.allocate import Scratchpad
from npusim.compiler.schedule.cascade_search import CascadeSearch
from npusim.compiler.schedule.explain import DRAM, INPUT, OUTPUT, SRAM, TILE, WINDOW, Decision, decisions
from npusim.compiler.schedule.memory_map import places
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from tests.support.graphs.samples import conv, relu, residual_net

TINY, EDGE = load_config("tiny"), load_config("edge")


def convolutions(height: int, layers: int) -> Graph:
    build = GraphBuilder("chain")
    value = build.input("x", (1, 4, height, 12), DType.FLOAT32)
    for number in range(layers):
        value = conv(build, value, 4, seed=number)
    return build.finish([value])


def skipped(layers: int) -> Graph:
    """Build a graph with a value that is read again after ``layers`` products."""
    build = GraphBuilder("skipped")
    weights = build.const(np.eye(32, dtype=np.float32))
    first = value = build.add("matmul", [build.input("x", (32, 32), DType.FLOAT32), weights])
    for _ in range(layers):
        value = build.add("matmul", [value, weights])
    return build.finish([build.add("matmul", [first, value])])


def of(graph: Graph, **overrides: Any) -> tuple[Explained, list[Decision]]:
    """Explain a graph on ``tiny``; leave out the values that only exist in tiles."""
    found = explain_graph(graph, TINY.with_(**overrides))
    return found, [each for each in found.decisions if each.home != TILE]


def test_with_room_for_all_values_live_in_sram() -> None:
    found = explain_graph(skipped(4), EDGE)
    homes = [each.home for each in found.decisions if each.home != TILE]
    assert homes == [INPUT, *[SRAM] * (len(homes) - 2), OUTPUT]
    for each in found.decisions:
        if each.home == SRAM:
            assert each.other == DRAM
            assert each.other_ps is not None
            assert each.other_ps > 0
            assert each.taken >= each.nbytes
            assert each.made < min(each.used)


def test_windows_say_what_runs_together_and_what_it_would_take_apart() -> None:
    _, found = of(convolutions(128, 4), **{"sram.bytes": 12 << 10, "dram.bandwidth": "600 MB/s"})
    assert [each.home for each in found] == [INPUT, WINDOW, WINDOW, WINDOW, OUTPUT]
    (why,) = {each.why for each in found[1:-1]}
    assert "run together, in" in why
    (added,) = {each.other_ps for each in found[1:-1]}
    # Three values of 24 kB would each be written and read at 600 MB/s; rows at tile edges are read twice.
    assert added is not None
    assert added > 2 * 3 * 24576 / 600e6 * 1e12
    assert all(0 < each.taken < each.nbytes for each in found[1:-1])


def test_cores_that_share_nothing() -> None:
    _, found = of(convolutions(64, 3), cores=2, **{"matrix.rows": 2, "matrix.cols": 2})
    assert {(each.home, each.why) for each in found if each.home == DRAM} == {(DRAM, "several cores work on it")}


def test_too_large_for_what_is_there() -> None:
    build = GraphBuilder("large")
    value = build.input("x", (64, 1024), DType.FLOAT32)
    for _ in range(2):
        value = build.add("softmax", [value], {"axis": 1, "log": False})
    _, found = of(build.finish([value]), **{"sram.bytes": 64 << 10})
    (between,) = [each for each in found if each.home == DRAM]
    assert f"SRAM: no gap of {between.nbytes} bytes is free" in between.why
    assert "has no rows to stripe" in between.why
    assert (between.other, between.other_ps) == ("", None)


def test_a_value_that_is_wanted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = of(skipped(40))
    assert next(each for each in found if each.made == 0).home == SRAM, "however long that is"
    # Every other value lives for two of the 42 steps, so the limit on tried steps is below the life of the first value.
    monkeypatch.setattr(residency, "MEAN_LIFE", 2)
    _, found = of(skipped(40))
    first = next(each for each in found if each.made == 0)
    assert first.home == DRAM
    assert "SRAM: not tried: lives for 42 steps, and values with more uses came first" in first.why


def test_values_of_fused_operators_are_on_tiles() -> None:
    build = GraphBuilder("fused")
    value = relu(build, build.input("x", (4096,), DType.FLOAT32))
    found = explain_graph(build.finish([build.add("unary", [value], {"fn": Unary.NEG})]), TINY)
    (tile,) = [each for each in found.decisions if each.home == TILE]
    assert tile.nbytes == 4096 * 4
    assert "on the tiles of" in tile.why


def build_of(graph: Graph, monkeypatch: pytest.MonkeyPatch, **overrides: Any) -> Any:
    kept: list[Any] = []

    def keeping(build: Any) -> list[Decision]:
        kept.append(build)
        return decisions(build)

    monkeypatch.setattr("npusim.compiler.pipeline.decisions", keeping)
    explain_graph(graph, TINY.with_(**overrides))
    return kept[0]


@pytest.mark.parametrize("kib", [8, *(pytest.param(kib, marks=pytest.mark.slow) for kib in (12, 64, 256)), 24])
def test_asking_changes_nothing(kib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, sram = residual_net(40, 12, 3), {"sram.bytes": kib << 10}
    build = build_of(graph, monkeypatch, **sram)
    before = places(build)
    assert decisions(build) == decisions(build)
    assert places(build) == before
    compiled = compile_graph(graph, TINY.with_(**sram))
    assert compiled.places == before
    assert explain_graph(graph, TINY.with_(**sram)).program.code == compiled.code


@pytest.mark.parametrize("kib", [8, 16, 64])
def test_each_value_is_told_once(kib: int) -> None:
    """Every operator result and the input have exactly one decision."""
    graph = residual_net(40, 12, 3)
    found, _ = of(graph, **{"sram.bytes": kib << 10})
    names = [each.value for each in found.decisions]
    assert len(names) == len(set(names))
    assert {tensor.name for op in graph.ops for tensor in op.outputs} <= {*names}


def test_the_next_best_is_what_planning_without_that_home_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a two-step chain with one value between them, the reported DRAM cost is the estimate of a planner that cannot
    keep the value in SRAM."""
    build = GraphBuilder("two")
    value = conv(build, build.input("x", (1, 16, 16, 16), DType.FLOAT32), 16)
    graph = build.finish([conv(build, value, 8, seed=2)])
    kept = build_of(graph, monkeypatch)
    (between,) = [each for each in decisions(kept) if each.home == SRAM]
    kept_ps = kept.layout.costs.total(kept.layout.steps)
    monkeypatch.setattr(Scratchpad, "places", lambda *arguments: ())
    monkeypatch.setattr(CascadeSearch, "run", lambda search: [])
    without = build_of(graph, monkeypatch).layout
    assert between.other_ps == without.costs.total(without.steps) - kept_ps
