"""Operators keep the index of the client's operation they came from, however they are rewritten."""

from __future__ import annotations

import numpy as np

from npusim import load_config
from npusim.compiler.pipeline import find_unsupported, prepare
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.isa.functions import Binary, Unary
from npusim.ops.build import GraphBuilder


def quantised_layer(first: int | None, second: int | None) -> Graph:
    """Build a quantised product and an activation with these client operations as origins."""
    builder = GraphBuilder("layer")
    zero, scale = builder.const(np.int32(0)), builder.const(np.float32(0.1))
    builder.origin = first
    x = builder.add("dequantize", [builder.input("x", (4, 8), DType.UINT8), scale, zero], {"to": DType.FLOAT32})
    w = builder.add("dequantize", [builder.const(np.ones((8, 4), np.uint8)), scale, zero], {"to": DType.FLOAT32})
    y = builder.add("matmul", [x, w], {})
    builder.origin = second
    y = builder.add("unary", [y], {"fn": Unary.SIGMOID, "p0": 0.0, "p1": 0.0})
    return builder.finish([builder.add("binary", [y, y], {"fn": Binary.ADD})])


def test_what_replaces_an_operator_has_its_origin() -> None:
    graph = quantised_layer(3, 5)
    prepared = prepare(graph, load_config("tiny"))
    assert {op.name for op in prepared.ops} != {op.name for op in graph.ops}
    assert {op.kind: op.origin for op in prepared.ops}["matmul"] == 3
    assert {op.origin for op in prepared.ops} == {3, 5}


def test_what_is_refused_has_its_origin() -> None:
    config = load_config("tiny").with_(vector=None)
    refused = find_unsupported(quantised_layer(3, 5), config)
    assert {op.origin for op, _ in refused} == {3, 5}
    assert {reason for _, reason in refused} == {"tiny has no vector unit"}


def test_the_origin_has_no_part_in_the_fingerprint() -> None:
    assert quantised_layer(3, 5).fingerprint() == quantised_layer(None, None).fingerprint()
