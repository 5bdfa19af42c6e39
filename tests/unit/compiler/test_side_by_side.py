"""Units work in parallel: a reader waits only for the part that it reads, and has its own working memory."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npusim.compiler.grouping.groups import form_groups, side_by_side
from npusim.compiler.lower.base import ConstantPool, Context, SlotSpec
from npusim.compiler.lower.kinds import lower
from npusim.compiler.lower.matrix import MatrixLowering
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.compiler.schedule import search as compare
from npusim.compiler.schedule.cascade import moved_bytes
from npusim.compiler.schedule.layout import place
from npusim.compiler.schedule.scratchpad import ScheduleStep
from npusim.compiler.schedule.slots import place_slots
from npusim.compiler.schedule.step_costs import KnownCosts, StepCosts
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost_model
from npusim.isa.base import Unit, decode
from npusim.isa.functions import Unary
from npusim.ops.build import GraphBuilder
from npusim.runtime import Session
from npusim.timing.tile import OVERLAP, tilings
from npusim.timing.tile_problem import Tiling
from tests.support.graphs.cascades import cascade_of

EDGE, TINY = load_config("edge"), load_config("tiny")
CONV = {"layout": "NHWC", "stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (0, 0, 0, 0)}
POOL = {
    "layout": "NHWC", "kernel": (2, 2), "stride": (2, 2), "dilation": (1, 1), "pads": (0, 0, 0, 0), "fn": "max",
    "count_include_pad": False,
}  # fmt: skip


def layers(kinds: str, rows: int = 64) -> Graph:
    """Build a chain of 1 x 1 convolutions (c), maximum pools (p) and sigmoids (s)."""
    build = GraphBuilder(kinds)
    value = build.input("x", (1, rows, 64, 32), DType.FLOAT16)
    rng = np.random.default_rng(3)
    for kind in kinds:
        if kind == "c":
            weights = build.const(rng.standard_normal((32, 32, 1, 1)).astype(np.float16))
            value = build.add("conv", [value, weights], CONV)
        elif kind == "p":
            value = build.add("pool", [value], {**POOL, "output_hw": (value.shape[1] // 2, value.shape[2] // 2)})
        else:
            value = build.add("unary", [value], {"fn": Unary.SIGMOID})
    return build.finish([value])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [("sc", True), ("cp", True), ("scc", True), ("ccp", True), ("cc", False), ("cpc", False), ("scp", False)],
)
def test_what_lies_between_two_groups_of_a_unit_makes_it_wait(kinds: str, expected: bool) -> None:
    graph = prepare(layers(kinds), EDGE)
    assert side_by_side(form_groups(graph.ops, graph.outputs)) is expected


def test_rows_of_two_stripes_have_room_where_units_change() -> None:
    for kinds, stripes in (("sc", 2), ("cc", 1)):
        (window,) = cascade_of(layers(kinds), 8, EDGE).rolling
        assert window.buffer.nbytes == stripes * 8 * window.pitch, kinds


@pytest.mark.parametrize("height", [1, 2, 3, 4, 8])
def test_the_next_stripe_is_made_beside_the_rows_that_are_read(height: int) -> None:
    """Also when rows that are still needed move to the front of the window in between."""
    build = GraphBuilder("halos")
    value = build.add("unary", [build.input("x", (1, 32, 16, 8), DType.FLOAT16)], {"fn": Unary.SIGMOID})
    weights = build.const(np.zeros((8, 8, 3, 3), np.float16))
    cascade = cascade_of(
        build.finish([build.add("conv", [value, weights], {**CONV, "pads": (1, 1, 1, 1)})]), height, EDGE
    )
    (window,) = cascade.rolling
    (reader,) = window.value.readers
    assert window.moves
    for stripe in window.moves:
        first, end = cascade.stripes[stripe - 1][reader.reader]
        read = {row + window.bases[stripe - 1] for row in range(*reader.rows(first, end, 32))}
        made = {row + window.bases[stripe] for row in range(*cascade.stripes[stripe][window.value.maker])}
        assert not read & made, stripe


def waited(graph: Graph) -> float:
    """Return the fraction of the vector unit's work that is over when the matrix unit starts."""
    program = compile_graph(graph, EDGE)
    with Session(EDGE, cache_dir=False) as session:
        spans = session.run(program, timing_only=True).timeline.spans
    vector = [span for span in spans if span.unit == "core0.vector"]
    first = min(span.start_ps for span in spans if span.unit == "core0.matrix")
    assert len(vector) > 2
    begin, end = min(span.start_ps for span in vector), max(span.end_ps for span in vector)
    return (first - begin) / (end - begin)


