"""Zero points of integer weights stay separate if the matrix unit can subtract them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.errors import ModelError
from npusim.frontends.onnx import load
from npusim.graph import Op
from npusim.hw.config import load_config
from tests.support.graphs.execution import interpreted
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.small import Array, evaluate, node_model

RNG = np.random.default_rng(7)
SCALE, ZERO = np.float32(0.5), np.uint8(120)
TINY = load_config("tiny")


def byte(*shape: int) -> Array:
    return RNG.integers(0, 256, shape, np.uint8)


def case(op_type: str, zero: Array) -> dict[str, Any]:
    """Return the inputs of a node by name; w, w_zero are its weights and their zero point."""
    x, w = (byte(1, 4, 5, 5), byte(6, 4, 3, 3)) if "Conv" in op_type else (byte(5, 8), byte(8, 6))
    given = {"x": x, "x_scale": SCALE, "x_zero": np.uint8(9), "w": w, "w_scale": SCALE, "w_zero": zero}
    if op_type.startswith("QLinear"):
        return given | {"y_scale": np.float32(99), "y_zero": np.uint8(128)}
    return {name: given[name] for name in ("x", "w", "x_zero", "w_zero")}


def product(op_type: str, given: dict[str, Any], constants: list[str]) -> Op:
    """Return the only matrix operator after comparing outputs: references, onnxruntime and the simulated device."""
    model, fed = node_model(op_type, given, constants), {n: a for n, a in given.items() if n not in constants}
    graph = load(model)
    (mine,), wanted = evaluate(model, fed), runtime_outputs(model, fed, optimise=False)["y0"]
    np.testing.assert_array_equal(mine, wanted)
    np.testing.assert_array_equal(interpreted(compile_graph(graph, TINY), TINY, fed)["y0"], wanted)
    (op,) = (op for op in graph.ops if op.kind in ("conv", "matmul"))
    return op


every = pytest.mark.parametrize("op_type", ["QLinearConv", "ConvInteger", "QLinearMatMul", "MatMulInteger"])


@every
@pytest.mark.parametrize("known", [True, False], ids=["constant", "computed"])
def test_one_zero_point_stays(op_type: str, known: bool) -> None:
    given = case(op_type, ZERO)
    constants = [name for name in given if name != "x" and (known or name != "w")]
    op = product(op_type, given, constants)
    assert (op.input(1).dtype, op.attrs["x_zero"], op.attrs["w_zero"]) == (DType.UINT8, 9, 120)


@pytest.mark.parametrize("op_type", ["QLinearConv", "QLinearMatMul", "MatMulInteger"])
def test_equal_zero_points_are_one(op_type: str) -> None:
    given = case(op_type, np.full(6, ZERO))
    op = product(op_type, given, [name for name in given if name != "x"])
    assert (op.input(1).dtype, op.attrs["w_zero"]) == (DType.UINT8, 120)


@pytest.mark.parametrize("op_type", ["QLinearMatMul", "MatMulInteger"])
def test_zero_points_that_differ_are_subtracted(op_type: str) -> None:
    given = case(op_type, np.arange(118, 124, dtype=np.uint8))
    op = product(op_type, given, [name for name in given if name != "x"])
    assert (op.input(1).dtype, op.attrs["w_zero"]) == (DType.INT16, 0)


@every
def test_equal_zero_points_of_no_channel_are_refused(op_type: str) -> None:
    given = case(op_type, np.full(5, ZERO))
    with pytest.raises(ModelError):
        load(node_model(op_type, given, [name for name in given if name != "x"]))
