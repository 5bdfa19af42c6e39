"""Golden timelines: their content, round trips, and the report of differences."""

from types import SimpleNamespace

import pytest

import npusim
from npusim.errors import InputError
from npusim.program import OpEntry
from npusim.report.format import duration
from npusim.testing.changes import MOST_LINES, changes
from npusim.testing.record import dump, load, record
from npusim.timeline import Span, Timeline
from npusim.validate.networks import NETWORKS
from npusim.validate.networks.small import perceptron

EDGE = npusim.load_config("edge")


def timed(config=EDGE, graph=None):
    session = npusim.Session(config, cache_dir=False)
    graph = graph if graph is not None else NETWORKS["mobilenet_v1"].make((1, 64, 64, 3))
    return record(session.run(session.compile(graph), timing_only=True))


@pytest.fixture(scope="module")
def before():
    return timed()


def test_a_record_reads_back(before):
    assert load(dump(before), "here") == before


def test_work_of_layers_is_that_of_units(before):
    for name, unit in before.units.items():
        if name == "sequencer":
            continue
        assert unit.busy_ps <= unit.work.taken_ps
        assert unit.busy_ps + unit.idle_ps + sum(unit.stalls.values()) == before.totals["time_ps"]
        works = [units[name] for units in before.layers.values() if name in units]
        assert tuple(map(sum, zip(*works, strict=True))) == unit.work


def test_a_line_says_nothing_of_what_came_before():
    """Equal layers have equal lines at any position, except that transfers may wait for DRAM, which is part of their
    lines."""
    found = timed(EDGE.with_(**{"compiler.keeps_values": False}), perceptron(64, (256, 256), 6))
    _, *inner, _ = found.layers.values()
    assert len({units["core0.matrix"] for units in inner}) == 1
    assert len({tuple((unit, work[0], work[3]) for unit, work in units.items()) for units in inner}) == 1


def test_a_network_of_the_usual_size_is_small_enough_for_a_repository():
    assert len(dump(timed(graph=NETWORKS["resnet50_v1"].make((1, 96, 96, 3))))) < 50_000


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: "npusim timeline 7\n" + text.partition("\n")[2], "line 1: must be 'npusim timeline 1'"),
        (lambda text: text[:-1], "is truncated"),
        (lambda text: text.replace("cycles ", "bicycles ", 1), "line 4: is not a line of a timeline: 'bicycles"),
        (lambda text: text.replace("taken_ps=", "taken_ps=x", 1), "is not a line of a timeline"),
        (lambda text: text.replace("digest", "  digest", 1), "is not a line of a timeline"),
        (lambda text: "\n".join(line for line in text.split("\n") if not line.startswith("time_ps")), "has no time_ps"),
        (lambda text: "", "line 1"),
    ],
)
def test_a_file_that_is_no_timeline_is_refused(before, damage, says):
    with pytest.raises(InputError, match=f"golden.txt: .*{says}|golden.txt: {says}"):
        load(damage(dump(before)), "golden.txt")


def test_names_that_would_end_a_line_do_not():
    entries = [OpEntry("a b\nlayer 9 x", "matmul"), OpEntry("", "matmul")]
    spans = [Span("core0.matrix", 0, 5, op, "matmul", 1, 0, "compute") for op in (0, 1)]
    run = SimpleNamespace(
        model="m\u2028 n", config="edge", cycles=5, time_ps=5, dram_read_bytes=0, dram_write_bytes=0,
        timeline=Timeline(spans), program=SimpleNamespace(ops=entries),
    )  # fmt: skip
    found = record(run)
    assert (found.model, list(found.layers)) == ("m__n", [(0, "a_b_layer_9_x"), (1, "_")])
    assert load(dump(found), "here") == found


def test_equal_runs_have_no_changes(before):
    assert changes(before, timed(), "golden") == []


PLANTED = {
    "a cost of the vector unit": ({"vector.setup_cycles": 80}, "core0.vector"),
    "a cost of the matrix unit": ({"matrix.setup_cycles": 90}, "core0.matrix"),
    "a rate of the matrix unit": ({"matrix.throughput": {"int8": "15/16"}}, "core0.matrix"),
    "a narrower engine": ({"dma.bytes_per_cycle": 8}, "core0.dma"),
    "a slower memory": ({"dram.bandwidth": "15 GB/s"}, "core0.dma"),
    "a later memory": ({"dram.latency": "300 ns"}, "core0.dma"),
    "a slower engine": ({"dma.setup_cycles": 60}, "core0.dma"),
    "values that leave": ({"compiler.keeps_values": False}, "core0."),
    "less memory": ({"sram.bytes": "128 KiB"}, "core0."),
    "a slower clock": ({"clock": "900 MHz"}, "core0."),
}


SHOWN = ("a rate of the matrix unit", "a slower memory", "less memory", "a slower clock")
"""One change of the array, of transfers, of the program, and of everything; the others are slow."""


@pytest.mark.parametrize(
    "planted", [pytest.param(what, marks=[] if what in SHOWN else [pytest.mark.slow]) for what in PLANTED]
)
def test_a_regression_is_told_in_few_lines(before, planted):
    """How much, the first affected layer and unit, and a cause that names the unit or the program."""
    keys, unit = PLANTED[planted]
    now = timed(EDGE.with_(**keys))
    lines = changes(before, now, "golden")
    assert len(lines) <= MOST_LINES
    grown = now.totals["time_ps"] - before.totals["time_ps"]
    assert duration(abs(grown)) in lines[0]
    assert lines[1].startswith("first: layer ")
    cause = lines[-1].removeprefix("likely cause: ")
    assert unit in cause
    assert ("the program differs" in cause) == any(
        was[name].instructions != now.layers[layer][name].instructions
        for layer, was in before.layers.items()
        for name in was.keys() & now.layers[layer].keys()
    ) or "dma" in unit


def test_the_same_work_in_another_order_is_called_that(before):
    """A lost overlap: every instruction takes as long, units wait longer."""
    later = load(dump(before), "copy")
    later.units["core0.matrix"].stalls["core0.dma0"] += 5_000_000
    later.totals["time_ps"] += 5_000_000
    *_, cause = changes(before, later, "golden")
    assert cause == (
        "likely cause: the same work in the same time, in another order: core0.matrix waits +5 us for core0.dma0: "
        "an overlap was lost"
    )


def test_moments_alone_are_called_that(before):
    other = load(dump(before), "copy")
    other.digest = "0" * 64
    assert (
        changes(before, other, "golden")[-1] == "likely cause: the same work in the same time: only start times differ"
    )
