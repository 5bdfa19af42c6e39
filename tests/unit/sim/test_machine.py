"""Which jobs find their pinned weights in SRAM."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from npusim.sim.machine import Residents


@pytest.mark.parametrize("other", list(product([False, True], repeat=3)))
def test_pinned_weights_are_found_by_the_same_program_constants_and_number_alone(other: tuple[bool, ...]) -> None:
    program: Any = object()
    another: Any = object()
    held = Residents(program, (4096, 64), 1, computed=True)
    changes: list[dict[str, Any]] = [{"program": another}, {"constants": (8192, 64)}, {"number": 2}]
    wanted = held
    for change, made in zip(changes, other, strict=True):
        wanted = replace(wanted, **change) if made else wanted
    assert held.serve(wanted) == (not any(other))
    assert not held.serve(replace(held, constants=(4096, 128)))


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("needed", [False, True])
def test_bytes_that_were_only_timed_serve_no_job_that_computes(loaded: bool, needed: bool) -> None:
    program: Any = object()
    held = Residents(program, (0, 64), 1, computed=loaded)
    assert held.serve(replace(held, computed=needed)) == (loaded or not needed)