def test_a_stripe_is_made_while_the_one_before_is_read() -> None:
    assert waited(layers("sc")) < 0.3


def test_a_value_that_is_whole_is_waited_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without stripes: the uses of a value by one operator have separate waits."""
    monkeypatch.setattr("npusim.compiler.schedule.cascade_search.CascadeSearch.run", lambda search: [])
    assert waited(layers("sc")) < 0.7, "its weights come behind the last tile's pixels, but it does not wait for these"


def test_a_window_is_gone_through_as_quickly_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stripe is computed while the previous one is read, also after many stripes (64 of one row each)."""
    cost_of = StepCosts.of

    def low(costs: StepCosts, step: ScheduleStep) -> int | None:
        if step.cascade is None:
            return cost_of(costs, step)
        return cost_of(costs, step) and 1 if step.cascade.height == 1 else None

    monkeypatch.setattr(StepCosts, "of", low)
    with Session(EDGE, cache_dir=False) as session:
        spans = session.run(compile_graph(layers("sc"), EDGE), timing_only=True).timeline.spans
    ends = [span.end_ps for span in spans if span.unit == "core0.matrix"]
    assert len(ends) >= 64
    quarter = len(ends) // 4
    assert ends[-1] - ends[-quarter] <= (ends[2 * quarter - 1] - ends[quarter]) * 1.1


def taken(graph: Graph, config: Config = EDGE) -> int:
    """Return the time of an inference in picoseconds."""
    with Session(config, cache_dir=False) as session:
        return session.run(compile_graph(graph, config), timing_only=True).time_ps


def test_a_chain_hides_the_next_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when all values fit in SRAM: the matrix unit computes the next stripe during the sigmoids of the current
    one."""
    graph = layers("ccccss")
    together = taken(graph)
    monkeypatch.setattr("npusim.compiler.schedule.cascade_search.CascadeSearch.run", lambda search: [])
    assert together < taken(graph) * 0.95


def windows(strides: Sequence[int]) -> Graph:
    """Build 3 x 3 convolutions one after the other."""
    build = GraphBuilder("windows")
    value = build.input("x", (1, 64, 64, 32), DType.FLOAT16)
    for stride in strides:
        weights = build.const(np.zeros((32, 32, 3, 3), np.float16))
        value = build.add("conv", [value, weights], {**CONV, "stride": (stride, stride), "pads": (1, 1, 1, 1)})
    return build.finish([value])


def test_layers_work_on_the_first_rows_of_an_input_while_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when all values between the layers are in SRAM: loading an input from a slow DRAM takes time."""
    config = EDGE.with_(**{"sram.bytes": "8 MiB", "dram.bandwidth": "2 GB/s"})
    graph = windows((1, 1, 1, 8))
    together = taken(graph, config)
    for why in ("_may_hide_input", "_may_save_padding"):
        monkeypatch.setattr(f"npusim.compiler.schedule.cascade_search.CascadeSearch.{why}", lambda *arguments: False)
    assert together < taken(graph, config) * 0.9


def test_nobody_computes_before_the_first_tile_is_there() -> None:
    """A cascade loads its input while it computes, except for the first tile and a small part that stays visible. So it
    takes longer with a slower DRAM even if it is bound by compute."""
    graph, height = windows((1, 1)), 32
    costs = []
    for bandwidth in (10**10, 10**12):
        config = EDGE.with_(**{"sram.bytes": "8 MiB", "dram.bandwidth": bandwidth})
        prepared, cascade = prepare(graph, config), cascade_of(graph, height, config)
        context = Context(config, ConstantPool())
        groups, buffers = place(prepared, form_groups(prepared.ops, prepared.outputs), context)
        for window in cascade.rolling:
            context.views[window.value.tensor] = window.view
            window.buffer.core = 0
        estimates = StepCosts(groups, buffers, context, KnownCosts())
        costs.append(estimates.of(ScheduleStep(groups, cascade)) or 0)
    coming = graph.inputs[0].nbytes * 10**12 // 10**10
    assert costs[0] - costs[1] > coming / OVERLAP + coming / 64


