"""Transpositions: their values, and that none is faster than one order of elements allows."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.compiler.buffers import dense_strides
from npusim.dtypes import DType
from npusim.graph import Graph
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost_model
from npusim.isa.base import decode, region, sram
from npusim.isa.dma import Copy
from npusim.ops.build import GraphBuilder
from npusim.runtime import Result, Session
from npusim.units import ceil_div
from npusim.work import DmaWork
from tests.support.examples import examples

CONFIGS = {name: load_config(name) for name in ("tiny", "edge", "mobile", "server")}
EDGE = CONFIGS["edge"]
TYPES = st.sampled_from([DType.INT8, DType.INT16, DType.FLOAT32, DType.INT64])
NONE = (0,) * 4


@st.composite
def permutations(draw: st.DrawFn, least: int = 1, most: int = 1 << 16) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw a shape with at most ``most`` elements, and an order of its dimensions."""
    shape: list[int] = []
    for _ in range(draw(st.integers(2, 5))):
        shape.append(draw(st.integers(1, max(1, min(300, most // prod(shape))))))
    if prod(shape) < least:
        shape[0] *= ceil_div(least, prod(shape))
    return tuple(shape), tuple(draw(st.permutations(range(len(shape)))))


def turned(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType) -> Graph:
    build = GraphBuilder("turned")
    return build.finish([build.add("transpose", [build.input("x", shape, dtype)], {"perm": perm})])


def copied(size: int, dtype: DType) -> Graph:
    """Copy as many elements without reordering."""
    build = GraphBuilder("copied")
    x = build.input("x", (1, size), dtype)
    return build.finish([build.add("transpose", [x], {"perm": (1, 0)})])


def timed(graph: Graph, config: Config) -> Result:
    with Session(config, cache_dir=False) as session:
        return session.run(session.compile(graph), {}, timing_only=True)


def shared_run(shape: tuple[int, ...], perm: tuple[int, ...]) -> int:
    """Return the number of elements that are contiguous in the same order before and after."""
    order = [axis for axis in perm if shape[axis] > 1]
    same = [axis for axis in range(len(shape)) if shape[axis] > 1]
    run = 1
    for ours, theirs in zip(reversed(order), reversed(same), strict=True):
        if ours != theirs:
            break
        run *= shape[ours]
    return run


@given(permutations(most=5000), TYPES, st.sampled_from(sorted(CONFIGS)), st.sampled_from([1, 2, 3]), st.booleans())
@settings(max_examples=examples(12))
def test_values_are_those_of_numpy(
    what: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType, name: str, channels: int, small: bool
) -> None:
    (shape, perm), config = what, CONFIGS[name].with_(**{"dma.channels": channels})
    if small:
        config = config.with_(**{"sram.bytes": f"{4 * config.sram.banks} KiB"})
    x = np.arange(prod(shape)).astype(dtype.storage).reshape(shape)
    with Session(config, cache_dir=False) as session:
        (found,) = session.run(session.compile(turned(shape, perm, dtype)), {"x": x}).outputs.values()
    np.testing.assert_array_equal(found, x.transpose(perm))


@given(permutations(least=4000), TYPES, st.sampled_from(sorted(CONFIGS)))
@settings(max_examples=examples(12))
def test_none_is_faster_than_words_of_sram_or_a_plain_copy(
    what: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType, name: str
) -> None:
    """Runs shared by two memory orders pass a channel as words of its width, or, from DRAM to DRAM, as bursts."""
    (shape, perm), config = what, CONFIGS[name]
    dma = config.dma
    found, size = timed(turned(shape, perm, dtype), config), prod(shape)
    run = shared_run(shape, perm) * dtype.itemsize
    words = size * dtype.itemsize // run * ceil_div(run, dma.bytes_per_cycle) * 10**12 // config.clock_hz
    ways = config.cores * (2 if dma.channels > 2 else 1)
    bursts = 2 * size * dtype.itemsize // run * ceil_div(run, dma.burst_bytes) * dma.burst_bytes
    slowest = min(words // ways, bursts * 10**12 // config.dram.bandwidth)
    assert found.time_ps >= slowest
    assert found.time_ps >= timed(copied(size, dtype), config).time_ps * 0.99


@given(permutations(least=4000), TYPES, st.sampled_from(sorted(CONFIGS)))
@settings(max_examples=examples(10))
def test_none_is_much_slower_than_its_words_and_bytes(
    what: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType, name: str
) -> None:
    """A word per element, a plain copy, and the start-up time of a few transfers."""
    (shape, perm), config = what, CONFIGS[name]
    found, size = timed(turned(shape, perm, dtype), config), prod(shape)
    words = size * 10**12 // config.clock_hz
    plain = timed(copied(size, dtype), config).time_ps
    assert found.time_ps <= 2 * (words + plain)


@given(permutations(least=4000, most=1 << 15), TYPES, st.sampled_from(sorted(CONFIGS)))
@settings(max_examples=examples(12))
def test_the_way_back_takes_about_as_long(
    what: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType, name: str
) -> None:
    (shape, perm), config = what, CONFIGS[name]
    back = tuple(int(axis) for axis in np.argsort(perm))
    there = timed(turned(shape, perm, dtype), config).time_ps
    again = timed(turned(tuple(shape[axis] for axis in perm), back, dtype), config).time_ps
    assert max(there, again) <= 1.5 * min(there, again)


@given(permutations(least=4000, most=1 << 15), TYPES, st.sampled_from(sorted(CONFIGS)))
@settings(max_examples=examples(12))
def test_dimensions_that_stay_together_are_one(
    what: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType, name: str
) -> None:
    (shape, perm), config = what, CONFIGS[name]
    wide = tuple(part for dim in shape for part in ((dim // 2, 2) if dim % 2 == 0 else (1, dim)))
    order = tuple(place for axis in perm for place in (2 * axis, 2 * axis + 1))
    apart, joined = (timed(turned(*each, dtype), config) for each in ((wide, order), (shape, perm)))
    assert apart.time_ps <= 1.2 * joined.time_ps


@given(permutations(least=500, most=1 << 13), TYPES)
@settings(max_examples=examples(10))
def test_the_identity_is_a_plain_copy(what: tuple[tuple[int, ...], tuple[int, ...]], dtype: DType) -> None:
    shape, _ = what
    found = timed(turned(shape, tuple(range(len(shape))), dtype), EDGE)
    assert found.time_ps == timed(copied(prod(shape), dtype), EDGE).time_ps


# Single transfers


def copy(shape: tuple[int, ...], perm: tuple[int, ...], dtype: DType, dst: int, src: int) -> Copy:
    """Copy a dense tensor to a dense one of another order, in the order of the destination."""
    item = dtype.itemsize
    dims = tuple(shape[axis] for axis in perm)
    source = dense_strides(shape, item)
    return Copy(
        dst, dense_strides(dims, item), src, tuple(source[axis] for axis in perm), dims, item, NONE, NONE, 0,
    )  # fmt: skip


FOUR = st.tuples(*(st.integers(1, 20) for _ in range(4)))
SIDES = {"dram": (region(2), region(3)), "load": (sram(0), region(3)), "store": (region(2), sram(0)),
         "sram": (sram(0), sram(1 << 18))}  # fmt: skip


@given(FOUR, st.permutations(range(4)), TYPES, st.sampled_from(sorted(SIDES)), st.sampled_from(["tiny", "edge"]))
@settings(max_examples=examples(60))
def test_a_larger_reorder_buffer_is_never_slower(
    shape: tuple[int, ...], perm: Any, dtype: DType, side: str, name: str
) -> None:
    work = copy(shape, tuple(perm), dtype, *SIDES[side]).work()
    times = [
        cost_model(CONFIGS[name].with_(**{"dma.reorder_bytes": nbytes})).cost(work).ps
        for nbytes in (0, 64, 100, 500, 4096, 1 << 18)
    ]
    assert all(later <= earlier for earlier, later in pairwise(times)), times
    # One block: both sides have the runs that they have by themselves.
    total = prod(shape) * dtype.itemsize
    ends = {"dram": (total, total), "load": (total, 0), "store": (0, total), "sram": (0, 0)}[side]
    assert times[-1] <= cost_model(CONFIGS[name]).cost(DmaWork(total, 1, total, *ends)).ps


@pytest.mark.parametrize(
    ("nbytes", "bursts"),
    [
        (0, 4_000_000),  # bytes
        (63, 1_000_000),  # 4 x 8: sides are powers of two, and the worse one decides
        (64, 500_000),  # 8 x 8
        (4096, 62_500 * 7 // 4),  # 64 x 64
    ],
)  # fmt: skip
def test_a_reorder_buffer_by_hand(nbytes: int, bursts: int) -> None:
    """Rows of 2000 bytes start at multiples of 16 in a burst, so three of four 64-byte runs cross a burst boundary."""
    work = copy((1, 1, 2000, 2000), (0, 1, 3, 2), DType.INT8, *SIDES["dram"]).work()
    config = EDGE.with_(**{"dma.reorder_bytes": nbytes})
    assert cost_model(config).dram_bytes(work) == 2 * bursts * 64


def test_a_transposed_matrix_by_hand() -> None:
    """2000 x 2000 bytes at 1 GHz take a word each; 500 x 250 of them are stored at once.

    A store takes 16 + 2 cycles to start and 8 + 120 to its first datum. The first load moves 250 runs of 500 bytes in
    bursts of 64.
    """
    graph = turned((2000, 2000), (1, 0), DType.INT8)
    with Session(EDGE, cache_dir=False) as session:
        program = session.compile(graph)
        result = session.run(program, {}, timing_only=True)
    found = [command.instruction for command in decode(program.code) if isinstance(command.instruction, Copy)]
    stores = [copy for copy in found if copy.work().writes]
    assert [(copy.work().pieces, copy.work().piece_bytes) for copy in stores] == [(125_000, 1)] * 32
    assert {cost_model(EDGE).cost(copy.work()).ps for copy in stores} == {(18 + 128 + 125_000) * 1000}
    first = cost_model(EDGE).cost(found[0].work()).ps
    (op,) = result.ops
    # Between load and store the commands for more tiles are fetched.
    assert 0 <= op.end_ps - op.start_ps - first - 32 * 125_146_000 < 500_000


def test_one_copy_of_a_transposed_matrix_by_hand() -> None:
    """A burst of 64 bytes for each byte read and for each byte written."""
    work = copy((1, 1, 2000, 2000), (0, 1, 3, 2), DType.INT8, *SIDES["dram"]).work()
    assert (work.runs, work.run_bytes) == (4_000_000, 1)
    rate = EDGE.dram.bandwidth * EDGE.dram.efficiency.numerator // EDGE.dram.efficiency.denominator
    assert cost_model(EDGE).cost(work).ps == (18 + 128) * 1000 + ceil_div(2 * 4_000_000 * 64 * 10**12, rate)


def test_rows_that_are_reversed_have_no_runs() -> None:
    """The engine only moves forward: a word per element."""
    forth = Copy(sram(0), (0, 0, 0, 4), region(2), (0, 0, 0, 4), (1, 1, 1, 30), 4, NONE, NONE, 0).work()
    back = Copy(sram(116), (0, 0, 0, -4), region(2), (0, 0, 0, 4), (1, 1, 1, 30), 4, NONE, NONE, 0).work()
    assert (forth.pieces, back.pieces, back.piece_bytes) == (1, 30, 4)
    assert back.runs == forth.runs == 1


# What else moves between two orders


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_padding_and_concatenation_do_not_take_a_burst_for_each_element(mode: str) -> None:
    build = GraphBuilder("padded")
    value = build.add("transpose", [build.input("x", (300, 200), DType.INT8)], {"perm": (1, 0)})
    value = build.add("pad", [value], {"before": (0, 1), "after": (0, 2), "mode": mode, "value": 0})
    graph = build.finish([build.add("concat", [value, value], {"axis": 0})])
    elements = sum(op.output.size for op in graph.ops)
    assert timed(graph, EDGE).time_ps < 2 * elements * 10**12 // EDGE.clock_hz
