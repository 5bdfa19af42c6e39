"""How long a command stream will take: the simulator's rules without its events, to compare what could be done.

Units take their commands in order and wait for counts, as on the device. DRAM serves one transfer after the other at
its bandwidth, in the order of the stream, where the device shares it; queues have no end.
"""

from __future__ import annotations

from collections.abc import Sequence

from npusim.hw.config import Config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa.base import Command, Unit
from npusim.work import DmaWork


def forecast(commands: Sequence[Command], config: Config, *, prologue: int = 0) -> int:
    """Picoseconds, about; the same for the same stream. The first ``prologue`` commands count as complete."""
    price = cost_model(config).cost
    bandwidth, transfer_bytes = dram_model(config).bandwidth, dram_model(config).transfer_bytes
    done: dict[tuple[int, int], list[int]] = {}
    dram = 0
    for number, command in enumerate(commands):
        if command.unit == Unit.CONTROL:
            continue
        key = (command.core, command.unit)
        ends = done.setdefault(key, [0])
        start = ends[-1]
        if number < prologue:
            ends.append(start)
            continue
        for core, unit, count in command.waits:
            start = max(start, done[core, unit][count])
        work = command.instruction.work()
        end = start + price(work).ps
        if isinstance(work, DmaWork) and (work.reads or work.writes):
            dram = max(dram, start) + transfer_bytes(work) * 10**12 // bandwidth
            end = max(end, dram)
        ends.append(end)
    return max((ends[-1] for ends in done.values()), default=0)
