"""Placement of a tile's slots: in free bytes, without overlap, and with the least overlap with the neighbours'
bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.compiler.lower.base import SlotSpec
from npusim.compiler.schedule.slots import LastUses, Span, place_slots
from npusim.hw.memory import ALIGNMENT, align
from npusim.isa.base import Space

MEMORIES = st.sampled_from([Space.SRAM, Space.ACC])
SPECS = st.lists(
    st.builds(
        SlotSpec,
        st.just("x"),
        st.integers(0, 5 * ALIGNMENT),
        st.integers(1, 3),
        st.sampled_from([Space.SRAM, Space.ACC]),
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def spans(draw: st.DrawFn, most: int = 3) -> list[Span]:
    """Draw ordered disjoint spans with aligned bounds."""
    ends = draw(st.lists(st.integers(0, 40), min_size=0, max_size=2 * most, unique=True))
    numbers = [ALIGNMENT * end for end in sorted(ends)]
    return list(zip(numbers[::2], numbers[1::2], strict=False))


def sizes_of(specs: list[SlotSpec]) -> list[int]:
    return [align(max(spec.nbytes, 1)) for spec in specs if spec.space is Space.SRAM for _ in range(spec.copies)]


def first_fit(sizes: list[int], free: list[Span]) -> bool:
    """Return whether every slot fits when each takes the first span with room."""
    left = [high - low for low, high in free]
    for size in sizes:
        number = next((number for number, room in enumerate(left) if room >= size), None)
        if number is None:
            return False
        left[number] -= size
    return True


def shared(places: list[Span], avoid: list[Span]) -> int:
    return sum(max(0, min(high, end) - max(low, start)) for low, high in places for start, end in avoid)


@given(SPECS, spans(), st.booleans(), spans(), st.integers(0, 4))
def test_slots_lie_in_free_bytes_and_apart(
    specs: list[SlotSpec], free: list[Span], low_end: bool, avoid: list[Span], urgent: int
) -> None:
    sizes = sizes_of(specs)
    if not sizes:
        return
    starts = place_slots(specs, free, low_end=low_end, avoid=avoid, urgent=urgent)
    whole = any(high - low >= sum(sizes) for low, high in free)
    assert (starts is not None) == (whole or first_fit(sizes, free if low_end else free[::-1]))
    if starts is None:
        return
    places = sorted((start, start + size) for start, size in zip(starts, sizes, strict=True))
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(places))
    assert all(any(low <= start and end <= high for low, high in free) for start, end in places)
    if whole and places:
        assert places[-1][1] - places[0][0] == sum(sizes)
    if whole and places and not avoid:
        ends = [low if low_end else high - sum(sizes) for low, high in free if high - low >= sum(sizes)]
        assert places[0][0] == (min if low_end else max)(ends)


@given(SPECS, spans(), st.booleans(), spans(2), st.integers(0, 4))
def test_nowhere_else_is_less_shared_with_the_neighbours(
    specs: list[SlotSpec], free: list[Span], low_end: bool, avoid: list[Span], urgent: int
) -> None:
    """The overlap of the urgent slots is minimised first, then the total overlap."""
    sizes = sizes_of(specs)
    taken, first = sum(sizes), sum(sizes_of(specs[:urgent]))
    wide = [(low, high) for low, high in free if high - low >= taken]
    if not wide or not avoid or not sizes:
        return
    starts = place_slots(specs, free, low_end=low_end, avoid=avoid, urgent=urgent)
    assert starts is not None
    places = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    urgents = len(sizes_of(specs[:urgent]))
    best = min(
        (shared([ahead], avoid), shared([(at, at + taken)], avoid))
        for low, high in wide
        for at in range(low, high - taken + 1, ALIGNMENT)
        for ahead in (((at, at + first), (at + taken - first, at + taken)) if first else ((at, at + first),))
    )
    assert (shared(places[:urgents], avoid), shared(places, avoid)) == best


@pytest.mark.parametrize("low_end", [True, False])
def test_slots_that_no_span_holds_together_take_several(low_end: bool) -> None:
    specs = [SlotSpec("a", 2 * ALIGNMENT, 1), SlotSpec("b", ALIGNMENT, 2)]
    free = [(0, 2 * ALIGNMENT), (4 * ALIGNMENT, 6 * ALIGNMENT)]
    wanted = [0, 4, 5] if low_end else [4, 1, 0]
    assert place_slots(specs, free, low_end=low_end) == [number * ALIGNMENT for number in wanted]


@given(st.lists(st.tuples(spans(2), st.integers(0, 9)), max_size=6), st.integers(1, 12), spans(), st.integers(-1, 9))
def test_ranges_are_those_of_the_oldest_and_of_the_most_recent_use(
    steps: list[tuple[list[Span], int]], size: int, free: list[Span], limit: int
) -> None:
    """Against the last use of each aligned unit of bytes. No other range is older; none is more recent than those with
    equally late last uses."""
    uses, last = LastUses(), [-1] * 48
    for ranges, step in steps:
        uses.add(ranges, step)
        for low, high in ranges:
            last[low // ALIGNMENT : high // ALIGNMENT] = [step] * ((high - low) // ALIGNMENT)
    nbytes = size * ALIGNMENT
    options = [
        (start, last[start // ALIGNMENT : start // ALIGNMENT + size])
        for low, high in free
        for start in range(low, high - nbytes + 1, ALIGNMENT)
    ]
    oldest, recent = uses.oldest(nbytes, free), uses.recent(nbytes, free, limit)
    if not options:
        assert oldest is None
        assert recent is None
        return
    found = dict(options)
    assert max(found[oldest]) == min(max(steps) for steps in found.values())
    assert max(*found[recent], limit) == min(max(*steps, limit) for steps in found.values())
