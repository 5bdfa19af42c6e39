"""The base of all lowerings: slots in SRAM, and the tiles of work that use them."""

from __future__ import annotations

import functools
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from npusim.compiler.buffers import Buffer, Moves, View, dense_strides
from npusim.compiler.codegen.issue import Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.dtypes import DType, dtype_of, raw_bytes
from npusim.errors import CompileError
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config
from npusim.hw.memory import ALIGNMENT, align, dram_model
from npusim.hw.units import dma
from npusim.isa.base import MAX_ELEMENTS, Space
from npusim.program import CONSTANTS, Piece
from npusim.timing.tile import OVERLAP
from npusim.timing.tile_costs import cores_served
from npusim.units import ceil_div
from npusim.work import Port

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""(starts, sizes) of a tile in the dimensions of a tensor."""


_T = TypeVar("_T")


def twin(thing: _T) -> _T:
    """A shallow copy of an object without slots, several times faster than ``copy.copy``."""
    made = object.__new__(type(thing))
    made.__dict__.update(thing.__dict__)
    return made


class ConstantPool:
    """The constants region, ``size`` bytes so far. Arrays are referenced, not copied: see ConstantData.

    ``shares``: operators that read the same weights in the same tiles share their bytes, as the iterations of a loop
    must.
    """

    def __init__(self, *, shares: bool = False) -> None:
        self.size = 0
        self._shared_bytes = _SHARED_IN_LOOPS if shares else _SHARED_BYTES
        self._packed: dict[tuple[object, ...], View] | None = {} if shares else None
        self.pieces: list[tuple[int, Piece]] = []
        self._placed: dict[tuple[str, tuple[int, ...], bytes], View] = {}

    def add(self, array: npt.NDArray[Any], name: str, dtype: DType | None = None) -> View:
        """Place an array (storage dtype) densely. Small equal arrays share their bytes."""
        kind = dtype_of(array) if dtype is None else dtype
        # Scales and zero points repeat. Large weights do not, and hashing them would be slow.
        small = array.nbytes <= self._shared_bytes
        key = (kind.label, array.shape, array.tobytes() if small else b"")
        if small and key in self._placed:
            return self._placed[key]
        view = self._place([array], array.shape, name, kind)
        if small:
            self._placed[key] = view
        return view

    def pack(self, parts: Sequence[Piece], name: str, dtype: DType) -> View:
        """Place arrays one after another, each in row-major order, as one flat array."""
        nbytes = sum([part.nbytes for part in parts])
        if nbytes <= self._shared_bytes:
            data = np.concatenate([raw_bytes(np.asarray(part)) for part in parts])
            return self.add(data.view(dtype.storage), name, dtype)
        shape = (nbytes // dtype.itemsize,)
        if self._packed is None or not all(isinstance(part, np.ndarray) for part in parts):
            return self._place(parts, shape, name, dtype)
        # The same views of the same bytes. No other array has their address, because the pieces keep them.
        key = (
            dtype,
            *((part.__array_interface__["data"], part.shape, part.strides) for part in map(np.asarray, parts)),
        )
        if key not in self._packed:
            self._packed[key] = self._place(parts, shape, name, dtype)
        return self._packed[key]

    def _place(self, parts: Sequence[Piece], shape: tuple[int, ...], name: str, dtype: DType) -> View:
        # Only the first piece is aligned: the parts of a packed operand are read as one run.
        start = self.size = align(self.size)
        for part in parts:
            if part.nbytes:
                self.pieces.append((self.size, part))
            self.size += part.nbytes
        buffer = Buffer(name, CONSTANTS, self.size - start, start)
        return View(buffer, 0, shape, dense_strides(shape, dtype.itemsize), dtype)


_SHARED_BYTES = 256
_SHARED_IN_LOOPS = 64 << 10
"""Largest constants that are compared, in bytes: scales, biases, and weights that are rearranged."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Weights that stay in SRAM from one inference to the next.

    ``starts``: their addresses, by group number. ``nbytes``: bytes at the end of SRAM that all of them occupy.
    ``large_tiles``: choose tiles as if loading weights were free.
    """

    starts: Mapping[int, int] = field(default_factory=dict)
    nbytes: int = 0
    large_tiles: bool = False


@dataclass(slots=True)
class Context:
    """Everything that lowerings depend on: the device, the views of tensors, and the pool of constants."""

    config: Config
    constants: ConstantPool
    views: dict[Tensor, View] = field(default_factory=dict)
    room: int = 0
    """Bytes of SRAM that values leave for the slots of the group."""
    rows: int = 0
    """Rows of the group's result that a stripe of a cascade computes; 0: all rows."""
    pinned: Pinned = field(default_factory=Pinned)
    """Weights that stay in SRAM from one inference to the next."""
    beside: int = 1
    """Number of cores that work on such a shard at the same time and share the DRAM."""
    whole: Context | None = None
    """For a core with shards: the context of all cores, which has the constants that all of them need."""
    tiles: bool = True
    """Whether matrix operators search for a tile. Without one, only their ``problem`` is valid."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """Cached results for operators of this graph on this device."""
    facts: dict[Any, Any] = field(default_factory=dict)
    """Cached results that depend on the operators alone, for all devices: see :func:`fact`."""
    own: dict[Tensor, tuple[Tensor, tuple[int, ...]]] = field(default_factory=dict)
    """For a core with shards: the whole tensor that each of its tensors is a slice of, and the position of the slice.
    All cores need all of the other tensors."""

    def __post_init__(self) -> None:
        self.room = self.room or self.sram_bytes

    @property
    def sram_bytes(self) -> int:
        """Bytes of SRAM for values and slots."""
        return sram_budget(self.config) - self.pinned.nbytes

    def view(self, tensor: Tensor) -> View:
        """The view of a tensor. A constant without a view is placed in its natural order."""
        view = self.views.get(tensor)
        if view is None:
            if tensor.data is None:
                raise CompileError(f"internal: tensor {tensor.name!r} has no place in memory")
            if self.whole is not None and tensor not in self.own:
                return self.whole.view(tensor)
            view = self.views[tensor] = self.constants.add(tensor.data, tensor.name, tensor.dtype)
        return view

    def served(self, tensor: Tensor) -> int:
        """The number of cores that one load of an operand serves."""
        if self.whole is None or tensor in self.own:
            return 1
        return cores_served(self.config, self.beside, Port.DRAM if tensor.data is None else Port.CONSTANTS)


_FACTS: weakref.WeakKeyDictionary[Graph, dict[Any, Any]] = weakref.WeakKeyDictionary()
MOST_FACTS = 1 << 14
"""Limit per graph. Beyond it all facts are dropped and computed again on demand."""


def facts_of(graph: Graph) -> dict[Any, Any]:
    """The facts about the operators of a rewritten graph, shared by all schedules and devices: see :func:`fact`."""
    facts = _FACTS.get(graph)
    # A running compilation keeps the old dictionary: its numbers identify operators.
    if facts is None or len(facts) > MOST_FACTS:
        facts = _FACTS[graph] = {}
    return facts


def fact(context: Context, key: Any, make: Callable[[], _T]) -> _T:
    """A value that depends on the operators alone, computed once for all plans and devices."""
    found: _T | None = context.facts.get(key)
    if found is None:
        found = context.facts[key] = make()
    return found


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A named slot of ``nbytes`` bytes with several ``copies``: with two, the next tile loads while this one is
    in use."""

    name: str
    nbytes: int
    copies: int = 2
    space: Space = Space.SRAM
    total: int = field(init=False, repr=False, compare=False)
    """Bytes of all copies, each aligned."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", align(max(self.nbytes, 1)) * self.copies)


slot_spec = functools.lru_cache(maxsize=1 << 12)(SlotSpec)
"""A cached SlotSpec, because a plan creates equal ones over and over."""


def total_bytes(specs: Sequence[SlotSpec], space: Space = Space.SRAM) -> int:
    """The total bytes of the slots in one memory."""
    return sum([spec.total for spec in specs if spec.space is space])


class SlotTable:
    """One core's slots for one operator. ``next`` returns the copies of a slot in rotation."""

    def __init__(self, core: int, specs: Sequence[SlotSpec], starts: Sequence[int]) -> None:
        """``starts``: the address of each copy of each SRAM slot, in the order of ``specs``."""
        self.core = core
        self._prefix = ""
        self._slots: dict[str, list[Slot]] = {}
        self._turn: dict[str, int] = {}
        # Accumulators are always placed from 0: only the matrix unit writes them, and it runs its commands in order.
        acc, places = 0, iter(starts)
        for spec in specs:
            copies = []
            for _ in range(spec.copies):
                if spec.space is Space.ACC:
                    start, acc = acc, acc + align(max(spec.nbytes, 1))
                else:
                    start = next(places)
                copies.append(Slot(core, spec.space, start, max(spec.nbytes, 1)))
            self._slots[spec.name] = copies

    def part(self, prefix: str) -> SlotTable:
        """The slots as seen by one part of the operator: its own slots have a prefix in their names, the others are
        shared."""
        table = twin(self)
        table._prefix = prefix
        return table

    def next(self, name: str) -> Slot:
        """The copy that was used longest ago."""
        name = self._prefix + name if self._prefix + name in self._slots else name
        copies = self._slots[name]
        turn = self._turn.get(name, -1) + 1
        self._turn[name] = turn
        return copies[turn % len(copies)]


