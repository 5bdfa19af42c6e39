"""What a cost model answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.hw.config import Config
from npusim.units import ceil_div, cycles_to_ps

COMPUTE, MEMORY, LATENCY = "compute", "memory", "latency"
WHOLE = 1 << 20
"""All banks of an SRAM: shares of them are integers."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that a unit is taken by one piece of work.

    ``cycles``: of the unit's clock, the sum of ``terms`` (name, cycles). ``ps``: the same in picoseconds. ``bound``:
    the largest kind of term, ``compute``, ``memory`` or ``latency`` (set-up, filling, waiting for the first datum).
    ``sram_ps``: how much of that time all banks of the SRAM need for the work's traffic; what is left others may use.
    """

    cycles: int
    ps: int
    terms: tuple[tuple[str, int], ...]
    bound: str
    sram_ps: int = 0

    @property
    def share(self) -> int:
        """The part of WHOLE that it takes of what all banks of the SRAM give while it lasts."""
        return WHOLE * self.sram_ps // self.ps if self.ps else 0


def first_datum(config: Config, setup: int, hz: int) -> list[tuple[str, str, int]]:
    """Terms of what precedes the first operand, in cycles of a unit's clock: its set-up and the SRAM's latency."""
    # The SRAM runs at the device's clock and the unit perhaps at its own: the latency is so many of the unit's cycles.
    wait = ceil_div(config.sram.latency_cycles * hz, config.clock_hz)
    return [("setup", LATENCY, setup), ("sram_latency", LATENCY, wait)]


def sram_cycles(config: Config, moved: int, hz: int) -> int:
    """Cycles of a unit's clock in which all banks of the SRAM pass ``moved`` bytes."""
    return ceil_div(moved * hz, config.sram.total_bytes_per_cycle * config.clock_hz)


def total(hz: int, terms: Sequence[tuple[str, str, int]], traffic: int = 0) -> Cost:
    """A Cost from (name, kind, cycles) terms; of equally large kinds the first in compute, memory, latency binds.

    ``traffic``: cycles in which all banks of the SRAM pass what the work moves.
    """
    shares = {COMPUTE: 0, MEMORY: 0, LATENCY: 0}
    for _, kind, count in terms:
        shares[kind] += count
    cycles = sum(shares.values())
    ps = cycles_to_ps(cycles, hz)
    named = tuple([(name, count) for name, _, count in terms if count])
    # Rounding up cycles of another clock may make the share a little longer than the whole.
    return Cost(cycles, ps, named, max(shares, key=shares.__getitem__), min(ps, cycles_to_ps(traffic, hz)))


def beside(compute: int, traffic: int) -> list[tuple[str, str, int]]:
    """Terms of computing while ``traffic`` cycles of SRAM accesses go on: the longer of the two decides.

    If memory is the longer one, all of it is memory time: the unit only waits.
    """
    if traffic > compute:
        return [("sram", MEMORY, traffic)]
    return [("compute", COMPUTE, compute)]
