"""Every refusal of the importer, in its words: what is lost here would load as another model, or as none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from npusim.errors import ModelError, UnsupportedError, UsageError
from npusim.frontends.onnx import control, importer, load
from npusim.frontends.onnx import node as node_module
from npusim.frontends.onnx.external import digest_file
from npusim.frontends.onnx.scope import Scope
from tests.support.onnx_models.small import OPSET, external, ramp, text_model, weighted

F32 = TensorProto.FLOAT
RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto] = (), outputs: Sequence[str] = ("y",),
    weights: Sequence[TensorProto] = (), sparse: Sequence[onnx.SparseTensorProto] = (), opset: int = OPSET,
) -> onnx.ModelProto:  # fmt: skip
    """A model of these parts, its outputs untyped."""
    declared = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "graph", inputs, declared, weights, sparse_initializer=sparse)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def reasons(model: Any, **options: Any) -> list[tuple[str, str, str]]:
    """What is not supported: (name, operator, reason) of each."""
    with pytest.raises(UnsupportedError) as caught:
        load(model, **options)
    return list(caught.value.reasons)


def told(model: Any, message: str, error: type[Exception] = ModelError) -> None:
    """The model is refused with exactly this message."""
    with pytest.raises(error) as caught:
        load(model)
    assert str(caught.value) == message


X = helper.make_tensor_value_info("x", F32, [2])


# The model as a whole


def test_a_model_without_operator_sets() -> None:
    model = text_model(RELU)
    del model.opset_import[:]
    told(model, "the model names no operator set: it is damaged or truncated")


@pytest.mark.parametrize("opset", [6, onnx.defs.onnx_opset_version() + 1])
def test_an_operator_set_that_is_too_old_or_too_new(opset: int) -> None:
    newest = onnx.defs.onnx_opset_version()
    [(name, kind, reason)] = reasons(text_model(RELU, opset=opset))
    assert (name, kind) == ("g", "model")
    assert reason == f"operator set {opset} is not supported: 7 to {newest} are"


def test_a_model_without_a_graph_or_outputs() -> None:
    told(onnx.ModelProto(ir_version=10), "the model: is not an ONNX model: it has no graph or no version")
    unversioned = text_model(RELU)
    unversioned.ClearField("ir_version")
    del unversioned.opset_import[:]
    told(unversioned, "the model: is not an ONNX model: it has no graph or no version")
    told(model_of([], [X], []), "the model: its graph has no outputs")


def test_bytes_that_are_no_model() -> None:
    told(b"", "the model: is empty")
    told(b"\x00garbage", "the model: is not an ONNX model, or is truncated (8 bytes)")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for ask in (load, digest_file):
        with pytest.raises(UsageError, match=r"none\.onnx: cannot be read: No such file or directory$"):
            ask(tmp_path / "none.onnx")


BAD_NAME = b"\xff\xfe\xfd\xfc"


@pytest.mark.parametrize("role", ["input", "weight", "output", "node", "kind", "domain", "operand", "attribute"])
def test_names_that_are_not_utf8(role: str) -> None:
    """protobuf hands them out as bytes, which are equal to no name."""
    names = dict.fromkeys(("input", "weight", "output", "node", "kind", "domain", "operand", "attribute"), "name")
    names = {key: "ODDX" if key == role else key.upper() for key in names}
    call = helper.make_node(
        names["kind"], ["x", names["operand"]], ["y"], name=names["node"], domain=names["domain"],
        **{names["attribute"]: 1},
    )  # fmt: skip
    model = model_of(
        [call], [X, helper.make_tensor_value_info(names["input"], F32, [2])], ["y", names["output"]],
        [numpy_helper.from_array(ramp(2), names["weight"])],
    )  # fmt: skip
    data = model.SerializeToString()
    assert b"ODDX" in data
    told(data.replace(b"ODDX", BAD_NAME), f"the model is damaged: {BAD_NAME!r} is not a name in UTF-8")


def test_what_makes_the_importer_stumble_is_the_models_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*arguments: Any) -> None:
        raise LookupError("told to")

    monkeypatch.setattr(importer, "needed_nodes", stumble)
    told(
        text_model(RELU),
        "the model cannot be understood: told to",
    )


# Inputs, initialisers, outputs


def test_an_input_of_a_type_that_the_device_has_not() -> None:
    """Even if no operator reads it."""
    [reason] = reasons(text_model("g (double[2] x, float[2] z) => (float[2] y) { y = Relu(z) }"))
    assert reason == ("x", "input", "the device does not compute with float64")


def test_inputs_of_types_that_are_not_supported() -> None:
    """Every one of them is listed."""
    sequence = helper.make_tensor_sequence_value_info("s", F32, [2])
    strings = helper.make_tensor_value_info("t", TensorProto.STRING, [2])
    assert reasons(model_of([helper.make_node("Relu", ["x"], ["y"])], [X, sequence, strings])) == [
        ("s", "input", "inputs of type sequence are not supported"),
        ("t", "input", "element type string is not supported"),
    ]


def test_an_input_without_a_type() -> None:
    told(model_of([helper.make_node("Relu", ["x"], ["y"])], [onnx.ValueInfoProto(name="x")]), "input 'x' has no type")


def test_a_sparse_initialiser() -> None:
    """Losing this once made a graph without operators."""
    values = numpy_helper.from_array(np.float32([3]), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64([1]), "i"), [2])
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [X], sparse=[sparse])
    assert reasons(model) == [("w", "initializer", "sparse tensors are not supported")]


def test_an_initialiser_of_a_type_that_is_not_supported() -> None:
    weight = helper.make_tensor("w", TensorProto.COMPLEX64, [1], [1j])
    [reason] = reasons(model_of([helper.make_node("Add", ["x", "w"], ["y"])], [X], weights=[weight]))
    assert reason == ("initializer 'w'", "tensor", "element type complex64 is not supported")


def test_what_is_not_known_is_not_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever forgets to say why a value is missing is noticed."""
    monkeypatch.setattr(control, "_tensors", lambda values: None)
    model = text_model("""g (float[3, 2] x) => (float[3, 2] y) { y = Scan<num_scan_inputs = 1,
        body = b (float[2] v) => (float[2] w) { w = Neg(v) }>(x) }""")
    with pytest.raises(AssertionError, match="'y' is not known, and nobody has said why"):
        load(model)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("g (float[2] x) => (float[2] x) { x = Relu(x) }", "graph input 'x' is also the output of a node"),
        ("g (float[2] x) => (float[2] y) { z = Relu(x) }", "graph output 'y' is produced by nothing"),
        ("g (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }", "two graph outputs have the same name"),
        ("g (float[2] x) => (float[2] y) { y = Relu(x) y = Neg(x) }", "Neg_1: the name 'y' is defined twice"),
        (
            "g (float[2] x) => (float[2] y) { y = Relu(z) z = Relu(x) }",
            "Relu_0 (Relu): reads 'z' before anything produces it",
        ),
        ("g (float[2] x) => (float[2] y) { a, y = Relu(x) }", "graph output 'y' is produced by nothing"),
        ("g (float[2] x) => (int8[2] y) { y = Relu(x) }", "'y' is declared as int8 but computed as float32"),
        ("g (float[2] x) => (float[3] y) { y = Relu(x) }", "'y' is declared as [3] but computed as [2]"),
        ("g (float[2] x) => (float[2, 1] y) { y = Relu(x) }", "'y' is declared as [2, 1] but computed as [2]"),
        (
            "g (float[a, 2] x) => (float[a, 2] y) { y = Relu(x) }",
            "the model leaves input shapes open: 'x' is [a, 2]. Give them, for example --input-shape x=1,2",
        ),
    ],
)
def test_graphs_that_contradict_themselves(body: str, message: str) -> None:
    told(text_model(body), message)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (1,)}, "a shape is given for 'q', which is not an input; inputs: 'x', 'z'"),
        ({"x": (3,)}, "input 'x' is [n, 3] in the model; the shape given is [3]"),
        ({"x": (1, 4)}, "input 'x' is [n, 3] in the model; the shape given is [1, 4]"),
        ({"x": (-1, 3)}, "input 'x' is [n, 3] in the model; the shape given is [-1, 3]"),
        (
            {"x": (1, 3), "z": (2, 3)},
            "input 'z' is [n, 3] in the model; the shape given is [2, 3], and 'n' is 1 elsewhere",
        ),
    ],
)
def test_shapes_that_contradict_the_model(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    model = text_model("g (float[n, 3] x, float[n, 3] z) => (float[n, 3] y) { y = Add(x, z) }")
    with pytest.raises(UsageError) as caught:
        load(model, input_shapes=shapes)
    assert str(caught.value) == message


# Tensors


def damaged(edit: Callable[[TensorProto], None]) -> onnx.ModelProto:
    model = weighted(numpy_helper.from_array(ramp(4), "w"))
    edit(model.graph.initializer[0])
    return model


def test_weights_whose_data_do_not_fit() -> None:
    def shorten(weight: TensorProto) -> None:
        weight.raw_data = weight.raw_data[:-4]

    def list_too_few(weight: TensorProto) -> None:
        weight.ClearField("raw_data")
        weight.float_data.extend([1, 2, 3])

    def go_negative(weight: TensorProto) -> None:
        weight.dims[:] = [-2, -2]

    told(damaged(shorten), "initializer 'w': [4] of float32 needs 16 bytes of data, has 12")
    told(damaged(list_too_few), "initializer 'w': [4] needs 4 entries in float_data, has 3")
    told(damaged(go_negative), "initializer 'w': negative dimension in [-2, -2]")


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("", {}, "external data without a location"),
        ("../w.bin", {}, "external data '../w.bin' is outside the model's directory {folder}"),
        ("no.bin", {}, "external data file {folder}/no.bin does not exist"),
        ("w.bin", {"offset": "four"}, "offset and length of external data must be integers"),
        ("w.bin", {"length": 12}, "needs 16 bytes, its entry for 'w.bin' says 12"),
        ("w.bin", {"offset": 4}, "bytes 4 to 20 are beyond {folder}/w.bin of 16 bytes"),
        ("w.bin", {"offset": -4}, "bytes -4 to 12 are beyond {folder}/w.bin of 16 bytes"),
    ],
)
def test_weights_in_files_that_do_not_have_them(
    tmp_path: Path, location: str, entries: dict[str, Any], message: str
) -> None:
    folder = tmp_path.resolve() / "model"
    folder.mkdir()
    for place in (folder, tmp_path):
        (place / "w.bin").write_bytes(bytes(16))
    path = folder / "m.onnx"
    path.write_bytes(weighted(external(ramp(4), "w", location, **entries)).SerializeToString())
    with pytest.raises(ModelError) as caught:
        load(path)
    assert str(caught.value) == "initializer 'w': " + message.format(folder=folder)


