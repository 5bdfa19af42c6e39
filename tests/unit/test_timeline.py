"""Digests tell timelines apart by every field, and by nothing else."""

from __future__ import annotations

import hashlib

from npusim.timeline import NO_OP, Counters, Span, Timeline, UnitCounters, digest

SPAN = Span("core0.matrix", 5, 17, 2, "matrix.conv", 64, 128, "compute", 32)


def test_a_digest_is_that_of_the_fields_as_text() -> None:
    text = "core0.matrix\x1f5\x1f17\x1f2\x1fmatrix.conv\x1f64\x1f128\x1fcompute\x1f32\n"
    assert digest([SPAN]) == hashlib.sha256(text.encode()).hexdigest()
    assert Timeline([SPAN, SPAN]).digest() == hashlib.sha256(2 * text.encode()).hexdigest()
    assert Timeline().digest() == hashlib.sha256().hexdigest()


def test_every_field_counts() -> None:
    changed = [SPAN._replace(**{name: 99 if isinstance(value, int) else "x"}) for name, value in SPAN._asdict().items()]
    assert len({digest([span]) for span in (SPAN, *changed)}) == 10
    other = SPAN._replace(start_ps=6)
    assert digest([SPAN, other]) != digest([other, SPAN])


def test_counting_starts_at_nothing() -> None:
    assert (UnitCounters(), Counters()) == (UnitCounters(0, 0, {}, 0, 0, 0), Counters(0, {}, 0, 0, 0, 0))
    assert NO_OP == 2**32 - 1
