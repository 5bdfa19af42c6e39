"""Convolution and matmul: tiles through the matrix unit, then the group's elementwise chain on each finished tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npusim.compiler.drain import Drain, absorb
from npusim.compiler.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    refuse_size,
    share,
    sram_budget,
    total_bytes,
)
from npusim.compiler.lower.element import MAIN, Chain
from npusim.compiler.lower.rows import clip
from npusim.compiler.lower.transfer import copy_items, load_items, store_items
from npusim.compiler.schedule import Item, Slot, Step
from npusim.compiler.tile import MatrixProblem, Tiling, acc_bytes, choose, footprint, input_extent
from npusim.compiler.values import View
from npusim.dtypes import DType
from npusim.graph import Op
from npusim.isa.base import Space
from npusim.isa.matrix import CHANNEL_BLOCK, NOTHING, Conv, Depthwise


class Task(NamedTuple):
    """One output tile: image, first row, column, group and output channel within the group."""

    image: int
    row: int
    col: int
    group: int
    channel: int


class Extent(NamedTuple):
    """How large a task's tile really is at the edges."""

    rows: int
    cols: int
    groups: int
    channels: int


@dataclass(slots=True)
class _Held:
    """What a core's slots hold at the moment, so that a tile that is still there is not loaded again."""

    keys: dict[str, tuple[Any, Slot]]

    def get(self, name: str, key: Any) -> Slot | None:
        held = self.keys.get(name)
        return held[1] if held is not None and held[0] == key else None


