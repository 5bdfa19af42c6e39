"""Replacing an operator by a cheaper one does not change a bit of the result, for any input."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.passes import legalize as rules
from npusim.compiler.passes.legalize import legalize
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.functions import Binary
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted

EDGE = load_config("edge")
BUDGET = Budget.of(EDGE)


def binary(fn: Binary, constant: np.floating, dtype: DType, count: int = 8) -> Graph:
    build = GraphBuilder("binary")
    x = build.input("x", (count,), dtype)
    return build.finish([build.add("binary", [x, build.const(np.asarray(constant))], {"fn": fn})])


@settings(max_examples=200)
@given(
    bits=st.lists(st.integers(0, (1 << 32) - 1), min_size=8, max_size=8), half=st.booleans(),
    exponent=st.integers(-14, 14), squared=st.booleans(),
)  # fmt: skip
def test_the_bits_are_the_same(bits: list[int], half: bool, exponent: int, squared: bool) -> None:
    """Also for NaNs, infinities and subnormals."""
    kind, dtype = (np.float16, DType.FLOAT16) if half else (np.float32, DType.FLOAT32)
    if half:
        x = np.array([number & 0xFFFF for number in bits], np.uint16).view(np.float16)
    else:
        x = np.array(bits, np.uint32).view(np.float32)
    graph = binary(*((Binary.POW, kind(2)) if squared else (Binary.DIV, kind(2.0**exponent))), dtype)
    cheaper = legalize(graph, BUDGET)
    assert [op.attrs["fn"] for op in cheaper.ops] == [Binary.MUL]
    after = interpreted(compile_graph(graph, EDGE), EDGE, {"x": x})
    with mock.patch.dict(rules.RULES, {"binary": ()}):
        before = interpreted(compile_graph(graph, EDGE), EDGE, {"x": x})
    (found,), (wanted,) = after.values(), before.values()
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    same_bytes({"y": found[~np.isnan(found)]}, {"y": wanted[~np.isnan(wanted)]}, kind.__name__)


@pytest.mark.parametrize(
    ("fn", "constant"),
    [
        (Binary.POW, np.float32(3)), (Binary.POW, np.float32(0.5)), (Binary.DIV, np.float32(3)),
        (Binary.DIV, np.float32(0)), (Binary.DIV, np.float32(np.inf)), (Binary.DIV, np.float32(2.0**-140)),
    ],
)  # fmt: skip
def test_what_would_be_rounded_is_left(fn: Binary, constant: np.floating) -> None:
    """The reciprocal of 2^-140 is not representable in the type."""
    graph = binary(fn, constant, DType.FLOAT32)
    assert [op.attrs["fn"] for op in legalize(graph, BUDGET).ops] == [fn]
