"""Models with relaxed FLOAT32: computed as FLOAT16 where that is faster or the only way, and exactly elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from hal.nnapi import open_device
from hal.nnapi.operations import REGISTRY
from hal.nnapi.operations.constants import Constants
from hal.nnapi.operations.view import STORAGE
from hal.nnapi.plan import Plan, Vocabulary
from hal.nnapi.types import ErrorStatus, Model, OperandType, OperationType
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.program import Program
from tests.support.examples import examples
from tests.support.nnapi.client import Frame, execute_sync, prepare, prepared_model
from tests.support.nnapi.one_operation import build, given, i32, result, run, run_one, scalar, vector
from tests.support.nnapi_examples.running import HostBackend

T, Op = OperandType, OperationType
F32 = T.TENSOR_FLOAT32
RNG = np.random.default_rng(7)
X, W, B = RNG.normal(size=(3, 64)), RNG.normal(size=(32, 64)), RNG.normal(size=32)


def dense() -> Model:
    """Build one FULLY_CONNECTED, which needs the matrix unit."""
    return build(
        Op.FULLY_CONNECTED, [given(F32, X), given(F32, W, const=True), given(F32, B, const=True), i32(0)],
        [result(F32, dims=(3, 32))],
    )  # fmt: skip


def relaxed(model: Model) -> Model:
    model.relaxComputationFloat32toFloat16 = True
    return model


def output(prepared: Any, *inputs: Any, size: int = 3 * 32) -> Any:
    frame = Frame([np.asarray(each, np.float32) for each in inputs], [4 * size])
    outcome = execute_sync(prepared, frame, 1)
    assert outcome.status is ErrorStatus.NONE
    return np.frombuffer(outcome.raw[0], np.float32), outcome.timing


@pytest.mark.parametrize("config", ["rk3588_core", "intel_npu27"])
def test_half_precision_is_the_only_way_on_a_device_without_products_of_floats(config: str) -> None:
    with open_device(config) as device:
        assert device.getSupportedOperations_1_3(dense()) == (ErrorStatus.NONE, [False])
        assert device.getSupportedOperations_1_3(relaxed(dense())) == (ErrorStatus.NONE, [True])
        found, _ = output(prepared_model(device, relaxed(dense())), X)
    wanted = (X.astype(np.float32) @ W.astype(np.float32).T + B).reshape(-1)
    np.testing.assert_allclose(found, wanted, rtol=5 * 2.0**-10, atol=0.05)
    assert not np.array_equal(found, wanted)
    with open_device(config, strict_float32=True) as device:
        assert device.getSupportedOperations_1_3(relaxed(dense())) == (ErrorStatus.NONE, [False])
        assert prepare(device, relaxed(dense()))[1] is ErrorStatus.GENERAL_FAILURE


def big() -> Model:
    """Build a product whose weights take longer to load as FLOAT32."""
    weights = np.ones((256, 512), np.float32)
    return build(
        Op.FULLY_CONNECTED,
        [given(F32, np.ones((1, 512))), given(F32, weights, const=True), given(F32, np.ones(256), const=True), i32(0)],
        [result(F32, dims=(1, 256))],
    )


def test_the_faster_way_is_used_and_a_switch_keeps_it_exact() -> None:
    x = np.full((1, 512), 1 + 2.0**-12)  # rounds to 1 as FLOAT16
    with open_device("edge") as device:
        exact, slow = output(prepared_model(device, big()), x, size=256)
        half, fast = output(prepared_model(device, relaxed(big())), x, size=256)
    with open_device("edge", strict_float32=True) as device:
        strict, same = output(prepared_model(device, relaxed(big())), x, size=256)
    assert fast.timeOnDevice < slow.timeOnDevice == same.timeOnDevice
    assert half.tolist() == [513.0] * 256
    assert exact.tolist() == strict.tolist() == [513.125] * 256


@pytest.mark.parametrize(("faster", "types"), [(True, {DType.FLOAT16}), (False, {DType.FLOAT32})])
def test_the_program_with_the_shorter_time_is_kept_and_the_other_dropped(faster: bool, types: set[DType]) -> None:
    backend, dropped = HostBackend(), list[Program]()

    def time_ps(program: Program) -> int:
        half = DType.FLOAT16 in products(backend.graphs[program])
        return 1 if half == faster else 2

    model = relaxed(dense())
    plan = Plan(
        model, Constants(model), Vocabulary(REGISTRY, STORAGE), backend.compile, dropped.append, time_ps=time_ps
    )
    plan.prepare()
    [kept] = plan.programs()
    assert products(backend.graphs[kept]) == types
    assert [products(backend.graphs[each]) for each in dropped] == [{DType.FLOAT16, DType.FLOAT32} - types]
    # Values have their type outside.
    assert {each.dtype for each in (*kept.inputs, *kept.outputs)} == {DType.FLOAT32}


def products(graph: Graph) -> set[DType]:
    return {op.inputs[0].dtype for op in graph.ops if op.kind == "matmul" and op.inputs[0] is not None}


def test_bits_stay_exact() -> None:
    """The hash of LSH_PROJECTION is that of the exact weights."""
    seeds = given(F32, RNG.normal(size=(4, 2)))
    items, weights = given(T.TENSOR_INT32, RNG.integers(0, 99, size=(3, 2))), given(F32, RNG.normal(size=3))
    operands = [seeds, items, weights, i32(2)]
    exact = run_one(Op.LSH_PROJECTION, operands, result(T.TENSOR_INT32))
    assert run_one(Op.LSH_PROJECTION, operands, result(T.TENSOR_INT32), relaxed=True).tolist() == exact.tolist()


@settings(max_examples=examples(20))
@drawn(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_numbers_that_become_integers_stay_exact(numbers: list[float]) -> None:
    x = given(F32, numbers)
    found = run_one(Op.CAST, [x], result(T.TENSOR_INT32), relaxed=True)
    assert found.tolist() == np.asarray(numbers, np.float32).astype(np.int32).tolist()


def test_float_scalars_stay_exact() -> None:
    """The slope 0.1 of ELU is not rounded before it multiplies."""
    x = given(F32, [-1.0])
    found = run_one(Op.ELU, [x, scalar(T.FLOAT32, 0.1)], result(F32), relaxed=True)
    assert found.tolist() == [np.float32(np.float16(0.1 * np.expm1(np.float16(-1.0))))]


def test_constants_beyond_the_range_become_the_largest_numbers() -> None:
    """Such as the -1e9 that masks add."""
    masked = run_one(Op.ADD, [given(F32, [1.0, 2.0]), given(F32, [-1e9, 0.0], const=True), i32(0)], result(F32),
                     relaxed=True)  # fmt: skip
    assert masked.tolist() == [-65504.0, 2.0]


def test_integers_are_not_touched() -> None:
    x = given(T.TENSOR_INT32, [1 << 20, 70001])
    found = run_one(Op.GATHER, [x, i32(0), vector([1, 0])], result(T.TENSOR_INT32), relaxed=True)
    assert found.tolist() == [70001, 1 << 20]


@pytest.mark.parametrize("kind", [F32, T.TENSOR_FLOAT16])
def test_products_within_operations_that_widen_their_operands(kind: T) -> None:
    """RNN computes in FLOAT32 whatever its operands are; only its products need FLOAT16 on this device."""
    shapes = (2, 3), (4, 3), (4, 4), (4,), (2, 4)
    operands = [given(kind, RNG.normal(size=shape) / 2) for shape in shapes]
    outputs = [result(kind), result(kind)]
    found = run(Op.RNN, [*operands, i32(0)], outputs, "rk3588_core", relaxed=True)
    x, w, r, b, state = (np.asarray(each.value, np.float64) for each in operands)
    np.testing.assert_allclose(found[1], x @ w.T + state @ r.T + b, rtol=0.005, atol=0.005)
