"""Rules of models: each one broken separately, and what the lenient mode accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hal.onnxifi.edge import status_of
from hal.onnxifi.model import parse
from hal.onnxifi.rules import RULES as RULE_FUNCTIONS
from hal.onnxifi.status import Status
from tests.support.onnxifi import models


def relu():
    node = helper.make_node("Relu", ["x"], ["y"], name="r")
    return models.proto([node], [models.tensor("x", (2, 3))], [models.tensor("y", (2, 3))])


def verdict(model, lenient=False):
    data = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        parse(data, lenient=lenient)
    except Exception as error:  # noqa: BLE001 - its status is what is looked at
        return status_of(error), str(error)
    return Status.SUCCESS, ""


def clear_graph(m):
    m.ClearField("graph")


def no_ir(m):
    m.ClearField("ir_version")


def old_ir(m):
    m.ir_version = 2


def no_opset(m):
    del m.opset_import[:]


def opset_twice(m):
    m.opset_import.append(helper.make_opsetid("ai.onnx", 17))


def old_opset(m):
    m.opset_import[0].version = 0


def foreign_opset(m):
    m.opset_import.append(helper.make_opsetid("com.microsoft", 99))


def no_outputs(m):
    del m.graph.output[:]


def no_name(m):
    m.graph.name = ""


def nameless_input(m):
    m.graph.input[0].name = ""


def same_inputs(m):
    m.graph.input.append(m.graph.input[0])


def untyped(m):
    m.graph.input[0].ClearField("type")


def undefined_type(m):
    m.graph.input[0].type.tensor_type.elem_type = 0


def text_input(m):
    m.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING


def sequence_input(m):
    m.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2]))


def negative(m):
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1


def empty_input(m):
    m.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 0


def empty_output(m):
    m.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 0


def unknown_input(m):
    m.graph.node[0].input[0] = "z"


def own_output(m):
    m.graph.node[0].input[0] = "y"


def produced_twice(m):
    m.graph.node.append(m.graph.node[0])


def overwrites(m):
    m.graph.node[0].output[0] = "x"


def unproduced(m):
    m.graph.output[0].name = "z"


def no_operator(m):
    m.graph.node[0].op_type = ""


def unimported(m):
    m.graph.node[0].domain = "org.example"


def two_operands(m):
    m.graph.node[0].input.append("x")


def no_operands(m):
    del m.graph.node[0].input[:]


def two_results(m):
    m.graph.node[0].output.append("y2")


def attribute_twice(m):
    m.graph.node[0].op_type = "Elu"
    m.graph.node[0].attribute.extend([helper.make_attribute("alpha", 1.0)] * 2)


def wrong_attribute(m):
    m.graph.node[0].op_type = "Elu"
    m.graph.node[0].attribute.append(helper.make_attribute("alpha", 3))


def missing_attribute(m):
    m.graph.node[0].op_type = "Cast"


def unknown_attribute(m):
    m.graph.node[0].attribute.append(helper.make_attribute("net_pos", 3))


def reference(m):
    attribute = helper.make_attribute("alpha", 1.0)
    attribute.ref_attr_name = "beta"
    m.graph.node[0].op_type = "Elu"
    m.graph.node[0].attribute.append(attribute)


S = Status
RULES = [
    (clear_graph, S.INVALID_MODEL, "the model has no graph"),
    (no_ir, S.INVALID_MODEL, "no IR version"),
    (old_ir, S.UNSUPPORTED_VERSION, "IR version 2: 3 to "),
    (no_opset, S.INVALID_MODEL, "names no operator set"),
    (opset_twice, S.INVALID_MODEL, "imported twice"),
    (old_opset, S.UNSUPPORTED_VERSION, "operator set ai.onnx 0: 1 to "),
    (foreign_opset, S.UNSUPPORTED_VERSION, "operator set com.microsoft 99: 1 to 1"),
    (no_outputs, S.INVALID_MODEL, "no outputs"),
    (no_name, S.INVALID_MODEL, "the graph has no name"),
    (nameless_input, S.INVALID_MODEL, "a graph input has no name"),
    (same_inputs, S.INVALID_MODEL, "two graph inputs are named 'x'"),
    (untyped, S.INVALID_MODEL, "'x' has no type"),
    (undefined_type, S.INVALID_MODEL, "element type 0 does not exist"),
    (text_input, S.UNSUPPORTED_DATATYPE, "string is not supported"),
    (sequence_input, S.UNSUPPORTED_DATATYPE, "sequences are no tensors"),
    (negative, S.INVALID_MODEL, "dimension -1"),
    (empty_input, S.UNSUPPORTED_SHAPE, "'x': tensors without elements cannot be bound"),
    (empty_output, S.UNSUPPORTED_SHAPE, "'y': tensors without elements cannot be bound"),
    (unknown_input, S.INVALID_MODEL, "reads 'z' before anything produces it"),
    (own_output, S.INVALID_MODEL, "reads 'y' before anything produces it"),
    (produced_twice, S.INVALID_MODEL, "produces 'y' once more"),
    (overwrites, S.INVALID_MODEL, "produces 'x' once more"),
    (unproduced, S.INVALID_MODEL, "graph output 'z' is produced by nothing"),
    (no_operator, S.INVALID_MODEL, "has no operator"),
    (unimported, S.INVALID_MODEL, "does not import operator set 'org.example'"),
    (two_operands, S.INVALID_MODEL, "1 to 1 inputs are defined, it has 2"),
    (no_operands, S.INVALID_MODEL, "1 to 1 inputs are defined, it has 0"),
    (two_results, S.INVALID_MODEL, "1 to 1 outputs are defined, it has 2"),
    (attribute_twice, S.INVALID_MODEL, "an attribute twice"),
    (wrong_attribute, S.INVALID_MODEL, "attribute alpha must be of type FLOAT, is INT"),
    (missing_attribute, S.INVALID_MODEL, "attribute to is required"),
    (unknown_attribute, S.INVALID_MODEL, "attribute net_pos is not defined in operator set 17"),
    (reference, S.INVALID_MODEL, "refers to a function's attribute"),
]


def test_the_model_that_is_broken_below_is_right():
    assert verdict(relu()) == (S.SUCCESS, "")


@pytest.mark.parametrize(("change", "status", "message"), RULES, ids=[rule[0].__name__ for rule in RULES])
def test_a_broken_rule(change, status, message):
    model = relu()
    change(model)
    found, text = verdict(model)
    assert found is status
    assert message in text


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 40, b"hello world", models.unary()[:-1], models.unary()[1:]])
def test_what_is_no_model(data):
    assert verdict(data)[0] in (S.INVALID_PROTOBUF, S.INVALID_MODEL)


def test_every_cut_of_a_model_is_refused():
    data = models.unary()
    verdicts = {verdict(data[:size])[0] for size in range(len(data))}
    assert verdicts <= {S.INVALID_PROTOBUF, S.INVALID_MODEL}
    assert S.INVALID_PROTOBUF in verdicts


@pytest.mark.parametrize("change", [no_name, unknown_attribute])
def test_lenient_lets_pass_what_clients_send(change):
    model = relu()
    change(model)
    assert verdict(model, lenient=True) == (S.SUCCESS, "")


def test_lenient_removes_unknown_attributes_alone():
    model = relu()
    model.graph.node[0].op_type = "Elu"
    model.graph.node[0].attribute.extend([helper.make_attribute("net_pos", 3), helper.make_attribute("alpha", 2.0)])
    parsed = parse(model.SerializeToString(), lenient=True)
    assert [attribute.name for attribute in parsed.proto.graph.node[0].attribute] == ["alpha"]


def weighted(array, declared=(2, 3), kind=TensorProto.FLOAT, listed=True, ir=8):
    node = helper.make_node("Add", ["x", "w"], ["y"])
    inputs = [models.tensor("x", (2, 3)), *([models.tensor("w", declared, kind)] if listed else [])]
    return models.model([node], inputs, [models.tensor("y", (2, 3))], [numpy_helper.from_array(array, "w")], ir=ir)


def test_initializers_agree_with_the_inputs_that_declare_them():
    ones = np.ones((2, 3), np.float32)
    assert verdict(weighted(ones))[0] is S.SUCCESS
    assert verdict(weighted(ones, listed=False))[0] is S.SUCCESS
    assert verdict(weighted(ones, declared=("N", 3)))[0] is S.SUCCESS
    assert verdict(weighted(np.ones((0, 3), np.float32), declared=(0, 3)))[0] is S.SUCCESS
    assert verdict(weighted(ones, declared=(3, 2)))[0] is S.MISMATCHING_SHAPE
    assert verdict(weighted(ones, kind=TensorProto.INT32))[0] is S.MISMATCHING_DATATYPE
    assert verdict(weighted(ones, listed=False, ir=3))[0] is S.INVALID_MODEL


def branches(inner_reads):
    value = models.tensor("b", (2,))
    then = helper.make_graph([helper.make_node("Relu", [inner_reads], ["b"])], "then", [], [value])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "else", [], [value])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [models.tensor("c", (), TensorProto.BOOL), models.tensor("x", (2,))]
    return models.model([node], inputs, [models.tensor("y", (2,))])


def test_graphs_inside_nodes_see_what_is_around_them():
    assert verdict(branches("x"))[0] is S.SUCCESS
    assert verdict(branches("y"))[0] is S.INVALID_MODEL


def test_a_models_own_functions_have_their_own_attributes():
    model = relu()
    model.opset_import.append(helper.make_opsetid("org.example", 1))
    body = helper.make_node("Relu", ["a"], ["b"])
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("org.example", "Mine", ["a"], ["b"], [body], opsets))
    model.graph.node[0].domain, model.graph.node[0].op_type = "org.example", "Mine"
    assert verdict(model)[0] is S.SUCCESS
    assert isinstance(model, onnx.ModelProto)


def test_the_guide_has_every_rule():
    guide = (Path(__file__).parents[3] / "docs/guide/onnxifi.md").read_text(encoding="utf-8")
    for rule in RULE_FUNCTIONS:
        assert f"- {rule.__doc__}\n" in guide, rule


def _graph_name(m):
    m.graph.name = "zzq"


def _domain(m):
    m.opset_import.append(helper.make_opsetid("zzq", 1))


def _input(m):
    m.graph.input[0].name = m.graph.node[0].input[0] = "zzq"


def _only_an_input(m):
    m.graph.input.append(models.tensor("zzq", (1,)))


def _output(m):
    m.graph.output[0].name = m.graph.node[0].output[0] = "zzq"


def _operator(m):
    m.graph.node[0].op_type = "zzq"


def _attribute(m):
    m.graph.node[0].attribute.append(helper.make_attribute("zzq", 1))


@pytest.mark.parametrize("place", [_graph_name, _domain, _input, _only_an_input, _output, _operator, _attribute])
def test_names_that_are_not_utf_8(place):
    """Protobuf returns them as bytes, which later code does not expect."""
    model = relu()
    place(model)
    status, message = verdict(model.SerializeToString().replace(b"zzq", b"\xff\xfeq"))
    assert status is S.INVALID_MODEL
    assert "is not a name in UTF-8" in message
