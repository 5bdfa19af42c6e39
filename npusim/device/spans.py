"""Byte ranges of device memory, and the ranges that a command stream accesses."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from npusim.errors import NpusimError
from npusim.isa import decode
from npusim.isa.base import Space, offset_of, space_of
from npusim.isa.control import Residents
from npusim.isa.repeat import expanded

STREAMS_KEPT = 32


class ByteRanges:
    """A set of bytes as sorted, disjoint, non-adjacent ranges [low, high)."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def add(self, low: int, high: int) -> None:
        if low >= high:
            return
        # Ranges that overlap or touch the new one.
        first, last = bisect_left(self._highs, low), bisect_right(self._lows, high)
        if first < last:
            low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
        self._lows[first:last], self._highs[first:last] = [low], [high]

    def remove(self, low: int, high: int) -> None:
        if low >= high:
            return
        first, last = bisect_right(self._highs, low), bisect_left(self._lows, high)
        if first >= last:
            return
        left, right = self._lows[first], self._highs[last - 1]
        kept = [(a, b) for a, b in ((left, low), (high, right)) if a < b]
        self._lows[first:last], self._highs[first:last] = [a for a, _ in kept], [b for _, b in kept]

    def meets(self, low: int, high: int) -> bool:
        """Whether any byte of [low, high) is in the set."""
        at = bisect_right(self._highs, low)
        return low < high and at < len(self._lows) and self._lows[at] < high

    def missing(self, low: int, high: int) -> int | None:
        """The first byte of [low, high) that is not in the set; None if all are."""
        while low < high:
            at = bisect_right(self._highs, low)
            if at == len(self._lows) or self._lows[at] > low:
                return low
            low = self._highs[at]
        return None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._lows, self._highs, strict=True)))


class AccessExtent(NamedTuple):
    """The bytes of one region from the first to the last that a stream reads, and those that it writes; low = high if
    there are none."""

    read: tuple[int, int] = (0, 0)
    written: tuple[int, int] = (0, 0)


class Touched(NamedTuple):
    """The accesses of a stream by region, and whether it begins with a prologue that pins weights."""

    regions: dict[int, AccessExtent]
    keeps: bool


@lru_cache(STREAMS_KEPT)
def touched(code: bytes) -> Touched | None:
    """The accesses of a stream; None for a stream that the device will refuse."""
    found: dict[int, AccessExtent] = {}
    keeps = False
    try:
        for command in expanded(decode(code)):
            command.instruction.check()
            keeps |= isinstance(command.instruction, Residents)
            for access in command.instruction.accesses():
                if access is None or space_of(access.address) < Space.REGION:
                    continue
                number, offset = space_of(access.address) - Space.REGION, offset_of(access.address)
                known = found.get(number, AccessExtent())
                reach = offset + access.low, offset + access.high
                if access.write:
                    found[number] = known._replace(written=_hull(known.written, reach))
                else:
                    found[number] = known._replace(read=_hull(known.read, reach))
    except (NpusimError, ValueError, ArithmeticError, KeyError):
        return None
    return Touched(found, keeps)


def _hull(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if a[0] >= a[1]:
        return b
    return min(a[0], b[0]), max(a[1], b[1])
