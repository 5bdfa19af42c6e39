"""Operators that only move elements, by DMA: copies, concatenation, gathers of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from npusim.compiler.buffers import Buffer, View, ordered_strides
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    boxes,
    outer_row_inner,
    overlapped,
    refuse_elements,
    share,
)
from npusim.compiler.lower.rows import clip
from npusim.compiler.lower.transfer import (
    Strided,
    copy_items,
    is_transposing,
    load_items,
    transfer_works,
)
from npusim.dtypes import DType
from npusim.graph import Op
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa.base import MAX_ITEMS, l2, region, sram
from npusim.isa.dma import Gather
from npusim.program import SCRATCH
from npusim.units import ceil_div
from npusim.work import DmaWork

_SMALLEST_PART = 4 << 10
"""Minimum bytes of a part when a copy is cut for several channels."""


class CopyPart(NamedTuple):
    """A source view and its target view.

    The target may be larger: ``before`` and ``after`` are the elements in each dimension that are filled with
    ``pattern``.
    """

    source: View
    target: View
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pattern: int = 0

    def part(self, starts: Sequence[int], sizes: Sequence[int]) -> CopyPart:
        """The copy into a box of the target."""
        if not self.before:
            return CopyPart(self.source.slice(starts, sizes), self.target.slice(starts, sizes))
        bounds = zip(starts, sizes, self.source.shape, self.before, strict=True)
        clips = [clip(start - low, size, dim) for start, size, dim, low in bounds]
        corner, before, extent, after = zip(*clips, strict=True)
        source = self.source.slice(corner, extent)
        return CopyPart(source, self.target.slice(starts, sizes), before, after, self.pattern)


class Staging(NamedTuple):
    """A copy through SRAM: tile sizes of the target, bytes of their slots, picoseconds and runs of the whole copy.

    ``turned``: slots have the memory order of the target, so loads transpose. Otherwise they have that of the source,
    with the bytes between its elements, and stores transpose.
    """

    tile: tuple[int, ...]
    nbytes: int
    ps: int
    runs: int
    turned: bool


class CopyLowering(Lowering, kind="concat"):
    """Copies from DRAM to DRAM, cut so that every core and channel takes part.

    A copy goes through SRAM tile by tile if that is faster: then both sides in DRAM have long runs, and single elements
    take a word of SRAM instead of a burst.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._stagings: dict[int, Staging] = {}
        for number, move in enumerate(self.pairs()):
            if (staging := _staging(move, context)) is not None:
                self._stagings[number] = staging

    def slots(self) -> list[SlotSpec]:
        return [SlotSpec("x", max(way.nbytes for way in self._stagings.values()))] if self._stagings else []

    def follow(self, first: Lowering) -> None:
        # A smaller part alone might choose another form, for which the first core has no slot.
        assert isinstance(first, CopyLowering)
        self._stagings = {
            number: first._stagings[number] for number in range(len(self.pairs())) if number in first._stagings
        }

    def estimate(self) -> int:
        works = [
            each
            for number, move in enumerate(self.pairs())
            if number not in self._stagings
            for each in _direct_works(move)
        ]
        return direct_ps(works, self.config, self.context.beside) + sum(way.ps for way in self._stagings.values())

    def pairs(self) -> list[CopyPart]:
        """The copies of the operator."""
        op = self.group.ops[0]
        if op.kind == "concat":
            return _concat_copies(op, self.context)
        out, source = self.context.view(op.output), self.context.view(op.input(0))
        viewed = VIEW_RULES[op.kind](op, source)
        if viewed is not None:
            return [CopyPart(viewed, out)]
        whole = out.reshape(source.shape)
        assert whole is not None, "a reshape that strides cannot say goes to a dense output"
        return [CopyPart(source, whole)]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        ways = copy_ways(self.config)
        parts: list[tuple[CopyPart, Staging | None]] = []
        for number, move in enumerate(self.pairs()):
            way = self._stagings.get(number)
            if way is None:
                cut = cut_copy(move.target, ways, None if move.before else move.source)
            else:
                cut = boxes(move.target.shape, way.tile, move.source.order())
            parts += [(move.part(*box), way) for box in cut]
        for move, way in share(parts, core, cores):
            if way is None:
                # As loads: these use all channels but one, while stores use only that one.
                yield Tile(loads=_copies(move, (move.source.address, move.source.strides, move.source)))
            else:
                yield _through(table.next("x"), move, turned=way.turned)