TILES: dict[str, type[Lowering]] = {}
"""The lowering class of each kind that has its own."""


class Lowering(ABC):
    """One operator, or a fused group of operators, cut into tiles for one device.

    A subclass names its kinds, unless it handles a whole form (:class:`npusim.ops.base.Elements`, ``Rows``). ``dense``:
    its instructions need dense operands and results, in the order of their dimensions. ``windowed``: neighbouring tiles
    read some rows of the operand twice.
    """

    dense: ClassVar[bool] = False
    windowed: ClassVar[bool] = False

    def __init_subclass__(cls, kind: str | None = None, kinds: Iterable[str] = ()) -> None:
        super().__init_subclass__()
        for each in kinds if kind is None else (kind,):
            if each in TILES:
                raise ValueError(f"{cls.__name__}: the kind {each!r} is lowered by {TILES[each].__name__}")
            TILES[each] = cls

    def __init__(self, context: Context, group: Group) -> None:
        self.context = context
        self.group = group

    @abstractmethod
    def slots(self) -> list[SlotSpec]:
        """The slots that each core needs for the chosen tile."""

    def taken(self, specs: Sequence[SlotSpec]) -> tuple[int, int]:
        """Bytes of SRAM and of accumulators for ``specs``, the result of :meth:`slots`."""
        return total_bytes(specs), total_bytes(specs, Space.ACC)

    @abstractmethod
    def steps(self, table: SlotTable, core: int, cores: int) -> Iterator[Tile]:
        """The tiles of core number ``core`` out of ``cores``."""

    def estimate(self) -> int:
        """Estimated picoseconds of the group. Planning compares them when it chooses memory areas."""
        # Earlier checks refuse graphs that need a unit which the device lacks.
        computing = self.computing() if self.config.vector else 0
        return overlapped(computing // self.config.cores, self.moving(self.moves()))

    def striped(self, rows: int) -> int:
        """:meth:`estimate` in a cascade whose stripes compute ``rows`` rows each."""
        return self.estimate()

    def computing(self) -> int:
        """Picoseconds of the vector unit for all tiles in sequence."""
        return 0

    def moves(self) -> Iterable[View]:
        """The operands and results that are copied to or from slots."""
        tensors = dict.fromkeys(t for op in self.group.ops for t in (*op.inputs, *op.outputs) if t is not None)
        return [self.context.views[tensor] for tensor in tensors if tensor in self.context.views]

    def ends(self) -> int:
        """Picoseconds of the first loads and of the work on the last tile, which :meth:`striped` excludes."""
        return 0

    def turns(self) -> int:
        """The number of tiles for the rows of one stripe; 1 if unknown."""
        return 1

    def tail(self) -> int:
        """Picoseconds from the end of a tile's products to its result."""
        return 0

    def chaining(self) -> int:
        """Picoseconds of the vector unit, if the main work is on another unit."""
        return 0

    def waiting(self) -> int:
        """Estimated picoseconds that the unit of the main work waits for other units."""
        return 0

    def behind(self) -> int:
        """Picoseconds that other units still work on a stripe when the main unit starts the next one; 0 if it never
        waits for them."""
        return 0

    def crowding(self) -> int:
        """The share of the SRAM bank cycles that these units use meanwhile, in 1/1024."""
        return 0

    def held_ps(self) -> int:
        """Picoseconds to load the weights and parameters that stay for all stripes."""
        return 0

    def moving(self, views: Iterable[View]) -> int:
        """Picoseconds to copy values once between their memory areas and the slots of tiles."""
        config, near = self.config, sram_rate(self.config)
        # The rate of a DMA channel is the limit even if the DRAM is faster.
        far = min(config.dram.bandwidth // self.context.beside, dma.channel_bandwidth(config))
        total = 0
        for view in views:
            nbytes = prod(dim for dim, stride in zip(view.shape, view.strides, strict=True) if stride)
            rate = near if view.buffer.on_chip else far
            total += nbytes * view.dtype.itemsize * 10**12 // rate
        return total

    def banked(self) -> int:
        """Picoseconds that the SRAM banks need for all accesses: a lower bound, whatever overlaps."""
        return 0

    def copying(self, nbytes: int) -> int:
        """Picoseconds to copy bytes within SRAM, without latency."""
        return nbytes * 10**12 // sram_rate(self.config)

    def elements_for(self, tile: tuple[int, ...]) -> int:
        """Elements that the largest instruction for a tile of these sizes processes."""
        return prod(tile)

    def follow(self, first: Lowering) -> None:
        """Use the tiles of the first core, whose shard is the largest. Lowerings without tiles do nothing."""
        assert type(first) is type(self)

    can_share: ClassVar[bool] = False
    """Whether :meth:`in_room` saves work."""

    def in_room(self) -> Lowering | None:
        """A copy with tiles for the context's current ``room``, for estimates; None if a new lowering is as fast to
        make.

        Raises CompileError if no tile fits.
        """
        return None

    def in_rows(self) -> Lowering | None:
        """The same for the context's current ``rows``."""
        return None

    def stripe(self, image: int, rows: tuple[int, int], moved: Moves) -> Lowering:
        """A copy for some rows of one image of the result, with buffers ``moved`` since it was made.

        Only for groups that can be in a cascade.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rows")

    @property
    def config(self) -> Config:
        """The device."""
        return self.context.config


def loading(nbytes: int, config: Config, transfers: int = 0) -> int:
    """Picoseconds that one channel takes to load bytes from DRAM, with the latency of ``transfers`` transfers.

    For constants, pass the config returned by :func:`constants_side`.
    """
    rate = min(dram_model(config).bandwidth, dma.channel_bandwidth(config))
    return nbytes * 10**12 // rate + transfers * dma.latency_ps(config)


def overlapped(*parts: int) -> int:
    """Picoseconds of parts that overlap: the longest, plus a fraction of the others because overlap is not perfect."""
    longest = max(parts)
    return longest + (sum(parts) - longest) // OVERLAP


def share(items: Sequence[Any], core: int, cores: int) -> Sequence[Any]:
    """A core's contiguous share of the tiles, as even as possible."""
    # Contiguous, because neighbouring tiles often use operands that are still in their slots.
    return items[len(items) * core // cores : len(items) * (core + 1) // cores]


class TooManyError(CompileError):
    """An operator would need too many tiles or transfers."""


MAX_TILES = 1 << 22
"""Maximum number of tiles of one operator."""


def boxes(shape: Sequence[int], tile: Sequence[int], order: Sequence[int]) -> list[Box]:
    """All tiles of a shape, the innermost dimension of ``order`` fastest. Raises TooManyError above ``MAX_TILES``."""
    if not all(shape):
        return []
    ranges = [range(0, shape[axis], tile[axis]) for axis in order]
    if (count := prod(map(len, ranges))) > MAX_TILES:
        raise TooManyError(f"{list(shape)} needs {count} tiles of {list(tile)}, the limit is {MAX_TILES}")
    result = []
    for corner in product(*ranges):
        starts = [0] * len(shape)
        for axis, start in zip(order, corner, strict=True):
            starts[axis] = start
        sizes = tuple(min(t, dim - s) for t, dim, s in zip(tile, shape, starts, strict=True))
        result.append((tuple(starts), sizes))
    return result


def outer_row_inner(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Elements before, along and after an axis."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def sram_rate(config: Config) -> int:
    """Bytes per second that a channel copies within SRAM."""
    return (config.dma.local_bytes_per_cycle or config.dma.bytes_per_cycle) * config.clock_hz


def sram_budget(config: Config) -> int:
    """SRAM bytes that a plan may use."""
    return config.sram.bytes // ALIGNMENT * ALIGNMENT


def refuse_size(group: Group, needed: int, available: int, what: str = "SRAM") -> CompileError:
    """The error for an operator whose smallest tile does not fit."""
    return CompileError(
        f"{group.name} ({group.kind}): its smallest tile takes {needed} bytes of {what}, the device has {available}"
    )


def refuse_elements(group: Group, elements: int, limit: int) -> CompileError:
    """The error for an operator whose smallest tile is too large for one instruction."""
    return CompileError(
        f"{group.name} ({group.kind}): its smallest tile needs an instruction on {elements} elements, the limit "
        f"is {limit}"
    )


_TARGET_TILES = 4
"""Desired tiles per core, if its share is large enough, so that loads, work and stores overlap."""

_SMALLEST_TILE = 8 << 10
"""Bytes of a tile that is not cut further. A tile that a channel moves in less than a latency is not cut either."""


def small_tile(
    lowering: Lowering,
    shape: Sequence[int],
    order: Sequence[int],
    slots: Callable[[tuple[int, ...]], list[SlotSpec]],
    whole: Sequence[int] = (),
    inner: int | None = None,
) -> tuple[int, ...]:
    """Choose a tile with the axes in ``whole`` uncut, small enough for overlap, or smaller if SRAM requires it.

    ``slots(tile)``: the slots that a tile needs. ``inner``: the axis that is contiguous in memory. Raises CompileError
    if the smallest tile does not fit.
    """
    config, budget = lowering.config, lowering.context.room
    floor = tuple(max(dim, 1) if axis in whole else 1 for axis, dim in enumerate(shape))

    def needed(tile: tuple[int, ...]) -> int:
        return total_bytes(slots(tile))

    full = tuple(max(dim, 1) for dim in shape)
    full = _shrink(full, order, floor, MAX_ELEMENTS, lowering.elements_for)
    if (count := lowering.elements_for(full)) > MAX_ELEMENTS:
        raise refuse_elements(lowering.group, count, MAX_ELEMENTS)
    wanted = min(budget // 2, _overlapping(config, slots(full)))
    gentle = list(floor)
    if inner is not None:
        item = lowering.group.ops[0].input(0).dtype.itemsize
        # With fewer channels and more rows, rows that windows share are loaded less often.
        run = _SHORTEST_RUN if lowering.windowed else ceil_div(config.dma.burst_bytes, item)
        gentle[inner] = max(floor[inner], min(full[inner], run))
    # First small enough for overlap, without cutting bursts; smaller only if that does not fit.
    tile = _shrink(full, order, gentle, wanted, needed)
    if needed(tile) > budget:
        tile = _shrink(full, order, floor, budget, needed)
    if needed(tile) > budget:
        raise refuse_size(lowering.group, needed(floor), budget)
    return tile


def _overlapping(config: Config, specs: Sequence[SlotSpec]) -> int:
    """The target size in bytes for the slots of a tile: small enough that loads, work and stores overlap, and large
    enough to be worth a transfer.

    ``specs``: the slots for the whole operator as one tile.
    """
    tiles, in_flight = config.cores * _TARGET_TILES, config.dma.in_flight
    rate, transfers = dma.channel_bandwidth(config), 1
    if in_flight > 1:
        # If latencies are hidden, only the first load and the last store are exposed, and smaller tiles shorten these.
        tiles *= min(in_flight, _TARGET_TILES)
        rate = min(rate, dram_model(config).bandwidth)
        transfers = sum(spec.copies for spec in specs if spec.space is Space.SRAM)
    worthwhile = transfers * (rate * dma.gap_ps(config) // 10**12)
    return max(_SMALLEST_TILE, worthwhile, total_bytes(specs) // tiles)


_SHORTEST_RUN = 16
"""Elements of a run that is not cut for overlap if tiles share rows."""


def _shrink(
    shape: Sequence[int],
    order: Sequence[int],
    floor: Sequence[int],
    limit: int,
    needed: Callable[[tuple[int, ...]], int],
) -> tuple[int, ...]:
    """Halve a tile, outermost dimension first, until it fits or cannot be halved any more."""
    tile = list(shape)
    while needed(tuple(tile)) > limit:
        axis = next((a for a in order if tile[a] > floor[a]), None)
        if axis is None:
            break
        tile[axis] = max(floor[axis], ceil_div(tile[axis], 2))
    return tuple(tile)