@pytest.mark.parametrize("kinds", ["cs", "ss", "cp"])
def test_what_works_side_by_side_shares_the_banks(kinds: str) -> None:
    """The estimate includes the SRAM bank traffic of a group: as much as its instructions need."""
    config = EDGE.with_(**{"sram.banks": 1, "matrix.output_elements_per_cycle": 256})
    graph = prepare(layers(kinds), config)
    context = Context(config, ConstantPool())
    groups, _ = place(graph, form_groups(graph.ops, graph.outputs), context)
    expected, price = 0, cost_model(config).cost
    for command in decode(compile_graph(layers(kinds), config).code):
        if command.unit in (Unit.MATRIX, Unit.VECTOR):
            expected += price(command.instruction.work()).sram_ps
    lowered = [lower(context, group) for group in groups]
    assert sum(each.banked() for each in lowered) == pytest.approx(expected, rel=0.05)
    assert all(each.estimate() >= each.banked() for each in lowered)


def test_what_is_stored_is_the_result_of_the_chain() -> None:
    """It is int8, though the sums are floats; the estimate must not count more traffic than there is."""
    build = GraphBuilder("narrow")
    value = build.input("x", (1, 64, 64, 32), DType.FLOAT16)
    value = build.add("conv", [value, build.const(np.zeros((32, 32, 1, 1), np.float16))], CONV)
    value = build.add("unary", [value], {"fn": Unary.SIGMOID})
    graph = prepare(build.finish([build.add("cast", [value], {"to": DType.INT8})]), EDGE)
    context = Context(EDGE, ConstantPool())
    (group,), _ = place(graph, form_groups(graph.ops, graph.outputs), context)
    lowered = lower(context, group)
    assert isinstance(lowered, MatrixLowering)
    problem, config = lowered.problem, EDGE.with_(**{"dram.bandwidth": "100 MB/s"})
    assert problem.stored_bytes == 1 < problem.out_type.itemsize
    tile = Tiling(1, 8, 64, 32, 32, weights_outer=False)
    wide = problem._replace(epilogue=problem.epilogue._replace(result=0))
    assert tilings(problem, config).score(tile) < 0.85 * tilings(wide, config).score(tile)


def test_lower_stripes_are_tried_until_they_have_been_worse_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if a lower height is slower, a still lower one may be faster."""
    tried: dict[int, int] = {}
    cost_of = StepCosts.of

    def noted(costs: StepCosts, step: ScheduleStep) -> int | None:
        cost = cost_of(costs, step)
        if step.cascade is not None and cost is not None:
            tried.setdefault(step.cascade.height, cost)
        return cost

    monkeypatch.setattr(StepCosts, "of", noted)
    compile_graph(layers("cc"), EDGE.with_(**{"sram.bytes": "192 KiB"}))
    heights = list(tried)
    assert heights == [32, 16, 8, 4, 2, 1][: len(heights)]
    best = heights.index(min(tried, key=tried.__getitem__))
    assert len(heights) == min(6, best + 3), "two beyond the best"


def test_nobody_works_before_the_first_rows_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load time of the first rows is added to the compute time; only loads of other rows are hidden."""
    tried: dict[int, tuple[int, int]] = {}
    cost_of = StepCosts.of

    def noted(costs: StepCosts, step: ScheduleStep) -> int | None:
        cost = cost_of(costs, step)
        if step.cascade is not None and step.cascade.loaded and cost is not None:
            (window,), (stripe, *_) = step.cascade.loaded, step.cascade.stripes
            (reader,) = window.value.readers
            first = reader.rows(0, stripe[0][1], 64)[1] * value.nbytes // 64 * 10**12 // config.dram.bandwidth
            tried[step.cascade.height] = cost, first
        return cost

    monkeypatch.setattr(StepCosts, "of", noted)
    monkeypatch.setattr(MatrixLowering, "estimate", lambda lowering: 10**8)
    monkeypatch.setattr(MatrixLowering, "striped", lambda lowering, rows: 10**8)
    build = GraphBuilder("windows")
    value = result = build.input("x", (1, 64, 64, 32), DType.FLOAT16)
    for _ in range(2):
        weights = build.const(np.zeros((32, 32, 3, 3), np.float16))
        result = build.add("conv", [result, weights], {**CONV, "pads": (1,) * 4})
    config = EDGE.with_(**{"sram.bytes": "192 KiB", "dram.bandwidth": "2 GB/s"})
    compile_graph(build.finish([result]), config)
    assert tried
    for cost, first in tried.values():
        assert cost >= 2 * 10**8 + first, tried


