"""Cascades: neighbouring groups that are computed together, a few rows at a time, so that what lies between them never
exists as a whole.

Each value between two groups of a cascade has a *window* in SRAM: the rows that somebody has still to read. A stripe
makes some rows of the last result, and for these whatever rows of the others are missing. When a window is full, the
rows that are still wanted move to its front. Around the image a window has the padding that convolutions want, so they
read it as they find it. What comes from DRAM and is read more than once, by several groups or by overlapping rows, has
a window, too: its rows are loaded a stripe ahead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from npusim.compiler.buffers import Buffer, Moves, View, row_axis
from npusim.compiler.codegen.issue import Item, Tile
from npusim.compiler.grouping.groups import Group, on_matrix, side_by_side
from npusim.compiler.lower.base import Context
from npusim.compiler.lower.transfer import copy_items, load_items
from npusim.dtypes import DType
from npusim.graph import Op, Tensor
from npusim.hw.memory import align
from npusim.isa.base import MAX_ITEMS
from npusim.isa.dma import Fill
from npusim.polling import poll
from npusim.program import SCRATCH


class Reader(NamedTuple):
    """Who reads a value: rows [a, b) of group ``reader`` want rows [a * stride - before, (b - 1) * stride - before +
    extent), with ``padded`` also those that the image does not have; ``windowed``: by the windows of its anchor, else
    element by element."""

    reader: int
    stride: int
    before: int
    extent: int
    padded: bool
    windowed: bool

    def rows(self, first: int, end: int, height: int) -> tuple[int, int]:
        """The rows that rows [first, end) want of an image of ``height``."""
        low, high = first * self.stride - self.before, (end - 1) * self.stride - self.before + self.extent
        return (low, high) if self.padded else (max(low, 0), min(high, height))


class Inner(NamedTuple):
    """A value that lives in a window: the group (of the cascade) that makes it, the dimension that is its rows, and who
    reads it. Makers from the number of groups on are loads."""

    tensor: Tensor
    maker: int
    axis: int
    readers: tuple[Reader, ...]


class Border(NamedTuple):
    """Columns of padding beside an image, and the bits of an element of it; None if there is none at all."""

    left: int
    right: int
    pattern: int | None


class Move(NamedTuple):
    """Rows of a window that go to its front, in positions."""

    source: int
    rows: int


@dataclass(slots=True)
class Window:
    """Rows of a value: at stripe t row r is at position ``r + bases[t]``; ``moves[t]`` comes before new rows,
    ``bottoms[t]`` are the positions to be filled with padding. ``source``: where the value is loaded from."""

    inner: Inner
    view: View
    pitch: int
    border: Border
    bases: list[int]
    moves: dict[int, Move]
    bottoms: dict[int, tuple[int, int]]
    source: View | None = None

    @property
    def buffer(self) -> Buffer:
        return self.view.buffer

    def _rows(self, position: int, count: int) -> tuple[int, tuple[int, ...], View]:
        """(address, strides, view) of whole rows as bytes."""
        at = View(self.buffer, position * self.pitch, (count * self.pitch,), (1,), DType.UINT8)
        return at.address, (1,), at

    def begin(self, image: int) -> Iterator[Item]:
        """Padding above the image and beside all rows of the window: the makers of rows write between it. Images after
        the first find that beside their rows."""
        if self.border.pattern is None:
            return
        # Rows above the image, down to the columns left of its first row: they lie side by side.
        above = self.bases[0] * self.pitch
        left, right = (count * self._pixel for count in self.border[:2])
        if image:
            yield from self._fill(0, above)
            return
        yield from self._fill(0, above + left)
        # What is right of a row and left of the next one lies side by side, too; behind the last row is no other.
        rows = self.buffer.nbytes // self.pitch - self.bases[0]
        yield from self._fill(above + self.pitch - right, left + right, rows - 1)
        yield from self._fill(self.buffer.nbytes - right, right)

    def before(self, stripe: int) -> Iterator[Item]:
        """What is to be done before a stripe's rows are made."""
        move = self.moves.get(stripe)
        if move is not None:
            yield from copy_items(
                self._rows(0, move.rows), self._rows(move.source, move.rows), (move.rows * self.pitch,), 1
            )
        if stripe in self.bottoms:
            first, end = self.bottoms[stripe]
            yield from self._fill(first * self.pitch, (end - first) * self.pitch)

    def load(self, image: int, stripe: int, rows: tuple[int, int]) -> Iterator[Item]:
        """Rows [first, end) of an image, as they lie at a stripe."""
        assert self.source is not None
        batch, row, _, _ = axes = AXES[self.inner.axis]
        corner, sizes = [0] * 4, list(self.source.shape)
        corner[batch], sizes[batch], corner[row], sizes[row] = image, 1, rows[0], rows[1] - rows[0]
        source = self.source.slice(corner, sizes).permute(axes)
        corner[batch] = 0
        window = self.view.moved({self.buffer: (self.buffer, self.bases[stripe] * self.pitch)})
        window = window.slice(corner, sizes).permute(axes)
        yield from load_items((window.address, window.strides, window), source)

    @property
    def _pixel(self) -> int:
        """Bytes of all channels of a pixel."""
        return self.view.strides[AXES[self.inner.axis][2]]

    def _fill(self, start: int, nbytes: int, rows: int = 1) -> Iterator[Item]:
        """Padding from a byte on, and as much at the same place of each of some rows."""
        item = self.view.dtype.itemsize
        count = nbytes // item
        if not count or rows < 1:
            return
        # Of many rows as many at once as an instruction may fill, of one row as much.
        width, height = min(count, MAX_ITEMS), max(1, MAX_ITEMS // count)
        for row in range(0, rows, height):
            for done in range(0, count, width):
                dims = (min(height, rows - row), min(width, count - done))
                strides = (self.pitch, item)
                view = View(self.buffer, start + row * self.pitch + done * item, dims, strides, self.view.dtype)
                fill = Fill(view.address, (0, 0, *strides), (1, 1, *dims), item, self.border.pattern or 0)
                yield Item(fill, (), (view,))


AXES = {2: (0, 2, 3, 1), 1: (0, 1, 2, 3)}
"""Batch, rows, columns, channels by the dimension that the rows are."""


def inners(groups: Sequence[Group], context: Context) -> list[Inner] | None:
    """The values between groups that are to be a cascade; None if they cannot be one."""
    makers = {group.outputs[0]: number for number, group in enumerate(groups[:-1])}
    axes = [rows_of(group, context) for group in groups]
    readers: dict[Tensor, list[Reader]] = {tensor: [] for tensor in makers}
    for number, group in enumerate(groups):
        for tensor, reader in _reads(group, number, context):
            if tensor in makers:
                if not _is_alike(tensor, reader, groups) or axes[makers[tensor]] != axes[number]:
                    return None
                readers[tensor].append(reader)
    if not all(readers.values()):
        return None
    return [Inner(tensor, number, axes[number] or 0, tuple(readers[tensor])) for tensor, number in makers.items()]


def _is_alike(tensor: Tensor, reader: Reader, groups: Sequence[Group]) -> bool:
    """Whether a reader wants some rows of a value for some of its own: what is broadcast along the rows is wanted as a
    whole by each of them."""
    out = groups[reader.reader].outputs[0].shape
    return tensor.shape[0] == out[0] if reader.windowed else tensor.shape == out


def imports(groups: Sequence[Group], inner: Sequence[Inner], context: Context) -> list[Inner]:
    """The values from DRAM of which a cascade reads rows more than once."""
    made = {value.tensor for value in inner}
    axes = [rows_of(group, context) for group in groups]
    readers: dict[Tensor, list[tuple[int, Reader]]] = {}
    for number, group in enumerate(groups):
        for tensor, reader in _reads(group, number, context):
            if tensor.data is None and tensor not in made and not context.view(tensor).buffer.on_chip:
                readers.setdefault(tensor, []).append((axes[number] or 0, reader))
    found: list[Inner] = []
    for tensor, reads in readers.items():
        axis = reads[0][0]
        again = len(reads) > 1 or any(reader.extent > reader.stride for _, reader in reads)
        if again and all(own == axis and _is_alike(tensor, reader, groups) for own, reader in reads):
            found.append(Inner(tensor, len(groups) + len(found), axis, tuple(reader for _, reader in reads)))
    return found


def rows_of(group: Group, context: Context) -> int | None:
    """The dimension of a group's result that stripes cut; None if it cannot be in a cascade."""
    anchor = group.anchor
    if len(group.outputs) != 1:
        return None
    if anchor is None:
        return row_axis(context.view(group.outputs[0]))
    if (anchor.kind == "conv" and anchor.input(1).data is not None) or (anchor.kind == "pool" and not group.chain):
        return 2 if anchor.attrs["layout"] == "NCHW" else 1
    return None


def _reads(group: Group, number: int, context: Context) -> Sequence[tuple[Tensor, Reader]]:
    """What a group reads, and how; ``number``: that of the group in the cascade."""
    key = ("reads", group, number)
    known: tuple[tuple[Tensor, Reader], ...] | None = context.facts.get(key)
    if known is None:
        reads = _reads_of(group) if number == 0 else _reads(group, 0, context)
        known = tuple((tensor, reader._replace(reader=number)) for tensor, reader in reads)
        context.facts[key] = known
    return known


def _reads_of(group: Group) -> Iterator[tuple[Tensor, Reader]]:
    anchor = group.anchor
    if anchor is not None:
        (stride, _), (dilation, _) = anchor.attrs["stride"], anchor.attrs["dilation"]
        kernel = anchor.input(1).shape[2] if anchor.kind == "conv" else anchor.attrs["kernel"][0]
        extent = (kernel - 1) * dilation + 1
        yield anchor.input(0), Reader(0, stride, anchor.attrs["pads"][0], extent, anchor.kind == "conv", True)
    for tensor in group.loads():
        if anchor is None or tensor is not anchor.output:
            yield tensor, Reader(0, 1, 0, 1, False, False)


def needs(wants: Sequence[tuple[int, Sequence[Reader]]], heights: Sequence[int], last: int, end: int) -> list[int]:
    """How many rows of each value - its maker and its readers - there must be for ``end`` rows of the ``last``
    result."""
    need = [0] * len(heights)
    need[last] = end
    # By maker, so that all who read a value are known; of loads nothing else is made.
    for maker, readers in sorted(wants, key=lambda want: (want[0] <= last, want[0]), reverse=True):
        for reader in readers:
            if need[reader.reader]:
                _, high = reader.rows(0, need[reader.reader], heights[maker])
                need[maker] = max(need[maker], min(high, heights[maker]))
    return need


def live(
    maker: int, readers: Sequence[Reader], before: Sequence[int], after: Sequence[int], heights: Sequence[int]
) -> tuple[int, int]:
    """First row and the one after the last that a window holds while a stripe is made."""
    height = heights[maker]
    low, high = height, after[maker]
    if after[maker] > before[maker]:
        low = before[maker]  # what nobody reads is made, too, and needs a place
    for reader in readers:
        if before[reader.reader] < heights[reader.reader]:
            low = min(low, reader.rows(before[reader.reader], heights[reader.reader], height)[0])
        if after[reader.reader]:
            high = max(high, reader.rows(0, after[reader.reader], height)[1])
    return low, high


def border(value: Inner, groups: Sequence[Group]) -> Border | None:
    """The padding that all readers want; None if they do not agree."""
    left = right = 0
    pattern = None
    for reader in value.readers:
        anchor = groups[reader.reader].anchor
        if anchor is None or anchor.kind != "conv" or anchor.input(0) is not value.tensor:
            continue
        first, width = _columns(anchor, value.tensor)
        if first or width or reader.before or _below(anchor, reader, value.tensor):
            zero = int(anchor.attrs["x_zero"]) & ((1 << 8 * value.tensor.dtype.itemsize) - 1)
            if pattern not in (None, zero):
                return None
            pattern = zero
            left, right = max(left, first), max(right, width)
    return Border(left, right, pattern)


def _columns(anchor: Op, tensor: Tensor) -> tuple[int, int]:
    nchw = anchor.attrs["layout"] == "NCHW"
    axis = 3 if nchw else 2
    total = (
        (anchor.output.shape[axis] - 1) * anchor.attrs["stride"][1]
        + (anchor.input(1).shape[3] - 1) * anchor.attrs["dilation"][1]
        + 1
    )
    before = anchor.attrs["pads"][1]
    return before, max(0, total - before - tensor.shape[axis])


def _below(anchor: Op, reader: Reader, tensor: Tensor) -> int:
    axis = 2 if anchor.attrs["layout"] == "NCHW" else 1
    return max(0, reader.rows(0, anchor.output.shape[axis], 0)[1] - tensor.shape[axis])


def pitch(value: Inner, edge: Border) -> int:
    """Bytes from one row of a window to the next."""
    _, _, col, channel = AXES[value.axis]
    shape = value.tensor.shape
    return (edge.left + shape[col] + edge.right) * shape[channel] * value.tensor.dtype.itemsize


@dataclass(slots=True)
class Cascade:
    """Groups ``first`` to ``last`` as stripes: ``stripes[t][k]`` are the rows that stripe t makes of group k."""

    first: int
    last: int
    stripes: list[list[tuple[int, int]]]
    windows: list[Window]
    rows: list[int]
    images: int
    height: int
    """Rows of the last result that a stripe makes."""
    apart: bool = True
    """Whether a stripe that one unit makes lies beside the one that another unit reads meanwhile, also where rows have
    moved in between."""

    @property
    def usual(self) -> list[int]:
        """Rows of each group that a stripe makes, neither the first nor the last one if there are others."""
        middle = self.stripes[len(self.stripes) // 2][: self.last - self.first + 1]
        return [max(end - first, 1) for first, end in middle]

    @property
    def loaded(self) -> list[Window]:
        """The windows of values from DRAM."""
        return [window for window in self.windows if window.source is not None]

    def moved(self, stripe: int) -> Moves:
        """How far the rows of windows are from where their views say, at a stripe."""
        return {window.buffer: (window.buffer, window.bases[stripe] * window.pitch) for window in self.windows}


def moved_bytes(cascade: Cascade) -> int:
    """Bytes that go to the front of windows while an image is made and nobody works: from the last group that reads a
    window to the first one that the next stripe's rows are for, there is none in between."""
    last = cascade.last - cascade.first
    return sum(
        move.rows * window.pitch
        for window in cascade.windows
        if max(reader.reader for reader in window.inner.readers) == last
        and 0 in (window.inner.maker, *(reader.reader for reader in window.inner.readers if window.source is not None))
        for move in window.moves.values()
    )


def most_moves(cascade: Cascade, groups: Sequence[Group]) -> int:
    """How often rows go to the front of a window that one unit fills and another one reads, while an image is made."""
    units = list(map(on_matrix, groups))
    between = (
        window
        for window in cascade.windows
        if window.source is None
        and any(units[reader.reader] != units[window.inner.maker] for reader in window.inner.readers)
    )
    return max((len(window.moves) for window in between), default=0)


@dataclass(slots=True)
class Outline:
    """What cascades of some groups have in common, whatever the height of their stripes."""

    groups: Sequence[Group]
    inner: Sequence[Inner]
    borders: Sequence[Border]
    pitches: Sequence[int]
    heights: tuple[int, ...]
    """Rows of each group's result."""
    _values: tuple[tuple[int, tuple[Reader, ...], int, bool], ...]
    _sources: Sequence[View | None]
    _walked: dict[tuple[int, bool], _Walked] = field(default_factory=dict)

    def _walk(self, height: int, apart: bool) -> _Walked:
        poll()
        known = self._walked.get((height, apart))
        if known is None:
            known = self._walked[height, apart] = _walk(self.heights, self._values, height, apart)
        return known

    def window_bytes(self, height: int, *, apart: bool) -> int:
        """What the windows of :meth:`cut` take."""
        _, _, places = self._walk(height, apart)
        return sum([align(place.capacity * each) for place, each in zip(places, self.pitches, strict=True)])

    def cut(self, height: int, *, apart: bool = True) -> Cascade:
        """A cascade whose stripes make ``height`` rows of the last result."""
        stripes, rows, places = self._walk(height, apart)
        windows = [
            _window(*each) for each in zip(self.inner, self.borders, self.pitches, places, self._sources, strict=True)
        ]
        first, last = self.groups[0], self.groups[-1]
        return Cascade(first.index, last.index, stripes, windows, rows, last.outputs[0].shape[0], height, apart)


def outline(groups: Sequence[Group], inner: Sequence[Inner], context: Context) -> Outline | None:
    """Of what cascades of groups with these values in windows are cut; None if their readers want different padding."""
    borders = []
    for value in inner:
        edge = border(value, groups)
        if edge is None:
            return None
        borders.append(edge)
    pitches = [pitch(value, edge) for value, edge in zip(inner, borders, strict=True)]
    heights = tuple(group.outputs[0].shape[rows_of(group, context) or 0] for group in groups)
    beside = side_by_side(groups)
    values = tuple(
        (value.maker, value.readers, value.tensor.shape[value.axis], beside and _changes_unit(value, groups))
        for value in inner
    )
    sources = [context.view(value.tensor) if value.maker >= len(groups) else None for value in inner]
    return Outline(groups, inner, borders, pitches, heights, values, sources)


def _changes_unit(value: Inner, groups: Sequence[Group]) -> bool:
    """Whether one unit makes a value and another one reads it: they work side by side if rows of two stripes have
    room."""
    if value.maker >= len(groups):
        return False
    made = on_matrix(groups[value.maker])
    return any(on_matrix(groups[reader.reader]) != made for reader in value.readers)


class _Place(NamedTuple):
    """Where the rows of a window are, in rows: see :class:`Window`."""

    capacity: int
    bases: list[int]
    moves: dict[int, Move]
    bottoms: dict[int, tuple[int, int]]


_Walked = tuple[list[list[tuple[int, int]]], list[int], list[_Place]]


# A planner tries many cascades, and each design the same ones; none of this depends on the device.
@functools.lru_cache(maxsize=4096)
def _walk(
    made: tuple[int, ...], values: tuple[tuple[int, tuple[Reader, ...], int, bool], ...], height: int, apart: bool
) -> _Walked:
    """The rows of each result, then of each load, that stripes of ``height`` rows make; how many of each at most; and
    where they are.

    ``made``: the rows of results; ``values``: maker, readers and rows of what has a window, and whether the next
    stripe's are made while this one's are read.
    """
    total, last = made[-1], len(made) - 1
    heights = [*made, *(rows for maker, _, rows, _ in values if maker > last)]
    wants = [(maker, readers) for maker, readers, _, _ in values]
    steps = [[0] * len(heights)] + [
        needs(wants, heights, last, min(end, total)) for end in range(height, total + height, height)
    ]
    # What is loaded is there a stripe before it is wanted.
    ahead = [row[last + 1 :] for row in (steps[0], *steps[2:], steps[-1])]
    steps = [row[: last + 1] + loads for row, loads in zip(steps, ahead, strict=True)]
    stripes = [list(zip(before, after, strict=True)) for before, after in pairwise(steps)]
    rows = [max(end - first for first, end in column) for column in zip(*stripes, strict=True)]
    return stripes, rows, [_placed(maker, readers, steps, heights, twice, apart) for maker, readers, _, twice in values]


def _placed(
    maker: int, readers: Sequence[Reader], steps: Sequence[Sequence[int]], heights: Sequence[int], twice: bool,
    apart: bool,
) -> _Place:  # fmt: skip
    spans = [live(maker, readers, before, after, heights) for before, after in pairwise(steps)]
    capacity = max(high - low for low, high in spans)
    if twice:
        capacity = max(capacity, *(after[1] - before[0] for before, after in pairwise(spans)), 0)
    while (found := _positions(spans, capacity, twice and apart)) is None:
        capacity += 1
    bases, moves = found
    bottoms, filled = {}, heights[maker]
    for number, (_, high) in enumerate(spans):
        if high > filled:
            bottoms[number] = filled + bases[number], high + bases[number]
            filled = high
    return _Place(capacity, bases, moves, bottoms)


def _window(value: Inner, edge: Border, row_bytes: int, place: _Place, source: View | None) -> Window:
    tensor, item = value.tensor, value.tensor.dtype.itemsize
    _, row, col, channel = AXES[value.axis]
    buffer = Buffer(tensor.name, SCRATCH, place.capacity * row_bytes, is_rolling=True)
    strides = [0] * 4
    strides[row], strides[col], strides[channel] = row_bytes, tensor.shape[channel] * item, item
    view = View(buffer, edge.left * strides[col], tensor.shape, tuple(strides), tensor.dtype)
    return Window(value, view, row_bytes, edge, place.bases, place.moves, place.bottoms, source)


def _positions(
    spans: Sequence[tuple[int, int]], capacity: int, apart: bool
) -> tuple[list[int], dict[int, Move]] | None:
    """Where rows are at each stripe, and what moves before; None if moving rows would lie over where they go, or
    (``apart``) those of a stripe over those of the one before, which are still read while they are made."""
    base, bases, moves = -spans[0][0], [], {}
    reached = spans[0][0]
    for number, (low, high) in enumerate(spans):
        if high + base > capacity:
            kept, source = max(0, reached - low), low + base
            if source < kept or (apart and number and spans[number - 1][0] + base < high - low):
                return None
            base = -low
            if kept:
                moves[number] = Move(source, kept)
        if high + base > capacity:
            return None
        bases.append(base)
        reached = max(reached, high)
    return bases, moves


def urgent_rows(cascade: Cascade, window: Window) -> int:
    """How many rows of a window that is loaded the first stripe wants; those behind are there a stripe ahead."""
    readers, (first, *_) = window.inner.readers, cascade.stripes
    _, end = first[window.inner.maker]
    return min(max(reader.rows(0, first[reader.reader][1], end)[1] for reader in readers), end)


def urgent_bytes(cascade: Cascade) -> int:
    """What the first stripe waits for of what is loaded."""
    total = 0
    for window in cascade.loaded:
        tensor = window.inner.tensor
        total += tensor.nbytes // tensor.shape[0] * urgent_rows(cascade, window) // tensor.shape[window.inner.axis]
    return total


def load_stripe(cascade: Cascade, window: Window, image: int, stripe: int) -> tuple[list[Tile], list[Tile]]:
    """The loads of a window for a stripe: of what is wanted at once, and of what is for the stripe behind."""
    first, end = cascade.stripes[stripe][window.inner.maker]
    tiles = before_stripe(cascade, window.inner.maker, image, stripe)
    urgent = urgent_rows(cascade, window) if stripe == 0 else first
    at_once, ahead = (
        [Tile(loads=list(window.load(image, stripe, rows)))] if rows[0] < rows[1] else []
        for rows in ((first, urgent), (urgent, end))
    )
    return tiles + at_once, ahead


def before_stripe(cascade: Cascade, number: int, image: int, stripe: int) -> list[Tile]:
    """What a group's window wants before the group makes rows for a stripe."""
    items: list[Item] = []
    for window in cascade.windows:
        if window.inner.maker == number:
            if stripe == 0:
                items.extend(window.begin(image))
            items.extend(window.before(stripe))
    return [Tile(loads=items)] if items else []
