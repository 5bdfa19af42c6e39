"""Addresses of tile slots in the scratchpad, between the values that are there.

The slots of a step and of its neighbours should not overlap: then the loads of the next step can start, and units can
work on it, while this step is still computing. Steps therefore alternate between both ends of the free bytes, and among
all possible addresses the one that shares the fewest bytes with the neighbours is chosen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from npusim.compiler.lower.base import SlotSpec, total_bytes
from npusim.hw.memory import ALIGNMENT, align
from npusim.isa.base import Space

Span = tuple[int, int]
"""(start, end): the first byte, and the byte after the last one."""

_SRAM = Space.SRAM  # a local name, because it is looked up for each slot of each step that is tried


def sizes_of(specs: Sequence[SlotSpec]) -> list[int]:
    """Aligned bytes of each copy of each slot in SRAM."""
    return [align(max(spec.nbytes, 1)) for spec in specs if spec.space is _SRAM for _ in range(spec.copies)]


def place_slots(
    specs: Sequence[SlotSpec], free: Sequence[Span], *, low_end: bool, avoid: Sequence[Span] = (), urgent: int = 0
) -> list[int] | None:
    """The address of each copy of each slot in SRAM; None if they do not fit.

    ``avoid``: byte ranges of neighbouring steps. First the ``urgent`` slots at the front, which are loaded first, share
    as few of these bytes as possible, then all slots. Ties go to the low end of the free bytes (``low_end``) or to the
    high end.
    """
    sizes = sizes_of(specs)
    taken = sum(sizes)
    spans = free if low_end else free[::-1]
    wide = [span for span in spans if span[1] - span[0] >= taken]
    if not wide:
        return _in_pieces(sizes, spans, low_end=low_end)
    ends = [low if low_end else high - taken for low, high in wide]
    if not avoid:  # an estimate, as in nearly every call
        return _from(sizes, ends[0], down=False)
    ends += [high - taken if low_end else low for low, high in wide]
    lows, highs = _bounds(avoid)
    beside = [*highs, *((low - taken) // ALIGNMENT * ALIGNMENT for low in lows)]
    ends += [at for low, high in wide for at in beside if low <= at <= high - taken]
    first = sum(sizes[: copies_of(specs[:urgent])])
    start, down = _least_shared(list(dict.fromkeys(ends)), taken, first, _bytes_below(lows, highs))
    return _from(sizes, start + taken if down else start, down=down)


def without(free: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """The free byte ranges without the ``taken`` ones, all of which are free."""
    found = []
    inside = sorted(taken)
    for low, high in free:
        for start, end in inside:
            if low <= start < high:
                found.append((low, start))
                low = end
        found.append((low, high))
    return [(low, high) for low, high in found if low < high]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Aligned spans in order; those that touch as one."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], align(high))
        else:
            found.append((low, align(high)))
    return found


class LastUses:
    """The last step that used each byte of the scratchpad; -1 for none."""

    def __init__(self) -> None:
        self._starts = [0]
        self._steps = [-1]

    def add(self, spans: Sequence[Span], step: int) -> None:
        """Record that a step uses byte ranges."""
        for low, high in _joined(spans):
            first, last = bisect_left(self._starts, low), bisect_right(self._starts, high) - 1
            self._starts[first : last + 1], self._steps[first : last + 1] = [low, high], [step, self._steps[last]]

    def oldest(self, nbytes: int, free: Sequence[Span]) -> int | None:
        """The start of ``nbytes`` free bytes whose last use is longest ago; None if no free range is long enough."""
        return min(((last, start) for start, last, _ in self._runs(nbytes, free)), default=(0, None))[1]

    def recent(self, nbytes: int, free: Sequence[Span], limit: int) -> int | None:
        """The start of ``nbytes`` free bytes that were used recently, if possible not after step ``limit``; None if no
        free range is long enough."""
        ranks = ((max(last, limit), -total, start) for start, last, total in self._runs(nbytes, free))
        return min(ranks, default=(0, 0, None))[2]

    def _runs(self, nbytes: int, free: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
        """(start, latest step, sum over all bytes of their last steps) of candidates: ranges that start or end where a
        free range or a used range does."""
        for low, high in free:
            inside = self._starts[bisect_left(self._starts, low) : bisect_right(self._starts, high)]
            starts = {low, high - nbytes, *inside, *(end - nbytes for end in inside)}
            for start in sorted(at for at in starts if low <= at <= high - nbytes):
                first, past = bisect_right(self._starts, start) - 1, bisect_left(self._starts, start + nbytes)
                ends = [*self._starts[first + 1 : past], start + nbytes]
                begins = [start, *self._starts[first + 1 : past]]
                steps = self._steps[first : max(past, first + 1)]
                yield (
                    start,
                    max(steps),
                    sum((end - begin) * step for begin, end, step in zip(begins, ends, steps, strict=False)),
                )


def _bounds(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """The sorted starts and ends of spans, without addresses where as many spans start as end: slots of a step are
    adjacent."""
    lows, highs = Counter(low for low, _ in spans), Counter(align(high) for _, high in spans)
    return sorted((lows - highs).elements()), sorted((highs - lows).elements())


def _least_shared(starts: Sequence[int], taken: int, first: int, below: Callable[[int], int]) -> tuple[int, bool]:
    """The option that shares the fewest bytes with other slots: first among the ``first`` bytes, then among all.

    Returns (start, whether slots grow downwards from the end). ``below``: the bytes of others below an address.
    """

    def shared(option: tuple[int, bool]) -> tuple[int, int]:
        start, down = option
        low, end = below(start), start + taken
        high = below(end)
        return (high - below(end - first) if down else below(start + first) - low), high - low

    # Growing downwards, urgent slots are far from a neighbour at the low end. Without urgent slots both directions are
    # equal.
    ways = (False, True) if first else (False,)
    return min(((start, down) for down in ways for start in starts), key=shared)


def _from(sizes: Sequence[int], at: int, *, down: bool) -> list[int]:
    """The starts of adjacent slots, growing upwards or downwards from ``at``."""
    if down:
        return [at - end for end in accumulate(sizes)]
    return list(accumulate(sizes[:-1], initial=at))


def _in_pieces(sizes: Sequence[int], free: Sequence[Span], *, low_end: bool) -> list[int] | None:
    """The starts of slots that do not fit together into one gap: each goes into the first gap with space for it."""
    spans, starts = list(free), []
    for size in sizes:
        number = next((n for n, (low, high) in enumerate(spans) if high - low >= size), None)
        if number is None:
            return None
        low, high = spans[number]
        starts.append(low if low_end else high - size)
        spans[number] = (low + size, high) if low_end else (low, high - size)
    return starts


def _bytes_below(lows: Sequence[int], highs: Sequence[int]) -> Callable[[int], int]:
    """A function that returns the bytes of spans below an address. Bytes in two spans count twice."""
    to_low, to_high = [0, *accumulate(lows)], [0, *accumulate(highs)]

    def below(place: int) -> int:
        begun, over = bisect_left(lows, place), bisect_left(highs, place)
        return (begun - over) * place - to_low[begun] + to_high[over]

    return below


def copies_of(specs: Sequence[SlotSpec]) -> int:
    """The total number of copies in SRAM."""
    return sum([spec.copies for spec in specs if spec.space is _SRAM])


def deeper(specs: Sequence[SlotSpec], room: int, in_flight: int) -> list[SlotSpec]:
    """Add copies of double-buffered slots for loads that run several transfers ahead: one in use and one per transfer
    in flight.

    The slots take at most half of ``room``, and leave the rest to neighbouring steps.
    """
    for copies in range(1 + in_flight, 2, -1):
        more = [replace(spec, copies=copies) if spec.copies == 2 else spec for spec in specs]
        if total_bytes(more) <= room // 2:
            return more
    return list(specs)


def ahead(specs: Sequence[SlotSpec], room: int, tiles: int) -> list[SlotSpec]:
    """The slots with one copy of weights and their parameters for each of a core's ``tiles``, or for as many as fit
    into half of ``room``: these are loaded while the DRAM is idle, before the step starts."""
    names = [spec.name for spec in specs if spec.name in CONSTANTS and spec.copies == 2]
    each = sum([align(max(spec.nbytes, 1)) for spec in specs if spec.name in names])
    most = 2 + max(0, room // 2 - total_bytes(specs)) // each if each else 0
    return [replace(spec, copies=min(most, tiles)) if spec.name in names else spec for spec in specs]


CONSTANTS = ("w", "p")
"""Names of the slots for weights, and for the biases and scales of channels."""


def filled(specs: Sequence[SlotSpec], room: int, in_flight: int) -> list[SlotSpec]:
    """Add as many copies of the weights as there is space for.

    A unit that runs one job at a time loads its weights alongside the features, as early as its buffer allows.
    """
    found = list(specs)
    for at, spec in enumerate(specs):
        if spec.name == "w" and spec.copies > 1:
            spare = max(0, room - total_bytes(specs)) // align(max(spec.nbytes, 1))
            found[at] = replace(spec, copies=max(spec.copies, min(1 + in_flight, spec.copies + spare)))
    return found
