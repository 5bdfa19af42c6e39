"""Convolution and matmul: tiles through the matrix unit, then the group's elementwise chain on each finished tile."""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from npusim.compiler.buffers import Moves, View
from npusim.compiler.codegen.issue import Item, Resource, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    SlotTable,
    loading,
    refuse_size,
    share,
    slot_spec,
    total_bytes,
    twin,
)
from npusim.compiler.lower.chain import MAIN, Chain
from npusim.compiler.lower.epilogue import Epilogue, absorb
from npusim.compiler.lower.ranges import Ranges
from npusim.compiler.lower.streams import Packed, joined, pack, weights_per_kilo
from npusim.compiler.lower.transfer import copy_items, fetch_items, load_items, store_packed
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Op, Tensor
from npusim.hw.memory import constants_side
from npusim.isa.base import Space, is_dram
from npusim.isa.matrix import (
    CHANNEL_BLOCK,
    NO_EXTRAS,
    NOTHING,
    Conv,
    Depthwise,
    Extras,
    accumulator_type,
    packed_bytes,
    zero_field,
)
from npusim.timing.tile import (
    Home,
    MatrixProblem,
    Tiling,
    Tilings,
    acc_bytes,
    chain_time,
    footprint,
    input_copies,
    input_extent,
    tilings,
)
from npusim.units import ceil_div


class Task(NamedTuple):
    """One output tile: image, first row, column, group and output channel within the group."""

    image: int
    row: int
    col: int
    group: int
    channel: int


class Extent(NamedTuple):
    """How large a task's tile really is at the edges."""

    rows: int
    cols: int
    groups: int
    channels: int


class Spot(NamedTuple):
    """Pixels of contiguous channels in SRAM or accumulators: the bytes from one row and one pixel to the next."""

    address: int
    row: int
    pixel: int
    resource: Resource


class _Operands(NamedTuple):
    """What one instruction works on, and the last fields of its encoding, which say how sums leave."""

    extent: Extent
    ic: int
    x: Spot
    w: int
    acc: Spot
    out: Spot
    drain: tuple[Any, ...]
    first: bool
    last: bool


_Held = dict[str, tuple[Any, Slot]]
"""What a core's slots hold at the moment, by key, so that a tile that is still there is not loaded again."""


