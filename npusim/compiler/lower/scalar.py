"""Operators of the scalar unit: top-k, and gathers and scatters of single elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from npusim.compiler.buffers import View
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable, boxes, outer_row_inner, share
from npusim.compiler.lower.rows import TiledLowering
from npusim.compiler.lower.transfer import copy_items, load_packed, store_packed
from npusim.graph import Op, Tensor
from npusim.isa import scalar

_Operand = tuple[int, tuple[int, int, int], Slot]
"""A tile of an operand: (address, strides of (outer, row, inner), slot)."""


def _topk(op: Op, x: _Operand, out: _Operand, indices: _Operand, outer: int, inner: int) -> Iterator[Item]:
    dims = outer, op.input(0).shape[op.attrs["axis"]], inner
    instruction = scalar.TopK(
        op.input(0).dtype, *out[:2], *indices[:2], *x[:2], dims, op.attrs["k"], op.attrs["largest"]
    )
    yield Item(instruction, (x[2],), (out[2], indices[2]))


def _gather(op: Op, x: _Operand, index: _Operand, out: _Operand, outer: int, inner: int) -> Iterator[Item]:
    data, indices, axis = op.input(0), op.input(1), op.attrs["axis"]
    dims = outer, indices.shape[axis], inner
    instruction = scalar.GatherElements(
        data.dtype.itemsize, *out[:2], *x[:2], indices.dtype, *index[:2], dims, data.shape[axis]
    )
    yield Item(instruction, (x[2], index[2]), (out[2],))


def _scatter(
    op: Op, x: _Operand, index: _Operand, updates: _Operand, out: _Operand, outer: int, inner: int
) -> Iterator[Item]:
    data, indices, axis = op.input(0), op.input(1), op.attrs["axis"]
    size = outer * data.shape[axis] * inner * data.dtype.itemsize
    # Elements without an index keep their value. Both tiles are packed alike, so they are copied as plain bytes.
    yield from copy_items((out[0], (1,), out[2]), (x[0], (1,), x[2]), (size,), 1)
    dims, reduction = (outer, indices.shape[axis], inner), scalar.REDUCTIONS.index(op.attrs["reduction"])
    instruction = scalar.Scatter(
        data.dtype, *out[:2], *updates[:2], indices.dtype, *index[:2], dims, data.shape[axis], reduction
    )
    yield Item(instruction, (x[2], index[2], updates[2]), (out[2],))


_ITEMS: dict[str, Callable[..., Iterator[Item]]] = {
    "topk": _topk,
    "gather_elements": _gather,
    "scatter_elements": _scatter,
}
"""The functions that make the instructions for a tile, from its operands, its results, and their outer and inner
sizes."""


class ScalarLowering(TiledLowering, kinds=_ITEMS):
    """Whole rows in SRAM, element by element on the scalar unit."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        self._axis = self.op.attrs["axis"]
        # A gather has as many results as indices. Each tile contains the whole rows that these refer to.
        self._shape = self.op.input(1).shape if self.op.kind == "gather_elements" else self.x.shape
        self._tile = self.pick_tile(self._shape, range(len(self._shape)), (self._axis,))

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
        if self.op.kind == "topk":
            row: int = tile[self._axis]
            return prod(tile) * row.bit_length()
        longest: int = max(tensor.shape[self._axis] for tensor in self.op.inputs if tensor is not None)
        return prod(tile) // max(int(tile[self._axis]), 1) * longest

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        tiles = boxes(self._shape, self._tile, range(len(self._tile)))
        for starts, sizes in share(tiles, core, cores):
            step, order, operands = Tile(), range(len(sizes)), []
            outer, _, inner = outer_row_inner(sizes, self._axis)
            for index in range(len(self.op.inputs)):
                operand, part = self._operand(self.op.input(index), table.next(f"in{index}"), starts, sizes)
                step.loads.extend(load_packed(operand[2], part, order))
                operands.append(operand)
            for index, tensor in enumerate(self.op.outputs):
                operand, part = self._operand(tensor, table.next(f"out{index}"), starts, sizes)
                step.stores.extend(store_packed(part, operand[2], order))
                operands.append(operand)
            step.compute.extend(_ITEMS[self.op.kind](self.op, *operands, outer, inner))
            yield step

    def _operand(
        self, tensor: Tensor, slot: Slot, starts: Sequence[int], sizes: Sequence[int]
    ) -> tuple[_Operand, View]:
        """A tile of an operand in a slot, and its view in memory."""
        extent = tuple(tensor.shape[a] if a == self._axis else size for a, size in enumerate(sizes))
        _, length, inner = outer_row_inner(extent, self._axis)
        item = tensor.dtype.itemsize
        strides = length * inner * item, inner * item, item
        return (slot.address, strides, slot), self.context.view(tensor).slice(starts, extent)
