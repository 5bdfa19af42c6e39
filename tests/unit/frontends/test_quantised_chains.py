"""Operators between quantised layers: integers in memory, and the bits of onnxruntime's floats."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.frontends.onnx import load
from npusim.hw.config import load_config
from tests.support.examples import examples
from tests.support.graphs.execution import interpreted
from tests.support.onnx_models.oracle import runtime_outputs
from tests.support.onnx_models.quantised_chains import MOVING, STEPS, Chains, inputs_of

TINY = load_config("tiny")
INTEGERS = (np.int8, np.uint8, np.int16)


def grown(kinds: list[str], seed: int, dtype: npt.DTypeLike, **how: bool) -> Chains:
    chains = Chains(Random(seed), dtype, **how)
    chains.input(1, 4, 5, 6)
    chains.input(1, 4, 5, 6)
    for kind in kinds:
        chains.step(kind)
    return chains


def check(chains: Chains) -> None:
    """Compare with onnxruntime, which computes node by node. No float is passed between groups."""
    model = chains.model()
    fed = inputs_of(model, 1)
    graph = load(model)
    prepared = prepare(graph, TINY)
    stored = [tensor for group in form_groups(prepared.ops, prepared.outputs) for tensor in group.outputs]
    assert not [tensor for tensor in stored if tensor.dtype.is_float and tensor.size > 1]
    (wanted,) = runtime_outputs(model, fed, optimise=False).values()
    (got,) = interpreted(compile_graph(graph, TINY), TINY, fed).values()
    np.testing.assert_array_equal(got, wanted)


@given(
    st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=4),
    st.integers(0, 1 << 20),
    st.sampled_from(INTEGERS),
    st.booleans(),
)
@settings(max_examples=examples(60))
def test_chains_with_exact_scales(kinds: list[str], seed: int, dtype: npt.DTypeLike, equal: bool) -> None:
    """With powers of two as scales, float sums do not depend on their order."""
    check(grown(kinds, seed, dtype, equal=equal, exact=True))


@given(
    st.lists(
        st.sampled_from([kind for kind in STEPS if kind not in ("AveragePool", "GlobalAveragePool", "linear Resize")]),
        min_size=1, max_size=4,
    ),
    st.integers(0, 1 << 20),
    st.sampled_from(INTEGERS),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(60))
def test_chains_with_any_scales(kinds: list[str], seed: int, dtype: npt.DTypeLike, equal: bool) -> None:
    check(grown(kinds, seed, dtype, equal=equal, exact=False))


@pytest.mark.parametrize("kind", MOVING)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_movement_with_equal_scales_computes_nothing(kind: str, dtype: npt.DTypeLike) -> None:
    graph = load(grown([kind], 3, dtype, equal=True, exact=False).model())
    kinds = {op.kind for op in prepare(graph, TINY).ops}
    assert not kinds & {"quantize", "dequantize", "lookup"}, kinds


def _microsoft(kind: str, constants: dict[str, npt.NDArray[Any]], output: int, **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(kind, ["x", *constants], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node],
        kind,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (5, 8))],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _as_onnxruntime(model: onnx.ModelProto) -> None:
    fed = {"x": np.random.default_rng(0).integers(0, 256, (5, 8), np.uint8)}
    (wanted,) = runtime_outputs(model, fed, optimise=False).values()
    (got,) = interpreted(compile_graph(load(model), TINY), TINY, fed).values()
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "scales of columns"])
@pytest.mark.parametrize("real", [False, True], ids=["requantised", "numbers"])
def test_qgemm(columns: bool, real: bool) -> None:
    rng = np.random.default_rng(1)
    constants: dict[str, npt.NDArray[Any]] = {
        "s": np.array(0.05, np.float32),
        "z": np.array(7, np.uint8),
        "b": rng.integers(-127, 128, (6, 8), np.int8),
        "bs": rng.uniform(0.1, 1, 6).astype(np.float32) if columns else np.array(0.02, np.float32),
        "bz": np.zeros(6 if columns else (), np.int8),
        "c": rng.integers(-999, 999, 6, np.int32),
    }
    if not real:
        constants |= {"ys": np.array(3 if columns else 0.3, np.float32), "yz": np.array(120, np.uint8)}
    output = TensorProto.FLOAT if real else TensorProto.UINT8
    _as_onnxruntime(_microsoft("QGemm", constants, output, alpha=1.0 if real else 0.5, transB=1))


def test_qlinear_softmax() -> None:
    constants = {
        "s": np.array(0.05, np.float32), "z": np.array(7, np.uint8),
        "ys": np.array(1 / 256, np.float32), "yz": np.array(0, np.uint8),
    }  # fmt: skip
    _as_onnxruntime(_microsoft("QLinearSoftmax", constants, TensorProto.UINT8, axis=-1, opset=13))
