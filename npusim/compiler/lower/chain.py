"""Chains of elementwise operators on one tile in SRAM: alone, or on a tile that an anchor has computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from operator import itemgetter, mul
from typing import Any

from npusim.compiler.buffers import Moves, View, collapse, ordered_strides, pad4
from npusim.compiler.codegen.issue import Item, Resource, Slot, Tile
from npusim.compiler.grouping.groups import outside
from npusim.compiler.lower.base import Box, Context, SlotSpec, SlotTable, boxes, fact, slot_spec, twin
from npusim.compiler.lower.transfer import Strided, load_items
from npusim.dtypes import DType
from npusim.graph import Op, Tensor
from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.isa.base import Instruction, Space, sram
from npusim.ops.base import REGISTRY, ElementForm, Place
from npusim.ops.quant import table_of
from npusim.timing.tile_costs import vector_pricing
from npusim.timing.tile_problem import EpilogueCosts
from npusim.units import ceil_div
from npusim.work import VectorWork, Work


class Chain:
    """The elementwise operators of a group, on tiles of its output that are packed in SRAM in ``order``.

    ``main``: the tensor that an anchor computes into its own slot, or None. ``out``: the view of the result. Operands
    and results in SRAM are used where they are, all others through slots. Values between operators may take most of a
    tile, such as floats between bytes. If there is no space for them, a tile is processed ``in_pieces``, and these
    values exist for one piece at a time.
    """

    def __init__(
        self, context: Context, ops: Sequence[Op], out: View, order: Sequence[int], main: Tensor | None
    ) -> None:
        shape = out.shape
        self._context, self._config = context, context.config
        self.ops = tuple(ops)
        self.shape = shape
        self.order = tuple(order)
        self.main = main
        made = {main, *(op.output for op in self.ops)}
        self._views = {tensor: context.view(tensor).broadcast(shape) for tensor in outside(self.ops, made)}
        # For an instruction, the table of a lookup has the same address for all elements.
        self._tables = {op: _table(context, op) for op in self.ops if op.kind == "lookup"}
        self._entries = {table: context.view(table) for table in self._tables.values()}
        self._views |= {
            table: View(view.buffer, view.offset, shape, (0,) * len(shape), view.dtype)
            for table, view in self._entries.items()
        }
        self._loaded: dict[tuple[int, str], tuple[Box, Slot]] = {}
        self._home = out if out.buffer.on_chip else None
        near = {tensor for tensor, view in self._views.items() if view.buffer.on_chip}
        if self._home and self.ops:
            near.add(self.ops[-1].output)
        self._place = _assign(self.ops, main, self._views, near)
        between = {name: tensor.dtype.itemsize for tensor, name in self._place.items() if _is_between(name)}
        self._between = tuple(between)
        self._outputs = [(op.output, self._place.get(op.output)) for op in self.ops]
        # Operands with one element: once loaded, they serve all tiles.
        self._single = {
            tensor
            for tensor, view in self._views.items()
            if not any(stride for dim, stride in zip(view.shape, view.strides, strict=True) if dim > 1)
        }
        self.between = sum(between.values())
        self._made: dict[tuple[Any, ...], _Made] = {}
        self._parts: dict[tuple[Tensor, tuple[int, ...]], tuple[tuple[int, ...], list[int], tuple[int, ...]]] = {}
        self._walks: dict[tuple[Any, ...], _Walk] = {}
        self.in_pieces = False

    def moved(self, by: Moves) -> Chain:
        """A copy of the chain for buffers whose bytes have moved."""
        chain = twin(self)
        chain._views = {tensor: view.moved(by) for tensor, view in self._views.items()}
        chain._entries = {table: view.moved(by) for table, view in self._entries.items()}
        chain._home = self._home and self._home.moved(by)
        return chain

    def piece(self) -> int:
        """Maximum number of elements in a piece."""
        return piece_elements(self._config, self.between)

    def epilogue(self) -> EpilogueCosts:
        """The bytes and the time that the chain needs for a tile."""
        if not self.ops or not all(self.shape):
            return EpilogueCosts()
        # The key contains everything that the costs depend on: planning repeats this for each combination of memory
        # areas.
        homes = tuple([(view.buffer.on_chip, *map(bool, view.strides)) for view in self._views.values()])
        sizes = self.shape, self.order, self._home is None, homes, self.piece()
        key = "epilogue", self._form(), *sizes, vector_pricing(self._config)
        return fact(self._context, key, self._epilogue)

    def _form(self) -> int:
        """A number that is equal for chains that differ only in names and values of constants."""
        forms: dict[tuple[Any, ...], int] = self._context.facts.setdefault("forms", {})

        def numbered() -> int:
            try:
                return forms.setdefault(self._described(), len(forms))
            except TypeError:  # an attribute is not hashable
                return forms.setdefault(self.ops, len(forms))

        return fact(self._context, ("form", self.ops), numbered)

    def _described(self) -> tuple[Any, ...]:
        numbers: dict[Tensor | None, int] = {self.main: 0}
        described = []
        for op in self.ops:
            tensors = [t and (numbers.setdefault(t, len(numbers)), t.shape, t.dtype) for t in (*op.inputs, *op.outputs)]
            described.append((op.kind, tuple(sorted(op.attrs.items())), len(op.inputs), tuple(tensors)))
        return tuple(described)

    def _epilogue(self) -> EpilogueCosts:
        model, probe = cost_model(vector_pricing(self._config)), self.probe()
        costs = [[model.cost(work) for work in self.works(sizes)] for sizes in ([1] * len(probe), probe)]
        times = [sum(cost.ps for cost in each) for each in costs]
        # Broadcast operands are small and stay in their slots for many tiles.
        full = [view for view in self._views.values() if all(view.strides)]
        elements = prod(probe)
        slots = sum(spec.total for spec in self.slots(probe) if not _is_between(spec.name))
        return EpilogueCosts(
            element_bytes=slots // elements,
            between=self.between,
            piece=self.piece(),
            begin=times[0],
            kilo=(times[1] - times[0]) * 1024 // elements,
            operands=tuple(view.dtype.itemsize for view in full if not view.buffer.on_chip),
            banks=sum(cost.sram_ps for cost in costs[1]) * 1024 // elements,
            result=self.ops[-1].output.dtype.itemsize,
        )

    def _operands(self, op: Op) -> list[Tensor]:
        """The tensors that an instruction for an operator reads."""
        table = self._tables.get(op)
        return [*(tensor for tensor in op.inputs if tensor is not None), *(() if table is None else (table,))]

    def probe(self) -> list[int]:
        """Sizes of a tile that is large enough to measure the time per element."""
        return [min(dim, _PROBE) for dim in self.shape]

    def works(self, sizes: Sequence[int]) -> list[Work]:
        """The work of the vector unit for a tile of these sizes."""
        tensors = {tensor for op in self.ops for tensor in (*self._operands(op), op.output)}
        operands = {tensor: self._probe(tensor, sizes) for tensor in tensors}
        return [
            item.instruction.work()
            for op in self.ops
            for item in _instructions(
                op, operands[op.output], [operands[t] for t in self._operands(op)], sizes, self.order
            )
        ]

    def _probe(self, tensor: Tensor, tile: Sequence[int]) -> Strided:
        view = self._views.get(tensor)
        strides = self.packed(_distinct(tile, view) if view else tile, tensor.dtype)
        if view:
            strides = tuple(own if stride else 0 for own, stride in zip(strides, view.strides, strict=True))
        return sram(0), strides, _NOWHERE

    def operands(self) -> list[View]:
        """The views of all operands except the anchor's result."""
        return list(self._views.values())

    def loaded(self) -> list[View]:
        """The views of the operands that are loaded into slots."""
        return [view for tensor, view in self._views.items() if tensor in self._place]

    def slots(self, tile: Sequence[int]) -> list[SlotSpec]:
        """The slots for a tile of these sizes, except ``main``, which belongs to the anchor."""
        sizes: dict[str, int] = {}
        whole = prod(tile)
        inner = min(whole, self.piece()) if self.in_pieces else whole
        for tensor, name in self._place.items():
            view = self._views.get(tensor)
            elements = prod(_distinct(tile, view)) if view else inner if name in self._between else whole
            elements = self._entries[tensor].shape[0] if tensor in self._entries else elements
            sizes[name] = max(sizes.get(name, 0), elements * tensor.dtype.itemsize)
        # Values between operators need no second copy: the unit runs its instructions in order.
        return [
            slot_spec(name, size, 1 if name in self._between else 2) for name, size in sizes.items() if name != MAIN
        ]

    def estimate(self, elements: int) -> int:
        """Estimated picoseconds for a number of elements."""
        epilogue = self.epilogue()
        return epilogue.begin + epilogue.kilo * elements // 1024

    def emit(self, step: Tile, table: SlotTable, box: Box, main: Slot | None = None) -> Slot | None:
        """Add the loads and instructions for one tile to a step. Returns the slot of the result, or None if it has no
        slot."""
        if not self.ops:
            return main
        starts, sizes = box[0], tuple(box[1])
        slots: dict[str, Slot] = {} if main is None else {MAIN: main}
        used: dict[Tensor, Resource] = {}
        if self.main is not None and main is not None:
            used[self.main] = main
        for tensor, view in self._views.items():
            name = self._place.get(tensor)
            if name is None:
                used[tensor] = _part(view, box)
            else:
                used[tensor] = slots[name] = self._load(step, table, tensor, view, starts, sizes)
        result = main
        for output, name in self._outputs:
            if name is None:
                assert self._home is not None
                used[output], result = _part(self._home, box), None
                continue
            result = slots[name] if name in slots else slots.setdefault(name, table.next(name))
            if not _is_between(name):
                used[output] = result
        step.compute.extend(self._items(sizes, used, [slots[name] for name in self._between]))
        return result

    def _items(
        self, sizes: tuple[int, ...], operands: Mapping[Tensor, Resource], between: Sequence[Slot]
    ) -> Sequence[Item]:
        """The instructions for a tile. If all operands are in slots, they are reused for every tile in the same
        slots."""
        used = [*operands.values(), *between]
        # Views differ between tiles. The cached items keep their slots alive, so an id is never reused.
        key = (self.in_pieces, sizes, *[id(each) if isinstance(each, Slot) else 0 for each in used])
        known = self._made.get(key)
        if known is not None and not known[1]:
            return known[0]
        walk = self._walk_of(sizes, operands) if known is None else known[2]
        numbers, instructions, first = walk
        uses = [
            # Nearly all operators read one value.
            (
                (used[places[1]],) if len(places) == 2 else tuple(dict.fromkeys([used[at] for at in places[1:]])),
                (used[places[0]],),
            )
            for places in numbers
        ]
        starts = [each.address for each in used]
        items = [] if known is None else known[0].copy()
        for place in range(len(instructions)) if known is None else known[1]:
            number, make, op, places, dims = instructions[place]
            at = [(starts[index] + offset, strides) for index, offset, strides in places]
            instruction = make(op, at, dims)
            instruction.like(first.setdefault(place, instruction))
            items[place : place + 1] = [Item(instruction, *uses[number])]
        if known is None:
            moving = [not all(isinstance(used[at], Slot) for at in places) for places in numbers]
            ours = [at for at, instruction in enumerate(instructions) if moving[instruction[0]]]
            self._made[key] = items, ours, walk
        return items

    def _walk_of(self, sizes: tuple[int, ...], operands: Mapping[Tensor, Resource]) -> _Walk:
        """The instructions for a tile of these sizes with these operands, without addresses."""
        tiles = [(tensor, self._strides(tensor, each, sizes)) for tensor, each in operands.items()]
        key = (self.in_pieces, sizes, *[strides for _, strides in tiles])
        walk = self._walks.get(key)
        if walk is None:
            walk = self._walks[key] = self._walk(sizes, tiles)
        return walk

    def _strides(self, tensor: Tensor, used: Resource, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Byte strides of an operand's tile, 0 where it is broadcast."""
        if isinstance(used, View):
            return used.strides
        return self._parts[tensor, sizes][2] if tensor in self._views else self.packed(sizes, tensor.dtype)

    def _walk(self, sizes: tuple[int, ...], operands: Sequence[tuple[Tensor, tuple[int, ...]]]) -> _Walk:
        """Compute :meth:`_walk_of` for operands with these strides."""
        numbers = {tensor: number for number, (tensor, _) in enumerate(operands)}
        inner = [op.output for op in self.ops if _is_between(self._place.get(op.output, ""))]
        numbers |= {tensor: len(operands) + self._between.index(self._place[tensor]) for tensor in inner}
        read = [(op.output, *self._operands(op)) for op in self.ops]
        instructions = []
        for corner, piece in self._pieces(sizes):
            parts = {tensor: (sum(map(mul, corner, strides)), strides) for tensor, strides in operands}
            # All pieces share the slots of values between operators.
            parts |= {tensor: (0, self.packed(piece, tensor.dtype)) for tensor in inner}
            for number, (op, tensors) in enumerate(zip(self.ops, read, strict=True)):
                make = _form(op).instruction
                firsts = [parts[tensor][0] for tensor in tensors]
                strides = tuple([parts[tensor][1] for tensor in tensors])
                outer, dims, walks, inner_strides = _loops(tuple(piece), self.order, strides)
                for index in product(*map(range, outer)):
                    offsets = [first + sum(map(mul, index, by)) for first, by in zip(firsts, walks, strict=True)]
                    places = list(zip([numbers[tensor] for tensor in tensors], offsets, inner_strides, strict=True))
                    instructions.append((number, make, op, places, dims))
        return [[numbers[tensor] for tensor in tensors] for tensors in read], instructions, {}

    def result(self, part: View, slot: Slot | None, sizes: Sequence[int]) -> Strided:
        """(address, byte strides, resource) of a tile of the result: of its slot, or of its final place."""
        if slot is None:
            return part.address, part.strides, part
        return slot.address, self.packed(sizes, part.dtype), slot

    def _pieces(self, sizes: Sequence[int]) -> Sequence[Box]:
        """(first element, sizes) of the pieces of a tile; a single one if the tile is processed as a whole."""
        if not self.in_pieces and all(sizes):
            return [((0,) * len(sizes), tuple(sizes))]
        piece = list(sizes)
        if self.in_pieces:
            most = self.piece()
            for axis in self.order:
                inner = prod(piece) // max(piece[axis], 1)
                if inner * piece[axis] <= most:
                    break
                count = ceil_div(sizes[axis], max(1, most // inner))
                piece[axis] = ceil_div(sizes[axis], count)
        return boxes(sizes, piece, self.order)

    def packed(self, sizes: Sequence[int], dtype: DType) -> tuple[int, ...]:
        """Byte strides of a packed tile of these sizes."""
        return ordered_strides(sizes, self.order, dtype.itemsize)

    def _load(
        self,
        step: Tile,
        table: SlotTable,
        tensor: Tensor,
        view: View,
        starts: Sequence[int],
        sizes: tuple[int, ...],
    ) -> Slot:
        """Load the part of an operand that a tile needs, unless it was loaded last."""
        name = self._place[tensor]
        last = self._loaded.get((table.core, name))
        known = self._parts.get((tensor, sizes))
        if known is None:
            extent = _distinct(sizes, view)
            packed = ordered_strides(extent, self.order, tensor.dtype.itemsize)
            own = tuple([step if stride else 0 for step, stride in zip(packed, view.strides, strict=True)])
            known = self._parts[tensor, sizes] = extent, [packed[axis] for axis in self.order], own
        if last is not None and tensor in self._single:
            return last[1]
        extent, steps, _ = known
        corner = tuple([start if stride else 0 for start, stride in zip(starts, view.strides, strict=True)])
        # Only broadcast operands repeat from tile to tile.
        if last is not None and 0 in view.strides and last[0] == (corner, extent):
            return last[1]
        slot = table.next(name)
        self._loaded[table.core, name] = ((corner, extent), slot)
        entries = self._entries.get(tensor)
        if entries is not None:
            step.loads.extend(load_items((slot.address, entries.strides, slot), entries))
            return slot
        part = view.slice(corner, extent).permute(self.order)
        step.loads.extend(load_items((slot.address, steps, slot), part))
        return slot


def _table(context: Context, op: Op) -> Tensor:
    """The table of a lookup as a constant, shared by all lowerings of the operator."""
    data = table_of(op)
    return fact(context, ("table", op), lambda: Tensor(f"{op.name}.table", data.shape, op.attrs["to"], data))


_NOWHERE = Slot(0, Space.SRAM, 0, 0)


def _part(view: View, box: Box) -> View:
    """The view of a tile of a value in SRAM."""
    starts, sizes = box
    corner = [start if stride else 0 for start, stride in zip(starts, view.strides, strict=True)]
    return view.slice(corner, sizes)


MAIN = "main"
"""The name of the slot in which an anchor leaves its tile."""


def _is_between(name: str) -> bool:
    """Whether a slot is for a value between two operators of a chain."""
    return name.startswith("t")


@functools.lru_cache(maxsize=64)
def piece_elements(config: Config, between: int) -> int:
    """Elements per piece: enough that starting an instruction takes a few percent of its time, and that their
    ``between`` bytes each fit into a fraction of SRAM."""
    room = config.sram.bytes // _PART_OF_SRAM // max(1, between)
    if config.vector is None:
        return max(_FEWEST, room)
    price = cost_model(config).cost
    one, many = (price(VectorWork("simple", DType.FLOAT32, count, 1, 0)).ps for count in (1, _MANY))
    return max(_FEWEST, min(room, _WORTHWHILE * one * _MANY // max(1, many - one)))


_PART_OF_SRAM = 8
"""Values between operators may take 1/8 of SRAM."""
_WORTHWHILE = 16
"""The elements of an instruction should take this many times longer than its start."""
_MANY = 1 << 16
_PROBE = 64
_FEWEST = 512


def _distinct(sizes: Sequence[int], view: View) -> tuple[int, ...]:
    """The sizes of an operand's tile, 1 where it is broadcast."""
    return tuple(size if stride else min(size, 1) for size, stride in zip(sizes, view.strides, strict=True))


def _assign(ops: Sequence[Op], main: Tensor | None, views: dict[Tensor, View], near: set[Tensor]) -> dict[Tensor, str]:
    """The slot of each value of a chain: ``i0``, ``i1``, ... for loaded operands, ``t0``, ``t1``, ... for values
    between operators, ``out`` for the result.

    Values in ``near`` are used where they are and have no slot.
    """
    place = {tensor: f"i{index}" for index, tensor in enumerate(views) if tensor not in near}
    # A broadcast operand has fewer elements than a result, and later tiles may use it, so no result may replace it.
    replaceable = {tensor for tensor in place if all(views[tensor].strides)}
    if main is not None:
        place[main] = MAIN
        replaceable.add(main)
    free: list[tuple[str, int]] = []
    for index, op in enumerate(ops):
        if op.output in near:
            break  # the last operator
        dying = _last_used(op, ops[index + 1 :])
        size = op.output.dtype.itemsize
        # An instruction reads each element before it writes it, so its result may replace an operand of equal width.
        same = next((t for t in dying if t in replaceable and t.dtype.itemsize == size), None)
        if index == len(ops) - 1 and (same is None or _is_between(place[same])):
            place[op.output] = "out"
        elif same is not None:
            place[op.output] = place[same]
        else:
            place[op.output] = _reused(free, size) or f"t{len(_temporaries(place))}"
        replaceable.add(op.output)
        free += [(place[t], t.dtype.itemsize) for t in dying if t is not same and _is_between(place.get(t, ""))]
    return place


def _last_used(op: Op, later: Sequence[Op]) -> list[Tensor]:
    """The operands of an operator that no later operator reads."""
    needed = {tensor for each in later for tensor in each.inputs}
    return [tensor for tensor in dict.fromkeys(op.inputs) if tensor is not None and tensor not in needed]


def _temporaries(place: Mapping[Tensor, str]) -> set[str]:
    return set(filter(_is_between, place.values()))


def _reused(free: list[tuple[str, int]], size: int) -> str | None:
    """Take the narrowest free slot with at least ``size`` bytes per element, or None."""
    chosen = min((entry for entry in free if entry[1] >= size), key=itemgetter(1), default=None)
    if chosen is None:
        return None
    free.remove(chosen)
    return chosen[0]


def _form(op: Op) -> ElementForm:
    form = REGISTRY[op.kind].form
    assert isinstance(form, ElementForm), f"{op.kind} is in a chain, but its form is {form}"
    return form


_Places = list[tuple[int, int, tuple[int, ...]]]
"""(operand number, byte offset of its first element, strides) of each operand of an instruction."""


_Walk = tuple[
    list[list[int]],
    list[tuple[int, Callable[..., Instruction], Op, _Places, tuple[int, ...]]],
    dict[int, Instruction],
]
"""The instructions for a tile without addresses: (numbers, instructions, first).

``numbers``: of the operands of each operator, result first. ``instructions``: operator number, constructor, operator,
(operand, offset, strides) of each operand, and sizes. ``first``: for each instruction, the first one that was made.
"""

_Made = tuple[list[Item], list[int], _Walk]
"""The instructions for a tile in some slots; the indices of those with an operand outside slots, which change from tile
to tile; and the walk that they come from."""


def _instructions(
    op: Op, dst: Strided, sources: Sequence[Strided], sizes: Sequence[int], order: Sequence[int]
) -> list[Item]:
    """One instruction for up to four dimensions that remain after merging, otherwise one per element of the outer
    ones."""
    operands = (dst, *sources)
    outer, dims, walks, inner = _loops(tuple(sizes), tuple(order), tuple([tuple(each[1]) for each in operands]))
    reads, writes = tuple(dict.fromkeys([source[2] for source in sources])), (dst[2],)
    items = []
    for index in product(*map(range, outer)):
        addresses: list[Place] = [
            (operand[0] + sum(map(mul, index, walk)), strides)
            for operand, walk, strides in zip(operands, walks, inner, strict=True)
        ]
        items.append(Item(_form(op).instruction(op, addresses, dims), reads, writes))
    return items


_Loops = tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, ...]], list[tuple[int, ...]]]
"""Sizes of the loops around an instruction and of its own four loops; byte strides of each operand in both."""


# Cached, because tiles repeat within a layer and from one design to the next.
@functools.lru_cache(maxsize=1 << 13)
def _loops(sizes: tuple[int, ...], order: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> _Loops:
    # On packed tiles nearly all dimensions merge, except where an operand is broadcast.
    dims, strides = collapse([sizes[axis] for axis in order], *([own[axis] for axis in order] for own in operands))
    cut = max(0, len(dims) - 4)
    walks, inner = [tuple(own[:cut]) for own in strides], [pad4(own[cut:], 0) for own in strides]
    return tuple(dims[:cut]), pad4(dims[cut:], 1), walks, inner
