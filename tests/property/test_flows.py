"""Computing blocks of rows in SRAM gives the bits of computing the groups one after the other."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.compiler.schedule import build as order
from npusim.dtypes import DType
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from tests.support.examples import examples
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.programs.race_detector import find_races, limits_of

DEVICES = {
    "tiny": load_config("tiny"),
    "edge": load_config("edge"),
    "two cores": load_config("tiny").with_(**{"cores": 2, "dma.channels": 3}),
    "accumulators": load_config("tiny").with_(**{"cores": 3, "matrix.accumulator_bytes": 1 << 10}),
}
SIZES = (6 << 10, 12 << 10, 40 << 10)


class Attention:
    """A random attention: any batch, with or without masks and scales, keys transposed or not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.build = GraphBuilder("attention")
        self.feeds: dict[str, np.ndarray] = {}

    def x(self, name: str, *shape: int) -> Tensor:
        self.feeds[name] = (self.values.integers(-8, 9, shape) / 8).astype(np.float32)
        return self.build.input(name, shape, DType.FLOAT32)

    def const(self, *shape: int) -> Tensor:
        return self.build.const((self.values.integers(-8, 9, shape) / 4).astype(np.float32))

    def graph(self) -> Graph:
        rng, add = self.rng, self.build.add
        batch = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
        rows, keys, depth, width = rng.randint(1, 24), rng.randint(1, 24), rng.randint(1, 20), rng.randint(1, 20)
        q = self.x("q", *batch, rows, depth)
        shared = tuple(rng.choice([dim, 1]) for dim in batch)
        if rng.random() < 0.5:
            k = self.x("k", *shared, depth, keys)
        else:
            perm = (*range(len(batch)), len(batch) + 1, len(batch))
            k = add("transpose", [self.x("k", *shared, keys, depth)], {"perm": perm})
        scores = add("matmul", [q, k], {})
        for _ in range(rng.randint(0, 2)):
            fn = rng.choice([Binary.ADD, Binary.MUL])
            shape = rng.choice([(), (keys,), (rows, keys), (*batch, rows, keys), (rows, 1)])
            scores = add("binary", [scores, self.const(*shape)], {"fn": fn})
        axis = len(scores.shape) - 1
        if rng.random() < 0.8:
            weights = add("softmax", [scores], {"axis": axis, "log": False})
        else:
            weights = add("normalize", [scores], {"axis": axis, "mode": "layer", "epsilon": 1e-3})
        if rng.random() < 0.3:
            weights = add("unary", [weights], {"fn": Unary.RELU, "p0": 0.0, "p1": 0.0})
        v = self.x("v", *rng.choice([batch, shared]), keys, width)
        out = add("matmul", [weights, v], {})
        if rng.random() < 0.5:
            out = add("binary", [out, self.const(width)], {"fn": Binary.ADD})
        if batch and rng.random() < 0.5:
            perm = (*range(len(batch) - 1), len(batch), len(batch) - 1, len(batch) + 1)
            out = add("transpose", [out], {"perm": perm})
        return self.build.finish([out])


@settings(max_examples=examples(10))
@given(seed=st.integers(0, 1 << 20), name=st.sampled_from(sorted(DEVICES)))
def test_flows_change_no_bit(seed: int, name: str) -> None:
    attention = Attention(seed)
    graph = attention.graph()
    for size in SIZES:
        config = DEVICES[name].with_(**{"sram.bytes": size})
        program = compile_graph(graph, config)
        races = find_races(list(decode(program.code)), limits_of(program, config))
        assert not races, f"{size} bytes of SRAM: {races[0]}"
        with mock.patch.object(order, "form_attention", lambda groups, *_, **__: groups):
            apart = compile_graph(graph, config)
        same_bytes(
            interpreted(program, config, attention.feeds), interpreted(apart, config, attention.feeds),
            f"{size} bytes of SRAM, flows against groups",
        )  # fmt: skip