class RepeatLowering(CopyLowering, kind="repeat"):
    """Copies the rows of an iteration to their place among the results. States stay where they are."""

    def pairs(self) -> list[CopyPart]:
        op, view = self.group.ops[0], self.context.view
        rows = range(op.attrs["states"], len(op.inputs))
        return [CopyPart(view(op.input(index)), view(op.outputs[index])) for index in rows]


def _copies(move: CopyPart, source: Strided) -> list[Item]:
    """The transfers of a copy whose elements are at ``source``."""
    target = (move.target.address, move.target.strides, move.target)
    padding = move.before, move.after, move.pattern
    return copy_items(target, source, move.source.shape, move.target.dtype.itemsize, *padding)


_Place = tuple[View, tuple[int, ...], tuple[int, ...], int]
"""A part of a source in a slot: (the view that is loaded, its strides in the slot, the strides of the part's elements,
the offset of the first of these)."""


def _placed(source: View, target: View, *, turned: bool) -> _Place:
    item = source.dtype.itemsize
    if turned or 0 in source.shape:
        packed = ordered_strides(source.shape, target.order(), item)
        return source, packed, packed, 0
    rows = _filled(source)
    packed = ordered_strides(rows.shape, rows.order(), item)
    # Convert the elements' strides in DRAM to strides among the loaded rows.
    strides = tuple(
        p * (stride // whole if whole else 1)
        for p, stride, whole in zip(packed, source.strides, rows.strides, strict=True)
    )
    back = sum((dim - 1) * -s for dim, s in zip(source.shape, strides, strict=True) if s < 0)
    return rows, packed, strides, back


def _through(slot: Slot, move: CopyPart, *, turned: bool) -> Tile:
    loaded, packed, strides, begin = _placed(move.source, move.target, turned=turned)
    loads = load_items((slot.address, packed, slot), loaded)
    return Tile(loads=loads, stores=_copies(move, (slot.address + begin, strides, slot)))


def _direct_works(move: CopyPart) -> list[tuple[DmaWork, int]]:
    source, target = move.source, move.target
    sides = (_side(target), target.strides), (_side(source), source.strides)
    return transfer_works(*sides, source.shape, source.dtype.itemsize, move.before, move.after)


def _side(view: View) -> int:
    """An address in the memory of a view that has no address yet."""
    buffer = view.buffer
    return sram(0) if buffer.on_chip else l2(0) if buffer.in_l2 else region(buffer.region)


def direct_ps(works: Sequence[tuple[DmaWork, int]], config: Config, beside: int = 1) -> int:
    """Picoseconds of transfers that are spread over all load channels."""
    model = cost_model(config)
    parts = sum(count * work.bytes for work, count in works) // _SMALLEST_PART
    channels = sum(count * model.stream_ps(work) for work, count in works) // max(1, min(copy_ways(config), parts))
    bandwidth = dram_model(config).bandwidth // beside
    pins = sum(count * model.dram_bytes(work) for work, count in works)
    return overlapped(channels, pins * 10**12 // bandwidth)


def _staging(move: CopyPart, context: Context) -> Staging | None:
    """The fastest copy through SRAM; None if a direct copy is faster or the only option."""
    source, target = move.source, move.target
    near = source.buffer.on_chip
    if 0 in target.shape or (near and target.buffer.on_chip):
        return None
    padded = tuple(map(sum, zip(move.before, source.shape, move.after, strict=True))) if move.before else source.shape
    item = source.dtype.itemsize
    turns = not target.buffer.on_chip and is_transposing(target.strides, source.strides, padded, item)
    if not turns and (near or not _is_sparse(source, context.config)):
        return None
    direct = _direct_works(move)
    walks, sides = (source.strides, target.strides), (_side(source), _side(target))
    ways = _stagings(
        context.config, source.shape, walks, source.dtype, (move.before, move.after), sides, context.beside
    )
    fitting = [way for way in ways if SlotSpec("x", way.nbytes).total <= context.room]
    best = min(fitting, key=lambda way: way.ps, default=None)
    return best if best and best.ps < direct_ps(direct, context.config, context.beside) else None


@functools.lru_cache(maxsize=1 << 9)
def _stagings(
    config: Config,
    shape: tuple[int, ...],
    walks: tuple[tuple[int, ...], tuple[int, ...]],
    dtype: DType,
    padding: tuple[tuple[int, ...], tuple[int, ...]],
    sides: tuple[int, int],
    beside: int,
) -> list[Staging]:
    """Copies through SRAM with ever smaller tiles; the fastest that fits will be used.

    ``walks``, ``sides``: strides and memories of source and target. ``padding``: elements before and after.
    """
    (source, target), (before, after) = walks, padding
    padded = tuple(map(sum, zip(before, shape, after, strict=True))) if before else shape
    burst = max(1, config.dma.burst_bytes // dtype.itemsize)
    item = dtype.itemsize

    def priced(tile: tuple[int, ...], turned: bool) -> Staging:
        sizes = tuple(map(min, tile, shape)) if before else tile
        part, box = View(_ANY, 0, sizes, source, dtype), View(_ANY, 0, tile, target, dtype)
        rows, packed, strides, _ = _placed(part, box, turned=turned)
        loads = transfer_works((sram(0), packed), (sides[0], rows.strides), rows.shape, item)
        # Padding is written like elements, so all tiles store the same number of bytes.
        stores = transfer_works((sides[1], target), (sram(0), strides), tile, item)
        tiles = ceil_div(prod(padded), prod(tile))  # smaller tiles at the edges count as full ones
        runs = tiles * sum(count * work.runs for work, count in (*loads, *stores))
        return Staging(tile, prod(rows.shape) * item, _staged_ps(config, loads, stores, tiles, beside), runs, turned)

    found = []
    for turned in (False, True):
        way: Staging | None = priced(tuple(max(dim, 1) for dim in padded), turned)
        while way is not None:
            found.append(way)
            smaller = _halves(way.tile, burst) if way.nbytes > _SMALLEST_PART // 2 else []
            choices = [priced(tile, turned) for tile in smaller]
            # Among equal times take the one with fewer runs, because the next cut makes runs shorter.
            way = min(choices, key=lambda way: (way.ps, way.runs), default=None)
    return found


def _halves(tile: tuple[int, ...], burst: int) -> list[tuple[int, ...]]:
    """Tiles with one dimension halved, exactly or rounded up to whole bursts."""
    found = []
    for axis, size in enumerate(tile):
        half = ceil_div(size, 2)
        whole = ceil_div(half, burst) * burst
        found += [(*tile[:axis], part, *tile[axis + 1 :]) for part in dict.fromkeys((half, whole)) if part < size]
    return found


def _staged_ps(
    config: Config, loads: Sequence[tuple[DmaWork, int]], stores: Sequence[tuple[DmaWork, int]], tiles: int, beside: int
) -> int:
    """Picoseconds to load and store tiles, with two slots on each core."""
    model, channels = cost_model(config), config.dma.channels
    load, store = (sum(count * model.stream_ps(work) for work, count in works) for works in (loads, stores))
    # A slot is loaded again after it has been stored. A single channel does both in sequence.
    turn = (
        load + store if channels == 1 else max(ceil_div(load, min(channels - 1, 2)), store, ceil_div(load + store, 2))
    )
    each = ceil_div(tiles, config.cores)
    pins = tiles * sum(count * model.dram_bytes(work) for work, count in (*loads, *stores))
    bandwidth = dram_model(config).bandwidth // beside
    return overlapped((each - 1) * turn + load + store, pins * 10**12 // bandwidth)


_ANY = Buffer("any", SCRATCH, 0)
"""For views that are only priced."""


def _nearest(view: View) -> int | None:
    """The dimension with the smallest stride."""
    moving = [axis for axis, dim in enumerate(view.shape) if dim > 1 and view.strides[axis]]
    return min(moving, key=lambda axis: (abs(view.strides[axis]), -axis), default=None)


def _is_sparse(view: View, config: Config) -> bool:
    """Whether there are gaps between elements in DRAM, smaller than a burst."""
    axis, item = _nearest(view), view.dtype.itemsize
    if axis is None or view.buffer.on_chip:
        return False
    step = abs(view.strides[axis])
    return step % item == 0 and item < step < config.dma.burst_bytes


def _filled(view: View) -> View:
    """The view including the gaps between elements along the dimension with the smallest stride, in address order."""
    axis, item = _nearest(view), view.dtype.itemsize
    if axis is None or abs(view.strides[axis]) % item:
        return view
    count = (view.shape[axis] - 1) * abs(view.strides[axis]) // item + 1
    offset = view.offset + sum(
        (dim - 1) * stride for dim, stride in zip(view.shape, view.strides, strict=True) if stride < 0
    )
    shape = tuple(count if a == axis else dim for a, dim in enumerate(view.shape))
    strides = tuple(item if a == axis else abs(stride) for a, stride in enumerate(view.strides))
    return View(view.buffer, offset, shape, strides, view.dtype)


def _windows(op: Op, source: View) -> View:
    """Return the possibly overlapping windows along an axis as a separate dimension."""
    strides = (op.attrs["step"] * source.strides[op.attrs["axis"]], *source.strides)
    return View(source.buffer, source.offset, op.output.shape, strides, source.dtype)


VIEW_RULES: dict[str, Callable[[Op, View], View | None]] = {
    "reshape": lambda op, source: source.reshape(op.attrs["shape"]),
    "transpose": lambda op, source: source.permute(op.attrs["perm"]),
    "slice": lambda op, source: source.slice(op.attrs["starts"], op.attrs["sizes"], op.attrs["steps"]),
    "expand": lambda op, source: source.broadcast(op.attrs["shape"]),
    "windows": _windows,
}
"""The output of a view operator as a view of its input; None if strides cannot express it."""


def cut_copy(target: View, ways: int, source: View | None = None) -> list[Box]:
    """Cut one dimension into at most ``ways`` boxes, each large enough for a transfer.

    Cuts the dimension that leaves the longest runs; on a tie the outermost in memory, with which every part of a dense
    target is one run.
    """
    rank = range(len(target.shape))
    nbytes = prod(target.shape) * target.dtype.itemsize
    ways = max(1, min(ways, nbytes // _SMALLEST_PART))

    def tile(axis: int) -> list[int]:
        return [ceil_div(max(dim, 1), ways) if a == axis else max(dim, 1) for a, dim in enumerate(target.shape)]

    def runs(axis: int) -> int:
        """Return the number of runs on both sides that one channel moves in sequence."""
        box = tile(axis)
        part = View(target.buffer, 0, tuple(box), target.strides, target.dtype)
        other = part if source is None else View(source.buffer, 0, tuple(box), source.strides, source.dtype)
        works = _direct_works(CopyPart(other, part))
        parts, item = ceil_div(target.shape[axis], box[axis]), target.dtype.itemsize
        found = parts * max(sum(count * work.runs for work, count in works), 1)
        if not any(item in (work.run_bytes, work.piece_bytes) for work, _ in works):
            return found
        # Single elements in SRAM take more time than runs in DRAM. Parts whose addresses interleave are written one
        # after the other, in the order of the program.
        low, high = part.extent()
        apart = high - low <= box[axis] * abs(target.strides[axis])
        return (found + parts * sum(count * work.pieces for work, count in works)) * (1 if apart else ways)

    # Only dimensions that can be cut into that many parts, if there are any.
    wide = [a for a in rank if target.shape[a] >= ways] or [a for a in rank if target.shape[a] > 1]
    axis = min(wide, key=lambda a: (runs(a), -abs(target.strides[a]), a), default=0)
    return boxes(target.shape, tile(axis), rank)


def copy_ways(config: Config) -> int:
    """Transfers that can run at the same time: the load channels of all cores."""
    return config.cores * max(1, config.dma.channels - 1)


def _concat_copies(op: Op, context: Context) -> list[CopyPart]:
    """Copies of the inputs of a concatenation that were not computed in place."""
    out, axis, at = context.view(op.output), op.attrs["axis"], 0
    pairs = []
    for tensor in op.inputs:
        assert tensor is not None
        starts = [at if a == axis else 0 for a in range(len(out.shape))]
        target = out.slice(starts, tensor.shape)
        at += tensor.shape[axis]
        source = context.view(tensor)
        same_place = source.buffer is target.buffer and source.offset == target.offset
        if tensor.size and not (same_place and source.strides_match(target.strides)):
            pairs.append(CopyPart(source, target))
    return pairs


class GatherLowering(Lowering, kind="gather"):
    """A gather of rows: the DMA engine reads a list of indices in SRAM and moves the rows."""

    dense = True

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._op = group.ops[0]
        self._index = context.view(self._op.input(1))
        self._count = prod(self._index.shape)
        # Two slots in half of SRAM. The other half is for the operators before and after.
        room = context.room // 4 // self._index.dtype.itemsize
        outer, _, inner = outer_row_inner(context.view(self._op.input(0)).shape, self._op.attrs["axis"])
        self._tile = max(1, min(self._count, room, MAX_ITEMS // max(outer * inner, 1)))
        if outer * inner * self._tile > MAX_ITEMS:
            raise refuse_elements(group, outer * inner, MAX_ITEMS)

    def slots(self) -> list[SlotSpec]:
        return [SlotSpec("index", self._tile * self._index.dtype.itemsize)]

    def moves(self) -> list[View]:
        # Only as many rows of the data as there are indices; which rows these are is not known.
        data, out = self.context.view(self._op.input(0)), self.context.view(self._op.output)
        return [self._index, View(data.buffer, data.offset, out.shape, out.strides, data.dtype), out]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        op, index = self._op, self._index
        data, out = self.context.view(op.input(0)), self.context.view(op.output)
        outer, length, inner = outer_row_inner(data.shape, op.attrs["axis"])
        item, kind = data.dtype.itemsize, index.dtype
        tile = min(self._tile, max(1, ceil_div(self._count, cores)))
        flat = index.reshape((self._count,))
        assert flat is not None
        for (start,), (count,) in share(boxes((self._count,), (tile,), (0,)), core, cores):
            slot = table.next("index")
            step = Tile(loads=load_items((slot.address, (kind.itemsize,), slot), flat.slice((start,), (count,))))
            to = out.address + start * inner * item, (self._count * inner * item, inner * item, item)
            source = data.address, (length * inner * item, inner * item, item)
            dims = outer, count, inner
            instruction = Gather(*to, *source, slot.address, kind.itemsize, kind, dims, length, item)
            # As a store: it waits for its indices, and on a load channel the next indices would have to wait behind it.
            step.stores.append(Item(instruction, (slot, data), (out,)))
            yield step
