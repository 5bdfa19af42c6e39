"""How long a command stream will take: the simulator's rules without its events, to compare what could be done.

Units take their commands in order and wait for counts, as on the device. DRAM serves one transfer after the other at
its bandwidth, in the order in which they begin, where the device shares it; queues have no end.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa.base import Command, Unit
from npusim.work import DmaWork

_Key = tuple[int, int]


class Forecast(NamedTuple):
    """What a command stream takes, about: picoseconds, and bytes past the pins of the DRAM."""

    ps: int
    dram_bytes: int


def forecast(commands: Sequence[Command], config: Config) -> Forecast:
    """The same for the same stream."""
    return _Forecaster(commands, config).run()


class _Forecaster:
    def __init__(self, commands: Sequence[Command], config: Config) -> None:
        self._model = cost_model(config)
        self._bandwidth = dram_model(config).bandwidth
        self._queues: dict[_Key, list[Command]] = {}
        for command in commands:
            if command.unit != Unit.CONTROL:
                self._queues.setdefault((command.core, command.unit), []).append(command)
        self._ends: dict[_Key, list[int]] = {key: [0] for key in self._queues}
        self._asleep: dict[_Key, list[_Key]] = {}
        """By unit: whose next command waits for it."""
        self._ready: list[tuple[int, _Key]] = []

    def run(self) -> Forecast:
        price, dram_bytes = self._model.cost, self._model.dram_bytes
        dram = traffic = 0
        for key in self._queues:
            self._look(key)
        while self._ready:
            start, key = heappop(self._ready)
            ends = self._ends[key]
            work = self._queues[key][len(ends) - 1].instruction.work()
            end = start + price(work).ps
            if isinstance(work, DmaWork) and (work.reads or work.writes):
                moved = dram_bytes(work)
                traffic += moved
                dram = max(dram, start) + moved * 10**12 // self._bandwidth
                end = max(end, dram)
            ends.append(end)
            self._look(key)
            for sleeper in self._asleep.pop(key, ()):
                self._look(sleeper)
        return Forecast(max((ends[-1] for ends in self._ends.values()), default=0), traffic)

    def _look(self, key: _Key) -> None:
        """Find out when a unit's next command begins, or what it waits for."""
        ends, queue = self._ends[key], self._queues[key]
        if len(ends) > len(queue):
            return
        start = ends[-1]
        for core, unit, count in queue[len(ends) - 1].waits:
            others = self._ends[core, unit]
            if len(others) <= count:
                self._asleep.setdefault((core, unit), []).append(key)
                return
            start = max(start, others[count])
        heappush(self._ready, (start, key))
