"""The device state in a checkpoint: each value has a type, and a value of another type is refused by name."""

from __future__ import annotations

import pytest

from tests.support.nested import leaves
from tests.support.programs.saved_states import JOB, WRONG, checkpoint, refusal

ELSEWHERE = {"config", "registers", (*JOB, "player")}
"""Configurations and players have separate tests; registers may contain anything that software writes."""


@pytest.mark.parametrize("at_ps", [100_000, 1_800_000])
def test_values_of_other_kinds_are_refused(at_ps: int) -> None:
    for path, leaf in leaves(dict(checkpoint(at_ps).state)):
        if path[0] in ELSEWHERE or path[:4] in ELSEWHERE:
            continue
        for wrong in WRONG:
            if type(wrong) is not type(leaf) or isinstance(leaf, int):
                assert refusal(at_ps, (path, wrong)), (path, wrong)
