"""Cutting groups into parts for cores only affects time: any number of cores computes the same bits."""

from __future__ import annotations

from random import Random
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.grouping.groups import Group
from npusim.compiler.schedule.axis_search import AxisSearch
from npusim.compiler.schedule.halo import LayerCut, Readers
from npusim.compiler.schedule.shards import axes_of, is_row
from npusim.dtypes import DType
from npusim.graph import Tensor
from npusim.hw.config import Config
from npusim.isa.base import decode
from npusim.isa.functions import Binary
from npusim.ops import reference
from npusim.ops.build import GraphBuilder
from tests.support.examples import examples
from tests.support.graphs.comparison import same_bytes
from tests.support.graphs.execution import compiled, interpreted, outputs_of, simulated
from tests.support.graphs.random_graphs import QUIET, graphs
from tests.support.graphs.random_values import RandomGraph
from tests.support.graphs.schedules import sharded
from tests.support.programs.race_detector import find_races, limits_of
from tests.support.random_devices import Device, devices


@settings(max_examples=examples(30), suppress_health_check=QUIET)
@given(graphs(), devices(), st.integers(2, 5))
def test_parts_compute_the_same_bits_without_races(case: RandomGraph, device: Device, cores: int) -> None:
    config = device.config.with_(cores=cores)
    program = sharded(case.graph, config)
    if program is None:
        return
    races = find_races(list(decode(program.code)), limits_of(program, config))
    assert not races, f"{len(races)} races, the first: {races[0]}"
    alone = compiled(case.graph, config.with_(cores=1))
    if alone is None:
        return
    ours, theirs = interpreted(program, config, case.inputs), interpreted(alone, config, case.inputs)
    same_bytes(ours, theirs, f"{cores} cores against one")


WAYS = st.sampled_from([{}, {"exchange.bytes_per_cycle": 1}, {"exchange.bytes_per_cycle": 64}])
"""Without an exchange network values pass through DRAM."""


@settings(max_examples=examples(40), suppress_health_check=QUIET)
@given(graphs(), devices(), st.integers(1, 4), WAYS)
def test_cores_that_exchange_values_compute_the_same_bits_without_races(
    case: RandomGraph, device: Device, cores: int, way: dict[str, int]
) -> None:
    check_exchange(case, device.config.with_(**{"cores": cores, **way}))