class MatrixLowering(Lowering):
    """What convolution and matmul share: the loops over tiles, the slots, the drain and the chain."""

    problem: MatrixProblem
    drain: Epilogue
    chain: Chain
    tile: Tiling
    op: Op
    height: int = 1
    """Rows of the result, of which the problem has those of a stripe."""
    x_zero: int = 0
    w_zero: int = 0
    can_share = True

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        # It follows from the operators alone, whatever homes are tried.
        self.drain = context.facts.get(group) or context.facts.setdefault(group, absorb(group))
        rows = ("b", self.drain.bias), ("s", self.drain.scale), ("shift", self.drain.shift)
        self._constant_rows = [name for name, row in rows if isinstance(row, np.ndarray)]
        self._computed_rows = self.drain.computed()
        self._pinned = group.index in context.pinned.starts
        self._scales = _Scales.of(self.op)
        self._ranges = Ranges(context, group)
        self._packed: dict[Any, Packed] = {}
        self._parameters_at: dict[Any, View] = {}
        self._made: dict[tuple[Any, ...], Conv | Depthwise] = {}
        self._rows: tuple[int, int, int] | None = None
        self._asked: tuple[MatrixProblem, Tilings] | None = None
        self._specs: list[SlotSpec] | None = None
        self._taken = 0, 0
        # A plan asks for one tile in many rooms: what follows from the problem and a tile.
        self._slots_of: dict[Tiling, tuple[list[SlotSpec], tuple[int, int]]] = {}
        self._striped: dict[tuple[Tiling, int], int] = {}
        direct = self.config.matrix.direct if self.config.matrix else None
        self._fetches = direct is not None and direct.whole_jobs
        # What each core's slots hold at the moment. Stripes of one operator share it: their slots are the same.
        self._held: dict[int, _Held] = {}

    # what the two kinds do differently

    @abstractmethod
    def load_x(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring the input tile into its slot, channels innermost, padding included."""

    @abstractmethod
    def x_part(self, task: Task, extent: Extent, channels: tuple[int, int]) -> View:
        """The pixels of the input tile that there are, without padding: the last two dimensions are columns and
        channels, the one before them, if there is one, rows."""

    @abstractmethod
    def load_weights(self, task: Task, extent: Extent, channels: tuple[int, int], slot: Slot) -> list[Item]:
        """Items that bring [group][K][channel] into the slot."""

    @abstractmethod
    def box(self, task: Task, extent: Extent) -> Box:
        """The task's tile in the dimensions of the chain."""

    @abstractmethod
    def out_view(self) -> View:
        """The result in the dimensions of the chain."""

    @abstractmethod
    def out_part(self, box: Box) -> View:
        """The part of the result in a box of the chain, dimensions as those of :meth:`x_part`."""

    def weights_key(self, task: Task) -> Any:
        """Tasks with equal keys use the same weights."""
        return (task.group, task.channel)

    def _bring(
        self, slot: tuple[int, tuple[int, ...], Slot], part: View, before: tuple[int, ...] | None = None,
        after: tuple[int, ...] | None = None, pattern: int = 0,
    ) -> list[Item]:  # fmt: skip
        """Load a part of the input, channels innermost, with padding around it: by the engine that the unit has for its
        features, if it fetches for itself."""
        bring = fetch_items if self._fetches and is_dram(part.address) else copy_items
        source = (part.address, part.strides, part)
        return bring(slot, source, part.shape, part.dtype.itemsize, before, after, pattern)

    # weights

    def narrow(self, x: View, out: View) -> dict[str, Any]:
        """What a problem has beyond plain products; of views with channels as the last dimension."""
        scales, rows = self._scales, sum(row is not None for row in (self.drain.bias, self.drain.scale))
        matrix = self.config.matrix
        # Weights that another operator computes lie as they are, and so do those that stay in SRAM.
        filled = matrix is not None and matrix.weight_tiles and self.op.input(1).is_constant and not self._pinned
        return {
            "w_rows": matrix.rows if matrix and filled else 1, "w_cols": matrix.cols if matrix and filled else 1,
            "w_bits": self.op.attrs["w_bits"], "w_block": scales.block if scales else 0,
            "w_zeros": scales is not None and scales.zero is not None, "sum_bytes": self._sum.itemsize,
            "w_kilo": weights_per_kilo(self.context, self.op),
            "parameters": 4 * max(2, rows + (self.drain.shift is not None)), "fetched": 4 * len(self._constant_rows),
            "x_turned": _is_turned(x), "out_turned": _is_turned(out),
        }  # fmt: skip

    @property
    def _sum(self) -> DType:
        x, w = self.op.input(0).dtype, self.op.input(1).dtype
        return accumulator_type(x, w, wide=self.op.attrs["wide"], scaled=self._scales is not None)

    def pack_weights(
        self,
        key: Hashable,
        cut: Callable[[npt.NDArray[Any]], list[list[npt.NDArray[Any]]]],
        channels: tuple[int, int],
        columns: list[tuple[int, int]],
        parts: int,
    ) -> Packed:
        """Constants as one run: the weights of each group, which begin with a byte, then their scales, then their zero
        points. ``key``: which tile's; ``cut``: what gives those of each group, in ``parts`` together, of all weights;
        ``channels``: the part of the reduction; ``columns``: first output channel and count of each group."""
        name, dtype, bits, scales = f"{self.op.name}.weights", self.problem.w_type, self.problem.w_bits, self._scales
        weights = self.op.input(1).data
        assert weights is not None
        flat: list[Any]
        if not bits and (scales is not None or parts == 1):
            flat = [part for group in cut(weights) for part in group]
        else:
            taps = self.problem.kh * self.problem.kw * (1 if self.problem.depthwise else channels[1])
            sizes = [packed_bytes(taps * count, self.problem.w_type, bits) for _, count in columns]
            flat = [joined(cut, weights, sum(sizes), bits)]
        if bits:
            dtype = DType.UINT8
        if scales is not None:
            flat += scales.parts(channels, columns)
            flat = [part.reshape(-1).view(np.uint8) for part in map(np.ascontiguousarray, flat)]
            dtype = DType.UINT8
        if self.problem.w_rows * self.problem.w_cols > 1:
            wanted = self._filled_bytes(channels[1], len(columns), columns[0][1])
            flat.append(np.zeros(wanted - sum(part.nbytes for part in flat), np.uint8))
        return pack(self.context, (self.op, key, channels, *columns), flat, name, dtype, bits)

    def _filled_bytes(self, ic: int, groups: int, channels: int) -> int:
        """Of the weights of a tile, with what they are filled up by."""
        p = self.problem
        return footprint(p, Tiling(groups, 1, 1, channels, ic, False)).w

    def _extras(self, w: int, groups: int, k: int, oc: int, chunk: tuple[int, int], shift: int) -> Extras:
        problem, scales, wide = self.problem, self._scales, self._sum is DType.INT64
        if scales is None and not wide and not problem.w_bits and shift == NOTHING:
            return NO_EXTRAS
        if scales is None:
            return Extras(wide, problem.w_bits, shift=shift)
        skip = chunk[0] % scales.block if scales.rows > 1 else 0
        # One row serves all of the reduction, wherever a part of it begins.
        block = scales.block if scales.rows > 1 else k
        w_scale = w + groups * packed_bytes(k * oc, problem.w_type, problem.w_bits)
        w_zeros = NOTHING
        if scales.zero is not None:
            w_zeros = w_scale + 4 * groups * oc * ceil_div(k + skip, block)
        return Extras(wide, problem.w_bits, skip, block, w_scale, w_zeros, shift)

    # tiles

    def choose_tile(self) -> Tiling:
        """Pick the tiling; small operands of the chain that the search left out shrink its budget until all fits."""
        if not self.context.tiles:
            p = self.problem
            return Tiling(p.groups, p.oh, p.ow, p.oc, p.ic, False)
        if self.problem.pinned and not self.context.rows and not self.context.pinned.large_tiles:
            # Without loads a single tile seems best, beside which the chain and the groups before and after may have
            # nothing to do.
            loading = self.problem._replace(held=False, pinned=False)
            with contextlib.suppress(CompileError):
                return self._fitting(loading)
        return self._fitting(self.problem)

    def _fitting(self, problem: MatrixProblem) -> Tiling:
        available = self.context.room
        # Whole parts of SRAM, so that neighbouring choices of homes ask the same questions.
        part = self.config.sram.bytes // _PARTS
        budget = available // part * part
        choose = self._tilings(problem).choose
        tile = choose(budget)
        if tile is None:
            budget = available
            tile = choose(budget)
        asked, step = budget, part
        while True:
            if tile is None and step:
                budget, step = asked, 0
                tile = choose(budget)
            if tile is None:
                self._specs = None
                ic = problem.ic if problem.depthwise else min(problem.ic, CHANNEL_BLOCK)
                self.tile = Tiling(1, 1, 1, 1, ic, False)
                raise refuse_size(self.group, total_bytes(self.slots()), available)
            self.tile, self.chain.in_pieces = tile, tile.in_pieces
            known = self._slots_of.get(tile)
            if known is None:
                specs = self._slots()
                known = self._slots_of[tile] = specs, super().taken(specs)
            self._specs, self._taken = known
            excess = self._taken[0] - available
            if excess <= 0:
                return tile
            # The search knew only bytes for each output element. It is asked again with a part of SRAM less, since a
            # few bytes less would mean thousands of searches; only between the last two parts by what is too much.
            asked, budget = budget, budget - max(excess, step)
            tile = choose(budget)

    def in_room(self) -> Self:
        lowering = twin(self)
        lowering.chain = twin(self.chain)
        lowering.chain.in_pieces = False
        lowering.tile = lowering.choose_tile()
        return lowering

    def follow(self, first: Lowering) -> None:
        assert isinstance(first, MatrixLowering)
        # Also how the chain works on them: what lies between has the first core's slots.
        self.tile, self.chain.in_pieces, self._specs = first.tile, first.chain.in_pieces, None
        # The same weights are packed once.
        if self.op.input(1) is first.op.input(1):
            self._packed, self._parameters_at = first._packed, first._parameters_at

    def estimate(self) -> int:
        known = self._tilings(self.problem)
        return known.latency(self.tile) * self.height // self.problem.oh

    def striped(self, rows: int) -> int:
        # An array may take as long for one row as for two.
        known = self._striped.get((self.tile, rows))
        if known is None:
            problem, tile = self.problem, self.tile
            if rows != problem.oh:
                problem, tile = problem._replace(oh=rows), tile._replace(oh=min(tile.oh, rows))
            found = self._tilings(problem) if rows == self.problem.oh else tilings(problem, self.config)
            known = found.latency(tile, again=True) * self.height // rows
            self._striped[self.tile, rows] = known
        return known

    def banked(self) -> int:
        return self._tilings(self.problem).banked(self.tile) * self.height // self.problem.oh

    def _tilings(self, problem: MatrixProblem) -> Tilings:
        if self._asked is None or self._asked[0] is not problem:
            self._asked = problem, tilings(problem, self.config)
        return self._asked[1]

    def ends(self) -> int:
        known = self._tilings(self.problem)
        return known.latency(self.tile) - known.latency(self.tile, again=True)

    def tail(self) -> int:
        return chain_time(self.problem, self.tile)

    def waiting(self) -> int:
        waiting = self._chaining() - self._tilings(self.problem).computing(self.tile)
        return max(0, waiting * self.height // self.problem.oh)

    def behind(self) -> int:
        tiles, known = self._tiles(), self._tilings(self.problem)
        working, products, chain = self._chaining(), known.computing(self.tile), self.tail() * tiles
        if not chain:
            return 0
        left = working
        if tiles > 1:
            # Two tiles have places: on what is made of the last but one the chain may be still when the last one is.
            banks = known.chain_banked
            left = 2 * working - products - max(0, known.banked(self.tile) - banks) * banks // chain
        # What the banks take in all has the products in it.
        left = (left - products if working > chain else left) // tiles
        # A full queue holds up all that is behind.
        pieces = ceil_div(self._of_tile(), self.problem.epilogue.piece) if self.tile.in_pieces else 1
        left = min(left, self.tail() * self.config.queue_depth // (pieces * len(self.chain.ops)))
        return max(0, left)

    def crowding(self) -> int:
        chain = self.tail() * self._tiles()
        return self._tilings(self.problem).chain_banked * 1024 // chain if chain else 0

    def chaining(self) -> int:
        return self.tail() * self._tiles() * self.height // self.problem.oh

    def turns(self) -> int:
        return self._tiles() * ceil_div(self.problem.ic, self.tile.ic)

    def _tiles(self) -> int:
        p = self.problem
        return ceil_div(p.images * p.oh * p.ow * p.groups * p.oc, self._of_tile())

    def _of_tile(self) -> int:
        """Elements of a whole tile of the result."""
        return self.tile.oh * self.tile.ow * self.tile.groups * self.tile.oc

    def _chaining(self) -> int:
        """Picoseconds from the chain's beginning on one tile to that on the next, for all of them; 0: there is none."""
        chain = self.tail() * self._tiles()
        return chain and max(chain, self._tilings(self.problem).banked(self.tile))

    def _of_rows(self, image: int, rows: tuple[int, int], moved: Moves) -> Self:
        """A copy for some rows of an image, whose chain finds buffers where they have moved to."""
        lowering = twin(self)
        lowering._rows, lowering.chain = (image, *rows), self.chain.moved(moved)
        return lowering

    @property
    def can_pin(self) -> bool:
        """Whether the weights are the same in each inference, and the same for all images."""
        return self.op.input(1).is_constant and self.problem.shared_weights and not self.drain.computed()

    def held_ps(self) -> int:
        p, tile = self.problem, self.tile
        if not p.held or p.pinned:
            return 0
        parts = ceil_div(p.groups, tile.groups) * ceil_div(p.oc, tile.oc)
        transfers = parts * (ceil_div(p.ic, tile.ic) + bool(self._constant_rows))
        return loading(self.weight_bytes * p.w_kilo // 1024, constants_side(self.config), transfers)

    @property
    def weight_bytes(self) -> int:
        """All weights and parameters, without gaps."""
        p = self.problem
        size = footprint(p, Tiling(p.groups, 1, 1, p.oc, p.ic, False))
        return size.w + sum(row.nbytes for row in self.drain.rows())

    def residents(self, core: int, turn: int, turns: int) -> Iterator[Item]:
        """Load to a core what stays there of one of so many shares of the tiles; :meth:`steps` find it there."""
        held, at = self._held.setdefault(core, {}), self.context.pinned.starts[self.group.index]
        end = at + self.weight_bytes
        parts = list(dict.fromkeys((t.group, t.channel) for t in share(self.tasks(), turn, turns)))
        tasks = [Task(0, 0, 0, *part) for part in parts]
        for task in tasks:  # in front, where they are aligned as the weights need not be
            extent = self.extent(task)
            if self.drain.rows():
                view = self._parameter_view(task, extent)
                slot = Slot(core, Space.SRAM, at, view.buffer.nbytes, active=True)
                held[f"p{task[3:]}"] = (task[3:], slot)
                at += slot.nbytes
                yield from load_items((slot.address, (1,), slot), view)
        for task, chunk in product(tasks, self._chunks()):
            extent = self.extent(task)
            one = self.tile._replace(groups=extent.groups, oc=extent.channels, ic=chunk[1])
            slot = Slot(core, Space.SRAM, at, footprint(self.problem, one).w, active=True)
            held[f"w{(task[3:], chunk)}"] = ((self.weights_key(task), chunk), slot)
            at += slot.nbytes
            if at > end:
                raise CompileError(f"internal: {self.op.name}: parts of the weights take more than the whole")
            yield from self.load_weights(task, extent, chunk, slot)

    @property
    def in_place(self) -> bool:
        """The accumulators of a tile are its output."""
        return self.problem.in_place and not acc_bytes(self.config)

    def slots(self) -> list[SlotSpec]:
        return self._slots() if self._specs is None else self._specs

    def taken(self, specs: Sequence[SlotSpec]) -> tuple[int, int]:
        return self._taken if specs is self._specs else super().taken(specs)

    def _slots(self) -> list[SlotSpec]:
        size = footprint(self.problem, self.tile)
        specs: list[SlotSpec] = []
        if self.problem.pinned:
            pass  # in a place that is not given anew to each operator
        elif self.problem.held:
            specs += _copies("w", size.w, self.problem.held, *self._cuts(), (self.problem.ic, self.tile.ic))
        else:
            specs.append(slot_spec("w", size.w))
        if self.problem.x_home is not Home.DIRECT:
            specs.insert(0, slot_spec("x", size.x, input_copies(self.config)))
        if self.problem.main:
            specs.append(slot_spec(MAIN, size.out))
        needed = ["p"] if self._constant_rows and not self.problem.pinned else []
        for name in needed + [name for name, _ in self._computed_rows]:
            if self.problem.held:
                specs += _copies(name, size.parameters, self.problem.held, *self._cuts(), None)
            else:
                specs.append(slot_spec(name, size.parameters))
        if not self.in_place:
            space = Space.ACC if acc_bytes(self.config) else Space.SRAM
            specs.append(slot_spec("acc", size.acc, 1, space))
        if self.chain.ops:
            tile = self.tile
            _, sizes = self.box(Task(0, 0, 0, 0, 0), Extent(tile.oh, tile.ow, tile.groups, tile.oc))
            specs += self.chain.slots(sizes)
        return specs + self._ranges.slots()

    def _channels(self) -> list[tuple[int, int]]:
        """First group and output channel of tiles."""
        (groups, group), (channels, channel) = self._cuts()
        return list(product(range(0, groups, group), range(0, channels, channel)))

    def _cuts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Groups and output channels, of all and of a tile."""
        return (self.problem.groups, self.tile.groups), (self.problem.oc, self.tile.oc)

    def _chunks(self) -> list[tuple[int, int]]:
        """(first input channel, input channels) of the parts of a reduction."""
        return _parts(self.problem.ic, self.tile.ic)

    def tasks(self) -> list[Task]:
        problem, tile = self.problem, self.tile
        images, rows = range(problem.images), range(0, problem.oh, tile.oh)
        if self._rows:
            image, first, end = self._rows
            images, rows = range(image, image + 1), range(first, end, tile.oh)
        spatial = list(product(images, rows, range(0, problem.ow, tile.ow)))
        channels = self._channels()
        if tile.weights_outer:
            return [Task(*where, *what) for what in channels for where in spatial]
        return [Task(*where, *what) for where in spatial for what in channels]

    def extent(self, task: Task) -> Extent:
        problem, tile = self.problem, self.tile
        return Extent(
            min(tile.oh, (self._rows[2] if self._rows else problem.oh) - task.row),
            min(tile.ow, problem.ow - task.col),
            min(tile.groups, problem.groups - task.group),
            min(tile.oc, problem.oc - task.channel),
        )

    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        held = self._held.setdefault(table.core, {})
        chunks = self._chunks()
        mine = [(task, self.extent(task)) for task in share(self.tasks(), core, cores)]
        parts = [(*tile, *tile) for tile in mine[:-_STRIPED]]
        parts += [(*tile, *stripe) for tile in mine[-_STRIPED:] for stripe in self._stripes(*tile)]
        late = Tile()
        for number, (whole, all_of_it, task, extent) in enumerate(parts):
            box = self.box(task, extent)
            # One output tile and one accumulator for all parts of a reduction: each adds to what the
            # part before has left there.
            out, main = self._out_spot(table, extent, box)
            acc = out if self.in_place else self._packed_spot(table.next("acc"), extent, self.problem.sum_bytes)
            for chunk in chunks:
                step = Tile()
                last = chunk is chunks[-1]
                # What waits for nobody comes first: the input may be what the layer in front still works on.
                w = self._load(step, table, held, "w", (self.weights_key(task), chunk), task, extent, chunk)
                # Bias and scale are wanted when the sum is complete, so they load with the last part and not with the
                # first.
                rows = self._parameters(step, table, held, task, extent) if last else {}
                x = self._x_spot(step, table, held, whole, all_of_it, chunk)
                if task is not whole:
                    x = self._within(x, whole, task, extent, chunk)
                instruction = self._instruction(extent, chunk, x, w, acc, out, rows, last=last)
                reads = (x.resource, w, *dict.fromkeys(slot for slot, _ in rows.values()))
                # Sums in the output's own place are one resource with it; before the last part the output is not
                # touched.
                writes = (acc.resource, out.resource) if last and out is not acc else (acc.resource,)
                step.compute.append(Item(instruction, reads, writes))
                if last:
                    product = step.compute[:]
                    slot = self.chain.emit(step, table, box, main)
                    if slot is not None:
                        step.stores.extend(store_packed(self.out_view().slice(*box), slot, self.chain.order))
                    if self._ranges:
                        tile = self.chain.result(self.out_view().slice(*box), slot, box[1])
                        self._ranges.emit(step, table, tile, box[1], first=not number, last=number == len(parts) - 1)
                    if self.tile.in_pieces:
                        # So many instructions fill the vector unit's queue, and who waits for it holds up all: the next
                        # tile's products come before them.
                        chain = Tile(compute=step.compute[len(product) :], stores=step.stores)
                        step.compute, step.stores, late = product + late.compute, late.stores, chain
                yield step
        if late.compute:
            yield late

    def _stripes(self, task: Task, extent: Extent) -> list[tuple[Task, Extent]]:
        """The parts in which a tile leaves at the end of a layer, where no other hides its store: smaller and smaller
        ones, so that each is stored while the next is computed."""
        if not self._fetches or self._rows or self.tile.ic < self.problem.ic:
            return [(task, extent)]
        assert self.config.matrix is not None
        assert self.config.matrix.direct is not None
        # Of more than one row of atoms, as sums leave: one alone would leave without the gap behind it.
        least = 2 * self.config.matrix.direct.output_row_atoms
        rows = extent.rows > 1
        full, unit = (extent.rows, ceil_div(least, extent.cols)) if rows else (extent.cols, least)
        found, first = [], 0
        while first < full:
            left = full - first
            size = left // (2 * unit) * unit or left
            if rows:
                part = task._replace(row=task.row + first), extent._replace(rows=size)
            else:
                part = task._replace(col=task.col + first), extent._replace(cols=size)
            found.append(part)
            first += size
        return found if len(found) > 1 else [(task, extent)]

    def _within(self, x: Spot, whole: Task, task: Task, extent: Extent, chunk: tuple[int, int]) -> Spot:
        """The pixels of a part of a tile, where those of the tile are."""
        if self.problem.x_home is Home.DIRECT:
            return _direct_spot(self.x_part(task, extent, chunk))
        down, right = (task.row - whole.row) * self.problem.sh, (task.col - whole.col) * self.problem.sw
        return x._replace(address=x.address + down * x.row + right * x.pixel)

    def _out_spot(self, table: SlotTable, extent: Extent, box: Box) -> tuple[Spot, Slot | None]:
        """Where sums leave to, and the slot if that is one."""
        if self.problem.main:
            slot = table.next(MAIN)
            return self._packed_spot(slot, extent, self.drain.out_type.itemsize), slot
        return _direct_spot(self.out_part(box)), None

    def _packed_spot(self, slot: Slot, extent: Extent, item: int) -> Spot:
        pixel = extent.groups * extent.channels * item
        return Spot(slot.address, extent.cols * pixel, pixel, slot)

    def _x_spot(
        self, step: Tile, table: SlotTable, held: _Held, task: Task, extent: Extent, chunk: tuple[int, int]
    ) -> Spot:
        if self.problem.x_home is Home.DIRECT:
            return _direct_spot(self.x_part(task, extent, chunk))
        group = task.group if self.problem.groups > 1 else 0
        key = (task.image, task.row, task.col, group, chunk)
        slot = self._load(step, table, held, "x", key, task, extent, chunk)
        # Strides of the tile as it is, not of the largest one: tiles at the edges are packed as densely as others.
        pixel = extent.groups * chunk[1] * self.problem.x_type.itemsize
        return Spot(slot.address, input_extent(self.problem, extent.rows, extent.cols)[1] * pixel, pixel, slot)

    def _load(
        self, step: Tile, table: SlotTable, held: _Held, name: str, key: Any, task: Task, extent: Extent,
        chunk: tuple[int, int],
    ) -> Slot:  # fmt: skip
        """The slot with an operand's tile, which is loaded unless it is there still."""
        load = self.load_x if name == "x" else self.load_weights
        if name == "w" and self.problem.held:
            name = f"w{((task.group, task.channel), chunk)}"
        if name not in held or held[name][0] != key:
            held[name] = (key, table.next(name))
            step.loads.extend(load(task, extent, chunk, held[name][1]))
        return held[name][1]

    def _parameter_view(self, task: Task, extent: Extent) -> View:
        """What is constant of bias, scale and shift of the tile's channels."""
        key = (task.group, task.channel)
        view = self._parameters_at.get(key)
        if view is None:
            low = task.group * self.problem.oc + task.channel
            count = extent.groups * extent.channels
            data = self._parameter_rows()[:, 4 * low : 4 * (low + count)].reshape(-1)
            view = self._parameters_at[key] = self.context.constants.add(
                data, f"{self.op.name}.parameters", DType.UINT8
            )
        return view

    def _parameter_rows(self) -> npt.NDArray[np.uint8]:
        """The rows of the drain, 4 bytes for each channel: as bytes, because a bias may be int32 beside a float scale;
        so all come in one transfer."""
        key = ("parameters", self.group)
        known: npt.NDArray[np.uint8] | None = self.context.facts.get(key)
        if known is None:
            known = self.context.facts[key] = np.stack([row.view(np.uint8) for row in self.drain.rows()])
        return known

    def _parameters(
        self, step: Tile, table: SlotTable, held: _Held, task: Task, extent: Extent
    ) -> dict[str, tuple[Slot, int]]:
        """Load bias, scale and shift of the tile's channels, one after the other: (slot, offset) of each."""
        key = (task.group, task.channel)
        places: dict[str, tuple[Slot, int]] = {}
        if self._constant_rows:
            slot, loaded = self._parameter_slot(table, held, "p", key)
            if not loaded:
                step.loads.extend(load_items((slot.address, (1,), slot), self._parameter_view(task, extent)))
            size = 4 * extent.groups * extent.channels
            for number, name in enumerate(self._constant_rows):
                places[name] = slot, number * size
        for name, tensor in self._computed_rows:
            slot, loaded = self._parameter_slot(table, held, name, key)
            if not loaded:
                low, count = task.group * self.problem.oc + task.channel, extent.groups * extent.channels
                step.loads.extend(load_items((slot.address, (4,), slot), self._computed(tensor, low, count)))
            places[name] = slot, 0
        return places

    def _parameter_slot(self, table: SlotTable, held: _Held, name: str, key: tuple[int, int]) -> tuple[Slot, bool]:
        """The slot of a tile's parameters, and whether they are there already."""
        name = f"{name}{key}" if self.problem.held else name
        loaded = name in held and held[name][0] == key
        if not loaded:
            held[name] = (key, table.next(name))
        return held[name][1], loaded

    def _computed(self, tensor: Tensor, low: int, count: int) -> View:
        """The channels of a tile, or the one value for all, of what is computed."""
        view = self.context.view(tensor)
        axis = next((index for index, dim in enumerate(view.shape) if dim > 1), None)
        if axis is None:
            return View(view.buffer, view.offset, (1,), (4,), view.dtype)
        part = View(view.buffer, view.offset, (view.shape[axis],), (view.strides[axis],), view.dtype)
        return part.slice((low,), (count,))

    def _drain_fields(self, rows: dict[str, tuple[Slot, int]], extent: Extent) -> tuple[tuple[Any, ...], int]:
        """The fields of the drain, and the address of the shift."""
        drain = self.drain
        bias, scale, shift = (
            rows[name][0].address + rows[name][1] if name in rows else NOTHING for name in ("b", "s", "shift")
        )
        step = 0 if isinstance(drain.scale, Tensor) and drain.scale.size == 1 else 4
        return (bias, scale, step, drain.out_scale, drain.out_zero, drain.low, drain.high), shift

    def _tile_extras(self, w: int, extent: Extent, chunk: tuple[int, int], shift: int) -> Extras:
        p = self.problem
        if p.depthwise:
            return self._extras(w, 1, p.kh * p.kw, extent.groups * extent.channels, chunk, shift)
        return self._extras(w, extent.groups, chunk[1] * p.kh * p.kw, extent.channels, chunk, shift)

    def _instruction(
        self, extent: Extent, chunk: tuple[int, int], x: Spot, w: Slot, acc: Spot, out: Spot,
        rows: dict[str, tuple[Slot, int]], *, last: bool,
    ) -> Conv | Depthwise:  # fmt: skip
        """What multiplies a tile. Slots take turns, so most tiles have an earlier one's."""
        key = (
            extent,
            chunk,
            x[:3],
            w.address,
            acc[:3],
            out[:3],
            tuple([(row[0].address, row[1]) for row in rows.values()]),
        )
        made = self._made.get(key)
        if made is None:
            fields, shift = self._drain_fields(rows, extent)
            fields = (*fields, self._tile_extras(w.address, extent, chunk, shift))
            operands = _Operands(extent, chunk[1], x, w.address, acc, out, fields, not chunk[0], last)
            made = self._made[key] = self._depthwise(operands) if self.problem.depthwise else self._conv(operands)
        return made

    def _conv(self, tile: _Operands) -> Conv:
        p, (extent, ic, x, w, acc, out, drain, first, last) = self.problem, tile
        k_bytes = packed_bytes(ic * p.kh * p.kw * extent.channels, p.w_type, p.w_bits)
        return Conv(
            p.x_type, p.w_type, self.drain.out_type, x.address, (ic * p.x_type.itemsize, x.row, x.pixel), w, k_bytes,
            acc.address, (extent.channels * p.sum_bytes, acc.row, acc.pixel), extent.groups, extent.rows, extent.cols,
            extent.channels, ic, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw, zero_field(p.x_type, self.x_zero),
            self.w_zero, first, last, out.address,
            (extent.channels * self.drain.out_type.itemsize, out.row, out.pixel), *drain,
        )  # fmt: skip

    def _depthwise(self, tile: _Operands) -> Depthwise:
        p, (extent, _, x, w, acc, out, drain, first, last) = self.problem, tile
        return Depthwise(
            p.x_type, p.w_type, self.drain.out_type, x.address, x.row, x.pixel, w, acc.address, acc.row, acc.pixel,
            extent.rows, extent.cols, extent.groups, extent.channels, p.kh, p.kw, p.sh, p.sw, p.dh, p.dw,
            zero_field(p.x_type, self.x_zero), self.w_zero, first, last, out.address, out.row, out.pixel, *drain,
        )  # fmt: skip

    def homes(self, x: View, out: View, *, whole: bool) -> tuple[Home, Home, bool]:
        """How the input and the output of tiles reach their values, both seen with channels last, and whether the sums
        leave into a slot. ``whole``: a tile needs nothing of the input but what it has, no padding."""
        x_home = _home(x)
        if x_home is Home.DIRECT and not whole and not x.buffer.is_rolling:
            x_home = Home.COPIED
        out_home = _home(out)
        return x_home, out_home, out_home is not Home.DIRECT or bool(self.chain.ops)


def _parts(full: int, size: int) -> list[tuple[int, int]]:
    """(first, how many) of the parts of ``full``."""
    return [(low, min(size, full - low)) for low in range(0, full, size)]


# A plan asks for the same ones for one place after the other, and may for thousands of them.
@functools.lru_cache(maxsize=1024)
def _copies(
    name: str, nbytes: int, copies: int, groups: tuple[int, int], oc: tuple[int, int], ic: tuple[int, int] | None
) -> tuple[SlotSpec, ...]:
    """A slot for the channels of each tile, or for each of their parts of a reduction; cuts are (all, of a tile)."""
    channels = product(*(range(0, full, size) for full, size in (groups, oc)))
    keys = product(channels, _parts(*ic)) if ic is not None else channels
    return tuple(SlotSpec(f"{name}{key}", nbytes, copies) for key in keys)


_STRIPED = 2
"""Tiles at the end of a layer that leave in stripes: the store of the one before the last, too, would go on while the
last one's begins."""

_PARTS = 64
"""Parts of SRAM that a budget is rounded to."""


def _is_turned(view: View) -> bool:
    """Whether elements of another dimension than the last one are nearest to each other."""
    last = len(view.shape) - 1
    return view.shape[last] > 1 and view.order()[last] != last


def _home(view: View) -> Home:
    if not view.buffer.on_chip:
        return Home.DRAM
    # The unit wants the channels of a pixel next to each other.
    return Home.DIRECT if view.shape[-1] == 1 or view.strides[-1] == view.dtype.itemsize else Home.COPIED


def _direct_spot(part: View) -> Spot:
    row = part.strides[-3] if len(part.strides) > 2 else 0
    return Spot(part.address, row, part.strides[-2], part)


class _Scales(NamedTuple):
    """Scales of weights that are numbers, and zero points if they have any: [rows][output channels], a row for each
    ``block`` input channels."""

    block: int
    scale: npt.NDArray[np.float32]
    zero: npt.NDArray[Any] | None

    @classmethod
    def of(cls, op: Op) -> _Scales | None:
        scale, zero = op.optional(3), op.optional(4)
        if scale is None:
            return None
        w, conv = op.input(1), op.kind == "conv"
        channels, depth = (w.shape[0], w.shape[1]) if conv else (w.shape[-1], w.shape[-2])
        arrays = []
        for tensor, dtype in ((scale, np.dtype(np.float32)), (zero, w.dtype.storage)):
            if tensor is None or tensor.data is None:
                continue
            # Rows are along the input channels: of a convolution they lie behind the output channels.
            lead = 2 if conv else len(w.shape)
            flat = tensor.data.reshape(tensor.shape[lead - 2 : lead])
            rows = flat.T if conv else flat
            arrays.append(np.repeat(rows, channels // rows.shape[1], axis=1).astype(dtype))
        return cls(op.attrs["block"] or depth, arrays[0], arrays[1] if len(arrays) > 1 else None)

    @property
    def rows(self) -> int:
        return len(self.scale)

    def parts(self, channels: tuple[int, int], columns: list[tuple[int, int]]) -> list[npt.NDArray[Any]]:
        """Scales of the groups' columns for a part of the input channels, then zero points."""
        low, high = channels[0] // self.block, ceil_div(sum(channels), self.block)
        if self.rows == 1:
            low, high = 0, 1
        arrays = [array for array in (self.scale, self.zero) if array is not None]
        return [array[low:high, first : first + count] for array in arrays for first, count in columns]
