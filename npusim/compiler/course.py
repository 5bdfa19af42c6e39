"""When units will be free, as far as a command stream has come: for whoever has to choose one of them.

Units take their commands in order and wait for counts, as on the device. DRAM serves one transfer after the other at
its bandwidth, in the order of the stream; the stream itself comes before all of them. What a whole stream takes, the
forecast knows better, which can look ahead.
"""

from __future__ import annotations

from collections.abc import Iterable

from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa.base import Command
from npusim.work import DmaWork, Work

Key = int
"""core << 8 | unit."""


class Course:
    """When the commands of a stream will be over, in picoseconds; each is told in the order of the stream."""

    def __init__(self, config: Config) -> None:
        self._price = cost_model(config).cost
        self._bandwidth, self._transfer_bytes = dram_model(config).bandwidth, dram_model(config).transfer_bytes
        self._depth, self._cycle = config.queue_depth, 10**12 // config.clock_hz
        self._done: dict[Key, list[int]] = {}
        self._costs: dict[Work, tuple[int, int]] = {}
        self._dram = self._dispatched = 0

    def free(self, key: Key) -> int:
        """When a unit has done all that it has been told."""
        return self._done.get(key, _BEGIN)[-1]

    def ready(self, waits: Iterable[tuple[Key, int]]) -> int:
        """When units have completed so many commands."""
        return max((self._done[key][count] for key, count in waits if count), default=0)

    def add(self, command: Command, ready: int) -> None:
        """One more command, which may begin at a time, but not before."""
        key, work = command.core << 8 | command.unit, command.instruction.asked()
        ends = self._done.setdefault(key, [0])
        # A full queue holds up the stream, until the unit has taken another command: all behind this one come later.
        fetched = command.size * 10**12 // self._bandwidth
        self._dram += fetched
        self._dispatched += max(self._cycle, fetched)
        if len(ends) - 1 > self._depth:
            self._dispatched = max(self._dispatched, ends[-1 - self._depth])
        cost = self._costs.get(work)
        if cost is None:
            cost = self._costs[work] = self._price(work).ps, self._dram_ps(work)
        start = max(ends[-1], ready, self._dispatched)
        end = start + cost[0]
        if cost[1] >= 0:
            self._dram = max(self._dram, start) + cost[1]
            end = max(end, self._dram)
        ends.append(end)

    def _dram_ps(self, work: Work) -> int:
        """How long the DRAM serves a command; -1 if it has nothing to do with it."""
        if not isinstance(work, DmaWork) or not (work.reads or work.writes):
            return -1
        return self._transfer_bytes(work) * 10**12 // self._bandwidth

    def forget_time(self) -> None:
        """What was told so far takes none: in most inferences it is left out."""
        for ends in self._done.values():
            ends[:] = [0] * len(ends)
        self._dram = self._dispatched = 0


_BEGIN = (0,)
