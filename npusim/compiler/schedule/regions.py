"""Regions: the bytes of a buffer that a core uses, as a rectangle of rows and columns.

If a tensor is cut along its outermost dimension, each core has a contiguous run of bytes. If it is cut along an inner
dimension, for example the channels of pixels, each core has some columns of every row. A core that keeps only its
region packs the columns without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

from npusim.compiler.buffers import Buffer, View
from npusim.units import ceil_div


class Region(NamedTuple):
    """Columns [low, high) of rows [first, end), in bytes; a row has ``row`` bytes."""

    row: int
    first: int
    end: int
    low: int
    high: int

    @property
    def nbytes(self) -> int:
        """Bytes of the region without gaps."""
        return (self.end - self.first) * (self.high - self.low)

    def holds(self, other: Region) -> bool:
        """Whether this region contains the other one."""
        return self.first <= other.first and other.end <= self.end and self.low <= other.low and other.high <= self.high


def row_bytes(view: View) -> int:
    """The bytes per row of a tensor's buffer: of its innermost dimension, if all other strides are multiples of that.

    Otherwise the whole buffer is one row.
    """
    strides = sorted(
        (stride, size) for stride, size in zip(view.strides, view.shape, strict=True) if size > 1 and stride
    )
    whole = max(1, view.buffer.nbytes)
    if len(strides) < 2:
        return whole
    (inner, size), (row, _), *outer = strides
    inside = inner > 0 and inner * (size - 1) + view.dtype.itemsize <= row
    return row if inside and not whole % row and all(stride % row == 0 for stride, _ in outer) else whole


def region_of(view: View, row: int) -> Region:
    """The smallest region that contains all bytes of a view."""
    low, high = view.extent()
    return Region(row, low // row, ceil_div(high, row), *(_columns(view, row) or (0, row)))


def _columns(view: View, row: int) -> tuple[int, int] | None:
    """The columns that a view covers in each row; None if it wraps from one row into the next."""
    sizes = zip(view.strides, view.shape, strict=True)
    width = sum(abs(stride) * (size - 1) for stride, size in sizes if size > 1 and stride % row) + view.dtype.itemsize
    low = view.extent()[0] % row
    return (low, low + width) if low + width <= row else None


def is_region(view: View, axis: int, row: int) -> bool:
    """Whether the bytes of a position along an axis are a region, with no bytes of other positions in it."""
    sizes = [1 if at == axis else dim for at, dim in enumerate(view.shape)]
    one = view.slice([0] * len(sizes), sizes)
    return region_of(one, row).nbytes == prod(sizes) * view.dtype.itemsize


def place_view(view: View, region: Region, buffer: Buffer) -> View:
    """Move a view of the whole tensor to the buffer that holds ``region`` without gaps."""
    row, width = region.row, region.high - region.low
    start, column = divmod(view.offset, row)
    strides = tuple(
        stride // row * width if stride % row == 0 and size > 1 else stride
        for stride, size in zip(view.strides, view.shape, strict=True)
    )
    offset = (start - region.first) * width + column - region.low
    return View(buffer, offset, view.shape, strides, view.dtype)


def join(one: Region | None, other: Region | None) -> Region | None:
    """The smallest region that contains both."""
    if one is None or other is None:
        return one or other
    return Region(
        one.row,
        min(one.first, other.first),
        max(one.end, other.end),
        min(one.low, other.low),
        max(one.high, other.high),
    )


def union(regions: Iterable[Region | None]) -> Region | None:
    """The smallest region that contains all."""
    found: Region | None = None
    for region in regions:
        found = join(found, region)
    return found


def overlap(one: Region | None, other: Region | None) -> int:
    """Bytes that two regions have in common."""
    if one is None or other is None:
        return 0
    rows = min(one.end, other.end) - max(one.first, other.first)
    return max(0, rows) * max(0, min(one.high, other.high) - max(one.low, other.low))


def are_disjoint(regions: Sequence[Region | None]) -> bool:
    """Whether no two regions overlap."""
    return not any(overlap(one, other) for one, other in combinations(regions, 2))


def cut_view(view: View, wanted: Region) -> View | None:
    """The steps of a view's outermost dimension, and of the outermost one within a row, that overlap a region; None if
    none do."""
    row, columns = wanted.row, _columns(view, wanted.row)
    axes = [axis for axis in view.order() if view.shape[axis] > 1]
    outer = next((axis for axis in axes if view.strides[axis] % row == 0), None)
    inner = next((axis for axis in axes if view.strides[axis] % row), None)
    found = _steps(view, outer, view.extent(), (wanted.first * row, wanted.end * row))
    return _steps(found, inner, columns, (wanted.low, wanted.high)) if found and columns else found


def _steps(view: View, axis: int | None, extent: tuple[int, int], wanted: tuple[int, int]) -> View | None:
    """The steps of a view along ``axis`` that overlap the ``wanted`` bytes. ``extent``: the bytes of the view."""
    (start, end), (low, high) = extent, wanted
    if end <= low or high <= start:
        return None
    if axis is None or view.strides[axis] <= 0:
        return view
    stride, length = view.strides[axis], view.shape[axis]
    step = end - start - (length - 1) * stride
    first = max(0, -((start + step - low - 1) // stride) if low >= start + step else 0)
    past = min(length, ceil_div(high - start, stride))
    if first >= past:
        return None
    starts = [first if at == axis else 0 for at in range(len(view.shape))]
    sizes = [past - first if at == axis else dim for at, dim in enumerate(view.shape)]
    return view.slice(starts, sizes)
