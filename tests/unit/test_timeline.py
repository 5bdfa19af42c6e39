"""Digests distinguish timelines by every field, and by nothing else."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from npusim.timeline import CAUSES, NO_OP, Counters, FaultCode, PathSegment, Span, Timeline, UnitCounters, digest

ROOT = Path(__file__).parents[2]
SPAN = Span("core0.matrix", 5, 17, 2, "matrix.conv", 64, 128, "compute", 32)


def test_a_digest_is_that_of_the_fields_as_text() -> None:
    text = "core0.matrix\x1f5\x1f17\x1f2\x1fmatrix.conv\x1f64\x1f128\x1fcompute\x1f32\n"
    assert digest([SPAN]) == hashlib.sha256(text.encode()).hexdigest()
    assert Timeline([SPAN, SPAN]).digest() == hashlib.sha256(2 * text.encode()).hexdigest()
    assert Timeline().digest() == hashlib.sha256().hexdigest()


def test_a_digest_of_many_spans_is_that_of_all_their_fields_as_text() -> None:
    spans = [SPAN._replace(start_ps=number) for number in range(10_000)]
    text = "".join("\x1f".join(map(str, span)) + "\n" for span in spans)
    assert digest(iter(spans)) == hashlib.sha256(text.encode()).hexdigest()


def test_every_field_counts() -> None:
    changed = [SPAN._replace(**{name: 99 if isinstance(value, int) else "x"}) for name, value in SPAN._asdict().items()]
    assert len({digest([span]) for span in (SPAN, *changed)}) == 10
    other = SPAN._replace(start_ps=6)
    assert digest([SPAN, other]) != digest([other, SPAN])


def test_counting_starts_at_nothing() -> None:
    assert (UnitCounters(), Counters()) == (UnitCounters(0, 0, {}, 0, 0, 0), Counters(0, {}, 0, 0, 0, 0))
    assert NO_OP == 2**32 - 1


def _span(unit: str, start: int, end: int, op: int = 0, bound: str = "compute", dram_bytes: int = 0) -> Span:
    return Span(unit, start, end, op, "kind", 0, 0, bound, dram_bytes)


def _of(spans: list[Span], time_ps: int) -> Timeline:
    return Timeline(sorted(spans, key=lambda span: (span.end_ps, span.unit, span.start_ps)), time_ps=time_ps)


def test_the_critical_path_goes_from_what_runs_last_to_what_ended_before_it_began() -> None:
    load = _span("core0.dma0", 10, 40, 0, "memory", 64)
    product = _span("core0.matrix", 40, 90, 0)
    ahead = _span("core0.dma0", 40, 70, 1, "memory", 64)
    vector = _span("core0.vector", 95, 99, 1, "latency")
    assert _of([load, product, ahead, vector], 100).critical_path() == [
        PathSegment(NO_OP, "sequencer", "fetch", 0, 10),
        PathSegment(0, "core0.dma0", "dram", 10, 40, 0),
        PathSegment(0, "core0.matrix", "compute", 40, 90, 2),
        PathSegment(1, "sequencer", "dispatch", 90, 95),
        PathSegment(1, "core0.vector", "setup", 95, 99, 3),
        PathSegment(NO_OP, "sequencer", "completion", 99, 100),
    ]


def test_of_what_ends_together_the_own_unit_has_not_waited_and_else_the_longest_was_waited_for() -> None:
    last = _span("core0.matrix", 50, 60, 3)
    own, longer, longest = (
        _span("core0.matrix", 45, 50, 0), _span("core0.dma1", 20, 50, 1), _span("core0.dma0", 20, 50, 2)
    )  # fmt: skip
    assert [stretch.op for stretch in _of([last, own, longer, longest], 60).critical_path()][-2:] == [0, 3]
    assert [stretch.op for stretch in _of([last, longer, longest], 60).critical_path()][-2:] == [2, 3]


def test_spans_without_duration_and_empty_timelines_have_paths() -> None:
    assert _of([_span("core0.matrix", 5, 5)], 9).critical_path() == [PathSegment(NO_OP, "sequencer", "fetch", 0, 9)]
    assert Timeline().critical_path() == []


def test_contexts_and_what_lies_between_them_are_no_layers() -> None:
    save, restore = (
        Span("sequencer", start, start + 10, NO_OP, kind, 0, 8, "memory", 8)
        for start, kind in ((20, "context.save"), (50, "context.restore"))
    )
    path = _of([_span("core0.matrix", 0, 20), save, restore, _span("core0.matrix", 60, 70)], 70).critical_path()
    assert [(stretch.cause, stretch.end_ps) for stretch in path] == [
        ("compute", 20), ("context", 30), ("parked", 50), ("context", 60), ("compute", 70)
    ]  # fmt: skip


def test_a_difference_names_the_first_span_and_adds_up() -> None:
    before = _of([_span("core0.dma0", 0, 30, 0, "memory", 8), _span("core0.matrix", 30, 50, 1)], 50)
    after = _of([_span("core0.dma0", 0, 45, 0, "memory", 8), _span("core0.matrix", 45, 60, 1)], 61)
    found = before.diff(after)
    assert found.total_ps == 11
    assert found.first == (before.spans[0], after.spans[0])
    assert found.ops == {0: 15, 1: -5, NO_OP: 1}
    assert found.units == {"core0.dma0": 15, "core0.matrix": -5, "sequencer": 1}
    assert found.causes == {"dram": 15, "compute": -5, "completion": 1}
    assert (before.diff(before).first, before.diff(before).ops) == (None, {})
    shorter = _of(before.spans[:1], 30)
    assert shorter.diff(before).first == (None, before.spans[1])


_SPANS = st.lists(
    st.builds(
        lambda unit, start, length, op, bound, dram: _span(unit, start, start + length, op, bound, dram),
        st.sampled_from(["core0.matrix", "core0.dma0", "core1.vector", "sequencer"]),
        st.integers(0, 50), st.integers(0, 20), st.integers(0, 3), st.sampled_from(["compute", "memory", "latency"]),
        st.integers(0, 1),
    ),
    max_size=12,
)  # fmt: skip


@given(_SPANS, _SPANS, st.integers(0, 9))
def test_any_two_timelines_differ_by_what_their_parts_add_up_to(
    first: list[Span], second: list[Span], tail: int
) -> None:
    one, two = (_of(spans, max((s.end_ps for s in spans), default=0) + tail) for spans in (first, second))
    for timeline in (one, two):
        reached = 0
        for stretch in timeline.critical_path():
            assert (stretch.start_ps, stretch.end_ps > stretch.start_ps) == (reached, True)
            assert stretch.cause in CAUSES
            reached = stretch.end_ps
        assert reached == timeline.time_ps
    found = one.diff(two)
    for parts in (found.ops, found.units, found.causes):
        assert sum(parts.values()) == found.total_ps == two.time_ps - one.time_ps


def test_codes_of_faults_are_those_of_the_specification_and_of_the_client_in_c() -> None:
    codes = {name: int(code) for name, code in FaultCode.__members__.items()}
    rows = re.findall(
        r"^\| (\d+) \| ([A-Z]+) \| .* \| .* \|$", (ROOT / "docs/device.md").read_text("utf-8"), re.MULTILINE
    )
    assert {name: int(code) for code, name in rows if name in codes} | {"NONE": 0} == codes
    (listed,) = re.findall(r"faults\[\] = \{(.*?)\};", (ROOT / "drivers/linux/test/serve.c").read_text(), re.DOTALL)
    assert re.findall(r'"(\w+)"', listed) == sorted(codes, key=codes.__getitem__)