class MatrixLowering(Lowering):
    """What convolution and matmul share: the loops over tiles, the slots, the drain and the chain."""

    problem: MatrixProblem
    drain: Drain
    chain: Chain
    tile: Tiling
    op: Op
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    x_zero: int = 0

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        self.drain = absorb(group)
        self._packed: dict[Any, View] = {}

    # what the two kinds do differently

    def load_x(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring the input tile into its slot, channels innermost, padding included."""
        raise NotImplementedError

    def load_weights(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring [group][K][channel] into the slot."""
        raise NotImplementedError

    def box(self, task: Task, extent: Extent) -> Box:
        """The task's tile in the dimensions of the chain."""
        raise NotImplementedError

    def out_view(self) -> View:
        """The result in the dimensions of the chain."""
        raise NotImplementedError

    def weights_key(self, task: Task) -> Any:
        """Tasks with equal keys use the same weights."""
        return (task.group, task.channel)

    # tiles

    def choose_tile(self) -> Tiling:
        """Pick the tiling; small operands of the chain that the search left out shrink its budget until all fits."""
        budget = available = sram_budget(self.config)
        while True:
            tile = choose(self.problem, self.config, budget)
            if tile is None:
                raise refuse_size(self.group, self._smallest(), available)
            self.tile = tile
            excess = total_bytes(self.slots()) - available
            if excess <= 0:
                return tile
            budget -= excess

    def _smallest(self) -> int:
        ic = self.problem.ic if self.problem.depthwise else min(self.problem.ic, CHANNEL_BLOCK)
        self.tile = Tiling(1, 1, 1, 1, ic, False)
        return total_bytes(self.slots())

    @property
    def in_place(self) -> bool:
        """The accumulators of a tile are its output."""
        return self.problem.in_place and not acc_bytes(self.config)

    def slots(self) -> list[SlotSpec]:
        size = footprint(self.problem, self.tile)
        specs = [SlotSpec("x", size.x), SlotSpec("w", size.w), SlotSpec(MAIN, size.out)]
        if self.drain.bias is not None or self.drain.scale is not None:
            specs.append(SlotSpec("p", size.parameters))
        if not self.in_place:
            space = Space.ACC if acc_bytes(self.config) else Space.SRAM
            specs.append(SlotSpec("acc", size.acc, 1, space))
        _, sizes = self.box(Task(0, 0, 0, 0, 0), Extent(self.tile.oh, self.tile.ow, self.tile.groups, self.tile.oc))
        return specs + self.chain.slots(sizes)

    def tasks(self) -> list[Task]:
        problem, tile = self.problem, self.tile
        spatial = list(product(range(problem.images), range(0, problem.oh, tile.oh), range(0, problem.ow, tile.ow)))
        channels = list(product(range(0, problem.groups, tile.groups), range(0, problem.oc, tile.oc)))
        if tile.weights_outer:
            return [Task(*where, *what) for what in channels for where in spatial]
        return [Task(*where, *what) for where in spatial for what in channels]

    def extent(self, task: Task) -> Extent:
        problem, tile = self.problem, self.tile
        return Extent(
            min(tile.oh, problem.oh - task.row),
            min(tile.ow, problem.ow - task.col),
            min(tile.groups, problem.groups - task.group),
            min(tile.oc, problem.oc - task.channel),
        )

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Step]:
        held = _Held({})
        chunks = [(low, min(self.tile.ic, self.problem.ic - low)) for low in range(0, self.problem.ic, self.tile.ic)]
        for task in share(self.tasks(), core, cores):
            extent = self.extent(task)
            main = table.next(MAIN)
            acc = main if self.in_place else table.next("acc")
            for chunk in chunks:
                step = Step()
                slots = self._load(step, table, held, task, extent, chunk)
                last = chunk is chunks[-1]
                if last:
                    slots["p"] = self._parameters(step, table, held, task, extent)
                step.compute.append(
                    self._instruction(task, extent, chunk, slots, acc, main, first=chunk is chunks[0], last=last)
                )
                if last:
                    self._finish(step, table, self.box(task, extent), main)
                yield step

    def _load(
        self, step: Step, table: SlotTable, held: _Held, task: Task, extent: Extent, chunk: tuple[int, int]
    ) -> dict[str, Slot | None]:
        x_group = task.group if self.problem.groups > 1 else 0
        slots: dict[str, Slot | None] = {}
        for name, key, load in (
            ("x", (task.image, task.row, task.col, x_group, chunk), self.load_x),
            ("w", (self.weights_key(task), chunk), self.load_weights),
        ):
            slot = held.get(name, key)
            if slot is None:
                slot = table.next(name)
                step.loads.extend(load(task, extent, chunk, slot))
                held.keys[name] = (key, slot)
            slots[name] = slot
        return slots

    def _parameters(self, step: Step, table: SlotTable, held: _Held, task: Task, extent: Extent) -> Slot | None:
        """Load the bias and scale of the tile's channels, one after the other."""
        drain = self.drain
        if drain.bias is None and drain.scale is None:
            return None
        key = (task.group, task.channel)
        slot = held.get("p", key)
        if slot is None:
            slot = table.next("p")
            held.keys["p"] = (key, slot)
            view = self._packed.get(("p", key))
            if view is None:
                low = task.group * self.problem.oc + task.channel
                count = extent.groups * extent.channels
                rows = [row[low : low + count] for row in (drain.bias, drain.scale) if row is not None]
                data = np.concatenate([row.view(np.uint8) for row in rows])
                view = self._packed["p", key] = self.context.constants.add(
                    data, f"{self.op.name}.parameters", DType.UINT8
                )
            step.loads.extend(load_items((slot.address, (1,), slot), view))
        return slot

    def _finish(self, step: Step, table: SlotTable, box: Box, main: Slot) -> None:
        slot = self.chain.emit(step, table, box, main)
        order = self.chain.order
        out = self.out_view()
        packed = self.chain.packed(box[1], out.dtype)
        part = out.slice(*box).permute(order)
        step.stores.extend(store_items(part, (slot.address, [packed[axis] for axis in order], slot)))

    def _instruction(
        self, task: Task, extent: Extent, chunk: tuple[int, int], slots: dict[str, Slot | None],
        acc: Slot, main: Slot, *, first: bool, last: bool,
    ) -> Item:  # fmt: skip
        x, w, p = slots["x"], slots["w"], slots.get("p")
        assert x is not None
        assert w is not None
        build = self._depthwise if self.problem.depthwise else self._conv
        instruction = build(
            extent,
            chunk[1],
            x.address,
            w.address,
            acc.address,
            main.address,
            self._drain_fields(p, extent),
            first,
            last,
        )
        reads = (x, w) if p is None else (x, w, p)
        return Item(instruction, reads, (acc, main) if last and main is not acc else (acc,))

    def _drain_fields(self, slot: Slot | None, extent: Extent) -> tuple[Any, ...]:
        drain = self.drain
        bias = scale = NOTHING
        if slot is not None:
            offset = 0
            if drain.bias is not None:
                bias, offset = slot.address, 4 * extent.groups * extent.channels
            if drain.scale is not None:
                scale = slot.address + offset
        return bias, scale, 4, drain.out_scale, drain.out_zero, drain.low, drain.high

    def _conv(
        self,
        extent: Extent,
        ic: int,
        x: int,
        w: int,
        acc: int,
        out: int,
        drain: tuple[Any, ...],
        first: bool,
        last: bool,
    ) -> Conv:
        p = self.problem
        item, out_item = p.x_type.itemsize, self.drain.out_type.itemsize
        _, cols = input_extent(p, extent.rows, extent.cols)
        pixel, channels = extent.groups * ic * item, extent.groups * extent.channels
        k_bytes = ic * p.kh * p.kw * extent.channels * p.w_type.itemsize
        return Conv(
            p.x_type, p.w_type, self.drain.out_type, x, (ic * item, cols * pixel, pixel), w, k_bytes, acc,
            (extent.channels * 4, extent.cols * channels * 4, channels * 4), extent.groups, extent.rows, extent.cols,
            extent.channels, ic, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, self.x_zero, first, last, out,
            (extent.channels * out_item, extent.cols * channels * out_item, channels * out_item), *drain,
        )  # fmt: skip

    def _depthwise(
        self,
        extent: Extent,
        ic: int,
        x: int,
        w: int,
        acc: int,
        out: int,
        drain: tuple[Any, ...],
        first: bool,
        last: bool,
    ) -> Depthwise:
        p = self.problem
        out_item = self.drain.out_type.itemsize
        _, cols = input_extent(p, extent.rows, extent.cols)
        pixel, channels = extent.groups * p.x_type.itemsize, extent.groups * extent.channels
        return Depthwise(
            p.x_type, p.w_type, self.drain.out_type, x, cols * pixel, pixel, w,
            acc, extent.cols * channels * 4, channels * 4,
            extent.rows, extent.cols, extent.groups, extent.channels, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, self.x_zero,
            first, last, out, extent.cols * channels * out_item, channels * out_item, *drain,
        )  # fmt: skip


