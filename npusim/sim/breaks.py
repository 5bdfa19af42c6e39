"""The active unit faults of a machine: units that hang, are slow or fail. Set by a fault script.

Only watched jobs check it, so it costs nothing without faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Generic, TypeVar

from npusim.sim.steps import Step
from npusim.units import bytes_to_ps, ceil_div

Acted = Callable[[], None]
"""Called when a fault has had an effect."""


_T = TypeVar("_T")


class Repeated(Generic[_T]):
    """A queue of items with repeat counts, in constant space for any count."""

    def __init__(self) -> None:
        self._rows: deque[tuple[_T, int]] = deque()

    def add(self, item: _T, times: int) -> None:
        """Append an item ``times`` times, at least once."""
        self._rows.append((item, times))

    def take(self) -> _T:
        """Remove the first item once. Raises IndexError if there is none."""
        item, left = self._rows.popleft()
        if left > 1:
            self._rows.appendleft((item, left - 1))
        return item

    def clear(self) -> None:
        """Remove everything."""
        self._rows.clear()

    def __bool__(self) -> bool:
        return bool(self._rows)


class UnitFaults:
    """``hangs``: units, or the sequencer, that have stopped. ``slow``: factors by which commands of a unit take longer.
    ``clock``: factors for all units. ``failing``: number of failing transfers by DMA channel. Each has a function that
    is called at its first effect."""

    def __init__(self) -> None:
        self.hangs: dict[str, list[Acted]] = {}
        self.slow: dict[str, list[tuple[Fraction, Acted]]] = {}
        self.clock: list[tuple[Fraction, Acted]] = []
        self.failing: dict[str, Repeated[Acted]] = {}
        self._held: dict[str, list[Callable[[], None]]] = {}

    def hang(self, unit: str, acted: Acted) -> None:
        """Stop a unit until :meth:`go_on`."""
        self.hangs.setdefault(unit, []).append(acted)

    def go_on(self, unit: str, acted: Acted) -> None:
        """Undo one hang of a unit; after the last one it continues."""
        left = self.hangs[unit]
        left.remove(acted)
        if left:
            return
        del self.hangs[unit]
        for release in self._held.pop(unit, []):
            release()

    def hold(self, unit: str, release: Callable[[], None]) -> bool:
        """Whether a unit hangs; if so, ``release()`` is called when it continues."""
        if unit not in self.hangs:
            return False
        self._held.setdefault(unit, []).append(release)
        for acted in self.hangs[unit]:
            acted()
        return True

    def forget(self) -> None:
        """The job has ended: drop its held commands."""
        self._held.clear()

    def fails(self, unit: str) -> bool:
        """Whether the transfer that ends now fails."""
        left = self.failing.get(unit)
        if not left:
            return False
        left.take()()
        return True

    def clock_factor(self) -> Fraction:
        """The factor by which the clock is slower."""
        return _factor(self.clock)

    def slowed(self, unit: str, step: Step, capacity: int) -> Step:
        """A copy of a command with its current duration. ``capacity``: bytes/s of its link."""
        own, clock = _factor(self.slow.get(unit, [])), self.clock_factor()
        if own == clock == 1:
            return step
        charge = step.charge
        fixed, rate, alone = _times(charge.fixed_ps, own * clock), charge.rate, charge.alone_ps
        if charge.bus_bytes:
            # The clock slows the channel, but not the memory behind it; a slow channel is slow in all its parts.
            reached = charge.rate if own == 1 else min(charge.rate, capacity)
            rate = max(1, reached * own.denominator * clock.denominator // (own.numerator * clock.numerator))
            alone = fixed + bytes_to_ps(charge.bus_bytes, min(rate, capacity))
        else:
            alone = _times(alone, own * clock)
        return replace(step, charge=replace(charge, fixed_ps=fixed, rate=rate, alone_ps=alone))


def _factor(factors: list[tuple[Fraction, Acted]]) -> Fraction:
    product = Fraction(1)
    for factor, acted in factors:
        product *= factor
        acted()
    return product


def _times(duration_ps: int, factor: Fraction) -> int:
    return ceil_div(duration_ps * factor.numerator, factor.denominator)
