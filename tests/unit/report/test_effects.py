"""Effects of knobs never contradict matched pairs, whichever designs a search chose."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.report.effects import MatchedPairs

Point = tuple[int, ...]
SPACES: dict[str, Callable[[Point], float]] = {
    "independent": lambda at: 100 * 0.8 ** at[0] * 1.1 ** at[1] * (1 + at[2]),
    "the effect of a knob changes its sign": lambda at: 100 + (at[0] - 1) * (at[1] - 1) * 40 + at[2],
    "limited by the slowest": lambda at: max(100 / (1 + at[0]), 60 / (1 + at[1]), 10 * (1 + at[2])),
}
DESIGNS = list(product(range(4), range(3), range(3)))


def pairs_of(chosen: list[Point], knob: int) -> dict[tuple[int, int], list[tuple[Point, Point]]]:
    """Return the pairs of designs that differ in one knob alone, without one between them, by their values."""
    found: dict[tuple[int, int], list[tuple[Point, Point]]] = {}
    for one, two in product(chosen, chosen):
        others = [n for n in range(3) if n != knob]
        between = [p for p in chosen if all(p[n] == one[n] for n in others) and one[knob] < p[knob] < two[knob]]
        if one[knob] < two[knob] and all(one[n] == two[n] for n in others) and not between:
            found.setdefault((one[knob], two[knob]), []).append((one, two))
    return found


@pytest.mark.parametrize("space", SPACES)
@given(chosen=st.lists(st.sampled_from(DESIGNS), unique=True, min_size=2))
def test_an_effect_is_the_mean_of_its_matched_pairs(space: str, chosen: list[Point]) -> None:
    figure = SPACES[space]
    knobs = {f"k{n}": [at[n] for at in chosen] for n in range(3)}
    found = MatchedPairs(knobs).effects([figure(at) for at in chosen], range(len(chosen)))
    assert {each.knob for each in found} == {name for name, rows in knobs.items() if len(set(rows)) > 1}
    for each in found:
        wanted = pairs_of(chosen, int(each.knob[1]))
        assert {(step.before, step.after): step.pairs for step in each.steps} == {
            ends: len(pairs) for ends, pairs in wanted.items()
        }
        for step in each.steps:
            logs = [math.log(figure(two) / figure(one)) for one, two in wanted[step.before, step.after]]
            assert math.log1p(step.mean) == pytest.approx(sum(logs) / len(logs), abs=1e-9)
            assert (math.log1p(step.low), math.log1p(step.high)) == pytest.approx((min(logs), max(logs)), abs=1e-9)
            assert step.low <= step.mean <= step.high
    assert [each.importance for each in found] == sorted((each.importance for each in found), reverse=True)


def test_a_search_that_prefers_fast_designs_does_not_turn_an_effect_round() -> None:
    """More of k0 is 10 % faster, but the designs with more of it are those with the slowest k1."""
    chosen = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    values = [100 * 0.9**a * 2**b for a, b in chosen]
    means = [sum(v for (a, _), v in zip(chosen, values, strict=True) if a == n) / 2 for n in range(3)]
    assert means == sorted(means)  # raw means say the opposite
    found = MatchedPairs({"k0": [a for a, _ in chosen], "k1": [b for _, b in chosen]}).effects(values, range(6))
    (effect,) = (each for each in found if each.knob == "k0")
    assert [(step.mean, step.pairs) for step in effect.steps] == [(pytest.approx(-0.1), 1)] * 2


def test_a_knob_whose_effect_depends_on_another_names_it() -> None:
    knobs: dict[str, list[int]] = {"rows": [], "sram": [], "other": []}
    for at in product(range(2), range(2), range(2)):
        for name, value in zip(knobs, at, strict=True):
            knobs[name].append(value)
    values = [100 / (1 + rows * sram) + other for rows, sram, other in product(range(2), range(2), range(2))]
    found = {each.knob: each for each in MatchedPairs(knobs).effects(values, range(8))}
    assert (found["rows"].depends_on, found["sram"].depends_on) == ("sram", "rows")
    assert found["rows"].dependence == pytest.approx(1, rel=0.05)
    assert found["other"].dependence < 0.05


def test_knobs_without_pairs_and_unknown_figures() -> None:
    pairs = MatchedPairs({"a": [0, 1, -1, 1], "b": [0, 1, 2, 0], "same": [0, 0, 0, 0]})
    found = {each.knob: each for each in pairs.effects([1.0, 2.0, 3.0, None], range(4))}
    assert {name: (each.steps, each.importance, each.pairs) for name, each in found.items()} == {
        "a": ((), 0.0, 0), "b": ((), 0.0, 0)
    }  # fmt: skip
    assert pairs.effects([None] * 4, range(4))[0].steps == ()
    assert pairs.effects([0.0, -1.0, 2.0, 3.0], range(4))[0].steps == ()
