"""Compile time as a function of the number of nodes, from the bytes of an ONNX model to a program in the cache.

Run as ``python -m bench.growth``. Chains, fans, blocks and similar graphs are compiled with ten times as many nodes
each. A quadratic stage would take ten times as long per node. Exit code 1 if the time per node grows by more than three
times.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from npusim.runtime import Session

MOST = 3.0
"""Allowed ratio of the time per node between the largest and the smallest size: caches of the host miss, memory is
moved."""
SHAPE = (1, 8, 8, 8)
node = helper.make_node


def model(nodes: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """A model of float images. ``w``: weights of a convolution."""
    graph = helper.make_graph(
        list(nodes), "growth", [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def chain(count: int) -> bytes:
    """A chain of elementwise operators."""
    kinds = ("Relu", "Sigmoid", "Tanh")
    return model([node(kinds[i % 3], [f"v{i}"], [f"v{i + 1}"]) for i in range(count)], ["v0"], [f"v{count}"])


def convolutions(count: int) -> bytes:
    """A chain of convolutions."""
    return model([node("Conv", [f"v{i}", "w"], [f"v{i + 1}"]) for i in range(count)], ["v0"], [f"v{count}"])


def readers(count: int) -> bytes:
    """One value that most operators read, and the sum of their results."""
    wide = [node("Sigmoid", ["r"], [f"s{i}"]) for i in range(count // 2)]
    total = node("Sum", [f"s{i}" for i in range(count // 2)], ["y"])  # as many additions
    return model([node("Relu", ["v0"], ["r"]), *wide, total], ["v0"], ["y"])


def outputs(count: int) -> bytes:
    """One value that most operators read, each for an output of the model."""
    wide = [node("Sigmoid", ["r"], [f"s{i}"]) for i in range(count)]
    return model([node("MaxPool", ["v0"], ["r"], kernel_shape=[1, 1]), *wide], ["v0"], [f"s{i}" for i in range(count)])


def inputs(count: int) -> bytes:
    """The sum of many inputs."""
    names = [f"x{i}" for i in range(count)]
    return model([node("Sum", names, ["y"])], names, ["y"])


def residual(count: int) -> bytes:
    """Blocks of convolution, residual addition and activation."""
    nodes = []
    for i in range(count // 3):
        nodes += [node("Conv", [f"v{i}", "w"], [f"c{i}"]), node("Add", [f"c{i}", f"v{i}"], [f"a{i}"]),
                  node("Relu", [f"a{i}"], [f"v{i + 1}"])]  # fmt: skip
    return model(nodes, ["v0"], [f"v{count // 3}"])


def diamonds(count: int) -> bytes:
    """Two functions of one value, added."""
    nodes = []
    for i in range(count // 3):
        nodes += [node("Sigmoid", [f"v{i}"], [f"c{i}"]), node("Tanh", [f"v{i}"], [f"d{i}"]),
                  node("Add", [f"c{i}", f"d{i}"], [f"v{i + 1}"])]  # fmt: skip
    return model(nodes, ["v0"], [f"v{count // 3}"])


def ladder(count: int) -> bytes:
    """Values that are all alive in the middle, and are read in reverse order."""
    half = count // 2
    nodes = [node("MaxPool", [f"v{i}"], [f"v{i + 1}"], kernel_shape=[1, 1]) for i in range(half)]
    nodes += [
        node("Add", [f"u{i + 1}" if i + 1 < half else f"v{half}", f"v{i}"], [f"u{i}"]) for i in reversed(range(half))
    ]
    return model(nodes, ["v0"], ["u0"])


def joined(count: int) -> bytes:
    """A concatenation of all values of a chain."""
    nodes = [node("MaxPool", [f"v{i}"], [f"v{i + 1}"], kernel_shape=[1, 1]) for i in range(count)]
    nodes.append(node("Concat", [f"v{i + 1}" for i in range(count)], ["y"], axis=1))
    return model(nodes, ["v0"], ["y"])


FAMILIES: dict[str, Callable[[int], bytes]] = {
    each.__name__: each for each in (chain, convolutions, readers, outputs, inputs, residual, diamonds, ladder, joined)
}


def seconds(data: bytes, config: str) -> tuple[float, int]:
    """(CPU seconds of one compilation, commands of the program)."""
    with tempfile.TemporaryDirectory() as folder, Session(config, cache_dir=folder) as session:
        start = time.process_time()
        program: Any = session.compile(data)
        return time.process_time() - start, program.commands


def main() -> int:
    """Print the table. Returns 1 if a family grows superlinearly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="tiny", help="the device")
    parser.add_argument("--most", type=int, default=100_000, help="nodes of the largest models")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only this family; may be repeated")
    chosen = parser.parse_args()
    seconds(chain(10), chosen.config)  # imports
    missed = False
    for name in chosen.family or FAMILIES:
        first = None
        count = 1000
        while count <= chosen.most:
            taken, commands = seconds(FAMILIES[name](count), chosen.config)
            each = taken / count
            first = each if first is None else first
            verdict = "" if each <= MOST * first else f"  MISSED: {MOST} at most"
            missed = missed or bool(verdict)
            print(f"{name:14}{count:9} nodes {commands:9} commands {taken:8.2f} s {each * 1e6:8.1f} us/node "
                  f"x{each / first:5.2f}{verdict}", flush=True)  # fmt: skip
            count *= 10
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
