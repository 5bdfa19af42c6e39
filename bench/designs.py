"""The time to compile and simulate designs of one network: the first one, and later ones.

Run as ``python -m bench.designs``; ``--network``, ``--count``. Designs vary the same keys as a study: rows and columns
of the array, SRAM, bandwidth and channels. Each is compiled and run as in a study, with a prepared graph and all
figures including energy. All times are process time, relative to that of the Python reference of the tile search on the
same problems, so that results of two hosts can be compared. Seconds are printed as well.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import time
from collections.abc import Iterator
from unittest import mock

from npusim._core import DefaultFloats
from npusim.compiler.pipeline import compile_graph, uncollected
from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.explore.evaluate import figures_of
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from npusim.timing import tile
from npusim.timing.tile_problem import Tiling
from npusim.validate.networks import NETWORKS
from tests.support import tile_definition

ROWS = (16, 24, 32, 48, 64)
SRAM = (512, 768, 1024, 1536, 2048)
BANDWIDTH = (4, 8, 12, 17, 24)
CHANNELS = (1, 2, 3, 4)


def designs(count: int, seed: int = 1) -> Iterator[Config]:
    """Variants of ``edge``, the same in every run."""
    draw, base = random.Random(seed), load_config("edge")
    for _ in range(count):
        yield base.with_(
            **{
                "matrix.rows": draw.choice(ROWS), "matrix.cols": draw.choice(ROWS),
                "sram.bytes": f"{draw.choice(SRAM)} KiB", "dram.bandwidth": f"{draw.choice(BANDWIDTH)} GB/s",
                "dma.channels": draw.choice(CHANNELS),
            }
        )  # fmt: skip


class Searches:
    """Records the tile searches of a run, with devices and budgets."""

    def __init__(self) -> None:
        self.asked: dict[tuple[tile.Tilings, int], None] = {}
        choose = tile.Tilings.choose

        def noted(tilings: tile.Tilings, budget: int) -> Tiling | None:
            self.asked[tilings, budget] = None
            return choose(tilings, budget)

        self._patch = mock.patch.object(tile.Tilings, "choose", noted)

    def __enter__(self) -> Searches:
        self._patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._patch.stop()

    def slowly(self) -> float:
        """Seconds of the reference implementation for all recorded searches."""
        start = time.process_time()
        for tilings, budget in self.asked:
            tile_definition.choose(tilings._problem, tilings._config, budget)
        return time.process_time() - start


def main() -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50_v1")
    parser.add_argument("--count", type=int, default=20, help="designs")
    chosen = parser.parse_args()
    graph = NETWORKS[chosen.network].make((1, 224, 224, 3))
    settled, compiling, running, searches = PreparedGraph(graph), [], [], Searches()
    for number, config in enumerate(designs(chosen.count)):
        # A study does not collect garbage while programs and timelines are alive.
        with uncollected():
            with searches if number == 0 else contextlib.nullcontext():
                start = time.process_time()
                with DefaultFloats():
                    program = compile_graph(settled, config, f"bench-{config.fingerprint()}")
                compiled = time.process_time()
            with Session(config, cache_dir=False) as session:
                figures_of(chosen.network, session.run(program, timing_only=True))
            del program
        compiling.append(compiled - start)
        running.append(time.process_time() - compiled)
    unit = searches.slowly()
    print(
        f"{chosen.network}, {chosen.count} designs; 1.00 = the first one's tilings, searched by their definition: "
        f"{unit:.2f} s"
    )
    later = max(1, len(compiling) - 1)
    for name, first, rest in (
        ("compile", compiling[0], sum(compiling[1:]) / later), ("time", running[0], sum(running[1:]) / later),
        ("both", compiling[0] + running[0], (sum(compiling[1:]) + sum(running[1:])) / later),
    ):  # fmt: skip
        print(f"{name:8} first {first / unit:5.2f} ({first:.2f} s)   later, mean {rest / unit:5.2f} ({rest:.2f} s)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
