"""Operators that a device cannot execute are reported with the reason."""

from __future__ import annotations

import pytest

from npusim.compiler.passes.legalize import unsupported
from npusim.dtypes import DEVICE_DTYPES, DType
from npusim.hw.config import load_config
from npusim.ops.build import GraphBuilder

TINY = load_config("tiny")


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in DEVICE_DTYPES])
def test_types_that_no_device_computes_with_are_named(dtype: DType) -> None:
    build = GraphBuilder("strange")
    graph = build.finish([build.add("reshape", [build.input("x", (2, 3), dtype)], {"shape": (3, 2)})])
    assert unsupported(graph, TINY) == [(graph.ops[0], f"tiny does not compute with {dtype.label}")]


@pytest.mark.parametrize("dtype", sorted(DEVICE_DTYPES))
def test_types_that_every_device_moves_are_not(dtype: DType) -> None:
    build = GraphBuilder("moved")
    graph = build.finish([build.add("reshape", [build.input("x", (2, 3), dtype)], {"shape": (3, 2)})])
    assert unsupported(graph, TINY) == []
