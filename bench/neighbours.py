"""Checks that more hardware is not slower: SRAM, DMA channels, cores, DRAM bandwidth, one step at a time.

Run as ``python -m bench.neighbours``. Each network is compiled and timed without arithmetic for each value of a knob.
Pairs of neighbouring values are reported if the larger one is slower by more than the limit. ``--suite`` covers more
devices and networks, about 600 pairs. ``--write`` writes a table of all of them. ``--keep`` stores each timed design,
so that the same sources do not time it again. Exit code 1 if there is such a pair.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir

import npusim
from bench.networks import NETWORKS, PUBLIC, network
from npusim.compiler.pipeline import compile_graph
from npusim.errors import CompileError, ConfigError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.runtime import Session
from npusim.timing.forecast import forecast

KIB, MIB = 1 << 10, 1 << 20
LIMIT = 0.005
"""Allowed slowdown as a fraction: the error of the estimates of the compiler."""
SRAM = (
    *(size * KIB for size in (64, 96, 128, 192, 256, 384, 512, 768)),
    *(size * MIB // 2 for size in (2, 3, 4, 6, 8, 12, 16, 32)),
)
COUNTS = range(1, 9)
TIMES = ("1/4", "1/2", "1", "2", "4", "8")
"""Factors of the bandwidth of the config."""
ARRAYS = (8, 16, 32, 64, 128)
LANES = (8, 16, 32, 64, 128)
DEVICES = ("edge", "mobile", "server")
SUITE = {
    "edge": ("mobilenet_v2-int8", "resnet50-int8", "bert-fp16", "yolo-int8", "densenet", "inception_v1"),
    "mobile": ("mobilenet_v2-int8", "resnet50-int8", "bert-fp16", "yolo-fp16"),
    "ethos_u65_256": ("mobilenet_v2-int8", "resnet50-int8", "yolo-int8", "efficientnet_edgetpu_s"),
    "edge_tpu": ("densenet", "mobilenet_v1", "squeezenet"),
    "rk3588_core": ("yolov5s", "mobilenet_v2"),
    "server": ("resnet50-int8", "bert-fp16", "prefill-fp16"),
}
"""Devices, and the networks to time on each."""


@dataclass(frozen=True)
class Design:
    """A device, made from a config by one key, and the time of a network on it; None if the network does not fit."""

    label: str
    time_ps: int | None = None
    traffic: int = 0
    forecast_ps: int = 0
    """The forecast of the compiler; 0 if there is none for this inference."""


@dataclass
class Walk:
    """One network on one config along one knob."""

    network: str
    config: str
    knob: str
    designs: list[Design] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[Design, Design, float]]:
        """Neighbouring designs that both fit: (smaller, larger, relative slowdown of the larger)."""
        for less, more in pairwise(design for design in self.designs if design.time_ps is not None):
            assert less.time_ps is not None
            assert more.time_ps is not None
            yield less, more, more.time_ps / less.time_ps - 1

    def lost(self) -> Iterator[str]:
        """Designs that do not fit although a smaller one does."""
        works = False
        for design in self.designs:
            if works and design.time_ps is None:
                yield f"{self.network} on {self.config}, {self.knob}: {design.label} does not compile, less does"
            works = works or design.time_ps is not None


def size_text(size: int) -> str:
    """A power of two of bytes as text."""
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size // KIB} KiB"


def values(knob: str, config: Config) -> list[tuple[str, int]]:
    """(label, value) of the steps of a knob, smallest first."""
    match knob:
        case "sram.bytes":
            return [(size_text(size), size) for size in SRAM]
        case "array":
            return [(f"{size} x {size}", size) for size in ARRAYS]
        case "vector.lanes":
            return [(str(count), count) for count in LANES]
        case "dram.bandwidth":
            found = []
            for text in TIMES:
                up, _, down = text.partition("/")
                found.append((f"{text} x", config.dram.bandwidth * int(up) // int(down or 1)))
            return found
        case _:
            return [(str(count), count) for count in COUNTS]


KNOBS = ("sram.bytes", "dma.channels", "cores", "dram.bandwidth")
OTHERS = ("array", "vector.lanes")
"""Knobs for which more may be slower: a larger array takes longer to fill."""


def sources() -> str:
    """A digest of the package, because times of one version are not valid for another."""
    state = hashlib.sha256()
    root = Path(npusim.__file__).parent
    for path in sorted(path for path in root.rglob("*.py*") if path.suffix in (".py", ".pyx")):
        state.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return state.hexdigest()[:16]


class Timer:
    """Compiles and times networks, each design once. ``keep``: a file of known designs, one line of JSON each."""

    def __init__(self, keep: Path | None = None) -> None:
        self._known: dict[tuple[str, str], Design] = {}
        self._keep, self._sources = keep, sources() if keep else ""
        self.designs = 0
        for line in keep.read_text("utf-8").splitlines() if keep and keep.exists() else ():
            row = json.loads(line)
            if row["sources"] == self._sources:
                self._known[row["network"], row["device"]] = Design(**row["design"])

    def measure(self, graph: Graph, config: Config, label: str) -> Design:
        """The time of a network on a device."""
        key = (graph.name, config.fingerprint())
        if key not in self._known:
            self.designs += 1
            self._known[key] = self._measure(graph, config, label)
            if self._keep:
                row = {
                    "sources": self._sources,
                    "network": key[0],
                    "device": key[1],
                    "design": asdict(self._known[key]),
                }
                with self._keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        known = self._known[key]
        return replace(known, label=label)

    def _measure(self, graph: Graph, config: Config, label: str) -> Design:
        try:
            program = compile_graph(graph, config)
        except CompileError:
            return Design(label, None)
        session = Session(config, cache_dir=False)
        result = session.run(program, timing_only=True)
        if program.resident_bytes:  # the second inference finds its weights in SRAM
            result = session.run(program, timing_only=True)
        session.close()
        # A forecast covers the whole stream, which only the first inference executes if weights are pinned.
        thought = 0 if program.resident_bytes else forecast(list(decode(program.code)), config)
        return Design(label, result.time_ps, result.dram_read_bytes + result.dram_write_bytes, thought)


def walk(timer: Timer, graph: Graph, config: Config, knob: str) -> Walk:
    """A network with all values of a knob."""
    found = Walk(graph.name, config.name, knob)
    for label, value in values(knob, config):
        try:
            design = config.with_(
                **({"matrix.rows": value, "matrix.cols": value} if knob == "array" else {knob: value})
            )
        except ConfigError:
            continue  # for example more banks than bytes, or more SRAM than the device can address
        found.designs.append(timer.measure(graph, design, label))
    return found


def slower(walks: Sequence[Walk], limit: float) -> list[str]:
    """A line for each pair in which more is slower than the limit allows, worst first."""
    found = [
        (more_by, f"{walk.network:18} {walk.config:13} {walk.knob:15} {less.label:>8} -> {more.label:8} {more_by:+8.2%}"
                  f"  {(less.time_ps or 0) / 1e6:12.1f} -> {(more.time_ps or 0) / 1e6:10.1f} us"
                  f"  {less.traffic / 1e6:8.2f} -> {more.traffic / 1e6:8.2f} MB")
        for walk in walks for less, more, more_by in walk.pairs() if more_by > limit
    ]  # fmt: skip
    return [line for _, line in sorted(found, key=lambda each: -each[0])]


def table(walks: Sequence[Walk]) -> str:
    """A Markdown table with time and traffic of each walk."""
    lines: list[str] = []
    for one in walks:
        lines += [
            f"### {one.network} on {one.config}: {one.knob}",
            "",
            "| | " + " | ".join(design.label for design in one.designs) + " |",
            "|---|" + "---:|" * len(one.designs),
            "| us | " + " | ".join(number(d.time_ps and d.time_ps / 1e6) for d in one.designs) + " |",
            "| MB | " + " | ".join(number(d.time_ps and d.traffic / 1e6) for d in one.designs) + " |",
            "",
        ]
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Four digits, or a dash if unknown."""
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def summary(walks: Sequence[Walk], limit: float) -> str:
    """The number of pairs, and those that exceed the limit."""
    count = sum(1 for walk in walks for _ in walk.pairs())
    bad, lost = slower(walks, limit), [line for walk in walks for line in walk.lost()]
    head = f"{count} neighbouring pairs, {len(bad)} slower by more than {limit:.1%}, {len(lost)} lost"
    off = sorted(d.forecast_ps / d.time_ps - 1 for walk in walks for d in walk.designs if d.time_ps and d.forecast_ps)
    if off:
        head += f"; forecasts are off by {off[0]:+.1%} to {off[-1]:+.1%}, {off[len(off) // 2]:+.1%} in the middle"
    return "\n".join([head, *bad, *lost])


