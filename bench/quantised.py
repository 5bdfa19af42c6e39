"""Time and traffic of quantised model files of public networks, compared with the networks on integers.

``python -m bench.quantised``: each network of ``npusim.validate`` as written by onnxruntime's quantiser (QDQ, random
calibration), compared with the network with the scales of the file. Exit code 1 if a file takes more than 1.03 times
the time or 1.02 times the traffic. ``--network`` and ``--device`` select; ``--size`` is that of images.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from npusim.explore.evaluate import simulate
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.validate.networks import NETWORKS, Shape
from tests.support.onnx_models.float_networks import FloatExport, Rescaled
from tests.support.onnx_models.qdq import quantised

TIME, TRAFFIC = 1.03, 1.02
SHAPES: dict[str, Shape] = {
    "wav2letter": (1, 296, 39),
    "micronet_kws_m": (1, 49, 10, 1),
    "micronet_ad_m": (1, 32, 32, 1),
    "rnnoise": (1, 42),
}
"""Inputs of networks that do not process colour images."""
DEVICES = ("edge", "mobile", "server", "rk3588_core", "ethos_u65_256")


def file_and_network(name: str, size: int, activation: str) -> tuple[Graph, Graph]:
    """The graph of a model file of a network, and the network with the scales of the file."""
    graph = NETWORKS[name].make(SHAPES.get(name, (1, size, size, 3)))
    export = FloatExport(graph)
    with tempfile.TemporaryDirectory() as folder:
        file = quantised(export.model(), Path(folder), activation=activation, seed=0)
    return load(file), Rescaled(graph, export, file).graph()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per network and device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", choices=NETWORKS, help="a network; all without it")
    parser.add_argument("--device", action="append", help=f"a device; {', '.join(DEVICES)} without it")
    parser.add_argument("--size", type=int, default=224, help="rows and columns of images")
    parser.add_argument("--activation", choices=("int8", "uint8"), default="int8")
    options = parser.parse_args(arguments)
    broken = 0
    for name in options.network or NETWORKS:
        subjects = file_and_network(name, options.size, options.activation)
        for device in options.device or DEVICES:
            file, network = (simulate(graph, load_config(device)) for graph in subjects)
            traffic = [each.dram_read_bytes + each.dram_write_bytes for each in (file, network)]
            ratios = file.time_ps / network.time_ps, traffic[0] / traffic[1]
            bad = ratios[0] > TIME or ratios[1] > TRAFFIC
            broken += bad
            text = f"time {ratios[0]:.3f}, traffic {ratios[1]:.3f}{', broken' if bad else ''}"
            print(f"{name} on {device}: {text}", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
