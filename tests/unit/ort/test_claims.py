"""Which nodes of a graph the device runs, in convex groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hal.ort.claims import claim
from npusim.errors import ModelError
from npusim.frontends.onnx.source import Model
from npusim.hw.config import load_config

F = TensorProto.FLOAT
EDGE = load_config("edge")
value = helper.make_tensor_value_info


def model_of(nodes: Sequence[object], outputs: Sequence[str], kind: int = F) -> Model:
    """A model with the input ``x`` [4], whose values all have this shape."""
    names = [name for node in nodes for name in node.output]  # type: ignore[attr-defined]
    types = [value(name, kind, [4]) for name in names]
    graph = helper.make_graph(
        nodes, "g", [value("x", kind, [4])], [value(name, kind, [4]) for name in outputs], value_info=types
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("test", 1)]
    return Model(helper.make_model(graph, opset_imports=sets, ir_version=8))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Model, set[int]]:
    """A graph, and the nodes that the device does not know."""
    nodes, unknown = [], set()
    values = ["x"]
    for number in range(draw(st.integers(1, 14))):
        operands = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        known = draw(st.booleans())
        op_type = ("Relu" if len(operands) == 1 else "Add") if known else "Unknown"
        if not known:
            unknown.add(number)
        nodes.append(
            helper.make_node(op_type, operands, [f"v{number}"], name=f"n{number}", domain="" if known else "test")
        )
        values.append(f"v{number}")
    return model_of(nodes, values[1:]), unknown


@given(graphs())
def test_groups_are_convex_and_hold_all_that_the_device_runs(case: tuple[Model, set[int]]) -> None:
    model, unknown = case
    groups, refused = claim(model, EDGE)
    nodes = model.proto.graph.node
    assert set(refused) == unknown
    assert sorted(number for group in groups for number in group) == sorted(set(range(len(nodes))) - unknown)
    maker = {node.output[0]: number for number, node in enumerate(nodes)}
    before = [{maker[name] for name in node.input if name in maker} for node in nodes]
    for group in map(set, groups):
        # Nodes outside that depend on the group must not lead back into it.
        after: set[int] = set()
        for number in range(len(nodes)):
            if number not in group and before[number] & (group | after):
                after.add(number)
            assert not (number in group and before[number] & after)


@given(graphs())
def test_a_graph_without_unknown_nodes_is_one_group(case: tuple[Model, set[int]]) -> None:
    model, unknown = case
    groups, _ = claim(model, EDGE)
    if not unknown:
        assert len(groups) == 1


def test_a_node_behind_an_unknown_one_is_read_with_its_declared_type() -> None:
    nodes = [
        helper.make_node("Unknown", ["x"], ["a"], name="first", domain="test"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
        helper.make_node("StringNormalizer", ["b"], ["c"], name="third"),
    ]
    groups, refused = claim(model_of(nodes, ["c"]), EDGE)
    assert groups == [[1]]
    assert refused.keys() == {0, 2}


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.STRING, TensorProto.UINT64])
def test_types_that_do_not_pass_to_the_device(kind: int) -> None:
    groups, refused = claim(model_of([helper.make_node("Identity", ["x"], ["y"], name="n")], ["y"], kind), EDGE)
    assert groups == []
    assert "does not pass" in refused[0]


def test_open_sizes_of_which_no_usual_ones_fit() -> None:
    """Whether the device supports the node is then unknown."""
    w = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="n")],
        "g",
        [value("x", F, ["rows", "columns"])],
        [value("y", F, ["rows", 8])],
        [w],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    groups, refused = claim(Model(model), EDGE)
    assert groups == []
    assert "inner dimensions differ" in refused[0]


def test_an_unknown_operator_in_a_branch_refuses_its_node() -> None:
    branch = helper.make_graph(
        [helper.make_node("Unknown", ["x"], ["t"], name="inner", domain="test")], "branch", [], [value("t", F, [4])]
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], name="n", then_branch=branch, else_branch=branch)],
        "g",
        [value("x", F, [4]), value("c", TensorProto.BOOL, [])],
        [value("y", F, [4])],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("test", 1)]
    groups, refused = claim(Model(helper.make_model(graph, opset_imports=sets, ir_version=8)), EDGE)
    assert groups == []
    assert "n/inner" in refused[0]


def test_a_circle_is_refused() -> None:
    nodes = [helper.make_node("Relu", ["b"], ["a"], name="1"), helper.make_node("Relu", ["a"], ["b"], name="2")]
    with pytest.raises(ModelError, match="before it is produced"):
        claim(model_of(nodes, ["b"]), EDGE)
