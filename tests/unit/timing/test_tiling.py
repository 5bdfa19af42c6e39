"""The compiled search for tilings compared with its definition in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npusim.errors import CompileError
from npusim.hw.config import Config, load_config
from npusim.timing.tile import Tilings, choose, tilings
from npusim.timing.tile_costs import pricing
from npusim.timing.tile_problem import MatrixProblem, Tiling
from tests.support import tile_definition as definition
from tests.support.examples import examples
from tests.support.graphs.problems import PLAIN, homes, problems

EDGE = load_config("edge")
DEVICES = [
    *(load_config(name) for name in ("tiny", "edge", "gemmini", "nvdla_small", "rk3588_core", "server", "intel_npu27")),
    EDGE.with_(cores=3), EDGE.with_(**{"dma.channels": 1}), EDGE.with_(**{"compiler.inputs_ahead": False}),
]  # fmt: skip


@settings(max_examples=examples(100))
@given(problems(), homes(), st.sampled_from(DEVICES), st.integers(1, 2048))
def test_the_search_is_its_definition(problem: MatrixProblem, other: dict[str, Any], config: Config, kib: int) -> None:
    """The search uses machine integers, cached prices and a reduced description; the definition scores one tiling after
    the other in Python with the device's costs."""
    problem = problem._replace(**other)
    assume(config.matrix is not None and config.matrix.rate(problem.x_type.label))
    searched = tilings(problem, config)
    tile = searched.choose(kib << 10)
    assert tile == definition.choose(problem, config, kib << 10)
    if tile is not None:
        # The chosen one, whose time is known; the same with the other loop order; one that is not a tried cut.
        odd = Tiling(1, tile.oh - tile.oh // 3, 1, tile.oc - tile.oc // 3, tile.ic, False)
        for each in (tile, tile._replace(weights_outer=not tile.weights_outer), odd):
            assert searched.score(each) == definition.score(problem, each, config)
            for again in (False, True):
                assert searched.latency(each, again=again) == definition.latency(problem, each, config, again=again)
            assert searched.computing(each) == definition.computing(problem, each, config)
            assert searched.banked(each) == definition.banked(problem, each, config)


@settings(max_examples=examples(8))
@given(
    problems(), homes(), st.sampled_from(DEVICES),
    st.lists(st.integers(1, 1 << 21) | st.integers(1, 1 << 14), min_size=2, max_size=12),
)  # fmt: skip
def test_an_answer_for_one_budget_serves_only_those_that_choose_it(
    problem: MatrixProblem, other: dict[str, Any], config: Config, budgets: list[int]
) -> None:
    """For any earlier queries, also near the ends of an answer's range."""
    problem = problem._replace(**other)
    assume(config.matrix is not None and config.matrix.rate(problem.x_type.label))
    searched = Tilings(problem, pricing(config))
    for budget in budgets:
        searched.choose(budget)
    ends = [end for end, _ in searched._chosen] + searched._firsts
    for budget in {*budgets, *ends, *(end - 1 for end in ends)}:
        if 0 < budget < 1 << 40:
            assert searched.choose(budget) == definition.choose(problem, config, budget)


def test_figures_of_slow_devices_end_at_a_limit() -> None:
    """A layer that takes about 30 years is tiled like any other."""
    slow = EDGE.with_(**{"clock": 1000, "matrix.clock": 1000})
    large = PLAIN._replace(images=1 << 20, oh=1 << 12)
    tile = choose(large, slow, 1 << 20)
    assert tile is not None
    assert tilings(large, slow).computing(tile) == 10**18
    assert 10**18 <= tilings(large, slow).score(tile) < 2**63


def test_layers_beyond_64_bits_are_refused() -> None:
    huge = PLAIN._replace(images=1 << 50, oh=1 << 12)
    with pytest.raises(CompileError, match="too large to be cut into tiles"):
        choose(huge, EDGE, 1 << 20)
