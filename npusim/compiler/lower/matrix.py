"""Convolution and matmul: tiles through the matrix unit, then the group's elementwise chain on each finished tile."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

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
    total_bytes,
)
from npusim.compiler.lower.element import MAIN, Chain
from npusim.compiler.lower.transfer import load_items, store_packed
from npusim.compiler.schedule import Item, Resource, Slot, Tile
from npusim.compiler.tile import (
    Home,
    MatrixProblem,
    Tiling,
    acc_bytes,
    chain_time,
    choose,
    estimate,
    footprint,
    input_extent,
)
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


class Spot(NamedTuple):
    """Pixels of contiguous channels in SRAM or accumulators: the bytes from one row and one pixel to the next."""

    address: int
    row: int
    pixel: int
    resource: Resource


class _Operands(NamedTuple):
    """What one instruction works on, and the last fields of its encoding, which say how sums leave."""

    extent: Extent
    ic: int
    x: Spot
    w: int
    acc: Spot
    out: Spot
    drain: tuple[Any, ...]
    first: bool
    last: bool


_Held = dict[str, tuple[Any, Slot]]
"""What a core's slots hold at the moment, by key, so that a tile that is still there is not loaded again."""


class MatrixLowering(Lowering):
    """What convolution and matmul share: the loops over tiles, the slots, the drain and the chain."""

    problem: MatrixProblem
    drain: Drain
    chain: Chain
    tile: Tiling
    op: Op
    height: int = 1
    """Rows of the result, of which the problem has those of a stripe."""
    x_zero: int = 0
    w_zero: int = 0

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        self.drain = absorb(group)
        self._packed: dict[Any, View] = {}
        self._rows: tuple[int, int, int] | None = None
        # What each core's slots hold at the moment. Stripes of one operator share it: their slots are the same.
        self._held: dict[int, _Held] = {}

    # what the two kinds do differently

    @abstractmethod
    def load_x(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring the input tile into its slot, channels innermost, padding included."""

    @abstractmethod
    def x_part(self, task: Task, extent: Extent, channels: tuple[int, int]) -> View:
        """The pixels of the input tile that there are, without padding: the last two dimensions are columns and
        channels, the one before them, if there is one, rows."""

    @abstractmethod
    def load_weights(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring [group][K][channel] into the slot."""

    @abstractmethod
    def box(self, task: Task, extent: Extent) -> Box:
        """The task's tile in the dimensions of the chain."""

    @abstractmethod
    def out_view(self) -> View:
        """The result in the dimensions of the chain."""

    @abstractmethod
    def out_part(self, box: Box) -> View:
        """The part of the result in a box of the chain, dimensions as those of :meth:`x_part`."""

    def weights_key(self, task: Task) -> Any:
        """Tasks with equal keys use the same weights."""
        return (task.group, task.channel)

    # tiles

    def choose_tile(self) -> Tiling:
        """Pick the tiling; small operands of the chain that the search left out shrink its budget until all fits."""
        available = self.context.room
        # Whole parts of SRAM, so that neighbouring choices of homes ask the same questions.
        part = self.config.sram.bytes // _PARTS
        budget = available // part * part
        if choose(self.problem, self.config, budget) is None:
            budget = available
        while True:
            tile = choose(self.problem, self.config, budget)
            if tile is None:
                ic = self.problem.ic if self.problem.depthwise else min(self.problem.ic, CHANNEL_BLOCK)
                self.tile = Tiling(1, 1, 1, 1, ic, False)
                raise refuse_size(self.group, total_bytes(self.slots()), available)
            self.tile, self.chain.in_pieces = tile, tile.in_pieces
            excess = total_bytes(self.slots()) - available
            if excess <= 0:
                return tile
            # The search knew only bytes for each output element. Asking again with less is finite:
            # the budget falls every time.
            budget -= excess

    def follow(self, first: Lowering) -> None:
        assert isinstance(first, MatrixLowering)
        self.tile = first.tile
        # The same weights are packed once.
        if self.op.input(1) is first.op.input(1):
            self._packed = first._packed

    def estimate(self) -> int:
        return estimate(self.problem, self.tile, self.config) * self.height // self.problem.oh

    def tail(self) -> int:
        return chain_time(self.problem, self.tile)

    @property
    def in_place(self) -> bool:
        """The accumulators of a tile are its output."""
        return self.problem.in_place and not acc_bytes(self.config)

    def slots(self) -> list[SlotSpec]:
        size = footprint(self.problem, self.tile)
        specs = []
        if self.problem.held:
            specs += [SlotSpec(f"w{key}", size.w, 1) for key in product(self._channels(), self._chunks())]
        else:
            specs.append(SlotSpec("w", size.w))
        if self.problem.x_home is not Home.DIRECT:
            specs.insert(0, SlotSpec("x", size.x))
        if self.problem.main:
            specs.append(SlotSpec(MAIN, size.out))
        if self.drain.bias is not None or self.drain.scale is not None:
            names = [f"p{key}" for key in self._channels()] if self.problem.held else ["p"]
            specs += [SlotSpec(name, size.parameters, 1 if self.problem.held else 2) for name in names]
        if not self.in_place:
            space = Space.ACC if acc_bytes(self.config) else Space.SRAM
            specs.append(SlotSpec("acc", size.acc, 1, space))
        _, sizes = self.box(Task(0, 0, 0, 0, 0), Extent(self.tile.oh, self.tile.ow, self.tile.groups, self.tile.oc))
        return specs + self.chain.slots(sizes)

    def _channels(self) -> list[tuple[int, int]]:
        """First group and output channel of tiles."""
        problem, tile = self.problem, self.tile
        return list(product(range(0, problem.groups, tile.groups), range(0, problem.oc, tile.oc)))

    def _chunks(self) -> list[tuple[int, int]]:
        """(first input channel, input channels) of the parts of a reduction."""
        return [(low, min(self.tile.ic, self.problem.ic - low)) for low in range(0, self.problem.ic, self.tile.ic)]

    def tasks(self) -> list[Task]:
        problem, tile = self.problem, self.tile
        images, rows = range(problem.images), range(0, problem.oh, tile.oh)
        if self._rows:
            image, first, end = self._rows
            images, rows = range(image, image + 1), range(first, end, tile.oh)
        spatial = list(product(images, rows, range(0, problem.ow, tile.ow)))
        channels = self._channels()
        if tile.weights_outer:
            return [Task(*where, *what) for what in channels for where in spatial]
        return [Task(*where, *what) for where in spatial for what in channels]

    def extent(self, task: Task) -> Extent:
        problem, tile = self.problem, self.tile
        return Extent(
            min(tile.oh, (self._rows[2] if self._rows else problem.oh) - task.row),
            min(tile.ow, problem.ow - task.col),
            min(tile.groups, problem.groups - task.group),
            min(tile.oc, problem.oc - task.channel),
        )

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        held = self._held.setdefault(core, {})
        chunks = self._chunks()
        for task in share(self.tasks(), core, cores):
            extent = self.extent(task)
            box = self.box(task, extent)
            # One output tile and one accumulator for all parts of a reduction: each adds to what the
            # part before has left there.
            out, main = self._out_spot(table, extent, box)
            acc = out if self.in_place else self._packed_spot(table.next("acc"), extent, _ACCUMULATOR)
            for chunk in chunks:
                step = Tile()
                last = chunk is chunks[-1]
                x = self._x_spot(step, table, held, task, extent, chunk)
                w = self._load(step, table, held, "w", (self.weights_key(task), chunk), task, extent, chunk)
                # Bias and scale are wanted when the sum is complete, so they load with the last part and not with the
                # first.
                p = self._parameters(step, table, held, task, extent) if last else None
                operands = _Operands(
                    extent, chunk[1], x, w.address, acc, out, self._drain_fields(p, extent), chunk is chunks[0], last
                )
                instruction = self._depthwise(operands) if self.problem.depthwise else self._conv(operands)
                reads = (x.resource, w) if p is None else (x.resource, w, p)
                # Sums in the output's own place are one resource with it; before the last part the output is not
                # touched.
                writes = (acc.resource, out.resource) if last and out is not acc else (acc.resource,)
                step.compute.append(Item(instruction, reads, writes))
                if last:
                    slot = self.chain.emit(step, table, box, main)
                    if slot is not None:
                        step.stores.extend(store_packed(self.out_view().slice(*box), slot, self.chain.order))
                yield step

    def _out_spot(self, table: SlotTable, extent: Extent, box: Box) -> tuple[Spot, Slot | None]:
        """Where sums leave to, and the slot if that is one."""
        if self.problem.main:
            slot = table.next(MAIN)
            return self._packed_spot(slot, extent, self.drain.out_type.itemsize), slot
        return _direct_spot(self.out_part(box)), None

    def _packed_spot(self, slot: Slot, extent: Extent, item: int) -> Spot:
        pixel = extent.groups * extent.channels * item
        return Spot(slot.address, extent.cols * pixel, pixel, slot)

    def _x_spot(
        self, step: Tile, table: SlotTable, held: _Held, task: Task, extent: Extent, chunk: tuple[int, int]
    ) -> Spot:
        if self.problem.x_home is Home.DIRECT:
            return _direct_spot(self.x_part(task, extent, chunk))
        group = task.group if self.problem.groups > 1 else 0
        key = (task.image, task.row, task.col, group, chunk)
        slot = self._load(step, table, held, "x", key, task, extent, chunk)
        # Strides of the tile as it is, not of the largest one: tiles at the edges are packed as densely as others.
        pixel = extent.groups * chunk[1] * self.problem.x_type.itemsize
        return Spot(slot.address, input_extent(self.problem, extent.rows, extent.cols)[1] * pixel, pixel, slot)

    def _load(
        self, step: Tile, table: SlotTable, held: _Held, name: str, key: Any, task: Task, extent: Extent,
        chunk: tuple[int, int],
    ) -> Slot:  # fmt: skip
        """The slot with an operand's tile, which is loaded unless it is there still."""
        load = self.load_x if name == "x" else self.load_weights
        if name == "w" and self.problem.held:
            name = f"w{((task.group, task.channel), chunk)}"
        if name not in held or held[name][0] != key:
            held[name] = (key, table.next(name))
            step.loads.extend(load(task, extent, chunk, held[name][1]))
        return held[name][1]

    def _parameters(self, step: Tile, table: SlotTable, held: _Held, task: Task, extent: Extent) -> Slot | None:
        """Load the bias and scale of the tile's channels, one after the other."""
        drain = self.drain
        if drain.bias is None and drain.scale is None:
            return None
        key = (task.group, task.channel)
        name = f"p{key}" if self.problem.held else "p"
        if name not in held or held[name][0] != key:
            slot = table.next(name)
            held[name] = (key, slot)
            view = self._packed.get(("p", key))
            if view is None:
                low = task.group * self.problem.oc + task.channel
                count = extent.groups * extent.channels
                rows = [row[low : low + count] for row in (drain.bias, drain.scale) if row is not None]
                # As bytes, because a bias may be int32 beside a float scale; so both come in one transfer.
                data = np.concatenate([row.view(np.uint8) for row in rows])
                view = self._packed["p", key] = self.context.constants.add(
                    data, f"{self.op.name}.parameters", DType.UINT8
                )
            step.loads.extend(load_items((slot.address, (1,), slot), view))
        return held[name][1]

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

    def _conv(self, tile: _Operands) -> Conv:
        p, (extent, ic, x, w, acc, out, drain, first, last) = self.problem, tile
        k_bytes = ic * p.kh * p.kw * extent.channels * p.w_type.itemsize
        return Conv(
            p.x_type, p.w_type, self.drain.out_type, x.address, (ic * p.x_type.itemsize, x.row, x.pixel), w, k_bytes,
            acc.address, (extent.channels * _ACCUMULATOR, acc.row, acc.pixel), extent.groups, extent.rows, extent.cols,
            extent.channels, ic, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, self.x_zero, self.w_zero, first, last, out.address,
            (extent.channels * self.drain.out_type.itemsize, out.row, out.pixel), *drain,
        )  # fmt: skip

    def _depthwise(self, tile: _Operands) -> Depthwise:
        p, (extent, _, x, w, acc, out, drain, first, last) = self.problem, tile
        return Depthwise(
            p.x_type, p.w_type, self.drain.out_type, x.address, x.row, x.pixel, w, acc.address, acc.row, acc.pixel,
            extent.rows, extent.cols, extent.groups, extent.channels, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, self.x_zero,
            self.w_zero, first, last, out.address, out.row, out.pixel, *drain,
        )  # fmt: skip

    def homes(self, x: View, out: View, *, whole: bool) -> tuple[Home, Home, bool]:
        """How the input and the output of tiles reach their values, both seen with channels last, and whether the sums
        leave into a slot. ``whole``: a tile needs nothing of the input but what it has, no padding."""
        x_home = _home(x)
        if x_home is Home.DIRECT and not whole and not x.buffer.is_window:
            x_home = Home.COPIED
        out_home = _home(out)
        return x_home, out_home, out_home is not Home.DIRECT or bool(self.chain.ops)


_PARTS = 64
"""Parts of SRAM that a budget is rounded to."""

_ACCUMULATOR = 4
"""Bytes of a sum."""


def _home(view: View) -> Home:
    if not view.buffer.on_chip:
        return Home.DRAM
    # The unit wants the channels of a pixel next to each other.
    return Home.DIRECT if view.shape[-1] == 1 or view.strides[-1] == view.dtype.itemsize else Home.COPIED


def _direct_spot(part: View) -> Spot:
    row = part.strides[-3] if len(part.strides) > 2 else 0
    return Spot(part.address, row, part.strides[-2], part)
