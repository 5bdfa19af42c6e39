"""The least or greatest element of a whole value, found tile by tile while the tiles are in SRAM anyway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from npusim.compiler.buffers import collapse, pad4
from npusim.compiler.codegen.issue import Item, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable
from npusim.compiler.lower.transfer import Strided, store_items
from npusim.isa.functions import Reduce
from npusim.isa.reduction import ACCUMULATOR_BYTES, ReduceTile


class Ranges:
    """The reductions that a group does beside its result. Of what they fold the order does not matter."""

    def __init__(self, context: Context, group: Group) -> None:
        self._context = context
        self._ops = group.sides

    def __bool__(self) -> bool:
        return bool(self._ops)

    def slots(self) -> list[SlotSpec]:
        specs = []
        for index, op in enumerate(self._ops):
            specs.append(SlotSpec(f"range{index}", ACCUMULATOR_BYTES, 1))
            specs.append(SlotSpec(f"end{index}", op.output.dtype.itemsize, 1))
        return specs

    def emit(
        self, step: Tile, table: SlotTable, tile: Strided, sizes: Sequence[int],
        *, first: bool, last: bool,
    ) -> None:  # fmt: skip
        """Add the instructions for a tile - (address, byte strides, resource) - of the result to a step, and with the
        last one the stores."""
        for index, op in enumerate(self._ops):
            step.compute.extend(self._instructions(index, table, tile, sizes, first, last))
            if last:
                view, out = self._context.view(op.output), table.next(f"end{index}")
                step.stores.extend(store_items(view, (out.address, (0,) * len(view.shape), out)))

    def _instructions(
        self, index: int, table: SlotTable, tile: Strided, sizes: Sequence[int],
        first: bool, last: bool,
    ) -> Iterator[Item]:  # fmt: skip
        op, acc, out = self._ops[index], table.next(f"range{index}"), table.next(f"end{index}")
        address, strides, resource = tile
        # From the longest steps to the shortest, whatever the order of dimensions: then most of them merge.
        axes = sorted(range(len(sizes)), key=lambda axis: -abs(strides[axis]))
        dims, (walk,) = collapse([sizes[axis] for axis in axes], [strides[axis] for axis in axes])
        cut = max(0, len(dims) - 4)
        parts = list(product(*map(range, dims[:cut])))
        for part in parts:
            begins, ends = first and part == parts[0], last and part == parts[-1]
            offset = sum(i * s for i, s in zip(part, walk, strict=False))
            instruction = ReduceTile(
                Reduce(op.attrs["fn"]), op.output.dtype, acc.address, pad4((), 0), address + offset,
                pad4(walk[cut:], 0), pad4(dims[cut:], 1), begins, ends, out.address, pad4((), 0), 1,
            )  # fmt: skip
            yield Item(instruction, (resource,), (acc, out) if ends else (acc,))
