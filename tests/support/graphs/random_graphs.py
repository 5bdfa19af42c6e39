"""Random graphs with every operator kind."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st

from tests.support.graphs.random_operators import STEPS, island
from tests.support.graphs.random_values import Grower, RandomGraph

MOST_STEPS = 6
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)
"""Health checks that graphs cannot avoid: they are large, and many draws do not fit together."""


def grown(draw: st.DrawFn, names: list[str], special: bool = False) -> RandomGraph:
    """Draw a graph from the named steps. Its outputs are the newest value and some older ones."""
    grower = Grower(draw, np.random.default_rng(draw(st.integers(0, 2**32 - 1))), special=special)
    for name in names:
        (island if name == "island" else STEPS[name])(grower)
    made = [value for value in grower.values if not grower.build.is_input(value.tensor)]
    if not made:
        STEPS["unary"](grower)
        made = grower.values[-1:]
    kept = {made[-1].tensor.name: made[-1]}
    for value in made[:-1]:
        if draw(st.integers(0, 3)) == 3:
            kept[value.tensor.name] = value
    graph = grower.build.finish([value.tensor for value in kept.values()])
    return RandomGraph(graph, grower.inputs, kept)


@st.composite
def graphs(draw: st.DrawFn, most_steps: int = MOST_STEPS, special: bool = False) -> RandomGraph:
    """Draw any mix of kinds; shrinks to few of them."""
    names = draw(st.lists(st.sampled_from((*STEPS, "island")), min_size=1, max_size=most_steps))
    return grown(draw, names, special)


@st.composite
def graphs_with(draw: st.DrawFn, kind: str) -> RandomGraph:
    """Draw at least one operator of a kind, perhaps with neighbours that fuse with it or move its results."""
    before = draw(st.lists(st.sampled_from(("unary", "transpose", "slice", "pad", "binary")), max_size=1))
    after = draw(st.lists(st.sampled_from(("unary", "binary", "transpose", "concat", "reshape", "select")), max_size=2))
    return grown(draw, [*before, kind, *after])
