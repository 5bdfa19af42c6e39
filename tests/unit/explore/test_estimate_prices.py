"""Tiles of many designs at once compared with the search for one; and an unknown cost model and key."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.explore.estimate import Estimator
from npusim.explore.estimates import prices
from npusim.explore.estimates.designs import Designs, config_at, fields_of, is_left
from npusim.explore.estimates.tiles import Case, ChainWorks, Question, TileSearch
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.hw.keys import Count, key
from npusim.hw.sections import VectorConfig
from npusim.hw.units import vector
from npusim.hw.units.base import COMPUTE, LATENCY, Cost, total
from npusim.runtime import Session
from npusim.timing.batch import with_values
from npusim.timing.tile import OVERLAP, SLACK_PERCENT, Tilings, forget
from npusim.timing.tile_costs import MovePrices, array_pricing, move_pricing, pricing
from npusim.timing.tile_cuts import can_cut_taps
from npusim.timing.tile_problem import EpilogueCosts, Home, MatrixProblem, Tiling, taps
from npusim.units import ceil_div
from npusim.validate.networks.build import Net
from npusim.work import MatrixWork, VectorWork
from tests.support.tile_definition import sram_bytes

EDGE = load_config("edge")
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)
FEW = settings(max_examples=25, deadline=None, derandomize=True)

SIZES = st.sampled_from([1, 2, 3, 5, 7, 16, 31, 32, 64, 100])
CYCLES = st.integers(0, 40)


@st.composite
def devices(draw: st.DrawFn) -> Config:
    """Draw variants of ``edge`` in every key that affects costs."""
    cols = draw(st.integers(1, 70))
    overrides: dict[str, Any] = {
        "clock": draw(st.sampled_from(["400 MHz", "1 GHz", "1.7 GHz"])),
        "matrix.rows": draw(st.integers(1, 70)), "matrix.cols": cols,
        "matrix.clock": draw(st.sampled_from([None, "900 MHz", "2 GHz"])),
        "matrix.dataflow": draw(st.sampled_from(["weight_stationary", "output_stationary", "input_stationary"])),
        "matrix.preload_hidden": draw(st.booleans()), "matrix.weight_buffers": draw(st.integers(2, 4)),
        "matrix.fill_drain": draw(st.sampled_from(["per_fold", "per_tile"])),
        "matrix.setup_cycles": draw(CYCLES), "matrix.arrays": draw(st.integers(1, 3)),
        "matrix.accumulator_bytes": draw(st.sampled_from([0, 64, 1024])) * cols * 4,
        "matrix.output_elements_per_cycle": draw(st.integers(1, 64)), "matrix.sums_shift_out": draw(st.booleans()),
        "matrix.port_bytes_per_cycle": draw(st.sampled_from([0, 16])),
        "vector.lanes": draw(st.integers(1, 64)), "vector.clock": draw(st.sampled_from([None, "700 MHz"])),
        "vector.packed": draw(st.booleans()), "vector.setup_cycles": draw(CYCLES),
        "vector.port_bytes_per_cycle": draw(st.sampled_from([0, 8])),
        "scalar.setup_cycles": draw(CYCLES), "scalar.cycles_per_element": draw(st.integers(1, 9)),
        "sram.banks": draw(st.sampled_from([1, 4, 16])), "sram.latency_cycles": draw(CYCLES),
        "dma.channels": draw(st.integers(1, 4)), "dma.setup_cycles": draw(CYCLES),
        "dma.bytes_per_cycle": draw(st.sampled_from([1, 8, 32, 128])),
        "dma.max_outstanding": draw(st.sampled_from([1, 8, 64])),
        "dma.burst_bytes": draw(st.sampled_from([16, 64, 256])),
        "dma.gather_bytes": draw(st.sampled_from([0, 512])),
        "dma.write_latency": draw(st.sampled_from([None, "10 ns"])), "compiler.inputs_ahead": draw(st.booleans()),
        "dma.local_bytes_per_cycle": draw(st.sampled_from([0, 64])),
        "dma.local_least_cycles": draw(st.sampled_from([0, 200])),
        "dram.bandwidth": draw(st.sampled_from(["1 GB/s", "17.064 GB/s", "80 GB/s"])),
        "dram.latency": draw(st.sampled_from(["0 ns", "120 ns"])),
        "dram.efficiency": draw(st.sampled_from(["1", "0.7"])),
        "interconnect.bytes_per_cycle": draw(st.sampled_from([4, 64])), "interconnect.latency_cycles": draw(CYCLES),
        "interconnect.core_bytes_per_cycle": draw(st.sampled_from([0, 0, 3])),
    }  # fmt: skip
    return EDGE.with_(**overrides)


def array(*values: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values, np.float64)


IN_PIECES = EpilogueCosts(2, between=8, operands=(1,))


@st.composite
def problems(draw: st.DrawFn) -> MatrixProblem:
    extent = st.sampled_from([4, 5, 8, 13, 16, 30, 32, 49])
    depthwise = draw(st.booleans())
    kernel, groups = draw(st.sampled_from([1, 3])), draw(extent) if depthwise else 1
    return MatrixProblem(
        draw(st.integers(1, 2)), draw(extent), draw(extent), groups, 1 if depthwise else 32 * draw(st.integers(1, 8)),
        1 if depthwise else 32 * draw(st.integers(1, 4)), kernel, kernel, 1, 1, 1, 1, depthwise, True, DType.INT8,
        DType.INT8, DType.INT8, draw(st.sampled_from([EpilogueCosts(), IN_PIECES])), False,
        draw(st.sampled_from(list(Home))), draw(st.sampled_from(list(Home))),
        held=draw(st.sampled_from([0, 0, 1])),
    )  # fmt: skip


@pytest.mark.parametrize("in_flight", [1, 4])
@FEW
@given(devices(), problems(), st.lists(st.sampled_from([1, 2, 4, 9, 30, 64, 200, 900]), min_size=6, max_size=6))
def test_tiles_of_many_designs_are_those_of_the_search_for_each(
    in_flight: int, base: Config, problem: MatrixProblem, rooms: list[int]
) -> None:
    """The same score, and a tile with the same bytes and times, whatever other designs are searched at once."""
    base = base.with_(**{"dma.in_flight": in_flight})
    columns = {
        "matrix.rows": array(4, 16, 4, 16, 16, 33), "matrix.cols": array(8, 8, 8, 40, 8, 21),
        "matrix.accumulator_bytes": array(0, 0, 1 << 12, 1 << 14, 0, 1 << 14),
        "dram.bandwidth": array(1e9, 1e9, 8e9, 1e9, 20e9, 8e9), "dma.channels": array(1, 1, 2, 1, 3, 2),
    }  # fmt: skip
    designs = Designs(base, columns, 6)
    case, budgets = Case(problem, ChainWorks(), problem.oh), array(*rooms) * 1024
    pieces = array(512, 700, 512, 4000, 1024, 512)
    both = [
        Question(case, np.arange(6), each, lengths, told=True)
        for each, lengths in ((budgets, pieces), (budgets[::-1], pieces), (budgets, pieces[::-1]))
    ]
    TileSearch(designs, 1).ask(both)
    for question in both:
        for number, room in enumerate(question.budgets):
            config = config_at(designs, number)
            epilogue = problem.epilogue._replace(piece=int(question.pieces[number]))
            mine = problem._replace(epilogue=epilogue)
            searched = Tilings(mine, pricing(config))
            (search,) = searched._searches
            found, ps, *_ = search.choose(int(room))
            if can_cut_taps(problem) and (found is None or ps > 2 * search.bound()):
                by_taps, time, *_ = searched._by_taps.choose(int(room))
                if by_taps is not None and (found is None or time * (100 + SLACK_PERCENT) // 100 < ps):
                    found, ps = by_taps, time
            assert question.scores[number] == (np.inf if found is None else ps)
            if found is None:
                assert np.isinf(question.latency[number])
                continue
            tile = Tiling(*found)
            latency, traffic = searched._knowing(tile).latency(tile, False)
            assert question.latency[number] == latency + traffic // OVERLAP
            told = {name: values[number] for name, values in question.figures.items()}
            assert told["bytes"] == sram_bytes(mine, tile, config)
            assert tuple(told[name] for name in ("groups", "oh", "ow", "oc", "ic")) == tile[:5]
            assert (told["kh"], told["kw"]) == taps(problem, tile)
            if config.compiler.inputs_ahead:  # else the loads of inputs count as computing
                assert told["compute"] <= searched.computing(tile)
            parts = [told[name] for name in ("compute", "chain", "loading", "storing")]
            assert max(parts) + told["begin"] + told["weights"] <= ps


def test_designs_are_told_apart_by_what_differs() -> None:
    designs = Designs(EDGE, {"matrix.rows": array(8, 8, 16, 16), "dma.channels": array(1, 2, 1, 2)}, 4)
    alike, mine = designs.alike(("matrix.rows", "clock"))
    assert alike.count == 2
    assert list(alike["matrix.rows"][mine]) == [8, 8, 16, 16]
    assert "dma.channels" not in alike.columns


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_designs_are_priced_once_where_costs_see_no_difference(channels: int) -> None:
    base = EDGE.with_(**{"dma.channels": channels})
    columns = {"matrix.rows": array(8, 8, 16, 16, 16), "dma.channels": array(1, 2, 1, 3, 4)}
    designs = Designs(base, columns, 5)
    arrays, of_array = designs.seen_by(array_pricing)
    assert (arrays.count, list(arrays["matrix.rows"][of_array])) == (2, [8, 8, 16, 16, 16])
    assert not is_left("dma.channels", base, array_pricing)
    moves, of_moves = designs.seen_by(move_pricing)
    assert (moves.count, list(moves["dma.channels"][of_moves])) == (2, [1, 2, 1, 2, 2])
    both, mine = designs.seen_by(move_pricing, ("matrix.rows",))
    assert (both.count, list(both["matrix.rows"][mine])) == (4, [8, 8, 16, 16, 16])
    assert list(Designs(base, {"dma.channels": array(3, 4)}, 2).seen_by(move_pricing)[0]["dma.channels"]) == [2]


@EXAMPLES
@given(devices(), st.data())
def test_a_transfer_takes_as_long_beside_others_as_alone(base: Config, data: st.DataObject) -> None:
    columns = {
        "dram.bandwidth": array(2e9, 8e9, 8e9, 5e9), "dma.channels": array(1, 2, 3, 4),
        "matrix.cols": array(8, 16, 8, 32),
    }  # fmt: skip
    designs = Designs(base, columns, 4)
    sizes = st.integers(1, 1 << 16)
    works = data.draw(st.lists(st.one_of(sizes.map(lambda n: [n] * 4), st.lists(sizes, min_size=4, max_size=4))))
    nbytes = np.array(works or [[1] * 4], np.float64)
    run, stride = np.ceil(nbytes / 3), np.zeros((1, 1))
    found = prices.move(designs, "read", nbytes, run, stride)
    for work, row in enumerate(nbytes):
        for design, size in enumerate(row):
            config = with_values(base, {fields_of(key): int(values[design]) for key, values in columns.items()})
            assert tuple(found[:, work, design]) == MovePrices(config)[int(size), int(run[work, design]), 0, "read"]


def test_a_clock_that_is_left_out_is_the_devices() -> None:
    designs = Designs(EDGE, {"clock": array(1e9, 2e9), "matrix.clock": array(np.nan, 5e8)}, 2)
    assert list(designs["matrix.clock"]) == [1e9, 5e8]
    assert list(Designs(EDGE, {"clock": array(1e9, 2e9)}, 2)["vector.clock"]) == [1e9, 2e9]


def longer(config: Config, work: MatrixWork) -> Cost:
    """A cost model of the matrix unit."""
    assert config.matrix is not None
    cycles = work.batch * work.oh * work.ow * ceil_div(work.oc, config.matrix.cols) * max(9, work.ic // 4)
    return total(config.matrix_hz, [("pixels", COMPUTE, cycles)])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BubblingVector(VectorConfig):
    bubble_cycles: int = key(Count(0), "cycles between operations", 0)


def bubbling(config: Config, work: VectorWork) -> Cost:
    bubbles = getattr(config.vector, "bubble_cycles", 0) * work.elements // 16
    found = VECTOR_COST(config, work)
    return total(config.vector_hz, [("compute", COMPUTE, found.cycles), ("bubbles", LATENCY, bubbles)])


VECTOR_COST = vector.cost


def graph() -> Graph:
    net = Net("small")
    x = net.conv(net.conv(net.input(1, 32, 32, 16), 40, (3, 3)), 24, (1, 1))
    return net.finish(net.maxpool(net.maxpool(x, 3, 1), 3, 2))


def compare(configs: Sequence[Config]) -> None:
    """Check that estimates change like simulations between configs, and are close to them."""
    times = []
    for config in configs:
        forget()
        with Session(config, cache_dir=False) as session:
            true = session.run(session.compile(graph()), timing_only=True).time_ps
        (guessed,) = Estimator(graph(), config).estimate({"dma.channels": [config.dma.channels]}).time_ps
        assert guessed == pytest.approx(true, rel=0.25)
        times.append((guessed, true))
    for (guessed, true), (next_guessed, next_true) in pairwise(times):
        assert next_true / true > 1.2
        assert next_guessed / guessed == pytest.approx(next_true / true, rel=0.25)


def test_a_model_that_is_added_is_estimated_as_it_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    model = types.ModuleType("npusim.hw.units.matrix_longer")
    monkeypatch.setattr(model, "cost", longer, raising=False)
    monkeypatch.setitem(sys.modules, model.__name__, model)
    base = EDGE.with_(**{"sram.bytes": "64 KiB"})
    compare([with_values(base, {("matrix", "model"): "longer", ("matrix", "cols"): cols}) for cols in (64, 16, 8)])


def test_a_key_that_is_added_is_estimated_as_it_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "cost", bubbling)
    assert EDGE.vector is not None
    fields = {each.name: getattr(EDGE.vector, each.name) for each in dataclasses.fields(EDGE.vector)}
    units = [BubblingVector(**fields, bubble_cycles=cycles) for cycles in (0, 16, 64)]
    compare([dataclasses.replace(EDGE, name=f"bubbles {unit.bubble_cycles}", vector=unit) for unit in units])
