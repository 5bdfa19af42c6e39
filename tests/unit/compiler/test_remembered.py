"""What the compilation of one design leaves in caches for the next one. Calls are counted; nothing is timed."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from npusim.compiler import pipeline
from npusim.compiler.lower.base import facts_of
from npusim.compiler.lower.chain import Chain
from npusim.compiler.lower.conv import ConvLowering
from npusim.compiler.pipeline import compile_graph
from npusim.compiler.schedule import build as order
from npusim.compiler.schedule import cascade_search, memory_plan
from npusim.compiler.schedule import scratchpad as fit
from npusim.compiler.schedule.cascade import _stripes
from npusim.compiler.schedule.prepared import PreparedGraph
from npusim.errors import CompileError, NpusimError
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.timing import tile
from npusim.timing.tile_costs import MatrixPrices, MovePrices
from tests.support.graphs.every_kind import CASES
from tests.support.graphs.golden import GRAPHS
from tests.support.graphs.samples import residual_net

EDGE = load_config("edge").with_(**{"sram.bytes": "32 KiB"})


@contextmanager
def counted(cls: type, name: str) -> Iterator[Callable[[], int]]:
    """Count the calls of a method in this context."""
    with mock.patch.object(cls, name, autospec=True, side_effect=getattr(cls, name)) as method:
        yield lambda: int(method.call_count)


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    tile.forget()


def test_another_bandwidth_asks_no_product_again() -> None:
    """The cost of products does not depend on the DRAM; the cost of transfers does."""
    compile_graph(residual_net(24), EDGE)
    with counted(MatrixPrices, "__missing__") as products, counted(MovePrices, "__missing__") as moves:
        compile_graph(residual_net(24), EDGE.with_(**{"dram.bandwidth": "31 GB/s"}))
        assert moves() > 0
        # Another cut may be best, and its edge tiles may be new.
        assert products() <= moves() // 10


def test_another_array_asks_no_transfer_again() -> None:
    """The cost of transfers does not depend on the array; only transfers of new tiles are new."""
    compile_graph(residual_net(24), EDGE)
    with counted(MatrixPrices, "__missing__") as products, counted(MovePrices, "__missing__") as moves:
        compile_graph(residual_net(24), EDGE.with_(**{"matrix.rows": 16}))
        assert products() > 0
        # A channels-first result is stored in tiles of another width.
        assert moves() <= 1


def test_another_array_and_memory_ask_no_chain_again() -> None:
    settled = PreparedGraph(residual_net(24))
    compile_graph(settled, EDGE)
    with counted(Chain, "_epilogue") as epilogues:
        compile_graph(settled, EDGE.with_(**{"matrix.rows": 16, "dram.bandwidth": "9 GB/s", "dma.channels": 3}))
        assert epilogues() == 0
        compile_graph(settled, EDGE.with_(**{"vector.lanes": 8}))
        assert epilogues() > 0


def test_another_size_of_sram_asks_nothing_again() -> None:
    """The problems are the same with more room: tilings and prices are cached."""
    compile_graph(residual_net(24), EDGE)
    larger = EDGE.with_(**{"sram.bytes": "64 KiB"})
    compile_graph(residual_net(24), larger)
    with counted(MovePrices, "__missing__") as moves, counted(tile.Tilings, "__init__") as searches:
        compile_graph(residual_net(24), EDGE.with_(**{"dma.channels": 3, "dram.bytes": "2 GiB"}))
        compile_graph(residual_net(24), larger.with_(queue_depth=3))
        assert (moves(), searches()) == (0, 0)


def test_equal_layers_are_searched_once() -> None:
    with counted(tile.Tilings, "__init__") as few:
        compile_graph(residual_net(24, blocks=3), EDGE)
        three = few()
    tile.forget()
    with counted(tile.Tilings, "__init__") as many:
        compile_graph(residual_net(24, blocks=6), EDGE)
        # Longer cascades exist, whose groups have other heights; nothing else is new.
        assert three > 0
        assert many() < 2 * three


def made_for(blocks: int) -> tuple[int, int, float]:
    """Compile ``blocks`` residual blocks and count convolution lowerings.

    Returns the number made for estimates beyond one per layer (that one places its constants), the number of calls for
    another room, and the number made per layer for programs.
    """
    tile.forget()
    graph, estimates = residual_net(56, 32, blocks=blocks), 0
    asked = fit._reused
    with counted(ConvLowering, "__init__") as made, counted(ConvLowering, "in_room") as again:

        def counting(*args: Any) -> Any:
            nonlocal estimates
            before = made()
            found = asked(*args)
            estimates += made() - before
            return found

        with mock.patch.object(fit, "_reused", counting):
            compile_graph(graph, EDGE.with_(**{"sram.bytes": "256 KiB"}))
        layers = sum(op.kind == "conv" for op in graph.ops)
        return estimates - layers, again(), (made() - estimates) / layers


def test_equal_layers_are_made_for_estimates_once() -> None:
    """For any homes and rooms that are tried, more blocks need no more lowerings."""
    found = [made_for(blocks) for blocks in (4, 8, 12)]
    assert min(found[0]) > 0
    assert len({(estimates, again) for estimates, again, _ in found}) == 1
    # Another order may be built as well for comparison.
    assert all(1 <= each <= 2 for _, _, each in found)


def test_the_next_design_walks_no_window_again() -> None:
    compile_graph(residual_net(24), EDGE)
    before = _stripes.cache_info().misses
    compile_graph(residual_net(24), EDGE.with_(**{"dram.bandwidth": "9 GB/s"}))
    assert _stripes.cache_info().misses == before


@pytest.mark.parametrize("other", [{}, {"dram.bandwidth": "3 GB/s"}, {"sram.bytes": "64 KiB"}, {"matrix.cols": 16}])
def test_a_program_is_the_same_whatever_was_compiled_before(other: dict[str, str]) -> None:
    fresh = compile_graph(residual_net(24), EDGE)
    compile_graph(residual_net(24), EDGE.with_(**other))
    again = compile_graph(residual_net(24), EDGE)
    assert again.code == fresh.code
    assert bytes(again.constants.joined()) == bytes(fresh.constants.joined())


def test_the_collector_is_as_it_was() -> None:
    compile_graph(residual_net(8), EDGE)
    assert gc.isenabled()
    with pytest.raises(CompileError):
        compile_graph(residual_net(256, channels=512), EDGE.with_(**{"dram.bytes": "1 MiB"}))
    assert gc.isenabled()
    gc.disable()
    try:
        compile_graph(residual_net(8), EDGE)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_young_before_a_compilation_stays_young() -> None:
    """Otherwise a process that compiles repeatedly would never collect old cycles, such as dropped sessions."""

    class Dropped:
        def __init__(self) -> None:
            self.itself = self

    gc.collect()
    held = Dropped()
    seen = weakref.ref(held)
    compile_graph(residual_net(8), EDGE)
    del held  # from here on only the cycle keeps it alive
    gc.collect(1)
    assert seen() is None


# Designs of one prepared graph share what does not depend on the device


VARIED: tuple[dict[str, object], ...] = (
    {}, {"dma.channels": 3}, {"dma.channels": 4, "queue_depth": 2}, {"dram.bandwidth": "3 GB/s"},
    {"matrix.rows": 8, "dma.channels": 1}, {"sram.bytes": "64 KiB"}, {"cores": 2}, {"compiler.resident_weights": True},
    {"vector.lanes": 8}, {"vector.lanes": 8, "sram.bytes": "64 KiB"}, {},
)  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_design_is_the_same_whatever_was_compiled_before(name: str) -> None:
    settled = PreparedGraph(GRAPHS[name]())
    for varied in VARIED:
        config = EDGE.with_(**varied)
        assert compiled(settled, config) == compiled(GRAPHS[name](), config), varied


def test_kinds_of_which_estimates_ask_for_channels() -> None:
    """Plans are shared between channel counts, except for kinds whose transfers run in parallel."""
    for name, case in CASES.items():
        settled = PreparedGraph(case.graph()[0])
        for channels in (2, 5, 2):
            config = case.config.with_(**{"dma.channels": channels})
            assert compiled(settled, config) == compiled(case.graph()[0], config), (name, channels)


def compiled(graph: PreparedGraph | Graph, config: Config) -> tuple[bytes, tuple[int, ...]] | str:
    """Return the code and region sizes, or the error text."""
    try:
        program = compile_graph(graph, config)
    except NpusimError as error:
        return str(error)
    return program.code, program.region_bytes


def test_channels_beyond_two_share_a_plan() -> None:
    settled = PreparedGraph(residual_net(24))
    compile_graph(settled, EDGE.with_(**{"dma.channels": 2}))
    with mock.patch.object(cascade_search, "best_stripes", side_effect=AssertionError("planned again")):
        for channels in (3, 4):
            compile_graph(settled, EDGE.with_(**{"dma.channels": channels}))


def test_a_settled_graph_is_rewritten_and_grouped_once() -> None:
    settled = PreparedGraph(residual_net(24))
    with (
        mock.patch.object(pipeline, "_prepared", side_effect=pipeline._prepared) as prepare,
        mock.patch.object(order, "form_groups", side_effect=order.form_groups) as grouped,
    ):
        for bandwidth in ("3 GB/s", "5 GB/s", "7 GB/s"):
            compile_graph(settled, EDGE.with_(**{"dram.bandwidth": bandwidth, "matrix.rows": 8}))
        assert prepare.call_count == grouped.call_count == 1
        # The DRAM size sets the compile budget, so the graph is prepared again.
        compile_graph(settled, EDGE.with_(**{"dram.bytes": "3 GiB"}))
        assert prepare.call_count == 2


def test_what_is_remembered_of_a_settled_graph_is_bounded() -> None:
    settled = PreparedGraph(residual_net(24))
    with mock.patch.object(memory_plan, "_MOST_PLANS", 2), mock.patch.object(pipeline, "_MOST_REWRITTEN", 2):
        for gigabytes in range(2, 7):
            compile_graph(settled, EDGE.with_(**{"dram.bytes": f"{gigabytes} GiB"}))
            assert len(settled.rewritten) <= 2
            for graph, _ in settled.rewritten.values():
                assert len(facts_of(graph).get("known costs", ())) <= 2


def test_to_another_process_goes_the_graph_alone() -> None:
    settled = PreparedGraph(residual_net(24))
    compile_graph(settled, EDGE)
    assert settled.rewritten
    again = pickle.loads(pickle.dumps(settled))
    assert not again.rewritten
    assert compiled(again, EDGE) == compiled(settled, EDGE)
