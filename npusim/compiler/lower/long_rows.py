"""Rows that are longer than SRAM: they are processed in parts, with a small state per row that stays in SRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from npusim.compiler.buffers import View
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, Lowering, SlotSpec, SlotTable, boxes, refuse_size, share, total_bytes
from npusim.compiler.lower.chain import MAIN
from npusim.compiler.lower.rows import RowLowering
from npusim.compiler.lower.transfer import load_packed, store_packed
from npusim.errors import CompileError
from npusim.graph import Op
from npusim.hw.cost import cost_model
from npusim.isa.row_parts import ARGUMENTS, GATHERING, STATE_BYTES, Part, RowPart
from npusim.ops.base import Attrs
from npusim.units import ceil_div

SOFTMAX_BLOCK = 128
"""A softmax may only be cut at multiples of this many elements; see ``npusim/kernels/_rows.pyx``."""


def passes(op: Op) -> tuple[Part, ...]:
    """The passes over all parts of a row; empty for a kind that needs whole rows."""
    attrs = op.attrs
    match op.kind:
        case "softmax" if attrs["masked"]:
            return Part.SOFTMAX_TOTAL, Part.MASKED_SOFTMAX
        case "softmax":
            return Part.SOFTMAX_TOTAL, Part.LOG_SOFTMAX if attrs["log"] else Part.SOFTMAX
        case "normalize" if attrs["mode"] == "rms":
            return Part.SQUARES, Part.RMS_NORMALIZE
        case "normalize":
            return Part.SUM, Part.CENTRED_SQUARES, Part.NORMALIZE
        case "cumsum":
            return (Part.CUMSUM,)
        case "cumprod":
            return (Part.CUMPROD,)
        case "arg_reduce":
            return (Part.ARG_MAX if attrs["fn"] == "max" else Part.ARG_MIN,)
    return ()


def row_lowering(context: Context, group: Group) -> Lowering:
    """Lower to tiles of whole rows, or to parts of rows if one row is larger than SRAM. Raises CompileError."""
    try:
        return RowLowering(context, group)
    except CompileError:
        assert group.anchor is not None
        if not passes(group.anchor) or not _is_longer(context, group.anchor):
            raise
    return LongRowLowering(context, group)


def _is_longer(context: Context, op: Op) -> bool:
    """Whether the slots for one row exceed the device's SRAM. If only the current ``room`` is too small, the planner
    enlarges it."""
    x = op.input(0)
    end = len(x.shape) if op.kind == "normalize" else op.attrs["axis"] + 1
    row = prod(x.shape[op.attrs["axis"] : end])
    out = 0 if op.kind == "arg_reduce" else row * op.output.dtype.itemsize
    return 2 * (row * x.dtype.itemsize + out) > context.config.sram.bytes // 2


class LongRowLowering(RowLowering):
    """Every pass loads each part of some rows once. What it computes per row stays in SRAM for the next pass."""

    def pick_tile(self, shape: Sequence[int], order: Sequence[int], whole: Sequence[int] = ()) -> tuple[int, ...]:
        others = [axis for axis in order if axis not in self._row]
        # Parts are runs of the row, so its outer axes are cut first.
        tile = list(super().pick_tile(shape, (*others, *self._row)))
        if self.op.kind == "softmax" and tile[self._axis] < shape[self._axis]:
            blocks = max(1, tile[self._axis] // SOFTMAX_BLOCK)
            tile[self._axis] = blocks * SOFTMAX_BLOCK
            if blocks == 1:  # parts of a single row, if there is no space for more rows
                smallest = [SOFTMAX_BLOCK if axis == self._axis else 1 for axis in range(len(tile))]
                needed = [total_bytes(self.slots_for(tuple(each))) for each in (tile, smallest)]
                if needed[1] > self.context.room:
                    raise refuse_size(self.group, needed[1], self.context.room)
                tile = tile if needed[0] <= self.context.room else smallest
        return tuple(tile)

    def slots_for(self, tile: tuple[int, ...]) -> list[SlotSpec]:
        rows = prod(size for axis, size in enumerate(tile) if axis not in self._row)
        return [*super().slots_for(tile), SlotSpec("state", rows * STATE_BYTES)]

    def computing(self) -> int:
        tiles = prod(ceil_div(dim, size) for dim, size in zip(self.x.shape, self._tile, strict=True))
        cost, dims = cost_model(self.config), self._dims(self._tile)
        each = sum(cost.cost(self._instruction(part, dims, 0).work()).ps for part in passes(self.op))
        return tiles * (each + (self._chain.estimate(prod(self._tile)) if self._chain else 0))

    def moves(self) -> list[View]:
        return super().moves() + ([] if self._near_x else [self.x] * (len(passes(self.op)) - 1))

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        shape, rank = self.x.shape, range(len(self.x.shape))
        kept = [1 if axis in self._row else dim for axis, dim in enumerate(shape)]
        kept_tile = [1 if axis in self._row else size for axis, size in enumerate(self._tile)]
        cut = boxes(
            [dim if axis in self._row else 1 for axis, dim in enumerate(shape)],
            [size if axis in self._row else 1 for axis, size in enumerate(self._tile)],
            rank,
        )
        parts = list(cut)[:: -1 if self.op.attrs.get("reverse") else 1]
        # Cores share rows, but never the parts of one, which are processed in sequence.
        for starts, sizes in share(boxes(kept, kept_tile, self._order), core, cores):
            state = table.next("state")
            for part in passes(self.op):
                for number, (low, count) in enumerate(parts):
                    at = tuple(low[axis] if axis in self._row else starts[axis] for axis in rank)
                    extent = tuple(count[axis] if axis in self._row else sizes[axis] for axis in rank)
                    # The first pass initialises the state, later ones continue with it.
                    first = not number and part is passes(self.op)[0]
                    yield self._step(table, part, at, extent, state, first, number == len(parts) - 1)

    def _step(
        self, table: SlotTable, part: Part, starts: tuple[int, ...], sizes: tuple[int, ...], state: Slot, first: bool,
        last: bool,
    ) -> Tile:  # fmt: skip
        step, source = Tile(), self.x.slice(starts, sizes)
        x = self._rows_at(source) if self._near_x else None
        if x is None:
            x = self._packed_rows(slot := table.next("x"), sizes, source.dtype)
            step.loads.extend(load_packed(slot, source, self._order))
        single = part in ARGUMENTS
        writes = last if single else part not in GATHERING
        out_sizes = tuple(1 if single and axis == self._axis else size for axis, size in enumerate(sizes))
        out_starts = tuple(0 if single and axis == self._axis else start for axis, start in enumerate(starts))
        target, main, out = self.out.slice(out_starts, out_sizes), None, None
        if writes:
            out = self._rows_at(target) if self._near_out else None
            if out is None:
                main = table.next(MAIN)
                out = self._packed_rows(main, out_sizes, self._type)
        to = out[:2] if out else (state.address, (0, 0, 0))
        operands = {
            "dst": to[0],
            "dst_strides": to[1],
            "src": x[0],
            "src_strides": x[1],
            "state": state.address,
        }
        item = self._instruction(part, self._dims(sizes), self._position(starts), first=first, last=last, **operands)
        resources = (state,) if out is None else (state, out[2])
        step.compute.append(Item(item, (x[2], state), resources))
        if writes and self._chain is not None:
            assert main is not None
            main = self._chain.emit(step, table, (starts, sizes), main)
        if main is not None:
            step.stores.extend(store_packed(target, main, self._order))
        return step

    def _position(self, starts: Sequence[int]) -> int:
        """The index within its row of a part's first element."""
        position = 0
        for axis in self._row:
            position = position * self.x.shape[axis] + starts[axis]
        return position

    def _instruction(self, part: Part, dims: tuple[int, int, int], at: int, **given: Any) -> RowPart:
        nowhere, attrs = (0, 0, 0), self.op.attrs
        fields: dict[str, Any] = {
            "dtype": self.x.dtype, "dst": 0, "dst_strides": nowhere, "src": 0, "src_strides": nowhere,
            "dims": dims, "fn": part, "first": True, "last": True, "state": 0,
            "count": prod(self.x.shape[axis] for axis in self._row), "at": at,
            "epsilon": _epsilon(attrs), "exclusive": bool(attrs.get("exclusive")),
            "reverse": bool(attrs.get("reverse")), "select_last": bool(attrs.get("select_last")),
        }  # fmt: skip
        return RowPart(**{**fields, **given})


def _epsilon(attrs: Attrs) -> float:
    return float(attrs.get("epsilon", 0.0))