def test_weights_in_files_of_a_model_that_is_in_none() -> None:
    told(
        weighted(external(ramp(4), "w", "w.bin")),
        "initializer 'w': its data is in the file 'w.bin'; load the model from its path to find it",
    )


# Nodes


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "g (float[2] x) => (float[2] y) { y = Nonsense(x) }",
            ("Nonsense_0", "Nonsense", f"npusim has no operator Nonsense of version {OPSET} of the standard domain"),
        ),
        (
            "g (float[2] x) => (float[2] y) { y = local.Nonsense(x) }",
            ("Nonsense_0", "Nonsense", "npusim has no operator Nonsense of version 1 of domain 'local'"),
        ),
        (
            "g (float[2] x) => (float[2] y) { y = Relu<slope = 2.0>(x) }",
            ("Relu_0", "Relu", f"attribute slope is not supported in operator set {OPSET}"),
        ),
        (
            "g (float[2] x) => (double[2] y) { y = Cast<to = 11>(x) }",
            ("Cast_0", "Cast", "the device does not compute with float64"),
        ),
        (
            "g (float[2, 2] x, int64[1] s) => (float[4] y) { y = Reshape(x, s) }",
            ("Reshape_0", "Reshape", "input 1 ('s') must be a constant"),
        ),
        (
            "g (float[1, 1, 4] x) => (float[1, 1, 2] y, int64[1, 1, 2] i) { y, i = MaxPool<kernel_shape = [3]>(x) }",
            ("MaxPool_0", "MaxPool", None),
        ),
        (
            "g (float[2] x) => (float[2] y) { s = SequenceConstruct(x, x) y = SequenceMap<body = b (float[2] v) => "
            "(float[2] w) { w = Neg(v) }>(s) }",
            ("SequenceConstruct_0", "SequenceConstruct", None),
        ),
    ],
)
def test_nodes_that_are_not_supported(body: str, expected: tuple[str, str, str | None]) -> None:
    [(name, kind, reason), *rest] = reasons(text_model(body))
    assert not rest
    assert (name, kind) == expected[:2]
    assert expected[2] is None or reason == expected[2]


