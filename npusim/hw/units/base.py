"""The result of a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.hw.config import Config
from npusim.units import ceil_div, cycles_to_ps

COMPUTE, MEMORY, LATENCY = "compute", "memory", "latency"
WHOLE = 1 << 20
"""All banks of an SRAM; shares are integer parts of it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of one piece of work on a unit.

    ``cycles``: of the clock of the unit, the sum of ``terms`` (name, cycles). ``ps``: the same in picoseconds.
    ``bound``: the largest kind of term: ``compute``, ``memory`` or ``latency`` (set-up, filling, waiting for the first
    datum). ``sram_ps``: time that all banks of the SRAM need for its traffic; the rest is available to others.
    """

    cycles: int
    ps: int
    terms: tuple[tuple[str, int], ...]
    bound: str
    sram_ps: int = 0

    @property
    def share(self) -> int:
        """Its share of the SRAM bandwidth, as a part of WHOLE."""
        return WHOLE * self.sram_ps // self.ps if self.ps else 0


def first_datum(config: Config, setup: int, hz: int) -> list[tuple[str, str, int]]:
    """Terms before the first operand, in cycles of the clock of a unit: set-up and SRAM latency."""
    # The SRAM uses the clock of the device, so its latency is converted to cycles of the unit.
    wait = ceil_div(config.sram.latency_cycles * hz, config.clock_hz)
    return [("setup", LATENCY, setup), ("sram_latency", LATENCY, wait)]


def sram_cycles(config: Config, moved: int, hz: int) -> int:
    """Cycles of the clock of a unit in which all banks of the SRAM transfer ``moved`` bytes."""
    return ceil_div(moved * hz, config.sram.total_bytes_per_cycle * config.clock_hz)


def total(hz: int, terms: Sequence[tuple[str, str, int]], traffic: int = 0) -> Cost:
    """A Cost from (name, kind, cycles) terms. Among equally large kinds, the first of compute, memory, latency is the
    bound. ``traffic``: cycles in which all banks of the SRAM transfer the bytes of the work."""
    shares = {COMPUTE: 0, MEMORY: 0, LATENCY: 0}
    for _, kind, count in terms:
        shares[kind] += count
    cycles = sum(shares.values())
    ps = cycles_to_ps(cycles, hz)
    named = tuple([(name, count) for name, _, count in terms if count])
    # The conversion to cycles of another clock rounds up, so the share could slightly exceed the whole.
    return Cost(cycles, ps, named, max(shares, key=shares.__getitem__), min(ps, cycles_to_ps(traffic, hz)))


def beside(compute: int, traffic: int) -> list[tuple[str, str, int]]:
    """Terms of computing with ``traffic`` cycles of SRAM accesses in parallel: the longer one counts. If memory is
    longer, all of it is memory time."""
    if traffic > compute:
        return [("sram", MEMORY, traffic)]
    return [("compute", COMPUTE, compute)]
