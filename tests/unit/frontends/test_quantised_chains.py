"""Operators between quantised layers: integers in memory, and the bits of onnxruntime's floats."""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    """The device against onnxruntime, which computes node by node; no float is passed between groups."""
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
    st.lists(st.sampled_from([kind for kind in STEPS if kind != "linear Resize"]), min_size=1, max_size=4),
    st.integers(0, 1 << 20),
    st.sampled_from(INTEGERS),
    st.booleans(),
)
@settings(max_examples=examples(60))
def test_chains_with_exact_scales(kinds: list[str], seed: int, dtype: npt.DTypeLike, equal: bool) -> None:
    """Scales are powers of two: then sums of floats do not depend on their order."""
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
