"""Cascades: neighbouring groups that run together, stripe by stripe, so that no value between them exists as a whole.

A stripe computes some rows of the last result, and of every other result the missing rows that these depend on. Each
value between two groups is in a rolling buffer, which holds the rows that are still needed (``rolling_buffer``). A
value in DRAM also gets one if its rows are needed more than once, by several groups or by overlapping windows: its rows
are loaded one stripe ahead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from npusim.compiler.buffers import Moves, View, row_axis
from npusim.compiler.codegen.issue import Item, Tile
from npusim.compiler.grouping.groups import Group, on_matrix, side_by_side
from npusim.compiler.lower.base import Context, fact
from npusim.compiler.schedule.rolling_buffer import (
    Border,
    Reader,
    RollingBuffer,
    RowPlaces,
    StripedValue,
    border,
    live,
    pitch,
    place_rows,
    rolling_buffer,
)
from npusim.graph import Tensor
from npusim.hw.memory import align
from npusim.polling import poll

LONGEST = 16
"""Maximum number of groups in a cascade."""

# Which values have rolling buffers


def values_between(groups: Sequence[Group], context: Context) -> list[StripedValue] | None:
    """The values between groups that are to form a cascade; None if the groups cannot form one."""
    makers = {whole_tensor(group.outputs[0], context): number for number, group in enumerate(groups[:-1])}
    axes = [rows_of(group, context) for group in groups]
    readers: list[list[Reader]] = [[] for _ in makers]
    slices: list[dict[Tensor, int]] = [{} for _ in makers]
    for number, group in enumerate(groups):
        for tensor, reader in _reads(group, number, context):
            maker = makers.get(whole_tensor(tensor, context))
            if maker is None:
                continue
            made, axis = groups[maker].outputs[0], axes[maker]
            if not _is_alike(tensor, reader, groups) or axis is None or axis != axes[number]:
                return None
            if tensor is not made:
                first = _first_row(tensor, made, axis, context)
                if first is None:
                    return None
                slices[maker][tensor] = first
                reader = reader._replace(before=reader.before - first)
            readers[maker].append(reader)
    if not all(readers):
        return None
    return [
        StripedValue(groups[number].outputs[0], number, axes[number] or 0, tuple(reads), tuple(parts.items()))
        for number, (reads, parts) in enumerate(zip(readers, slices, strict=True))
    ]


def whole_tensor(tensor: Tensor, context: Context) -> Tensor:
    """The tensor that a shard's tensor is a slice of; other tensors are whole."""
    return context.own[tensor][0] if tensor in context.own else tensor


def _first_row(tensor: Tensor, made: Tensor, axis: int, context: Context) -> int | None:
    """The first row of ``made`` in another slice of the same tensor; None if that is not some of its rows."""
    if tensor not in context.own or made not in context.own:
        return None
    starts, origin = context.own[tensor][1], context.own[made][1]
    first = starts[axis] - origin[axis]
    sizes = zip(starts, origin, tensor.shape, made.shape, strict=True)
    same = all((one, size) == (other, whole) for at, (one, other, size, whole) in enumerate(sizes) if at != axis)
    return first if same and first >= 0 and first + tensor.shape[axis] <= made.shape[axis] else None


def _is_alike(tensor: Tensor, reader: Reader, groups: Sequence[Group]) -> bool:
    """Whether some rows of the result need only some rows of the value. A value that is broadcast along the rows is
    needed as a whole."""
    out = groups[reader.reader].outputs[0].shape
    return tensor.shape[0] == out[0] if reader.windowed else tensor.shape == out


def values_reread(groups: Sequence[Group], between: Sequence[StripedValue], context: Context) -> list[StripedValue]:
    """The values in DRAM whose rows a cascade reads more than once."""
    made = {whole_tensor(value.tensor, context) for value in between}
    axes = [rows_of(group, context) for group in groups]
    readers: dict[Tensor, list[tuple[int, Reader]]] = {}
    for number, group in enumerate(groups):
        for tensor, reader in _reads(group, number, context):
            is_made = whole_tensor(tensor, context) in made
            if tensor.data is None and not is_made and not context.view(tensor).buffer.on_chip:
                readers.setdefault(tensor, []).append((axes[number] or 0, reader))
    found: list[StripedValue] = []
    for tensor, reads in readers.items():
        axis = reads[0][0]
        again = len(reads) > 1 or any(reader.extent > reader.stride for _, reader in reads)
        if again and all(own == axis and _is_alike(tensor, reader, groups) for own, reader in reads):
            found.append(StripedValue(tensor, len(groups) + len(found), axis, tuple(reader for _, reader in reads)))
    return found


