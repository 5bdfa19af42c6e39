"""Matrix operators on tiles: loads, products, the epilogue, and the chain on each finished tile.

A tile of the result is the sum of products over parts of the reduction. Each part is one step: its loads, and one
instruction that adds to the accumulators. After the last part the sums pass through the epilogue, and the group's
elementwise chain works on them before the tile is stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import product
from math import prod
from operator import mul
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from npusim.compiler.buffers import Moves, View
from npusim.compiler.codegen.issue import Item, Resource, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Box, Context, Lowering, SlotTable, fact, share, twin
from npusim.compiler.lower.chain import MAIN
from npusim.compiler.lower.matrix_tiling import Extent, MatrixTiling, OutputTile
from npusim.compiler.lower.matrix_weights import Columns, Cut, Part, extras, pack_weights
from npusim.compiler.lower.ranges import emit_ranges
from npusim.compiler.lower.streams import Packed
from npusim.compiler.lower.transfer import copy_items, fetch_items, load_items, pad_items, store_packed
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Tensor
from npusim.isa.base import Space, is_dram
from npusim.isa.matrix import Conv, Depthwise
from npusim.isa.matrix_extras import NOTHING, Extras
from npusim.isa.matrix_types import packed_bytes, zero_field
from npusim.timing.tile_problem import Home, Tiling, footprint, input_window
from npusim.units import ceil_div

_STRIPED = 2
"""Number of tiles at the end of a layer that are stored in stripes. With one, the store of the tile before it would
delay the stores of its stripes."""


class Spot(NamedTuple):
    """Pixels of contiguous channels in SRAM or accumulators.

    ``row``, ``pixel``: byte strides of rows and pixels. ``steps``: how many rows and columns of the image one row and
    one pixel advance.
    """

    address: int
    row: int
    pixel: int
    resource: Resource
    steps: tuple[int, int] = (1, 1)


_PADDING = 512
"""With more padding elements than this, writing them with separate transfers (at most four) is faster than one by
one."""

_Held = dict[str, tuple[Any, Slot]]
"""The contents of a core's slots by name: (which tile, slot). A tile that is still there is not loaded again."""


