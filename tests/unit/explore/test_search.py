"""How searches find the front: halving compared with all designs, Optuna, and what is the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.explore import Space, Study, bayes
from npusim.explore.front import layers, non_dominated, spread
from npusim.explore.search import neighbours
from tests.support.explore_designs import (
    Synthetic,
    SyntheticEstimate,
    hypervolume,
    large_space,
    small_model,
    space,
    synthetic_area,
    synthetic_ps,
)


def points_of(study: Study) -> np.ndarray[Any, Any]:
    return np.array([study.objectives.of(row) for row in study.front_rows()])


def whole(found: Space) -> np.ndarray[Any, Any]:
    """Return the objectives of every synthetic design, from their definition."""
    points = []
    for number in range(found.size):
        config = found.config(number)
        assert config.matrix is not None
        ps = synthetic_ps(config.matrix.rows, config.matrix.cols, config.sram.bytes, config.dram.bandwidth)
        points.append((ps * 1e-12, synthetic_area(config) * 1e-12))
    return np.array(points)


FEW = 5
"""Values per key where thousands of designs are not needed."""


def synthetic(found: Space, estimate: SyntheticEstimate | None = None, **more: Any) -> Study:
    return Study(found, evaluate=Synthetic(), estimate=estimate, area=synthetic_area, **more)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_halving_finds_the_front_of_a_large_space(seed: int) -> None:
    everything = whole(large_space())
    study = synthetic(large_space(search={"seed": seed, "budget": 500}), SyntheticEstimate()).run(workers=0)
    assert len(study.rows) <= 500
    # Far from the front every search looks good; near it, few do.
    for reference in (everything.max(axis=0), everything.min(axis=0) * 8):
        exhaustive = hypervolume(everything, reference)
        assert 0.95 * exhaustive <= hypervolume(points_of(study), reference) <= exhaustive * (1 + 1e-9)


def test_halving_is_better_than_chance_without_estimates() -> None:
    study = synthetic(large_space(FEW, search={"budget": 60})).run(workers=0)
    drawn = synthetic(large_space(FEW, search={"budget": 60, "method": "optuna", "sampler": "random"})).run(workers=0)
    reference = whole(large_space(FEW)).min(axis=0) * 8
    assert hypervolume(points_of(study), reference) > hypervolume(points_of(drawn), reference)


def test_constraints_that_need_no_run_are_decided_before() -> None:
    found = large_space(FEW, search={"budget": 60}, constraints=["area <= 1 mm2", "dram.bandwidth <= 8 GB/s"])
    study = synthetic(found, SyntheticEstimate()).run(workers=0)
    assert study.rows
    assert all((row.area or 0) <= 10**6 and row.settings["dram.bandwidth"] <= 8 * 10**9 for row in study.rows.values())
    assert set(study.reasons()) == {"breaks area <= 1 mm2", "breaks dram.bandwidth <= 8 GB/s"}
    assert sum(study.reasons().values()) + len(study.screen.areas) == found.size


def test_a_constraint_on_a_simulated_figure_holds_in_the_front() -> None:
    study = synthetic(large_space(FEW, search={"budget": 120}, constraints=["latency <= 200 us"]), SyntheticEstimate())
    study.run(workers=0)
    front = study.front()
    assert front
    assert all(each["latency"] <= 200_000_000 for each in front)
    slow = [row for row in study.rows.values() if row.figures[0].latency > 200_000_000]
    assert len(slow) < len(study.rows) / 2, "most of the budget is spent where the constraint holds"


def test_designs_that_differ_in_a_refused_key_are_estimated_apart() -> None:
    together, apart = SyntheticEstimate(), SyntheticEstimate(refuses=("matrix.rows",))
    found = large_space(FEW, search={"budget": 40})
    first, second = (synthetic(found, each).run(workers=0) for each in (together, apart))
    assert (together.calls, apart.calls) == (1, 2 + FEW), (
        "once for the device of the space, once for the first design, then by rows"
    )
    assert first.rows == second.rows


@pytest.mark.parametrize("method", ["halving", "optuna"])
def test_the_same_seed_asks_for_the_same_designs(method: str) -> None:
    runs = [
        synthetic(large_space(FEW, search={"budget": 48, "seed": seed, "method": method}), SyntheticEstimate()).run(
            workers=0
        )
        for seed in (3, 3, 4)
    ]
    assert runs[0].rows == runs[1].rows
    assert runs[0].rows.keys() != runs[2].rows.keys()
    assert len(runs[0].rows) <= 48


def test_a_sample_of_a_space_too_large_to_look_at_is_searched() -> None:
    values = [f"{i} GB/s" for i in range(1, 101)]
    vary = {
        "dram.bandwidth": values, "matrix.rows": list(range(1, 101)), "matrix.cols": list(range(1, 101)),
        "dram.latency": [f"{i} ns" for i in range(1, 1001)], "dma.setup_cycles": list(range(1000)),
        "vector.lanes": list(range(1, 1000)), "dram.channels": list(range(1, 1000)), "host.mmio": ["1 us", "2 us"],
    }  # fmt: skip
    found = space(vary, search={"budget": 40, "screen": 500})
    assert found.size > 2**59
    study = synthetic(found, SyntheticEstimate()).run(workers=0)
    assert len(study.rows) == 40


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_optuna_learns_objectives_and_constraints(sampler: str) -> None:
    search = {"method": "optuna", "sampler": sampler, "budget": 64}
    study = synthetic(large_space(FEW, search=search, constraints=["latency <= 400 us"])).run(workers=0)
    assert len(study.rows) == 64
    assert study.front()


@pytest.mark.parametrize("allowed", [[], [1], [3, 9]])
@pytest.mark.parametrize("budget", [1, 100])
def test_optuna_ends_after_so_many_rounds_without_a_new_design(
    budget: int, allowed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round asks for eight designs, or for those that the budget has left."""
    study, asked = synthetic(large_space(FEW, search={"method": "optuna", "budget": budget})), list[int]()

    def some(numbers: list[int]) -> list[int]:
        asked.append(len(numbers))
        return numbers[:1] if len(asked) in allowed else []

    monkeypatch.setattr(study.screen, "allowed", some)
    study.run(workers=0)
    assert len(study.rows) == min(len(allowed), budget)
    if budget <= len(allowed):
        assert len(asked) == allowed[budget - 1]
    else:
        assert len(asked) == max(allowed, default=0) + bayes.IDLE
    assert max(asked) <= min(bayes.ROUND, budget)


