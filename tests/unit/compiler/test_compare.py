"""Choosing between several orders, and how far the losing ones are built."""

from __future__ import annotations

from unittest import mock

import pytest

from npusim.compiler.pipeline import compile_graph, explain_graph
from npusim.compiler.schedule import search as compare
from npusim.compiler.schedule.build import Build, Emission, commands_until
from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.compiler.schedule.search import ScheduleSearch
from npusim.hw.config import load_config
from npusim.isa.base import decode
from npusim.timing.forecast import forecast
from npusim.validate.networks import NETWORKS

EDGE = load_config("edge").with_(**{"matrix.rows": 64})


@pytest.fixture(scope="module")
def resnet() -> PreparedGraph:
    return PreparedGraph(NETWORKS["resnet50_v1"].make((1, 224, 224, 3)))


@pytest.mark.parametrize(
    "chip",
    [
        {"matrix.cols": 16, "sram.bytes": "1536 KiB", "dram.bandwidth": "8 GB/s", "dma.channels": 4},
        pytest.param(
            {"matrix.cols": 32, "sram.bytes": "2048 KiB", "dram.bandwidth": "12 GB/s", "dma.channels": 4},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_win_is_not_made_to_its_end(resnet: PreparedGraph, chip: dict[str, object]) -> None:
    """An order that cannot win is abandoned early, and building it completely would not change the choice."""
    config = EDGE.with_(**chip)
    with mock.patch.object(Emission, "finish", autospec=True, side_effect=Emission.finish) as finish:
        program = compile_graph(resnet, config)
        assert finish.call_count == 1
    with mock.patch.object(ScheduleSearch, "_may_win", return_value=True):
        assert compile_graph(resnet, config).code == program.code
    explained = explain_graph(resnet.graph, config)
    assert explained.program.code == program.code
    assert [label for label, _ in explained.orders] == ["one core, cascades", "one core, no cascades"]
    striped, whole = (time for _, time in explained.orders)
    assert striped < whole


def test_where_orders_meet_one_is_as_much_longer_as_at_the_end(resnet: PreparedGraph) -> None:
    """The time difference at the point where two orders become equal predicts the final difference within the
    tolerance."""
    config = EDGE.with_(**{"matrix.cols": 16, "sram.bytes": "1024 KiB", "dram.bandwidth": "12 GB/s"})
    seen: list[tuple[Emission, tuple[int, Build]]] = []

    def noted(search: object, whole: Emission, striped: tuple[int, Build]) -> bool:
        seen.append((whole, striped))
        return True

    with mock.patch.object(ScheduleSearch, "_may_win", noted):
        orders = dict(explain_graph(resnet.graph, config).orders)
    ((draft, (ps, striped)),) = seen
    group = compare._last_difference(striped.layout.steps, draft.steps)
    assert group is not None
    assert group < len(striped.groups) - 1
    ours, theirs = (commands_until(commands, group) for commands in (draft.until(group), striped.commands))
    assert len(theirs) < 0.9 * len(striped.commands)
    longer = forecast(ours, config) - forecast(theirs, config)
    assert abs(orders["one core, no cascades"] - ps - longer) * 1000 < compare._APART * ps


def test_more_channels_are_never_slower() -> None:
    """With fair sharing of the DRAM, loads issued further ahead take bandwidth from the loads needed first."""
    graph = NETWORKS["mobilenet_v2"].make((1, 96, 96, 3))

    def times() -> list[int]:
        found = []
        for channels in (2, 4, 6):
            config = load_config("rk3588_core").with_(**{"dma.channels": channels})
            found.append(forecast(list(decode(compile_graph(graph, config).code)), config))
        return found

    assert times() == sorted(times(), reverse=True)
    with mock.patch.object(ScheduleSearch, "_with_fewer_channels", side_effect=lambda best, *_: best):
        assert times() != sorted(times(), reverse=True), "else there is nothing to choose"


def test_the_fewest_channels_are_always_looked_at() -> None:
    """Even if no number of channels in between is better; otherwise adding a channel could hide the best choice."""
    graph = NETWORKS["mobilenet_v2"].make((1, 96, 96, 3))
    for channels in (4, 7):
        config = load_config("rk3588_core").with_(**{"dma.channels": channels})
        assert any("on 2 channels" in label for label, _ in explain_graph(graph, config).orders)
