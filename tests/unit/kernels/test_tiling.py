"""The search for tilings against its definition in Python."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from npusim.compiler.prices import pricing
from npusim.compiler.tile import (
    MatrixProblem,
    Tiling,
    Tilings,
    banked,
    choose,
    choose_slowly,
    computing,
    estimate,
    taking,
    tilings,
)
from npusim.hw.config import Config, load_config
from tests.support.graphs.problems import PLAIN, homes, problems

EDGE = load_config("edge")
DEVICES = [
    *(load_config(name) for name in ("tiny", "edge", "gemmini", "nvdla_small", "rk3588_core", "server", "intel_npu27")),
    EDGE.with_(cores=3), EDGE.with_(**{"dma.channels": 1}), EDGE.with_(**{"dma.inputs_ahead": False}),
]  # fmt: skip


@settings(max_examples=150)
@given(problems(), homes(), st.sampled_from(DEVICES), st.integers(1, 2048))
def test_the_search_is_its_definition(problem: MatrixProblem, other: dict[str, Any], config: Config, kib: int) -> None:
    """In machine integers, with remembered prices, on what is left of the description; and one tiling after the
    other, in Python, as the device charges."""
    problem = problem._replace(**other)
    assume(config.matrix is not None and config.matrix.rate(problem.x_type.label))
    searched = tilings(problem, config)
    tile = searched.choose(kib << 10)
    assert tile == choose_slowly(problem, config, kib << 10)
    if tile is not None:
        # The chosen one, whose time is known; the same with the other loop outermost; one that is none of the cuts.
        odd = Tiling(1, tile.oh - tile.oh // 3, 1, tile.oc - tile.oc // 3, tile.ic, False)
        for each in (tile, tile._replace(weights_outer=not tile.weights_outer), odd):
            assert searched.estimate(each) == estimate(problem, each, config)
            for again in (False, True):
                assert searched.taking(each, again=again) == taking(problem, each, config, again=again)
            assert searched.computing(each) == computing(problem, each, config)
            assert searched.banked(each) == banked(problem, each, config)


@settings(max_examples=15)
@given(
    problems(), homes(), st.sampled_from(DEVICES),
    st.lists(st.integers(1, 1 << 21) | st.integers(1, 1 << 14), min_size=2, max_size=12),
)  # fmt: skip
def test_an_answer_for_one_budget_serves_only_those_that_choose_it(
    problem: MatrixProblem, other: dict[str, Any], config: Config, budgets: list[int]
) -> None:
    """Whatever was asked before: near an answer's ends, too."""
    problem = problem._replace(**other)
    assume(config.matrix is not None and config.matrix.rate(problem.x_type.label))
    searched = Tilings(problem, pricing(config))
    for budget in budgets:
        searched.choose(budget)
    ends = [end for end, _ in searched._chosen] + searched._firsts
    for budget in {*budgets, *ends, *(end - 1 for end in ends)}:
        if 0 < budget < 1 << 40:
            assert searched.choose(budget) == choose_slowly(problem, config, budget)


def test_what_machine_integers_cannot_hold_is_worked_out_all_the_same() -> None:
    """The search refuses it, and its definition answers."""
    huge = PLAIN._replace(images=1 << 40, oh=1 << 12)
    tile = choose(huge, EDGE, 1 << 20)
    assert tile is not None
    assert tilings(huge, EDGE).estimate(tile) == estimate(huge, tile, EDGE) > 1 << 62
