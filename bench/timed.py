"""What it takes to time a network on one design after the other, and what that would be the long way.

Run as ``python -m bench.timed``: CPU time of this process, and ratios of it within the run. The long way is that of a
program from a file, event by event: decoded, verified, and each thing that happens an event of the clock.
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
from npusim.runtime import Result, Session
from npusim.sim.machine import Machine
from npusim.validate.networks import NETWORKS

_T = TypeVar("_T")


def timed(work: Callable[[], _T]) -> tuple[float, _T]:
    """Seconds of CPU, and what came of it."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def run(config: Config, program: Program) -> tuple[float, Result]:
    """On a fresh device, so that nothing is known of the program there."""
    with Session(config, cache_dir=False) as session:
        return timed(lambda: session.run(program, timing_only=True))


def long_way(config: Config, program: Program) -> tuple[float, Result]:
    """The same of a program that nobody knows, with an event for each thing that happens."""
    with mock.patch.object(Machine, "_runner", lambda *_: None):
        return run(config, dataclasses.replace(program, emitted=None, code=bytes(bytearray(program.code)) + b""))


def designs(graph: Graph, base: Config, count: int) -> None:
    """Compile and time one after the other, the bandwidth of the DRAM varied."""
    for number in range(count):
        config = base.with_(**{"dram.bandwidth": base.dram.bandwidth * (count + number) // count})
        with Session(config, cache_dir=False) as session:
            compiling, program = timed(lambda session=session: session.compile(graph))  # type: ignore[misc]
        short, result = run(config, program)
        # The compiler's memory goes, and with it what is known of the stream.
        copied = dataclasses.replace(program, emitted=None)
        del program
        long, other = long_way(config, copied)
        assert result.timeline.digest() == other.timeline.digest()
        print(
            f"{config.dram.bandwidth / 1e9:7.2f} GB/s  {result.program.commands:6} instructions  compile {compiling:6.3f} s  "
            f"time {short:6.3f} s = {short / compiling:5.1%} of it, {long / short:5.1f} times as quick as the long way"
        )


def main() -> None:
    """A line for each design."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50_v1")
    parser.add_argument("--size", type=int, default=224, help="pixels along a side")
    parser.add_argument("--config", default="edge")
    parser.add_argument("--count", type=int, default=6, help="designs")
    args = parser.parse_args()
    designs(NETWORKS[args.network].make((1, args.size, args.size, 3)), load_config(args.config), args.count)


if __name__ == "__main__":
    main()
