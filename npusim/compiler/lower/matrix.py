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
    sram_budget,
    total_bytes,
)
from npusim.compiler.lower.element import MAIN, Chain
from npusim.compiler.lower.transfer import load_items, store_packed
from npusim.compiler.schedule import Item, Slot, Tile
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


class _Operands(NamedTuple):
    """What one instruction works on: addresses, and the last fields of its encoding, which say how sums leave."""

    extent: Extent
    ic: int
    x: int
    w: int
    acc: int
    out: int
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
    x_zero: int = 0
    w_zero: int = 0

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        self.drain = absorb(group)
        self._packed: dict[Any, View] = {}

    # what the two kinds do differently

    @abstractmethod
    def load_x(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring the input tile into its slot, channels innermost, padding included."""

    @abstractmethod
    def load_weights(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring [group][K][channel] into the slot."""

    @abstractmethod
    def box(self, task: Task, extent: Extent) -> Box:
        """The task's tile in the dimensions of the chain."""

    @abstractmethod
    def out_view(self) -> View:
        """The result in the dimensions of the chain."""

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
                ic = self.problem.ic if self.problem.depthwise else min(self.problem.ic, CHANNEL_BLOCK)
                self.tile = Tiling(1, 1, 1, 1, ic, False)
                raise refuse_size(self.group, total_bytes(self.slots()), available)
            self.tile = tile
            excess = total_bytes(self.slots()) - available
            if excess <= 0:
                return tile
            # The search knew only bytes for each output element. Asking again with less is finite:
            # the budget falls every time.
            budget -= excess

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

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        # Empty at the start of each operator: slots of the one before lie elsewhere, or have other contents.
        held: _Held = {}
        chunks = [(low, min(self.tile.ic, self.problem.ic - low)) for low in range(0, self.problem.ic, self.tile.ic)]
        for task in share(self.tasks(), core, cores):
            extent = self.extent(task)
            # One output tile and one accumulator for all parts of a reduction: each adds to what the
            # part before has left there.
            main = table.next(MAIN)
            acc = main if self.in_place else table.next("acc")
            for chunk in chunks:
                step = Tile()
                slots = self._load(step, table, held, task, extent, chunk)
                last = chunk is chunks[-1]
                if last:
                    # Bias and scale are wanted when the sum is complete, so they load with the last part
                    # and not with the first.
                    slots["p"] = self._parameters(step, table, held, task, extent)
                step.compute.append(
                    self._instruction(task, extent, chunk, slots, acc, main, first=chunk is chunks[0], last=last)
                )
                if last:
                    box = self.box(task, extent)
                    slot = self.chain.emit(step, table, box, main)
                    step.stores.extend(store_packed(self.out_view().slice(*box), slot, self.chain.order))
                yield step

    def _load(
        self, step: Tile, table: SlotTable, held: _Held, task: Task, extent: Extent, chunk: tuple[int, int]
    ) -> dict[str, Slot | None]:
        x_group = task.group if self.problem.groups > 1 else 0
        slots: dict[str, Slot | None] = {}
        for name, key, load in (
            ("x", (task.image, task.row, task.col, x_group, chunk), self.load_x),
            ("w", (self.weights_key(task), chunk), self.load_weights),
        ):
            if name not in held or held[name][0] != key:
                held[name] = (key, table.next(name))
                step.loads.extend(load(task, extent, chunk, held[name][1]))
            slots[name] = held[name][1]
        return slots

    def _parameters(self, step: Tile, table: SlotTable, held: _Held, task: Task, extent: Extent) -> Slot | None:
        """Load the bias and scale of the tile's channels, one after the other."""
        drain = self.drain
        if drain.bias is None and drain.scale is None:
            return None
        key = (task.group, task.channel)
        if "p" not in held or held["p"][0] != key:
            slot = table.next("p")
            held["p"] = (key, slot)
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
        return held["p"][1]

    def _instruction(
        self, task: Task, extent: Extent, chunk: tuple[int, int], slots: dict[str, Slot | None],
        acc: Slot, main: Slot, *, first: bool, last: bool,
    ) -> Item:  # fmt: skip
        x, w, p = slots["x"], slots["w"], slots.get("p")
        assert x is not None
        assert w is not None
        drain = self._drain_fields(p, extent)
        operands = _Operands(extent, chunk[1], x.address, w.address, acc.address, main.address, drain, first, last)
        instruction = self._depthwise(operands) if self.problem.depthwise else self._conv(operands)
        reads = (x, w) if p is None else (x, w, p)
        # Sums in the output's own slot are one resource with it; before the last part the output is not touched.
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

    def _conv(self, tile: _Operands) -> Conv:
        p, (extent, ic, x, w, acc, out, drain, first, last) = self.problem, tile
        item, out_item = p.x_type.itemsize, self.drain.out_type.itemsize
        _, cols = input_extent(p, extent.rows, extent.cols)
        # Strides of the tile as it is, not of the largest one: tiles at the edges are packed as densely as others.
        pixel, channels = extent.groups * ic * item, extent.groups * extent.channels
        k_bytes = ic * p.kh * p.kw * extent.channels * p.w_type.itemsize
        return Conv(
            p.x_type, p.w_type, self.drain.out_type, x, (ic * item, cols * pixel, pixel), w, k_bytes, acc,
            (extent.channels * 4, extent.cols * channels * 4, channels * 4), extent.groups, extent.rows, extent.cols,
            extent.channels, ic, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, self.x_zero, self.w_zero, first, last, out,
            (extent.channels * out_item, extent.cols * channels * out_item, channels * out_item), *drain,
        )  # fmt: skip

    def _depthwise(self, tile: _Operands) -> Depthwise:
        p, (extent, _, x, w, acc, out, drain, first, last) = self.problem, tile
        out_item = self.drain.out_type.itemsize
        _, cols = input_extent(p, extent.rows, extent.cols)
        pixel, channels = extent.groups * p.x_type.itemsize, extent.groups * extent.channels
        return Depthwise(
            p.x_type, p.w_type, self.drain.out_type, x, cols * pixel, pixel, w,
            acc, extent.cols * channels * 4, channels * 4,
            extent.rows, extent.cols, extent.groups, extent.channels, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, self.x_zero,
            self.w_zero, first, last, out, extent.cols * channels * out_item, channels * out_item, *drain,
        )  # fmt: skip


def per_element(chain: Chain) -> int:
    """SRAM bytes of the chain's own slots for each output element, operands that are broadcast left out."""
    probe = tuple(min(dim, 64) for dim in chain.shape)
    elements = int(np.prod(probe, dtype=np.int64))
    return total_bytes(chain.slots(probe)) // elements if elements else 0
