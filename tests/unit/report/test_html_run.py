"""The content of the page of a run: bars, steps, roofs, energies, size, and reproducible bytes."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.dtypes import DType
from npusim.hw.area import area
from npusim.hw.config import load_config
from npusim.occupancy import Occupancy
from npusim.report.energy import energy_rows, square
from npusim.report.html import run_page
from npusim.report.html.energies import energies
from npusim.report.html.held import held, thinned
from npusim.report.html.lanes import fair_share, lanes, path_lane
from npusim.report.html.roofs import roofs
from npusim.report.html.still import pictures
from npusim.report.layers import kind_text, layers
from npusim.report.run import memories, totals
from npusim.runtime import Result
from npusim.timeline import PathSegment, Span, Timeline
from tests.support.pages import HOSTILE, demo_run, hostile_run


def data(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    return found


def many_instructions(count: int, ops: int) -> Result:
    """Return a run with ``count`` instructions on the units of two cores, in ``ops`` operators."""
    run, draw = demo_run(), random.Random(3)
    entries = [dataclasses.replace(run.program.ops[0], name=f"block{n}/layer{n}.convolution") for n in range(ops)]
    spans, ends = [], dict.fromkeys(("core0.dma0", "core0.dma1", "core0.matrix", "core0.vector", "core1.matrix"), 0)
    for number in range(count):
        unit = draw.choice(sorted(ends))
        start = ends[unit] + draw.randrange(2_000_000)
        ends[unit] = start + draw.randrange(1, 9_000_000)
        op = min(ops - 1, number * ops // count + draw.randrange(2))
        spans.append(Span(unit, start, ends[unit], op, "some.kind", 1000, 64, "compute", 64))
    spans.sort(key=lambda span: (span.end_ps, span.unit, span.start_ps))
    timeline = Timeline(spans, run.counters, 0, max(ends.values()))
    program = dataclasses.replace(run.program, ops=entries, places=[])
    return dataclasses.replace(run, program=program, timeline=timeline, _ops=[], _memory=None, _energy=None)


def test_the_same_run_gives_the_same_bytes() -> None:
    again = dataclasses.replace(demo_run(), _ops=[], _memory=None, _energy=None)
    assert run_page(demo_run()) == run_page(again)


@pytest.mark.parametrize("count", [20_000, pytest.param(188_000, marks=pytest.mark.slow)])
def test_a_hundred_layers_of_many_instructions_are_less_than_a_megabyte(count: int) -> None:
    text = run_page(many_instructions(count, 100))
    assert len(text) <= 1_000_000
    assert sum(sum(lane["count"]) for lane in data(text)["lanes"]) == count


def test_layers_are_in_the_data_as_the_report_has_them() -> None:
    found, told = layers(demo_run()), data(run_page(demo_run()))["layers"]
    assert told["name"] == [layer.timing.name for layer in found]
    assert told["added"] == [layer.added_ps for layer in found]
    assert 0 < sum(told["added"]) <= demo_run().time_ps
    kinds = told["kind"]
    assert [kinds["texts"][n] for n in kinds["rows"]] == [kind_text(layer.timing.kind) for layer in found]
    shapes = told["shape"]
    results = [f"float32[{shapes['texts'][n].replace('x', ', ')}]" for n in shapes["rows"]]
    assert results == [layer.timing.result for layer in found]
    (output,) = demo_run().program.outputs
    assert results[-1] == f"float32{list(output.shape)}"


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 600))
def test_a_fair_share_is_the_largest_that_fits(sizes: list[int], most: int) -> None:
    share = fair_share(sizes, most)

    def needed(limit: int) -> int:
        return sum(min(size, limit) for size in sizes)

    assert share == 1 or needed(share) <= most
    assert share == max(sizes) or needed(share + 1) > most


@given(st.integers(1, 400), st.integers(1, 60), st.randoms(use_true_random=False))
def test_bars_have_all_instructions_and_all_time(count: int, most: int, draw: random.Random) -> None:
    spans, at = [], 0
    for _ in range(count):
        start = at + draw.randrange(20)
        at = start + draw.randrange(1, 30)
        spans.append(Span("core0.matrix", start, at, draw.randrange(4), "x", 0, 0, "compute"))
    (lane,) = lanes(spans, {0: 0, 1: 1, 2: 2}, most)  # operator 3 belongs to no layer
    assert len(lane["start"]) <= max(most, 4)
    for layer in {-1, 0, 1, 2}:
        own = [span for span in spans if {3: -1}.get(span.op, span.op) == layer]
        chosen = [n for n, each in enumerate(lane["layer"]) if each == layer]
        assert sum(lane["count"][n] for n in chosen) == len(own)
        assert sum(lane["busy"][n] for n in chosen) == sum(span.end_ps - span.start_ps for span in own)
    assert sum(lane["start"]) <= spans[-1].start_ps
    if count <= most:
        assert sorted(lane["length"]) == sorted(span.end_ps - span.start_ps for span in spans)


def test_the_first_row_is_the_critical_path() -> None:
    run = demo_run()
    found = layers(run)
    lane = data(run_page(run))["path"]
    assert isinstance(lane, dict)
    ends = [start + length for start, length in zip(accumulate(lane["start"]), lane["length"], strict=True)]
    # Without gaps from start to end, and each layer with its contribution.
    assert lane["start"][0] == 0
    assert ends == [*accumulate(lane["start"][1:]), run.time_ps]
    adds = [sum(b for b, n in zip(lane["busy"], lane["layer"], strict=True) if n == at) for at in range(len(found))]
    assert adds == [layer.added_ps for layer in found]


def test_a_path_that_changes_often_is_thinned_and_keeps_its_time() -> None:
    path = [PathSegment(n % 2, "core0.matrix", "compute", 10 * n, 10 * n + 10) for n in range(1000)]
    lane = path_lane(path, {0: 0, 1: 1}, 100)
    assert len(lane["busy"]) == 100
    assert sum(lane["busy"]) == 10_000
    assert len(path_lane(path[::2], {0: 0, 1: 1}, 100)["busy"]) == 1


def test_a_short_layer_keeps_its_instructions_beside_a_long_one() -> None:
    long = [Span("core0.matrix", n * 10, n * 10 + 9, 0, "x", 0, 0, "compute") for n in range(1000)]
    short = [Span("core0.matrix", 10_000 + n * 2, 10_001 + n * 2, 1, "x", 0, 0, "compute") for n in range(5)]
    (lane,) = lanes([*long, *short], {0: 0, 1: 1}, 50)
    assert lane["layer"].count(1) == 5
    assert lane["layer"].count(0) == 45


def test_thinned_steps_keep_the_peak_and_both_ends() -> None:
    steps = [(n * 7, {"value": (n * 37) % 101, "tile": n % 3}) for n in range(1000)]
    kept = thinned(steps, 40)
    assert len(kept) <= 42
    assert max(sum(step[1].values()) for step in kept) == max(sum(step[1].values()) for step in steps)
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    assert kept == sorted(kept, key=lambda step: step[0])
    assert thinned(steps[:40], 40) == steps[:40]


def test_memories_come_back_from_their_columns() -> None:
    memory = Occupancy(
        "core0.sram", 1000, [], [(0, {"tile": 5}), (30, {"tile": 5, "value": 9}), (70, {})], 30, {"tile": 5, "value": 9}
    )
    (told,) = held([memory])
    assert told["time"] == [0, 30, 40]
    assert [kind["name"] for kind in told["kinds"]] == ["value", "tile"]
    assert told["bytes"] == [[0, 9, 0], [5, 5, 0]]
    assert (told["peak"], told["peak_ps"], told["all"]) == (14, 30, True)


def test_roofs_are_those_of_the_types_that_are_multiplied() -> None:
    config = load_config("edge")
    program = dataclasses.replace(demo_run().program, macs=[(DType.UINT8, 5), (DType.FLOAT32, 7)])
    found = roofs(config, program)
    assert config.matrix is not None
    peak = config.matrix.elements * config.matrix_hz * config.cores
    expected = {name: int(peak * config.matrix.throughput[name]) for name in ("int8", "float32")}
    assert {roof["name"]: roof["rate"] for roof in found["compute"]} == expected
    rates = [roof["rate"] for roof in found["bandwidth"]]
    assert rates == sorted(rates)
    assert rates[-1] == config.dram.bandwidth


def test_no_layer_is_above_the_roofs() -> None:
    run = demo_run()
    found = roofs(run.device, run.program)
    for layer in layers(run):
        rate = layer.timing.macs * 10**12 / layer.window_ps
        assert rate <= max(roof["rate"] for roof in found["compute"])
        assert layer.timing.dram_bytes * 10**12 / layer.window_ps <= found["bandwidth"][-1]["rate"]


def test_energies_of_layers_are_of_what_has_a_price() -> None:
    run = demo_run()
    found = layers(run)
    told = energies(run, found)
    by_name = {each.name: each.energy.known for each in run.energy.layers}
    assert told["layers"] == [by_name[layer.timing.name] for layer in found]
    assert told["unknown"] == list(run.energy.unknown)


def test_energies_are_unknown_where_nothing_has_a_price() -> None:
    device = load_config("tiny").with_(technology=None, energy=None) if _priced("tiny") else load_config("tiny")
    run = dataclasses.replace(demo_run(), device=device, _energy=None)
    assert run.energy.known == 0
    assert set(energies(run, layers(run))["layers"]) == {None}


def _priced(name: str) -> bool:
    run = dataclasses.replace(demo_run(), device=load_config(name), _energy=None)
    return run.energy.known > 0


def test_pictures_for_a_notebook_stand_still() -> None:
    text = pictures(demo_run())
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert "style" not in text
    assert len(pictures(many_instructions(20_000, 50))) < 150_000
    hostile = pictures(hostile_run())
    assert not [name for name in HOSTILE if name in hostile]
    assert "<img" not in hostile


def test_a_run_without_instructions_has_no_pictures() -> None:
    run = dataclasses.replace(demo_run(), timeline=Timeline(), _ops=[], _memory=None, _energy=None)
    assert pictures(run) == ""
    assert "no layer" in run_page(run).lower()


def headline(text: str) -> dict[str, tuple[str, str]]:
    """Return the tiles of a page: figure and detail by label."""
    found = re.findall(r'<div><dt>(.*?)</dt><dd class="figure">(.*?)</dd><dd>(.*?)</dd></div>', text)
    return {name: (figure, detail) for name, figure, detail in found}


def test_the_headline_has_the_figures_of_the_report() -> None:
    run = demo_run()
    told = headline(run_page(run))
    report = dict([*totals(run, run.device), *memories(run), *energy_rows(run.energy, run.time_ps)])
    assert told["latency"][0] == report["time"].partition(" = ")[0]
    assert report["time"].endswith(told["throughput"][0])
    assert report["energy"].startswith(f"{told['energy'][0]} = {told['power'][0]}")
    assert report["matrix"].startswith(told["matrix unit used"][0])
    assert report["SRAM peak"].startswith(told["peak of SRAM"][0])
    assert report["bound by"].startswith(f"{told['bound by'][0]} {told['bound by'][1].partition(' %')[0]}")
    assert told["area"][0] == square(area(run.device).total or 0)


def test_unknown_figures_are_not_known_and_say_why() -> None:
    run = dataclasses.replace(demo_run(), device=demo_run().device.with_(technology=None), _energy=None)
    told = headline(run_page(run))
    assert {told[name][0] for name in ("energy", "power", "area")} == {"not known"}
    assert all("price" in told[name][1] for name in ("energy", "power", "area"))
    assert told["latency"] == headline(run_page(demo_run()))["latency"]


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_a_result_writes_its_page(tmp_path, form) -> None:  # type: ignore[no-untyped-def]
    demo_run().to_html(form(tmp_path / "run.html"))
    assert (tmp_path / "run.html").read_text("ascii") == run_page(demo_run())
