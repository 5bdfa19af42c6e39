"""The estimated time of a cascade: rows are loaded through a channel, and rows shared by stripes are moved."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.compiler.lower.base import loading
from npusim.compiler.pipeline import prepare
from npusim.compiler.schedule.cascade import Cascade
from npusim.compiler.schedule.cascade_cuts import CascadeCuts
from npusim.compiler.schedule.likeness import held_bytes
from npusim.compiler.schedule.search import ScheduleSearch
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.hw.memory import constants_side, dram_model
from npusim.hw.units.dma import channel_bandwidth
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from npusim.timing.forecast import forecast
from npusim.validate.networks import NETWORKS

CONV = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (1, 1, 1, 1)}
EDGE = load_config("edge")
SLOW = EDGE.with_(**{"dma.max_outstanding": 2, "dma.burst_bytes": "64 B"})
"""A device whose DMA channel is slower than its DRAM."""


def test_large_transfers_are_as_fast_as_the_slower_of_dram_and_channel() -> None:
    reached = dram_model(EDGE).bandwidth
    assert loading(1 << 20, EDGE) == (1 << 20) * 10**12 // reached
    assert channel_bandwidth(SLOW) < reached / 2
    assert loading(1 << 20, SLOW) == (1 << 20) * 10**12 // channel_bandwidth(SLOW)


def chain() -> Graph:
    build = GraphBuilder("chain")
    value = build.input("x", (1, 56, 56, 32), DType.FLOAT16)
    for _ in range(4):
        weights = build.const(np.zeros((32, 32, 3, 3), np.float16))
        value = build.add("conv", [value, weights], CONV)
    return build.finish([value])


@pytest.mark.parametrize("kib", [192, 256, 384])
@pytest.mark.parametrize("graph", [chain(), NETWORKS["mobilenet_v2"].make((1, 96, 96, 3))], ids=["chain", "mobilenet"])
def test_estimates_of_all_steps_are_near_to_what_they_take(graph: Graph, kib: int) -> None:
    config = EDGE.with_(**{"sram.bytes": f"{kib} KiB"})
    order = ScheduleSearch(prepare(graph, config), config, Budget.of(config)).run()
    costs = order.layout.costs
    assert costs is not None
    assert any(step.cascade for step in order.layout.steps)
    estimated = sum(costs.of(step) or 0 for step in order.layout.steps)
    assert estimated == pytest.approx(forecast(order.commands, config), rel=0.08)


def cut(first: int, last: int) -> Cascade:
    return Cascade(first, last, [], [], [], 1, 1, True)


def test_cuts_are_those_of_least_time() -> None:
    cuts = CascadeCuts([10, 10, 10, 10])
    cuts.add(2, 3, 15, cut(2, 3))
    cuts.add(1, 2, 14, cut(1, 2))
    assert cuts.least(1, 3) == 24, "1 and 2 together, 3 alone: less than 1 alone, 2 and 3 together"
    cuts.add(0, 1, 18, cut(0, 1))
    assert cuts.least(0, 3) == 33
    assert [(each.first, each.last) for each in cuts.best()] == [(0, 1), (2, 3)]
    assert cuts.least(2, 1) == 0


def test_held_weights_come_from_where_constants_are() -> None:
    """Flash is slower than the DRAM: a cascade takes at least the time to load its held weights from flash."""
    flash = load_config("ethos_u55_128")
    assert loading(1 << 16, constants_side(flash)) > 7 * loading(1 << 16, flash)
    graph = NETWORKS["mobilenet_v2"].make((1, 96, 96, 3))
    order = ScheduleSearch(prepare(graph, flash), flash, Budget.of(flash)).run()
    costs = order.layout.costs
    assert costs is not None
    held = [
        (
            costs.of(step) or 0,
            sum(held_bytes(costs.context, group) for group in step.groups[1:]),
        )
        for step in order.layout.steps
        if step.cascade
    ]
    assert held
    assert all(cost >= loading(nbytes, constants_side(flash)) for cost, nbytes in held)
