"""Ranges of bytes compared with sets, and the ranges that a stream accesses."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from npusim.device.spans import ByteRanges, touched
from npusim.isa.base import region
from npusim.program import CONSTANTS, FIRST_IO, SCRATCH
from tests.support.programs.streams import Stream, copy, fill, keeper

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 12)), max_size=30)


@given(STEPS, st.integers(0, 50), st.integers(0, 10))
def test_ranges_are_sets_of_bytes(steps: list[tuple[bool, int, int]], low: int, size: int) -> None:
    ranges, model = ByteRanges(), set[int]()
    for adds, first, count in steps:
        if adds:
            ranges.add(first, first + count)
            model |= set(range(first, first + count))
        else:
            ranges.remove(first, first + count)
            model -= set(range(first, first + count))
    found = list(ranges)
    assert {byte for first, end in found for byte in range(first, end)} == model
    assert all(first < end for first, end in found)
    assert all(end < first for (_, end), (first, _) in pairwise(found))
    asked = range(low, low + size)
    assert ranges.meets(low, low + size) == any(byte in model for byte in asked)
    assert ranges.missing(low, low + size) == next((byte for byte in asked if byte not in model), None)


def test_a_stream_touches_what_its_commands_do() -> None:
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO, 16), 32))
    stream.dma(copy(region(FIRST_IO + 1, 8), 0, 32), loaded)
    stream.dma(fill(region(SCRATCH, 4), 2, 0))
    stream.dma(copy(64, region(FIRST_IO, 100), 4))
    found = touched(stream.code())
    assert found is not None
    assert not found.keeps
    assert {number: (tuple(e.read), tuple(e.written)) for number, e in found.regions.items()} == {
        FIRST_IO: ((16, 104), (0, 0)),
        FIRST_IO + 1: ((0, 0), (8, 40)),
        SCRATCH: ((0, 0), (4, 6)),
    }


def test_residents_and_nonsense() -> None:
    kept = touched(keeper(bytes(64)).code)
    assert kept is not None
    assert kept.keeps
    assert kept.regions[CONSTANTS].read == (0, 64)
    assert touched(b"\xff" * 40) is None
    assert touched(b"") is not None
