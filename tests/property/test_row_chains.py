"""Rows, the operators after them, and padding: the same bits for any SRAM and with one operator after the other."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary, Reduce, Unary
from npusim.ops.build import GraphBuilder
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.programs.race_detector import find_races, limits_of

Array = npt.NDArray[Any]

DEVICES = {
    "one core": load_config("tiny"),
    "two cores": load_config("tiny").with_(**{"cores": 2, "dma.channels": 3}),
}
SIZES = (4 << 10, 12 << 10, 64 << 10)


class Chain:
    """A random chain of rows, elementwise operators, padding and movement over a tensor of any rank."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values = np.random.default_rng(seed)
        self.build = GraphBuilder("rows")

    def graph(self) -> Graph:
        shape = tuple(self.rng.randint(1, 9) for _ in range(self.rng.randint(1, 4)))
        value = self.build.input("x", shape, DType.FLOAT32)
        for _ in range(self.rng.randint(2, 6)):
            steps = [self.rows, self.rows, self.element, self.element, self.pad, self.move, self.sum]
            value = self.rng.choice(steps)(value)
        return self.build.finish([value])

    def rows(self, x: Tensor) -> Tensor:
        axis = self.rng.randrange(len(x.shape))
        if self.rng.random() < 0.5:
            return self.build.add("softmax", [x], {"axis": axis, "log": self.rng.random() < 0.3})
        return self.build.add("normalize", [x], {"axis": axis, "mode": "rms", "epsilon": 1e-3})

    def sum(self, x: Tensor) -> Tensor:
        """Add a sum over some axes to its operand, so both are live at once."""
        axes = tuple(sorted(self.rng.sample(range(len(x.shape)), self.rng.randint(1, len(x.shape)))))
        fn = self.rng.choice([Reduce.SUM, Reduce.MEAN, Reduce.MAX])
        total = self.build.add("reduce", [x], {"axes": axes, "keepdims": True, "fn": fn})
        return self.build.add("binary", [x, total], {"fn": Binary.ADD})

    def element(self, x: Tensor) -> Tensor:
        if self.rng.random() < 0.4:
            return self.build.add("unary", [x], {"fn": self.rng.choice([Unary.RELU, Unary.NEG, Unary.EXP])})
        shape = tuple(self.rng.choice([dim, 1]) for dim in x.shape)
        other = self.build.const(self.values.integers(-8, 9, shape).astype(np.float32) / 8)
        return self.build.add("binary", [x, other], {"fn": self.rng.choice([Binary.ADD, Binary.MUL])})

    def pad(self, x: Tensor) -> Tensor:
        mode = self.rng.choice(["edge", "reflect", "wrap", "constant"])
        most = [dim - 1 if mode == "reflect" else dim for dim in x.shape]
        before, after = ([self.rng.randint(0, min(3, limit)) for limit in most] for _ in range(2))
        return self.build.add("pad", [x], {"before": tuple(before), "after": tuple(after), "mode": mode, "value": 0.5})

    def move(self, x: Tensor) -> Tensor:
        if self.rng.random() < 0.5:
            return self.build.add("transpose", [x], {"perm": tuple(self.rng.sample(range(len(x.shape)), len(x.shape)))})
        steps = tuple(self.rng.choice([1, 1, 2, 3]) for _ in x.shape)
        sizes = tuple(-(-dim // step) for dim, step in zip(x.shape, steps, strict=True))
        part = self.build.add("slice", [x], {"starts": (0,) * len(sizes), "steps": steps, "sizes": sizes})
        return self.build.add("concat", [part, part], {"axis": self.rng.randrange(len(sizes))})


def run(graph: Graph, config: Config, feeds: dict[str, Array], what: str) -> dict[str, Array] | None:
    """Return the device's results, checking for races; None if a row does not fit."""
    try:
        program = compile_graph(graph, config)
    except CompileError:
        return None
    races = find_races(list(decode(program.code)), limits_of(program, config))
    assert not races, f"{what}: {races[0]}"
    return dict(interpreted(program, config, feeds))


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 20), name=st.sampled_from(sorted(DEVICES)))
@example(seed=224657, name="one core")  # tiles that are no run of a value in SRAM that is one
def test_homes_and_groups_change_no_bit(seed: int, name: str) -> None:
    graph = Chain(seed).graph()
    (x,) = graph.inputs
    feeds = {"x": np.random.default_rng(seed).integers(-8, 9, x.shape).astype(np.float32)}
    with mock.patch("npusim.compiler.grouping.groups._is_fused", return_value=False):
        wanted = run(graph, DEVICES[name].with_(**{"sram.bytes": SIZES[-1]}), feeds, "one by one")
    assume(wanted is not None)  # rows of an operator by itself may be longer than SRAM
    assert wanted is not None
    for size in SIZES:
        found = run(graph, DEVICES[name].with_(**{"sram.bytes": size}), feeds, f"{size} bytes")
        if found is not None:
            same_bytes(found, wanted, f"{size} bytes of SRAM, groups against one operator after the other")
