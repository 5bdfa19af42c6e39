"""How much each knob of a device moves a network; ``python -m bench.knobs`` writes ``docs/reference/knobs.md`` anew."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from bench.neighbours import KIB, MIB, Design, Timer, number, size_text
from bench.networks import network
from npusim.graph import Graph
from npusim.hw.config import Config, load_config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "knobs.md"
BASE = "edge"
NETWORKS = {
    "mobilenet_v2-int8": "int8 MobileNetV2, 224 x 224",
    "resnet50-int8": "int8 ResNet-50, 224 x 224",
    "bert-fp16": "float16 encoder of two BERT layers, 128 tokens of 256",
}
"""What is on the page, in words. All with a batch of one and random weights, which no time depends on."""


@dataclass(frozen=True)
class Knob:
    """A key of the config, what it is called, and its values with their labels."""

    key: str
    name: str
    values: Sequence[tuple[str, int]]


def knobs(base: Config) -> list[Knob]:
    """What the page turns, one at a time."""
    sizes = (128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB)
    counts = [(str(count), count) for count in (1, 2, 4, 8)]
    speeds = [(f"{times:g} x", int(base.dram.bandwidth * times)) for times in (0.25, 0.5, 1, 2, 4)]
    return [
        Knob("sram.bytes", "SRAM of a core", [(size_text(size), size) for size in sizes]),
        Knob("dma.channels", "DMA channels of a core", counts),
        Knob("cores", "cores, each with SRAM of its own", counts),
        Knob("dram.bandwidth", "bandwidth of the DRAM", speeds),
    ]


def page(timer: Timer, base: Config, graphs: Sequence[tuple[Graph, str]]) -> Iterator[str]:
    """The lines of the page."""
    yield "# How much each knob moves"
    yield ""
    yield "<!-- made by python -m bench.knobs -->"
    yield ""
    yield f"`{base.name}` with one key changed at a time; its own value is in bold. Time of an inference on the device,"
    yield "and what it moves to and from DRAM, without the host. What bounds a network at one point of a table need not"
    yield "bound it at the next: `npusim run` says what does, and `npusim explain --memory` where its values live."
    plain = base.to_table()
    for knob in knobs(base):
        section, _, key = knob.key.rpartition(".")
        own = (plain[section] if section else plain)[key]
        labels = [f"**{label}**" if value == own else label for label, value in knob.values]
        yield ""
        yield f"## `{knob.key}`: {knob.name}"
        yield ""
        yield f"| | {' | '.join(labels)} |"
        yield "|---|" + "---:|" * len(labels)
        for graph, words in graphs:
            designs = [timer.measure(graph, base.with_(**{knob.key: value}), label) for label, value in knob.values]
            yield f"| {words}: us | {' | '.join(_time(design) for design in designs)} |"
            yield f"| MB | {' | '.join(_traffic(design) for design in designs)} |"


def _time(design: Design) -> str:
    return number(design.time_ps and design.time_ps / 1e6)


def _traffic(design: Design) -> str:
    return number(design.time_ps and design.traffic / 1e6)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.knobs", description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(gettempdir()) / "npusim-networks", help="keeps the models")
    parser.add_argument("--write", type=Path, default=PAGE, metavar="FILE", help="default: %(default)s")
    options = parser.parse_args(arguments)
    graphs = [(network(name, options.models), words) for name, words in NETWORKS.items()]
    lines = page(Timer(), load_config(BASE), graphs)
    options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
