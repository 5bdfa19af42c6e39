"""What of a machine is broken at the moment: units that hang, are slow or fail. Faults on a schedule set it.

Only jobs that are watched look at it, so it costs nothing where nothing breaks.
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
"""Called when something that is broken has been felt."""


_T = TypeVar("_T")


class Repeated(Generic[_T]):
    """A queue of items, each a number of times. It takes the same room for any number."""

    def __init__(self) -> None:
        self._rows: deque[tuple[_T, int]] = deque()

    def add(self, item: _T, times: int) -> None:
        """Append an item ``times`` times, once at least."""
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
    """``hangs``: units, or the sequencer, that have stopped; ``slow``: by which factors a unit's commands take longer;
    ``clock``: by which those of all units do; ``failing``: for a DMA channel how many transfers fail. Each with what to
    call when it is felt."""

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
        """Take one hang of a unit back; with the last one what it held goes on."""
        left = self.hangs[unit]
        left.remove(acted)
        if left:
            return
        del self.hangs[unit]
        for release in self._held.pop(unit, []):
            release()

    def hold(self, unit: str, release: Callable[[], None]) -> bool:
        """Whether a unit hangs; if so, ``release()`` is called when it goes on."""
        if unit not in self.hangs:
            return False
        self._held.setdefault(unit, []).append(release)
        for acted in self.hangs[unit]:
            acted()
        return True

    def forget(self) -> None:
        """The job is gone: nothing that was held goes on."""
        self._held.clear()

    def fails(self, unit: str) -> bool:
        """Whether the transfer that ends now fails."""
        left = self.failing.get(unit)
        if not left:
            return False
        left.take()()
        return True

    def clock_factor(self) -> Fraction:
        """By how much the clock is slower."""
        return _factor(self.clock)

    def slowed(self, unit: str, step: Step, capacity: int) -> Step:
        """A command as long as it takes now; ``capacity``: bytes/s of the link that its bytes flow over."""
        own, clock = _factor(self.slow.get(unit, [])), self.clock_factor()
        if own == clock == 1:
            return step
        charge = step.charge
        fixed, rate, alone = _times(charge.fixed_ps, own * clock), charge.rate, charge.alone_ps
        if charge.bus_bytes:
            # The clock slows the channel, not the memory behind it; a channel that is slow is so all the way.
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