class ConvLowering(MatrixLowering):
    """A 2-D convolution, grouped and depthwise ones included."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        attrs = self.op.attrs
        x, w = self.op.input(0), self.op.input(1)
        self._axes = (0, 2, 3, 1) if attrs["layout"] == "NCHW" else (0, 1, 2, 3)
        self._x = context.view(x).permute(self._axes)
        self._w = w
        self._out = context.view(group.outputs[0])
        self.pads = tuple(attrs["pads"])
        self.x_zero = int(attrs.get("x_zero", 0))
        out_shape = tuple(self._out.shape[axis] for axis in self._axes)
        groups = attrs["groups"]
        oc, ic, kh, kw = w.shape
        (sh, sw), (dh, dw) = attrs["stride"], attrs["dilation"]
        self.chain = Chain(context, self.drain.rest, self._out.shape, self._axes, self.drain.result)
        in_place = self.drain.out_type.itemsize == 4
        self.problem = MatrixProblem(
            out_shape[0], out_shape[1], out_shape[2], groups, oc // groups, ic, kh, kw, sh, sw, dh, dw,
            ic == 1 and groups > 1, True, x.dtype, w.dtype, self.drain.out_type, _per_element(self.chain), in_place,
        )  # fmt: skip
        self.tile = self.choose_tile()

    def out_view(self) -> View:
        return self._out

    def box(self, task: Task, extent: Extent) -> Box:
        starts = (task.image, task.row, task.col, task.group * self.problem.oc + task.channel)
        sizes = (1, extent.rows, extent.cols, extent.groups * extent.channels)
        place = {axis: index for index, axis in enumerate(self._axes)}
        return tuple(starts[place[a]] for a in range(4)), tuple(sizes[place[a]] for a in range(4))

    def load_x(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        p, item = self.problem, self.problem.x_type.itemsize
        rows, cols = input_extent(p, extent.rows, extent.cols)
        _, height, width, _ = self._x.shape
        top, above, inner_rows, below = clip(task.row * p.sh - self.pads[0], rows, height)
        left, before, inner_cols, after = clip(task.col * p.sw - self.pads[1], cols, width)
        count = extent.groups * channels[1]
        part = self._x.slice(
            (task.image, top, left, task.group * p.ic + channels[0]), (1, inner_rows, inner_cols, count)
        )
        strides = (0, cols * count * item, count * item, item)
        zero = self.x_zero & ((1 << 8 * item) - 1)
        return copy_items(
            (slot.address, strides, slot), (part.address, part.strides, part), part.shape, item,
            (0, above, before, 0), (0, below, after, 0), zero,
        )  # fmt: skip

    def load_weights(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        if self._w.data is None:
            return self._load_dynamic(task, extent, channels, slot)
        key = ("w", task.group, task.channel, channels)
        view = self._packed.get(key)
        if view is None:
            blocks = []
            for index in range(extent.groups):
                low = (task.group + index) * self.problem.oc + task.channel
                block = self._w.data[low : low + extent.channels, channels[0] : channels[0] + channels[1]]
                blocks.append(block)
            packed = _pack_depthwise(blocks) if self.problem.depthwise else _pack(blocks)
            view = self._packed[key] = self.context.constants.add(packed, f"{self.op.name}.weights", self._w.dtype)
        return load_items((slot.address, (view.dtype.itemsize,), slot), view)

    def _load_dynamic(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Weights that are computed: [O, I, KH, KW] becomes [group][channel block][KH][KW][I][O] on the way."""
        p, item = self.problem, self.problem.w_type.itemsize
        view = self.context.view(self._w)
        items: list[Item] = []
        if p.depthwise:
            low, count = task.group * p.oc, extent.groups * p.oc
            part = view.slice((low, 0, 0, 0), (count, 1, p.kh, p.kw)).permute((2, 3, 1, 0))
            return load_items((slot.address, (p.kw * count * item, count * item, 0, item), slot), part)
        address = slot.address
        for index, low in product(range(extent.groups), range(0, channels[1], CHANNEL_BLOCK)):
            block = min(CHANNEL_BLOCK, channels[1] - low)
            start = ((task.group + index) * p.oc + task.channel, channels[0] + low, 0, 0)
            part = view.slice(start, (extent.channels, block, p.kh, p.kw)).permute((2, 3, 1, 0))
            row = extent.channels * item
            strides = (p.kw * block * row, block * row, row, item)
            items.extend(load_items((address, strides, slot), part))
            address += p.kh * p.kw * block * row
        return items


