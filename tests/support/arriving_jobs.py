"""Jobs of random instructions that arrive at any time, with any priority, and may be aborted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from npusim.driver import Priority
from npusim.hw.config import Config
from npusim.program import Binding, Program
from tests.support.programs.random_streams import SCRATCH as SCRATCH_BYTES
from tests.support.programs.random_streams import SLOT, SLOTS, Action, actions, build

US = 10**6


@dataclass(frozen=True)
class Arrival:
    """A job: its actions, its priority, the delay after the previous job, and when it is aborted, if ever."""

    plan: list[Action]
    priority: Priority
    after_ps: int
    abort_ps: int | None


def arrivals(*priorities: Priority) -> st.SearchStrategy[Arrival]:
    return st.builds(
        Arrival,
        st.lists(actions(), min_size=12, max_size=24),
        st.sampled_from(priorities),
        st.sampled_from((800_011, 1_200_007, 1_700_003, 2_500_001, 0, 17 * US)),
        st.one_of(st.none(), st.none(), st.integers(0, 40).map(lambda number: number * US)),
    )


def program(plan: list[Action], config: Config) -> Program:
    """Build a program from the plan. It clears its memories first because other jobs have used them."""
    clear = [
        Action("fill", core, 0, (slot, 0, 0), (0, 0), 0, SLOT) for core in range(config.cores) for slot in range(SLOTS)
    ]
    if config.l2:
        clear += [Action("fill", 0, 0, (slot, 0, 0), (2, 0), 0, SLOT) for slot in range(SLOTS)]
    return build(clear + plan, config).program(scratch=SCRATCH_BYTES)


def storage(binding: Binding, seed: int) -> npt.NDArray[Any]:
    """Return random values for an input."""
    values = np.random.default_rng(seed).integers(0, 100, binding.shape)
    return values.astype(binding.dtype.storage)