def test_optuna_does_better_than_chance() -> None:
    reference = whole(large_space(FEW)).min(axis=0) * 8

    def found(sampler: str) -> float:
        search = {"method": "optuna", "sampler": sampler, "budget": 100}
        return hypervolume(points_of(synthetic(large_space(FEW, search=search)).run(workers=0)), reference)

    assert found("tpe") > found("random")


def test_halving_of_simulated_designs_finds_what_all_of_them_show() -> None:
    """240 designs of a small network, all simulated, and a tenth of them found by halving."""
    vary = {
        "matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16, 32, 64],
        "sram.bytes": ["16 KiB", "64 KiB", "256 KiB"], "dram.bandwidth": ["1 GB/s", "4 GB/s", "8 GB/s", "16 GB/s"],
    }  # fmt: skip
    model, fixed = small_model(), {"technology.node": "22 nm", "area.phy": "0.1 mm2", "sram.banks": 4}
    everything = Study(space(vary, [model], set=fixed, search={"method": "exhaustive"})).run(workers=0)
    assert len(everything.rows) == 240
    study = Study(space(vary, [model], set=fixed, search={"method": "halving", "budget": 24})).run(workers=0)
    assert len(study.rows) <= 24
    assert all(row == everything.rows[number] for number, row in study.rows.items())
    points = np.array([everything.objectives.of(row) for row in everything.rows.values()])
    reference = points.max(axis=0)
    exhaustive = hypervolume(points, reference)
    assert hypervolume(points_of(study), reference) >= 0.95 * exhaustive


def test_neighbours_differ_in_one_place() -> None:
    found = space(
        {"matrix.rows": [1, 2, 3], "matrix.dataflow": ["weight_stationary", "output_stationary", "input_stationary"]}
    )
    number = found.number((0, 1, 0))
    assert {found.places(n) for n in neighbours(found, number)} == {(0, 0, 0), (0, 2, 0), (0, 1, 1), (0, 1, 2)}


def _dominates(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=40))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int, int]]) -> None:
    mask = non_dominated(np.array(points, float).reshape(len(points), 3))
    assert mask.tolist() == [not any(_dominates(other, point) for other in points) for point in points]


def test_points_with_unknown_objectives_are_never_on_the_front() -> None:
    assert non_dominated(np.array([[np.nan, 0.0], [1.0, 1.0]])).tolist() == [False, True]


def test_a_margin_keeps_what_may_be_as_good() -> None:
    points = np.array([[1.0, 1.0], [1.1, 1.1], [1.3, 1.3], [1.3, 0.9]])
    assert non_dominated(points, 0.2).tolist() == [True, True, False, True]


def test_layers_come_one_after_the_other_and_spread() -> None:
    points = np.array([[float(i), 9.0 - i] for i in range(10)] + [[float(i) + 20, 29.0 - i] for i in range(10)])
    assert sorted(layers(points, 10)) == list(range(10))
    assert {0, 9} <= set(spread(points[:10], 3).tolist())
    assert len(layers(points, 13)) == 13


VALUES = st.sampled_from([-np.inf, -9.0, -1.0, -1e-300, 0.0, 1e-300, 1.0, 9.0, np.inf, np.nan])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=20), st.sampled_from([0.0, 0.25, 8.0]))
def test_a_margin_keeps_the_front_whatever_the_signs(points: list[tuple[float, float]], margin: float) -> None:
    """Otherwise a point could be dominated by itself, and the layers of points would not end."""
    array = np.array(points, float).reshape(len(points), 2)
    with np.errstate(invalid="ignore"):
        assert (non_dominated(array, margin) >= non_dominated(array)).all()
        assert len(layers(array, 99, margin)) == np.count_nonzero(~np.isnan(array).any(axis=1))


@pytest.mark.parametrize("objective", ["-cycles", "cycles + 1 / (2 - 2)", "cycles * (0 - 3)", "1 / (cycles - cycles)"])
def test_objectives_may_be_negative_or_divide_by_zero(objective: str) -> None:
    vary = {"matrix.rows": [4, 8, 16, 32], "matrix.cols": [4, 8, 16, 32]}
    found = space(vary, objectives=[objective], search={"method": "halving", "budget": 6})
    study = Study(found, evaluate=Synthetic(), estimate=SyntheticEstimate(), area=synthetic_area).run(workers=0)
    assert 0 < len(study.rows) <= 6
