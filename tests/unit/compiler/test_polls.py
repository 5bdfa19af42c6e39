"""A compilation can be cancelled: it polls often, for any model, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from npusim.compiler import pipeline
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa import emitted
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder
from npusim.polling import polled
from tests.support.call_counts import longest_gap

CONV = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (1, 1, 1, 1), "groups": 1}


def _chain(length: int) -> Graph:
    builder = GraphBuilder("chain")
    x, y = builder.input("x", (1, 64), DType.FLOAT32), builder.input("y", (1, 64), DType.FLOAT32)
    result = x
    for _ in range(length):
        result = builder.add("binary", [result, y], {"fn": Binary.ADD})
    return builder.finish([result])


def _convolutions(layers: int, size: int) -> Graph:
    builder = GraphBuilder("convolutions")
    result = builder.input("x", (1, size, size, 16), DType.FLOAT32)
    weights, bias = builder.const(np.zeros((16, 16, 3, 3), np.float32)), builder.const(np.zeros(16, np.float32))
    for _ in range(layers):
        result = builder.add("conv", [result, weights, bias], CONV)
        result = builder.add("unary", [result], {"fn": Unary.CLIP, "p0": 0.0, "p1": 6.0})
    return builder.finish([result])


def _attention(layers: int, rows: int) -> Graph:
    builder = GraphBuilder("attention")
    result = builder.input("x", (rows, 64), DType.FLOAT32)
    for _ in range(layers):
        keys = builder.add("transpose", [result], {"perm": (1, 0)})
        scores = builder.add("softmax", [builder.add("matmul", [result, keys], {})], {"axis": 1, "log": False})
        result = builder.add("matmul", [scores, result], {})
    return builder.finish([result])


def _product(size: int) -> Graph:
    builder = GraphBuilder("product")
    sides = [builder.input(name, (size, size), DType.FLOAT32) for name in "ab"]
    return builder.finish([builder.add("matmul", sides, {})])


# Unique names: cached results of an equal device would change the number of comparisons.
DEVICES = {name: replace(load_config(name), name=f"{name} of this test") for name in ("edge", "server")}
FEW = 20_000
"""Function calls that take a few milliseconds; allowed between polls for any model."""

MODELS: dict[str, Callable[[], Graph]] = {
    "chain": lambda: _chain(600),
    "convolutions": lambda: _convolutions(12, 56),
    "attention": lambda: _attention(6, 128),
    "product": lambda: _product(1024),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_no_tenth_of_a_compilation_lies_between_two_polls(
    model: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "emit", emitted.emit)  # undo the verification that all tests add to each compilation
    graph, config = MODELS[model](), DEVICES[device]
    compile_graph(graph, config)  # warm up: fill the caches of the device

    longest, calls = longest_gap(lambda: compile_graph(graph, config))
    assert longest <= max(calls // 10, FEW)


class _EnoughError(Exception):
    pass


@pytest.mark.parametrize("model", MODELS)
def test_a_compilation_that_was_stopped_leaves_nothing_behind(model: str) -> None:
    graph, config = MODELS[model](), DEVICES["edge"]
    polls = 0

    def check() -> None:
        nonlocal polls
        polls += 1
        if polls == last:
            raise _EnoughError

    last = -1
    with polled(check):
        whole = compile_graph(graph, config)
    for last in {1, 2, polls // 3, polls // 2, polls - 1, polls}:
        polls = 0
        with pytest.raises(_EnoughError), polled(check):
            compile_graph(graph, config)
        assert polls == last
    assert compile_graph(graph, config).code == whole.code
