"""DRAM bursts that the bank model processes per second of host time, on one thread.

Run as ``python -m bench.dram``. Streams are periodic and mostly skipped; bursts at random addresses are served one by
one. Exit code 1 if a stream of 1 GiB is slower than 20 million bursts per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from npusim.hw.dram._memory import READS, WRITES, DramMemory
from npusim.hw.dram_parts import PARTS

GIB = 1 << 30
LEAST = 20e6
"""Required bursts per second of host time, for streams."""
MEMORIES = {
    "DDR4-3200, 1 channel": DramMemory(PARTS["DDR4_3200AA"]),
    "LPDDR5-6400, 4 channels": DramMemory(PARTS["LPDDR5_6400"], channels=4),
    "HBM2 2 Gb/s, 8 channels": DramMemory(PARTS["HBM2_8Gb_x128"], channels=8, mapping="rorabgbachco"),
}


class Row(NamedTuple):
    """A pattern on a memory. ``least``: required bursts per second; 0: none."""

    memory: str
    pattern: str
    bursts: int
    seconds: float
    least: float

    @property
    def rate(self) -> float:
        """Bursts per second of host time."""
        return self.bursts / self.seconds

    def __str__(self) -> str:
        verdict = "" if self.rate >= self.least else f"  MISSED: {self.least / 1e6:.0f} wanted"
        return f"{self.memory:26} {self.pattern:24} {self.seconds * 1e3:9.2f} ms {self.rate / 1e6:12.1f} M/s{verdict}"


def best_of(repeat: int, action: Callable[[], object]) -> float:
    """Seconds of the fastest of several calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def rows(repeat: int) -> list[Row]:
    """Measure every memory and pattern."""
    found = []
    for name, memory in MEMORIES.items():
        whole = GIB >> memory.unit
        for label, mode in (("read of 1 GiB", READS), ("write of 1 GiB", WRITES)):
            seconds = best_of(repeat, partial(memory.transfer, 1, whole, whole, mode, 64))
            found.append(Row(name, label, whole, seconds, LEAST))
        tile, pitch = 1024 >> memory.unit, 4096 >> memory.unit
        lines = (1 << 24) // 1024
        seconds = best_of(repeat, partial(memory.transfer, lines, tile, pitch, READS, 64))
        found.append(Row(name, "1 KiB lines, 16 MiB", lines * tile, seconds, 0))
        count = 100_000
        places = np.random.default_rng(1).integers(0, memory.bytes >> memory.unit, count, np.int64) << memory.unit + 1
        seconds = best_of(repeat, partial(memory.serve, places, 64))
        found.append(Row(name, "bursts anywhere", count, seconds, 0))
    return found


def main() -> int:
    """Print the table. Returns 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="number of runs, of which the fastest counts")
    table = rows(parser.parse_args().repeat)
    for row in table:
        print(row)
    return int(any(row.rate < row.least for row in table))


if __name__ == "__main__":
    raise SystemExit(main())
