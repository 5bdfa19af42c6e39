"""The time to compile and time a network on several designs, compared with the slow path.

Run as ``python -m bench.timed``: CPU time of this process, and ratios within the run. The slow path is that of a
program from a file, event by event: decoded, verified, with each action an event of the clock.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.program import Program
from npusim.runtime import Session
from npusim.sim.machine import Machine
from npusim.validate.networks import NETWORKS

_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[float, _T]:
    """(CPU seconds, result) of a call."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def run(config: Config, program: Program) -> tuple[float, str]:
    """(time of a run, its digest) on a fresh device without cached data of the program."""
    with Session(config, cache_dir=False) as session:
        seconds, result = timed(lambda: session.run(program, timing_only=True))
        return seconds, result.timeline.digest()


def long_way(config: Config, program: Program) -> tuple[float, str]:
    """The same, event by event."""
    with mock.patch.object(Machine, "_fast_forward", return_value=None):
        return run(config, program)


def design(graph: Graph, config: Config) -> str:
    """Compile for one design and time the run."""
    with Session(config, cache_dir=False) as session:
        compiling, program = timed(lambda: session.compile(graph))
    short, seen = run(config, program)
    # Cached data belong to a program, so a copy has none.
    copied = dataclasses.replace(program, emitted=None)
    del program
    long, wanted = long_way(config, copied)
    if seen != wanted:
        raise SystemExit(f"{config.dram.bandwidth} bytes/s: the two ways differ")
    return (
        f"{config.dram.bandwidth / 1e9:7.2f} GB/s  {copied.commands:6} instructions  compiled in {compiling:.3f} s, "
        f"timed in {short:.3f} s: {short / compiling:.1%} of that, the long way takes {long / short:.1f} times as long"
    )


def main() -> None:
    """Print a line per design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50_v1")
    parser.add_argument("--size", type=int, default=224, help="pixels along a side")
    parser.add_argument("--config", default="edge")
    parser.add_argument("--count", type=int, default=6, help="designs")
    args = parser.parse_args()
    graph, base = NETWORKS[args.network].make((1, args.size, args.size, 3)), load_config(args.config)
    for number in range(args.count):
        bandwidth = base.dram.bandwidth * (args.count + number) // (2 * args.count)
        print(design(graph, base.with_(**{"dram.bandwidth": bandwidth})))


if __name__ == "__main__":
    main()
