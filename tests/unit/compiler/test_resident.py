"""Weights that stay in SRAM between inferences: which ones, where, and the time of later inferences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npusim.compiler.lower.base import ConstantPool, Context
from npusim.compiler.schedule.pinned_weights import SHARES, choices
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.isa.base import decode
from npusim.ops.build import GraphBuilder
from npusim.program import Program
from npusim.runtime import Session
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.graphs.samples import product, residual_net
from tests.support.graphs.schedules import sharded
from tests.support.laws.measure import measure
from tests.support.programs.race_detector import find_races, limits_of

TINY = load_config("tiny")


def keeping(config: Config) -> Config:
    return config.with_(**{"compiler.resident_weights": True})


def layers(count: int, width: int, dtype: DType = DType.INT8) -> Graph:
    """Build ``count`` matrix products with constant weights, one after the other."""
    build = GraphBuilder("layers")
    value = build.input("x", (4, width), dtype)
    rng = np.random.default_rng(1)
    for _ in range(count):
        weights = build.const(rng.integers(-9, 9, (width, width)).astype(dtype.storage))
        value = build.add("matmul", [value, weights])
        value = build.add("cast", [value], {"to": dtype}) if value.dtype is not dtype else value
    return build.finish([value])


def check(program: Program, config: Config, graph: Graph) -> tuple[int, ...]:
    """Run a program three times and return the cycles of each run.

    Checks that all runs give the results of the interpreter and of a program without resident weights.
    """
    rng = np.random.default_rng(7)
    inputs = {t.name: rng.integers(-4, 5, t.shape).astype(t.dtype.storage) for t in graph.inputs}
    assert not find_races(list(decode(program.code)), limits_of(program, config))
    with Session(config, cache_dir=False) as session, Session(config, cache_dir=False) as timing:
        runs = [session.run(program, inputs) for _ in range(3)]
        plain = Session(config.with_(**{"compiler.resident_weights": False}), cache_dir=False)
        with plain:
            wanted = plain.run(plain.compile(graph), inputs).outputs
        for run in runs:
            same_bytes(run.outputs, wanted, "with residents against without")
        same_bytes(interpreted(program, config, inputs), wanted, "in order against without residents")
        digests = [timing.run(program, timing_only=True).timeline.digest() for _ in range(3)]
    assert digests == [run.timeline.digest() for run in runs]
    assert [run.residents_held for run in runs] == [False, program.resident_bytes > 0, program.resident_bytes > 0]
    return tuple(run.cycles for run in runs)


@pytest.mark.parametrize("changes", [{}, {"cores": 3}, {"dma.channels": 3}, {"matrix.accumulator_bytes": "8 KiB"}])
@pytest.mark.parametrize("graph", [residual_net(8, 8, 1), layers(3, 64), product(1, 300, 70, DType.FLOAT32)])
def test_the_first_run_loads_and_the_others_find(graph: Graph, changes: dict[str, object]) -> None:
    config = keeping(TINY.with_(**changes))
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
    first, second, third = check(program, config, graph)
    assert program.resident_bytes > 0
    assert second == third < first


@pytest.mark.parametrize("axes", [(1, 1, 1), (0, 0, 0), (0, 1, None)])
def test_what_stays_are_the_weights_of_each_cores_parts(axes: tuple[int | None, ...]) -> None:
    """Cut by output channels, each core keeps its part of the weights; cut by rows, all of them; with shared tiles,
    those of its tiles."""
    config = keeping(TINY.with_(**{"cores": 2, "sram.bytes": "64 KiB", "exchange.bytes_per_cycle": 16}))
    graph = layers(3, 64)

    program = sharded(graph, config, axes)
    assert program is not None
    first, second, third = check(program, config, graph)
    weights = 64 * 64
    assert program.resident_bytes == {1: 3 * weights, 0: 6 * weights, None: 4 * weights}[axes[2]]
    assert second == third < first


def test_cores_with_parts_find_their_weights() -> None:
    """With the default choice, more cores that keep weights are not slower than fewer."""
    graph = layers(4, 128)
    times = []
    for cores in (1, 2, 4):
        config = keeping(TINY.with_(**{"cores": cores, "sram.bytes": "64 KiB", "exchange.bytes_per_cycle": 16}))
        with Session(config, cache_dir=False) as session:
            program = session.compile(graph)
            times.append([session.run(program, timing_only=True).cycles for _ in range(2)][1])
        assert program.resident_bytes
    assert times == sorted(times, reverse=True)


def test_all_weights_that_fit_are_not_moved_again() -> None:
    graph = layers(6, 64)
    config = keeping(TINY)
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
        first, second = (session.run(program, timing_only=True) for _ in range(2))
    assert program.resident_bytes == 6 * 64 * 64
    assert first.dram_read_bytes - second.dram_read_bytes >= 6 * 64 * 64
    assert second.dram_read_bytes + second.dram_write_bytes < 6 * 64 * 64


def test_without_the_key_nothing_stays() -> None:
    with Session(TINY, cache_dir=False) as session:
        program = session.compile(layers(2, 64))
        first, second = (session.run(program, timing_only=True) for _ in range(2))
    assert program.resident_bytes == 0
    assert first.cycles == second.cycles
    assert not second.residents_held


def test_where_weights_cannot_stay_the_plan_is_as_without() -> None:
    graph = layers(2, 64)
    small = replace(TINY, sram=replace(TINY.sram, bytes=2 << 10))
    with Session(small, cache_dir=False) as plain, Session(keeping(small), cache_dir=False) as session:
        program = session.compile(graph)
        assert program.resident_bytes == 0
        assert program.code == plain.compile(graph).code


def test_those_come_first_that_save_most_for_their_bytes() -> None:
    context = Context(TINY.with_(**{"sram.bytes": "8 KiB"}), ConstantPool())
    found = {3: 1024, 0: 4096, 2: 2048, 1: 64}
    *others, most = choices(found, context)
    # One part in 16 is left for everything else.
    assert most.starts == {3: 8192 - 1024, 2: 7168 - 2048, 1: 5120 - 64, 0: 5056 - 4096}
    assert most.nbytes == 4096 + 64 + 2048 + 1024
    assert [sorted(other.starts) for other in others] == [[1, 2, 3], [0, 1, 3], [0, 2, 3]]
    assert SHARES == (2, 4, 8, 16)


def test_weights_of_parts_of_a_kernel_stay() -> None:
    """The parts of a kernel row have different sizes."""
    config, build = load_config("edge_tpu"), GraphBuilder("parts")
    x = build.input("x", (1, 8, 8, 19), DType.INT8)
    weights = build.const(np.random.default_rng(3).integers(-99, 99, (200, 19, 5, 5)).astype(np.int8))
    window = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "pads": (2, 2, 2, 2), "groups": 1}
    scale, zero = build.const(np.float32(1 / 512)), build.const(np.int32(0))
    real = build.add("dequantize", [build.add("conv", [x, weights], window), scale, zero], {"to": DType.FLOAT32})
    graph = build.finish([build.add("quantize", [real, build.const(np.float32(1)), zero], {"to": DType.INT8})])
    with Session(config, cache_dir=False) as session:
        program = session.compile(graph)
    assert program.resident_bytes
    check(program, config, graph)


def test_more_cores_are_not_slower_where_one_core_with_pinned_weights_is_fastest() -> None:
    """Without pinned weights, several cores are faster."""
    build = GraphBuilder("small")
    value = build.input("x", (1, 5, 5, 64), DType.INT8)
    for kernel in (3, 3, 1, 1, 3):
        weights = build.const(np.ones((20, value.shape[3], kernel, kernel), np.int8))
        window = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (kernel // 2,) * 4}
        value = build.add("conv", [value, weights], window)
        for kind, dtype in (("dequantize", DType.FLOAT32), ("quantize", DType.INT8)):
            scale, zero = build.const(np.float32(0.5)), build.const(np.int32(0))
            value = build.add(kind, [value, scale, zero], {"to": dtype})
    graph, config = build.finish([value]), load_config("edge_tpu")
    one, many = (measure(graph, config.with_(cores=cores)).time_ps for cores in (1, 4))
    assert many <= one * 1.005
