"""What an architect expects of any device: more of a resource never hurts, less never helps, peaks are limits.

Tilings are chosen by estimates, so a device with more may be slightly slower; SLACK is the limit.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import pytest

from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.capability import capabilities
from npusim.hw.config import Config, load_config
from npusim.ops.build import GraphBuilder
from npusim.runtime import Result, Session
from tests.support.graphs.samples import product, residual_net

TINY = load_config("tiny")
SLACK = 1.005
GRAPHS = {
    "conv net": residual_net(),
    "matmul": product(64, 256, 64),
    "float matmul": product(48, 200, 100, DType.FLOAT32),
}
every_graph = pytest.mark.parametrize("name", GRAPHS)


def timed(graph: Graph, config: Config) -> Result:
    session = Session(config, cache_dir=False)
    return session.run(session.compile(graph), timing_only=True)


@lru_cache(maxsize=256)
def cycles(name: str, **overrides: Any) -> Result:
    return timed(GRAPHS[name], TINY.with_(**overrides))


def traffic(result: Result) -> int:
    return result.dram_read_bytes + result.dram_write_bytes


# Memory


@every_graph
def test_halving_the_bandwidth_is_never_faster(name: str) -> None:
    times = [cycles(name, **{"dram.bandwidth": rate * 10**9}).time_ps for rate in (32, 16, 8, 4, 2, 1)]
    for faster, slower in itertools.pairwise(times):
        assert slower * SLACK >= faster


@every_graph
def test_halving_the_bandwidth_of_a_memory_bound_device_takes_twice_as_long(name: str) -> None:
    """At 50 MB/s only the DRAM limits the time."""
    slow, half = (cycles(name, **{"dram.bandwidth": rate * 10**6}) for rate in (100, 50))
    assert 1.9 < half.time_ps / slow.time_ps * traffic(slow) / traffic(half) < 2.02


@every_graph
def test_memory_bound_time_is_traffic_over_bandwidth(name: str) -> None:
    result = cycles(name, **{"dram.bandwidth": 50 * 10**6})
    least = traffic(result) * 10**12 // (50 * 10**6)
    assert least <= result.time_ps < least * 1.1


@every_graph
def test_less_sram_never_means_less_traffic(name: str) -> None:
    """Smaller tiles load the same elements more often; the time only follows if memory is the bottleneck."""
    totals = [traffic(cycles(name, **{"sram.bytes": size << 10})) for size in (256, 64, 32, 16, 8)]
    for roomy, cramped in itertools.pairwise(totals):
        assert cramped >= roomy * 0.99
    assert totals[-1] > 1.5 * totals[0]


@every_graph
def test_enough_sram_means_least_traffic(name: str) -> None:
    """With everything on chip, weights, inputs and results cross the bus once, apart from a tile's padding."""
    graph = GRAPHS[name]
    result = cycles(name, **{"sram.bytes": 4 << 20})
    constants = sum(t.nbytes for t in graph.constants())
    least = sum(t.nbytes for t in (*graph.inputs, *graph.outputs)) + constants
    assert traffic(result) >= least
    if len(graph.ops) == 1:
        assert traffic(result) < least * 1.6


@every_graph
def test_another_channel_is_never_slower_where_loads_are_the_bottleneck(name: str) -> None:
    """With channels of one byte per cycle, loads limit the time, and the channels share them."""
    one, two, three, four = (
        cycles(name, **{"dma.channels": count, "dma.bytes_per_cycle": 1}).time_ps for count in (1, 2, 3, 4)
    )
    assert one * SLACK >= two
    assert two * SLACK >= three
    assert three * SLACK >= four
    assert four < one


@every_graph
def test_another_channel_never_hurts_much(name: str) -> None:
    """If loads are not the bottleneck, reserving a channel for stores may slow loads slightly."""
    times = [cycles(name, **{"dma.channels": count}).time_ps for count in (1, 2, 3)]
    assert max(times[1:]) <= times[0] * 1.03


