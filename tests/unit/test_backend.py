"""npusim.backend: the functions of the onnx package's backend interface."""

from __future__ import annotations

import unittest

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.base import Backend

import npusim.backend
from npusim.errors import InputError, ModelError, UnsupportedError, UsageError
from tests.support.onnx_models.small import text_model

X, Y = np.float32([[1, 2], [3, 4]]), np.float32([[10, 20], [30, 40]])
MODEL = text_model("g (float[2,2] x, float[2,2] y) => (float[2,2] sum, float[2,2] z) { sum = Add(x, y) z = Sub(x, y) }")
RESHAPE = text_model("g (float[2,2] x, int64[1] shape) => (float[N] y) { y = Reshape(x, shape) }")
COMPLEX = text_model("g (complex64[2] x) => (complex64[2] y) { y = Identity(x) }")


def test_the_module_has_every_function_of_the_interface() -> None:
    wanted = [name for name, value in vars(Backend).items() if isinstance(value, classmethod)]
    assert wanted
    assert all(callable(getattr(npusim.backend, name)) for name in wanted)


@pytest.mark.parametrize("inputs", [[X, Y], (X, Y), {"y": Y, "x": X}])
def test_inputs_come_in_order_or_by_name_and_outputs_have_both(inputs: object) -> None:
    result = npusim.backend.run_model(MODEL, inputs, config="tiny")
    np.testing.assert_array_equal(result[0], X + Y)
    np.testing.assert_array_equal(result.sum, X + Y)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(result["z"], X - Y)  # type: ignore[call-overload]


def test_one_array_is_the_only_input() -> None:
    model = text_model("g (float[2,2] x) => (float[2,2] y) { y = Neg(x) }")
    np.testing.assert_array_equal(npusim.backend.run_model(model, X)[0], -X)


def test_a_model_is_prepared_once_and_run_often() -> None:
    rep = npusim.backend.prepare(MODEL, config="tiny")
    for factor in (1, 2):
        np.testing.assert_array_equal(rep.run([factor * X, Y])[0], factor * X + Y)
    with pytest.raises(InputError, match="3 inputs are given, the model takes x, y"):
        rep.run([X, Y, X])


def test_what_inputs_decide_is_compiled_when_it_is_run() -> None:
    rep = npusim.backend.prepare(RESHAPE, config="tiny")
    np.testing.assert_array_equal(rep.run([X, np.int64([4])])[0], X.reshape(4))


@pytest.mark.parametrize(
    ("device", "supported"), [("CPU", True), ("CPU:0", True), ("CUDA", False), ("TPU", False), ("CPU:x", False)]
)
def test_the_device_is_the_cpu(device: str, supported: bool) -> None:
    assert npusim.backend.supports_device(device) is supported
    if not supported:
        with pytest.raises(UsageError, match=f"device must be CPU, is '{device}'"):
            npusim.backend.prepare(MODEL, device)


def test_what_is_refused_is_skipped_with_its_reason() -> None:
    assert npusim.backend.is_compatible(MODEL)
    assert not npusim.backend.is_compatible(COMPLEX)
    with pytest.raises(UnsupportedError, match="complex64 is not supported") as caught:
        npusim.backend.prepare(COMPLEX)
    assert isinstance(caught.value, unittest.SkipTest)


def test_what_does_not_fit_the_device_is_refused_by_name() -> None:
    model = text_model("""g (float[1,1,900,900] x) => (float[1,1,N,M] y) {
        y = MaxPool <kernel_shape = [60, 80], dilations = [10, 10]> (x) }""")
    with pytest.raises(npusim.backend.BackendUnsupportedError, match="the device has"):
        npusim.backend.prepare(model, config="tiny")


def test_a_damaged_model_is_not_taken_for_one_that_is_not_supported() -> None:
    model = text_model("g (int32[2] x) => (int32[2] y) { y = Relu(x) }", opset=13)
    with pytest.raises(ModelError, match=r"input 0 \('x'\) is int32, must be float16, bfloat16, float32"):
        npusim.backend.is_compatible(model)


@pytest.mark.parametrize(("version", "supported"), [(0, False), (1, True), (onnx.defs.onnx_opset_version() + 1, False)])
def test_operator_sets(version: int, supported: bool) -> None:
    model = helper.make_model(MODEL.graph, opset_imports=[helper.make_opsetid("", version)])
    assert npusim.backend.is_opset_supported(model)[0] is supported
    assert bool(npusim.backend.is_opset_supported(model)[1]) is not supported


def test_a_node_alone() -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = npusim.backend.run_node(node, [X, np.float32(2.5)])
    np.testing.assert_array_equal(y, X.clip(None, 2.5))
    old = helper.make_node("Clip", ["x"], ["y"], max=2.5)
    np.testing.assert_array_equal(npusim.backend.run_node(old, [X], opset_version=6)[0], X.clip(None, 2.5))
