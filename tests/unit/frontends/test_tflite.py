"""TFLite models become graphs: names, shapes, constants, variables, branches, refusals."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.dtypes import DType
from npusim.errors import InputError, ModelError, NpusimError, OpenInputsError, UnsupportedError, UsageError
from npusim.frontends import models
from npusim.ops.reference import run
from npusim.runtime import Session

tflite = pytest.importorskip("tflite", reason="the extra tflite")

from tests.support.fuzz.tflite_files import CONFIG, broken  # noqa: E402
from tests.support.tflite_models import Given, Operator, Signature, Subgraph, const, model, single  # noqa: E402

X = Given("x", (2, 3))
Y = Given("y", (2, 3))
ADD = single("ADD", [X, const("b", np.float32([1, 2, 3])), Y], "AddOptions")


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "tflite-operators.md"


def test_the_page_of_operators_is_up_to_date() -> None:
    from npusim.frontends.tflite.docs import render

    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m npusim.frontends.tflite.docs"


def results(data: bytes, **inputs: Any) -> dict[str, Any]:
    return run(models.load(data), inputs)


def test_a_file_is_recognised_by_its_contents(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(ADD)
    graph = models.load(path)
    assert [tensor.name for tensor in graph.inputs] == ["x"]
    assert [(tensor.name, tensor.shape, tensor.dtype) for tensor in graph.outputs] == [("y", (2, 3), DType.FLOAT32)]


def test_equal_bytes_have_the_identity_of_the_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.tflite", "b.tflite", "c.tflite")]
    for path, data in zip(paths, (ADD, ADD, ADD[:-1] + b"\1"), strict=True):
        path.write_bytes(data)
    first, second, third = map(models.digest_file, paths)
    assert first == second != third


def test_names_of_the_signature_come_before_those_of_tensors() -> None:
    graph = Subgraph([X, Y], [Operator("RELU", [0], [1])], [0], [1])
    data = model([graph], [Signature({0: "image"}, {1: "scores"})])
    assert models.input_names(data) == ["image"]
    assert list(results(data, image=np.ones((2, 3), np.float32))) == ["scores"]


def test_equal_names_are_made_unique() -> None:
    graph = Subgraph([X, X, Given("x", (2, 3))], [Operator("ADD", [0, 1], [2], "AddOptions")], [0, 1], [2])
    assert models.input_names(model([graph])) == ["x", "x_1"]
    assert [tensor.name for tensor in models.load(model([graph])).outputs] == ["x_2"]


def test_open_dimensions_follow_the_array_and_others_are_fixed() -> None:
    data = single("RELU", [Given("x", (1, 3), signature=(-1, 3)), Given("y", (1, 3))])
    assert models.load(data).outputs[0].shape == (1, 3)
    shapes = models.shapes_of(data, {"x": np.ones((5, 3), np.float32)})
    assert models.load(data, input_shapes=shapes).outputs[0].shape == (5, 3)
    with pytest.raises(UsageError, match=r"shape must be \['any', 3\], got \[5, 4\]"):
        models.load(data, input_shapes={"x": (5, 4)})
    with pytest.raises(InputError, match="'x' is missing"):
        models.shapes_of(data, {})


def test_sizes_in_the_file_that_do_not_fit_are_an_error_with_others() -> None:
    tensors = [Given("x", (1, 1), signature=(-1, -1)), const("b", np.int32([0, 90])), const("e", np.int32([-1, 4]))]
    data = single("SLICE", [*tensors, Given("y", (1, 4))], "SliceOptions")
    with pytest.raises(OpenInputsError, match="leaves input shapes open") as caught:
        models.load(data)
    assert caught.value.shapes == {"x": (1, 224)}
    assert models.load(data, input_shapes=caught.value.shapes).outputs[0].shape == (1, 4)


def test_half_float_weights_become_float32_constants() -> None:
    weights = np.float16([[0.5, -1.25, 3]])
    tensors = [X, const("h", weights), Given("w", (1, 3)), Y]
    operators = [Operator("DEQUANTIZE", [1], [2]), Operator("MUL", [0, 2], [3], "MulOptions")]
    graph = models.load(model([Subgraph(tensors, operators, [0], [3])]))
    assert [op.kind for op in graph.ops] == ["binary"]
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], x * weights.astype(np.float32))


def test_four_bit_weights_are_signed_and_the_lower_half_comes_first() -> None:
    packed = Given("w", (1, 3), "int4", np.float32([2.0]), packed=bytes([0x8F, 0x07]))
    tensors = [X, packed, Given("y", (2, 1))]
    found = results(single("FULLY_CONNECTED", tensors, "FullyConnectedOptions"), x=np.float32([[1, 0, 0], [0, 10, 1]]))
    np.testing.assert_array_equal(found["y"], np.float32([[-2], [-160 + 14]]))


def counter(step: int = 1) -> bytes:
    """A model that adds its input to a variable, which starts with 5, and returns the sum."""
    handle, number = Given("h", (), "resource"), Given("x", (1,), "int32")
    names = {"SharedName": "total"}
    first = [Operator("VAR_HANDLE", [], [0], "VarHandleOptions", names), Operator("ASSIGN_VARIABLE", [0, 1], [])]
    init = Subgraph([handle, const("five", np.int32([5]))], first, [], [], "init")
    tensors = [number, handle, Given("old", (1,), "int32"), Given("y", (1,), "int32"), const("s", np.int32([step]))]
    operators = [
        Operator("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1}),
        Operator("VAR_HANDLE", [], [1], "VarHandleOptions", names),
        Operator("READ_VARIABLE", [1], [2]),
        Operator("ADD", [2, 0], [3], "AddOptions"),
        Operator("ASSIGN_VARIABLE", [1, 3], []),
    ]
    return model([Subgraph(tensors, operators, [0], [3]), init])


def test_a_variable_is_an_input_and_an_output() -> None:
    graph = models.load(counter())
    assert [tensor.name for tensor in graph.inputs] == ["x", "total"]
    assert [tensor.name for tensor in graph.outputs] == ["y", "total.next"]
    arrays, feeds = models.variables(counter())
    assert {name: array.tolist() for name, array in arrays.items()} == {"total": [5]}
    assert feeds == {"total.next": "total"}


def test_a_session_keeps_variables_as_its_state() -> None:
    with Session("tiny", cache_dir=False) as session, session.state(counter()) as state:
        sums = [session.run(counter(), {"x": np.int32([n])}, state=state).outputs["y"].item() for n in (1, 2, 3)]
        assert sums == [6, 8, 11]
        assert state.read("total").item() == 11
        # A run without a state starts with the first values.
        assert session.run(counter(), {"x": np.int32([1])}).outputs["y"].item() == 6
        with pytest.raises(UsageError, match="has no variables"):
            session.state(ADD)


def branches(condition: Given | None) -> bytes:
    """y = x + 1 if the condition holds, else -x."""
    chosen = condition or Given("c", (1,), "bool")
    bodies = [
        Subgraph([X, const("one", np.float32(1)), Y], [Operator("ADD", [0, 1], [2], "AddOptions")], [0], [2], "then"),
        Subgraph([X, Y], [Operator("NEG", [0], [1])], [0], [1], "else"),
    ]
    options = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    main = Subgraph(
        [chosen, X, Y], [Operator("IF", [0, 1], [2], "IfOptions", options)], [0, 1][condition is not None :], [2]
    )
    return model([main, *bodies])


def test_a_branch_is_taken_or_both_are_computed() -> None:
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    assert [op.kind for op in models.load(branches(const("c", np.array([True])))).ops] == ["binary"]
    for value, want in ((True, x + 1), (False, -x)):
        np.testing.assert_array_equal(results(branches(const("c", np.array([value]))), x=x)["y"], want)
        np.testing.assert_array_equal(results(branches(None), x=x, c=np.array([value]))["y"], want)


def powers(times: Given) -> bytes:
    """y = x doubled as often as ``times`` says."""
    number, flag = Given("i", (), "int32"), Given("more", (), "bool")
    state = [number, Given("n", (), "int32"), X]
    condition = Subgraph([*state, flag], [Operator("LESS", [0, 1], [3])], [0, 1, 2], [3], "cond")
    tensors = [*state, const("one", np.int32(1)), Given("j", (), "int32"), Y]
    steps = [Operator("ADD", [0, 3], [4], "AddOptions"), Operator("ADD", [2, 2], [5], "AddOptions")]
    body = Subgraph(tensors, steps, [0, 1, 2], [4, 1, 5], "body")
    main = [const("zero", np.int32(0)), times, X, number, Given("m", (), "int32"), Y]
    options = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    loop = Operator("WHILE", [0, 1, 2], [3, 4, 5], "WhileOptions", options)
    return model([Subgraph(main, [loop], [2] if times.data is not None else [1, 2], [5]), condition, body])


def test_a_loop_with_a_known_condition_is_unrolled() -> None:
    graph = models.load(powers(const("times", np.int32(3))))
    assert [op.kind for op in graph.ops] == ["binary"] * 3
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], 8 * x)
    with Session("tiny", cache_dir=False) as session:
        found = [session.run(powers(Given("times", (), "int32")), {"times": np.int32(n), "x": x}) for n in (0, 2)]
    np.testing.assert_array_equal(found[0].outputs["y"], x)
    np.testing.assert_array_equal(found[1].outputs["y"], 4 * x)


def test_a_loop_without_end_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="it runs at least 4096 times"):
        models.load(powers(const("times", np.int32(1 << 30))))


def test_a_graph_that_contains_itself_is_refused() -> None:
    options = {"ThenSubgraphIndex": 0, "ElseSubgraphIndex": 0}
    tensors = [const("c", np.array([True])), X, Y]
    loop = Subgraph(tensors, [Operator("IF", [0, 1], [2], "IfOptions", options)], [1], [2])
    with pytest.raises(ModelError, match="nested more than"):
        models.load(model([loop]))


def test_every_unsupported_operator_is_named_at_once() -> None:
    tensors = [X, Given("a", (2, 3)), Given("b", (2, 3)), Y]
    operators = [
        Operator("CUSTOM:Whatever", [0], [1]),
        Operator("IMAG", [0], [2]),
        Operator("ADD", [1, 2], [3], "AddOptions"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        models.load(model([Subgraph(tensors, operators, [0], [3])]))
    assert [(name, operator) for name, operator, _ in caught.value.reasons] == [("a", "CUSTOM:Whatever"), ("b", "IMAG")]


def test_options_of_another_operator_are_damage() -> None:
    with pytest.raises(ModelError, match="options must be AddOptions, are SubOptions"):
        models.load(single("ADD", [X, X, Y], "SubOptions"))


def test_an_operator_that_makes_another_type_than_declared_is_damage() -> None:
    with pytest.raises(ModelError, match="output is FLOAT32, the operator makes bool"):
        models.load(single("LESS", [X, Given("z", (2, 3)), Y]))


def test_a_value_that_is_never_produced_is_named() -> None:
    graph = Subgraph([X, Given("gap", (2, 3)), Y], [Operator("ADD", [0, 1], [2], "AddOptions")], [0], [2])
    with pytest.raises(ModelError, match=r"reads tensor 1 \('gap'\) before it is produced"):
        models.load(model([graph]))


@pytest.mark.parametrize("suffix", sorted(models.EXPORTS))
def test_other_formats_are_refused_with_the_line_that_exports_them(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"net{suffix}"
    path.write_bytes(b"PK\3\4 whatever")
    with pytest.raises(UnsupportedError) as caught:
        models.load(path)
    assert models.EXPORTS[suffix][1].format(name=path.name) in str(caught.value)


def test_an_onnx_model_with_such_a_suffix_is_read(tmp_path: Path) -> None:
    from onnx import parser

    path = tmp_path / "net.pb"
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    path.write_bytes(parser.parse_model(text).SerializeToString())
    assert [op.kind for op in models.load(path).ops] == ["unary"]


def test_damaged_files_end_in_a_graph_or_one_error() -> None:
    ends: Counter[str] = Counter()
    for number in range(1500):
        try:
            models.load(broken(random.Random(number)), config=CONFIG)
            ends["loaded"] += 1
        except NpusimError as error:
            ends[type(error).__name__] += 1 if str(error) else 1 << 20
    assert ends["loaded"] > 100
    assert ends["ModelError"] > 500
    assert ends.total() == 1500, "an error without a message"


def test_many_references_to_one_table_are_refused() -> None:
    """A vector of offsets to one table costs four bytes for each of its entries."""
    tensors = [Given(f"t{number}", (1,)) for number in range(400)]
    data = bytearray(model([Subgraph(tensors, [], [0], [0])] * 2))
    root = tflite.Model.GetRootAs(data, 0)
    table = root.Subgraphs(0)._tab
    start = table.Vector(table.Offset(4))
    name = root.Subgraphs(0).Tensors(399)._tab
    place = name.Pos + name.Offset(10)  # the name of the last tensor, which is first in the file
    # All tensors become this one, whose name becomes the rest of the file.
    text = place + int.from_bytes(data[place : place + 4], "little")
    data[text : text + 4] = (len(data) - text - 4).to_bytes(4, "little")
    for index in range(400):
        at = start + 4 * index
        data[at : at + 4] = (name.Pos - at).to_bytes(4, "little")
    with pytest.raises(ModelError, match="refer to the same bytes too often"):
        models.load(bytes(data))


@pytest.mark.parametrize("shape", [(-1,), (1 << 20, 1 << 21), (0, 1 << 30, 1 << 30, 1 << 30)])
def test_a_shape_that_no_array_can_have_is_damage(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="a tensor of shape"):
        models.load(single("RELU", [Given("x", shape), Given("y", shape)]))


@pytest.mark.parametrize("zero", [-129, 128, 1 << 40])
def test_a_zero_point_outside_the_type_is_damage(zero: int) -> None:
    with pytest.raises(ModelError, match=f"a zero point of {zero}"):
        models.load(single("RELU", [Given("x", (2,), "int8", 0.1, 3), Given("y", (2,), "int8", 0.1, zero)]))