def main(arguments: Sequence[str] | None = None) -> int:
    """Walk all knobs, print slower pairs, write the tables. Returns 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m bench.neighbours", description=__doc__)
    parser.add_argument(
        "--network", choices=[*NETWORKS, *PUBLIC], action="append", help="only this network; may be repeated"
    )
    parser.add_argument("--config", action="append", help="a device to start from; may be repeated")
    parser.add_argument("--knob", choices=[*KNOBS, *OTHERS], action="append", help="only this knob; may be repeated")
    parser.add_argument("--suite", action="store_true", help="some networks on each of many devices")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="file of known designs")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, help="allowed slowdown, a fraction (default: %(default)s)"
    )
    parser.add_argument(
        "--models", type=Path, default=Path(gettempdir()) / "npusim-networks", help="folder of the models"
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the result there, after every walk")
    options = parser.parse_args(arguments)
    timer, walks = Timer(options.keep), []
    begun = time.process_time()
    for config in [load_config(name) for name in options.config or (SUITE if options.suite else DEVICES)]:
        for name in options.network or (SUITE.get(config.name, ()) if options.suite else NETWORKS):
            graph = network(name, options.models)
            for knob in options.knob or KNOBS:
                one = walk(timer, graph, config, knob)
                walks.append(one)
                times = " ".join(number(d.time_ps and d.time_ps / 1e6) for d in one.designs)
                print(f"{time.process_time() - begun:7.0f} s {one.network} {one.config} {knob}: {times}", flush=True)
                for line in (*slower([one], options.limit), *one.lost()):
                    print(f"    {line}", flush=True)
                if options.write:
                    text = f"{summary(walks, options.limit)}\n\n{table(walks)}"
                    options.write.write_text(text, encoding="utf-8")
    print(summary(walks, options.limit))
    return int(any(True for _ in slower(walks, options.limit)) or any(True for one in walks for _ in one.lost()))


if __name__ == "__main__":
    raise SystemExit(main())
