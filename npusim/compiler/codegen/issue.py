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
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from math import prod

from npusim.compiler.buffers import Buffer, View
from npusim.compiler.codegen._issue import Issuer, Item, Slot, Tile, raise_fences
from npusim.compiler.codegen.channel_clock import course
from npusim.hw.config import Config
from npusim.hw.units.dma import channel_bandwidth, latency_ps
from npusim.isa.base import MOST_WAITS, Command, Instruction, Space, Unit, is_outside, space_of
from npusim.isa.control import Halt
from npusim.isa.dma import MULTICASTS, Copy, Expand, Fetch, Multicast, MulticastExpand
from npusim.ops.budget import Budget
from npusim.units import ceil_div

__all__ = ["Item", "Resource", "Scheduler", "Slot", "Tile"]

Resource = Slot | View

RECENT = 1024
"""Uses of a buffer that are told apart. Of those before them it is only known how far each unit had come: whoever waits
for that waits for commands that ended long ago, and looking back stays as quick for the last of 100 000 readers."""


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
    if not isinstance(instruction, Copy | Expand) or type(instruction) not in _FOR_SEVERAL:
        return None
    plain = is_outside(instruction.src) and space_of(instruction.dst) == Space.SRAM
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
    assert isinstance(load, MULTICASTS)
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
    if not isinstance(load, Copy):  # a stream is one, from its beginning to its end
        return [item]
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
    return Item(_FOR_SEVERAL[type(copy)](**fields, cores=cores), items[0][1].reads, tuple(writes))


_FOR_SEVERAL: dict[type[Instruction], Callable[..., Instruction]] = {Copy: Multicast, Expand: MulticastExpand}
"""Loads, and what does the same for several cores."""


def _buffers_read(items: Iterable[Item]) -> set[Buffer]:
    return {resource.buffer for item in items for resource in item.reads if isinstance(resource, View)}


def _buffers_written(step: Tile) -> set[Buffer]:
    items = (*step.compute, *step.stores)
    return {resource.buffer for item in items for resource in item.writes if isinstance(resource, View)}


class Scheduler(Issuer):
    """Collects steps in program order and issues commands."""

    def __init__(self, config: Config, budget: Budget) -> None:
        self._course = course(config)
        # Where there is no choice, nobody needs to know when a channel will be free.
        chooses = config.dma.channels > 2 or (config.cores > 1 and config.interconnect.multicast)
        features = Fetch if config.dma.separate_weight_port and config.dma.channels > 2 else None
        super().__init__(config.dma.channels, self._course, chooses, RECENT, features)
        self._config = config
        self._budget = budget
        self._owners: dict[bool, list[tuple[int, int, Buffer]]] = {False: [], True: []}
        """Runs of bytes in DRAM and in L2 (first, end, the buffer that was born there last), in order and apart."""

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
                self.push(core, op, step)
            running = [(core, steps) for core, steps, _ in turn]

    def _load_for_several(self, op: int, turn: Sequence[tuple[int, Tile]]) -> None:
        """Read once what several cores load in one turn; the channel that has least to do writes it to all of them."""
        loads = _take_shared(turn)
        while loads:
            self.flush_conflicts(Tile(loads))
            item = loads.pop(0)
            cores = item.instruction.targets(0)
            too_much = item.instruction.elements() > item.instruction.limit
            if len(cores) > 1 and (too_much or len(self.needs(op, item)) > MOST_WAITS):
                loads[:0] = _halves(item)
                continue
            pieces = _pieces(item, len(cores), self._config)
            self.issue_together(op, [(cores, piece) for piece in pieces])

    def prologue(self, op: int, items: Sequence[tuple[int, Iterable[Item]]]) -> int:
        """Before anything else: load what stays in SRAM, (core, items) of each; how many commands that takes."""
        for core, loads in items:
            for item in loads:
                self.issue_together(op, [((core,), item)])
        self._course.forget_time()
        return len(self.commands)

    def finish(self) -> list[Command]:
        """Issue what is pending and halt; the commands of the program."""
        for core in sorted(self.pending):
            self.flush(core)
        self.commands.append(Command(0, Unit.CONTROL, self.commands[-1].op if self.commands else 0, (), Halt()))
        return self.commands

    def born(self, buffer: Buffer) -> None:
        """The buffer's first use comes next: its bytes may have belonged to others, whose uses must be over."""
        low, high = buffer.offset, buffer.offset + buffer.nbytes
        if not buffer.is_scratch or not buffer.nbytes:
            return
        # The arena gives bytes to two buffers where their lives do not overlap in the graph's order. The device
        # does not keep that order: a core or a channel may be an operator behind, still reading the older value.
        self._flush_users_of(buffer)
        owners = self._owners[buffer.in_l2]
        first = bisect_right(owners, low, key=lambda run: run[1])
        last = bisect_left(owners, high, key=lambda run: run[0])
        before: dict[int, int] = {}
        kept = [(low, high, buffer)]
        for start, end, other in owners[first:last]:
            raise_fences(before, self.uses(other))
            # What is left of the older buffer at either side is still on record; for the rest the new one speaks.
            if start < low:
                kept.insert(0, (start, low, other))
            if end > high:
                kept.append((high, end, other))
        owners[first:last] = kept
        self.succeed(buffer, before)

    def _flush_users_of(self, buffer: Buffer) -> None:
        """Issue pending steps that still touch these scratch bytes, so that their uses are on record."""
        low, high = buffer.offset, buffer.offset + buffer.nbytes
        for core, (_, pending) in sorted(self.pending.items()):
            touched = _buffers_written(pending) | _buffers_read(pending.compute) | _buffers_read(pending.stores)
            if any(
                other.is_scratch and other.in_l2 == buffer.in_l2
                and other.offset < high and low < other.offset + other.nbytes
                for other in touched
            ):  # fmt: skip
                self.flush(core)
