"""The same products in uint8, with the largest values, for which sums of two products would saturate in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.onnx_models.builder import ModelBuilder
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.unsigned import unsigned

Array = npt.NDArray[Any]
RESULT_SCALE = np.float32(2**14)

types = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def outputs(build: ModelBuilder, output: str, x: Array) -> Array:
    """Return the outputs of onnxruntime for the model in uint8."""
    model = unsigned(build.finish([output]))
    onnx.checker.check_model(model)
    stored = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if "QLinear" in node.op_type or "Integer" in node.op_type]
    assert all(stored.get(name) != TensorProto.INT8 for node in products for name in node.input)
    (result,) = runtime_outputs(model, {"x": x}, optimise=False).values()
    return result


def begun(shape: tuple[int, ...], dtype: type[np.generic]) -> tuple[ModelBuilder, Array, Array]:
    """Return a model with an input, the largest values for it, and a zero point that makes them larger still."""
    build = ModelBuilder("largest")
    build.input("x", shape, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    info = np.iinfo(dtype)
    return build, np.full(shape, info.max, dtype), np.array(info.min + 1, dtype)


def requantised(sums: Array, dtype: type[np.generic]) -> Array:
    """Return sums divided by the scale of the result; its zero point is 3."""
    info = np.iinfo(dtype)
    return np.clip(np.rint(sums / RESULT_SCALE) + 3, info.min, info.max).astype(dtype)


def operands(build: ModelBuilder, zero: Array, weight: Array) -> list[str]:
    """Return the operands of a quantised product with scales of 1."""
    one = build.const(np.float32(1))
    result = (build.const(RESULT_SCALE), build.const(np.array(3, zero.dtype)))
    return ["x", one, build.const(zero), build.const(weight), one, build.const(np.int8(-2)), *result]


@types
def test_a_matrix_product_in_integers(dtype: type[np.generic]) -> None:
    build, x, zero = begun((3, 70), dtype)
    weight = np.full((70, 5), 127, np.int8)
    name = build.op("MatMulInteger", "x", build.const(weight), build.const(zero), build.const(np.int8(-2)))
    sums = (x.astype(np.int64) - zero) @ (weight.astype(np.int64) + 2)
    np.testing.assert_array_equal(outputs(build, name, x), sums)


@types
def test_a_quantised_matrix_product(dtype: type[np.generic]) -> None:
    build, x, zero = begun((3, 70), dtype)
    weight = np.full((70, 5), 127, np.int8)
    weight[:, 2] = -127
    name = build.op("QLinearMatMul", *operands(build, zero, weight))
    sums = (x.astype(np.int64) - zero) @ (weight.astype(np.int64) + 2)
    np.testing.assert_array_equal(outputs(build, name, x), requantised(sums, dtype), strict=True)


@types
def test_a_quantised_convolution(dtype: type[np.generic]) -> None:
    build, x, zero = begun((1, 20, 5, 5), dtype)
    weight = np.full((6, 20, 3, 3), 127, np.int8)
    weight[2] = -127
    name = build.op("QLinearConv", *operands(build, zero, weight))
    sums = (x.astype(np.int64).max() - zero) * (weight.astype(np.int64) + 2).sum(axis=(1, 2, 3))
    expected = np.broadcast_to(requantised(sums, dtype)[:, None, None], (1, 6, 3, 3))
    np.testing.assert_array_equal(outputs(build, name, x), expected, strict=True)
