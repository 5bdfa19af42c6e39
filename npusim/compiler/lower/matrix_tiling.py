"""The tile of a matrix operator, its slots, and the estimates that planning compares.

Everything here depends on the problem and the tile alone, not on addresses. Planning needs the same tiles for many
different amounts of free SRAM, so a lowering caches the slots and times of its tiles.
"""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np

from npusim.compiler.buffers import View
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import (
    Box,
    Context,
    Lowering,
    SlotSpec,
    fact,
    loading,
    refuse_size,
    slot_spec,
    total_bytes,
    twin,
)
from npusim.compiler.lower.chain import MAIN, Chain
from npusim.compiler.lower.epilogue import Epilogue, absorb
from npusim.compiler.lower.matrix_weights import Part, WeightScales, sum_type
from npusim.compiler.lower.ranges import range_slots
from npusim.compiler.lower.streams import weights_per_kilo
from npusim.errors import CompileError
from npusim.graph import Op
from npusim.hw.memory import constants_side
from npusim.isa.base import Space
from npusim.isa.matrix_types import CHANNEL_BLOCK
from npusim.timing.tile import Tilings, acc_bytes, input_copies, tilings
from npusim.timing.tile_cuts import can_cut_taps
from npusim.timing.tile_problem import Home, MatrixProblem, Tiling, chain_time, footprint, taps
from npusim.units import ceil_div

PARTS = 64
"""The SRAM budget is rounded down to 1/64 of SRAM, so that plans that differ little use the same tiles."""


class OutputTile(NamedTuple):
    """The position of a tile of the result: image, first row, column, group, and output channel within the group."""

    image: int
    row: int
    col: int
    group: int
    channel: int


class Extent(NamedTuple):
    """The sizes of a tile. Tiles at the edges of the result are smaller."""

    rows: int
    cols: int
    groups: int
    channels: int


