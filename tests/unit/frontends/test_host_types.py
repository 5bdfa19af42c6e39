"""Types and operators that the device does not have: the host computes them by the reference evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from npusim.errors import UndecidedError
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
