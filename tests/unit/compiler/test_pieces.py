"""Chains that work on a tile in pieces because their instructions would not fit in a queue."""

from __future__ import annotations

import numpy as np

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.lower.base import ConstantPool, Context, SlotTable
from npusim.compiler.lower.kinds import lower
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.pipeline import prepare
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.slots import place_slots
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.functions import Unary
from npusim.isa.matrix import Conv
from npusim.ops.build import GraphBuilder

EDGE = load_config("edge")
CONV = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (1, 0, 1, 0)}


def chained() -> Graph:
    """Build a convolution followed by three activations."""
    build = GraphBuilder("chained")
    value = build.input("x", (1, 48, 48, 32), DType.FLOAT16)
    weights = np.random.default_rng(1).standard_normal((64, 32, 3, 1)) / 8
    value = build.add("conv", [value, build.const(weights.astype(np.float16))], CONV)
    for fn in (Unary.SIGMOID, Unary.TANH, Unary.SIGMOID):
        value = build.add("unary", [value], {"fn": fn})
    return build.finish([value])


def test_the_next_products_come_before_a_chain_in_pieces() -> None:
    """Otherwise the chain's instructions would fill the queue and delay the products, and the units would not
    overlap."""
    graph = prepare(chained(), EDGE)
    context = Context(EDGE, ConstantPool())
    (group,), _ = place(graph, form_groups(graph.ops, graph.outputs), context)
    context.room = 256 << 10
    lowering = lower(context, group)
    assert isinstance(lowering, MatrixLowering)
    lowering.tile = lowering.tile._replace(oh=12, in_pieces=True)
    lowering.chain.in_pieces = True
    specs = lowering.slots()
    starts = place_slots(specs, [(0, 1 << 20)], low_end=True)
    assert starts is not None
    steps = list(lowering.steps(SlotTable(0, specs, starts), 0, 1))
    kinds = [["product" if isinstance(item.instruction, Conv) else "chain" for item in step.compute] for step in steps]
    assert kinds[0] == ["product"]
    assert [kind[0] for kind in kinds[1:-1]] == ["product"] * 3
    assert all(set(kind[1:]) == {"chain"} for kind in kinds[1:-1])
    assert set(kinds[-1]) == {"chain"}
    assert [bool(step.stores) for step in steps] == [False, True, True, True, True], "a result leaves behind its chain"
