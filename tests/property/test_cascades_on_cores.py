"""Cascades on several cores, each on its own rows: the same bits as on one core, without races, and rebuilt from their
schedule."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.passes.fill_groups import fill_groups
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.compiler.schedule.build import build, make_plan
from npusim.compiler.schedule.names import LayerNames
from npusim.compiler.schedule.schedule import FREE, LayerCascade
from npusim.compiler.schedule.search import ScheduleSearch
from npusim.dtypes import DType
from npusim.errors import ScheduleError
from npusim.graph import Graph, Tensor
from npusim.hw.config import Config, load_config
from npusim.isa.base import Command, Space, Unit, decode, encode, space_of
from npusim.isa.dma import Copy
from npusim.isa.functions import Binary, Unary
from npusim.ops.budget import Budget
from npusim.ops.build import GraphBuilder
from npusim.program import CONSTANTS
from tests.support.examples import examples
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import interpreted
from tests.support.graphs.random_graphs import QUIET
from tests.support.graphs.schedules import cascades_on_cores
from tests.support.programs.race_detector import find_races, limits_of

TINY = load_config("tiny").with_(**{"sram.bytes": "16 KiB", "interconnect.multicast": True})


def random_network(rng: Random) -> Graph:
    """Convolutions, poolings, elementwise operators and sums with earlier values, on images of 12 to 40 rows."""
    build = GraphBuilder("network")
    dtype, layout = rng.choice((DType.INT8, DType.FLOAT32)), rng.choice(("NHWC", "NCHW"))
    rows, cols, channels = rng.randrange(12, 41), rng.randrange(4, 12), rng.choice((1, 3, 4, 8))
    batch = rng.choice((1, 1, 1, 2))

    def shape() -> tuple[int, ...]:
        return (batch, channels, rows, cols) if layout == "NCHW" else (batch, rows, cols, channels)

    value = build.input("x", shape(), dtype)
    earlier: list[Tensor] = [value]
    for _ in range(rng.randrange(2, 7)):
        kind = rng.choice(("conv", "conv", "conv", "pool", "unary", "add"))
        if kind == "add":
            alike = [each for each in earlier if each.shape == value.shape]
            value = narrowed(build, build.add("binary", [value, rng.choice(alike)], {"fn": Binary.ADD}), dtype)
        elif kind == "unary":
            value = build.add("unary", [value], {"fn": Unary.ABS})
        else:
            kernel, stride = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 1, 2))
            below = rng.choice((kernel // 2, kernel // 2, 0, kernel - 1))
            pads = (rng.choice((kernel // 2, kernel // 2, 0)), kernel // 2, below, kernel // 2)
            high, wide = (size + pads[at] + pads[at + 2] - kernel for at, size in enumerate((rows, cols)))
            if min(high, wide) < stride:
                continue
            rows, cols = high // stride + 1, wide // stride + 1
            window = {"layout": layout, "stride": (stride,) * 2, "dilation": (1, 1), "pads": pads}
            if kind == "pool":
                more = {"fn": "max", "kernel": (kernel,) * 2, "output_hw": (rows, cols)}
                value = build.add("pool", [value], {**window, **more})
            else:
                groups, values = channels if rng.random() < 0.3 else 1, np.random.default_rng(rng.randrange(99))
                out = channels if groups > 1 else rng.choice((4, 8, 12))
                weights = build.const(values.integers(-3, 4, (out, channels // groups, kernel, kernel)), dtype=dtype)
                made = build.add("conv", [value, weights], {**window, "groups": groups})
                channels, value = out, narrowed(build, made, dtype)
        earlier.append(value)
    return build.finish([value])


def narrowed(build: GraphBuilder, value: Tensor, dtype: DType) -> Tensor:
    return value if value.dtype is dtype else build.add("cast", [value], {"to": dtype})


def random_config(rng: Random) -> Config:
    alone = {"interconnect.multicast": False}
    way = rng.choice(({}, {"exchange.bytes_per_cycle": 8}, alone, {"exchange.bytes_per_cycle": 64, **alone}))
    return TINY.with_(**{"cores": rng.randrange(2, 6), "sram.bytes": rng.choice((6, 12, 24)) << 10, **way})


@settings(max_examples=examples(12), suppress_health_check=QUIET)
@given(st.integers(0, 1 << 30))
def test_cascades_on_cores_compute_the_same_bits_without_races(seed: int) -> None:
    rng = Random(seed)
    graph, config = random_network(rng), random_config(rng)
    prepared = fill_groups(prepare(graph, config), config, Budget.of(config))
    found = cascades_on_cores(prepared, config)
    if found is None:
        return
    again = build(prepared, config, found.plan.complete(), Budget.of(config))
    assert encode(again.commands) == encode(found.commands)
    program = compile_graph(graph, config, schedule=found.plan.complete())
    races = find_races(list(decode(program.code)), limits_of(program, config))
    assert not races, f"{len(races)} races, the first: {races[0]}"
    x = np.random.default_rng(seed).integers(-5, 6, graph.inputs[0].shape).astype(graph.inputs[0].dtype.storage)
    roomy = config.with_(**{"cores": 1, "sram.bytes": "128 KiB"})
    wanted = interpreted(compile_graph(graph, roomy), roomy, {"x": x})
    same_bytes(interpreted(program, config, {"x": x}), wanted, "cascades on cores against one core")


@settings(max_examples=examples(6), suppress_health_check=QUIET)
@given(st.integers(0, 1 << 30))
def test_a_given_cascade_is_kept_on_several_cores_or_refused_by_name(seed: int) -> None:
    rng = Random(seed)
    graph, config = random_network(rng), random_config(rng).with_(**{"sram.bytes": "32 KiB"})
    prepared = fill_groups(prepare(graph, config), config, Budget.of(config))
    names = LayerNames(make_plan(prepared, config, FREE.with_("shards", "cascades", cores=config.cores)).groups).names
    if len(names) < 2:
        return
    first = rng.randrange(len(names) - 1)
    given_run = LayerCascade(tuple(names[first : first + 2]), rows=rng.choice((0, 1, 2)))
    schedule = FREE.with_(cores=config.cores, cascades=(given_run,))
    refused = ""
    try:
        built = ScheduleSearch(prepared, config, Budget.of(config), schedule).run().plan.complete()
    except ScheduleError as error:
        refused = str(error)
    if refused:
        assert refused.startswith("cascades: ")
        return
    assert built.cores == config.cores
    assert any(each.layers == given_run.layers and given_run.rows in (0, each.rows) for each in built.cascades)


def test_constants_of_a_cascade_are_loaded_while_the_layer_before_it_computes() -> None:
    """Of all its layers, before the last product of the layer before it."""
    build_ = GraphBuilder("before")
    value = build_.input("x", (1, 24, 16, 16), DType.INT8)
    for kernel in (5, 3, 3):
        weights = build_.const(np.ones((16, 16, kernel, kernel), np.int8))
        window = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (kernel // 2,) * 4}
        value = narrowed(build_, build_.add("conv", [value, weights], window), DType.INT8)
    config = TINY.with_(**{"cores": 2, "sram.bytes": "64 KiB"})
    prepared = prepare(build_.finish([value]), config)
    names = LayerNames(make_plan(prepared, config, FREE.with_("shards", "cascades", cores=2)).groups).names
    schedule = FREE.with_(cores=2, cascades=(LayerCascade((names[0],)), LayerCascade(tuple(names[1:]))))
    found = ScheduleSearch(prepared, config, Budget.of(config), schedule).run()
    assert [step.groups[0].index for step in found.layout.steps if step.cascade] == [1]
    last = max(at for at, each in enumerate(found.commands) if each.op == 0 and each.unit == Unit.MATRIX)
    early = [each for each in found.commands[:last] if isinstance(each.instruction, Copy) and reads_constants(each)]
    assert {each.op for each in early} == {0, 1, 2}


def reads_constants(command: Command) -> bool:
    source = getattr(command.instruction, "src", 0)
    return space_of(source) == Space.REGION + CONSTANTS
