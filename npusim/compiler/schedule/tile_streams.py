"""The tiles of a step as streams: per stripe of a cascade, shared among cores, with loads in front."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, product, zip_longest

from npusim.compiler.buffers import View
from npusim.compiler.codegen.issue import Item, Resource, Slot, Tile
from npusim.compiler.grouping.groups import Group
from npusim.compiler.lower.base import Lowering, SlotTable
from npusim.compiler.schedule.cascade import Cascade, before_stripe, load_stripe
from npusim.compiler.schedule.exchange import CoreTransfer, received
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.slots import Span
from npusim.isa.base import Space


class Tiles:
    """A core's tiles of a step. The first ones can be inspected before they are issued.

    ``beside``: bytes that other tiles use before.
    """

    def __init__(self, tiles: Iterable[Tile], beside: Sequence[Span] = ()) -> None:
        self._left = iter(tiles)
        self._beside = beside
        self._first: deque[Tile] = deque()
        self._looked = 0
        """How many of the first tiles have no constants left to load."""
        self._written: set[Resource] = set()
        """The resources that the loads of these tiles write."""

    def __iter__(self) -> Iterator[Tile]:
        yield from self._first
        yield from self._left

    def constants(self, used: Sequence[Span]) -> list[Item]:
        """Take the loads of constants from the next tile that has any.

        Takes nothing if they write bytes that are ``used``, or if tiles before it use the same slots.
        """
        used = (*used, *self._beside) if self._beside else used
        while True:
            if self._looked == len(self._first):
                self._first.extend(islice(self._left, 1))
            if self._looked == len(self._first):
                return []
            tile = self._first[self._looked]
            written = {resource for item in tile.loads for resource in item.writes}
            found = [item for item in tile.loads if item.reads and _is_constant(item)]
            if written & self._written or not all(_is_free(item, used) for item in found):
                return []
            self._looked += 1
            self._written |= written
            if found:
                tile.loads = [item for item in tile.loads if not (item.reads and _is_constant(item))]
                return found


def _is_free(item: Item, used: Sequence[Span]) -> bool:
    """Whether an item writes only SRAM slots, and none of the bytes in ``used``."""
    return all(
        isinstance(slot, Slot)
        and slot.space == Space.SRAM
        and not any(slot.start < high and low < slot.start + slot.nbytes for low, high in used)
        for slot in item.writes
    )


def stripes_of_cores(
    step: ScheduleStep, lowerings: Sequence[Sequence[Lowering]], tables: Sequence[Sequence[SlotTable]]
) -> Iterator[tuple[Group, list[Iterable[Tile]]]]:
    """Yield the groups of a cascade in the order of their turns, with a stream of tiles per core.

    ``lowerings``: of each core and group. ``tables``: of each group and core.
    """
    assert step.cascade is not None
    cascades = [step.cascade, *step.cascade.others]
    cores = [
        _stripes(cascade, mine, [slots[core] for slots in tables])
        for core, (cascade, mine) in enumerate(zip(cascades, lowerings, strict=True))
    ]
    for turn in zip_longest(*cores):
        number = next(each[0] for each in turn if each is not None)
        yield step.groups[number], [each[1] if each is not None else () for each in turn]


def _stripes(
    cascade: Cascade, lowerings: Sequence[Lowering], tables: Sequence[SlotTable]
) -> Iterator[tuple[int, Iterable[Tile]]]:
    """Yield the numbers of the groups of one core's cascade in the order of their turns, stripe by stripe, with
    tiles."""
    for image, (stripe, rows) in product(range(cascade.images), enumerate(cascade.stripes)):
        moved = cascade.moved(stripe)
        # Loads for the next stripe follow the loads of this stripe's first group, such as its weights.
        ahead: list[tuple[int, Iterable[Tile]]] = []
        for rolling in cascade.loaded:
            reader = rolling.value.readers[0].reader
            at_once, behind = load_stripe(cascade, rolling, image, stripe)
            ahead.append((reader, behind))
            yield reader, at_once
        for number, (first, end) in enumerate(rows[: len(lowerings)]):
            # Even if the group computes no rows, since padding below the image may be needed.
            before = before_stripe(cascade, number, image, stripe)
            tiles: Iterable[Tile] = ()
            if first < end:
                tiles = lowerings[number].stripe(image, (first, end), moved).steps(tables[number], 0, 1)
            if stripe or not first < end:
                yield number, before
                yield number, tiles
            else:
                yield number, ()
                yield number, _with_loads(tiles, before)
            if not number:
                yield from ahead


def receive(streams: list[Iterable[Tile]], transfers: Sequence[CoreTransfer]) -> None:
    """Add loads for what other cores have sent, after the constants of the next tiles, which need not wait for
    anyone."""
    for core in range(max(each.targets[-1].buffer.core or 0 for each in transfers) + 1):
        items = received(transfers, core)
        if core == len(streams):
            streams.append([])
        if items:
            streams[core] = _behind_constants(streams[core], items)


def _behind_constants(tiles: Iterable[Tile], items: Sequence[Item]) -> Iterator[Tile]:
    """Add loads to the first tile, after its loads of constants and before its other loads."""
    left = iter(tiles)
    first = next(left, None) or Tile()
    constants = [item for item in first.loads if _is_constant(item)]
    first.loads = [*constants, *items, *(item for item in first.loads if not _is_constant(item))]
    yield first
    yield from left


def _is_constant(item: Item) -> bool:
    return all(isinstance(each, View) and each.buffer.is_constant for each in item.reads)


def _with_loads(tiles: Iterable[Tile], before: Sequence[Tile]) -> Iterator[Tile]:
    """Merge the loads for padding into the first tile, behind its own loads, which then need not wait for the
    padding."""
    left = iter(tiles)
    first, *others = chain(islice(left, 1), before)
    for tile in others:
        first.loads += tile.loads
    yield first
    yield from left


def shared_out(lowering: Lowering, tables: Sequence[SlotTable]) -> list[Iterable[Tile]]:
    """The tiles of a layer, divided among the cores."""
    return [lowering.steps(table, core, len(tables)) for core, table in enumerate(tables)]
