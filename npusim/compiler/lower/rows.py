"""Operators on whole rows (softmax, normalisation, scans), windows (pooling) and interpolation, on the vector unit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from npusim.compiler.buffers import Moves, View, collapse, dense_strides
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    boxes,
    fact,
    overlapped,
    share,
    small_tile,
    twin,
)
from npusim.compiler.lower.chain import MAIN, Chain
from npusim.compiler.lower.transfer import Strided, load_items, load_packed, store_packed
from npusim.dtypes import DType
from npusim.graph import Op, Tensor
from npusim.hw.cost import Cost, cost_model
from npusim.isa import quantised, reduction
from npusim.ops.base import REGISTRY, RowForm
from npusim.ops.pool import resampled_axes
from npusim.units import ceil_div
from npusim.work import DmaWork


class TiledLowering(Lowering):
    """One operator with one input tile and one output tile at the same position. Subclasses choose the instruction."""

    _tile: tuple[int, ...]

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        self.x = context.view(self.op.input(0))
        self.out = context.view(group.outputs[0])

    def slots(self) -> list[SlotSpec]:
        return self.slots_for(self._tile)

    def follow(self, first: Lowering) -> None:
        assert isinstance(first, TiledLowering)
        self._tile = first._tile

    @abstractmethod
    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        """The slots for a tile of these sizes."""

    def pick_tile(self, shape: Sequence[int], order: Sequence[int], whole: Sequence[int] = ()) -> tuple[int, ...]:
        """A tile that keeps the axes in ``whole`` uncut. Dimensions are cut in ``order``."""
        inner = self.x.order()[-1] if self.x.shape else None
        return small_tile(self, shape, order, self.slots_for, whole, inner)


class RowLowering(TiledLowering):
    """All kinds of the form Rows: tiles of whole rows, along one axis or all axes from one on, and the group's chain.

    Contiguous rows in SRAM are read and written in place.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        attrs = self.op.attrs
        form = REGISTRY[self.op.kind].form
        assert isinstance(form, RowForm), f"{self.op.kind} has no rows, its form is {form}"
        self._form = form
        rank = len(self.x.shape)
        self._axis = attrs["axis"]
        self._row = range(self._axis, rank if form.trailing else self._axis + 1)
        # A row of several axes is one run only in row-major order. A row along a single axis has its own stride, so the
        # tile keeps the memory order of its input, and loads have long runs.
        self._order = tuple(range(rank)) if form.trailing else self.x.order()
        self._chain = Chain(context, group.chain, self.out, self._order, self.op.output) if group.chain else None
        if form.single and not attrs["keepdims"]:
            self.out = insert_axis(self.out, self._axis)
        self._type = self.op.output.dtype
        self._near_x = self._walk(self.x) is not None
        self._near_out = self._chain is None and self._walk(self.out) is not None
        self._tile = self.pick_tile(self.x.shape, self._order, self._row)
        # The rows of the whole value may be one run when those of a tile that cuts an inner axis are not.
        if not (self._has_run(self._near_x, self.x) and self._has_run(self._near_out, self.out)):
            self._near_x = self._near_out = False
            self._tile = self.pick_tile(self.x.shape, self._order, self._row)

    def _has_run(self, near: bool, view: View) -> bool:
        """Whether the rows of tiles have constant strides, or the value is not used in place (``near``)."""
        sizes = [min(size, dim) for size, dim in zip(self._tile, view.shape, strict=True)]
        return not near or self._walk(view.slice([0] * len(sizes), sizes)) is not None

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        elements = prod(tile)
        out = elements // max(tile[self._axis], 1) if self._form.single else elements
        specs = [] if self._near_x else [SlotSpec("x", elements * self.x.dtype.itemsize)]
        if not self._near_out:
            specs.append(SlotSpec(MAIN, out * self._type.itemsize))
        return specs + (self._chain.slots(tile) if self._chain else [])

    def elements_for(self, tile: tuple[int, ...]) -> int:
        size: int = self.op.attrs.get("size", 1)  # the window of a local response normalisation
        return prod(tile) * min(size, int(tile[self._axis]))

    def computing(self) -> int:
        tiles = prod(ceil_div(dim, size) for dim, size in zip(self.x.shape, self._tile, strict=True))
        dims = self._dims(self._tile)
        walk = _strides(dims, self.x)
        work = self._form.make((self.x.dtype, 0, walk, 0, walk, dims), self.op.attrs).work()
        one = cost_model(self.config).cost(work).ps
        return tiles * (one + (self._chain.estimate(prod(self._tile)) if self._chain else 0))

    def moves(self) -> list[View]:
        moved = [] if self._near_x else [self.x]
        if self._chain is not None:
            moved += [view for view in self._chain.operands() if not view.buffer.on_chip]
        if not self._near_out and (self._chain is None or not self.out.buffer.on_chip):
            moved.append(self.out)
        return moved

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        order, single = self._order, self._form.single
        for starts, sizes in share(boxes(self.x.shape, self._tile, order), core, cores):
            step = Tile()
            out_sizes = tuple(1 if single and axis == self._axis else size for axis, size in enumerate(sizes))
            part, target = self.x.slice(starts, sizes), self.out.slice(starts, out_sizes)
            x = self._rows_at(part) if self._near_x else None
            if x is None:
                x = self._packed_rows(slot := table.next("x"), sizes, part.dtype)
                step.loads.extend(load_packed(slot, part, order))
            main, out = None, self._rows_at(target) if self._near_out else None
            if out is None:
                main = table.next(MAIN)
                out = self._packed_rows(main, out_sizes, self._type)
            operands = (self.x.dtype, *out[:2], *x[:2], self._dims(sizes))
            step.compute.append(Item(self._form.make(operands, self.op.attrs), (x[2],), (out[2],)))
            if self._chain is not None:
                main = self._chain.emit(step, table, (starts, sizes), main)
            if main is not None:
                step.stores.extend(store_packed(target, main, order))
            yield step

    def _dims(self, sizes: Sequence[int]) -> tuple[int, int, int]:
        """(outer, row, inner) of a tile."""
        outer, row, inner = (prod(sizes[axis] for axis in axes) for axes in self._axes())
        return outer, row, inner

    def _axes(self) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        at = self._order.index(self._axis)
        end = at + len(self._row)
        return self._order[:at], self._order[at:end], self._order[end:]

    def _walk(self, view: View) -> tuple[int, ...] | None:
        """The strides of (outer, row, inner) of a value in SRAM; None if it is in DRAM or some part has several
        strides."""
        if not view.buffer.on_chip:
            return None
        found = []
        for axes in self._axes():
            _, (strides,) = collapse([view.shape[axis] for axis in axes], [view.strides[axis] for axis in axes])
            if len(strides) > 1:
                return None
            found.append(strides[0] if strides else view.dtype.itemsize)
        return tuple(found)

    def _rows_at(self, part: View) -> Strided | None:
        strides = self._walk(part)
        return None if strides is None else (part.address, strides, part)

    def _packed_rows(self, slot: Slot, sizes: Sequence[int], dtype: DType) -> Strided:
        _, row, inner = self._dims(sizes)
        return slot.address, (row * inner * dtype.itemsize, inner * dtype.itemsize, dtype.itemsize), slot


