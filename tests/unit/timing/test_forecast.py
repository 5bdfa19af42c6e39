"""The compiler's forecast for a stream compared with the simulator's time."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode, region
from npusim.runtime import Session
from npusim.timing.forecast import forecast
from tests.support.graphs.golden import GRAPHS
from tests.support.graphs.samples import increment, product, residual_net
from tests.support.programs.random_streams import CONFIGS, Action, actions, build
from tests.support.programs.streams import Stream, copy, fill

TINY, EDGE, SERVER = map(load_config, ("tiny", "edge", "server"))
ONE_BANK = {"sram.banks": 1}
"""An SRAM that makes two active units wait for each other."""
TABLE = 4000
"""Picoseconds for a few more rows."""


def both(graph: Graph, config: Config) -> tuple[int, int]:
    """Return (forecast, simulated end of the last command) from the time at which the device takes the job."""
    program = compile_graph(graph, config)
    timeline = Session(config, cache_dir=False).run(program, timing_only=True).timeline
    end = max(span.end_ps for span in timeline.spans if "." in span.unit)
    return forecast(list(decode(program.code)), config), end


@lru_cache
def lead(config: Config) -> int:
    """Return the time before the device fetches code, for example to read the ring entry."""
    thought, simulated = both(increment(), config)
    return simulated - thought


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("channels", [1, 4, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rate", ["1 GB/s", "64 GB/s", pytest.param("8 GB/s", marks=pytest.mark.slow)])
def test_exact_wherever_the_bottleneck_lies(cores: int, channels: int, rate: str) -> None:
    config = TINY.with_(**{"cores": cores, "dma.channels": channels, "dram.bandwidth": rate})
    thought, simulated = both(residual_net(32, 16, 2), config)
    assert thought + lead(config) == simulated


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_a_full_queue_holds_the_others_up(depth: int) -> None:
    config = TINY.with_(queue_depth=depth)
    thought, simulated = both(product(256, 512, 64, DType.FLOAT32), config)
    assert thought + lead(config) == simulated


@pytest.mark.parametrize("config", [TINY, EDGE, SERVER], ids=lambda config: config.name)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("banks", [{}, ONE_BANK], ids=["banks", "one bank"])
def test_what_is_left_out_is_before_the_first_fetch(graph: str, config: Config, banks: dict[str, int]) -> None:
    config = config.with_(**banks)
    thought, simulated = both(GRAPHS[graph](), config)
    # The table of regions is read before; with each input and output it has a row more.
    assert 0 <= simulated - thought - lead(config) <= TABLE


def test_units_wait_for_each_other_at_banks() -> None:
    """In the residual network the vector unit adds rows of one tile while the matrix unit computes the next."""
    graph = residual_net(32, 16, 2)
    config = EDGE.with_(**ONE_BANK)
    timeline = Session(config, cache_dir=False).run(compile_graph(graph, config), timing_only=True).timeline
    assert timeline.counters.units["core0.vector"].stalls["sram"] > 0
    thought, simulated = both(graph, config)
    assert thought + lead(config) == simulated


def test_nothing_to_do() -> None:
    assert forecast([], TINY) == 0


# streams that no compiler would make


def both_of_stream(stream: Stream, config: Config) -> tuple[int, int]:
    """Return (forecast, simulated end of the last command) from the time at which the device takes the job."""
    program = replace(stream.program(scratch=65536), config_name=config.name, config_fingerprint=config.fingerprint())
    timeline = Session(config, cache_dir=False).run(program, timing_only=True).timeline
    end = max(span.end_ps for span in timeline.spans if "." in span.unit)
    return forecast(list(decode(program.code)), config), end


@settings(max_examples=100, deadline=None)
@given(st.lists(actions(), min_size=1, max_size=25), CONFIGS, st.sampled_from(["fair", "need"]))
def test_exact_for_any_stream(plan: list[Action], config: Config, arbitration: str) -> None:
    config = config.with_(**{"interconnect.arbitration": arbitration})
    one = Stream()
    one.dma(fill(0, 1, 0))
    alone, end = both_of_stream(one, config)
    told, simulated = both_of_stream(build(plan, config), config)
    assert told + end - alone == simulated


def test_bytes_times_picoseconds_beyond_64_bits() -> None:
    stream = Stream()
    stream.dma(copy(0, region(1), 1 << 25))
    assert forecast(stream.commands, TINY.with_(**{"sram.bytes": 1 << 26})) > 10**9


def test_longer_than_64_bits_of_picoseconds() -> None:
    stream = Stream()
    for _ in range(4):
        stream.dma(copy(0, region(1), 1 << 31))
    slow = TINY.with_(**{"clock": 1000, "dma.bytes_per_cycle": 1})
    assert forecast(stream.commands, slow) == 2**62 - 1
    assert forecast(stream.commands[:2], slow) == pytest.approx(2**32 * 10**9, rel=1e-6)
