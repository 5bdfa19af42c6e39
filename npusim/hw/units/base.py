"""What a cost model answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.units import cycles_to_ps

COMPUTE, MEMORY, LATENCY = "compute", "memory", "latency"


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that a unit is taken by one piece of work.

    ``cycles``: of the unit's clock, the sum of ``terms`` (name, cycles). ``ps``: the same in picoseconds. ``bound``: the
    kind of term that is the largest: ``compute``, ``memory`` or ``latency`` (set-up, filling, waiting for first data).
    """

    cycles: int
    ps: int
    terms: tuple[tuple[str, int], ...]
    bound: str


def total(hz: int, terms: Sequence[tuple[str, str, int]]) -> Cost:
    """A Cost from (name, kind, cycles) terms; of equally large kinds the first in compute, memory, latency binds."""
    cycles = sum(term[2] for term in terms)
    shares = [sum(term[2] for term in terms if term[1] == kind) for kind in (COMPUTE, MEMORY, LATENCY)]
    bound = (COMPUTE, MEMORY, LATENCY)[shares.index(max(shares))]
    return Cost(cycles, cycles_to_ps(cycles, hz), tuple((name, count) for name, _, count in terms if count), bound)


def beside(compute: int, traffic: int) -> list[tuple[str, str, int]]:
    """Terms of computing while ``traffic`` cycles of SRAM accesses go on: the longer of the two decides.

    If memory is the longer one, all of it is memory time: the unit only waits.
    """
    if traffic > compute:
        return [("sram", MEMORY, traffic)]
    return [("compute", COMPUTE, compute)]
