"""Homes of values: DRAM traffic, and the rows that stripes keep."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from npusim.compiler.pipeline import compile_graph
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import load_config
from npusim.isa.base import Space, decode, space_of
from npusim.ops.build import GraphBuilder
from npusim.program import CONSTANTS, FIRST_IO, SCRATCH, Program
from npusim.timing.forecast import forecast
from tests.support.graphs.cascades import cascade_of
from tests.support.graphs.samples import residual_net

TINY = load_config("tiny")


def traffic(program: Program) -> Counter[int]:
    """Return the bytes moved by DMA per region: constants and inputs are read, outputs written, intermediates both."""
    moved: Counter[int] = Counter()
    for command in decode(program.code):
        for access in command.instruction.accesses():
            if access is not None and space_of(access.address) >= Space.REGION:
                work: Any = command.instruction.work()
                moved[space_of(access.address) - Space.REGION] += work.writes if access.write else work.reads
    return moved


def chain(height: int, layers: int, *, stride: int = 1) -> Graph:
    build = GraphBuilder("chain")
    value = build.input("x", (1, 4, height, 12), DType.FLOAT32)
    rng = np.random.default_rng(5)
    for _ in range(layers):
        weights = build.const(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))
        window = {"layout": "NCHW", "stride": (stride, 1), "dilation": (1, 1), "groups": 1, "pads": (1, 1, 1, 1)}
        value = build.add("conv", [value, weights], window)
    return build.finish([value])


def test_with_room_for_all_nothing_between_is_moved() -> None:
    graph = residual_net(16, 8, 2)
    program = compile_graph(graph, load_config("edge"))
    moved = traffic(program)
    assert moved[SCRATCH] == 0
    assert moved[FIRST_IO] >= graph.inputs[0].nbytes
    assert moved[FIRST_IO + 1] == graph.outputs[0].nbytes
    assert moved[CONSTANTS] <= program.region_bytes[CONSTANTS]


def test_a_chain_too_large_for_sram_flows_through_it() -> None:
    """Three values of 24 kB each flow through 12 KiB without ever being in DRAM."""
    graph = chain(128, 4)
    program = compile_graph(graph, TINY.with_(**{"sram.bytes": 12 << 10, "dram.bandwidth": "600 MB/s"}))
    assert traffic(program)[SCRATCH] == 0
    assert program.region_bytes[SCRATCH] == 0


def test_more_sram_is_never_slower_and_moves_less() -> None:
    graph = residual_net(40, 12, 3)
    totals, times = [], []
    for kib in (8, 12, 16, 24, 32, 64, 128, 256):
        config = TINY.with_(**{"sram.bytes": kib << 10})
        program = compile_graph(graph, config)
        totals.append(sum(traffic(program).values()))
        times.append(forecast(list(decode(program.code)), config))
    assert times == sorted(times, reverse=True)
    # Orders are chosen by time: at 128 KiB, a faster one moves a quarter more than the one chosen at 64 KiB.
    assert all(later <= earlier * 1.25 for earlier, later in pairwise(totals)), totals
    assert totals[-1] < totals[0] // 2


def test_a_stripe_makes_what_the_next_layers_want() -> None:
    """With three 3-row windows, two rows of the last layer need three rows of the middle and four of the first one.
    Rows from the previous stripe are kept."""
    cascade = cascade_of(chain(12, 3), 2, TINY)
    assert cascade.stripes[0] == [(0, 4), (0, 3), (0, 2)]
    assert cascade.stripes[1] == [(4, 6), (3, 5), (2, 4)]
    assert cascade.stripes[-1] == [(12, 12), (11, 12), (10, 12)]
    first, _ = cascade.rolling
    # One row of padding above, and the rows that the second layer reads: at first 4 new ones, then 2 kept and 2 new
    # ones.
    assert first.bases[0] == 1
    assert first.buffer.nbytes // first.pitch == 5


def test_strides_want_more_rows_of_those_before() -> None:
    cascade = cascade_of(chain(32, 3, stride=2), 1, TINY)
    assert cascade.stripes[0] == [(0, 4), (0, 2), (0, 1)]
    assert cascade.stripes[1] == [(4, 8), (2, 4), (1, 2)]


def test_padding_below_is_written_when_it_is_wanted() -> None:
    cascade = cascade_of(chain(12, 2), 4, TINY)
    (window,) = cascade.rolling
    last = len(cascade.stripes) - 1
    assert set(window.bottoms) == {last}
    first, end = window.bottoms[last]
    assert end - first == 1


def test_padding_goes_where_no_rows_do() -> None:
    """Padding is written once, above the image and beside its rows. Filling the whole window would delay the first
    rows."""
    cascade = cascade_of(chain(12, 2), 4, TINY)
    (window,) = cascade.rolling
    written: Counter[int] = Counter()
    for item in window.begin(0):
        (access,) = item.instruction.accesses()
        assert access is not None
        assert item.instruction.elements() * item.instruction.itemsize <= access.high - access.low
        (view,) = item.writes
        (rows, count), (step, each) = view.shape, view.strides
        written.update(view.offset + row * step + at * each for row in range(rows) for at in range(count))
    assert set(written.values()) == {1}
    (base, *_), pixel = window.bases, 4 * 4
    above = set(range(0, base * window.pitch, 4))
    rows = range(base * window.pitch, window.buffer.nbytes, window.pitch)
    beside = {row + at for row in rows for at in (*range(0, pixel, 4), *range(window.pitch - pixel, window.pitch, 4))}
    assert set(written) == above | beside
    assert {view.offset for item in window.begin(1) for view in item.writes} == {0}, "columns are still there"


def test_weights_come_before_the_next_stripe() -> None:
    """The first stripe needs the weights; rows of the second stripe would only wait in their window."""
    program = compile_graph(chain(128, 4), TINY.with_(**{"sram.bytes": 12 << 10, "dram.bandwidth": "600 MB/s"}))
    regions = [
        space_of(access.address) - Space.REGION
        for command in decode(program.code)
        for access in command.instruction.accesses()
        if access is not None and not access.write and space_of(access.address) >= Space.REGION
    ]
    assert regions[:3] == [FIRST_IO, CONSTANTS, FIRST_IO]
