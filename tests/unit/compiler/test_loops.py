"""Recurrent layers as repeated blocks: bits, cycles and sizes, compared with the same layers written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.frontends.onnx import load
from npusim.graph import Graph, Tensor
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.isa.functions import Binary
from npusim.isa.repeat import Repeat
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from npusim.ops.emit import Emitter
from npusim.ops.iterations import HEAD, LEAST, Scanned, iterate
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


SCAN = """g (float[4] s, float[{shape}] x) => (float[4] last, float[{shape}] sums) {{
  last, sums = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], scan_output_axes = [{axis}],
    scan_input_directions = [{back}], scan_output_directions = [{back}],
    body = b (float[4] t, float[4] v) => (float[4] u, float[4] w) {{ u = Add(t, v) w = Tanh(u) }}>(s, x) }}"""
LOOP = """g (float[{n}, 2, 8] x, float[2, 8] h, float[8, 8] m) => (float[2, 8] last, float[{n}, 2, 8] rows) {{
  n = Constant<value = int64 {{{n}}}>()
  last, rows = Loop(n, "", h) <body = b (int64 i, bool c, float[2, 8] t) => (bool o, float[2, 8] u, float[2, 8] r) {{
    o = Identity(c) e = {taken} p = MatMul(t, m) q = Add(p, e) u = Tanh(q) r = Neg(u) }}> }}"""
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def counted(form: str, steps: int) -> Graph:
    """A loop of an ONNX model with a number of steps that is known."""
    match form:
        case "scan":
            text = SCAN.format(shape=f"{steps}, 4", axis=0, back=0)
        case "scan backwards":
            text = SCAN.format(shape=f"4, {steps}", axis=-1, back=1)
        case "loop over rows":
            text = LOOP.format(n=steps, taken="Gather(x, i)")
        case _:
            text = LOOP.format(n=steps, taken="Cast<to = 1>(i)")
    return load(onnx.parser.parse_model(HEADER + text))


@pytest.mark.parametrize("steps", [LEAST, 33])
@pytest.mark.parametrize("form", ["scan", "scan backwards", "loop over rows"])
def test_counted_loops_give_the_bits_of_their_iterations(form: str, steps: int) -> None:
    config = load_config("mobile")
    graph = counted(form, steps)
    assert has_loops(graph)
    given = feeds(graph)
    looped, written = compile_graph(graph, config), compile_graph(unrolled(graph), config)
    assert repeats(looped) or steps == LEAST  # the form that is faster
    with Session(config, cache_dir=False) as session:
        ours, theirs = session.run(looped, given), session.run(written, given)
    exact = reference.run(graph, given)
    for name, value in theirs.outputs.items():
        assert ours.outputs[name].tobytes() == value.tobytes()
        np.testing.assert_allclose(value, exact[name], atol=1e-5)
    assert ours.timeline.cycles <= theirs.timeline.cycles


@pytest.mark.parametrize("form", ["scan", "loop over rows"])
def test_counted_loops_do_not_grow_with_their_steps(form: str) -> None:
    config = load_config("mobile")
    few, many = counted(form, 300), counted(form, 4096)
    assert len(few.ops) == len(many.ops)
    assert compile_graph(few, config).commands == compile_graph(many, config).commands


def test_iterations_that_use_their_number_are_written_out() -> None:
    graph = counted("number", 20)
    assert not any(op.kind == "repeat" for op in graph.ops)
    given = feeds(graph)
    last, rows = given["h"], []
    for step in range(20):
        last = np.tanh(last @ given["m"] + np.float32(step))
        rows.append(-last)
    found = reference.run(graph, given)
    np.testing.assert_allclose(found["last"], last, atol=1e-5)
    np.testing.assert_allclose(found["rows"], np.array(rows), atol=1e-5)


def test_steps_over_constants_are_written_out() -> None:
    """Parts of a constant are constants of their own, which the first iterations do not tell."""
    model = onnx.parser.parse_model(HEADER + SCAN.format(shape="20, 4", axis=0, back=0))
    x = np.zeros((20, 4), np.float32)
    x[-5:] = 1  # the first ones are equal
    del model.graph.input[1]
    model.graph.initializer.append(numpy_helper.from_array(x, "x"))
    graph = load(model)
    assert not has_loops(graph)
    found = reference.run(graph, {"s": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(found["last"], np.full(4, 5, np.float32))


def test_iterations_that_are_not_alike_are_written_out() -> None:
    """An iteration may depend on more than its states and parts: the marks of iterations are removed again."""
    builder = GraphBuilder("loop")
    emitter = Emitter(builder, "loop")
    x = builder.input("x", (20, 3), DType.FLOAT32)
    start = builder.input("s", (1, 3), DType.FLOAT32)
    seen: list[int] = []

    def body(states: Sequence[Tensor], parts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        seen.append(0)
        made = emitter.binary(Binary.ADD, states[0], emitter.binary(Binary.MUL, parts[0], emitter.like(len(seen), x)))
        return [made], [made]

    (last,), (rows,) = iterate(emitter, 20, [start], [Scanned(x)], body)
    graph = builder.finish([last, rows])
    assert not any(op.kind == "repeat" for op in graph.ops)
    given = feeds(graph)
    sums = given["s"] + np.cumsum(given["x"] * np.arange(1, 21, dtype=np.float32)[:, None], axis=0)
    found = reference.run(graph, given)
    np.testing.assert_allclose(found[graph.outputs[1].name], sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[graph.outputs[0].name], found[graph.outputs[1].name][-1:])


def test_sequences_of_their_own_lengths_are_loops() -> None:
    """Their loads would otherwise take other channels in each step."""
    model = onnx.parser.parse_model(
        HEADER
        + """g (float[21, 2, 8] x, int32[2] n, float[1, 8, 8] w, float[1, 8, 8] r, float[1, 16] b)
        => (float[21, 1, 2, 8] y) { y = RNN<hidden_size = 8>(x, w, r, b, n) }"""
    )
    config = load_config("mobile")
    graph = load(model)
    looped, written = compile_graph(graph, config), compile_graph(unrolled(graph), config)
    assert repeats(looped)
    given = feeds(graph) | {"n": np.array([5, 19], np.int32)}
    ours, theirs = interpreted(looped, config, given), interpreted(written, config, given)
    for name, value in theirs.items():
        assert ours[name].tobytes() == value.tobytes()
