"""The memory-related part of a schedule, with groups and buffers instead of names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npusim.compiler.buffers import Buffer
from npusim.compiler.schedule.schedule import SCRATCHPAD, LayerCascade, TensorMemory


@dataclass(frozen=True, slots=True)
class CascadeRun:
    """Groups ``first`` to ``last``, with the constraints of ``cascade``. A run of one group is in no cascade."""

    first: int
    last: int
    cascade: LayerCascade


@dataclass(frozen=True, slots=True)
class MemoryChoices:
    """What a schedule says about cascades and memory areas. Its entries apply whatever is searched.

    ``operands_first``: whether constants that groups read unchanged come before packed weights.
    """

    search_cascades: bool = False
    search_areas: bool = True
    operands_first: bool = False
    runs: tuple[CascadeRun, ...] = ()
    areas: Mapping[Buffer, TensorMemory] = field(default_factory=dict)

    @property
    def cascade_runs(self) -> list[CascadeRun]:
        """The runs of several groups."""
        return [run for run in self.runs if run.first < run.last]

    @property
    def are_complete(self) -> bool:
        """Whether nothing is searched."""
        if self.search_cascades or self.search_areas or not all(run.cascade.is_complete for run in self.runs):
            return False
        return all(each.offset is not None for each in self.areas.values() if each.area == SCRATCHPAD)

    def is_in(self, buffer: Buffer, area: str) -> bool:
        """Whether the schedule puts a buffer into this memory area."""
        return buffer in self.areas and self.areas[buffer].area == area


OPEN = MemoryChoices(search_cascades=True)
"""Everything is searched."""
