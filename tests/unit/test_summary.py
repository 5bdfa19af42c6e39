"""Grouping of spans into rows, one per operator."""

from __future__ import annotations

import dataclasses
import json

import pytest

from npusim.hw.config import load_config
from npusim.program import OpEntry
from npusim.runtime import Session
from npusim.summary import OpReport, summarize
from npusim.timeline import Span, Timeline
from tests.support.graphs.samples import residual_net

TINY = load_config("tiny")
ENTRIES = (OpEntry("first", "conv"), OpEntry("second", "add"), OpEntry("silent", "add"))


def span(unit: str, start: int, end: int, op: int = 0, macs: int = 0, size: int = 0, dram: int = 0) -> Span:
    return Span(unit, start, end, op, "kind", macs, size, "compute", dram)


def rows(*spans: Span) -> list[OpReport]:
    return summarize(Timeline(list(spans)), ENTRIES, TINY)


def test_an_operator_lasts_from_its_first_span_to_its_last() -> None:
    (row,) = rows(
        span("core0.dma0", 100_000, 300_000, size=64, dram=48), span("core0.matrix", 300_000, 900_000, macs=10, size=7),
        span("core1.matrix", 300_000, 800_000, macs=20), span("core0.dma1", 900_000, 1_000_000, size=32, dram=64),
    )  # fmt: skip
    assert row == OpReport("first", "conv", "core0.matrix", 100_000, 1_000_000, 900, 30, 96, "compute", 112)


def test_operators_may_overlap_and_come_in_their_order() -> None:
    found = rows(span("core0.vector", 500, 900, op=1), span("core0.matrix", 0, 600), span("core0.matrix", 900, 1000))
    assert [(row.name, row.start_ps, row.end_ps) for row in found] == [("first", 0, 1000), ("second", 500, 900)]


@pytest.mark.parametrize(
    ("busy", "bound"),
    [((600, 100), "memory"), ((100, 600), "compute"), ((500, 100), "latency"), ((100, 500), "latency")],
)
def test_what_held_it_up(busy: tuple[int, int], bound: str) -> None:
    """A unit that was busy for more than half of the time is the bound; without one it is latency."""
    moving, computing = busy
    (row,) = rows(span("core0.dma0", 0, moving), span("core0.vector", 1000 - computing, 1000))
    assert row.bound == bound


def test_of_two_equally_busy_units_the_first_by_name() -> None:
    (row,) = rows(span("core0.vector", 0, 500), span("core0.matrix", 500, 1000))
    assert row.unit == "core0.matrix"


def test_the_sequencer_and_silent_operators_have_no_rows() -> None:
    assert rows(span("sequencer", 0, 10)) == []
    assert [row.name for row in rows(span("core0.matrix", 0, 10))] == ["first"]


def test_a_row_as_json() -> None:
    (row,) = rows(span("core0.matrix", 0, 1000, macs=5))
    assert json.loads(json.dumps(row.to_json_dict())) == dataclasses.asdict(row)


def test_the_rows_of_a_run_add_up() -> None:
    """MACs and bytes of the rows equal the counters; times are within the job."""
    session = Session(TINY, cache_dir=False)
    program = session.compile(residual_net(8, 8, 1))
    result = session.run(program, timing_only=True)
    assert [row.name for row in result.ops] == [entry.name for entry in program.ops]
    assert sum(row.macs for row in result.ops) == result.macs == result.counters.units["core0.matrix"].macs
    moved = sum(unit.bytes for name, unit in result.counters.units.items() if ".dma" in name)
    assert sum(row.bytes for row in result.ops) == moved
    assert all(0 < row.start_ps < row.end_ps <= result.time_ps for row in result.ops)
    ends = [row.end_ps for row in result.ops]
    assert ends == sorted(ends)