def test_a_map_over_sequences() -> None:
    body = text_model("g (float[2] v) => (float[2] w) { w = Neg(v) }").graph
    model = model_of([helper.make_node("SequenceMap", ["x"], ["y"], name="map", body=body)], [X])
    assert reasons(model) == [("map", "SequenceMap", "sequences are not supported")]


def test_an_unknown_operator_behind_an_unknown_one_is_told_too() -> None:
    found = reasons(text_model("g (float[2] x) => (float[2] y) { a = Nonsense(x) b = Relu(a) y = Absurd(b) }"))
    assert [(name, kind) for name, kind, _ in found] == [("Nonsense_0", "Nonsense"), ("Absurd_2", "Absurd")]
    assert found[1][2] == f"npusim has no operator Absurd of version {OPSET} of the standard domain"


def test_results_of_four_bits() -> None:
    weight = helper.make_tensor("w", TensorProto.INT4, [2], np.array([0x21], np.uint8).tobytes(), raw=True)
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    model = model_of(
        [helper.make_node("QuantizeLinear", ["x", "s", "w"], ["y"], name="q")], [X], weights=[weight, scale]
    )
    assert reasons(model) == [("q", "QuantizeLinear", "results of 4- and 2-bit types are not supported")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "g (float[2] x) => (float[2] y) { y = other.Op(x) }",
            "Op_0 (Op): the model does not import operator set 'other'",
        ),
        ("g (float[2] x) => (float[2] y) { y = Add(x) }", "Add_0 (Add): input 1 is required"),
        ("g (float[2] x) => (float[2] y) { y = Cast(x) }", "Cast_0 (Cast): attribute to is required"),
        (
            "g (float[2] x) => (float[2] y) { y = Softmax<axis = 1.5>(x) }",
            "Softmax_0 (Softmax): attribute axis must be of type INT",
        ),
        (
            "g (float[2] x) => (float[2] y) { y = Softmax<axis = 1>(x) }",
            "Softmax_0 (Softmax): axis 1 is outside a tensor of 1 dimensions",
        ),
        (
            "g (float[2] x) => (float y) { a = Constant<value_ints = [0, -1]>() y = ReduceSum(x, a) }",
            "ReduceSum_1 (ReduceSum): axes [0, -1] name the same dimension twice",
        ),
        (
            "g (float[2] x) => (float[2] y) { s = Constant<value_floats = [2.0]>() y = Reshape(x, s) }",
            "Reshape_1 (Reshape): input 1 must be integers, is float32",
        ),
        (
            "g (float[2] x) => (float[2] y) { a = Constant<value_ints = [0, 0]>() y = CumSum(x, a) }",
            "CumSum_1 (CumSum): input 1 must have one element, has shape [2]",
        ),
        (
            "g (int64 y) => (int64 z) { i = Constant<value_int = 7>() v = Constant<value_ints = [1, 2]>() "
            "z = Gather(v, i) }",
            "Gather_2 (Gather): an index is outside [-2, 2): the indices span 7 to 7",
        ),
    ],
)
def test_nodes_that_are_wrong(body: str, message: str) -> None:
    told(text_model(body), message)


