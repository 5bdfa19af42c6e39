"""Each picosecond of a run waits for one resource; planted bottlenecks are named alike everywhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim.hw.units
from npusim.bottleneck import RESOURCES, TERMS, host_ps, instructions, parts_of, summed
from npusim.dtypes import DType
from npusim.explore.compare import compare
from npusim.explore.compare_text import text as comparison_text
from npusim.explore.evaluate import figures_of, simulate
from npusim.explore.figures import SIMULATED, StudyRow
from npusim.explore.report import bound_by
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.hw.cost import cost
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.report.html import run_page
from npusim.report.layers import layers, slowest
from npusim.report.run import text
from npusim.runtime import Result, Session
from npusim.testing.run import ModelRun
from npusim.work import DmaWork, VectorWork
from tests.support.graphs.golden import GRAPHS
from tests.support.graphs.samples import conv, relu

EDGE = load_config("edge")


def convolutions() -> Graph:
    """Build three convolutions."""
    build = GraphBuilder("convolutions")
    value = build.input("x", (1, 16, 24, 24), DType.FLOAT32)
    for _ in range(3):
        value = relu(build, conv(build, value, 16, 3))
    return build.finish([value])


def functions() -> Graph:
    """Build transcendental functions of many elements."""
    build = GraphBuilder("functions")
    value = build.add("unary", [build.input("x", (64, 256), DType.FLOAT32)], {"fn": Unary.TANH})
    return build.finish([build.add("unary", [value], {"fn": Unary.EXP})])


def chain() -> Graph:
    """Build a chain of short operators, each of which needs the previous one."""
    build = GraphBuilder("chain")
    value = build.input("x", (1, 8), DType.FLOAT32)
    for _ in range(24):
        value = build.add("softmax", [value], {"axis": 1, "log": False})
    return build.finish([value])


def vectors(count: int, width: int) -> Graph:
    """Build a chain of products of a vector, whose cores need all elements of the previous one."""
    rng, build = np.random.default_rng(1), GraphBuilder("vectors")
    value = build.input("x", (1, width), DType.FLOAT32)
    for _ in range(count):
        weights = rng.standard_normal((width, width)).astype(np.float32)
        value = build.add("matmul", [value, build.const(weights)])
    return build.finish([value])


def decoding(count: int, width: int) -> Graph:
    """Build the products of one token of a language model with weights of 4 bits."""
    rng, build = np.random.default_rng(1), GraphBuilder("decoding")
    value = build.input("x", (1, width), DType.FLOAT16)
    for _ in range(count):
        packed = build.const(rng.integers(-8, 8, (width, width)).astype(np.int8))
        scale, zero = (
            build.const(rng.random((1, width)).astype(np.float32)),
            build.const(np.zeros((1, width), np.int32)),
        )
        weights = build.add("dequantize", [packed, scale, zero], {"to": DType.FLOAT16})
        value = build.add("matmul", [value, weights])
    return build.finish([value])


PLANTED: dict[str, tuple[str, Callable[[], Graph], str, dict[str, Any]]] = {
    "array too small": ("macs", convolutions, "edge", {"matrix.rows": 2, "matrix.cols": 2}),
    "narrow DRAM": ("dram", convolutions, "edge", {"dram.bandwidth": "100 MB/s"}),
    "latency": ("latency", convolutions, "edge", {"dram.latency": "20 us"}),
    "one channel": ("dma", convolutions, "edge", {"dma.channels": 1, "dma.bytes_per_cycle": 1}),
    "SRAM ports": ("sram", convolutions, "edge", {"sram.banks": 1, "sram.bytes_per_cycle": 1}),
    "vector lanes": ("vector", functions, "edge", {"vector.lanes": 1}),
    "exchange": (
        "exchange", lambda: vectors(10, 128), "edge",
        {
            "cores": 8, "matrix.rows": 1, "matrix.cols": 1, "dram.latency": "20 us", "dram.bandwidth": "64 GB/s",
            "dma.in_flight": 8, "dma.max_outstanding": 4096, "exchange.latency_cycles": 20_000,
            "exchange.bytes_per_cycle": 64,
        },
    ),
    "host link": ("host", convolutions, "edge", {"host.link_bandwidth": "1 MB/s"}),
    "scalar": ("scalar", GRAPHS["lookups"], "edge", {"scalar.cycles_per_element": 1000}),
    "serial chain": ("dependencies", chain, "edge", {"vector.setup_cycles": 1000}),
    "weights of the array": ("array", lambda: decoding(2, 2048), "server", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bottleneck_is_named_by_every_report(name: str) -> None:
    resource, graph, base, changes = PLANTED[name]
    config = load_config(base).with_(**changes)
    result = simulate(graph(), config)
    assert check_sums(result) == resource
    shown = f"{resource} {100 * result.bottleneck.resources[resource] / result.bottleneck.total_ps:.1f} %"
    run = " ".join(text(result, config, "none").split())
    assert f"bound by {shown}" in run
    row = StudyRow(0, base, {}, "", SIMULATED, figures=(figures_of("model", result),))
    assert bound_by(row).startswith(shown)
    told = json.loads(json.dumps(result.to_json_dict()))
    assert told["bottleneck"]["bound"] == resource
    found = compare(told, told)
    assert found.to_json_dict()["bound"] == [resource, resource]
    assert f"bound by {shown}" in " ".join(comparison_text(found).split())
    assert shown in run_page(result)
    assert ModelRun(result).bound_by == resource
    assert float(ModelRun(result).bound(resource)) == result.bottleneck.resources[resource] / result.bottleneck.total_ps


def check_sums(result: Result) -> str:
    """Check that all parts add up to the times. Returns the bottleneck."""
    found = result.bottleneck
    assert found.total_ps == result.timeline.time_ps + host_ps(result.device, result.program)
    assert set(found.resources) <= set(RESOURCES)
    assert all(ps > 0 for ps in found.resources.values())
    for segment, parts in found.path:
        assert sum(ps for _, ps in parts) == segment.end_ps - segment.start_ps
        assert all(ps >= 0 for _, ps in parts)
    on_device = summed(parts for _, parts in found.path)
    assert sum(on_device.values()) == result.timeline.time_ps
    assert (
        sum(sum(row["resources"].values()) for row in result.to_json_dict()["critical_path"]) == result.timeline.time_ps
    )
    return found.bound


def test_the_spans_of_a_unit_are_its_instructions_in_order() -> None:
    with Session(EDGE, cache_dir=False) as session:
        program = session.compile(GRAPHS["attention"]())
        runs = [session.run(program, timing_only=True) for _ in range(2)]
    for result in runs:
        executed = instructions(program, held=result.residents_held)
        seen: Counter[str] = Counter()
        for span in result.timeline.spans:
            assert executed[span.unit][seen[span.unit]].mnemonic == span.kind
            seen[span.unit] += 1
        assert seen == {unit: len(found) for unit, found in executed.items()}


def test_every_term_of_a_cost_has_a_resource() -> None:
    sources = [path.read_text("utf-8") for path in Path(npusim.hw.units.__file__).parent.glob("*.py")]
    terms = set(re.findall(r'\("(\w+)", (?:COMPUTE|MEMORY|LATENCY),', "\n".join(sources)))
    of_transfers, of_whole_jobs = {"transfer", "latency", "writing"}, {"fetch"}
    assert terms - of_transfers - of_whole_jobs - {"compute"} == set(TERMS)
    assert set(TERMS.values()) <= set(RESOURCES)


def test_time_beyond_that_alone_is_shared_and_hidden_time_is_taken_from_the_start() -> None:
    work = VectorWork("simple", DType.FLOAT32, 3200, 1, 64)
    alone = cost(EDGE, work).ps
    before = (EDGE.vector.setup_cycles + EDGE.sram.latency_cycles) * 1000
    assert parts_of(EDGE, work, alone) == (("dependencies", 8000), ("dependencies", 2000), ("vector", 100_000))
    assert summed([parts_of(EDGE, work, alone + 7)]) == {"vector": 100_000, "dependencies": before, "sram": 7}
    assert parts_of(EDGE, work, alone - 9000) == (("dependencies", 1000), ("vector", 100_000))


@pytest.mark.parametrize(
    ("changes", "resource"),
    [
        ({}, "dram"),
        ({"dma.bytes_per_cycle": 4}, "dma"),
        ({"dma.max_outstanding": 2}, "latency"),
        ({"interconnect.bytes_per_cycle": 8}, "interconnect"),
        ({"interconnect.core_bytes_per_cycle": 4}, "interconnect"),
    ],
)
def test_a_transfer_waits_for_the_slowest_of_its_way(changes: dict[str, Any], resource: str) -> None:
    work = DmaWork(1 << 20, 1, 1 << 20, 1 << 20, 0)
    config = EDGE.with_(**changes)
    assert next(iter(summed([parts_of(config, work, cost(config, work).ps)]))) == resource
    contended = summed([parts_of(config, work, 3 * cost(config, work).ps)])
    assert next(iter(contended)) == ("interconnect" if resource == "interconnect" else "dram")


def test_the_slowest_layer_of_an_assertion_is_that_of_the_report() -> None:
    result = simulate(convolutions(), EDGE)
    (layer,) = slowest(layers(result), 1)
    reason = repr(ModelRun(result).ends_before("1 us"))
    assert f"slowest layer: {layer.timing.name}, " in reason
    assert f"bound by {layer.resource} " in reason


@pytest.mark.parametrize("name", ["residual", "attention", "lookups"])
def test_the_host_s_part_is_that_of_a_run_with_a_loaded_program(name: str) -> None:
    with Session(EDGE, cache_dir=False) as session:
        program = session.compile(GRAPHS[name]())
        arrays = {each.name: np.zeros(each.shape, each.dtype.storage) for each in program.inputs}
        first, second = session.run(program, arrays), session.run(program, arrays)
    known = host_ps(EDGE, program)
    assert abs(second.host_ps - known) <= 2 * EDGE.host.mmio_ps + 50_000 < first.host_ps - known
    assert first.bottleneck.resources == second.bottleneck.resources
