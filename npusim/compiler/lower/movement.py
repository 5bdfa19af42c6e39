"""Operators that only move elements: copies, concatenation and padding by DMA; gathers, scatters and top-k."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    overlapped,
    refuse_elements,
    share,
)
from npusim.compiler.lower.rows import TiledLowering, clip
from npusim.compiler.lower.transfer import (
    Strided,
    copy_items,
    is_transposing,
    load_items,
    load_packed,
    store_packed,
    transfer_works,
)
from npusim.dtypes import DType
from npusim.graph import Op, Tensor
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa import scalar
from npusim.isa.base import MAX_ITEMS, l2, region, sram
from npusim.isa.dma import Gather
from npusim.program import SCRATCH
from npusim.units import ceil_div
from npusim.work import DmaWork

_SMALLEST_PART = 4 << 10
"""Bytes below which a copy is not cut for several channels."""


class Move(NamedTuple):
    """A source and its destination, which has ``before`` and ``after`` more in each dimension, set to ``pattern``."""

    source: View
    target: View
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    pattern: int = 0

    def part(self, starts: Sequence[int], sizes: Sequence[int]) -> Move:
        """The move into a box of the destination."""
        if not self.before:
            return Move(self.source.slice(starts, sizes), self.target.slice(starts, sizes))
        clips = [
            clip(start - low, size, dim)
            for start, size, dim, low in zip(starts, sizes, self.source.shape, self.before, strict=True)
        ]
        corner, before, extent, after = zip(*clips, strict=True)
        source = self.source.slice(corner, extent)
        return Move(source, self.target.slice(starts, sizes), before, after, self.pattern)


class Staging(NamedTuple):
    """A way through SRAM: the boxes of the destination, bytes of their slots, picoseconds and runs of the whole move.

    ``turned``: a slot has the memory order of the destination, so the load transposes; else it has that of the source,
    with what lies between its elements, and the store transposes.
    """

    tile: tuple[int, ...]
    nbytes: int
    ps: int
    runs: int
    turned: bool


class CopyLowering(Lowering):
    """DRAM to DRAM, cut so that every core and channel takes part.

    A move is direct, or in tiles by way of SRAM where that is faster: there both sides in DRAM have long runs, and
    single elements take a word of SRAM instead of a burst.
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
        # Also which copies go by way of SRAM: a smaller part might not ask for it, or ask where there is no slot.
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

    def pairs(self) -> list[Move]:
        """What to copy where."""
        op = self.group.ops[0]
        out = self.context.view(op.output)
        source = self.context.view(op.input(0))
        viewed = VIEW_RULES[op.kind](op, source)
        if viewed is not None:
            return [Move(viewed, out)]
        whole = out.reshape(source.shape)
        assert whole is not None, "a reshape that strides cannot say goes to a dense output"
        return [Move(source, whole)]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        ways = copy_ways(self.config)
        parts: list[tuple[Move, Staging | None]] = []
        for number, move in enumerate(self.pairs()):
            way = self._stagings.get(number)
            if way is None:
                cut = cut_copy(move.target, ways, None if move.before else move.source)
            else:
                cut = boxes(move.target.shape, way.tile, move.source.order())
            parts += [(move.part(*box), way) for box in cut]
        for move, way in share(parts, core, cores):
            if way is None:
                # As loads, because those may use all channels but one, and stores only that one.
                yield Tile(loads=_copies(move, (move.source.address, move.source.strides, move.source)))
            else:
                yield _through(table.next("x"), move, turned=way.turned)


def _copies(move: Move, source: Strided) -> list[Item]:
    """The items of a move whose elements lie at ``source``."""
    target = move.target
    return copy_items(
        (target.address, target.strides, target), source, move.source.shape, target.dtype.itemsize, move.before,
        move.after, move.pattern,
    )  # fmt: skip


class _Place(NamedTuple):
    """A part of a source in a slot: the view that is loaded, strides of that in the slot, those of the part's elements,
    and where the first of these lies."""

    loaded: View
    packed: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int


