"""Random ONNX models: reference, interpreter and simulator agree on random devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph, prepare
from npusim.dtypes import to_storage
from npusim.frontends.onnx import load
from npusim.ops import reference
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted, outputs_of, simulated
from tests.support.graphs.random_graphs import QUIET
from tests.support.onnx_models.random_models import RandomModel, float_models, int8_models, int32_models
from tests.support.random_devices import TINY, config_overrides

KINDS: dict[str, Any] = {"float": float_models, "int8": int8_models, "int32": int32_models}
TOLERANCE = 1e-4


def check(case: RandomModel, overrides: dict[str, Any]) -> None:
    """Integers equal those of the prepared graph; floats are near those of the model, relative to the largest."""
    config = TINY.with_(**overrides)
    graph = load(case.model.SerializeToString())
    program = compile_graph(graph, config)
    in_order = interpreted(program, config, case.inputs)
    same_bytes(outputs_of(simulated(program, config, case.inputs)), in_order, "simulator against interpreter")
    plain, prepared = reference.run(graph, case.inputs), reference.run(prepare(graph, config), case.inputs)
    for name, exact in zip(plain, prepared.values(), strict=True):
        if exact.dtype.kind == "f":
            wanted = plain[name].astype(np.float64)
            bound = TOLERANCE * float(np.max(np.abs(wanted), initial=1.0, where=np.isfinite(wanted)))
            np.testing.assert_allclose(in_order[name], wanted, rtol=TOLERANCE, atol=bound, err_msg=name)
        else:
            np.testing.assert_array_equal(in_order[name], to_storage(exact), err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, suppress_health_check=QUIET)
@given(data=st.data(), overrides=config_overrides())
def test_models(kind: str, data: st.DataObject, overrides: dict[str, Any]) -> None:
    check(data.draw(KINDS[kind]()), overrides)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, suppress_health_check=QUIET)
@given(data=st.data(), overrides=config_overrides())
def test_many_models(kind: str, data: st.DataObject, overrides: dict[str, Any]) -> None:
    check(data.draw(KINDS[kind]()), overrides)
