"""Minimum and maximum of a whole value, found while its tiles are in SRAM for another purpose.

They are reductions beside a group's result (``Group.sides``). The order of tiles does not matter to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from npusim.compiler.buffers import collapse, pad4
from npusim.compiler.codegen.issue import Item, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Context, SlotSpec, SlotTable
from npusim.compiler.lower.transfer import Strided, store_items
from npusim.graph import Op
from npusim.isa.functions import Reduce
from npusim.isa.reduction import ACCUMULATOR_BYTES, ReduceTile


def range_slots(group: Group) -> list[SlotSpec]:
    """An accumulator and a result slot for each reduction."""
    specs = []
    for index, op in enumerate(group.sides):
        specs.append(SlotSpec(f"range{index}", ACCUMULATOR_BYTES, 1))
        specs.append(SlotSpec(f"end{index}", op.output.dtype.itemsize, 1))
    return specs


def emit_ranges(
    group: Group,
    context: Context,
    step: Tile,
    table: SlotTable,
    tile: Strided,
    sizes: Sequence[int],
    ends: tuple[bool, bool],
) -> None:
    """Add the reductions of a tile of the result to a step.

    ``ends``: whether it is the first tile, and whether it is the last one, which stores the results.
    """
    for index, op in enumerate(group.sides):
        acc, out = table.next(f"range{index}"), table.next(f"end{index}")
        step.compute.extend(_instructions(op, acc, out, tile, sizes, ends))
        if ends[1]:
            view = context.view(op.output)
            step.stores.extend(store_items(view, (out.address, (0,) * len(view.shape), out)))


def _instructions(
    op: Op, acc: Slot, out: Slot, tile: Strided, sizes: Sequence[int], ends: tuple[bool, bool]
) -> Iterator[Item]:
    address, strides, resource = tile
    # In memory order, most dimensions merge.
    axes = sorted(range(len(sizes)), key=lambda axis: -abs(strides[axis]))
    dims, (walk,) = collapse([sizes[axis] for axis in axes], [strides[axis] for axis in axes])
    cut = max(0, len(dims) - 4)
    fn, dtype, none = Reduce(op.attrs["fn"]), op.output.dtype, pad4((), 0)
    inner = pad4(walk[cut:], 0), pad4(dims[cut:], 1)
    parts = list(product(*map(range, dims[:cut])))
    for part in parts:
        begins, finishes = ends[0] and part == parts[0], ends[1] and part == parts[-1]
        source = address + sum(i * s for i, s in zip(part, walk, strict=False))
        instruction = ReduceTile(fn, dtype, acc.address, none, source, *inner, begins, finishes, out.address, none, 1)
        yield Item(instruction, (resource,), (acc, out) if finishes else (acc,))
