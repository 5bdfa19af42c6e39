"""Elementwise operators without a matrix operator in front: one chain on tiles of the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from operator import add, and_

from npusim.compiler.buffers import Moves, View, row_axis
from npusim.compiler.codegen.issue import Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    boxes,
    loading,
    share,
    small_tile,
    twin,
)
from npusim.compiler.lower.chain import Chain
from npusim.compiler.lower.ranges import emit_ranges, range_slots
from npusim.compiler.lower.transfer import store_packed
from npusim.hw.memory import constants_side
from npusim.hw.units import dma
from npusim.program import CONSTANTS
from npusim.units import ceil_div


class Elementwise(Lowering):
    """A group without an anchor: load the operands of a tile, compute, store."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._out = context.view(group.outputs[0])
        self._rows: tuple[int, int, int] | None = None
        self._chain = Chain(context, group.chain, self._out, self._out.order(), None)
        axis = row_axis(self._out)
        shape = list(self._out.shape)
        if context.rows:
            assert axis is not None
            shape[0], shape[axis] = 1, min(context.rows, shape[axis])
        self._tile = small_tile(
            self, shape, self._chain.order, self._slots_for, inner=(self._chain.order or (None,))[-1]
        )

    def _slots_for(self, tile: Sequence[int]) -> list[SlotSpec]:
        return self._chain.slots(tile) + range_slots(self.group)

    def slots(self) -> list[SlotSpec]:
        return self._slots_for(self._tile)

    def follow(self, first: Lowering) -> None:
        assert isinstance(first, Elementwise)
        self._tile = first._tile

    def computing(self) -> int:
        return self._tiles() * self._chain.estimate(prod(self._tile))

    def banked(self) -> int:
        return prod(self._out.shape) * self._chain.epilogue().banks // 1024

    def _tiles(self) -> int:
        return prod(ceil_div(dim, size) for dim, size in zip(self._out.shape, self._tile, strict=True))

    def moving(self, views: Iterable[View]) -> int:
        """The time of all copies, plus the latency before the bytes of each load arrive: many small tiles are slow.

        Broadcast operands that tiles cut are loaded again for each tile.
        """
        cut = [size < dim for dim, size in zip(self._out.shape, self._tile, strict=True)]
        # Operands that no cut divides are loaded once.
        parted = [view for view in self._chain.loaded() if any(map(and_, cut, map(bool, view.strides)))]
        again = 0
        for view in parted:
            if not all(view.strides):
                sizes = zip(self._tile, self._out.shape, view.strides, strict=True)
                part, whole = map(prod, zip(*((size, dim) for size, dim, stride in sizes if stride), strict=True))
                nbytes = max(0, self._tiles() * part - whole) * view.dtype.itemsize
                again += self._bringing(view, nbytes)
        return super().moving(views) + again + self._tiles() * len(parted) * dma.latency_ps(self.config)

    def _bringing(self, view: View, nbytes: int) -> int:
        if view.buffer.on_chip:
            return self.copying(nbytes)
        constant = view.buffer.region == CONSTANTS
        return loading(nbytes, constants_side(self.config) if constant else self.config)

    def moves(self) -> list[View]:
        return [view for view in (*self._chain.operands(), self._out) if not view.buffer.on_chip]

    def stripe(self, image: int, rows: tuple[int, int], moved: Moves) -> Elementwise:
        lowering = twin(self)
        lowering._rows, lowering._out, lowering._chain = (
            (image, *rows),
            self._out.moved(moved),
            self._chain.moved(moved),
        )
        return lowering

    def _boxes(self) -> list[Box]:
        if self._rows is None:
            return boxes(self._out.shape, self._tile, self._chain.order)
        axis, (image, first, end) = row_axis(self._out), self._rows
        corner = [image, 0, 0, 0]
        shape = [1, *self._out.shape[1:]]
        assert axis is not None
        corner[axis], shape[axis] = first, end - first
        return [
            (tuple(map(add, corner, starts)), sizes) for starts, sizes in boxes(shape, self._tile, self._chain.order)
        ]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        mine = share(self._boxes(), core, cores)
        for number, box in enumerate(mine):
            step = Tile()
            slot = self._chain.emit(step, table, box)
            part = self._out.slice(*box)
            if slot is not None:
                step.stores.extend(store_packed(part, slot, self._chain.order))
            if self.group.sides:
                tile = self._chain.result(part, slot, box[1])
                ends = not number, number == len(mine) - 1
                emit_ranges(self.group, self.context, step, table, tile, box[1], ends)
            yield step
