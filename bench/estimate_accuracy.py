"""Estimates against simulations: errors of time and traffic, and rank correlation, for eight networks.

Run as ``python -m bench.estimate_accuracy``. Each network gets ``--designs`` seeded variants of ``edge`` over array,
lanes, SRAM, bandwidth, channels, cores and L2. ``--cache`` keeps simulated results in a JSON file.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import CompileError
from npusim.explore.estimate import Estimator
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from npusim.validate.networks import NETWORKS
from npusim.validate.networks.build import Net
from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.transformers import BertSizes, GptSizes, bert, gelu_erf, gpt, layer_norm
from tests.support.onnx_models.transformers import _self_attention as self_attention

Design = dict[str, Any]
KIB, MIB = 1 << 10, 1 << 20


def ds_cnn() -> Graph:
    """The depthwise separable network for keyword spotting of MLPerf Tiny."""
    net = Net("ds_cnn")
    x = net.conv(net.input(1, 49, 10, 1), 64, (10, 4), (2, 2))
    for _ in range(4):
        x = net.conv(net.depthwise(x, 3, 1), 64)
    return net.finish(net.softmax(net.dense(net.mean(x), 12)))


def small_bert() -> Graph:
    """A BERT encoder with two layers."""
    return load(bert(BertSizes(layers=2, hidden=128, heads=2, sequence=128, intermediate=512, vocabulary=1000)))


def vit() -> Graph:
    """Patches of an image, two encoder blocks and a classifier."""
    sizes = BertSizes(layers=2, hidden=192, heads=3, sequence=196, intermediate=768)
    build = ModelBuilder("vit")
    x = build.conv(build.input("image", (1, 3, 224, 224)), 3, sizes.hidden, 16, stride=16)
    x = build.op("Transpose", build.op("Reshape", x, build.ints(1, sizes.hidden, 196)), perm=[0, 2, 1])
    mask = build.scalar(0.0)
    for _ in range(sizes.layers):
        y = layer_norm(build, x, sizes.hidden, fused=True)
        y = build.linear(self_attention(build, y, sizes, mask), sizes.hidden, sizes.hidden)
        x = build.op("Add", x, y)
        y = layer_norm(build, x, sizes.hidden, fused=True)
        y = gelu_erf(build, build.linear(y, sizes.hidden, sizes.intermediate))
        x = build.op("Add", x, build.linear(y, sizes.intermediate, sizes.hidden))
    x = build.op("ReduceMean", layer_norm(build, x, sizes.hidden, fused=True), axes=[1], keepdims=0)
    return load(build.finish([build.linear(x, sizes.hidden, 1000)]))


def _network(name: str) -> Callable[[], Graph]:
    return lambda: NETWORKS[name].make((1, 224, 224, 3))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "squeezenet": _network("squeezenet"),
    "inception_v1": _network("inception_v1"),
    "resnet50_v1": _network("resnet50_v1"),
    "mobilenet_v2": _network("mobilenet_v2"),
    "ds_cnn": ds_cnn,
    "bert": small_bert,
    "vit": vit,
    "transformer": lambda: load(gpt(GptSizes(layers=1, hidden=64, heads=4, sequence=32))),
}


def draw(seed: int, count: int, *, single: bool) -> list[Design]:
    """Seeded designs. ``single``: with one core and without an L2."""
    rng = random.Random(seed)
    found: list[Design] = []
    for _ in range(count):
        design: Design = {
            "matrix.rows": rng.choice((8, 12, 16, 24, 32, 48, 64, 96, 128)),
            "matrix.cols": rng.choice((8, 12, 16, 24, 32, 48, 64, 96, 128)),
            "vector.lanes": rng.choice((8, 16, 32, 64, 128)),
            "sram.bytes": rng.choice((48, 64, 96, 128, 256, 512, 1024, 2048, 4096)) * KIB,
            "dram.bandwidth": f"{rng.choice((2, 4, 8, 12, 17, 24, 32, 64))} GB/s",
            "dma.channels": rng.choice((1, 2, 3, 4)),
        }
        cores, l2 = rng.choice((1, 2, 3, 4)), rng.choice((0, 256, 512, 1024, 2048)) * KIB
        if not single:
            design["cores"] = cores
            if l2:
                design["l2"] = {"bytes": l2, "bytes_per_cycle": 64, "latency_cycles": 20}
        found.append(design)
    return found


def simulate(graph: Graph, config: Config) -> list[float] | None:
    """Picoseconds, and bytes over the DRAM pins; None if the network does not fit."""
    with Session(config, cache_dir=False) as session:
        try:
            result = session.run(session.compile(graph), timing_only=True)
        except CompileError:
            return None
    return [result.time_ps, result.dram_read_bytes + result.dram_write_bytes]


def spearman(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def measure(graph: Graph, designs: list[Design], key: str, known: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(designs, estimated, simulated) of the designs that both can evaluate: arrays of [designs][time, traffic]."""
    base = load_config("edge")
    estimator = Estimator(graph, base)
    kept, guessed, true = [], [], []
    for design in designs:
        name = f"{key} {json.dumps(design, sort_keys=True)}"
        if name not in known:
            known[name] = simulate(graph, base.with_(**design))
        found = estimator.estimate({each: [value] for each, value in design.items()})
        if known[name] is None or not found.fits[0]:
            if (known[name] is None) == bool(found.fits[0]):
                print("  fits:", bool(found.fits[0]), known[name], name)
            continue
        kept.append(design)
        guessed.append([found.time_ps[0], found.dram_bytes[0]])
        true.append(known[name])
    return kept, np.array(guessed), np.array(true)


def report(label: str, guessed: Any, true: Any) -> None:
    """Print errors and rank correlation."""
    errors = guessed / true - 1
    means, worst = 100 * np.abs(errors).mean(0), 100 * errors[np.abs(errors).argmax(0), [0, 1]]
    print(
        f"{label:24} time {means[0]:5.1f} % (worst {worst[0]:+6.1f})"
        f"  traffic {means[1]:5.1f} % (worst {worst[1]:+6.1f})"
        f"  Spearman {spearman(guessed[:, 0], true[:, 0]):.4f}  bias {100 * errors[:, 0].mean():+5.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--designs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--network", action="append", choices=sorted(GRAPHS))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    known: dict[str, Any] = json.loads(given.cache.read_text()) if given.cache and given.cache.exists() else {}
    for name in given.network or GRAPHS:
        begin = time.process_time()
        graph = GRAPHS[name]()
        for single in (True, False):
            kept, guessed, true = measure(graph, draw(given.seed, given.designs, single=single), name, known)
            report(f"{name} {'one core' if single else 'cores, L2'}", guessed, true)
            for design, (g, gb), (t, tb) in zip(kept, guessed, true, strict=True) if given.verbose else ():
                print(f"   {100 * (g / t - 1):+6.1f} {100 * (gb / tb - 1):+6.1f}  {t / 1e6:9.1f} us {design}")
            if given.cache:
                given.cache.write_text(json.dumps(known))
        print(f"  {time.process_time() - begin:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
