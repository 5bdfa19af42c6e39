"""State on the device: decoding token by token, recurrent values, and what a state refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from npusim.errors import CompileError, DeviceFaultError, DeviceGoneError, InputError, UsageError
from npusim.faults import AtCommand, Fail, Fault
from npusim.graph import DOUBLING
from npusim.hw.config import load_config
from npusim.runtime import Request, Session
from tests.support.onnx_models.transformers import GptSizes, gpt

SIZES = GptSizes(layers=2, hidden=32, heads=4, sequence=1, past=7)
CACHES = [f"past_{kind}_{layer}" for layer in range(SIZES.layers) for kind in ("key", "value")]
ROW = 4 * 8 * 4
"""Bytes of a new row of one cache."""


@pytest.fixture(scope="module")
def decoder() -> onnx.ModelProto:
    """Build a GPT whose caches have any number of rows, without a mask, which would fix it."""
    model = gpt(SIZES)
    del model.graph.value_info[:]
    for value in (*model.graph.input[1:], *model.graph.output[1:]):
        value.type.tensor_type.shape.dim[2].dim_param = "rows" if value in model.graph.input else "more"
    by_output = {name: node for node in model.graph.node for name in node.output}
    for node in [node for node in model.graph.node if node.op_type == "Where"]:
        scores = node.input[1]
        for other in model.graph.node:
            for place, name in enumerate(other.input):
                if name == node.output[0]:
                    other.input[place] = scores
        model.graph.node.remove(node)
    assert by_output
    return model


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("tiny", cache_dir=False) as found:
        yield found


def empty(rows: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    return {name: rng.standard_normal((1, 4, rows, 8)).astype(np.float32) for name in CACHES}


def tokens(count: int) -> Iterator[Any]:
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield rng.standard_normal((1, 1, 32)).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 8, DOUBLING])
def test_a_decoder_with_its_caches_on_the_device(session: Session, decoder: onnx.ModelProto, rows: int) -> None:
    """The same bits as with caches passed through the host, without these transfers."""
    past, names = empty(), [value.name for value in decoder.graph.output]
    with session.state(empty(), cache_rows=rows) as state:
        for count, x in enumerate(tokens(4), start=1):
            alone = session.run(decoder, {"x": x, **past})
            found = session.run(decoder, {"x": x}, state=state)
            assert list(found.outputs) == names[:1]
            np.testing.assert_array_equal(found.outputs[names[0]], alone.outputs[names[0]])
            past = {cache: alone.outputs[name] for cache, name in zip(CACHES, names[1:], strict=True)}
            assert state.shapes == dict.fromkeys(CACHES, (1, 4, count, 8))
            assert found.host.input_bytes == found.host.output_bytes == x.nbytes
            for name in CACHES:
                np.testing.assert_array_equal(state.read(name), past[name])


def test_with_room_nothing_that_is_there_is_moved(session: Session, decoder: onnx.ModelProto) -> None:
    moved = []
    with session.state(empty(2), cache_rows=6) as state:
        for x in tokens(3):
            before = session.driver.counters.snapshot()
            session.run(decoder, {"x": x}, state=state)
            host = session.driver.counters.since(before)
            moved.append((host.buffer_write_bytes, host.buffer_read_bytes))
        assert moved == [(len(CACHES) * 6 * ROW, 0), (0, 0), (0, 0)]
        assert "past_key_0 float32[1, 4, 5, 8]" in repr(state)


def test_without_a_number_of_rows_caches_are_moved_when_they_have_doubled(
    session: Session, decoder: onnx.ModelProto
) -> None:
    moved = []
    with session.state(empty(2)) as state:
        for x in tokens(5):
            before = session.driver.counters.snapshot()
            session.run(decoder, {"x": x}, state=state)
            moved.append(session.driver.counters.since(before).buffer_write_bytes // (len(CACHES) * ROW))
    assert moved == [4, 0, 8, 0, 0]


def test_without_arithmetic_a_state_has_shapes_and_times(session: Session, decoder: onnx.ModelProto) -> None:
    with session.state(empty(2)) as state, session.state(empty(2)) as other:
        for x in tokens(2):
            timing = session.run(decoder, state=state, timing_only=True, inputs={"x": x})
            full = session.run(decoder, {"x": x}, state=other)
            assert timing.timeline.digest() == full.timeline.digest()
        assert state.shapes == other.shapes == dict.fromkeys(CACHES, (1, 4, 4, 8))


def recurrent() -> onnx.ModelProto:
    """Build y = h2 = tanh(x + h), and a separate constant c."""
    shape = [2, 4]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "h", "c", "y", "h2")]
    nodes = [
        helper.make_node("Add", ["x", "h"], ["s"]),
        helper.make_node("Tanh", ["s"], ["h2"]),
        helper.make_node("Add", ["h2", "c"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "recurrent", values[:3], values[3:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_a_recurrent_value_becomes_the_input_of_the_next_run(session: Session) -> None:
    model, rng = recurrent(), np.random.default_rng(0)
    h, c = (rng.standard_normal((2, 4)).astype(np.float32) for _ in range(2))
    with session.state({"h": h, "c": c}, feeds={"h2": "h"}) as state:
        for _ in range(3):
            x = rng.standard_normal((2, 4)).astype(np.float32)
            wanted = session.run(model, {"x": x, "h": h, "c": c}).outputs
            found = session.run(model, {"x": x}, state=state).outputs
            assert list(found) == ["y"]
            np.testing.assert_array_equal(found["y"], wanted["y"])
            h = wanted["h2"]
            np.testing.assert_array_equal(state.read("h"), h)
            np.testing.assert_array_equal(state.read("c"), c)


def test_of_a_run_that_fails_the_state_is_what_it_was(session: Session) -> None:
    model = recurrent()
    one = np.ones((2, 4), np.float32)
    with session.state({"h": one, "c": one}, feeds={"h2": "h"}) as state:
        session.run(model, {"x": one}, state=state)
        before, free = state.read("h"), session.driver.free_bytes
        session.device.faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Fail(fail="core0.dma0"))])
        with pytest.raises(DeviceFaultError):
            session.run(model, {"x": one}, state=state)
        np.testing.assert_array_equal(state.read("h"), before)
        session.run(model, {"x": one}, state=state)
        assert session.driver.free_bytes == free
    assert session.driver.free_bytes > free


@pytest.mark.parametrize("back", [False, True])
def test_a_state_on_a_device_that_went_is_lost(session: Session, back: bool) -> None:
    model, one = recurrent(), np.ones((2, 4), np.float32)
    with session.state({"h": one, "c": one}, feeds={"h2": "h"}) as state:
        session.run(model, {"x": one}, state=state)
        session.device.unplug()
        if back:
            session.device.plug()
        with pytest.raises(DeviceGoneError):
            state.read("h")
        with pytest.raises(DeviceGoneError):
            session.run(model, {"x": one}, state=state)


def test_what_a_state_refuses(session: Session, decoder: onnx.ModelProto) -> None:
    one = np.ones((2, 4), np.float32)
    with pytest.raises(UsageError, match=r"^feeds: output 'h2' is to become 'g', which the state does not have$"):
        session.state({"h": one}, feeds={"h2": "g"})
    with pytest.raises(UsageError, match=r"^feeds: two outputs are to become the same input$"):
        session.state({"h": one}, feeds={"h2": "h", "y": "h"})
    model = recurrent()
    program = session.compile(model)
    fed = {"x": one, "c": one}
    for state, inputs, kind, said in (
        (
            session.state({"h": one}, feeds={"z": "h"}),
            fed,
            UsageError,
            "feeds: the program has no output 'z'; it has y, h2",
        ),
        (
            session.state({"g": one}),
            {**fed, "h": one},
            InputError,
            "state: there is no input 'g'; the program takes x, h, c",
        ),
        (
            session.state({"h": one[:1]}),
            fed,
            InputError,
            r"state 'h': is float32\[1, 4\], the program takes h float32\[2, 4\]",
        ),
        (session.state({"h": one}), {**fed, "h": one}, UsageError, "input 'h' is in the state already"),
        (session.state({"h": one}), {"x": one}, InputError, r"input 'c' is missing: float32\[2, 4\]"),
    ):
        with pytest.raises(kind, match=f"^{said}$"):
            session.run(program, inputs, state=state)
    with pytest.raises(UsageError, match=r"^the state has no 'z'; it has h$"):
        session.state({"h": one}).read("z")
    x = next(tokens(1))
    with pytest.raises(CompileError, match=r"^'past_key_0' grows to 4 rows as .*, but the cache has room for 3$"):
        session.run(decoder, {"x": x}, state=session.state(empty(3), cache_rows=3))
    with pytest.raises(UsageError, match=r"^feeds: 'past_key_0' grows in place to output '.*'$"):
        session.run(
            decoder, {"x": x}, state=session.state(empty(3), feeds={decoder.graph.output[0].name: "past_key_0"})
        )


def test_a_state_is_of_one_device(session: Session) -> None:
    one = np.ones((2, 4), np.float32)
    state = session.state({"h": one, "c": one})
    session.close()
    with pytest.raises(UsageError, match=r"^the state is on the device of another session, or of one that was closed"):
        session.run(recurrent(), {"x": one}, state=state)
    with Session("tiny", cache_dir=False) as other, pytest.raises(UsageError, match=r"^the state is on the device of"):
        other.run(recurrent(), {"x": one}, state=state)


def test_a_value_that_decides_what_is_computed_cannot_be_in_a_state(session: Session) -> None:
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph([helper.make_node("Reshape", ["x", "shape"], ["y"])], "reshape", values, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    state = session.state({"shape": np.array([2, 2])})
    with pytest.raises(UsageError, match=r"^state 'shape': its value determines the program; give it as an input$"):
        session.run(model, {"x": np.ones(4, np.float32)}, state=state)


def test_an_executor_needs_one_buffer_for_both(decoder: onnx.ModelProto) -> None:
    """Clients with their own buffers bind input and output to the same one."""
    from npusim.runtime import Executor

    with Session("tiny", cache_dir=False) as session:
        program = session.compile(decoder, dict.fromkeys(CACHES, (1, 4, 2, 8)), cache_rows=3)
    ((old, new), *others) = program.states
    fed: dict[str, Any] = {"x": next(tokens(1)), **empty(2)}
    with Executor(load_config("tiny")) as executor:
        plain = executor.submit(Request(program, fed)).wait()
        buffer, wrong = (executor.buffer(program.region_bytes[old.region]) for _ in range(2))
        raw = np.zeros(old.nbytes, np.uint8)
        old.elements(raw)[...] = fed[old.name]
        executor.write(buffer, raw.data)
        job = executor.submit(Request(program, {**fed, old.name: buffer}))
        assert set(job.wait().outputs) == set(plain.outputs) - {new.name}
        found = np.frombuffer(executor.read(buffer, new.nbytes), np.uint8)
        np.testing.assert_array_equal(new.elements(found), plain.outputs[new.name])
        with pytest.raises(
            UsageError, match=f"^output '{new.name}' shares the memory of input '{old.name}': both need the same"
        ):
            executor.submit(Request(program, {**fed, old.name: buffer}, {new.name: wrong}))
        with pytest.raises(UsageError, match=f"^input '{old.name}' grows in place: it needs the buffer"):
            executor.submit(Request(program, fed, {new.name: buffer}))
    assert len(others) == len(CACHES) - 1
