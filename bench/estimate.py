"""The number of designs estimated and simulated per second, and the agreement of both.

Run as ``python -m bench.estimate``: int8 ResNet-50 on ``edge`` over array, SRAM, bandwidth and channels.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from itertools import product

import numpy as np

from npusim.explore.estimate import Estimator
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from npusim.validate.networks import NETWORKS

Design = dict[str, object]

SPACE: dict[str, Sequence[object]] = {
    "matrix.rows": (8, 16, 32, 64, 128),
    "matrix.cols": (8, 16, 32, 64, 128),
    "sram.bytes": ("256 KiB", "512 KiB", "1 MiB", "2 MiB"),
    "dram.bandwidth": ("4 GB/s", "8 GB/s", "16 GB/s", "32 GB/s"),
    "dma.channels": (1, 2, 4),
}


def space(seed: int) -> list[Design]:
    """All designs, in a random order determined by the seed."""
    designs: list[Design] = [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
    random.Random(seed).shuffle(designs)
    return designs


def estimated(estimator: Estimator, designs: Sequence[Design]) -> tuple[np.ndarray, float]:
    """(picoseconds of each design, CPU seconds) of one pass."""
    columns = {key: [design[key] for design in designs] for key in designs[0]}
    begin = time.process_time()
    found = estimator.estimate(columns)
    return found.time_ps, time.process_time() - begin


def simulated(graph: Graph, base: Config, designs: Sequence[Design]) -> tuple[np.ndarray, float]:
    """The same, compiled and simulated without arithmetic."""
    times, begin = [], time.process_time()
    for design in designs:
        session = Session(base.with_(**design), cache_dir=False)
        times.append(session.run(session.compile(graph), timing_only=True).time_ps)
    return np.array(times, np.float64), time.process_time() - begin


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def main() -> None:
    """Print both rates and the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50_v1", choices=sorted(NETWORKS))
    parser.add_argument("--designs", type=int, default=1200, help="number of estimated designs")
    parser.add_argument("--simulate", type=int, default=20, help="number of simulated designs")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    graph, base = NETWORKS[given.network].make((1, 224, 224, 3)), load_config("edge")
    designs = space(given.seed)[: given.designs]
    begin = time.process_time()
    estimator = Estimator(graph, base)
    print(f"prepared in {time.process_time() - begin:.2f} s")
    for label in ("first", "again"):
        guessed, seconds = estimated(estimator, designs)
        print(f"{label}: {len(designs)} designs, {len(designs) / seconds:.0f} a second")
    if not given.simulate:
        return
    true, took = simulated(graph, base, designs[: given.simulate])
    ratio = (took / given.simulate) / (seconds / len(designs))
    errors = guessed[: given.simulate] / true - 1
    print(f"simulated: {given.simulate / took:.2f} designs a second; an estimate takes one part in {ratio:.0f} of that")
    rank = spearman(guessed[: given.simulate], true)
    print(f"Spearman {rank:.4f}, off by {100 * np.abs(errors).mean():.1f} % on average,")
    print(f"between {100 * errors.min():+.1f} and {100 * errors.max():+.1f} %")


if __name__ == "__main__":
    main()