def test_a_node_that_makes_its_importer_stumble(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*arguments: Any) -> None:
        raise TypeError("told to")

    monkeypatch.setattr(node_module.Node, "check_all_read", stumble)
    told(text_model(RELU), "Relu_0 (Relu): cannot be understood: told to")


def test_a_schema_that_stumbles_over_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*arguments: Any) -> None:
        raise RuntimeError("told to")

    monkeypatch.setattr(importer, "schema_function", stumble)
    told(
        text_model("g (float[2] x) => (float[2] y) { y = Nonsense(x) }"),
        "Nonsense_0 (Nonsense): cannot be understood: told to",
    )


def test_a_table_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "MAX_TABLE", 3)
    body = "g (float[4, 4] x) => (float[4, 4] y) { y = Trilu(x) }"
    [(name, kind, reason)] = reasons(text_model(body))
    assert (name, kind, reason) == ("Trilu_0", "Trilu", "needs a table of 16 elements; at most 3 are supported")


# Functions and bodies


def test_functions_without_end_or_with_too_many_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'
    told(
        text_model(f"g (float[2] x) => (float[2] y) {{ y = local.a(x) }} {imports} a (v) => (w) {{ w = local.a(v) }}"),
        "a_0/a_1 (a): functions call each other without end",
    )
    told(
        text_model(f"g (float[2] x) => (float[2] y) {{ y = local.a(x, x) }} {imports} a (v) => (w) {{ w = Neg(v) }}"),
        "a_0: local.a has 1 inputs, the call passes 2",
    )
    told(
        text_model(f"g (float[2] x) => (float[2] y) {{ y = local.a(x) }} {imports} a (v) => (w) {{ u = Neg(v) }}"),
        "a_0: output 'w' of its body is produced by nothing",
    )
    monkeypatch.setattr(importer, "MAX_NODES", 2)
    told(
        text_model("g (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Neg(b) }"),
        "Neg_2: the model has more than 2 nodes when its functions are expanded",
    )


