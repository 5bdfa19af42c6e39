"""Models of operator sets older than the importers know."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from npusim.errors import ModelError, UnsupportedError
from npusim.frontends.onnx import load, versions
from npusim.frontends.onnx.versions import FIRST_OPSET, OLDEST_OPSET, has_converter
from npusim.ops.reference import run
from tests.support.onnx_models.small import text_model

converts = pytest.mark.skipif(not has_converter(), reason="this onnx converts nothing that may be damaged")

X = np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)


def outputs(model: onnx.ModelProto | str, *arrays: np.ndarray, **shapes: tuple[int, ...]) -> list[np.ndarray]:
    graph = load(model, input_shapes=shapes)
    return list(run(graph, dict(zip((tensor.name for tensor in graph.inputs), arrays, strict=True))).values())


@converts
@pytest.mark.parametrize("opset", range(FIRST_OPSET, OLDEST_OPSET))
@pytest.mark.parametrize(
    ("axis", "shape", "aligned"),
    [
        (1, (3,), (3, 1)),
        (0, (3,), (3, 1, 1)),
        (2, (3,), (3,)),
        (-2, (3,), (3, 1)),
        (1, (3, 3), (3, 3)),
        (0, (1,), (1,)),
    ],
)
def test_broadcasting_as_an_attribute_is_understood(
    opset: int, axis: int, shape: tuple[int, ...], aligned: tuple[int, ...]
) -> None:
    """At each axis, with all dimensions equal, so that any alignment would be valid."""
    x, bias = np.arange(27, dtype=np.float32).reshape(3, 3, 3), np.arange(1, 10, dtype=np.float32)[: math.prod(shape)]
    model = text_model(
        f"g (float[3,3,3] x, float{list(shape)} b) => (float[3,3,3] y) {{\n"
        f"  t = Neg(x)\n y = Sub <broadcast = 1, axis = {axis}> (t, b)\n}}",
        opset,
    )
    np.testing.assert_array_equal(outputs(model, x, bias.reshape(shape))[0], -x - bias.reshape(aligned))


@converts
def test_a_shape_as_an_attribute_is_understood() -> None:
    model = text_model("g (float[2,3,4] x) => (float[4,6] y) { y = Reshape <shape = [4, 6]> (x) }", opset=4)
    np.testing.assert_array_equal(outputs(model, X)[0], X.reshape(4, 6))


@converts
def test_operators_keep_their_names_and_declared_types_are_still_held_against_what_is_computed() -> None:
    model = text_model("g (float[4] x) => (float[4] y) { [squash] t = Tanh(x) y = Abs(t) }", opset=6)
    assert [op.name for op in load(model).ops if "squash" in op.name] == ["squash"]
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    with pytest.raises(ModelError, match="'y' is declared as int8 but computed as float32"):
        load(model)


@converts
def test_the_slope_of_a_prelu_is_one_for_each_channel() -> None:
    """Even if it could also be broadcast from the last dimension."""
    x, slope = np.arange(-18, 0, dtype=np.float32).reshape(2, 3, 3), np.array([1, 2, 3], np.float32)
    model = text_model("g (float[2,3,3] x) => (float[2,3,3] y) { y = PRelu(x, slope) }", opset=6)
    model.graph.input.append(helper.make_tensor_value_info("slope", onnx.TensorProto.FLOAT, [3]))
    model.graph.initializer.append(numpy_helper.from_array(slope, "slope"))
    np.testing.assert_array_equal(outputs(model, x)[0], x * slope[:, None])


@converts
@pytest.mark.parametrize("parsed", [True, False])
def test_weights_stay_where_they_are(tmp_path: Path, parsed: bool) -> None:
    """In the bytes of the file, or in a file beside it."""
    weight = np.random.default_rng(0).standard_normal((4, 1024)).astype(np.float32)
    model = text_model("g (float[3,4] x, float[4,1024] w) => (float[3,1024] y) { y = MatMul(x, w) }", opset=5)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=parsed, location="weights", size_threshold=0)
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(outputs(str(path), x)[0], x @ weight, rtol=1e-5)


@converts
def test_open_dimensions_are_asked_for_and_taken() -> None:
    model = text_model("g (float[M,3] x, float[3] b) => (float[M,3] y) { y = Add <broadcast = 1> (x, b) }", opset=6)
    with pytest.raises(ModelError, match="the model leaves input shapes open"):
        load(model)
    assert outputs(model, np.ones((5, 3), np.float32), np.ones(3, np.float32), x=(5, 3))[0].shape == (5, 3)


@converts
def test_the_converters_refusal_is_the_models() -> None:
    model = text_model("g (float[4] x, float[4] y) => (bool[4] z) { z = Greater<broadcast = 1>(x, y) }", opset=1)
    with pytest.raises(UnsupportedError, match=r"operator set 1 cannot be converted to 7: No Adapter .* for Greater"):
        load(model)


@converts
@pytest.mark.parametrize(
    "text", ["y = PRelu(x)", "y = Relu(z)", "y = Relu()", "q = Relu(x)", "y = Nonsense(x)", "y = Loop(x)"]
)
def test_damaged_models_are_refused(text: str) -> None:
    with pytest.raises((ModelError, UnsupportedError)):
        load(text_model(f"g (float[4] x) => (float[4] y) {{ {text} }}", opset=6))


def test_a_package_whose_converter_crashes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.onnx, "__version__", "1.17.0")
    model = text_model("g (float[4] x) => (float[4] y) { y = Relu(x) }", opset=6)
    with pytest.raises(
        UnsupportedError, match=r"operator set 6 is converted by onnx 1\.23 or newer; here is onnx 1\.17\.0"
    ):
        load(model)
