"""Regions of buffers contain all bytes of a view; views into the packed region read the same bytes."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from npusim.compiler.buffers import Buffer, View, ordered_strides
from npusim.compiler.schedule.regions import Region, cut_view, overlap, place_view, region_of, row_bytes
from npusim.dtypes import DType
from npusim.program import SCRATCH


def bytes_of(view: View) -> list[int]:
    """Return the position of each element in the buffer, in the view's order."""
    return [
        view.offset + sum(at * stride for at, stride in zip(index, view.strides, strict=True))
        for index in product(*map(range, view.shape))
    ]


def position(region: Region, at: int) -> int | None:
    """Return the position of a buffer byte in the packed region; None if it is not included."""
    row, column = divmod(at, region.row)
    if not (region.first <= row < region.end and region.low <= column < region.high):
        return None
    return (row - region.first) * (region.high - region.low) + column - region.low


@st.composite
def sliced(draw: st.DrawFn) -> tuple[View, View]:
    """Draw a dense tensor in any memory order, and a slice of it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    buffer = Buffer("x", SCRATCH, int(np.prod(shape)))
    whole = View(buffer, 0, shape, ordered_strides(shape, order, 1), DType.INT8)
    starts = [draw(st.integers(0, size - 1)) for size in shape]
    sizes = [draw(st.integers(1, size - start)) for size, start in zip(shape, starts, strict=True)]
    return whole, whole.slice(starts, sizes)


@given(sliced())
def test_a_packed_region_has_the_bytes_of_the_view(views: tuple[View, View]) -> None:
    whole, part = views
    region = region_of(part, row_bytes(whole))
    packed = Buffer("packed", SCRATCH, region.nbytes)
    assert [position(region, at) for at in bytes_of(part)] == bytes_of(place_view(part, region, packed))


@given(sliced(), st.data())
def test_what_is_cut_from_a_view_has_all_bytes_of_it_that_are_wanted(
    views: tuple[View, View], data: st.DataObject
) -> None:
    whole, made = views
    starts = [data.draw(st.integers(0, size - 1)) for size in whole.shape]
    sizes = [data.draw(st.integers(1, size - start)) for size, start in zip(whole.shape, starts, strict=True)]
    row = row_bytes(whole)
    wanted = region_of(whole.slice(starts, sizes), row)
    sent = cut_view(made, wanted)
    found = set() if sent is None else set(bytes_of(sent))
    assert found <= set(bytes_of(made))
    assert found >= {at for at in bytes_of(made) if position(wanted, at) is not None}


def test_channels_of_pixels_are_columns() -> None:
    image = View(Buffer("x", SCRATCH, 96), 0, (1, 2, 4, 12), (96, 48, 12, 1), DType.INT8)
    assert row_bytes(image) == 12
    halves = [region_of(image.slice((0, 0, 0, at), (1, 2, 4, 6)), 12) for at in (0, 6)]
    assert halves == [Region(12, 0, 8, 0, 6), Region(12, 0, 8, 6, 12)]
    assert overlap(*halves) == 0
