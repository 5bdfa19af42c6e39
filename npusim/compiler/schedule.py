"""Order the work of all operators into one command stream per device, with just the waits that correctness needs.

A lowered operator is a sequence of *steps*: load tiles, compute on them, store results. Loads run one step ahead of the
compute, across operators too, so DMA and units overlap. Every command states what it reads and writes; waits follow
from that alone, so no lowering can forget one.

Why one step: what changes from tile to tile has two slots. While the units work on one, the next tile is loaded into
the other; a load two steps ahead would find both in use, and hold up its channel until one is free.

Why nothing waits for ever: a wait names how many commands of a unit must be complete, and all of them stand before it
in the stream. So running the commands one by one in stream order is always possible, and whatever the units do at the
same time is ahead of that, never behind.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from npusim.compiler.course import Course
from npusim.compiler.values import Buffer, View
from npusim.hw.config import Config
from npusim.hw.units.dma import channel_bandwidth, latency_ps
from npusim.isa.base import MOST_WAITS, Command, Instruction, Space, Unit, Wait, acc, is_dram, space_of, sram
from npusim.isa.control import Halt
from npusim.isa.dma import Copy, Multicast
from npusim.ops.budget import Budget
from npusim.units import ceil_div

Key = tuple[int, int]
"""(core, unit)."""
Fences = dict[Key, int]
"""How many commands of a unit must be complete."""


@dataclass(eq=False, slots=True)
class Slot:
    """A place in one core's SRAM or accumulators, and who used it last."""

    core: int
    space: Space
    start: int
    nbytes: int
    writers: Fences = field(default_factory=dict)
    readers: Fences = field(default_factory=dict)
    active: bool = False

    @property
    def address(self) -> int:
        return acc(self.start) if self.space is Space.ACC else sram(self.start)


Resource = Slot | View


class Place(NamedTuple):
    """Bytes of a core's SRAM or accumulators."""

    core: int
    space: Space
    low: int
    high: int

    def overlaps(self, other: Place) -> bool:
        return self[:2] == other[:2] and self.low < other.high and other.low < self.high

    def covers(self, other: Place) -> bool:
        return self.low <= other.low and other.high <= self.high


def _place(resource: Slot | Buffer) -> Place | None:
    """Where a slot or a buffer lies on the chip; None in DRAM."""
    if isinstance(resource, Slot):
        return Place(resource.core, resource.space, resource.start, resource.start + resource.nbytes)
    if resource.core is None:
        return None
    return Place(resource.core, Space.SRAM, resource.offset, resource.offset + resource.nbytes)


def _places(resources: Iterable[Resource]) -> Iterator[Place]:
    for resource in resources:
        # The whole buffer, not the part that is seen: who takes its bytes next waits for all of its uses at once.
        place = _place(resource if isinstance(resource, Slot) else resource.buffer)
        if place is not None:
            yield place


@dataclass(slots=True)
class Item:
    """One instruction to issue, with what it reads and writes."""

    instruction: Instruction
    reads: tuple[Resource, ...]
    writes: tuple[Resource, ...]


@dataclass(slots=True)
class Tile:
    """One tile: its loads may run while the step before computes."""

    loads: list[Item] = field(default_factory=list)
    compute: list[Item] = field(default_factory=list)
    stores: list[Item] = field(default_factory=list)

    def touches(self, places: Iterable[Place]) -> bool:
        """Whether compute or stores touch one of some places on the chip."""
        items = (*self.compute, *self.stores)
        resources = {id(each): each for item in items for part in (item.reads, item.writes) for each in part}
        return any(place.overlaps(used) for used in _places(resources.values()) for place in places)


@dataclass(slots=True)
class _Use:
    """Who touched a byte range of a buffer."""

    low: int
    high: int
    key: Key
    count: int
    op: int


RECENT = 1024
"""Uses of a buffer that are told apart. Of those before them it is only known how far each unit had come: whoever waits
for that waits for commands that ended long ago, and looking back stays as quick for the last of 100 000 readers."""


