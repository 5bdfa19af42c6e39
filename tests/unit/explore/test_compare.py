"""Comparison of two runs: every table adds up to the difference, and layers are matched by their operators."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npusim.demo import network
from npusim.errors import UsageError
from npusim.explore.compare import Comparison, compare
from npusim.explore.compare_text import text
from npusim.hw.config import load_config
from npusim.report.layers import NO_LAYER
from npusim.runtime import Session
from tests.support.graphs.execution import compiled
from tests.support.graphs.random_graphs import graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.random_devices import Device, devices

EDGE = load_config("edge")


def told(graph: Any, **overrides: Any) -> dict[str, Any]:
    """Return the JSON of a run as in a file."""
    with Session(EDGE.with_(**overrides), cache_dir=False) as session:
        found: dict[str, Any] = json.loads(json.dumps(session.run(graph, timing_only=True).to_json_dict()))
    return found


def check_sums(found: Comparison) -> None:
    assert found.delta_ps == found.time_ps[1] - found.time_ps[0]
    assert sum(layer.delta_ps for layer in found.layers) == found.delta_ps
    assert sum(found.units().values()) == found.delta_ps
    assert sum(found.causes().values()) == found.delta_ps
    for layer in found.layers:
        assert sum(layer.deltas().values()) == layer.delta_ps
        assert layer.before.time_ps == sum(layer.before.parts.values())
    for side, run in enumerate(("before", "after")):
        assert sum(getattr(layer, run).time_ps for layer in found.layers) == found.time_ps[side]


@settings(max_examples=25)
@given(graphs(), devices(), devices())
def test_random_pairs_add_up(given_graph: RandomGraph, first: Device, second: Device) -> None:
    runs = []
    for device in (first, second):
        program = compiled(given_graph.graph, device.config)
        assume(program is not None)
        with Session(device.config, cache_dir=False) as session:
            result = session.run(program, timing_only=True)
        runs.append(result)
    found = compare(runs[0].to_json_dict(), runs[1].to_json_dict())
    check_sums(found)
    assert found.time_ps == (runs[0].time_ps, runs[1].time_ps)
    assert runs[0].timeline.diff(runs[1].timeline).total_ps == found.delta_ps


def test_less_bandwidth_is_seen_where_it_binds() -> None:
    before, after = told(network()), told(network(), **{"dram.bandwidth": "4 GB/s"})
    found = compare(before, after)
    check_sums(found)
    assert found.to_json_dict()["provenance"] == [before["provenance"], after["provenance"]]
    assert found.delta_ps == after["time_ps"] - before["time_ps"] > 0
    assert found.changes == {"dram.bandwidth": ('"17.064 GB/s"', '"4 GB/s"')}
    causes = found.causes()
    assert max(causes, key=lambda cause: causes[cause]) == "dram"
    assert max(found.layers, key=lambda layer: layer.delta_ps).name == "head"
    for (unit, on), stall in found.stalls.items():
        assert stall == after["units"][unit]["stalls"].get(on, 0) - before["units"][unit]["stalls"].get(on, 0)
    assert sum(stall for (_, on), stall in found.stalls.items() if on in ("core0.dma0", "dram")) > 0


def test_equal_runs_differ_in_nothing() -> None:
    run = told(network())
    found = compare(run, run)
    check_sums(found)
    assert (found.delta_ps, found.since, found.units(), found.causes(), found.stalls) == (0, None, {}, {}, {})
    assert "the same" in text(found)


def row(name: str, members: list[str], since: int, time: int, kind: str = "conv") -> dict[str, Any]:
    parts = [{"unit": "core0.matrix", "cause": "compute", "time_ps": time}]
    return {"name": name, "kind": kind, "members": members, "since_ps": since, "time_ps": time, "parts": parts}


def run_of(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"critical_path": list(rows), "units": {}, "provenance": {"config": {}, "versions": {}, "model": {}}}


def test_groups_meet_by_what_they_contain() -> None:
    fused = run_of(row("a", ["a", "a.relu", "b"], 0, 10), row("c", ["c"], 10, 5))
    apart = run_of(row("a", ["a", "a.relu"], 0, 8), row("b", ["b"], 8, 4), row("c", ["c"], 12, 5))
    found = compare(fused, apart)
    check_sums(found)
    assert [(layer.name, layer.names, layer.delta_ps) for layer in found.layers] == [
        ("a", (["a"], ["a", "b"]), 2), ("c", (["c"], ["c"]), 0)
    ]  # fmt: skip


def test_two_of_one_name_meet_in_order() -> None:
    first = run_of(row("relu", ["relu"], 0, 10), row("relu", ["relu"], 10, 20))
    second = run_of(row("relu", ["relu"], 0, 11), row("relu", ["relu"], 11, 25))
    assert [layer.delta_ps for layer in compare(first, second).layers] == [1, 5]


def test_what_shares_no_name_meets_by_kind_in_order_and_the_rest_is_named() -> None:
    first = run_of(row("x", ["x"], 0, 10, "conv"), row("y", ["y"], 10, 20, "softmax"), row("", [""], 30, 2, ""))
    second = run_of(row("p", ["p"], 0, 13, "conv"), row("q", ["q"], 13, 3, "pool"), row("", [""], 16, 3, ""))
    found = compare(first, second)
    check_sums(found)
    assert [(layer.name, layer.where, layer.delta_ps) for layer in found.layers] == [
        ("p", "both", 3), ("y", "first", -20), ("q", "second", 3), (NO_LAYER, "both", 1)
    ]  # fmt: skip
    assert "y (first only)" in text(found)
    assert "q (second only)" in text(found)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=3), st.integers(0, 99)), min_size=1, max_size=8).map(tuple),
    st.data(),
)
def test_any_groups_add_up(rows: tuple[tuple[str, int], ...], data: st.DataObject) -> None:
    """Groups that overlap in any way; an operator that occurs twice in a run counts as two."""
    groups = st.tuples(st.text("abc", min_size=1, max_size=3), st.integers(0, 99))
    other = data.draw(st.lists(groups, min_size=1, max_size=8))
    runs = [
        run_of(*(row(names, list(names), number, time) for number, (names, time) in enumerate(each)))
        for each in (rows, other)
    ]
    check_sums(compare(*runs))


def test_a_page_is_enough_for_a_thousand_layers() -> None:
    first = run_of(*(row(f"layer{number}", [f"op{number}"], number, 1) for number in range(1000)))
    second = run_of(*(row(f"layer{number}", [f"op{number}"], number, 2 + number % 7) for number in range(1000)))
    lines = text(compare(first, second)).splitlines()
    assert len(lines) <= 60
    assert any("990 others" in line for line in lines)


def test_too_many_groups_that_share_no_name_meet_at_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npusim.explore.compare.MOST_PAIRS", 3)
    first, second = (run_of(*(row(f"{name}{at}", [f"{name}{at}"], at, 5) for at in range(2))) for name in "pq")
    found = compare(first, second)
    check_sums(found)
    assert [(layer.name, layer.where) for layer in found.layers] == [("q0", "both"), ("q1", "both")]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"critical_path": None}, "critical_path"),
        ({"critical_path": [{"name": "a"}]}, "not in the format of npusim run --json"),
        ({"critical_path": [{**row("a", ["a"], 0, 5), "time_ps": 6}]}, "must add up to its time"),
        ({"units": {"core0.matrix": {}}}, "not in the format of npusim run --json"),
        ({"provenance": {}}, "provenance: not in the format of npusim run --json"),
        ({"critical_path": []}, "has no rows, so there is nothing to compare"),
    ],
)
def test_other_json_is_refused(damage: dict[str, Any], message: str) -> None:
    good = run_of(row("a", ["a"], 0, 5))
    with pytest.raises(UsageError, match=f"^second: .*{message}"):
        compare(good, {**good, **damage})
    with pytest.raises(UsageError, match=r"^first: has no provenance"):
        compare({"critical_path": [], "units": {}}, good)


def test_energy_by_action_adds_up_to_the_difference_or_is_not_known() -> None:
    def run(**parts: int | None) -> dict[str, Any]:
        values = [{"name": name, "value": value} for name, value in parts.items()]
        total = None if None in parts.values() else sum(value or 0 for value in parts.values())
        return {**run_of(row("a", ["a"], 0, 10)), "energy": {"total": total, "parts": values}}

    found = compare(run(mac=5, dram=10, sram=1), run(mac=4, dram=30, clock=2, sram=1))
    before, after = found.amounts["energy_fj"]
    assert found.energy == {"dram": 20, "clock": 2, "mac": -1}
    assert sum(found.energy.values()) == (after or 0) - (before or 0)
    assert compare(run(mac=5), run(mac=None)).energy == {}
    assert compare(run(mac=5), run_of(row("a", ["a"], 0, 10))).energy == {}
    broken = {**run(mac=5), "energy": {"total": 5, "parts": [{"name": 1}]}}
    assert compare(broken, run(mac=5)).energy == {}
    wrong = {**run(mac=5), "energy": {"total": 6, "parts": [{"name": "mac", "value": 5}]}}
    assert compare(wrong, run(mac=5)).energy == {}