def levels_of(op: Op) -> tuple[DType, tuple[float, int, float, int, DType] | None]:
    """The element type in an operator's instruction, and the last fields of an instruction that converts (else
    None)."""
    source, target = op.attrs["source"], op.attrs["target"]
    if source is None and target is None:
        return op.input(0).dtype, None
    dtype = op.input(0).dtype if source is not None else op.output.dtype
    return dtype, (*(source or (0.0, 0)), *(target or (0.0, 0))[:2], op.attrs["real"])


def _strides(dims: tuple[int, int, int], view: View) -> tuple[int, int, int]:
    item = view.dtype.itemsize
    return dims[1] * dims[2] * item, dims[2] * item, item


def insert_axis(view: View, axis: int) -> View:
    """The view with a dimension of size one inserted before ``axis``."""
    shape, strides = list(view.shape), list(view.strides)
    shape.insert(axis, 1)
    strides.insert(axis, 0)
    return View(view.buffer, view.offset, tuple(shape), tuple(strides), view.dtype)


class PoolLowering(TiledLowering, kind="pool"):
    """Windows over an image. A tile loads the valid pixels under its windows."""

    windowed = True

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        axes = (0, 2, 3, 1) if self.op.attrs["layout"] == "NCHW" else (0, 1, 2, 3)
        self.x, self.out = self.x.permute(axes), self.out.permute(axes)
        self._rows: tuple[int, int, int] | None = None
        # Cores that exchange values may have a band of rows each. All use the slots of the first core, and have rows
        # where that one has padding.
        band = context.whole is not None and self.op.input(0) in context.own
        self._height = self.x.shape[1] + (sum(self.op.attrs["pads"][::2]) if band else 0)
        rows = min(context.rows or self.out.shape[1], self.out.shape[1])
        shape = (self.out.shape[0], rows, *self.out.shape[2:])
        # A cut along rows or columns loads what windows share twice. A cut of the channels makes runs shorter.
        self._tile = min((self.pick_tile(shape, order) for order in ((0, 1, 3, 2), (0, 3, 1, 2))), key=self._loading)

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        specs = []
        # Padding is never stored, because a maximum must ignore it: the instruction is told where it is.
        rows, cols = map(min, self._extent(tile[1], tile[2]), (self._height, self.x.shape[2]))
        if not self.x.buffer.on_chip:
            specs.append(SlotSpec("x", rows * cols * tile[3] * self.x.dtype.itemsize))
        if not self.out.buffer.on_chip:
            specs.append(SlotSpec("out", tile[1] * tile[2] * tile[3] * self.out.dtype.itemsize))
        return specs

    def _loading(self, tile: Sequence[int]) -> int:
        """Picoseconds of one channel to load all tiles."""
        _, oh, ow, channels = tile
        if self.x.buffer.on_chip:
            return 0
        rows, cols = (min(span, dim) for span, dim in zip(self._extent(oh, ow), self.x.shape[1:3], strict=True))
        run = channels * self.x.dtype.itemsize * (cols if channels == self.x.shape[3] else 1)
        nbytes = rows * cols * channels * self.x.dtype.itemsize
        return (
            self._tiles(tile) * cost_model(self.config).cost(DmaWork(nbytes, nbytes // max(run, 1), run, nbytes, 0)).ps
        )

    def _tiles(self, tile: Sequence[int]) -> int:
        return prod(ceil_div(dim, size) for dim, size in zip(self.out.shape, (1, *tile[1:]), strict=True))

    def computing(self) -> int:
        return self._tiles(self._tile) * self._cost().ps

    def banked(self) -> int:
        return self._tiles(self._tile) * self._cost().sram_ps

    def _cost(self) -> Cost:
        """The cost of one tile."""
        _, oh, ow, channels = self._tile
        (kh, kw), (sh, sw), (dh, dw) = (self.op.attrs[name] for name in ("kernel", "stride", "dilation"))
        rows, cols = (min(span, dim) for span, dim in zip(self._extent(oh, ow), self.x.shape[1:3], strict=True))
        nowhere, sizes = (0, 0, 0), (rows, cols, oh, ow, channels, kh, kw, sh, sw, dh, dw)
        pool = self._instruction(0, 0, nowhere, 0, nowhere, *sizes, (0, 0, 0, 0), False)
        return cost_model(self.config).cost(pool.work())

    def _instruction(self, fn: int, *fields: Any) -> reduction.Pool:
        dtype, levels = levels_of(self.op)
        fields = (fn, dtype, *fields, *(levels or ()))
        return quantised.QuantisedPool(*fields) if levels else reduction.Pool(*fields)

    def estimate(self) -> int:
        # Count tiles separately, because rows that neighbouring tiles share are loaded for each.
        bringing, taking = (() if view.buffer.on_chip else (view,) for view in (self.x, self.out))
        loading = max(self._loading(self._tile) // self.config.cores, self.moving(bringing))
        return overlapped(self.computing() // self.config.cores, loading + self.moving(taking))

    def moves(self) -> list[View]:
        return [view for view in (self.x, self.out) if not view.buffer.on_chip]

    def elements_for(self, tile: tuple[int, ...]) -> int:
        (kh, kw), (height, width) = self.op.attrs["kernel"], self.x.shape[1:3]
        return prod(tile[1:]) * int(min(kh, height) * min(kw, width))

    def _extent(self, oh: int, ow: int) -> tuple[int, int]:
        attrs = self.op.attrs
        (kh, kw), (sh, sw), (dh, dw) = attrs["kernel"], attrs["stride"], attrs["dilation"]
        return (oh - 1) * sh + (kh - 1) * dh + 1, (ow - 1) * sw + (kw - 1) * dw + 1

    def stripe(self, image: int, rows: tuple[int, int], moved: Moves) -> PoolLowering:
        lowering = twin(self)
        lowering._rows, lowering.x, lowering.out = (image, *rows), self.x.moved(moved), self.out.moved(moved)
        return lowering

    def _boxes(self) -> list[Box]:
        tile = (1, *self._tile[1:])
        if self._rows is None:
            return boxes(self.out.shape, tile, range(4))
        image, first, end = self._rows
        stripe = boxes((1, end - first, *self.out.shape[2:]), tile, range(4))
        return [((image, row + first, *rest), sizes) for (_, row, *rest), sizes in stripe]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        for box in share(self._boxes(), core, cores):
            (image, row, col, channel), (_, oh, ow, channels) = box
            attrs = self.op.attrs
            (kh, kw), (sh, sw), (dh, dw), pads = attrs["kernel"], attrs["stride"], attrs["dilation"], attrs["pads"]
            rows, cols = self._extent(oh, ow)
            top, above, ih, below = clip(row * sh - pads[0], rows, self.x.shape[1])
            left, before, iw, after = clip(col * sw - pads[1], cols, self.x.shape[2])
            step = Tile()
            part, target = self.x.slice((image, top, left, channel), (1, ih, iw, channels)), self.out.slice(*box)
            x, out = _image(part), _image(target)
            if x is None:
                x = _packed_image(slot := table.next("x"), part)
                step.loads.extend(load_packed(slot, part, range(4)))
            if out is None:
                out = _packed_image(slot := table.next("out"), target)
                step.stores.extend(store_packed(target, slot, range(4)))
            # In ceil mode the last window may extend past the padding, where an average counts nothing.
            padding = above, before, min(below, pads[2]), min(after, pads[3])
            fn = reduction.POOL_FUNCTIONS.index(attrs["fn"])
            places = out[0], tuple(out[1]), x[0], tuple(x[1])
            sizes = ih, iw, oh, ow, channels, kh, kw, sh, sw, dh, dw
            instruction = self._instruction(fn, *places, *sizes, padding, attrs["count_include_pad"])
            step.compute.append(Item(instruction, (x[2],), (out[2],)))
            yield step


def _image(part: View) -> Strided | None:
    """An image in SRAM, with the strides of rows, columns and channels; None if it is in DRAM."""
    return (part.address, part.strides[1:], part) if part.buffer.on_chip else None


def _packed_image(slot: Slot, part: View) -> Strided:
    return slot.address, dense_strides(part.shape, part.dtype.itemsize)[1:], slot


def clip(start: int, count: int, limit: int, step: int = 1) -> tuple[int, int, int, int]:
    """(first valid, padding before, valid, padding after) of ``count`` positions from ``start``, where [0, limit) is
    valid."""
    low, high = (min(max(ceil_div(end - start, step), 0), count) for end in (0, limit))
    if low >= high:
        return 0, count, 0, 0
    return start + low * step, low, high - low, count - high


class ResampleLowering(TiledLowering, kind="resample"):
    """Weighted sums of elements along one axis or two, with constant tables.

    A tile has some results along the first axis and all along the second. Values between both stay in SRAM.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._axes = resampled_axes(self.op)
        self._axis, index = self._axes[0]
        known = self.op.input(index).data
        assert known is not None
        self._known = known
        self._order = self.x.order()
        self._between = self.op.input(0).dtype if self.op.attrs["source"] is None else self.op.attrs["real"]
        whole = [axis for axis, _ in self._axes[1:]]
        # A cut along the first axis loads what neighbouring results share twice; other cuts make runs shorter.
        orders = self._order, (*(axis for axis in self._order if axis != self._axis), self._axis)
        self._tile = min((self.pick_tile(self.out.shape, order, whole) for order in orders), key=self._loading)

    def _loading(self, tile: Sequence[int]) -> int:
        """Picoseconds to load all tiles."""
        inner, item = self._order[-1], self.x.dtype.itemsize
        rows = sum(count for _, count in self._sources(tile))
        nbytes = self.x.dtype.itemsize * rows * prod(dim for axis, dim in enumerate(self.x.shape) if axis != self._axis)
        run = item * (rows if inner == self._axis else min(tile[inner], self.x.shape[inner]))
        return cost_model(self.config).cost(DmaWork(nbytes, ceil_div(nbytes, max(run, 1)), run, nbytes, 0)).ps

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        rest = prod(tile) // max(prod(tile[axis] for axis, _ in self._axes), 1)
        for axis, _ in self._axes[1:]:
            rest *= self.x.shape[axis]
        specs = [
            SlotSpec("x", rest * max(count for _, count in self._sources(tile)) * self.x.dtype.itemsize),
            SlotSpec("out", prod(tile) * self.out.dtype.itemsize),
        ]
        if len(self._axes) > 1:
            specs.append(SlotSpec("between", rest * tile[self._axis] * self._between.itemsize, 1))
        for axis, index in self._axes:
            nbytes = 4 * prod(self.op.input(index).shape)
            specs += [SlotSpec(f"index{axis}", nbytes, 1), SlotSpec(f"weight{axis}", nbytes, 1)]
        return specs

    def elements_for(self, tile: tuple[int, ...]) -> int:
        taps = max(self.op.input(index).shape[1] for _, index in self._axes)
        reach = max(count for _, count in self._sources(tile))
        return prod(tile) * taps * max(1, ceil_div(reach, max(tile[self._axis], 1)))

    def _sources(self, tile: Sequence[int]) -> list[tuple[int, int]]:
        """(first, count) of the elements along the first axis that the results of each tile need."""
        size = max(tile[self._axis], 1)

        def found() -> list[tuple[int, int]]:
            parts = [self._known[at : at + size] for at in range(0, max(len(self._known), 1), size)]
            used = [part[part >= 0] for part in parts]
            ends = [(int(part.min()), int(part.max())) if part.size else (0, 0) for part in used]
            return [(first, last - first + 1) for first, last in ends]

        return fact(self.context, ("resampled", self.op, size), found)

    def _table(self) -> Tensor:
        """The index table of the first axis, counted from the first element of each tile."""
        size, original = max(self._tile[self._axis], 1), self.op.input(1)

        def made() -> Tensor:
            firsts = np.repeat([first for first, _ in self._sources(self._tile)], size)[: len(self._known), np.newaxis]
            shifted = np.where(self._known < 0, self._known, self._known - firsts).astype(np.int32)
            return original if not firsts.any() else Tensor(original.name, original.shape, original.dtype, shifted)

        return fact(self.context, ("index table", self.op, size), made)

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        order, axis = self._order, self._axis
        tables = []
        for along, index in self._axes:
            tensors = self._table() if index == 1 else self.op.input(index), self.op.input(index + 1)
            slots = table.next(f"index{along}"), table.next(f"weight{along}")
            tables.append(list(zip(slots, map(self.context.view, tensors), strict=True)))
        for number, (starts, sizes) in enumerate(share(boxes(self.out.shape, self._tile, order), core, cores)):
            step = Tile()
            # Each table has one slot and stays there for all tiles of the core.
            if not number:
                for slot, view in chain.from_iterable(tables):
                    step.loads.extend(load_items((slot.address, view.strides, slot), view))
            first, count = self._sources(self._tile)[starts[axis] // max(self._tile[axis], 1)]
            corner, extent = list(starts), list(sizes)
            corner[axis], extent[axis] = first, count
            for along, _ in self._axes[1:]:
                extent[along] = self.x.shape[along]
            x, out = table.next("x"), table.next("out")
            step.loads.extend(load_packed(x, self.x.slice(corner, extent), order))
            source, done = x, [*extent]
            for place, (along, _) in enumerate(self._axes):
                last = place == len(self._axes) - 1
                target = out if last else table.next("between")
                done[along] = sizes[along]
                offset = starts[axis] if not place else 0
                item = self._instruction(tables[place], (source, extent), (target, done), along, offset, place)
                step.compute.append(item)
                source, extent = target, [*done]
            step.stores.extend(store_packed(self.out.slice(starts, sizes), out, order))
            yield step

    def _instruction(
        self,
        tables: Sequence[tuple[Slot, View]],
        source: tuple[Slot, Sequence[int]],
        target: tuple[Slot, Sequence[int]],
        axis: int,
        offset: int,
        place: int,
    ) -> Item:
        """The instruction along one axis (number ``place``); its results use the tables from ``offset`` rows on."""
        (index, index_view), (weight, _) = tables
        at, taps = self._order.index(axis), index_view.shape[1]
        ordered = [target[1][a] for a in self._order]
        outer, inner = prod(ordered[:at]), prod(ordered[at + 1 :])
        dtype, levels = levels_of(self.op)
        if levels is not None:
            # Only the first instruction converts its operand, and only the last one its result.
            first, last = not place, place == len(self._axes) - 1
            levels = (*(levels[:2] if first else (0.0, 0)), *(levels[2:4] if last else (0.0, 0)), levels[4])
            levels = levels if levels[0] or levels[2] else None
            dtype = dtype if levels is not None else self._between
        types = (
            self.x.dtype if not place else self._between,
            self._between if place < len(self._axes) - 1 else self.out.dtype,
        )
        sides = [
            (slot.address, dense_strides((outer, shape[axis], inner), kind.itemsize))
            for (slot, shape), kind in zip((target, source), types[::-1], strict=True)
        ]
        fields = (
            dtype, *sides[0], *sides[1], (outer, target[1][axis], inner), source[1][axis],
            index.address + 4 * offset * taps, weight.address + 4 * offset * taps, taps,
        )  # fmt: skip
        instruction = quantised.QuantisedResample(*fields, *levels) if levels else reduction.Resample(*fields)
        return Item(instruction, (source[0], index, weight), (target[0],))
