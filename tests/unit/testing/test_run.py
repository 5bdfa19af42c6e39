"""Assertions on layers: each answer changes at its limit, and says how far from it the layer is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.report.format import duration
from npusim.testing.run import LayerTiming

HZ = 10**9
MOMENTS = st.integers(0, 10**6)


def layer(start_ps: int, end_ps: int, name: str = "a") -> LayerTiming:
    return LayerTiming(name, start_ps, end_ps, HZ)


@pytest.mark.parametrize(("off", "words"), [(-1, "1 ps before"), (0, "0 s after"), (1, "1 ps after")])
def test_edges_of_a_moment_and_of_another_layer(off: int, words: str) -> None:
    one, limit = layer(5000, 9000), layer(20_000, 30_000, "b")
    late = layer(30_000 + off, 40_000)
    for answer in (late.starts_after(30_000), late.starts_after("30 ns"), late.starts_after("30 cycles")):
        assert bool(answer) == (off >= 0)
        assert f"starts {words} the limit" in repr(answer)
    assert bool(late.starts_after(limit)) == (off >= 0)
    assert f"starts {words} the end of layer b" in repr(late.starts_after(limit))
    early = layer(1000, 20_000 + off)
    for answer in (early.ends_before(20_000), early.ends_before("20 ns"), early.ends_before("20 cycles")):
        assert bool(answer) == (off <= 0)
        assert f"ends {words} the limit" in repr(answer)
    assert bool(early.ends_before(limit)) == (off <= 0)
    assert f"ends {words} the start of layer b" in repr(early.ends_before(limit))
    assert bool(one.takes_at_most(4000 - off)) == (off <= 0)


@given(MOMENTS, MOMENTS, MOMENTS, MOMENTS)
def test_two_layers_overlap_or_one_comes_after_the_other(a: int, b: int, c: int, d: int) -> None:
    one, other = layer(min(a, b), max(a, b) + 1), layer(min(c, d), max(c, d) + 1)
    both = min(one.end_ps, other.end_ps) - max(one.start_ps, other.start_ps)
    assert bool(one.overlaps(other)) == bool(other.overlaps(one)) == (both > 0)
    assert bool(one.starts_after(other)) == bool(other.ends_before(one)) == (one.start_ps >= other.end_ps)
    assert bool(one.overlaps(other)) + bool(one.starts_after(other)) + bool(other.starts_after(one)) == 1
    words = f"share {duration(both)}" if both > 0 else f"are {duration(-both)} apart"
    assert repr(one.overlaps(other)) == f"{one!r} and {other!r} {words}"
    assert one.time_ps == one.end_ps - one.start_ps
