"""Padding: constants are written by the copy itself; other modes copy elements within a tile in SRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from npusim.compiler.buffers import ordered_strides
from npusim.compiler.codegen.issue import Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable, boxes, share, small_tile
from npusim.compiler.lower.movement import CopyLowering, CopyPart, copy_ways, cut_copy
from npusim.compiler.lower.transfer import Strided, copy_items
from npusim.dtypes import DType, float32_to_bfloat16
from npusim.errors import CompileError

Piece = tuple[int, int, int, int]
"""(target, source, step, count): the ``count`` output elements from ``target`` on are the input elements ``source``,
``source + step``, ..."""


def pieces(mode: str, size: int, before: int, after: int, start: int, end: int) -> list[Piece]:
    """The positions of elements [start, end) of an axis of ``size`` in the output: the unpadded one first, then those
    in the padding."""
    found = [(before + start, start, 1, end - start)]
    behind = before + size
    if mode == "edge":
        if start == 0:
            found.append((0, 0, 0, before))
        if end == size:
            found.append((behind, size - 1, 0, after))
    elif mode == "reflect":
        low, high = max(start, 1), min(end, before + 1)
        found.append((before - (high - 1), high - 1, -1, high - low))
        low, high = max(start, size - 1 - after), min(end, size - 1)
        found.append((behind + size - 1 - high, high - 1, -1, high - low))
    else:
        low = max(start, size - before)
        found.append((low - (size - before), low, 1, end - low))
        high = min(end, after)
        found.append((behind + start, start, 1, high - start))
    return [piece for piece in found if piece[-1] > 0]


class PadLowering(CopyLowering, kind="pad"):
    """Constant padding is written by the copy itself.

    For other modes, a tile of the input is loaded with space for its padding, which is filled within SRAM: from DRAM, a
    few elements of a row would take a burst each. Only the outermost padded dimension may be cut into tiles; rows that
    appear twice along it are stored twice.
    """

    def __init__(self, context: Context, group: Group) -> None:
        self._op = group.ops[0]
        super().__init__(context, group)
        x, out = context.view(self._op.input(0)), context.view(self._op.output)
        self._order = out.order()
        # In the memory order of the output, so that a part is one address range.
        self._x, self._out = x.permute(self._order), out.permute(self._order)
        self._before, self._after = (
            [self._op.attrs[side][axis] for axis in self._order] for side in ("before", "after")
        )
        padded = [axis for axis, ends in enumerate(zip(self._before, self._after, strict=True)) if any(ends)]
        self._inner = padded[1:]
        self._tile = None
        if self._op.attrs["mode"] != "constant" and (self._inner or not self._same_order()):
            self._tile = self._pick()

    def pairs(self) -> list[CopyPart]:
        op = self._op
        if op.attrs["mode"] != "constant":
            return []
        x, out = self.context.view(op.input(0)), self.context.view(op.output)
        ends = tuple(op.attrs["before"]), tuple(op.attrs["after"])
        return [CopyPart(x, out, *ends, bit_pattern(op.attrs["value"], x.dtype))]

    def _same_order(self) -> bool:
        """Whether input and output have the same memory order."""
        return self._x.order() == tuple(range(len(self._order)))

    def _pick(self) -> tuple[int, ...] | None:
        """The tile of the input; None if it does not fit, or if both sides are in SRAM, where short runs are cheap."""
        if self._x.buffer.on_chip and self._out.buffer.on_chip:
            return None
        try:
            return small_tile(self, self._x.shape, range(len(self._order)), self._slots, self._inner)
        except CompileError:
            return None

    def _slots(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        return [SlotSpec("x", prod(self._padded(tile)) * self._x.dtype.itemsize)]

    def _padded(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a tile with its padding, except that of the outermost padded dimension."""
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
        """Copy every part of the output from its elements in the input."""
        parts = []
        for box in cut_copy(self._x, copy_ways(self.config)):
            ends = zip(*box, strict=True)
            parts += list(product(*(self._pieces(axis, at, at + size) for axis, (at, size) in enumerate(ends))))
        for part in share(parts, core, cores):
            targets, sources, steps, counts = ([piece[field] for piece in part] for field in range(4))
            to, source = self._out.slice(targets, counts), self._x.slice(sources, counts, steps)
            walks = (to.address, to.strides, to), (source.address, source.strides, source)
            yield Tile(loads=copy_items(*walks, to.shape, to.dtype.itemsize))

    def _staged(self, slot: Slot, starts: Sequence[int], sizes: Sequence[int]) -> Tile:
        """Load a tile of the input with space for its padding, fill that within SRAM, and store all of it."""
        part, item, padded = self._x.slice(starts, sizes), self._x.dtype.itemsize, self._padded(sizes)
        packed = ordered_strides(padded, range(len(padded)), item)
        # The filled part of the tile grows outwards from the input, one dimension after another.
        low = [self._before[axis] if axis in self._inner else 0 for axis in range(len(sizes))]
        extent = list(sizes)
        step = Tile(loads=copy_items(_walk(slot, packed, low), (part.address, part.strides, part), part.shape, item))
        for axis in reversed(self._inner):
            for target_at, source_at, stride, count in self._pieces(axis, 0, sizes[axis])[1:]:
                dims, to, source, steps = extent[:], low[:], low[:], [1] * len(low)
                dims[axis], to[axis], steps[axis] = count, target_at, stride
                source[axis] = self._before[axis] + source_at
                step.compute += copy_items(_walk(slot, packed, to), _walk(slot, packed, source, steps), dims, item)
            low[axis], extent[axis] = 0, padded[axis]
        for spans in product(*(self._spans(axis, *each) for axis, each in enumerate(zip(starts, sizes, strict=True)))):
            targets, sources, strides, counts = ([piece[field] for piece in spans] for field in range(4))
            target, source_walk = self._out.slice(targets, counts), _walk(slot, packed, sources, strides)
            step.stores += copy_items((target.address, target.strides, target), source_walk, target.shape, item)
        return step

    def _spans(self, axis: int, start: int, size: int) -> list[Piece]:
        """The pieces of the output along an axis that a tile is stored to. Sources are relative to the tile."""
        if axis in self._inner:
            return [(0, 0, 1, self._before[axis] + size + self._after[axis])]
        pieces_of_tile = self._pieces(axis, start, start + size)
        return [(target, source - start, step, count) for target, source, step, count in pieces_of_tile]


def _walk(slot: Slot, packed: Sequence[int], corner: Sequence[int], steps: Sequence[int] | None = None) -> Strided:
    """A part of a tile in a slot: every ``steps``-th element of each dimension, from ``corner`` on."""
    strides = packed if steps is None else [stride * step for stride, step in zip(packed, steps, strict=True)]
    return slot.address + sum(at * stride for at, stride in zip(corner, packed, strict=True)), strides, slot


def bit_pattern(value: Any, dtype: DType) -> int:
    """A value's bytes as an integer, low byte first."""
    if dtype is DType.BFLOAT16:
        raw = float32_to_bfloat16(np.array([value], np.float32))
    else:
        raw = np.array([value]).astype(dtype.storage)
    return int.from_bytes(raw.tobytes(), "little")