class MatrixTiling(Lowering):
    """A matrix operator with a tile that fits: the part of a lowering that estimates need."""

    problem: MatrixProblem
    epilogue: Epilogue
    chain: Chain
    tile: Tiling
    op: Op
    height: int = 1
    """Rows of the result. The problem has those of a stripe."""
    can_share = True

    def __init__(self, context: Context, group: Group) -> None:
        super().__init__(context, group)
        assert group.anchor is not None
        self.op = group.anchor
        # It depends on the operators alone, so all plans of a graph share it.
        self.epilogue = fact(context, group, lambda: absorb(group))
        rows = ("b", self.epilogue.bias), ("s", self.epilogue.scale), ("shift", self.epilogue.shift)
        self._constant_rows = [name for name, row in rows if isinstance(row, np.ndarray)]
        self._computed_rows = self.epilogue.computed()
        self._pinned = group.index in context.pinned.starts
        self._scales = WeightScales.of(self.op)
        self._sum = sum_type(self.op, self._scales)
        self._asked: tuple[MatrixProblem, Tilings] | None = None
        self._specs: list[SlotSpec] | None = None
        self._taken = 0, 0
        self._slots_of: dict[Tiling, tuple[list[SlotSpec], tuple[int, int]]] = {}
        self._striped: dict[tuple[Tiling, int], int] = {}

    @abstractmethod
    def box(self, task: OutputTile, extent: Extent) -> Box:
        """A tile in the dimensions of the chain."""

    # The problem

    def homes(self, x: View, out: View, *, whole: bool) -> tuple[Home, Home, bool]:
        """How tiles of the input and output access their values, and whether sums go to a slot first.

        Views have channels last. ``whole``: a tile needs no padding around its part of the input.
        """
        x_home = _home(x)
        if x_home is Home.DIRECT and not whole and not x.buffer.is_rolling:
            x_home = Home.COPIED
        out_home = _home(out)
        return x_home, out_home, out_home is not Home.DIRECT or bool(self.chain.ops)

    def narrow(self, x: View, out: View) -> dict[str, Any]:
        """The fields of a problem beyond plain products. Views have channels last."""
        scales, rows = self._scales, sum(row is not None for row in (self.epilogue.bias, self.epilogue.scale))
        matrix = self.config.matrix
        # Computed and pinned weights keep their size. Others are padded to whole tiles of the unit.
        tiles = self.config.compiler.weight_tiles
        filled = matrix is not None and tiles and self.op.input(1).is_constant and not self._pinned
        return {
            "w_rows": matrix.rows if matrix and filled else 1,
            "w_cols": matrix.cols if matrix and filled else 1,
            "w_bits": self.op.attrs["w_bits"],
            "w_block": scales.block if scales else 0,
            "w_zeros": scales is not None and scales.zero is not None,
            "sum_bytes": self._sum.itemsize,
            "w_kilo": weights_per_kilo(self.context, self.op),
            "parameters": 4 * max(2, rows + (self.epilogue.shift is not None)),
            "fetched": 4 * len(self._constant_rows),
            "x_turned": _is_turned(x),
            "out_turned": _is_turned(out),
        }

    @property
    def in_place(self) -> bool:
        """Whether the accumulators of a tile are its output."""
        return self.problem.in_place and not acc_bytes(self.config)

    @property
    def can_pin(self) -> bool:
        """Whether the weights are the same in every inference and for all images."""
        return self.op.input(1).is_constant and self.problem.shared_weights and not self.epilogue.computed()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights and parameters, without gaps."""
        p = self.problem
        size = footprint(p, Tiling(p.groups, 1, 1, p.oc, p.ic, False))
        return size.w + sum(row.nbytes for row in self.epilogue.rows())

    # The tile

    def choose_tile(self) -> Tiling:
        """The fastest tile that fits into ``context.room``. Raises CompileError if none fits."""
        if not self.context.tiles:
            p = self.problem
            return Tiling(p.groups, p.oh, p.ow, p.oc, p.ic, False)
        if self.problem.pinned and not self.context.rows and not self.context.pinned.large_tiles:
            # Without loads, one large tile seems best, but then the chain and the neighbouring groups have nothing to
            # overlap with. So the tile is chosen as if weights were loaded.
            loaded = self.problem._replace(held=False, pinned=False)
            with contextlib.suppress(CompileError):
                return self._fitting(loaded)
        return self._fitting(self.problem)

    def _fitting(self, problem: MatrixProblem) -> Tiling:
        available = self.context.room
        part = self.config.sram.bytes // PARTS
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
                self.tile = Tiling(1, 1, 1, 1, ic, False, False, *((1, 1) if can_cut_taps(problem) else (0, 0)))
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
            # The search counts only the chain's bytes per element; small operands come on top. Each retry reduces the
            # budget by a whole part of SRAM, because steps of a few bytes would need thousands of searches. Between the
            # last two parts the budget decreases by the excess.
            asked, budget = budget, budget - max(excess, step)
            tile = choose(budget)

    def _tilings(self, problem: MatrixProblem) -> Tilings:
        if self._asked is None or self._asked[0] is not problem:
            self._asked = problem, tilings(problem, self.config)
        return self._asked[1]

    def in_room(self) -> Self:
        lowering = twin(self)
        lowering.chain = twin(self.chain)
        lowering.chain.in_pieces = False
        lowering.tile = lowering.choose_tile()
        return lowering

    def for_problem(self, problem: MatrixProblem) -> Self:
        """A copy for another problem, with a tile for the current ``room``."""
        lowering = twin(self)
        lowering.problem, lowering._slots_of, lowering._striped = problem, {}, {}
        return lowering.in_room()

    def follow(self, first: Lowering) -> None:
        assert isinstance(first, MatrixTiling)
        # With the first core's slots, the chain must work in pieces if that core's chain does.
        self.tile, self.chain.in_pieces, self._specs = first.tile, first.chain.in_pieces, None

    # The slots

    def slots(self) -> list[SlotSpec]:
        return self._slots() if self._specs is None else self._specs

    def taken(self, specs: Sequence[SlotSpec]) -> tuple[int, int]:
        return self._taken if specs is self._specs else super().taken(specs)

    def _slots(self) -> list[SlotSpec]:
        p, size = self.problem, footprint(self.problem, self.tile)
        specs: list[SlotSpec] = []
        if p.x_home is not Home.DIRECT:
            specs.append(slot_spec("x", size.x, input_copies(self.config)))
        # Pinned weights and parameters have fixed addresses for all inferences.
        if not p.pinned:
            specs += self._operand("w", size.w, self.parts())
        if p.main:
            specs.append(slot_spec(MAIN, size.out))
        needed = ["p"] if self._constant_rows and not p.pinned else []
        for name in needed + [name for name, _ in self._computed_rows]:
            specs += self._operand(name, size.parameters, ())
        if not self.in_place:
            space = Space.ACC if acc_bytes(self.config) else Space.SRAM
            specs.append(slot_spec("acc", size.acc, 1, space))
        if self.chain.ops:
            tile = self.tile
            _, sizes = self.box(OutputTile(0, 0, 0, 0, 0), Extent(tile.oh, tile.ow, tile.groups, tile.oc))
            specs += self.chain.slots(sizes)
        return specs + range_slots(self.group)

    def parts(self) -> tuple[Part, ...]:
        """The parts of the reduction of a tile, in the order in which they are added."""
        # Channel blocks outermost, then kernel rows: the defined order of float sums.
        p, (rows, cols) = self.problem, taps(self.problem, self.tile)
        cuts = cut(p.ic, self.tile.ic), cut(p.kh, rows), cut(p.kw, cols)
        return tuple([Part(*channels, *row, *col) for channels, row, col in product(*cuts)])

    def _operand(self, name: str, nbytes: int, parts: tuple[Part, ...]) -> Sequence[SlotSpec]:
        """A slot for what belongs to the channels of a tile; if weights stay for all stripes, one slot per tile of
        channels."""
        if self.problem.held:
            return _copies(name, nbytes, self.problem.held, *self._cuts(), parts)
        return (slot_spec(name, nbytes),)

    def _cuts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(all, per tile) for groups and for output channels."""
        return (self.problem.groups, self.tile.groups), (self.problem.oc, self.tile.oc)

    # Estimates

    def estimate(self) -> int:
        return self._of_all(self._tilings(self.problem).latency(self.tile))

    def _of_all(self, ps: int) -> int:
        """Picoseconds for all rows of the result, given those for the rows of the problem."""
        return ps * self.height // self.problem.oh

    def striped(self, rows: int) -> int:
        # Not proportional to the rows: an array may need as long for one as for two.
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
        return self._of_all(self._tilings(self.problem).banked(self.tile))

    def ends(self) -> int:
        known = self._tilings(self.problem)
        return known.latency(self.tile) - known.latency(self.tile, again=True)

    def tail(self) -> int:
        return chain_time(self.problem, self.tile)

    def waiting(self) -> int:
        return max(0, self._of_all(self._chaining() - self._tilings(self.problem).computing(self.tile)))

    def behind(self) -> int:
        tiles, known = self._tiles(), self._tilings(self.problem)
        working, products, chain = self._chaining(), known.computing(self.tile), self.tail() * tiles
        if not chain:
            return 0
        left = working
        if tiles > 1:
            # Two tiles have slots: when the products of the last tile are done, the chain may still work on the tile
            # before it.
            banks = known.chain_banked
            left = 2 * working - products - max(0, known.banked(self.tile) - banks) * banks // chain
        # The bank time includes the products.
        left = (left - products if working > chain else left) // tiles
        # The backlog of the chain is limited by its unit's queue: when that is full, the matrix unit waits as well.
        pieces = ceil_div(self._of_tile(), self.problem.epilogue.piece) if self.tile.in_pieces else 1
        left = min(left, self.tail() * self.config.queue_depth // (pieces * len(self.chain.ops)))
        return max(0, left)

    def crowding(self) -> int:
        chain = self.tail() * self._tiles()
        return self._tilings(self.problem).chain_banked * 1024 // chain if chain else 0

    def chaining(self) -> int:
        return self._of_all(self.tail() * self._tiles())

    def turns(self) -> int:
        return self._tiles() * len(self.parts())

    def held_ps(self) -> int:
        p, tile = self.problem, self.tile
        if not p.held or p.pinned:
            return 0
        tiles = ceil_div(p.groups, tile.groups) * ceil_div(p.oc, tile.oc)
        transfers = tiles * (len(self.parts()) + bool(self._constant_rows))
        return loading(self.weight_bytes * p.w_kilo // 1024, constants_side(self.config), transfers)

    def _tiles(self) -> int:
        p = self.problem
        return ceil_div(p.images * p.oh * p.ow * p.groups * p.oc, self._of_tile())

    def _of_tile(self) -> int:
        """Elements of a full tile of the result."""
        return self.tile.oh * self.tile.ow * self.tile.groups * self.tile.oc

    def _chaining(self) -> int:
        """Picoseconds from the start of the chain on one tile to its start on the next, summed over all tiles; 0
        without a chain."""
        chain = self.tail() * self._tiles()
        return chain and max(chain, self._tilings(self.problem).banked(self.tile))


def cut(full: int, size: int) -> list[tuple[int, int]]:
    """(first, count) of the parts of ``full`` with at most ``size`` each."""
    return [(low, min(size, full - low)) for low in range(0, full, size)]


# Cached, because plans need the same thousands of slots over and over.
@functools.lru_cache(maxsize=1024)
def _copies(
    name: str, nbytes: int, copies: int, groups: tuple[int, int], oc: tuple[int, int], parts: tuple[Part, ...]
) -> tuple[SlotSpec, ...]:
    """A slot for the channels of each tile, or for each part of their sums. ``groups``, ``oc``: (all, per tile)."""
    channels = product(*(range(0, full, size) for full, size in (groups, oc)))
    keys = product(channels, parts) if parts else channels
    return tuple(SlotSpec(f"{name}{key}", nbytes, copies) for key in keys)


def _is_turned(view: View) -> bool:
    """Whether the last dimension is not the innermost in memory."""
    last = len(view.shape) - 1
    return view.shape[last] > 1 and view.order()[last] != last


def _home(view: View) -> Home:
    if not view.buffer.on_chip:
        return Home.DRAM
    # The unit reads the channels of a pixel as one run.
    return Home.DIRECT if view.shape[-1] == 1 or view.strides[-1] == view.dtype.itemsize else Home.COPIED
