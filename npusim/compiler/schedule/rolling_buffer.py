"""Rolling buffers: the rows of a value inside a cascade that are in the scratchpad.

A rolling buffer holds the rows that some group of the cascade has still to read. It is filled from the front. When the
next rows do not fit behind the others, the rows that are still needed first move to the front. It includes padding
around the image, so convolutions read it directly, without a padded copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.codegen.issue import Item
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.transfer import copy_items, load_items
from npusim.dtypes import DType
from npusim.graph import Op, Tensor
from npusim.isa.base import MAX_ITEMS
from npusim.isa.dma import Fill
from npusim.program import SCRATCH

AXES = {2: (0, 2, 3, 1), 1: (0, 1, 2, 3)}
"""The axes (batch, rows, columns, channels), by the axis of the rows."""


class Reader(NamedTuple):
    """A group that reads a value.

    For rows [a, b) of its result, it needs the rows [a * stride - before, (b - 1) * stride - before + extent) of the
    value. ``reader``: the group's index in the cascade. ``padded``: rows outside the image are read as padding.
    ``windowed``: the windows of the group's anchor read the value; otherwise it is read element by element.
    """

    reader: int
    stride: int
    before: int
    extent: int
    padded: bool
    windowed: bool

    def rows(self, first: int, end: int, height: int) -> tuple[int, int]:
        """The rows, of an image of ``height`` rows, that rows [first, end) of the result need."""
        low, high = first * self.stride - self.before, (end - 1) * self.stride - self.before + self.extent
        return (low, high) if self.padded else (max(low, 0), min(high, height))


class StripedValue(NamedTuple):
    """A value with a rolling buffer.

    ``maker``: the index of the group that computes it; from the number of groups on, the value is loaded from DRAM.
    ``axis``: the dimension of its rows. ``slices``: tensors of shards that are rows of this value, and the first row of
    each.
    """

    tensor: Tensor
    maker: int
    axis: int
    readers: tuple[Reader, ...]
    slices: tuple[tuple[Tensor, int], ...] = ()


Border = tuple[int, int, int | None]
"""Columns of padding left and right of an image, and the bit pattern of one padding element; None without padding."""

RowPlaces = tuple[int, list[int], dict[int, tuple[int, int]], dict[int, tuple[int, int]]]
"""Rows of a buffer, and ``bases``, ``moves`` and ``bottoms`` as in :class:`RollingBuffer`."""


@dataclass(slots=True)
class RollingBuffer:
    """The positions of a value's rows in its buffer; a position is the space for one row.

    During stripe t, row r is at position ``r + bases[t]``. Before the stripe's rows are written, ``moves[t]`` =
    (position, rows) move to the front, and the positions [first, end) = ``bottoms[t]`` are filled with the padding
    below the image. ``pitch``: bytes per position. ``source``: the view in DRAM of a loaded value.
    """

    value: StripedValue
    view: View
    pitch: int
    border: Border
    bases: list[int]
    moves: dict[int, tuple[int, int]]
    bottoms: dict[int, tuple[int, int]]
    source: View | None = None

    @property
    def buffer(self) -> Buffer:
        """The buffer in the scratchpad."""
        return self.view.buffer

    @property
    def views(self) -> dict[Tensor, View]:
        """The views of the value and of its slices in the buffer."""
        found = {self.value.tensor: self.view}
        for tensor, first in self.value.slices:
            starts = [first if axis == self.value.axis else 0 for axis in range(len(tensor.shape))]
            found[tensor] = self.view.slice(starts, tensor.shape)
        return found

    def begin(self, image: int) -> Iterator[Item]:
        """Fill the padding above an image, and at both sides of all positions.

        The side padding is still there for every image after the first.
        """
        if self.border[2] is None:
            return
        # Padding above the image and left of its first row is contiguous.
        above = self.bases[0] * self.pitch
        left, right = self.border[0] * self._pixel, self.border[1] * self._pixel
        if image:
            yield from self._fill(0, above)
            return
        yield from self._fill(0, above + left)
        # So is padding right of a row and left of the next one. Nothing follows the last row.
        rows = self.buffer.nbytes // self.pitch - self.bases[0]
        yield from self._fill(above + self.pitch - right, left + right, rows - 1)
        yield from self._fill(self.buffer.nbytes - right, right)

    def before(self, stripe: int) -> Iterator[Item]:
        """Move rows to the front and fill the padding below the image, as a stripe needs it."""
        if stripe in self.moves:
            source, rows = self.moves[stripe]
            yield from copy_items(self._rows(0, rows), self._rows(source, rows), (rows * self.pitch,), 1)
        if stripe in self.bottoms:
            first, end = self.bottoms[stripe]
            yield from self._fill(first * self.pitch, (end - first) * self.pitch)

    def load(self, image: int, stripe: int, rows: tuple[int, int]) -> Iterator[Item]:
        """Load rows [first, end) of an image to their positions during a stripe."""
        assert self.source is not None
        batch, row, _, _ = axes = AXES[self.value.axis]
        corner, sizes = [0] * 4, list(self.source.shape)
        corner[batch], sizes[batch], corner[row], sizes[row] = image, 1, rows[0], rows[1] - rows[0]
        source = self.source.slice(corner, sizes).permute(axes)
        corner[batch] = 0
        target = self.view.moved({self.buffer: (self.buffer, self.bases[stripe] * self.pitch)})
        target = target.slice(corner, sizes).permute(axes)
        yield from load_items((target.address, target.strides, target), source)

    @property
    def _pixel(self) -> int:
        """Bytes of all channels of a pixel."""
        return self.view.strides[AXES[self.value.axis][2]]

    def _rows(self, position: int, count: int) -> tuple[int, tuple[int, ...], View]:
        """(address, strides, view) of whole positions, as bytes."""
        at = View(self.buffer, position * self.pitch, (count * self.pitch,), (1,), DType.UINT8)
        return at.address, (1,), at

    def _fill(self, start: int, nbytes: int, rows: int = 1) -> Iterator[Item]:
        """Fill ``nbytes`` bytes from ``start`` with padding, in each of ``rows`` consecutive positions."""
        item = self.view.dtype.itemsize
        count = nbytes // item
        if not count or rows < 1:
            return
        # One instruction fills at most MAX_ITEMS elements, of many short rows or of one long row.
        width, height = min(count, MAX_ITEMS), max(1, MAX_ITEMS // count)
        for row in range(0, rows, height):
            for done in range(0, count, width):
                dims = (min(height, rows - row), min(width, count - done))
                strides = (self.pitch, item)
                view = View(self.buffer, start + row * self.pitch + done * item, dims, strides, self.view.dtype)
                fill = Fill(view.address, (0, 0, *strides), (1, 1, *dims), item, self.border[2] or 0)
                yield Item(fill, (), (view,))


def rolling_buffer(
    value: StripedValue, edge: Border, row_bytes: int, places: RowPlaces, source: View | None
) -> RollingBuffer:
    """A rolling buffer without an address."""
    tensor, item = value.tensor, value.tensor.dtype.itemsize
    capacity, bases, moves, bottoms = places
    _, row, col, channel = AXES[value.axis]
    buffer = Buffer(tensor.name, SCRATCH, capacity * row_bytes, is_rolling=True)
    strides = [0] * 4
    strides[row], strides[col], strides[channel] = row_bytes, tensor.shape[channel] * item, item
    view = View(buffer, edge[0] * strides[col], tensor.shape, tuple(strides), tensor.dtype)
    return RollingBuffer(value, view, row_bytes, edge, bases, moves, bottoms, source)


# Padding


def border(value: StripedValue, groups: Sequence[Group]) -> Border | None:
    """The padding that all readers of a value need; None if they need different padding values."""
    left = right = 0
    pattern = None
    for reader in value.readers:
        anchor = groups[reader.reader].anchor
        if anchor is None or anchor.kind != "conv" or not reader.windowed:
            continue
        first, width = _columns(anchor, value.tensor)
        if first or width or reader.before > 0 or _rows_below(anchor, reader, value.tensor):
            zero = int(anchor.attrs["x_zero"]) & ((1 << 8 * value.tensor.dtype.itemsize) - 1)
            if pattern not in (None, zero):
                return None
            pattern = zero
            left, right = max(left, first), max(right, width)
    return left, right, pattern


def _columns(anchor: Op, tensor: Tensor) -> tuple[int, int]:
    """Columns of padding that a convolution reads left and right of an image."""
    nchw = anchor.attrs["layout"] == "NCHW"
    axis = 3 if nchw else 2
    kernel = (anchor.input(1).shape[3] - 1) * anchor.attrs["dilation"][1] + 1
    total = (anchor.output.shape[axis] - 1) * anchor.attrs["stride"][1] + kernel
    before = anchor.attrs["pads"][1]
    return before, max(0, total - before - tensor.shape[axis])


def _rows_below(anchor: Op, reader: Reader, tensor: Tensor) -> int:
    """Rows of padding that a convolution reads below an image."""
    axis = 2 if anchor.attrs["layout"] == "NCHW" else 1
    return max(0, reader.rows(0, anchor.output.shape[axis], 0)[1] - tensor.shape[axis])


def pitch(value: StripedValue, edge: Border) -> int:
    """Bytes from one row of a rolling buffer to the next."""
    _, _, col, channel = AXES[value.axis]
    shape = value.tensor.shape
    return (edge[0] + shape[col] + edge[1]) * shape[channel] * value.tensor.dtype.itemsize


# Positions


def live(
    maker: int, readers: Sequence[Reader], before: Sequence[int], after: Sequence[int], heights: Sequence[int]
) -> tuple[int, int]:
    """The rows [first, end) that a rolling buffer holds during a stripe.

    ``before``, ``after``: rows of each result that exist before and after the stripe. ``heights``: rows of the whole
    results.
    """
    height = heights[maker]
    low, high = height, after[maker]
    if after[maker] > before[maker]:
        low = before[maker]  # rows that no group reads are computed as well and need a position
    for reader in readers:
        if before[reader.reader] < heights[reader.reader]:
            low = min(low, reader.rows(before[reader.reader], heights[reader.reader], height)[0])
        if after[reader.reader]:
            high = max(high, reader.rows(0, after[reader.reader], height)[1])
    return low, high


def place_rows(spans: Sequence[tuple[int, int]], height: int, *, twice: bool, apart: bool) -> RowPlaces:
    """Positions for the rows [first, end) of each stripe, in as small a buffer as possible.

    ``height``: rows of the image. ``twice``: a stripe is written while the one before it is read. ``apart``: the two
    must not overlap even after rows have moved.
    """
    capacity = max(high - low for low, high in spans)
    if twice:
        capacity = max(capacity, *(after[1] - before[0] for before, after in pairwise(spans)), 0)
    while (found := _positions(spans, capacity, twice and apart)) is None:
        capacity += 1
    bases, moves = found
    bottoms, filled = {}, height
    for number, (_, high) in enumerate(spans):
        if high > filled:
            bottoms[number] = filled + bases[number], high + bases[number]
            filled = high
    return capacity, bases, moves, bottoms


def _positions(
    spans: Sequence[tuple[int, int]], capacity: int, apart: bool
) -> tuple[list[int], dict[int, tuple[int, int]]] | None:
    """Bases and moves for a buffer of ``capacity`` rows.

    Returns None if moved rows would overwrite themselves, or, with ``apart``, if the rows of a stripe would overwrite
    those of the previous one, which are read at the same time.
    """
    base, bases, moves = -spans[0][0], [], {}
    reached = spans[0][0]
    for number, (low, high) in enumerate(spans):
        if high + base > capacity:
            kept, source = max(0, reached - low), low + base
            if source < kept or (apart and number and spans[number - 1][0] + base < high - low):
                return None
            base = -low
            if kept:
                moves[number] = source, kept
        if high + base > capacity:
            return None
        bases.append(base)
        reached = max(reached, high)
    return bases, moves
