"""Padding: with a constant by the copy itself, with elements of the tensor from a tile of it in SRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from npusim.compiler.buffers import ordered_strides
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable, boxes, share, small_tile
from npusim.compiler.lower.movement import CopyLowering, Move, copy_ways, cut_copy
from npusim.compiler.lower.transfer import copy_items
from npusim.dtypes import DType, float32_to_bfloat16
from npusim.errors import CompileError


class Piece(NamedTuple):
    """``places`` of the output from ``target`` on hold the elements ``source``, ``source + step``, ..."""

    target: int
    source: int
    step: int
    places: int


def pieces(mode: str, size: int, before: int, after: int, start: int, end: int) -> list[Piece]:
    """Where elements [start, end) of an axis of ``size`` go: to their own place first, then into the padding."""
    found = [Piece(before + start, start, 1, end - start)]
    behind = before + size
    if mode == "edge":
        if start == 0:
            found.append(Piece(0, 0, 0, before))
        if end == size:
            found.append(Piece(behind, size - 1, 0, after))
    elif mode == "reflect":
        low, high = max(start, 1), min(end, before + 1)
        found.append(Piece(before - (high - 1), high - 1, -1, high - low))
        low, high = max(start, size - 1 - after), min(end, size - 1)
        found.append(Piece(behind + size - 1 - high, high - 1, -1, high - low))
    else:
        low = max(start, size - before)
        found.append(Piece(low - (size - before), low, 1, end - low))
        high = min(end, after)
        found.append(Piece(behind + start, start, 1, high - start))
    return [piece for piece in found if piece.places > 0]


class PadLowering(CopyLowering, kind="pad"):
    """Constant padding is written by the copy itself.

    For the other modes a tile of the input is loaded between places for its padding, which are filled within SRAM: from
    DRAM a few elements of a row would take a burst each. Only the outermost of the padded dimensions may be cut; rows
    that are wanted twice along it are stored twice.
    """

    def __init__(self, context: Context, group: Group) -> None:
        self._op = group.ops[0]
        super().__init__(context, group)
        x, out = context.view(self._op.input(0)), context.view(self._op.output)
        self._order = out.order()
        # In the order of the output's memory, so that a part is one range of addresses.
        self._x, self._out = x.permute(self._order), out.permute(self._order)
        self._before, self._after = (
            [self._op.attrs[side][axis] for axis in self._order] for side in ("before", "after")
        )
        padded = [axis for axis, ends in enumerate(zip(self._before, self._after, strict=True)) if any(ends)]
        self._inner = padded[1:]
        self._tile = None
        if self._op.attrs["mode"] != "constant" and (self._inner or not self._same_order()):
            self._tile = self._pick()

    def pairs(self) -> list[Move]:
        op = self._op
        if op.attrs["mode"] != "constant":
            return []
        x, out = self.context.view(op.input(0)), self.context.view(op.output)
        ends = tuple(op.attrs["before"]), tuple(op.attrs["after"])
        return [Move(x, out, *ends, bit_pattern(op.attrs["value"], x.dtype))]

    def _same_order(self) -> bool:
        """Whether single elements of both sides are next to each other in memory along the same dimension."""
        return self._x.order() == tuple(range(len(self._order)))

    def _pick(self) -> tuple[int, ...] | None:
        """The tile of the input; None if it does not fit, or if nothing passes a bus where elements are dear."""
        if self._x.buffer.on_chip and self._out.buffer.on_chip:
            return None
        try:
            return small_tile(self, self._x.shape, range(len(self._order)), self._slots, self._inner)
        except CompileError:
            return None

    def _slots(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        return [SlotSpec("x", prod(self._padded(tile)) * self._x.dtype.itemsize)]

    def _padded(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a tile with its padding, that of the outermost dimension left out."""
        return tuple(
            self._before[axis] + size + self._after[axis] if axis in self._inner else size
            for axis, size in enumerate(sizes)
        )

    def slots(self) -> list[SlotSpec]:
        return self._slots(self._tile) if self._tile else super().slots()

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        if self._op.attrs["mode"] == "constant":
            yield from super().steps(table, core, cores)
        elif self._tile is None:
            yield from self._direct(core, cores)
        else:
            for starts, sizes in share(boxes(self._x.shape, self._tile, range(len(self._order))), core, cores):
                yield self._staged(table.next("x"), starts, sizes)

    def _pieces(self, axis: int, start: int, end: int) -> list[Piece]:
        return pieces(self._op.attrs["mode"], self._x.shape[axis], self._before[axis], self._after[axis], start, end)

    def _direct(self, core: int, cores: int) -> Iterator[Tile]:
        """Every part of the output from where its elements are."""
        parts = []
        for box in cut_copy(self._x, copy_ways(self.config)):
            ends = zip(*box, strict=True)
            parts += list(product(*(self._pieces(axis, at, at + size) for axis, (at, size) in enumerate(ends))))
        for part in share(parts, core, cores):
            to = self._out.slice([p.target for p in part], [p.places for p in part])
            source = self._x.slice([p.source for p in part], to.shape, [p.step for p in part])
            yield Tile(loads=copy_items(
                (to.address, to.strides, to), (source.address, source.strides, source), to.shape, to.dtype.itemsize
            ))  # fmt: skip

    def _staged(self, slot: Slot, starts: Sequence[int], sizes: Sequence[int]) -> Tile:
        item, padded = self._x.dtype.itemsize, self._padded(sizes)
        strides = ordered_strides(padded, range(len(padded)), item)
        # What has been made so far, from the first element of the tile itself outwards.
        low = [self._before[axis] if axis in self._inner else 0 for axis in range(len(sizes))]
        extent = list(sizes)

        def place(corner: Sequence[int]) -> int:
            return slot.address + sum(at * stride for at, stride in zip(corner, strides, strict=True))

        def copy(to: Sequence[int], source: Sequence[int], steps: Sequence[int], dims: Sequence[int]) -> list[Item]:
            walk = [stride * step for stride, step in zip(strides, steps, strict=True)]
            return copy_items((place(to), strides, slot), (place(source), walk, slot), dims, item)

        part = self._x.slice(starts, sizes)
        step = Tile(loads=copy_items(
            (place(low), strides, slot), (part.address, part.strides, part), part.shape, item
        ))  # fmt: skip
        for axis in reversed(self._inner):
            for piece in self._pieces(axis, 0, sizes[axis])[1:]:
                dims = [piece.places if a == axis else size for a, size in enumerate(extent)]
                to = [piece.target if a == axis else at for a, at in enumerate(low)]
                source = [self._before[axis] + piece.source if a == axis else at for a, at in enumerate(low)]
                step.compute.extend(copy(to, source, [piece.step if a == axis else 1 for a in range(len(dims))], dims))
            low[axis], extent[axis] = 0, padded[axis]
        spans = [
            [Piece(0, 0, 1, padded[axis])]
            if axis in self._inner
            else [p._replace(source=p.source - start) for p in self._pieces(axis, start, start + size)]
            for axis, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]
        for piece_of in product(*spans):
            target = self._out.slice([p.target for p in piece_of], [p.places for p in piece_of])
            walk = [stride * p.step for stride, p in zip(strides, piece_of, strict=True)]
            step.stores.extend(copy_items(
                (target.address, target.strides, target), (place([p.source for p in piece_of]), walk, slot),
                target.shape, item,
            ))  # fmt: skip
        return step


def bit_pattern(value: Any, dtype: DType) -> int:
    """A value's bytes as an integer, the low byte first."""
    if dtype is DType.BFLOAT16:
        raw = float32_to_bfloat16(np.array([value], np.float32))
    else:
        raw = np.array([value]).astype(dtype.storage)
    return int.from_bytes(raw.tobytes(), "little")
