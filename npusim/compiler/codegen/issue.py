"""Order the work of all operators into one command stream per device, with only the waits that correctness requires.

A lowered operator is a sequence of *steps*: load tiles, compute on them, store results. Loads run one step ahead of the
compute, also across operators, so DMA and units overlap. Every command states what it reads and writes, and waits
follow from that alone, so no lowering can forget one.

Loads run one step ahead because operands have two slots: while the units use one, the next tile loads into the other. A
load two steps ahead would find both in use and block its channel.

There is no deadlock: a wait names a number of completed commands of a unit, and all of these precede it in the stream.
Executing the commands one by one in stream order is always possible, and units that work in parallel are only ever
ahead of that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from math import prod

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.codegen._issue import Issuer, Item, Slot, Tile, raise_fences
from npusim.compiler.codegen.channel_clock import channel_clock
from npusim.hw.config import Config
from npusim.hw.units.dma import channel_bandwidth, latency_ps
from npusim.isa.base import MOST_WAITS, Command, Instruction, Space, Unit, is_outside, space_of
from npusim.isa.control import Halt
from npusim.isa.dma import MULTICASTS, Copy, Exchange, Expand, Fetch, Multicast, MulticastExpand
from npusim.ops.budget import Budget
from npusim.timing.tile_costs import cores_served
from npusim.units import ceil_div
from npusim.work import DmaWork

__all__ = ["Item", "Resource", "Scheduler", "Slot", "Tile"]

Resource = Slot | View

RECENT = 1024
"""Uses of a buffer that are recorded individually. For older ones only the last command of each unit is kept.
These ended long ago, so waiting for all of them costs nothing, and the search for conflicts stays short with 100
000 readers."""


LEAST_SENT = 256
"""Bytes of a load from which one core loads it and sends it to others: the command of each transfer has some 150 bytes,
which are read from DRAM, too."""


def _take_shared(turn: Sequence[tuple[int, Tile]], config: Config) -> list[Item]:
    """Remove loads that several cores share from the steps of one turn, and return them as multicasts: the same bytes
    of DRAM to the same addresses. Loads that are not faster if cores share them remain.

    Lowerings need not know about this. All cores have their slots at the same addresses, and cores on neighbouring
    tiles load the same weights or pixels in the same turn.
    """
    wanted: dict[bytes, list[tuple[int, Item]]] = {}
    for core, step in turn:
        for item in step.loads:
            if (key := _shared_key(item)) is not None:
                wanted.setdefault(key, []).append((core, item))
    shared = {key for key, items in wanted.items() if _are_faster_together(items, config)}
    # A multicast precedes all remaining loads, so it must not write where one of these has written. A load that remains
    # for this reason may in turn block others.
    while late := {key for _, step in turn for key in _overtaking(step, shared)}:
        shared -= late
    if shared:
        for _, step in turn:
            step.loads = [item for item in step.loads if _shared_key(item) not in shared]
    return [_for_several(items) for key, items in wanted.items() if key in shared]


def _are_faster_together(items: Sequence[tuple[int, Item]], config: Config) -> bool:
    """Whether one read for all cores takes less time than one for each. ``items``: equal loads, with their cores."""
    cores = len({core for core, _ in items})
    if cores == 1 or config.interconnect.multicast:
        return cores > 1
    work = items[0][1].instruction.work()
    assert isinstance(work, DmaWork)
    return work.bytes >= LEAST_SENT and cores_served(config, cores, work.port) > 1


def _shared_key(item: Item) -> bytes | None:
    """A key that is equal for loads of the same bytes to the same address; None for loads that cannot be multicast."""
    instruction = item.instruction
    if not isinstance(instruction, Copy | Expand) or type(instruction) not in _FOR_SEVERAL:
        return None
    plain = is_outside(instruction.src) and space_of(instruction.dst) == Space.SRAM
    # Values in SRAM, other than slots, belong to one core.
    return instruction.to_bytes() if plain and all(isinstance(resource, Slot) for resource in item.writes) else None


def _overtaking(step: Tile, shared: Set[bytes]) -> Iterator[bytes]:
    """The shared loads of a step that write where an earlier load, which is not shared, writes or reads."""
    kept: list[Resource] = []
    for item in step.loads:
        key = _shared_key(item)
        if key is None or key not in shared:
            kept += (*item.reads, *item.writes)
        elif any(resource in kept for resource in item.writes):
            yield key


def _halves(item: Item) -> list[Item]:
    """Split a load for several cores into two, each for half of the cores."""
    load = item.instruction
    assert isinstance(load, MULTICASTS)
    cores = load.targets(0)
    found = []
    for half in (cores[: len(cores) // 2], cores[len(cores) // 2 :]):
        slots = tuple(slot for slot in item.writes if isinstance(slot, Slot) and slot.core in half)
        found.append(Item(replace(load, cores=sum(1 << core for core in half)), item.reads, slots))
    return found


def _pieces(item: Item, most: int, config: Config) -> list[Item]:
    """Split a multicast into pieces that run on channels of different cores, which would otherwise be idle."""
    load = item.instruction
    if not isinstance(load, Copy):  # a compressed stream cannot be cut
        return [item]
    nbytes = prod(load.dims) * load.itemsize
    # No piece should be shorter than what a channel moves in one latency.
    most = min(most, nbytes * 10**12 // max(1, channel_bandwidth(config) * latency_ps(config)))
    axis = next((axis for axis, dim in enumerate(load.dims) if dim > 1), None)
    if most < 2 or axis is None or any(load.before) or any(load.after):
        return [item]
    size = ceil_div(load.dims[axis], most)
    found = []
    for first in range(0, load.dims[axis], size):
        dst, src = load.dst + first * load.dst_strides[axis], load.src + first * load.src_strides[axis]
        dims = _at(load.dims, axis, min(size, load.dims[axis] - first))
        found.append(Item(replace(load, dst=dst, src=src, dims=dims), item.reads, item.writes))
    return found


def _passed_on(piece: Item, owner: int, cores: Sequence[int]) -> Iterator[tuple[tuple[int], Item]]:
    """The transfers that bring a piece, which one core has loaded, to the others, each with its target."""
    load = piece.instruction
    slots = {slot.core: slot for slot in piece.writes if isinstance(slot, Slot)}
    if isinstance(load, Copy):
        dims, strides, itemsize = load.padded, load.dst_strides, load.itemsize
    else:
        assert isinstance(load, Expand)
        dims, strides, itemsize = (1, 1, 1, load.nbytes), (0, 0, 0, 1), 1
    none = (0, 0, 0, 0)
    for core in cores:
        if core != owner:
            moved = Exchange(load.dst, strides, load.dst, strides, dims, itemsize, none, none, 0, owner, 1 << core)
            yield (core,), Item(moved, (slots[owner],), (slots[core],))


def _at(values: Sequence[int], axis: int, value: int) -> tuple[int, ...]:
    return tuple(value if index == axis else old for index, old in enumerate(values))


def _for_several(items: Sequence[tuple[int, Item]]) -> Item:
    copy = items[0][1].instruction
    fields = {field.name: getattr(copy, field.name) for field in copy.fields}
    cores = sum(1 << core for core in {core for core, _ in items})
    writes = dict.fromkeys(resource for _, item in items for resource in item.writes)
    return Item(_FOR_SEVERAL[type(copy)](**fields, cores=cores), items[0][1].reads, tuple(writes))


def _for_one(load: Instruction) -> Instruction:
    """The load that a multicast was made of."""
    kind = next(one for one, several in _FOR_SEVERAL.items() if type(load) is several)
    return kind(**{field.name: getattr(load, field.name) for field in kind.fields})


_FOR_SEVERAL: dict[type[Instruction], Callable[..., Instruction]] = {Copy: Multicast, Expand: MulticastExpand}
"""Load instructions, and the instructions that do the same for several cores."""


def _buffers_read(items: Iterable[Item]) -> set[Buffer]:
    return {resource.buffer for item in items for resource in item.reads if isinstance(resource, View)}


def _buffers_written(step: Tile) -> set[Buffer]:
    items = (*step.compute, *step.stores)
    return {resource.buffer for item in items for resource in item.writes if isinstance(resource, View)}


class Scheduler(Issuer):
    """Collects steps in program order and issues commands."""

    def __init__(self, config: Config, budget: Budget) -> None:
        self._clock = channel_clock(config)
        # The clock is only needed to choose a channel, or to decide when to load early.
        chooses = config.dma.channels > 2 or config.cores > 1
        features = Fetch if config.dma.separate_weight_port and config.dma.channels > 2 else None
        super().__init__(config.dma.channels, self._clock, chooses, RECENT, features)
        self._config = config
        self._budget = budget
        self._loaded = 0
        """The number of loads that cores have sent to each other."""
        self._owners: dict[bool, list[tuple[int, int, Buffer]]] = {False: [], True: []}
        """Disjoint byte ranges in DRAM (False) and L2 (True), sorted: (first, end, the last buffer allocated there)."""

    def add(
        self, op: int, name: str, streams: Sequence[Iterable[Tile]], between: Callable[[], None] | None = None
    ) -> None:
        """Issue the steps of one operator: one stream per core, in turn. ``between``: called after each turn.

        Raises CompileError beyond the budget."""
        running = [(core, iter(stream)) for core, stream in enumerate(streams)]
        while running:
            turn = [(core, steps, step) for core, steps in running if (step := next(steps, None)) is not None]
            for _, _, step in turn:
                self._budget.take_steps(len(step.loads) + len(step.compute) + len(step.stores), name)
            if len(turn) > 1:
                self._load_for_several(op, [(core, step) for core, _, step in turn])
            for core, _, step in turn:
                self.push(core, op, step)
            running = [(core, steps) for core, steps, _ in turn]
            if between is not None:
                between()
        if self._config.compiler.one_by_one:
            for core in sorted(self.pending):
                self.flush(core)

    def load_early(self, op: int, name: str, loads: Sequence[tuple[int, list[Item]]]) -> None:
        """Issue loads of a later operator, as (core, loads), whose target bytes nothing else uses until then."""
        turn = [(core, Tile(list(items))) for core, items in loads]
        for _, step in turn:
            self._budget.take_steps(len(step.loads), name)
        if len(turn) > 1:
            self._load_for_several(op, turn)
        for core, step in turn:
            for item in step.loads:
                self.flush_conflicts(Tile([item]))
                self.issue_together(op, [((core,), item)])

    def needs_early_loads(self) -> bool:
        """Whether the DRAM is forecast to be idle while the units compute."""
        return not self.loads_are_late(self._config.cores, int(Unit.MATRIX))

    def _load_for_several(self, op: int, turn: Sequence[tuple[int, Tile]]) -> None:
        """Load once what several cores need in one turn.

        With multicast, the channel that is free first writes it to all of them. With an exchange network, each core
        loads a part and sends it to the others.
        """
        config = self._config
        if not config.interconnect.multicast and config.exchange is None:
            return
        loads = _take_shared(turn, config)
        if not config.interconnect.multicast:
            for item in loads:
                self._load_in_parts(op, item)
            return
        while loads:
            self.flush_conflicts(Tile(loads))
            item = loads.pop(0)
            cores = item.instruction.targets(0)
            too_much = item.instruction.elements() > item.instruction.limit
            if len(cores) > 1 and (too_much or len(self.needs(op, item)) > MOST_WAITS):
                loads[:0] = _halves(item)
                continue
            # Late loads are not cut: the next one starts on another channel, so latencies overlap.
            pieces = _pieces(item, len(cores), self._config) if self.needs_early_loads() else [item]
            self.issue_together(op, [(cores, piece) for piece in pieces])

    def _load_in_parts(self, op: int, item: Item) -> None:
        """Let each core load a part of what several cores need, and send it to the others. ``item``: a multicast.

        Cores take turns to load what is too short for parts.
        """
        self.flush_conflicts(Tile([item]))
        plain, cores = Item(_for_one(item.instruction), item.reads, item.writes), item.instruction.targets(0)
        work = plain.instruction.work()
        assert isinstance(work, DmaWork)
        most = work.bytes // (4 * LEAST_SENT)
        first = self._loaded % len(cores)
        self._loaded += 1
        owners = (*cores[first:], *cores[:first])
        owned = list(zip(owners, _pieces(plain, min(len(cores), most), self._config), strict=False))
        slots = {slot.core: slot for slot in item.writes if isinstance(slot, Slot)}
        self.issue_together(op, [((core,), Item(each.instruction, each.reads, (slots[core],))) for core, each in owned])
        sent = [transfer for core, each in owned for transfer in _passed_on(each, core, cores)]
        self.issue_together(op, sent, with_stores=True)

    def prologue(self, op: int, items: Sequence[tuple[int, Iterable[Item]]]) -> int:
        """Issue the loads of pinned weights, as (core, items), before anything else. Returns the number of commands."""
        for core, loads in items:
            for item in loads:
                self.issue_together(op, [((core,), item)])
        self._clock.forget_time()
        return len(self.commands)

    def finish(self) -> list[Command]:
        """Issue pending steps and a halt. Returns the commands of the program."""
        for core in sorted(self.pending):
            self.flush(core)
        self.commands.append(Command(0, Unit.CONTROL, self.commands[-1].op if self.commands else 0, (), Halt()))
        return self.commands

    def born(self, buffer: Buffer) -> None:
        """Announce the first use of a buffer: it waits for all uses of buffers that had its bytes before."""
        low, high = buffer.offset, buffer.offset + buffer.nbytes
        if not buffer.is_scratch or not buffer.nbytes:
            return
        # Two buffers share bytes if their lives do not overlap in graph order. The device does not keep that order: a
        # core or a channel may be an operator behind and still read the older value.
        self._flush_users_of(buffer)
        owners = self._owners[buffer.in_l2]
        first = bisect_right(owners, low, key=lambda run: run[1])
        last = bisect_left(owners, high, key=lambda run: run[0])
        before: dict[int, int] = {}
        kept = [(low, high, buffer)]
        for start, end, other in owners[first:last]:
            raise_fences(before, self.uses(other))
            # The rest of the older buffer, on either side, keeps its entry.
            if start < low:
                kept.insert(0, (start, low, other))
            if end > high:
                kept.append((high, end, other))
        owners[first:last] = kept
        self.succeed(buffer, before)

    def _flush_users_of(self, buffer: Buffer) -> None:
        """Issue pending steps that use these bytes, so that their uses are recorded."""
        low, high = buffer.offset, buffer.offset + buffer.nbytes
        for core, (_, pending) in sorted(self.pending.items()):
            touched = _buffers_written(pending) | _buffers_read(pending.compute) | _buffers_read(pending.stores)
            same_memory = [other for other in touched if other.is_scratch and other.in_l2 == buffer.in_l2]
            if any(other.offset < high and low < other.offset + other.nbytes for other in same_memory):
                self.flush(core)
