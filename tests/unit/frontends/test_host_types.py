"""Types and operators that the device does not have: the host computes them by the reference evaluator."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npusim.errors import InputError, UndecidedError, UnsupportedError
from npusim.runtime import Session
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.small import node_model, text_model


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("tiny", cache_dir=False) as session:
        yield session


@given(
    st.sampled_from([np.uint32, np.uint64, np.float64]),
    st.sampled_from(["Add", "Mul", "Div", "Max"]),
    st.integers(0, 9),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arithmetic(session: Session, dtype: Any, op_type: str, seed: int) -> None:
    """Numbers that need all bits of their type."""
    rng = np.random.default_rng(seed)
    if dtype is np.float64:
        fed = {name: rng.standard_normal((3, 4)) for name in "ab"}
    else:
        fed = {name: rng.integers(1, np.iinfo(dtype).max, (3, 4), dtype, endpoint=True) for name in "ab"}
    model = node_model(op_type, fed)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y0", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    )
    (wanted,) = ReferenceEvaluator(model).run(None, fed)
    result = session.run(model, fed)
    assert result.outputs["y0"].dtype == dtype
    np.testing.assert_array_equal(result.outputs["y0"], wanted)


def test_the_device_computes_what_it_can(session: Session) -> None:
    """Only the operators between two casts are on the host."""
    model = text_model(
        "g (float[2, 4] x) => (float[2, 4] y) { a = Relu(x) b = Cast<to = 11>(a) c = Add(b, b) d = Cast<to = 1>(c)"
        " y = Tanh(d) }"
    )
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    result = session.run(model, {"x": x})
    np.testing.assert_allclose(result.outputs["y"], np.tanh(2 * np.maximum(x, 0)), rtol=1e-6)
    assert result.decisions.count == 3
    with pytest.raises(UndecidedError, match="float64"):
        session.compile(model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tree_ensembles(session: Session, dtype: Any) -> None:
    """Two stumps: their sums, before arithmetic on the device."""
    tree = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["t"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=[0, 0, 0, 1, 1, 1], nodes_nodeids=[0, 1, 2] * 2, nodes_featureids=[0, 0, 0, 2, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2, nodes_values=[0.25, 0.0, 0.0, -0.5, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0] * 2, nodes_falsenodeids=[2, 0, 0] * 2, target_treeids=[0, 0, 1, 1],
        target_nodeids=[1, 2] * 2, target_ids=[0] * 4, target_weights=[1.0, -2.0, 3.0, 0.5],
    )  # fmt: skip
    graph = helper.make_graph(
        [tree, helper.make_node("Sigmoid", ["t"], ["y"])], "trees",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [5, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 1])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    fed = {"x": np.random.default_rng(0).standard_normal((5, 3)).astype(dtype)}
    wanted = runtime_outputs(model, fed)["y"]
    np.testing.assert_allclose(session.run(model, fed).outputs["y"], wanted, rtol=1e-6)


@pytest.mark.parametrize("momentum", [0.9, 0.25])
def test_batch_normalization_in_training(session: Session, momentum: float) -> None:
    rng = np.random.default_rng(0)
    fed = {"x": rng.standard_normal((4, 3, 5)).astype(np.float32)}
    fed |= {name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in ("scale", "bias", "mean", "variance")}
    model = node_model("BatchNormalization", fed, outputs=3, training_mode=1, momentum=momentum)
    found = session.run(model, fed)
    for name, wanted in zip(("y0", "y1", "y2"), ReferenceEvaluator(model).run(None, fed), strict=True):
        np.testing.assert_allclose(found.outputs[name], wanted, rtol=1e-5, atol=1e-6)
    assert found.decisions is None


def test_a_missing_library_is_named(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    fed = {"x": np.zeros(9, np.uint8)}
    model = node_model("ImageDecoder", fed, pixel_format="RGB")
    with pytest.raises(Exception, match="Pillow"):
        session.run(model, fed)


def test_an_expression_takes_no_more_than_linear_time(session: Session) -> None:
    """Python's own expressions would take longer than the age of the universe."""
    pytest.importorskip("re2")
    fed = {"x": np.array([["a" * 100, "aab"], ["", "b"]], object)}
    found = session.run(node_model("RegexFullMatch", fed, pattern="(a+)+b"), fed)
    assert found.outputs["y0"].tolist() == [[False, True], [False, False]]
    with pytest.raises(InputError, match=r"RegexFullMatch.*'\(' is no expression of RE2"):
        session.run(node_model("RegexFullMatch", fed, pattern="("), fed)


WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3), min_size=1, max_size=4)


@given(WORDS, st.booleans(), st.sampled_from(["StringConcat", "Equal", "Identity", "Concat", "Reshape"]))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_strings(session: Session, words: list[str], objects: bool, op_type: str) -> None:
    """Also a constant, and an operator that is arithmetic for other types."""
    inputs = {"a": np.array(words, object), "b": np.array([word[::-1] for word in words], object)}
    if op_type == "Reshape":
        inputs["b"] = np.array([-1, 1])
    elif op_type == "Identity":
        del inputs["b"]
    options: dict[str, Any] = {"axis": 0} if op_type == "Concat" else {}
    model = node_model(op_type, inputs, ("b",) if "b" in inputs else (), **options)
    (wanted,) = ReferenceEvaluator(model).run(None, {"a": inputs["a"]})
    result = session.run(model, {"a": np.array(words, object if objects else None)})
    assert result.outputs["y0"].tolist() == wanted.tolist()
    assert result.decisions.count == 1


def test_strings_in_branches(session: Session) -> None:
    """One captures them and another returns them as they are."""
    model = text_model(
        "g (bool[1] c, string[2] x) => (string[2] y, int64[1] n) { y = If(c) <"
        "  then_branch = t () => (string[2] a) { a = StringConcat(x, x) },"
        "  else_branch = e () => (string[2] b) { b = Identity(x) }> m = Shape(y) n = Add(m, m) }"
    )
    x = np.array(["a", "bc"])
    for taken, wanted in ((True, ["aa", "bcbc"]), (False, ["a", "bc"])):
        outputs = session.run(model, {"c": np.array([taken]), "x": x}).outputs
        assert outputs["y"].tolist() == wanted
        assert outputs["n"].tolist() == [4]


@pytest.mark.parametrize("value", [None, np.ones(2), np.array([b"a", b"b"]), 2, np.array([1, "b"], object)])
def test_values_that_are_no_strings(session: Session, value: Any) -> None:
    model = node_model("StringConcat", {"a": np.array(["", ""], object), "b": np.array(["", ""], object)}, ("b",))
    with pytest.raises(InputError):
        session.run(model, {"a": value})


@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout", "RandomUniform"])
@pytest.mark.parametrize("seed", [None, 3])
def test_random_numbers_are_the_same_in_each_run(session: Session, op_type: str, seed: int | None) -> None:
    """With a seed of the model, those of the evaluator; two nodes without one have different ones."""
    kind = int if op_type == "Dropout" else float
    attributes: dict[str, Any] = {} if seed is None else {"seed": kind(seed)}
    inputs = [] if op_type == "RandomUniform" else ["x"]
    attributes |= {"shape": [40]} if op_type == "RandomUniform" else {}
    # The evaluator does not know the default of the ratio.
    inputs += ["ratio" if seed else "", "training"] if op_type == "Dropout" else []
    nodes = [helper.make_node(op_type, inputs, [name], name=name, **attributes) for name in "ab"]
    weights = [
        numpy_helper.from_array(np.array(True), "training"),
        numpy_helper.from_array(np.array(0.5, np.float32), "ratio"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [40]) for name in "xab"]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    x = np.full(40, 0.5, np.float32)
    first, second = (session.run(model, {"x": x}).outputs for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in "ab")
    assert np.array_equal(first["a"], first["b"]) == (seed is not None)
    assert 0 < np.count_nonzero(first["a"] != first["a"][0]) < 40
    if seed is not None:
        np.testing.assert_array_equal(first["a"], ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_random_tensors_have_a_limit(session: Session) -> None:
    with pytest.raises(UnsupportedError, match="random tensor"):
        session.run(node_model("RandomUniform", {}, shape=[1 << 20, 1 << 20]), {})


def test_images_are_decoded(session: Session) -> None:
    """A bitmap of one row; data that is no image is refused."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 4, 3)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "bmp")
    encoded = np.frombuffer(file.getvalue(), np.uint8)
    model = node_model("ImageDecoder", {"x": encoded}, pixel_format="RGB")
    assert np.array_equal(session.run(model, {"x": encoded}).outputs["y0"], pixels)
    with pytest.raises(InputError, match="cannot be computed"):
        session.run(node_model("ImageDecoder", {"x": encoded[:9]}), {"x": encoded[:9]})
