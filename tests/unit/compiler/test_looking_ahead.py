"""Configuration keys for prefetching and for how layers are cut: their effect on compiled programs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from npusim.compiler.lower.base import SlotSpec
from npusim.compiler.schedule.slots import deeper, filled
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import Instruction, Space, Unit, decode
from npusim.isa.dma import Copy, Fetch
from npusim.isa.functions import Binary
from npusim.ops.build import GraphBuilder
from npusim.program import CONSTANTS
from npusim.runtime import Result, Session
from npusim.timing.forecast import forecast

TINY = load_config("tiny")
NVDLA = load_config("nvdla_small")


def sum_of(elements: int) -> Graph:
    net = GraphBuilder("sum")
    inputs = [net.input(name, (elements,), DType.FLOAT32) for name in "ab"]
    return net.finish([net.add("binary", inputs, {"fn": Binary.ADD})])


def convolution(pixels: int = 16, channels: int = 16, kernels: int = 24, size: int = 3) -> Graph:
    """Build an int8 convolution with int32 sums."""
    rng = np.random.default_rng(0)
    net = GraphBuilder("convolution")
    x = net.input("x", (1, pixels, pixels, channels), DType.INT8)
    w = net.const(rng.integers(-128, 128, (kernels, channels, size, size), np.int8))
    pads = (size // 2,) * 4
    attrs = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": pads, "groups": 1}
    return net.finish([net.add("conv", (x, w), attrs)])


def run(config: Config, graph: Graph) -> Result:
    rng = np.random.default_rng(1)
    with Session(config, cache_dir=False) as session:
        inputs: dict[str, Any] = {}
        for each in graph.inputs:
            floating = each.dtype is DType.FLOAT32
            inputs[each.name] = (
                rng.standard_normal(each.shape, np.float32)
                if floating
                else rng.integers(-128, 128, each.shape, np.int8)
            )
        return session.run(session.compile(graph), inputs)


def same(one: Result, other: Result) -> bool:
    (a,), (b,) = one.outputs.values(), other.outputs.values()
    return bool(a.tobytes() == b.tobytes())


def test_transfers_in_flight_hide_latency_and_change_no_bit() -> None:
    config = TINY.with_(**{"dma.channels": 3, "dram.latency": "1 us", "dma.max_outstanding": 256})
    for graph, part in ((sum_of(20_000), 0.9), (convolution(24), 1)):  # the second graph is bound by compute
        results = [run(config.with_(**{"dma.in_flight": in_flight}), graph) for in_flight in (1, 2, 4, 8)]
        assert results[-1].cycles <= results[0].cycles * part
        assert results[1].cycles <= results[0].cycles
        assert all(same(results[0], each) for each in results)


@pytest.mark.parametrize(
    "knobs",
    [
        {"dma.in_flight": 4}, {"dma.in_flight": 4, "vector.setup_hidden": True},
        {"dma.in_flight": 2, "interconnect.separate_code_port": True, "interconnect.arbitration": "fair"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("graph", [sum_of(20_000), convolution(24)], ids=["sum", "convolution"])
def test_the_forecast_knows(graph: Graph, knobs: dict[str, object]) -> None:
    config = TINY.with_(**{"dma.channels": 2, **knobs})
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
        spans = session.run(program, timing_only=True).timeline.spans
    commands = list(decode(program.code))
    told = forecast(commands, config)
    # Measured from the first fetch: its latency and the first half of the commands come before the first command.
    assert told == pytest.approx(max(span.end_ps for span in spans) - min(span.start_ps for span in spans), rel=0.1)


def test_slots_for_what_is_in_flight() -> None:
    specs = [SlotSpec("x", 64), SlotSpec("between", 64, 1), SlotSpec("acc", 64, 1, Space.ACC)]
    assert deeper(specs, 1 << 20, 1) == specs
    assert [spec.copies for spec in deeper(specs, 1 << 20, 3)] == [4, 1, 1]
    # At most half of the room is used: here four slots of 64 bytes, one of which exists already.
    assert [spec.copies for spec in deeper(specs, 512, 3)] == [3, 1, 1]
    assert deeper(specs, 256, 3) == specs


def fetches(config: Config, graph: Graph) -> int:
    """Return the number of input transfers of a program."""
    with Session(config, cache_dir=False) as session:
        spans = session.run(session.compile(graph), timing_only=True).timeline.spans
    return sum(span.unit == "core0.dma0" for span in spans)


def test_whole_jobs_are_cut_along_their_kernels() -> None:
    graph = convolution(16, 64, 24, 1)
    cut = NVDLA.with_(**{"matrix.direct.whole_jobs": False, "compiler.inputs_ahead": True})
    whole = cut.with_(**{"matrix.direct.whole_jobs": True})
    assert fetches(whole, graph) == 1 < fetches(cut, graph)
    assert same(run(whole, graph), run(cut, graph))
    # A job that does not fit is still cut.
    small = whole.with_(**{"sram.bytes": 16 << 10})
    assert fetches(small, graph) > 3
    assert same(run(small, graph), run(whole, graph))


def units_of(config: Config, graph: Graph) -> dict[type[Instruction], set[int]]:
    """Return the DMA channels used by each kind of transfer."""
    with Session(config, cache_dir=False) as session:
        commands = list(decode(session.compile(graph).code))
    found: dict[type[Instruction], set[int]] = {}
    for command in commands:
        if isinstance(command.instruction, Copy):
            found.setdefault(type(command.instruction), set()).add(command.unit)
    return found


def test_features_weights_and_results_have_engines_of_their_own() -> None:
    first = int(Unit.DMA)
    apart = units_of(NVDLA, convolution(16, 64, 24, 1))
    assert apart == {Fetch: {first}, Copy: {first + 1, first + 2}}
    # Without the separate port, weights use whichever channel is free first.
    some = units_of(NVDLA.with_(**{"dma.separate_weight_port": False}), convolution(1, 1024, 256, 1))
    assert some[Copy] >= {first}


@pytest.mark.parametrize("graph", [convolution(17, 24, 20, 3), convolution(40, 16, 9, 1)], ids=["3x3", "1x1"])
def test_the_end_of_a_job_leaves_in_stripes(graph: Graph) -> None:
    with Session(NVDLA, cache_dir=False) as session:
        spans = session.run(session.compile(graph), timing_only=True).timeline.spans
    stores = [span for span in spans if span.unit == "core0.dma2"]
    # The last kernels are stored in ever smaller parts, down to what the unit releases at once.
    assert stores[-1].bytes < stores[0].bytes / 4
    assert max(span.end_ps for span in spans if span.unit == "core0.matrix") > stores[-2].end_ps
    assert same(run(NVDLA, graph), run(TINY, graph))


def test_a_group_of_kernels_begins_when_its_own_weights_are_there() -> None:
    with Session(NVDLA, cache_dir=False) as session:
        graph = convolution(1, 1024, 256, 1)
        spans = session.run(session.compile(graph), timing_only=True).timeline.spans
    loads = [span for span in spans if span.unit == "core0.dma1"]
    assert [span.bytes for span in loads] == [8 * 1024] * 32
    # Weights are loaded without a gap while the buffer has room.
    assert all(one.end_ps == other.start_ps for one, other in pairwise(loads))


def test_weights_have_what_room_a_job_leaves() -> None:
    specs = [SlotSpec("x", 256, 1), SlotSpec("w", 64), SlotSpec("main", 64)]
    assert [spec.copies for spec in filled(specs, 1024, 64)] == [1, 10, 2]
    assert [spec.copies for spec in filled(specs, 1024, 3)] == [1, 4, 2]
    assert filled(specs, 512, 64) == specs


def test_sums_leave_while_the_next_kernels_compute() -> None:
    graph = convolution(16, 64, 24, 1)
    beside = run(NVDLA, graph)
    after = run(NVDLA.with_(**{"matrix.direct.outputs_beside": False}), graph)
    assert beside.cycles < after.cycles
    assert same(beside, after)


def constants(config: Config, graph: Graph) -> int:
    """Return the constant bytes of a program."""
    with Session(config, cache_dir=False) as session:
        return session.compile(graph).region_bytes[CONSTANTS]


@pytest.mark.parametrize("graph", [convolution(8, 16, 24), convolution(8, 20, 9, 1)], ids=["3x3", "1x1"])
def test_weights_are_filled_up_to_tiles_of_the_array(graph: Graph) -> None:
    config = TINY.with_(**{"matrix.rows": 64, "matrix.cols": 64, "sram.bytes": 1 << 20})
    tiled = config.with_(**{"compiler.weight_tiles": True})
    packed, filled = run(config, graph), run(tiled, graph)
    (weights,) = (tensor for op in graph.ops for tensor in op.inputs if tensor is not None and tensor.data is not None)
    kernels, rest = weights.shape[0], int(np.prod(weights.shape[1:]))
    more = -(-rest // 64) * 64 * 64 - kernels * rest
    # constants are aligned to lines
    assert constants(tiled, graph) - constants(config, graph) == pytest.approx(more, abs=64)
    # the two runs may read inputs different numbers of times
    assert filled.dram_read_bytes - packed.dram_read_bytes > more * 3 // 4
    assert same(packed, filled)