class MatMulLowering(MatrixLowering):
    """Matmul as a convolution of one row: the columns are M, the channels K and N.

    With one right operand for the whole batch the batch joins M; otherwise each batch item is an image.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        a, b = self.op.input(0), self.op.input(1)
        self._b = b
        out = context.view(group.outputs[0])
        self.x_zero = int(self.op.attrs.get("x_zero", 0))
        self._batch = out.shape[:-2]
        m, n, k = out.shape[-2], out.shape[-1], a.shape[-1]
        self._flat = self._try_flat(out, a.shape[-1])
        images = 1 if self._flat else int(np.prod(self._batch, dtype=np.int64))
        if self._flat:
            self._a, self._out, views = self._flat
            shape: tuple[int, ...] = self._out.shape
            inner = Context(context.config, context.constants, views)
        else:
            self._a = context.view(a).broadcast((*self._batch, *a.shape[-2:]))
            self._out, shape, inner = out, out.shape, context
        self.chain = Chain(inner, self.drain.rest, shape, range(len(shape)), self.drain.result)
        self.problem = MatrixProblem(
            images, 1, shape[-2] if self._flat else m, 1, n, k, 1, 1, 1, 1, 1, 1, False, self._shared, a.dtype, b.dtype,
            self.drain.out_type, _per_element(self.chain), self.drain.out_type.itemsize == 4,
        )  # fmt: skip
        self.tile = self.choose_tile()

    @property
    def _shared(self) -> bool:
        """One right operand serves the whole batch."""
        return all(dim == 1 for dim in self._b.shape[:-2])

    def _try_flat(self, out: View, k: int) -> tuple[View, View, dict[Any, View]] | None:
        """The operands with the batch folded into M, where views allow it."""
        if not self._shared:
            return None
        rows = int(np.prod(out.shape[:-1], dtype=np.int64))
        a = self.context.view(self.op.input(0)).broadcast((*self._batch, out.shape[-2], k)).reshape((rows, k))
        flat_out = out.reshape((rows, out.shape[-1]))
        views: dict[Any, View] = {}
        for tensor in self.group.loads():
            view = self.context.view(tensor).broadcast(out.shape).reshape((rows, out.shape[-1]))
            if view is None:
                return None
            views[tensor] = view
        return None if a is None or flat_out is None else (a, flat_out, views)

    def out_view(self) -> View:
        return self._out

    def weights_key(self, task: Task) -> Any:
        return (0 if self._shared else task.image, task.channel)

    def _index(self, image: int, batch: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(image, batch)) if batch else ()

    def box(self, task: Task, extent: Extent) -> Box:
        if self._flat:
            return (task.col, task.channel), (extent.cols, extent.channels)
        index = self._index(task.image, self._batch)
        return (*index, task.col, task.channel), (*(1 for _ in index), extent.cols, extent.channels)

    def load_x(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        item = self.problem.x_type.itemsize
        index = () if self._flat else self._index(task.image, self._batch)
        part = self._a.slice((*index, task.col, channels[0]), (*(1 for _ in index), extent.cols, channels[1]))
        strides = (*(0 for _ in index), channels[1] * item, item)
        return load_items((slot.address, strides, slot), part)

    def load_weights(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        item = self.problem.w_type.itemsize
        index = tuple(0 for _ in self._b.shape[:-2])
        if not self._shared:
            full = self._index(task.image, self._batch)[len(self._batch) - len(index) :]
            index = tuple(i if dim > 1 else 0 for i, dim in zip(full, self._b.shape[:-2], strict=True))
        if self._b.data is None:
            view = self.context.view(self._b)
            part = view.slice((*index, channels[0], task.channel), (*(1 for _ in index), channels[1], extent.channels))
            return load_items((slot.address, (*(0 for _ in index), extent.channels * item, item), slot), part)
        key = ("w", index, task.channel, channels)
        packed = self._packed.get(key)
        if packed is None:
            block = self._b.data[index][
                channels[0] : channels[0] + channels[1], task.channel : task.channel + extent.channels
            ]
            packed = self._packed[key] = self.context.constants.add(
                np.ascontiguousarray(block).reshape(-1), f"{self.op.name}.weights", self._b.dtype
            )
        return load_items((slot.address, (item,), slot), packed)


def _per_element(chain: Chain) -> int:
    """SRAM bytes of the chain's own slots for each output element, operands that are broadcast left out."""
    probe = tuple(min(dim, 64) for dim in chain.shape)
    elements = int(np.prod(probe, dtype=np.int64))
    return total_bytes(chain.slots(probe)) // elements if elements else 0


def _pack(blocks: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[O, I, KH, KW] of each group to [I block][KH][KW][I][O], flat."""
    parts = []
    for block in blocks:
        moved = block.transpose(2, 3, 1, 0)
        for low in range(0, moved.shape[2], CHANNEL_BLOCK):
            parts.append(moved[:, :, low : low + CHANNEL_BLOCK].reshape(-1))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _pack_depthwise(blocks: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """[mult, 1, KH, KW] of each channel to [KH][KW][channel * mult], flat."""
    return np.concatenate(blocks).transpose(2, 3, 1, 0).reshape(-1)
