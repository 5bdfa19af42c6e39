"""Addresses of values in the scratchpad.

A value keeps one address for all steps of its life. Values are added one at a time, the most useful first. Each is
tried at the lowest free address, and at the highest, because tiles profit most from one contiguous free block. If no
gap is large enough, all values of that time are placed again together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

from npusim.compiler.buffers import Buffer
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.hw.memory import ALIGNMENT, align


class Scratchpad:
    """The values in the scratchpad of one core during each step. ``capacity``: bytes."""

    def __init__(self, steps: Sequence[ScheduleStep], capacity: int) -> None:
        self.steps, self.capacity = steps, capacity
        self.fixed: set[Buffer] = set()
        """Values whose addresses must not change."""
        self._lives: dict[Buffer, range] = {}
        for number, step in enumerate(steps):
            for buffer in step.resident:
                first = self._lives[buffer].start if buffer in self._lives else number
                self._lives[buffer] = range(first, number + 1)

    def places(self, buffer: Buffer, life: range) -> Iterator[dict[Buffer, int]]:
        """Yield addresses to try for a value that lives during the steps ``life``: the lowest, then the highest.

        If there is no gap, yield new addresses for the value and its neighbours together.
        """
        if any(len(self.steps[number].resident) >= MOST_BESIDE for number in life):
            return
        # A dict keeps the order. With a set, addresses would depend on object addresses in the host's memory.
        beside = dict.fromkeys(other for number in life for other in self.steps[number].resident)
        low = self._lowest(buffer, ((other.offset, other) for other in beside))
        if low is None:
            anew = self._placed_anew(buffer, life, list(beside))
            if anew is not None:
                yield anew
            return
        yield {buffer: low}
        high = self._highest(buffer, beside)
        if high != low:
            yield {buffer: high}

    def is_free(self, buffer: Buffer, life: range, offset: int) -> bool:
        """Whether ``offset`` is a valid address for a value and no other value uses these bytes during ``life``."""
        if offset < 0 or offset % ALIGNMENT or offset + buffer.nbytes > self.capacity:
            return False
        beside = {other for number in life for other in self.steps[number].resident}
        return all(each.offset >= offset + _size(buffer) or offset >= each.offset + _size(each) for each in beside)

    def add(self, buffer: Buffer, life: range, offsets: Mapping[Buffer, int]) -> None:
        """Put a value into the scratchpad. ``offsets``: addresses for it and for the values that move."""
        self._lives[buffer] = life
        for number in life:
            self.steps[number].resident.append(buffer)
        for other, offset in offsets.items():
            other.core, other.offset = 0, offset
        self._sort(self.life_of(offsets))

    def add_beside(self, buffer: Buffer, life: range) -> bool:
        """Put a value into a gap, without moving others. Returns whether there is one."""
        beside = {other for number in life for other in self.steps[number].resident}
        offset = self._lowest(buffer, ((other.offset, other) for other in beside))
        if offset is None:
            return False
        self.add(buffer, life, {buffer: offset})
        return True

    def remove(self, buffer: Buffer, before: Mapping[Buffer, tuple[int | None, int]]) -> None:
        """Undo an :meth:`add`. ``before``: core and address, before the call, of the value and of those that it
        moved."""
        moved = self.life_of(before)
        for number in self._lives.pop(buffer):
            self.steps[number].resident.remove(buffer)
        for other, (core, offset) in before.items():
            other.core, other.offset = core, offset
        self._sort(moved)

    def life_of(self, buffers: Iterable[Buffer]) -> list[int]:
        """The numbers of the steps during which any of the values is in the scratchpad."""
        return sorted({number for buffer in buffers for number in self._lives[buffer]})

    def _sort(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.steps[number].resident.sort(key=lambda buffer: buffer.offset)

    def _placed_anew(self, buffer: Buffer, life: range, beside: Sequence[Buffer]) -> dict[Buffer, int] | None:
        """Addresses for a value and its neighbours when all are placed again; None if no placement order makes room."""
        needed = _size(buffer)
        if len(beside) > MOST_RIVALS or not self.fixed.isdisjoint(beside):
            return None
        for number in life:
            if needed + sum(map(_size, self.steps[number].resident)) > self.capacity:
                return None
        lives = {other: self._lives[other] for other in beside} | {buffer: life}
        # First fit depends on the order, and finding the best order is NP-hard: three heuristics for different cases.
        return next(filter(None, (self._first_fit(lives, order) for order in _ORDERS)), None)

    def _first_fit(self, lives: Mapping[Buffer, range], order: _Order) -> dict[Buffer, int] | None:
        offsets: dict[Buffer, int] = {}
        for buffer in sorted(lives, key=lambda each: order(each, lives[each])):
            life = lives[buffer]
            # Values that overlap these only for a part of their life keep their addresses.
            fixed = {each for number in life for each in self.steps[number].resident} - lives.keys()
            moved = [(at, each) for each, at in offsets.items() if _overlap(lives[each], life)]
            offset = self._lowest(buffer, [*moved, *((each.offset, each) for each in fixed)])
            if offset is None:
                return None
            offsets[buffer] = offset
        return offsets

    def _lowest(self, buffer: Buffer, taken: Iterable[tuple[int, Buffer]]) -> int | None:
        """The lowest free address beside the values ``taken``, or None."""
        offset = 0
        for start, other in sorted(taken, key=itemgetter(0)):
            if start >= offset + buffer.nbytes:
                break
            offset = max(offset, align(start + max(other.nbytes, 1)))
        return offset if offset + buffer.nbytes <= self.capacity else None

    def _highest(self, buffer: Buffer, taken: Iterable[Buffer]) -> int:
        """The highest free address beside the values ``taken``. Requires that a free address exists."""
        end = self.capacity
        for other in sorted(taken, key=lambda other: other.offset, reverse=True):
            start = (end - buffer.nbytes) // ALIGNMENT * ALIGNMENT
            if start >= other.offset + max(other.nbytes, 1):
                break
            end = min(end, other.offset)
        return (end - buffer.nbytes) // ALIGNMENT * ALIGNMENT


def _size(buffer: Buffer) -> int:
    return align(max(buffer.nbytes, 1))


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


_Order = Callable[[Buffer, range], tuple[int, ...]]

_ORDERS: tuple[_Order, ...] = (
    lambda buffer, life: (-buffer.nbytes, life.start),
    lambda buffer, life: (life.start, -len(life), -buffer.nbytes),
    lambda buffer, life: (-life.stop, -len(life), -buffer.nbytes),
)
"""The orders in which values are placed together: largest first, by first step, by last step."""

MOST_BESIDE = 24
"""Maximum number of values in the scratchpad during a step. Each one splits the free bytes, and an estimate visits
every gap."""
MOST_RIVALS = 48
"""Maximum number of values that are placed again together: the work is quadratic in their number."""
