"""Routines: operands are loaded to SRAM, one instruction processes each piece, results are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    boxes,
    refuse_elements,
    share,
    total_bytes,
)
from npusim.compiler.lower.transfer import load_packed, store_packed
from npusim.errors import CompileError
from npusim.graph import Tensor
from npusim.isa.base import MAX_ROUTINE_STEPS
from npusim.isa.routine import Operand, routine_instruction
from npusim.ops.routine import input_specs, routine_of
from npusim.routines import Spec
from npusim.units import ceil_div

_PIECE_BYTES = 8 << 10
"""The cost of one more piece when pieces are chosen, in bytes of traffic."""

Axes = tuple[int | None, ...]
"""For each cut, the axis of an operand that it divides, or None."""


class RoutineLowering(Lowering, kind="routine"):
    """A routine, divided into as few pieces as SRAM and the number of cores allow."""

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        self._routine = routine_of(self.op.attrs)
        inputs = input_specs(self.op.inputs)
        cuts = self._routine.cuts(inputs, dict(self.op.attrs["params"]))
        self._inputs = [(self.op.input(i), tuple(cut.inputs[i] for cut in cuts)) for i in range(len(inputs))]
        self._outputs = [(tensor, tuple(cut.outputs[i] for cut in cuts)) for i, tensor in enumerate(self.op.outputs)]
        self._extents = tuple(self._extent(number) for number in range(len(cuts)))
        self._tile = self._pick()

    def _extent(self, number: int) -> int:
        operands: list[tuple[Tensor, Axes]] = [*self._inputs, *self._outputs]
        # Routines come from other packages, so their cuts are checked against the operands.
        lengths = {tensor.shape[axis] for tensor, axes in operands if (axis := axes[number]) is not None}
        if len(lengths) != 1:
            raise CompileError(
                f"{self.group.name}: routine {self._routine.name}: cut {number} runs along axes of different "
                f"lengths: {', '.join(map(str, sorted(lengths)))}"
            )
        return lengths.pop()

    def _pick(self) -> tuple[int, ...]:
        """The pieces with the least traffic on the busiest core, among those that fit. Raises CompileError if
        none fit."""
        budget = self.context.room
        fitting = [tile for tile in product(*map(_halvings, self._extents)) if total_bytes(self._slots(tile)) <= budget]
        if not fitting:
            slots = self._slots([1] * len(self._extents))
            largest = max(range(len(slots)), key=lambda index: slots[index].total)
            tensor, _ = [*self._inputs, *self._outputs][largest]
            raise CompileError(
                f"{self.group.name} ({self.group.kind}): its smallest piece takes {total_bytes(slots)} bytes "
                f"of SRAM, of which operand {tensor.name!r} takes {slots[largest].total}; the device has {budget}"
            )
        fewest = min(map(self._elements, fitting))
        if fewest > MAX_ROUTINE_STEPS:
            raise refuse_elements(self.group, fewest, MAX_ROUTINE_STEPS)
        fitting = [tile for tile in fitting if self._elements(tile) <= MAX_ROUTINE_STEPS]
        # The sizes break ties, so that compiling twice gives the same program.
        return min(fitting, key=lambda tile: (self._cost(tile), [-size for size in tile]))

    def _elements(self, tile: Sequence[int]) -> int:
        inputs, outputs = (
            [Spec(_part(tensor, axes, [0] * len(tile), tile)[1], tensor.dtype) for tensor, axes in side]
            for side in (self._inputs, self._outputs)
        )
        return self._routine.steps(inputs, outputs, dict(self.op.attrs["params"]))

    def _cost(self, tile: Sequence[int]) -> int:
        pieces = prod(ceil_div(extent, size) for extent, size in zip(self._extents, tile, strict=True))
        once = sum(spec.nbytes for spec in self._slots(tile))
        return ceil_div(pieces, self.config.cores) * (_PIECE_BYTES + once)

    def slots(self) -> list[SlotSpec]:
        return self._slots(self._tile)

    def _slots(self, tile: Sequence[int]) -> list[SlotSpec]:
        """Operands that change from piece to piece have two slots, so that the next piece can load meanwhile."""
        specs = []
        named: list[tuple[str, list[tuple[Tensor, Axes]]]] = [("in", [*self._inputs]), ("out", [*self._outputs])]
        for side, operands in named:
            for index, (tensor, axes) in enumerate(operands):
                _, sizes = _part(tensor, axes, [0] * len(tile), tile)
                changes = any(
                    axis is not None and size < extent
                    for axis, size, extent in zip(axes, tile, self._extents, strict=True)
                )
                specs.append(SlotSpec(f"{side}{index}", prod(sizes) * tensor.dtype.itemsize, 2 if changes else 1))
        return specs

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        held: dict[int, tuple[Box, Slot]] = {}
        pieces = boxes(self._extents, self._tile, range(len(self._tile))) if all(self._extents) else []
        for starts, sizes in share(pieces, core, cores):
            step = Tile()
            ins: list[tuple[Operand, Slot]] = []
            outs: list[tuple[Operand, Slot]] = []
            for index, (tensor, axes) in enumerate(self._inputs):
                box = _part(tensor, axes, starts, sizes)
                if index not in held or held[index][0] != box:
                    slot = table.next(f"in{index}")
                    held[index] = box, slot
                    part = self.context.view(tensor).slice(*box)
                    step.loads.extend(load_packed(slot, part, range(len(part.shape))))
                slot = held[index][1]
                ins.append((Operand(slot.address, tensor.dtype, box[1]), slot))
            for index, (tensor, output_axes) in enumerate(self._outputs):
                box = _part(tensor, output_axes, starts, sizes)
                slot = table.next(f"out{index}")
                outs.append((Operand(slot.address, tensor.dtype, box[1]), slot))
                part = self.context.view(tensor).slice(*box)
                step.stores.extend(store_packed(part, slot, range(len(part.shape))))
            params = self.op.attrs["params"]
            instruction = routine_instruction(self._routine, params, [o for o, _ in ins], [o for o, _ in outs])
            step.compute.append(Item(instruction, tuple(slot for _, slot in ins), tuple(slot for _, slot in outs)))
            yield step


def _part(tensor: Tensor, axes: Sequence[int | None], starts: Sequence[int], sizes: Sequence[int]) -> Box:
    """The box of an operand that a piece needs."""
    first, extent = [0] * len(tensor.shape), list(tensor.shape)
    for axis, start, size in zip(axes, starts, sizes, strict=True):
        if axis is not None:
            first[axis], extent[axis] = start, size
    return tuple(first), tuple(extent)


def _halvings(extent: int) -> list[int]:
    """The extent, half of it, a quarter, ..., 1."""
    sizes = [max(extent, 1)]
    while sizes[-1] > 1:
        sizes.append(ceil_div(sizes[-1], 2))
    return sizes
