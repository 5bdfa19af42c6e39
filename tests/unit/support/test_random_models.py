"""The random graphs are valid, and other implementations compute finite and informative results from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim.hw.config import load_config
from tests.support.onnx_models import oracle, random_models
from tests.support.onnx_models.random_models import RandomModel
from tests.support.random_devices import config_overrides

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
strategies = pytest.mark.parametrize(
    "strategy",
    [random_models.float_models(), random_models.int8_models(), random_models.int32_models()],
    ids=["float", "int8", "int32"],
)


@strategies
def test_onnxruntime_accepts_every_model_and_results_are_finite(strategy: st.SearchStrategy[RandomModel]) -> None:
    @relaxed
    @given(strategy)
    def check(case: RandomModel) -> None:
        for name, array in oracle.runtime_outputs(case.model, case.inputs, optimise=False).items():
            assert np.isfinite(array).all(), name
            assert np.abs(array.astype(np.float64)).max() < 1e3 or array.dtype != np.float32, name

    check()


@strategies
def test_every_step_is_reached(strategy: st.SearchStrategy[RandomModel]) -> None:
    seen: set[str] = set()

    @settings(relaxed, max_examples=150)
    @given(strategy)
    def collect(case: RandomModel) -> None:
        seen.update(node.op_type for node in case.model.graph.node)

    collect()
    assert {"Transpose", "Reshape", "Slice", "Concat", "Gather", "Pad"} <= seen
    assert seen & {"MatMul", "QLinearMatMul"}
    assert len(seen) >= 20, sorted(seen)


@given(config_overrides())
@settings(max_examples=50, derandomize=True)
def test_random_devices_are_legal(overrides: dict[str, object]) -> None:
    config = load_config("tiny").with_(**overrides)
    assert config.sram.bytes == overrides["sram.bytes"]
    assert config.cores == overrides["cores"]
