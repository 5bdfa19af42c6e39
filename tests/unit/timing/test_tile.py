"""Tilings fit in the memory they are made for, and compiled programs stay within it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npusim.compiler.grouping.groups import form_groups
from npusim.compiler.lower.base import ConstantPool, Context, facts_of
from npusim.compiler.lower.chain import Chain
from npusim.compiler.pipeline import compile_graph, prepare
from npusim.compiler.schedule.layout import place
from npusim.dtypes import DType
from npusim.errors import CompileError
from npusim.hw.config import Config, load_config
from npusim.hw.cost import cost_model
from npusim.hw.memory import dram_model
from npusim.isa.base import Space, decode, offset_of, space_of
from npusim.isa.functions import Binary
from npusim.isa.matrix_types import CHANNEL_BLOCK
from npusim.ops.build import GraphBuilder
from npusim.timing.tile import acc_bytes, choose, tilings
from npusim.timing.tile_cuts import can_cut_taps
from npusim.timing.tile_problem import EpilogueCosts, Home, MatrixProblem, Tiling, footprint, taps
from npusim.work import DmaWork
from tests.support.graphs.problems import problems
from tests.support.graphs.samples import conv, product, residual_net
from tests.support.tile_definition import filled, sram_bytes
from tests.unit.timing.tilings import CONV

TINY, EDGE = load_config("tiny"), load_config("edge")


@settings(max_examples=60)
@given(problems(), st.sampled_from([8, 16, 64, 256]), st.sampled_from([0, 1024, 8192]))
def test_a_tiling_fits(problem: MatrixProblem, kib: int, accumulators: int) -> None:
    config = TINY.with_(**{"sram.bytes": kib << 10, "matrix.accumulator_bytes": accumulators})
    tile = choose(problem, config, kib << 10)
    if tile is None:
        assert kib < 64 or accumulators == 1024
        return
    assert sram_bytes(problem, tile, config) <= kib << 10
    assert 1 <= tile.oh <= problem.oh
    assert 1 <= tile.ow <= problem.ow
    assert 1 <= tile.oc <= problem.oc
    assert not accumulators or footprint(problem, tile).acc <= acc_bytes(config) == accumulators
    assert tile.ic == problem.ic or tile.ic % CHANNEL_BLOCK == 0, "sums are cut between blocks only"


@settings(max_examples=60)
@given(problems(), st.sampled_from([TINY, EDGE]), st.integers(1, 64))
def test_there_is_a_tiling_if_the_smallest_tile_fits(problem: MatrixProblem, config: Config, kib: int) -> None:
    """With few and many columns: fewer output channels than the unit has columns are a valid tile, too."""
    ic = problem.ic if problem.depthwise else min(problem.ic, CHANNEL_BLOCK)
    smallest = Tiling(1, 1, 1, 1, ic, False, False, *((1, 1) if can_cut_taps(problem) else (0, 0)))
    fits = sram_bytes(problem, smallest, config) <= kib << 10
    assert (choose(problem, config, kib << 10) is not None) == fits


@given(problems())
@settings(max_examples=20)
def test_more_memory_is_never_a_worse_plan(problem: MatrixProblem) -> None:
    """What fits in a small memory fits in a larger one."""
    if choose(problem, TINY, 16 << 10) is not None:
        assert choose(problem, TINY, 64 << 10) is not None


MOST_PARTS = 2000
"""Per problem; more of the same kinds add no information."""


def parts(problem: MatrixProblem, tile: Tiling) -> Iterator[Tiling]:
    """Yield every tile of an image with its actual size."""
    kh, kw = taps(problem, tile)
    for group, row, col, channel, depth, tap_row, tap_col in itertools.product(
        range(0, problem.groups, tile.groups), range(0, problem.oh, tile.oh), range(0, problem.ow, tile.ow),
        range(0, problem.oc, tile.oc), range(0, problem.ic, tile.ic), range(0, problem.kh, kh),
        range(0, problem.kw, kw),
    ):  # fmt: skip
        yield Tiling(
            min(tile.groups, problem.groups - group), min(tile.oh, problem.oh - row), min(tile.ow, problem.ow - col),
            min(tile.oc, problem.oc - channel), min(tile.ic, problem.ic - depth), tile.weights_outer, False,
            min(kh, problem.kh - tap_row), min(kw, problem.kw - tap_col),
        )  # fmt: skip


@given(problems(), st.sampled_from([16, 64]))
@settings(max_examples=15)
def test_tiles_at_the_edges_count_as_what_they_are(problem: MatrixProblem, kib: int) -> None:
    """Small tiles at the edges are charged by their actual size."""
    tile = choose(problem, TINY, kib << 10)
    assume(tile is not None)
    assert tile is not None
    every = list(itertools.islice(parts(problem, tile), MOST_PARTS + 1))
    assume(len(every) <= MOST_PARTS)
    # A problem that consists of one part costs what its only tile does.
    alone = [
        problem._replace(
            groups=part.groups, oh=part.oh, ow=part.ow, oc=part.oc, ic=part.ic, kh=part.kh, kw=part.kw, images=1
        )
        for part in every
    ]  # fmt: skip
    cost = sum(tilings(small, TINY).computing(part) for small, part in zip(alone, every, strict=True))
    assert tilings(problem, TINY).computing(tile) == problem.images * cost
    full, whole = filled(problem, tile), footprint(problem, tile)
    each = [footprint(problem, part) for part in every]
    assert full.w * whole.w * len(every) == pytest.approx(sum(part.w for part in each))
    # Only the pixels of these count, because tiles at the channel edge have as many runs.
    pixels = [(print_.x // (part.groups * part.ic), print_.out // (part.groups * part.oc))
              for print_, part in zip(each, every, strict=True)]  # fmt: skip
    if not (tile.kh or tile.kw):  # parts of the kernel count as if each reached as many pixels
        assert full.x * whole.x * len(every) == pytest.approx(tile.groups * tile.ic * sum(x for x, _ in pixels))
    assert full.out * whole.out * len(every) == pytest.approx(tile.groups * tile.oc * sum(out for _, out in pixels))


def test_narrow_tiles_at_the_edge_are_as_slow_to_store() -> None:
    """Results of 64, 64 and 16 channels are stored in runs that take equally long, so each tile counts a third, and not
    4 / 9, 4 / 9 and 1 / 9."""
    config = load_config("rk3588_core")
    problem = CONV._replace(oh=56, ow=56, oc=144, ic=24, kh=1, kw=1)
    thirds, once = Tiling(1, 14, 56, 64, 24, weights_outer=False), Tiling(1, 7, 56, 144, 24, weights_outer=False)
    nbytes = 14 * 56 * 64
    stores = 4 * 3 * cost_model(config).stream_ps(DmaWork(nbytes, nbytes // 64, 64, 0, nbytes))
    assert tilings(problem, config).score(thirds) > stores
    assert tilings(problem, config).score(thirds) > tilings(problem, config).score(once)


def test_what_a_chain_makes_is_stored_and_not_the_sums() -> None:
    """If floats in a slot become int8, a quarter of its bytes is stored."""
    config = load_config("edge_tpu")
    bytes_ = CONV._replace(kh=1, kw=1, out_type=DType.FLOAT32, in_place=True, epilogue=EpilogueCosts(2, result=1))
    tile = Tiling(1, 10, 34, 40, 24, weights_outer=False)
    floats = bytes_._replace(epilogue=EpilogueCosts(2, result=4))
    size, rate = bytes_.oh * bytes_.ow * bytes_.oc, dram_model(config).bandwidth
    assert 3 * size * 10**12 < (tilings(floats, config).score(tile) - tilings(bytes_, config).score(tile)) * rate
    assert tilings(floats, config).score(tile) == tilings(floats._replace(epilogue=EpilogueCosts(2)), config).score(
        tile
    )


def test_runs_that_begin_anywhere_in_a_burst_touch_another_one() -> None:
    """64 of 255 channels are as long as a burst, but touch two."""
    config = load_config("edge_tpu")
    problem = CONV._replace(oh=40, ow=40, oc=255, ic=128, kh=1, kw=1, x_home=Home.DIRECT)
    tile = Tiling(1, 10, 40, 64, 128, weights_outer=True)
    stored = 3 * 1600 * 2 * 64
    assert tilings(problem, config).score(tile) > stored * 10**12 // dram_model(config).bandwidth
    # Where they begin with bursts they do not.
    even = problem._replace(oc=256)
    assert tilings(even, config).score(tile) < tilings(problem, config).score(tile)


def test_a_chain_says_what_it_makes() -> None:
    graph = prepare(residual_net(), EDGE)
    context = Context(EDGE, ConstantPool(), facts=facts_of(graph))
    groups, _ = place(graph, form_groups(graph.ops, graph.outputs), context)
    chained = [group for group in groups if group.anchor and group.chain]
    assert chained
    for group in chained:
        out = group.outputs[0]
        chain = Chain(
            context, group.chain, context.view(out), range(len(out.shape)), group.anchor and group.anchor.output
        )
        assert chain.epilogue().result == out.dtype.itemsize


@pytest.mark.parametrize("kib", [8, 16, 32, 128])
@pytest.mark.parametrize("accumulators", [0, 4096])
def test_commands_stay_within_the_sram(kib: int, accumulators: int) -> None:
    config = TINY.with_(**{"sram.bytes": kib << 10, "matrix.accumulator_bytes": accumulators})
    used = {Space.SRAM: 0, Space.ACC: 0}
    for command in decode(compile_graph(residual_net(16, 16, 1), config).code):
        for access in command.instruction.accesses():
            if access is not None and space_of(access.address) in used:
                space = Space(space_of(access.address))
                used[space] = max(used[space], offset_of(access.address) + access.high)
    assert (kib << 10) // 4 < used[Space.SRAM] <= kib << 10, "plans use what there is"
    assert used[Space.ACC] <= accumulators
    assert bool(used[Space.ACC]) == bool(accumulators)


def test_what_does_not_fit_is_refused_with_both_sizes() -> None:
    build = GraphBuilder("sums")
    value = conv(build, build.input("x", (1, 4, 4, 4), DType.FLOAT32), 4)
    for number in range(8):  # each operand has two slots
        value = build.add("binary", [value, build.input(f"x{number}", value.shape, value.dtype)], {"fn": Binary.ADD})
    with pytest.raises(
        CompileError, match=r"^\w+ \(conv(\+add)+\): its smallest tile takes \d+ bytes of SRAM, the device has 1024$"
    ):
        # Less than a description may have: with 4 KiB there is a tile.
        compile_graph(build.finish([value]), replace(TINY, sram=replace(TINY.sram, bytes=1024)))


def test_dram_that_is_too_small_is_refused() -> None:
    config = TINY.with_(**{"dram.bytes": 1 << 20})
    with pytest.raises(
        CompileError,
        match=r"^product: needs \d+ bytes of DRAM \(constants \d+, intermediate values 0\), tiny has 1048576$",
    ):
        compile_graph(product(64, 2048, 1024), config)
