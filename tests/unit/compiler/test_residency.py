"""How many values are tried in the scratchpad: exactly as many as the limit on their total life allows."""

from __future__ import annotations

from fractions import Fraction

import pytest

from npusim.compiler.pipeline import compile_graph
from npusim.compiler.schedule import memory_plan, residency
from npusim.hw.config import load_config
from tests.support.graphs.samples import residual_net

TINY = load_config("tiny").with_(**{"sram.bytes": 32 << 10})


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_values_are_tried_while_the_limit_lasts(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    """With a limit of exactly the total life none is left out; with one step less, only the last one is."""
    choose, lives_of, seen = residency.choose_values, residency.value_lives, []

    def limited(steps, costs, *others):
        lives = list(map(len, lives_of(steps, costs).values()))
        monkeypatch.setattr(residency, "MEAN_LIFE", Fraction(sum(lives) - missing, len(steps)))
        taken, untried = choose(steps, costs, *others)
        seen.append((lives, {buffer: len(lives_of(steps, costs)[buffer]) for buffer in untried}))
        return taken, untried

    monkeypatch.setattr(memory_plan, "choose_values", limited)
    compile_graph(residual_net(16, 8, 3), TINY)
    assert any(len(lives) > 3 for lives, _ in seen)
    for lives, untried in seen:
        if not missing:
            assert not untried
        elif min(lives, default=0) > missing:
            assert len(untried) == 1