def test_rows_move_while_nobody_works() -> None:
    """With two groups, the producer of the next rows waits for the move; with three, the third group works
    meanwhile."""
    build = GraphBuilder("windows")
    value = build.input("x", (1, 64, 16, 32), DType.FLOAT16)
    for size in (1, 3, 1):
        weights = build.const(np.zeros((32, 32, size, size), np.float16))
        value = build.add("conv", [value, weights], {**CONV, "pads": (size // 2,) * 4})
        if size > 1:
            two = cascade_of(build.finish([value]), 4, EDGE)
    three = cascade_of(build.finish([value]), 4, EDGE)
    assert any(window.moves for window in three.rolling)
    assert moved_bytes(two) == sum(rows * window.pitch for window in two.rolling for _, rows in window.moves.values())
    assert moved_bytes(two) > 0
    assert moved_bytes(three) == 0


def test_pooling_loads_what_windows_share_for_each_tile() -> None:
    """With little room the tiles are low, and most rows are loaded twice."""
    build = GraphBuilder("pool")
    value = build.input("x", (1, 128, 64, 32), DType.FLOAT16)
    attrs = {**POOL, "kernel": (3, 3), "stride": (1, 1), "output_hw": (126, 62)}
    graph = prepare(build.finish([build.add("pool", [value], attrs)]), EDGE)
    context = Context(EDGE, ConstantPool())
    (group,), _ = place(graph, form_groups(graph.ops, graph.outputs), context)
    estimates = []
    for room in (512 << 10, 40 << 10):
        context.room = room
        estimates.append(lower(context, group).estimate())
    assert estimates[1] > estimates[0] * 1.1


def test_slots_lie_away_from_what_neighbours_use() -> None:
    specs = [SlotSpec("x", 1024, 2)]
    free = [(0, 4096), (8192, 16384)]
    assert place_slots(specs, free, low_end=True) == [0, 1024]
    assert place_slots(specs, free, low_end=True, avoid=[(0, 3000)]) == [8192, 9216]
    assert place_slots(specs, free, low_end=True, avoid=[(0, 1000), (8192, 9000)]) == [2048, 3072]
    assert place_slots(specs, free, low_end=False, avoid=[(0, 1000)]) == [14336, 15360]
    # between the neighbours' bytes at both ends
    assert place_slots(specs, [(0, 16384)], low_end=True, avoid=[(0, 3000), (12000, 16384)]) == [3008, 4032]
    # If everything is in use, the place with the least overlap: 96 bytes at the end are free.
    assert place_slots(specs, [(0, 4096)], low_end=True, avoid=[(0, 4000)]) == [2048, 3072]


def test_the_best_on_some_cores_is_so_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less traffic is worth slightly more time for equal core counts only. Otherwise more cores could be slower than
    fewer."""

    class Order:
        prologue = 0

        def __init__(self, cores: int, traffic: int) -> None:
            self.cores, self.commands, self.plan = cores, [traffic], SimpleNamespace(graph=None)

    def traffic(commands: list[int], config: object) -> int:
        return commands[0]

    monkeypatch.setattr(compare, "_traffic", traffic)
    monkeypatch.setattr(compare, "most_traffic", lambda graph, cores, config: np.inf)
    few, lean, many = Order(2, 90), Order(2, 80), Order(4, 10)

    def first(*orders: tuple[int, Order]) -> object:
        told: Any = orders
        return compare._first(told, TINY)

    assert first((10_000, few), (10_030, lean)) is lean
    assert first((10_000, few), (10_050, lean)) is few
    assert first((10_000, few), (10_001, many)) is few
    assert first((10_000, few), (10_030, lean), (10_031, many)) is lean
    assert first((10_000, few), (10_030, lean), (10_029, many)) is many
    # A program with more traffic than cores need must be faster by 5 %.
    monkeypatch.setattr(compare, "most_traffic", lambda graph, cores, config: 85)
    assert first((10_000, few), (10_400, lean)) is lean
    assert first((10_000, few), (10_501, lean)) is few
