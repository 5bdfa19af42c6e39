"""Keys of a description that simulations follow and estimates do not.

Run as ``python -m bench.silent_keys``. For six graphs and three variants of ``edge``, each key takes other values.
Where the simulated time moves by more than 1 %, the estimate must move by half to twice as much, or ``unseen``, which a
study prints, must name the key. A key that is neither followed nor named is silent: there must be none.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

from npusim.errors import CompileError, ConfigError
from npusim.explore.estimate import Estimator
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.runtime import Session
from npusim.validate.networks.build import Net
from tests.support.config_variants import other_values, timing_keys
from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.transformers import GptSizes, gpt

EDGE = load_config("edge")
BASES = {
    "edge": EDGE,
    "no values in SRAM": EDGE.with_(**{"compiler.keeps_values": False}),
    "all sections": EDGE.with_(
        **{
            "cores": 2, "sram.bytes": "128 KiB", "l2": {"bytes": 256 << 10}, "exchange": {"bytes_per_cycle": 32},
            "constants": {"bytes": 64 << 20, "bandwidth": "8 GB/s", "latency": "100 ns"},
        }
    ),
}  # fmt: skip


def concat() -> Graph:
    """Return two branches of convolutions whose results are concatenated."""
    net = Net("concat")
    x = net.conv(net.input(1, 32, 32, 16), 32, (3, 3))
    return net.finish(net.conv(net.concat(net.conv(x, 32, (3, 3)), net.conv(x, 32)), 32))


def top_k() -> Graph:
    """Return a classifier that ends with its largest values."""
    build = ModelBuilder("top_k")
    x = build.linear(build.input("x", (64, 256)), 256, 1000)
    return load(build.finish(build.multi("TopK", 2, x, build.ints(8))))


def dynamic_quantisation() -> Graph:
    """Return integer products whose scales are found at run time."""
    build = ModelBuilder("dynamic")
    x = build.input("x", (64, 256))
    for _ in range(2):
        q, scale, zero = build.multi("DynamicQuantizeLinear", 3, x)
        w = build.const((build.rng.integers(-127, 128, (256, 256))).astype("int8"))
        product = build.op("Cast", build.op("MatMulInteger", q, w, zero), to=1)
        x = build.op("Relu", build.op("Mul", product, build.op("Mul", scale, build.scalar(0.01))))
    return load(build.finish([x]))


def recurrent() -> Graph:
    """Return an LSTM."""
    build = ModelBuilder("recurrent")
    x, w, r = build.input("x", (16, 1, 64)), build.normal((1, 512, 64), 0.1), build.normal((1, 512, 128), 0.1)
    return load(build.finish([build.multi("LSTM", 1, x, w, r, hidden_size=128)[0]]))


def depthwise() -> Graph:
    """Return depthwise separable convolutions."""
    net = Net("depthwise")
    x = net.conv(net.input(1, 48, 48, 3), 32, (3, 3), (2, 2))
    for _ in range(2):
        x = net.conv(net.depthwise(x, 3, 1), 64)
    return net.finish(net.mean(x))


GRAPHS: dict[str, Callable[[], Graph]] = {
    "concat": concat,
    "top_k": top_k,
    "transformer": lambda: load(gpt(GptSizes(layers=1, hidden=64, heads=4, sequence=64))),
    "dynamic": dynamic_quantisation,
    "recurrent": recurrent,
    "depthwise": depthwise,
}


def simulated(graph: Graph, config: Config) -> int:
    """Return picoseconds on the device."""
    with Session(config, cache_dir=False) as session:
        return session.run(session.compile(graph), timing_only=True).time_ps


def scan(graph: Graph, base: Config, verbose: str = "") -> Counter[str]:
    """Count moves by what the estimate does: ``followed``, ``named`` or ``silent``."""
    estimator, found = Estimator(graph, base), Counter[str]()
    true, guess = simulated(graph, base), float(estimator.estimate({"clock": [base.clock_hz]}).time_ps[0])
    for key in timing_keys():
        for value in other_values(key, base):
            try:
                moved = simulated(graph, base.with_(**{key: value})) / true - 1
                estimates = estimator.estimate({key: [value]})
            except (ConfigError, CompileError):
                continue  # no device, or the network does not fit
            if abs(moved) <= 0.01:
                continue
            estimated = float(estimates.time_ps[0]) / guess - 1
            kind = "followed"
            if not 0.5 <= estimated / moved <= 2:
                kind = "named" if key in estimates.unseen else "silent"
            found[kind] += 1
            if kind != "followed" and verbose:
                moves = f"simulated {100 * moved:+.1f} %, estimated {100 * estimated:+.1f} %"
                print(f"  {verbose}: {key} = {value}: {kind}: {moves}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graph", action="append", choices=sorted(GRAPHS))
    parser.add_argument("--base", action="append", choices=list(BASES))
    given = parser.parse_args()
    total: Counter[str] = Counter()
    for name in given.graph or GRAPHS:
        graph = GRAPHS[name]()
        for label in given.base or BASES:
            total += scan(graph, BASES[label], f"{name}, {label}")
    print(", ".join(f"{total[kind]} {kind}" for kind in ("followed", "named", "silent")))
    return int(total["silent"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
