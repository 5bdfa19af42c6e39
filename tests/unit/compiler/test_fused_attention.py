"""Attention is fused if two blocks of rows fit beside two copies of the right-hand operands."""

from __future__ import annotations

import pytest

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.schedule.attention import form_attention
from npusim.dtypes import DType
from npusim.errors import ScheduleError
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.hw.memory import ALIGNMENT
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder

TINY = load_config("tiny")


def attention(rows: int, keys: int, depth: int, width: int, *, softmax: bool = True) -> Graph:
    build = GraphBuilder("attention")
    q, k, v = (build.input(name, shape, DType.FLOAT32) for name, shape in zip(
        "qkv", ((2, rows, depth), (2, depth, keys), (2, keys, width)), strict=True
    ))  # fmt: skip
    scores = build.add("matmul", [q, k], {}, "scores")
    weights = (
        build.add("softmax", [scores], {"axis": 2, "log": False})
        if softmax
        else build.add("unary", [scores], {"fn": Unary.RELU})
    )
    return build.finish([build.add("matmul", [weights, v], {}, "context")])


def fused(graph: Graph, sram_bytes: int, **more: object) -> bool:
    config = TINY.with_(**{"sram.banks": 1, "sram.bytes": sram_bytes})
    groups = form_attention(form_groups(graph.ops, graph.outputs), graph.outputs, config, **more)
    assert [op for group in groups for op in group.ops] == list(graph.ops)
    assert [group.index for group in groups] == list(range(len(groups)))
    return any(group.parts for group in groups)


@pytest.mark.parametrize(
    ("rows", "keys", "depth", "width"), [(8, 32, 16, 24), (40, 64, 16, 8), (4, 96, 32, 64), (1, 128, 64, 64)]
)
def test_an_attention_is_fused_from_the_first_byte_that_it_fits_in(
    rows: int, keys: int, depth: int, width: int
) -> None:
    assert TINY.matrix is not None
    block = min(rows, TINY.matrix.rows)
    operands = depth * keys + keys * width
    blocks = block * (depth + keys + width)  # scores become weights in place
    needed = 2 * 4 * (operands + blocks)
    assert needed % ALIGNMENT == 0, "this test needs round sizes"
    graph = attention(rows, keys, depth, width)
    assert fused(graph, needed)
    assert not fused(graph, needed - ALIGNMENT)
    assert fused(graph, needed - ALIGNMENT, wanted=["scores"])
    assert not fused(graph, needed, others=False)


def test_products_with_no_operator_on_rows_between_them_are_not_fused() -> None:
    graph = attention(8, 32, 16, 24, softmax=False)
    assert not fused(graph, 1 << 20)
    with pytest.raises(ScheduleError, match="no attention begins with scores"):
        fused(graph, 1 << 20, wanted=["scores"])
