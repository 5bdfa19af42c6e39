"""Compile work grows linearly with the number of nodes. It is counted in executed Python lines, which is the same on
every machine."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.growth import FAMILIES
from npusim.compiler import pipeline
from npusim.compiler.codegen import issue as schedule
from npusim.compiler.grouping import groups
from npusim.compiler.pipeline import compile_graph
from npusim.compiler.schedule import allocate, cascade_search, residency
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.frontends.onnx import load
from npusim.hw.config import load_config
from npusim.isa.base import MOST_REGIONS, region
from npusim.isa.functions import Unary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.program import SCRATCH
from npusim.runtime import Session
from tests.support.call_counts import lines_of

TINY = load_config("tiny")
SMALL, TIMES = 192, 4
MORE = 1.05
"""Largest accepted growth ratio. Known quadratic code has at least 1.08 at this size."""
LONG = {"convolutions", "diamonds", "inputs", "joined", "ladder", "outputs", "readers"}
"""Families that take seconds."""


def lines(family: str, count: int) -> int:
    data = FAMILIES[family](count)
    return lines_of(lambda: compile_graph(load(data, config=TINY), TINY), "npusim")


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.slow) if family in LONG else family for family in FAMILIES]
)
def test_four_times_the_nodes_are_four_times_the_work(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small limits, so that even the smaller graph reaches full-length groups and buffer uses.
    monkeypatch.setattr(groups, "MAX_OPS", 8)
    monkeypatch.setattr(schedule, "RECENT", 8)
    monkeypatch.setattr(cascade_search, "LONGEST", 4)
    monkeypatch.setattr(residency, "MEAN_LIFE", 4)
    monkeypatch.setattr(allocate, "MOST_BESIDE", 4)
    monkeypatch.setattr(allocate, "MOST_RIVALS", 8)
    lines(family, 10)  # warm up: imports and caches of the first call
    assert lines(family, TIMES * SMALL) < MORE * TIMES * lines(family, SMALL)


def test_concatenations_go_into_concatenations_deeper_than_python_recurses() -> None:
    build = GraphBuilder("nested")
    value = x = build.input("x", (1, 2), DType.FLOAT32)
    for _ in range(sys.getrecursionlimit() + 10):
        value = build.add("concat", [value, x], {"axis": 1})
    program = compile_graph(build.finish([value]), TINY)
    assert program.region_bytes[SCRATCH] == 0, "all of them are computed in place"


@pytest.mark.parametrize("family", ["joined", "ladder", "outputs", "residual"])
def test_what_looks_back_on_little_computes_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_OPS", 2)
    monkeypatch.setattr(schedule, "RECENT", 1)
    graph = load(FAMILIES[family](24))
    feeds = {"v0": np.random.default_rng(5).standard_normal(graph.inputs[0].shape, np.float32)}
    with Session(TINY.with_(cores=3), cache_dir=False) as session:
        outputs = session.run(graph, feeds).outputs
    for name, expected in reference.run(graph, feeds).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-5)


def test_more_inputs_and_outputs_than_addresses_tell_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    build = GraphBuilder("wide")
    value = build.input("x", (1, 4), DType.FLOAT32)
    graph = build.finish([build.add("unary", [value], {"fn": Unary.NEG}) for _ in range(3)])
    monkeypatch.setattr(pipeline, "MOST_REGIONS", pipeline.FIRST_IO + 4)
    compile_graph(graph, load_config("tiny"))
    monkeypatch.setattr(pipeline, "MOST_REGIONS", pipeline.FIRST_IO + 3)
    with pytest.raises(CompileError, match="wide: 4 inputs and outputs; instructions address 3 of them at most"):
        compile_graph(graph, load_config("tiny"))
    assert region(MOST_REGIONS - 1, (1 << 48) - 1) == (1 << 64) - 1
