"""Deep networks of equal layers: when orders are compared, a few layers stand for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.compiler import pipeline
from npusim.compiler.schedule import repeats as shorten
from npusim.compiler.schedule import search
from npusim.compiler.schedule.repeats import KEPT, LEAST, shortened
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import load_config
from tests.support.graphs.samples import residual_net
from tests.support.onnx_models.llama import LlamaSizes, write_llama


def decoder(directory: Path, layers: int) -> Graph:
    sizes = LlamaSizes(layers, hidden=64, heads=2, feed_forward=96, vocabulary=200, past=7)
    graph = load(write_llama(directory, sizes, f"m{layers}"))
    graph.cache_rows = 0
    return graph


def form(graph: Graph) -> list[tuple[object, ...]]:
    """Return kinds and operands without names."""
    numbers = {tensor: index for index, op in enumerate(graph.ops) for tensor in op.outputs}
    return [
        (op.kind, op.output.shape, *((t.shape, t.is_constant, numbers.get(t)) for t in op.inputs if t is not None))
        for op in graph.ops
    ]


def test_a_deep_network_becomes_the_shallow_one(tmp_path: Path) -> None:
    short = shortened(decoder(tmp_path, LEAST + 3))
    assert short is not None
    short.validate()
    shallow = decoder(tmp_path, KEPT)
    # The first layer differs because no layer precedes it, so one more layer than KEPT may remain.
    assert form(short) in (form(shallow), form(decoder(tmp_path, KEPT + 1)))
    layers = (len(short.outputs) - 1) // 2
    assert (len(short.outputs), len(short.inputs)) == (1 + 2 * layers, 3 + 2 * layers)
    assert short.outputs[0].shape == shallow.outputs[0].shape


def test_what_does_not_repeat_often_stays(tmp_path: Path) -> None:
    assert shortened(decoder(tmp_path, LEAST - 1)) is None
    assert shortened(residual_net()) is None


@pytest.mark.parametrize("cores", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_order_is_chosen_as_of_all_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """The program is also the same to the byte."""
    graph = decoder(tmp_path, LEAST + 2)
    config = load_config("tiny").with_(cores=cores, **{"matrix.throughput": {"float16": 1}})
    made: list[int] = []
    plan = search.make_plan
    monkeypatch.setattr(search, "make_plan", lambda graph, *rest: made.append(len(graph.ops)) or plan(graph, *rest))
    program = pipeline.compile_graph(graph, config)
    assert (min(made) < len(graph.ops) / 3) == (cores > 1)
    monkeypatch.setattr(shorten, "LEAST", 10**6)
    assert pipeline.compile_graph(graph, config).code == program.code
