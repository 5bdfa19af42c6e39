"""Data movement in many dimensions: which of them become separate transfers, and how long the remaining runs are."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.compiler.buffers import ordered_strides
from npusim.compiler.codegen.issue import Slot
from npusim.compiler.lower.transfer import copy_items
from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.base import Space, decode, region
from npusim.isa.dma import Copy
from npusim.isa.functions import Reduce
from npusim.ops.build import GraphBuilder
from npusim.runtime import Result, Session

EDGE = load_config("edge")
DIMS = (24, 80, 2, 80, 2)
"""(channel, row, phase of the row, column, phase of the column): the pixels in the order of the result."""


def transfers(order: tuple[int, ...], source: int, target: int) -> list[Copy]:
    """Return the transfers that reorder 4-byte elements from ``order``, outermost dimension first, to DIMS."""
    ends = Slot(0, Space.SRAM, 0, 0), Slot(0, Space.SRAM, 0, 0)
    strides = ordered_strides(DIMS, range(5), 4), ordered_strides(DIMS, order, 4)
    items = copy_items((target, strides[0], ends[0]), (source, strides[1], ends[1]), DIMS, 4)
    return [item.instruction for item in items if isinstance(item.instruction, Copy)]


CHANNELS_LAST = (1, 3, 0, 2, 4)


def test_both_sides_in_dram_have_the_runs_that_they_share() -> None:
    """Two pixels of a row are adjacent on both sides. Splitting by row phase gives the fewest transfers with such
    runs."""
    found = transfers(CHANNELS_LAST, region(2), region(3))
    assert len(found) == 2
    assert {(copy.work().runs, copy.work().run_bytes) for copy in found} == {(153600, 8)}


def test_a_side_outside_of_sram_leads() -> None:
    """Runs stay contiguous in DRAM; in SRAM each run takes separate words."""
    found = transfers(CHANNELS_LAST, 0, region(3))
    assert len(found) == 24
    assert {copy.work().runs for copy in found} == {1}
    assert {(copy.work().pieces, copy.work().piece_bytes) for copy in found} == {(12800, 8)}


def test_within_sram_there_are_few_transfers() -> None:
    assert len(transfers(CHANNELS_LAST, 0, 1 << 20)) == 2


@pytest.mark.parametrize("dtype", [DType.INT8, DType.FLOAT32])
def test_pixels_behind_a_convolution_take_what_their_bytes_take(dtype: DType) -> None:
    build = GraphBuilder("pixels")
    value = build.input("x", (1, 8, 80, 80), dtype)
    window: dict[str, Any] = {"layout": "NCHW", "stride": (1, 1), "dilation": (1, 1), "pads": (0,) * 4, "groups": 1}
    weights = build.input("w", (96, 8, 1, 1), dtype)
    value = build.add("conv", [value, weights], window)
    value = build.add("reshape", [value], {"shape": (1, 24, 2, 2, 80, 80)})
    value = build.add("transpose", [value], {"perm": (0, 1, 4, 2, 5, 3)})
    value = build.add("reshape", [value], {"shape": (1, 24, 160, 160)})
    graph = build.finish([value])
    moved = timed(graph).ops[-1]
    # Two elements of the result are adjacent in the source, which makes as many SRAM words of a nanosecond each.
    assert value.nbytes // 8 * 1000 < moved.end_ps - moved.start_ps < 1.25 * least_ps(2 * value.nbytes)


def timed(graph: Graph) -> Result:
    with Session(EDGE, cache_dir=False) as session:
        return session.run(compile_graph(graph, EDGE), {}, timing_only=True)


def least_ps(nbytes: int) -> float:
    """Return the minimum time for a DRAM transfer of ``nbytes``."""
    return nbytes * 10**12 / (EDGE.dram.bandwidth * float(EDGE.dram.efficiency))


def test_tiles_of_bytes_are_no_narrower_than_a_burst() -> None:
    """A column reduction is tiled so that loads and sums overlap. Reading 16 bytes of each row would cost bursts
    of 64."""
    build = GraphBuilder("columns")
    x = build.input("x", (3000, 128), DType.INT8)
    graph = build.finish([build.add("reduce", [x], {"fn": Reduce.MAX, "axes": (0,), "keepdims": False})])
    assert timed(graph).time_ps < 1.2 * least_ps(x.nbytes)


def test_what_several_channels_transpose_has_long_runs_on_both_sides() -> None:
    build = GraphBuilder("turned")
    x = build.input("x", (1, 56, 56, 64), DType.INT8)
    graph = build.finish([build.add("transpose", [x], {"perm": (0, 3, 1, 2)})])
    program = compile_graph(graph, load_config("edge").with_(**{"dma.channels": 3}))
    found = [command.instruction for command in decode(program.code) if isinstance(command.instruction, Copy)]
    assert sum(copy.work().reads for copy in found) == sum(copy.work().writes for copy in found) == x.nbytes
    assert min(copy.work().run_bytes for copy in found) >= EDGE.dma.burst_bytes
