"""Recurrent layers as repeated blocks: bits, cycles and sizes, compared with the same layers written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.compiler.pipeline import compile_graph
from npusim.frontends.onnx import load
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.repeat import Repeat
from npusim.ops import reference
from npusim.ops.iterations import HEAD, LEAST
from npusim.ops.unrolling import has_loops, unrolled
from npusim.program import Program
from npusim.runtime import Session
from tests.support.graphs.execution import interpreted

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, FEATURES, BATCH = 24, 16, 2


def layer(
    kind: str, steps: int, direction: str = "forward", outputs: tuple[str, ...] = ("y", "h"), **attrs: Any
) -> Graph:
    """A recurrent layer with weights of its own."""
    rng, gates = np.random.default_rng(steps), GATES[kind] * HIDDEN
    ways = 2 if direction == "bidirectional" else 1

    def array(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) / 4).astype(np.float32), name)

    weights = [array("w", ways, gates, FEATURES), array("r", ways, gates, HIDDEN), array("b", ways, 2 * gates)]
    names = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    node = helper.make_node(kind, ["x", "w", "r", "b"], names, hidden_size=HIDDEN, direction=direction)
    shapes = {"y": (steps, ways, BATCH, HIDDEN), "h": (ways, BATCH, HIDDEN), "c": (ways, BATCH, HIDDEN)}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, BATCH, FEATURES))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in outputs]
    model = helper.make_model(helper.make_graph([node], kind, [x], ends, weights))
    return load(model)


def feeds(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {tensor.name: rng.standard_normal(tensor.shape).astype(np.float32) for tensor in graph.inputs}


def repeats(program: Program) -> list[int]:
    found = (command.instruction for command in decode(program.code))
    return [each.times for each in found if isinstance(each, Repeat)]


WAYS = ("forward", "reverse", "bidirectional")
QUICK = {("LSTM", "forward"), ("GRU", "reverse"), ("RNN", "bidirectional")}


@pytest.mark.parametrize(
    ("kind", "direction"),
    [pytest.param(kind, way, marks=[] if (kind, way) in QUICK else pytest.mark.slow) for kind in GATES for way in WAYS],
)
def test_a_loop_gives_the_bits_of_its_steps_and_takes_no_more_cycles(kind: str, direction: str) -> None:
    config = load_config("mobile")
    graph = layer(kind, 21, direction)
    whole = unrolled(graph)
    assert has_loops(graph)
    assert not has_loops(whole)
    given = feeds(graph)
    looped, written = compile_graph(graph, config), compile_graph(whole, config)
    assert len(repeats(looped)) == (2 if direction == "bidirectional" else 1)
    assert not repeats(written)
    assert looped.macs == written.macs
    with Session(config, cache_dir=False) as session:
        ours, theirs = session.run(looped, given), session.run(written, given)
    # The interpreter executes in order: a missing wait would show.
    in_order = interpreted(looped, config, given)
    exact = reference.run(graph, given)
    for name, value in theirs.outputs.items():
        assert ours.outputs[name].tobytes() == value.tobytes() == in_order[name].tobytes()
        np.testing.assert_allclose(value, exact[name], atol=1e-5)
    assert ours.timeline.cycles <= theirs.timeline.cycles


def test_a_program_does_not_grow_with_its_steps() -> None:
    config = load_config("mobile")
    programs = [compile_graph(layer("LSTM", steps), config) for steps in (LEAST, 40, 400)]
    # More steps need more tiles for the product of all inputs, which is outside of the loop.
    outside = [sum(command.op == 0 for command in decode(program.code)) for program in programs]
    assert len({program.commands - number for program, number in zip(programs, outside, strict=True)}) == 1
    # A block is one iteration or two, and those before it are written out.
    assert [sum(repeats(program)) for program in programs] == [(n - HEAD) // 2 + 1 for n in (LEAST, 40, 400)]
    assert not repeats(compile_graph(layer("LSTM", LEAST - 1), config))


def test_timing_alone_and_steps_and_replay_give_the_same_picoseconds() -> None:
    graph = layer("LSTM", 30)
    given = feeds(graph)
    with Session("mobile", cache_dir=False) as session:
        program = session.compile(graph)
        timed = session.run(program, timing_only=True)
        first, again = session.run(program, given), session.run(program, given)
    assert timed.timeline.cycles == first.timeline.cycles == again.timeline.cycles
    assert timed.timeline.spans == first.timeline.spans == again.timeline.spans
    assert len(first.timeline.spans) > 3 * program.commands


@pytest.mark.parametrize("most", [1, 2, 5])
def test_iterations_can_be_written_out_in_part(most: int) -> None:
    """The rest of the loop is still one, with the same results."""
    graph = layer("LSTM", 22)
    part = unrolled(graph, most)
    part.validate()
    assert has_loops(part)
    given = feeds(graph)
    exact, again = reference.run(graph, given), reference.run(unrolled(part), given)
    for name, value in exact.items():
        np.testing.assert_array_equal(again[name], value)


def test_results_that_nobody_reads_are_not_stored() -> None:
    config = load_config("mobile")
    graph = layer("LSTM", 20, outputs=("c",))
    program = compile_graph(graph, config)
    assert repeats(program)
    given = feeds(graph)
    with Session(config, cache_dir=False) as session:
        found = session.run(program, given)
    np.testing.assert_allclose(found.outputs["c"], reference.run(graph, given)["c"], atol=1e-5)


def test_weights_that_do_not_fit_are_in_the_program_once() -> None:
    """Each iteration loads them from the same bytes."""
    config = load_config("edge").with_(**{"sram.bytes": 8192})
    graph = layer("LSTM", 20)
    program, written = compile_graph(graph, config), compile_graph(unrolled(graph), config)
    assert repeats(program)
    assert 4 * program.constants.nbytes < written.constants.nbytes
    given = feeds(graph)
    ours, theirs = interpreted(program, config, given), interpreted(written, config, given)
    for name, value in theirs.items():
        assert ours[name].tobytes() == value.tobytes()
