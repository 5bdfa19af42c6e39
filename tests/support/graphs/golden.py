"""The graphs and devices with recorded cycles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.functions import Reduce, Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from tests.support.graphs.samples import conv, increment, product, relu, residual_net


def quantised_layers() -> Graph:
    """Build two quantised layers as a model contains them: dequantise, multiply, activate, quantise."""
    build = GraphBuilder("quantised")
    rng = np.random.default_rng(11)
    value = build.input("x", (32, 64), DType.UINT8)
    zero = build.const(np.zeros((), np.int32))
    for number in range(2):
        width = value.shape[1]
        weights = build.const(rng.integers(-90, 90, (width, 48), np.int8))
        scale = build.const(np.float32(0.02 * (number + 1)))
        left = build.add("dequantize", [value, scale, build.const(np.int32(3))], {"to": DType.FLOAT32})
        right = build.add("dequantize", [weights, scale, zero], {"to": DType.FLOAT32})
        total = relu(build, build.add("matmul", [left, right]))
        value = build.add("quantize", [total, build.const(np.float32(0.5)), zero], {"to": DType.UINT8})
    return build.finish([value])


def attention() -> Graph:
    """Build softmax(q k') v over four heads, normalised."""
    build = GraphBuilder("attention")
    q, k, v = (build.input(name, (4, 48, 32), DType.FLOAT32) for name in "qkv")
    scores = build.add("matmul", [q, build.add("transpose", [k], {"perm": (0, 2, 1)})])
    mixed = build.add("matmul", [build.add("softmax", [scores], {"axis": 2, "log": False}), v])
    return build.finish([build.add("normalize", [mixed], {"axis": 2, "mode": "layer", "epsilon": 1e-5})])


def classifier() -> Graph:
    """Build a convolution, pooling, a mean over the image, a product, and the best class."""
    build = GraphBuilder("classifier")
    value = relu(build, conv(build, build.input("x", (1, 3, 20, 20), DType.FLOAT32), 24, 5))
    window = {"layout": "NCHW", "stride": (2, 2), "dilation": (1, 1), "pads": (0, 0, 0, 0), "kernel": (2, 2)}
    value = build.add("pool", [value], {"fn": "max", "output_hw": (10, 10), **window})
    value = build.add("reduce", [value], {"fn": Reduce.MEAN, "axes": (2, 3), "keepdims": False})
    weights = build.const(np.random.default_rng(4).standard_normal((24, 10)).astype(np.float32))
    value = build.add("matmul", [value, weights])
    return build.finish([build.add("arg_reduce", [value], {"fn": "max", "axis": 1, "keepdims": False})])


def movement() -> Graph:
    """Build reversed slices, a transposition, padding, a gather and a concatenation: only DMA work."""
    build = GraphBuilder("movement")
    x = build.input("x", (12, 40, 16), DType.INT16)
    back = build.add("slice", [x], {"starts": (11, 0, 0), "steps": (-1, 2, 1), "sizes": (12, 20, 16)})
    turned = build.add("transpose", [back], {"perm": (1, 0, 2)})
    wide = build.add("pad", [turned], {"before": (1, 0, 0), "after": (2, 4, 0), "mode": "constant", "value": 5})
    rows = build.add("gather", [wide, build.const(np.array([3, -1, 0, 7], np.int32))], {"axis": 0})
    return build.finish([build.add("concat", [rows, wide], {"axis": 0})])


def lookups() -> Graph:
    """Build operators of the scalar unit with a transcendental function between them."""
    build = GraphBuilder("lookups")
    x = build.input("x", (6, 50), DType.FLOAT32)
    values, indices = build.add_all(
        "topk", [build.add("unary", [x], {"fn": Unary.TANH})], {"axis": 1, "k": 5, "largest": True}
    )
    picked = build.add("gather_elements", [x, indices], {"axis": 1})
    return build.finish([values, build.add("cumsum", [picked], {"axis": 1, "exclusive": False, "reverse": False})])


GRAPHS: dict[str, Callable[[], Graph]] = {
    "increment": increment,
    "residual": residual_net,
    "product": lambda: product(64, 96, 80),
    "quantised": quantised_layers,
    "attention": attention,
    "classifier": classifier,
    "movement": movement,
    "lookups": lookups,
}
CONFIGS = ("tiny", "edge", "server")


def record(graph: str, config: str) -> dict[str, Any]:
    """Return the record of a graph on a device. It does not depend on the host."""
    session = Session(load_config(config), cache_dir=False)
    program = session.compile(GRAPHS[graph]())
    result = session.run(program, timing_only=True)
    return {
        "cycles": result.cycles,
        "time_ps": result.time_ps,
        "commands": program.commands,
        "macs": result.macs,
        "dram_read_bytes": result.dram_read_bytes,
        "dram_write_bytes": result.dram_write_bytes,
        "code": hashlib.sha256(program.code).hexdigest()[:16],
        "timeline": result.timeline.digest()[:16],
    }