@dataclass(slots=True)
class _Uses:
    """Who reads a buffer, or who writes it: the newest last."""

    recent: deque[_Use] = field(default_factory=deque)
    older: Fences = field(default_factory=dict)

    def add(self, low: int, high: int, key: Key, count: int, op: int) -> None:
        last = self.recent[-1] if self.recent else None
        if last is not None and last.key == key and last.op == op and low <= last.high and last.low <= high:
            # One use instead of thousands. Its count is the later one, so the earlier bytes are waited for too long at
            # worst, never too short.
            last.low, last.high, last.count = min(last.low, low), max(last.high, high), count
            return
        self.recent.append(_Use(low, high, key, count, op))
        if len(self.recent) > RECENT:
            oldest = self.recent.popleft()
            raise_fence(self.older, oldest.key, oldest.count)

    def raise_into(self, fences: Fences, low: int, high: int, but: int | None = None) -> None:
        """Whoever waits for these fences waits for all uses of these bytes, those by the operator ``but`` apart."""
        raise_fences(fences, self.older)
        for use in self.recent:
            if use.op != but and use.low < high and low < use.high:
                raise_fence(fences, use.key, use.count)


@dataclass(slots=True)
class _History:
    """The reads and writes of one buffer, and what used its bytes before it was born."""

    reads: _Uses = field(default_factory=_Uses)
    writes: _Uses = field(default_factory=_Uses)
    before: Fences = field(default_factory=dict)

    def summary(self) -> Fences:
        fences = dict(self.before)
        for uses in (self.reads, self.writes):
            raise_fences(fences, uses.older)
            for use in uses.recent:
                raise_fence(fences, use.key, use.count)
        return fences


def raise_fence(fences: Fences, key: Key, count: int) -> None:
    if fences.get(key, 0) < count:
        fences[key] = count


def raise_fences(fences: Fences, others: Fences) -> None:
    if not fences:
        fences.update(others)
        return
    for key, count in others.items():
        if fences.get(key, 0) < count:
            fences[key] = count


def _take_shared(turn: Sequence[tuple[int, Tile]]) -> list[Item]:
    """Take the loads out of the steps of one turn, each with its core, that several of them have: the same bytes of
    DRAM to the same place. Those that do it for all come before the others.

    No lowering knows of this. All cores have the same slots at the same addresses, and those that work on neighbouring
    tiles ask for the same weights or the same pixels in the same turn.
    """
    wanted: dict[bytes, list[tuple[int, Item]]] = {}
    for core, step in turn:
        for item in step.loads:
            if (key := _shared_key(item)) is not None:
                wanted.setdefault(key, []).append((core, item))
    shared = {key for key, items in wanted.items() if len({core for core, _ in items}) > 1}
    # What a load that stays has filled before must not be overtaken; with each that stays for that there may be more.
    while late := {key for _, step in turn for key in _overtaking(step, shared)}:
        shared -= late
    if shared:
        for _, step in turn:
            step.loads = [item for item in step.loads if _shared_key(item) not in shared]
    return [_for_several(items) for key, items in wanted.items() if key in shared]


def _shared_key(item: Item) -> bytes | None:
    """Equal for loads of the same bytes to the same place; None for what only one core can do."""
    instruction = item.instruction
    plain = type(instruction) is Copy and is_dram(instruction.src) and space_of(instruction.dst) == Space.SRAM
    # A value in SRAM is a core's own.
    return instruction.to_bytes() if plain and all(isinstance(resource, Slot) for resource in item.writes) else None


def _overtaking(step: Tile, shared: Set[bytes]) -> Iterator[bytes]:
    """The loads among those that are shared which write where one that is not shared has been before them."""
    kept: list[Resource] = []
    for item in step.loads:
        key = _shared_key(item)
        if key is None or key not in shared:
            kept += (*item.reads, *item.writes)
        elif any(resource in kept for resource in item.writes):
            yield key