class MatrixLowering(MatrixTiling):
    """The loops over tiles that convolution and matmul share."""

    x_zero: int = 0
    w_zero: int = 0

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._packed: dict[Any, Packed] = {}
        self._parameters_at: dict[Any, View] = {}
        self._made: dict[tuple[Any, ...], Conv | Depthwise] = {}
        self._rows: tuple[int, int, int] | None = None
        direct = self.config.matrix.direct if self.config.matrix else None
        self._fetches = direct is not None and direct.whole_jobs
        # By core. All stripes of an operator share it, because they use the same slots.
        self._held: dict[int, _Held] = {}

    # What convolution and matmul do differently

    @abstractmethod
    def load_x(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        """Load the input of a tile into a slot, channels innermost, padding included."""

    @abstractmethod
    def x_part(self, task: OutputTile, extent: Extent, part: Part) -> View:
        """The input of a tile without padding: [..., rows, columns, channels], without rows if there are none."""

    @abstractmethod
    def load_weights(self, task: OutputTile, extent: Extent, part: Part, slot: Slot) -> list[Item]:
        """Load [group][K][channel] into a slot."""

    @abstractmethod
    def out_view(self) -> View:
        """The result in the dimensions of the chain."""

    @abstractmethod
    def out_part(self, box: Box) -> View:
        """The part of the result in a box of the chain, with the dimensions of :meth:`x_part`."""

    def image_key(self, task: OutputTile) -> int:
        """Tiles with equal keys use the same image of the operand."""
        return task.image

    def weights_key(self, task: OutputTile) -> Any:
        """Tiles with equal keys use the same weights."""
        return (task.group, task.channel)

    def skipped(self, task: OutputTile, part: Part) -> Extras | None:
        """The instruction fields for weights that are not multiplied; None if all are."""
        return None

    def bring(
        self,
        slot: tuple[int, tuple[int, ...], Slot],
        part: View,
        padding: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        pattern: int = 0,
    ) -> list[Item]:
        """Load a part of the input with padding before and after it.

        A unit that fetches features itself uses its own engine.
        """
        fetches, item = self._fetches and is_dram(part.address), part.dtype.itemsize
        before, after = padding or (None, None)
        apart: list[Item] = []
        if before is not None and after is not None:
            inner = prod(part.shape)
            around = prod(map(sum, zip(before, part.shape, after, strict=True))) - inner
            # A transfer that transposes would also write padding element by element.
            if not inner or (self.problem.x_turned and not fetches and around > _PADDING):
                apart = pad_items(slot, part.shape, item, before, after, pattern)
                if not inner:
                    return apart
                slot = slot[0] + sum(map(mul, before, slot[1])), slot[1], slot[2]
                before = after = None
        source = (part.address, part.strides, part)
        return apart + (fetch_items if fetches else copy_items)(slot, source, part.shape, item, before, after, pattern)

    def packed(self, key: Any, cut: Cut, part: Part, columns: Columns, parts: int) -> Packed:
        """The constant weights of a tile, placed once: see :func:`pack_weights`."""
        found = self._packed.get(key)
        if found is None:
            found = self._packed[key] = pack_weights(
                self.context, self.op, self.problem, self._scales, key, cut, part, columns, parts
            )
        return found

    def of_rows(self, image: int, rows: tuple[int, int], moved: Moves) -> Self:
        """A copy for some rows of an image, with the buffers of its chain ``moved``."""
        lowering = twin(self)
        lowering._rows, lowering.chain = (image, *rows), self.chain.moved(moved)
        return lowering

    def follow(self, first: Lowering) -> None:
        super().follow(first)
        assert isinstance(first, MatrixLowering)
        if self.op.input(1) is first.op.input(1):  # equal weights are packed once
            self._packed, self._parameters_at = first._packed, first._parameters_at

    # Tiles

    def channels(self) -> list[tuple[int, int]]:
        """(first group, first output channel) of the tiles."""
        (groups, group), (channels, channel) = self._cuts()
        return list(product(range(0, groups, group), range(0, channels, channel)))

    def tasks(self) -> list[OutputTile]:
        """The tiles of the result, or of some of its rows, in order."""
        spatial = self.spatial()
        if self.tile.weights_outer:
            return [OutputTile(*where, *what) for what in self.channels() for where in spatial]
        return [OutputTile(*where, *what) for where in spatial for what in self.channels()]

    def spatial(self) -> list[tuple[int, int, int]]:
        """(image, first row, first column) of the tiles."""
        problem, tile = self.problem, self.tile
        images, rows = range(problem.images), range(0, problem.oh, tile.oh)
        if self._rows:
            image, first, end = self._rows
            images, rows = range(image, image + 1), range(first, end, tile.oh)
        return list(product(images, rows, range(0, problem.ow, tile.ow)))

    def extent(self, task: OutputTile) -> Extent:
        """The sizes of a tile."""
        problem, tile = self.problem, self.tile
        return Extent(
            min(tile.oh, (self._rows[2] if self._rows else problem.oh) - task.row),
            min(tile.ow, problem.ow - task.col),
            min(tile.groups, problem.groups - task.group),
            min(tile.oc, problem.oc - task.channel),
        )

    def _stripes(self, task: OutputTile, extent: Extent) -> list[tuple[OutputTile, Extent]]:
        """Split a tile at the end of a layer, where no later work hides its store.

        Each stripe is about half as large as the previous one, and is stored while the next one is computed.
        """
        if not self._fetches or self._rows or len(self.parts()) > 1:
            return [(task, extent)]
        assert self.config.matrix is not None
        assert self.config.matrix.direct is not None
        # At least two rows of atoms: the unit leaves a gap after each row but the last.
        least = 2 * self.config.matrix.direct.output_row_atoms
        rows = extent.rows > 1
        full, unit = (extent.rows, ceil_div(least, extent.cols)) if rows else (extent.cols, least)
        found, first = [], 0
        while first < full:
            left = full - first
            size = left // (2 * unit) * unit or left
            if rows:
                part = task._replace(row=task.row + first), extent._replace(rows=size)
            else:
                part = task._replace(col=task.col + first), extent._replace(cols=size)
            found.append(part)
            first += size
        return found if len(found) > 1 else [(task, extent)]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        held = self._held.setdefault(table.core, {})
        chunks = self.parts()
        mine = [(task, self.extent(task)) for task in share(self.tasks(), core, cores)]
        parts = [(*tile, *tile) for tile in mine[:-_STRIPED]]
        parts += [(*tile, *stripe) for tile in mine[-_STRIPED:] for stripe in self._stripes(*tile)]
        late = Tile()
        for number, (whole, whole_extent, task, extent) in enumerate(parts):
            box = self.box(task, extent)
            # All parts of the reduction share one output tile and one accumulator: each adds to the sums so far.
            out, main = self._out_spot(table, extent, box)
            acc = out if self.in_place else _packed_spot(table.next("acc"), extent, self.problem.sum_bytes)
            for chunk in chunks:
                step = Tile()
                last = chunk is chunks[-1]
                # Load weights first: the input may have to wait for the group that computes it.
                w = self._load(step, table, held, "w", (self.weights_key(task), chunk), task, extent, chunk)
                # Bias and scale apply to the complete sum, so they are loaded with the last part.
                rows = self._parameters(step, table, held, task, extent) if last else {}
                x = self._x_spot(step, table, held, whole, whole_extent, chunk)
                if task is not whole:
                    x = self._within(x, whole, task, extent, chunk)
                ends, skipped = (chunk is chunks[0], last), self.skipped(task, chunk)
                instruction = self._instruction(extent, chunk, x, w, acc, out, rows, skipped, ends)
                reads = (x.resource, w, *dict.fromkeys(slot for slot, _ in rows.values()))
                # Only the last part writes the output. If sums are in place of the output, both are one resource.
                writes = (acc.resource, out.resource) if last and out is not acc else (acc.resource,)
                step.compute.append(Item(instruction, reads, writes))
                if last:
                    ends = not number, number == len(parts) - 1
                    late = self._finish(step, table, box, main, ends, late)
                yield step
        if late.compute:
            yield late

    def _finish(
        self, step: Tile, table: SlotTable, box: Box, main: Slot | None, ends: tuple[bool, bool], late: Tile
    ) -> Tile:
        """Add the chain on a finished tile, and its store, to a step. ``ends``: whether it is the first and the last
        tile.

        Returns what is postponed to the next step. Adds ``late``, which the previous tile postponed.
        """
        products = step.compute[:]
        slot = self.chain.emit(step, table, box, main)
        if slot is not None:
            step.stores.extend(store_packed(self.out_view().slice(*box), slot, self.chain.order))
        if self.group.sides:
            tile = self.chain.result(self.out_view().slice(*box), slot, box[1])
            emit_ranges(self.group, self.context, step, table, tile, box[1], ends)
        if not self.tile.in_pieces:
            return late
        # A chain in pieces has so many instructions that they fill the queue of the vector unit, and everything behind
        # them waits. So the next tile's products go first.
        chain = Tile(compute=step.compute[len(products) :], stores=step.stores)
        step.compute, step.stores = products + late.compute, late.stores
        return chain

    # Operands of a tile

    def _within(self, x: Spot, whole: OutputTile, task: OutputTile, extent: Extent, chunk: Part) -> Spot:
        """The input of a stripe within that of its tile."""
        if self.problem.x_home is Home.DIRECT:
            return _direct_spot(self.x_part(task, extent, chunk))
        down, right = (task.row - whole.row) * self.problem.sh, (task.col - whole.col) * self.problem.sw
        return x._replace(address=x.address + down // x.steps[0] * x.row + right // x.steps[1] * x.pixel)

    def _out_spot(self, table: SlotTable, extent: Extent, box: Box) -> tuple[Spot, Slot | None]:
        """Where sums are written, and the slot if that is one."""
        if self.problem.main:
            slot = table.next(MAIN)
            return _packed_spot(slot, extent, self.epilogue.out_type.itemsize), slot
        return _direct_spot(self.out_part(box)), None

    def _x_spot(self, step: Tile, table: SlotTable, held: _Held, task: OutputTile, extent: Extent, chunk: Part) -> Spot:
        if self.problem.x_home is Home.DIRECT:
            return _direct_spot(self.x_part(task, extent, chunk))
        group = task.group if self.problem.groups > 1 else 0
        key = (self.image_key(task), task.row, task.col, group, chunk)
        slot = self._load(step, table, held, "x", key, task, extent, chunk)
        # As dense as its own size allows, also at the edges, where tiles are smaller.
        pixel = extent.groups * chunk.channels * self.problem.x_type.itemsize
        window = input_window(self.problem, self.tile, (extent.rows, extent.cols), (chunk.rows, chunk.cols))
        return Spot(slot.address, window.cols * pixel, pixel, slot, (window.row_step, window.col_step))

    def _load(
        self,
        step: Tile,
        table: SlotTable,
        held: _Held,
        name: str,
        key: Any,
        task: OutputTile,
        extent: Extent,
        chunk: Part,
    ) -> Slot:
        """The slot with the input (``x``) or weights (``w``) of a tile. Adds their loads unless they are already
        there."""
        load = self.load_x if name == "x" else self.load_weights
        if name == "w" and self.problem.held:
            name = f"w{((task.group, task.channel), chunk)}"
        if name not in held or held[name][0] != key:
            held[name] = (key, table.next(name))
            step.loads.extend(load(task, extent, chunk, held[name][1]))
        return held[name][1]

    def residents(self, core: int, turn: int, turns: int) -> Iterator[Item]:
        """Load the weights that a core keeps for all inferences: those of its share of the tiles, number ``turn`` of
        ``turns``.

        :meth:`steps` then finds them in their slots.
        """
        held, at = self._held.setdefault(core, {}), self.context.pinned.starts[self.group.index]
        end = at + self.weight_bytes
        parts = list(dict.fromkeys((t.group, t.channel) for t in share(self.tasks(), turn, turns)))
        tasks = [OutputTile(0, 0, 0, *part) for part in parts]
        for task in tasks:  # parameters first: they need the alignment of the start, weights do not
            extent = self.extent(task)
            if self.epilogue.rows():
                view = self._parameter_view(task, extent)
                slot = Slot(core, Space.SRAM, at, view.buffer.nbytes, active=True)
                held[f"p{task[3:]}"] = (task[3:], slot)
                at += slot.nbytes
                yield from load_items((slot.address, (1,), slot), view)
        for task, chunk in product(tasks, self.parts()):
            extent = self.extent(task)
            one: Tiling = self.tile._replace(
                groups=extent.groups, oc=extent.channels, ic=chunk.channels, kh=chunk.rows, kw=chunk.cols
            )
            slot = Slot(core, Space.SRAM, at, footprint(self.problem, one).w, active=True)
            held[f"w{(task[3:], chunk)}"] = ((self.weights_key(task), chunk), slot)
            at += slot.nbytes
            if at > end:
                raise CompileError(f"internal: {self.op.name}: parts of the weights take more than the whole")
            yield from self.load_weights(task, extent, chunk, slot)

    def share_residents(self, other: MatrixLowering) -> None:
        """Find the weights that another product with the same weights keeps. Raises CompileError for other tiles."""
        (mine, theirs) = ((each.tile, each.parts(), each.tasks(), each.weight_bytes) for each in (self, other))
        if mine[1:] != theirs[1:] or (mine[0].groups, mine[0].oc) != (theirs[0].groups, theirs[0].oc):
            raise CompileError(f"{self.op.name} and {other.op.name} read the same weights in different tiles")
        self._held = {core: dict(held) for core, held in other._held.items()}

    # Bias, scale and shift of the epilogue

    def _parameters(
        self, step: Tile, table: SlotTable, held: _Held, task: OutputTile, extent: Extent
    ) -> dict[str, tuple[Slot, int]]:
        """Load bias, scale and shift of the tile's channels. Returns (slot, offset) of each."""
        key = (task.group, task.channel)
        places: dict[str, tuple[Slot, int]] = {}
        if self._constant_rows:
            slot, loaded = self._parameter_slot(table, held, "p", key)
            if not loaded:
                step.loads.extend(load_items((slot.address, (1,), slot), self._parameter_view(task, extent)))
            size = 4 * extent.groups * extent.channels
            for number, name in enumerate(self._constant_rows):
                places[name] = slot, number * size
        for name, tensor in self._computed_rows:
            slot, loaded = self._parameter_slot(table, held, name, key)
            if not loaded:
                low, count = task.group * self.problem.oc + task.channel, extent.groups * extent.channels
                step.loads.extend(load_items((slot.address, (4,), slot), self._computed(tensor, low, count)))
            places[name] = slot, 0
        return places

    def _parameter_slot(self, table: SlotTable, held: _Held, name: str, key: tuple[int, int]) -> tuple[Slot, bool]:
        """The slot of a tile's parameters, and whether they are already there."""
        name = f"{name}{key}" if self.problem.held else name
        loaded = name in held and held[name][0] == key
        if not loaded:
            held[name] = (key, table.next(name))
        return held[name][1], loaded

    def _parameter_view(self, task: OutputTile, extent: Extent) -> View:
        """The constant parameters of the tile's channels."""
        key = (task.group, task.channel)
        view = self._parameters_at.get(key)
        if view is None:
            low = task.group * self.problem.oc + task.channel
            count = extent.groups * extent.channels
            data = self._parameter_rows()[:, 4 * low : 4 * (low + count)].reshape(-1)
            view = self._parameters_at[key] = self.context.constants.add(
                data, f"{self.op.name}.parameters", DType.UINT8
            )
        return view

    def _parameter_rows(self) -> npt.NDArray[np.uint8]:
        """The constant rows of the epilogue, 4 bytes per channel.

        They are bytes because an int32 bias may be next to a float scale, and one transfer loads all of them.
        """
        rows = self.epilogue.rows()
        return fact(self.context, ("parameters", self.group), lambda: np.stack([row.view(np.uint8) for row in rows]))

    def _computed(self, tensor: Tensor, low: int, count: int) -> View:
        """The values of a computed parameter for a tile's channels, or its single value for all channels."""
        view = self.context.view(tensor)
        axis = next((index for index, dim in enumerate(view.shape) if dim > 1), None)
        if axis is None:
            return View(view.buffer, view.offset, (1,), (4,), view.dtype)
        part = View(view.buffer, view.offset, (view.shape[axis],), (view.strides[axis],), view.dtype)
        return part.slice((low,), (count,))

    # Instructions

    def _instruction(
        self,
        extent: Extent,
        chunk: Part,
        x: Spot,
        w: Slot,
        acc: Spot,
        out: Spot,
        rows: dict[str, tuple[Slot, int]],
        skipped: Extras | None,
        ends: tuple[bool, bool],
    ) -> Conv | Depthwise:
        """The instruction for one part of a tile's reduction. ``ends``: whether it is the first and the last part.

        Slots rotate, so most tiles reuse the instruction of an earlier tile.
        """
        parameters = tuple([(row[0].address, row[1]) for row in rows.values()])
        key = extent, chunk, (*x[:3], x.steps), w.address, acc[:3], out[:3], parameters, skipped
        made = self._made.get(key)
        if made is None:
            p = self.problem
            fields, shift = self._epilogue_fields(rows)
            # If only single rows of the output or the kernel are left, the step may not divide strides that are never
            # walked.
            down, right = x.steps
            steps = max(1, p.sh // down), max(1, p.sw // right), max(1, p.dh // down), max(1, p.dw // right)
            window = chunk.rows, chunk.cols, *steps
            types = p.x_type, p.w_type, self.epilogue.out_type
            zeros = zero_field(p.x_type, self.x_zero), self.w_zero
            leaving = (*fields, self._extras(w.address, extent, chunk, shift, skipped))
            rows_at = x.row, x.pixel
            if p.depthwise:
                made = Depthwise(
                    *types, *x[:3], w.address, *acc[:3], *extent, *window, *zeros, *ends, *out[:3], *leaving
                )
            else:
                ic, sums, item = chunk.channels, extent.channels * p.sum_bytes, self.epilogue.out_type.itemsize
                x_at = x.address, (ic * p.x_type.itemsize, *rows_at)
                w_at = w.address, packed_bytes(ic * chunk.taps * extent.channels, p.w_type, p.w_bits)
                acc_at = acc.address, (sums, acc.row, acc.pixel)
                out_at = out.address, (extent.channels * item, out.row, out.pixel)
                sizes = extent.groups, extent.rows, extent.cols, extent.channels, ic
                made = Conv(*types, *x_at, *w_at, *acc_at, *sizes, *window, *zeros, *ends, *out_at, *leaving)
            self._made[key] = made
        return made

    def _epilogue_fields(self, rows: dict[str, tuple[Slot, int]]) -> tuple[tuple[Any, ...], int]:
        """The fields of the epilogue, and the address of its shift."""
        epilogue = self.epilogue
        bias, scale, shift = (
            rows[name][0].address + rows[name][1] if name in rows else NOTHING for name in ("b", "s", "shift")
        )
        step = 0 if isinstance(epilogue.scale, Tensor) and epilogue.scale.size == 1 else 4
        bounds = epilogue.out_scale, epilogue.out_zero, epilogue.low, epilogue.high
        return (bias, scale, step, *bounds), shift

    def _extras(self, w: int, extent: Extent, chunk: Part, shift: int, skipped: Extras | None) -> Extras:
        p = self.problem
        columns = (extent.groups, chunk.channels * chunk.taps, extent.channels)
        if p.depthwise:
            columns = (1, chunk.taps, extent.groups * extent.channels)
        return extras(p, self._scales, w, columns, chunk.channel, shift, skipped, wide=self._sum is DType.INT64)


def _packed_spot(slot: Slot, extent: Extent, item: int) -> Spot:
    pixel = extent.groups * extent.channels * item
    return Spot(slot.address, extent.cols * pixel, pixel, slot)


def _direct_spot(part: View) -> Spot:
    row = part.strides[-3] if len(part.strides) > 2 else 0
    return Spot(part.address, row, part.strides[-2], part)