def _placed(source: View, target: View, *, turned: bool) -> _Place:
    item = source.dtype.itemsize
    if turned or 0 in source.shape:
        packed = ordered_strides(source.shape, target.order(), item)
        return _Place(source, packed, packed, 0)
    rows = _filled(source)
    packed = ordered_strides(rows.shape, rows.order(), item)
    # From the source's places in DRAM to its places among whole rows.
    strides = tuple(
        p * (stride // whole if whole else 1)
        for p, stride, whole in zip(packed, source.strides, rows.strides, strict=True)
    )
    back = sum((dim - 1) * -s for dim, s in zip(source.shape, strides, strict=True) if s < 0)
    return _Place(rows, packed, strides, back)


def _through(slot: Slot, move: Move, *, turned: bool) -> Tile:
    place = _placed(move.source, move.target, turned=turned)
    return Tile(
        loads=load_items((slot.address, place.packed, slot), place.loaded),
        stores=_copies(move, (slot.address + place.begin, place.strides, slot)),
    )


def _direct_works(move: Move) -> list[tuple[DmaWork, int]]:
    source, target = move.source, move.target
    return transfer_works(
        (_side(target), target.strides), (_side(source), source.strides), source.shape, source.dtype.itemsize,
        move.before, move.after,
    )  # fmt: skip


def _side(view: View) -> int:
    """An address in the memory of a view whose place there is not known yet."""
    buffer = view.buffer
    return sram(0) if buffer.on_chip else l2(0) if buffer.in_l2 else region(buffer.region)


def direct_ps(works: Sequence[tuple[DmaWork, int]], config: Config, beside: int = 1) -> int:
    """Picoseconds of transfers that all load channels share."""
    model = cost_model(config)
    parts = sum(count * work.bytes for work, count in works) // _SMALLEST_PART
    channels = sum(count * model.stream_ps(work) for work, count in works) // max(1, min(copy_ways(config), parts))
    bandwidth = dram_model(config).bandwidth // beside
    pins = sum(count * model.dram_bytes(work) for work, count in works)
    return overlapped(channels, pins * 10**12 // bandwidth)


def _staging(move: Move, context: Context) -> Staging | None:
    """The fastest way of a move through SRAM; None if it is direct."""
    source, target = move.source, move.target
    if source.buffer.on_chip or 0 in target.shape:
        return None
    padded = tuple(map(sum, zip(move.before, source.shape, move.after, strict=True))) if move.before else source.shape
    item = source.dtype.itemsize
    turns = not target.buffer.on_chip and is_transposing(target.strides, source.strides, padded, item)
    if not turns and not _is_sparse(source, context.config):
        return None
    direct = _direct_works(move)
    ways = _stagings(
        context.config, source.shape, source.strides, target.strides, source.dtype, move.before, move.after,
        (_side(source), _side(target)), context.beside,
    )  # fmt: skip
    fitting = [way for way in ways if SlotSpec("x", way.nbytes).total <= context.room]
    best = min(fitting, key=lambda way: way.ps, default=None)
    return best if best and best.ps < direct_ps(direct, context.config, context.beside) else None


@functools.lru_cache(maxsize=1 << 9)
def _stagings(
    config: Config, shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], dtype: DType,
    before: tuple[int, ...], after: tuple[int, ...], sides: tuple[int, int], beside: int,
) -> list[Staging]:  # fmt: skip
    """Ways of a move through SRAM with ever smaller tiles. Whoever has a room takes the fastest that fits."""
    padded = tuple(map(sum, zip(before, shape, after, strict=True))) if before else shape
    burst = max(1, config.dma.burst_bytes // dtype.itemsize)
    item = dtype.itemsize

    def priced(tile: tuple[int, ...], turned: bool) -> Staging:
        sizes = tuple(map(min, tile, shape)) if before else tile
        part, box = View(_ANY, 0, sizes, source, dtype), View(_ANY, 0, tile, target, dtype)
        place = _placed(part, box, turned=turned)
        rows = place.loaded
        loads = transfer_works((sram(0), place.packed), (sides[0], rows.strides), rows.shape, item)
        # A tile of the result has as many bytes, whether they are padding or not.
        stores = transfer_works((sides[1], target), (sram(0), place.strides), tile, item)
        tiles = ceil_div(prod(padded), prod(tile))  # those at the edges are smaller, and faster
        runs = tiles * sum(count * work.runs for work, count in (*loads, *stores))
        return Staging(tile, prod(rows.shape) * item, _staged_ps(config, loads, stores, tiles, beside), runs, turned)

    found = []
    for turned in (False, True):
        way: Staging | None = priced(tuple(max(dim, 1) for dim in padded), turned)
        while way is not None:
            found.append(way)
            smaller = _halves(way.tile, burst) if way.nbytes > _SMALLEST_PART // 2 else []
            choices = [priced(tile, turned) for tile in smaller]
            # Of equals the one with fewer runs: the next cut makes them shorter.
            way = min(choices, key=lambda way: (way.ps, way.runs), default=None)
    return found


def _halves(tile: tuple[int, ...], burst: int) -> list[tuple[int, ...]]:
    """Tiles with half of one dimension, and with half of it in whole bursts."""
    found = []
    for axis, size in enumerate(tile):
        half = ceil_div(size, 2)
        whole = ceil_div(half, burst) * burst
        found += [(*tile[:axis], part, *tile[axis + 1 :]) for part in dict.fromkeys((half, whole)) if part < size]
    return found


def _staged_ps(
    config: Config, loads: Sequence[tuple[DmaWork, int]], stores: Sequence[tuple[DmaWork, int]], tiles: int, beside: int
) -> int:
    """Picoseconds of so many tiles, each loaded and stored, in two slots of each core."""
    model, channels = cost_model(config), config.dma.channels
    load, store = (sum(count * model.stream_ps(work) for work, count in works) for works in (loads, stores))
    # A slot is loaded again when it has been stored; with one channel the other slot waits for that, too.
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
    """The dimension whose elements are nearest to each other in memory."""
    moving = [axis for axis, dim in enumerate(view.shape) if dim > 1 and view.strides[axis]]
    return min(moving, key=lambda axis: (abs(view.strides[axis]), -axis), default=None)


def _is_sparse(view: View, config: Config) -> bool:
    """Whether single elements lie apart in DRAM, but several of them in a burst."""
    axis, item = _nearest(view), view.dtype.itemsize
    if axis is None or view.buffer.on_chip:
        return False
    step = abs(view.strides[axis])
    return step % item == 0 and item < step < config.dma.burst_bytes


def _filled(view: View) -> View:
    """The view with what lies between its elements along the dimension where they are nearest, in the order of
    addresses."""
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


VIEW_RULES: dict[str, Callable[[Op, View], View | None]] = {
    "reshape": lambda op, source: source.reshape(op.attrs["shape"]),
    "transpose": lambda op, source: source.permute(op.attrs["perm"]),
    "slice": lambda op, source: source.slice(op.attrs["starts"], op.attrs["sizes"], op.attrs["steps"]),
    "expand": lambda op, source: source.broadcast(op.attrs["shape"]),
}
"""The output of a view operator as a view of its input; None when strides cannot say it."""


def cut_copy(target: View, ways: int, source: View | None = None) -> list[Box]:
    """Cut one dimension into at most ``ways`` boxes that are worth a transfer of their own: that which leaves the
    longest runs; of equals the outermost in memory, which leaves every part of a whole target one run."""
    rank = range(len(target.shape))
    nbytes = prod(target.shape) * target.dtype.itemsize
    ways = max(1, min(ways, nbytes // _SMALLEST_PART))

    def tile(axis: int) -> list[int]:
        return [ceil_div(max(dim, 1), ways) if a == axis else max(dim, 1) for a, dim in enumerate(target.shape)]

    def runs(axis: int) -> int:
        """Of all boxes, on the worse side."""
        box = tile(axis)
        part = View(target.buffer, 0, tuple(box), target.strides, target.dtype)
        other = part if source is None else View(source.buffer, 0, tuple(box), source.strides, source.dtype)
        pieces = sum(count * work.runs for work, count in _direct_works(Move(other, part)))
        return ceil_div(target.shape[axis], box[axis]) * max(pieces, 1)

    # What cannot be cut in so many parts is no choice while there is another.
    wide = [a for a in rank if target.shape[a] >= ways] or [a for a in rank if target.shape[a] > 1]
    axis = min(wide, key=lambda a: (runs(a), -abs(target.strides[a]), a), default=0)
    return boxes(target.shape, tile(axis), rank)


def copy_ways(config: Config) -> int:
    """Transfers that can run side by side: the load channels of all cores."""
    return config.cores * max(1, config.dma.channels - 1)


class ConcatLowering(CopyLowering, kind="concat"):
    """Only those inputs that were not computed in place."""

    def pairs(self) -> list[Move]:
        op = self.group.ops[0]
        out, axis, at = self.context.view(op.output), op.attrs["axis"], 0
        pairs = []
        for tensor in op.inputs:
            assert tensor is not None
            starts = [at if a == axis else 0 for a in range(len(out.shape))]
            target = out.slice(starts, tensor.shape)
            at += tensor.shape[axis]
            source = self.context.view(tensor)
            in_place = (
                source.buffer is target.buffer
                and source.offset == target.offset
                and source.strides_match(target.strides)
            )
            if tensor.size and not in_place:
                pairs.append(Move(source, target))
        return pairs


def _three(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


class GatherLowering(Lowering, kind="gather"):
    """Rows by an index list: the DMA engine reads the list in SRAM and moves the rows."""

    dense = True

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._op = group.ops[0]
        self._index = context.view(self._op.input(1))
        self._count = prod(self._index.shape)
        # For each of two slots, so that half of SRAM is left for the operators before and after.
        room = context.room // 4 // self._index.dtype.itemsize
        outer, _, inner = _three(context.view(self._op.input(0)).shape, self._op.attrs["axis"])
        self._tile = max(1, min(self._count, room, MAX_ITEMS // max(outer * inner, 1)))
        if outer * inner * self._tile > MAX_ITEMS:
            raise refuse_elements(group, outer * inner, MAX_ITEMS)

    def slots(self) -> list[SlotSpec]:
        return [SlotSpec("index", self._tile * self._index.dtype.itemsize)]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        op, index = self._op, self._index
        data, out = self.context.view(op.input(0)), self.context.view(op.output)
        outer, length, inner = _three(data.shape, op.attrs["axis"])
        item, kind = data.dtype.itemsize, index.dtype
        tile = min(self._tile, max(1, ceil_div(self._count, cores)))
        flat = index.reshape((self._count,))
        assert flat is not None
        for (start,), (count,) in share(boxes((self._count,), (tile,), (0,)), core, cores):
            slot = table.next("index")
            step = Tile(loads=load_items((slot.address, (kind.itemsize,), slot), flat.slice((start,), (count,))))
            instruction = Gather(
                out.address + start * inner * item, (self._count * inner * item, inner * item, item), data.address,
                (length * inner * item, inner * item, item), slot.address, kind.itemsize, kind, (outer, count, inner),
                length, item,
            )  # fmt: skip
            # With the stores: it waits for its index list, and on a load channel the next list would
            # have to wait behind it.
            step.stores.append(Item(instruction, (slot, data), (out,)))
            yield step


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of an operand in its slot, seen as (outer, length, inner)."""

    slot: Slot
    strides: tuple[int, int, int]
    dtype: DType
    length: int

    @property
    def address(self) -> int:
        return self.slot.address


class ScalarLowering(TiledLowering):
    """Whole rows in SRAM, element by element on the scalar unit; subclasses say which instruction."""

    dense = True

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._axis = self.op.attrs["axis"]
        self._tile = self.pick_tile(self.walked(), range(len(self.walked())), (self._axis,))

    def walked(self) -> tuple[int, ...]:
        """The shape whose other dimensions are cut."""
        return self.x.shape

    @abstractmethod
    def items(self, ins: list[_Tile], outs: list[_Tile], outer: int, inner: int) -> Iterator[Item]:
        """What computes one tile, from its operands and results."""

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        lanes = prod(tile) // max(tile[self._axis], 1)
        names = [(f"in{index}", tensor) for index, tensor in enumerate(self.op.inputs)]
        names += [(f"out{index}", tensor) for index, tensor in enumerate(self.op.outputs)]
        return [
            SlotSpec(name, lanes * tensor.shape[self._axis] * tensor.dtype.itemsize)
            for name, tensor in names
            if tensor is not None
        ]

    def elements_for(self, tile: tuple[int, ...]) -> int:
        longest: int = max(tensor.shape[self._axis] for tensor in self.op.inputs if tensor is not None)
        return prod(tile) // max(int(tile[self._axis]), 1) * longest

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        tiles = boxes(self.walked(), self._tile, range(len(self._tile)))
        for box in share(tiles, core, cores):
            yield self._step(table, *box)

    def _step(self, table: SlotTable, starts: tuple[int, ...], sizes: tuple[int, ...]) -> Tile:
        step = Tile()
        outer, _, inner = _three(sizes, self._axis)

        def place(tensor: Tensor, name: str) -> tuple[_Tile, View]:
            extent = tuple(tensor.shape[a] if a == self._axis else size for a, size in enumerate(sizes))
            length, item = extent[self._axis], tensor.dtype.itemsize
            tile = _Tile(table.next(name), (length * inner * item, inner * item, item), tensor.dtype, length)
            return tile, self.context.view(tensor).slice(starts, extent)

        ins, outs = [], []
        for index in range(len(self.op.inputs)):
            tile, part = place(self.op.input(index), f"in{index}")
            step.loads.extend(load_packed(tile.slot, part, range(len(sizes))))
            ins.append(tile)
        for index, tensor in enumerate(self.op.outputs):
            tile, part = place(tensor, f"out{index}")
            step.stores.extend(store_packed(part, tile.slot, range(len(sizes))))
            outs.append(tile)
        step.compute.extend(self.items(ins, outs, outer, inner))
        return step


class TopKLowering(ScalarLowering, kind="topk"):
    def elements_for(self, tile: tuple[int, ...]) -> int:
        row: int = tile[self._axis]
        return prod(tile) * row.bit_length()

    def items(self, ins: list[_Tile], outs: list[_Tile], outer: int, inner: int) -> Iterator[Item]:
        (x,), (out, indices) = ins, outs
        instruction = scalar.TopK(
            x.dtype, out.address, out.strides, indices.address, indices.strides, x.address, x.strides,
            (outer, x.length, inner), self.op.attrs["k"], self.op.attrs["largest"],
        )  # fmt: skip
        yield Item(instruction, (x.slot,), (out.slot, indices.slot))


class GatherElementsLowering(ScalarLowering, kind="gather_elements"):
    def walked(self) -> tuple[int, ...]:
        return self.op.input(1).shape

    def items(self, ins: list[_Tile], outs: list[_Tile], outer: int, inner: int) -> Iterator[Item]:
        (x, index), (out,) = ins, outs
        instruction = scalar.GatherElements(
            x.dtype.itemsize, out.address, out.strides, x.address, x.strides, index.dtype, index.address,
            index.strides, (outer, index.length, inner), x.length,
        )  # fmt: skip
        yield Item(instruction, (x.slot, index.slot), (out.slot,))


class ScatterElementsLowering(ScalarLowering, kind="scatter_elements"):
    def items(self, ins: list[_Tile], outs: list[_Tile], outer: int, inner: int) -> Iterator[Item]:
        (x, index, updates), (out,) = ins, outs
        size = outer * x.length * inner * x.dtype.itemsize
        # What no index names keeps its value. Both tiles are packed alike, so they are copied as plain bytes.
        yield from copy_items((out.address, (1,), out.slot), (x.address, (1,), x.slot), (size,), 1)
        reduction = scalar.REDUCTIONS.index(self.op.attrs["reduction"])
        instruction = scalar.Scatter(
            x.dtype, out.address, out.strides, updates.address, updates.strides, index.dtype, index.address,
            index.strides, (outer, index.length, inner), x.length, reduction,
        )  # fmt: skip
        yield Item(instruction, (x.slot, index.slot, updates.slot), (out.slot,))