def _halves(item: Item) -> list[Item]:
    """A load for several cores as two, each for half of them."""
    load = item.instruction
    assert isinstance(load, Multicast)
    cores = load.targets(0)
    return [
        Item(
            replace(load, cores=sum(1 << core for core in half)), item.reads,
            tuple(slot for slot in item.writes if isinstance(slot, Slot) and slot.core in half),
        )
        for half in (cores[: len(cores) // 2], cores[len(cores) // 2 :])
    ]  # fmt: skip


def _pieces(item: Item, most: int, config: Config) -> list[Item]:
    """A load as several that run side by side, each worth a transfer of its own: one alone keeps a channel busy, while
    those of other cores have nothing to do."""
    load = item.instruction
    assert isinstance(load, Copy)
    nbytes = prod(load.dims) * load.itemsize
    # A transfer that is shorter than what its channel moves in one latency is mostly waiting.
    most = min(most, nbytes * 10**12 // max(1, channel_bandwidth(config) * latency_ps(config)))
    axis = next((axis for axis, dim in enumerate(load.dims) if dim > 1), None)
    if most < 2 or axis is None or any(load.before) or any(load.after):
        return [item]
    size = ceil_div(load.dims[axis], most)
    return [
        Item(
            replace(
                load,
                dst=load.dst + first * load.dst_strides[axis],
                src=load.src + first * load.src_strides[axis],
                dims=_at(load.dims, axis, min(size, load.dims[axis] - first)),
            ),
            item.reads, item.writes,
        )
        for first in range(0, load.dims[axis], size)
    ]  # fmt: skip


def _at(values: Sequence[int], axis: int, value: int) -> tuple[int, ...]:
    return tuple(value if index == axis else old for index, old in enumerate(values))


def _for_several(items: Sequence[tuple[int, Item]]) -> Item:
    copy = items[0][1].instruction
    fields = {field.name: getattr(copy, field.name) for field in copy.fields}
    cores = sum(1 << core for core in {core for core, _ in items})
    writes = dict.fromkeys(resource for _, item in items for resource in item.writes)
    return Item(Multicast(**fields, cores=cores), items[0][1].reads, tuple(writes))


def _buffers_read(items: Iterable[Item]) -> set[Buffer]:
    return {resource.buffer for item in items for resource in item.reads if isinstance(resource, View)}


def _buffers_written(step: Tile) -> set[Buffer]:
    items = (*step.compute, *step.stores)
    return {resource.buffer for item in items for resource in item.writes if isinstance(resource, View)}


class Scheduler:
    """Collects steps in program order and issues commands."""

    def __init__(self, config: Config, budget: Budget) -> None:
        self._config = config
        self._budget = budget
        self.commands: list[Command] = []
        self._issued: Fences = {}
        self._known: dict[Key, Fences] = {}
        self._histories: dict[Buffer, _History] = {}
        self._occupants: dict[tuple[int, Space], list[tuple[Place, Slot | Buffer]]] = {}
        self._pending: dict[int, tuple[int, Tile]] = {}
        self._course = Course(config)
        # Where there is no choice, nobody needs to know when a channel will be free.
        self._chooses = config.dma.channels > 2 or (config.cores > 1 and config.interconnect.multicast)
        self._owners: list[tuple[int, int, Buffer]] = []
        """Runs of scratch bytes (first, end, the buffer that was born there last), in order and apart."""

    def add(self, op: int, name: str, streams: Sequence[Iterable[Tile]]) -> None:
        """Issue the steps of one operator: one stream per core, in turn. Raises CompileError beyond the budget."""
        running = [(core, iter(stream)) for core, stream in enumerate(streams)]
        while running:
            turn = [(core, steps, step) for core, steps in running if (step := next(steps, None)) is not None]
            for _, _, step in turn:
                self._budget.take_steps(len(step.loads) + len(step.compute) + len(step.stores), name)
            if self._config.interconnect.multicast and len(turn) > 1:
                self._load_for_several(op, [(core, step) for core, _, step in turn])
            for core, _, step in turn:
                self._push(core, op, step)
            running = [(core, steps) for core, steps, _ in turn]

    def _load_for_several(self, op: int, turn: Sequence[tuple[int, Tile]]) -> None:
        """Read once what several cores load in one turn; the channel that has least to do writes it to all of them."""
        loads = _take_shared(turn)
        while loads:
            self._flush_conflicts(Tile(loads))
            item = loads.pop(0)
            cores = item.instruction.targets(0)
            too_much = item.instruction.elements() > item.instruction.limit
            if len(cores) > 1 and (too_much or len(self._needs(op, item)) > MOST_WAITS):
                loads[:0] = _halves(item)
                continue
            pieces = _pieces(item, len(cores), self._config)
            self._issue_together(op, [(cores, piece) for piece in pieces])

    def prologue(self, op: int, items: Sequence[tuple[int, Iterable[Item]]]) -> int:
        """Before anything else: load what stays in SRAM, (core, items) of each; how many commands that takes."""
        for core, loads in items:
            for item in loads:
                self._issue_together(op, [((core,), item)])
        self._course.forget_time()
        return len(self.commands)

    def finish(self) -> list[Command]:
        """Issue what is pending and halt; the commands of the program."""
        for core in sorted(self._pending):
            self._flush(core)
        self.commands.append(Command(0, Unit.CONTROL, self.commands[-1].op if self.commands else 0, (), Halt()))
        return self.commands

    def born(self, buffer: Buffer) -> None:
        """The buffer's first use comes next: its bytes may have belonged to others, whose uses must be over."""
        low, high = buffer.offset, buffer.offset + buffer.nbytes
        if not buffer.is_scratch or not buffer.nbytes:
            return
        # The arena gives bytes to two buffers where their lives do not overlap in the graph's order. The device
        # does not keep that order: a core or a channel may be an operator behind, still reading the older value.
        self._flush_users_of(low, high)
        first = bisect_right(self._owners, low, key=lambda run: run[1])
        last = bisect_left(self._owners, high, key=lambda run: run[0])
        before: Fences = {}
        kept = [(low, high, buffer)]
        for start, end, other in self._owners[first:last]:
            raise_fences(before, self._histories[other].summary())
            # What is left of the older buffer at either side is still on record; for the rest the new one speaks.
            if start < low:
                kept.insert(0, (start, low, other))
            if end > high:
                kept.append((high, end, other))
        self._owners[first:last] = kept
        self._histories[buffer] = _History(before=before)

    def _flush_users_of(self, low: int, high: int) -> None:
        """Issue pending steps that still touch these scratch bytes, so that their uses are on record."""
        for core, (_, pending) in sorted(self._pending.items()):
            touched = _buffers_written(pending) | _buffers_read(pending.compute) | _buffers_read(pending.stores)
            if any(other.is_scratch and other.offset < high and low < other.offset + other.nbytes for other in touched):
                self._flush(core)

    def _push(self, core: int, op: int, step: Tile) -> None:
        self._flush_conflicts(step)
        # Commands leave the stream in order, and one that finds its unit's queue full holds up all behind it: loads
        # come ahead of the compute of the step before, or they could not start until that has left the stream.
        for item in step.loads:
            self._issue_together(op, [((core,), item)])
        self._flush(core)
        self._pending[core] = (op, step)

    def _flush_conflicts(self, step: Tile) -> None:
        """Loads go ahead of the pending compute only where they neither need nor destroy what it still uses.

        What other cores still have to store must also be issued before anything here reads it: a use that is not on
        record is one that nobody waits for.
        """
        if not self._pending:
            return
        items = (*step.loads, *step.compute, *step.stores)
        read = _buffers_read(items)
        written = [place for item in step.loads for place in _places(item.writes)]
        for core, (_, pending) in sorted(self._pending.items()):
            if (read and not read.isdisjoint(_buffers_written(pending))) or (written and pending.touches(written)):
                self._flush(core)

    def _flush(self, core: int) -> None:
        pending = self._pending.pop(core, None)
        if pending is None:
            return
        op, step = pending
        for item in step.compute:
            self._issue(core, item.instruction.unit, op, item)
        for item in step.stores:
            # A store waits for the compute before it. On a channel that also loads, the next tile would wait with it.
            self._issue(core, Unit.DMA + self._config.dma.channels - 1, op, item)

    def _load_channel(self, cores: Sequence[int], ready: int) -> Key:
        """The core and the channel where a load that may begin at a time begins first."""
        # The last channel is kept for stores when there are several.
        channels = range(Unit.DMA, Unit.DMA + max(1, self._config.dma.channels - 1))
        if len(cores) * len(channels) == 1:
            return cores[0], Unit.DMA
        # Of several that are free in time the one that was busy longest: the others may begin something earlier.
        frees = [(self._course.free((core, channel)), core, channel) for core in cores for channel in channels]
        _, _, core, channel = min((max(free, ready), -min(free, ready), core, channel) for free, core, channel in frees)
        return core, channel

    def _issue(self, core: int, unit: int, op: int, item: Item) -> None:
        self._put((core, int(unit)), op, item, self._needs(op, item))

    def _put(self, key: Key, op: int, item: Item, needs: Fences) -> None:
        """Issue an item that waits for what it needs, and put on record what it uses."""
        fences = self._emit(key, op, item, needs)
        # A resource that is there twice is on record as if it were there once: the fences are of one command.
        for resource in item.reads:
            self._record(resource, fences, op, write=False)
        for resource in item.writes:
            self._record(resource, fences, op, write=True)

    def _issue_together(self, op: int, loads: Sequence[tuple[Sequence[int], Item]]) -> None:
        """Issue loads, each to a channel of one of some cores, in no order of their own, whatever they write."""
        # All needs first, then the records: a command that reads what it writes must not wait for itself.
        needs: Fences = {}
        for _, item in loads:
            raise_fences(needs, self._needs(op, item))
        ready = self._course.ready(needs.items()) if self._chooses else 0
        if len(loads) == 1:
            ((cores, item),) = loads
            self._put(self._load_channel(cores, ready), op, item, needs)
            return
        fences: Fences = {}
        for cores, item in loads:
            fences.update(self._emit(self._load_channel(cores, ready), op, item, needs))
        self._record_all(op, [item for _, item in loads], fences)

    def _emit(self, key: Key, op: int, item: Item, needs: Fences) -> Fences:
        """Put a command into the stream; what to wait for by those who wait for it."""
        count = self._issued[key] = self._issued.get(key, 0) + 1
        rest = self._prune(key, needs)
        waits = tuple([Wait(core, unit, need) for (core, unit), need in sorted(rest.items())]) if rest else ()
        self.commands.append(Command(*key, op, waits, item.instruction))
        if self._chooses:
            self._course.add(self.commands[-1], self._course.ready(needs.items()))
        return {key: count}

    def _record_all(self, op: int, items: Sequence[Item], fences: Fences) -> None:
        for resource in dict.fromkeys(resource for item in items for resource in item.reads):
            self._record(resource, fences, op, write=False)
        for resource in dict.fromkeys(resource for item in items for resource in item.writes):
            self._record(resource, fences, op, write=True)

    def _needs(self, op: int, item: Item) -> Fences:
        """What must be over before an item of an operator begins."""
        needs: Fences = {}
        for resource in item.reads:
            if isinstance(resource, Slot):
                if not resource.active:
                    self._activate(resource)
                raise_fences(needs, resource.writers)
            elif not resource.buffer.is_constant:
                # The driver writes constants before the job starts, and the verifier lets no command write them.
                self._history(resource.buffer).writes.raise_into(needs, *resource.extent())
        for resource in item.writes:
            if isinstance(resource, Slot):
                if not resource.active:
                    self._activate(resource)
                raise_fences(needs, resource.writers)
                raise_fences(needs, resource.readers)
            else:
                self._need_for_write(resource, op, needs)
        return needs

    def _prune(self, key: Key, needs: Fences) -> Fences:
        """Leave out what an earlier command of the same unit has waited for, and the unit's own order: a unit starts a
        command when the one before it is complete. What follows by way of other units is not looked for: a wait too
        many costs 8 bytes.
        """
        if not needs:
            return {}
        known = self._known.setdefault(key, {})
        rest = {other: need for other, need in needs.items() if other != key and known.get(other, 0) < need}
        known.update(rest)
        return rest

    def _need_for_write(self, resource: View, op: int, needs: Fences) -> None:
        history = self._history(resource.buffer)
        # Only writers need what was there before the buffer: whoever reads waits for a writer of these bytes.
        raise_fences(needs, history.before)
        # The stores of one operator never overlap, though the byte ranges around them may. On the chip the same bytes
        # hold other rows later.
        own = None if resource.buffer.on_chip else op
        low, high = resource.extent()
        for uses in (history.reads, history.writes):
            uses.raise_into(needs, low, high, but=own)

    def _record(self, resource: Resource, fences: Fences, op: int, *, write: bool) -> None:
        if isinstance(resource, Slot):
            if write:
                # They have waited for all who used the slot before: who waits for them, waits for those.
                resource.writers, resource.readers = fences, {}
            else:
                raise_fences(resource.readers, fences)
            return
        if resource.buffer.is_constant:
            return
        history = self._history(resource.buffer)
        low, high = resource.extent()
        for key, count in fences.items():
            (history.writes if write else history.reads).add(low, high, key, count, op)

    def _history(self, buffer: Buffer) -> _History:
        history = self._histories.get(buffer)
        if history is None:
            history = self._histories[buffer] = _History()
            place = _place(buffer)
            if place is not None:
                history.before = self._claim(place, buffer)
        return history

    def _activate(self, slot: Slot) -> None:
        """Before a slot's first use: whatever used its bytes before must be over."""
        slot.active = True
        place = _place(slot)
        assert place is not None
        slot.readers = self._claim(place, slot)

    def _claim(self, place: Place, claimant: Slot | Buffer) -> Fences:
        """Give bytes of the chip to a new use; what must be over before they are written."""
        fences: Fences = {}
        kept = []
        for taken, other in self._occupants.get(place[:2], ()):
            if taken.overlaps(place):
                raise_fences(fences, self._uses(other))
                # Wholly covered, the older one is spoken for by this one; else its other bytes are still on record.
                if place.covers(taken):
                    continue
            kept.append((taken, other))
        self._occupants[place[:2]] = [*kept, (place, claimant)]
        return fences

    def _uses(self, occupant: Slot | Buffer) -> Fences:
        if isinstance(occupant, Buffer):
            return self._histories[occupant].summary()
        fences = dict(occupant.writers)
        raise_fences(fences, occupant.readers)
        return fences