IF = """g (float[2] x) => (float[2] y) { c = Constant<value = bool {1}>() y = If (c) <
    then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Neg(x) }> }"""
LOOP = """g (float[2] x) => (float[2] y) { n = Constant<value_int = 2>() y = Loop (n, , x) <
    body = b (int64 i, bool k, float[2] v) => (bool k, float[2] w) { w = Neg(v) }> }"""
SCAN = """g (float[2, 2] x) => (float[2, 2] y) { y = Scan<num_scan_inputs = 1,
    body = b (float[2] v) => (float[2] w) { w = Neg(v) }>(x) }"""


@pytest.mark.parametrize(("body", "name"), [(IF, "If_1"), (LOOP, "Loop_1"), (SCAN, "Scan_0")])
def test_bodies_that_nest_too_deep(monkeypatch: pytest.MonkeyPatch, body: str, name: str) -> None:
    load(text_model(body))
    monkeypatch.setattr(control, "MAX_DEPTH", 1)
    told(text_model(body), f"{name} ({name[:-2]}): branches and loops nest too deep")


@pytest.mark.parametrize(("body", "name"), [(IF, "If_1"), (LOOP, "Loop_1"), (SCAN, "Scan_0")])
def test_bodies_that_are_not_there(body: str, name: str) -> None:
    model = text_model(body)
    attributes = model.graph.node[-1].attribute
    for attribute in [a for a in attributes if a.type == AttributeProto.GRAPH and a.name != "else_branch"]:
        attributes.remove(attribute)
        told(model, f"{name} ({name[:-2]}): attribute {attribute.name} is required")


