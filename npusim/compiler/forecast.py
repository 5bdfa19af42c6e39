"""How long a command stream will take: the simulator's rules without its events, to compare what could be done.

Units take their commands in order and wait for counts, as on the device. DRAM serves one transfer after the other at
its bandwidth, in the order in which they begin, where the device shares it; queues have no end.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa.base import Command, Unit
from npusim.work import DmaWork

_Key = tuple[int, int]


def forecast(commands: Sequence[Command], config: Config) -> int:
    """Picoseconds, about; the same for the same stream."""
    price = cost_model(config).cost
    bandwidth, transfer_bytes = dram_model(config).bandwidth, dram_model(config).transfer_bytes
    queues: dict[_Key, list[Command]] = {}
    for command in commands:
        if command.unit != Unit.CONTROL:
            queues.setdefault((command.core, command.unit), []).append(command)
    ends: dict[_Key, list[int]] = {key: [0] for key in queues}
    asleep: dict[_Key, list[tuple[int, _Key]]] = {}
    """By unit: (how many of its commands must be over, whose next command waits for that)."""
    ready: list[tuple[int, _Key]] = []
    dram = 0

    def look(key: _Key) -> None:
        """Find out when a unit's next command begins, or what it waits for."""
        done = ends[key]
        queue = queues[key]
        if len(done) > len(queue):
            return
        start = done[-1]
        for core, unit, count in queue[len(done) - 1].waits:
            others = ends[core, unit]
            if len(others) <= count:
                asleep.setdefault((core, unit), []).append((count, key))
                return
            start = max(start, others[count])
        heappush(ready, (start, key))

    for key in queues:
        look(key)
    while ready:
        start, key = heappop(ready)
        work = queues[key][len(ends[key]) - 1].instruction.work()
        end = start + price(work).ps
        if isinstance(work, DmaWork) and (work.reads or work.writes):
            dram = max(dram, start) + transfer_bytes(work) * 10**12 // bandwidth
            end = max(end, dram)
        ends[key].append(end)
        look(key)
        waiting = asleep.pop(key, ())
        still = []
        for count, sleeper in waiting:
            if len(ends[key]) > count:
                look(sleeper)
            else:
                still.append((count, sleeper))
        if still:
            asleep.setdefault(key, []).extend(still)
    return max((done[-1] for done in ends.values()), default=0)