# Compute


@every_graph
def test_doubling_the_array_is_never_slower(name: str) -> None:
    times = [cycles(name, **{"matrix.rows": size, "matrix.cols": size}).time_ps for size in (2, 4, 8, 16)]
    for small, large in itertools.pairwise(times):
        assert large <= small * SLACK


@every_graph
def test_doubling_the_array_of_a_compute_bound_device_is_faster(name: str) -> None:
    small, large = (cycles(name, **{"matrix.rows": size, "matrix.cols": size}).time_ps for size in (2, 4))
    assert large < small / 2.5, "four times the MACs"


@every_graph
def test_more_cores_are_faster_when_compute_bound(name: str) -> None:
    one, two = (cycles(name, **{"matrix.rows": 2, "matrix.cols": 2, "cores": count}).time_ps for count in (1, 2))
    assert one / 2.05 < two < one / 1.5


@every_graph
def test_a_deeper_queue_never_hurts(name: str) -> None:
    # Instructions that are fetched earlier pass the same DRAM.
    times = [cycles(name, queue_depth=depth).time_ps for depth in (1, 2, 8, 16)]
    for shallow, deep in itertools.pairwise(times):
        assert deep <= shallow * 1.01


# Clocks and peaks


@every_graph
def test_twice_the_clock_of_everything_is_half_the_time(name: str) -> None:
    host = {f"host.{key}": getattr(TINY.host, f"{key}_ps") // 2 for key in ("mmio", "irq", "link_latency", "submit")}
    double = {
        "clock": 2 * TINY.clock_hz, "dram.bandwidth": 2 * TINY.dram.bandwidth,
        "dram.latency": TINY.dram.latency_ps // 2, "host.link_bandwidth": 2 * TINY.host.link_bandwidth, **host,
    }  # fmt: skip
    base, fast = cycles(name), cycles(name, **double)
    assert fast.cycles == base.cycles
    assert 2 * fast.time_ps == pytest.approx(base.time_ps, rel=1e-6)
    assert [(s.unit, s.op, s.kind) for s in fast.timeline.spans] == [
        (s.unit, s.op, s.kind) for s in base.timeline.spans
    ]


EDGE = load_config("edge")


@pytest.mark.parametrize(("size", "least"), [(1024, 0.90), (2048, 0.95)])
def test_a_large_matmul_reaches_the_peak_of_edge(size: int, least: float) -> None:
    peak = capabilities(EDGE).peak_macs["int8"]
    result = timed(product(size, size, size), EDGE)
    assert result.macs == size**3
    reached = result.macs * 10**12 / result.time_ps
    assert least * peak <= reached <= peak
    assert result.matrix_utilization == pytest.approx(reached / peak)


@pytest.mark.parametrize("name", ["tiny", "edge", "server"])
def test_no_matmul_passes_the_peak(name: str) -> None:
    config = load_config(name)
    peaks = capabilities(config).peak_macs
    for dtype in (DType.INT8, DType.FLOAT32, DType.INT16):
        if dtype.label in peaks:
            result = timed(product(256, 512, 256, dtype), config)
            assert 0 < result.macs * 10**12 / result.time_ps <= peaks[dtype.label]


def doubling(size: int) -> Graph:
    """Build a concatenation of a matrix with itself: only copies."""
    build = GraphBuilder("copies")
    x = build.input("x", (size, size), DType.INT8)
    return build.finish([build.add("concat", [x, x], {"axis": 0})])


@pytest.mark.parametrize(("name", "size"), [("tiny", 1024), ("edge", 4096), ("server", 4096)])
def test_large_copies_reach_the_bandwidth_and_never_pass_it(name: str, size: int) -> None:
    config = load_config(name)
    result = timed(doubling(size), config)
    assert traffic(result) >= 4 * size * size
    reached = traffic(result) * 10**12 / result.time_ps
    rate = capabilities(config).dram_bandwidth
    assert 0.97 * rate <= reached <= rate
