"""Commands proposed by messages: they parse to what was meant, and they run as read by a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from npusim.cli.app import explain
from npusim.cli.base import given_options, shapes, values
from npusim.cli.output import command_line
from npusim.errors import NeedsValueError
from npusim.frontends.onnx.signature import bound_array

Cli = Callable[..., Any]
# Separators of words, options, names and values; characters that a shell expands or a terminal does not show.
CHARACTERS = "ab=, '\"$`\\!*;&|<>(){}[]~#\t\n\x1b\u0085\u202eäß漢-"
NAMES = st.text(CHARACTERS, min_size=1, max_size=8)
TYPES = (np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_, np.float32, np.float16)
COMMANDS = (["run"], ["compile"], ["explain", "--op", "y"])


def read_by_bash(line: str) -> list[str]:
    """Return the words that bash makes of a line."""
    script = f"printf '%s\\0' {line}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@st.composite
def deciding_values(draw: st.DrawFn) -> np.ndarray:
    kind = np.dtype(draw(st.sampled_from(TYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    if kind.kind == "f":
        numbers = st.floats(width=8 * kind.itemsize)
    elif kind.kind == "b":
        numbers = st.booleans()
    else:
        numbers = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    count = int(np.prod(shape))
    return np.array(draw(st.lists(numbers, min_size=count, max_size=count)), kind).reshape(shape)


@given(st.dictionaries(NAMES, deciding_values(), min_size=1, max_size=3), st.data())
def test_what_is_proposed_is_read_back(arrays: dict[str, np.ndarray], data: st.DataObject) -> None:
    """Every name, shape, type and value, through the text, the shell, the option and the frontend."""
    words = ["npusim", "run", data.draw(NAMES)]
    error = NeedsValueError([("n", "If", "why")], {name: array.tolist() for name, array in arrays.items()})
    _, message = explain(error, words[1:])
    line = message.rpartition("  npusim ")[2]
    read = read_by_bash(f"npusim {line}")
    assert read[: len(words)] == words
    assert all(word.startswith("--bind=") for word in read[len(words) :])
    found = values(tuple(word.removeprefix("--bind=") for word in read[len(words) :]))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        fixed = helper.make_tensor_value_info(name, kind, array.shape)
        np.testing.assert_array_equal(bound_array(fixed, found[name]), array, strict=True)
        loose = helper.make_tensor_value_info(name, kind, [f"d{axis}" for axis in range(array.ndim)])
        options = given_options({name: array.shape}, {name: array.tolist()})
        said = shapes((options[0].removeprefix("--input-shape="),))
        assert said == {name: array.shape}
        np.testing.assert_array_equal(bound_array(loose, found[name], array.shape), array, strict=True)


@given(st.lists(st.text(CHARACTERS + "\udc80\udcff"), min_size=1, max_size=4))
def test_words_survive_the_shell(words: list[str]) -> None:
    line = command_line(words)
    assert line.isprintable()
    assert read_by_bash(line) == words


def deciding_model(name: str, array: np.ndarray, opened: bool) -> onnx.ModelProto:
    """Build an If on whether all elements of an input equal those of an array."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    shape = [f"d{axis}" if opened else dim for axis, dim in enumerate(array.shape)]
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], [out])], out, [], [onnx.ValueInfoProto(name=out)])
        for op, out in (("Neg", "a1"), ("Relu", "b1"))
    ]
    nodes = [
        helper.make_node("Cast", [name], ["as float"], to=TensorProto.FLOAT),
        helper.make_node("Equal", ["as float", "wanted"], ["same"]),
        helper.make_node("Cast", ["same"], ["number"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["number"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["condition"], to=TensorProto.BOOL),
        helper.make_node("If", ["condition"], ["y"], name="y", then_branch=branches[0], else_branch=branches[1]),
    ]
    wanted = numpy_helper.from_array(array.astype(np.float32), "wanted")
    inputs = [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info(name, kind, shape)]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], [wanted])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=NAMES.filter(lambda name: name not in "xy"), opened=st.booleans())
def test_what_is_proposed_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject, name: str, opened: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    array = data.draw(deciding_values().filter(lambda array: array.size))
    onnx.save(deciding_model(name, array, opened), "my model.onnx")
    command, *options = data.draw(st.sampled_from(COMMANDS))
    model = data.draw(st.sampled_from([["my model.onnx"], ["--", "my model.onnx"]]))
    outcome = cli(command, *options, "-c", "tiny", "--no-cache", *model)
    assert outcome.code == 2
    again = cli(*read_by_bash(outcome.err.splitlines()[-1])[1:])
    assert again.code == 0, again.err


SHAPED = {
    "a shape": ("Reshape", np.int64, 3, {}),
    "a size of one dimension": ("Reshape", np.int64, 1, {}),
    "repeats": ("Tile", np.int64, 1, {}),
    "a larger shape": ("Expand", np.int64, 2, {}),
    "a count": ("TopK", np.int64, 1, {"axis": 0}),
    "an axis": ("CumSum", np.int64, 0, {}),
    "axes": ("Squeeze", np.int64, 0, {}),
}


@pytest.mark.parametrize("what", SHAPED)
@pytest.mark.parametrize("command", ["run", "compile"])
def test_what_is_proposed_for_a_shape_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, command: str
) -> None:
    """It must not only parse, but give a value that the operator accepts."""
    monkeypatch.chdir(tmp_path)
    op, kind, count, attributes = SHAPED[what]
    shape = [count] if count else [1] if op == "Squeeze" else []
    results = ["y", "i"] if op == "TopK" else ["y"]
    x = helper.make_tensor_value_info("x", 1, [1, 6] if op == "Squeeze" else [6])
    n = helper.make_tensor_value_info("n", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "n"], results, **attributes)], "g", [x, n], [onnx.ValueInfoProto(name="y")]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    outcome = cli(command, "m.onnx", "-c", "tiny", "--no-cache")
    assert outcome.code == 2
    again = cli(*read_by_bash(outcome.err.splitlines()[-1])[1:])
    assert again.code == 0, again.err


def test_where_no_value_is_known_no_command_is_proposed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product that fits one number of columns, which is not among those tried."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Slice", ["x", "zero", "n"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    weights = [
        numpy_helper.from_array(np.zeros((5, 2), np.float32), "w"),
        numpy_helper.from_array(np.int64([0]), "zero"),
    ]
    inputs = [helper.make_tensor_value_info("x", 1, [9]), helper.make_tensor_value_info("n", 7, [1])]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name="y")], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "m.onnx")
    outcome = cli("run", "m.onnx", "-c", "tiny", "--no-cache")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == "Give arrays (--input NAME=FILE.npy), or values: --bind n=..."
    outcome = cli("compile", "m.onnx", "-c", "tiny", "--no-cache")
    assert outcome.err.splitlines()[-1] == "Give values: --bind n=..."