def rows_of(group: Group, context: Context) -> int | None:
    """The dimension of a group's result that stripes divide; None if the group cannot be in a cascade."""
    anchor = group.anchor
    # Of layers that several cores share, each core computes some tiles.
    if len(group.outputs) != 1 or (context.whole is not None and group.outputs[0] not in context.own):
        return None
    if anchor is None:
        return row_axis(context.view(group.outputs[0]))
    if (anchor.kind == "conv" and anchor.input(1).data is not None) or (anchor.kind == "pool" and not group.chain):
        return 2 if anchor.attrs["layout"] == "NCHW" else 1
    return None


def _reads(group: Group, number: int, context: Context) -> Sequence[tuple[Tensor, Reader]]:
    """The values that a group reads, and which rows of them. ``number``: the group's index in the cascade."""

    def numbered() -> tuple[tuple[Tensor, Reader], ...]:
        reads = _reads_of(group) if number == 0 else _reads(group, 0, context)
        return tuple((tensor, reader._replace(reader=number)) for tensor, reader in reads)

    return fact(context, ("reads", group, number), numbered)


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


# The stripes


@dataclass(slots=True)
class Cascade:
    """Groups ``first`` to ``last`` as stripes of ``height`` rows of the last result.

    ``stripes[t][k]``: the rows [first, end) that stripe t computes of group k, followed by those that it loads of each
    loaded value. ``rows``: the maximum rows per stripe of each. ``apart``: rows that one unit writes never overwrite
    rows that another unit reads at the same time, even after rows have moved.
    """

    first: int
    last: int
    stripes: list[list[tuple[int, int]]]
    rolling: list[RollingBuffer]
    rows: list[int]
    images: int
    height: int
    apart: bool = True
    others: list[Cascade] = field(default_factory=list)
    """The cascades of the same layers on the other cores, each on its shards."""

    @property
    def usual(self) -> list[int]:
        """Rows of each group that a stripe in the middle computes."""
        middle = self.stripes[len(self.stripes) // 2][: self.last - self.first + 1]
        return [max(end - first, 1) for first, end in middle]

    @property
    def between(self) -> list[RollingBuffer]:
        """The rolling buffers of values between groups."""
        return [each for each in self.rolling if each.source is None]

    @property
    def loaded(self) -> list[RollingBuffer]:
        """The rolling buffers of values from DRAM."""
        return [each for each in self.rolling if each.source is not None]

    def moved(self, stripe: int) -> Moves:
        """The byte offset of each rolling buffer's rows during a stripe, relative to the addresses in its view."""
        return {each.buffer: (each.buffer, each.bases[stripe] * each.pitch) for each in self.rolling}


class CoreGroups(NamedTuple):
    """The shards of a core. ``context``: of the core. ``groups``: its shards, by the number of the group."""

    context: Context
    groups: Mapping[int, Group]


_Values = tuple[tuple[int, tuple[Reader, ...], int, bool], ...]
"""Maker, readers and height of each value; and whether rows of the next stripe are written while this stripe is read.
"""
_Stripes = tuple[list[list[tuple[int, int]]], list[int], list[RowPlaces]]
"""``Cascade.stripes``, ``Cascade.rows``, and the positions of each value's rows."""


@dataclass(slots=True)
class Outline:
    """What all cascades of some groups have in common, whatever their stripe height."""

    groups: Sequence[Group]
    striped: Sequence[StripedValue]
    borders: Sequence[Border]
    pitches: Sequence[int]
    heights: tuple[int, ...]
    """Rows of each group's result."""
    _values: _Values
    _sources: Sequence[View | None]
    _others: Sequence[Outline] = ()
    """The outlines of the same layers on the other cores. All cores have rolling buffers of the same sizes."""
    _cut: dict[tuple[int, bool], _Stripes] = field(default_factory=dict)

    def _stripes(self, height: int, apart: bool) -> _Stripes:
        poll()
        known = self._cut.get((height, apart))
        if known is None:
            known = self._cut[height, apart] = _stripes(self.heights, self._values, height, apart)
        return known

    def _sizes(self, height: int, apart: bool) -> tuple[list[int], list[int]]:
        """The rows of each rolling buffer, and the maximum rows per stripe of each group, over all cores."""
        cores = [each._stripes(height, apart) for each in (self, *self._others)]
        held = [[capacity for capacity, *_ in places] for _, _, places in cores]
        return [max(each) for each in zip(*held, strict=True)], [
            max(each) for each in zip(*(rows for _, rows, _ in cores), strict=True)
        ]

    def rolling_bytes(self, height: int, *, apart: bool) -> int:
        """Bytes of all rolling buffers of the :meth:`cut` with this height."""
        capacities, _ = self._sizes(height, apart)
        return sum([align(capacity * pitch) for capacity, pitch in zip(capacities, self.pitches, strict=True)])

    def cut(self, height: int, *, apart: bool = True) -> Cascade:
        """Return the cascade whose stripes compute ``height`` rows of the last result."""
        sizes = self._sizes(height, apart)
        found, *others = [each._cascade(height, apart, *sizes) for each in (self, *self._others)]
        found.others = others
        return found

    def _cascade(self, height: int, apart: bool, capacities: Sequence[int], rows: list[int]) -> Cascade:
        stripes, _, places = self._stripes(height, apart)
        placed = [(capacity, *rows_at[1:]) for capacity, rows_at in zip(capacities, places, strict=True)]
        parts = zip(self.striped, self.borders, self.pitches, placed, self._sources, strict=True)
        first, last = self.groups[0], self.groups[-1]
        rolling = [rolling_buffer(*each) for each in parts]
        return Cascade(first.index, last.index, stripes, rolling, rows, last.outputs[0].shape[0], height, apart)


def outline(
    groups: Sequence[Group], striped: Sequence[StripedValue], context: Context, cores: Sequence[CoreGroups] = ()
) -> Outline | None:
    """The outline of cascades with these values in rolling buffers; None if readers of one value need different
    padding, or if the same layers cannot form a cascade on one of the other ``cores``."""
    others = []
    for core in cores:
        shards = [core.groups.get(group.index) for group in groups]
        known = [shard for shard in shards if shard is not None]
        if not known:  # there are fewer shards than cores
            continue
        same = _same_values(striped, groups, known, context, core.context) if len(known) == len(groups) else None
        other = None if same is None else outline(known, same, core.context)
        if other is None:
            return None
        others.append(other)
    borders = []
    for value in striped:
        edge = border(value, groups)
        if edge is None:
            return None
        borders.append(edge)
    pitches = [pitch(value, edge) for value, edge in zip(striped, borders, strict=True)]
    heights = tuple(group.outputs[0].shape[rows_of(group, context) or 0] for group in groups)
    beside = side_by_side(groups)
    values = tuple(
        (value.maker, value.readers, value.tensor.shape[value.axis], beside and _changes_unit(value, groups))
        for value in striped
    )
    sources = [context.view(value.tensor) if value.maker >= len(groups) else None for value in striped]
    return Outline(groups, striped, borders, pitches, heights, values, sources, others)


def _same_values(
    striped: Sequence[StripedValue], groups: Sequence[Group], shards: Sequence[Group], context: Context, other: Context
) -> list[StripedValue] | None:
    """The values of another core that correspond to ``striped``. ``shards``: its shards of the ``groups``."""
    between = values_between(shards, other)
    if between is None:
        return None
    found, count = [], len(groups)
    for value in striped:
        if value.maker < count:
            found.append(between[value.maker])
            continue
        mine = [
            own
            for number, (group, shard) in enumerate(zip(groups, shards, strict=True))
            for (tensor, _), own in zip(_reads(group, number, context), _reads(shard, number, other), strict=True)
            if tensor is value.tensor
        ]
        tensors = {tensor for tensor, _ in mine}
        if len(tensors) != 1:
            return None
        found.append(StripedValue(mine[0][0], value.maker, value.axis, tuple(reader for _, reader in mine)))
    return found


def _changes_unit(value: StripedValue, groups: Sequence[Group]) -> bool:
    """Whether one unit writes a value and another reads it: they overlap if the buffer has room for two stripes."""
    if value.maker >= len(groups):
        return False
    made = on_matrix(groups[value.maker])
    return any(on_matrix(groups[reader.reader]) != made for reader in value.readers)


# Cached without regard to the device: a design space tries the same cascades for every design.
@functools.lru_cache(maxsize=4096)
def _stripes(made: tuple[int, ...], values: _Values, height: int, apart: bool) -> _Stripes:
    """Stripes of ``height`` rows of the last result, and the positions of rows. ``made``: rows of each whole result."""
    total, last = made[-1], len(made) - 1
    heights = [*made, *(rows for maker, _, rows, _ in values if maker > last)]
    wants = [(maker, readers) for maker, readers, _, _ in values]
    ends = range(height, total + height, height)
    steps = [[0] * len(heights)] + [_needs(wants, heights, last, min(end, total)) for end in ends]
    # Loads run one stripe ahead, so that rows are there when a group needs them.
    ahead = [row[last + 1 :] for row in (steps[0], *steps[2:], steps[-1])]
    steps = [row[: last + 1] + loads for row, loads in zip(steps, ahead, strict=True)]
    stripes = [list(zip(before, after, strict=True)) for before, after in pairwise(steps)]
    rows = [max(end - first for first, end in column) for column in zip(*stripes, strict=True)]
    places = []
    for maker, readers, _, twice in values:
        spans = [live(maker, readers, before, after, heights) for before, after in pairwise(steps)]
        places.append(place_rows(spans, heights[maker], twice=twice, apart=apart))
    return stripes, rows, places


def _needs(wants: Sequence[tuple[int, Sequence[Reader]]], heights: Sequence[int], last: int, end: int) -> list[int]:
    """The number of rows of each value that ``end`` rows of result ``last`` require.

    ``wants``: maker and readers of each value.
    """
    need = [0] * len(heights)
    need[last] = end
    # Go backwards by maker, so that the needs of all readers are known. Loaded values, which come last, need no others.
    for maker, readers in sorted(wants, key=lambda want: (want[0] <= last, want[0]), reverse=True):
        for reader in readers:
            if need[reader.reader]:
                _, high = reader.rows(0, need[reader.reader], heights[maker])
                need[maker] = max(need[maker], min(high, heights[maker]))
    return need


# Figures for estimates


def moved_bytes(cascade: Cascade) -> int:
    """Bytes per image that move to the front of rolling buffers while no unit can work.

    This is the case where the last group is the last reader of the buffer and the first group needs the freed rows
    first.
    """
    last = cascade.last - cascade.first
    return sum(
        rows * each.pitch
        for each in cascade.rolling
        if max(reader.reader for reader in each.value.readers) == last
        and 0 in (each.value.maker, *(reader.reader for reader in each.value.readers if each.source is not None))
        for _, rows in each.moves.values()
    )


def most_moves(cascade: Cascade, groups: Sequence[Group]) -> int:
    """The maximum number of times per image that rows move to the front of a buffer between two units."""
    changing = (each for each in cascade.between if _changes_unit(each.value, groups))
    return max((len(each.moves) for each in changing), default=0)


def _urgent_rows(cascade: Cascade, rolling: RollingBuffer) -> int:
    """Rows of a loaded value that the first stripe needs. Later rows are loaded a stripe ahead."""
    readers, (first, *_) = rolling.value.readers, cascade.stripes
    _, end = first[rolling.value.maker]
    return min(max(reader.rows(0, first[reader.reader][1], end)[1] for reader in readers), end)


def urgent_bytes(cascade: Cascade) -> int:
    """Bytes of loaded values that the first stripe waits for."""
    total = 0
    for each in cascade.loaded:
        tensor = each.value.tensor
        total += tensor.nbytes // tensor.shape[0] * _urgent_rows(cascade, each) // tensor.shape[each.value.axis]
    return total


# Transfers of a stripe


def load_stripe(cascade: Cascade, rolling: RollingBuffer, image: int, stripe: int) -> tuple[list[Tile], list[Tile]]:
    """The loads of a value during a stripe: rows for this stripe, and rows for the next one."""
    first, end = cascade.stripes[stripe][rolling.value.maker]
    tiles = before_stripe(cascade, rolling.value.maker, image, stripe)
    urgent = _urgent_rows(cascade, rolling) if stripe == 0 else first
    at_once, ahead = (
        [Tile(loads=list(rolling.load(image, stripe, rows)))] if rows[0] < rows[1] else []
        for rows in ((first, urgent), (urgent, end))
    )
    return tiles + at_once, ahead


def before_stripe(cascade: Cascade, number: int, image: int, stripe: int) -> list[Tile]:
    """Padding and moves in the rolling buffer of group ``number``, before the group computes rows of a stripe."""
    items: list[Item] = []
    for each in cascade.rolling:
        if each.value.maker == number:
            if stripe == 0:
                items.extend(each.begin(image))
            items.extend(each.before(stripe))
    return [Tile(loads=items)] if items else []
