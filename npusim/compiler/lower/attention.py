"""Fused attention: matrix products with row operators between them, one block of rows at a time.

For a block of queries, the scores with all keys, their softmax, and the product with the values are computed in
sequence. Values between the products never leave SRAM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from npusim.compiler.buffers import Buffer, Moves, View
from npusim.compiler.codegen.issue import Item, Tile
from npusim.compiler.grouping.groups import Group, outside
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    refuse_size,
    share,
    total_bytes,
)
from npusim.compiler.lower.chain import Chain
from npusim.compiler.lower.epilogue import absorb
from npusim.compiler.lower.matmul import MatMulLowering
from npusim.errors import CompileError
from npusim.graph import Tensor
from npusim.hw.cost import cost_model
from npusim.isa.base import MAX_ELEMENTS, Instruction, Space, Unit
from npusim.ops.base import REGISTRY, RowForm
from npusim.program import SCRATCH
from npusim.timing.batch import most
from npusim.timing.tile import SLACK_PERCENT, acc_bytes, tilings
from npusim.units import ceil_div
from npusim.work import DmaWork, VectorWork, walked_runs

_Block = tuple[int, int, int]
"""(image, first row, end row)."""


_Parts = list[MatMulLowering | Chain | None]
"""For each part: the lowering of a product, a chain of elementwise operators, or None for a row operator."""


class AttentionLowering(Lowering):
    """Groups that each need only the same rows of the previous group's result; the first and the last are products.

    Values between groups have two slots, so that the first product of the next block runs while the vector unit works
    on this one. Each core takes consecutive blocks, so that the right operands of an image stay in their slots.
    """

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        out = group.outputs[0].shape
        self._batch, self._height = out[:-2], out[-2]
        self.images = prod(self._batch)
        self._inner = [part.outputs[0] for part in group.parts[:-1]]
        for tensor in self._operands():
            context.view(tensor)  # this places the constants once, for all block sizes
        self._homes = self._placeholders()
        if not context.tiles:
            return
        plans = []
        refusal: CompileError | None = None
        for rows in self.heights():
            try:
                plans.append(self._planned(rows))
            except CompileError as error:
                refusal = error
            if len(plans) == CHOICES:
                break
        if not plans:
            raise refusal or refuse_size(group, 0, context.room)
        limit = min(plan[-1] for plan in plans) * (100 + SLACK_PERCENT) // 100
        self._rows, self._parts, self._specs, self._ps = next(plan for plan in plans if plan[-1] <= limit)

    def heights(self) -> Iterator[int]:
        """Yield the block sizes to try, in rows: a whole image, then successive halves."""
        rows = self._height
        yield rows
        while rows > 1:
            rows = ceil_div(rows, 2)
            yield rows

    def blocks(self, rows: int) -> int:
        """Number of blocks of ``rows`` rows in all images."""
        return self.images * ceil_div(self._height, rows)

    def _operands(self) -> Iterator[Tensor]:
        """The operands of chains that no part computes."""
        for part in self.group.parts:
            if part.anchor is None:
                made = {op.output for op in part.chain}
                yield from (t for t in outside(part.chain, made) if t not in self._inner)
            elif part.anchor.kind == "matmul":
                epilogue = absorb(part)
                yield from outside(epilogue.rest, {epilogue.result, *(op.output for op in epilogue.rest)})

    def _placeholders(self) -> dict[Tensor, Buffer]:
        """Buffers that stand for the slots of values between parts. Row operators with results of equal width work in
        place."""
        homes: dict[Tensor, Buffer] = {}
        for part, tensor in zip(self.group.parts, self._inner, strict=False):
            source = part.anchor.input(0) if part.anchor is not None and part.anchor.kind != "matmul" else None
            if source is not None and source.dtype is tensor.dtype:
                homes[tensor] = homes[source]
            else:
                homes[tensor] = Buffer(tensor.name, SCRATCH, 0, core=0, is_rolling=True)
        return homes

    def _pitch(self, tensor: Tensor) -> int:
        return tensor.shape[-1] * tensor.dtype.itemsize

    def _planned(self, rows: int) -> tuple[int, _Parts, list[SlotSpec], int]:
        """Plan blocks of ``rows`` rows. Returns (rows, parts, their slots, picoseconds of all blocks).

        Raises CompileError if a block does not fit.
        """
        config, blocks = self.config, self.blocks(rows)
        specs, views = self._windows(rows)
        parts: _Parts = []
        accumulators = 0
        vector = matrix = 0
        price = cost_model(config).cost
        for number, part in enumerate(self.group.parts):
            lowering = self._part_of(part, self._inner_context(views, rows, self.context.room - total_bytes(specs)))
            elements, slots = self._elements(part, rows), []
            if isinstance(lowering, MatMulLowering):
                slots = lowering.slots()
                accumulators = max(accumulators, total_bytes(slots, Space.ACC))
                matrix += tilings(lowering.problem, config).computing(lowering.tile) * ceil_div(self._height, rows)
                vector += blocks * lowering.chain.estimate(elements)
            elif lowering is not None:
                slots = lowering.slots(self._sizes(rows, part.outputs[0]))
                vector += blocks * lowering.estimate(elements)
            else:
                vector += blocks * price(_on_rows(part, rows, 0, 0).work()).ps
            specs += [replace(spec, name=f"{number}.{spec.name}") for spec in slots if spec.space is not Space.ACC]
            parts.append(lowering)
            if total_bytes(specs) > self.context.room:
                raise refuse_size(self.group, total_bytes(specs), self.context.room)
        if accumulators:
            specs.append(SlotSpec("acc", accumulators, 1, Space.ACC))
            if accumulators > acc_bytes(config):
                raise refuse_size(self.group, accumulators, acc_bytes(config), "accumulators")
        far = [(times, work) for view, times, work in self.transfers(parts, rows) if not view.buffer.on_chip]
        loading = sum(times * price(work).ps for times, work in far)
        traffic = sum(times * work.bytes for times, work in far)
        channels, bandwidth = config.dma.channels, config.dram.bandwidth
        ps = attention_latency(matrix, vector, loading, traffic, blocks, config.cores, channels, bandwidth)
        return rows, parts, specs, ps

    def _windows(self, rows: int) -> tuple[list[SlotSpec], dict[Tensor, View]]:
        """Slots of the values between parts for blocks of ``rows`` rows, and all views, with these values in slots."""
        specs, views = [], dict(self.context.views)
        for number, home in enumerate(dict.fromkeys(self._homes.values())):
            owners = [tensor for tensor in self._inner if self._homes[tensor] is home]
            specs.append(SlotSpec(f"window{number}", rows * self._pitch(owners[0])))
        for tensor, home in self._homes.items():
            strides = (*(0 for _ in self._batch), self._pitch(tensor), tensor.dtype.itemsize)
            views[tensor] = View(home, 0, tensor.shape, strides, tensor.dtype)
        return specs, views

    def _inner_context(self, views: dict[Tensor, View], rows: int, room: int) -> Context:
        """The context of one part, with ``room`` bytes of SRAM."""
        outer = self.context
        inner = Context(outer.config, outer.constants, views, max(room, 1), rows, memo=outer.memo, facts=outer.facts)
        # In a core's shard, constants that are not cut are shared by all cores.
        inner.beside, inner.whole, inner.own, inner.tiles = outer.beside, outer.whole, outer.own, outer.tiles
        return inner

    def _elements(self, part: Group, rows: int) -> int:
        """Elements of the result of a part in one block. Raises CompileError if one instruction cannot make them."""
        if (elements := rows * part.outputs[0].shape[-1]) > MAX_ELEMENTS:
            raise refuse_size(self.group, elements, MAX_ELEMENTS, "elements")
        return elements

    def _part_of(self, part: Group, inner: Context) -> MatMulLowering | Chain | None:
        out = part.outputs[0]
        if part.anchor is None:
            return Chain(inner, part.chain, inner.views[out], range(len(out.shape)), None)
        return MatMulLowering(inner, part) if part.anchor.kind == "matmul" else None

    def asked(self, rows: int) -> tuple[int, _Parts, list[VectorWork | int]]:
        """Describe blocks of ``rows`` rows for estimates that choose tiles themselves.

        Returns the bytes of the slots between parts, the parts, and for each part: the work of an operator on rows, or
        the bytes of the slots of elementwise operators. Raises CompileError if an instruction is too large.
        """
        specs, views = self._windows(rows)
        inner = self._inner_context(views, rows, self.context.room)
        parts, works = [], []
        for part in self.group.parts:
            self._elements(part, rows)
            lowering = self._part_of(part, inner)
            parts.append(lowering)
            work = _on_rows(part, rows, 0, 0).work() if lowering is None else None
            assert work is None or isinstance(work, VectorWork)
            slots = lowering.slots(self._sizes(rows, part.outputs[0])) if isinstance(lowering, Chain) else []
            works.append(total_bytes(slots) if work is None else work)
        return total_bytes(specs), parts, works

    def transfers(self, parts: _Parts, rows: int) -> Iterator[tuple[View, int, DmaWork]]:
        """Yield (view, transfers, work of one transfer) of each operand and result."""
        for view, times, count in self._wanted(parts, rows, self.blocks(rows)):
            yield view, times, _transfer(view, count)

    def _wanted(self, parts: _Parts, rows: int, blocks: int) -> Iterator[tuple[View, int, int]]:
        """Yield (view, transfers, parts) of each operand and result: each transfer moves one of the parts."""
        products = [part for part in parts if isinstance(part, MatMulLowering)]
        yield products[0].left(), blocks, blocks
        yield products[-1].out_view(), blocks, blocks
        for part in products:
            yield part.right(), self.images, self.images
        chains = [part.chain if isinstance(part, MatMulLowering) else part for part in parts if part is not None]
        for view in (view for chain in chains for view in chain.operands()):
            # An operand that all images share stays in its slot, unless a block needs only a part of it.
            own = any(view.strides[:-2])
            cut = rows < self._height and len(view.strides) > 1 and view.strides[-2] != 0
            if own:
                yield view, blocks, blocks
            elif cut:
                yield view, blocks, ceil_div(self._height, rows)
            else:
                yield view, 1, 1

    def _sizes(self, rows: int, tensor: Tensor) -> tuple[int, ...]:
        return (*(1 for _ in self._batch), rows, tensor.shape[-1])

    def slots(self) -> list[SlotSpec]:
        return self._specs

    def estimate(self) -> int:
        return self._ps

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        places = self._places(table)
        rows = range(0, self._height, self._rows)
        ends = [(first, min(first + self._rows, self._height)) for first in rows]
        blocks = [(image, *each) for image in range(self.images) for each in ends]
        waiting: tuple[_Block, Moves, Tile] | None = None
        for number, block in enumerate(share(blocks, core, cores)):
            moves = self._moves(block, places[number % 2])
            scores = list(self._part(table, 0, block, moves))
            # The vector unit runs its commands in order, those of the previous block first. So its work on this block
            # is postponed, unless the product has several tiles, which share slots and wait for each other.
            later = _split(scores[0]) if len(scores) == 1 else Tile()
            yield from scores
            # One block behind, so that the matrix unit has a product to compute while the vector unit is busy.
            if waiting is not None:
                yield from self._rest(table, *waiting)
            waiting = block, moves, later
        if waiting is not None:
            yield from self._rest(table, *waiting)

    def _places(self, table: SlotTable) -> list[dict[Buffer, Buffer]]:
        """The two slots of each placeholder, as buffers."""
        turns: list[dict[Buffer, Buffer]] = [{}, {}]
        for number, home in enumerate(dict.fromkeys(self._homes.values())):
            for turn in turns:
                slot = table.next(f"window{number}")
                turn[home] = Buffer(home.name, SCRATCH, slot.nbytes, slot.start, core=table.core, is_rolling=True)
        return turns

    def _moves(self, block: _Block, places: dict[Buffer, Buffer]) -> Moves:
        homes = {tensor: self._homes[tensor] for tensor in self._inner}
        return {home: (places[home], -block[1] * self._pitch(tensor)) for tensor, home in homes.items()}

    def _rest(self, table: SlotTable, block: _Block, moves: Moves, later: Tile) -> Iterator[Tile]:
        if later.compute:
            yield later
        for number in range(1, len(self.group.parts)):
            yield from self._part(table, number, block, moves)

    def _part(self, table: SlotTable, number: int, block: _Block, moves: Moves) -> Iterator[Tile]:
        part, lowering = self.group.parts[number], self._parts[number]
        named = table.part(f"{number}.")
        if isinstance(lowering, MatMulLowering):
            yield from lowering.stripe(block[0], block[1:], moves).steps(named, 0, 1)
        elif lowering is not None:
            step = Tile()
            lowering.moved(moves).emit(step, named, self._box(block, part.outputs[0]))
            yield step
        else:
            assert part.anchor is not None
            source, target = part.anchor.input(0), part.outputs[0]
            x, out = (self._view(tensor, block, moves) for tensor in (source, target))
            instruction = _on_rows(part, block[2] - block[1], out.address, x.address)
            yield Tile(compute=[Item(instruction, (x,), (out,))])

    def _box(self, block: _Block, tensor: Tensor) -> Box:
        image, first, end = block
        index = tuple(int(i) for i in np.unravel_index(image, self._batch)) if self._batch else ()
        return (*index, first, 0), self._sizes(end - first, tensor)

    def _view(self, tensor: Tensor, block: _Block, moves: Moves) -> View:
        """The rows of a block, of a value between parts."""
        buffer, _ = moves[self._homes[tensor]]
        pitch, count = self._pitch(tensor), block[2] - block[1]
        return View(buffer, 0, (count, tensor.shape[-1]), (pitch, tensor.dtype.itemsize), tensor.dtype)


CHOICES = 4
"""Number of block sizes that are compared: the largest that fits, then successive halves."""


def attention_latency(
    matrix: Any, vector: Any, loading: Any, traffic: Any, blocks: int, cores: int, channels: Any, bandwidth: Any
) -> Any:
    """Estimated picoseconds of all blocks.

    ``matrix``, ``vector``, ``loading``: picoseconds of the units and of one DMA channel; ``traffic``: bytes of DRAM.
    Numbers, or arrays with one element per device.
    """
    loading = loading // most(1, channels - 1)
    # The busiest core: blocks are not split between cores.
    busy = most(matrix, vector, loading) * ceil_div(blocks, cores) // blocks
    first = (matrix + vector + loading) // blocks  # nothing overlaps with the first block
    return most(busy, traffic * 10**12 // bandwidth) + first


def _transfer(view: View, count: int) -> DmaWork:
    """The work of moving one of ``count`` parts of a value."""
    item = view.dtype.itemsize
    nbytes = prod(dim for dim, stride in zip(view.shape, view.strides, strict=True) if stride) * item
    each = max(1, nbytes // count)
    order = view.order()
    dims, strides = [view.shape[axis] for axis in order], [abs(view.strides[axis]) for axis in order]
    run = max(1, min(walked_runs(dims, strides, item).nbytes, each))
    return DmaWork(each, ceil_div(each, run), run, each, 0)


def _split(step: Tile) -> Tile:
    """Remove the instructions for other units than the matrix unit from a step, and return them as a step."""
    later = Tile(compute=[item for item in step.compute if item.instruction.unit is not Unit.MATRIX])
    step.compute = [item for item in step.compute if item.instruction.unit is Unit.MATRIX]
    return later


def _on_rows(part: Group, rows: int, out: int, x: int) -> Instruction:
    """The instruction of a row operator on contiguous rows."""
    assert part.anchor is not None
    form = REGISTRY[part.anchor.kind].form
    assert isinstance(form, RowForm)
    source, target = part.anchor.input(0), part.outputs[0]
    length = source.shape[-1]
    places = [
        (at, (length * tensor.dtype.itemsize, tensor.dtype.itemsize, tensor.dtype.itemsize))
        for at, tensor in ((out, target), (x, source))
    ]
    (to, to_strides), (at, strides) = places
    return form.make((source.dtype, to, to_strides, at, strides, (rows, length, 1)), part.anchor.attrs)
