"""Reductions over any axes: tiles of the kept dimensions, the reduced ones cut only if they must be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from npusim.compiler.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable, boxes, share
from npusim.compiler.lower.rows import TiledLowering, insert_axis
from npusim.compiler.lower.transfer import load_items, store_items
from npusim.compiler.schedule import Item, Slot, Tile
from npusim.compiler.values import collapse, dense_strides, pad4
from npusim.isa.functions import Reduce
from npusim.isa.reduction import ACCUMULATOR_BYTES, ReduceTile


class ReduceLowering(TiledLowering, kind="reduce"):
    """Elements are folded in the row-major order of the tensor: the result does not depend on tiles."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        attrs = self.op.attrs
        self._axes: tuple[int, ...] = tuple(attrs["axes"])
        if not attrs["keepdims"]:
            for axis in self._axes:
                self.out = insert_axis(self.out, axis)
        kept = [axis for axis in range(len(self.x.shape)) if axis not in self._axes]
        # A cut of reduced axes needs a pass over the accumulators for each part; a cut of kept ones costs nothing.
        self._order = (*kept, *self._axes)  # cut kept dimensions first, reduced ones outermost first
        self._tile = self.pick_tile(self.x.shape, self._order)

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        results = prod(size for axis, size in enumerate(tile) if axis not in self._axes)
        item = self.x.dtype.itemsize
        return [
            SlotSpec("x", prod(tile) * item),
            SlotSpec("acc", results * ACCUMULATOR_BYTES, 1),
            SlotSpec("out", results * item),
        ]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        shape, tile = self.x.shape, self._tile
        item = self.x.dtype.itemsize
        reduced_shape = tuple(dim if axis in self._axes else 1 for axis, dim in enumerate(shape))
        reduced_tile = tuple(size if axis in self._axes else 1 for axis, size in enumerate(tile))
        rank = range(len(shape))
        chunks = boxes(reduced_shape, reduced_tile, rank)
        # Cores share results and never the elements of one: their order is part of what a sum means.
        for starts, sizes in share(boxes(self._results(shape), self._results(tile), rank), core, cores):
            out, acc = table.next("out"), table.next("acc")
            for low, count in chunks:
                at = tuple(low[axis] if axis in self._axes else starts[axis] for axis in rank)
                extent = tuple(count[axis] if axis in self._axes else sizes[axis] for axis in rank)
                first, last = (low, count) == chunks[0], (low, count) == chunks[-1]
                step, x = Tile(), table.next("x")
                packed = dense_strides(extent, item)
                step.loads.extend(load_items((x.address, packed, x), self.x.slice(at, extent)))
                results = self._results(extent)
                acc_strides = self._kept_strides(results, ACCUMULATOR_BYTES)
                out_strides = self._kept_strides(results, item)
                step.compute.extend(
                    self._instructions(extent, packed, acc_strides, out_strides, x, acc, out, first, last)
                )
                if last:
                    target = self.out.slice([0 if axis in self._axes else at[axis] for axis in rank], results)
                    step.stores.extend(store_items(target, (out.address, dense_strides(results, item), out)))
                yield step

    def _results(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(1 if axis in self._axes else size for axis, size in enumerate(sizes))

    def _kept_strides(self, results: Sequence[int], item: int) -> tuple[int, ...]:
        dense = dense_strides(results, item)
        return tuple(0 if axis in self._axes else stride for axis, stride in enumerate(dense))

    def _instructions(
        self, sizes: Sequence[int], packed: Sequence[int], acc_strides: Sequence[int], out_strides: Sequence[int],
        x: Slot, acc: Slot, out: Slot, first: bool, last: bool,
    ) -> Iterator[Item]:  # fmt: skip
        """One for up to four dimensions that remain after merging; outer ones beyond them one by one, in order."""
        dims, (src, to, res) = collapse(sizes, packed, acc_strides, out_strides)
        cut = max(0, len(dims) - 4)
        # A mean divides by all elements, not by those of the tile that happens to be last.
        count = prod(self.x.shape[axis] for axis in self._axes)
        fn = Reduce(self.op.attrs["fn"])
        for index in product(*map(range, dims[:cut])):
            reduced = [(i, dim) for i, dim, stride in zip(index, dims, to, strict=False) if not stride]
            # An accumulator is set by the first instruction that meets it and finished by the last one.
            begins = first and all(i == 0 for i, _ in reduced)
            ends = last and all(i == dim - 1 for i, dim in reduced)
            x_at, acc_at, out_at = (
                sum(i * s for i, s in zip(index, strides, strict=False)) for strides in (src, to, res)
            )
            instruction = ReduceTile(
                fn, self.x.dtype, acc.address + acc_at, pad4(to[cut:], 0), x.address + x_at, pad4(src[cut:], 0),
                pad4(dims[cut:], 1), begins, ends, out.address + out_at, pad4(res[cut:], 0), count,
            )  # fmt: skip
            yield Item(instruction, (x,), (acc, out) if ends else (acc,))
