"""Reductions over any axes: tiles of the kept dimensions; reduced dimensions are cut only if necessary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from npusim.compiler.buffers import View, collapse, dense_strides, pad4
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable, boxes, share
from npusim.compiler.lower.rows import TiledLowering, insert_axis, levels_of
from npusim.compiler.lower.transfer import Strided, load_items, store_items
from npusim.hw.cost import cost_model
from npusim.isa.functions import Reduce
from npusim.isa.quantised import QuantisedReduce
from npusim.isa.reduction import ACCUMULATOR_BYTES, ReduceTile
from npusim.units import ceil_div


class ReduceLowering(TiledLowering, kind="reduce"):
    """Elements are folded in row-major order of the tensor, so the result does not depend on tiles."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        attrs = self.op.attrs
        self._axes: tuple[int, ...] = tuple(attrs["axes"])
        if not attrs["keepdims"]:
            for axis in self._axes:
                self.out = insert_axis(self.out, axis)
        kept = [axis for axis in range(len(self.x.shape)) if axis not in self._axes]
        # A cut of reduced axes needs a pass over the accumulators for each part. A cut of kept axes costs nothing.
        self._order = (*kept, *self._axes)  # cut kept dimensions first, then reduced ones, outermost first
        # A value in SRAM is read in place: the instruction supports four dimensions of any strides.
        kept_strides = self._kept_strides(self._results(self.x.shape), ACCUMULATOR_BYTES)
        walked, _ = collapse(self.x.shape, self.x.strides, kept_strides)
        self._near = self.x.buffer.on_chip and len(walked) <= _WALKED
        self._tile = self.pick_tile(self.x.shape, self._order)

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        results = prod(size for axis, size in enumerate(tile) if axis not in self._axes)
        out = SlotSpec("out", results * self.out.dtype.itemsize)
        specs = [SlotSpec("acc", results * ACCUMULATOR_BYTES, 1), out]
        return specs if self._near else [SlotSpec("x", prod(tile) * self.x.dtype.itemsize), *specs]

    def computing(self) -> int:
        tiles = prod(ceil_div(dim, size) for dim, size in zip(self.x.shape, self._tile, strict=True))
        nowhere, item = (0, 0, 0, 0), self.x.dtype.itemsize
        elements, results = prod(self._tile), prod(self._results(self._tile))
        walked, dims = (0, 0, results and item, 0), (1, 1, results, elements // max(results, 1))
        fn = Reduce(self.op.attrs["fn"])
        tile = self._instruction(fn, 0, walked, 0, nowhere, dims, True, True, 0, nowhere, 1)
        return tiles * cost_model(self.config).cost(tile.work()).ps

    def _instruction(self, fn: Reduce, *fields: Any) -> ReduceTile:
        dtype, levels = levels_of(self.op)
        fields = (fn, dtype, *fields, *(levels or ()))
        return QuantisedReduce(*fields) if levels else ReduceTile(*fields)

    def moves(self) -> list[View]:
        return [self.out] if self._near else [self.x, self.out]

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        shape, tile = self.x.shape, self._tile
        item = self.out.dtype.itemsize
        reduced_shape = tuple(dim if axis in self._axes else 1 for axis, dim in enumerate(shape))
        reduced_tile = tuple(size if axis in self._axes else 1 for axis, size in enumerate(tile))
        rank = range(len(shape))
        chunks = boxes(reduced_shape, reduced_tile, rank)
        # A result is never split between cores: the order of its elements determines the rounding of a sum.
        for starts, sizes in share(boxes(self._results(shape), self._results(tile), rank), core, cores):
            out, acc = table.next("out"), table.next("acc")
            for low, count in chunks:
                at = tuple(low[axis] if axis in self._axes else starts[axis] for axis in rank)
                extent = tuple(count[axis] if axis in self._axes else sizes[axis] for axis in rank)
                first, last = (low, count) == chunks[0], (low, count) == chunks[-1]
                step, part = Tile(), self.x.slice(at, extent)
                source: Strided
                if self._near:
                    source = part.address, part.strides, part
                else:
                    slot = table.next("x")
                    source = slot.address, dense_strides(extent, self.x.dtype.itemsize), slot
                    step.loads.extend(load_items(source, part))
                results = self._results(extent)
                acc_strides = self._kept_strides(results, ACCUMULATOR_BYTES)
                out_strides = self._kept_strides(results, item)
                step.compute.extend(
                    self._instructions(extent, source, (acc, acc_strides), (out, out_strides), first, last)
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
        self,
        sizes: Sequence[int],
        x: Strided,
        accs: tuple[Slot, Sequence[int]],
        outs: tuple[Slot, Sequence[int]],
        first: bool,
        last: bool,
    ) -> Iterator[Item]:
        """One instruction for up to four dimensions that remain after merging, otherwise one per element of the outer
        ones, in order."""
        (start, walk, resource), (acc, acc_strides), (out, out_strides) = x, accs, outs
        dims, (src, to, res) = collapse(sizes, walk, acc_strides, out_strides)
        cut = max(0, len(dims) - 4)
        # A mean divides by the number of all elements, not of those in the last tile.
        count = prod(self.x.shape[axis] for axis in self._axes)
        fn = Reduce(self.op.attrs["fn"])
        for index in product(*map(range, dims[:cut])):
            reduced = [(i, dim) for i, dim, stride in zip(index, dims, to, strict=False) if not stride]
            # The first instruction that uses an accumulator sets it, the last one finishes it.
            begins = first and all(i == 0 for i, _ in reduced)
            ends = last and all(i == dim - 1 for i, dim in reduced)
            x_at, acc_at, out_at = (
                sum(i * s for i, s in zip(index, strides, strict=False)) for strides in (src, to, res)
            )
            sums = acc.address + acc_at, pad4(to[cut:], 0)
            inner = pad4(src[cut:], 0), pad4(dims[cut:], 1)
            result = out.address + out_at, pad4(res[cut:], 0)
            instruction = self._instruction(fn, *sums, start + x_at, *inner, begins, ends, *result, count)
            yield Item(instruction, (resource,), (acc, out) if ends else (acc,))


_WALKED = 4
"""Dimensions that an instruction supports."""
