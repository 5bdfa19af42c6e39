"""NonMaxSuppression: selections as onnxruntime makes them, with the boxes compared on the device or on the host."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from npusim import Session, load_config
from npusim.errors import InputError
from npusim.frontends.onnx import suppression
from tests.support.examples import examples
from tests.support.onnx_models.oracle import runtime_outputs

TINY = load_config("tiny")
SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(12, 40))


def model(batches: int, classes: int, boxes: int, center: bool, threshold: bool) -> onnx.ModelProto:
    inputs = ["boxes", "scores", "most", "limit"] + ["threshold"] * threshold
    node = helper.make_node("NonMaxSuppression", inputs, ["y"], name="nms", center_point_box=int(center))
    # A product, so that the scores come from the device.
    scaled = helper.make_node("Mul", ["raw", "two"], ["scores"])
    values = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [batches, boxes, 4]),
        helper.make_tensor_value_info("raw", TensorProto.FLOAT, [batches, classes, boxes]),
    ]
    constants = [
        helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]),
        helper.make_tensor("most", TensorProto.INT64, [1], [5]),
        helper.make_tensor("limit", TensorProto.FLOAT, [1], [0.3]),
        helper.make_tensor("threshold", TensorProto.FLOAT, [1], [0.9]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 3])]
    graph = helper.make_graph([scaled, node], "nms", values, outputs, constants[: 3 + threshold])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(shape: tuple[int, int, int], center: bool, threshold: bool, seed: int, session: Session) -> None:
    batches, classes, boxes = shape
    rng = np.random.default_rng(seed)
    # Corners on a grid, in any order, so that ratios of areas are exact or far from the limit; many scores are equal.
    corners = rng.integers(0, 12, (batches, boxes, 4)).astype(np.float32)
    if center:
        corners[..., 2:] = np.maximum(corners[..., 2:], 1)
    inputs = {"boxes": corners, "raw": (rng.integers(0, 8, (batches, classes, boxes)) / 8).astype(np.float32)}
    case = model(*shape, center, threshold)
    result = session.run(case, inputs)
    np.testing.assert_array_equal(result.outputs["y"], runtime_outputs(case, inputs)["y"])
    assert result.decisions is not None
    assert result.decisions.runs >= 1


@settings(max_examples=examples(6), deadline=None)
@given(SHAPES, st.booleans(), st.booleans(), st.integers(0, 1000))
def test_selections(shape: tuple[int, int, int], center: bool, threshold: bool, seed: int) -> None:
    with Session(TINY, cache_dir=False) as session:
        check(shape, center, threshold, seed, session)


@pytest.mark.parametrize("seed", range(4))
def test_the_host_compares_boxes_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppression, "MOST_CANDIDATES", 0)
    with Session(TINY, cache_dir=False) as session:
        check((2, 2, 30), bool(seed % 2), seed > 1, seed, session)


def test_few_numbers_of_candidates_need_a_program() -> None:
    assert {suppression.padded(count) for count in range(1, 2049)} == {16, 32, 64, 128, 256, 512, 1024, 2048}
    assert all(suppression.padded(count) >= count for count in range(1, 5000))


def test_the_device_compares_the_boxes() -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "boxes": rng.random((1, 40, 4)).astype(np.float32),
        "raw": rng.random((1, 1, 40)).astype(np.float32),
    }
    with Session(TINY, cache_dir=False) as session:
        result = session.run(model(1, 1, 40, True, False), inputs)
    kinds = {op.kind for op in result.ops if op.name.startswith("nms/")}
    assert any("div" in kind for kind in kinds), kinds


def test_shapes_that_do_not_fit() -> None:
    case = model(1, 2, 30, False, False)
    case.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 31
    inputs = {"boxes": np.zeros((1, 30, 4), np.float32), "raw": np.zeros((1, 2, 31), np.float32)}
    with (
        Session(TINY, cache_dir=False) as session,
        pytest.raises(InputError, match=r"nms \(NonMaxSuppression\): scores"),
    ):
        session.run(case, inputs)
