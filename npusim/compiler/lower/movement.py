"""Operators that only move elements: copies, concatenation and padding by DMA; gathers, scatters and top-k."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from npusim.compiler.groups import Group
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
    small_tile,
)
from npusim.compiler.lower.rows import TiledLowering
from npusim.compiler.lower.transfer import copy_items, load_items, load_packed, store_items, store_packed
from npusim.compiler.schedule import Item, Slot, Tile
from npusim.compiler.values import View, ordered_strides
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa import scalar
from npusim.isa.base import MAX_ITEMS
from npusim.isa.dma import Gather, contiguous_runs
from npusim.units import ceil_div
from npusim.work import DmaWork

_SMALLEST_PART = 4 << 10
"""Bytes below which a copy is not cut for several channels."""


class CopyLowering(Lowering):
    """DRAM to DRAM, cut so that every core and channel takes part: (source view, destination view) pairs.

    Single elements a step apart would take a burst each: there whole rows come into SRAM, and what is wanted leaves it.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._rows = {
            number: tile
            for number, (source, _) in enumerate(self.pairs())
            if _is_sparse(source, context.config) and (tile := self._pick(source)) is not None
        }

    def _pick(self, source: View) -> tuple[int, ...] | None:
        """The tile of what is copied by way of SRAM; None if it does not fit."""
        try:
            return small_tile(self, source.shape, source.order(), lambda tile: self._slot(source, tile))
        except CompileError:
            return None

    def _slot(self, source: View, tile: tuple[int, ...]) -> list[SlotSpec]:
        return [SlotSpec("x", prod(_filled(source.slice([0] * len(tile), tile)).shape) * source.dtype.itemsize)]

    def slots(self) -> list[SlotSpec]:
        pairs = self.pairs()
        sizes = [self._slot(pairs[number][0], tile)[0].nbytes for number, tile in self._rows.items()]
        return [SlotSpec("x", max(sizes))] if sizes else []

    def follow(self, first: Lowering) -> None:
        # Also which copies go by way of SRAM: a smaller part might not ask for it, or ask where there is no slot.
        assert isinstance(first, CopyLowering)
        self._rows = {number: first._rows[number] for number in range(len(self.pairs())) if number in first._rows}

    def estimate(self) -> int:
        model = cost_model(self.config)
        works = [work for number, pair in enumerate(self.pairs()) for work in self._works(number in self._rows, *pair)]
        parts = sum(work.bytes for work in works) // _SMALLEST_PART
        channels = sum(map(model.stream_ps, works)) // max(1, min(copy_ways(self.config), parts))
        bandwidth = dram_model(self.config).bandwidth // self.context.beside
        return overlapped(channels, sum(map(model.dram_bytes, works)) * 10**12 // bandwidth)

    def _works(self, staged: bool, source: View, target: View) -> list[DmaWork]:
        """The transfers of a copy, if it is not cut."""
        if not staged:
            return [_work(target, source, target)]
        rows = _filled(source)
        return [_work(rows, rows, None), _work(target, None, target)]

    def pairs(self) -> list[tuple[View, View]]:
        """What to copy where."""
        op = self.group.ops[0]
        out = self.context.view(op.output)
        source = self.context.view(op.input(0))
        viewed = VIEW_RULES[op.kind](op, source)
        if viewed is not None:
            return [(viewed, out)]
        whole = out.reshape(source.shape)
        assert whole is not None, "a reshape that strides cannot say goes to a dense output"
        return [(source, whole)]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        ways = copy_ways(self.config)
        parts = []
        for number, (source, target) in enumerate(self.pairs()):
            tile = self._rows.get(number)
            cut = cut_copy(target, ways, source) if tile is None else boxes(source.shape, tile, source.order())
            parts += [(source.slice(*box), target.slice(*box), tile is not None) for box in cut]
        for source, target, staged in share(parts, core, cores):
            yield self._staged(table.next("x"), source, target) if staged else _direct(source, target)

    def _staged(self, slot: Slot, source: View, target: View) -> Tile:
        rows = _filled(source)
        order = rows.order()
        packed = ordered_strides(rows.shape, order, rows.dtype.itemsize)
        # From the source's places in DRAM to its places among whole rows.
        strides = [
            p * (stride // whole if whole else 1)
            for p, stride, whole in zip(packed, source.strides, rows.strides, strict=True)
        ]
        back = sum((dim - 1) * -s for dim, s in zip(source.shape, strides, strict=True) if s < 0)
        return Tile(
            loads=load_packed(slot, rows, order),
            stores=store_items(target, (slot.address + back, strides, slot)),
        )


def _work(moved: View, source: View | None, target: View | None) -> DmaWork:
    """The transfer of as many bytes as a view has; None: that side is a slot."""
    nbytes = prod(moved.shape) * moved.dtype.itemsize
    outside = [view for view in (source, target) if view is not None and not view.buffer.on_chip]
    runs = max((contiguous_runs(view.shape, view.strides, view.dtype.itemsize).pieces for view in outside), default=1)
    reads, writes = (nbytes if view in outside else 0 for view in (source, target))
    return DmaWork(nbytes, runs, ceil_div(nbytes, runs), reads, writes)


def _direct(source: View, target: View) -> Tile:
    # As loads, because those may use all channels but one, and stores only that one.
    return Tile(loads=store_items(target, (source.address, source.strides, source)))


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
    sides = [view for view in (target, source) if view is not None and not view.buffer.on_chip]

    def tile(axis: int) -> list[int]:
        return [ceil_div(max(dim, 1), ways) if a == axis else max(dim, 1) for a, dim in enumerate(target.shape)]

    def runs(axis: int) -> int:
        """Of all boxes, on the worse side."""
        box = tile(axis)
        pieces = (contiguous_runs(box, view.strides, view.dtype.itemsize).pieces for view in sides)
        return ceil_div(target.shape[axis], box[axis]) * max(pieces, default=1)

    # What cannot be cut in so many parts is no choice while there is another.
    wide = [a for a in rank if target.shape[a] >= ways] or [a for a in rank if target.shape[a] > 1]
    axis = min(wide, key=lambda a: (runs(a), -abs(target.strides[a]), a), default=0)
    return boxes(target.shape, tile(axis), rank)


def copy_ways(config: Config) -> int:
    """Transfers that can run side by side: the load channels of all cores."""
    return config.cores * max(1, config.dma.channels - 1)


class ConcatLowering(CopyLowering, kind="concat"):
    """Only those inputs that were not computed in place."""

    def pairs(self) -> list[tuple[View, View]]:
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
                pairs.append((source, target))
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