@st.composite
def chains(draw: st.DrawFn) -> RandomGraph:
    """Draw windows over images, one after the other, with additions of earlier values, and a product at the end."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    build, layout = GraphBuilder("chain"), draw(st.sampled_from(["NCHW", "NHWC"]))
    dtype = draw(st.sampled_from([DType.FLOAT32, DType.INT8]))
    n, c, h, w = draw(st.integers(1, 2)), draw(st.integers(1, 9)), draw(st.integers(3, 12)), draw(st.integers(1, 5))
    value = build.input("x", (n, c, h, w) if layout == "NCHW" else (n, h, w, c), dtype)
    values = [value]
    for _ in range(draw(st.integers(1, 5))):
        value = _next(draw, rng, build, layout, value)
        alike = [other for other in values if other.shape == value.shape and other.dtype == value.dtype]
        if alike and draw(st.booleans()):
            value = build.add("binary", [value, draw(st.sampled_from(alike))], {"fn": Binary.ADD})
        values.append(value)
    if draw(st.booleans()):
        value = build.add("reshape", [value], {"shape": (n, value.size // n)})
        weight = rng.integers(-3, 4, (value.shape[1], draw(st.integers(1, 9)))).astype(dtype.storage)
        value = build.add("matmul", [value, build.const(weight)])
    graph = build.finish([value])
    x = rng.integers(-5, 6, graph.inputs[0].shape).astype(dtype.storage)
    return RandomGraph(graph, {"x": x}, {})


def _next(draw: st.DrawFn, rng: np.random.Generator, build: GraphBuilder, layout: str, value: Tensor) -> Tensor:
    """Draw a convolution or a pooling of any kind."""
    channels = value.shape[1 if layout == "NCHW" else 3]
    height, width = value.shape[2:] if layout == "NCHW" else value.shape[1:3]
    kernel = draw(st.integers(1, min(4, height))), draw(st.integers(1, min(3, width)))
    dilation = (draw(st.integers(1, 2)) if 2 * kernel[0] <= height else 1, 1)
    pads = tuple(draw(st.integers(0, size - 1)) for size in (*kernel, *kernel))
    stride = (draw(st.integers(1, 2)), 1)
    attrs: dict[str, Any] = {"layout": layout, "stride": stride, "dilation": dilation, "pads": pads}
    if draw(st.integers(0, 3)) == 0:
        out = [
            (size + before + after - (taps - 1) * apart - 1) // step + 1
            for size, before, after, taps, apart, step in zip(
                (height, width), pads[:2], pads[2:], kernel, dilation, stride, strict=True
            )
        ]
        more = {"fn": draw(st.sampled_from(["max", "average"])), "kernel": kernel, "output_hw": tuple(out)}
        return build.add("pool", [value], {**attrs, **more, "count_include_pad": draw(st.booleans())})
    groups = draw(st.sampled_from([count for count in range(1, channels + 1) if channels % count == 0]))
    made = groups * draw(st.integers(1, 4)) if groups > 1 else draw(st.integers(1, 9))
    weight = rng.integers(-3, 4, (made, channels // groups, *kernel)).astype(value.dtype.storage)
    value = build.add("conv", [value, build.const(weight)], {**attrs, "groups": groups})
    return value if value.dtype.is_float else build.add("cast", [value], {"to": DType.INT8})


@settings(max_examples=examples(4), suppress_health_check=QUIET)
@given(chains(), devices(), st.integers(2, 4), WAYS, st.randoms(use_true_random=False), st.booleans())
def test_however_groups_are_cut_cores_that_exchange_compute_the_same_bits(
    case: RandomGraph, device: Device, cores: int, way: dict[str, int], random: Random, stay: bool
) -> None:
    """Not only for the best cut, but along any dimension of each group, also for rows with halos that are exchanged or
    computed again, with and without resident weights."""

    def run(search: AxisSearch) -> tuple[LayerCut, ...]:
        cores = search._cores
        cuts = [LayerCut(_axis(random, axes_of(group, passes=True), group), cores) for group in search._groups]
        readers = Readers(search._groups, search._whole, search._rows)
        for group in search._groups:
            if readers.of(group, cuts):
                cuts[group.index] = cuts[group.index]._replace(halo=random.random() < 0.7)
        return tuple(cuts)

    changes = {"cores": cores, "sram.bytes": 1 << 20, "compiler.resident_weights": stay, **way}
    config = device.config.with_(**changes)
    with mock.patch.object(AxisSearch, "run", run):
        check_exchange(case, config)


def _axis(random: Random, axes: list[int], group: Group) -> int | None:
    """Draw an axis or None; image rows more often than other axes."""
    rows = [axis for axis in axes if is_row(group, axis)]
    return random.choice(rows if rows and random.random() < 0.6 else [*axes, None])


def check_exchange(case: RandomGraph, config: Config) -> None:
    """One core, several that exchange values, and their program in program order give the same bits."""
    program = sharded(case.graph, config) if config.cores > 1 else compiled(case.graph, config)
    if program is None:
        return
    races = find_races(list(decode(program.code)), limits_of(program, config))
    assert not races, f"{len(races)} races, the first: {races[0]}"
    alone = compiled(case.graph, config.with_(cores=1, exchange=None))
    if alone is None:
        return
    ours, theirs = interpreted(program, config, case.inputs), interpreted(alone, config, case.inputs)
    same_bytes(ours, theirs, f"{config.cores} cores against one")
    if not any(tensor.dtype.is_float for tensor in case.graph.outputs):
        same_bytes(ours, reference.run(case.graph, case.inputs), "against the reference")
    same_bytes(outputs_of(simulated(program, config, case.inputs)), ours, "in time against one by one")