SCAN_BODY = "the body must take the node's inputs and return its states"


def edited(body: str, *edits: tuple[str, str]) -> onnx.ModelProto:
    for old, new in edits:
        assert old in body
        body = body.replace(old, new)
    return text_model(body)


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        (
            [("num_scan_inputs = 1", "num_scan_inputs = 0")],
            "the body must take the node's inputs and return its states",
        ),
        (
            [("num_scan_inputs = 1", "num_scan_inputs = 2")],
            "the body must take the node's inputs and return its states",
        ),
        (
            [("b (float[2] v)", "b (float[2] v, float[2] u)")],
            "the body must take the node's inputs and return its states",
        ),
        (
            [("num_scan_inputs = 1", "num_scan_inputs = 1, scan_input_directions = [0, 0]")],
            "the scanned dimensions differ, or the attributes do not fit them",
        ),
        (
            [("num_scan_inputs = 1", "num_scan_inputs = 1, scan_output_axes = [0, 0]")],
            "the scanned dimensions differ, or the attributes do not fit them",
        ),
    ],
)
def test_scans_that_are_wrong(edits: list[tuple[str, str]], reason: str) -> None:
    told(edited(SCAN, *edits), f"Scan_0 (Scan): {reason}")


def test_scans_that_are_too_old_too_long_or_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    old = text_model(SCAN, opset=8)
    assert reasons(old) == [("Scan_0", "Scan", "Scan is supported from operator set 9 on")]
    empty = edited(SCAN, ("g (float[2, 2] x)", "g (float[0, 2] x)"))
    assert reasons(empty) == [("Scan_0", "Scan", "0 steps; 1 to 4096 are supported")]
    monkeypatch.setattr(control, "MAX_ITERATIONS", 1)
    assert reasons(text_model(SCAN)) == [("Scan_0", "Scan", "2 steps; 1 to 1 are supported")]


def test_loops_that_are_wrong() -> None:
    message = "Loop_1 (Loop): the body must take and return the loop's values"
    told(edited(LOOP, ("(int64 i, bool k, float[2] v)", "(int64 i, bool k)"), ("Neg(v)", "Neg(x)")), message)
    told(edited(LOOP, ("(bool k, float[2] w)", "(bool k)")), message)


def test_loops_that_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    by_data = edited(
        LOOP, ("(bool k, float[2] w) {", "(bool m, float[2] w) { h = ReduceMax<keepdims = 0>(v) m = Less(h, h)")
    )
    assert reasons(by_data) == [("Loop_1", "Loop", "the condition must be known for every iteration")]
    rows = [
        ("y = Loop", "y, rows = Loop"),
        ("=> (float[2] y)", "=> (float[2] y, float[n, 2] rows)"),
        ("float[2] w)", "float[2] w, float[2] r)"),
        ("w = Neg(v)", "w = Neg(v) r = Neg(v)"),
    ]
    load(edited(LOOP, *rows))
    never = edited(LOOP, *rows, ("value_int = 2", "value_int = 0"))
    assert reasons(never) == [("Loop_1", "Loop", "a loop that is never entered has outputs of unknown shape")]
    monkeypatch.setattr(control, "MAX_ITERATIONS", 1)
    assert reasons(text_model(LOOP)) == [("Loop_1", "Loop", "more than 1 iterations are not supported")]


def test_a_name_is_found_in_its_scope_or_further_out() -> None:
    outer = Scope({})
    outer.define("a", None, "here")
    inner = Scope({}, outer)
    assert inner.find("a") is None
    with pytest.raises(KeyError, match=re.escape("'b'")):
        inner.find("b")
